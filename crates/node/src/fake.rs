//! A driver without processes: pods run for a while that a script says, and end as it says. For tests and simulation; time
//! is whatever the given sleep makes of it.

use crate::api::ExecProcess;
use crate::driver::{Adopted, Driver, Fact, Observation, PodEnd, StartFailure, Started};
use crate::error::Error;
use crate::runtime::lock;
use async_trait::async_trait;
use regatta_agent::exit::{ContainerExit, Ends, PodExit, verdict};
use regatta_agent::protocol::{ContainerKind, ContainerPulse};
use regatta_kit::informer::Sleep;
use regatta_types::evidence::{ExitRecord, ProcessEnd, RankEnd};
use regatta_types::pod::{LaunchSpec, Pod};
use regatta_types::streams::ExecRequest;
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
                record: ExitRecord { epoch: facts.epoch, ranks, stop_requested, ..ExitRecord::default() },
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::Retry;
    use regatta_types::Timestamp;
    use serde_json::json;

    struct Still;

    impl Clock for Still {
        fn now(&self) -> Timestamp {
            Timestamp::from_unix_ms(7)
        }
        fn monotonic_ms(&self) -> u64 {
            0
        }
    }

    fn pod() -> Arc<Pod> {
        let launch = json!({"job": "j", "procs": 2, "firstRank": 4, "epoch": 3}).to_string();
        let pod = json!({
            "metadata": {"name": "p", "uid": "u", "annotations": {(labels::LAUNCH): launch}},
            "spec": {"containers": [{"name": "main"}]},
        });
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    /// Runs one pod with a sleep that notes how long it was, and is over at once.
    async fn live(script: Script, stop: Option<u64>) -> (PodExit, Vec<u64>) {
        let slept = Arc::new(Mutex::new(Vec::new()));
        let notes = slept.clone();
        let sleep: Sleep = Arc::new(move |ms| {
            lock(&notes).push(ms);
            Box::pin(std::future::ready(()))
        });
        let (observed, mut observations) = mpsc::channel(8);
        let driver = FakeDriver::new(Arc::new(move |_| script.clone()), Arc::new(Still), sleep, observed);
        driver.start(pod()).await.unwrap();
        assert!(matches!(observations.recv().await.unwrap().fact, Fact::Pulse(_)));
        if let Some(grace_ms) = stop {
            driver.stop(&Uid::from("u"), grace_ms).await;
        }
        let Fact::Ended(PodEnd::Exit(exit)) = observations.recv().await.unwrap().fact else {
            panic!("it ends")
        };
        assert_eq!(driver.running(), Vec::<Uid>::new());
        let slept = lock(&slept).clone();
        (exit, slept)
    }

    #[tokio::test]
    async fn pods_do_what_their_script_says() {
        let (exit, slept) = live(Script::Run { for_ms: 5_000, end: ProcessEnd::Exited(3) }, None).await;
        assert_eq!(slept, [5_000]);
        let main = &exit.containers[0];
        assert_eq!(
            (main.end, main.reason.as_str(), main.record.epoch.0),
            (ProcessEnd::Exited(3), "Error", 3)
        );
        let ranks: Vec<u32> = main.record.ranks.iter().map(|rank| rank.rank.0).collect();
        assert_eq!(ranks, [4, 5]);

        for (stop_ms, grace_ms, slept_ms, signal) in [(100, 9_000, 100, 15), (9_000, 100, 100, 9)] {
            let (exit, slept) = live(Script::UntilStopped { stop_ms }, Some(grace_ms)).await;
            assert_eq!((slept, exit.containers[0].end), (vec![slept_ms], ProcessEnd::Signaled(signal)));
            assert!(exit.containers[0].record.stop_requested);
        }
    }

    #[tokio::test]
    async fn a_pod_may_fail_to_start() {
        let failure = StartFailure::passing("NoSpace", "the disk is full");
        assert_eq!(failure.retry, Retry::Later);
        let (observed, _observations) = mpsc::channel(1);
        let script = Script::FailToStart(failure.clone());
        let sleep: Sleep = Arc::new(|_| Box::pin(std::future::pending()));
        let driver = FakeDriver::new(Arc::new(move |_| script.clone()), Arc::new(Still), sleep, observed);
        assert_eq!(driver.start(pod()).await, Err(failure));
    }
}
