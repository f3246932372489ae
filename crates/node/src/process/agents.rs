//! The socket on which agents report.

use super::ProcessDriver;
use crate::driver::{Fact, Observation};
use crate::error::Error;
use crate::runtime::lock;
use regatta_agent::protocol::{AgentMessage, AgentReport, MESSAGE_BYTES_MAX};
use regatta_types::evidence::{Checkpoint, Progress};
use rustix::fs::{Mode, OFlags, open};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;

/// What was passed on of a pod already.
#[derive(Debug, Default)]
pub(super) struct PassedOn {
    progress: Option<Progress>,
    checkpoints: BTreeSet<Checkpoint>,
    bad_checkpoints: BTreeSet<String>,
}

/// Listens on the socket, for this user only.
pub(super) fn listen(path: &Path) -> Result<UnixListener, Error> {
    let fail = |source: io::Error| Error::Listen { path: path.to_owned(), source };
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(fail(error)),
        _ => {}
    }
    let directory = path.parent().unwrap_or(Path::new("/"));
    let directory =
        open(directory, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(|e| fail(e.into()))?;
    // A socket's address has room for 107 bytes; by way of the open directory it is always short enough.
    let short = Path::new("/proc/self/fd")
        .join(directory.as_raw_fd().to_string())
        .join(path.file_name().unwrap_or_default());
    let listener = UnixListener::bind(short).map_err(fail)?;
    rustix::fs::chmod(path, Mode::from_raw_mode(0o600)).map_err(|e| fail(e.into()))?;
    Ok(listener)
}

impl ProcessDriver {
    /// Hears agents, for ever.
    pub(crate) async fn serve_agents(self: Arc<Self>) {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                Some(_) = connections.join_next() => {}
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) if is_ours(&stream) => {
                        connections.spawn(self.clone().hear(stream));
                    }
                    Ok(_) => tracing::warn!("a process of another user has tried to report as an agent"),
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept an agent's connection");
                        // Out of descriptors, most likely: others may close some.
                        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                    }
                },
            }
        }
    }

    async fn hear(self: Arc<Self>, stream: UnixStream) {
        let mut reader = BufReader::new(stream);
        let mut line = Vec::new();
        loop {
            line.clear();
            let limit = MESSAGE_BYTES_MAX as u64;
            match (&mut reader).take(limit).read_until(b'\n', &mut line).await {
                Ok(0) | Err(_) => return,
                Ok(_) if line.last() != Some(&b'\n') => return,
                Ok(_) => {}
            }
            match serde_json::from_slice::<AgentMessage>(&line) {
                Ok(message) => self.take(message).await,
                Err(error) => {
                    tracing::warn!(%error, "an agent's message cannot be understood");
                    return;
                }
            }
        }
    }

    async fn take(&self, message: AgentMessage) {
        let reports = self.reports_of(&message);
        if !message.containers.is_empty() {
            let observation = Observation { uid: message.pod_uid, fact: Fact::Pulse(message.containers) };
            // Nobody listens any more when the runtime stops.
            let _ = self.observed.send(observation).await;
        }
        for report in reports {
            // Progress that finds no room is overtaken by the next; a reader that is gone needs none.
            let _ = self.reported.try_send(report);
        }
    }

    /// What is new in a message, as reports; nothing for pods without a job.
    fn reports_of(&self, message: &AgentMessage) -> Vec<AgentReport> {
        let mut live = lock(&self.live);
        let Some(pod) = live.get_mut(&message.pod_uid) else { return Vec::new() };
        let Some(job) = &pod.job else { return Vec::new() };
        let blank = AgentReport {
            namespace: pod.record.namespace.clone(),
            job: job.name.clone(),
            job_uid: job.uid.clone(),
            pod: pod.record.name.clone(),
            pod_uid: message.pod_uid.clone(),
            progress: None,
            checkpoint: None,
            bad_checkpoint: None,
        };
        let mut reports = Vec::new();
        if message.progress != pod.passed_on.progress {
            pod.passed_on.progress.clone_from(&message.progress);
            reports.push(AgentReport { progress: message.progress.clone(), ..blank.clone() });
        }
        for checkpoint in &message.checkpoints {
            if pod.passed_on.checkpoints.insert(checkpoint.clone()) {
                reports.push(AgentReport { checkpoint: Some(checkpoint.clone()), ..blank.clone() });
            }
        }
        for path in &message.bad_checkpoints {
            if pod.passed_on.bad_checkpoints.insert(path.clone()) {
                reports.push(AgentReport { bad_checkpoint: Some(path.clone()), ..blank.clone() });
            }
        }
        // What the agent has forgotten need not be remembered.
        pod.passed_on.checkpoints.retain(|checkpoint| message.checkpoints.contains(checkpoint));
        pod.passed_on.bad_checkpoints.retain(|path| message.bad_checkpoints.contains(path));
        reports
    }
}

fn is_ours(stream: &UnixStream) -> bool {
    let own = rustix::process::geteuid().as_raw();
    stream.peer_cred().is_ok_and(|peer| peer.uid() == own)
}
