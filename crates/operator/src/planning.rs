//! Keeps the planner's world in step with the API and turns its plans into starts and explanations.

use crate::core::{Change, Key};
use regatta_kit::ApiError;
use regatta_lifecycle::Prices;
use regatta_planner::{
    Amounts, Budget, Delta, GangFacts, GangId, MemberGroup, NodeFacts, QueueFacts, QueueState, Schedulable,
    SlotAssignment, Verdict, World,
};
use regatta_types::job::{Job, JobPhase, JobSpec};
use regatta_types::node::{Node, NodePool};
use regatta_types::pod::{Pod, PodSpec, Quantities, ResourceTotals};
use regatta_types::queue::{DEFAULT_QUEUE, Queue};
use regatta_types::{ObjectMeta, Timestamp, Uid, conditions, labels};
use std::collections::{BTreeMap, BTreeSet};

/// How much work one plan may do, in the planner's own steps; what is left is planned in the next round.
const PLAN_STEPS_MAX: u64 = 2_000_000;

/// Pause before a bare pod whose binding failed is planned again.
const BIND_RETRY_MS: i64 = 1_000;

/// What a gang is to the planner.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum GangKey {
    /// A job, by uid.
    Job(Uid),
    /// A bare pod, by uid.
    Pod(Uid),
}

impl GangKey {
    pub(crate) fn id(&self) -> GangId {
        match self {
            Self::Job(uid) => GangId(format!("job/{uid}")),
            Self::Pod(uid) => GangId(format!("pod/{uid}")),
        }
    }

    fn parse(id: &GangId) -> Option<Self> {
        let (kind, uid) = id.0.split_once('/')?;
        Some(if kind == "job" { Self::Job(Uid::from(uid)) } else { Self::Pod(Uid::from(uid)) })
    }
}

/// What follows from one plan.
#[derive(Default)]
pub(crate) struct Planned {
    pub(crate) job_starts: Vec<(Uid, Vec<SlotAssignment>)>,
    pub(crate) pod_starts: Vec<((Key, Uid), String)>,
    pub(crate) job_verdicts: Vec<(Uid, Verdict)>,
    pub(crate) pod_verdicts: Vec<(Key, Uid, Verdict)>,
}

/// The planner's world and what the operator told it.
#[derive(Default)]
pub(crate) struct Planning {
    pub(crate) world: World,
    due: bool,
    /// Whether the last plan left gangs for the next one.
    is_incomplete: bool,
    queues: BTreeSet<String>,
    /// Bare pods whose binding failed, and when they may be planned again.
    refused: BTreeMap<Uid, Timestamp>,
    nodes: BTreeMap<String, Node>,
    /// What the planner was last told of each gang.
    told: BTreeMap<GangId, (GangFacts, Option<Vec<String>>)>,
    /// Bare pods that wait, or whose binding is under way.
    bare: BTreeMap<Uid, Key>,
    /// Bare pods that hold resources.
    foreign: BTreeSet<Uid>,
    /// The reason that each waiting bare pod was last given.
    explained: BTreeMap<Uid, regatta_types::reason::WaitReason>,
}

impl Planning {
    fn tell(&mut self, delta: Delta) {
        self.world.apply(delta);
        self.due = true;
    }

    pub(crate) fn nodes_changed(&mut self, change: Change<Node>, pools: &BTreeMap<String, NodePool>) {
        match change {
            Change::Reset(nodes) => {
                let present: BTreeSet<String> = nodes.iter().map(|node| node.metadata.name.clone()).collect();
                let gone: Vec<String> =
                    self.nodes.keys().filter(|name| !present.contains(*name)).cloned().collect();
                for name in gone {
                    self.nodes.remove(&name);
                    self.tell(Delta::NodeRemove(name));
                }
                for node in nodes {
                    self.node_seen(node, pools);
                }
            }
            Change::Applied(node) => self.node_seen(node, pools),
            Change::Deleted(node) => {
                self.nodes.remove(&node.metadata.name);
                self.tell(Delta::NodeRemove(node.metadata.name));
            }
        }
    }

