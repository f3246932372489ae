//! One plan: classes of waiting gangs in order, each tried once, until nothing more starts.

use crate::explain::Witness;
use crate::facts::{GangFacts, GangId, QueueState};
use crate::fit::{Group, Kept, Placement, Space, is_exact};
use crate::gang::{ClassIx, Ground, OrderKey, Proof, Rests, Said, Whom};
use crate::line::Line;
use crate::nodes::NodeIx;
use crate::verdict::Verdict;
use crate::world::{Versions, World};
use regatta_types::reason::WaitReason;
use regatta_types::{SlotIndex, Timestamp};
use std::collections::BTreeMap;
use std::sync::Arc;

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
    /// Why others wait: told to a gang when it is new, and again when the typed reason has changed. Numbers that
    /// change in between are not told; [`World::explain`] gives them as they are.
    pub verdicts: BTreeMap<GangId, Verdict>,
    /// Work done.
    pub steps_used: u64,
    /// Whether every waiting gang has been considered; otherwise plan again.
    pub complete: bool,
}

/// What one look at a class gave.
enum Look {
    Fits(Placement),
    Waits(Proof),
}

impl World {
    /// Decides which gangs start now. `_now` is the time of the plan; this version decides without it.
    pub fn plan(&mut self, _now: Timestamp, budget: Budget) -> Plan {
        let mut plan = Plan { complete: true, ..Plan::default() };
        let line = loop {
            let started = plan.starts.len();
            let line = self.pass(budget, &mut plan);
            // What has started may change why others wait, and where the line keeps nodes.
            if plan.starts.len() == started || !plan.complete {
                break line;
            }
        };
        self.tell(&line, &mut plan);
        plan
    }

    /// Looks once at every class, in order of their first gangs.
    fn pass(&mut self, budget: Budget, plan: &mut Plan) -> Line {
        let mut line = Line::default();
        let mut last: Option<OrderKey> = None;
        while let Some((key, ix)) = self.next_head(last.as_ref()) {
            if plan.steps_used >= budget.steps {
                plan.complete = false;
                break;
            }
            self.space.steps = 0;
            match self.look_at(ix, &mut line) {
                Look::Fits(placement) => {
                    let nodes = self.nodes_of(ix, &placement);
                    self.place(&key.id, nodes);
                    plan.starts.push(self.start_of(&key.id));
                }
                Look::Waits(proof) => {
                    let class = self.classes.get_mut(ix);
                    class.proof = Some(proof);
                    if proof.ground == Ground::Kept {
                        line.add(&key, &class.groups);
                    }
                }
            }
            plan.steps_used += self.space.steps;
            last = Some(key);
        }
        line
    }

    fn look_at(&mut self, ix: ClassIx, line: &mut Line) -> Look {
        let class = self.classes.get(ix);
        let rests = Rests::State(self.versions.state);
        if let Some(reason) = self.queue_reason(&class.key.queue) {
            return Look::Waits(Proof { reason, ground: Ground::None, rests });
        }
        if let Some(proof) = class.proof.filter(|proof| holds(*proof, self.versions)) {
            return Look::Waits(proof);
        }
        // Every look costs something, so that a plan without budget left ends.
        self.space.steps += 1;
        let groups = Arc::clone(&class.groups);
        let Some(placement) = self.space.fit(&groups, &Kept::default()) else {
            return Look::Waits(self.prove(ix, &groups));
        };
        let kept = line.kept(&mut self.space, self.versions.state);
        let placement = if kept.is_empty() { Some(placement) } else { self.space.fit(&groups, kept) };
        match placement {
            Some(placement) => Look::Fits(placement),
            None => {
                let rests = Rests::State(line.as_of(self.versions.state));
                Look::Waits(Proof { reason: WaitReason::BehindOthers, ground: Ground::Kept, rests })
            }
        }
    }

    /// Why a class does not fit on what is free, and until when that need not be asked again.
    fn prove(&mut self, ix: ClassIx, groups: &[Group]) -> Proof {
        let Versions { nodes, room, state } = self.versions;
        // With several groups, a placement may be missed in one state and found in another with less room.
        let exact = is_exact(groups);
        if self.space.could_hold(groups) {
            let rests = if exact { Rests::Room(room) } else { Rests::State(state) };
            return Proof { reason: WaitReason::InsufficientCapacity, ground: Ground::Kept, rests };
        }
        let members = &self.classes.get(ix).key.members;
        let impossible = members.iter().any(|group| self.space.impossible(group).is_some());
        let reason = if impossible { WaitReason::NoSuchNode } else { WaitReason::InsufficientCapacity };
        let rests = if exact || impossible { Rests::Nodes(nodes) } else { Rests::State(state) };
        Proof { reason, ground: Ground::None, rests }
    }

