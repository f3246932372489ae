//! Finds the numbers of a verdict and a change after which the gang starts, by looking at where it is closest to fitting.

use crate::facts::{Amounts, GangFacts, GangId};
use crate::fit::{Group, Kept, Placement, Space};
use crate::gang::{ClassKey, OrderKey};
use crate::line::Line;
use crate::nodes::NodeIx;
use crate::verdict::{self, NodeCounts, Numbers, Until, Verdict};
use crate::world::{Holder, World};
use regatta_types::reason::WaitReason;
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// How many gangs that must end a message names at most.
const NAMED_MAX: usize = 3;

/// Who is asked why a gang waits.
pub(crate) struct Witness<'a> {
    pub(crate) world: &'a World,
    pub(crate) space: &'a mut Space,
    pub(crate) line: &'a Line,
}

impl Witness<'_> {
    /// The verdict for a gang of a class that waits for `reason`.
    pub(crate) fn verdict(
        &mut self,
        class: &ClassKey,
        groups: &[Group],
        key: &OrderKey,
        reason: WaitReason,
    ) -> Verdict {
        let members = u32::try_from(crate::fit::size(groups)).unwrap_or(u32::MAX);
        match reason {
            WaitReason::QueueNotFound => {
                return verdict::no_queue(&class.queue, self.world.queues.keys(), members);
            }
            WaitReason::QueueStopped => return verdict::stopped(&class.queue, members),
            _ => {}
        }
        let impossible = class.members.iter().zip(groups).find_map(|(members, group)| {
            // The long look only where the index knows of no node.
            if self.space.cap_total(group) > 0 { None } else { self.space.impossible(members) }
        });
        let asked = groups.iter().fold(Amounts::default(), |sum, group| sum.upper(group.request));
        let free = self.space.free_for(groups).only_asked(asked);
        let numbers = Numbers { members, fitting: self.space.fitting(groups), free };
        if let Some(impossible) = impossible {
            return verdict::no_such_node(&impossible, numbers);
        }
        let before =
            self.line.first_before(key).and_then(|id| self.world.gangs.get(id)).map(|gang| &gang.facts);
        if let Some(first) = before
            && reason == WaitReason::BehindOthers
            && self.space.fit(groups, &Kept::default()).is_some()
        {
            return verdict::behind(first, numbers);
        }
        Verdict { reason, ..self.insufficient(class, groups, numbers, before) }
    }

    fn insufficient(
        &mut self,
        class: &ClassKey,
        groups: &[Group],
        numbers: Numbers,
        before: Option<&GangFacts>,
    ) -> Verdict {
        if let Some(ended) = self.who_must_end(groups) {
            let (gangs, foreign) = by_kind(ended);
            let facts = gangs.iter().filter_map(|id| self.world.gangs.get(id));
            let names: Vec<&str> = facts.map(|gang| gang.facts.name.as_str()).collect();
            let until = Until::HaveEnded { gangs: gangs.clone(), foreign };
            return verdict::insufficient(
                &class.members,
                numbers,
                before,
                until,
                &names,
                NodeCounts::default(),
            );
        }
        let holding: u64 =
            groups.iter().map(|group| self.space.cap_total(group).min(u64::from(group.count))).sum();
        let closed = self.space.nodes.known().filter(|(_, node, _)| node.open().is_none()).count();
        let open = self.space.nodes.known().count() - closed;
        let nodes = NodeCounts { open, closed, holding, members: numbers.members };
        let until = self.nodes_to_add(groups).unwrap_or(Until::OtherNodes);
        verdict::insufficient(&class.members, numbers, before, until, &[], nodes)
    }

    /// How many more of the roomiest node would do. Only told for gangs of one group.
    fn nodes_to_add(&mut self, groups: &[Group]) -> Option<Until> {
        let mut with_members = groups.iter().filter(|group| group.count > 0);
        let (group, None) = (with_members.next()?, with_members.next()) else { return None };
        let (cap, node) = self.space.roomiest(group)?;
        let short = u64::from(group.count).saturating_sub(self.space.cap_total_beside(group, node));
        let count = u32::try_from(short.div_ceil(u64::from(cap))).ok()?;
        Some(Until::NodesAdded { count, like: self.space.nodes.name(node).to_owned() })
    }

    /// Who must end for the gang to fit, proved by trying; none when that is not enough.
    fn who_must_end(&mut self, groups: &[Group]) -> Option<BTreeSet<Holder>> {
        let exact = crate::fit::is_exact(groups);
        let mark = self.space.nodes.mark();
        let mut ended: BTreeSet<Holder> = BTreeSet::new();
        let fits = loop {
            // With several groups, the gang may be closest to fitting somewhere else once some have ended.
            let Some(home) = self.space.home(groups, &Kept::default()) else { break false };
            let more = self.who_is_in_the_way(groups, &home, &ended);
            let nobody = more.is_empty();
            if exact {
                // A home that is free is a placement.
                ended = more;
                break !nobody;
            }
            for holder in &more {
                for (ix, amounts) in self.held_by(holder) {
                    self.space.nodes.try_take(ix, Amounts::default().minus(amounts));
                }
            }
            ended.extend(more);
            if self.space.fit(groups, &Kept::default()).is_some() {
                break true;
            }
            if nobody {
                break false;
            }
        };
        self.space.nodes.roll_back(mark);
        fits.then_some(ended)
    }

    /// Whose end makes a home free, of those that have not `ended` already.
    fn who_is_in_the_way(
        &self,
        groups: &[Group],
        home: &Placement,
        ended: &BTreeSet<Holder>,
    ) -> BTreeSet<Holder> {
        let mut more: BTreeSet<Holder> = BTreeSet::new();
        let needs = self.space.needs(groups, home);
        // Whoever must end on one node may make room on those after it.
        let mut order: Vec<NodeIx> = needs.keys().copied().collect();
        order.sort_by(|a, b| self.space.nodes.name(*a).cmp(self.space.nodes.name(*b)));
        for ix in order {
            let Some(node) = self.space.nodes.get(ix) else { continue };
            let missing_beside = |given: Amounts| {
                needs[&ix].minus(node.free()).minus(given).upper(Amounts::default()).only_asked(needs[&ix])
            };
            let mut holders: Vec<(Amounts, &Holder)> =
                self.holders_on(ix).filter(|(_, holder)| !ended.contains(holder)).collect();
            let given =
                holders.iter().filter(|(_, holder)| more.contains(holder)).map(|(amounts, _)| *amounts);
            let mut given = given.fold(Amounts::default(), Amounts::plus);
            holders.retain(|(_, holder)| !more.contains(holder));
            while missing_beside(given) != Amounts::default() && !holders.is_empty() {
                let (amounts, holder) = holders.swap_remove(best_to_end(&holders, missing_beside(given)));
                more.insert(holder.clone());
                given = given.plus(amounts);
            }
        }
        more
    }

    fn held_by(&self, holder: &Holder) -> Vec<(NodeIx, Amounts)> {
        match holder {
            Holder::Gang(id) => self.world.gangs.get(id).map(|gang| gang.held().into_iter().collect()),
            Holder::Foreign(id) => self.world.foreign_on(id).map(|held| vec![held]),
        }
        .unwrap_or_default()
    }

    fn holders_on(&self, ix: NodeIx) -> impl Iterator<Item = (Amounts, &Holder)> {
        let from = (ix, Holder::Gang(GangId(String::new())));
        let holders = self.world.holders.range(from..);
        holders.take_while(move |((node, _), _)| *node == ix).map(|((_, holder), amounts)| (*amounts, holder))
    }
}

