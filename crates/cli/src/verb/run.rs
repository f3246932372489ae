//! `regatta run`: submit a job and follow it.

use crate::api::{Api, LogQuery};
use crate::args::Run;
use crate::context::{Context, IfDown};
use crate::error::{Error, Exit, Result};
use crate::follow::{Follow, Followed, News, follow};
use crate::manifest::{self, Manifest, Place, Runtime, to_job};
use crate::narrate;
use crate::output::{data, talk, to_yaml};
use crate::source;
use crate::text::{count, money};
use regatta_types::job::{Job, JobPhase, Source};
use regatta_types::preview::{JobPreview, JobPreviewSpec, JobPreviewStatus, Verdict};
use regatta_types::resource;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// A run that is ready to be submitted.
pub(crate) struct Prepared {
    job: Job,
}

/// Reads, translates and checks; sends nothing. Not for use inside the runtime.
pub(crate) fn prepare(context: &Context<'_>, args: &Run) -> Result<Prepared> {
    let from_file = match &args.file {
        Some(path) => manifest::read(path)?,
        None => Manifest::default(),
    };
    let manifest = from_file.overridden_by(args)?;
    let workdir = workdir(args, &manifest)?;
    let place = Place {
        runtime: context.runtime(),
        user: source::user(),
        source: source_facts(&workdir, &manifest),
        variables: if context.runtime() == Runtime::Local { source::taken_along() } else { BTreeMap::new() },
        workdir,
    };
    let (job, notices) = to_job(&manifest, &place).map_err(|problems| {
        let what = args.file.as_ref().map_or_else(|| "the run".to_owned(), |file| file.display().to_string());
        Error::usage(format!("{what} cannot be run as it is:\n  {}", problems.join("\n  ")))
    })?;
    notices.iter().for_each(|notice| talk(&format!("notice: {notice}")));
    if !args.dry_run && place.runtime == Runtime::Local {
        make_checkpoint_dir(&job, &manifest)?;
    }
    if !args.dry_run || context.runtime() == Runtime::Local {
        context.ensure_daemon(IfDown::Start)?;
    }
    Ok(Prepared { job })
}

fn workdir(args: &Run, manifest: &Manifest) -> Result<PathBuf> {
    let here = std::env::current_dir()
        .map_err(|e| Error::usage(format!("cannot tell the current directory: {e}")))?;
    let file_dir =
        args.file.as_ref().map(|file| here.join(file)).and_then(|file| file.parent().map(Path::to_owned));
    let dir = match (&args.workdir, &manifest.workdir) {
        (Some(flag), _) => manifest::absolute(&here, &flag.display().to_string()),
        (None, Some(field)) => manifest::absolute(file_dir.as_deref().unwrap_or(&here), field),
        (None, None) => {
            manifest::absolute(&here, &file_dir.unwrap_or_else(|| here.clone()).display().to_string())
        }
    };
    if dir.is_dir() {
        return Ok(dir);
    }
    Err(Error::usage(format!("workdir: {} is not a directory", dir.display())))
}

/// The checkpoint directory is made here, so that a mistake shows before hours of training do.
fn make_checkpoint_dir(job: &Job, manifest: &Manifest) -> Result<()> {
    let Some(checkpoint) = &job.spec.checkpoint else { return Ok(()) };
    let mounted = manifest.mounts.keys().any(|mount| Path::new(&checkpoint.path).starts_with(mount));
    if mounted {
        return Ok(());
    }
    std::fs::create_dir_all(&checkpoint.path)
        .map_err(|e| Error::usage(format!("checkpoint: cannot make the directory {}: {e}", checkpoint.path)))
}

/// What is known of the code: the commit, a hash of what is not committed, and what interprets it.
fn source_facts(workdir: &Path, manifest: &Manifest) -> Source {
    let program = || {
        let command = manifest.argv.first().or(manifest.run.as_ref())?;
        source::interpreter(command, std::env::var_os("PATH").as_deref())
    };
    Source { interpreter: manifest.image.clone().or_else(program), ..source::of_git(workdir) }
}

