//! Jobs: a gang of roles that starts together, and what became of it.

use crate::conditions::Condition;
use crate::evidence::{Checkpoint, ExitRecord, Progress};
use crate::id::{Epoch, Incarnation, SlotIndex};
use crate::meta::ObjectMeta;
use crate::pod::PodTemplate;
use crate::reason::{EndReason, WaitReason};
use crate::time::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How often a user's own failures are retried when the job does not say.
pub const USER_RESTARTS_DEFAULT: u32 = 3;
/// How many past epochs the status keeps; older ones are in the run record.
pub const EPOCHS_KEPT_MAX: usize = 20;

/// A distributed run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Job {
    /// Always `regatta.dev/v1alpha1`.
    pub api_version: String,
    /// Always `Job`.
    pub kind: String,
    /// Metadata.
    pub metadata: ObjectMeta,
    /// What is asked for.
    pub spec: JobSpec,
    /// What became of it.
    pub status: JobStatus,
}

/// What a job asks for.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct JobSpec {
    /// Queue to wait in; `default` when empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub queue: String,
    /// Higher is served first.
    pub priority: i32,
    /// Whether it shall give its resources back and wait.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub suspend: bool,
    /// Whether it shall stop for good. Once true, it stays true.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cancel: bool,
    /// How ranks are started.
    pub launcher: Launcher,
    /// The members of the gang.
    pub roles: Vec<Role>,
    /// What happens after a failure.
    pub recovery: Recovery,
    /// Where checkpoints are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointSpec>,
    /// When to stop by itself.
    pub limits: Limits,
    /// When to delete the finished job, in seconds after its end; kept when left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_seconds_after_finished: Option<i64>,
    /// Facts of the submission, for the run record.
    pub source: Source,
}

/// How ranks are started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Launcher {
    /// `torchrun` when the command says so, else `ranks`.
    #[default]
    Auto,
    /// One process a slot, which starts its own ranks: gets torchrun's `PET_*` and `MASTER_*`.
    Torchrun,
    /// The agent starts `procsPerNode` ranks a slot, each with `RANK`, `LOCAL_RANK`, `WORLD_SIZE`, `MASTER_*`.
    Ranks,
    /// Only the facts in `REGATTA_*`.
    None,
}

impl Launcher {
    /// Whether the launcher is still to be resolved from the command.
    pub const fn is_auto(&self) -> bool {
        matches!(self, Self::Auto)
    }
}

/// Members of one kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Role {
    /// Name within the job.
    pub name: String,
    /// How many slots; one pod each.
    pub replicas: u32,
    /// Processes that the agent starts in each slot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub procs_per_node: Option<u32>,
    /// GPU models that will do, in order of preference; any when empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpu_models: Vec<String>,
    /// What each slot runs.
    pub template: PodTemplate,
}

impl Default for Role {
    fn default() -> Self {
        Self {
            name: "worker".to_owned(),
            replicas: 1,
            procs_per_node: None,
            gpu_models: Vec::new(),
            template: PodTemplate::default(),
        }
    }
}

/// What happens after a failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Recovery {
    /// How many failures of the user's own program are retried.
    pub max_user_restarts: u32,
}

impl Default for Recovery {
    fn default() -> Self {
        Self { max_user_restarts: USER_RESTARTS_DEFAULT }
    }
}

/// Where checkpoints are.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CheckpointSpec {
    /// Directory, as the ranks see it.
    pub path: String,
}

/// When a job stops by itself: notice, time to checkpoint, then suspended.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Limits {
    /// Longest time with resources held, in seconds, over all epochs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime_seconds: Option<i64>,
    /// Highest cost, in millionths of the currency.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_micros: Option<i64>,
    /// Currency of the cost, ISO 4217.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub currency: Option<String>,
}

/// Facts of the submission: who, from what code.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Source {
    /// The command as the person wrote it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub command: String,
    /// Commit of the working directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub git_commit: Option<String>,
    /// Hash of the uncommitted changes; none when clean or not a repository.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub git_diff_hash: Option<String>,
    /// Interpreter or image in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interpreter: Option<String>,
}

/// Where a job stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum JobPhase {
    /// Waits for resources.
    #[default]
    Queued,
    /// Holds resources; pods are being created and ranks started.
    Starting,
    /// All slots run.
    Running,
    /// The pods of the current epoch are being stopped; `decision` says what follows.
    Stopping,
    /// Waits before the next attempt; holds its resources.
    Backoff,
    /// Gave its resources back and waits for its owner.
    Suspended,
    /// Ended well.
    Succeeded,
    /// Ended badly.
    Failed,
    /// Ended by its owner.
    Cancelled,
}

impl JobPhase {
    /// Whether the job has ended for good.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled)
    }

    /// Whether the job holds the resources of its placement.
    pub const fn holds_resources(self) -> bool {
        matches!(self, Self::Starting | Self::Running | Self::Stopping | Self::Backoff)
    }

    /// The phase as one word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "Queued",
            Self::Starting => "Starting",
            Self::Running => "Running",
            Self::Stopping => "Stopping",
            Self::Backoff => "Backoff",
            Self::Suspended => "Suspended",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
            Self::Cancelled => "Cancelled",
        }
    }
}

