//! `regatta describe`: everything about a job, for people.

use crate::args::Describe;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::narrate;
use crate::output::{Table, data, print};
use crate::verb::ps::gpus;
use regatta_types::job::Job;
use regatta_types::labels;
use std::process::ExitCode;

pub(crate) async fn describe(context: &Context<'_>, args: &Describe) -> Result<ExitCode> {
    let api = context.api().await?;
    let job = api.job(&args.job).await?;
    if args.output.output.is_some() {
        let value =
            serde_json::to_value(&job).map_err(|e| Error::failure(format!("cannot show the job: {e}")))?;
        print(args.output.output, &value, || Table::new(&[]), "")?;
        return Ok(ExitCode::SUCCESS);
    }
    text(&job).iter().for_each(|line| data(line));
    Ok(ExitCode::SUCCESS)
}

fn text(job: &Job) -> Vec<String> {
    let status = &job.status;
    let mut lines = Vec::new();
    let mut field = |name: &str, value: &str| {
        if !value.is_empty() {
            lines.push(format!("{name:<12} {value}"));
        }
    };
    field("Name", &job.metadata.key());
    field("Phase", status.phase.as_str());
    field("User", job.metadata.labels.get(labels::USER).map_or("", String::as_str));
    field("Queue", &format!("{} (priority {})", job.queue(), job.spec.priority));
    field("Slots", &format!("{} ({} GPUs in all)", job.slots(), gpus(job)));
    field("Command", &job.spec.source.command);
    field("Commit", job.spec.source.git_commit.as_deref().unwrap_or_default());
    field("Program", job.spec.source.interpreter.as_deref().unwrap_or_default());
    if let Some(checkpoint) = &job.spec.checkpoint {
        field("Checkpoints", &checkpoint.path);
    }
    if let Some(waiting) = &status.waiting {
        field("Waits", &format!("{}: {}", waiting.reason, waiting.message));
    }
    if let Some(reason) = status.reason {
        field("Reason", &format!("{reason}: {}", status.message));
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
    let timeline = narrate::timeline(job);
    if !timeline.is_empty() {
        lines.push("Timeline".to_owned());
        lines.extend(timeline.into_iter().map(|line| format!("  {line}")));
    }
    lines
}
