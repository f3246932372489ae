//! The planner from outside: scenarios, and properties over random histories.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "these are tests; the lints know only functions marked as such"
)]

use proptest::prelude::*;
use regatta_planner::{
    Amounts, Budget, Delta, GangFacts, GangId, MemberGroup, NodeFacts, Plan, Preview, QueueFacts, QueueState,
    Schedulable, World,
};
use regatta_types::Timestamp;
use regatta_types::reason::WaitReason;
use std::collections::{BTreeMap, BTreeSet};

const ALL: Budget = Budget { steps: u64::MAX };

fn node(name: &str, gpus: i64, cpus: i64) -> Delta {
    Delta::NodeUpsert(node_facts(name, gpus, cpus))
}

fn node_facts(name: &str, gpus: i64, cpus: i64) -> NodeFacts {
    NodeFacts {
        name: name.into(),
        allocatable: Amounts {
            gpu_milli: gpus * 1000,
            cpu_milli: cpus * 1000,
            memory_bytes: 64 << 30,
            pods: 100,
        },
        labels: BTreeMap::new(),
        gpu_model: None,
        schedulable: Schedulable::Yes,
    }
}

fn group(count: u32, gpus: i64, cpus: i64) -> MemberGroup {
    MemberGroup {
        role: "worker".into(),
        count,
        request: Amounts { gpu_milli: gpus * 1000, cpu_milli: cpus * 1000, memory_bytes: 0, pods: 1 },
        gpu_models: Vec::new(),
        node_selector: BTreeMap::new(),
    }
}

fn gang(name: &str, submitted: i64, members: MemberGroup) -> GangFacts {
    GangFacts {
        id: GangId(name.into()),
        name: format!("default/{name}"),
        queue: "q".into(),
        priority: 0,
        submitted: Timestamp::from_unix_ms(submitted),
        members: vec![members],
    }
}

fn world(deltas: impl IntoIterator<Item = Delta>) -> World {
    let mut world = World::new();
    world.apply(Delta::QueueUpsert(QueueFacts { name: "q".into(), state: QueueState::Open }));
    deltas.into_iter().for_each(|delta| world.apply(delta));
    world
}

fn plan(world: &mut World) -> Plan {
    let plan = world.plan(Timestamp::default(), ALL);
    assert!(plan.complete);
    plan
}

fn started(plan: &Plan) -> Vec<(&str, Vec<&str>)> {
    plan.starts
        .iter()
        .map(|s| (s.gang.0.as_str(), s.placement.iter().map(|p| p.node.as_str()).collect()))
        .collect()
}

fn reason(plan: &Plan, name: &str) -> (WaitReason, String) {
    let verdict =
        plan.verdicts.get(&GangId(name.into())).unwrap_or_else(|| panic!("no verdict for {name}: {plan:?}"));
    (verdict.reason, verdict.message.clone())
}

#[test]
fn a_gang_starts_whole_or_not_at_all() {
    let mut w = world([node("a", 2, 8), node("b", 2, 8), Delta::GangUpsert(gang("big", 1, group(3, 2, 0)))]);
    let first = plan(&mut w);
    assert_eq!(started(&first), []);
    let (why, message) = reason(&first, "big");
    assert_eq!(why, WaitReason::InsufficientCapacity);
    assert_eq!(
        message,
        "needs 3 × (2 GPUs) for worker; 2 of 3 members fit now (4 GPUs free); even with nothing else running only 2 of 3 \
         fit on the 2 nodes there are; it starts when nodes are added"
    );
    w.apply(node("c", 2, 8));
    assert_eq!(started(&plan(&mut w)), [("big", vec!["a", "b", "c"])]);
}

