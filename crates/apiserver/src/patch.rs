//! Patches: JSON Patch, JSON Merge Patch, and strategic merge for the kinds whose lists are keyed.
//!
//! The merge keys are those of the Kubernetes API types (`patchMergeKey` in their definitions).

use regatta_kit::ApiError;
use serde_json::{Map, Value};

use crate::error::{bad_request, refuse};

/// How to read the body of a patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PatchType {
    /// RFC 6902.
    Json,
    /// RFC 7386.
    Merge,
    /// Merge with keyed lists.
    Strategic,
}

/// Most operations in a JSON Patch.
const OPERATIONS_MAX: usize = 10_000;

/// `object` after the patch.
pub(crate) fn apply(kind: PatchType, object: &Value, patch: &Value) -> Result<Value, ApiError> {
    let mut patched = object.clone();
    match kind {
        PatchType::Json => {
            let patch: json_patch::Patch = serde_json::from_value(patch.clone())
                .map_err(|e| bad_request(format!("the body is not a JSON Patch: {e}")))?;
            if patch.0.len() > OPERATIONS_MAX {
                return Err(refuse(
                    413,
                    "RequestEntityTooLarge",
                    format!("a JSON Patch has at most {OPERATIONS_MAX} operations"),
                ));
            }
            json_patch::patch(&mut patched, &patch)
                .map_err(|e| refuse(422, "Invalid", format!("the JSON Patch cannot be applied: {e}")))?;
        }
        PatchType::Merge => json_patch::merge(&mut patched, patch),
        PatchType::Strategic => strategic(&mut patched, patch)?,
    }
    Ok(patched)
}

/// Merge keys by the name of the list; more than one where the API uses the name twice.
fn merge_keys(list: &str) -> &'static [&'static str] {
    match list {
        "containers"
        | "initContainers"
        | "ephemeralContainers"
        | "volumes"
        | "env"
        | "imagePullSecrets"
        | "resourceClaims" => &["name"],
        "volumeMounts" => &["mountPath"],
        "volumeDevices" => &["devicePath"],
        "ports" => &["containerPort", "port"],
        "conditions" | "addresses" => &["type"],
        "ownerReferences" => &["uid"],
        "podIPs" | "hostAliases" => &["ip"],
        "taints" => &["key"],
        "secrets" => &["name"],
        "topologySpreadConstraints" => &["topologyKey"],
        _ => &[],
    }
}

/// Lists of plain values that are merged as sets.
fn is_set(list: &str) -> bool {
    matches!(list, "finalizers")
}

fn strategic(target: &mut Value, patch: &Value) -> Result<(), ApiError> {
    let Some(patch) = patch.as_object() else {
        *target = patch.clone();
        return Ok(());
    };
    if patch.get("$patch").and_then(Value::as_str) == Some("replace") {
        let mut replacement = patch.clone();
        replacement.remove("$patch");
        *target = Value::Object(replacement);
        return Ok(());
    }
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Some(object) = target.as_object_mut() else { return Ok(()) };
    if let Some(keep) = patch.get("$retainKeys").and_then(Value::as_array) {
        object.retain(|name, _| keep.iter().any(|kept| kept.as_str() == Some(name)));
    }
    for (name, value) in patch {
        if let Some(list) = name.strip_prefix("$deleteFromPrimitiveList/") {
            if let (Some(items), Some(gone)) =
                (object.get_mut(list).and_then(Value::as_array_mut), value.as_array())
            {
                items.retain(|item| !gone.contains(item));
            }
        } else if name.starts_with('$') {
            // `$setElementOrder/…` only says how to order what the merge keeps; the order of the list is kept instead.
        } else if value.is_null() {
            object.remove(name);
        } else if let Some(items) = value.as_array() {
            let list = object.entry(name.clone()).or_insert_with(|| Value::Array(Vec::new()));
            merge_list(list, items, name)?;
        } else {
            strategic(object.entry(name.clone()).or_insert(Value::Null), value)?;
        }
    }
    Ok(())
}

