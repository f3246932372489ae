//! Why a gang waits: a typed reason, the numbers, and a change after which it would start.

use crate::explain::have_ended;
use crate::facts::{Amounts, GangFacts, GangId, MemberGroup, NodeFacts, bytes, thousandths};
use crate::fit::Space;
use crate::shapes::ShapeKey;
use regatta_types::reason::WaitReason;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fmt;

/// How many names of what exists a refusal lists.
const NAMES_LISTED_MAX: usize = 5;

/// One resource: how to read it, how to show it, and what people call it.
type Unit = (fn(&Amounts) -> i64, fn(i64) -> String, &'static str);

/// Why a gang waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// One word.
    pub reason: WaitReason,
    /// The numbers, in a sentence, and what would change it.
    pub message: String,
    /// The numbers.
    pub numbers: Numbers,
    /// What would change it.
    pub until: Until,
}

/// The numbers behind a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Numbers {
    /// Members that must start together.
    pub members: u32,
    /// Members that fit on what is free.
    pub fitting: u32,
    /// What is free on the nodes that would do, of what the members ask for.
    pub free: Amounts,
}

/// What must change. Except for queues: after that the gang starts, all else as it is and nobody waiting before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Until {
    /// The queue is created; whether there is room then is another question.
    QueueExists,
    /// The queue is opened; whether there is room then is another question.
    QueueOpens,
    /// These have ended.
    HaveEnded {
        /// Gangs that run.
        gangs: BTreeSet<GangId>,
        /// Others, by identity.
        foreign: BTreeSet<String>,
    },
    /// Nobody waits before it; or its priority is above this one.
    IsFirst {
        /// Priority of the gang that is first.
        priority: i32,
    },
    /// This many more nodes like this one are there, empty, and nothing else runs on the others.
    NodesAdded {
        /// How many.
        count: u32,
        /// Like which.
        like: String,
    },
    /// Nodes of another kind, or more of them than can be told, are added.
    OtherNodes,
}

/// More than any node could ever hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImpossibleVerdict {
    /// Role whose members are too large.
    pub role: String,
    /// What is wrong, with the numbers and the fix.
    pub problem: String,
}

impl fmt::Display for ImpossibleVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "role {}: {}", self.role, self.problem)
    }
}

pub(crate) fn no_queue<'a>(queue: &str, queues: impl Iterator<Item = &'a String>, members: u32) -> Verdict {
    let known: Vec<&str> = queues.take(NAMES_LISTED_MAX).map(String::as_str).collect();
    let known = if known.is_empty() {
        "there is none".to_owned()
    } else {
        format!("there are: {}", known.join(", "))
    };
    Verdict {
        reason: WaitReason::QueueNotFound,
        message: format!("queue {queue:?} does not exist ({known}); it waits until the queue is created"),
        numbers: Numbers { members, ..Numbers::default() },
        until: Until::QueueExists,
    }
}

pub(crate) fn stopped(queue: &str, members: u32) -> Verdict {
    Verdict {
        reason: WaitReason::QueueStopped,
        message: format!("queue {queue} is stopped; its jobs wait until it is opened (spec.stopped: false)"),
        numbers: Numbers { members, ..Numbers::default() },
        until: Until::QueueOpens,
    }
}

pub(crate) fn behind(first: &GangFacts, numbers: Numbers) -> Verdict {
    let GangFacts { name, priority, submitted, .. } = first;
    Verdict {
        reason: WaitReason::BehindOthers,
        message: format!(
            "what it needs is free, but kept for gangs that come first, beginning with {name} (priority {priority}, \
             submitted {submitted}); with a priority above {priority} it would start now"
        ),
        numbers,
        until: Until::IsFirst { priority: *priority },
    }
}

pub(crate) fn no_such_node(impossible: &ImpossibleVerdict, numbers: Numbers) -> Verdict {
    Verdict {
        reason: WaitReason::NoSuchNode,
        message: format!("{impossible}; it starts once such a node is added"),
        numbers,
        until: Until::OtherNodes,
    }
}

