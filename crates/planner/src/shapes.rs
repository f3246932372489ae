//! Shapes of members, and for each the nodes by how many of it they hold.
//!
//! A shape is what one member asks of a node; many gangs share few of them. Each index follows the log of the nodes, so
//! whether a group fits is one comparison, and where it fits best is a few look-ups.

use crate::facts::{Amounts, MemberGroup, NodeFacts};
use crate::merit::MeritIndex;
use crate::nodes::{Node, NodeIx, NodeTable};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// How many orders by merit a shape keeps, besides those for the sizes of its groups.
const MERITS_MAX: usize = 16;

/// A place in the table of shapes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ShapeIx(usize);

/// What one member asks of a node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ShapeKey {
    pub(crate) request: Amounts,
    pub(crate) model: Option<String>,
    pub(crate) selector: BTreeMap<String, String>,
}

impl ShapeKey {
    /// The shapes that a group accepts, in order of preference: one for each GPU model, or one for any.
    pub(crate) fn of(group: &MemberGroup) -> Vec<Self> {
        let one = |model| Self { request: group.request, model, selector: group.node_selector.clone() };
        if group.gpu_models.is_empty() {
            vec![one(None)]
        } else {
            group.gpu_models.iter().map(|model| one(Some(model.clone()))).collect()
        }
    }

    /// Whether a node has the GPU model and the labels that are asked for.
    pub(crate) fn is_eligible(&self, node: &NodeFacts) -> bool {
        let model_fits = self.model.is_none() || node.gpu_model == self.model;
        model_fits && self.selector.iter().all(|(key, value)| node.labels.get(key) == Some(value))
    }

    /// How many members a node holds when it is empty, and how many now; none where they may not go.
    fn counts(&self, node: &Node) -> Option<(u32, u32)> {
        let facts = node.open().filter(|facts| self.is_eligible(facts))?;
        Some((to_count(facts.allocatable.holds(self.request)), to_count(node.free().holds(self.request))))
    }
}

pub(crate) fn to_count(count: i64) -> u32 {
    u32::try_from(count.max(0)).unwrap_or(u32::MAX)
}

/// A node with room. The order is the order of preference: least left over, then name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) free: Amounts,
    pub(crate) name: Arc<str>,
    pub(crate) ix: NodeIx,
}

/// Nodes with room, by how many members they hold.
#[derive(Debug, Clone, Default)]
pub(crate) struct FitIndex {
    by_count: BTreeMap<u32, BTreeSet<Place>>,
    /// Members that fit on all nodes together.
    pub(crate) total: u64,
}

impl FitIndex {
    pub(crate) fn insert(&mut self, count: u32, place: Place) {
        if count > 0 && self.by_count.entry(count).or_default().insert(place) {
            self.total += u64::from(count);
        }
    }

