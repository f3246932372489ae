//! The nodes: what they have, what is used of them, and a log of what changed.
//!
//! Knows amounts only, not who uses them. Indexes over the nodes follow the log, so that they cost what has changed.

use crate::facts::{Amounts, NodeFacts, Schedulable};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Entries that the log keeps at most, in times the number of nodes; an index that is further behind is rebuilt.
const LOG_TIMES_NODES_MAX: usize = 4;
/// Entries that the log keeps at least.
const LOG_MIN: usize = 1024;

/// A place in the table of nodes. Says nothing about order: ties are decided by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeIx(u32);

impl NodeIx {
    pub(crate) fn at(self) -> usize {
        usize::try_from(self.0).expect("invariant: there are fewer nodes than addresses")
    }
}

/// A point in the log of what was tried.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark(usize);

#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) name: Arc<str>,
    /// None while something is booked on a node that is not known, or not known any more.
    pub(crate) facts: Option<Arc<NodeFacts>>,
    pub(crate) used: Amounts,
    /// How many hold something here.
    holders: u32,
    /// Differs whenever anything about it differs; the same again after a try.
    version: u64,
}

impl Node {
    /// What new gangs could have of it if nothing were used; none when they may not be placed here at all.
    pub(crate) fn open(&self) -> Option<&NodeFacts> {
        self.facts.as_deref().filter(|facts| facts.schedulable == Schedulable::Yes)
    }

    /// What it has, less what is used; below zero where it is over-committed.
    pub(crate) fn free(&self) -> Amounts {
        self.facts.as_ref().map_or(Amounts::default(), |facts| facts.allocatable).minus(self.used)
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct NodeTable {
    by_name: BTreeMap<Arc<str>, NodeIx>,
    slots: Vec<Option<Node>>,
    vacant: Vec<NodeIx>,
    log: Vec<NodeIx>,
    /// Changes before the first one in `log`.
    log_base: u64,
    last_version: u64,
    /// What was used, and the version, before each change of the tries under way.
    undo: Vec<(NodeIx, Amounts, u64)>,
}

impl NodeTable {
    pub(crate) fn upsert(&mut self, facts: NodeFacts) {
        let ix = self.intern(&facts.name);
        if let Some(node) = self.slots[ix.at()].as_mut() {
            node.facts = Some(Arc::new(facts));
        }
        self.changed(ix);
    }

    pub(crate) fn remove(&mut self, name: &str) {
        let Some(&ix) = self.by_name.get(name) else { return };
        if let Some(node) = self.slots[ix.at()].as_mut() {
            node.facts = None;
        }
        self.changed(ix);
        self.vacate_if_unused(ix);
    }

    pub(crate) fn facts_of(&self, name: &str) -> Option<&NodeFacts> {
        self.by_name.get(name).and_then(|ix| self.get(*ix)).and_then(|node| node.facts.as_deref())
    }

    pub(crate) fn intern(&mut self, name: &str) -> NodeIx {
        if let Some(ix) = self.by_name.get(name) {
            return *ix;
        }
        let ix = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(None);
            NodeIx(u32::try_from(self.slots.len() - 1).expect("invariant: nodes are counted in 32 bits"))
        });
        let name: Arc<str> = name.into();
        self.by_name.insert(Arc::clone(&name), ix);
        let version = self.next_version();
        self.slots[ix.at()] = Some(Node { name, facts: None, used: Amounts::default(), holders: 0, version });
        ix
    }

    fn vacate_if_unused(&mut self, ix: NodeIx) {
        let Some(node) = self.get(ix).filter(|node| node.facts.is_none() && node.holders == 0) else {
            return;
        };
        let name = Arc::clone(&node.name);
        self.by_name.remove(&name);
        self.slots[ix.at()] = None;
        self.vacant.push(ix);
        self.changed(ix);
    }

    pub(crate) fn get(&self, ix: NodeIx) -> Option<&Node> {
        self.slots.get(ix.at()).and_then(Option::as_ref)
    }

    pub(crate) fn name(&self, ix: NodeIx) -> &str {
        self.get(ix).map_or("", |node| &node.name)
    }

    pub(crate) fn used_on(&self, name: &str) -> Amounts {
        self.by_name.get(name).and_then(|ix| self.get(*ix)).map_or(Amounts::default(), |node| node.used)
    }

    /// Every node that is known, by name.
    pub(crate) fn known(&self) -> impl Iterator<Item = (NodeIx, &Node, &NodeFacts)> {
        let slots = self.by_name.values().filter_map(|ix| Some((*ix, self.get(*ix)?)));
        slots.filter_map(|(ix, node)| Some((ix, node, node.facts.as_deref()?)))
    }

    pub(crate) fn slot_count(&self) -> usize {
        self.slots.len()
    }

    /// Books what one holder takes.
    pub(crate) fn take(&mut self, ix: NodeIx, amounts: Amounts) {
        if let Some(node) = self.slots[ix.at()].as_mut() {
            node.used = node.used.plus(amounts);
            node.holders += 1;
        }
        self.changed(ix);
    }

    /// Takes back what one holder has booked.
    pub(crate) fn release(&mut self, ix: NodeIx, amounts: Amounts) {
        if let Some(node) = self.slots[ix.at()].as_mut() {
            node.used = node.used.minus(amounts);
            node.holders = node.holders.saturating_sub(1);
        }
        self.changed(ix);
        self.vacate_if_unused(ix);
    }

