//! The beginning: a job gets its resources, or the reason why not.

use crate::events;
use crate::status::{Holds, enter, push_epoch, set_condition};
use crate::step::EventNote;
use crate::verdict::resume_from;
use regatta_types::conditions;
use regatta_types::job::{EpochRecord, Job, JobPhase, JobStatus, SlotPlacement, Waiting};
use regatta_types::reason::WaitReason;
use regatta_types::run_record::RunFact;
use regatta_types::{Incarnation, SlotIndex, Timestamp};
use std::collections::BTreeMap;

/// The node that the planner chose for one slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotAssignment {
    /// Role.
    pub role: String,
    /// Slot within the role.
    pub slot: SlotIndex,
    /// Node.
    pub node: String,
}

/// The status of a queued job that gets its resources now: the next epoch starts.
pub fn start(
    job: &Job,
    assigned: &[SlotAssignment],
    now: Timestamp,
) -> (JobStatus, Vec<EventNote>, Vec<RunFact>) {
    let nodes: Vec<(String, SlotIndex, String)> =
        assigned.iter().map(|slot| (slot.role.clone(), slot.slot, slot.node.clone())).collect();
    let (status, mut events, mut records) = as_accepted(job, now);
    let (status, started, placed) = next_epoch(job, status, nodes, now);
    events.extend(started);
    records.extend(placed);
    (status, events, records)
}

/// The status after `status` in which the next epoch starts on these nodes.
pub(crate) fn next_epoch(
    job: &Job,
    mut status: JobStatus,
    nodes: Vec<(String, SlotIndex, String)>,
    now: Timestamp,
) -> (JobStatus, Vec<EventNote>, Vec<RunFact>) {
    let epoch = status.epoch.next();
    // Each epoch makes all pods anew, so the number of the attempt is also the number of the pod.
    let incarnation = Incarnation(epoch.0);
    let resume = resume_from(&status);
    status.epoch = epoch;
    status.placement =
        nodes.into_iter().map(|(role, slot, node)| SlotPlacement { role, slot, node, incarnation }).collect();
    status.decision = None;
    status.waiting = None;
    status.reason = None;
    status.message = String::new();
    status.observed_generation = job.metadata.generation;
    status.queued_at.get_or_insert(now);
    status.started_at.get_or_insert(now);
    let record = EpochRecord {
        epoch,
        planned_at: now,
        resumed_from: resume.clone(),
        nodes: status.placement.iter().map(|slot| slot.node.clone()).collect(),
        ..EpochRecord::default()
    };
    push_epoch(&mut status, record);
    enter(&mut status, JobPhase::Starting, now);
    let from = match &resume {
        Some(checkpoint) => format!(", resuming at step {}", checkpoint.step),
        None if epoch.0 > 1 => ", from the beginning: there is no complete checkpoint".to_owned(),
        None => String::new(),
    };
    let message = format!("epoch {epoch} on {}{from}", nodes_text(&status.placement));
    let facts = vec![RunFact::Placed { epoch, placement: status.placement.clone(), resume }];
    (status, vec![EventNote::normal(events::STARTED, message)], facts)
}

/// Nodes and how many slots each holds: `gpu-0 (4 slots), gpu-1 (4 slots)`, at most the first few.
pub(crate) fn nodes_text(placement: &[SlotPlacement]) -> String {
    const NODES_NAMED_MAX: usize = 4;
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    for slot in placement {
        *counts.entry(&slot.node).or_default() += 1;
    }
    let slots = |n: u32| if n == 1 { "1 slot".to_owned() } else { format!("{n} slots") };
    let named =
        counts.iter().take(NODES_NAMED_MAX).map(|(node, count)| format!("{node} ({})", slots(*count)));
    let named = named.collect::<Vec<_>>().join(", ");
    match counts.len().saturating_sub(NODES_NAMED_MAX) {
        0 => named,
        more => format!("{named} and {more} more nodes"),
    }
}

/// The status of a queued job that the planner lets wait; none when the typed reason has not changed.
pub fn waiting(
    job: &Job,
    reason: WaitReason,
    message: &str,
    now: Timestamp,
) -> Option<(JobStatus, Vec<EventNote>, Vec<RunFact>)> {
    let known = job.status.waiting.as_ref().is_some_and(|old| old.reason == reason);
    if job.status.phase != JobPhase::Queued || known {
        return None;
    }
    let (mut status, events, records) = as_accepted(job, now);
    status.waiting = Some(Waiting { reason, message: message.to_owned(), since: now });
    Some((status, events, records))
}

/// The status of a job that has been accepted: its own, or the first one when the planner is faster than anybody else.
fn as_accepted(job: &Job, now: Timestamp) -> (JobStatus, Vec<EventNote>, Vec<RunFact>) {
    match job.status.queued_at {
        Some(_) => (job.status.clone(), Vec::new(), Vec::new()),
        None => accepted(job, now),
    }
}

/// The first status of a job.
pub(crate) fn accepted(job: &Job, now: Timestamp) -> (JobStatus, Vec<EventNote>, Vec<RunFact>) {
    let mut status = job.status.clone();
    status.phase = JobPhase::Queued;
    status.queued_at = Some(now);
    status.observed_generation = job.metadata.generation;
    let message = "waits to be planned".to_owned();
    status.waiting = Some(Waiting { reason: WaitReason::NotPlanned, message, since: now });
    set_condition(&mut status, conditions::ADMITTED, Holds::Yes, "Accepted", "", now);
    let fact = RunFact::Submitted {
        user: job.metadata.labels.get(regatta_types::labels::USER).cloned().unwrap_or_default(),
        queue: job.queue().to_owned(),
        source: job.spec.source.clone(),
        env_names: env_names(job),
        slots: job.slots(),
        gpus: job.spec.gpus(),
    };
    let event = EventNote::normal(events::QUEUED, format!("waits in queue {}", job.queue()));
    (status, vec![event], vec![fact])
}

fn env_names(job: &Job) -> Vec<String> {
    let containers = job.spec.roles.iter().flat_map(|role| &role.template.spec.containers);
    let names: std::collections::BTreeSet<&str> =
        containers.flat_map(|container| &container.env).map(|variable| variable.name.as_str()).collect();
    names.into_iter().map(str::to_owned).collect()
}
