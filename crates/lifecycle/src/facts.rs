//! Pods as evidence: what a decision reads of them.

use regatta_types::evidence::{Checkpoint, ExitRecord};
use regatta_types::pod::{ContainerStatus, Pod};
use regatta_types::{Incarnation, SlotIndex, Timestamp, Uid, labels};

/// Phase of a pod, as its node reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodPhase {
    /// Not all containers have started.
    Pending,
    /// All containers have started.
    Running,
    /// All containers ended with 0.
    Succeeded,
    /// A container ended otherwise.
    Failed,
}

/// One pod of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodFacts {
    /// Name.
    pub name: String,
    /// Identity.
    pub uid: Uid,
    /// Role.
    pub role: String,
    /// Slot within the role.
    pub slot: SlotIndex,
    /// Which pod of the slot it is.
    pub incarnation: Incarnation,
    /// Where it is bound.
    pub node: Option<String>,
    /// Phase.
    pub phase: PodPhase,
    /// Whether its deletion has been asked for.
    pub terminating: bool,
    /// Whether every main container has started.
    pub started: bool,
    /// Containers that have ended, init containers first.
    pub exits: Vec<ContainerExit>,
    /// One word of its node for a pod that ended or cannot start.
    pub reason: Option<String>,
    /// A sentence of its node.
    pub message: Option<String>,
}

/// Which part of a pod a container is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContainerKind {
    /// It ran before the ranks, to prepare for them.
    Init,
    /// It is what the pod is for.
    Main,
}

/// How one container ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerExit {
    /// Container.
    pub container: String,
    /// Which part of the pod it is.
    pub kind: ContainerKind,
    /// Exit code; 128 + signal for a signal.
    pub exit_code: i32,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// One word of the runtime (`Completed`, `Error`, `OOMKilled`, `NoCommand` …).
    pub reason: String,
    /// A sentence of the runtime.
    pub message: String,
    /// The agent's own record, where an agent ran.
    pub record: Option<ExitRecord>,
    /// When it started.
    pub started_at: Timestamp,
    /// When it ended.
    pub finished_at: Timestamp,
}

impl From<&Pod> for PodFacts {
    fn from(pod: &Pod) -> Self {
        let label = |name: &str| pod.metadata.labels.get(name).map_or("", String::as_str);
        let main = &pod.status.container_statuses;
        let has_started = |status: &ContainerStatus| {
            status.state.running.is_some()
                || status
                    .state
                    .terminated
                    .as_ref()
                    .is_some_and(|end| end.started_at < end.finished_at || end.exit_code == 0)
        };
        let phase = match pod.status.phase.as_str() {
            "Running" => PodPhase::Running,
            "Succeeded" => PodPhase::Succeeded,
            "Failed" => PodPhase::Failed,
            // `Unknown` is absence of evidence: it is treated like a pod about which nothing new is known.
            _ => PodPhase::Pending,
        };
        let init = &pod.status.init_container_statuses;
        let init = init.iter().filter_map(|status| exit_of(status, ContainerKind::Init));
        Self {
            name: pod.metadata.name.clone(),
            uid: pod.metadata.uid(),
            role: label(labels::ROLE).to_owned(),
            slot: SlotIndex(label(labels::SLOT).parse().unwrap_or(u32::MAX)),
            incarnation: Incarnation(label(labels::INCARNATION).parse().unwrap_or(0)),
            node: pod.spec.node_name.clone(),
            phase,
            terminating: pod.metadata.is_being_deleted(),
            started: phase == PodPhase::Running || (!main.is_empty() && main.iter().all(has_started)),
            exits: init
                .chain(main.iter().filter_map(|status| exit_of(status, ContainerKind::Main)))
                .collect(),
            reason: pod.status.reason.clone(),
            message: pod.status.message.clone(),
        }
    }
}

impl PodFacts {
    /// Whether it has ended, well or badly.
    pub const fn is_finished(&self) -> bool {
        matches!(self.phase, PodPhase::Succeeded | PodPhase::Failed)
    }

    /// The agents' records in it.
    pub fn records(&self) -> impl Iterator<Item = &ExitRecord> {
        self.exits.iter().filter_map(|exit| exit.record.as_ref())
    }

    /// Complete checkpoints that its agents found at their end.
    pub fn checkpoints(&self) -> impl Iterator<Item = &Checkpoint> {
        self.records().flat_map(|record| &record.checkpoints)
    }
}

fn exit_of(status: &ContainerStatus, kind: ContainerKind) -> Option<ContainerExit> {
    let end = status.state.terminated.as_ref()?;
    let text = end.message.as_deref().unwrap_or_default();
    let (sentence, record) = match text.split_once('\n') {
        // A message that a program wrote by itself is not a record; its text is kept as the sentence.
        Some((sentence, json)) => match serde_json::from_str(json) {
            Ok(record) => (sentence, Some(record)),
            Err(_) => (text, None),
        },
        None => (text, None),
    };
    Some(ContainerExit {
        container: status.name.clone(),
        kind,
        exit_code: end.exit_code,
        signal: end.signal,
        reason: end.reason.clone(),
        message: sentence.to_owned(),
        record,
        started_at: end.started_at,
        finished_at: end.finished_at,
    })
}
