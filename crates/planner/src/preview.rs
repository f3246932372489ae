//! What would happen to a gang if it were submitted now. Changes nothing.

use crate::facts::{Amounts, GangFacts};
use crate::fit::{Space, usable};
use crate::gang::order_key;
use crate::plan::{SlotAssignment, assignments};
use crate::verdict::{self, ImpossibleVerdict, Verdict};
use crate::world::World;
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

impl World {
    /// What would happen to `gang`, as of the last plan.
    pub fn preview(&self, gang: &GangFacts) -> Preview {
        if !self.nodes.is_empty()
            && let Err(verdict) = self.fits_ever(gang)
        {
            return Preview::Impossible(verdict);
        }
        if let Some(verdict) = self.queue_verdict(&gang.queue) {
            return Preview::Waits(verdict);
        }
        let key = order_key(gang);
        let mut first = None;
        let mut kept: BTreeMap<String, Amounts> = BTreeMap::new();
        for (class, blocked) in &self.blocked {
            let Some(head) = self.waiting.get(class).and_then(|keys| keys.first()) else { continue };
            if *head >= key || !blocked.verdict.waits_for_room() {
                continue;
            }
            first = first.into_iter().chain([head]).min();
            for (node, amounts) in usable(&self.nodes, &class.members) {
                let entry = kept.entry(node).or_default();
                *entry = entry.upper(amounts);
            }
        }
        let mut space = Space::new(&self.nodes, &self.used);
        space.kept = (!kept.is_empty()).then_some(&kept);
        if let Ok(nodes) = space.fit(&gang.members) {
            return Preview::Starts { placement: assignments(gang, &nodes) };
        }
        let first = first.and_then(|key| self.gangs.get(&key.id));
        Preview::Waits(match (Space::new(&self.nodes, &self.used).fit(&gang.members), first) {
            (Ok(_), Some(first)) => verdict::behind(&first.facts),
            (Err(fitting), _) => self.insufficient(&gang.members, fitting, &mut 0),
            (Ok(_), None) => self.insufficient(&gang.members, 0, &mut 0),
        })
    }
}
