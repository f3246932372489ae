//! One task for each pod: asks [`crate::machine`] what is next, does it, and waits for something to change.

use crate::driver::{Driver, Fact, PodEnd, Retry, StartFailure, Started};
use crate::machine::{self, Desired, Local, Step, Told, View};
use crate::status;
use bytes::Bytes;
use regatta_agent::protocol::ContainerPulse;
use regatta_kit::{ApiError, Cluster, DeleteOptions, PatchKind};
use regatta_types::pod::{Pod, PodStatus};
use regatta_types::{Clock, ObjectRef, Uid, labels, resource};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Shortest pause before something that failed is tried again, in milliseconds.
const RETRY_MS_MIN: u64 = 100;
/// Longest such pause.
const RETRY_MS_MAX: u64 = 10_000;

/// What the API says of a pod.
#[derive(Debug, Clone)]
pub(crate) enum Seen {
    /// Nothing yet.
    Unknown,
    /// This is its newest state.
    Pod(Arc<Pod>),
    /// It is gone.
    Gone,
}

/// How far a pod is, for those who read its logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// There will be output.
    Open,
    /// There will be no more.
    Ended,
}

/// What all actors share.
pub(crate) struct Shared {
    pub(crate) cluster: Arc<dyn Cluster>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) driver: Arc<dyn Driver>,
}

/// What is known of the pod on this machine.
enum State {
    Absent,
    Running { started: Started, pulses: Vec<ContainerPulse> },
    Ended { started: Started, end: PodEnd },
    Failed(StartFailure),
}

pub(crate) struct Actor {
    shared: Arc<Shared>,
    uid: Uid,
    seen: watch::Receiver<Seen>,
    facts: watch::Receiver<Option<Fact>>,
    progress: watch::Sender<Progress>,
    state: State,
    /// The newest object, kept when it is gone.
    pod: Option<Arc<Pod>>,
    gone: bool,
    told: Told,
    stop_sent: Option<u64>,
    retry: Option<Duration>,
    retry_ms: u64,
    last_failure: Option<String>,
}

impl Actor {
    pub(crate) fn new(
        shared: Arc<Shared>,
        uid: Uid,
        seen: watch::Receiver<Seen>,
        facts: watch::Receiver<Option<Fact>>,
        progress: watch::Sender<Progress>,
    ) -> Self {
        Self {
            shared,
            uid,
            seen,
            facts,
            progress,
            state: State::Absent,
            pod: None,
            gone: false,
            told: Told::Yes,
            stop_sent: None,
            retry: None,
            retry_ms: RETRY_MS_MIN,
            last_failure: None,
        }
    }

    /// Goes on from where an earlier runtime was.
    pub(crate) fn adopt(&mut self, started: Started) {
        self.state = State::Running { started, pulses: Vec::new() };
    }

    /// Runs until the pod is forgotten.
    pub(crate) async fn run(mut self) {
        loop {
            self.take_in();
            let step = machine::decide(&self.view());
            if step == Step::Wait || self.retry.is_some() && step != Step::Remove {
                self.wait().await;
                continue;
            }
            match step {
                Step::Wait => {}
                Step::Start => self.start().await,
                Step::Stop { grace_period_ms } => {
                    self.shared.driver.stop(&self.uid, grace_period_ms).await;
                    self.stop_sent = Some(grace_period_ms);
                }
                Step::Tell => self.tell().await,
                Step::DeleteObject => self.delete_object().await,
                Step::Remove => {
                    self.progress.send_replace(Progress::Ended);
                    self.shared.driver.remove(&self.uid).await;
                    return;
                }
            }
        }
    }

    fn view(&self) -> View {
        let desired = match &self.pod {
            _ if self.gone => Desired::Gone,
            Some(pod) => Desired::of(pod),
            None => Desired::Unknown,
        };
        let local = match self.state {
            State::Absent => Local::Absent,
            State::Running { .. } => Local::Running,
            State::Ended { .. } | State::Failed(_) => Local::Ended,
        };
        View { desired, local, told: self.told, stop_sent: self.stop_sent }
    }

    /// Takes in what the API and the driver have said.
    fn take_in(&mut self) {
        match &*self.seen.borrow_and_update() {
            Seen::Unknown => {}
            Seen::Pod(pod) => self.pod = Some(pod.clone()),
            Seen::Gone => self.gone = true,
        }
        let fact = self.facts.borrow_and_update().clone();
        let State::Running { started, pulses } = &mut self.state else { return };
        match fact {
            Some(Fact::Pulse(newer)) => {
                let names = |pulses: &[ContainerPulse]| {
                    pulses.iter().map(|p| (p.kind, p.name.clone())).collect::<Vec<_>>()
                };
                if names(&newer) != names(pulses) {
                    self.told = Told::No;
                    *pulses = newer;
                }
            }
            Some(Fact::Ended(end)) => {
                self.state = State::Ended { started: std::mem::take(started), end };
                self.told = Told::No;
                // The end is worth trying at once, whatever failed before.
                self.retry = None;
                self.progress.send_replace(Progress::Ended);
            }
            None => {}
        }
    }