    fn remove(&mut self, count: u32, place: &Place) {
        let Some(places) = self.by_count.get_mut(&count) else { return };
        if places.remove(place) {
            self.total -= u64::from(count);
        }
        if places.is_empty() {
            self.by_count.remove(&count);
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Place)> {
        self.by_count.iter().flat_map(|(count, places)| places.iter().map(|place| (*count, place)))
    }

    /// Nodes for `wanted` members, or for as many as fit: the fewest nodes, and for the last of them the one that
    /// leaves the least.
    pub(crate) fn choose(&self, wanted: u32) -> Vec<(NodeIx, u32)> {
        let mut found = Vec::new();
        let mut left = wanted;
        for (&count, places) in self.by_count.iter().rev() {
            let mut places = places.iter();
            while left > 0 {
                if count >= left {
                    // Nodes that hold all the rest: this count's that are not taken yet, and those of lower counts.
                    let lower = self.by_count.range(left..count).filter_map(|(_, places)| places.first());
                    if let Some(place) = places.next().into_iter().chain(lower).min() {
                        found.push((place.ix, left));
                        return found;
                    }
                    break;
                }
                let Some(place) = places.next() else { break };
                found.push((place.ix, count));
                left -= count;
            }
        }
        found
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Shape {
    pub(crate) key: ShapeKey,
    /// Groups that use it, by how many members they have.
    users: BTreeMap<u32, u32>,
    /// How far it has followed the log; none before it was first used.
    cursor: Option<u64>,
    /// What the shape has of each node.
    on: Vec<OnNode>,
    /// Members that all nodes together hold when empty.
    pub(crate) caps_total: u64,
    /// How many nodes hold so many members when empty.
    nodes_of_cap: BTreeMap<u32, u32>,
    /// What is free on the nodes that would do.
    pub(crate) free_total: Amounts,
    pub(crate) index: FitIndex,
    /// Nodes by merit, for groups of so many members; made when first asked for.
    merits: BTreeMap<u32, MeritIndex>,
}

#[derive(Debug, Clone, Default)]
struct OnNode {
    /// The version that was looked at.
    version: u64,
    cap: u32,
    free: Amounts,
    place: Option<(u32, Place)>,
}

impl Shape {
    fn new(key: ShapeKey) -> Self {
        Self {
            key,
            users: BTreeMap::new(),
            cursor: None,
            on: Vec::new(),
            caps_total: 0,
            nodes_of_cap: BTreeMap::new(),
            free_total: Amounts::default(),
            index: FitIndex::default(),
            merits: BTreeMap::new(),
        }
    }

    /// Members that a node holds when empty.
    pub(crate) fn cap(&self, ix: NodeIx) -> u32 {
        self.on.get(ix.at()).map_or(0, |on| on.cap)
    }

    /// The most members that one node holds when empty.
    pub(crate) fn largest_cap(&self) -> u32 {
        self.nodes_of_cap.last_key_value().map_or(0, |(cap, _)| *cap)
    }

    /// Nodes by merit for a group of `count` members, up to date.
    pub(crate) fn by_merit(&mut self, count: u32, nodes: &NodeTable, steps: &mut u64) -> &MeritIndex {
        if self.merits.len() >= MERITS_MAX && !self.merits.contains_key(&count) {
            self.merits.retain(|count, _| self.users.contains_key(count));
        }
        let merits = self.merits.entry(count).or_default();
        *steps += merits.follow(&self.key, count, nodes);
        merits
    }

    /// Takes in what has changed since the last time. Returns the number of nodes looked at.
    fn follow(&mut self, nodes: &NodeTable) -> u64 {
        self.on.resize_with(nodes.slot_count(), OnNode::default);
        let cursor = self.cursor.replace(nodes.cursor());
        nodes.follow(cursor, |ix| self.look_at(ix, nodes))
    }

    fn look_at(&mut self, ix: NodeIx, nodes: &NodeTable) {
        let version = nodes.version(ix);
        if std::mem::replace(&mut self.on[ix.at()].version, version) == version {
            return;
        }
        let open = nodes.get(ix).and_then(|node| Some((node, self.key.counts(node)?)));
        let (cap, count) = open.map_or((0, 0), |(_, counts)| counts);
        let free = open.map_or(Amounts::default(), |(node, _)| node.free());
        let on = &mut self.on[ix.at()];
        self.caps_total = self.caps_total - u64::from(on.cap) + u64::from(cap);
        if on.cap != cap {
            if let Some(nodes) = self.nodes_of_cap.get_mut(&on.cap) {
                *nodes -= 1;
                if *nodes == 0 {
                    self.nodes_of_cap.remove(&on.cap);
                }
            }
            if cap > 0 {
                *self.nodes_of_cap.entry(cap).or_default() += 1;
            }
        }
        let zero = Amounts::default();
        self.free_total = self.free_total.minus(on.free.upper(zero)).plus(free.upper(zero));
        (on.cap, on.free) = (cap, free);
        if let Some((count, place)) = on.place.take() {
            self.index.remove(count, &place);
        }
        if let Some((node, _)) = open.filter(|_| count > 0) {
            let place = Place { free, name: Arc::clone(&node.name), ix };
            self.index.insert(count, place.clone());
            on.place = Some((count, place));
        }
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct ShapeTable {
    by_key: BTreeMap<ShapeKey, ShapeIx>,
    slots: Vec<Option<Shape>>,
    vacant: Vec<ShapeIx>,
}

impl ShapeTable {
    /// The place of a shape for a group of `count` members; each call wants one [`ShapeTable::drop_user`] later.
    pub(crate) fn add_user(&mut self, key: ShapeKey, count: u32) -> ShapeIx {
        let ix = match self.by_key.get(&key) {
            Some(ix) => *ix,
            None => {
                let ix = self.vacant.pop().unwrap_or_else(|| {
                    self.slots.push(None);
                    ShapeIx(self.slots.len() - 1)
                });
                self.by_key.insert(key.clone(), ix);
                self.slots[ix.0] = Some(Shape::new(key));
                ix
            }
        };
        if let Some(shape) = self.slots[ix.0].as_mut() {
            *shape.users.entry(count).or_default() += 1;
        }
        ix
    }

    pub(crate) fn drop_user(&mut self, ix: ShapeIx, count: u32) {
        let Some(shape) = self.slots[ix.0].as_mut() else { return };
        let users = shape.users.entry(count).or_default();
        *users = users.saturating_sub(1);
        if *users == 0 {
            shape.users.remove(&count);
            shape.merits.remove(&count);
        }
        if shape.users.is_empty() {
            self.by_key.remove(&shape.key);
            self.slots[ix.0] = None;
            self.vacant.push(ix);
        }
    }

    /// A copy of those shapes only that are at `wanted` or have one of the keys.
    pub(crate) fn only(&self, wanted: &BTreeSet<ShapeIx>, keys: &[ShapeKey]) -> Self {
        let is_wanted = |key: &ShapeKey, ix: &ShapeIx| wanted.contains(ix) || keys.contains(key);
        let by_key = self.by_key.iter().filter(|(key, ix)| is_wanted(key, ix));
        let by_key: BTreeMap<ShapeKey, ShapeIx> = by_key.map(|(key, ix)| (key.clone(), *ix)).collect();
        let mut slots: Vec<Option<Shape>> = vec![None; self.slots.len()];
        for ix in by_key.values() {
            slots[ix.0].clone_from(&self.slots[ix.0]);
        }
        Self { by_key, slots, vacant: Vec::new() }
    }

    /// The shape, up to date with the nodes; adds the work to `steps`.
    pub(crate) fn get(&mut self, ix: ShapeIx, nodes: &NodeTable, steps: &mut u64) -> &mut Shape {
        let shape = self.slots[ix.0].as_mut().expect("invariant: a class keeps its shapes alive");
        *steps += shape.follow(nodes);
        shape
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(rooms: &[(&str, u32, i64)]) -> FitIndex {
        let mut table = NodeTable::default();
        let mut index = FitIndex::default();
        for (name, count, gpus) in rooms {
            let ix = table.intern(name);
            let free = Amounts { gpu_milli: gpus * 1000, ..Amounts::default() };
            index.insert(*count, Place { free, name: (*name).into(), ix });
        }
        index
    }

    #[test]
    fn the_fewest_nodes_then_the_least_left_over() {
        let rooms = [("a", 4, 4), ("b", 4, 5), ("c", 2, 3), ("d", 2, 2), ("e", 1, 1)];
        let check = |wanted, expected: &[u32]| {
            let chosen = index(&rooms).choose(wanted);
            assert_eq!(chosen.iter().map(|(_, count)| *count).collect::<Vec<_>>(), expected, "{wanted}");
            let nodes: BTreeSet<usize> = chosen.iter().map(|(ix, _)| ix.at()).collect();
            assert_eq!(nodes.len(), chosen.len(), "each node once");
        };
        check(0, &[]);
        check(1, &[1]);
        check(2, &[2]);
        check(3, &[3]);
        check(5, &[4, 1]);
        check(6, &[4, 2]);
        check(8, &[4, 4]);
        check(11, &[4, 4, 2, 1]);
        check(13, &[4, 4, 2, 2, 1]);
        check(99, &[4, 4, 2, 2, 1]);
        assert_eq!(index(&rooms).choose(2)[0].0.at(), 3, "d leaves nothing, c leaves one");
    }
}
