//! Changes of one kind, in order, seen through a selection: an object that comes into it is new, one that leaves it is
//! gone.

use super::Engine;
use crate::error::from_store;
use crate::registry::Kind;
use crate::selector::Selector;
use bytes::Bytes;
use regatta_kit::ApiError;
use regatta_store::{Change, Entry, Subscription};
use std::sync::Arc;

/// What happened to an object, as the selection shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventKind {
    Added,
    Modified,
    Deleted,
}

impl EventKind {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
        }
    }
}

/// One event.
#[derive(Debug, Clone)]
pub(crate) struct Event {
    pub(crate) kind: EventKind,
    pub(crate) json: Bytes,
}

/// A running watch.
pub(crate) struct Watching {
    subscription: Subscription,
    view: View,
    resource: regatta_types::Resource,
}

struct View {
    namespace: Option<String>,
    selector: Selector,
}

impl Engine {
    /// Watches from `version` on.
    pub(crate) fn start_watch(
        &self,
        kind: &Kind,
        namespace: Option<&str>,
        selector: Selector,
        version: u64,
    ) -> Result<Watching, ApiError> {
        let subscription = self
            .store
            .watch(kind.store_name(), version)
            .map_err(|error| from_store(&kind.resource, "", &error))?;
        let view = View { namespace: namespace.map(str::to_owned), selector };
        Ok(Watching { subscription, view, resource: kind.resource })
    }
}

impl Watching {
    /// The next events, perhaps none of interest, and the version up to which nothing is missing. None when the server
    /// stops. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<Option<(Vec<Event>, u64)>, ApiError> {
        let batch = self.subscription.next().await.map_err(|error| from_store(&self.resource, "", &error))?;
        Ok(batch.map(|batch| {
            let events = batch.changes.iter().filter_map(|change| self.view.event(change)).collect();
            (events, batch.version)
        }))
    }

    /// What is there already, without waiting: for bookmarks.
    pub(crate) fn ready(&mut self) -> Result<(Vec<Event>, u64), ApiError> {
        let batch = self.subscription.ready().map_err(|error| from_store(&self.resource, "", &error))?;
        let events = batch.changes.iter().filter_map(|change| self.view.event(change)).collect();
        Ok((events, batch.version))
    }
}

impl View {
    fn shows(&self, entry: &Entry) -> bool {
        let here = self.namespace.as_deref().is_none_or(|namespace| *entry.key.path.namespace == *namespace);
        here && self.selector.matches(entry)
    }

    fn event(&self, change: &Change) -> Option<Event> {
        let shown = |entry: &Option<Arc<Entry>>| entry.as_ref().is_some_and(|entry| self.shows(entry));
        let before = shown(&change.old);
        let there = change.kind == regatta_store::ChangeKind::Put;
        let after = there && self.shows(&change.new);
        let (kind, json) = match (before, after) {
            (false, true) => (EventKind::Added, change.new.json.clone()),
            (true, true) => (EventKind::Modified, change.new.json.clone()),
            (true, false) if there => {
                // The last state that was in the selection, at the version at which it left.
                let old = change.old.as_ref().unwrap_or(&change.new);
                (EventKind::Deleted, old.json_as_of(change.version))
            }
            (true, false) => (EventKind::Deleted, change.new.json.clone()),
            (false, false) => return None,
        };
        Some(Event { kind, json })
    }
}
