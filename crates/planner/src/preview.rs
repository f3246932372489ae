//! What would happen to a gang, as of the last plan. Changes nothing.

use crate::explain::Witness;
use crate::facts::Amounts;
use crate::facts::{GangFacts, GangId};
use crate::fit::Kept;
use crate::gang::{ClassKey, Ground, OrderKey};
use crate::line::Line;
use crate::plan::{SlotAssignment, assignments, by_name};
use crate::verdict::{ImpossibleVerdict, Verdict};
use crate::world::World;
use regatta_types::reason::WaitReason;
use std::collections::BTreeMap;

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Preview {
    /// It would start at once.
    Starts {
        /// Where.
        placement: Vec<SlotAssignment>,
    },
    /// It would wait.
    Waits(Verdict),
    /// No node could ever hold it.
    Impossible(ImpossibleVerdict),
}

/// What is kept for a gang that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reservation {
    /// For whom.
    pub gang: GangId,
    /// What, on which nodes. Later gangs leave this much of each free.
    pub nodes: BTreeMap<String, Amounts>,
}

impl World {
    /// Whether every member could be placed on some node if that node were empty; nodes that take no new work count.
    ///
    /// # Errors
    /// What is too large, with the numbers.
    pub fn fits_ever(&self, gang: &GangFacts) -> Result<(), ImpossibleVerdict> {
        match gang.members.iter().find_map(|group| self.space.impossible(group)) {
            Some(verdict) => Err(verdict),
            None => Ok(()),
        }
    }

    /// What would happen to `gang` if it were submitted now. What could never fit is refused, unless no node is known.
    pub fn preview(&self, gang: &GangFacts) -> Preview {
        if self.space.nodes.known().next().is_some()
            && let Err(verdict) = self.fits_ever(gang)
        {
            return Preview::Impossible(verdict);
        }
        self.ask(gang)
    }

    /// Why a gang waits, with the numbers of this moment; none when it does not wait. It may be about to start.
    pub fn explain(&self, id: &GangId) -> Option<Preview> {
        let gang = self.gangs.get(id).filter(|gang| gang.nodes.is_none())?;
        Some(self.ask(&gang.facts))
    }

    /// What is kept for gangs that wait, as of the last plan, first ones first.
    pub fn reservations(&self) -> Vec<Reservation> {
        let mut line = self.line_before(None);
        let mut space = self.space.sketch(line.groups(), &[]);
        let homes = line.homes(&mut space, self.versions.state).iter().map(|home| Reservation {
            gang: home.key.id.clone(),
            nodes: home
                .needs
                .iter()
                .map(|(ix, amounts)| (self.space.nodes.name(*ix).to_owned(), *amounts))
                .collect(),
        });
        homes.collect()
    }

    /// Gangs that waited for room at the last plan, of those before `key`.
    fn line_before(&self, key: Option<&OrderKey>) -> Line {
        let mut line = Line::default();
        for (head, ix) in self.heads.iter().take_while(|(head, _)| key.is_none_or(|key| *head < key)) {
            let class = self.classes.get(*ix);
            if class.proof.is_some_and(|proof| proof.ground == Ground::Kept) {
                line.add(head, &class.groups);
            }
        }
        line
    }

    fn ask(&self, facts: &GangFacts) -> Preview {
        let key = OrderKey::of(facts);
        let class = ClassKey { queue: facts.queue.clone(), members: facts.members.clone() };
        let mut line = self.line_before(Some(&key));
        let mut space = self.space.sketch(line.groups(), &facts.members);
        let groups = space.groups(&facts.members);
        let ahead = self.classes.find(&class).map(|ix| self.classes.get(ix));
        let ahead = ahead.filter(|class| class.waiting.first().is_some_and(|head| *head < key));
        let ahead = ahead.and_then(|class| class.proof).filter(|proof| proof.ground == Ground::Kept);
        let reason = match self.queue_reason(&facts.queue).or(ahead.map(|proof| proof.reason_of_others())) {
            Some(reason) => reason,
            None => {
                let open = space.fit(&groups, &Kept::default());
                let kept = line.kept(&mut space, self.versions.state);
                let placement = if kept.is_empty() { open.clone() } else { space.fit(&groups, kept) };
                if let Some(placement) = placement {
                    let nodes = placement.iter().flat_map(|nodes| by_name(nodes, &space));
                    let nodes: Vec<_> = nodes.flat_map(|(ix, count)| (0..count).map(move |_| ix)).collect();
                    let names = nodes.iter().map(|ix| space.nodes.name(*ix));
                    return Preview::Starts { placement: assignments(facts, names) };
                }
                if open.is_some() { WaitReason::BehindOthers } else { WaitReason::InsufficientCapacity }
            }
        };
        let mut witness = Witness { world: self, space: &mut space, line: &line };
        Preview::Waits(witness.verdict(&class, &groups, &key, reason))
    }
}
