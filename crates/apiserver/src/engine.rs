//! The generic engine: what happens to objects, whatever their kind. No HTTP.
//!
//! - [`read`]: get, list.
//! - [`watch`]: changes in order, seen through a selection.
//! - [`write`](mod@write): create, update, patch.
//! - [`delete`](mod@delete): deletion, finalizers, grace and namespaces.
//! - [`owners`]: what goes along with an object.
//! - [`events`]: events do not last.
//! - [`cluster`]: the same behind the kit's door, for controllers in this process.
//!
//! Writes are optimistic: computed from the newest queued state and committed only if that is still the newest; when
//! it is not, the change is computed again, unless the client said which version it meant.

pub(crate) mod cluster;
pub(crate) mod delete;
pub(crate) mod events;
pub(crate) mod owners;
pub(crate) mod read;
pub(crate) mod watch;
pub(crate) mod write;

use crate::admission::Admission;
use crate::registry::{Kind, Registry};
use bytes::Bytes;
use regatta_store::{Key, Store};
use regatta_types::Clock;
use regatta_types::seed::{Seed, Stream};
use std::sync::{Arc, Mutex, PoisonError};

/// How often a change is computed again because another writer was faster.
const ATTEMPTS_MAX: usize = 32;

/// The engine. Cheap to clone; all clones are the same.
#[derive(Clone)]
pub struct Engine {
    pub(crate) store: Store,
    pub(crate) registry: Arc<Registry>,
    pub(crate) clock: Arc<dyn Clock>,
    ids: Arc<Mutex<Stream>>,
    admission: Option<Arc<dyn Admission>>,
    ledger: Arc<events::Ledger>,
}

/// Whether a write is made or only tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum DryRun {
    /// It is made.
    #[default]
    No,
    /// It goes through every check and changes nothing.
    Yes,
}

/// What happens to fields that do not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum FieldValidation {
    /// They are dropped.
    Ignore,
    /// They are kept out, and the client is warned.
    #[default]
    Warn,
    /// The write is refused.
    Strict,
}

/// How a write is made, and by whom.
#[derive(Debug, Clone, Default)]
pub(crate) struct WriteOptions {
    pub(crate) user: String,
    pub(crate) dry_run: DryRun,
    pub(crate) validation: FieldValidation,
}

/// An object as it was written.
#[derive(Debug, Clone)]
pub(crate) struct Written {
    pub(crate) json: Bytes,
    pub(crate) warnings: Vec<String>,
}

impl Engine {
    /// An engine on `store` that serves the kinds of `registry`. `seed` is the source of uids and generated names.
    pub fn new(store: Store, registry: Registry, clock: Arc<dyn Clock>, seed: Seed) -> Self {
        let ids = Arc::new(Mutex::new(seed.child("uids").stream()));
        Self { store, registry: Arc::new(registry), clock, ids, admission: None, ledger: Arc::default() }
    }

    /// The same, with policy.
    #[must_use]
    pub fn with_admission(mut self, admission: Arc<dyn Admission>) -> Self {
        self.admission = Some(admission);
        self
    }

    fn random(&self) -> u64 {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).next_u64()
    }

    /// A new uid, in the form of a random UUID (RFC 9562, version 4).
    fn new_uid(&self) -> String {
        let (high, low) = (self.random(), self.random());
        format!(
            "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
            high >> 32,
            (high >> 16) & 0xffff,
            high & 0x0fff,
            0x8000 | ((low >> 48) & 0x3fff),
            low & 0xffff_ffff_ffff
        )
    }

    /// Five characters that are hard to confuse, as Kubernetes appends them to `generateName`.
    fn name_suffix(&self) -> String {
        const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        let mut bits = self.random();
        let mut suffix = String::new();
        for _ in 0..5 {
            let index = usize::try_from(bits % 27).unwrap_or(0);
            suffix.push(char::from(LETTERS[index]));
            bits /= 27;
        }
        suffix
    }
}

pub(crate) fn key_of(kind: &Kind, namespace: Option<&str>, name: &str) -> Key {
    Key::new(kind.store_name(), namespace.unwrap_or_default(), name)
}