#[test]
fn the_fewest_nodes_and_the_least_left_over() {
    let check = |count, gpus, expected: &[&str]| {
        let mut w = world([
            node("a", 8, 8),
            node("b", 4, 8),
            node("c", 2, 8),
            Delta::GangUpsert(gang("g", 1, group(count, gpus, 0))),
        ]);
        assert_eq!(started(&plan(&mut w)), [("g", expected.to_vec())], "{count} × {gpus}");
    };
    check(1, 1, &["c"]);
    check(1, 3, &["b"]);
    check(4, 1, &["b"; 4]);
    check(8, 1, &["a"; 8]);
    check(6, 2, &["a", "a", "a", "a", "b", "b"]);
    check(0, 1, &[]);
}

#[test]
fn priority_then_age() {
    let mut urgent = gang("urgent", 3, group(1, 2, 0));
    urgent.priority = 5;
    let gangs = [gang("old", 1, group(1, 2, 0)), gang("new", 2, group(1, 2, 0)), urgent];
    let mut w = world([node("a", 2, 8)]);
    gangs.map(Delta::GangUpsert).into_iter().for_each(|delta| w.apply(delta));
    let mut order = Vec::new();
    for _ in 0..3 {
        let plan = plan(&mut w);
        let [start] = &plan.starts[..] else { panic!("one at a time: {plan:?}") };
        order.push(start.gang.0.clone());
        w.apply(Delta::GangRemove(start.gang.clone()));
    }
    assert_eq!(order, ["urgent", "old", "new"]);
}

#[test]
fn who_waits_is_not_overtaken_on_its_ground_and_keeps_nothing_else() {
    let mut w = world([node("gpu", 4, 16), node("cpu", 0, 16)]);
    w.apply(Delta::GangUpsert(gang("running", 1, group(1, 2, 2))));
    plan(&mut w);
    w.apply(Delta::GangUpsert(gang("big", 2, group(1, 4, 8))));
    w.apply(Delta::GangUpsert(gang("small", 3, group(1, 1, 1))));
    w.apply(Delta::GangUpsert(gang("cpus", 4, group(1, 0, 20))));
    w.apply(Delta::GangUpsert(gang("spare-cpus", 5, group(2, 0, 8))));
    let second = plan(&mut w);
    // 8 of the node's 16 CPUs are of no use to `big`, 2 of them are in use; the other node has none of its GPUs.
    assert_eq!(started(&second), [("spare-cpus", vec!["cpu", "cpu"])]);
    assert_eq!(reason(&second, "big"), (
        WaitReason::InsufficientCapacity,
        "needs 1 × (4 GPUs, 8 CPU) for worker; 0 of 1 members fit now (2 GPUs free); it starts when default/running has ended".into(),
    ));
    assert_eq!(reason(&second, "small").0, WaitReason::BehindOthers);
    assert_eq!(reason(&second, "cpus").0, WaitReason::NoSuchNode);
    // What the sentence says is true.
    w.apply(Delta::GangRemove(GangId("running".into())));
    assert_eq!(started(&plan(&mut w)), [("big", vec!["gpu"])]);
}

#[test]
fn verdicts_are_told_once() {
    let mut w = world([node("a", 1, 8), Delta::GangUpsert(gang("one", 1, group(1, 1, 0)))]);
    plan(&mut w);
    for index in 0..100 {
        w.apply(Delta::GangUpsert(gang(&format!("g{index}"), 10 + index, group(1, 1, 0))));
    }
    assert_eq!(plan(&mut w).verdicts.len(), 100);
    assert_eq!(plan(&mut w).verdicts.len(), 0);
    w.apply(Delta::GangUpsert(gang("last", 1000, group(1, 1, 0))));
    let next = plan(&mut w);
    assert_eq!((next.verdicts.len(), next.steps_used), (1, 0), "a blocked class costs nothing");
    w.apply(Delta::GangRemove(GangId("one".into())));
    assert_eq!(started(&plan(&mut w)), [("g0", vec!["a"])]);
}

