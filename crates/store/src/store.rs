//! The handle: read, write, watch.

use crate::database::Database;
use crate::disk::{Directory, Volume};
use crate::entry::{Entry, Key, Path};
use crate::error::Error;
use crate::history::Change;
use crate::sequencer::{Queued, Sealed, Sequencer, Write};
use crate::state::{Listing, State};
use crate::writer::Writer;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use tokio::sync::{oneshot, watch};

/// Changes that a watch takes at once.
pub const WATCH_BATCH_MAX: usize = 256;

/// A store. Cheap to clone; all clones are the same store.
#[derive(Clone)]
pub struct Store {
    handle: Arc<Handle>,
}

/// What all clones of a store have in common; the last one closes it.
struct Handle {
    shared: Arc<Shared>,
    writer: WriterThread,
}

/// What readers, writers and the writer thread share.
///
/// Lock order: the sequencer before the state.
pub(crate) struct Shared {
    sequencer: Mutex<Sequencer>,
    state: RwLock<State>,
    /// Wakes the writer thread.
    pub(crate) wake: Condvar,
}

enum WriterThread {
    /// No disk: a write is done when `commit` returns.
    None,
    Running(Mutex<Option<JoinHandle<()>>>),
}

impl Store {
    /// Opens the database file at `path`, or makes an empty one.
    ///
    /// # Errors
    /// When it is in use, damaged, of a newer format, or the disk fails.
    pub fn open(path: &std::path::Path) -> Result<Self, Error> {
        let bad =
            |problem: &str| Error::Open { file: path.display().to_string(), problem: problem.to_owned() };
        let file = path
            .file_name()
            .and_then(|name| name.to_str())
            .ok_or_else(|| bad("it is not the name of a file"))?;
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => std::path::Path::new("."),
        };
        Self::open_on(Arc::new(Directory::new(directory)), file)
    }

    /// Opens the database `file` of `volume`, or makes an empty one.
    ///
    /// # Errors
    /// As for [`Store::open`].
    pub fn open_on(volume: Arc<dyn Volume>, file: &str) -> Result<Self, Error> {
        let name = volume.describe(file);
        let (database, content) = Database::open(volume, file)?;
        let shared = Arc::new(Shared::new(State::new(content.entries, content.ceiling)));
        let writer = Writer::new(shared.clone(), database);
        let thread = std::thread::Builder::new()
            .name("regatta-store".to_owned())
            .spawn(move || writer.run())
            .map_err(|e| Error::Open {
                file: name,
                problem: format!("cannot start the writer thread: {e}"),
            })?;
        Ok(Self {
            handle: Arc::new(Handle { shared, writer: WriterThread::Running(Mutex::new(Some(thread))) }),
        })
    }

    /// An empty store without a disk, for tests and simulation. Writes take effect in the caller's thread, in the
    /// order of the calls, so that a run can be repeated exactly.
    pub fn in_memory() -> Self {
        let shared = Arc::new(Shared::new(State::new(Vec::new(), 0)));
        Self { handle: Arc::new(Handle { shared, writer: WriterThread::None }) }
    }

    /// Commits a batch, all or nothing. Whether it is accepted is known at once; when it is durable and visible, the
    /// returned future is done. Dropping the future does not take the batch back.
    ///
    /// An empty batch is a barrier: it is done when everything queued before it is.
    ///
    /// # Errors
    /// When an expectation of the batch does not hold against the newest queued state, or the queue is full.
    pub fn commit(&self, writes: Vec<Write>) -> Result<Pending, Error> {
        let (acknowledge, outcome) = oneshot::channel();
        let shared = &self.handle.shared;
        let mut sequencer = shared.sequencer();
        let sealed = {
            let state = shared.read();
            sequencer.seal(&state, writes)?
        };
        let entries = sealed
            .iter()
            .filter_map(|sealed| sealed.write.as_ref().map(|(_, entry)| entry.clone()))
            .collect();
        match self.handle.writer {
            WriterThread::None => {
                // Under the sequencer's lock, so that versions are published in order.
                shared.write_now(&sealed);
                let _ = acknowledge.send(Ok(()));
            }
            WriterThread::Running(_) => {
                sequencer.push(sealed, acknowledge);
                drop(sequencer);
                shared.wake.notify_one();
            }
        }
        Ok(Pending { entries, outcome })
    }

    /// The published object.
    pub fn get(&self, key: &Key) -> Option<Arc<Entry>> {
        self.handle.shared.read().get(key).cloned()
    }

    /// The newest state of an object, which may not be durable yet: what a write is built on, never what a reader is
    /// shown.
    pub fn latest(&self, key: &Key) -> Option<Arc<Entry>> {
        let sequencer = self.handle.shared.sequencer();
        sequencer.latest(&self.handle.shared.read(), key)
    }

    /// At most `limit` objects of `resource` after `after`, in one namespace or all.
    pub fn list(
        &self,
        resource: &str,
        namespace: Option<&str>,
        after: Option<&Path>,
        limit: usize,
    ) -> Listing {
        self.handle.shared.read().list(resource, namespace, after, limit)
    }

    /// How many objects of `resource` there are.
    pub fn count(&self, resource: &str) -> usize {
        self.handle.shared.read().count(resource)
    }

    /// Objects that name `uid` as an owner.
    pub fn owned_by(&self, uid: &str) -> Vec<Key> {
        self.handle.shared.read().owned_by(uid)
    }

    /// Every uid that is named as an owner.
    pub fn owners(&self) -> Vec<Box<str>> {
        self.handle.shared.read().owners()
    }

    /// Every published object.
    pub fn entries(&self) -> Vec<Arc<Entry>> {
        self.handle.shared.read().entries().cloned().collect()
    }

    /// The newest published version.
    pub fn version(&self) -> u64 {
        self.handle.shared.read().version()
    }

    /// Watches `resource` for changes after `version`.
    ///
    /// # Errors
    /// When `version` is too old or in the future.
    pub fn watch(&self, resource: impl Into<Arc<str>>, version: u64) -> Result<Subscription, Error> {
        let resource = resource.into();
        let mut state = self.handle.shared.state.write().unwrap_or_else(PoisonError::into_inner);
        let changed = state.subscribe(&resource, version)?;
        drop(state);
        Ok(Subscription {
            shared: self.handle.shared.clone(),
            resource,
            position: version,
            changed,
            fresh: true,
        })
    }

    /// Refuses further writes, makes durable what is queued, ends all watches, and closes the database.
    pub fn close(&self) {
        self.handle.close();
    }
}