    fn node_seen(&mut self, node: Node, pools: &BTreeMap<String, NodePool>) {
        let facts = node_facts(&node, pools);
        // Heartbeats change a node without changing what can be planned on it.
        let known = self.nodes.insert(node.metadata.name.clone(), node).map(|old| node_facts(&old, pools));
        if known.as_ref() != Some(&facts) {
            self.tell(Delta::NodeUpsert(facts));
        }
    }

    pub(crate) fn pools_changed(&mut self, pools: &BTreeMap<String, NodePool>) {
        let facts: Vec<NodeFacts> = self.nodes.values().map(|node| node_facts(node, pools)).collect();
        for node in facts {
            self.tell(Delta::NodeUpsert(node));
        }
    }

    pub(crate) fn queues_changed(&mut self, change: Change<Queue>) {
        let seen = |queue: Queue| {
            let state = if queue.spec.stopped == Some(true) { QueueState::Stopped } else { QueueState::Open };
            Delta::QueueUpsert(QueueFacts { name: queue.metadata.name, state })
        };
        match change {
            Change::Reset(queues) => {
                let present: BTreeSet<String> =
                    queues.iter().map(|queue| queue.metadata.name.clone()).collect();
                for gone in std::mem::replace(&mut self.queues, present.clone()).difference(&present) {
                    self.tell(Delta::QueueRemove(gone.clone()));
                }
                for queue in queues {
                    self.tell(seen(queue));
                }
            }
            Change::Applied(queue) => {
                self.queues.insert(queue.metadata.name.clone());
                self.tell(seen(queue));
            }
            Change::Deleted(queue) => {
                self.queues.remove(&queue.metadata.name);
                self.tell(Delta::QueueRemove(queue.metadata.name));
            }
        }
    }

    /// Tells the planner where a job stands.
    pub(crate) fn job_changed(&mut self, job: &Job) {
        let key = GangKey::Job(job.metadata.uid());
        let status = &job.status;
        let waits = status.phase == JobPhase::Queued
            && !job.spec.suspend
            && !job.spec.cancel
            && !job.metadata.is_being_deleted();
        let placed =
            status.phase.holds_resources().then(|| status.placement.iter().map(|s| s.node.clone()).collect());
        if waits || placed.is_some() {
            self.told(&key, gang_of_job(&job.metadata, &job.spec), placed);
        } else {
            self.remove(&key);
        }
    }

    fn told(&mut self, key: &GangKey, facts: GangFacts, placed: Option<Vec<String>>) {
        let id = key.id();
        let before = self.told.insert(id.clone(), (facts.clone(), placed.clone()));
        let (facts_before, placed_before) =
            before.map_or((None, None), |(facts, placed)| (Some(facts), placed));
        if facts_before.as_ref() != Some(&facts) {
            self.tell(Delta::GangUpsert(facts));
        }
        match placed {
            Some(nodes) if placed_before.as_ref() != Some(&nodes) => {
                self.tell(Delta::GangPlaced { id, nodes });
            }
            None if placed_before.is_some() => self.tell(Delta::GangUnplaced(id)),
            _ => {}
        }
    }

    pub(crate) fn remove(&mut self, key: &GangKey) {
        let id = key.id();
        if self.told.remove(&id).is_some() {
            self.tell(Delta::GangRemove(id));
        }
    }

    /// The write that starts a job has been answered: what the job now says is told afresh, so that a start that was
    /// not written is taken back.
    pub(crate) fn start_settled(&mut self, job: &Job) {
        if !job.status.phase.holds_resources() {
            self.take_back(&job.metadata.uid());
        }
    }

    /// Takes back a start that the planner has made.
    pub(crate) fn take_back(&mut self, uid: &Uid) {
        self.tell(Delta::GangUnplaced(GangKey::Job(uid.clone()).id()));
    }