    pub(crate) fn queue_reason(&self, queue: &str) -> Option<WaitReason> {
        match self.queues.get(queue) {
            None => Some(WaitReason::QueueNotFound),
            Some(QueueState::Stopped) => Some(WaitReason::QueueStopped),
            Some(QueueState::Open) => None,
        }
    }

    fn nodes_of(&self, ix: ClassIx, placement: &Placement) -> Vec<NodeIx> {
        let sorted = placement.iter().flat_map(|nodes| by_name(nodes, &self.space));
        let nodes: Vec<NodeIx> = sorted.flat_map(|(node, count)| (0..count).map(move |_| node)).collect();
        debug_assert_eq!(
            u64::try_from(nodes.len()).ok(),
            Some(crate::fit::size(&self.classes.get(ix).groups)),
            "whole gangs only"
        );
        nodes
    }

    fn start_of(&self, id: &GangId) -> Start {
        let gang = self.gangs.get(id).map(|gang| (&gang.facts, gang.nodes.as_deref().unwrap_or_default()));
        let placement =
            gang.map(|(facts, nodes)| assignments(facts, nodes.iter().map(|ix| self.space.nodes.name(*ix))));
        Start { gang: id.clone(), placement: placement.unwrap_or_default() }
    }

    /// Tells gangs why they wait: those whose reason has changed, and those that are new.
    fn tell(&mut self, line: &Line, plan: &mut Plan) {
        let heads: Vec<(OrderKey, ClassIx)> = self.heads.iter().map(|(key, ix)| (key.clone(), *ix)).collect();
        for (head, ix) in heads {
            let class = self.classes.get_mut(ix);
            // Not reached within the budget: it is told by a later plan.
            let Some(proof) = class.proof.filter(|proof| holds(*proof, self.versions)) else { continue };
            if class.told_head.replace(proof.reason) != Some(proof.reason) {
                class.untold.insert(head.clone());
            }
            let others = proof.reason_of_others();
            if class.told_others.replace(others) != Some(others) {
                class.untold.extend(class.waiting.iter().skip(1).cloned());
            }
            let untold = std::mem::take(&mut class.untold);
            if untold.is_empty() {
                continue;
            }
            for key in untold {
                let verdict = self.say(&head, &key, ix, proof, line);
                plan.verdicts.insert(key.id, verdict);
            }
        }
    }

    /// The verdict for a gang of a class. Found once in a state for the first gang, and once for the others.
    fn say(&mut self, head: &OrderKey, key: &OrderKey, ix: ClassIx, proof: Proof, line: &Line) -> Verdict {
        let state = self.versions.state;
        let whom = if key == head { Whom::Head } else { Whom::Other };
        let class = self.classes.get(ix);
        let said = class.said.as_ref().filter(|said| said.state == state);
        if let Some(verdict) = said.and_then(|said| said.to(whom)) {
            return verdict.clone();
        }
        let reason = match whom {
            Whom::Head => proof.reason,
            Whom::Other => proof.reason_of_others(),
        };
        let mut said = said.cloned().unwrap_or(Said { state, to_head: None, to_others: None });
        let mut space = std::mem::take(&mut self.space);
        let mut witness = Witness { world: self, space: &mut space, line };
        let verdict = witness.verdict(&class.key, &class.groups, key, reason);
        self.space = space;
        match whom {
            Whom::Head => said.to_head = Some(verdict.clone()),
            Whom::Other => said.to_others = Some(verdict.clone()),
        }
        self.classes.get_mut(ix).said = Some(said);
        verdict
    }
}

/// Whether nothing has changed on which a proof rests.
fn holds(proof: Proof, versions: Versions) -> bool {
    match proof.rests {
        Rests::Nodes(version) => version == versions.nodes,
        Rests::Room(version) => version == versions.room,
        Rests::State(version) => version == versions.state,
    }
}

/// Nodes of one group by name, so that slots follow the order of the names.
pub(crate) fn by_name(nodes: &[(NodeIx, u32)], space: &Space) -> Vec<(NodeIx, u32)> {
    let mut sorted = nodes.to_vec();
    sorted.sort_by(|a, b| space.nodes.name(a.0).cmp(space.nodes.name(b.0)));
    sorted
}

/// Slots in the order of the members.
pub(crate) fn assignments<'a>(
    facts: &GangFacts,
    nodes: impl IntoIterator<Item = &'a str>,
) -> Vec<SlotAssignment> {
    let slots = facts.members.iter().flat_map(|group| (0..group.count).map(move |slot| (&group.role, slot)));
    let one = |((role, slot), node): ((&String, u32), &str)| SlotAssignment {
        role: role.clone(),
        slot: SlotIndex(slot),
        node: node.to_owned(),
    };
    slots.zip(nodes).map(one).collect()
}
