//! One door to the API, whichever server is behind it.

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use regatta_types::{ObjectRef, Resource, Uid};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// An object as the API gave it: JSON bytes. Parse what you need, when you need it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object(pub Bytes);

impl Object {
    /// Serialises `value`.
    ///
    /// # Errors
    /// When `value` cannot be written as JSON.
    pub fn encode<T: Serialize>(value: &T) -> Result<Self, ApiError> {
        serde_json::to_vec(value)
            .map(|bytes| Self(bytes.into()))
            .map_err(|e| ApiError::internal(format!("cannot encode the object: {e}")))
    }

    /// Parses the object.
    ///
    /// # Errors
    /// When the object does not have the shape of `T`.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, ApiError> {
        serde_json::from_slice(&self.0)
            .map_err(|e| ApiError::internal(format!("cannot decode the object: {e}")))
    }
}

/// A page of objects and the version of the state it shows.
#[derive(Debug, Clone)]
pub struct ObjectList {
    /// The objects, ordered by namespace and name.
    pub items: Vec<Object>,
    /// A watch from here misses nothing and repeats nothing.
    pub resource_version: String,
}

/// What to list or watch.
#[derive(Debug, Clone, Default)]
pub struct ListOptions {
    /// Only this namespace; all when none.
    pub namespace: Option<String>,
    /// Label selector as in `kubectl -l`.
    pub label_selector: Option<String>,
    /// Field selector as in `kubectl --field-selector`.
    pub field_selector: Option<String>,
}

/// How to delete.
#[derive(Debug, Clone, Default)]
pub struct DeleteOptions {
    /// Seconds between SIGTERM and SIGKILL; the object's own when none.
    pub grace_period_seconds: Option<i64>,
    /// Delete only if the object still has this uid.
    pub uid: Option<Uid>,
}

/// How to read the body of a patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatchKind {
    /// RFC 7386.
    Merge,
    /// RFC 6902.
    Json,
}

/// A change.
#[derive(Debug, Clone)]
pub enum WatchEvent {
    /// The object was created or came into the selection.
    Added(Object),
    /// The object changed.
    Modified(Object),
    /// The object went or left the selection; its last state.
    Deleted(Object),
    /// Nothing changed up to this resource version.
    Bookmark(String),
}

/// Changes in order, until the connection ends.
pub type WatchStream = BoxStream<'static, Result<WatchEvent, ApiError>>;

/// Why the API said no. Mirrors the Kubernetes `Status` object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// HTTP status; 0 when no answer came (the outcome is then unknown).
    pub code: u16,
    /// One word, such as `NotFound` or `Conflict`.
    pub reason: String,
    /// A sentence.
    pub message: String,
}

impl ApiError {
    /// An error of our own.
    pub fn internal(message: String) -> Self {
        Self { code: 500, reason: "InternalError".to_owned(), message }
    }

    /// No answer came: the request may or may not have taken effect.
    pub fn no_answer(message: String) -> Self {
        Self { code: 0, reason: "NoAnswer".to_owned(), message }
    }

    /// The object does not exist.
    pub fn is_not_found(&self) -> bool {
        self.code == 404
    }

    /// The object has changed since it was read, or exists already, or its precondition fails.
    pub fn is_conflict(&self) -> bool {
        self.code == 409
    }

    /// The object exists already.
    pub fn is_already_exists(&self) -> bool {
        self.code == 409 && self.reason == "AlreadyExists"
    }

    /// The version asked for is too old; list again.
    pub fn is_expired(&self) -> bool {
        self.code == 410
    }

    /// Trying again later may work.
    pub fn is_transient(&self) -> bool {
        self.code == 0 || self.code == 429 || self.code >= 500
    }
}

/// The API.
///
/// Semantics are those of Kubernetes: optimistic concurrency by `metadata.resourceVersion`, a write that changes
/// nothing makes no new version, `status` is written only through [`Cluster::update_status`].
#[async_trait]
pub trait Cluster: Send + Sync + 'static {
    /// Reads one object, fresh.
    async fn get(&self, at: &ObjectRef) -> Result<Object, ApiError>;
    /// Reads all that `options` select.
    async fn list(&self, resource: &Resource, options: &ListOptions) -> Result<ObjectList, ApiError>;
    /// Streams changes after `resource_version`.
    async fn watch(
        &self,
        resource: &Resource,
        options: &ListOptions,
        resource_version: &str,
    ) -> Result<WatchStream, ApiError>;
    /// Creates; name, namespace and content come from the object.
    async fn create(&self, resource: &Resource, object: Object) -> Result<Object, ApiError>;
    /// Replaces all but the status. With a resource version in the object, only if it is still current.
    async fn update(&self, resource: &Resource, object: Object) -> Result<Object, ApiError>;
    /// Replaces the status only; likewise.
    async fn update_status(&self, resource: &Resource, object: Object) -> Result<Object, ApiError>;
    /// Patches all but the status.
    async fn patch(&self, at: &ObjectRef, kind: PatchKind, body: Bytes) -> Result<Object, ApiError>;
    /// Patches the status only.
    async fn patch_status(&self, at: &ObjectRef, kind: PatchKind, body: Bytes) -> Result<Object, ApiError>;
    /// Binds a pod to a node.
    async fn bind(&self, namespace: &str, pod: &str, node: &str) -> Result<(), ApiError>;
    /// Deletes, gracefully where the kind has a grace period.
    async fn delete(&self, at: &ObjectRef, options: &DeleteOptions) -> Result<(), ApiError>;
}
