//! What happened to a job, as sentences. Pure.

use crate::text::{duration_ms, money};
use regatta_types::Timestamp;
use regatta_types::evidence::Progress;
use regatta_types::job::{EpochRecord, Job, JobPhase, JobStatus, Next};
use regatta_types::reason::EndReason;

/// What is news between two states of a job, oldest first.
pub(crate) fn news(old: Option<&JobStatus>, job: &Job) -> Vec<String> {
    let new = &job.status;
    let mut lines = Vec::new();
    let waiting = |status: &JobStatus| status.waiting.as_ref().map(|waiting| waiting.reason);
    if let Some(wait) = &new.waiting
        && old.and_then(waiting) != Some(wait.reason)
        && new.phase == JobPhase::Queued
        && wait.reason.as_str() != "NotPlanned"
    {
        lines.push(format!("waits ({}): {}", wait.reason, wait.message));
    }
    for record in &new.epochs {
        let before = old.and_then(|old| old.epochs.iter().find(|known| known.epoch == record.epoch));
        lines.extend(epoch_news(before, record, job));
    }
    let ended = new.phase.is_terminal() && !old.is_some_and(|old| old.phase.is_terminal());
    let suspended =
        new.phase == JobPhase::Suspended && old.is_none_or(|old| old.phase != JobPhase::Suspended);
    if ended && new.phase == JobPhase::Failed {
        lines.push(format!("failed ({}): {}", reason(new.reason), new.message));
    } else if ended && new.phase == JobPhase::Cancelled {
        lines.push(format!("cancelled: {}", new.message));
    } else if suspended {
        lines.push(format!("suspended ({}): {}", reason(new.reason), new.message));
    }
    lines
}

fn reason(reason: Option<EndReason>) -> &'static str {
    reason.map_or("unknown", EndReason::as_str)
}

fn epoch_news(before: Option<&EpochRecord>, record: &EpochRecord, job: &Job) -> Vec<String> {
    let mut lines = Vec::new();
    if before.is_none() {
        let again = if record.epoch.0 > 1 {
            format!("restarted as epoch {}", record.epoch)
        } else {
            "started".to_owned()
        };
        let from = match &record.resumed_from {
            Some(checkpoint) => format!(", resuming at step {}", checkpoint.step),
            None if record.epoch.0 > 1 => ", from the beginning".to_owned(),
            None => String::new(),
        };
        lines.push(format!("{again} on {}{from}", nodes(record)));
    }
    let failed = record.reason.is_some_and(|reason| reason != EndReason::Completed);
    let known = before.is_some_and(|before| before.reason.is_some());
    if failed && !known && record.blamed_pod.is_some() {
        let next = match job.status.decision.as_ref().map(|decision| &decision.next) {
            Some(Next::Restart { resume: Some(checkpoint), .. }) => {
                format!("; restarting from step {}", checkpoint.step)
            }
            Some(Next::Restart { resume: None, .. }) => "; restarting from the beginning".to_owned(),
            _ => String::new(),
        };
        lines.push(format!(
            "epoch {} ended ({}): {}{next}",
            record.epoch,
            reason(record.reason),
            record.message
        ));
    }
    lines
}

fn nodes(record: &EpochRecord) -> String {
    let mut names: Vec<&str> = record.nodes.iter().map(String::as_str).collect();
    names.sort_unstable();
    names.dedup();
    match names.as_slice() {
        [] => "no nodes".to_owned(),
        [first, second, third, rest @ ..] if rest.len() > 1 => {
            format!("{first}, {second}, {third} and {} more nodes", rest.len())
        }
        few => few.join(", "),
    }
}

/// Progress in a few words: `step 120/900, loss 0.12`.
pub(crate) fn progress(progress: &Progress) -> String {
    let total = progress.total_steps.map_or_else(String::new, |total| format!("/{total}"));
    let metrics: Vec<String> =
        progress.metrics.iter().map(|(name, value)| format!(", {name} {value}")).collect();
    format!("step {}{total}{}", progress.step, metrics.concat())
}

