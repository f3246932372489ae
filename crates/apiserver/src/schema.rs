//! Structural schemas: from Rust types to OpenAPI, and checking objects against them.
//!
//! A schema answers two questions: which fields exist (for `kubectl explain` and for telling people which field they
//! meant), and what type a value has. Everything finer is checked by the type itself when the object is decoded.

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

/// Keeps whatever is below it; nothing there is unknown.
const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";
/// Depth below which a schema is cut off: the types have none so deep, so only a recursive one could reach it.
const DEPTH_MAX: usize = 24;

/// The schema of a Rust type with all references resolved.
pub fn of<T: schemars::JsonSchema>() -> Value {
    let settings = SchemaSettings::openapi3().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let schema = settings.into_generator().into_root_schema_for::<T>();
    structural(&schema.to_value(), 0)
}

/// Any JSON schema in the form that clients of Kubernetes can read.
pub(crate) fn sanitized(schema: &Value) -> Value {
    structural(schema, 0)
}

/// Kubernetes' dialect: no `anyOf` with null, no titles, no numeric formats that it does not know.
fn structural(schema: &Value, depth: usize) -> Value {
    let Some(schema) = schema.as_object().filter(|_| depth < DEPTH_MAX) else { return open() };
    if let Some(inner) = nullable_inner(schema) {
        let mut inner = structural(inner, depth + 1);
        if let (Some(description), Some(target)) = (schema.get("description"), inner.as_object_mut()) {
            target.insert("description".to_owned(), description.clone());
        }
        return inner;
    }
    let mut out = Map::new();
    if let Some(words) = words_of(schema) {
        let description = schema.get("description").map(|text| ("description".to_owned(), text.clone()));
        out.extend(description);
        out.insert("type".to_owned(), Value::from("string"));
        out.insert("enum".to_owned(), Value::from(words));
        return Value::Object(out);
    }
    for name in ["description", "enum", "required", "default"] {
        if let Some(value) = schema.get(name) {
            out.insert(name.to_owned(), value.clone());
        }
    }
    if let Some(Value::Array(values)) = out.get_mut("enum") {
        values.retain(|value| !value.is_null());
    }
    let kind = type_of(schema);
    if let Some(kind) = kind {
        out.insert("type".to_owned(), Value::from(kind));
    } else if schema.get("enum").is_some() {
        out.insert("type".to_owned(), Value::from("string"));
    } else {
        out.insert(PRESERVE.to_owned(), Value::from(true));
    }
    if let Some(format) =
        schema.get("format").and_then(Value::as_str).filter(|f| matches!(*f, "date-time" | "int32" | "int64"))
    {
        out.insert("format".to_owned(), Value::from(format));
    }
    if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
        let properties = properties.iter().map(|(name, value)| (name.clone(), structural(value, depth + 1)));
        out.insert("properties".to_owned(), Value::Object(properties.collect()));
    }
    if let Some(items) = schema.get("items") {
        out.insert("items".to_owned(), structural(items, depth + 1));
    }
    if let Some(values) = schema.get("additionalProperties").filter(|values| values.is_object()) {
        out.insert("additionalProperties".to_owned(), structural(values, depth + 1));
    }
    // A union of several shapes is left open: the type itself decides.
    if schema.contains_key("oneOf") || schema.contains_key("anyOf") {
        out.remove("type");
        out.insert(PRESERVE.to_owned(), Value::from(true));
    }
    Value::Object(out)
}

fn open() -> Value {
    json!({"type": "object", PRESERVE: true})
}

/// The one schema beside null, where a schema is "this or null".
fn nullable_inner(schema: &Map<String, Value>) -> Option<&Value> {
    let choices =
        schema.get("anyOf").or_else(|| schema.get("oneOf")).or_else(|| schema.get("allOf"))?.as_array()?;
    let mut others =
        choices.iter().filter(|choice| choice["type"] != "null" && choice["enum"] != json!([null]));
    match (others.next(), others.next()) {
        (Some(only), None) => Some(only),
        _ => None,
    }
}

/// The words of a choice whose variants are documented one by one.
fn words_of(schema: &Map<String, Value>) -> Option<Vec<Value>> {
    let choices = schema.get("oneOf").or_else(|| schema.get("anyOf"))?.as_array()?;
    let mut words = Vec::new();
    for choice in choices.iter().filter(|choice| choice["type"] != "null") {
        match (&choice["const"], &choice["enum"]) {
            (word @ Value::String(_), _) => words.push(word.clone()),
            (_, Value::Array(some)) if some.iter().all(Value::is_string) => {
                words.extend(some.iter().cloned());
            }
            _ => return None,
        }
    }
    Some(words).filter(|words| !words.is_empty())
}

fn type_of(schema: &Map<String, Value>) -> Option<&str> {
    match schema.get("type")? {
        Value::String(kind) => Some(kind),
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).find(|kind| *kind != "null"),
        _ => None,
    }
}

/// Marks a property as open below: its fields are somebody else's.
pub(crate) fn leave_open(schema: &mut Value, path: &[&str]) {
    match path {
        [] => {
            if let Some(schema) = schema.as_object_mut() {
                schema.insert(PRESERVE.to_owned(), Value::from(true));
            }
        }
        ["[]", rest @ ..] => leave_open(&mut schema["items"], rest),
        [name, rest @ ..] => leave_open(&mut schema["properties"][*name], rest),
    }
}

