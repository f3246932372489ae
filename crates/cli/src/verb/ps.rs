//! `regatta ps`: list jobs.

use crate::api::{ListScope, items};
use crate::args::Ps;
use crate::context::Context;
use crate::error::Result;
use crate::output::{Table, print};
use crate::text::age;
use regatta_types::job::{Job, JobPhase};
use regatta_types::{Clock, SystemClock, Timestamp, labels, resource};
use serde_json::Value;
use std::process::ExitCode;

pub(crate) async fn ps(context: &Context<'_>, args: &Ps) -> Result<ExitCode> {
    let api = context.api().await?;
    let scope = if args.all_namespaces { ListScope::Everywhere } else { ListScope::Namespace };
    let mut list = api.list(&resource::JOBS, scope, "").await?;
    if !args.all
        && let Some(items) = list["items"].as_array_mut()
    {
        let ended = |job: &Value| {
            matches!(job["status"]["phase"].as_str(), Some("Succeeded" | "Failed" | "Cancelled"))
        };
        items.retain(|job| !ended(job));
    }
    let nothing = if args.all {
        "there are no jobs"
    } else {
        "no jobs wait or run; `regatta ps -a` lists those that have ended"
    };
    let table = || {
        let headings: &[&str] =
            &["NAME", "PHASE", "SINCE", "EPOCH", "SLOTS", "GPUS", "QUEUE", "USER", "AGE", "WHY"];
        let mut table = Table::new(headings);
        let now = SystemClock.now();
        for job in items::<Job>(list.clone()) {
            table.row(row(&job, scope, now));
        }
        table
    };
    print(args.output.output, &list, table, nothing)?;
    Ok(ExitCode::SUCCESS)
}

fn row(job: &Job, scope: ListScope, now: Timestamp) -> Vec<String> {
    let status = &job.status;
    let name = if scope == ListScope::Everywhere { job.metadata.key() } else { job.metadata.name.clone() };
    let progress = || status.progress.as_ref().map(crate::narrate::progress);
    let why = match (status.phase, &status.waiting, status.reason) {
        (JobPhase::Running, ..) => progress().unwrap_or_default(),
        (_, Some(waiting), _) => waiting.reason.to_string(),
        (_, None, reason) => reason.map(|reason| reason.to_string()).or_else(progress).unwrap_or_default(),
    };
    vec![
        name,
        status.phase.as_str().to_owned(),
        age(since(job), now),
        status.epoch.to_string(),
        job.slots().to_string(),
        job.spec.gpus().to_string(),
        job.queue().to_owned(),
        job.metadata.labels.get(labels::USER).cloned().unwrap_or_default(),
        age(job.metadata.creation_timestamp, now),
        why,
    ]
}

/// Since when a job is what it is: waits, runs, has ended.
fn since(job: &Job) -> Option<Timestamp> {
    let status = &job.status;
    let waits = status.waiting.as_ref().map(|waiting| waiting.since);
    let attempt = job.current_epoch().and_then(|record| record.running_at.or(Some(record.planned_at)));
    match status.phase {
        phase if phase.is_terminal() => status.finished_at,
        JobPhase::Queued | JobPhase::Suspended => waits.or(status.queued_at),
        _ => attempt,
    }
}
