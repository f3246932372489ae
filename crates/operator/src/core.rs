//! The operator's state machine: what happened goes in, what to do comes out. No I/O, no clock, no async.
//!
//! Two rules keep it safe on an API that answers late and tells the past:
//!
//! - *Read your writes.* A job with an effect under way is not decided again until the effect's result is known, and
//!   what a write returned replaces what was cached. Older versions that arrive afterwards are ignored.
//! - *Write ahead.* The lifecycle answers either with a status to write or with effects, never both; effects come from
//!   a status that is already stored. A crash between any two steps resumes where it stopped.

use crate::effects::{Effect, Outcome};
use crate::planning::{GangKey, Planning};
use regatta_kit::{ApiError, Object};
use regatta_lifecycle::{
    self as lifecycle, Action, Inputs, PodFacts, Prices, Shutdown, SlotAssignment, Step,
};
use regatta_types::evidence::{Checkpoint, Progress};
use regatta_types::job::{Job, JobPhase};
use regatta_types::node::{Node, NodePool};
use regatta_types::pod::Pod;
use regatta_types::queue::Queue;
use regatta_types::reason::EndReason;
use regatta_types::{ObjectMeta, Timestamp, Uid, labels};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// First pause after a write that failed for a passing reason.
const RETRY_MS_MIN: i64 = 100;
/// Longest pause after writes that keep failing.
const RETRY_MS_MAX: i64 = 30_000;
/// How many uids of deleted pods and jobs are remembered, so that a late answer cannot bring one back.
const TOMBSTONES_MAX: usize = 10_000;
/// How many checkpoints heard of since the last status write are kept for one job.
const LIVE_CHECKPOINTS_MAX: usize = 16;

/// Names an object within its kind.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Namespace; empty for cluster-scoped kinds.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl Key {
    /// The key of an object with this metadata.
    pub fn of(meta: &ObjectMeta) -> Self {
        Self { namespace: meta.namespace().to_owned(), name: meta.name.clone() }
    }

    /// A key in `namespace`.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// What an informer says about objects of one kind.
#[derive(Debug, Clone)]
pub enum Change<T> {
    /// These are all there are.
    Reset(Vec<T>),
    /// Created or changed.
    Applied(T),
    /// Gone; the last state.
    Deleted(T),
}

/// What an agent heard from its ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct Observation {
    /// Namespace of the pod.
    pub namespace: String,
    /// The job it belongs to.
    pub job: String,
    /// Uid of the pod, to ignore what an earlier pod said.
    pub pod_uid: Uid,
    /// Newest progress.
    pub progress: Option<Progress>,
    /// A checkpoint that was completed.
    pub checkpoint: Option<Checkpoint>,
    /// A checkpoint that could not be read, by path.
    pub bad_checkpoint: Option<String>,
}

/// Something that happened.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "it is handed on once and never kept")]
pub enum Input {
    /// Jobs changed.
    Jobs(Change<Job>),
    /// Pods changed.
    Pods(Change<Pod>),
    /// Nodes changed.
    Nodes(Change<Node>),
    /// Queues changed.
    Queues(Change<Queue>),
    /// Pools changed.
    Pools(Change<NodePool>),
    /// An agent reported.
    Observed(Observation),
    /// An effect has ended.
    Done(Outcome),
    /// Everything that runs shall stop and be queued again.
    ShutDown,
}

/// One job as the operator knows it.
#[derive(Debug)]
pub(crate) struct JobEntry {
    pub(crate) job: Job,
    version: u64,
    /// Effects under way.
    outstanding: u32,
    /// Whether one of them is the write that starts the gang.
    pub(crate) starting: bool,
    /// Pods whose deletion was asked for.
    deleting: BTreeSet<Uid>,
    wake_at: Option<Timestamp>,
    retries: u32,
    progress: Option<Progress>,
    live_checkpoints: Vec<Checkpoint>,
    live_bad_checkpoints: Vec<String>,
    /// What the planner last said of it, while it waits.
    pub(crate) verdict: Option<regatta_planner::Verdict>,
}

