//! What the tests of the node runtime share: an API, a runtime in a directory of its own, pods.

pub(crate) mod api;

use api::Api;
use futures::StreamExt;
use regatta_agent::process;
use regatta_agent::protocol::AgentReport;
use regatta_node::{Gpus, NetworkMode, NodeCount, NodeOptions, NodeRuntime};
use regatta_types::pod::Pod;
use regatta_types::streams::LogRequest;
use regatta_types::{SystemClock, Uid, resource};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, WatchFlags};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use serde_json::{Value, json};
use std::future::Future;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Name of the node in tests: virtual nodes are numbered.
pub(crate) const NODES: u32 = 2;

/// A data directory, an API, and at times a runtime.
pub(crate) struct World {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) api: Api,
    pub(crate) network: NetworkMode,
    pub(crate) gpus: Gpus,
}

/// A runtime that runs.
pub(crate) struct Running {
    pub(crate) node: Arc<NodeRuntime>,
    pub(crate) reports: mpsc::Receiver<AgentReport>,
    stop: CancellationToken,
    task: JoinHandle<Result<(), regatta_node::Error>>,
}

impl World {
    pub(crate) fn new(network: NetworkMode) -> Self {
        Self { dir: tempfile::tempdir().unwrap(), api: Api::new(), network, gpus: Gpus::Simulated(4) }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Starts a runtime, as a daemon would.
    pub(crate) async fn start(&self) -> Running {
        let agent = std::env::current_exe().unwrap();
        let options = NodeOptions {
            data_dir: self.path("data"),
            node_count: NodeCount::Virtual(NODES),
            gpus: self.gpus,
            network: self.network,
            agent_command: vec![agent.into_os_string(), "agent".into()],
            cluster: Arc::new(self.api.clone()),
            clock: Arc::new(SystemClock),
        };
        let (node, reports) = NodeRuntime::start(options).await.unwrap();
        let stop = CancellationToken::new();
        let task = tokio::spawn(node.clone().run(stop.clone()));
        Running { node, reports, stop, task }
    }

    /// Creates a pod on a node.
    pub(crate) fn create(&self, node: &Running, index: usize, name: &str, spec: Value) {
        self.create_with(node, index, &json!({"name": name}), spec);
    }

    /// Creates a pod with more metadata.
    pub(crate) fn create_with(&self, node: &Running, index: usize, metadata: &Value, mut spec: Value) {
        spec["nodeName"] = json!(node.node.facts().nodes[index]);
        let mut pod =
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": {}});
        pod["metadata"]["namespace"] = json!("default");
        self.api.put(resource::PODS, pod);
    }

    pub(crate) async fn wait(&self, name: &str, what: impl Fn(&Pod) -> bool) -> Pod {
        let check = |object: Option<&Value>| object.is_some_and(|object| what(&decode(object)));
        decode(&self.api.wait_for(resource::PODS, "default", name, check).await.unwrap())
    }

    pub(crate) async fn wait_phase(&self, name: &str, phase: &str) -> Pod {
        self.wait(name, |pod| pod.status.phase == phase).await
    }

    pub(crate) async fn wait_gone(&self, name: &str) {
        self.api.wait_for(resource::PODS, "default", name, |object| object.is_none()).await;
    }

    pub(crate) async fn delete(&self, name: &str, grace_period_seconds: i64) {
        use regatta_kit::{Cluster, DeleteOptions};
        let at = regatta_types::ObjectRef::namespaced(resource::PODS, "default", name);
        let options = DeleteOptions { grace_period_seconds: Some(grace_period_seconds), uid: None };
        self.api.delete(&at, &options).await.unwrap();
    }
}

impl Drop for World {
    /// A test that failed leaves nothing behind either.
    fn drop(&mut self) {
        for entry in std::fs::read_dir(self.path("data/pods")).into_iter().flatten().flatten() {
            let uid = entry.file_name().to_string_lossy().into_owned();
            for stat in process::all().iter().filter(|stat| process::is_marked(stat.pid, &uid)) {
                process::signal(stat.pid, Signal::KILL);
            }
        }
        for entry in std::fs::read_dir(self.path("data/net")).into_iter().flatten().flatten() {
            // Not every network is a mount.
            let _ = rustix::mount::unmount(entry.path().join("ns"), rustix::mount::UnmountFlags::DETACH);
        }
    }
}

/// Waits until `holds`, looking again whenever something comes into `directory` or leaves it.
pub(crate) async fn until(directory: &Path, holds: impl Fn() -> bool) {
    let changes =
        Arc::new(inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC).unwrap());
    let kinds = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVED_TO | WatchFlags::MOVED_FROM;
    inotify::add_watch(&changes, directory, kinds).unwrap();
    while !holds() {
        readable(changes.clone()).await;
        while rustix::io::read(&changes, &mut [0_u8; 4096]).is_ok() {}
    }
}

