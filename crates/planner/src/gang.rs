//! Gangs as the world keeps them: their place in the order and their class.

use crate::facts::{Amounts, GangFacts, GangId, MemberGroup};
use regatta_types::Timestamp;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Place in the order: the least is served first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OrderKey {
    pub(crate) priority: Reverse<i32>,
    pub(crate) submitted: Timestamp,
    pub(crate) id: GangId,
}

/// Everything on which the outcome of a try depends, apart from the order. Gangs of one class fit or don't fit alike.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ClassKey {
    pub(crate) queue: String,
    pub(crate) members: Vec<MemberGroup>,
}

#[derive(Debug, Clone)]
pub(crate) struct Gang {
    pub(crate) facts: GangFacts,
    /// Nodes of its slots, while it holds any.
    pub(crate) nodes: Option<Vec<String>>,
}

impl Gang {
    pub(crate) fn key(&self) -> OrderKey {
        order_key(&self.facts)
    }

    pub(crate) fn class(&self) -> ClassKey {
        ClassKey { queue: self.facts.queue.clone(), members: self.facts.members.clone() }
    }

    /// What it holds, by node.
    pub(crate) fn held(&self) -> BTreeMap<&str, Amounts> {
        let mut held: BTreeMap<&str, Amounts> = BTreeMap::new();
        let requests = self.facts.members.iter().flat_map(|group| (0..group.count).map(|_| group.request));
        for (node, request) in self.nodes.iter().flatten().zip(requests) {
            let entry = held.entry(node).or_default();
            *entry = entry.plus(request);
        }
        held
    }
}

pub(crate) fn order_key(facts: &GangFacts) -> OrderKey {
    OrderKey { priority: Reverse(facts.priority), submitted: facts.submitted, id: facts.id.clone() }
}

/// Members in all.
pub(crate) fn size(members: &[MemberGroup]) -> u32 {
    members.iter().fold(0, |sum, group| sum.saturating_add(group.count))
}
