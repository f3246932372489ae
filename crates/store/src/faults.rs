//! A disk in memory that fails on purpose: the worst that a file system may do, on request and repeatable.
//!
//! Written data is only safe once a sync has succeeded. At a crash each 512-byte sector written since then is kept or
//! lost by the toss of a seeded coin, in any combination. A failed sync loses data for good, although it can still be
//! read until the crash. Renames are atomic and durable, as [`Volume::rename`] promises.

use crate::disk::{Disk, Volume};
use regatta_types::seed::{Seed, Stream};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a disk writes at once.
const SECTOR_BYTES: usize = 512;

/// A directory of faulty files. Clones are the same directory.
#[derive(Debug, Clone)]
pub struct FaultyVolume(Arc<Mutex<World>>);

#[derive(Debug)]
struct World {
    files: BTreeMap<String, FileId>,
    content: BTreeMap<FileId, Content>,
    next_id: FileId,
    operations: u64,
    crash_at: Option<u64>,
    crashed: bool,
    failing_syncs: u64,
    failing_writes: u64,
    capacity_bytes: Option<u64>,
    coin: Stream,
}

type FileId = u64;

#[derive(Debug, Default)]
struct Content {
    /// What reads see.
    cached: Vec<u8>,
    /// What is certain to survive.
    durable: Vec<u8>,
    /// What may or may not survive; the next sync makes it certain.
    unsynced: Vec<Change>,
    /// What may or may not survive, and no sync will make certain any more.
    lost: Vec<Change>,
    in_use: bool,
}

#[derive(Debug, Clone)]
enum Change {
    Length(u64),
    Sector { offset: usize, data: Vec<u8> },
}

impl Change {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Length(length) => bytes.resize(usize::try_from(*length).unwrap_or(usize::MAX), 0),
            Self::Sector { offset, data } => {
                let end = offset + data.len();
                if bytes.len() < end {
                    bytes.resize(end, 0);
                }
                bytes[*offset..end].copy_from_slice(data);
            }
        }
    }
}

impl FaultyVolume {
    /// An empty directory whose coin is tossed by `seed`.
    pub fn new(seed: Seed) -> Self {
        Self(Arc::new(Mutex::new(World {
            files: BTreeMap::new(),
            content: BTreeMap::new(),
            next_id: 0,
            operations: 0,
            crash_at: None,
            crashed: false,
            failing_syncs: 0,
            failing_writes: 0,
            capacity_bytes: None,
            coin: seed.child("sectors").stream(),
        })))
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Operations that changed something so far.
    pub fn operations(&self) -> u64 {
        self.world().operations
    }

    /// The machine stops in the middle of the changing operation with this number; each later one fails.
    pub fn crash_at(&self, operation: u64) {
        self.world().crash_at = Some(operation);
    }

    /// Whether the machine has stopped.
    pub fn has_crashed(&self) -> bool {
        self.world().crashed
    }

    /// The next `count` syncs fail.
    pub fn fail_syncs(&self, count: u64) {
        self.world().failing_syncs = count;
    }

    /// The next `count` writes fail with an I/O error.
    pub fn fail_writes(&self, count: u64) {
        self.world().failing_writes = count;
    }

    /// The files may have so many bytes in all; any number when none.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.world().capacity_bytes = bytes;
    }

    /// Bytes of all files.
    pub fn used_bytes(&self) -> u64 {
        self.world().used()
    }

    /// The directory as it is found after the machine has stopped and started again.
    #[must_use]
    pub fn after_crash(&self) -> Self {
        let mut old = self.world();
        let survivors: Vec<(String, Vec<u8>)> = {
            let World { files, content, coin, .. } = &mut *old;
            let survive = |(name, id): (&String, &FileId)| {
                let content = &content[id];
                let mut bytes = content.durable.clone();
                for change in content.lost.iter().chain(&content.unsynced) {
                    if coin.below(2) == 0 {
                        change.apply(&mut bytes);
                    }
                }
                (name.clone(), bytes)
            };
            files.iter().map(survive).collect()
        };
        let seed = Seed(old.coin.next_u64());
        drop(old);
        let new = Self::new(seed);
        {
            let mut world = new.world();
            for (name, bytes) in survivors {
                let id = world.create(&name);
                world
                    .content
                    .insert(id, Content { cached: bytes.clone(), durable: bytes, ..Content::default() });
            }
        }
        new
    }
}

impl World {
    fn create(&mut self, name: &str) -> FileId {
        let id = self.next_id;
        self.next_id += 1;
        self.files.insert(name.to_owned(), id);
        self.content.insert(id, Content::default());
        id
    }

    fn used(&self) -> u64 {
        self.files.values().map(|id| self.content[id].cached.len() as u64).sum()
    }

    fn alive(&self) -> io::Result<()> {
        if self.crashed { Err(io::Error::other("the machine has stopped")) } else { Ok(()) }
    }

    /// Counts a changing operation. An error says that the machine stops in the middle of it.
    fn step(&mut self) -> io::Result<()> {
        self.alive()?;
        self.operations += 1;
        if self.crash_at.is_some_and(|at| self.operations >= at) {
            self.crashed = true;
            return self.alive();
        }
        Ok(())
    }

