//! What a plan costs: a full plan, one change in a settled world, and a question, as nodes, gangs and shapes grow.
//!
//! Each world is filled by its first plan; a change is the end of one running gang and the plan that follows. Prints
//! medians and 99th percentiles; the row to compare with is the first.

#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a measurement reads the real clock and prints"
)]

use regatta_planner::{
    Amounts, Budget, Delta, GangFacts, GangId, MemberGroup, NodeFacts, QueueFacts, QueueState, Schedulable,
    World,
};
use regatta_types::Timestamp;
use regatta_types::seed::{Seed, Stream};
use std::collections::BTreeMap;
use std::time::Instant;

const BUDGET: Budget = Budget { steps: u64::MAX };
const CHANGES: usize = 300;
const QUESTIONS: usize = 20;

/// How large a world is.
#[derive(Clone, Copy)]
struct Size {
    nodes: usize,
    gangs: usize,
    /// Different gangs: classes. There are at most 4 GPU counts times as many CPU amounts as that needs.
    shapes: i64,
    /// Roles in each gang.
    roles: usize,
}

fn main() {
    println!(
        "{:>6} {:>7} {:>7} {:>6} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}",
        "nodes", "gangs", "shapes", "roles", "full, ms", "told", "p50, µs", "p99, µs", "why, µs", "proof, µs"
    );
    let base = Size { nodes: 1_000, gangs: 10_000, shapes: 20, roles: 1 };
    let sizes = [
        base,
        Size { nodes: 2_000, ..base },
        Size { nodes: 4_000, ..base },
        Size { gangs: 20_000, ..base },
        Size { gangs: 40_000, ..base },
        Size { shapes: 40, ..base },
        Size { shapes: 80, ..base },
        Size { shapes: 1_000, ..base },
        Size { roles: 2, ..base },
        Size { nodes: 10_000, gangs: 15_000, ..base },
    ];
    sizes.into_iter().for_each(measure);
}

fn measure(size: Size) {
    let mut world = world(size);
    let start = Instant::now();
    let plan = world.plan(Timestamp::default(), BUDGET);
    let full = start.elapsed();
    let told = plan.verdicts.len();
    let mut running: Vec<GangId> = plan.starts.iter().map(|start| start.gang.clone()).collect();
    let mut random = Seed(2).stream();
    let mut costs: Vec<u128> = (0..CHANGES)
        .map(|_| {
            let at = below(&mut random, running.len());
            let ended = running.swap_remove(at);
            let start = Instant::now();
            world.apply(Delta::GangRemove(ended));
            let plan = world.plan(Timestamp::default(), BUDGET);
            let cost = start.elapsed().as_micros();
            running.extend(plan.starts.into_iter().map(|start| start.gang));
            cost
        })
        .collect();
    costs.sort_unstable();
    let start = Instant::now();
    (0..QUESTIONS).for_each(|at| drop(std::hint::black_box(world.explain(&id(size.gangs - 1 - at)))));
    let why = start.elapsed().as_micros() / u128::try_from(QUESTIONS).unwrap_or(1);
    let proof = proof(&mut world, size);
    println!(
        "{:>6} {:>7} {:>7} {:>6} {:>10.1} {told:>10} {:>10} {:>10} {why:>10} {proof:>10}",
        size.nodes,
        size.gangs,
        size.shapes,
        size.roles,
        full.as_secs_f64() * 1e3,
        costs[CHANGES / 2],
        costs[CHANGES * 99 / 100],
    );
}

/// The plan that finds that ten nodes' worth of GPUs are not free, with its verdict.
fn proof(world: &mut World, size: Size) -> u128 {
    let mut large = gang(size, 0, &mut Seed(3).stream());
    large.id = GangId("large".into());
    large.priority = 1;
    large.members.truncate(1);
    large.members[0].count = 10;
    large.members[0].request.gpu_milli = 8_000;
    let start = Instant::now();
    world.apply(Delta::GangUpsert(large));
    std::hint::black_box(world.plan(Timestamp::default(), BUDGET));
    start.elapsed().as_micros()
}

fn below(random: &mut Stream, bound: usize) -> usize {
    usize::try_from(random.below(u64::try_from(bound).unwrap_or(0))).unwrap_or(0)
}

fn id(index: usize) -> GangId {
    GangId(format!("gang-{index:06}"))
}

fn world(size: Size) -> World {
    let mut world = World::new();
    world.apply(Delta::QueueUpsert(QueueFacts { name: "q".into(), state: QueueState::Open }));
    for index in 0..size.nodes {
        world.apply(Delta::NodeUpsert(NodeFacts {
            name: format!("node-{index:05}"),
            allocatable: Amounts { gpu_milli: 8_000, cpu_milli: 96_000, memory_bytes: 1 << 40, pods: 110 },
            labels: BTreeMap::new(),
            gpu_model: Some("h100".into()),
            schedulable: Schedulable::Yes,
        }));
    }
    let mut random = Seed(1).stream();
    (0..size.gangs).for_each(|index| world.apply(Delta::GangUpsert(gang(size, index, &mut random))));
    world
}

fn gang(size: Size, index: usize, random: &mut Stream) -> GangFacts {
    let shape = i64::try_from(random.below(u64::try_from(size.shapes).unwrap_or(1))).unwrap_or(0);
    let gpus = [1, 2, 4, 8][usize::try_from(shape % 4).unwrap_or(0)];
    let (count, cpus) = (1 + (shape / 4) % 5, 4 + shape / 20);
    let role = |role: usize| MemberGroup {
        role: format!("role-{role}"),
        count: u32::try_from(count).unwrap_or(1),
        request: Amounts {
            gpu_milli: if role == 0 { gpus * 1_000 } else { 0 },
            cpu_milli: cpus * 1_000,
            memory_bytes: 1 << 30,
            pods: 1,
        },
        gpu_models: Vec::new(),
        node_selector: BTreeMap::new(),
    };
    GangFacts {
        id: id(index),
        name: format!("default/gang-{index:06}"),
        queue: "q".into(),
        priority: 0,
        submitted: Timestamp::from_unix_ms(i64::try_from(index).unwrap_or(0)),
        members: (0..size.roles).map(role).collect(),
    }
}