impl JobEntry {
    fn new(job: Job) -> Self {
        Self {
            version: version_of(&job.metadata),
            job,
            outstanding: 0,
            starting: false,
            deleting: BTreeSet::new(),
            wake_at: None,
            retries: 0,
            progress: None,
            live_checkpoints: Vec::new(),
            live_bad_checkpoints: Vec::new(),
            verdict: None,
        }
    }

    /// Whether nothing is under way, so that the job may be decided.
    pub(crate) fn is_idle(&self) -> bool {
        self.outstanding == 0
    }
}

/// The operator's whole state.
#[derive(Default)]
pub struct Core {
    jobs: BTreeMap<Key, JobEntry>,
    /// Jobs by uid, as the planner names them.
    keys: BTreeMap<Uid, Key>,
    /// When jobs want to be decided although nothing has happened.
    wakes: BTreeSet<(Timestamp, Key)>,
    pods: BTreeMap<Key, (u64, Pod)>,
    /// Pods by (namespace, job), so that deciding a job costs what it has.
    pods_of_job: BTreeMap<Key, BTreeSet<Key>>,
    pools: BTreeMap<String, NodePool>,
    pub(crate) planning: Planning,
    dirty: BTreeSet<Key>,
    tombstones: BTreeSet<Uid>,
    tombstone_order: std::collections::VecDeque<Uid>,
    synced: BTreeSet<&'static str>,
    shutting_down: bool,
}

/// The kinds that must have been listed before anything is decided.
const KINDS: [&str; 5] = ["Job", "Pod", "Node", "Queue", "NodePool"];

impl Core {
    /// An operator that knows nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether every kind has been listed once; before that nothing is decided.
    pub fn is_synced(&self) -> bool {
        self.synced.len() == KINDS.len()
    }

    /// The jobs, for previews and tests.
    pub fn job(&self, key: &Key) -> Option<&Job> {
        self.jobs.get(key).map(|entry| &entry.job)
    }

    /// What the planner last said of a waiting job.
    pub fn verdict(&self, key: &Key) -> Option<&regatta_planner::Verdict> {
        self.jobs.get(key).and_then(|entry| entry.verdict.as_ref())
    }

    /// How many jobs wait in the queue of `job` and are served before it.
    pub(crate) fn ahead_of(&self, job: &Job) -> u32 {
        self.ahead_in(job.queue(), job.spec.priority, job.metadata.creation_timestamp.unwrap_or_default())
    }

    /// How many jobs wait in `queue` and would be served before one with this priority, submitted at this time.
    pub(crate) fn ahead_in(&self, queue: &str, priority: i32, submitted: Timestamp) -> u32 {
        let is_ahead = |entry: &&JobEntry| {
            let job = &entry.job;
            let at = job.metadata.creation_timestamp.unwrap_or_default();
            let first = (Reverse(job.spec.priority), at) < (Reverse(priority), submitted);
            job.status.phase == JobPhase::Queued && job.queue() == queue && first
        };
        u32::try_from(self.jobs.values().filter(is_ahead).count()).unwrap_or(u32::MAX)
    }

    /// Prices of the pool that a node belongs to.
    pub(crate) fn prices_on(&self, node: &str) -> Option<Prices> {
        self.planning.prices_on(node, &self.pools)
    }

    /// Whether anything still holds resources: jobs that run or stop, and bare pods that have not ended.
    pub fn is_quiet(&self) -> bool {
        self.jobs.values().all(|entry| !entry.job.status.phase.holds_resources() && entry.is_idle())
            && self.pods.values().all(|(_, pod)| pod.is_finished() || pod.spec.node_name.is_none())
    }

    /// The earliest time at which [`Core::step`] has something to do although nothing happens.
    pub fn next_wake(&self) -> Option<Timestamp> {
        let idle = |key: &Key| self.jobs.get(key).is_some_and(JobEntry::is_idle);
        let job = self.wakes.iter().find(|(_, key)| idle(key)).map(|(at, _)| *at);
        let plan = if self.is_synced() && !self.shutting_down { self.planning.next_wake() } else { None };
        job.into_iter().chain(plan).min()
    }

