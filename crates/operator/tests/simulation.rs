//! The operator's core on a toy API that answers late, tells the past and loses the operator after any write.
//!
//! One seed is one history: which effect is carried out next, which watch event is delivered next, when a rank is
//! killed, when the operator is replaced by a fresh one that knows nothing. The checks hold after every step.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "these are tests; the lints know only functions marked as such"
)]

use regatta_kit::{ApiError, Object};
use regatta_operator::{Change, Core, Effect, Input, Key, Outcome};
use regatta_types::conditions::{Condition, READY};
use regatta_types::evidence::{Checkpoint, ExitRecord, ProcessEnd, RankEnd};
use regatta_types::job::{Job, JobPhase, Role};
use regatta_types::node::Node;
use regatta_types::pod::{Container, ContainerRunning, ContainerStatus, ContainerTerminated, Pod};
use regatta_types::queue::Queue;
use regatta_types::seed::{Seed, Stream};
use regatta_types::{Epoch, ObjectMeta, Rank, Timestamp, Uid, labels};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

const NODES: usize = 3;
const GPUS_PER_NODE: i64 = 2;
const JOBS: usize = 6;
/// Steps of a history before faults stop.
const FAULTY_STEPS: usize = 600;
/// Steps within which everything must have ended once faults have stopped.
const CALM_STEPS: usize = 20_000;

/// Objects with versions, and the events that the operator has not heard of yet.
struct Api {
    version: u64,
    jobs: BTreeMap<Key, Job>,
    pods: BTreeMap<Key, Pod>,
    jobs_unheard: VecDeque<Change<Job>>,
    pods_unheard: VecDeque<Change<Pod>>,
}

impl Api {
    fn next_version(&mut self) -> String {
        self.version += 1;
        self.version.to_string()
    }

    fn write_job(&mut self, mut job: Job) -> Job {
        job.metadata.resource_version = Some(self.next_version());
        self.jobs.insert(Key::of(&job.metadata), job.clone());
        self.jobs_unheard.push_back(Change::Applied(job.clone()));
        job
    }

    fn write_pod(&mut self, mut pod: Pod) -> Pod {
        pod.metadata.resource_version = Some(self.next_version());
        self.pods.insert(Key::of(&pod.metadata), pod.clone());
        self.pods_unheard.push_back(Change::Applied(pod.clone()));
        pod
    }

    fn remove_pod(&mut self, key: &Key) {
        if let Some(mut pod) = self.pods.remove(key) {
            pod.metadata.resource_version = Some(self.next_version());
            self.pods_unheard.push_back(Change::Deleted(pod));
        }
    }

    fn perform(&mut self, effect: Effect, now: Timestamp) -> Outcome {
        match effect {
            Effect::WriteJobStatus { job, verify_absent, .. } => {
                let key = Key::of(&job.metadata);
                let exists =
                    verify_absent.iter().any(|name| self.pods.contains_key(&Key::new("default", name)));
                let current = self.jobs.get(&key).map(|known| known.metadata.resource_version.clone());
                let result = match current {
                    None => Err(refuse(404, "NotFound")),
                    Some(version) if exists || version != job.metadata.resource_version => {
                        Err(refuse(409, "Conflict"))
                    }
                    Some(_) => {
                        let mut stored = self.jobs[&key].clone();
                        check_transition(&stored, &job);
                        stored.status = job.status;
                        Ok(Object::encode(&self.write_job(stored)).unwrap())
                    }
                };
                Outcome::JobStatusWritten { key, result }
            }
            Effect::CreatePod { job, mut pod } => {
                let key = Key::of(&pod.metadata);
                let result = if let Some(known) = self.pods.get(&key) {
                    let mine = known.metadata.owner_references == pod.metadata.owner_references;
                    if mine { Ok(Object::encode(known).unwrap()) } else { Err(refuse(409, "AlreadyExists")) }
                } else {
                    let uid = self.next_version();
                    pod.metadata.uid = Some(Uid(format!("pod-{uid}")));
                    Ok(Object::encode(&self.write_pod(*pod)).unwrap())
                };
                Outcome::PodCreated { job, result }
            }
            Effect::DeletePod { job, key, uid, .. } => {
                if let Some(mut pod) = self.pods.get(&key).filter(|pod| pod.metadata.uid() == uid).cloned() {
                    pod.metadata.deletion_timestamp = Some(now);
                    self.write_pod(pod);
                }
                match job {
                    Some(job) => Outcome::PodDeleted { job, uid, result: Ok(()) },
                    None => Outcome::BarePodTouched { uid, result: Ok(()) },
                }
            }
            Effect::BindPod { key, uid, node } => {
                if let Some(mut pod) = self.pods.get(&key).cloned() {
                    pod.spec.node_name = Some(node);
                    self.write_pod(pod);
                }
                Outcome::PodBound { uid, result: Ok(()) }
            }
            Effect::ExplainPod { uid, .. } => Outcome::BarePodTouched { uid, result: Ok(()) },
            Effect::RemoveFinalizer { job } => {
                let key = Key::of(&job.metadata);
                if let Some(job) = self.jobs.remove(&key) {
                    self.jobs_unheard.push_back(Change::Deleted(job));
                }
                Outcome::JobChanged { key, result: Ok(()) }
            }
            Effect::DeleteJob { key, .. } => {
                if let Some(mut job) = self.jobs.get(&key).cloned() {
                    job.metadata.deletion_timestamp = Some(now);
                    self.write_job(job);
                }
                Outcome::JobChanged { key, result: Ok(()) }
            }
        }
    }
}

