//! Whether and where a gang fits now, and where it is closest to fitting.
//!
//! A gang of one group is decided by its shape's index alone, exactly: it fits if and only if enough members fit on all
//! nodes together. A gang of several is placed group by group, each on what the ones before left; what a try takes is
//! undone from a log. As that may miss a placement that exists, more than one order is tried, and the gang's home.

use crate::facts::{Amounts, MemberGroup};
use crate::merit::Candidate;
use crate::nodes::{NodeIx, NodeTable};
use crate::shapes::{FitIndex, Place, ShapeIx, ShapeKey, ShapeTable, to_count};
use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Members that are alike, as the planner works with them.
#[derive(Debug, Clone)]
pub(crate) struct Group {
    pub(crate) count: u32,
    pub(crate) request: Amounts,
    /// What it accepts, in order of preference. All members get the same one.
    shapes: Vec<ShapeIx>,
}

/// For each group in the order of the members, the nodes and how many members each gets.
pub(crate) type Placement = Vec<Vec<(NodeIx, u32)>>;

/// What later gangs must leave free, by node.
pub(crate) type Kept = BTreeMap<NodeIx, Amounts>;

/// Adds to what is kept.
pub(crate) fn keep(kept: &mut Kept, ix: NodeIx, amounts: Amounts) {
    let entry = kept.entry(ix).or_default();
    *entry = entry.plus(amounts);
}

/// What to do when a group does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OnShort {
    Stop,
    /// Place what fits, to count it.
    GoOn,
}

/// Nodes and the indexes over them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Space {
    pub(crate) nodes: NodeTable,
    shapes: ShapeTable,
    /// Work done: nodes looked at. Whoever counts sets it to zero first.
    pub(crate) steps: u64,
}

