//! Starts a pod: from its object to a running agent.

use super::launch;
use super::mount_plan::HostView;
use super::prepare::{self, Prepared, Surroundings};
use super::record::{PodRecord, RECORD};
use super::references::References;
use super::validation;
use super::{Live, PassedOn, ProcessDriver};
use crate::driver::{StartFailure, Started};
use crate::ledger::Device;
use crate::network::Wish;
use crate::runtime::lock;
use regatta_agent::files::{self, Durability};
use regatta_agent::spec::EntryKind;
use regatta_types::pod::{LaunchSpec, Pod};
use regatta_types::{Epoch, Uid, labels};
use rustix::fs::Mode;
use rustix::process::{PidfdFlags, pidfd_open};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

/// The file system of this machine.
pub(super) struct RealHost;

impl HostView for RealHost {
    fn kind(&self, path: &Path) -> Option<EntryKind> {
        let metadata = fs::metadata(path).ok()?;
        Some(if metadata.is_dir() { EntryKind::Directory } else { EntryKind::File })
    }
}

/// An agent that was just started.
struct StartedAgent {
    child: Child,
    pidfd: Arc<OwnedFd>,
    record: PodRecord,
    job: Option<regatta_agent::spec::JobIdentity>,
}

impl ProcessDriver {
    pub(super) async fn start_pod(&self, pod: Arc<Pod>) -> Result<Started, StartFailure> {
        let uid = pod.metadata.uid();
        validation::check(&pod)
            .map_err(|problem| StartFailure::refused("CreateContainerConfigError", problem))?;
        let facts = launch::facts(&pod)?;
        let references = References::fetch(self.cluster.as_ref(), &pod).await?;
        // The semaphore is never closed.
        let _permit = self.starts.acquire().await;
        let devices = self.take_devices(&pod, &uid)?;
        let Some(me) = self.me.upgrade() else {
            return Err(StartFailure::passing("Stopping", "the node runtime is stopping"));
        };
        let object = pod.clone();
        let started = tokio::task::spawn_blocking(move || {
            let started = me.start_agent(&object, facts, &references, devices.as_deref());
            if started.is_err() {
                me.undo(&object);
            }
            started
        });
        let started = started.await.unwrap_or_else(|panic| {
            Err(StartFailure::passing("StartFailed", format!("starting failed: {panic}")))
        })?;
        let given = started.record.started();
        let live = Live {
            record: started.record,
            job: started.job,
            agent: Some(started.pidfd.clone()),
            passed_on: PassedOn::default(),
        };
        lock(&self.live).insert(uid.clone(), live);
        self.watch(uid, started.pidfd, Some(started.child));
        Ok(given)
    }

    /// The pod's GPUs; none on a node that has none.
    fn take_devices(&self, pod: &Pod, uid: &Uid) -> Result<Option<Vec<Device>>, StartFailure> {
        let node = pod.spec.node_name.as_deref().unwrap_or_default();
        let wanted = usize::try_from(pod.requests().gpus()).unwrap_or(0);
        let mut ledger = lock(&self.ledger);
        if wanted == 0 && !ledger.has_devices(node) {
            return Ok(None);
        }
        let devices = ledger.take(node, uid, wanted);
        devices.map(Some).ok_or_else(|| {
            let message =
                format!("{wanted} GPUs are not free on node {node} yet; the pod starts when they are");
            StartFailure::passing("InsufficientGPUs", message)
        })
    }

    /// Everything that touches the machine. Blocks.
    fn start_agent(
        &self,
        pod: &Pod,
        facts: Option<LaunchSpec>,
        references: &References,
        devices: Option<&[Device]>,
    ) -> Result<StartedAgent, StartFailure> {
        let uid = pod.metadata.uid();
        let dir = self.layout.pod(&uid);
        let mut record = PodRecord {
            namespace: pod.metadata.namespace().to_owned(),
            name: pod.metadata.name.clone(),
            uid: uid.clone(),
            node: pod.spec.node_name.clone().unwrap_or_default(),
            devices: devices.into_iter().flatten().map(|device| device.index).collect(),
            network: network_key(pod),
            pod_ip: None,
            host_ports: if self.is_on_host(pod) { validation::literal_ports(pod) } else { Vec::new() },
            started_at: self.clock.now(),
        };
        // The record comes first: whatever is made from here on is found again by the next runtime.
        make_directory(&dir, 0o700)
            .and_then(|()| save(&dir, RECORD, &record))
            .map_err(machine("prepare the pod's directory"))?;
        let attachment = self.attach(pod, facts.as_ref(), &record.network)?;
        record.pod_ip = Some(attachment.pod_ip.to_string());
        save(&dir, RECORD, &record).map_err(machine("prepare the pod's directory"))?;
        let host_file = fs::read_to_string("/etc/hosts").unwrap_or_default();
        let around = Surroundings {
            layout: &self.layout,
            mounts: self.mounts,
            inherited: &self.inherited,
            references,
            facts,
            attachment: &attachment,
            devices,
            host_file: &host_file,
            host: &RealHost,
        };
        let mut prepared = prepare::prepare(pod, &around)?;
        make_host_paths(pod).map_err(machine("make a path of the host"))?;
        self.make(&prepared, &uid).map_err(machine("make the pod's volumes"))?;
        self.make_cgroups(&mut prepared, &uid).map_err(machine("make the pod's control groups"))?;
        save(&dir, files::SPEC, &prepared.spec).map_err(machine("write what the agent is told"))?;
        let child = self.spawn_agent(&dir).map_err(machine("start the agent"))?;
        let pidfd = open_process(&child).map_err(machine("watch the agent"))?;
        Ok(StartedAgent { child, pidfd: Arc::new(pidfd), record, job: prepared.spec.pod.job })
    }

