//! `regatta wait`: wait for a job, and end as it ended.

use crate::args::{Wait, WaitFor};
use crate::context::Context;
use crate::error::{Error, Exit, Result};
use crate::output::talk;
use crate::text::parse_duration_seconds;
use crate::verb::cancel::until;
use crate::verb::run::exit_code;
use regatta_types::job::{Job, JobPhase};
use std::process::ExitCode;
use std::time::Duration;

pub(crate) async fn wait(context: &Context<'_>, args: &Wait) -> Result<ExitCode> {
    let timeout = match &args.timeout {
        None => None,
        Some(text) => Some(parse_duration_seconds(text).ok_or_else(|| {
            Error::usage(format!("--timeout {text:?} is not a duration")).fix("write for example 10m or 45s")
        })?),
    };
    let api = context.api().await?;
    let job = api.job(&args.job).await?;
    let done = |job: &Job| {
        let phase = job.status.phase;
        phase.is_terminal()
            || phase == JobPhase::Suspended
            || (args.for_ == WaitFor::Running && phase == JobPhase::Running)
    };
    let waiting = until(&api, &job, done);
    let job = match timeout {
        None => waiting.await?,
        Some(seconds) => {
            let limit = Duration::from_secs(u64::try_from(seconds).unwrap_or(u64::MAX));
            match tokio::time::timeout(limit, waiting).await {
                Ok(ended) => ended?,
                Err(_) => {
                    let phase = api.job(&args.job).await?.status.phase;
                    let sentence = format!("job {} is {} after {seconds} s", args.job, phase.as_str());
                    return Err(Error::new(Exit::TimedOut, sentence).fix(format!("regatta why {}", args.job)));
                }
            }
        }
    };
    talk(&format!("{} {}", args.job, job.status.phase.as_str().to_lowercase()));
    Ok(match job.status.phase {
        // As `run` ends when its job is suspended: it has not done what it was for.
        JobPhase::Suspended => ExitCode::from(Exit::Failure as u8),
        phase if phase.is_terminal() => exit_code(&job),
        _ => ExitCode::SUCCESS,
    })
}
