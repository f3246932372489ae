//! A driver without processes: pods run for a while that a script says, and end as it says. For tests and simulation; time
//! is whatever the given sleep makes of it.

use crate::api::{ExecProcess, ExecRequest};
use crate::driver::{Adopted, Driver, Fact, Observation, PodEnd, StartFailure, Started};
use crate::error::Error;
use crate::runtime::lock;
use async_trait::async_trait;
use regatta_agent::exit::{ContainerExit, Ends, PodExit, verdict};
use regatta_agent::protocol::{ContainerKind, ContainerPulse};
use regatta_kit::informer::Sleep;
use regatta_types::evidence::{ExitRecord, ProcessEnd, RankEnd};
use regatta_types::pod::{LaunchSpec, Pod};
use regatta_types::{Clock, Rank, Uid, labels};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};
use tokio::sync::{mpsc, watch};

/// What a fake pod does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Script {
    /// It runs so long, in milliseconds, and ends in this way.
    Run {
        /// How long.
        for_ms: u64,
        /// How it ends.
        end: ProcessEnd,
    },
    /// It runs until it is stopped, which takes so long, in milliseconds.
    UntilStopped {
        /// How long stopping takes; at most the grace period.
        stop_ms: u64,
    },
    /// It cannot be started.
    FailToStart(StartFailure),
}

/// What each pod does.
pub type Scripts = Arc<dyn Fn(&Pod) -> Script + Send + Sync>;

/// The driver.
pub struct FakeDriver {
    scripts: Scripts,
    clock: Arc<dyn Clock>,
    sleep: Sleep,
    observed: mpsc::Sender<Observation>,
    running: Mutex<BTreeMap<Uid, watch::Sender<Option<u64>>>>,
    me: Weak<FakeDriver>,
}

impl FakeDriver {
    /// A driver whose pods do what `scripts` says. What is seen of them goes to `observed`.
    pub fn new(
        scripts: Scripts,
        clock: Arc<dyn Clock>,
        sleep: Sleep,
        observed: mpsc::Sender<Observation>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            scripts,
            clock,
            sleep,
            observed,
            running: Mutex::default(),
            me: me.clone(),
        })
    }

    /// Uids of the pods that run.
    pub fn running(&self) -> Vec<Uid> {
        lock(&self.running).keys().cloned().collect()
    }

    async fn live(self: Arc<Self>, pod: Arc<Pod>, script: Script, mut stop: watch::Receiver<Option<u64>>) {
        let uid = pod.metadata.uid();
        let started_at = self.clock.now();
        let pulse = |container: &regatta_types::pod::Container| ContainerPulse {
            name: container.name.clone(),
            kind: ContainerKind::Main,
            started_at,
            pid: 1,
            ended: false,
        };
        let pulses = pod.spec.containers.iter().map(pulse).collect();
        self.say(&uid, Fact::Pulse(pulses)).await;
        let asked = async {
            // The sender lives as long as the pod.
            let grace = stop.wait_for(Option::is_some).await;
            grace.ok().and_then(|grace| *grace).unwrap_or(0)
        };
        let (end, stop_requested) = match script {
            Script::Run { for_ms, end } => {
                tokio::select! {
                    () = (self.sleep)(for_ms) => (end, false),
                    _ = asked => (ProcessEnd::Signaled(15), true),
                }
            }
            Script::UntilStopped { stop_ms } => {
                let grace_ms = asked.await;
                (self.sleep)(stop_ms.min(grace_ms)).await;
                (ProcessEnd::Signaled(if stop_ms > grace_ms { 9 } else { 15 }), true)
            }
            Script::FailToStart(failure) => (failure.end, false),
        };
        lock(&self.running).remove(&uid);
        let exit = self.exit(&pod, started_at, end, stop_requested);
        self.say(&uid, Fact::Ended(PodEnd::Exit(exit))).await;
    }

    async fn say(&self, uid: &Uid, fact: Fact) {
        // Nobody listens any more when the runtime stops.
        let _ = self.observed.send(Observation { uid: uid.clone(), fact }).await;
    }

    fn exit(
        &self,
        pod: &Pod,
        started_at: regatta_types::Timestamp,
        end: ProcessEnd,
        stop_requested: bool,
    ) -> PodExit {
        let launch = pod.metadata.annotations.get(labels::LAUNCH);
        let facts: LaunchSpec = launch.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        let at = self.clock.now();
        let container = |(index, container): (usize, &regatta_types::pod::Container)| {
            let count = if index == 0 { facts.procs.max(1) } else { 1 };
            let ranks: Vec<RankEnd> =
                (0..count).map(|n| RankEnd { rank: Rank(facts.first_rank.0 + n), end, at }).collect();
            let ends = Ends {
                ranks: &ranks,
                rank_count: ranks.len(),
                oom_killed: false,
                stop_requested,
                problem: None,
            };
            let verdict = verdict(&ends);
            ContainerExit {
                name: container.name.clone(),
                kind: ContainerKind::Main,
                started_at: Some(started_at),
                finished_at: at,
                end: verdict.end,
                reason: verdict.reason.to_owned(),
                message: verdict.message,
                record: ExitRecord {
                    epoch: facts.epoch,
                    ranks,
                    stop_requested,
                    oom_killed: false,
                    last_step: None,
                    checkpoints: Vec::new(),
                    bad_checkpoints: Vec::new(),
                    stderr_tail: String::new(),
                },
            }
        };
        PodExit {
            containers: pod.spec.containers.iter().enumerate().map(container).collect(),
            finished_at: at,
        }
    }
}

#[async_trait]
impl Driver for FakeDriver {
    async fn adopt(&self) -> Vec<Adopted> {
        Vec::new()
    }

    async fn start(&self, pod: Arc<Pod>) -> Result<Started, StartFailure> {
        let script = (self.scripts)(&pod);
        if let Script::FailToStart(failure) = script {
            return Err(failure);
        }
        let Some(me) = self.me.upgrade() else {
            return Err(StartFailure::passing("Stopping", "the driver is stopping"));
        };
        let (sender, stop) = watch::channel(None);
        lock(&self.running).insert(pod.metadata.uid(), sender);
        tokio::spawn(me.live(pod, script, stop));
        Ok(Started { at: self.clock.now(), ..Started::default() })
    }

    async fn stop(&self, uid: &Uid, grace_period_ms: u64) {
        if let Some(stop) = lock(&self.running).get(uid) {
            stop.send_replace(Some(grace_period_ms));
        }
    }

    async fn remove(&self, uid: &Uid) {
        lock(&self.running).remove(uid);
    }

    async fn exec(&self, _pod: &Pod, _request: ExecRequest) -> Result<ExecProcess, Error> {
        Err(Error::NoProcesses)
    }
}