    /// Takes in what happened.
    pub fn handle(&mut self, input: Input, now: Timestamp) {
        match input {
            Input::Jobs(change) => self.jobs_changed(change),
            Input::Pods(change) => self.pods_changed(change),
            Input::Nodes(change) => {
                self.synced.insert("Node");
                self.planning.nodes_changed(change, &self.pools);
            }
            Input::Queues(change) => {
                self.synced.insert("Queue");
                self.planning.queues_changed(change);
            }
            Input::Pools(change) => self.pools_changed(change),
            Input::Observed(observation) => self.observed(observation),
            Input::Done(outcome) => self.done(outcome, now),
            Input::ShutDown => {
                self.shutting_down = true;
                self.dirty.extend(self.jobs.keys().cloned());
            }
        }
    }

    /// Decides what to do now. Effects of one job may be carried out in any order, those of different jobs at once.
    pub fn step(&mut self, now: Timestamp) -> Vec<Effect> {
        if !self.is_synced() {
            return Vec::new();
        }
        let mut effects = Vec::new();
        if self.shutting_down {
            self.stop_bare_pods(&mut effects);
        } else {
            self.plan(now, &mut effects);
        }
        let due: Vec<Key> =
            self.wakes.iter().take_while(|(at, _)| *at <= now).map(|(_, key)| key.clone()).collect();
        self.dirty.extend(due);
        for key in std::mem::take(&mut self.dirty) {
            self.decide(&key, now, &mut effects);
        }
        effects
    }

    fn jobs_changed(&mut self, change: Change<Job>) {
        match change {
            Change::Reset(jobs) => {
                self.synced.insert("Job");
                let present: BTreeSet<Key> = jobs.iter().map(|job| Key::of(&job.metadata)).collect();
                let gone: Vec<Key> = self.jobs.keys().filter(|key| !present.contains(key)).cloned().collect();
                for key in gone {
                    self.job_gone(&key);
                }
                for job in jobs {
                    self.job_seen(job);
                }
            }
            Change::Applied(job) => self.job_seen(job),
            Change::Deleted(job) => {
                let key = Key::of(&job.metadata);
                // A namesake that was created since must not go with its predecessor.
                if self.jobs.get(&key).is_some_and(|entry| entry.job.metadata.uid == job.metadata.uid) {
                    self.job_gone(&key);
                }
                self.bury(job.metadata.uid());
            }
        }
    }

    fn job_seen(&mut self, job: Job) {
        let key = Key::of(&job.metadata);
        let version = version_of(&job.metadata);
        if self.tombstones.contains(&job.metadata.uid()) {
            return;
        }
        match self.jobs.get_mut(&key) {
            Some(entry) if entry.job.metadata.uid == job.metadata.uid => {
                if version <= entry.version {
                    return;
                }
                if entry.job.status.epoch != job.status.epoch {
                    // What was heard of an attempt has been judged with it.
                    entry.live_checkpoints.clear();
                    entry.live_bad_checkpoints.clear();
                    entry.progress = None;
                }
                entry.job = job;
                entry.version = version;
            }
            _ => {
                self.job_gone(&key);
                self.keys.insert(job.metadata.uid(), key.clone());
                self.jobs.insert(key.clone(), JobEntry::new(job));
            }
        }
        self.sync_gang(&key);
        self.dirty.insert(key);
    }

    fn job_gone(&mut self, key: &Key) {
        if let Some(entry) = self.jobs.remove(key) {
            let uid = entry.job.metadata.uid();
            self.planning.remove(&GangKey::Job(uid.clone()));
            self.keys.remove(&uid);
            if let Some(at) = entry.wake_at {
                self.wakes.remove(&(at, key.clone()));
            }
        }
        self.dirty.remove(key);
    }

