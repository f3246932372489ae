//! Pods as real processes: one agent for each, in a session of its own.

mod adoption;
mod agents;
mod env;
mod launch;
mod mount_plan;
mod prepare;
mod record;
mod references;
mod start;
mod sweep;
mod validation;
mod volumes;

use crate::api::{ExecProcess, Gpus, NodeFacts, NodeOptions};
use crate::cgroups::Cgroups;
use crate::driver::{Adopted, Driver, Fact, Lost, Observation, PodEnd, StartFailure, Started};
use crate::error::Error;
use crate::exec;
use crate::gpus::Found;
use crate::layout::Layout;
use crate::ledger::Ledger;
use crate::network::Network;
use crate::nodes::NodeSpec;
use crate::readiness;
use crate::runtime::lock;
use agents::PassedOn;
use async_trait::async_trait;
use record::PodRecord;
use regatta_agent::exit::PodExit;
use regatta_agent::files::{self, Durability};
use regatta_agent::namespaces::Mounts;
use regatta_agent::process::ProcessIdentity;
use regatta_agent::protocol::AgentReport;
use regatta_agent::spec::{JobIdentity, StopRequest};
use regatta_kit::Cluster;
use regatta_types::pod::Pod;
use regatta_types::streams::ExecRequest;
use regatta_types::{Clock, Uid};
use rustix::process::{Signal, pidfd_send_signal};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use tokio::net::UnixListener;
use tokio::sync::{Semaphore, mpsc};

/// Pods that are being started at one time: starting is work for the machine, not for the ranks.
const STARTS_MAX: usize = 8;

/// The driver of real processes.
pub(crate) struct ProcessDriver {
    layout: Layout,
    agent_command: Vec<OsString>,
    cluster: Arc<dyn Cluster>,
    clock: Arc<dyn Clock>,
    mounts: Mounts,
    cgroups: Cgroups,
    network: Network,
    ledger: Mutex<Ledger>,
    live: Mutex<BTreeMap<Uid, Live>>,
    inherited: BTreeMap<String, String>,
    starts: Semaphore,
    listener: UnixListener,
    observed: mpsc::Sender<Observation>,
    reported: mpsc::Sender<AgentReport>,
    /// For tasks that outlive a call.
    me: std::sync::Weak<ProcessDriver>,
}

/// A pod that has a directory.
struct Live {
    record: PodRecord,
    job: Option<JobIdentity>,
    /// Its agent, while that lives.
    agent: Option<Arc<OwnedFd>>,
    passed_on: PassedOn,
}

