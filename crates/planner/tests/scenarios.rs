//! Small situations and what the planner makes of them.

#![expect(clippy::panic, reason = "these are tests; the lints know only functions marked as such")]

mod common;

use common::*;
use regatta_planner::{
    Amounts, Budget, Delta, GangId, MemberGroup, NodeFacts, Plan, Preview, QueueState, Schedulable, Verdict,
    World,
};
use regatta_types::Timestamp;
use regatta_types::reason::WaitReason;

fn reason(plan: &Plan, name: &str) -> (WaitReason, String) {
    let verdict =
        plan.verdicts.get(&GangId(name.into())).unwrap_or_else(|| panic!("no verdict for {name}: {plan:?}"));
    (verdict.reason, verdict.message.clone())
}

fn explained(world: &World, name: &str) -> Verdict {
    match world.explain(&GangId(name.into())) {
        Some(Preview::Waits(verdict)) => verdict,
        other => panic!("{name} does not wait: {other:?}"),
    }
}

fn end(world: &mut World, name: &str) {
    world.apply(Delta::GangRemove(GangId(name.into())));
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
        "needs 3 × (2 GPUs) for worker; 2 of 3 members fit now (4 GPUs free); even with nothing else running only 2 \
         of 3 members fit on the 2 nodes there are; 1 more node like a would do"
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
fn gangs_without_gpus_leave_gpus_free() {
    let mut w = world([node("gpu", 8, 8), node("half", 4, 8), node("plain", 0, 8)]);
    w.apply(Delta::GangUpsert(gang("cpus", 1, group(2, 0, 6))));
    assert_eq!(started(&plan(&mut w)), [("cpus", vec!["half", "plain"])]);
}

#[test]
fn roles_are_placed_together() {
    let check = |members: Vec<MemberGroup>, expected: &[&str]| {
        let mut b = node_facts("b", 2, 8);
        b.labels.insert("zone".into(), "x".into());
        let mut w = world([node("a", 3, 8), Delta::NodeUpsert(b.clone())]);
        w.apply(Delta::GangUpsert(gang_of("g", 1, members)));
        let plan = plan(&mut w);
        assert_eq!(started(&plan).first().map(|(_, n)| n.clone()).unwrap_or_default(), expected, "{plan:?}");
    };
    check(vec![group(1, 2, 0), in_zone("x", group(1, 1, 0))], &["a", "b"]);
    check(vec![in_zone("x", group(1, 2, 0)), group(1, 3, 0)], &["b", "a"]);
    // The best node for the larger role alone is the only one for the smaller.
    check(vec![group(1, 2, 0), in_zone("x", group(2, 1, 0))], &["a", "b", "b"]);
    check(vec![group(1, 2, 0), in_zone("x", group(3, 1, 0))], &[]);
    check(vec![group(0, 2, 0), group(1, 1, 0)], &["b"]);
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
fn who_waits_keeps_a_home_and_nothing_else() {
    let mut w = world([node("a", 4, 16), node("b", 4, 16), node("plain", 0, 16)]);
    w.apply(Delta::GangUpsert(gang("long", 1, group(1, 1, 2))));
    w.apply(Delta::GangUpsert(gang("wide", 2, group(1, 3, 2))));
    assert_eq!(started(&plan(&mut w)), [("long", vec!["a"]), ("wide", vec!["a"])]);
    w.apply(Delta::GangUpsert(gang("filler", 3, group(1, 2, 2))));
    assert_eq!(started(&plan(&mut w)), [("filler", vec!["b"])]);

    // `big` is closest to fitting on b, where two GPUs are free: these are kept.
    w.apply(Delta::GangUpsert(gang("big", 4, group(1, 4, 8))));
    w.apply(Delta::GangUpsert(gang("small", 5, group(1, 1, 1))));
    w.apply(Delta::GangUpsert(gang("plain", 6, group(2, 0, 8))));
    w.apply(Delta::GangUpsert(gang("huge", 7, group(1, 0, 20))));
    let second = plan(&mut w);
    assert_eq!(started(&second), [("plain", vec!["plain", "plain"])]);
    assert_eq!(reason(&second, "big"), (
        WaitReason::InsufficientCapacity,
        "needs 1 × (4 GPUs, 8 CPU) for worker; 0 of 1 members fit now (2 GPUs, 26 CPU free); it starts when default/filler has ended".into(),
    ));
    assert_eq!(
        reason(&second, "small"),
        (
            WaitReason::BehindOthers,
            "what it needs is free, but kept for gangs that come first, beginning with default/big (priority 0, submitted \
             1970-01-01T00:00:00.004Z); with a priority above 0 it would start now"
                .into()
        )
    );
    assert_eq!(
        reason(&second, "huge"),
        (
            WaitReason::NoSuchNode,
            "role worker: asks for 20 CPU on each node, and the largest node, a, has 16; ask for at most 16 per node, on more \
             nodes; it starts once such a node is added"
                .into()
        )
    );

    // Room on the other node, too little for `big`: `small` may have it.
    end(&mut w, "long");
    assert_eq!(started(&plan(&mut w)), [("small", vec!["a"])]);
    // What the sentence says is true.
    end(&mut w, "filler");
    assert_eq!(started(&plan(&mut w)), [("big", vec!["b"])]);
}

#[test]
fn who_could_never_fit_stops_nobody() {
    let mut w = world([node("a", 4, 8), Delta::GangUpsert(gang("dream", 1, group(2, 4, 0)))]);
    w.apply(Delta::GangUpsert(gang("small", 2, group(1, 1, 0))));
    let first = plan(&mut w);
    assert_eq!(started(&first), [("small", vec!["a"])]);
    assert_eq!(reason(&first, "dream").0, WaitReason::InsufficientCapacity);
    assert_eq!(w.reservations(), []);
    // Once the nodes could hold it, it does keep its home.
    w.apply(node("b", 4, 8));
    w.apply(Delta::GangUpsert(gang("late", 3, group(1, 1, 0))));
    let second = plan(&mut w);
    assert_eq!(started(&second), []);
    assert_eq!(reason(&second, "late").0, WaitReason::BehindOthers);
    assert_eq!(w.reservations().iter().map(|kept| kept.gang.0.as_str()).collect::<Vec<_>>(), ["dream"]);
    end(&mut w, "small");
    assert_eq!(started(&plan(&mut w)), [("dream", vec!["a", "b"])]);
}

#[test]
fn a_home_is_where_most_members_fit_already() {
    let mut w = world([node("a", 4, 8), node("b", 8, 8)]);
    for (name, gpus) in [("one", 3), ("two", 4)] {
        w.apply(Delta::GangUpsert(gang(name, 1, group(1, gpus, 0))));
    }
    assert_eq!(started(&plan(&mut w)), [("one", vec!["a"]), ("two", vec!["b"])]);
    w.apply(Delta::GangUpsert(gang("big", 2, group(2, 4, 0))));
    plan(&mut w);
    // Three GPUs are missing on a, and it would hold one member; b lacks four for two, and holds one of them now.
    let kept = w.reservations();
    let nodes: Vec<(&str, i64)> = kept
        .iter()
        .flat_map(|kept| &kept.nodes)
        .map(|(node, kept)| (node.as_str(), kept.gpu_milli))
        .collect();
    assert_eq!(nodes, [("b", 8000)]);
    assert_eq!(explained(&w, "big").numbers.fitting, 1);
}

#[test]
fn who_is_overtaken_by_its_like_is_told() {
    let mut w = world([node("a", 2, 8), Delta::GangUpsert(gang("r", 1, group(1, 2, 0)))]);
    plan(&mut w);
    w.apply(Delta::GangUpsert(gang("old", 2, group(1, 1, 0))));
    assert_eq!(reason(&plan(&mut w), "old").0, WaitReason::InsufficientCapacity);
    let mut urgent = gang("urgent", 3, group(1, 1, 0));
    urgent.priority = 1;
    w.apply(Delta::GangUpsert(urgent));
    let next = plan(&mut w);
    assert_eq!(reason(&next, "urgent").0, WaitReason::InsufficientCapacity);
    assert_eq!(reason(&next, "old").0, WaitReason::BehindOthers);
    end(&mut w, "urgent");
    assert_eq!(reason(&plan(&mut w), "old").0, WaitReason::InsufficientCapacity);
}

#[test]
fn closed_nodes_take_nothing_and_are_mentioned() {
    let closed = NodeFacts { schedulable: Schedulable::No, ..node_facts("b", 8, 8) };
    let mut w = world([node("a", 4, 8), Delta::NodeUpsert(closed.clone())]);
    w.apply(Delta::GangUpsert(gang("g", 1, group(1, 6, 0))));
    assert_eq!(
        reason(&plan(&mut w), "g"),
        (
            WaitReason::InsufficientCapacity,
            "needs 1 × (6 GPUs) for worker; 0 of 1 members fit now (4 GPUs free); even with nothing else running only 0 of 1 \
             members fit on the 1 node there are (1 more take no new work now); it starts when nodes are added"
                .into()
        )
    );
    w.apply(Delta::NodeUpsert(NodeFacts { schedulable: Schedulable::Yes, ..closed }));
    assert_eq!(started(&plan(&mut w)), [("g", vec!["b"])]);
}

#[test]
fn verdicts_are_told_once_and_numbers_on_asking() {
    let mut w = world([node("a", 2, 8), Delta::GangUpsert(gang("one", 1, group(1, 1, 0)))]);
    w.apply(Delta::GangUpsert(gang("two", 2, group(1, 1, 0))));
    assert_eq!(plan(&mut w).starts.len(), 2);
    for index in 0..100 {
        w.apply(Delta::GangUpsert(gang(&format!("g{index:02}"), 10 + index, group(1, 2, 0))));
    }
    let first = plan(&mut w);
    assert_eq!(first.verdicts.len(), 100);
    assert!(reason(&first, "g00").1.ends_with("it starts when default/one and default/two have ended"));
    assert!(
        reason(&first, "g99").1.contains("once nobody is before it (default/g00 is first), it starts when")
    );
    assert_eq!(plan(&mut w).verdicts.len(), 0);
    w.apply(Delta::GangUpsert(gang("last", 1000, group(1, 2, 0))));
    let next = plan(&mut w);
    assert_eq!((next.verdicts.len(), next.steps_used), (1, 0), "a blocked class costs nothing");
    end(&mut w, "one");
    let same = plan(&mut w);
    assert_eq!((same.starts.len(), same.verdicts.len()), (0, 0), "the reason is the same");
    let now = explained(&w, "g00");
    assert_eq!((now.numbers.fitting, now.numbers.free.gpu_milli), (0, 1000));
    assert!(now.message.ends_with("it starts when default/two has ended"), "{}", now.message);
    end(&mut w, "two");
    assert_eq!(started(&plan(&mut w)), [("g00", vec!["a"])]);
    assert_eq!(w.explain(&GangId("g00".into())), None);
}

#[test]
fn a_changed_reason_is_told() {
    let mut w = world([node("a", 4, 8), Delta::GangUpsert(gang("r", 1, group(1, 2, 0)))]);
    plan(&mut w);
    w.apply(Delta::GangUpsert(gang("big", 2, group(1, 4, 0))));
    w.apply(Delta::GangUpsert(gang("small", 3, group(1, 1, 0))));
    assert_eq!(reason(&plan(&mut w), "small").0, WaitReason::BehindOthers);
    let others = Amounts { gpu_milli: 2000, ..Amounts::default() };
    w.apply(Delta::ForeignUpsert { id: "f".into(), node: "a".into(), amounts: others });
    let next = plan(&mut w);
    assert_eq!(reason(&next, "small").0, WaitReason::InsufficientCapacity);
    assert_eq!(next.verdicts.len(), 1);
    assert!(
        explained(&w, "big")
            .message
            .ends_with("it starts when default/r and 1 pod that is not part of a job have ended"),
        "{}",
        explained(&w, "big").message
    );
}

#[test]
fn a_start_that_was_not_carried_out_is_made_again() {
    let mut w = world([node("a", 1, 8), Delta::GangUpsert(gang("g", 1, group(1, 1, 0)))]);
    assert_eq!(started(&plan(&mut w)).len(), 1);
    assert_eq!(started(&plan(&mut w)).len(), 0);
    w.apply(Delta::GangUnplaced(GangId("g".into())));
    assert_eq!(started(&plan(&mut w)).len(), 1);
    w.apply(Delta::GangPlaced { id: GangId("g".into()), nodes: vec!["a".into()] });
    assert_eq!(w.used_on("a").gpu_milli, 1000, "confirmed, not booked twice");
}

#[test]
fn what_is_placed_is_booked_before_anything_else_is_known() {
    let mut w = World::new();
    let id = GangId("g".into());
    w.apply(Delta::GangPlaced { id: id.clone(), nodes: vec!["a".into()] });
    w.apply(Delta::GangUpsert(gang("g", 1, group(1, 1, 0))));
    w.apply(Delta::GangUpsert(gang("h", 2, group(1, 1, 0))));
    w.apply(queue("q", QueueState::Open));
    w.apply(node("a", 1, 8));
    assert_eq!(started(&plan(&mut w)), []);
    // A node that goes and comes back under its gang.
    w.apply(Delta::NodeRemove("a".into()));
    plan(&mut w);
    w.apply(node("a", 1, 8));
    assert_eq!(started(&plan(&mut w)), []);
    w.apply(Delta::GangRemove(id));
    assert_eq!(started(&plan(&mut w)), [("h", vec!["a"])]);
}

#[test]
fn queues_are_minded() {
    let mut w = world([node("a", 1, 8)]);
    let mut lost = gang("lost", 1, group(1, 1, 0));
    lost.queue = "nowhere".into();
    w.apply(Delta::GangUpsert(lost));
    w.apply(queue("q", QueueState::Stopped));
    w.apply(Delta::GangUpsert(gang("held", 2, group(1, 1, 0))));
    let first = plan(&mut w);
    assert_eq!(
        reason(&first, "lost"),
        (
            WaitReason::QueueNotFound,
            "queue \"nowhere\" does not exist (there are: q); it waits until the queue is created".into(),
        )
    );
    assert_eq!(
        reason(&first, "held"),
        (
            WaitReason::QueueStopped,
            "queue q is stopped; its jobs wait until it is opened (spec.stopped: false)".into()
        )
    );
    w.apply(queue("q", QueueState::Open));
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
    check(
        group(1, 4, 8),
        "role worker: asks for (4 GPUs, 8 CPU) on each node, and no single node has all of it; the largest, b, has (4 GPUs, 4 \
         CPU, 64 GiB)",
    );
    let mut h100 = group(1, 1, 0);
    h100.gpu_models = vec!["h100".into()];
    check(h100, "role worker: no node has a GPU of model h100 (no node has a known model)");
    check(in_zone("x", group(1, 1, 0)), "role worker: no node of 2 has the labels zone=x");
    let w = world([node("plain", 0, 8)]);
    let refused = w.fits_ever(&gang("g", 1, group(1, 1, 0))).unwrap_err().to_string();
    assert_eq!(refused, "role worker: asks for 1 GPUs on each node, and no node that would do has any");
    assert!(w.fits_ever(&gang("g", 1, group(100, 0, 8))).is_ok(), "more nodes than there are may come");
    let none = world([]).preview(&gang("g", 1, group(1, 0, 1)));
    let Preview::Waits(verdict) = none else { panic!("nodes may still come: {none:?}") };
    assert_eq!(
        (verdict.reason, verdict.message.as_str()),
        (WaitReason::NoSuchNode, "role worker: there is no node; it starts once such a node is added")
    );
}

#[test]
fn a_plan_goes_on_where_its_budget_ended() {
    let mut whole = world([]);
    for index in 0..20 {
        whole.apply(node(&format!("n{index:02}"), 4, 8));
        let shape = group(1 + index % 3, 1 + i64::from(index % 4), 0);
        whole.apply(Delta::GangUpsert(gang(&format!("g{index:02}"), 100 - i64::from(index), shape)));
    }
    let mut parts = whole.clone();
    let at_once = plan(&mut whole);
    let mut starts = Vec::new();
    let mut verdicts = std::collections::BTreeMap::new();
    for round in 0.. {
        assert!(round < 1000, "it makes progress");
        let part = parts.plan(Timestamp::default(), Budget { steps: 1 });
        starts.extend(part.starts);
        verdicts.extend(part.verdicts);
        if part.complete {
            break;
        }
    }
    // The numbers are those of the moment in which they were told.
    let reasons = |verdicts: std::collections::BTreeMap<GangId, Verdict>| -> Vec<(GangId, WaitReason)> {
        verdicts.into_iter().map(|(id, verdict)| (id, verdict.reason)).collect()
    };
    assert_eq!((starts, reasons(verdicts)), (at_once.starts, reasons(at_once.verdicts)));
}