    /// Tells the planner where the job stands, unless the write that starts it is under way.
    fn sync_gang(&mut self, key: &Key) {
        if let Some(entry) = self.jobs.get(key).filter(|entry| !entry.starting) {
            self.planning.job_changed(&entry.job);
        }
    }

    fn pods_changed(&mut self, change: Change<Pod>) {
        match change {
            Change::Reset(pods) => {
                self.synced.insert("Pod");
                let present: BTreeSet<Key> = pods.iter().map(|pod| Key::of(&pod.metadata)).collect();
                let gone: Vec<Key> = self.pods.keys().filter(|key| !present.contains(key)).cloned().collect();
                for key in gone {
                    self.pod_gone(&key);
                }
                for pod in pods {
                    self.pod_seen(pod);
                }
            }
            Change::Applied(pod) => self.pod_seen(pod),
            Change::Deleted(pod) => {
                let key = Key::of(&pod.metadata);
                if self.pods.get(&key).is_some_and(|(_, known)| known.metadata.uid == pod.metadata.uid) {
                    self.pod_gone(&key);
                }
                self.bury(pod.metadata.uid());
            }
        }
    }

    fn bury(&mut self, uid: Uid) {
        if self.tombstones.insert(uid.clone()) {
            self.tombstone_order.push_back(uid);
        }
        if self.tombstone_order.len() > TOMBSTONES_MAX
            && let Some(oldest) = self.tombstone_order.pop_front()
        {
            self.tombstones.remove(&oldest);
        }
    }

    fn pod_seen(&mut self, pod: Pod) {
        let key = Key::of(&pod.metadata);
        let version = version_of(&pod.metadata);
        if self.tombstones.contains(&pod.metadata.uid()) {
            return;
        }
        if self
            .pods
            .get(&key)
            .is_some_and(|(known, old)| old.metadata.uid == pod.metadata.uid && version <= *known)
        {
            return;
        }
        match job_of(&pod) {
            Some(job) => {
                self.pods_of_job.entry(job.clone()).or_default().insert(key.clone());
                self.dirty.insert(job);
            }
            None => self.planning.bare_pod_changed(&pod),
        }
        self.pods.insert(key, (version, pod));
    }

    fn pod_gone(&mut self, key: &Key) {
        let Some((_, pod)) = self.pods.remove(key) else { return };
        match job_of(&pod) {
            Some(job) => {
                if let Some(entry) = self.jobs.get_mut(&job) {
                    entry.deleting.remove(&pod.metadata.uid());
                }
                if let Some(pods) = self.pods_of_job.get_mut(&job) {
                    pods.remove(key);
                    if pods.is_empty() {
                        self.pods_of_job.remove(&job);
                    }
                }
                self.dirty.insert(job);
            }
            None => self.planning.bare_pod_gone(&pod),
        }
    }

    fn pools_changed(&mut self, change: Change<NodePool>) {
        match change {
            Change::Reset(pools) => {
                self.synced.insert("NodePool");
                self.pools = pools.into_iter().map(|pool| (pool.metadata.name.clone(), pool)).collect();
            }
            Change::Applied(pool) => {
                self.pools.insert(pool.metadata.name.clone(), pool);
            }
            Change::Deleted(pool) => {
                self.pools.remove(&pool.metadata.name);
            }
        }
        self.planning.pools_changed(&self.pools);
        self.dirty.extend(self.jobs.keys().cloned());
    }

