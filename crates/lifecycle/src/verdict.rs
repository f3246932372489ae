//! What a failure costs and whether there is another attempt: budgets, crash loops, backoff, the checkpoint to resume from.
//!
//! Two ledgers, both in the job's status. The *user's budget* is charged by failures of the user's program; it is never
//! refilled. *Failures without progress* counts failures in a row during which no newer checkpoint was completed; it
//! catches what budgets do not, such as a program that somebody's `kill` or a broken host ends again and again. What
//! nodes and owners do (a lost node, a deleted pod, a shutdown) charges neither.

use crate::classify::{Failure, RestartRequested};
use regatta_types::evidence::Checkpoint;
use regatta_types::job::{Decision, EpochRecord, Job, JobPhase, JobStatus, Next};
use regatta_types::reason::EndReason;
use regatta_types::{Timestamp, job::Recovery};

/// Failures in a row without a newer checkpoint after which another attempt is not worth its resources.
pub const FAILURES_WITHOUT_PROGRESS_MAX: u32 = 5;
/// Pause before the second attempt in a row without progress; it doubles with each further one.
pub const BACKOFF_MS_MIN: i64 = 5_000;
/// Longest pause between attempts.
pub const BACKOFF_MS_MAX: i64 = 300_000;

/// An attempt that its surroundings end within this time counts as disturbed at once.
pub const DISRUPTED_SOON_MS: i64 = 60_000;

/// How long the next attempt waits after so many failures in a row without progress.
pub fn backoff_ms(failures_without_progress: u32) -> i64 {
    match failures_without_progress {
        0 | 1 => 0,
        n => BACKOFF_MS_MIN.saturating_mul(1 << (n - 2).min(16)).min(BACKOFF_MS_MAX),
    }
}

/// The checkpoint from which the next attempt resumes: the newest complete one that could be read so far.
pub fn resume_from(status: &JobStatus) -> Option<Checkpoint> {
    status
        .checkpoints
        .iter()
        .filter(|checkpoint| !status.bad_checkpoints.contains(&checkpoint.path))
        .max()
        .cloned()
}

/// Books `failure` on the ledgers of `status`, whose checkpoints are up to date, and says what follows.
pub(crate) fn judge(
    job: &Job,
    status: &mut JobStatus,
    failure: &Failure,
    now: Timestamp,
) -> (Decision, Charge) {
    let resumed = job.current_epoch().and_then(|record| record.resumed_from.clone());
    let resume = resume_from(status);
    let advanced = match (&resume, &resumed) {
        (Some(new), Some(old)) => new.step > old.step,
        (Some(_), None) => true,
        (None, _) => false,
    };
    // It failed because of a checkpoint that is now known to be bad: nobody's fault, and the next attempt differs.
    let unreadable =
        resumed.is_some_and(|checkpoint| status.bad_checkpoints.contains(&checkpoint.path)) && !advanced;
    let ambiguous =
        matches!(failure.reason, EndReason::UserError | EndReason::OutOfMemory | EndReason::Signaled);
    if advanced {
        status.failures_without_progress = 0;
    }
    if ambiguous && !unreadable {
        status.failures_without_progress = status.failures_without_progress.saturating_add(1);
    }
    let is_users = matches!(failure.reason, EndReason::UserError | EndReason::OutOfMemory);
    let charge = if is_users && !unreadable && failure.restart_requested == RestartRequested::No {
        Charge::User
    } else {
        Charge::Nobody
    };
    let finish = |reason, message: String| {
        let next = Next::Finish { phase: JobPhase::Failed, exit_code: failure.exit_code };
        (Decision { reason, message, next, at: now }, charge)
    };
    let said = &failure.message;
    let logs = format!("`regatta logs {}` shows what it printed", job.metadata.name);
    match failure.reason {
        EndReason::ConfigError => {
            return finish(
                EndReason::ConfigError,
                format!("{said}; correct the command and submit it again"),
            );
        }
        EndReason::NoRestartRequested => return finish(EndReason::NoRestartRequested, said.clone()),
        EndReason::OutOfMemory if !advanced => {
            return finish(
                EndReason::OutOfMemory,
                format!(
                    "{said}; the same run would need as much again: raise its memory limit or make it smaller"
                ),
            );
        }
        _ => {}
    }
    let budget = job.spec.recovery.max_user_restarts;
    if charge == Charge::User && status.user_restarts >= budget {
        let reason = if budget == 0 { failure.reason } else { EndReason::BudgetExhausted };
        let spent = match budget {
            0 => "no restart is allowed".to_owned(),
            n => format!("all {n} restarts are used up"),
        };
        return finish(reason, format!("{said}; {spent}; {logs}"));
    }
    if status.failures_without_progress >= FAILURES_WITHOUT_PROGRESS_MAX {
        let times = status.failures_without_progress;
        let message = format!("{said}; it failed {times} times in a row without a newer checkpoint; {logs}");
        return finish(EndReason::CrashLoop, message);
    }
    if charge == Charge::User {
        status.user_restarts += 1;
    }
    let in_a_row = status.failures_without_progress.max(disruptions_in_a_row(job, failure.reason, now));
    let not_before = now.plus_ms(backoff_ms(in_a_row));
    let next = Next::Restart { resume, not_before };
    (Decision { reason: failure.reason, message: said.clone(), next, at: now }, charge)
}

/// How many attempts in a row, this one included, were soon ended by their surroundings. That charges nobody, and a job
/// may be disturbed as often as it likes; but what ends every attempt at once must not start them as fast as it can.
fn disruptions_in_a_row(job: &Job, reason: EndReason, now: Timestamp) -> u32 {
    let disturbs = |reason: EndReason| matches!(reason, EndReason::NodeLost | EndReason::PodDeleted);
    if !disturbs(reason) {
        return 0;
    }
    let soon = |record: &&EpochRecord| {
        record.failed_at.unwrap_or(now).since_ms(record.planned_at) < DISRUPTED_SOON_MS
            && (record.epoch == job.status.epoch || record.reason.is_some_and(disturbs))
    };
    u32::try_from(job.status.epochs.iter().rev().take_while(soon).count()).unwrap_or(u32::MAX)
}

/// Who pays for a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Charge {
    /// The user's budget.
    User,
    /// No budget.
    Nobody,
}

/// Steps that the next attempt repeats.
pub(crate) fn lost_steps(record: &EpochRecord, resume: Option<&Checkpoint>) -> Option<u64> {
    Some(record.last_step?.saturating_sub(resume.map_or(0, |checkpoint| checkpoint.step)))
}

/// How a budget reads: `restart 2 of 3`.
pub(crate) fn budget_text(status: &JobStatus, recovery: &Recovery, charge: Charge) -> String {
    match charge {
        Charge::User => format!("restart {} of {}", status.user_restarts, recovery.max_user_restarts),
        Charge::Nobody => "not charged to its budget".to_owned(),
    }
}
