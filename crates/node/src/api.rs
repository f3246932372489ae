//! What the node runtime is told and asked.

use crate::error::Error;
use bytes::Bytes;
use futures::future::BoxFuture;
use regatta_kit::Cluster;
use regatta_types::Clock;
use regatta_types::streams::TerminalSize;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Highest number of virtual nodes.
pub const VIRTUAL_NODES_MAX: u32 = 1_000;
/// Highest number of simulated GPUs in a node.
pub const SIMULATED_GPUS_MAX: u32 = 1_024;

/// What the node runtime shall be.
#[derive(Clone)]
pub struct NodeOptions {
    /// Data directory; pods, logs and networks have their places in it.
    pub data_dir: PathBuf,
    /// As how many nodes the machine appears.
    pub node_count: NodeCount,
    /// Which GPUs the nodes have.
    pub gpus: Gpus,
    /// How pods get their network.
    pub network: NetworkMode,
    /// How an agent is started: a program and its first arguments.
    pub agent_command: Vec<OsString>,
    /// The API.
    pub cluster: Arc<dyn Cluster>,
    /// The time.
    pub clock: Arc<dyn Clock>,
}

/// As how many nodes the machine appears.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeCount {
    /// As itself.
    Machine,
    /// As so many, among which its CPU and memory are divided evenly.
    Virtual(u32),
}

/// Which GPUs the nodes have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gpus {
    /// Those of the machine.
    Detect,
    /// So many in each node, of which there is no hardware.
    Simulated(u32),
}

/// How pods get their network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetworkMode {
    /// A network of its own for each job where the machine permits it, else the host's.
    Auto,
    /// A network of its own for each job, or an error.
    Isolated,
    /// The host's network for all.
    Host,
}

/// What the runtime has found and chosen, for people.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeFacts {
    /// Names of the nodes.
    pub nodes: Vec<String>,
    /// How pods get their network, in a sentence.
    pub network: String,
    /// How file systems are kept apart, in a sentence.
    pub mounts: String,
    /// How resource limits are enforced, in a sentence.
    pub cgroups: String,
    /// Which GPUs there are, in a sentence.
    pub gpus: String,
    /// What does not work here, and what would change it.
    pub notices: Vec<String>,
}

/// A command that runs beside a pod. Dropping `exit` ends the command.
pub struct ExecProcess {
    /// Its input; dropping the sender closes it.
    pub stdin: Option<mpsc::Sender<Bytes>>,
    /// Its output; ends when the command closes it.
    pub stdout: Option<mpsc::Receiver<Bytes>>,
    /// Its errors; likewise.
    pub stderr: Option<mpsc::Receiver<Bytes>>,
    /// New sizes of its terminal.
    pub resize: Option<mpsc::Sender<TerminalSize>>,
    /// Its exit code, as shells report it.
    pub exit: BoxFuture<'static, Result<i32, Error>>,
}

impl std::fmt::Debug for ExecProcess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExecProcess").finish_non_exhaustive()
    }
}