impl Handle {
    fn close(&self) {
        self.shared.sequencer().close();
        self.shared.wake.notify_all();
        if let WriterThread::Running(thread) = &self.writer
            && let Some(thread) = thread.lock().unwrap_or_else(PoisonError::into_inner).take()
            && thread.join().is_err()
        {
            tracing::error!("the store's writer thread had panicked");
        }
        self.shared.state.write().unwrap_or_else(PoisonError::into_inner).close();
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("version", &self.version()).finish_non_exhaustive()
    }
}

impl Shared {
    fn new(state: State) -> Self {
        let sequencer = Mutex::new(Sequencer::new(state.version()));
        Self { sequencer, state: RwLock::new(state), wake: Condvar::new() }
    }

    // A panic elsewhere poisons the locks, but every critical section leaves what they guard whole.
    pub(crate) fn sequencer(&self) -> MutexGuard<'_, Sequencer> {
        self.sequencer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_now(&self, sealed: &[Sealed]) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        for write in sealed {
            state.publish(write);
        }
    }

    /// Shows durable batches and acknowledges them.
    pub(crate) fn publish(&self, batches: Vec<Queued>) {
        {
            let mut sequencer = self.sequencer();
            let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
            for sealed in batches.iter().flat_map(|batch| &batch.writes) {
                state.publish(sealed);
            }
            sequencer.settle(&batches);
        }
        for batch in batches {
            // Who no longer waits need not be told.
            let _ = batch.acknowledge.send(Ok(()));
        }
    }
}

/// A batch that has been accepted.
#[derive(Debug)]
#[must_use = "a batch is durable only once this is done"]
pub struct Pending {
    entries: Vec<Arc<Entry>>,
    outcome: oneshot::Receiver<Result<(), Error>>,
}

impl Pending {
    /// Blocks until the batch is durable and visible. Not for use inside an async runtime.
    ///
    /// # Errors
    /// When the disk did not take it.
    pub fn wait(self) -> Result<Vec<Arc<Entry>>, Error> {
        futures::executor::block_on(self)
    }
}

impl Future for Pending {
    /// The objects as written, in the order of the batch; for deletions their last state.
    type Output = Result<Vec<Arc<Entry>>, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.outcome).poll(context).map(|outcome| match outcome {
            Ok(Ok(())) => Ok(std::mem::take(&mut self.entries)),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(Error::Closed),
        })
    }
}

/// Changes of one resource, in order.
///
/// A subscription has no queue of its own: it reads the shared history at its own pace. One that falls so far behind
/// that history has been cut off under it ends with [`Error::Expired`]; it costs nobody else time or memory.
#[derive(Debug)]
pub struct Subscription {
    shared: Arc<Shared>,
    resource: Arc<str>,
    position: u64,
    changed: watch::Receiver<u64>,
    fresh: bool,
}

/// Some changes, and how far they reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchBatch {
    /// The changes, oldest first.
    pub changes: Vec<Change>,
    /// Nothing is missing up to this version.
    pub version: u64,
}

impl Subscription {
    /// The next changes; waits for some. None when the store is closed. Cancel-safe.
    ///
    /// # Errors
    /// When this subscription fell too far behind.
    pub async fn next(&mut self) -> Result<Option<WatchBatch>, Error> {
        loop {
            if self.fresh {
                self.fresh = false;
            } else if self.changed.changed().await.is_err() {
                return Ok(None);
            }
            let batch = self.ready()?;
            if !batch.changes.is_empty() {
                return Ok(Some(batch));
            }
        }
    }

    /// The changes that are there already, perhaps none, and how far that reaches. Does not wait.
    ///
    /// # Errors
    /// When this subscription fell too far behind.
    pub fn ready(&mut self) -> Result<WatchBatch, Error> {
        self.changed.mark_unchanged();
        let state = self.shared.read();
        let changes = state.changes(&self.resource, self.position, WATCH_BATCH_MAX)?;
        let full = changes.len() == WATCH_BATCH_MAX;
        let version = match changes.last() {
            Some(last) if full => last.version,
            _ => state.version().max(self.position),
        };
        drop(state);
        // There may be more than fitted into this batch.
        self.fresh = full;
        self.position = version;
        Ok(WatchBatch { changes, version })
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("version", &self.read().version()).finish_non_exhaustive()
    }
}
