//! `regatta cancel`: stop jobs for good.

use crate::api::{Api, named};
use crate::args::Cancel;
use crate::context::Context;
use crate::error::{Error, Exit, Result};
use crate::output::talk;
use crate::watch::{Seen, keep_watching};
use regatta_types::job::Job;
use regatta_types::resource;
use serde_json::json;
use std::process::ExitCode;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

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

/// Waits until `done` holds for a job, also over an absence of the server.
pub(crate) async fn until(api: &Api, job: &Job, done: impl Fn(&Job) -> bool) -> Result<Job> {
    let name = &job.metadata.name;
    let (sender, mut seen) = mpsc::channel(1);
    let mut watches = JoinSet::new();
    watches.spawn(keep_watching(
        api.clone(),
        resource::JOBS,
        named(name),
        sender,
        |seen: Result<Seen<Job>>| seen,
    ));
    let gone =
        || Error::new(Exit::NotFound, format!("job {name} was deleted")).fix(format!("regatta runs {name}"));
    while let Some(seen) = seen.recv().await {
        let now = match seen? {
            Seen::Now(job) => *job,
            Seen::Gone => return Err(gone()),
            Seen::Away => continue,
            // It may have gone while nobody looked.
            Seen::Back => match api.get::<Job>(&resource::JOBS, name).await {
                Err(error) if error.exit == Exit::NotFound => return Err(gone()),
                Err(_) => continue,
                Ok(job) => job,
            },
        };
        if now.metadata.uid != job.metadata.uid {
            return Err(gone());
        }
        if done(&now) {
            return Ok(now);
        }
    }
    Err(Error::failure(format!("the watch of job {name} ended without a reason")).fix("try again"))
}
