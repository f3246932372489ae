//! `regatta describe`: everything about a job, for people.

use crate::args::Describe;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::narrate;
use crate::output::{Table, data, print};
use crate::text::{age, count};
use crate::verb::events;
use regatta_types::job::{Job, JobPhase};
use regatta_types::reason::EndReason;
use regatta_types::{Clock, SystemClock, Timestamp, labels};
use serde_json::Value;
use std::process::ExitCode;

/// How many of the newest events are shown.
const EVENTS_SHOWN_MAX: usize = 10;

pub(crate) async fn describe(context: &Context<'_>, args: &Describe) -> Result<ExitCode> {
    let api = context.api().await?;
    let job = api.job(&args.job).await?;
    if args.output.output.is_some() {
        let value =
            serde_json::to_value(&job).map_err(|e| Error::failure(format!("cannot show the job: {e}")))?;
        print(args.output.output, &value, || Table::new(&[]), "")?;
        return Ok(ExitCode::SUCCESS);
    }
    let list = events::read(&api, Some(&args.job)).await?;
    let happened = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    let newest = &happened[happened.len().saturating_sub(EVENTS_SHOWN_MAX)..];
    text(&job, newest, SystemClock.now()).iter().for_each(|line| data(line));
    Ok(ExitCode::SUCCESS)
}

fn text(job: &Job, events: &[Value], now: Timestamp) -> Vec<String> {
    let mut lines = fields(job, now);
    let mut section = |title: &str, text: Vec<String>| {
        if !text.is_empty() {
            lines.extend([String::new(), title.to_owned()]);
            lines.extend(text.into_iter().map(|line| format!("  {line}")));
        }
    };
    section("Attempts", attempts(job).lines());
    section("Timeline", narrate::timeline(job));
    section("Conditions", conditions(job, now).lines());
    section("Events", events::table(events, now).lines());
    lines
}

fn fields(job: &Job, now: Timestamp) -> Vec<String> {
    let status = &job.status;
    let mut lines = Vec::new();
    let mut field = |name: &str, value: &str| {
        let mut parts = value.lines();
        lines.extend(parts.next().map(|first| format!("{name:<12} {first}")));
        lines.extend(parts.map(|line| format!("{:<12} {line}", "")));
    };
    field("Name", &job.metadata.key());
    field("Phase", status.phase.as_str());
    field("User", job.metadata.labels.get(labels::USER).map_or("", String::as_str));
    field("Queue", &format!("{} (priority {})", job.queue(), job.spec.priority));
    field("Slots", &format!("{} ({} in all)", job.slots(), count(job.spec.gpus(), "GPU")));
    field("Command", &job.spec.source.command);
    let changed = job.spec.source.git_diff_hash.as_ref().map_or("", |_| " with uncommitted changes");
    field(
        "Commit",
        &job.spec.source.git_commit.as_ref().map_or_else(String::new, |c| format!("{c}{changed}")),
    );
    field("Program", job.spec.source.interpreter.as_deref().unwrap_or_default());
    field("Checkpoints", job.spec.checkpoint.as_ref().map_or("", |checkpoint| &checkpoint.path));
    if let Some(waiting) = &status.waiting {
        let since = age(Some(waiting.since), now);
        field("Waits", &format!("{} for {since}: {}", waiting.reason, waiting.message));
    }
    // What ended an earlier attempt stands with that attempt.
    if let Some(reason) =
        status.reason.filter(|_| status.phase.is_terminal() || status.phase == JobPhase::Suspended)
    {
        field("Reason", format!("{reason}: {}", status.message).trim_end_matches(": "));
    }
    if let Some(code) = status.exit_code {
        field("Exit code", &code.to_string());
    }
    let budget = job.spec.recovery.max_user_restarts;
    field("Restarts", &format!("{} of {budget} charged to the program", status.user_restarts));
    if let Some(checkpoint) = &status.checkpoint {
        field("Checkpoint", &format!("step {} ({})", checkpoint.step, checkpoint.path));
    }
    if let Some(progress) = &status.progress {
        field("Progress", &narrate::progress(progress));
    }
    for slot in &status.placement {
        field("Placed", &format!("{}-{} on {}", slot.role, slot.slot, slot.node));
    }
    field("Used", &narrate::usage(job));
    lines
}

