//! One plan: classes of waiting gangs in order, each tried once.

use crate::facts::{Amounts, GangFacts, GangId, QueueState};
use crate::fit::{Space, usable};
use crate::gang::{ClassKey, OrderKey};
use crate::verdict::{self, Verdict};
use crate::world::World;
use regatta_types::reason::WaitReason;
use regatta_types::{SlotIndex, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

/// How much work one plan may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Nodes looked at.
    pub steps: u64,
}

/// Where one slot goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotAssignment {
    /// Role.
    pub role: String,
    /// Slot within the role.
    pub slot: SlotIndex,
    /// Node.
    pub node: String,
}

/// A gang that starts now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    /// Which.
    pub gang: GangId,
    /// Where; members in order.
    pub placement: Vec<SlotAssignment>,
}

/// What follows from the world as it is.
///
/// A start counts as placed from now on; [`crate::Delta::GangUnplaced`] takes it back.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// Gangs that start.
    pub starts: Vec<Start>,
    /// Why others wait: only what is new to its gang.
    pub verdicts: BTreeMap<GangId, Verdict>,
    /// Work done.
    pub steps_used: u64,
    /// Whether every waiting gang has been considered; otherwise plan again.
    pub complete: bool,
}

/// A class that cannot start as things are.
#[derive(Debug, Clone)]
pub(crate) struct Blocked {
    /// The first of the class; the others come later still.
    pub(crate) head: OrderKey,
    pub(crate) verdict: Verdict,
    /// What it could use of each node: later gangs keep off.
    usable: BTreeMap<String, Amounts>,
}

impl World {
    /// Decides which gangs start now. `_now` is the time of the plan; this version decides without it.
    pub fn plan(&mut self, _now: Timestamp, budget: Budget) -> Plan {
        let mut plan = Plan { complete: true, ..Plan::default() };
        loop {
            if std::mem::take(&mut self.has_taken) {
                // What was free and kept for others may be free no more: another reason, though no other outcome.
                self.blocked.retain(|_, blocked| blocked.verdict.reason != WaitReason::BehindOthers);
            }
            self.pass(budget, &mut plan);
            // A pass after starts finds less room, so it starts nothing: the second one is the last.
            if !self.has_taken || !plan.complete {
                break;
            }
        }
        self.tell(&mut plan);
        plan
    }

    /// Looks once at every class of waiting gangs, in order.
    fn pass(&mut self, budget: Budget, plan: &mut Plan) {
        let mut kept: BTreeMap<String, Amounts> = BTreeMap::new();
        let mut first_blocked: Option<OrderKey> = None;
        let mut heads: BTreeSet<(OrderKey, ClassKey)> = self
            .waiting
            .iter()
            .filter_map(|(class, keys)| Some((keys.first()?.clone(), class.clone())))
            .collect();
        while let Some((key, class)) = heads.pop_first() {
            if plan.steps_used >= budget.steps {
                plan.complete = false;
                break;
            }
            let blocked = match self.blocked.get(&class) {
                Some(known) => known.clone(),
                None => {
                    match self.try_start(&key, &class, &kept, first_blocked.as_ref(), &mut plan.steps_used) {
                        Ok(nodes) => {
                            let placement = assignments(&self.gangs[&key.id].facts, &nodes);
                            self.place(&key.id, nodes);
                            plan.starts.push(Start { gang: key.id, placement });
                            let next = self.waiting.get(&class).and_then(|keys| keys.first()).cloned();
                            heads.extend(next.map(|key| (key, class)));
                            continue;
                        }
                        Err(verdict) => {
                            let waits_for_room = verdict.waits_for_room();
                            let usable = if waits_for_room {
                                usable(&self.nodes, &class.members)
                            } else {
                                BTreeMap::new()
                            };
                            Blocked { head: key.clone(), verdict, usable }
                        }
                    }
                }
            };
            if blocked.verdict.waits_for_room() && first_blocked.is_none() {
                first_blocked = Some(key);
            }
            for (node, amounts) in &blocked.usable {
                let entry = kept.entry(node.clone()).or_default();
                *entry = entry.upper(*amounts);
            }
            self.blocked.insert(class, blocked);
        }
    }

    fn try_start(
        &self,
        key: &OrderKey,
        class: &ClassKey,
        kept: &BTreeMap<String, Amounts>,
        first_blocked: Option<&OrderKey>,
        steps: &mut u64,
    ) -> Result<Vec<String>, Verdict> {
        if let Some(verdict) = self.queue_verdict(&class.queue) {
            return Err(verdict);
        }
        let mut space = Space::new(&self.nodes, &self.used);
        space.kept = (!kept.is_empty()).then_some(kept);
        let fitted = space.fit(&class.members);
        *steps = steps.saturating_add(space.steps.max(1));
        match fitted {
            Ok(nodes) => Ok(nodes),
            Err(_) => {
                let mut open = Space::new(&self.nodes, &self.used);
                let without_order = open.fit(&class.members);
                *steps = steps.saturating_add(open.steps);
                Err(match (without_order, first_blocked.and_then(|key| self.gangs.get(&key.id))) {
                    (Ok(_), Some(first)) => verdict::behind(&first.facts),
                    (Err(fitting), _) => self.insufficient(&class.members, fitting, steps),
                    (Ok(_), None) => self.insufficient(&class.members, 0, steps),
                })
            }
        }
        .inspect_err(|verdict| debug_assert!(!verdict.message.is_empty(), "{key:?}"))
    }

    pub(crate) fn queue_verdict(&self, queue: &str) -> Option<Verdict> {
        match self.queues.get(queue) {
            None => Some(verdict::no_queue(queue, self.queues.keys())),
            Some(QueueState::Stopped) => Some(verdict::stopped(queue)),
            Some(QueueState::Open) => None,
        }
    }

    /// Verdicts that are new: to a whole class when the verdict has changed, else to gangs that have just come.
    fn tell(&mut self, plan: &mut Plan) {
        let mut untold = std::mem::take(&mut self.untold);
        for (class, blocked) in &self.blocked {
            let Some(keys) = self.waiting.get(class) else { continue };
            if self.told.get(class) != Some(&blocked.verdict) {
                self.told.insert(class.clone(), blocked.verdict.clone());
                untold.extend(keys.iter().map(|key| key.id.clone()));
            }
        }
        for id in untold {
            let Some(gang) = self.gangs.get(&id).filter(|gang| gang.nodes.is_none()) else { continue };
            match self.blocked.get(&gang.class()) {
                Some(blocked) => {
                    plan.verdicts.insert(id, blocked.verdict.clone());
                }
                // Not reached within the budget: it is told by the next plan.
                None => {
                    self.untold.insert(id);
                }
            }
        }
    }
}

/// Slots in the order of the members.
pub(crate) fn assignments(facts: &GangFacts, nodes: &[String]) -> Vec<SlotAssignment> {
    let slots = facts.members.iter().flat_map(|group| (0..group.count).map(move |slot| (&group.role, slot)));
    let one = |((role, slot), node): ((&String, u32), &String)| SlotAssignment {
        role: role.clone(),
        slot: SlotIndex(slot),
        node: node.clone(),
    };
    slots.zip(nodes).map(one).collect()
}
