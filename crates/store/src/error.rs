//! What can go wrong, as sentences.

use crate::entry::Key;
use std::sync::Arc;

/// Why the store refused or failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// Another writer was faster, or what was expected is not so.
    #[error(
        "{key} is at version {found}, not at {expected}: it has changed since it was read; read it again and retry"
    )]
    Conflict {
        /// The object.
        key: Key,
        /// Version that the writer expected; 0 for an object that should not exist.
        expected: u64,
        /// Version that it has; 0 when it does not exist.
        found: u64,
    },
    /// The object's bytes are not what an object looks like.
    #[error("{key} cannot be stored: {problem}")]
    BadObject {
        /// The object.
        key: Key,
        /// What is wrong.
        problem: String,
    },
    /// The object is too large.
    #[error("{key} is {bytes} bytes; an object has at most {limit} bytes")]
    TooLarge {
        /// The object.
        key: Key,
        /// Its size.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// Too many writes wait for the disk.
    #[error("{waiting} writes wait for the disk, and no more can be queued; try again in a moment")]
    Overloaded {
        /// How many wait.
        waiting: usize,
    },
    /// The disk did not take the write. Nothing of it is visible.
    #[error("the write could not be made durable: {problem}; nothing was changed. {fix}")]
    NotDurable {
        /// Why.
        problem: Arc<str>,
        /// What to do.
        fix: &'static str,
        /// Whether there is no space.
        full: bool,
    },
    /// The watch or list asks for history that is gone.
    #[error("version {version} is too old: history starts after {oldest}; list again")]
    Expired {
        /// What was asked for.
        version: u64,
        /// Where history starts.
        oldest: u64,
    },
    /// The version asked for has not been reached.
    #[error("version {version} is in the future: the store is at {current}")]
    Future {
        /// What was asked for.
        version: u64,
        /// Where the store is.
        current: u64,
    },
    /// Another process, or another handle of this one, has the database.
    #[error("{file} is in use by another process; stop it first (`regatta down`)")]
    InUse {
        /// The database file.
        file: String,
    },
    /// The database was written by a later version of the program.
    #[error("{file} has format {found}, and this program knows formats up to {known}; use the newer program")]
    NewerFormat {
        /// The database file.
        file: String,
        /// Its format.
        found: u64,
        /// The newest format that this program knows.
        known: u64,
    },
    /// The database holds something that cannot be.
    #[error("{file} is damaged: {problem}; restore a backup, or move the file away to start empty")]
    Damaged {
        /// The database file.
        file: String,
        /// What is wrong.
        problem: String,
    },
    /// The database cannot be opened.
    #[error("cannot open {file}: {problem}")]
    Open {
        /// The database file.
        file: String,
        /// Why.
        problem: String,
    },
    /// The store has been closed.
    #[error("the store is closed; the daemon is stopping")]
    Closed,
}

impl Error {
    /// Whether another writer was faster.
    pub const fn is_conflict(&self) -> bool {
        matches!(self, Self::Conflict { .. })
    }
}