impl Space {
    /// A copy of the nodes with what is needed to answer questions about `groups` and `members`.
    pub(crate) fn sketch<'a>(
        &self,
        groups: impl Iterator<Item = &'a Group>,
        members: &[MemberGroup],
    ) -> Self {
        let wanted = groups.flat_map(|group| group.shapes.iter().copied()).collect();
        let keys: Vec<ShapeKey> = members.iter().flat_map(ShapeKey::of).collect();
        Self { nodes: self.nodes.clone(), shapes: self.shapes.only(&wanted, &keys), steps: 0 }
    }

    /// Groups of `members`; [`Space::forget`] gives back what they keep alive.
    pub(crate) fn groups(&mut self, members: &[MemberGroup]) -> Arc<[Group]> {
        let one = |group: &MemberGroup| {
            let keys = ShapeKey::of(group).into_iter();
            let shapes = keys.map(|key| self.shapes.add_user(key, group.count)).collect();
            Group { count: group.count, request: group.request, shapes }
        };
        members.iter().map(one).collect()
    }

    pub(crate) fn forget(&mut self, groups: &[Group]) {
        for group in groups {
            group.shapes.iter().for_each(|ix| self.shapes.drop_user(*ix, group.count));
        }
    }

    /// A placement on what is free now, less what is kept for others.
    pub(crate) fn fit(&mut self, groups: &[Group], kept: &Kept) -> Option<Placement> {
        let orders = self.orders(groups);
        for order in &orders {
            let (placement, placed) = self.place_groups(groups, order, kept, OnShort::Stop);
            if placed == size(groups) {
                return Some(placement);
            }
        }
        // With one group that was exact. With several, no order of choices helps where one alone does not fit.
        if is_exact(groups) || groups.iter().any(|group| self.most(group) < u64::from(group.count)) {
            return None;
        }
        self.home(groups, kept).filter(|home| self.is_free(groups, home, kept))
    }

    /// How many members fit now.
    pub(crate) fn fitting(&mut self, groups: &[Group]) -> u32 {
        let mut most = 0;
        for order in self.orders(groups) {
            most = most.max(self.place_groups(groups, &order, &Kept::default(), OnShort::GoOn).1);
        }
        u32::try_from(most).unwrap_or(u32::MAX)
    }

    /// The orders in which to place groups: those with the fewest nodes to choose from first, and the largest first.
    fn orders(&mut self, groups: &[Group]) -> Vec<Vec<usize>> {
        let mut largest_first: Vec<usize> = solid(groups).map(|(at, _)| at).collect();
        largest_first.sort_by_key(|&at| (Reverse(groups[at].request), at));
        if largest_first.len() < 2 {
            return vec![largest_first];
        }
        let spare: Vec<u64> =
            groups.iter().map(|group| self.cap_total(group).saturating_sub(u64::from(group.count))).collect();
        let mut scarcest_first = largest_first.clone();
        scarcest_first.sort_by_key(|&at| spare[at]);
        if scarcest_first == largest_first {
            vec![largest_first]
        } else {
            vec![scarcest_first, largest_first]
        }
    }

    fn place_groups(
        &mut self,
        groups: &[Group],
        order: &[usize],
        kept: &Kept,
        on_short: OnShort,
    ) -> (Placement, u64) {
        let mark = self.nodes.mark();
        let mut placement: Placement = vec![Vec::new(); groups.len()];
        let mut placed = 0;
        for (done, &at) in order.iter().enumerate() {
            let group = &groups[at];
            let found = self.place_group(group, kept);
            let members: u64 = found.iter().map(|(_, count)| u64::from(*count)).sum();
            placed += members;
            if members < u64::from(group.count) && on_short == OnShort::Stop {
                break;
            }
            if done + 1 < order.len() {
                for (ix, count) in &found {
                    self.nodes.try_take(*ix, group.request.times(i64::from(*count)));
                }
            }
            placement[at] = found;
        }
        self.nodes.roll_back(mark);
        (placement, placed)
    }

    /// All members of one group on one of the shapes it accepts, or as many as fit.
    fn place_group(&mut self, group: &Group, kept: &Kept) -> Vec<(NodeIx, u32)> {
        let mut best = Vec::new();
        let mut best_total = 0;
        for &ix in &group.shapes {
            let shape = self.shapes.get(ix, &self.nodes, &mut self.steps);
            let limited;
            let index = if kept.is_empty() || shape.index.total == 0 {
                &shape.index
            } else {
                limited = leaving(&shape.index, group.request, kept, &self.nodes, &mut self.steps);
                &limited
            };
            let total = index.total;
            if total >= u64::from(group.count) || total > best_total {
                best = index.choose(group.count);
                self.steps += u64::try_from(best.len()).unwrap_or(u64::MAX);
                best_total = total;
            }
            if total >= u64::from(group.count) {
                break;
            }
        }
        best
    }

    /// How many members of a group fit now on the shape that holds most.
    fn most(&mut self, group: &Group) -> u64 {
        let totals =
            group.shapes.iter().map(|&ix| self.shapes.get(ix, &self.nodes, &mut self.steps).index.total);
        totals.max().unwrap_or(0)
    }

    /// Whether the nodes there are could hold the gang if nothing were used.
    pub(crate) fn could_hold(&mut self, groups: &[Group]) -> bool {
        let enough = |space: &mut Self, group: &Group| space.cap_total(group) >= u64::from(group.count);
        if !groups.iter().all(|group| enough(self, group)) {
            return false;
        }
        is_exact(groups) || self.home(groups, &Kept::default()).is_some()
    }

    /// What is free on nodes that would do for some group.
    pub(crate) fn free_for(&mut self, groups: &[Group]) -> Amounts {
        let mut ixs = groups.iter().flat_map(|group| &group.shapes);
        let (Some(&first), more) = (ixs.next(), ixs.collect::<BTreeSet<_>>()) else {
            return Amounts::default();
        };
        if more.iter().all(|ix| **ix == first) {
            return self.shapes.get(first, &self.nodes, &mut self.steps).free_total;
        }
        // A node that would do for several counts once.
        let mut counted: BTreeMap<NodeIx, Amounts> = BTreeMap::new();
        for ix in more.into_iter().chain([&first]) {
            let shape = self.shapes.get(*ix, &self.nodes, &mut self.steps);
            let open = self.nodes.known().filter_map(|(ix, node, _)| Some((ix, node, node.open()?)));
            let open = open.filter(|(_, _, facts)| shape.key.is_eligible(facts));
            counted.extend(open.map(|(ix, node, _)| (ix, node.free().upper(Amounts::default()))));
        }
        counted.into_values().fold(Amounts::default(), Amounts::plus)
    }

    /// How many members of a group the nodes there are hold when empty, on the shape that they hold most of.
    pub(crate) fn cap_total(&mut self, group: &Group) -> u64 {
        let totals =
            group.shapes.iter().map(|&ix| self.shapes.get(ix, &self.nodes, &mut self.steps).caps_total);
        totals.max().unwrap_or(0)
    }

    /// The same, on the shape for which `node` is eligible.
    pub(crate) fn cap_total_beside(&mut self, group: &Group, node: NodeIx) -> u64 {
        let mut totals = 0;
        for &ix in &group.shapes {
            let shape = self.shapes.get(ix, &self.nodes, &mut self.steps);
            if shape.cap(node) > 0 {
                totals = shape.caps_total.max(totals);
            }
        }
        totals
    }

    /// The most members of a group that one node holds when empty, and that node.
    pub(crate) fn roomiest(&mut self, group: &Group) -> Option<(u32, NodeIx)> {
        let mut best: Option<(u32, Reverse<String>, NodeIx)> = None;
        for &ix in &group.shapes {
            let shape = self.shapes.get(ix, &self.nodes, &mut self.steps);
            for (node, _, facts) in self.nodes.known() {
                let cap = shape.cap(node);
                if cap > 0 && best.as_ref().is_none_or(|(most, _, _)| cap > *most) {
                    best = Some((cap, Reverse(facts.name.clone()), node));
                }
            }
        }
        best.map(|(cap, _, node)| (cap, node))
    }

    /// Where the gang is closest to fitting: the nodes on which most of its members fit now, then those on which least
    /// is missing. Takes no heed of whether what is missing is free, only that the nodes could hold it beside `kept`.
    pub(crate) fn home(&mut self, groups: &[Group], kept: &Kept) -> Option<Placement> {
        let orders = self.orders(groups);
        orders.iter().find_map(|order| self.home_in_order(groups, order, kept))
    }

    fn home_in_order(&mut self, groups: &[Group], order: &[usize], kept: &Kept) -> Option<Placement> {
        let mut home: Placement = vec![Vec::new(); groups.len()];
        let mut others = Cow::Borrowed(kept);
        for (done, &at) in order.iter().enumerate() {
            let group = &groups[at];
            let shapes = group.shapes.iter();
            let found = shapes.copied().find_map(|ix| self.home_of_group(group, ix, &others))?;
            if done + 1 < order.len() {
                for (node, count) in &found {
                    keep(others.to_mut(), *node, group.request.times(i64::from(*count)));
                }
            }
            home[at] = found;
        }
        Some(home)
    }

    /// The best nodes for one group beside what others have of them. Each gets as many members as it could hold, and the
    /// merit of a node is judged by just these members: so what is kept of a node is what its merit depends on.
    fn home_of_group(&mut self, group: &Group, ix: ShapeIx, others: &Kept) -> Option<Vec<(NodeIx, u32)>> {
        let shape = self.shapes.get(ix, &self.nodes, &mut self.steps);
        if shape.caps_total < u64::from(group.count) {
            return None;
        }
        let largest = shape.largest_cap();
        let mut found: BTreeMap<NodeIx, u32> = BTreeMap::new();
        let mut left = group.count;
        while left > 0 {
            let (size, until) = if left >= largest { (group.count, largest) } else { (left, left) };
            let picked = self.best_nodes(ix, size, others, &found, (left, until));
            if picked.is_empty() {
                return None;
            }
            for (node, count) in picked {
                found.insert(node, count);
                left -= count;
            }
        }
        Some(found.into_iter().collect())
    }

    /// Nodes in the order of their merit for `size` members, as long as at least `until` of the `left` ones remain.
    fn best_nodes(
        &mut self,
        ix: ShapeIx,
        size: u32,
        others: &Kept,
        found: &BTreeMap<NodeIx, u32>,
        (mut left, until): (u32, u32),
    ) -> Vec<(NodeIx, u32)> {
        let shape = self.shapes.get(ix, &self.nodes, &mut self.steps);
        let key = shape.key.clone();
        let merits = shape.by_merit(size, &self.nodes, &mut self.steps);
        self.steps += u64::try_from(others.len()).unwrap_or(u64::MAX);
        let beside = |(ix, amounts): (&NodeIx, &Amounts)| {
            Candidate::new(&key, size, *ix, self.nodes.get(*ix)?, *amounts)
        };
        let shared: BTreeSet<Candidate> = others.iter().filter_map(beside).collect();
        let mut shared = shared.iter().filter(|candidate| !found.contains_key(&candidate.ix)).peekable();
        let is_new = |ix: &NodeIx| !others.contains_key(ix) && !found.contains_key(ix);
        let mut alone = merits.iter().filter(|candidate| is_new(&candidate.ix)).peekable();
        let mut picked = Vec::new();
        while left > 0 && left >= until {
            let from_shared = match (shared.peek(), alone.peek()) {
                (Some(a), Some(b)) => a < b,
                (a, _) => a.is_some(),
            };
            let next = if from_shared { shared.next() } else { alone.next() };
            let Some(Candidate { ix, cap, .. }) = next else { break };
            self.steps += 1;
            picked.push((*ix, *cap));
            left -= cap;
        }
        picked
    }

    /// What a placement takes of each node.
    pub(crate) fn needs(&self, groups: &[Group], placement: &Placement) -> BTreeMap<NodeIx, Amounts> {
        let mut needs: BTreeMap<NodeIx, Amounts> = BTreeMap::new();
        for (group, nodes) in groups.iter().zip(placement) {
            for (node, count) in nodes {
                let entry = needs.entry(*node).or_default();
                *entry = entry.plus(group.request.times(i64::from(*count)));
            }
        }
        needs
    }

    fn is_free(&self, groups: &[Group], placement: &Placement, kept: &Kept) -> bool {
        self.needs(groups, placement).iter().all(|(ix, need)| {
            self.nodes.get(*ix).is_some_and(|node| {
                node.free().minus(kept.get(ix).copied().unwrap_or_default()).covers(*need)
            })
        })
    }
}

/// Groups with members.
fn solid(groups: &[Group]) -> impl Iterator<Item = (usize, &Group)> {
    groups.iter().enumerate().filter(|(_, group)| group.count > 0)
}

/// Whether no placement is ever missed: with members of one group only.
pub(crate) fn is_exact(groups: &[Group]) -> bool {
    solid(groups).nth(1).is_none()
}

/// Members in all.
pub(crate) fn size(groups: &[Group]) -> u64 {
    groups.iter().map(|group| u64::from(group.count)).sum()
}

/// The index as it would be if what is kept were used.
fn leaving(index: &FitIndex, request: Amounts, kept: &Kept, nodes: &NodeTable, steps: &mut u64) -> FitIndex {
    let mut limited = FitIndex::default();
    for (count, place) in index.iter() {
        *steps += 1;
        match (kept.get(&place.ix), nodes.get(place.ix)) {
            (Some(kept), Some(node)) => {
                limited.insert(to_count(node.free().minus(*kept).holds(request)), Place::clone(place));
            }
            _ => limited.insert(count, place.clone()),
        }
    }
    limited
}
