//! What an agent says to the node runtime while its pod runs: one JSON object a line over a stream socket.
//!
//! A message is the whole of what the agent knows, newest values only. So messages may be lost, repeated or come after
//! a pause of hours: the last one is enough.

use regatta_types::Timestamp;
use regatta_types::Uid;
use regatta_types::evidence::{Checkpoint, Progress};
use serde::{Deserialize, Serialize};

/// Longest message, in bytes; a longer line is not from an agent.
pub const MESSAGE_BYTES_MAX: usize = 256 * 1024;
/// How many checkpoints a message names, newest last.
pub const CHECKPOINTS_MAX: usize = 16;
/// Shortest time between two messages that only tell of progress, in milliseconds.
pub const PROGRESS_INTERVAL_MS: u64 = 1_000;

/// All that an agent knows.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AgentMessage {
    /// Its pod.
    pub pod_uid: Uid,
    /// Its process.
    pub pid: u32,
    /// The containers that have been started.
    pub containers: Vec<ContainerPulse>,
    /// Newest progress.
    pub progress: Option<Progress>,
    /// Checkpoints that ranks have completed, newest last, at most [`CHECKPOINTS_MAX`].
    pub checkpoints: Vec<Checkpoint>,
    /// Checkpoints that ranks could not read, newest last, at most [`CHECKPOINTS_MAX`].
    pub bad_checkpoints: Vec<String>,
}

/// One container that has been started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerPulse {
    /// Its name.
    pub name: String,
    /// Whether it is one of those that run first.
    pub kind: ContainerKind,
    /// When it started.
    pub started_at: Timestamp,
    /// Its first process.
    pub pid: u32,
    /// Whether all its processes have ended.
    pub ended: bool,
}

/// When a container runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ContainerKind {
    /// Before the others.
    Init,
    /// With the others.
    Main,
}

/// What the ranks of one pod reported, with the names that its readers go by.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentReport {
    /// Namespace of pod and job.
    pub namespace: String,
    /// Job.
    pub job: String,
    /// Its uid.
    pub job_uid: Uid,
    /// Pod.
    pub pod: String,
    /// Its uid.
    pub pod_uid: Uid,
    /// Newest progress.
    pub progress: Option<Progress>,
    /// A checkpoint that was completed.
    pub checkpoint: Option<Checkpoint>,
    /// A checkpoint that could not be read.
    pub bad_checkpoint: Option<String>,
}
