//! The line between deciding and doing: whoever starts, stops and observes pods.

use crate::api::ExecProcess;
use crate::error::Error;
use async_trait::async_trait;
use regatta_agent::exit::PodExit;
use regatta_agent::protocol::ContainerPulse;
use regatta_types::evidence::ProcessEnd;
use regatta_types::pod::Pod;
use regatta_types::streams::ExecRequest;
use regatta_types::{Timestamp, Uid};
use std::sync::Arc;

/// Something that was seen of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observation {
    /// Which pod.
    pub uid: Uid,
    /// What was seen.
    pub fact: Fact,
}

/// What was seen of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fact {
    /// These containers have been started.
    Pulse(Vec<ContainerPulse>),
    /// Every process of the pod is gone.
    Ended(PodEnd),
}

/// How a pod ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodEnd {
    /// Its agent has said so.
    Exit(PodExit),
    /// Its agent is gone without a word.
    Lost(Lost),
}

/// What is known of a pod whose agent is gone without a word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// One word: `AgentLost` or `NodeRebooted`.
    pub reason: &'static str,
    /// A sentence.
    pub message: String,
    /// When it was found out.
    pub at: Timestamp,
}

/// What a started pod was given.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Started {
    /// When.
    pub at: Timestamp,
    /// Its address.
    pub pod_ip: Option<String>,
    /// Its GPUs, as the node counts them.
    pub gpu_devices: Vec<String>,
}

/// A pod that an earlier runtime had started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adopted {
    /// Which.
    pub uid: Uid,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// What it was given.
    pub started: Started,
    /// How it ended, if it has.
    pub end: Option<PodEnd>,
}

/// Why a pod could not be started.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct StartFailure {
    /// Whether trying again may help.
    pub retry: Retry,
    /// One word.
    pub reason: &'static str,
    /// A sentence: what, on which object, why, what to do next.
    pub message: String,
    /// The same as the end of a process that never was.
    pub end: ProcessEnd,
}

/// Whether trying again may help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// The cause is outside of the pod and passes.
    Later,
    /// The pod asks for something that it does not get.
    Never,
}

impl StartFailure {
    /// The pod asks for what it cannot get here; `EINVAL` in terms of processes.
    pub fn refused(reason: &'static str, message: impl Into<String>) -> Self {
        let end = ProcessEnd::NotStarted(rustix::io::Errno::INVAL.raw_os_error());
        Self { retry: Retry::Never, reason, message: message.into(), end }
    }

    /// Something outside of the pod failed.
    pub fn passing(reason: &'static str, message: impl Into<String>) -> Self {
        Self { retry: Retry::Later, ..Self::refused(reason, message) }
    }
}

/// Whoever starts, stops and observes pods. What it sees, it says through the channel that it was made with.
#[async_trait]
pub trait Driver: Send + Sync + 'static {
    /// The pods that an earlier runtime had started. Those that live are observed from now on. Called once, first.
    async fn adopt(&self) -> Vec<Adopted>;
    /// Starts a pod. On failure nothing of it is left.
    async fn start(&self, pod: Arc<Pod>) -> Result<Started, StartFailure>;
    /// Asks a pod to stop within so many milliseconds. May be repeated with less.
    async fn stop(&self, uid: &Uid, grace_period_ms: u64);
    /// Forgets a pod that has ended, and removes what belonged to it but for its logs.
    async fn remove(&self, uid: &Uid);
    /// Runs a command beside a pod.
    async fn exec(&self, pod: &Pod, request: ExecRequest) -> Result<ExecProcess, Error>;
}