    fn observed(&mut self, observation: Observation) {
        let key = Key::new(&observation.namespace, &observation.job);
        let known = self.pods_of_job.get(&key).into_iter().flatten();
        let current = known
            .filter_map(|pod| self.pods.get(pod))
            .any(|(_, pod)| pod.metadata.uid() == observation.pod_uid);
        let Some(entry) = self.jobs.get_mut(&key).filter(|_| current) else { return };
        if let Some(progress) = observation.progress {
            let newer = entry
                .progress
                .as_ref()
                .is_none_or(|old| (progress.epoch, progress.step) >= (old.epoch, old.step));
            if newer && progress.epoch == entry.job.status.epoch {
                entry.progress = Some(progress);
                self.dirty.insert(key.clone());
            }
        }
        if let Some(checkpoint) = observation.checkpoint
            && !entry.live_checkpoints.contains(&checkpoint)
        {
            entry.live_checkpoints.insert(0, checkpoint);
            entry.live_checkpoints.truncate(LIVE_CHECKPOINTS_MAX);
            self.dirty.insert(key.clone());
        }
        if let Some(path) = observation.bad_checkpoint
            && !entry.live_bad_checkpoints.contains(&path)
        {
            entry.live_bad_checkpoints.push(path);
            let excess = entry.live_bad_checkpoints.len().saturating_sub(LIVE_CHECKPOINTS_MAX);
            entry.live_bad_checkpoints.drain(..excess);
            self.dirty.insert(key);
        }
    }

    fn done(&mut self, outcome: Outcome, now: Timestamp) {
        match outcome {
            Outcome::JobStatusWritten { key, result } => {
                let started = self.end_effect(&key, &result, now);
                match result {
                    Ok(object) => self.absorb_job(&object),
                    Err(error) => tracing::debug!(%error, job = %key, "the job's status was not written"),
                }
                if started && let Some(entry) = self.jobs.get(&key) {
                    self.planning.start_settled(&entry.job);
                }
                self.sync_gang(&key);
            }
            Outcome::PodCreated { job, result } => {
                self.end_effect(&job, &result, now);
                if let Ok(object) = result
                    && let Ok(pod) = object.decode::<Pod>()
                {
                    self.pod_seen(pod);
                }
            }
            Outcome::PodDeleted { job, uid, result } => {
                let failed = result.is_err();
                self.end_effect(&job, &result, now);
                if failed && let Some(entry) = self.jobs.get_mut(&job) {
                    entry.deleting.remove(&uid);
                }
            }
            Outcome::JobChanged { key, result } => {
                self.end_effect(&key, &result, now);
            }
            Outcome::PodBound { uid, result } => self.planning.bind_settled(&uid, &result, now),
            Outcome::BarePodTouched { uid, result } => {
                if let Err(error) = result {
                    tracing::debug!(%error, %uid, "the pod was not changed");
                }
            }
        }
    }

    /// Books the end of an effect of `key`; says whether it was the write that starts its gang.
    fn end_effect<T>(&mut self, key: &Key, result: &Result<T, ApiError>, now: Timestamp) -> bool {
        let Some(entry) = self.jobs.get_mut(key) else { return false };
        entry.outstanding = entry.outstanding.saturating_sub(1);
        let started = std::mem::take(&mut entry.starting);
        match result {
            Ok(_) => {
                entry.retries = 0;
                self.dirty.insert(key.clone());
            }
            Err(error) => {
                // A conflict means that a newer version is on its way through the watch; anything else may pass.
                let pause = RETRY_MS_MIN.saturating_mul(1 << entry.retries.min(12)).min(RETRY_MS_MAX);
                entry.retries += 1;
                set_wake(&mut self.wakes, key, entry, Some(now.plus_ms(pause)));
                if !error.is_conflict() && !error.is_not_found() {
                    tracing::warn!(%error, job = %key, retry_in_ms = pause, "a write of the operator failed");
                }
            }
        }
        started
    }

    fn absorb_job(&mut self, object: &Object) {
        match object.decode::<Job>() {
            Ok(job) => self.job_seen(job),
            Err(error) => tracing::warn!(%error, "the API answered a job that cannot be read"),
        }
    }

