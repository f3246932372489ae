//! Gangs as the world keeps them: their place in the order and their class.

use crate::facts::{Amounts, GangFacts, GangId, MemberGroup};
use crate::fit::Group;
use crate::nodes::NodeIx;
use crate::verdict::Verdict;
use regatta_types::Timestamp;
use regatta_types::reason::WaitReason;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Place in the order: the least is served first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OrderKey {
    pub(crate) priority: Reverse<i32>,
    pub(crate) submitted: Timestamp,
    pub(crate) id: GangId,
}

impl OrderKey {
    pub(crate) fn of(facts: &GangFacts) -> Self {
        Self { priority: Reverse(facts.priority), submitted: facts.submitted, id: facts.id.clone() }
    }
}

/// Everything on which the outcome of a try depends, apart from the order. Gangs of one class fit or don't fit alike.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ClassKey {
    pub(crate) queue: String,
    pub(crate) members: Vec<MemberGroup>,
}

/// A place in the table of classes. Says nothing about order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ClassIx(usize);

/// What a proof rests on, in which version. As long as that has not changed, it need not be made again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rests {
    /// On which nodes there are.
    Nodes(u64),
    /// On no room having been made.
    Room(u64),
    /// On everything.
    State(u64),
}

/// Whether room is kept for a gang that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ground {
    /// The nodes there are could hold it, so some are kept.
    Kept,
    /// It waits for something else than others to end.
    None,
}

/// That a class cannot start as things are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Proof {
    pub(crate) reason: WaitReason,
    pub(crate) ground: Ground,
    pub(crate) rests: Rests,
}

impl Proof {
    /// The reason why the others of the class wait: those that keep nothing themselves wait for the first one.
    pub(crate) fn reason_of_others(&self) -> WaitReason {
        match self.ground {
            Ground::Kept => WaitReason::BehindOthers,
            Ground::None => self.reason,
        }
    }
}

/// A gang's place in its class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whom {
    Head,
    Other,
}

/// What was said of a class in one state of the world: to its first gang and to the others.
#[derive(Debug, Clone)]
pub(crate) struct Said {
    pub(crate) state: u64,
    pub(crate) to_head: Option<Verdict>,
    pub(crate) to_others: Option<Verdict>,
}

impl Said {
    /// What was said to the first gang or to others.
    pub(crate) fn to(&self, whom: Whom) -> Option<&Verdict> {
        match whom {
            Whom::Head => self.to_head.as_ref(),
            Whom::Other => self.to_others.as_ref(),
        }
    }
}

/// Waiting gangs that are alike.
#[derive(Debug, Clone)]
pub(crate) struct Class {
    pub(crate) key: ClassKey,
    pub(crate) groups: Arc<[Group]>,
    pub(crate) waiting: BTreeSet<OrderKey>,
    pub(crate) proof: Option<Proof>,
    /// The reason that its first gang was last told.
    pub(crate) told_head: Option<WaitReason>,
    /// The reason that the others were last told.
    pub(crate) told_others: Option<WaitReason>,
    /// Those that have not been told.
    pub(crate) untold: BTreeSet<OrderKey>,
    pub(crate) said: Option<Said>,
}

impl Class {
    pub(crate) fn new(key: ClassKey, groups: Arc<[Group]>) -> Self {
        let (waiting, untold) = (BTreeSet::new(), BTreeSet::new());
        Self { key, groups, waiting, proof: None, told_head: None, told_others: None, untold, said: None }
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct ClassTable {
    by_key: BTreeMap<ClassKey, ClassIx>,
    slots: Vec<Option<Class>>,
    vacant: Vec<ClassIx>,
}

impl ClassTable {
    pub(crate) fn find(&self, key: &ClassKey) -> Option<ClassIx> {
        self.by_key.get(key).copied()
    }

    pub(crate) fn insert(&mut self, class: Class) -> ClassIx {
        let ix = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(None);
            ClassIx(self.slots.len() - 1)
        });
        self.by_key.insert(class.key.clone(), ix);
        self.slots[ix.0] = Some(class);
        ix
    }

    pub(crate) fn remove(&mut self, ix: ClassIx) -> Option<Class> {
        let class = self.slots[ix.0].take()?;
        self.by_key.remove(&class.key);
        self.vacant.push(ix);
        Some(class)
    }

    pub(crate) fn get(&self, ix: ClassIx) -> &Class {
        self.slots[ix.0].as_ref().expect("invariant: a class lives as long as gangs of it wait")
    }

    pub(crate) fn get_mut(&mut self, ix: ClassIx) -> &mut Class {
        self.slots[ix.0].as_mut().expect("invariant: a class lives as long as gangs of it wait")
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Gang {
    pub(crate) facts: GangFacts,
    /// The class it waits in, while it does.
    pub(crate) class: Option<ClassIx>,
    /// Nodes of its slots, while it holds any.
    pub(crate) nodes: Option<Vec<NodeIx>>,
}

impl Gang {
    /// What it holds, by node.
    pub(crate) fn held(&self) -> BTreeMap<NodeIx, Amounts> {
        let mut held: BTreeMap<NodeIx, Amounts> = BTreeMap::new();
        let requests = self.facts.members.iter().flat_map(|group| (0..group.count).map(|_| group.request));
        for (node, request) in self.nodes.iter().flatten().zip(requests) {
            let entry = held.entry(*node).or_default();
            *entry = entry.plus(request);
        }
        held
    }
}