fn refuse(code: u16, reason: &str) -> ApiError {
    ApiError { code, reason: reason.to_owned(), message: reason.to_owned() }
}

fn check_transition(old: &Job, new: &Job) {
    assert!(new.status.epoch >= old.status.epoch, "epochs rise");
    assert!(new.status.epoch.0 <= old.status.epoch.0 + 1, "one by one");
    if old.status.phase.is_terminal() {
        assert_eq!(old.status.phase, new.status.phase, "an ended job stays ended");
    }
    assert!(new.status.user_restarts <= new.spec.recovery.max_user_restarts);
}

struct World {
    api: Api,
    core: Core,
    /// Effects that the operator wants and that have not happened yet.
    wanted: Vec<Effect>,
    /// What the operator has not been told of its effects.
    outcomes: VecDeque<Outcome>,
    random: Stream,
    now: Timestamp,
    faults: bool,
}

impl World {
    fn new(seed: u64) -> Self {
        let api = Api {
            version: 0,
            jobs: BTreeMap::new(),
            pods: BTreeMap::new(),
            jobs_unheard: VecDeque::new(),
            pods_unheard: VecDeque::new(),
        };
        let random = Seed(seed).child("history").stream();
        let mut world = Self {
            api,
            core: Core::new(),
            wanted: Vec::new(),
            outcomes: VecDeque::new(),
            random,
            now: Timestamp::from_unix_ms(1_700_000_000_000),
            faults: true,
        };
        world.restart_operator();
        world
    }

    fn pick(&mut self, count: usize) -> usize {
        usize::try_from(self.random.below(u64::try_from(count).unwrap())).unwrap()
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.pick(n) == 0
    }

    /// A fresh operator lists everything; what the old one had under way may or may not still happen.
    fn restart_operator(&mut self) {
        self.wanted.clear();
        self.outcomes.clear();
        self.api.jobs_unheard.clear();
        self.api.pods_unheard.clear();
        self.core = Core::new();
        let nodes = (0..NODES).map(node).collect();
        let mut queue = Queue::default();
        queue.metadata.name = "default".to_owned();
        self.core.handle(Input::Nodes(Change::Reset(nodes)), self.now);
        self.core.handle(Input::Queues(Change::Reset(vec![queue])), self.now);
        self.core.handle(Input::Pools(Change::Reset(Vec::new())), self.now);
        self.core.handle(Input::Jobs(Change::Reset(self.api.jobs.values().cloned().collect())), self.now);
        self.core.handle(Input::Pods(Change::Reset(self.api.pods.values().cloned().collect())), self.now);
    }

