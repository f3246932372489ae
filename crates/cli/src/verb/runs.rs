//! `regatta runs`: the record of what ran, also of jobs that are gone.

use crate::args::Runs;
use crate::context::Context;
use crate::error::Result;
use crate::output::{Table, data, print};
use crate::text::{age, count, duration_ms};
use regatta_types::run_record::{RunEntry, RunFact};
use regatta_types::{Clock, SystemClock, Timestamp};
use serde_json::Value;
use std::process::ExitCode;

pub(crate) async fn runs(context: &Context<'_>, args: &Runs) -> Result<ExitCode> {
    let api = context.api().await?;
    let Some(name) = &args.name else {
        let list = api.runs().await?;
        print(args.output.output, &list, || table(&list), "nothing has run yet")?;
        return Ok(ExitCode::SUCCESS);
    };
    let run = api.run(name).await?;
    if args.output.output.is_some() {
        print(args.output.output, &run, || Table::new(&[]), "")?;
        return Ok(ExitCode::SUCCESS);
    }
    let entries = run["entries"].as_array().into_iter().flatten();
    let entries: Vec<RunEntry> =
        entries.filter_map(|entry| serde_json::from_value(entry.clone()).ok()).collect();
    record(&entries).iter().for_each(|line| data(line));
    Ok(ExitCode::SUCCESS)
}

fn table(list: &Value) -> Table {
    let mut table =
        Table::new(&["NAME", "PHASE", "EPOCHS", "USER", "AGE", "COMMIT", "STEP", "METRICS", "COMMAND"]);
    let now = SystemClock.now();
    for run in list["items"].as_array().into_iter().flatten() {
        let text = |field: &str| match &run[field] {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            other => other.to_string(),
        };
        let started =
            ["submittedAt", "startedAt"].iter().find_map(|field| Timestamp::parse(run[*field].as_str()?));
        let metrics = run["lastMetrics"].as_object().into_iter().flatten();
        let metrics: Vec<String> =
            metrics.map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default())).collect();
        table.row([
            text("name"),
            text("phase"),
            text("epochs"),
            text("user"),
            age(started, now),
            text("gitCommit").chars().take(8).collect(),
            text("lastStep"),
            metrics.join(" "),
            one_line(&text("command")),
        ]);
    }
    table
}

/// A command in one line: the first, and a sign where there are more.
fn one_line(command: &str) -> String {
    let mut lines = command.lines();
    let first = lines.next().unwrap_or_default().to_owned();
    if lines.next().is_some() { first + " …" } else { first }
}

/// The record of one run, a line for each fact.
fn record(entries: &[RunEntry]) -> Vec<String> {
    let Some(start) = entries.first().map(|entry| entry.at) else { return Vec::new() };
    let mut lines = Vec::new();
    for entry in entries {
        for line in fact(&entry.fact) {
            lines.push(format!("{:>9}  {line}", format!("+{}", duration_ms(entry.at.since_ms(start)))));
        }
    }
    lines
}

fn fact(fact: &RunFact) -> Vec<String> {
    match fact {
        RunFact::Submitted { user, queue, source, env_names, slots, gpus } => {
            let mut lines = vec![format!(
                "submitted by {user} to queue {queue}: {}, {}",
                count(*slots, "slot"),
                count(*gpus, "GPU")
            )];
            lines.extend(source.command.lines().map(|line| format!("  command: {line}")));
            if let Some(commit) = &source.git_commit {
                let dirty = source.git_diff_hash.as_ref().map_or_else(String::new, |hash| {
                    format!(" with changes {}", &hash[..hash.len().min(12)])
                });
                lines.push(format!("  code: {commit}{dirty}"));
            }
            if let Some(program) = &source.interpreter {
                lines.push(format!("  program: {program}"));
            }
            if !env_names.is_empty() {
                lines.push(format!("  environment: {}", env_names.join(", ")));
            }
            lines
        }
        RunFact::Placed { epoch, placement, resume } => {
            let slots: Vec<String> = placement
                .iter()
                .map(|slot| format!("{}-{} on {}", slot.role, slot.slot, slot.node))
                .collect();
            let from = resume
                .as_ref()
                .map_or_else(String::new, |checkpoint| format!(", resuming at step {}", checkpoint.step));
            vec![format!("epoch {epoch}: {}{from}", slots.join(", "))]
        }
        RunFact::Running { epoch } => vec![format!("epoch {epoch}: all slots run")],
        RunFact::Pod { .. } => Vec::new(),
        RunFact::Progress { progress } => vec![crate::narrate::progress(progress)],
        RunFact::Checkpoint { checkpoint, .. } => {
            vec![format!("checkpoint of step {}: {}", checkpoint.step, checkpoint.path)]
        }
        RunFact::EpochEnded { record } => {
            let reason = record.reason.map_or_else(String::new, |reason| format!(" ({reason})"));
            vec![format!("epoch {} ended{reason}: {}", record.epoch, record.message)]
        }
        RunFact::Finished { phase, reason, .. } => {
            let reason = reason.map_or_else(String::new, |reason| format!(" ({reason})"));
            vec![format!("{}{reason}", phase.as_str().to_lowercase())]
        }
    }
}
