//! Events do not last: they are removed an hour after they last happened, or when there are too many.
//!
//! There is no timer: whoever makes an event pays for the removal of old ones, and whoever lists events does not see
//! those that are over. So a run can be repeated exactly, and an idle server does nothing.

use super::Engine;
use super::delete::Deletion;
use crate::object::parse;
use regatta_store::Key;
use regatta_types::{Timestamp, resource};
use serde_json::Value;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How long an event is kept after it last happened.
pub const EVENT_TTL_MS: i64 = 3_600_000;
/// How many events are kept in all; the oldest go first.
pub const EVENTS_MAX: usize = 10_000;

/// Events by the time at which to look at them again, oldest first. None before anybody asked.
#[derive(Debug, Default)]
pub(crate) struct Ledger(Mutex<Option<VecDeque<(Timestamp, Key)>>>);

impl Ledger {
    fn lock(&self) -> MutexGuard<'_, Option<VecDeque<(Timestamp, Key)>>> {
        // The queue is valid after every statement, so a panic elsewhere does not make it unusable.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why an event is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    Old,
    TooMany,
}

impl Engine {
    /// Takes note of a new event.
    pub(crate) fn note_event(&self, key: &Key) {
        let now = self.clock.now();
        if let Some(queue) = self.ledger.lock().as_mut() {
            queue.push_back((now, key.clone()));
        }
    }

    /// Removes events that are over.
    pub(crate) async fn expire_events(&self) {
        while let Some((cause, key)) = self.next_event() {
            let Some(entry) = self.store.latest(&key) else { continue };
            let happened = parse(&entry).map_or(Timestamp::default(), |event| last_happened(&event));
            if cause == Cause::Old && !self.is_over(happened) {
                // It has happened again since.
                self.requeue(happened, key);
                continue;
            }
            let Some(kind) = self.registry.of(&resource::EVENTS) else { return };
            if let Err(error) = self.delete_object(kind, &key, &Deletion::default()).await
                && !error.is_not_found()
            {
                tracing::warn!(%error, %key, "an event that is over was not removed; the next event tries again");
                self.requeue(happened, key);
                return;
            }
        }
    }

    fn is_over(&self, happened: Timestamp) -> bool {
        self.clock.now() >= happened.plus_ms(EVENT_TTL_MS)
    }

    fn next_event(&self) -> Option<(Cause, Key)> {
        let mut ledger = self.ledger.lock();
        let queue = ledger.get_or_insert_with(|| self.load());
        let (at, _) = queue.front()?;
        let cause = if self.is_over(*at) {
            Cause::Old
        } else if queue.len() > EVENTS_MAX {
            Cause::TooMany
        } else {
            return None;
        };
        queue.pop_front().map(|(_, key)| (cause, key))
    }

    fn load(&self) -> VecDeque<(Timestamp, Key)> {
        let events = self.store.list(resource::EVENTS.plural, None, None, usize::MAX).entries;
        let dated = |entry: &std::sync::Arc<regatta_store::Entry>| {
            let happened = parse(entry).map_or(Timestamp::default(), |event| last_happened(&event));
            (happened, entry.key.clone())
        };
        let mut queue: Vec<_> = events.iter().map(dated).collect();
        queue.sort();
        queue.into()
    }

    fn requeue(&self, at: Timestamp, key: Key) {
        if let Some(queue) = self.ledger.lock().as_mut() {
            let place = queue.partition_point(|(known, _)| *known <= at);
            queue.insert(place, (at, key));
        }
    }
}

/// When an event last happened, by whatever its writer says.
fn last_happened(event: &Value) -> Timestamp {
    let times = [
        &event["lastTimestamp"],
        &event["series"]["lastObservedTime"],
        &event["eventTime"],
        &event["metadata"]["creationTimestamp"],
    ];
    let parsed = times.into_iter().filter_map(|time| time.as_str().and_then(Timestamp::parse));
    parsed.max().unwrap_or_default()
}