    /// Where to roll back to.
    pub(crate) fn mark(&self) -> Mark {
        Mark(self.undo.len())
    }

    /// Takes something, or gives it where it is below zero, until [`NodeTable::roll_back`].
    pub(crate) fn try_take(&mut self, ix: NodeIx, amounts: Amounts) {
        if let Some(node) = self.slots[ix.at()].as_mut() {
            self.undo.push((ix, node.used, node.version));
            node.used = node.used.plus(amounts);
        }
        self.changed(ix);
    }

    /// Undoes everything that was tried since `mark`. Costs what it touched.
    pub(crate) fn roll_back(&mut self, mark: Mark) {
        while self.undo.len() > mark.0
            && let Some((ix, used, version)) = self.undo.pop()
        {
            if let Some(node) = self.slots[ix.at()].as_mut() {
                node.used = used;
                node.version = version;
            }
            self.log(ix);
        }
    }

    fn next_version(&mut self) -> u64 {
        self.last_version += 1;
        self.last_version
    }

    /// What a place is like: something else for each node and each state of it, zero for none.
    pub(crate) fn version(&self, ix: NodeIx) -> u64 {
        self.get(ix).map_or(0, |node| node.version)
    }

    fn changed(&mut self, ix: NodeIx) {
        let version = self.next_version();
        if let Some(node) = self.slots[ix.at()].as_mut() {
            node.version = version;
        }
        self.log(ix);
    }

    fn log(&mut self, ix: NodeIx) {
        if self.log.len() >= LOG_MIN.max(self.slots.len() * LOG_TIMES_NODES_MAX) {
            self.log_base += u64::try_from(self.log.len()).unwrap_or(u64::MAX);
            self.log.clear();
        }
        self.log.push(ix);
    }

    /// How many changes there have been.
    pub(crate) fn cursor(&self) -> u64 {
        self.log_base + u64::try_from(self.log.len()).unwrap_or(u64::MAX)
    }

    /// What has changed since `cursor`; none when the log does not reach back that far.
    fn changes_since(&self, cursor: u64) -> Option<&[NodeIx]> {
        let skip = usize::try_from(cursor.checked_sub(self.log_base)?).ok()?;
        self.log.get(skip..)
    }

    /// Calls `look_at` for each place that has changed since `cursor`, or for all of them when that is not known.
    /// Returns how many.
    pub(crate) fn follow(&self, cursor: Option<u64>, mut look_at: impl FnMut(NodeIx)) -> u64 {
        match cursor.and_then(|cursor| self.changes_since(cursor)) {
            Some(changed) => {
                changed.iter().for_each(|ix| look_at(*ix));
                u64::try_from(changed.len()).unwrap_or(u64::MAX)
            }
            None => {
                (0..u32::try_from(self.slots.len()).unwrap_or(u32::MAX)).for_each(|ix| look_at(NodeIx(ix)));
                u64::try_from(self.slots.len()).unwrap_or(u64::MAX)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn facts(name: &str, cpus: i64) -> NodeFacts {
        NodeFacts {
            name: name.into(),
            allocatable: Amounts { cpu_milli: cpus * 1000, ..Amounts::default() },
            labels: BTreeMap::new(),
            gpu_model: None,
            schedulable: Schedulable::Yes,
        }
    }

    fn cpus(cpus: i64) -> Amounts {
        Amounts { cpu_milli: cpus * 1000, ..Amounts::default() }
    }

    #[test]
    fn a_try_leaves_no_trace() {
        let mut table = NodeTable::default();
        table.upsert(facts("a", 8));
        let a = table.intern("a");
        table.take(a, cpus(1));
        let outer = table.mark();
        table.try_take(a, cpus(2));
        let inner = table.mark();
        table.try_take(a, cpus(3));
        table.try_take(a, cpus(-4));
        assert_eq!(table.used_on("a"), cpus(2));
        table.roll_back(inner);
        assert_eq!(table.used_on("a"), cpus(3));
        table.roll_back(outer);
        assert_eq!(table.used_on("a"), cpus(1));
    }

    #[test]
    fn what_is_booked_outlives_the_node() {
        let mut table = NodeTable::default();
        let a = table.intern("a");
        table.take(a, cpus(3));
        table.upsert(facts("a", 8));
        assert_eq!(table.get(a).map(Node::free), Some(cpus(5)));
        table.remove("a");
        assert_eq!((table.used_on("a"), table.known().count()), (cpus(3), 0));
        table.release(a, cpus(3));
        assert!(table.get(a).is_none(), "nobody needs it any more");
        assert_eq!(table.intern("b"), a, "the place is used again");
    }

    #[test]
    fn the_log_says_when_it_is_too_short() {
        let mut table = NodeTable::default();
        table.upsert(facts("a", 8));
        let start = table.cursor();
        assert_eq!(table.changes_since(start), Some(&[][..]));
        let a = table.intern("a");
        table.take(a, cpus(1));
        assert_eq!(table.changes_since(start), Some(&[a][..]));
        (0..LOG_MIN).for_each(|_| table.take(a, cpus(0)));
        assert_eq!(table.changes_since(start), None);
    }
}
