//! Conditions and their reasons, as constants. Each has an entry in `docs/CONDITIONS.md`.

use crate::time::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A Kubernetes condition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Type of the condition; one of the constants of this module.
    #[serde(rename = "type")]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// One word for machines.
    #[serde(default)]
    pub reason: String,
    /// A sentence for people.
    #[serde(default)]
    pub message: String,
    /// When `status` last changed.
    #[serde(default)]
    pub last_transition_time: Timestamp,
}

/// Job: passed policy and defaulting, and may be planned.
pub const ADMITTED: &str = "Admitted";
/// Job: all ranks of the current epoch have started.
pub const RUNNING: &str = "Running";
/// Job: ended well.
pub const SUCCEEDED: &str = "Succeeded";
/// Job: ended badly and will not be retried.
pub const FAILED: &str = "Failed";
/// Pod: the kubelet's and node runtime's readiness.
pub const READY: &str = "Ready";
/// Pod: bound to a node.
pub const POD_SCHEDULED: &str = "PodScheduled";

/// Sets `condition` in `conditions`; its transition time is kept when the status does not change.
pub fn set(conditions: &mut Vec<Condition>, mut condition: Condition) {
    match conditions.iter_mut().find(|c| c.type_ == condition.type_) {
        Some(existing) => {
            if existing.status == condition.status {
                condition.last_transition_time = existing.last_transition_time;
            }
            *existing = condition;
        }
        None => conditions.push(condition),
    }
}
