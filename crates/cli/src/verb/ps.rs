//! `regatta ps`: list jobs.

use crate::api::{ListScope, items};
use crate::args::Ps;
use crate::context::Context;
use crate::error::Result;
use crate::output::{Table, print};
use crate::text::age;
use regatta_types::job::Job;
use regatta_types::{Clock, SystemClock, resource};
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
        let headings: &[&str] = &["NAME", "PHASE", "EPOCH", "SLOTS", "GPUS", "QUEUE", "AGE", "WHY"];
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

fn row(job: &Job, scope: ListScope, now: regatta_types::Timestamp) -> Vec<String> {
    let status = &job.status;
    let name = if scope == ListScope::Everywhere { job.metadata.key() } else { job.metadata.name.clone() };
    let why = match (&status.waiting, status.reason) {
        (Some(waiting), _) => waiting.reason.to_string(),
        (None, Some(reason)) => reason.to_string(),
        (None, None) => status.progress.as_ref().map(crate::narrate::progress).unwrap_or_default(),
    };
    vec![
        name,
        status.phase.as_str().to_owned(),
        status.epoch.to_string(),
        job.slots().to_string(),
        gpus(job).to_string(),
        job.queue().to_owned(),
        age(job.metadata.creation_timestamp, now),
        why,
    ]
}

/// GPUs in all.
pub(crate) fn gpus(job: &Job) -> i64 {
    let roles = job.spec.roles.iter();
    let each = roles.map(|role| {
        let gpus = regatta_types::pod::ResourceTotals::of(&role.template.spec).gpu_milli / 1000;
        gpus.saturating_mul(i64::from(role.replicas))
    });
    each.fold(0, i64::saturating_add)
}
