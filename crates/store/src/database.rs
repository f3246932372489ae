//! The embedded database (redb): one table of objects, one of facts about the file.
//!
//! Durability rests on three rules:
//! - A failed transaction poisons the handle; it is dropped, and the next write opens the file anew.
//! - After a failed sync, whenever it was, the file is not believed: the system may show pages that never reached the disk. It is then
//!   written anew from memory, which holds everything acknowledged, beside the old one, and renamed over it.
//! - Each transaction raises a sequence number. A file opened anew whose number is not the last acknowledged one holds
//!   a transaction that was reported as failed; it is written anew as well.

use crate::disk::{Disk, Volume};
use crate::entry::{Entry, key_bytes, parse_key};
use crate::error::Error;
use crate::sequencer::{Sealed, WriteKind};
use redb::{ReadableDatabase, ReadableTable, StorageBackend, TableDefinition};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Format of the file's content. Rises when an older program could not read it.
const FORMAT: u64 = 1;
/// Memory for pages; the objects themselves are in memory anyway.
const CACHE_BYTES: usize = 16 << 20;
/// Versions that lazy writes may use before the counter must be durable again. After a crash the counter goes on from
/// the reserved end, so that no version is ever used twice.
pub(crate) const VERSIONS_RESERVED: u64 = 10_000;

const OBJECTS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("objects");
const FACTS: TableDefinition<'_, &str, u64> = TableDefinition::new("facts");
const FACT_FORMAT: &str = "format";
const FACT_CEILING: &str = "versionCeiling";
const FACT_SEQUENCE: &str = "sequence";

/// What a database holds.
pub(crate) struct Content {
    pub(crate) entries: Vec<Entry>,
    /// No version above this has ever been shown.
    pub(crate) ceiling: u64,
}

/// The database and how to get it back after a failure.
#[derive(Debug)]
pub(crate) struct Database {
    volume: Arc<dyn Volume>,
    file: String,
    open: Option<redb::Database>,
    /// The file may hold something else than what was acknowledged: it was found to, or a sync of it failed.
    suspect: Arc<AtomicBool>,
    sequence: u64,
    ceiling: u64,
}

impl Database {
    /// Opens the file, or makes an empty one, and reads all of it.
    pub(crate) fn open(volume: Arc<dyn Volume>, file: &str) -> Result<(Self, Content), Error> {
        let describe = volume.describe(file);
        let failed = |problem: String| Error::Open { file: describe.clone(), problem };
        // Left by a crash while the file was written anew; the old one is whole.
        volume.remove(&new_name(file)).map_err(|e| failed(e.to_string()))?;
        let suspect = Arc::new(AtomicBool::new(false));
        let open = open_file(volume.as_ref(), file, &suspect).map_err(|e| e.into_error(describe.clone()))?;
        let mut this = Self { volume, file: file.to_owned(), open: None, suspect, sequence: 0, ceiling: 0 };
        let content = this.read(&open)?;
        this.open = Some(open);
        // Every later crash must find a ceiling above whatever this run shows.
        this.ceiling = content.ceiling;
        this.commit(&[], content.ceiling).map_err(|problem| failed(problem.to_string()))?;
        Ok((this, content))
    }

    fn read(&mut self, database: &redb::Database) -> Result<Content, Error> {
        let damaged = |problem: String| Error::Damaged { file: self.volume.describe(&self.file), problem };
        let transaction = database.begin_read().map_err(|e| damaged(e.to_string()))?;
        let facts = match transaction.open_table(FACTS) {
            Ok(facts) => facts,
            Err(redb::TableError::TableDoesNotExist(_)) => {
                return Ok(Content { entries: Vec::new(), ceiling: 0 });
            }
            Err(error) => return Err(damaged(error.to_string())),
        };
        let fact = |name| {
            facts
                .get(name)
                .map(|value| value.map_or(0, |guard| guard.value()))
                .map_err(|e| damaged(e.to_string()))
        };
        let format = fact(FACT_FORMAT)?;
        if format > FORMAT {
            return Err(Error::NewerFormat {
                file: self.volume.describe(&self.file),
                found: format,
                known: FORMAT,
            });
        }
        let (ceiling, sequence) = (fact(FACT_CEILING)?, fact(FACT_SEQUENCE)?);
        let objects = transaction.open_table(OBJECTS).map_err(|e| damaged(e.to_string()))?;
        let mut entries = Vec::new();
        for row in objects.iter().map_err(|e| damaged(e.to_string()))? {
            let (key, record) = row.map_err(|e| damaged(e.to_string()))?;
            let key =
                parse_key(key.value()).ok_or_else(|| damaged("a key is not of three parts".to_owned()))?;
            let shown = key.to_string();
            let entry = Entry::from_record(key, record.value())
                .map_err(|problem| damaged(format!("{shown}: {problem}")))?;
            if entry.version > ceiling {
                return Err(damaged(format!(
                    "{shown} has version {}, above the highest, {ceiling}",
                    entry.version
                )));
            }
            entries.push(entry);
        }
        self.sequence = sequence;
        Ok(Content { entries, ceiling })
    }

