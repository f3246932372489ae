//! Who wins: writes are checked against the newest state that is queued, and given their version, under one lock.
//!
//! Two writers of one object thus never both succeed on the same version, although neither has waited for the disk;
//! writers of different objects share a transaction.

use crate::entry::{Body, Entry, Key};
use crate::error::Error;
use crate::state::State;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use tokio::sync::oneshot;

/// Writes that may wait for the disk.
pub const QUEUE_RECORDS_MAX: usize = 16_384;

/// What a writer expects to find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// No such object.
    Absent,
    /// The object at this version.
    Version(u64),
}

/// Whether a write must be on disk before it is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// It must.
    #[default]
    Synced,
    /// It need not: the next durable write takes it along, and a crash may lose it. For heartbeats.
    Lazy,
}

/// Whether an object is stored or removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteKind {
    /// It is stored.
    Put,
    /// It is removed; the body is its last state.
    Delete,
}

/// One write of a batch. A batch is all or nothing.
#[derive(Debug, Clone)]
pub struct Write {
    /// Which object.
    pub key: Key,
    /// What the writer expects.
    pub expect: Expect,
    /// What to do; none only checks what is expected.
    pub body: Option<(WriteKind, Body)>,
    /// Whether it must be on disk before it is acknowledged.
    pub durability: Durability,
}

impl Write {
    /// Stores `body`.
    pub const fn put(key: Key, expect: Expect, body: Body) -> Self {
        Self { key, expect, body: Some((WriteKind::Put, body)), durability: Durability::Synced }
    }

    /// Removes the object; `body` is its last state, which watches see.
    pub const fn delete(key: Key, version: u64, body: Body) -> Self {
        Self {
            key,
            expect: Expect::Version(version),
            body: Some((WriteKind::Delete, body)),
            durability: Durability::Synced,
        }
    }

    /// Changes nothing, but fails the batch unless the object is as expected.
    pub const fn check(key: Key, expect: Expect) -> Self {
        Self { key, expect, body: None, durability: Durability::Lazy }
    }

    /// The same write with this need for the disk.
    #[must_use]
    pub const fn with_durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }
}

/// A write in its place in the order.
#[derive(Debug, Clone)]
pub(crate) struct Sealed {
    pub(crate) version: u64,
    /// None for a version that changes nothing.
    pub(crate) write: Option<(WriteKind, Arc<Entry>)>,
    pub(crate) durability: Durability,
}

/// Where the outcome of a batch goes.
pub(crate) type Acknowledge = oneshot::Sender<Result<(), Error>>;

/// A batch in its place in the order.
#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) writes: Vec<Sealed>,
    pub(crate) acknowledge: Acknowledge,
}

/// What is queued but not published.
#[derive(Debug)]
pub(crate) struct Sequencer {
    queue: VecDeque<Queued>,
    waiting: usize,
    /// Newest queued state of each object: none for one that is being removed. The number is how many queued writes
    /// it has.
    overlay: BTreeMap<Key, (Option<Arc<Entry>>, u32)>,
    next_version: u64,
    closed: bool,
}

impl Sequencer {
    pub(crate) const fn new(version: u64) -> Self {
        Self {
            queue: VecDeque::new(),
            waiting: 0,
            overlay: BTreeMap::new(),
            next_version: version + 1,
            closed: false,
        }
    }

    /// The newest state of an object, queued or published.
    pub(crate) fn latest(&self, state: &State, key: &Key) -> Option<Arc<Entry>> {
        match self.overlay.get(key) {
            Some((entry, _)) => entry.clone(),
            None => state.get(key).cloned(),
        }
    }

    /// Checks a batch and gives each write its version. Nothing is queued yet.
    pub(crate) fn seal(&mut self, state: &State, writes: Vec<Write>) -> Result<Vec<Sealed>, Error> {
        if self.closed {
            return Err(Error::Closed);
        }
        if self.waiting + writes.len() > QUEUE_RECORDS_MAX {
            return Err(Error::Overloaded { waiting: self.waiting });
        }
        for write in &writes {
            let found = self.latest(state, &write.key).map_or(0, |entry| entry.version);
            let expected = match write.expect {
                Expect::Absent => 0,
                Expect::Version(version) => version,
            };
            if found != expected {
                return Err(Error::Conflict { key: write.key.clone(), expected, found });
            }
        }
        let mut sealed = Vec::with_capacity(writes.len());
        for write in writes {
            let Some((kind, body)) = write.body else { continue };
            let version = self.next_version;
            self.next_version += 1;
            sealed.push(Sealed {
                version,
                write: Some((kind, Arc::new(body.seal(write.key, version)))),
                durability: write.durability,
            });
        }
        Ok(sealed)
    }

    /// Puts a sealed batch in the queue.
    pub(crate) fn push(&mut self, writes: Vec<Sealed>, acknowledge: Acknowledge) {
        for sealed in &writes {
            if let Some((kind, entry)) = &sealed.write {
                let newest = (*kind == WriteKind::Put).then(|| entry.clone());
                let slot = self.overlay.entry(entry.key.clone()).or_insert((None, 0));
                *slot = (newest, slot.1 + 1);
            }
        }
        self.waiting += writes.len();
        self.queue.push_back(Queued { writes, acknowledge });
    }

    /// Takes whole batches from the queue until there are `limit` records or none are left.
    pub(crate) fn take(&mut self, limit: usize) -> Vec<Queued> {
        let mut taken = Vec::new();
        let mut records = 0;
        while records < limit
            && let Some(batch) = self.queue.pop_front()
        {
            records += batch.writes.len();
            taken.push(batch);
        }
        self.waiting -= records;
        taken
    }

    /// Published writes are no longer only queued.
    pub(crate) fn settle(&mut self, batches: &[Queued]) {
        for (_, entry) in
            batches.iter().flat_map(|batch| &batch.writes).filter_map(|sealed| sealed.write.as_ref())
        {
            if let Some(slot) = self.overlay.get_mut(&entry.key) {
                slot.1 -= 1;
                if slot.1 == 0 {
                    self.overlay.remove(&entry.key);
                }
            }
        }
    }

    /// Forgets everything queued: it was built on writes that have failed. Versions are not used again.
    pub(crate) fn abandon(&mut self) -> Vec<Queued> {
        self.overlay.clear();
        self.waiting = 0;
        self.queue.drain(..).collect()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// Refuses further writes; what is queued is still written.
    pub(crate) const fn close(&mut self) {
        self.closed = true;
    }

    pub(crate) const fn is_closed(&self) -> bool {
        self.closed
    }
}
