//! `regatta down`: stop the daemon on this machine, and never a job by accident.

use crate::api::{ListScope, items};
use crate::args::Down;
use crate::context::Context;
use crate::error::{Error, Exit, Result};
use crate::manifest::Runtime;
use crate::output::{ask, can_ask, talk};
use regatta_types::job::Job;
use regatta_types::pod::Pod;
use regatta_types::resource;
use std::process::ExitCode;
use std::time::Duration;

/// How long the daemon may take to go once it has agreed.
const GONE_WITHIN: Duration = Duration::from_secs(30);
const LOOK_AGAIN: Duration = Duration::from_millis(50);

pub(crate) async fn down(context: &Context<'_>, args: &Down) -> Result<ExitCode> {
    if context.runtime() == Runtime::Cluster {
        return Err(Error::usage(
            "`down` stops the daemon of this machine; it has no use for --context and --kubeconfig",
        ));
    }
    let dir = context.data_dir()?;
    if context.local.status(&dir).is_none() {
        talk(&format!("no daemon runs on {}", dir.display()));
        return Ok(ExitCode::SUCCESS);
    }
    let api = context.api().await?;
    let jobs: Vec<Job> = items(api.list(&resource::JOBS, ListScope::Everywhere, "").await?);
    let mut running: Vec<String> =
        jobs.iter().filter(|job| job.status.phase.holds_resources()).map(|job| job.metadata.key()).collect();
    let pods: Vec<Pod> = items(api.list(&resource::PODS, ListScope::Everywhere, "").await?);
    let bare = pods.iter().filter(|pod| {
        let of_job = pod.metadata.owner_references.iter().any(|owner| owner.kind == "Job");
        !of_job && !pod.is_finished() && pod.spec.node_name.is_some()
    });
    running.extend(bare.map(|pod| format!("pod {} (ends for good)", pod.metadata.key())));
    if !running.is_empty() && !args.keep_jobs && !args.yes {
        confirm(&running)?;
    }
    if !running.is_empty() {
        let what = if args.keep_jobs {
            "running on without the daemon until the next one takes them over"
        } else {
            "stopping and queueing again, to resume from checkpoints at the next `regatta up`"
        };
        talk(&format!("{what}: {}", running.join(", ")));
    }
    api.shut_down(if args.keep_jobs { "keep" } else { "stop" }).await?;
    let looks = GONE_WITHIN.as_millis() / LOOK_AGAIN.as_millis();
    for _ in 0..looks {
        if context.local.status(&dir).is_none() {
            talk("the daemon has stopped");
            return Ok(ExitCode::SUCCESS);
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    let sentence = format!("the daemon has agreed to stop and still runs after {} s", GONE_WITHIN.as_secs());
    Err(Error::new(Exit::TimedOut, sentence).fix(format!("read {}", dir.join("daemon.log").display())))
}

fn confirm(running: &[String]) -> Result<()> {
    let sentence = format!("still running: {}", running.join(", "));
    if can_ask() {
        if ask(&format!("{sentence}. Stop and queue again?")) {
            return Ok(());
        }
        return Err(Error::new(Exit::Refused, "nothing was stopped"));
    }
    let fix = "--yes stops and queues them again, --keep-jobs leaves them running";
    Err(Error::new(Exit::Refused, sentence).fix(fix))
}
