//! What single kinds need before they are stored: defaults, and what may not change.

use crate::error::{bad_request, invalid};
use crate::object::meta_str;
use crate::registry::Kind;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use regatta_kit::ApiError;
use regatta_types::conditions::POD_SCHEDULED;
use regatta_types::{Timestamp, resource};
use serde_json::{Map, Value, json};

pub(crate) fn on_create(kind: &Kind, object: &mut Value) -> Result<(), ApiError> {
    if kind.resource == resource::PODS {
        return new_pod(kind, object);
    }
    if kind.resource == resource::SECRETS {
        fold_string_data(object)?;
        default(object, "type", json!("Opaque"));
    } else if kind.resource == resource::NAMESPACES {
        object["status"] = json!({"phase": "Active"});
    } else if kind.resource == resource::EVENTS {
        let namespace = object["involvedObject"]["namespace"].as_str().unwrap_or_default();
        if !namespace.is_empty() && namespace != meta_str(object, "namespace") {
            let problem = "involvedObject.namespace: does not match metadata.namespace";
            return Err(invalid(&kind.resource, meta_str(object, "name"), problem));
        }
    }
    Ok(())
}

pub(crate) fn on_update(kind: &Kind, old: &Value, new: &mut Value) -> Result<(), ApiError> {
    let name = meta_str(old, "name");
    if kind.resource == resource::SECRETS {
        fold_string_data(new)?;
        default(new, "type", old["type"].clone());
    }
    if [resource::SECRETS, resource::CONFIG_MAPS].contains(&kind.resource) && old["immutable"] == true {
        let same = ["data", "binaryData", "immutable"].iter().all(|field| old.get(*field) == new.get(*field));
        if !same {
            return Err(invalid(
                &kind.resource,
                name,
                "data: Forbidden: field is immutable when `immutable` is set",
            ));
        }
    }
    if kind.resource == resource::PODS && old["spec"] != new["spec"] {
        let problem = "spec: Forbidden: a pod cannot be changed while it exists; create another one";
        return Err(invalid(&kind.resource, name, problem));
    }
    Ok(())
}

fn default(object: &mut Value, field: &str, value: Value) {
    if let Some(fields) = object.as_object_mut() {
        fields.entry(field.to_owned()).or_insert(value);
    }
}

fn new_pod(kind: &Kind, pod: &mut Value) -> Result<(), ApiError> {
    let name = meta_str(pod, "name").to_owned();
    let refuse = |problem: &str| invalid(&kind.resource, &name, problem);
    let spec = pod["spec"].as_object_mut().ok_or_else(|| refuse("spec: Required value"))?;
    if spec.get("containers").and_then(Value::as_array).is_none_or(Vec::is_empty) {
        return Err(refuse("spec.containers: Required value"));
    }
    let mut names = std::collections::BTreeSet::new();
    for list in ["initContainers", "containers"] {
        for container in spec.get(list).and_then(Value::as_array).into_iter().flatten() {
            let container_name = container["name"].as_str().unwrap_or_default();
            if container_name.is_empty() {
                return Err(refuse(&format!("spec.{list}: every container needs a name")));
            }
            if !names.insert(container_name.to_owned()) {
                return Err(refuse(&format!("spec.{list}: Duplicate value: {container_name:?}")));
            }
        }
    }
    for (field, value) in [("restartPolicy", json!("Always")), ("terminationGracePeriodSeconds", json!(30))] {
        spec.entry(field).or_insert(value);
    }
    pod["status"] = json!({"phase": "Pending"});
    Ok(())
}

/// Notes that a pod has a node.
pub(crate) fn set_scheduled(pod: &mut Value, now: Timestamp) {
    let condition = json!({"type": POD_SCHEDULED, "status": "True", "reason": "", "message": "", "lastTransitionTime": now});
    if !pod["status"].is_object() {
        pod["status"] = json!({"phase": "Pending"});
    }
    match pod["status"]["conditions"].as_array_mut() {
        Some(conditions) => {
            conditions.retain(|known| known["type"] != POD_SCHEDULED);
            conditions.push(condition);
        }
        None => pod["status"]["conditions"] = json!([condition]),
    }
}

/// `stringData` becomes part of `data`; it is never shown again.
fn fold_string_data(secret: &mut Value) -> Result<(), ApiError> {
    let Some(fields) = secret.as_object_mut() else { return Ok(()) };
    let Some(plain) = fields.remove("stringData") else { return check_base64(fields) };
    let plain: Map<String, Value> = plain.as_object().cloned().unwrap_or_default();
    let data = fields.entry("data").or_insert_with(|| json!({}));
    if data.is_null() {
        *data = json!({});
    }
    let data = data.as_object_mut().ok_or_else(|| bad_request("data is not an object"))?;
    for (key, value) in plain {
        let text = value.as_str().ok_or_else(|| bad_request(format!("stringData.{key} is not a string")))?;
        data.insert(key, Value::from(STANDARD.encode(text)));
    }
    check_base64(fields)
}

fn check_base64(fields: &Map<String, Value>) -> Result<(), ApiError> {
    for (key, value) in fields.get("data").and_then(Value::as_object).into_iter().flatten() {
        let valid = value.as_str().is_some_and(|text| STANDARD.decode(text).is_ok());
        if !valid {
            return Err(bad_request(format!("data.{key} is not base64; put plain text under stringData")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_secrets_become_base64() {
        let mut secret = json!({"stringData": {"a": "x"}, "data": {"b": "eQ=="}});
        fold_string_data(&mut secret).unwrap();
        assert_eq!(secret, json!({"data": {"a": "eA==", "b": "eQ=="}}));
        assert!(
            fold_string_data(&mut json!({"data": {"a": "not base64!"}}))
                .unwrap_err()
                .message
                .contains("data.a")
        );
        assert!(fold_string_data(&mut json!({"stringData": {"a": 1}})).is_err());
    }
}
