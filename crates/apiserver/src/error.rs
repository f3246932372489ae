//! Refusals as Kubernetes words them, and how they look on the wire.

use regatta_kit::ApiError;
use regatta_store::Error as StoreError;
use regatta_types::Resource;
use serde_json::{Value, json};

pub(crate) fn refuse(code: u16, reason: &str, message: impl Into<String>) -> ApiError {
    ApiError { code, reason: reason.to_owned(), message: message.into() }
}

pub(crate) fn bad_request(message: impl Into<String>) -> ApiError {
    refuse(400, "BadRequest", message)
}

pub(crate) fn invalid(resource: &Resource, name: &str, problem: impl AsRef<str>) -> ApiError {
    refuse(
        422,
        "Invalid",
        format!("{} {name:?} is invalid: {}", qualified(resource, resource.kind), problem.as_ref()),
    )
}

pub(crate) fn not_found(resource: &Resource, name: &str) -> ApiError {
    refuse(404, "NotFound", format!("{} {name:?} not found", qualified(resource, resource.plural)))
}

pub(crate) fn already_exists(resource: &Resource, name: &str) -> ApiError {
    refuse(409, "AlreadyExists", format!("{} {name:?} already exists", qualified(resource, resource.plural)))
}

pub(crate) fn conflict(resource: &Resource, name: &str, problem: &str) -> ApiError {
    let what = qualified(resource, resource.plural);
    refuse(409, "Conflict", format!("Operation cannot be fulfilled on {what} {name:?}: {problem}"))
}

pub(crate) fn changed(resource: &Resource, name: &str) -> ApiError {
    conflict(
        resource,
        name,
        "the object has been modified; please apply your changes to the latest version and try again",
    )
}

pub(crate) fn method_not_allowed(what: &str) -> ApiError {
    refuse(405, "MethodNotAllowed", format!("the server does not allow this method on {what}"))
}

pub(crate) fn no_such_resource() -> ApiError {
    refuse(404, "NotFound", "the server could not find the requested resource")
}

fn qualified(resource: &Resource, word: &str) -> String {
    if resource.group.is_empty() { word.to_owned() } else { format!("{word}.{}", resource.group) }
}

/// What a refusal of the store means to a client.
pub(crate) fn from_store(resource: &Resource, name: &str, error: &StoreError) -> ApiError {
    match error {
        StoreError::Conflict { expected: 0, .. } => already_exists(resource, name),
        StoreError::Conflict { found: 0, .. } => not_found(resource, name),
        StoreError::Conflict { .. } => changed(resource, name),
        StoreError::TooLarge { .. } => refuse(413, "RequestEntityTooLarge", error.to_string()),
        StoreError::BadObject { .. } => bad_request(error.to_string()),
        StoreError::Overloaded { .. } => refuse(429, "TooManyRequests", error.to_string()),
        StoreError::NotDurable { full: true, .. } => refuse(507, "InsufficientStorage", error.to_string()),
        StoreError::Expired { .. } => refuse(410, "Expired", error.to_string()),
        StoreError::Future { .. } => refuse(504, "Timeout", format!("Too large resource version: {error}")),
        StoreError::Closed => refuse(503, "ServiceUnavailable", error.to_string()),
        _ => ApiError::internal(error.to_string()),
    }
}

/// A `Status` object that says no.
pub(crate) fn to_status(error: &ApiError) -> Value {
    let mut status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": error.message, "reason": error.reason, "code": error.code,
    });
    if error.code == 429 || error.code == 504 {
        status["details"] = json!({"retryAfterSeconds": 1});
    }
    status
}
