//! Whether and where a gang fits now, and where it is closest to fitting.
//!
//! A gang of one group is decided by its shape's index alone, exactly: it fits if and only if enough members fit on all
//! nodes together. A gang of several is placed group by group, each on what the ones before left; what a try takes is
//! undone from a log. As that may miss a placement that exists, more than one order is tried, and the gang's home.

use crate::facts::{Amounts, MemberGroup};
use crate::nodes::{NodeIx, NodeTable};
use crate::shapes::{FitIndex, Place, ShapeIx, ShapeKey, ShapeTable, to_count};
use std::cmp::Reverse;
use std::collections::BTreeMap;
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
#[derive(Debug, Clone, Default)]
pub(crate) struct Kept {
    by_node: Vec<Amounts>,
    is_some: bool,
}

impl Kept {
    pub(crate) fn add(&mut self, ix: NodeIx, amounts: Amounts) {
        if self.by_node.len() <= ix.at() {
            self.by_node.resize(ix.at() + 1, Amounts::default());
        }
        self.by_node[ix.at()] = self.by_node[ix.at()].plus(amounts);
        self.is_some = true;
    }

    pub(crate) fn on(&self, ix: NodeIx) -> Amounts {
        self.by_node.get(ix.at()).copied().unwrap_or_default()
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.is_some
    }
}

/// What to do when a group does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OnShort {
    Stop,
    /// Place what fits, to count it.
    GoOn,
}

/// A node as a candidate for a gang's home: how many members fit now, what is missing for all it could hold, and how
/// many that is.
type Candidate = (Reverse<u32>, Amounts, NodeIx, u32);

/// Nodes and the indexes over them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Space {
    pub(crate) nodes: NodeTable,
    shapes: ShapeTable,
    /// Work done: nodes looked at. Whoever counts sets it to zero first.
    pub(crate) steps: u64,
}

impl Space {
    /// Groups of `members`; [`Space::forget`] gives back what they keep alive.
    pub(crate) fn groups(&mut self, members: &[MemberGroup]) -> Arc<[Group]> {
        let shapes = |space: &mut Self, group: &MemberGroup| {
            ShapeKey::of(group).into_iter().map(|key| space.shapes.add_user(key)).collect()
        };
        let one = |group: &MemberGroup| Group {
            count: group.count,
            request: group.request,
            shapes: shapes(self, group),
        };
        members.iter().map(one).collect()
    }

    pub(crate) fn forget(&mut self, groups: &[Group]) {
        groups.iter().flat_map(|group| &group.shapes).for_each(|ix| self.shapes.drop_user(*ix));
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
        let several = solid(groups).nth(1).is_some();
        if !several || groups.iter().any(|group| self.most(group) < u64::from(group.count)) {
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
        solid(groups).nth(1).is_none() || self.home(groups, &Kept::default()).is_some()
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
        let mut taken: BTreeMap<NodeIx, Amounts> = BTreeMap::new();
        for &at in order {
            let group = &groups[at];
            let shapes = group.shapes.iter();
            let found = shapes.copied().find_map(|ix| self.home_of_group(group, ix, kept, &taken))?;
            for (node, count) in &found {
                let entry = taken.entry(*node).or_default();
                *entry = entry.plus(group.request.times(i64::from(*count)));
            }
            home[at] = found;
        }
        Some(home)
    }

    fn home_of_group(
        &mut self,
        group: &Group,
        ix: ShapeIx,
        kept: &Kept,
        taken: &BTreeMap<NodeIx, Amounts>,
    ) -> Option<Vec<(NodeIx, u32)>> {
        let shape = self.shapes.get(ix, &self.nodes, &mut self.steps);
        if shape.caps_total < u64::from(group.count) {
            return None;
        }
        self.steps += u64::try_from(self.nodes.slot_count()).unwrap_or(u64::MAX);
        let mut candidates: Vec<Candidate> = Vec::new();
        for node_ix in self.nodes.slot_ixs().filter(|ix| shape.cap(*ix) > 0) {
            let Some((facts, used)) =
                self.nodes.get(node_ix).and_then(|node| Some((node.open()?, node.used)))
            else {
                continue;
            };
            let others = kept.on(node_ix).plus(taken.get(&node_ix).copied().unwrap_or_default());
            let room = facts.allocatable.minus(others);
            let cap = to_count(room.holds(group.request)).min(group.count);
            if cap > 0 {
                let free = room.minus(used);
                let now = to_count(free.holds(group.request)).min(cap);
                candidates.push((Reverse(now), missing(group.request, cap, free), node_ix, cap));
            }
        }
        let by_merit = |a: &Candidate, b: &Candidate| {
            (a.0, a.1).cmp(&(b.0, b.1)).then_with(|| self.nodes.name(a.2).cmp(self.nodes.name(b.2)))
        };
        // Each candidate holds at least one member, so the best `count` of them are enough.
        let enough = usize::try_from(group.count).unwrap_or(usize::MAX);
        if enough < candidates.len() {
            candidates.select_nth_unstable_by(enough, by_merit);
            candidates.truncate(enough);
        }
        candidates.sort_unstable_by(by_merit);
        let mut left = group.count;
        let mut found = Vec::new();
        for (_, _, node, cap) in candidates {
            let count = cap.min(left);
            found.push((node, count));
            left -= count;
            if left == 0 {
                return Some(found);
            }
        }
        (left == 0).then_some(found)
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
            self.nodes.get(*ix).is_some_and(|node| node.free().minus(kept.on(*ix)).covers(*need))
        })
    }
}

/// Groups with members.
fn solid(groups: &[Group]) -> impl Iterator<Item = (usize, &Group)> {
    groups.iter().enumerate().filter(|(_, group)| group.count > 0)
}

/// Members in all.
pub(crate) fn size(groups: &[Group]) -> u64 {
    groups.iter().map(|group| u64::from(group.count)).sum()
}

/// What is missing in `free` for `count` members.
pub(crate) fn missing(request: Amounts, count: u32, free: Amounts) -> Amounts {
    request.times(i64::from(count)).minus(free).upper(Amounts::default()).only_asked(request)
}

/// The index as it would be if what is kept were used.
fn leaving(index: &FitIndex, request: Amounts, kept: &Kept, nodes: &NodeTable, steps: &mut u64) -> FitIndex {
    let mut limited = FitIndex::default();
    for (count, place) in index.iter() {
        *steps += 1;
        let kept = kept.on(place.ix);
        if kept == Amounts::default() {
            limited.insert(count, place.clone());
        } else if let Some(node) = nodes.get(place.ix) {
            limited.insert(to_count(node.free().minus(kept).holds(request)), Place::clone(place));
        }
    }
    limited
}