    fn plan(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        let Some(planned) = self.planning.plan(now) else { return };
        for (uid, placement) in planned.job_starts {
            let entry = self.keys.get(&uid).and_then(|key| self.jobs.get_mut(key));
            let Some(entry) = entry.filter(|entry| entry.is_idle()) else {
                // Something of this job is under way: the start is taken back and planned again afterwards.
                self.planning.take_back(&uid);
                continue;
            };
            let placement = placement.into_iter().map(|slot| SlotAssignment {
                role: slot.role,
                slot: slot.slot,
                node: slot.node,
            });
            let (status, events, records) = lifecycle::start(&entry.job, &placement.collect::<Vec<_>>(), now);
            entry.verdict = None;
            entry.starting = true;
            write(entry, status, events, records, Vec::new(), now, effects);
        }
        for (key, node) in planned.pod_starts {
            effects.push(Effect::BindPod { key: key.0, uid: key.1, node });
        }
        for (uid, verdict) in planned.job_verdicts {
            let Some(key) = self.keys.get(&uid) else { continue };
            if let Some(entry) = self.jobs.get_mut(key) {
                entry.verdict = Some(verdict);
                self.dirty.insert(key.clone());
            }
        }
        for (key, uid, verdict) in planned.pod_verdicts {
            effects.push(Effect::ExplainPod {
                key,
                uid,
                reason: verdict.reason,
                message: verdict.message,
                at: now,
            });
        }
    }

    fn stop_bare_pods(&mut self, effects: &mut Vec<Effect>) {
        for (key, (_, pod)) in &mut self.pods {
            let runs = pod.spec.node_name.is_some() && !pod.is_finished() && !pod.metadata.is_being_deleted();
            if runs && job_of(pod).is_none() {
                effects.push(Effect::DeletePod {
                    job: None,
                    key: key.clone(),
                    uid: pod.metadata.uid(),
                    grace_period_seconds: None,
                });
                // Asked once; the watch tells the rest.
                pod.metadata.deletion_timestamp = Some(Timestamp::default());
            }
        }
    }

    fn decide(&mut self, key: &Key, now: Timestamp, effects: &mut Vec<Effect>) {
        let Some(entry) = self.jobs.get_mut(key).filter(|entry| entry.is_idle()) else { return };
        set_wake(&mut self.wakes, key, entry, None);
        let names = self.pods_of_job.get(key).into_iter().flatten();
        let own = names.filter_map(|name| self.pods.get(name)).map(|(_, pod)| pod);
        // A namesake's pods, left by a job that was deleted, are not this job's.
        let own = own.filter(|pod| is_owned_by(pod, &entry.job.metadata.uid()));
        let pods: Vec<PodFacts> = own.map(PodFacts::from).collect();
        let mut reported: Vec<Checkpoint> = entry.live_checkpoints.clone();
        reported.sort_unstable();
        reported.reverse();
        let prices = self.planning.prices_for(&entry.job, &self.pools);
        let step = lifecycle::decide(&Inputs {
            job: &entry.job,
            pods: &pods,
            prices: prices.as_ref(),
            progress: entry.progress.as_ref().filter(|progress| progress.epoch == entry.job.status.epoch),
            checkpoints: &reported,
            bad_checkpoints: &entry.live_bad_checkpoints,
            shutting_down: if self.shutting_down { Shutdown::Yes } else { Shutdown::No },
            now,
        });
        match step {
            Step::Wait { until } => {
                set_wake(&mut self.wakes, key, entry, until);
                explain(entry, now, effects);
            }
            Step::Write { status, events, records } => {
                // A pod that cannot be seen is only counted as gone after a fresh look.
                let decided_now = status.decision.is_some() && status.decision != entry.job.status.decision;
                let gone = status.decision.as_ref().is_some_and(|d| d.reason == EndReason::PodDeleted);
                // Nor may a new epoch start, or resources be given back, beside a pod that nobody has heard of yet.
                let left = entry.job.status.phase == JobPhase::Stopping
                    && status.phase != JobPhase::Stopping
                    && !status.phase.is_terminal();
                let verify =
                    if left || (decided_now && gone) { missing_pods(&entry.job, &pods) } else { Vec::new() };
                write(entry, *status, events, records, verify, now, effects);
            }
            Step::Act { actions } => act(entry, key, actions, effects),
        }
    }
}

