//! The supervisor beside the ranks of one pod.
//!
//! One agent is started for each pod, in a session of its own. It starts the pod's containers, is the parent that reaps
//! everything they leave behind, writes their output to rotated files, hears their progress, stops them when asked to,
//! and leaves one exit record that is whole or absent. It outlives whoever started it: the node runtime may die and
//! come back; the ranks notice nothing.
//!
//! The agent deliberately knows nothing of Kubernetes, of queues or of why a pod runs. Everything it needs is in its
//! pod's directory, in [`spec::AgentSpec`]; everything it knows at the end is there too, in [`exit::PodExit`].
//!
//! Where to start reading: [`spec`] (what it is told), `supervise` (what it does), [`exit`] (what it leaves),
//! [`protocol`] (what it says meanwhile).
//!
//! It is one thread around one `poll`: it starts in a millisecond, costs a few hundred kilobytes, and may change
//! namespaces, which a process with several threads may not.

mod args;
pub mod cgroup;
pub mod checkpoint;
mod container;
pub mod exit;
pub mod files;
pub mod launch;
pub mod log_line;
mod log_writer;
mod mounts;
pub mod namespaces;
mod output;
pub mod process;
mod progress;
pub mod protocol;
mod run_beside;
mod spawn;
pub mod spec;
mod stopping;
mod supervise;
mod uplink;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

pub use args::USAGE;

/// What the agent could not do. Failures of the ranks are no errors of the agent; they are in the exit record.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line is wrong.
    #[error("{problem}; usage: {USAGE}")]
    Arguments {
        /// What is wrong.
        problem: String,
    },
    /// A file of the pod's directory cannot be read or written.
    #[error("cannot {action} {path}: {source}")]
    File {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: std::path::PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// A file of the pod's directory has another shape than this agent knows.
    #[error("cannot understand {path}: {source}; it was written by another version")]
    Shape {
        /// Which file.
        path: std::path::PathBuf,
        /// Where it differs.
        source: serde_json::Error,
    },
    /// Another agent serves this pod, or the node runtime has given the pod up.
    #[error("the pod's directory {path} is locked: another agent serves this pod")]
    Locked {
        /// The directory.
        path: std::path::PathBuf,
    },
    /// The kernel refused something.
    #[error("cannot {action}: {source}")]
    System {
        /// What was tried.
        action: String,
        /// Why it failed.
        source: std::io::Error,
    },
    /// There is nothing to run a command beside.
    #[error("container {container:?} does not run; a command can only be run beside a running one")]
    NotRunning {
        /// The container, or the rank.
        container: String,
    },
}

impl Error {
    pub(crate) fn system(action: impl Into<String>, source: impl Into<std::io::Error>) -> Self {
        Self::System { action: action.into(), source: source.into() }
    }

    /// The error number, for an exit record.
    pub(crate) fn errno(&self) -> i32 {
        match self {
            Self::File { source, .. } | Self::System { source, .. } => source.raw_os_error(),
            _ => None,
        }
        .unwrap_or(rustix::io::Errno::INVAL.raw_os_error())
    }
}

/// Exit code of an agent that could not do its work.
const EXIT_BROKEN: u8 = 125;

/// Runs the agent with the arguments that follow `agent` on the command line.
pub fn main(args: Vec<OsString>) -> ExitCode {
    let outcome = args::parse(args).and_then(|command| match command {
        args::Command::Supervise { dir } => supervise::run(&dir).map(|()| ExitCode::SUCCESS),
        // Comes back only when the command could not be started.
        args::Command::RunBeside(request) => run_beside::run(&request),
        args::Command::Probe => Ok(ExitCode::from(namespaces::probe().exit_code())),
    });
    outcome.unwrap_or_else(|error| {
        // Standard error is the agent's own log file, or the person who asked; nobody may read it, and that is all right.
        let _ = writeln!(std::io::stderr(), "regatta agent: {error}");
        ExitCode::from(EXIT_BROKEN)
    })
}
