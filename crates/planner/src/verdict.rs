//! Why a gang waits: a typed reason, the numbers, and what would change it.

use crate::facts::{Amounts, GangFacts, MemberGroup, NodeFacts, Schedulable, bytes, thousandths};
use crate::fit::{Space, is_eligible_for_any};
use crate::gang::size;
use crate::world::World;
use regatta_types::reason::WaitReason;
use std::cmp::Reverse;
use std::fmt;

/// How many running gangs a counterfactual names at most.
const BLOCKERS_NAMED_MAX: usize = 3;
/// How many running gangs a counterfactual thinks away at most.
const BLOCKERS_TRIED_MAX: usize = 16;
/// How many names of what exists a refusal lists.
const NAMES_LISTED_MAX: usize = 5;

/// A gang that runs on useful nodes: what it holds there in all, its name, and the same by node.
type Blocker<'a> = (Reverse<Amounts>, &'a str, Vec<(&'a str, Amounts)>);
/// One resource: how to read it, how to show it, and what people call it.
type Unit = (fn(&Amounts) -> i64, fn(i64) -> String, &'static str);

/// Why a gang waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// One word.
    pub reason: WaitReason,
    /// The numbers, in a sentence, and what would change it.
    pub message: String,
}

impl Verdict {
    /// Whether it waits for room that later gangs must not take.
    pub(crate) fn waits_for_room(&self) -> bool {
        matches!(self.reason, WaitReason::InsufficientCapacity | WaitReason::BehindOthers)
    }
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

pub(crate) fn no_queue<'a>(queue: &str, queues: impl Iterator<Item = &'a String>) -> Verdict {
    let known: Vec<&str> = queues.take(NAMES_LISTED_MAX).map(String::as_str).collect();
    let known = if known.is_empty() {
        "there is none".to_owned()
    } else {
        format!("there are: {}", known.join(", "))
    };
    Verdict {
        reason: WaitReason::QueueNotFound,
        message: format!("queue {queue:?} does not exist ({known}); it starts once the queue is created"),
    }
}

pub(crate) fn stopped(queue: &str) -> Verdict {
    Verdict {
        reason: WaitReason::QueueStopped,
        message: format!("queue {queue} is stopped; its jobs start once it is opened (spec.stopped: false)"),
    }
}

pub(crate) fn behind(first: &GangFacts) -> Verdict {
    Verdict {
        reason: WaitReason::BehindOthers,
        message: format!(
            "what it needs is free, but {} is served first (priority {}, submitted {})",
            first.name, first.priority, first.submitted
        ),
    }
}

impl World {
    /// Whether every member could be placed on some node if that node were empty; cordoned nodes count.
    ///
    /// # Errors
    /// What is too large, with the numbers.
    pub fn fits_ever(&self, gang: &GangFacts) -> Result<(), ImpossibleVerdict> {
        match gang.members.iter().find_map(|group| self.impossible(group)) {
            Some(verdict) => Err(verdict),
            None => Ok(()),
        }
    }

    fn impossible(&self, group: &MemberGroup) -> Option<ImpossibleVerdict> {
        let eligible: Vec<&NodeFacts> =
            self.nodes.values().filter(|node| is_eligible_for_any(node, group)).collect();
        if eligible.iter().any(|node| node.allocatable.covers(group.request)) {
            return None;
        }
        let problem =
            if eligible.is_empty() { self.no_such_node(group) } else { too_large(&eligible, group.request) };
        Some(ImpossibleVerdict { role: group.role.clone(), problem })
    }

    fn no_such_node(&self, group: &MemberGroup) -> String {
        if !group.gpu_models.is_empty() {
            let mut models: Vec<&str> =
                self.nodes.values().filter_map(|node| node.gpu_model.as_deref()).collect();
            models.sort_unstable();
            models.dedup();
            let there = if models.is_empty() {
                "no node has a known model".to_owned()
            } else {
                format!("there are: {}", models.join(", "))
            };
            return format!("no node has a GPU of model {} ({there})", group.gpu_models.join(" or "));
        }
        let labels: Vec<String> =
            group.node_selector.iter().map(|(key, value)| format!("{key}={value}")).collect();
        format!("no node of {} has the labels {}", self.nodes.len(), labels.join(", "))
    }

    /// Why a gang does not fit as things are. `fitting` members would fit.
    pub(crate) fn insufficient(&self, members: &[MemberGroup], fitting: u32, steps: &mut u64) -> Verdict {
        if let Some(verdict) = members.iter().find_map(|group| self.impossible(group)) {
            let message = format!("{verdict}; it starts once such a node is added");
            return Verdict { reason: WaitReason::NoSuchNode, message };
        }
        let all = size(members);
        let wants: Vec<String> = members
            .iter()
            .map(|group| format!("{} × ({}) for {}", group.count, group.request, group.role))
            .collect();
        let free = self.free_for(members);
        let now = format!("{fitting} of {all} members fit now ({free} free)");
        let message = format!("needs {}; {now}; {}", wants.join(" + "), self.what_would_help(members, steps));
        Verdict { reason: WaitReason::InsufficientCapacity, message }
    }

    fn free_for(&self, members: &[MemberGroup]) -> Amounts {
        let open = self.nodes.values().filter(|node| node.schedulable == Schedulable::Yes);
        let useful = open.filter(|node| members.iter().any(|group| is_eligible_for_any(node, group)));
        let free =
            useful.map(|node| node.allocatable.minus(self.used_on(&node.name)).upper(Amounts::default()));
        let mut sum = free.fold(Amounts::default(), Amounts::plus);
        // What nobody asks for would only distract.
        let asked = members.iter().fold(Amounts::default(), |sum, group| sum.upper(group.request));
        if asked.gpu_milli > 0 {
            sum = Amounts { gpu_milli: sum.gpu_milli, pods: sum.pods, ..Amounts::default() };
        } else if asked.cpu_milli == 0 {
            sum.cpu_milli = 0;
        }
        if asked.memory_bytes == 0 {
            sum.memory_bytes = 0;
        }
        sum
    }

    /// A change after which the gang fits, proved by trying it.
    fn what_would_help(&self, members: &[MemberGroup], steps: &mut u64) -> String {
        let useful = |node: &str| {
            self.nodes
                .get(node)
                .is_some_and(|node| members.iter().any(|group| is_eligible_for_any(node, group)))
        };
        let mut blockers: Vec<Blocker<'_>> = Vec::new();
        for gang in self.gangs.values().filter(|gang| gang.nodes.is_some()) {
            let held: Vec<(&str, Amounts)> =
                gang.held().into_iter().filter(|(node, _)| useful(node)).collect();
            if !held.is_empty() {
                let sum = held.iter().fold(Amounts::default(), |sum, (_, amounts)| sum.plus(*amounts));
                blockers.push((Reverse(sum), &gang.facts.name, held));
            }
        }
        blockers.sort_unstable();
        let mut space = Space::new(&self.nodes, &self.used);
        let mut named = Vec::new();
        for (_, name, held) in blockers.iter().take(BLOCKERS_TRIED_MAX) {
            for (node, amounts) in held {
                let entry = space.returned.entry((*node).to_owned()).or_default();
                *entry = entry.plus(*amounts);
            }
            named.push(*name);
            let fitted = space.fit(members);
            *steps = steps.saturating_add(space.steps);
            if fitted.is_ok() {
                return match named.len() {
                    n if n <= BLOCKERS_NAMED_MAX => format!("it starts when {} ended", have(&named)),
                    n => format!(
                        "it starts when {} and {} more have ended",
                        named[..BLOCKERS_NAMED_MAX].join(", "),
                        n - BLOCKERS_NAMED_MAX
                    ),
                };
            }
        }
        let empty = std::collections::BTreeMap::new();
        let mut bare = Space::new(&self.nodes, &empty);
        let fitted = bare.fit(members);
        *steps = steps.saturating_add(bare.steps);
        match fitted {
            Ok(_) => format!("it starts when enough of the {} gangs that run have ended", blockers.len()),
            Err(most) => {
                let nodes = self.nodes.values().filter(|node| node.schedulable == Schedulable::Yes).count();
                format!(
                    "even with nothing else running only {most} of {} fit on the {nodes} nodes there are; it starts when nodes are added",
                    size(members)
                )
            }
        }
    }
}

fn have(names: &[&str]) -> String {
    match names {
        [one] => format!("{one} has"),
        [rest @ .., last] => format!("{} and {last} have", rest.join(", ")),
        [] => "nothing has".to_owned(),
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
            let (want, most) = (show(of(&request)), show(most));
            return format!(
                "asks for {want} {unit} on each node, and the largest node, {node}, has {most}; ask for at most {most} per node, on more nodes"
            );
        }
    }
    format!(
        "asks for ({request}) on each node, and no single node has all of it; the largest has ({})",
        nodes.iter().map(|node| node.allocatable).max().unwrap_or_default()
    )
}
