//! What holds after any history: random worlds, checked against a model that is kept by hand.

#![expect(clippy::unwrap_used, reason = "these are tests; the lints know only functions marked as such")]

mod common;

use common::*;
use proptest::prelude::*;
use regatta_planner::{
    Amounts, Delta, GangFacts, GangId, MemberGroup, NodeFacts, Plan, Preview, QueueState, Reservation,
    Schedulable, Until, World,
};
use regatta_types::seed::Seed;
use regatta_types::{Timestamp, reason::WaitReason};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Clone)]
enum Move {
    Submit { priority: i32, members: Vec<MemberGroup> },
    End(usize),
    Unplace(usize),
    Node { index: usize, gpus: i64, zone: bool, model: bool, schedulable: bool },
    NodeGone(usize),
    Foreign { node: usize, gpus: i64 },
    ForeignGone,
    Queue(bool),
    Plan,
}

fn a_group() -> impl Strategy<Value = MemberGroup> {
    (1u32..5, 0i64..4, 0i64..5, 0u8..6, 0u8..6).prop_map(|(count, gpus, cpus, zone, model)| {
        let mut group = group(count, gpus, cpus);
        if zone == 0 {
            group = in_zone("x", group);
        }
        group.gpu_models = match model {
            0 => vec!["h100".into(), "a100".into()],
            1 => vec!["a100".into()],
            _ => Vec::new(),
        };
        group
    })
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let members = prop_oneof![3 => a_group().prop_map(|g| vec![g]), 1 => (a_group(), a_group()).prop_map(|(a, b)| vec![a, b])];
    let one = prop_oneof![
        8 => (0i32..2, members).prop_map(|(priority, members)| Move::Submit { priority, members }),
        5 => (0usize..50).prop_map(Move::End),
        1 => (0usize..50).prop_map(Move::Unplace),
        2 => (0usize..4, 0i64..7, any::<bool>(), any::<bool>(), prop_oneof![4 => Just(true), 1 => Just(false)])
            .prop_map(|(index, gpus, zone, model, schedulable)| Move::Node { index, gpus, zone, model, schedulable }),
        1 => (0usize..4).prop_map(Move::NodeGone),
        1 => (0usize..4, 0i64..3).prop_map(|(node, gpus)| Move::Foreign { node, gpus }),
        1 => Just(Move::ForeignGone),
        1 => prop_oneof![3 => Just(true), 1 => Just(false)].prop_map(Move::Queue),
        6 => Just(Move::Plan),
    ];
    let start = (1i64..7, 1i64..7).prop_map(|(a, b)| {
        [(0, a), (1, b)].map(|(index, gpus)| Move::Node {
            index,
            gpus,
            zone: index == 1,
            model: true,
            schedulable: true,
        })
    });
    (start, proptest::collection::vec(one, 1..60))
        .prop_map(|(start, rest)| start.into_iter().chain(rest).collect())
}

/// What the planner has been told, kept by hand.
#[derive(Default, Clone)]
struct Model {
    nodes: BTreeMap<String, NodeFacts>,
    gangs: BTreeMap<GangId, GangFacts>,
    placed: BTreeMap<GangId, Vec<String>>,
    foreign: Option<(String, Amounts)>,
    closed: bool,
    count: i64,
}

impl Model {
    fn nth(&self, index: usize) -> Option<GangId> {
        self.gangs.keys().nth(index % self.gangs.len().max(1)).cloned()
    }