impl ProcessDriver {
    /// Finds out what this machine permits.
    pub(crate) async fn new(
        options: &NodeOptions,
        layout: Layout,
        nodes: &[NodeSpec],
        observed: mpsc::Sender<Observation>,
        reported: mpsc::Sender<AgentReport>,
    ) -> Result<Arc<Self>, Error> {
        for directory in [layout.pods(), layout.logs()] {
            std::fs::create_dir_all(&directory).map_err(|e| Error::file("make", directory, e))?;
        }
        let wanted = options.network;
        let (network_layout, tag) = (layout.clone(), layout.tag().to_owned());
        let agent = options.agent_command.clone();
        let found = tokio::task::spawn_blocking(move || {
            (probe_mounts(&agent), Cgroups::detect(&tag), Network::new(network_layout, wanted))
        });
        let (mounts, cgroups, network) =
            found.await.map_err(|panic| Error::Options(format!("cannot look at this machine: {panic}")))?;
        let devices =
            nodes.iter().map(|node| (node.object.metadata.name.clone(), node.devices.clone())).collect();
        let listener = agents::listen(&layout.agents_socket())?;
        let network = network?;
        Ok(Arc::new_cyclic(|me| Self {
            layout,
            agent_command: options.agent_command.clone(),
            cluster: options.cluster.clone(),
            clock: options.clock.clone(),
            mounts,
            cgroups,
            network,
            ledger: Mutex::new(Ledger::new(devices)),
            live: Mutex::default(),
            inherited: env::inherited(
                std::env::vars_os()
                    .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?))),
            ),
            starts: Semaphore::new(STARTS_MAX),
            listener,
            observed,
            reported,
            me: me.clone(),
        }))
    }

    /// What was found, for people.
    pub(crate) fn facts(&self, nodes: &BTreeSet<String>, gpus: Gpus, found: &Found) -> NodeFacts {
        let mut notices = self.network.notices.clone();
        notices.extend(self.cgroups.notices.iter().cloned());
        let mounts = match self.mounts {
            Mounts::Direct => "each container has its own mounts",
            Mounts::ByUserNamespace => "each container has its own mounts, in a user namespace",
            Mounts::None => {
                notices.push(
                    "volumes can only be used at their own paths: this user may make neither mount nor user namespaces; run as \
                     root, or permit user namespaces (sysctl user.max_user_namespaces)"
                        .to_owned(),
                );
                "the host's"
            }
        };
        NodeFacts {
            nodes: nodes.iter().cloned().collect(),
            network: self.network.description.clone(),
            mounts: mounts.to_owned(),
            cgroups: self.cgroups.description.clone(),
            gpus: match gpus {
                Gpus::Detect => found.description.clone(),
                Gpus::Simulated(0) => "none".to_owned(),
                Gpus::Simulated(n) => format!("{n} simulated in each node: there is no such hardware"),
            },
            notices,
        }
    }

    /// The runtime stops; pods run on.
    pub(crate) async fn close(&self) {
        let me = self.me.clone();
        let closed = tokio::task::spawn_blocking(move || {
            if let Some(me) = me.upgrade() {
                me.network.close();
                me.cgroups.close();
                // Not empty while pods have secrets in it.
                let _ = std::fs::remove_dir(me.layout.memory());
            }
        });
        if let Err(panic) = closed.await {
            tracing::warn!(%panic, "the node runtime could not tidy up");
        }
    }

    /// Tells when an agent has ended, and how its pod did.
    fn watch(&self, uid: Uid, pidfd: Arc<OwnedFd>, mut child: Option<Child>) {
        let Some(me) = self.me.upgrade() else { return };
        tokio::spawn(async move {
            wait_for_exit(&pidfd).await;
            if let Some(child) = &mut child {
                // It has ended; this only lets the kernel forget it.
                let _ = child.wait();
            }
            let finder = me.clone();
            let of = uid.clone();
            let end = tokio::task::spawn_blocking(move || finder.find_end(&of)).await;
            let end = end.unwrap_or_else(|panic| {
                PodEnd::Lost(me.lost("AgentLost", &format!("its end could not be read: {panic}")))
            });
            let _ = me.observed.send(Observation { uid, fact: Fact::Ended(end) }).await;
        });
    }

    /// How a pod ended whose agent has. Makes sure that nothing of it is left. Blocks.
    fn find_end(&self, uid: &Uid) -> PodEnd {
        let dir = self.layout.pod(uid);
        let exit = files::read_json::<PodExit>(&dir, files::EXIT).unwrap_or_else(|error| {
            tracing::error!(pod = %uid, %error, "the exit record cannot be read");
            None
        });
        let end = match exit {
            Some(exit) => PodEnd::Exit(exit),
            None => {
                let identity = files::read_json::<ProcessIdentity>(&dir, files::IDENTITY).ok().flatten();
                sweep::end_all(uid.as_str(), identity.as_ref(), &self.cgroups);
                PodEnd::Lost(self.lost(
                    "AgentLost",
                    "the agent of the pod was killed, so the pod's processes were ended with it",
                ))
            }
        };
        self.cgroups.remove(uid.as_str());
        self.tidy(uid);
        end
    }

    /// A pod has ended: its network, its ports and its volumes go; what is known of it stays until its object goes.
    fn tidy(&self, uid: &Uid) {
        lock(&self.ledger).release(uid);
        let network = lock(&self.live).get_mut(uid).map(|live| {
            live.agent = None;
            live.record.host_ports.clear();
            live.record.network.clone()
        });
        if let Some(network) = network {
            self.network.release(&network, uid);
        }
        let dir = self.layout.pod(uid);
        let of_processes = ["home", "tmp", "volumes", "staging"].map(|name| dir.join(name));
        of_processes
            .iter()
            .chain([&self.layout.pod_memory(uid)])
            .for_each(|directory| remove_directory(directory));
    }

    fn lost(&self, reason: &'static str, message: &str) -> Lost {
        Lost { reason, message: message.to_owned(), at: self.clock.now() }
    }

    /// Removes everything of a pod but its logs. Blocks.
    fn remove_all(&self, uid: &Uid) {
        let live = lock(&self.live).remove(uid);
        lock(&self.ledger).release(uid);
        self.cgroups.remove(uid.as_str());
        if let Some(live) = live {
            self.network.release(&live.record.network, uid);
        }
        remove_directory(&self.layout.pod_memory(uid));
        remove_directory(&self.layout.pod(uid));
    }
}