/// What became of a job.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct JobStatus {
    /// Where it stands.
    pub phase: JobPhase,
    /// Current attempt; 0 before the first.
    pub epoch: Epoch,
    /// The generation of the spec that this status has taken into account.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Why it waits, while it waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<Waiting>,
    /// Why it ended, or why the last epoch ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<EndReason>,
    /// A sentence for people that goes with `reason`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Exit code of the job, once it has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Where the slots are, while resources are held. One entry a slot, roles in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub placement: Vec<SlotPlacement>,
    /// What was decided and is being carried out. Written before its effects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decision: Option<Decision>,
    /// Attempts so far, oldest first, at most [`EPOCHS_KEPT_MAX`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub epochs: Vec<EpochRecord>,
    /// How many failures were charged to the user's budget.
    pub user_restarts: u32,
    /// Failures in a row without a newer checkpoint or step.
    pub failures_without_progress: u32,
    /// The newest complete checkpoint known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Checkpoint>,
    /// Checkpoints that could not be read, by path; never resumed from again.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub bad_checkpoints: Vec<String>,
    /// Complete checkpoints known, newest first, from which the next attempt chooses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub checkpoints: Vec<Checkpoint>,
    /// Newest progress, refreshed at most once a minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// Resource time used and lost.
    pub usage: Usage,
    /// When it was first queued.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queued_at: Option<Timestamp>,
    /// When it first held resources.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When it ended for good.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// Conditions, for `kubectl wait`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// Why a job waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Waiting {
    /// One word.
    pub reason: WaitReason,
    /// The numbers, in a sentence, and what would change it.
    pub message: String,
    /// Since when this reason holds.
    pub since: Timestamp,
}

/// Where one slot is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SlotPlacement {
    /// Role.
    pub role: String,
    /// Slot within the role.
    pub slot: SlotIndex,
    /// Node it is planned on.
    pub node: String,
    /// Incarnation whose pod holds the slot in this epoch.
    pub incarnation: Incarnation,
}

/// What was decided about the current epoch, and what follows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Decision {
    /// Why the epoch ends.
    pub reason: EndReason,
    /// A sentence for people.
    pub message: String,
    /// What follows once the old pods are gone.
    pub next: Next,
    /// When it was decided.
    pub at: Timestamp,
}

/// What follows the end of an epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum Next {
    /// Another attempt on the same nodes, not before `not_before`.
    #[serde(rename_all = "camelCase")]
    Restart {
        /// Checkpoint to resume from; from the beginning when none.
        resume: Option<Checkpoint>,
        /// Earliest start.
        not_before: Timestamp,
    },
    /// Back to the queue; resources are given back.
    Requeue,
    /// Resources are given back; the owner must resume it.
    Suspend,
    /// The job ends in this phase.
    #[serde(rename_all = "camelCase")]
    Finish {
        /// `Succeeded`, `Failed` or `Cancelled`.
        phase: JobPhase,
        /// The job's exit code.
        exit_code: i32,
    },
}

/// One attempt.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EpochRecord {
    /// Which.
    pub epoch: Epoch,
    /// When its resources were planned.
    pub planned_at: Timestamp,
    /// When all its ranks had started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running_at: Option<Timestamp>,
    /// When the first sign of its end was seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_at: Option<Timestamp>,
    /// When its last pod was gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    /// Checkpoint that it resumed from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resumed_from: Option<Checkpoint>,
    /// Last step that was reported in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_step: Option<u64>,
    /// Steps that the next attempt has to repeat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost_steps: Option<u64>,
    /// Why it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<EndReason>,
    /// What and where, in a sentence.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Pod in which the failure started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blamed_pod: Option<String>,
    /// Node of that pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blamed_node: Option<String>,
    /// The exit record of that pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit: Option<ExitRecord>,
    /// Whether the user's budget was charged.
    pub charged_to_user: bool,
    /// Nodes used, by slot in placement order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
}

/// Resource time, in milliseconds of one device or core.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Usage {
    /// GPU time held.
    pub gpu_ms: i64,
    /// CPU time requested and held.
    pub cpu_ms: i64,
    /// GPU time held whose work was lost or that did no work (failed attempts back to their checkpoint, restarts).
    pub lost_gpu_ms: i64,
    /// CPU time likewise.
    pub lost_cpu_ms: i64,
    /// Slot time held, for jobs that request neither GPUs nor CPU.
    pub slot_ms: i64,
    /// Slot time lost.
    pub lost_slot_ms: i64,
    /// Cost in millionths of the currency; none where no pool has a price.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_micros: Option<i64>,
    /// Currency of the cost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub currency: Option<String>,
}

impl JobSpec {
    /// Whole GPUs over all slots.
    pub fn gpus(&self) -> i64 {
        let of = |role: &Role| {
            crate::pod::ResourceTotals::of(&role.template.spec)
                .gpus()
                .saturating_mul(i64::from(role.replicas))
        };
        self.roles.iter().map(of).fold(0, i64::saturating_add)
    }
}

impl Job {
    /// The queue it waits in.
    pub fn queue(&self) -> &str {
        if self.spec.queue.is_empty() { crate::queue::DEFAULT_QUEUE } else { &self.spec.queue }
    }

    /// Number of slots over all roles.
    pub fn slots(&self) -> u32 {
        self.spec.roles.iter().fold(0, |sum, role| sum.saturating_add(role.replicas))
    }

    /// The current attempt's record.
    pub fn current_epoch(&self) -> Option<&EpochRecord> {
        self.status.epochs.last().filter(|record| record.epoch == self.status.epoch)
    }

    /// Stable host name of a slot, such as `digits-worker-0`.
    pub fn hostname(&self, role: &str, slot: SlotIndex) -> String {
        format!("{}-{role}-{slot}", self.metadata.name)
    }

    /// Name of the pod that holds a slot: the host name and the incarnation.
    pub fn pod_name(&self, role: &str, slot: SlotIndex, incarnation: Incarnation) -> String {
        format!("{}-{incarnation}", self.hostname(role, slot))
    }

    /// Labels that select the pods of this job.
    pub fn pod_labels(&self) -> BTreeMap<String, String> {
        BTreeMap::from([(crate::labels::JOB_NAME.to_owned(), self.metadata.name.clone())])
    }
}
