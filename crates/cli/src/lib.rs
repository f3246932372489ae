//! The command line: everything a person types, and nothing that decides.
//!
//! A verb is one file under `verb`; it reads its arguments ([`args`]), speaks the Kubernetes API through `api`, and
//! writes through `output`. What is asked for is translated into a Job by pure functions in [`manifest`]; what is heard
//! of a job is told as sentences by pure functions in `narrate`; `follow` merges logs, state and progress.
//!
//! The crate deliberately does not know how jobs are planned, started or recovered, nor whether the server behind the
//! API is the embedded one or a cluster's. The one thing that is special about this machine, starting and finding the
//! local daemon, comes in from outside as a [`LocalDaemon`].
//!
//! Where to start reading: `verb::run`, then [`manifest`].

#![forbid(unsafe_code)]

pub mod args;
pub mod error;
pub mod local;
pub mod manifest;

mod api;
mod context;
mod follow;
mod narrate;
mod output;
mod ranks;
mod source;
mod streams;
mod text;
mod verb;
mod watch;

pub use local::{DaemonError, DaemonInfo, LocalDaemon, NetworkMode, UpOptions};

use args::{Cli, Verb};
use clap::{CommandFactory, Parser};
use context::{Context, IfDown};
use error::{Error, Exit};
use std::ffi::OsString;
use std::process::ExitCode;

/// The command line's grammar, for completions and the reference.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Does what `args` say, program name first.
pub fn main(args: Vec<OsString>, local: &dyn LocalDaemon) -> ExitCode {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are no failures.
            let code = if error.use_stderr() { ExitCode::from(Exit::Usage as u8) } else { ExitCode::SUCCESS };
            let _ = error.print();
            return code;
        }
    };
    let context = Context { global: cli.global, local };
    match dispatch(&context, cli.verb) {
        Ok(code) => code,
        Err(error) => {
            output::talk(&error.to_string());
            ExitCode::from(error.exit as u8)
        }
    }
}

fn dispatch(context: &Context<'_>, verb: Verb) -> error::Result<ExitCode> {
    // What touches the local daemon blocks, so it happens before the runtime starts.
    let mut prepared = None;
    match &verb {
        Verb::Up(args) => return verb::up::up(context, args),
        Verb::Completion(args) => return Ok(verb::completion::completion(args)),
        Verb::Down(_) => {}
        Verb::Version(_) => {}
        Verb::Run(args) => prepared = Some(verb::run::prepare(context, args)?),
        _ => context.ensure_daemon(IfDown::Fail)?,
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Error::failure(format!("cannot start: {e}")))?;
    let result = runtime.block_on(async {
        match (verb, prepared) {
            (Verb::Run(args), Some(prepared)) => verb::run::run(context, &args, prepared).await,
            (Verb::Down(args), _) => verb::down::down(context, &args).await,
            (Verb::Ps(args), _) => verb::ps::ps(context, &args).await,
            (Verb::Describe(args), _) => verb::describe::describe(context, &args).await,
            (Verb::Logs(args), _) => verb::logs::logs(context, &args).await,
            (Verb::Why(args), _) => verb::why::why(context, &args).await,
            (Verb::Exec(args), _) => verb::exec::exec(context, &args).await,
            (Verb::Cancel(args), _) => verb::cancel::cancel(context, &args).await,
            (Verb::Wait(args), _) => verb::wait::wait(context, &args).await,
            (Verb::Nodes(args), _) => verb::nodes::nodes(context, args).await,
            (Verb::Queues(args), _) => verb::queues::queues(context, args).await,
            (Verb::Events(args), _) => verb::events::events(context, &args).await,
            (Verb::Runs(args), _) => verb::runs::runs(context, &args).await,
            (Verb::Version(args), _) => verb::version::version(context, args).await,
            (Verb::Up(_) | Verb::Completion(_) | Verb::Run(_), _) => Ok(ExitCode::SUCCESS),
        }
    });
    // Reading standard input, for exec, cannot be interrupted; the process ends all the same.
    runtime.shutdown_background();
    result
}
