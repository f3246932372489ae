//! The planner's picture of the cluster, kept up to date by deltas.

use crate::facts::{Amounts, Delta, GangFacts, GangId, NodeFacts, QueueState};
use crate::gang::{ClassKey, Gang, OrderKey};
use crate::plan::Blocked;
use crate::verdict::Verdict;
use std::collections::{BTreeMap, BTreeSet};

/// Nodes, queues, gangs, and what is known of gangs that cannot start.
#[derive(Debug, Clone, Default)]
pub struct World {
    pub(crate) nodes: BTreeMap<String, NodeFacts>,
    /// What is used of each node, whether the node is known or not.
    pub(crate) used: BTreeMap<String, Amounts>,
    pub(crate) queues: BTreeMap<String, QueueState>,
    pub(crate) gangs: BTreeMap<GangId, Gang>,
    foreign: BTreeMap<String, (String, Amounts)>,
    /// Gangs that wait, by class and in order.
    pub(crate) waiting: BTreeMap<ClassKey, BTreeSet<OrderKey>>,
    /// Classes that are proven not to fit as things are.
    pub(crate) blocked: BTreeMap<ClassKey, Blocked>,
    /// Gangs that have not been told the verdict of their class.
    pub(crate) untold: BTreeSet<GangId>,
    /// Whether anything has been taken since the reasons of blocked classes were last looked at.
    pub(crate) has_taken: bool,
    /// What each class was last told.
    pub(crate) told: BTreeMap<ClassKey, Verdict>,
}

impl World {
    /// A world without anything in it.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes in a change. Changes between two plans may come in any order that a source could have seen them in.
    pub fn apply(&mut self, delta: Delta) {
        match delta {
            Delta::NodeUpsert(node) => {
                self.nodes.insert(node.name.clone(), node);
                self.blocked.clear();
            }
            Delta::NodeRemove(name) => {
                self.nodes.remove(&name);
                self.blocked.clear();
            }
            Delta::QueueUpsert(queue) => {
                self.queues.insert(queue.name, queue.state);
                self.blocked.clear();
            }
            Delta::QueueRemove(name) => {
                self.queues.remove(&name);
                self.blocked.clear();
            }
            Delta::GangUpsert(facts) => self.gang_seen(facts),
            Delta::GangRemove(id) => self.gang_gone(&id),
            Delta::GangPlaced { id, nodes } => self.place(&id, nodes),
            Delta::GangUnplaced(id) => self.unplace(&id),
            Delta::ForeignUpsert { id, node, amounts } => {
                self.foreign_gone(&id);
                self.take(&node, amounts);
                self.foreign.insert(id, (node, amounts));
            }
            Delta::ForeignRemove { id } => self.foreign_gone(&id),
        }
    }

    fn gang_seen(&mut self, facts: GangFacts) {
        let nodes = self.gangs.get(&facts.id).and_then(|gang| gang.nodes.clone());
        let id = facts.id.clone();
        self.gang_gone(&id);
        self.gangs.insert(id.clone(), Gang { facts, nodes: None });
        match nodes {
            Some(nodes) => self.place(&id, nodes),
            None => self.wait(&id),
        }
    }

    fn gang_gone(&mut self, id: &GangId) {
        self.stop_waiting(id);
        self.give_back(id);
        self.gangs.remove(id);
    }

    fn wait(&mut self, id: &GangId) {
        let Some(gang) = self.gangs.get(id) else { return };
        let (class, key) = (gang.class(), gang.key());
        // One that comes before all of its class may pass where the class has to let others pass.
        if self.blocked.get(&class).is_some_and(|blocked| key < blocked.head) {
            self.blocked.remove(&class);
        }
        self.waiting.entry(class).or_default().insert(key);
        self.untold.insert(id.clone());
    }

    fn stop_waiting(&mut self, id: &GangId) {
        let Some(gang) = self.gangs.get(id) else { return };
        let (class, key) = (gang.class(), gang.key());
        let Some(keys) = self.waiting.get_mut(&class) else { return };
        if !keys.remove(&key) {
            return;
        }
        self.untold.remove(id);
        if keys.is_empty() {
            self.waiting.remove(&class);
            self.told.remove(&class);
        }
        if self.blocked.get(&class).is_some_and(|blocked| blocked.head == key) {
            // What was kept for it is free for others.
            self.blocked.clear();
        }
    }

    pub(crate) fn place(&mut self, id: &GangId, nodes: Vec<String>) {
        if self.gangs.get(id).is_some_and(|gang| gang.nodes.as_ref() == Some(&nodes)) {
            return;
        }
        self.stop_waiting(id);
        self.give_back(id);
        let Some(gang) = self.gangs.get_mut(id) else { return };
        gang.nodes = Some(nodes);
        let held: Vec<(String, Amounts)> =
            gang.held().into_iter().map(|(node, amounts)| (node.to_owned(), amounts)).collect();
        for (node, amounts) in held {
            self.take(&node, amounts);
        }
    }

    fn unplace(&mut self, id: &GangId) {
        if self.gangs.get(id).is_some_and(|gang| gang.nodes.is_some()) {
            self.give_back(id);
            self.wait(id);
        }
    }

    fn give_back(&mut self, id: &GangId) {
        let Some(gang) = self.gangs.get_mut(id) else { return };
        if gang.nodes.is_none() {
            return;
        }
        let held: Vec<(String, Amounts)> =
            gang.held().into_iter().map(|(node, amounts)| (node.to_owned(), amounts)).collect();
        gang.nodes = None;
        for (node, amounts) in held {
            self.release(&node, amounts);
        }
    }

    fn foreign_gone(&mut self, id: &str) {
        if let Some((node, amounts)) = self.foreign.remove(id) {
            self.release(&node, amounts);
        }
    }

    fn take(&mut self, node: &str, amounts: Amounts) {
        let used = self.used.entry(node.to_owned()).or_default();
        *used = used.plus(amounts);
        self.has_taken = true;
    }

    fn release(&mut self, node: &str, amounts: Amounts) {
        if let Some(used) = self.used.get_mut(node) {
            *used = used.minus(amounts);
            if *used == Amounts::default() {
                self.used.remove(node);
            }
        }
        self.blocked.clear();
    }

    /// What is used of a node.
    pub fn used_on(&self, node: &str) -> Amounts {
        self.used.get(node).copied().unwrap_or_default()
    }

    /// How many gangs wait.
    pub fn waiting_count(&self) -> usize {
        self.waiting.values().map(BTreeSet::len).sum()
    }
}