    fn submit(&mut self, index: usize) {
        let mut job =
            Job { api_version: "regatta.dev/v1alpha1".into(), kind: "Job".into(), ..Job::default() };
        job.metadata = ObjectMeta {
            name: format!("job-{index}"),
            namespace: Some("default".into()),
            uid: Some(Uid(format!("uid-{index}"))),
            creation_timestamp: Some(self.now),
            finalizers: vec![labels::JOB_FINALIZER.into()],
            ..ObjectMeta::default()
        };
        let slots = 1 + u32::try_from(self.pick(4)).unwrap();
        let mut role = Role { replicas: slots, ..Role::default() };
        let mut container =
            Container { name: "main".into(), command: vec!["train".into()], ..Container::default() };
        container.resources.limits.insert(labels::GPU_RESOURCE.into(), "1".parse().unwrap());
        role.template.spec.containers.push(container);
        job.spec.roles.push(role);
        self.api.write_job(job);
    }

    /// One thing happens.
    fn step(&mut self) {
        self.now = self.now.plus_ms(1 + i64::try_from(self.random.below(200)).unwrap());
        match self.pick(10) {
            0 | 1 if !self.wanted.is_empty() => {
                let at = self.pick(self.wanted.len());
                let effect = self.wanted.swap_remove(at);
                let outcome = self.api.perform(effect, self.now);
                self.outcomes.push_back(outcome);
                if self.faults && self.one_in(25) {
                    self.restart_operator();
                }
            }
            2 => {
                if let Some(outcome) = self.outcomes.pop_front() {
                    self.core.handle(Input::Done(outcome), self.now);
                }
            }
            3 => {
                if let Some(change) = self.api.jobs_unheard.pop_front() {
                    self.core.handle(Input::Jobs(change), self.now);
                }
            }
            4 | 5 => {
                if let Some(change) = self.api.pods_unheard.pop_front() {
                    self.core.handle(Input::Pods(change), self.now);
                }
            }
            6..=8 => self.node_acts(),
            _ if self.faults && self.one_in(10) => self.somebody_meddles(),
            _ => {}
        }
        let effects = self.core.step(self.now);
        self.wanted.extend(effects);
        self.check();
    }

    /// A node brings one pod forward.
    fn node_acts(&mut self) {
        let keys: Vec<Key> = self.api.pods.keys().cloned().collect();
        if keys.is_empty() {
            return;
        }
        let key = keys[self.pick(keys.len())].clone();
        let mut pod = self.api.pods[&key].clone();
        if pod.metadata.is_being_deleted() {
            return self.api.remove_pod(&key);
        }
        let mut status = ContainerStatus { name: "main".into(), ..ContainerStatus::default() };
        match pod.status.phase.as_str() {
            "" => {
                status.state.running = Some(ContainerRunning { started_at: self.now });
                pod.status.phase = "Running".into();
            }
            "Running" => {
                let end = match self.pick(if self.faults { 6 } else { 12 }) {
                    0 if self.faults => ProcessEnd::Signaled(9),
                    1 if self.faults => ProcessEnd::Exited(1),
                    0..=2 => ProcessEnd::Exited(0),
                    _ => return,
                };
                status.state.terminated = Some(self.terminated(&pod, end));
                let well = end == ProcessEnd::Exited(0);
                pod.status.phase = if well { "Succeeded" } else { "Failed" }.into();
            }
            _ => return,
        }
        pod.status.container_statuses = vec![status];
        self.api.write_pod(pod);
    }

    fn terminated(&mut self, pod: &Pod, end: ProcessEnd) -> ContainerTerminated {
        let epoch = Epoch(pod.metadata.annotations[labels::EPOCH].parse().unwrap());
        let step = epoch.0 * 100 + self.random.below(100);
        let record = ExitRecord {
            epoch,
            ranks: vec![RankEnd { rank: Rank(0), end, at: self.now }],
            last_step: Some(step),
            checkpoints: vec![Checkpoint { step, path: format!("/ckpt/ckpt-{step}.json") }],
            ..ExitRecord::default()
        };
        ContainerTerminated {
            exit_code: end.exit_code(),
            reason: "Error".into(),
            message: Some(format!("it ended\n{}", serde_json::to_string(&record).unwrap())),
            started_at: self.now,
            finished_at: self.now,
            ..ContainerTerminated::default()
        }
    }

