//! Label and field selectors, as `kubectl -l` and `--field-selector` write them.

use regatta_kit::ApiError;
use regatta_store::Entry;
use serde_json::Value;

use crate::error::bad_request;

/// Most requirements in one selector.
const REQUIREMENTS_MAX: usize = 100;

#[derive(Debug, Clone, PartialEq, Eq)]
enum LabelRequirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    NotExists(String),
}

/// What objects a client wants to see.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Selector {
    labels: Vec<LabelRequirement>,
    /// Path, whether it shall be equal, value.
    fields: Vec<(String, Wanted, String)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Equal,
    Different,
}

impl Selector {
    /// Parses both kinds. `known` lists the fields that may be selected beside name and namespace.
    pub(crate) fn parse(
        labels: Option<&str>,
        fields: Option<&str>,
        known: &[&str],
    ) -> Result<Self, ApiError> {
        let labels = parse_labels(labels.unwrap_or_default())?;
        let fields = parse_fields(fields.unwrap_or_default(), known)?;
        if labels.len() + fields.len() > REQUIREMENTS_MAX {
            return Err(bad_request(format!("a selector has at most {REQUIREMENTS_MAX} requirements")));
        }
        Ok(Self { labels, fields })
    }

    /// Whether everything is selected.
    pub(crate) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// The one name that can match, if the selector names one.
    pub(crate) fn single_name(&self) -> Option<&str> {
        let named = |(path, wanted, value): &'_ &(String, Wanted, String)| {
            path == "metadata.name" && *wanted == Wanted::Equal && !value.is_empty()
        };
        self.fields.iter().find(named).map(|(_, _, value)| value.as_str())
    }

    pub(crate) fn matches(&self, entry: &Entry) -> bool {
        self.labels.iter().all(|requirement| matches_label(requirement, entry)) && self.matches_fields(entry)
    }

    fn matches_fields(&self, entry: &Entry) -> bool {
        let mut parsed: Option<Value> = None;
        self.fields.iter().all(|(path, wanted, value)| {
            let equal = match path.as_str() {
                "metadata.name" => *entry.key.path.name == **value,
                "metadata.namespace" => *entry.key.path.namespace == **value,
                _ => {
                    let object =
                        parsed.get_or_insert_with(|| serde_json::from_slice(&entry.json).unwrap_or_default());
                    field(object, path) == *value
                }
            };
            equal == (*wanted == Wanted::Equal)
        })
    }
}