pub(crate) async fn run(context: &Context<'_>, args: &Run, prepared: Prepared) -> Result<ExitCode> {
    let api = context.api().await?;
    if args.dry_run {
        return dry_run(&api, &prepared.job).await;
    }
    let job = submit(&api, &prepared.job).await?;
    if args.detach {
        data(&job.metadata.name);
        return Ok(ExitCode::SUCCESS);
    }
    if prepared.job.metadata.name.is_empty() {
        talk(&format!("submitted as {}", job.metadata.name));
    }
    let options = Follow { logs: LogQuery::default(), news: News::Yes };
    match follow(&api, job.clone(), options).await? {
        Followed::Ended(job) => Ok(summarize(&job)),
        Followed::Detached => {
            talk(&format!(
                "`regatta logs -f {0}` follows it again, `regatta cancel {0}` stops it",
                job.metadata.name
            ));
            Ok(ExitCode::from(Exit::Interrupted as u8))
        }
    }
}

/// Submits a job. One of that name that has ended makes way, for its record is kept; one that has not stays.
async fn submit(api: &Api, job: &Job) -> Result<Job> {
    match api.create_job(job).await {
        Err(error) if error.exit == Exit::Exists => {}
        other => return other,
    }
    let name = &job.metadata.name;
    let before = api.job(name).await?;
    let phase = before.status.phase.as_str();
    if !before.status.phase.is_terminal() {
        let sentence = format!("there is a job {name} already, and it has not ended ({phase})");
        return Err(Error::new(Exit::Exists, sentence).fix(format!(
            "`regatta logs -f {name}` follows it, `regatta cancel {name}` stops it; or choose another --name"
        )));
    }
    api.delete_job(&before).await?;
    talk(&format!("the job {name} of before ({phase}) makes way; `regatta runs` keeps its record"));
    api.create_job(job).await
}

async fn dry_run(api: &Api, job: &Job) -> Result<ExitCode> {
    let mut shown =
        serde_json::to_value(job).map_err(|e| Error::failure(format!("cannot show the job: {e}")))?;
    if let Some(fields) = shown.as_object_mut() {
        fields.remove("status");
    }
    data(to_yaml(&shown)?.trim_end());
    let mut preview = JobPreview {
        api_version: resource::JOB_PREVIEWS.api_version(),
        kind: resource::JOB_PREVIEWS.kind.to_owned(),
        spec: JobPreviewSpec { job: Some(job.spec.clone()) },
        ..JobPreview::default()
    };
    preview.metadata.name =
        if job.metadata.name.is_empty() { "preview".to_owned() } else { job.metadata.name.clone() };
    let answer = api.preview(&preview).await?;
    verdict(&answer).iter().for_each(|line| talk(line));
    Ok(if answer.verdict == Verdict::Refused {
        ExitCode::from(Exit::Refused as u8)
    } else {
        ExitCode::SUCCESS
    })
}

/// The planner's answer on a few lines.
pub(crate) fn verdict(answer: &JobPreviewStatus) -> Vec<String> {
    let mut lines = Vec::new();
    match answer.verdict {
        Verdict::Starts => lines.push("it would start now:".to_owned()),
        Verdict::Runs => lines.push(format!("it runs: {}", answer.message)),
        Verdict::Waits => {
            let reason = answer.reason.map_or_else(|| "NotPlanned".to_owned(), |reason| reason.to_string());
            lines.push(format!("it would wait ({reason}): {}", answer.message));
            if answer.ahead > 0 {
                lines.push(format!("  jobs of its queue that are served first: {}", answer.ahead));
            }
        }
        Verdict::Refused => lines.push(format!("it would be refused: {}", answer.message)),
    }
    for slot in &answer.placement {
        lines.push(format!("  {}-{} on {}", slot.role, slot.slot, slot.node));
    }
    if answer.gpus > 0 {
        lines.push(format!("  {}", count(answer.gpus, "GPU")));
    }
    if let Some((micros, currency)) = answer.price_per_hour_micros.zip(answer.currency.as_ref()) {
        lines.push(format!("  {} an hour", money(micros, currency)));
    }
    lines
}

/// The end of a run, and the code with which it ends.
fn summarize(job: &Job) -> ExitCode {
    let status = &job.status;
    // A run that went as expected needs no story.
    if status.epochs.len() > 1 || status.phase != JobPhase::Succeeded {
        talk("");
        narrate::timeline(job).iter().for_each(|line| talk(line));
    }
    let name = &job.metadata.name;
    talk(&format!("{name} {}: {}", status.phase.as_str().to_lowercase(), narrate::usage(job)));
    if status.phase == JobPhase::Suspended {
        return ExitCode::from(Exit::Failure as u8);
    }
    exit_code(job)
}

/// The job's own code, as a process may end with it.
pub(crate) fn exit_code(job: &Job) -> ExitCode {
    let code = job.status.exit_code.unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