    async fn wait(&mut self) {
        let pause = self.retry;
        let timer = async {
            match pause {
                Some(pause) => tokio::time::sleep(pause).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = timer => self.retry = None,
            changed = self.seen.changed() => self.or_stop(changed).await,
            changed = self.facts.changed() => self.or_stop(changed).await,
        }
    }

    /// The senders live as long as the runtime; without them nothing more can happen, and the runtime ends this task.
    async fn or_stop(&self, changed: Result<(), watch::error::RecvError>) {
        if changed.is_err() {
            std::future::pending::<()>().await;
        }
    }

    fn try_later(&mut self) {
        self.retry = Some(Duration::from_millis(self.retry_ms));
        self.retry_ms = (self.retry_ms * 2).min(RETRY_MS_MAX);
    }

    fn worked(&mut self) {
        self.retry_ms = RETRY_MS_MIN;
        self.last_failure = None;
    }

    async fn start(&mut self) {
        let Some(pod) = self.pod.clone() else { return };
        match self.shared.driver.start(pod.clone()).await {
            Ok(started) => {
                self.worked();
                self.annotate_gpus(&pod, &started);
                self.state = State::Running { started, pulses: Vec::new() };
                self.told = Told::Yes;
                // What the agent has said meanwhile counts.
                self.facts.mark_changed();
            }
            Err(failure) if failure.retry == Retry::Later => {
                tracing::warn!(pod = pod.metadata.key(), %failure, "the pod cannot be started yet");
                self.try_later();
                if self.last_failure.as_ref() != Some(&failure.message) {
                    self.last_failure = Some(failure.message.clone());
                    let status = status::waiting_to_start(&pod, &failure, self.shared.clock.now());
                    // It is told again with the next change of the failure; starting matters more.
                    let _ = self.patch_status(&pod, &status).await;
                }
            }
            Err(failure) => {
                tracing::info!(pod = pod.metadata.key(), %failure, "the pod cannot be started");
                self.state = State::Failed(failure);
                self.told = Told::No;
                self.progress.send_replace(Progress::Ended);
            }
        }
    }

    /// Writes which GPUs the pod has, beside everything else: nobody waits for it.
    fn annotate_gpus(&self, pod: &Pod, started: &Started) {
        if started.gpu_devices.is_empty() {
            return;
        }
        let patch =
            json!({"metadata": {"annotations": {labels::GPU_DEVICES: started.gpu_devices.join(",")}}});
        let at = ObjectRef::namespaced(resource::PODS, pod.metadata.namespace(), &pod.metadata.name);
        let cluster = self.shared.cluster.clone();
        tokio::spawn(async move {
            if let Err(error) = cluster.patch(&at, PatchKind::Merge, Bytes::from(patch.to_string())).await
                && !error.is_not_found()
            {
                tracing::warn!(pod = %at, %error, "cannot write which GPUs the pod has");
            }
        });
    }

    async fn tell(&mut self) {
        let Some(pod) = self.pod.clone() else { return };
        let now = self.shared.clock.now();
        let status = match &self.state {
            State::Absent => return,
            State::Running { started, pulses } => status::running(&pod, started, pulses, now),
            State::Ended { started, end } => status::ended(&pod, Some(started), end, now),
            State::Failed(failure) => status::failed_to_start(&pod, failure, now),
        };
        match self.patch_status(&pod, &status).await {
            Ok(()) => {
                self.told = Told::Yes;
                self.worked();
            }
            Err(error) if error.is_not_found() || error.is_conflict() => self.gone = true,
            Err(error) => {
                tracing::warn!(pod = pod.metadata.key(), %error, "cannot tell the API of the pod; trying again");
                self.try_later();
            }
        }
    }

    async fn patch_status(&self, pod: &Pod, status: &PodStatus) -> Result<(), ApiError> {
        let at = ObjectRef::namespaced(resource::PODS, pod.metadata.namespace(), &pod.metadata.name);
        // The uid makes sure that a namesake is not told of this pod's fate.
        let patch = json!({"metadata": {"uid": self.uid}, "status": status});
        self.shared
            .cluster
            .patch_status(&at, PatchKind::Merge, Bytes::from(patch.to_string()))
            .await
            .map(drop)
    }

    async fn delete_object(&mut self) {
        let Some(pod) = self.pod.clone() else { return };
        let at = ObjectRef::namespaced(resource::PODS, pod.metadata.namespace(), &pod.metadata.name);
        let options = DeleteOptions { grace_period_seconds: Some(0), uid: Some(self.uid.clone()) };
        match self.shared.cluster.delete(&at, &options).await {
            Ok(()) => self.gone = true,
            Err(error) if error.is_not_found() || error.is_conflict() => self.gone = true,
            Err(error) => {
                tracing::warn!(pod = pod.metadata.key(), %error, "cannot take the pod's object away; trying again");
                self.try_later();
            }
        }
    }
}
