//! Resources that are answered by code instead of by stored objects.

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use regatta_kit::ApiError;
use regatta_types::Scope;
use serde_json::Value;
use std::collections::BTreeMap;

/// A virtual resource as discovery shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VirtualDescriptor {
    /// API group.
    pub group: String,
    /// Version within the group.
    pub version: String,
    /// Lower-case plural, as in URLs.
    pub plural: String,
    /// Kind, as in manifests.
    pub kind: String,
    /// Where its objects live.
    pub scope: Scope,
    /// Verbs that it answers, such as `get`, `list`, `create`.
    pub verbs: Vec<String>,
    /// Subresources that can be read, such as `log`.
    pub subresources: Vec<String>,
    /// OpenAPI v3 schema of the kind, for `explain`; any object when none.
    pub schema: Option<Value>,
}

/// A request to a virtual resource.
#[derive(Debug, Clone)]
pub struct VirtualRequest {
    /// Plural of the resource that is asked, for handlers with several.
    pub plural: String,
    /// `get`, `list`, `create` or `delete`.
    pub verb: String,
    /// Namespace; none for all namespaces or a cluster-scoped resource.
    pub namespace: Option<String>,
    /// Name; none for `list` and `create`.
    pub name: Option<String>,
    /// Subresource.
    pub subresource: Option<String>,
    /// Query parameters, decoded.
    pub query: BTreeMap<String, String>,
    /// Body, for `create`.
    pub body: Option<Value>,
    /// Who asks.
    pub user: String,
}

/// An answer of a virtual resource.
pub enum VirtualResponse {
    /// An object or a list.
    Json(Value),
    /// Plain text, as it appears.
    Stream(BoxStream<'static, Result<Bytes, ApiError>>),
}

/// Code that answers for one or more resources.
#[async_trait]
pub trait VirtualResource: Send + Sync {
    /// What it answers for.
    fn descriptors(&self) -> Vec<VirtualDescriptor>;
    /// Answers.
    async fn handle(&self, request: VirtualRequest) -> Result<VirtualResponse, ApiError>;
}
