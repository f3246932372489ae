//! What an agent is told about its pod. Written by the node runtime before the agent starts, never changed afterwards.

use crate::cgroup::CgroupSpec;
use crate::launch::Launch;
use regatta_types::{Rank, Uid};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// How long ranks get to end after SIGTERM when nothing else is said, in milliseconds.
pub const GRACE_PERIOD_MS_DEFAULT: u64 = 30_000;

/// One pod, as its agent needs it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AgentSpec {
    /// Which pod.
    pub pod: PodIdentity,
    /// Node that it runs on.
    pub node: String,
    /// Containers that run one after another before the others start.
    pub init_containers: Vec<ContainerSpec>,
    /// Containers that run together.
    pub containers: Vec<ContainerSpec>,
    /// How the first container's ranks are started; one process without ranks when none.
    pub launch: Option<Launch>,
    /// Time between SIGTERM and SIGKILL, in milliseconds.
    pub grace_period_ms: u64,
    /// What to enter before anything is started.
    pub namespaces: Namespaces,
    /// Socket on which ranks report, as they see it.
    pub progress_socket: PathBuf,
    /// Socket of the node runtime.
    pub agents_socket: PathBuf,
}

/// Names one pod, and the job it belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodIdentity {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Uid.
    pub uid: Uid,
    /// The job; none for a bare pod.
    pub job: Option<JobIdentity>,
}

/// Names one job.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JobIdentity {
    /// Name.
    pub name: String,
    /// Uid.
    pub uid: Uid,
}

/// One container.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerSpec {
    /// Name within the pod.
    pub name: String,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// The whole environment, but for what each rank gets of its own.
    pub env: BTreeMap<String, String>,
    /// Names in `env` that the container set itself: they win over what the launcher would set.
    pub own_env: Vec<String>,
    /// Directory in which the command starts.
    pub working_dir: PathBuf,
    /// Where its output goes.
    pub log_dir: PathBuf,
    /// Control groups that its processes join.
    pub cgroup: CgroupSpec,
    /// What its file system has that the host's does not, in order.
    pub mounts: Vec<MountStep>,
}

/// What a pod does not share with the host.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Namespaces {
    /// Whether to make a user namespace first: what a daemon that is not root needs for the others.
    pub user: UserNamespace,
    /// Whether each container has its own view of the file system.
    pub mount: MountNamespace,
    /// File that the network namespace to enter is bound to; the host's network when none.
    pub network: Option<PathBuf>,
    /// The host name that processes see; the host's when none.
    pub hostname: Option<String>,
}

/// Whose users a pod has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum UserNamespace {
    /// The host's.
    #[default]
    Host,
    /// A namespace of its own, in which the daemon's user is itself.
    Own,
}

/// Whose file system a pod has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum MountNamespace {
    /// The host's.
    #[default]
    Host,
    /// Its own: the host's, and its mounts.
    Own,
}

/// One step in making a container's file system. Steps are executed in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum MountStep {
    /// `source` of the host appears at `target`, which exists.
    #[serde(rename_all = "camelCase")]
    Bind {
        /// Path on the host.
        source: PathBuf,
        /// Path in the container.
        target: PathBuf,
        /// Whether it may be written.
        access: Access,
    },
    /// `directory` gets entries that it lacks, without a write to the host: in its place comes a directory in memory
    /// with the same entries, each bound, and the new ones. It cannot be written itself; its subdirectories can.
    #[serde(rename_all = "camelCase")]
    Extend {
        /// The directory.
        directory: PathBuf,
        /// Paths to make, relative to `directory`, parents first.
        entries: Vec<NewEntry>,
        /// An empty directory of the pod's own, needed on the way.
        staging: PathBuf,
    },
}

/// An entry that a directory gets.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NewEntry {
    /// Relative path.
    pub path: PathBuf,
    /// What it is.
    pub kind: EntryKind,
}

/// What a path is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum EntryKind {
    /// A directory.
    Directory,
    /// Anything else that something can be bound over.
    File,
}

/// Whether something may be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Access {
    /// Read and write.
    ReadWrite,
    /// Read only.
    ReadOnly,
}

/// How to stop a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StopRequest {
    /// Time between SIGTERM and SIGKILL, in milliseconds, from the moment the request is read.
    pub grace_period_ms: u64,
}

/// The processes of a pod, for those who want to run a command beside them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RunningRanks {
    /// One entry for each process that was started.
    pub ranks: Vec<RunningRank>,
}

/// One process that was started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunningRank {
    /// Its container.
    pub container: String,
    /// Its global rank.
    pub rank: Rank,
    /// Its number among the processes of its container.
    pub local_rank: u32,
    /// Its process.
    pub pid: u32,
    /// Start time of the process, in clock ticks since boot, so that nobody is mistaken for it.
    pub start_ticks: u64,
}

impl AgentSpec {
    /// Number of processes of the container at `index` among the main ones.
    pub fn processes(&self, index: usize) -> u32 {
        match &self.launch {
            Some(launch) if index == 0 => launch.facts.procs.max(1),
            _ => 1,
        }
    }

    /// Name of the log file of the process with `rank` in the main container at `index`; init containers have
    /// [`LOG_FILE_PLAIN`].
    pub fn log_file(&self, index: usize, rank: Rank) -> String {
        if index == 0 && self.launch.is_some() { log_file_of(rank) } else { LOG_FILE_PLAIN.to_owned() }
    }
}

/// Log file of a container that has no ranks.
pub const LOG_FILE_PLAIN: &str = "output.log";

/// Log file of a rank.
pub fn log_file_of(rank: Rank) -> String {
    format!("rank-{rank}.log")
}
