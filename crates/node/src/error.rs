//! What the node runtime could not do, in sentences.

use regatta_kit::ApiError;
use std::io;
use std::path::PathBuf;

/// What the node runtime could not do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or directory cannot be made, read or removed.
    #[error("cannot {action} {path}: {source}")]
    File {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// The agents' socket cannot be had.
    #[error("cannot listen for agents on {path}: {source}")]
    Listen {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The machine cannot be described.
    #[error("cannot read {what} of this machine: {source}")]
    Machine {
        /// What was to be read.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// The node objects cannot be written.
    #[error("cannot register node {node}: {source}")]
    Register {
        /// Which.
        node: String,
        /// Why.
        source: ApiError,
    },
    /// The options contradict the machine.
    #[error("{0}")]
    Options(String),
    /// A network for a job cannot be made.
    #[error("cannot {action} for the network of job or pod {key}: {source}")]
    Network {
        /// What was tried.
        action: &'static str,
        /// Whose network.
        key: String,
        /// Why it failed.
        source: io::Error,
    },
    /// No such pod runs here.
    #[error("pod {namespace}/{pod} is not known on this machine")]
    PodNotFound {
        /// Its namespace.
        namespace: String,
        /// Its name.
        pod: String,
    },
    /// No such container.
    #[error("pod {pod} has no container {container:?}; it has {known}")]
    ContainerNotFound {
        /// The pod.
        pod: String,
        /// What was asked for.
        container: String,
        /// What there is.
        known: String,
    },
    /// No log of that rank.
    #[error("pod {pod} has no log of rank {rank}")]
    RankNotFound {
        /// The pod.
        pod: String,
        /// What was asked for.
        rank: u32,
    },
    /// There was no run before this one.
    #[error(
        "container {container:?} of pod {pod} was never restarted, so it has no previous log; a job's earlier attempts have pods and logs of their own"
    )]
    NoPreviousLog {
        /// The pod.
        pod: String,
        /// The container.
        container: String,
    },
    /// There is nothing to run a command beside.
    #[error("pod {namespace}/{pod} does not run; a command can only be run beside a running pod")]
    NotRunning {
        /// Its namespace.
        namespace: String,
        /// Its name.
        pod: String,
    },
    /// A command beside a pod could not be started.
    #[error("cannot {action} for a command beside pod {pod}: {source}")]
    Exec {
        /// What was tried.
        action: &'static str,
        /// The pod.
        pod: String,
        /// Why it failed.
        source: io::Error,
    },
    /// The driver has no processes.
    #[error("pods of this driver have no processes to run a command beside")]
    NoProcesses,
    /// The runtime is run a second time.
    #[error("the node runtime runs already")]
    RunsAlready,
}

impl Error {
    /// Whether the object asked about does not exist.
    pub const fn is_not_found(&self) -> bool {
        matches!(self, Self::PodNotFound { .. })
    }

    pub(crate) fn file(action: &'static str, path: impl Into<PathBuf>, source: impl Into<io::Error>) -> Self {
        Self::File { action, path: path.into(), source: source.into() }
    }
}