/// The live line of a running job.
pub(crate) fn status_line(job: &Job, heard: Option<&Progress>, now: Timestamp) -> String {
    let status = &job.status;
    let since = job
        .current_epoch()
        .and_then(|record| record.running_at.or(Some(record.planned_at)))
        .or(status.queued_at);
    let elapsed = since.map_or(0, |since| now.since_ms(since));
    let mut line = format!("{} {}", job.metadata.name, status.phase.as_str().to_lowercase());
    if status.epoch.0 > 1 {
        line.push_str(&format!(", epoch {}", status.epoch));
    }
    if let Some(heard) = heard {
        line.push_str(&format!(", {}", progress(heard)));
        let first = job.current_epoch().and_then(|record| record.resumed_from.as_ref()).map_or(0, |c| c.step);
        let done = heard.step.saturating_sub(first);
        if let Some(left) =
            heard.total_steps.and_then(|total| total.checked_sub(heard.step)).filter(|_| done > 0)
        {
            let eta = i128::from(elapsed) * i128::from(left) / i128::from(done);
            line.push_str(&format!(", {} left", duration_ms(i64::try_from(eta).unwrap_or(i64::MAX))));
        }
    }
    line.push_str(&format!(", {}", duration_ms(elapsed)));
    line
}

/// What happened, when, and what it cost: for the end of a run and for `describe`.
pub(crate) fn timeline(job: &Job) -> Vec<String> {
    let status = &job.status;
    let Some(start) = status.queued_at else { return Vec::new() };
    let at = |time: Timestamp| format!("+{}", duration_ms(time.since_ms(start)));
    let mut lines: Vec<(String, String)> = vec![(at(start), format!("queued in {}", job.queue()))];
    let mut failed_before: Option<&EpochRecord> = None;
    for record in &status.epochs {
        lines.push((at(record.planned_at), format!("epoch {} started on {}", record.epoch, nodes(record))));
        if let Some(running) = record.running_at {
            let text = match failed_before {
                Some(before) => recovered(before, record, running),
                None => format!("epoch {}: all slots run", record.epoch),
            };
            lines.push((at(running), text));
        }
        let Some(ended) = record.failed_at.or(record.ended_at) else { continue };
        if record.reason == Some(EndReason::Completed) {
            lines.push((at(ended), "finished: every slot exited with 0".to_owned()));
        } else {
            lines.push((
                at(ended),
                format!("epoch {} ended ({}): {}", record.epoch, reason(record.reason), record.message),
            ));
            failed_before = Some(record);
        }
    }
    if let Some(finished) = status.finished_at.filter(|_| status.phase != JobPhase::Succeeded) {
        lines.push((
            at(finished),
            format!(
                "{} ({}): {}",
                status.phase.as_str().to_lowercase(),
                reason(status.reason),
                status.message
            ),
        ));
    }
    let width = lines.iter().map(|(time, _)| time.chars().count()).max().unwrap_or(0);
    lines.into_iter().map(|(time, text)| format!("{time:>width$}  {text}")).collect()
}

fn recovered(before: &EpochRecord, record: &EpochRecord, running: Timestamp) -> String {
    let after = before.failed_at.map_or(0, |failed| running.since_ms(failed));
    let lost = before.lost_steps.map_or_else(String::new, |steps| format!(", {steps} steps to repeat"));
    let after = duration_ms(after);
    match &record.resumed_from {
        Some(checkpoint) => {
            format!("recovered from the checkpoint of step {} after {after}{lost}", checkpoint.step)
        }
        None => format!("started again from the beginning after {after}{lost}"),
    }
}