#[test]
fn a_start_that_was_not_carried_out_is_made_again() {
    let mut w = world([node("a", 1, 8), Delta::GangUpsert(gang("g", 1, group(1, 1, 0)))]);
    assert_eq!(started(&plan(&mut w)).len(), 1);
    assert_eq!(started(&plan(&mut w)).len(), 0);
    w.apply(Delta::GangUnplaced(GangId("g".into())));
    assert_eq!(started(&plan(&mut w)).len(), 1);
}

#[test]
fn queues_are_minded() {
    let mut w = world([node("a", 1, 8)]);
    let mut lost = gang("lost", 1, group(1, 1, 0));
    lost.queue = "nowhere".into();
    w.apply(Delta::GangUpsert(lost));
    w.apply(Delta::QueueUpsert(QueueFacts { name: "q".into(), state: QueueState::Stopped }));
    w.apply(Delta::GangUpsert(gang("held", 2, group(1, 1, 0))));
    let first = plan(&mut w);
    assert_eq!(
        reason(&first, "lost"),
        (
            WaitReason::QueueNotFound,
            "queue \"nowhere\" does not exist (there are: q); it starts once the queue is created".into(),
        )
    );
    assert_eq!(reason(&first, "held").0, WaitReason::QueueStopped);
    w.apply(Delta::QueueUpsert(QueueFacts { name: "q".into(), state: QueueState::Open }));
    assert_eq!(
        started(&plan(&mut w)),
        [("held", vec!["a"])],
        "who waits for a queue keeps nothing from others"
    );
}

#[test]
fn models_in_order_of_preference_and_never_mixed() {
    let with_model = |name: &str, gpus, model: &str| {
        Delta::NodeUpsert(NodeFacts { gpu_model: Some(model.into()), ..node_facts(name, gpus, 8) })
    };
    let check = |count, expected: &[&str]| {
        let mut wanted = group(count, 1, 0);
        wanted.gpu_models = vec!["h100".into(), "a100".into()];
        let mut w = world([
            with_model("a", 3, "a100"),
            with_model("h", 2, "h100"),
            with_model("z", 9, "t4"),
            Delta::GangUpsert(gang("g", 1, wanted)),
        ]);
        let plan = plan(&mut w);
        assert_eq!(
            started(&plan).first().map(|(_, nodes)| nodes.clone()).unwrap_or_default(),
            expected,
            "{plan:?}"
        );
    };
    check(2, &["h", "h"]);
    check(3, &["a", "a", "a"]);
    check(4, &[]);
}

#[test]
fn what_can_never_fit_is_told_with_numbers() {
    let w = world([node("a", 2, 8), node("b", 4, 4)]);
    let check = |members: MemberGroup, expected: &str| {
        assert_eq!(w.fits_ever(&gang("g", 1, members.clone())).unwrap_err().to_string(), expected);
        assert!(matches!(w.preview(&gang("g", 1, members)), Preview::Impossible(_)));
    };
    check(
        group(1, 16, 0),
        "role worker: asks for 16 GPUs on each node, and the largest node, b, has 4; ask for at most 4 per node, on more nodes",
    );
    check(
        group(1, 0, 64),
        "role worker: asks for 64 CPU on each node, and the largest node, a, has 8; ask for at most 8 per node, on more nodes",
    );
    let mut h100 = group(1, 1, 0);
    h100.gpu_models = vec!["h100".into()];
    check(h100, "role worker: no node has a GPU of model h100 (no node has a known model)");
    let mut labelled = group(1, 1, 0);
    labelled.node_selector.insert("zone".into(), "x".into());
    check(labelled, "role worker: no node of 2 has the labels zone=x");
    assert!(w.fits_ever(&gang("g", 1, group(100, 4, 0))).is_ok(), "more nodes than there are may come");
}

