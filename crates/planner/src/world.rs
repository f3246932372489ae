//! The planner's picture of the cluster, kept up to date by deltas.

use crate::facts::{Amounts, Delta, GangFacts, GangId, NodeFacts, QueueState};
use crate::fit::Space;
use crate::gang::{Class, ClassIx, ClassKey, ClassTable, Gang, OrderKey};
use crate::nodes::NodeIx;
use std::collections::BTreeMap;
use std::ops::Bound;

/// Who holds something on a node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Holder {
    Gang(GangId),
    /// Somebody who is not planned here, by identity.
    Foreign(String),
}

/// Counters that rise when something changes on which proofs rest.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Versions {
    /// Which nodes there are, and what they have.
    pub(crate) nodes: u64,
    /// Room was made somewhere.
    pub(crate) room: u64,
    /// Anything at all on which a start can depend.
    pub(crate) state: u64,
}

impl Versions {
    fn nodes_changed(&mut self) {
        self.nodes += 1;
        self.room_made();
    }

    fn room_made(&mut self) {
        self.room += 1;
        self.state += 1;
    }

    fn state_changed(&mut self) {
        self.state += 1;
    }
}

/// Nodes, queues, gangs, and what is known of gangs that cannot start.
#[derive(Debug, Clone, Default)]
pub struct World {
    pub(crate) space: Space,
    pub(crate) queues: BTreeMap<String, QueueState>,
    pub(crate) gangs: BTreeMap<GangId, Gang>,
    /// What each holder has on each node.
    pub(crate) holders: BTreeMap<(NodeIx, Holder), Amounts>,
    foreign: BTreeMap<String, NodeIx>,
    /// Placements of gangs that have not been seen yet.
    early: BTreeMap<GangId, Vec<String>>,
    pub(crate) classes: ClassTable,
    /// The first gang of each class, in order.
    pub(crate) heads: BTreeMap<OrderKey, ClassIx>,
    pub(crate) versions: Versions,
}

impl World {
    /// A world without anything in it.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes in a change. Changes of different things between two plans may come in any order.
    pub fn apply(&mut self, delta: Delta) {
        match delta {
            Delta::NodeUpsert(node) => self.node_seen(node),
            Delta::NodeRemove(name) => {
                self.space.nodes.remove(&name);
                self.versions.nodes_changed();
            }
            Delta::QueueUpsert(queue) => {
                self.queues.insert(queue.name, queue.state);
                self.versions.state_changed();
            }
            Delta::QueueRemove(name) => {
                self.queues.remove(&name);
                self.versions.state_changed();
            }
            Delta::GangUpsert(facts) => self.gang_seen(facts),
            Delta::GangRemove(id) => {
                self.early.remove(&id);
                self.stop_waiting(&id);
                self.give_back(&id);
                self.gangs.remove(&id);
            }
            Delta::GangPlaced { id, nodes } => self.placed(&id, nodes),
            Delta::GangUnplaced(id) => {
                self.early.remove(&id);
                if self.give_back(&id) {
                    self.wait(&id);
                }
            }
            Delta::ForeignUpsert { id, node, amounts } => {
                self.foreign_gone(&id);
                let node = self.space.nodes.intern(&node);
                self.take(node, Holder::Foreign(id.clone()), amounts);
                self.foreign.insert(id, node);
            }
            Delta::ForeignRemove { id } => self.foreign_gone(&id),
        }
    }

    fn node_seen(&mut self, node: NodeFacts) {
        if self.space.nodes.facts_of(&node.name) != Some(&node) {
            self.space.nodes.upsert(node);
            self.versions.nodes_changed();
        }
    }

    fn gang_seen(&mut self, facts: GangFacts) {
        if self.gangs.get(&facts.id).is_some_and(|gang| gang.facts == facts) {
            return;
        }
        let id = facts.id.clone();
        let held = self.gangs.get_mut(&id).and_then(|gang| gang.nodes.clone());
        let held = held.map(|nodes| nodes.iter().map(|ix| self.space.nodes.name(*ix).to_owned()).collect());
        self.stop_waiting(&id);
        self.give_back(&id);
        self.gangs.insert(id.clone(), Gang { facts, class: None, nodes: None });
        match self.early.remove(&id).or(held) {
            Some(nodes) => self.placed(&id, nodes),
            None => self.wait(&id),
        }
    }