    /// Whether lazy writes up to `version` can be shown without a transaction.
    pub(crate) const fn covers(&self, version: u64) -> bool {
        version <= self.ceiling
    }

    /// Writes all of `writes` in one transaction; durable when it returns.
    pub(crate) fn commit(&mut self, writes: &[&Sealed], version: u64) -> Result<(), Failure> {
        self.write(writes, version + VERSIONS_RESERVED)
    }

    /// Whether [`Database::renew`] has to come before the next commit.
    pub(crate) const fn needs_renewal(&self) -> bool {
        self.open.is_none()
    }

    fn write(&mut self, writes: &[&Sealed], ceiling: u64) -> Result<(), Failure> {
        let open = self.open.as_ref().expect("invariant: the caller renews first");
        let sequence = self.sequence + 1;
        let outcome = transact(open, ceiling, sequence, |objects| {
            for sealed in writes {
                match &sealed.write {
                    Some((WriteKind::Put, entry)) => {
                        objects.insert(key_bytes(&entry.key).as_slice(), entry.to_record().as_slice())?;
                    }
                    Some((WriteKind::Delete, entry)) => {
                        objects.remove(key_bytes(&entry.key).as_slice())?;
                    }
                    None => {}
                }
            }
            Ok(())
        });
        match outcome {
            Ok(()) => {
                self.sequence = sequence;
                self.ceiling = ceiling;
                Ok(())
            }
            Err(error) => {
                self.open = None;
                Err(Failure::of_transaction(&error))
            }
        }
    }

    /// Opens the file again after a failure. `entries` is everything acknowledged.
    pub(crate) fn renew<'a>(&mut self, entries: impl Iterator<Item = &'a Arc<Entry>>) -> Result<(), Failure> {
        if !self.suspect.load(Ordering::Acquire) {
            let open = open_file(self.volume.as_ref(), &self.file, &self.suspect)
                .map_err(|e| Failure::of_open(&e))?;
            if sequence_of(&open) == Some(self.sequence) {
                self.open = Some(open);
                return Ok(());
            }
            self.suspect.store(true, Ordering::Release);
        }
        self.write_anew(entries)
    }

    fn write_anew<'a>(&mut self, entries: impl Iterator<Item = &'a Arc<Entry>>) -> Result<(), Failure> {
        let new = new_name(&self.file);
        self.volume.remove(&new).map_err(|e| Failure::of_io(&e))?;
        let suspect = Arc::new(AtomicBool::new(false));
        match self.write_to(&new, &suspect, entries) {
            Ok(open) => {
                self.volume.rename(&new, &self.file).map_err(|e| Failure::of_io(&e))?;
                tracing::warn!(
                    file = self.volume.describe(&self.file),
                    "the database was written anew after a disk failure"
                );
                self.suspect = suspect;
                self.open = Some(open);
                Ok(())
            }
            Err(failure) => {
                // Space is what is short; a leftover would keep it so. The next attempt removes it as well.
                let _ = self.volume.remove(&new);
                Err(failure)
            }
        }
    }

    fn write_to<'a>(
        &self,
        file: &str,
        suspect: &Arc<AtomicBool>,
        entries: impl Iterator<Item = &'a Arc<Entry>>,
    ) -> Result<redb::Database, Failure> {
        let open = open_file(self.volume.as_ref(), file, suspect).map_err(|e| Failure::of_open(&e))?;
        let outcome = transact(&open, self.ceiling, self.sequence, |objects| {
            for entry in entries {
                objects.insert(key_bytes(&entry.key).as_slice(), entry.to_record().as_slice())?;
            }
            Ok(())
        });
        outcome.map(|()| open).map_err(|error| Failure::of_transaction(&error))
    }

    /// Writes what is left and that the counter stopped at `version`; nothing was reserved in vain.
    pub(crate) fn close(mut self, lazy: &[&Sealed], version: u64) -> Result<(), Failure> {
        if self.open.is_none() {
            return Err(Failure::other("the disk had failed".to_owned()));
        }
        self.write(lazy, version)
    }
}