    fn room_for(&self, id: FileId, length: u64) -> io::Result<()> {
        let grown = length.saturating_sub(self.content[&id].cached.len() as u64);
        match self.capacity_bytes {
            Some(capacity) if grown > 0 && self.used() + grown > capacity => {
                Err(io::ErrorKind::StorageFull.into())
            }
            _ => Ok(()),
        }
    }

    fn content(&mut self, id: FileId) -> &mut Content {
        self.content.get_mut(&id).expect("invariant: content outlives the handles to it")
    }
}

#[derive(Debug)]
struct FaultyFile {
    volume: FaultyVolume,
    id: FileId,
}

impl Volume for FaultyVolume {
    fn open(&self, file: &str) -> io::Result<Arc<dyn Disk>> {
        let mut world = self.world();
        world.alive()?;
        let id = match world.files.get(file) {
            Some(id) => *id,
            None => world.create(file),
        };
        if std::mem::replace(&mut world.content(id).in_use, true) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        drop(world);
        Ok(Arc::new(FaultyFile { volume: self.clone(), id }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut world = self.world();
        let outcome = world.step();
        // At a crash the rename has happened or not.
        if outcome.is_ok() || world.coin.below(2) == 0 {
            let id = world.files.remove(from).ok_or(io::ErrorKind::NotFound)?;
            world.files.insert(to.to_owned(), id);
        }
        outcome
    }

    fn remove(&self, file: &str) -> io::Result<()> {
        let mut world = self.world();
        world.step()?;
        world.files.remove(file);
        Ok(())
    }

    fn describe(&self, file: &str) -> String {
        file.to_owned()
    }
}

impl Disk for FaultyFile {
    fn length(&self) -> io::Result<u64> {
        let mut world = self.volume.world();
        world.alive()?;
        Ok(world.content(self.id).cached.len() as u64)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let mut world = self.volume.world();
        world.alive()?;
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let wanted = world.content(self.id).cached.get(start..start.saturating_add(buffer.len()));
        buffer.copy_from_slice(wanted.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut world = self.volume.world();
        world.alive()?;
        if world.failing_writes > 0 {
            world.failing_writes -= 1;
            return Err(io::Error::other("input/output error"));
        }
        world.room_for(self.id, offset + data.len() as u64)?;
        let outcome = world.step();
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let content = world.content(self.id);
        let mut at = start;
        // Sectors are where the disk has them, wherever the write starts.
        while at < start + data.len() {
            let end = ((at / SECTOR_BYTES + 1) * SECTOR_BYTES).min(start + data.len());
            let change = Change::Sector { offset: at, data: data[at - start..end - start].to_vec() };
            change.apply(&mut content.cached);
            content.unsynced.push(change);
            at = end;
        }
        outcome
    }

    fn set_length(&self, length: u64) -> io::Result<()> {
        let mut world = self.volume.world();
        world.alive()?;
        world.room_for(self.id, length)?;
        let outcome = world.step();
        let content = world.content(self.id);
        Change::Length(length).apply(&mut content.cached);
        content.unsynced.push(Change::Length(length));
        outcome
    }

    fn sync(&self) -> io::Result<()> {
        let mut world = self.volume.world();
        world.step()?;
        let fails = world.failing_syncs > 0;
        world.failing_syncs = world.failing_syncs.saturating_sub(1);
        let content = world.content(self.id);
        let changes = std::mem::take(&mut content.unsynced);
        if fails {
            content.lost.extend(changes);
            return Err(io::Error::other("input/output error"));
        }
        for change in changes {
            change.apply(&mut content.durable);
        }
        Ok(())
    }
}

impl Drop for FaultyFile {
    fn drop(&mut self) {
        self.volume.world().content(self.id).in_use = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_synced_data_is_certain() {
        let (mut kept, mut lost) = (0, 0);
        for seed in 0..64 {
            let volume = FaultyVolume::new(Seed(seed));
            let file = volume.open("a").unwrap();
            file.write_at(0, b"safe").unwrap();
            file.sync().unwrap();
            file.write_at(0, b"hope").unwrap();
            let mut seen = [0; 4];
            file.read_at(0, &mut seen).unwrap();
            assert_eq!(&seen, b"hope");
            volume.after_crash().open("a").unwrap().read_at(0, &mut seen).unwrap();
            match &seen {
                b"safe" => lost += 1,
                b"hope" => kept += 1,
                other => panic!("a sector is whole, not {other:?}"),
            }
        }
        assert!(kept > 0 && lost > 0, "kept {kept}, lost {lost}");
    }

    #[test]
    fn faults_come_when_asked_for() {
        let volume = FaultyVolume::new(Seed(1));
        let file = volume.open("a").unwrap();
        assert_eq!(volume.open("a").unwrap_err().kind(), io::ErrorKind::WouldBlock);
        volume.set_capacity(Some(100));
        file.set_length(100).unwrap();
        assert_eq!(file.write_at(99, b"ab").unwrap_err().kind(), io::ErrorKind::StorageFull);
        volume.fail_syncs(1);
        assert!(file.sync().is_err());
        assert!(file.sync().is_ok());
        volume.crash_at(volume.operations() + 1);
        assert!(file.sync().is_err());
        assert!(file.length().is_err() && volume.has_crashed());
        assert!(volume.after_crash().open("a").unwrap().length().unwrap() <= 100);
    }
}