    pub(super) fn is_on_host(&self, pod: &Pod) -> bool {
        self.network.is_host() || pod.spec.host_network == Some(true)
    }

    fn attach(
        &self,
        pod: &Pod,
        facts: Option<&LaunchSpec>,
        key: &str,
    ) -> Result<crate::network::Attachment, StartFailure> {
        let own = [launch::hostname(pod)];
        let hosts =
            facts.map(|facts| facts.hosts.as_slice()).filter(|hosts| !hosts.is_empty()).unwrap_or(&own);
        let epoch = pod
            .metadata
            .annotations
            .get(labels::EPOCH)
            .and_then(|text| text.parse().ok())
            .map_or(Epoch(0), Epoch);
        let wish = Wish {
            key,
            pod: &pod.metadata.uid(),
            epoch: facts.map_or(epoch, |facts| facts.epoch),
            hosts,
            own_host: facts.map_or(0, |facts| launch::own_host(pod, facts)),
            on_host: pod.spec.host_network == Some(true),
        };
        self.network
            .attach(&wish)
            .map_err(|error| StartFailure::passing("NetworkNotReady", error.to_string()))
    }

    fn make(&self, prepared: &Prepared, uid: &Uid) -> io::Result<()> {
        for parent in [self.layout.memory(), self.layout.pod_memory(uid)] {
            // Only pods with secrets, volumes in memory or long paths have anything there.
            if prepared.make.directories.iter().any(|(path, _)| path.starts_with(&parent))
                || prepared.spec.progress_socket.starts_with(&parent)
            {
                make_directory(&parent, 0o700)?;
            }
        }
        for (path, mode) in &prepared.make.directories {
            make_directory(path, *mode)?;
        }
        for file in &prepared.make.files {
            make_file(&file.path, &file.content, file.mode)?;
        }
        for (path, kind) in &prepared.mount_points {
            match kind {
                EntryKind::Directory => fs::create_dir_all(path)?,
                EntryKind::File => drop(File::create(path)?),
            }
        }
        let containers = prepared.spec.init_containers.iter().chain(&prepared.spec.containers);
        for container in containers {
            fs::create_dir_all(&container.log_dir)?;
        }
        Ok(())
    }

    fn make_cgroups(&self, prepared: &mut Prepared, uid: &Uid) -> io::Result<()> {
        let spec = &mut prepared.spec;
        let containers = spec.init_containers.iter_mut().chain(&mut spec.containers);
        for (container, limits) in containers.zip(&prepared.limits) {
            container.cgroup = self.cgroups.create(uid.as_str(), &container.name, *limits)?;
        }
        Ok(())
    }

    fn spawn_agent(&self, dir: &Path) -> io::Result<Child> {
        let (program, args) =
            self.agent_command.split_first().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        let log = OpenOptions::new().create(true).append(true).mode(0o600).open(dir.join(files::LOG))?;
        Command::new(program)
            .args(args)
            .arg("--dir")
            .arg(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
    }

    /// Takes back what a failed start has taken.
    fn undo(&self, pod: &Pod) {
        let uid = pod.metadata.uid();
        self.remove_all(&uid);
        self.network.release(&network_key(pod), &uid);
    }
}

/// Whose network a pod is in: its job's, or its own.
fn network_key(pod: &Pod) -> String {
    let owner = pod.metadata.owner_references.iter().find(|owner| owner.controller == Some(true));
    owner.map_or_else(|| pod.metadata.uid().0, |owner| owner.uid.0.clone())
}

fn machine(action: &'static str) -> impl Fn(io::Error) -> StartFailure {
    move |error| {
        // A full disk or a full process table is nothing that the pod could help.
        StartFailure::passing("StartFailed", format!("cannot {action}: {error}"))
    }
}

fn save<T: serde::Serialize>(dir: &Path, name: &str, value: &T) -> io::Result<()> {
    files::write_json(dir, name, value, Durability::Cached).map_err(io::Error::other)
}

/// Makes a directory with exactly this mode, whatever the process' own mask.
fn make_directory(path: &Path, mode: u32) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(mode & 0o755).create(path)?;
    if fs::metadata(path)?.permissions().mode() & 0o7777 != mode {
        fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    }
    Ok(())
}

fn make_file(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    // Never readable by others, not even for a moment.
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
    file.write_all(content)
}

/// Paths of the host that the pod asks to be made.
fn make_host_paths(pod: &Pod) -> io::Result<()> {
    for host in pod.spec.volumes.iter().filter_map(|volume| volume.host_path.as_ref()) {
        let path = PathBuf::from(&host.path);
        match host.type_.as_deref() {
            Some("DirectoryOrCreate") => fs::create_dir_all(&path)?,
            Some("FileOrCreate") if !path.exists() => drop(File::create(&path)?),
            _ => {}
        }
    }
    Ok(())
}

fn open_process(child: &Child) -> io::Result<OwnedFd> {
    let pid =
        regatta_agent::process::to_pid(child.id()).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
    // The child was not reaped, so its number is still its own.
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}
