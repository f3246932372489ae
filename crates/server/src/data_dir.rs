//! The data directory: who owns it, where things are in it, and how a running daemon is found through it.

use regatta_cli::DaemonInfo;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A log file larger than this is set aside when the daemon starts.
const LOG_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Why the data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or directory could not be made or read.
    #[error(
        "cannot {action} {path}: {source}; check the owner and mode of the data directory, or choose another with --data-dir"
    )]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// Another daemon owns it.
    #[error("another daemon{} already serves {path}; use it, stop it with `regatta down`, or choose another directory with --data-dir", pid_text(*pid))]
    Owned {
        /// The directory.
        path: PathBuf,
        /// The owner, if it has written its name.
        pid: Option<u32>,
    },
}

fn pid_text(pid: Option<u32>) -> String {
    pid.map_or_else(String::new, |pid| format!(" (pid {pid})"))
}

/// Paths inside one data directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataDir {
    root: PathBuf,
}

/// Ownership of a data directory, held until it is dropped or the process ends.
#[derive(Debug)]
pub struct Lock {
    _file: OwnedFd,
}

/// What a daemon writes about itself, so that it is found and not mistaken for a process that took its number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct DaemonFile {
    pid: u32,
    /// Start time of the process in clock ticks since boot, as the kernel counts them.
    start_time_ticks: u64,
    boot_id: String,
    address: SocketAddr,
    version: String,
}

impl DataDir {
    /// The directory at `root`, made if missing, readable by its owner only.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn create(root: &Path) -> Result<Self, Error> {
        let dir = Self { root: root.to_owned() };
        dir.make(root)?;
        Ok(dir)
    }

    /// The directory at `root`, which may not exist.
    pub fn at(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// The directory itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// How kubectl finds and is recognised by this daemon.
    pub fn kubeconfig(&self) -> PathBuf {
        self.root.join("kubeconfig")
    }

    /// What the daemon has to say when nobody listens.
    pub fn log_file(&self) -> PathBuf {
        self.root.join("daemon.log")
    }

    /// Keys and certificates.
    pub fn pki(&self) -> PathBuf {
        self.root.join("pki")
    }

    /// The database's file.
    pub fn database(&self) -> PathBuf {
        self.root.join("store").join("regatta.redb")
    }

    /// Run records.
    pub fn runs(&self) -> PathBuf {
        self.root.join("runs")
    }

    fn daemon_file(&self) -> PathBuf {
        self.root.join("daemon.json")
    }

    /// Makes `path`, readable by its owner only.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn make(&self, path: &Path) -> Result<(), Error> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|source| Error::Io {
            action: "make",
            path: path.to_owned(),
            source,
        })
    }

    /// Takes the directory for this process.
    ///
    /// # Errors
    /// When another daemon has it.
    pub fn lock(&self) -> Result<Lock, Error> {
        let path = self.root.join("daemon.lock");
        let file = open(&path, OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR)
            .map_err(|e| Error::Io { action: "open", path, source: e.into() })?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Lock { _file: file }),
            Err(_) => {
                Err(Error::Owned { path: self.root.clone(), pid: self.daemon().map(|daemon| daemon.pid) })
            }
        }
    }

    /// Whether a daemon has the lock. Looking takes it for an instant, for which a daemon that starts tries again.
    fn is_locked(&self) -> bool {
        let file = open(self.root.join("daemon.lock"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        file.is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockShared).is_err())
    }

    /// Writes `content` whole or not at all, readable by its owner only.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_private(&self, path: &Path, content: &[u8]) -> Result<(), Error> {
        let fail = |source| Error::Io { action: "write", path: path.to_owned(), source };
        let temporary = path.with_extension("new");
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary)
            .map_err(fail)?;
        file.write_all(content).and_then(|()| file.sync_all()).map_err(fail)?;
        fs::rename(&temporary, path).map_err(fail)
    }

    /// Opens the log for appending; one that has grown too large is set aside first.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open_log(&self) -> Result<fs::File, Error> {
        let path = self.log_file();
        if fs::metadata(&path).is_ok_and(|meta| meta.len() > LOG_BYTES_MAX) {
            // Losing the chance to rotate is no reason not to start.
            let _ = fs::rename(&path, path.with_extension("log.1"));
        }
        fs::OpenOptions::new().append(true).create(true).mode(0o600).open(&path).map_err(|source| Error::Io {
            action: "open",
            path,
            source,
        })
    }

    /// Tells others that this process serves the directory at `address`.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn announce(&self, address: SocketAddr) -> Result<DaemonInfo, Error> {
        let pid = std::process::id();
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let file = DaemonFile {
            pid,
            start_time_ticks: start_time_ticks(pid).unwrap_or(0),
            boot_id: boot_id(),
            address,
            version: version.clone(),
        };
        let content = serde_json::to_vec(&file).expect("invariant: plain values can be written as JSON");
        self.write_private(&self.daemon_file(), &content)?;
        Ok(DaemonInfo { pid, address, version })
    }

    /// Takes the announcement back.
    pub fn withdraw(&self) {
        // What is left is recognised as stale by its process anyway.
        let _ = fs::remove_file(self.daemon_file());
    }

    /// The daemon that serves this directory, if one is alive. What a dead one left, or an unreadable file, is none.
    pub fn daemon(&self) -> Option<DaemonInfo> {
        let file: DaemonFile = serde_json::from_slice(&fs::read(self.daemon_file()).ok()?).ok()?;
        let same = file.boot_id == boot_id() && start_time_ticks(file.pid) == Some(file.start_time_ticks);
        // A process that was killed is listed for a moment longer than it holds its lock.
        let alive = same && self.is_locked();
        alive.then_some(DaemonInfo { pid: file.pid, address: file.address, version: file.version })
    }
}

