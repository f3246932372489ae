//! Objects as JSON values: reading the common fields, and encoding with a place for the version.

use regatta_kit::{ApiError, Object};
use regatta_store::{Body, Entry, Key};
use regatta_types::Timestamp;
use serde_json::{Map, Value};

use crate::error::bad_request;

/// `metadata`, made when missing.
pub(crate) fn meta_mut(object: &mut Value) -> Result<&mut Map<String, Value>, ApiError> {
    let object = object.as_object_mut().ok_or_else(|| bad_request("the body is not an object"))?;
    let meta = object.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    if meta.is_null() {
        *meta = Value::Object(Map::new());
    }
    meta.as_object_mut().ok_or_else(|| bad_request("metadata is not an object"))
}

pub(crate) fn meta_str<'a>(object: &'a Value, field: &str) -> &'a str {
    object["metadata"][field].as_str().unwrap_or_default()
}

pub(crate) fn has_finalizers(object: &Value) -> bool {
    object["metadata"]["finalizers"].as_array().is_some_and(|finalizers| !finalizers.is_empty())
}

pub(crate) fn is_being_deleted(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

pub(crate) fn time(at: Timestamp) -> Value {
    Value::from(at.to_string())
}

/// Sets or, for none, removes a field of the metadata.
pub(crate) fn set_meta(object: &mut Value, field: &str, value: Option<Value>) -> Result<(), ApiError> {
    let meta = meta_mut(object)?;
    match value {
        Some(value) if !value.is_null() => meta.insert(field.to_owned(), value),
        _ => meta.remove(field),
    };
    Ok(())
}

/// Parses a stored object.
pub(crate) fn parse(entry: &Entry) -> Result<Value, ApiError> {
    serde_json::from_slice(&entry.json)
        .map_err(|e| ApiError::internal(format!("the stored {} cannot be read: {e}", entry.key)))
}

/// Parses what a caller of the kit's door passes.
pub(crate) fn parse_object(object: &Object) -> Result<Value, ApiError> {
    serde_json::from_slice(&object.0).map_err(|e| bad_request(format!("the body is not JSON: {e}")))
}

/// Encodes an object for the store: metadata first, with a place for the version the store gives.
pub(crate) fn encode(key: &Key, mut object: Value) -> Result<Body, ApiError> {
    let head = r#"{"metadata":{"resourceVersion":""#;
    let meta = std::mem::take(meta_mut(&mut object)?);
    let Some(fields) = object.as_object_mut() else { return Err(bad_request("the body is not an object")) };
    fields.remove("metadata");
    let fail = |e: serde_json::Error| ApiError::internal(format!("{key} cannot be encoded: {e}"));
    let mut json = Vec::with_capacity(512);
    json.extend_from_slice(head.as_bytes());
    json.push(b'"');
    for (name, value) in meta.iter().filter(|(name, _)| *name != "resourceVersion") {
        json.push(b',');
        serde_json::to_writer(&mut json, name).map_err(fail)?;
        json.push(b':');
        serde_json::to_writer(&mut json, value).map_err(fail)?;
    }
    json.push(b'}');
    for (name, value) in fields.iter() {
        json.push(b',');
        serde_json::to_writer(&mut json, name).map_err(fail)?;
        json.push(b':');
        serde_json::to_writer(&mut json, value).map_err(fail)?;
    }
    json.push(b'}');
    Body::new(key, json, head.len()).map_err(|error| bad_request(error.to_string()))
}

/// Whether two states of an object differ in anything but their version.
pub(crate) fn same_but_version(a: &Value, b: &Value) -> bool {
    let (Some(a), Some(b)) = (a.as_object(), b.as_object()) else { return a == b };
    let others = |object: &Map<String, Value>| object.iter().filter(|(name, _)| *name != "metadata").count();
    let same_fields = others(a) == others(b)
        && a.iter().filter(|(name, _)| *name != "metadata").all(|(name, value)| b.get(name) == Some(value));
    let empty = Map::new();
    let meta = |object: &Map<String, Value>| object.get("metadata").and_then(Value::as_object).cloned();
    let (mut a, mut b) = (meta(a).unwrap_or_else(|| empty.clone()), meta(b).unwrap_or(empty));
    a.remove("resourceVersion");
    b.remove("resourceVersion");
    same_fields && a == b
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_version_is_no_difference() {
        let a = json!({"kind": "A", "metadata": {"name": "x", "resourceVersion": "1"}, "spec": {}});
        let mut b = a.clone();
        b["metadata"]["resourceVersion"] = "2".into();
        assert!(same_but_version(&a, &b));
        b["metadata"]["labels"] = json!({"a": "b"});
        assert!(!same_but_version(&a, &b));
        assert!(!same_but_version(&a, &json!({"kind": "A", "metadata": {"name": "x"}})));
    }

    #[test]
    fn an_object_is_encoded_whole() {
        let key = Key::new("configmaps", "ns", "a");
        let object = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "a", "resourceVersion": "9", "uid": "u"}, "data": {"k": "v"}});
        let store = regatta_store::Store::in_memory();
        let write = regatta_store::Write::put(
            key.clone(),
            regatta_store::Expect::Absent,
            encode(&key, object.clone()).unwrap(),
        );
        let entries = store.commit(vec![write]).unwrap().wait().unwrap();
        let stored = parse(&entries[0]).unwrap();
        assert!(same_but_version(&stored, &object));
        assert_eq!(stored["metadata"]["resourceVersion"], "1");
    }
}
