//! What the command line needs of the daemon on this machine. The composition crate implements it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// How pods get their network on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NetworkMode {
    /// A network of its own for each job where the machine permits it, else the host's.
    #[default]
    Auto,
    /// A network of its own for each job, or the daemon does not start.
    Isolated,
    /// The host's network for all.
    Host,
}

impl NetworkMode {
    /// The mode as it is written on the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Isolated => "isolated",
            Self::Host => "host",
        }
    }
}

/// What `regatta up` was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpOptions {
    /// Data directory, absolute.
    pub data_dir: PathBuf,
    /// Number of virtual nodes; the machine itself as one node when none.
    pub nodes: Option<u32>,
    /// Simulated GPUs in each virtual node; the machine's real ones when none.
    pub gpus: Option<u32>,
    /// How pods get their network.
    pub network: NetworkMode,
    /// TCP port on the loopback interface; any free one when none.
    pub port: Option<u16>,
}

impl UpOptions {
    /// The options of a plain `regatta up` with this data directory.
    pub fn new(data_dir: PathBuf) -> Self {
        Self { data_dir, nodes: None, gpus: None, network: NetworkMode::Auto, port: None }
    }

    /// The arguments, after the program's name, that ask for these options in the foreground.
    pub fn to_args(&self) -> Vec<std::ffi::OsString> {
        let mut args: Vec<std::ffi::OsString> =
            vec!["up".into(), "--data-dir".into(), self.data_dir.clone().into_os_string()];
        let mut push = |flag: &str, value: Option<String>| {
            if let Some(value) = value {
                args.extend([flag.into(), value.into()]);
            }
        };
        push("--nodes", self.nodes.map(|n| n.to_string()));
        push("--gpus", self.gpus.map(|n| n.to_string()));
        push("--port", self.port.map(|n| n.to_string()));
        push("--network", (self.network != NetworkMode::Auto).then(|| self.network.as_str().to_owned()));
        args
    }
}

/// What is known of the daemon that owns a data directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DaemonInfo {
    /// Its process.
    pub pid: u32,
    /// Where it serves the API.
    pub address: SocketAddr,
    /// Its version, such as `0.1.0`.
    pub version: String,
}

/// Why the daemon could not be started or asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{sentence}")]
pub struct DaemonError {
    /// What failed, on what, and why.
    pub sentence: String,
    /// What to do next.
    pub fix: String,
}

impl DaemonError {
    /// An error of these two sentences.
    pub fn new(sentence: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { sentence: sentence.into(), fix: fix.into() }
    }
}

/// The daemon on this machine. Calls block; none is made from inside an async runtime.
pub trait LocalDaemon: Send + Sync {
    /// Starts the daemon in its own session, as `regatta up` with `options`, and returns once it serves the API and
    /// its kubeconfig is written.
    ///
    /// # Errors
    /// When it could not be started or did not become ready; the sentence says what its log says.
    fn start_detached(&self, options: &UpOptions) -> Result<DaemonInfo, DaemonError>;

    /// Runs the daemon in this process until it is told to stop.
    ///
    /// # Errors
    /// When it could not start, or stopped for a reason that is not a request to stop.
    fn run_foreground(&self, options: &UpOptions) -> Result<(), DaemonError>;

    /// The daemon that owns `data_dir`, if one is alive; a left-over file of a dead one is no daemon.
    fn status(&self, data_dir: &Path) -> Option<DaemonInfo>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_survive_as_arguments() {
        let mut options = UpOptions::new("/tmp/r".into());
        assert_eq!(options.to_args(), ["up", "--data-dir", "/tmp/r"]);
        options.nodes = Some(2);
        options.gpus = Some(4);
        options.port = Some(7000);
        options.network = NetworkMode::Host;
        assert_eq!(
            options.to_args(),
            [
                "up",
                "--data-dir",
                "/tmp/r",
                "--nodes",
                "2",
                "--gpus",
                "4",
                "--port",
                "7000",
                "--network",
                "host"
            ]
        );
    }
}