/// Start time of a process; none when there is no such process, or it has ended. Field 22 of `/proc/PID/stat` (proc(5)); the fields are
/// counted after the command's closing parenthesis, for a command may contain spaces.
fn start_time_ticks(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    // A process that has ended but whose parent has not looked yet is still listed.
    let ended = matches!(fields.next()?, "Z" | "X" | "x");
    if ended { None } else { fields.nth(18)?.parse().ok() }
}

fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_live_daemon_is_found_and_a_stale_file_is_not() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = DataDir::create(&temporary.path().join("home")).unwrap();
        assert_eq!(dir.daemon(), None);
        let lock = dir.lock().unwrap();
        let info = dir.announce("127.0.0.1:7000".parse().unwrap()).unwrap();
        assert_eq!(dir.daemon(), Some(info.clone()));
        drop(lock);
        assert_eq!(dir.daemon(), None, "who has no lock is no daemon any more");
        let _lock = dir.lock().unwrap();
        assert_eq!(dir.daemon(), Some(info));
        let content = fs::read_to_string(dir.daemon_file()).unwrap();
        let other_start = content.replace("startTimeTicks\":", "startTimeTicks\":9");
        fs::write(dir.daemon_file(), other_start).unwrap();
        assert_eq!(dir.daemon(), None, "the number was taken by another process");
        fs::write(dir.daemon_file(), "{").unwrap();
        assert_eq!(dir.daemon(), None, "a torn file is no daemon");
    }

    #[test]
    fn one_owner_at_a_time() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = DataDir::create(temporary.path()).unwrap();
        let lock = dir.lock().unwrap();
        let error = dir.lock().unwrap_err().to_string();
        assert!(error.contains("another daemon"), "{error}");
        drop(lock);
        dir.lock().unwrap();
    }

    #[test]
    fn secrets_are_the_owners_alone() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = DataDir::create(&temporary.path().join("home")).unwrap();
        dir.write_private(&dir.kubeconfig(), b"token").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&dir.kubeconfig()), 0o600);
        assert_eq!(mode(dir.root()), 0o700);
    }
}
