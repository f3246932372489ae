//! `regatta why`: why a job waits, or why it ended; asked now, not remembered.

use crate::args::JobName;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::narrate;
use crate::output::{Table, data, print};
use regatta_types::job::{Job, JobPhase};
use regatta_types::preview::JobPreview;
use regatta_types::resource;
use std::process::ExitCode;

pub(crate) async fn why(context: &Context<'_>, args: &JobName) -> Result<ExitCode> {
    let api = context.api().await?;
    let job = api.job(&args.job).await?;
    let mut question = JobPreview {
        api_version: resource::JOB_PREVIEWS.api_version(),
        kind: resource::JOB_PREVIEWS.kind.to_owned(),
        ..JobPreview::default()
    };
    question.metadata.name.clone_from(&args.job);
    let answer = api.preview(&question).await?;
    if args.output.output.is_some() {
        let value = serde_json::to_value(&answer)
            .map_err(|e| Error::failure(format!("cannot show the answer: {e}")))?;
        print(args.output.output, &value, || Table::new(&[]), "")?;
        return Ok(ExitCode::SUCCESS);
    }
    match job.status.phase {
        JobPhase::Queued => {
            let reason = answer.reason.map_or_else(|| "NotPlanned".to_owned(), |reason| reason.to_string());
            data(&format!("{} waits in queue {} ({reason}): {}", args.job, job.queue(), answer.message));
            if answer.ahead > 0 {
                data(&format!("jobs of its queue that are served first: {}", answer.ahead));
            }
        }
        _ => told(&job).iter().for_each(|line| data(line)),
    }
    Ok(ExitCode::SUCCESS)
}

fn told(job: &Job) -> Vec<String> {
    let status = &job.status;
    let name = &job.metadata.name;
    let reason = status.reason.map_or_else(String::new, |reason| format!(" ({reason})"));
    let mut lines = match status.phase {
        JobPhase::Running => vec![format!("{name} runs in epoch {}", status.epoch)],
        phase if status.message.is_empty() => {
            vec![format!("{name} {}{reason}", phase.as_str().to_lowercase())]
        }
        phase => vec![format!("{name} {}{reason}: {}", phase.as_str().to_lowercase(), status.message)],
    };
    lines.extend(narrate::timeline(job).into_iter().map(|line| format!("  {line}")));
    lines
}