    pub(crate) fn bare_pod_changed(&mut self, pod: &Pod) {
        let uid = pod.metadata.uid();
        if pod.is_finished() || (pod.metadata.is_being_deleted() && pod.spec.node_name.is_none()) {
            self.bare_pod_gone(pod);
        } else if let Some(node) = &pod.spec.node_name {
            self.forget_waiting(&uid);
            if self.foreign.insert(uid.clone()) {
                let amounts = amounts(&pod.spec);
                self.tell(Delta::ForeignUpsert { id: uid.0, node: node.clone(), amounts });
            }
        } else {
            self.bare.insert(uid.clone(), Key::of(&pod.metadata));
            self.told(&GangKey::Pod(uid), gang_of_pod(pod), None);
        }
    }

    pub(crate) fn bare_pod_gone(&mut self, pod: &Pod) {
        let uid = pod.metadata.uid();
        self.forget_waiting(&uid);
        if self.foreign.remove(&uid) {
            self.tell(Delta::ForeignRemove { id: uid.0 });
        }
    }

    fn forget_waiting(&mut self, uid: &Uid) {
        self.bare.remove(uid);
        self.explained.remove(uid);
        self.refused.remove(uid);
        self.remove(&GangKey::Pod(uid.clone()));
    }

    /// A binding has been answered. A refused one is taken back; a made one shows in the pod.
    pub(crate) fn bind_settled(&mut self, uid: &Uid, result: &Result<(), ApiError>, now: Timestamp) {
        if let Err(error) = result
            && self.bare.contains_key(uid)
        {
            tracing::warn!(%error, %uid, "the pod was not bound; trying again");
            self.refused.insert(uid.clone(), now.plus_ms(BIND_RETRY_MS));
        }
    }

    /// When to plan again although nothing happens.
    pub(crate) fn next_wake(&self) -> Option<Timestamp> {
        let at_once = self.is_incomplete.then(Timestamp::default);
        self.refused.values().copied().chain(at_once).min()
    }

    /// Tells the planner of bare pods that may be bound again.
    fn retry_binds(&mut self, now: Timestamp) {
        let due: Vec<Uid> =
            self.refused.iter().filter(|(_, at)| **at <= now).map(|(uid, _)| uid.clone()).collect();
        for uid in due {
            self.refused.remove(&uid);
            self.tell(Delta::GangUnplaced(GangKey::Pod(uid).id()));
        }
    }

    /// Plans, when anything has changed since the last plan.
    pub(crate) fn plan(&mut self, now: Timestamp) -> Option<Planned> {
        self.retry_binds(now);
        if !std::mem::take(&mut self.due) {
            return None;
        }
        let plan = self.world.plan(now, Budget { steps: PLAN_STEPS_MAX });
        self.due = !plan.complete;
        self.is_incomplete = !plan.complete;
        let mut planned = Planned::default();
        for start in plan.starts {
            match GangKey::parse(&start.gang) {
                Some(GangKey::Job(uid)) => planned.job_starts.push((uid, start.placement)),
                Some(GangKey::Pod(uid)) => {
                    let key = self.bare.get(&uid).cloned();
                    let node = start.placement.into_iter().next().map(|slot| slot.node);
                    planned.pod_starts.extend(key.zip(node).map(|(key, node)| ((key, uid), node)));
                }
                None => {}
            }
        }
        for (gang, verdict) in plan.verdicts {
            match GangKey::parse(&gang) {
                Some(GangKey::Job(uid)) => planned.job_verdicts.push((uid, verdict)),
                Some(GangKey::Pod(uid)) => {
                    let news = self.explained.insert(uid.clone(), verdict.reason) != Some(verdict.reason);
                    let key = self.bare.get(&uid).cloned().filter(|_| news);
                    planned.pod_verdicts.extend(key.map(|key| (key, uid, verdict)));
                }
                None => {}
            }
        }
        Some(planned)
    }

