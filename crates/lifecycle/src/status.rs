//! Small changes to a status that several decisions share.

use crate::step::Inputs;
use regatta_types::Timestamp;
use regatta_types::conditions::{self, Condition};
use regatta_types::evidence::{CHECKPOINTS_REPORTED_MAX, Checkpoint, ExitRecord};
use regatta_types::job::{EPOCHS_KEPT_MAX, EpochRecord, JobPhase, JobStatus};

/// How many checkpoints the status lists.
pub(crate) const CHECKPOINTS_KEPT_MAX: usize = 10;
/// How many unreadable checkpoints the status remembers; a failure because of one more is an ordinary failure.
const BAD_CHECKPOINTS_KEPT_MAX: usize = 50;

/// Sets a condition to true or false.
pub(crate) fn set_condition(
    status: &mut JobStatus,
    type_: &str,
    holds: Holds,
    reason: &str,
    message: &str,
    now: Timestamp,
) {
    let condition = Condition {
        type_: type_.to_owned(),
        status: if holds == Holds::Yes { "True" } else { "False" }.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_transition_time: now,
    };
    conditions::set(&mut status.conditions, condition);
}

/// Whether a condition holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holds {
    Yes,
    No,
}

/// Moves to `phase` and keeps the `Running` condition in step.
pub(crate) fn enter(status: &mut JobStatus, phase: JobPhase, now: Timestamp) {
    status.phase = phase;
    let runs = if phase == JobPhase::Running { Holds::Yes } else { Holds::No };
    let known = status.conditions.iter().any(|condition| condition.type_ == conditions::RUNNING);
    if known || runs == Holds::Yes {
        set_condition(status, conditions::RUNNING, runs, phase.as_str(), "", now);
    }
}

/// The record of the current attempt.
pub(crate) fn current(status: &mut JobStatus) -> Option<&mut EpochRecord> {
    let epoch = status.epoch;
    status.epochs.last_mut().filter(|record| record.epoch == epoch)
}

/// Appends the record of a new attempt and forgets the oldest one beyond the limit.
pub(crate) fn push_epoch(status: &mut JobStatus, record: EpochRecord) {
    status.epochs.push(record);
    if status.epochs.len() > EPOCHS_KEPT_MAX {
        status.epochs.remove(0);
    }
}

/// Whether what ranks claim while they run counts, beside what agents found at their end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claims {
    Count,
    /// They were taken in before, and agents have looked since.
    AreOld,
}

/// Takes in all that is known of checkpoints: what ranks reported and what agents found at the end of pods.
pub(crate) fn merge_checkpoints(status: &mut JobStatus, inputs: &Inputs<'_>, claims: Claims) {
    let records = || inputs.pods.iter().flat_map(|pod| pod.records());
    let (bad, claimed) = match claims {
        Claims::Count => (inputs.bad_checkpoints, inputs.checkpoints),
        Claims::AreOld => (&[][..], &[][..]),
    };
    for path in records().flat_map(|record| &record.bad_checkpoints).chain(bad) {
        let room = status.bad_checkpoints.len() < BAD_CHECKPOINTS_KEPT_MAX;
        if room && !status.bad_checkpoints.contains(path) {
            status.bad_checkpoints.push(path.clone());
        }
    }
    let mut all: Vec<Checkpoint> = status.checkpoints.clone();
    all.extend(inputs.pods.iter().flat_map(|pod| pod.checkpoints()).chain(claimed).cloned());
    all.sort_unstable_by(|a, b| b.cmp(a));
    all.dedup();
    let looked: Vec<&ExitRecord> = records().collect();
    if let Some(directory) = inputs.job.spec.checkpoint.as_ref().filter(|_| !looked.is_empty()) {
        all.retain(|checkpoint| !is_missed(checkpoint, &directory.path, &looked));
    }
    all.truncate(CHECKPOINTS_KEPT_MAX);
    status.checkpoints = all;
    status.checkpoint = crate::verdict::resume_from(status);
}

/// Whether agents looked for a checkpoint where it should be and did not find it whole: a rank claimed it, but a file
/// is missing or cut short, or the program has removed it since.
fn is_missed(checkpoint: &Checkpoint, directory: &str, looked: &[&ExitRecord]) -> bool {
    let name =
        checkpoint.path.strip_prefix(directory.trim_end_matches('/')).and_then(|rest| rest.strip_prefix('/'));
    // Only manifests of our own form are looked for.
    let is_manifest = name.is_some_and(|name| name.starts_with("ckpt-") && name.ends_with(".json"));
    let would_list = |record: &&ExitRecord| {
        let full = record.checkpoints.len() >= CHECKPOINTS_REPORTED_MAX;
        !full || record.checkpoints.iter().any(|listed| listed.step < checkpoint.step)
    };
    let found = looked.iter().any(|record| record.checkpoints.contains(checkpoint));
    is_manifest && !found && looked.iter().any(would_list)
}

/// The last step that anybody has reported in the current attempt.
pub(crate) fn last_step(inputs: &Inputs<'_>, pods: &[&crate::facts::PodFacts]) -> Option<u64> {
    let epoch = inputs.job.status.epoch;
    let live = inputs.progress.filter(|progress| progress.epoch == epoch).map(|progress| progress.step);
    let stored =
        inputs.job.status.progress.as_ref().filter(|progress| progress.epoch == epoch).map(|p| p.step);
    let recorded = pods.iter().flat_map(|pod| pod.records()).filter_map(|record| record.last_step).max();
    live.max(stored).max(recorded)
}