#[derive(Debug, Clone)]
enum Move {
    Submit { priority: i32, members: MemberGroup },
    End(usize),
    Node { index: usize, gpus: i64, schedulable: bool },
    NodeGone(usize),
    Foreign(usize, i64),
    Plan,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        6 => (0i32..2, 1u32..5, 0i64..4, 0i64..5).prop_map(|(priority, count, gpus, cpus)| Move::Submit { priority, members: group(count, gpus, cpus) }),
        4 => (0usize..50).prop_map(Move::End),
        1 => (0usize..4, 0i64..6, any::<bool>()).prop_map(|(index, gpus, schedulable)| Move::Node { index, gpus, schedulable }),
        1 => (0usize..4).prop_map(Move::NodeGone),
        1 => (0usize..4, 0i64..3).prop_map(|(node, gpus)| Move::Foreign(node, gpus)),
        6 => Just(Move::Plan),
    ];
    proptest::collection::vec(one, 1..60)
}

/// What the planner has been told, kept by hand, to check it against.
#[derive(Default)]
struct Model {
    nodes: BTreeMap<String, NodeFacts>,
    gangs: BTreeMap<GangId, GangFacts>,
    placed: BTreeMap<GangId, Vec<String>>,
    foreign: BTreeMap<String, (String, Amounts)>,
    count: i64,
}

impl Model {
    fn deltas(&mut self, what: Move) -> Vec<Delta> {
        let name = |index: usize| format!("n{index}");
        match what {
            Move::Submit { priority, members } => {
                self.count += 1;
                let mut facts = gang(&format!("g{:03}", self.count), self.count, members);
                facts.priority = priority;
                self.gangs.insert(facts.id.clone(), facts.clone());
                vec![Delta::GangUpsert(facts)]
            }
            Move::End(index) => {
                let Some(id) = self.gangs.keys().nth(index % self.gangs.len().max(1)).cloned() else {
                    return vec![];
                };
                self.gangs.remove(&id);
                self.placed.remove(&id);
                vec![Delta::GangRemove(id)]
            }
            Move::Node { index, gpus, schedulable } => {
                let mut facts = node_facts(&name(index), gpus, 8);
                facts.schedulable = if schedulable { Schedulable::Yes } else { Schedulable::No };
                self.nodes.insert(name(index), facts.clone());
                vec![Delta::NodeUpsert(facts)]
            }
            Move::NodeGone(index) => {
                self.nodes.remove(&name(index));
                vec![Delta::NodeRemove(name(index))]
            }
            Move::Foreign(index, gpus) => {
                let amounts = Amounts { gpu_milli: gpus * 1000, ..Amounts::default() };
                self.foreign.insert("f".into(), (name(index), amounts));
                vec![Delta::ForeignUpsert { id: "f".into(), node: name(index), amounts }]
            }
            Move::Plan => vec![],
        }
    }

    fn used(&self) -> BTreeMap<String, Amounts> {
        let mut used: BTreeMap<String, Amounts> = BTreeMap::new();
        let mut add = |node: &String, amounts| {
            let entry = used.entry(node.clone()).or_default();
            *entry = entry.plus(amounts);
        };
        for (id, nodes) in &self.placed {
            let requests =
                self.gangs[id].members.iter().flat_map(|group| (0..group.count).map(|_| group.request));
            nodes.iter().zip(requests).for_each(|(node, request)| add(node, request));
        }
        self.foreign.values().for_each(|(node, amounts)| add(node, *amounts));
        used
    }

    /// Books the plan's starts and checks them.
    fn take(&mut self, plan: &Plan) {
        let before = self.used();
        for start in &plan.starts {
            let facts = &self.gangs[&start.gang];
            let wanted: u32 = facts.members.iter().map(|group| group.count).sum();
            assert_eq!(start.placement.len(), usize::try_from(wanted).unwrap(), "whole gangs only");
            assert!(!self.placed.contains_key(&start.gang), "started once");
            self.placed
                .insert(start.gang.clone(), start.placement.iter().map(|slot| slot.node.clone()).collect());
        }
        let touched: BTreeSet<&String> =
            plan.starts.iter().flat_map(|s| s.placement.iter().map(|p| &p.node)).collect();
        let used = self.used();
        for name in touched {
            let node = &self.nodes[name];
            assert_eq!(node.schedulable, Schedulable::Yes);
            let (now, old) =
                (used.get(name).copied().unwrap_or_default(), before.get(name).copied().unwrap_or_default());
            let over = |now: i64, old: i64, all: i64| now > all && now > old;
            assert!(!over(now.gpu_milli, old.gpu_milli, node.allocatable.gpu_milli), "{name} over-committed");
            assert!(!over(now.cpu_milli, old.cpu_milli, node.allocatable.cpu_milli), "{name} over-committed");
        }
    }

