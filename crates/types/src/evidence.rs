//! What is known of a failure or of progress: the facts on which the lifecycle decides.

use crate::id::{Epoch, Rank};
use crate::time::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A complete checkpoint on storage.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Checkpoint {
    /// Training step at which it was taken.
    pub step: u64,
    /// File or directory, as the ranks see it.
    pub path: String,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ProcessEnd {
    /// It exited with this code.
    Exited(i32),
    /// This signal ended it.
    Signaled(i32),
    /// It could not be started; the number is the `errno`.
    NotStarted(i32),
}

impl ProcessEnd {
    /// The exit code as shells report it: 128 + signal; 127 for a missing command, 126 for one that cannot be executed.
    pub const fn exit_code(self) -> i32 {
        match self {
            Self::Exited(code) => code,
            Self::Signaled(signal) => 128 + signal,
            // ENOENT is 2 on every Linux architecture.
            Self::NotStarted(2) => 127,
            Self::NotStarted(_) => 126,
        }
    }
}

/// How one rank ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RankEnd {
    /// Which rank.
    pub rank: Rank,
    /// How it ended.
    pub end: ProcessEnd,
    /// When.
    pub at: Timestamp,
}

/// The agent's last word on one container of a pod. Written by atomic rename, so it is whole or absent.
///
/// It travels to the operator as the second line of the container's termination message, at most
/// [`EXIT_RECORD_BYTES_MAX`] bytes; ranks beyond those that fit are left out, first failures first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExitRecord {
    /// Epoch in which the ranks ran.
    pub epoch: Epoch,
    /// How ranks ended, in the order in which they ended.
    #[serde(default)]
    pub ranks: Vec<RankEnd>,
    /// Whether the agent itself had sent SIGTERM or SIGKILL before the first rank ended.
    #[serde(default)]
    pub stop_requested: bool,
    /// Whether the kernel killed a process of this container for memory.
    #[serde(default)]
    pub oom_killed: bool,
    /// Last step that ranks reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_step: Option<u64>,
    /// Complete checkpoints found in the checkpoint directory, newest first, at most [`CHECKPOINTS_REPORTED_MAX`].
    #[serde(default)]
    pub checkpoints: Vec<Checkpoint>,
    /// Checkpoints that ranks reported as unreadable, by path.
    #[serde(default)]
    pub bad_checkpoints: Vec<String>,
    /// The last lines of standard error of the rank that failed first.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub stderr_tail: String,
}

/// Kubernetes' limit for a termination message.
pub const EXIT_RECORD_BYTES_MAX: usize = 4096;
/// How many checkpoints an exit record lists.
pub const CHECKPOINTS_REPORTED_MAX: usize = 5;

/// What ranks report while they run: newest values, as the agent has heard them.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Progress {
    /// Epoch of the report.
    pub epoch: Epoch,
    /// Steps done.
    pub step: u64,
    /// Steps in all, when the program said so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_steps: Option<u64>,
    /// Newest value of each metric, as text so that a report is exact.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub metrics: BTreeMap<String, String>,
    /// When it was heard.
    pub at: Timestamp,
}