fn by_kind(holders: BTreeSet<Holder>) -> (BTreeSet<GangId>, BTreeSet<String>) {
    let mut gangs = BTreeSet::new();
    let mut foreign = BTreeSet::new();
    for holder in holders {
        match holder {
            Holder::Gang(id) => gangs.insert(id),
            Holder::Foreign(id) => foreign.insert(id),
        };
    }
    (gangs, foreign)
}

/// The smallest holder that gives back all that is missing; else the one that gives most of it.
fn best_to_end(holders: &[(Amounts, &Holder)], missing: Amounts) -> usize {
    let gives = |amounts: Amounts| amounts.lower(missing);
    let enough = holders.iter().enumerate().filter(|(_, (amounts, _))| gives(*amounts) == missing);
    let smallest = enough.min_by_key(|(_, (amounts, holder))| (*amounts, *holder));
    let most = || {
        holders.iter().enumerate().max_by_key(|(_, (amounts, holder))| (gives(*amounts), Reverse(*holder)))
    };
    smallest.or_else(most).map_or(0, |(at, _)| at)
}

/// "a, b and 2 more have ended".
pub(crate) fn have_ended(names: &[&str], foreign: usize) -> String {
    let mut parts: Vec<String> = names.iter().take(NAMED_MAX).map(|name| (*name).to_owned()).collect();
    match names.len().saturating_sub(NAMED_MAX) {
        0 => {}
        more => parts.push(format!("{more} more")),
    }
    match foreign {
        0 => {}
        1 => parts.push("1 pod that is not part of a job".to_owned()),
        more => parts.push(format!("{more} pods that are not part of a job")),
    }
    let verb = if names.len() + foreign == 1 { "has" } else { "have" };
    match parts.as_slice() {
        [] => "room is made".to_owned(),
        [one] => format!("{one} {verb} ended"),
        [rest @ .., last] => format!("{} and {last} {verb} ended", rest.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_listed_and_counted() {
        let check =
            |names: &[&str], foreign, expected: &str| assert_eq!(have_ended(names, foreign), expected);
        check(&["a"], 0, "a has ended");
        check(&["a", "b"], 0, "a and b have ended");
        check(&["a", "b", "c", "d", "e"], 0, "a, b, c and 2 more have ended");
        check(&[], 1, "1 pod that is not part of a job has ended");
        check(&["a"], 2, "a and 2 pods that are not part of a job have ended");
    }
}