    /// Prices of the pool in which a job runs.
    pub(crate) fn prices_for(&self, job: &Job, pools: &BTreeMap<String, NodePool>) -> Option<Prices> {
        let node = job.status.placement.first()?;
        self.prices_on(&node.node, pools)
    }

    /// Prices of the pool that a node belongs to.
    pub(crate) fn prices_on(&self, node: &str, pools: &BTreeMap<String, NodePool>) -> Option<Prices> {
        let node = self.nodes.get(node)?;
        pools
            .values()
            .find(|pool| belongs(node, pool) && crate::core::prices(pool).is_some())
            .and_then(crate::core::prices)
    }

    /// Whether any node exists.
    pub(crate) fn has_nodes(&self) -> bool {
        !self.nodes.is_empty()
    }
}

fn belongs(node: &Node, pool: &NodePool) -> bool {
    pool.spec.selector.iter().all(|(key, value)| node.metadata.labels.get(key) == Some(value))
}

fn node_facts(node: &Node, pools: &BTreeMap<String, NodePool>) -> NodeFacts {
    let allocatable = &node.status.allocatable;
    let ready = node.status.conditions.iter().any(|c| c.type_ == conditions::READY && c.status == "True");
    let open = ready && node.spec.unschedulable != Some(true);
    let pool_model =
        || pools.values().filter(|pool| belongs(node, pool)).find_map(|pool| pool.spec.gpu_model.clone());
    NodeFacts {
        name: node.metadata.name.clone(),
        allocatable: Amounts {
            cpu_milli: allocatable.milli("cpu"),
            memory_bytes: allocatable.units("memory"),
            gpu_milli: allocatable.milli(labels::GPU_RESOURCE),
            pods: allocatable.units("pods"),
        },
        labels: node.metadata.labels.clone(),
        gpu_model: node.metadata.labels.get(labels::GPU_MODEL).cloned().or_else(pool_model),
        schedulable: if open { Schedulable::Yes } else { Schedulable::No },
    }
}

fn amounts(spec: &PodSpec) -> Amounts {
    let totals = ResourceTotals::of(spec);
    Amounts {
        cpu_milli: totals.cpu_milli,
        memory_bytes: totals.memory_bytes,
        gpu_milli: totals.gpu_milli,
        pods: 1,
    }
}

/// A job as the planner sees it.
pub(crate) fn gang_of_job(meta: &ObjectMeta, spec: &JobSpec) -> GangFacts {
    let members = spec.roles.iter().map(|role| MemberGroup {
        role: role.name.clone(),
        count: role.replicas,
        request: amounts(&role.template.spec),
        gpu_models: role.gpu_models.clone(),
        node_selector: role.template.spec.node_selector.clone(),
    });
    GangFacts {
        id: GangKey::Job(meta.uid()).id(),
        name: meta.key(),
        queue: if spec.queue.is_empty() { DEFAULT_QUEUE.to_owned() } else { spec.queue.clone() },
        priority: spec.priority,
        submitted: meta.creation_timestamp.unwrap_or_default(),
        members: members.collect(),
    }
}

fn gang_of_pod(pod: &Pod) -> GangFacts {
    GangFacts {
        id: GangKey::Pod(pod.metadata.uid()).id(),
        name: pod.metadata.key(),
        queue: pod.metadata.labels.get(labels::QUEUE).cloned().unwrap_or_else(|| DEFAULT_QUEUE.to_owned()),
        priority: pod.spec.priority.unwrap_or(0),
        submitted: pod.metadata.creation_timestamp.unwrap_or_default(),
        members: vec![MemberGroup {
            role: "pod".to_owned(),
            count: 1,
            request: amounts(&pod.spec),
            gpu_models: Vec::new(),
            node_selector: pod.spec.node_selector.clone(),
        }],
    }
}