    fn deltas(&mut self, what: Move) -> Vec<Delta> {
        let name = |index: usize| format!("n{index}");
        match what {
            Move::Submit { priority, members } => {
                self.count += 1;
                let mut facts = gang_of(&format!("g{:03}", self.count), self.count / 2, members);
                facts.priority = priority;
                self.gangs.insert(facts.id.clone(), facts.clone());
                vec![Delta::GangUpsert(facts)]
            }
            Move::End(index) => {
                let Some(id) = self.nth(index) else { return vec![] };
                self.gangs.remove(&id);
                self.placed.remove(&id);
                vec![Delta::GangRemove(id)]
            }
            Move::Unplace(index) => {
                let Some(id) = self.nth(index) else { return vec![] };
                self.placed.remove(&id);
                vec![Delta::GangUnplaced(id)]
            }
            Move::Node { index, gpus, zone, model, schedulable } => {
                let mut facts = node_facts(&name(index), gpus, 8);
                facts.schedulable = if schedulable { Schedulable::Yes } else { Schedulable::No };
                facts.gpu_model = Some(if model { "h100" } else { "a100" }.to_owned());
                if zone {
                    facts.labels.insert("zone".into(), "x".into());
                }
                self.nodes.insert(name(index), facts.clone());
                vec![Delta::NodeUpsert(facts)]
            }
            Move::NodeGone(index) => {
                self.nodes.remove(&name(index));
                vec![Delta::NodeRemove(name(index))]
            }
            Move::Foreign { node, gpus } => {
                let amounts = Amounts { gpu_milli: gpus * 1000, ..Amounts::default() };
                self.foreign = Some((name(node), amounts));
                vec![Delta::ForeignUpsert { id: "f".into(), node: name(node), amounts }]
            }
            Move::ForeignGone => {
                self.foreign = None;
                vec![Delta::ForeignRemove { id: "f".into() }]
            }
            Move::Queue(open) => {
                self.closed = !open;
                vec![queue("q", if open { QueueState::Open } else { QueueState::Stopped })]
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
        self.foreign.iter().for_each(|(node, amounts)| add(node, *amounts));
        used
    }

    fn order(&self, id: &GangId) -> (i32, Timestamp, GangId) {
        let facts = &self.gangs[id];
        (-facts.priority, facts.submitted, facts.id.clone())
    }

    fn waiting(&self) -> Vec<GangId> {
        let mut waiting: Vec<GangId> =
            self.gangs.keys().filter(|id| !self.placed.contains_key(*id)).cloned().collect();
        waiting.sort_by_key(|id| self.order(id));
        waiting
    }

    /// Books the plan's starts and checks them: whole gangs, on nodes that will do, and no node beyond what it has.
    fn take(&mut self, plan: &Plan) {
        for start in &plan.starts {
            let facts = &self.gangs[&start.gang];
            assert_eq!(start.placement.len(), usize::try_from(facts.size()).unwrap(), "whole gangs only");
            assert!(!self.placed.contains_key(&start.gang), "started once");
            let groups = facts.members.iter().enumerate();
            let groups = groups.flat_map(|(at, group)| (0..group.count).map(move |_| (at, group)));
            let mut models: BTreeMap<usize, BTreeSet<&str>> = BTreeMap::new();
            for (slot, (at, group)) in start.placement.iter().zip(groups) {
                let node = &self.nodes[&slot.node];
                assert_eq!((slot.role.as_str(), node.schedulable), (group.role.as_str(), Schedulable::Yes));
                assert!(group.node_selector.iter().all(|(key, value)| node.labels.get(key) == Some(value)));
                let model = node.gpu_model.as_deref().unwrap();
                assert!(group.gpu_models.is_empty() || group.gpu_models.iter().any(|wanted| wanted == model));
                models.entry(at).or_default().insert(model);
            }
            let is_choosy = |at: usize| !facts.members[at].gpu_models.is_empty();
            let mixed = models.iter().find(|(at, models)| is_choosy(**at) && models.len() > 1);
            assert!(mixed.is_none(), "{mixed:?}");
            let nodes = start.placement.iter().map(|slot| slot.node.clone()).collect();
            self.placed.insert(start.gang.clone(), nodes);
        }
        let used = self.used();
        for start in &plan.starts {
            for (slot, group) in start.placement.iter().zip(
                self.gangs[&start.gang].members.iter().flat_map(|group| (0..group.count).map(move |_| group)),
            ) {
                let free = self.nodes[&slot.node].allocatable.minus(used[&slot.node]);
                let over = Amounts::default().minus(free).only_asked(group.request).upper(Amounts::default());
                assert_eq!(over, Amounts::default(), "{} is over-committed", slot.node);
            }
        }
    }

    /// Everything that a fresh world must be told, one list for each thing.
    fn facts(&self) -> Vec<Vec<Delta>> {
        let mut things: Vec<Vec<Delta>> =
            vec![vec![queue("q", if self.closed { QueueState::Stopped } else { QueueState::Open })]];
        things.extend(self.gangs.values().map(|facts| {
            let placed = self
                .placed
                .get(&facts.id)
                .map(|nodes| Delta::GangPlaced { id: facts.id.clone(), nodes: nodes.clone() });
            [Delta::GangUpsert(facts.clone())].into_iter().chain(placed).collect()
        }));
        things.extend(self.foreign.iter().map(|(node, amounts)| {
            vec![Delta::ForeignUpsert { id: "f".into(), node: node.clone(), amounts: *amounts }]
        }));
        things.extend(self.nodes.values().map(|facts| vec![Delta::NodeUpsert(facts.clone())]));
        things
    }

    /// A world that is told everything at once, in an order of its own.
    fn afresh(&self, seed: u64) -> World {
        let mut things: Vec<(u64, Vec<Delta>)> = Vec::new();
        let mut random = Seed(seed).stream();
        for thing in self.facts() {
            let mut at = random.below(1 << 32);
            for delta in thing {
                things.push((at, vec![delta]));
                at += random.below(1 << 32);
            }
        }
        things.sort_by_key(|(at, _)| *at);
        let mut world = World::new();
        things.into_iter().flat_map(|(_, deltas)| deltas).for_each(|delta| world.apply(delta));
        world
    }

    /// What is kept on each node for gangs before `id`.
    fn kept_before(&self, id: &GangId, reservations: &[Reservation]) -> BTreeMap<String, Amounts> {
        let mut kept: BTreeMap<String, Amounts> = BTreeMap::new();
        for reservation in reservations.iter().filter(|kept| self.order(&kept.gang) < self.order(id)) {
            for (node, amounts) in &reservation.nodes {
                let entry = kept.entry(node.clone()).or_default();
                *entry = entry.plus(*amounts);
            }
        }
        kept
    }

    /// Whether a gang of one group fits on what is free and not kept from it.
    fn fits(&self, group: &MemberGroup, kept: &BTreeMap<String, Amounts>) -> bool {
        let used = self.used();
        let on = |model: Option<&String>| -> i64 {
            let eligible = self.nodes.values().filter(|node| {
                node.schedulable == Schedulable::Yes
                    && group.node_selector.iter().all(|(key, value)| node.labels.get(key) == Some(value))
                    && (model.is_none() || node.gpu_model.as_ref() == model)
            });
            let room = eligible.map(|node| {
                let used = used.get(&node.name).copied().unwrap_or_default();
                let kept = kept.get(&node.name).copied().unwrap_or_default();
                node.allocatable.minus(used).minus(kept).holds(group.request).min(1000)
            });
            room.sum()
        };
        let most = if group.gpu_models.is_empty() {
            on(None)
        } else {
            group.gpu_models.iter().map(|model| on(Some(model))).max().unwrap_or(0)
        };
        most >= i64::from(group.count)
    }
}

/// Follows a history and calls `check` with the model, the world before each plan, the world after it, and the plan.
fn follow(moves: Vec<Move>, mut check: impl FnMut(&Model, &World, &World, &Plan)) {
    let mut model = Model::default();
    let mut w = world([]);
    for what in moves {
        let plans = matches!(what, Move::Plan);
        model.deltas(what).into_iter().for_each(|delta| w.apply(delta));
        if plans {
            let before = w.clone();
            let plan = plan(&mut w);
            model.take(&plan);
            check(&model, &before, &w, &plan);
        }
    }
}

fn waits(world: &World, id: &GangId) -> regatta_planner::Verdict {
    match world.explain(id) {
        Some(Preview::Waits(verdict)) => verdict,
        other => unreachable!("{id:?} waits after a plan: {other:?}"),
    }
}

/// Makes true what a verdict asks for; says whether it is about a start.
fn grant(world: &mut World, model: &Model, id: &GangId, until: &Until) -> bool {
    match until {
        Until::QueueExists | Until::QueueOpens | Until::OtherNodes => return false,
        Until::HaveEnded { gangs, foreign } => {
            gangs.iter().for_each(|id| world.apply(Delta::GangRemove(id.clone())));
            foreign.iter().for_each(|id| world.apply(Delta::ForeignRemove { id: id.clone() }));
        }
        Until::IsFirst { priority } => {
            // Without anybody leaving the line.
            let facts = GangFacts { priority: priority + 1, ..model.gangs[id].clone() };
            world.apply(Delta::GangUpsert(facts));
            return true;
        }
        Until::NodesAdded { count, like } => {
            model.placed.keys().for_each(|id| world.apply(Delta::GangRemove(id.clone())));
            world.apply(Delta::ForeignRemove { id: "f".into() });
            for index in 0..*count {
                let name = format!("new-{index}");
                world.apply(Delta::NodeUpsert(NodeFacts { name, ..model.nodes[like].clone() }));
            }
        }
    }
    let earlier = model.waiting().into_iter().take_while(|other| other != id);
    earlier.for_each(|id| world.apply(Delta::GangRemove(id)));
    true
}

fn config() -> ProptestConfig {
    ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn the_same_state_gives_the_same_plan(moves in moves(), seed in any::<u64>()) {
        // Two worlds that heard all in different orders, and one that has lived through it.
        let mut model = Model::default();
        let mut w = world([]);
        for what in moves {
            let plans = matches!(what, Move::Plan);
            model.deltas(what).into_iter().for_each(|delta| w.apply(delta));
            if !plans {
                continue;
            }
            let (mut afresh, mut shuffled, mut again) = (model.afresh(seed), model.afresh(!seed), w.clone());
            let plan = plan(&mut w);
            prop_assert_eq!(&plan, &again.plan(Timestamp::default(), ALL));
            let from_scratch = afresh.plan(Timestamp::default(), ALL);
            let from_shuffled = shuffled.plan(Timestamp::default(), ALL);
            prop_assert_eq!(&plan.starts, &from_scratch.starts, "deltas lead where a fresh look leads");
            prop_assert_eq!(&from_scratch.starts, &from_shuffled.starts, "in any order");
            prop_assert_eq!(&from_scratch.verdicts, &from_shuffled.verdicts, "in any order");
            prop_assert_eq!(w.reservations(), afresh.reservations());
            model.take(&plan);
            for id in model.waiting() {
                prop_assert_eq!(w.explain(&id), afresh.explain(&id));
            }
        }
    }

    #[test]
    fn nobody_is_lost_or_left_without_a_reason(moves in moves()) {
        let mut told: BTreeMap<GangId, WaitReason> = BTreeMap::new();
        follow(moves, |model, _, after, plan| {
            told.extend(plan.verdicts.iter().map(|(id, verdict)| (id.clone(), verdict.reason)));
            plan.starts.iter().for_each(|start| { told.remove(&start.gang); });
            for id in model.waiting() {
                assert_eq!(told.get(&id), Some(&waits(after, &id).reason), "what {id:?} was told last is still so");
            }
            assert_eq!(after.waiting_count(), model.waiting().len());
            for node in model.nodes.keys() {
                assert_eq!(after.used_on(node), model.used().get(node).copied().unwrap_or_default());
            }
            let settled = plan_again(after);
            assert!(settled.starts.is_empty() && settled.verdicts.is_empty(), "nothing new, nothing to do: {settled:?}");
        });
    }

    #[test]
    fn what_fits_and_is_not_kept_for_others_runs(moves in moves()) {
        follow(moves, |model, _, after, _| {
            let reservations = after.reservations();
            for id in model.waiting().into_iter().filter(|_| !model.closed) {
                if let [group] = &model.gangs[&id].members[..] {
                    let kept = model.kept_before(&id, &reservations);
                    assert!(!model.fits(group, &kept), "{id:?} could run: {kept:?}");
                }
            }
        });
    }

    #[test]
    fn who_starts_leaves_what_is_kept(moves in moves()) {
        // With several groups in a gang, a home may be found only after another gang has started in the same plan.
        let simple = moves.into_iter().map(|mut what| {
            if let Move::Submit { members, .. } = &mut what {
                members.truncate(1);
            }
            what
        });
        follow(simple.collect(), |model, _, after, plan| {
            let reservations = after.reservations();
            let used = model.used();
            for start in &plan.starts {
                let kept = model.kept_before(&start.gang, &reservations);
                let members = model.gangs[&start.gang].members.iter().flat_map(|group| (0..group.count).map(move |_| group));
                for (slot, group) in start.placement.iter().zip(members) {
                    let Some(kept) = kept.get(&slot.node) else { continue };
                    let free = model.nodes[&slot.node].allocatable.minus(used[&slot.node]);
                    let short = kept.minus(free).only_asked(group.request).upper(Amounts::default());
                    assert_eq!(short, Amounts::default(), "{:?} took what is kept on {}", start.gang, slot.node);
                }
            }
        });
    }

    #[test]
    fn what_a_verdict_asks_for_is_enough(moves in moves()) {
        follow(moves, |model, _, after, _| {
            for id in model.waiting() {
                let verdict = waits(after, &id);
                let mut granted = after.clone();
                if grant(&mut granted, model, &id, &verdict.until) {
                    let plan = granted.plan(Timestamp::default(), ALL);
                    assert!(plan.starts.iter().any(|start| start.gang == id), "{id:?}: {}; {plan:?}", verdict.message);
                }
            }
        });
    }

    #[test]
    fn a_flood_of_later_gangs_starves_nobody(
        gpus in proptest::collection::vec(2i64..9, 1..5),
        wanted in (0u32..5, 0i64..9),
        flood in proptest::collection::vec((1u32..3, 1i64..5, 1usize..6), 4..12),
    ) {
        let mut w = world(gpus.iter().enumerate().map(|(index, gpus)| node(&format!("n{index}"), *gpus, 8)));
        let each = 1 + wanted.1 % gpus.iter().max().unwrap();
        let holds: i64 = gpus.iter().map(|gpus| gpus / each).sum();
        let count = 1 + wanted.0 % u32::try_from(holds).unwrap();
        let big = gang("big", 1_000, group(count, each, 0));
        let mut ends: BTreeMap<GangId, usize> = BTreeMap::new();
        // The first batch is before it, and each of these and it may have to wait for its home to improve step by step,
        // each step as long as the longest gang runs.
        let rounds = (flood.len() + 1) * 6 * (usize::try_from(gpus.iter().sum::<i64>()).unwrap() + 2);
        let mut begun = false;
        for round in 0..rounds {
            // There are always later ones that want to pass.
            if w.waiting_count() < 3 * flood.len() {
                for (index, (count, gpus, _)) in flood.iter().enumerate() {
                    let submitted = i64::try_from(round * 10_000 + index).unwrap();
                    let name = format!("s{round:04}-{index:02}");
                    w.apply(Delta::GangUpsert(gang(&name, submitted, group(*count, *gpus, 0))));
                }
            }
            if round == 0 {
                w.apply(Delta::GangUpsert(big.clone()));
            }
            let ended: Vec<GangId> = ends.iter().filter(|(_, end)| **end <= round).map(|(id, _)| id.clone()).collect();
            for id in ended {
                ends.remove(&id);
                w.apply(Delta::GangRemove(id));
            }
            for start in plan(&mut w).starts {
                begun |= start.gang == big.id;
                let index: usize = start.gang.0.split('-').nth(1).and_then(|index| index.parse().ok()).unwrap_or(0);
                ends.insert(start.gang, round + flood[index].2);
            }
            if begun {
                break;
            }
        }
        prop_assert!(begun, "it waits on: {:?}", w.explain(&big.id));
    }
}

fn plan_again(world: &World) -> Plan {
    world.clone().plan(Timestamp::default(), ALL)
}
