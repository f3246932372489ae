//! The hook through which policy and defaults of others see each write before it is made.

use async_trait::async_trait;
use regatta_kit::ApiError;
use regatta_types::Resource;
use serde_json::Value;

/// What is being done to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdmissionVerb {
    /// It is created.
    Create,
    /// All but its status changes.
    Update,
}

/// A write that asks to be admitted.
pub struct AdmissionRequest<'a> {
    /// What is being done.
    pub verb: AdmissionVerb,
    /// To which kind.
    pub resource: Resource,
    /// Who does it.
    pub user: &'a str,
    /// The object as it would be stored; may be changed.
    pub object: &'a mut Value,
    /// The object as it is, for an update.
    pub old: Option<&'a Value>,
}

/// Policy and defaults.
#[async_trait]
pub trait Admission: Send + Sync {
    /// Admits the write, with warnings for the client, or refuses it. May run more than once for one write, when
    /// another writer was faster; must not write the same object itself.
    async fn admit(&self, request: AdmissionRequest<'_>) -> Result<Vec<String>, ApiError>;
}