    /// A world that is told everything at once, in another order.
    fn afresh(&self) -> World {
        let mut w = world([]);
        self.gangs.values().rev().cloned().for_each(|facts| w.apply(Delta::GangUpsert(facts)));
        for (id, nodes) in &self.placed {
            w.apply(Delta::GangPlaced { id: id.clone(), nodes: nodes.clone() });
        }
        for (id, (node, amounts)) in &self.foreign {
            w.apply(Delta::ForeignUpsert { id: id.clone(), node: node.clone(), amounts: *amounts });
        }
        self.nodes.values().rev().cloned().for_each(|facts| w.apply(Delta::NodeUpsert(facts)));
        w
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn plans_are_whole_fit_and_repeatable(moves in moves()) {
        let mut model = Model::default();
        let mut w = world([]);
        for what in moves {
            let plans = matches!(what, Move::Plan);
            model.deltas(what).into_iter().for_each(|delta| w.apply(delta));
            if !plans {
                continue;
            }
            let mut afresh = model.afresh();
            let mut again = w.clone();
            let plan = plan(&mut w);
            prop_assert_eq!(&plan, &again.plan(Timestamp::default(), ALL), "the same world gives the same plan");
            let from_scratch = afresh.plan(Timestamp::default(), ALL);
            prop_assert_eq!(&plan.starts, &from_scratch.starts, "deltas lead where a fresh look leads");
            for (id, verdict) in &plan.verdicts {
                prop_assert_eq!(Some(verdict.reason), from_scratch.verdicts.get(id).map(|v| v.reason), "{}", &verdict.message);
            }
            // Every gang is accounted for: it runs, or it has been told why not.
            model.take(&plan);
            for id in model.gangs.keys() {
                prop_assert!(model.placed.contains_key(id) || from_scratch.verdicts.contains_key(id), "{:?} is lost", id);
            }
            let settled = w.plan(Timestamp::default(), ALL);
            prop_assert!(settled.starts.is_empty() && settled.verdicts.is_empty(), "nothing new, nothing to do: {settled:?}");
        }
    }

    #[test]
    fn what_waits_starts_in_the_end(moves in moves()) {
        let mut model = Model::default();
        let mut w = world([node("n0", 4, 8), node("n1", 4, 8)]);
        for what in moves.into_iter().filter(|what| matches!(what, Move::Submit { .. } | Move::End(_))) {
            model.deltas(what).into_iter().for_each(|delta| w.apply(delta));
        }
        let mut left: BTreeSet<GangId> =
            model.gangs.values().filter(|facts| facts.members.iter().all(|m| m.request.gpu_milli * i64::from(m.count) <= 8000)).map(|f| f.id.clone()).collect();
        let unfit: Vec<GangId> = model.gangs.keys().filter(|id| !left.contains(*id)).cloned().collect();
        unfit.into_iter().for_each(|id| w.apply(Delta::GangRemove(id)));
        for _ in 0..200 {
            let plan = plan(&mut w);
            // The one that started first ends first; others keep running.
            for start in plan.starts {
                left.remove(&start.gang);
                w.apply(Delta::GangRemove(start.gang));
            }
        }
        let stuck: Vec<_> = left.iter().filter(|id| matches!(w.preview(&GangFacts { id: GangId("x".into()), submitted: Timestamp::default(), ..model.gangs[*id].clone() }), Preview::Starts { .. })).collect();
        prop_assert!(stuck.is_empty(), "these fit and do not start: {stuck:?}");
    }
}