fn merge_list(target: &mut Value, patch: &[Value], field: &str) -> Result<(), ApiError> {
    let replaces = patch
        .iter()
        .any(|item| item["$patch"] == "replace" && item.as_object().is_some_and(|o| o.len() == 1));
    if is_set(field) && target.is_array() && !replaces {
        if let Some(items) = target.as_array_mut() {
            for item in patch.iter().filter(|item| !item.is_object()) {
                if !items.contains(item) {
                    items.push(item.clone());
                }
            }
        }
        return Ok(());
    }
    let key = merge_keys(field).iter().find(|key| patch.iter().any(|item| item.get(**key).is_some()));
    let (Some(key), Some(items), false) = (key, target.as_array_mut(), replaces) else {
        let kept = patch.iter().filter(|item| item["$patch"] != "replace").cloned().collect();
        *target = Value::Array(kept);
        return Ok(());
    };
    for item in patch {
        let Some(id) = item.get(*key) else {
            return Err(bad_request(format!("an item of {field} has no {key}, by which the list is merged")));
        };
        if item["$patch"] == "delete" {
            items.retain(|known| known.get(*key) != Some(id));
        } else if let Some(known) = items.iter_mut().find(|known| known.get(*key) == Some(id)) {
            strategic(known, item)?;
        } else {
            items.push(item.clone());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[expect(clippy::needless_pass_by_value, reason = "a table reads better without ampersands")]
    fn check(kind: PatchType, object: Value, patch: Value, expected: Value) {
        assert_eq!(apply(kind, &object, &patch).unwrap(), expected, "{patch}");
    }

    #[test]
    fn keyed_lists_are_merged_by_key() {
        use PatchType::Strategic;
        let pod = json!({"spec": {"containers": [{"name": "a", "image": "1", "env": [{"name": "X", "value": "1"}]}, {"name": "b"}]}});
        check(
            Strategic,
            pod.clone(),
            json!({"spec": {"containers": [{"name": "a", "env": [{"name": "Y", "value": "2"}]}], "$setElementOrder/containers": [{"name": "a"}, {"name": "b"}]}}),
            json!({"spec": {"containers": [{"name": "a", "image": "1", "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}]}, {"name": "b"}]}}),
        );
        check(
            Strategic,
            pod.clone(),
            json!({"spec": {"containers": [{"name": "a", "$patch": "delete"}]}}),
            json!({"spec": {"containers": [{"name": "b"}]}}),
        );
        check(
            Strategic,
            pod,
            json!({"spec": {"containers": [{"$patch": "replace"}, {"name": "c"}]}}),
            json!({"spec": {"containers": [{"name": "c"}]}}),
        );
    }

    #[test]
    fn other_values_as_in_a_merge_patch() {
        use PatchType::{Merge, Strategic};
        for kind in [Merge, Strategic] {
            check(
                kind,
                json!({"a": {"b": 1, "c": 2}}),
                json!({"a": {"b": null, "d": 3}}),
                json!({"a": {"c": 2, "d": 3}}),
            );
            check(kind, json!({"args": [1, 2]}), json!({"args": [3]}), json!({"args": [3]}));
            check(
                kind,
                json!({}),
                json!({"metadata": {"labels": {"x": "y"}}}),
                json!({"metadata": {"labels": {"x": "y"}}}),
            );
        }
        check(
            Strategic,
            json!({"finalizers": ["a"]}),
            json!({"finalizers": ["b"]}),
            json!({"finalizers": ["a", "b"]}),
        );
        check(
            Strategic,
            json!({"finalizers": ["a", "b"]}),
            json!({"$deleteFromPrimitiveList/finalizers": ["a"]}),
            json!({"finalizers": ["b"]}),
        );
        check(
            Strategic,
            json!({"emptyDir": {}, "name": "v"}),
            json!({"$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/"}}),
            json!({"name": "v", "hostPath": {"path": "/"}}),
        );
    }

    #[test]
    fn json_patches() {
        check(
            PatchType::Json,
            json!({"a": 1}),
            json!([{"op": "replace", "path": "/a", "value": 2}]),
            json!({"a": 2}),
        );
        assert_eq!(
            apply(PatchType::Json, &json!({}), &json!([{"op": "test", "path": "/a", "value": 2}]))
                .unwrap_err()
                .code,
            422
        );
        assert_eq!(apply(PatchType::Json, &json!({}), &json!({"a": 1})).unwrap_err().code, 400);
    }
}
