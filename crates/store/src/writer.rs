//! The one thread that writes: takes what is queued, makes it durable in one transaction, and only then shows it.

use crate::database::{Database, Failure};
use crate::entry::{Entry, Key};
use crate::error::Error;
use crate::sequencer::{Durability, Queued, Sealed};
use crate::store::Shared;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

/// Records in one transaction.
pub const BATCH_RECORDS_MAX: usize = 1024;
/// Objects whose lazy writes wait for a transaction to take them along.
pub const LAZY_OBJECTS_MAX: usize = 1024;

pub(crate) struct Writer {
    shared: Arc<Shared>,
    database: Database,
    /// Published, but not in the database yet; the newest of each object.
    lazy: BTreeMap<Key, Sealed>,
}

impl Writer {
    pub(crate) const fn new(shared: Arc<Shared>, database: Database) -> Self {
        Self { shared, database, lazy: BTreeMap::new() }
    }

    /// Writes until the store is closed and nothing is queued.
    pub(crate) fn run(mut self) {
        // Also when this thread panics: nobody shall wait for it.
        let _closes = CloseOnDrop(self.shared.clone());
        while let Some(batches) = self.next() {
            match self.persist(&batches) {
                Ok(()) => self.shared.publish(batches),
                Err(failure) => self.refuse(batches, failure),
            }
        }
        let version = self.shared.read().version();
        let lazy: Vec<&Sealed> = self.lazy.values().collect();
        if let Err(problem) = self.database.close(&lazy, version) {
            tracing::warn!(%problem, "the store was closed without its last lazy writes");
        }
    }

    fn next(&self) -> Option<Vec<Queued>> {
        let mut sequencer = self.shared.sequencer();
        while sequencer.is_idle() {
            if sequencer.is_closed() {
                return None;
            }
            sequencer = self.shared.wake.wait(sequencer).unwrap_or_else(PoisonError::into_inner);
        }
        Some(sequencer.take(BATCH_RECORDS_MAX))
    }

    fn persist(&mut self, batches: &[Queued]) -> Result<(), Failure> {
        let writes = || batches.iter().flat_map(|batch| &batch.writes);
        let Some(version) = writes().map(|sealed| sealed.version).max() else { return Ok(()) };
        let lazy = writes().all(|sealed| sealed.durability == Durability::Lazy);
        if lazy && self.database.covers(version) && self.lazy.len() < LAZY_OBJECTS_MAX {
            for sealed in writes() {
                if let Some((_, entry)) = &sealed.write {
                    self.lazy.insert(entry.key.clone(), sealed.clone());
                }
            }
            return Ok(());
        }
        if self.database.needs_renewal() {
            let entries: Vec<Arc<Entry>> = self.shared.read().entries().cloned().collect();
            self.database.renew(entries.iter())?;
        }
        let all: Vec<&Sealed> = self.lazy.values().chain(writes()).collect();
        self.database.commit(&all, version)?;
        self.lazy.clear();
        Ok(())
    }

    /// Refuses the batches and all that is queued behind them, which was built on them.
    fn refuse(&self, batches: Vec<Queued>, failure: Failure) {
        let error = Error::from(failure);
        tracing::error!(%error, "writes were refused");
        let behind = self.shared.sequencer().abandon();
        for batch in batches.into_iter().chain(behind) {
            // Who no longer waits need not be told.
            let _ = batch.acknowledge.send(Err(error.clone()));
        }
    }
}

struct CloseOnDrop(Arc<Shared>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        let mut sequencer = self.0.sequencer();
        sequencer.close();
        for batch in sequencer.abandon() {
            let _ = batch.acknowledge.send(Err(Error::Closed));
        }
    }
}