fn remove_directory(directory: &Path) {
    if let Err(error) = std::fs::remove_dir_all(directory)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(%error, directory = %directory.display(), "what belonged to a pod cannot be removed");
    }
}

/// Asks the agent's program which mount namespaces it can make: only a process with one thread can try.
fn probe_mounts(agent: &[OsString]) -> Mounts {
    let Some((program, args)) = agent.split_first() else { return Mounts::None };
    let mut command = Command::new(program);
    let status = command
        .args(args)
        .arg("probe")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match status {
        Ok(status) => Mounts::from_exit_code(status.code()),
        Err(error) => {
            tracing::error!(%error, program = %program.display(), "the agent's program cannot be started");
            Mounts::None
        }
    }
}

/// Waits until the process has ended.
async fn wait_for_exit(pidfd: &OwnedFd) {
    let watched = pidfd.try_clone().and_then(readiness::watch);
    match watched {
        Ok(watched) => {
            // A process descriptor is readable once the process has ended, and stays so.
            if watched.readable().await.is_ok() {
                return;
            }
        }
        Err(error) => tracing::error!(%error, "an agent cannot be watched; looking at it from time to time"),
    }
    while pidfd_send_signal(pidfd, Signal::CONT).is_ok() {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    }
}

#[async_trait]
impl Driver for ProcessDriver {
    async fn adopt(&self) -> Vec<Adopted> {
        let Some(me) = self.me.upgrade() else { return Vec::new() };
        let found = tokio::task::spawn_blocking(move || me.find_pods()).await.unwrap_or_default();
        found.into_iter().map(|found| self.take_over(found)).collect()
    }

    async fn start(&self, pod: Arc<Pod>) -> Result<Started, StartFailure> {
        self.start_pod(pod).await
    }

    async fn stop(&self, uid: &Uid, grace_period_ms: u64) {
        let Some(agent) = lock(&self.live).get(uid).and_then(|live| live.agent.clone()) else { return };
        let request = StopRequest { grace_period_ms };
        if let Err(error) =
            files::write_json(&self.layout.pod(uid), files::STOP, &request, Durability::Cached)
        {
            tracing::warn!(pod = %uid, %error, "the pod stops within its own grace period");
        }
        // An agent that has just ended needs no signal.
        let _ = pidfd_send_signal(agent.as_fd(), Signal::TERM);
    }

    async fn remove(&self, uid: &Uid) {
        let (me, uid) = (self.me.clone(), uid.clone());
        let removed = tokio::task::spawn_blocking(move || {
            if let Some(me) = me.upgrade() {
                me.remove_all(&uid);
            }
        });
        if let Err(panic) = removed.await {
            tracing::error!(%panic, "a pod could not be removed");
        }
    }

    async fn exec(&self, pod: &Pod, request: ExecRequest) -> Result<ExecProcess, Error> {
        let uid = pod.metadata.uid();
        let (namespace, name) = (pod.metadata.namespace().to_owned(), pod.metadata.name.clone());
        let runs = lock(&self.live).get(&uid).is_some_and(|live| live.agent.is_some());
        if !runs {
            return Err(Error::NotRunning { namespace, pod: name });
        }
        let containers = pod.spec.containers.iter().chain(&pod.spec.init_containers);
        if let Some(wanted) = &request.container
            && !containers.clone().any(|container| container.name == *wanted)
        {
            let known: Vec<&str> = containers.map(|container| container.name.as_str()).collect();
            return Err(Error::ContainerNotFound {
                pod: name,
                container: wanted.clone(),
                known: known.join(", "),
            });
        }
        exec::start(&self.agent_command, &self.layout.pod(&uid), &name, &request)
    }
}
