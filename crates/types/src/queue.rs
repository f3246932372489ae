//! Queues: where jobs wait.

use crate::meta::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Name of the queue that a job waits in when it names none.
pub const DEFAULT_QUEUE: &str = "default";

/// A queue.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Queue {
    /// Always `regatta.dev/v1alpha1`.
    pub api_version: String,
    /// Always `Queue`.
    pub kind: String,
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Definition.
    pub spec: QueueSpec,
    /// Counts, refreshed at a limited rate.
    pub status: QueueStatus,
}

/// Definition of a queue.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct QueueSpec {
    /// Whether its jobs may start; a stopped queue keeps what runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped: Option<bool>,
    /// One line for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

/// What is in a queue.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct QueueStatus {
    /// Jobs that wait.
    pub queued: u32,
    /// Jobs that hold resources.
    pub running: u32,
}
