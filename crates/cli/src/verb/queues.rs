//! `regatta queues`: where jobs wait.

use crate::api::{ListScope, items};
use crate::args::Output;
use crate::context::Context;
use crate::error::Result;
use crate::output::{Table, print};
use regatta_types::job::{Job, JobPhase};
use regatta_types::queue::Queue;
use regatta_types::resource;
use std::process::ExitCode;

pub(crate) async fn queues(context: &Context<'_>, args: Output) -> Result<ExitCode> {
    let api = context.api().await?;
    let list = api.list(&resource::QUEUES, ListScope::Everywhere, "").await?;
    let jobs: Vec<Job> = items(api.list(&resource::JOBS, ListScope::Everywhere, "").await?);
    let table = || {
        let mut table = Table::new(&["NAME", "STATE", "WAITING", "RUNNING", "DESCRIPTION"]);
        for queue in items::<Queue>(list.clone()) {
            let name = queue.metadata.name;
            let count = |is: fn(JobPhase) -> bool| {
                jobs.iter().filter(|job| job.queue() == name && is(job.status.phase)).count().to_string()
            };
            let waiting = count(|phase| phase == JobPhase::Queued);
            let running = count(JobPhase::holds_resources);
            let state = if queue.spec.stopped == Some(true) { "stopped" } else { "open" };
            table.row([
                name.clone(),
                state.to_owned(),
                waiting,
                running,
                queue.spec.description.unwrap_or_default(),
            ]);
        }
        table
    };
    print(args.output, &list, table, "there are no queues")?;
    Ok(ExitCode::SUCCESS)
}
