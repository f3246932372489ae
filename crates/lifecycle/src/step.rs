//! What a decision is made from and what it answers.

use crate::account::Prices;
use crate::facts::PodFacts;
use regatta_types::evidence::{Checkpoint, Progress};
use regatta_types::job::{Job, JobStatus, SlotPlacement};
use regatta_types::run_record::RunFact;
use regatta_types::{Timestamp, Uid};

/// Whether the machine's control plane is going down, so that what runs shall stop and be queued again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Shutdown {
    /// It stays.
    #[default]
    No,
    /// It goes.
    Yes,
}

/// Everything a decision about one job looks at.
#[derive(Debug, Clone, Copy)]
pub struct Inputs<'a> {
    /// The job as stored.
    pub job: &'a Job,
    /// Its pods, of whatever epoch.
    pub pods: &'a [PodFacts],
    /// Prices where it runs; none where no pool has a price.
    pub prices: Option<&'a Prices>,
    /// Newest progress heard in the current epoch.
    pub progress: Option<&'a Progress>,
    /// Checkpoints that ranks of the current epoch have said to be complete, newest first.
    pub checkpoints: &'a [Checkpoint],
    /// Checkpoints that ranks of the current epoch could not read, by path.
    pub bad_checkpoints: &'a [String],
    /// Whether everything shall stop.
    pub shutting_down: Shutdown,
    /// The time of the decision.
    pub now: Timestamp,
}

/// The answer: exactly one of these, so that a decision is stored before it has effects.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Store this status, then tell these events. Decide again afterwards.
    Write {
        /// The new status.
        status: Box<JobStatus>,
        /// For people who watch.
        events: Vec<EventNote>,
        /// For the run record.
        records: Vec<RunFact>,
    },
    /// Carry these out; each is harmless when repeated.
    Act {
        /// What to do.
        actions: Vec<Action>,
    },
    /// Nothing to do until something happens, or until this time.
    Wait {
        /// When to decide again at the latest.
        until: Option<Timestamp>,
    },
}

/// One effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Create the pod of this slot.
    CreatePod(SlotPlacement),
    /// Delete this pod, and only if it still is this one.
    DeletePod {
        /// Its name.
        name: String,
        /// Its identity.
        uid: Uid,
        /// Seconds between SIGTERM and SIGKILL; the pod's own when none.
        grace_period_seconds: Option<i64>,
    },
    /// Let the job object go: its pods are gone.
    RemoveFinalizer,
    /// Delete the job object: its time to live is over.
    DeleteJob,
}

/// Importance of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// As planned.
    Normal,
    /// Somebody may want to look.
    Warning,
}

impl EventKind {
    /// As Kubernetes writes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// A line for people who watch a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventNote {
    /// Importance.
    pub kind: EventKind,
    /// One word: a constant of [`crate::events`] or the name of an end reason.
    pub reason: &'static str,
    /// A sentence.
    pub message: String,
}

impl EventNote {
    pub(crate) fn normal(reason: &'static str, message: impl Into<String>) -> Self {
        Self { kind: EventKind::Normal, reason, message: message.into() }
    }

    pub(crate) fn warning(reason: &'static str, message: impl Into<String>) -> Self {
        Self { kind: EventKind::Warning, reason, message: message.into() }
    }
}