/// A field as selectors compare it: text as it is, nothing as the empty text.
fn field(object: &Value, path: &str) -> String {
    let found = path.split('.').fold(object, |value, name| &value[name]);
    match found {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn matches_label(requirement: &LabelRequirement, entry: &Entry) -> bool {
    let get = |key: &String| entry.header.label(key);
    match requirement {
        LabelRequirement::In(key, values) => get(key).is_some_and(|value| values.iter().any(|v| v == value)),
        LabelRequirement::NotIn(key, values) => {
            get(key).is_none_or(|value| values.iter().all(|v| v != value))
        }
        LabelRequirement::Exists(key) => get(key).is_some(),
        LabelRequirement::NotExists(key) => get(key).is_none(),
    }
}

/// Splits at commas that are not inside parentheses.
fn split_requirements(text: &str) -> Vec<&str> {
    let mut depth = 0_i32;
    text.split(move |c: char| {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        c == ',' && depth <= 0
    })
    .map(str::trim)
    .filter(|part| !part.is_empty())
    .collect()
}

fn parse_labels(text: &str) -> Result<Vec<LabelRequirement>, ApiError> {
    let bad = |part: &str, problem: &str| {
        bad_request(format!("unable to parse requirement {part:?} of the label selector: {problem}"))
    };
    split_requirements(text)
        .into_iter()
        .map(|part| {
            let parsed = parse_set(part).or_else(|| parse_equality(part));
            let parsed = parsed.or_else(|| match part.strip_prefix('!') {
                Some(key) => Some(LabelRequirement::NotExists(key.trim().to_owned())),
                None => Some(LabelRequirement::Exists(part.to_owned())),
            });
            let parsed = parsed.ok_or_else(|| bad(part, "write key=value, key in (a,b), key or !key"))?;
            let (LabelRequirement::In(key, _)
            | LabelRequirement::NotIn(key, _)
            | LabelRequirement::Exists(key)
            | LabelRequirement::NotExists(key)) = &parsed;
            if is_label_key(key) {
                Ok(parsed)
            } else {
                Err(bad(part, &format!("{key:?} is not a label key")))
            }
        })
        .collect()
}

fn parse_set(part: &str) -> Option<LabelRequirement> {
    let (head, values) = part.strip_suffix(')')?.split_once('(')?;
    let values = values.split(',').map(|value| value.trim().to_owned()).collect();
    let mut words = head.split_whitespace();
    let (key, operator) = (words.next()?.to_owned(), words.next()?);
    match (operator, words.next()) {
        ("in", None) => Some(LabelRequirement::In(key, values)),
        ("notin", None) => Some(LabelRequirement::NotIn(key, values)),
        _ => None,
    }
}

fn parse_equality(part: &str) -> Option<LabelRequirement> {
    let one = |key: &str, value: &str| (key.trim().to_owned(), vec![value.trim().to_owned()]);
    if let Some((key, value)) = part.split_once("!=") {
        let (key, values) = one(key, value);
        return Some(LabelRequirement::NotIn(key, values));
    }
    let (key, value) = part.split_once("==").or_else(|| part.split_once('='))?;
    let (key, values) = one(key, value);
    Some(LabelRequirement::In(key, values))
}

fn is_label_key(key: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
    !key.is_empty() && key.len() <= 317 && key.chars().all(allowed) && key.matches('/').count() <= 1
}

fn parse_fields(text: &str, known: &[&str]) -> Result<Vec<(String, Wanted, String)>, ApiError> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts
        .map(|part| {
            let (path, wanted, value) = if let Some((path, value)) = part.split_once("!=") {
                (path, Wanted::Different, value)
            } else if let Some((path, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
                (path, Wanted::Equal, value)
            } else {
                return Err(bad_request(format!(
                    "invalid field selector {part:?}; write path=value or path!=value"
                )));
            };
            let allowed = ["metadata.name", "metadata.namespace"];
            if !allowed.contains(&path) && !known.contains(&path) {
                let all = allowed.iter().chain(known).copied().collect::<Vec<_>>().join(", ");
                return Err(bad_request(format!("field label not supported: {path}; these are: {all}")));
            }
            Ok((path.to_owned(), wanted, value.to_owned()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::encode;
    use regatta_store::{Expect, Key, Store, Write};
    use serde_json::json;

    fn check(labels: &str, fields: &str, expected: Option<bool>) {
        let key = Key::new("pods", "ns", "a");
        let object = json!({"metadata": {"name": "a", "labels": {"app": "web", "tier": "front", "x.io/y": ""}}, "status": {"phase": "Running"}});
        let write = Write::put(key.clone(), Expect::Absent, encode(&key, object).unwrap());
        let entry = Store::in_memory().commit(vec![write]).unwrap().wait().unwrap().remove(0);
        let selector = Selector::parse(Some(labels), Some(fields), &["status.phase", "spec.nodeName"]);
        assert_eq!(selector.ok().map(|s| s.matches(&entry)), expected, "{labels:?} {fields:?}");
    }

    #[test]
    fn labels() {
        check("", "", Some(true));
        check("app=web", "", Some(true));
        check("app==web,tier!=back", "", Some(true));
        check("app = web , tier = back", "", Some(false));
        check("app in (db, web),tier notin (back)", "", Some(true));
        check("app notin (web)", "", Some(false));
        check("missing notin (web)", "", Some(true));
        check("app", "", Some(true));
        check("!app", "", Some(false));
        check("!missing,x.io/y=", "", Some(true));
        check("app in web", "", None);
        check("a b=c", "", None);
    }

    #[test]
    fn fields() {
        check("", "metadata.name=a,metadata.namespace!=other", Some(true));
        check("", "status.phase=Running", Some(true));
        check("", "status.phase!=Running", Some(false));
        check("", "spec.nodeName=", Some(true));
        check("", "spec.other=x", None);
        check("", "nonsense", None);
    }
}