/// Notes when a job wants to be decided although nothing happens.
fn set_wake(wakes: &mut BTreeSet<(Timestamp, Key)>, key: &Key, entry: &mut JobEntry, at: Option<Timestamp>) {
    if let Some(old) = std::mem::replace(&mut entry.wake_at, at) {
        wakes.remove(&(old, key.clone()));
    }
    wakes.extend(at.map(|at| (at, key.clone())));
}

/// Writes why a job waits, when that is news.
fn explain(entry: &mut JobEntry, now: Timestamp, effects: &mut Vec<Effect>) {
    let Some(verdict) = &entry.verdict else { return };
    let news = lifecycle::waiting(&entry.job, verdict.reason, &verdict.message, now);
    if let Some((status, events, records)) = news {
        write(entry, status, events, records, Vec::new(), now, effects);
    }
}

fn write(
    entry: &mut JobEntry,
    status: regatta_types::job::JobStatus,
    events: Vec<lifecycle::EventNote>,
    records: Vec<regatta_types::run_record::RunFact>,
    verify_absent: Vec<String>,
    now: Timestamp,
    effects: &mut Vec<Effect>,
) {
    entry.outstanding += 1;
    let mut job = entry.job.clone();
    job.status = status;
    effects.push(Effect::WriteJobStatus { job: Box::new(job), events, records, verify_absent, at: now });
}

fn act(entry: &mut JobEntry, key: &Key, actions: Vec<Action>, effects: &mut Vec<Effect>) {
    for action in actions {
        let effect = match action {
            Action::CreatePod(slot) => {
                Effect::CreatePod { job: key.clone(), pod: Box::new(lifecycle::pod_for(&entry.job, &slot)) }
            }
            Action::DeletePod { name, uid, grace_period_seconds } => {
                if !entry.deleting.insert(uid.clone()) {
                    continue;
                }
                let pod = Key::new(&key.namespace, &name);
                Effect::DeletePod { job: Some(key.clone()), key: pod, uid, grace_period_seconds }
            }
            Action::RemoveFinalizer => Effect::RemoveFinalizer { job: Box::new(entry.job.clone()) },
            Action::DeleteJob => Effect::DeleteJob { key: key.clone(), uid: entry.job.metadata.uid() },
        };
        entry.outstanding += 1;
        effects.push(effect);
    }
}

/// Names of the pods that the placement has and the cache has not.
fn missing_pods(job: &Job, pods: &[PodFacts]) -> Vec<String> {
    let expected =
        job.status.placement.iter().map(|slot| job.pod_name(&slot.role, slot.slot, slot.incarnation));
    expected.filter(|name| pods.iter().all(|pod| pod.name != *name)).collect()
}

/// The job that a pod belongs to; none for bare pods.
pub(crate) fn job_of(pod: &Pod) -> Option<Key> {
    let owned = pod
        .metadata
        .owner_references
        .iter()
        .any(|o| o.kind == "Job" && o.api_version.starts_with("regatta.dev/"));
    let name = pod.metadata.labels.get(labels::JOB_NAME)?;
    owned.then(|| Key::new(pod.metadata.namespace(), name))
}

fn is_owned_by(pod: &Pod, uid: &Uid) -> bool {
    pod.metadata.owner_references.iter().any(|owner| owner.uid == *uid)
}

/// The version of an object as a number: versions of one server rise, which `kube-apiserver` documents since 1.35.
fn version_of(meta: &ObjectMeta) -> u64 {
    meta.resource_version.as_deref().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Prices in the form that the lifecycle wants them.
pub(crate) fn prices(pool: &NodePool) -> Option<Prices> {
    let gpu_hour_micros = pool.spec.price_per_gpu_hour_micros.unwrap_or(0);
    let cpu_hour_micros = pool.spec.price_per_cpu_hour_micros.unwrap_or(0);
    let priced =
        pool.spec.price_per_gpu_hour_micros.is_some() || pool.spec.price_per_cpu_hour_micros.is_some();
    let currency = pool.spec.currency.clone().unwrap_or_else(|| "USD".to_owned());
    priced.then_some(Prices { gpu_hour_micros, cpu_hour_micros, currency })
}
