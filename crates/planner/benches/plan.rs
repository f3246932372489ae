//! What a plan costs: a full plan, and one change in a settled world, at n, 2n and 4n.
//!
//! Prints medians and how cost grows. The world: n nodes of 8 GPUs, ten gangs waiting for each node, 20 shapes.

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
use regatta_types::seed::Seed;
use std::collections::BTreeMap;
use std::time::Instant;

const BUDGET: Budget = Budget { steps: u64::MAX };
const CHANGES: usize = 200;

fn main() {
    println!(
        "{:>7} {:>8} {:>14} {:>16} {:>16}",
        "nodes", "gangs", "full plan, µs", "change p50, µs", "change p99, µs"
    );
    for nodes in [250, 500, 1_000, 2_000] {
        let mut world = world(nodes);
        let start = Instant::now();
        let plan = world.plan(Timestamp::default(), BUDGET);
        let full = start.elapsed().as_micros();
        let mut running: Vec<GangId> = plan.starts.iter().map(|start| start.gang.clone()).collect();
        let mut random = Seed(2).stream();
        let mut costs: Vec<u128> = (0..CHANGES)
            .map(|_| {
                let at =
                    usize::try_from(random.below(u64::try_from(running.len()).unwrap_or(0))).unwrap_or(0);
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
        println!(
            "{nodes:>7} {:>8} {full:>14} {:>16} {:>16}",
            nodes * 10,
            costs[CHANGES / 2],
            costs[CHANGES * 99 / 100]
        );
    }
}

fn world(nodes: usize) -> World {
    let mut world = World::new();
    world.apply(Delta::QueueUpsert(QueueFacts { name: "q".into(), state: QueueState::Open }));
    for index in 0..nodes {
        world.apply(Delta::NodeUpsert(NodeFacts {
            name: format!("node-{index:05}"),
            allocatable: Amounts { gpu_milli: 8_000, cpu_milli: 96_000, memory_bytes: 1 << 40, pods: 110 },
            labels: BTreeMap::new(),
            gpu_model: Some("h100".into()),
            schedulable: Schedulable::Yes,
        }));
    }
    let mut random = Seed(1).stream();
    for index in 0..nodes * 10 {
        let shape = i64::try_from(random.below(20)).unwrap_or(0);
        let (count, gpus) = (
            u32::try_from(1 + shape / 4).unwrap_or(1),
            [1, 2, 4, 8][usize::try_from(shape % 4).unwrap_or(0)],
        );
        world.apply(Delta::GangUpsert(GangFacts {
            id: GangId(format!("gang-{index:06}")),
            name: format!("default/gang-{index:06}"),
            queue: "q".into(),
            priority: 0,
            submitted: Timestamp::from_unix_ms(i64::try_from(index).unwrap_or(0)),
            members: vec![MemberGroup {
                role: "worker".into(),
                count,
                request: Amounts {
                    gpu_milli: gpus * 1_000,
                    cpu_milli: 4_000,
                    memory_bytes: 1 << 30,
                    pods: 1,
                },
                gpu_models: Vec::new(),
                node_selector: BTreeMap::new(),
            }],
        }));
    }
    world
}
