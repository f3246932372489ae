//! `regatta cancel`: stop jobs for good.

use crate::api::{Api, Watched, named};
use crate::args::Cancel;
use crate::context::Context;
use crate::error::{Error, Exit, Result};
use crate::output::talk;
use futures::StreamExt;
use regatta_types::job::Job;
use regatta_types::resource;
use serde_json::json;
use std::process::ExitCode;

pub(crate) async fn cancel(context: &Context<'_>, args: &Cancel) -> Result<ExitCode> {
    let api = context.api().await?;
    let mut asked = Vec::new();
    for name in &args.jobs {
        let job = api.job(name).await?;
        if job.status.phase.is_terminal() {
            talk(&format!("{name} has ended already ({})", job.status.phase.as_str()));
            continue;
        }
        asked.push(api.patch_job(name, &json!({"spec": {"cancel": true}})).await?);
    }
    if args.no_wait {
        return Ok(ExitCode::SUCCESS);
    }
    for job in &asked {
        let ended = until(&api, job, |job| job.status.phase.is_terminal()).await?;
        talk(&format!("{} {}", job.metadata.name, ended.status.phase.as_str().to_lowercase()));
    }
    Ok(ExitCode::SUCCESS)
}

/// Waits until `done` holds for a job.
pub(crate) async fn until(api: &Api, job: &Job, done: impl Fn(&Job) -> bool) -> Result<Job> {
    let name = &job.metadata.name;
    let mut changes = api.watch::<Job>(&resource::JOBS, &named(name)).await?;
    while let Some(change) = changes.next().await {
        match change? {
            Watched::Applied(job) if done(&job) => return Ok(job),
            Watched::Applied(_) => {}
            Watched::Deleted => return Err(Error::new(Exit::NotFound, format!("job {name} was deleted"))),
        }
    }
    Err(Error::new(Exit::Unreachable, format!("the server ended the watch of job {name}")).fix("try again"))
}
