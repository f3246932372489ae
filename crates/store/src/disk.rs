//! The store's only way to a disk, so that tests can put a faulty one in its place.

use std::fmt::Debug;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;

/// One open file.
pub trait Disk: Debug + Send + Sync {
    /// Its length in bytes.
    ///
    /// # Errors
    /// When the operating system fails.
    fn length(&self) -> io::Result<u64>;
    /// Fills `buffer` from byte `offset` on.
    ///
    /// # Errors
    /// When the operating system fails or the file ends before.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;
    /// Writes all of `data` from byte `offset` on.
    ///
    /// # Errors
    /// When the operating system fails, for example for lack of space.
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()>;
    /// Cuts the file off or fills it up with zeros.
    ///
    /// # Errors
    /// When the operating system fails.
    fn set_length(&self, length: u64) -> io::Result<()>;
    /// Returns once everything written is on stable storage.
    ///
    /// # Errors
    /// When the operating system fails. What was written since the last success may then be lost, even if it can be
    /// read.
    fn sync(&self) -> io::Result<()>;
}

/// A directory of files.
pub trait Volume: Debug + Send + Sync {
    /// Opens a file, empty when it did not exist, and locks it for this handle alone.
    ///
    /// # Errors
    /// When the operating system fails; of kind [`io::ErrorKind::WouldBlock`] when somebody else has the file.
    fn open(&self, file: &str) -> io::Result<Arc<dyn Disk>>;
    /// Renames over what was there. Durable when it returns.
    ///
    /// # Errors
    /// When the operating system fails.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file, if there is one.
    ///
    /// # Errors
    /// When the operating system fails.
    fn remove(&self, file: &str) -> io::Result<()>;
    /// A file's place, for messages.
    fn describe(&self, file: &str) -> String;
}

/// A real directory.
#[derive(Debug)]
pub struct Directory(PathBuf);

impl Directory {
    /// The directory at `path`, which must exist.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.0)?.sync_all()
    }
}

#[derive(Debug)]
struct RealFile(File);

impl Volume for Directory {
    fn open(&self, file: &str) -> io::Result<Arc<dyn Disk>> {
        let path = self.0.join(file);
        let opened =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path)?;
        match opened.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(io::ErrorKind::WouldBlock.into()),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        // The name itself must survive a crash, not only the content.
        self.sync()?;
        Ok(Arc::new(RealFile(opened)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.0.join(from), self.0.join(to))?;
        self.sync()
    }

    fn remove(&self, file: &str) -> io::Result<()> {
        match std::fs::remove_file(self.0.join(file)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    fn describe(&self, file: &str) -> String {
        self.0.join(file).display().to_string()
    }
}

impl Disk for RealFile {
    fn length(&self) -> io::Result<u64> {
        self.0.metadata().map(|metadata| metadata.len())
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(buffer, offset)
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_all_at(data, offset)
    }
    fn set_length(&self, length: u64) -> io::Result<()> {
        self.0.set_len(length)
    }
    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}
