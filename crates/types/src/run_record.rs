//! Run records: what happened in a run, line by line, in an append-only store of its own. Not API objects.

use crate::evidence::{Checkpoint, Progress};
use crate::id::Epoch;
use crate::job::{EpochRecord, JobPhase, SlotPlacement, Source, Usage};
use crate::reason::EndReason;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};

/// One line of a run record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunEntry {
    /// When.
    pub at: Timestamp,
    /// What.
    #[serde(flatten)]
    pub fact: RunFact,
}

/// A fact of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "fact")]
pub enum RunFact {
    /// The job was accepted.
    #[serde(rename_all = "camelCase")]
    Submitted {
        /// Who submitted it.
        user: String,
        /// Queue.
        queue: String,
        /// Code, command and interpreter.
        source: Source,
        /// Names, never values, of the environment variables that were set.
        env_names: Vec<String>,
        /// Slots in all.
        slots: u32,
        /// GPUs in all.
        gpus: i64,
    },
    /// An attempt got its resources.
    #[serde(rename_all = "camelCase")]
    Placed {
        /// Attempt.
        epoch: Epoch,
        /// Where.
        placement: Vec<SlotPlacement>,
        /// Uids of its pods are in the log index; this is what it resumes from.
        resume: Option<Checkpoint>,
    },
    /// All ranks of an attempt run.
    #[serde(rename_all = "camelCase")]
    Running {
        /// Attempt.
        epoch: Epoch,
    },
    /// A pod's logs are kept here.
    #[serde(rename_all = "camelCase")]
    Pod {
        /// Attempt.
        epoch: Epoch,
        /// Role.
        role: String,
        /// Slot.
        slot: u32,
        /// Pod name.
        pod: String,
        /// Pod uid.
        uid: String,
        /// Node.
        node: String,
    },
    /// A rank reported progress.
    #[serde(rename_all = "camelCase")]
    Progress {
        /// The report.
        progress: Progress,
    },
    /// A checkpoint was completed.
    #[serde(rename_all = "camelCase")]
    Checkpoint {
        /// Attempt.
        epoch: Epoch,
        /// Which.
        checkpoint: Checkpoint,
    },
    /// An attempt ended.
    #[serde(rename_all = "camelCase")]
    EpochEnded {
        /// Its record.
        record: Box<EpochRecord>,
    },
    /// The job ended.
    #[serde(rename_all = "camelCase")]
    Finished {
        /// How.
        phase: JobPhase,
        /// Why.
        reason: Option<EndReason>,
        /// What it used.
        usage: Usage,
    },
}
