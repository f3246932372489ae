//! Whether and where a gang fits: best fit, all or nothing.

use crate::facts::{Amounts, MemberGroup, NodeFacts, Schedulable};
use crate::gang::size;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// What is free on each node, for one try. Nothing that a try takes is seen outside of it.
pub(crate) struct Space<'a> {
    pub(crate) nodes: &'a BTreeMap<String, NodeFacts>,
    pub(crate) used: &'a BTreeMap<String, Amounts>,
    /// Kept for gangs that come first, by node.
    pub(crate) kept: Option<&'a BTreeMap<String, Amounts>>,
    /// Given back in a what-if, by node.
    pub(crate) returned: BTreeMap<String, Amounts>,
    /// Work done, in nodes looked at.
    pub(crate) steps: u64,
}

/// Where each slot of a gang goes, or how many members would fit.
pub(crate) type Fitted = Result<Vec<String>, u32>;

impl<'a> Space<'a> {
    pub(crate) fn new(nodes: &'a BTreeMap<String, NodeFacts>, used: &'a BTreeMap<String, Amounts>) -> Self {
        Self { nodes, used, kept: None, returned: BTreeMap::new(), steps: 0 }
    }

    fn used_on(&self, name: &str, taken: &BTreeMap<&str, Amounts>) -> Amounts {
        let used = self.used.get(name).copied().unwrap_or_default();
        let returned = self.returned.get(name).copied().unwrap_or_default();
        let taken = taken.get(name).copied().unwrap_or_default();
        used.minus(returned).plus(taken)
    }

    /// Tries to place all members.
    pub(crate) fn fit(&mut self, members: &[MemberGroup]) -> Fitted {
        let mut slots: Vec<Vec<String>> = vec![Vec::new(); members.len()];
        let mut taken: BTreeMap<&str, Amounts> = BTreeMap::new();
        // Groups that are hardest to place come first; slots keep the order of the members.
        let mut order: Vec<usize> = (0..members.len()).collect();
        order.sort_by_key(|&index| (Reverse(members[index].request), index));
        let mut placed: u32 = 0;
        for index in order {
            let group = &members[index];
            let found = self.fit_group(group, &taken);
            placed =
                placed.saturating_add(found.iter().map(|(_, count)| *count).fold(0, u32::saturating_add));
            if found.iter().map(|(_, count)| u64::from(*count)).sum::<u64>() < u64::from(group.count) {
                return Err(placed.min(size(members)));
            }
            for (node, count) in found {
                let entry = taken.entry(node).or_default();
                *entry = entry.plus(group.request.times(i64::from(count)));
                slots[index].extend((0..count).map(|_| node.to_owned()));
            }
        }
        Ok(slots.into_iter().flatten().collect())
    }

    /// Nodes for one group and how many members each gets: all of them on one GPU model, or as many as fit.
    fn fit_group(&mut self, group: &MemberGroup, taken: &BTreeMap<&str, Amounts>) -> Vec<(&'a str, u32)> {
        if group.gpu_models.is_empty() {
            return self.fit_on(group, None, taken);
        }
        let mut best = Vec::new();
        let mut best_count = 0;
        for model in &group.gpu_models {
            let found = self.fit_on(group, Some(model), taken);
            let count: u64 = found.iter().map(|(_, count)| u64::from(*count)).sum();
            if count >= u64::from(group.count) {
                return found;
            }
            if count > best_count {
                (best, best_count) = (found, count);
            }
        }
        best
    }

    fn fit_on(
        &mut self,
        group: &MemberGroup,
        model: Option<&str>,
        taken: &BTreeMap<&str, Amounts>,
    ) -> Vec<(&'a str, u32)> {
        // Nodes by how many members they hold, then by what they would leave idle.
        let mut by_count: BTreeMap<u32, BTreeSet<(Amounts, &'a str)>> = BTreeMap::new();
        self.steps = self.steps.saturating_add(u64::try_from(self.nodes.len()).unwrap_or(u64::MAX));
        for (name, node) in self.nodes {
            if node.schedulable == Schedulable::No || !is_eligible(node, group, model) {
                continue;
            }
            let used = self.used_on(name, taken);
            let free = node.allocatable.minus(used);
            let mut count = free.holds(group.request);
            if let Some(kept) = self.kept.and_then(|kept| kept.get(name)) {
                count = count.min(beyond(node.allocatable, *kept, used).holds(group.request));
            }
            let count = u32::try_from(count.min(i64::from(group.count))).unwrap_or(0);
            if count > 0 {
                by_count.entry(count).or_default().insert((free, name));
            }
        }
        let mut found = Vec::new();
        let mut left = group.count;
        while left > 0 {
            // The node with the least left over among those that hold all the rest; else the one that holds most.
            let all_rest = by_count.range(left..).flat_map(|(_, nodes)| nodes.first()).min().copied();
            if let Some((_, name)) = all_rest {
                found.push((name, left));
                break;
            }
            let Some(mut most) = by_count.last_entry() else { break };
            let count = *most.key();
            if let Some((_, name)) = most.get_mut().pop_first() {
                found.push((name, count));
                left -= count;
            }
            if most.get().is_empty() {
                most.remove();
            }
        }
        found
    }
}

/// What may be taken of a node on which `kept` is kept for gangs that come first: what they could not use even if the
/// node were empty, less what is used already.
fn beyond(allocatable: Amounts, kept: Amounts, used: Amounts) -> Amounts {
    allocatable.minus(kept).minus(used)
}

/// Whether a node has the GPU model and the labels that a group asks for.
pub(crate) fn is_eligible(node: &NodeFacts, group: &MemberGroup, model: Option<&str>) -> bool {
    let model_fits = model.is_none_or(|model| node.gpu_model.as_deref() == Some(model));
    model_fits && group.node_selector.iter().all(|(key, value)| node.labels.get(key) == Some(value))
}

/// Whether a node is of use to a group, of whatever model of its list.
pub(crate) fn is_eligible_for_any(node: &NodeFacts, group: &MemberGroup) -> bool {
    let models = &group.gpu_models;
    let listed = models.is_empty() || models.iter().any(|model| node.gpu_model.as_deref() == Some(model));
    listed && is_eligible(node, group, None)
}

/// What a gang that waits could use of each node if the node were empty.
pub(crate) fn usable(
    nodes: &BTreeMap<String, NodeFacts>,
    members: &[MemberGroup],
) -> BTreeMap<String, Amounts> {
    let on = |node: &NodeFacts| {
        let groups = members.iter().filter(|group| is_eligible_for_any(node, group));
        let most = groups.map(|group| {
            let count = node.allocatable.holds(group.request).min(i64::from(group.count));
            group.request.times(count)
        });
        most.fold(Amounts::default(), Amounts::plus).lower(node.allocatable)
    };
    let all = nodes.iter().filter(|(_, node)| node.schedulable == Schedulable::Yes);
    all.map(|(name, node)| (name.clone(), on(node)))
        .filter(|(_, amounts)| *amounts != Amounts::default())
        .collect()
}
