//! Nodes by how close a group is to fitting on them.

use crate::facts::Amounts;
use crate::nodes::{Node, NodeIx, NodeTable};
use crate::shapes::{ShapeKey, to_count};
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A node on which members could be if what is in the way ended. The least is the best: where most members fit now, then
/// where least is missing for all that it could hold, then by name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Candidate {
    now: Reverse<u32>,
    missing: Amounts,
    name: Arc<str>,
    pub(crate) ix: NodeIx,
    /// Members that it could hold, at most as many as the group has.
    pub(crate) cap: u32,
}

impl Candidate {
    /// The node for a group of `count` members, beside what others have of it; none when it could not hold one.
    pub(crate) fn new(key: &ShapeKey, count: u32, ix: NodeIx, node: &Node, others: Amounts) -> Option<Self> {
        let facts = node.open().filter(|facts| key.is_eligible(facts))?;
        let room = facts.allocatable.minus(others);
        let cap = to_count(room.holds(key.request)).min(count);
        if cap == 0 {
            return None;
        }
        let free = room.minus(node.used);
        let now = to_count(free.holds(key.request)).min(cap);
        let missing = key.request.times(i64::from(cap)).minus(free).upper(Amounts::default());
        let missing = missing.only_asked(key.request);
        Some(Self { now: Reverse(now), missing, name: Arc::clone(&node.name), ix, cap })
    }
}

/// All candidates for groups of one shape and size. Follows the log of the nodes.
#[derive(Debug, Clone, Default)]
pub(crate) struct MeritIndex {
    cursor: Option<u64>,
    best_first: BTreeSet<Candidate>,
    /// The version that was looked at of each node, and what came of it.
    by_node: Vec<(u64, Option<Candidate>)>,
}

impl MeritIndex {
    /// Takes in what has changed since the last time. Returns the number of nodes looked at.
    pub(crate) fn follow(&mut self, key: &ShapeKey, count: u32, nodes: &NodeTable) -> u64 {
        self.by_node.resize(nodes.slot_count(), (0, None));
        let cursor = self.cursor.replace(nodes.cursor());
        nodes.follow(cursor, |ix| {
            let (seen, known) = &mut self.by_node[ix.at()];
            if std::mem::replace(seen, nodes.version(ix)) == nodes.version(ix) {
                return;
            }
            let candidate =
                nodes.get(ix).and_then(|node| Candidate::new(key, count, ix, node, Amounts::default()));
            if let Some(old) = std::mem::replace(known, candidate.clone()) {
                self.best_first.remove(&old);
            }
            self.best_first.extend(candidate);
        })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Candidate> {
        self.best_first.iter()
    }
}