    fn wait(&mut self, id: &GangId) {
        let Some(facts) = self.gangs.get(id).map(|gang| &gang.facts) else { return };
        let order = OrderKey::of(facts);
        let key = ClassKey { queue: facts.queue.clone(), members: facts.members.clone() };
        let ix = match self.classes.find(&key) {
            Some(ix) => ix,
            None => {
                let groups = self.space.groups(&key.members);
                self.classes.insert(Class::new(key, groups))
            }
        };
        let class = self.classes.get_mut(ix);
        let old_head = class.waiting.first().cloned();
        class.untold.insert(order.clone());
        class.waiting.insert(order.clone());
        if old_head.as_ref().is_none_or(|head| order < *head) {
            if let Some(head) = old_head {
                self.heads.remove(&head);
                // It is one of the others now, and may have been told otherwise.
                class.untold.insert(head);
            }
            self.heads.insert(order, ix);
            self.versions.state_changed();
        }
        if let Some(gang) = self.gangs.get_mut(id) {
            gang.class = Some(ix);
        }
    }

    fn stop_waiting(&mut self, id: &GangId) {
        let Some(gang) = self.gangs.get_mut(id) else { return };
        let Some(ix) = gang.class.take() else { return };
        let order = OrderKey::of(&gang.facts);
        let class = self.classes.get_mut(ix);
        class.untold.remove(&order);
        class.waiting.remove(&order);
        if self.heads.remove(&order).is_some() {
            self.versions.state_changed();
            match class.waiting.first() {
                Some(next) => {
                    self.heads.insert(next.clone(), ix);
                    class.told_head = class.told_others;
                }
                None => {
                    if let Some(class) = self.classes.remove(ix) {
                        self.space.forget(&class.groups);
                    }
                }
            }
        }
    }

    fn placed(&mut self, id: &GangId, mut nodes: Vec<String>) {
        let Some(gang) = self.gangs.get(id) else {
            self.early.insert(id.clone(), nodes);
            return;
        };
        nodes.truncate(usize::try_from(gang.facts.size()).unwrap_or(usize::MAX));
        let held = gang.nodes.iter().flatten().map(|ix| self.space.nodes.name(*ix));
        if gang.nodes.is_some() && held.eq(nodes.iter().map(String::as_str)) {
            return;
        }
        self.stop_waiting(id);
        self.give_back(id);
        let nodes = nodes.iter().map(|name| self.space.nodes.intern(name)).collect();
        self.place(id, nodes);
    }

    /// Books the nodes of a gang that holds none: one for each slot, members in order.
    pub(crate) fn place(&mut self, id: &GangId, nodes: Vec<NodeIx>) {
        self.stop_waiting(id);
        let Some(gang) = self.gangs.get_mut(id) else { return };
        gang.nodes = Some(nodes);
        for (node, amounts) in gang.held() {
            self.take(node, Holder::Gang(id.clone()), amounts);
        }
    }

    /// Says whether it had anything to give.
    fn give_back(&mut self, id: &GangId) -> bool {
        let Some(gang) = self.gangs.get_mut(id).filter(|gang| gang.nodes.is_some()) else { return false };
        let held = gang.held();
        gang.nodes = None;
        held.into_keys().for_each(|node| self.release(node, &Holder::Gang(id.clone())));
        true
    }

    fn foreign_gone(&mut self, id: &str) {
        if let Some(node) = self.foreign.remove(id) {
            self.release(node, &Holder::Foreign(id.to_owned()));
        }
    }

    /// What one that is not planned here holds, and where.
    pub(crate) fn foreign_on(&self, id: &str) -> Option<(NodeIx, Amounts)> {
        let node = *self.foreign.get(id)?;
        Some((node, *self.holders.get(&(node, Holder::Foreign(id.to_owned())))?))
    }

    fn take(&mut self, node: NodeIx, holder: Holder, amounts: Amounts) {
        self.space.nodes.take(node, amounts);
        self.holders.insert((node, holder), amounts);
        self.versions.state_changed();
    }

    fn release(&mut self, node: NodeIx, holder: &Holder) {
        if let Some(amounts) = self.holders.remove(&(node, holder.clone())) {
            self.space.nodes.release(node, amounts);
            self.versions.room_made();
        }
    }

    /// The first class whose head comes after `key`, in order.
    pub(crate) fn next_head(&self, key: Option<&OrderKey>) -> Option<(OrderKey, ClassIx)> {
        let start = key.map_or(Bound::Unbounded, Bound::Excluded);
        self.heads.range((start, Bound::Unbounded)).next().map(|(key, ix)| (key.clone(), *ix))
    }

    /// What is used of a node.
    pub fn used_on(&self, node: &str) -> Amounts {
        self.space.nodes.used_on(node)
    }

    /// How many gangs wait.
    pub fn waiting_count(&self) -> usize {
        self.heads.values().map(|ix| self.classes.get(*ix).waiting.len()).sum()
    }
}
