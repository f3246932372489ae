//! The line: what is kept for gangs that wait, so that later ones cannot starve them.
//!
//! The rule. Gangs are served by priority, then age. The first gang of each class that cannot start now keeps its
//! *home*: the nodes where it is closest to fitting (most members fit already, then least is missing). Later gangs may
//! take of those nodes only what leaves the home whole. So small gangs fill what a large one cannot use yet, and:
//!
//! - Nothing that comes later ever makes a home worse: it takes of a kept node only when afterwards everything kept
//!   there is still free.
//! - A home moves only to nodes that are closer still, and these are finitely many steps.
//! - What runs on a home ends some day, and nobody later takes its place.
//!
//! Hence each gang that the nodes could hold starts after the ones before it have started and the ones on its home have
//! ended, however many come later. Only gangs that come *before* it can delay it further: those of higher priority.
//! With several roles this holds as long as a home is found: homes are found role by role, and one that exists may be
//! missed. A gang that the nodes there are could not hold even when empty keeps nothing, so it stops nobody. A gang never
//! has to start at its home: it takes any nodes that are free and not kept for somebody before it. Homes are a function
//! of the present state alone: the plan does not depend on how the state came about.

use crate::facts::{Amounts, GangId};
use crate::fit::{Group, Kept, Space, keep};
use crate::gang::OrderKey;
use crate::nodes::NodeIx;
use std::collections::BTreeMap;
use std::sync::Arc;

/// How many gangs that wait may keep nodes at a time, the first ones of the line. One is enough for nobody to starve; more
/// of them wait less, and keep more idle.
const HOMES_KEPT_MAX: usize = 8;

/// A gang that keeps nodes.
#[derive(Debug, Clone)]
pub(crate) struct Home {
    pub(crate) key: OrderKey,
    pub(crate) needs: BTreeMap<NodeIx, Amounts>,
}

/// Gangs that wait for room, first ones first.
#[derive(Debug, Default)]
pub(crate) struct Line {
    /// Not yet given a home: that is done when somebody later asks.
    pending: Vec<(OrderKey, Arc<[Group]>)>,
    first: Option<OrderKey>,
    /// How many have been given a home, or will be tried. Must not depend on whether anybody has asked.
    tried: usize,
    homes: Vec<Home>,
    kept: Kept,
    /// The state of the world in which the first home was found.
    as_of: Option<u64>,
}

impl Line {
    /// A gang that cannot start, after all that were added before.
    pub(crate) fn add(&mut self, key: &OrderKey, groups: &Arc<[Group]>) {
        self.first.get_or_insert_with(|| key.clone());
        if self.tried < HOMES_KEPT_MAX {
            self.tried += 1;
            self.pending.push((key.clone(), Arc::clone(groups)));
        }
    }

    /// What the gangs of the line keep; `state` is the version of what `space` is like. One for which there is no room
    /// beside those before it keeps nothing yet.
    pub(crate) fn kept(&mut self, space: &mut Space, state: u64) -> &Kept {
        self.as_of.get_or_insert(state);
        for (key, groups) in std::mem::take(&mut self.pending) {
            let Some(home) = space.home(&groups, &self.kept) else { continue };
            let needs = space.needs(&groups, &home);
            needs.iter().for_each(|(node, amounts)| keep(&mut self.kept, *node, *amounts));
            self.homes.push(Home { key, needs });
        }
        &self.kept
    }

    /// The state that a proof rests on which was made in `state` with what is kept. Homes that were found before
    /// something started in the same plan may not be where they would be found now.
    pub(crate) fn as_of(&self, state: u64) -> u64 {
        self.as_of.unwrap_or(state)
    }

    /// The groups of gangs that have no home yet.
    pub(crate) fn groups(&self) -> impl Iterator<Item = &Group> {
        self.pending.iter().flat_map(|(_, groups)| groups.iter())
    }

    /// The homes of the line.
    pub(crate) fn homes(&mut self, space: &mut Space, state: u64) -> &[Home] {
        self.kept(space, state);
        &self.homes
    }

    /// The first gang of the line, where that is not the one at `key` or one after it.
    pub(crate) fn first_before(&self, key: &OrderKey) -> Option<&GangId> {
        self.first.as_ref().filter(|first| *first < key).map(|first| &first.id)
    }
}
