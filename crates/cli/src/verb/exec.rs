//! `regatta exec`: a command, or a shell, beside a rank.

use crate::args::Exec;
use crate::context::Context;
use crate::error::{Error, Exit, Result, from_kube};
use crate::streams;
use k8s_openapi::api::core::v1::Pod as WirePod;
use kube::api::{AttachParams, AttachedProcess, TerminalSize};
use regatta_types::job::{Job, Launcher};
use regatta_types::pod::{LaunchSpec, Pod};
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};
use std::process::ExitCode;
use tokio::io::{AsyncWriteExt, copy, stderr, stdin, stdout};
use tokio::signal::unix::{SignalKind, signal};

/// The shell that its environment names, or the one that is everywhere.
const SHELL: [&str; 3] = ["/bin/sh", "-c", "exec \"${SHELL:-/bin/sh}\""];

pub(crate) async fn exec(context: &Context<'_>, args: &Exec) -> Result<ExitCode> {
    let api = context.api().await?;
    let job = api.job(&args.job).await?;
    let pods = api.pods_of(&args.job).await?;
    let pod = pods.iter().find(|pod| holds(&job, pod, args.rank)).ok_or_else(|| {
        let sentence = format!("no running slot of job {} has rank {}", args.job, args.rank);
        Error::new(Exit::NotFound, sentence).fix(format!("regatta describe {}", args.job))
    })?;
    let shell = args.command.is_empty();
    let terminal = isatty(std::io::stdin()) && isatty(std::io::stdout());
    let tty = args.tty || (shell && terminal);
    let command = if shell { SHELL.map(str::to_owned).to_vec() } else { args.command.clone() };
    let command = as_rank(args.rank, streams::launch(pod).as_ref(), command);
    let parameters =
        AttachParams::default().stdin(args.stdin || shell || tty).stdout(true).stderr(!tty).tty(tty);
    let name = &pod.metadata.name;
    let pods: kube::Api<WirePod> = kube::Api::namespaced(api.client().clone(), &api.namespace);
    let process = pods
        .exec(name, command, &parameters)
        .await
        .map_err(|e| from_kube(&e, &format!("run a command beside rank {}", args.rank)))?;
    let _raw = if tty && terminal { RawTerminal::enter() } else { None };
    connect(process).await
}

/// Whether a running pod holds a rank.
fn holds(job: &Job, pod: &Pod, rank: u32) -> bool {
    let launch = streams::launch(pod).filter(|_| pod.status.phase == "Running");
    launch.is_some_and(|launch| streams::ranks(job, &launch).holds(rank))
}

/// The command with the variables in which the ranks of one slot differ: the API runs commands beside a pod, and knows
/// no ranks.
fn as_rank(rank: u32, launch: Option<&LaunchSpec>, command: Vec<String>) -> Vec<String> {
    let Some(launch) = launch.filter(|launch| launch.procs > 1) else { return command };
    let local = rank.saturating_sub(launch.first_rank.0);
    let mut words = vec!["/usr/bin/env".to_owned()];
    words.extend([format!("REGATTA_RANK={rank}"), format!("REGATTA_LOCAL_RANK={local}")]);
    if launch.launcher == Launcher::Ranks {
        words.extend([format!("RANK={rank}"), format!("LOCAL_RANK={local}")]);
    }
    words.extend(command);
    words
}

async fn connect(mut process: AttachedProcess) -> Result<ExitCode> {
    let mut outputs = tokio::task::JoinSet::new();
    if let Some(mut reader) = process.stdout() {
        outputs.spawn(async move { copy(&mut reader, &mut stdout()).await.map(drop) });
    }
    if let Some(mut reader) = process.stderr() {
        outputs.spawn(async move { copy(&mut reader, &mut stderr()).await.map(drop) });
    }
    let input = process.stdin().map(|mut writer| {
        tokio::spawn(async move {
            // A command that reads nothing more is no failure.
            let _ = copy(&mut stdin(), &mut writer).await;
            let _ = writer.shutdown().await;
        })
    });
    let sizes = process.terminal_size().map(|sender| tokio::spawn(tell_sizes(sender)));
    let status = match process.take_status() {
        Some(status) => status.await,
        None => None,
    };
    while outputs.join_next().await.is_some() {}
    for task in [input, sizes].into_iter().flatten() {
        task.abort();
    }
    let Some(status) = status else {
        return Err(Error::new(Exit::Unreachable, "the connection ended before the command did"));
    };
    if status.status.as_deref() == Some("Success") {
        return Ok(ExitCode::SUCCESS);
    }
    let causes = status.details.as_ref().and_then(|details| details.causes.as_ref()).into_iter().flatten();
    let mut codes = causes.filter(|cause| cause.reason.as_deref() == Some("ExitCode"));
    match codes.next().and_then(|cause| cause.message.as_ref()?.parse::<i32>().ok()) {
        Some(code) => Ok(ExitCode::from(u8::try_from(code).unwrap_or(1))),
        None => {
            Err(Error::failure(status.message.unwrap_or_else(|| "the command could not be run".to_owned())))
        }
    }
}

async fn tell_sizes(mut sender: futures::channel::mpsc::Sender<TerminalSize>) {
    let Ok(mut changes) = signal(SignalKind::window_change()) else { return };
    loop {
        if let Ok(size) = tcgetwinsize(std::io::stdout()) {
            let size = TerminalSize { width: size.ws_col, height: size.ws_row };
            if futures::SinkExt::send(&mut sender, size).await.is_err() {
                return;
            }
        }
        if changes.recv().await.is_none() {
            return;
        }
    }
}

/// The terminal hands every key to the command for as long as this lives.
struct RawTerminal {
    before: Termios,
}

impl RawTerminal {
    fn enter() -> Option<Self> {
        let before = tcgetattr(std::io::stdin()).ok()?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(std::io::stdin(), OptionalActions::Now, &raw).ok()?;
        Some(Self { before })
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // Nothing can be done for a terminal that is gone.
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use regatta_types::Rank;

    #[test]
    fn a_command_knows_its_rank() {
        let launch =
            |launcher, procs| LaunchSpec { launcher, procs, first_rank: Rank(4), ..LaunchSpec::default() };
        let check = |launch: LaunchSpec, expected: &str| {
            assert_eq!(as_rank(5, Some(&launch), vec!["id".to_owned()]).join(" "), expected);
        };
        check(launch(Launcher::Ranks, 1), "id");
        check(launch(Launcher::None, 2), "/usr/bin/env REGATTA_RANK=5 REGATTA_LOCAL_RANK=1 id");
        check(
            launch(Launcher::Ranks, 2),
            "/usr/bin/env REGATTA_RANK=5 REGATTA_LOCAL_RANK=1 RANK=5 LOCAL_RANK=1 id",
        );
    }
}
