//! What the tests of the planner share: short ways to say nodes, gangs and plans.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses some of it")]

use regatta_planner::{
    Amounts, Budget, Delta, GangFacts, GangId, MemberGroup, NodeFacts, Plan, QueueFacts, QueueState,
    Schedulable, World,
};
use regatta_types::Timestamp;
use std::collections::BTreeMap;

/// No limit.
pub const ALL: Budget = Budget { steps: u64::MAX };

pub fn node(name: &str, gpus: i64, cpus: i64) -> Delta {
    Delta::NodeUpsert(node_facts(name, gpus, cpus))
}

pub fn node_facts(name: &str, gpus: i64, cpus: i64) -> NodeFacts {
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

pub fn group(count: u32, gpus: i64, cpus: i64) -> MemberGroup {
    MemberGroup {
        role: "worker".into(),
        count,
        request: Amounts { gpu_milli: gpus * 1000, cpu_milli: cpus * 1000, memory_bytes: 0, pods: 1 },
        gpu_models: Vec::new(),
        node_selector: BTreeMap::new(),
    }
}

pub fn in_zone(zone: &str, group: MemberGroup) -> MemberGroup {
    MemberGroup { node_selector: BTreeMap::from([("zone".into(), zone.into())]), ..group }
}

pub fn gang(name: &str, submitted: i64, members: MemberGroup) -> GangFacts {
    gang_of(name, submitted, vec![members])
}

pub fn gang_of(name: &str, submitted: i64, members: Vec<MemberGroup>) -> GangFacts {
    GangFacts {
        id: GangId(name.into()),
        name: format!("default/{name}"),
        queue: "q".into(),
        priority: 0,
        submitted: Timestamp::from_unix_ms(submitted),
        members,
    }
}

pub fn queue(name: &str, state: QueueState) -> Delta {
    Delta::QueueUpsert(QueueFacts { name: name.into(), state })
}

/// A world with an open queue `q`.
pub fn world(deltas: impl IntoIterator<Item = Delta>) -> World {
    let mut world = World::new();
    world.apply(queue("q", QueueState::Open));
    deltas.into_iter().for_each(|delta| world.apply(delta));
    world
}

pub fn plan(world: &mut World) -> Plan {
    let plan = world.plan(Timestamp::default(), ALL);
    assert!(plan.complete);
    plan
}

/// Gangs and the nodes of their slots.
pub fn started(plan: &Plan) -> Vec<(&str, Vec<&str>)> {
    plan.starts
        .iter()
        .map(|s| (s.gang.0.as_str(), s.placement.iter().map(|p| p.node.as_str()).collect()))
        .collect()
}