/// Waits until a descriptor has something to read.
async fn readable(descriptor: Arc<OwnedFd>) {
    // Ends what hangs, and nothing else.
    let deadline = Timespec { tv_sec: 60, tv_nsec: 0 };
    let wait = move || {
        // Children end all the time, and each tells so by a signal.
        rustix::io::retry_on_intr(|| poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&deadline)))
    };
    assert_eq!(tokio::task::spawn_blocking(wait).await.unwrap(), Ok(1), "nothing happened");
}

pub(crate) async fn wait_path(path: &Path) {
    until(path.parent().unwrap(), || path.exists()).await;
}

/// Waits until a process has ended. One that is not there has.
pub(crate) async fn wait_ended(pid: u32) {
    let Some(pid) = Pid::from_raw(pid.cast_signed()) else { return };
    if let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) {
        readable(Arc::new(process)).await;
    }
}

pub(crate) fn is_empty(directory: &Path) -> bool {
    std::fs::read_dir(directory).unwrap().count() == 0
}

impl Running {
    /// Deletes every pod, waits until nothing of them is left, and stops the runtime.
    pub(crate) async fn finish(self, world: &World) {
        for name in world.api.names(resource::PODS) {
            world.delete(&name, 0).await;
        }
        for directory in ["data/pods", "data/net"] {
            let directory = world.path(directory);
            until(&directory, || is_empty(&directory)).await;
        }
        self.stop().await;
    }

    /// Stops the runtime; pods run on.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap().unwrap();
    }

    /// The whole log of a pod.
    pub(crate) async fn log(&self, pod: &str, uid: Option<Uid>, request: LogRequest) -> String {
        let mut stream = self.node.logs("default", pod, uid, request).await.unwrap();
        let mut text = Vec::new();
        while let Some(chunk) = stream.next().await {
            text.extend_from_slice(&chunk.unwrap());
        }
        String::from_utf8(text).unwrap()
    }
}

pub(crate) fn decode(object: &Value) -> Pod {
    serde_json::from_value(object.clone()).unwrap()
}

/// One container that runs a shell script.
pub(crate) fn script(text: &str) -> Value {
    json!({"containers": [container("main", text)]})
}

pub(crate) fn container(name: &str, text: &str) -> Value {
    json!({"name": name, "command": ["/bin/sh", "-c", text]})
}

/// Metadata of a slot of a job.
pub(crate) fn slot(job: &str, slot: u32, slots: u32, epoch: u64) -> Value {
    let hosts: Vec<String> = (0..slots).map(|n| format!("{job}-worker-{n}.{job}")).collect();
    let launch = json!({
        "job": job, "role": "worker", "slot": slot, "epoch": epoch, "procs": 1, "firstRank": slot, "worldSize": slots,
        "hosts": hosts,
    });
    json!({
        "name": format!("{job}-worker-{slot}-1"),
        "annotations": {"regatta.dev/launch": launch.to_string()},
        "ownerReferences": [{"apiVersion": "regatta.dev/v1alpha1", "kind": "Job", "name": job, "uid": format!("uid-of-{job}"), "controller": true}],
    })
}

/// Runs an asynchronous test; one that hangs fails.
pub(crate) fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        tokio::time::timeout(Duration::from_secs(90), test).await.expect("the test hangs");
    });
}