/// What a job used and lost, in a sentence.
pub(crate) fn usage(job: &Job) -> String {
    let usage = &job.status.usage;
    let mut parts = Vec::new();
    let mut part = |name: &str, used: i64, lost: i64| {
        if used > 0 {
            let lost = if lost > 0 { format!(" ({} lost)", duration_ms(lost)) } else { String::new() };
            parts.push(format!("{} of {name} time{lost}", duration_ms(used)));
        }
    };
    part("GPU", usage.gpu_ms, usage.lost_gpu_ms);
    part("CPU", usage.cpu_ms, usage.lost_cpu_ms);
    if usage.gpu_ms == 0 && usage.cpu_ms == 0 {
        part("slot", usage.slot_ms, usage.lost_slot_ms);
    }
    if let Some((micros, currency)) = usage.cost_micros.zip(usage.currency.as_ref()) {
        parts.push(money(micros, currency));
    }
    if parts.is_empty() { "nothing".to_owned() } else { parts.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use regatta_types::Epoch;
    use regatta_types::evidence::Checkpoint;
    use regatta_types::job::{Decision, Waiting};
    use regatta_types::reason::WaitReason;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_unix_ms(1_000_000 + ms)
    }

    fn killed() -> Job {
        let mut job = Job::default();
        job.metadata.name = "digits".into();
        let checkpoint = Some(Checkpoint { step: 120, path: "/ckpt/ckpt-120.json".into() });
        job.status.queued_at = Some(at(0));
        job.status.epoch = Epoch(1);
        job.status.phase = JobPhase::Stopping;
        job.status.epochs.push(EpochRecord {
            epoch: Epoch(1),
            planned_at: at(10),
            running_at: Some(at(50)),
            failed_at: Some(at(9_000)),
            lost_steps: Some(14),
            reason: Some(EndReason::Signaled),
            message: "rank 3 of worker-1 on b was ended by signal 9 (SIGKILL)".into(),
            blamed_pod: Some("digits-worker-1-1".into()),
            nodes: vec!["a".into(), "b".into()],
            ..EpochRecord::default()
        });
        let next = Next::Restart { resume: checkpoint, not_before: at(9_000) };
        job.status.decision =
            Some(Decision { reason: EndReason::Signaled, message: String::new(), next, at: at(9_000) });
        job
    }

    #[test]
    fn news_are_told_once() {
        let job = killed();
        assert_eq!(
            news(None, &job),
            [
                "started on a, b",
                "epoch 1 ended (Signaled): rank 3 of worker-1 on b was ended by signal 9 (SIGKILL); restarting from step 120",
            ]
        );
        assert!(news(Some(&job.status), &job).is_empty());
        let mut queued = Job::default();
        queued.status.waiting = Some(Waiting {
            reason: WaitReason::InsufficientCapacity,
            message: "needs 2".into(),
            since: at(0),
        });
        assert_eq!(news(None, &queued), ["waits (InsufficientCapacity): needs 2"]);
    }

    #[test]
    fn a_timeline_tells_the_recovery() {
        let mut job = killed();
        job.status.epochs.push(EpochRecord {
            epoch: Epoch(2),
            planned_at: at(9_040),
            running_at: Some(at(9_100)),
            failed_at: Some(at(20_000)),
            resumed_from: Some(Checkpoint { step: 120, path: String::new() }),
            reason: Some(EndReason::Completed),
            nodes: vec!["a".into(), "b".into()],
            ..EpochRecord::default()
        });
        job.status.phase = JobPhase::Succeeded;
        assert_eq!(
            timeline(&job),
            [
                "  +0 ms  queued in default",
                " +10 ms  epoch 1 started on a, b",
                " +50 ms  epoch 1: all slots run",
                " +9.0 s  epoch 1 ended (Signaled): rank 3 of worker-1 on b was ended by signal 9 (SIGKILL)",
                " +9.0 s  epoch 2 started on a, b",
                " +9.1 s  recovered from the checkpoint of step 120 after 100 ms, 14 steps to repeat",
                "+20.0 s  finished: every slot exited with 0",
            ]
        );
    }

    #[test]
    fn the_live_line_has_what_is_known() {
        let mut job = killed();
        job.status.phase = JobPhase::Running;
        let heard = Progress {
            step: 50,
            total_steps: Some(100),
            metrics: [("loss".to_owned(), "0.5".to_owned())].into(),
            ..Progress::default()
        };
        assert_eq!(
            status_line(&job, Some(&heard), at(10_050)),
            "digits running, step 50/100, loss 0.5, 10.0 s left, 10.0 s"
        );
        assert_eq!(status_line(&job, None, at(60_050)), "digits running, 1m00s");
        job.status.usage.gpu_ms = 20_000;
        job.status.usage.lost_gpu_ms = 3_000;
        assert_eq!(usage(&job), "20.0 s of GPU time (3.0 s lost)");
    }
}
