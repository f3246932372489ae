//! What readers see: the published objects of every resource, their history, and who owns whom.

use crate::entry::{Entry, Key, Path};
use crate::error::Error;
use crate::history::{Change, ChangeKind, History};
use crate::sequencer::{Sealed, WriteKind};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use tokio::sync::watch;

/// A page of objects.
#[derive(Debug, Clone)]
pub struct Listing {
    /// The objects, ordered by namespace and name.
    pub entries: Vec<Arc<Entry>>,
    /// The version of the state that they show.
    pub version: u64,
    /// How many more there are after this page.
    pub remaining: usize,
}

/// Objects and history of one resource.
#[derive(Debug)]
struct Shelf {
    entries: BTreeMap<Path, Arc<Entry>>,
    history: History,
    /// Told the version of each change, so that watches wake.
    changed: watch::Sender<u64>,
}

impl Shelf {
    fn new(floor: u64) -> Self {
        Self { entries: BTreeMap::new(), history: History::new(floor), changed: watch::Sender::new(floor) }
    }
}

/// Everything published.
#[derive(Debug)]
pub(crate) struct State {
    shelves: BTreeMap<Arc<str>, Shelf>,
    owned: BTreeMap<Box<str>, BTreeSet<Key>>,
    version: u64,
    /// Version at which this process started: nothing older can be watched.
    floor: u64,
    closed: bool,
}

impl State {
    pub(crate) fn new(entries: Vec<Entry>, version: u64) -> Self {
        let mut state =
            Self { shelves: BTreeMap::new(), owned: BTreeMap::new(), version, floor: version, closed: false };
        for entry in entries {
            state.index_owners(&entry);
            let resource = entry.key.resource.clone();
            let path = entry.key.path.clone();
            state.shelf(&resource).entries.insert(path, Arc::new(entry));
        }
        state
    }

    fn shelf(&mut self, resource: &Arc<str>) -> &mut Shelf {
        let floor = self.floor;
        self.shelves.entry(resource.clone()).or_insert_with(|| Shelf::new(floor))
    }

    pub(crate) const fn version(&self) -> u64 {
        self.version
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&Arc<Entry>> {
        self.shelves.get(&key.resource)?.entries.get(&key.path)
    }

    pub(crate) fn count(&self, resource: &str) -> usize {
        self.shelves.get(resource).map_or(0, |shelf| shelf.entries.len())
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.shelves.values().flat_map(|shelf| shelf.entries.values())
    }

    pub(crate) fn owned_by(&self, uid: &str) -> Vec<Key> {
        self.owned.get(uid).map(|keys| keys.iter().cloned().collect()).unwrap_or_default()
    }

    pub(crate) fn owners(&self) -> Vec<Box<str>> {
        self.owned.keys().cloned().collect()
    }

    pub(crate) fn list(
        &self,
        resource: &str,
        namespace: Option<&str>,
        after: Option<&Path>,
        limit: usize,
    ) -> Listing {
        let Some(shelf) = self.shelves.get(resource) else {
            return Listing { entries: Vec::new(), version: self.version, remaining: 0 };
        };
        let first = namespace.map(|namespace| Path::new(namespace, ""));
        let start = match (after, &first) {
            (Some(after), _) => Bound::Excluded(after),
            (None, Some(first)) => Bound::Included(first),
            (None, None) => Bound::Unbounded,
        };
        let within = |path: &Path| namespace.is_none_or(|namespace| *path.namespace == *namespace);
        let mut rest = shelf.entries.range((start, Bound::Unbounded)).take_while(|(path, _)| within(path));
        let entries = rest.by_ref().take(limit).map(|(_, entry)| entry.clone()).collect();
        let remaining = if limit == usize::MAX { 0 } else { rest.count() };
        Listing { entries, version: self.version, remaining }
    }

    /// Makes a write visible.
    pub(crate) fn publish(&mut self, sealed: &Sealed) {
        debug_assert!(sealed.version > self.version, "versions only rise");
        self.version = sealed.version;
        let Some((kind, entry)) = &sealed.write else { return };
        let key = &entry.key;
        let shelf = self.shelf(&key.resource);
        let (old, kind) = match kind {
            WriteKind::Put => (shelf.entries.insert(key.path.clone(), entry.clone()), ChangeKind::Put),
            WriteKind::Delete => (shelf.entries.remove(&key.path), ChangeKind::Delete),
        };
        shelf.history.push(Change { version: sealed.version, old: old.clone(), new: entry.clone(), kind });
        shelf.changed.send_replace(sealed.version);
        if let Some(old) = old {
            self.forget_owners(&old);
        }
        if kind == ChangeKind::Put {
            self.index_owners(entry);
        }
    }

    fn index_owners(&mut self, entry: &Entry) {
        for owner in &entry.header.owners {
            self.owned.entry(owner.clone()).or_default().insert(entry.key.clone());
        }
    }

    fn forget_owners(&mut self, entry: &Entry) {
        for owner in &entry.header.owners {
            if let Some(keys) = self.owned.get_mut(owner) {
                keys.remove(&entry.key);
                if keys.is_empty() {
                    self.owned.remove(owner);
                }
            }
        }
    }

    /// A wake-up line for the changes of `resource`, after checking that a watch from `version` misses nothing.
    pub(crate) fn subscribe(
        &mut self,
        resource: &Arc<str>,
        version: u64,
    ) -> Result<watch::Receiver<u64>, Error> {
        if self.closed {
            return Err(Error::Closed);
        }
        if version > self.version {
            return Err(Error::Future { version, current: self.version });
        }
        let shelf = self.shelf(resource);
        shelf.history.check(version)?;
        Ok(shelf.changed.subscribe())
    }

    pub(crate) fn changes(&self, resource: &str, after: u64, limit: usize) -> Result<Vec<Change>, Error> {
        self.shelves.get(resource).map_or_else(|| Ok(Vec::new()), |shelf| shelf.history.after(after, limit))
    }

    /// Ends every subscription.
    pub(crate) fn close(&mut self) {
        self.closed = true;
        for shelf in self.shelves.values_mut() {
            shelf.changed = watch::Sender::new(0);
        }
    }
}
