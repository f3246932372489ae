//! Versioned objects in memory, durable on an embedded database, with watch history.
//!
//! ```text
//!  commit(writes) ─► sequencer ──queue──► writer thread ─► database (one transaction, one sync)
//!                    compare-and-swap            │ only then
//!                    against what is queued      ▼
//!                                     published state ─► get, list, watch, acknowledgement
//! ```
//!
//! - One version counter for everything. It only rises, also across crashes.
//! - A reader never sees what a crash could take back, except writes that were marked [`Durability::Lazy`].
//! - A watch from version V yields every later change once and in order, or says that V is too old.
//! - A refused write (full disk, failed sync) leaves everything acknowledged in place, and the store goes on reading.
//!
//! The crate deliberately knows nothing of HTTP, kinds, or what objects mean: an object is JSON bytes with a small
//! header of what the store itself needs.
//!
//! Where to start reading: [`store`] (the handle), then [`sequencer`] (who wins), then [`writer`] (what is durable).

#![forbid(unsafe_code)]

pub mod append_log;
mod database;
pub mod disk;
mod entry;
mod error;
pub mod faults;
mod history;
pub mod sequencer;
pub mod state;
pub mod store;
pub mod writer;

pub use entry::{Body, Deletion, Entry, Header, Key, OBJECT_BYTES_MAX, Path};
pub use error::Error;
pub use history::{Change, ChangeKind, HISTORY_BYTES_MAX, HISTORY_EVENTS_MAX};
pub use sequencer::{Durability, Expect, QUEUE_RECORDS_MAX, Write, WriteKind};
pub use state::Listing;
pub use store::{Pending, Store, Subscription, WATCH_BATCH_MAX, WatchBatch};