    /// People and accidents.
    fn somebody_meddles(&mut self) {
        let jobs: Vec<Key> = self.api.jobs.keys().cloned().collect();
        let pods: Vec<Key> = self.api.pods.keys().cloned().collect();
        match self.pick(4) {
            0 if !pods.is_empty() => {
                let key = pods[self.pick(pods.len())].clone();
                self.api.remove_pod(&key);
            }
            1 if !jobs.is_empty() => {
                let at = self.pick(jobs.len());
                let mut job = self.api.jobs[&jobs[at]].clone();
                job.spec.suspend = !job.spec.suspend;
                self.api.write_job(job);
            }
            2 if !jobs.is_empty() => {
                let at = self.pick(jobs.len());
                let mut job = self.api.jobs[&jobs[at]].clone();
                job.spec.priority = i32::try_from(self.random.below(3)).unwrap();
                self.api.write_job(job);
            }
            3 => self.restart_operator(),
            _ => {}
        }
    }

    fn check(&self) {
        let mut held: BTreeMap<&str, i64> = BTreeMap::new();
        let mut epochs: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for pod in self.api.pods.values().filter(|pod| !pod.is_finished()) {
            *held.entry(pod.spec.node_name.as_deref().unwrap()).or_default() += 1;
            let job = pod.metadata.labels[labels::JOB_NAME].as_str();
            epochs.entry(job).or_default().insert(pod.metadata.annotations[labels::EPOCH].as_str());
        }
        for (node, gpus) in held {
            assert!(gpus <= GPUS_PER_NODE, "{node} holds {gpus} GPUs of {GPUS_PER_NODE}");
        }
        for (job, epochs) in epochs {
            assert!(epochs.len() <= 1, "{job} runs epochs {epochs:?} at once");
        }
    }

    fn all_ended(&self) -> bool {
        self.api.jobs.values().all(|job| job.status.phase.is_terminal())
    }
}

fn node(index: usize) -> Node {
    let mut node = Node::default();
    node.metadata.name = format!("node-{index}");
    let allocatable = &mut node.status.allocatable;
    allocatable.insert(labels::GPU_RESOURCE.into(), GPUS_PER_NODE.to_string().parse().unwrap());
    allocatable.insert("cpu".into(), "8".parse().unwrap());
    allocatable.insert("memory".into(), "8Gi".parse().unwrap());
    allocatable.insert("pods".into(), "100".parse().unwrap());
    node.status.conditions.push(Condition {
        type_: READY.into(),
        status: "True".into(),
        reason: String::new(),
        message: String::new(),
        last_transition_time: Timestamp::default(),
    });
    node
}

/// One history; its jobs and how they ended.
fn history(seed: u64) -> BTreeMap<Key, Job> {
    let mut world = World::new(seed);
    for step in 0..FAULTY_STEPS {
        if step % (FAULTY_STEPS / JOBS) == 0 {
            world.submit(step);
        }
        world.step();
    }
    world.faults = false;
    for key in world.api.jobs.keys().cloned().collect::<Vec<_>>() {
        let mut job = world.api.jobs[&key].clone();
        if job.spec.suspend {
            job.spec.suspend = false;
            world.api.write_job(job);
        }
    }
    for _ in 0..CALM_STEPS {
        if world.all_ended() {
            return world.api.jobs;
        }
        world.step();
    }
    let open: Vec<_> = world.api.jobs.values().filter(|job| !job.status.phase.is_terminal()).collect();
    panic!(
        "seed {seed}: without faults these jobs do not end: {open:#?}\npods: {:#?}",
        world.api.pods.keys()
    );
}

#[test]
fn jobs_end_well_or_with_a_reason_whatever_happens() {
    let mut succeeded = 0;
    let mut restarted = 0;
    for seed in 0..200 {
        for (key, job) in history(seed) {
            let status = &job.status;
            match status.phase {
                JobPhase::Succeeded => succeeded += 1,
                JobPhase::Failed => {
                    assert!(status.reason.is_some() && !status.message.is_empty(), "seed {seed}: {key}");
                }
                other => panic!("seed {seed}: {key} ended as {other:?}"),
            }
            restarted += usize::from(status.epoch > Epoch(1));
        }
    }
    assert!(
        succeeded > 200 && restarted > 200,
        "the histories are eventful: {succeeded} succeeded, {restarted} restarted"
    );
}

#[test]
fn a_seed_is_a_history() {
    assert_eq!(history(7), history(7));
}