/// Each attempt with how it ended, where, and what that cost.
fn attempts(job: &Job) -> Table {
    let headings = ["EPOCH", "FROM STEP", "LAST STEP", "LOST STEPS", "CHARGED", "ENDED BY", "WHERE", "WHAT"];
    let mut table = Table::new(&headings);
    let none = || "-".to_owned();
    let number = |number: Option<u64>| number.map_or_else(none, |number| number.to_string());
    for record in &job.status.epochs {
        let node = record.blamed_node.as_ref().map_or_else(String::new, |node| format!(" on {node}"));
        let failed = record.reason.is_some_and(|reason| reason != EndReason::Completed);
        let charged = match (failed, record.charged_to_user) {
            (false, _) => "-",
            (true, true) => "yes",
            (true, false) => "no",
        };
        table.row([
            record.epoch.to_string(),
            number(record.resumed_from.as_ref().map(|checkpoint| checkpoint.step)),
            number(record.last_step),
            number(record.lost_steps),
            charged.to_owned(),
            record.reason.map_or_else(none, |reason| reason.to_string()),
            record.blamed_pod.as_ref().map_or_else(none, |pod| format!("{pod}{node}")),
            record.message.clone(),
        ]);
    }
    table
}

fn conditions(job: &Job, now: Timestamp) -> Table {
    let mut table = Table::new(&["TYPE", "STATUS", "SINCE", "REASON", "MESSAGE"]);
    for condition in &job.status.conditions {
        table.row([
            condition.type_.clone(),
            condition.status.clone(),
            age(Some(condition.last_transition_time), now),
            condition.reason.clone(),
            condition.message.clone(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use regatta_types::conditions::Condition;
    use regatta_types::evidence::Checkpoint;
    use regatta_types::job::{EpochRecord, Role, SlotPlacement};
    use regatta_types::{Epoch, Incarnation, SlotIndex};
    use serde_json::json;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_unix_ms(1_796_040_000_000 + seconds * 1000)
    }

    /// A job in its second attempt.
    fn job() -> Job {
        let mut job = Job::default();
        job.metadata.name = "digits".into();
        job.metadata.namespace = Some("default".into());
        job.metadata.labels.insert(labels::USER.into(), "ada".into());
        job.spec.roles = vec![Role { replicas: 2, ..Role::default() }];
        job.spec.source.command = "export A=1\ntorchrun train.py".into();
        job.spec.source.git_commit = Some("1f0c8e".into());
        job.spec.source.git_diff_hash = Some("ab".into());
        let nodes = vec!["vm-0".to_owned(), "vm-1".to_owned()];
        let first = EpochRecord {
            epoch: Epoch(1),
            planned_at: at(0),
            running_at: Some(at(1)),
            failed_at: Some(at(20)),
            ended_at: Some(at(20)),
            last_step: Some(134),
            lost_steps: Some(14),
            reason: Some(EndReason::Signaled),
            message: "rank 3 was ended by signal 9 (SIGKILL)".into(),
            blamed_pod: Some("digits-worker-1-1".into()),
            blamed_node: Some("vm-1".into()),
            charged_to_user: true,
            nodes: nodes.clone(),
            ..EpochRecord::default()
        };
        let second = EpochRecord {
            epoch: Epoch(2),
            planned_at: at(21),
            running_at: Some(at(22)),
            resumed_from: Some(Checkpoint { step: 120, path: "/ckpt/ckpt-120.json".into() }),
            nodes,
            ..EpochRecord::default()
        };
        let status = &mut job.status;
        status.phase = JobPhase::Running;
        status.epoch = Epoch(2);
        status.queued_at = Some(at(0));
        status.reason = Some(EndReason::Signaled);
        status.user_restarts = 1;
        status.epochs = vec![first, second];
        status.placement = vec![SlotPlacement {
            role: "worker".into(),
            slot: SlotIndex(0),
            node: "vm-0".into(),
            incarnation: Incarnation(2),
        }];
        status.conditions = vec![Condition {
            type_: "Running".into(),
            status: "True".into(),
            reason: "AllSlotsRun".into(),
            message: "all slots run".into(),
            last_transition_time: at(22),
        }];
        job
    }

    #[test]
    fn a_job_is_described_in_full() {
        let event = json!({
            "type": "Warning", "reason": "Failed", "message": "rank 3 was ended by signal 9",
            "involvedObject": {"kind": "Job", "name": "digits"}, "lastTimestamp": at(20),
        });
        insta::assert_snapshot!(text(&job(), &[event], at(60)).join("\n"));
    }
}