/// What is wrong with an object.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Findings {
    /// Values of the wrong type.
    pub(crate) wrong: Vec<String>,
    /// Fields that do not exist, with the nearest one that does.
    pub(crate) unknown: Vec<String>,
}

/// Checks `value` against `schema`.
pub(crate) fn check(schema: &Value, value: &Value) -> Findings {
    let mut findings = Findings::default();
    walk(schema, value, "", &mut findings);
    findings
}

fn walk(schema: &Value, value: &Value, path: &str, findings: &mut Findings) {
    if value.is_null() {
        return;
    }
    if let Some(expected) = schema["type"].as_str()
        && !has_type(value, expected)
    {
        let found = type_name(value);
        findings.wrong.push(format!(
            "{}: expected {expected}, found {found}",
            if path.is_empty() { "object" } else { path }
        ));
        return;
    }
    if let Some(allowed) = schema["enum"].as_array()
        && !allowed.contains(value)
    {
        let allowed: Vec<String> = allowed.iter().map(Value::to_string).collect();
        findings.wrong.push(format!("{path}: {value} is not one of {}", allowed.join(", ")));
    }
    if schema[PRESERVE] == true {
        return;
    }
    match value {
        Value::Object(fields) => walk_fields(schema, fields, path, findings),
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                walk(&schema["items"], item, &format!("{path}[{index}]"), findings);
            }
        }
        _ => {}
    }
}

fn walk_fields(schema: &Value, fields: &Map<String, Value>, path: &str, findings: &mut Findings) {
    let known = schema["properties"].as_object();
    for (name, value) in fields {
        let below = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        match known.and_then(|known| known.get(name)) {
            Some(schema) => walk(schema, value, &below, findings),
            None if schema["additionalProperties"].is_object() => {
                walk(&schema["additionalProperties"], value, &below, findings);
            }
            None if known.is_none() => {}
            None => {
                let names = known.into_iter().flat_map(Map::keys).map(String::as_str);
                let hint = nearest(name, names)
                    .map_or_else(String::new, |near| format!(" (did you mean {near:?}?)"));
                findings.unknown.push(format!("unknown field {below:?}{hint}"));
            }
        }
    }
}

/// Removes fields that do not exist.
pub(crate) fn prune(schema: &Value, value: &mut Value) {
    if schema[PRESERVE] == true {
        return;
    }
    match value {
        Value::Object(fields) => {
            if let Some(known) = schema["properties"].as_object() {
                let open = schema["additionalProperties"].is_object();
                fields.retain(|name, _| open || known.contains_key(name));
                for (name, value) in fields.iter_mut() {
                    prune(known.get(name).unwrap_or(&schema["additionalProperties"]), value);
                }
            } else if schema["additionalProperties"].is_object() {
                fields.values_mut().for_each(|value| prune(&schema["additionalProperties"], value));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| prune(&schema["items"], item)),
        _ => {}
    }
}

fn has_type(value: &Value, expected: &str) -> bool {
    match expected {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        _ => true,
    }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// The name that was probably meant.
fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let close = |known: &&str| strsim::damerau_levenshtein(&name.to_lowercase(), &known.to_lowercase());
    known
        .map(|known| (close(&known), known))
        .filter(|(distance, known)| *distance <= 1 + known.len() / 4)
        .min()
        .map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;
    use regatta_types::job::JobSpec;

    fn schema() -> Value {
        let mut schema = json!({"type": "object", "properties": {"spec": of::<JobSpec>()}});
        leave_open(&mut schema, &["spec", "roles", "[]", "template"]);
        schema
    }

    #[expect(clippy::needless_pass_by_value, reason = "a table reads better without ampersands")]
    fn check(value: Value, wrong: &[&str], unknown: &[&str]) {
        let findings = super::check(&schema(), &value);
        assert_eq!(
            (findings.wrong, findings.unknown),
            (
                wrong.iter().map(ToString::to_string).collect(),
                unknown.iter().map(ToString::to_string).collect()
            ),
            "{value}"
        );
    }

    #[test]
    fn objects_are_checked() {
        check(
            json!({"spec": {"queue": "a", "roles": [{"name": "worker", "replicas": 2, "procsPerNode": null}]}}),
            &[],
            &[],
        );
        check(
            json!({"spec": {"quue": "a"}}),
            &[],
            &["unknown field \"spec.quue\" (did you mean \"queue\"?)"],
        );
        check(json!({"spec": {"zzzzzz": 1}}), &[], &["unknown field \"spec.zzzzzz\""]);
        check(
            json!({"spec": {"roles": [{"replicas": "2"}]}}),
            &["spec.roles[0].replicas: expected integer, found string"],
            &[],
        );
        check(json!({"spec": {"roles": {}}}), &["spec.roles: expected array, found object"], &[]);
        check(
            json!({"spec": {"launcher": "mpi"}}),
            &["spec.launcher: \"mpi\" is not one of \"auto\", \"torchrun\", \"ranks\", \"none\""],
            &[],
        );
        check(json!({"spec": {"roles": [{"template": {"spec": {"whatever": 1}}}]}}), &[], &[]);
        check(
            json!({"spec": {"limits": {"runtimeSecond": 5}}}),
            &[],
            &["unknown field \"spec.limits.runtimeSecond\" (did you mean \"runtimeSeconds\"?)"],
        );
    }
}
