//! The last changes of one resource, for watches. Bounded by count and by bytes; what falls out is remembered only as
//! the version below which a watch must start over.

use crate::entry::Entry;
use crate::error::Error;
use std::collections::VecDeque;
use std::sync::Arc;

/// Changes that are kept for each resource.
pub const HISTORY_EVENTS_MAX: usize = 8192;
/// Bytes of objects in the changes that are kept for each resource.
pub const HISTORY_BYTES_MAX: usize = 8 << 20;

/// One change of one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Version of the change.
    pub version: u64,
    /// The object before; none when it was created.
    pub old: Option<Arc<Entry>>,
    /// The object after; for a deletion its last state.
    pub new: Arc<Entry>,
    /// Whether the object is there after the change.
    pub kind: ChangeKind,
}

/// Whether an object is there after a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    /// It is.
    Put,
    /// It is gone.
    Delete,
}

#[derive(Debug)]
pub(crate) struct History {
    changes: VecDeque<Change>,
    bytes: usize,
    /// Version of the newest change that is not kept; a watch from before it would miss something.
    floor: u64,
    events_max: usize,
    bytes_max: usize,
}

impl History {
    pub(crate) fn new(floor: u64) -> Self {
        Self::with_limits(floor, HISTORY_EVENTS_MAX, HISTORY_BYTES_MAX)
    }

    pub(crate) fn with_limits(floor: u64, events_max: usize, bytes_max: usize) -> Self {
        Self { changes: VecDeque::new(), bytes: 0, floor, events_max, bytes_max }
    }

    pub(crate) fn push(&mut self, change: Change) {
        debug_assert!(
            self.changes.back().is_none_or(|last| last.version < change.version),
            "changes come in order"
        );
        self.bytes += change.new.json.len();
        self.changes.push_back(change);
        // The newest change always stays, however large it is.
        while self.changes.len() > 1 && (self.changes.len() > self.events_max || self.bytes > self.bytes_max)
        {
            if let Some(oldest) = self.changes.pop_front() {
                self.bytes -= oldest.new.json.len();
                self.floor = oldest.version;
            }
        }
    }

    pub(crate) fn check(&self, version: u64) -> Result<(), Error> {
        if version < self.floor { Err(Error::Expired { version, oldest: self.floor }) } else { Ok(()) }
    }

    /// At most `limit` changes after `version`, oldest first.
    pub(crate) fn after(&self, version: u64, limit: usize) -> Result<Vec<Change>, Error> {
        self.check(version)?;
        let start = self.changes.partition_point(|change| change.version <= version);
        Ok(self.changes.range(start..).take(limit).cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{Key, tests::body};

    fn change(version: u64, text: &str) -> Change {
        let key = Key::new("pods", "ns", "a");
        let new = Arc::new(body(&key, text).seal(key.clone(), version));
        Change { version, old: None, new, kind: ChangeKind::Put }
    }

    #[test]
    fn what_falls_out_expires_the_watches_that_needed_it() {
        let mut history = History::with_limits(10, 3, usize::MAX);
        for version in [11, 13, 14, 17] {
            history.push(change(version, "x"));
        }
        let versions = |from, limit| -> Result<Vec<u64>, Error> {
            Ok(history.after(from, limit)?.iter().map(|change| change.version).collect())
        };
        assert!(matches!(versions(10, 9), Err(Error::Expired { version: 10, oldest: 11 })));
        assert_eq!(versions(11, 9).unwrap(), [13, 14, 17]);
        assert_eq!(versions(12, 2).unwrap(), [13, 14]);
        assert_eq!(versions(17, 9).unwrap(), [0_u64; 0]);
    }

    #[test]
    fn bytes_are_bounded_but_the_newest_change_stays() {
        let mut history = History::with_limits(0, 100, 400);
        for version in 1..=20 {
            history.push(change(version, &"x".repeat(100)));
            assert!(history.changes.len() <= 2, "two of these do not fit into 400 bytes with a third");
        }
        history.push(change(21, &"x".repeat(1000)));
        assert_eq!(history.after(20, 9).unwrap().len(), 1);
        assert!(history.after(19, 9).is_err());
    }
}