/// What a gang needs, what of it fits and what is free.
pub(crate) fn insufficient(
    members: &[MemberGroup],
    numbers: Numbers,
    before: Option<&GangFacts>,
    until: Until,
    names: &[&str],
    nodes: NodeCounts,
) -> Verdict {
    let wants: Vec<String> = members
        .iter()
        .map(|group| format!("{} × ({}) for {}", group.count, group.request, group.role))
        .collect();
    let Numbers { members: all, fitting, free } = numbers;
    let asked = members.iter().fold(Amounts::default(), |sum, group| sum.upper(group.request));
    let free = free.told_of(asked);
    let helps = match &until {
        Until::HaveEnded { foreign, .. } => {
            let ended = have_ended(names, foreign.len());
            match before {
                Some(first) => {
                    format!("once nobody is before it ({} is first), it starts when {ended}", first.name)
                }
                None => format!("it starts when {ended}"),
            }
        }
        until => {
            let more = match until {
                Until::NodesAdded { count: 1, like } => format!("1 more node like {like} would do"),
                Until::NodesAdded { count, like } => format!("{count} more nodes like {like} would do"),
                _ => "it starts when nodes are added".to_owned(),
            };
            format!("even with nothing else running {nodes}; {more}")
        }
    };
    Verdict {
        reason: WaitReason::InsufficientCapacity,
        message: format!(
            "needs {}; {fitting} of {all} members fit now ({free} free); {helps}",
            wants.join(" + ")
        ),
        numbers,
        until,
    }
}

/// How many nodes there are, how many of them are closed, and how many of the members they hold when empty.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct NodeCounts {
    pub(crate) open: usize,
    pub(crate) closed: usize,
    pub(crate) holding: u64,
    pub(crate) members: u32,
}

impl fmt::Display for NodeCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { open, closed, holding, members } = self;
        let plural = if *open == 1 { "node" } else { "nodes" };
        if *holding < u64::from(*members) {
            write!(f, "only {holding} of {members} members fit on the {open} {plural} there are")?;
        } else {
            write!(f, "no way was found to place all roles on the {open} {plural} there are")?;
        }
        match closed {
            0 => Ok(()),
            closed => write!(f, " ({closed} more take no new work now)"),
        }
    }
}

impl Space {
    /// Why no node that is known could hold one member even when empty, and even if it takes no new work now.
    pub(crate) fn impossible(&self, group: &MemberGroup) -> Option<ImpossibleVerdict> {
        let shapes = ShapeKey::of(group);
        let known = self.nodes.known().map(|(_, _, facts)| facts);
        let eligible: Vec<&NodeFacts> =
            known.filter(|facts| shapes.iter().any(|shape| shape.is_eligible(facts))).collect();
        if eligible.iter().any(|node| node.allocatable.covers(group.request)) {
            return None;
        }
        let problem =
            if eligible.is_empty() { self.none_eligible(group) } else { too_large(&eligible, group.request) };
        Some(ImpossibleVerdict { role: group.role.clone(), problem })
    }

    fn none_eligible(&self, group: &MemberGroup) -> String {
        let known = || self.nodes.known().map(|(_, _, facts)| facts);
        let labels: Vec<String> =
            group.node_selector.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let labelled = |facts: &&NodeFacts| {
            group.node_selector.iter().all(|(key, value)| facts.labels.get(key) == Some(value))
        };
        if known().next().is_none() {
            return "there is no node".to_owned();
        }
        if known().all(|facts| !labelled(&facts)) {
            return format!("no node of {} has the labels {}", known().count(), labels.join(", "));
        }
        let models: BTreeSet<&str> =
            known().filter(labelled).filter_map(|facts| facts.gpu_model.as_deref()).collect();
        let there = if models.is_empty() {
            "no node has a known model".to_owned()
        } else {
            format!("there are: {}", models.into_iter().collect::<Vec<_>>().join(", "))
        };
        let with =
            if labels.is_empty() { String::new() } else { format!(" with the labels {}", labels.join(", ")) };
        format!("no node{with} has a GPU of model {} ({there})", group.gpu_models.join(" or "))
    }
}

/// Which resource is asked for beyond what any of these nodes has, even when empty.
fn too_large(nodes: &[&NodeFacts], request: Amounts) -> String {
    let largest = |of: fn(&Amounts) -> i64| {
        nodes
            .iter()
            .max_by_key(|node| (of(&node.allocatable), Reverse(&node.name)))
            .map(|node| (of(&node.allocatable), node.name.as_str()))
    };
    let units: [Unit; 3] = [
        (|a| a.gpu_milli, thousandths, "GPUs"),
        (|a| a.cpu_milli, thousandths, "CPU"),
        (|a| a.memory_bytes, bytes, "memory"),
    ];
    for (of, show, unit) in units {
        if let Some((most, node)) = largest(of)
            && of(&request) > most
        {
            let want = show(of(&request));
            if most <= 0 {
                return format!("asks for {want} {unit} on each node, and no node that would do has any");
            }
            let most = show(most);
            return format!(
                "asks for {want} {unit} on each node, and the largest node, {node}, has {most}; ask for at most {most} per node, on more nodes"
            );
        }
    }
    let largest = nodes.iter().max_by_key(|node| (node.allocatable, Reverse(&node.name)));
    format!(
        "asks for ({request}) on each node, and no single node has all of it; the largest, {}, has ({})",
        largest.map_or("", |node| &node.name),
        largest.map(|node| node.allocatable).unwrap_or_default()
    )
}