fn new_name(file: &str) -> String {
    format!("{file}.new")
}

type ObjectTable<'a> = redb::Table<'a, &'static [u8], &'static [u8]>;

fn transact(
    database: &redb::Database,
    ceiling: u64,
    sequence: u64,
    fill: impl FnOnce(&mut ObjectTable<'_>) -> Result<(), redb::StorageError>,
) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    {
        let mut facts = transaction.open_table(FACTS)?;
        facts.insert(FACT_FORMAT, FORMAT)?;
        facts.insert(FACT_CEILING, ceiling)?;
        facts.insert(FACT_SEQUENCE, sequence)?;
        fill(&mut transaction.open_table(OBJECTS)?)?;
    }
    transaction.commit()?;
    Ok(())
}

fn sequence_of(database: &redb::Database) -> Option<u64> {
    let transaction = database.begin_read().ok()?;
    let facts = transaction.open_table(FACTS).ok()?;
    facts.get(FACT_SEQUENCE).ok()?.map(|guard| guard.value())
}

fn open_file(
    volume: &dyn Volume,
    file: &str,
    sync_failed: &Arc<AtomicBool>,
) -> Result<redb::Database, OpenFailure> {
    let disk = volume.open(file)?;
    let backend = Backend { disk, sync_failed: sync_failed.clone() };
    Ok(redb::Database::builder().set_cache_size(CACHE_BYTES).create_with_backend(backend)?)
}

/// Why a file could not be opened.
#[derive(Debug, thiserror::Error)]
enum OpenFailure {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Database(#[from] redb::DatabaseError),
}

impl OpenFailure {
    fn into_error(self, file: String) -> Error {
        match self {
            Self::Io(error) if error.kind() == io::ErrorKind::WouldBlock => Error::InUse { file },
            Self::Database(redb::DatabaseError::DatabaseAlreadyOpen) => Error::InUse { file },
            Self::Database(redb::DatabaseError::UpgradeRequired(found)) => {
                Error::NewerFormat { file, found: u64::from(found), known: FORMAT }
            }
            Self::Database(redb::DatabaseError::Storage(redb::StorageError::Corrupted(problem))) => {
                Error::Damaged { file, problem }
            }
            other => Error::Open { file, problem: other.to_string() },
        }
    }
}

/// Why a transaction failed.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    problem: Arc<str>,
    full: bool,
}

impl Failure {
    fn other(problem: String) -> Self {
        Self { problem: problem.into(), full: false }
    }

    fn of_io(error: &io::Error) -> Self {
        let full = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        Self { problem: error.to_string().into(), full }
    }

    fn of_transaction(error: &redb::Error) -> Self {
        match error {
            redb::Error::Io(error) => Self::of_io(error),
            other => Self::other(other.to_string()),
        }
    }

    fn of_open(error: &OpenFailure) -> Self {
        match error {
            OpenFailure::Io(error) => Self::of_io(error),
            OpenFailure::Database(redb::DatabaseError::Storage(redb::StorageError::Io(error))) => {
                Self::of_io(error)
            }
            other @ OpenFailure::Database(_) => Self::other(other.to_string()),
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.problem)
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        let fix = if failure.full {
            "Free some disk space and try again"
        } else {
            "Check the disk, then try again"
        };
        Self::NotDurable { problem: failure.problem, fix, full: failure.full }
    }
}

/// Our disk as redb wants it.
#[derive(Debug)]
struct Backend {
    disk: Arc<dyn Disk>,
    sync_failed: Arc<AtomicBool>,
}

impl StorageBackend for Backend {
    fn len(&self) -> Result<u64, io::Error> {
        self.disk.length()
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), io::Error> {
        self.disk.read_at(offset, out)
    }
    fn set_len(&self, len: u64) -> Result<(), io::Error> {
        self.disk.set_length(len)
    }
    fn sync_data(&self) -> Result<(), io::Error> {
        let outcome = self.disk.sync();
        if outcome.is_err() {
            self.sync_failed.store(true, Ordering::Release);
        }
        outcome
    }
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), io::Error> {
        self.disk.write_at(offset, data)
    }
}
