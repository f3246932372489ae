//! The files of a pod's directory, and how they are written: whole or not at all.

use crate::Error;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, fsync, open};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// What the agent is told: [`crate::spec::AgentSpec`].
pub const SPEC: &str = "agent.json";
/// Who the agent is: [`crate::process::ProcessIdentity`].
pub const IDENTITY: &str = "agent.pid";
/// Held by the living agent, or by the node runtime while it gives the pod up.
pub const LOCK: &str = "agent.lock";
/// The processes that run: [`crate::spec::RunningRanks`].
pub const RANKS: &str = "ranks.json";
/// How to stop: [`crate::spec::StopRequest`]; read at each SIGTERM.
pub const STOP: &str = "stop.json";
/// What became of the pod: [`crate::exit::PodExit`].
pub const EXIT: &str = "exit.json";
/// What the agent itself has to say.
pub const LOG: &str = "agent.log";

/// Whether a file must survive the loss of power.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// It is on the disk before the call returns.
    Synced,
    /// It is lost with the machine, and so are the processes it speaks of.
    Cached,
}

/// Writes `value` as JSON to `dir/name`: readers see the old content or the new, never a part.
///
/// # Errors
/// When the disk is full or the directory is not ours.
pub fn write_json<T: Serialize>(
    dir: &Path,
    name: &str,
    value: &T,
    durability: Durability,
) -> Result<(), Error> {
    let path = dir.join(name);
    let bytes = serde_json::to_vec(value).map_err(|source| Error::Shape { path: path.clone(), source })?;
    write_whole(dir, name, &bytes, durability).map_err(|source| Error::File { action: "write", path, source })
}

fn write_whole(dir: &Path, name: &str, bytes: &[u8], durability: Durability) -> io::Result<()> {
    let temporary = dir.join(format!(".{name}.new"));
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
    let mut file = File::from(open(&temporary, flags, Mode::from_raw_mode(0o600))?);
    file.write_all(bytes)?;
    if durability == Durability::Synced {
        file.sync_all()?;
    }
    std::fs::rename(&temporary, dir.join(name))?;
    if durability == Durability::Synced {
        fsync(open(dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)?;
    }
    Ok(())
}

/// Reads `dir/name`; none when there is no such file.
///
/// # Errors
/// When it exists and cannot be read or understood.
pub fn read_json<T: DeserializeOwned>(dir: &Path, name: &str) -> Result<Option<T>, Error> {
    let path = dir.join(name);
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(Error::File { action: "read", path, source }),
    };
    serde_json::from_slice(&bytes).map(Some).map_err(|source| Error::Shape { path, source })
}

/// Ownership of a pod's directory, until it is dropped or the process ends.
#[derive(Debug)]
pub struct DirLock {
    _file: OwnedFd,
}

/// Takes the pod's directory; none when somebody else has it.
///
/// # Errors
/// When the lock file cannot be made.
pub fn try_lock(dir: &Path) -> Result<Option<DirLock>, Error> {
    let path = dir.join(LOCK);
    let fail =
        |path: PathBuf, errno: rustix::io::Errno| Error::File { action: "lock", path, source: errno.into() };
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    let file = open(&path, flags, Mode::from_raw_mode(0o600)).map_err(|e| fail(path.clone(), e))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(DirLock { _file: file })),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(errno) => Err(fail(path, errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_whole_or_absent() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read_json::<u32>(dir.path(), "n").unwrap(), None);
        write_json(dir.path(), "n", &7_u32, Durability::Synced).unwrap();
        write_json(dir.path(), "n", &8_u32, Durability::Cached).unwrap();
        assert_eq!(read_json::<u32>(dir.path(), "n").unwrap(), Some(8));
        std::fs::write(dir.path().join("n"), "{").unwrap();
        assert!(matches!(read_json::<u32>(dir.path(), "n"), Err(Error::Shape { .. })));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file stays");
    }

    #[test]
    fn one_holds_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let held = try_lock(dir.path()).unwrap();
        assert!(held.is_some());
        assert!(try_lock(dir.path()).unwrap().is_none());
        drop(held);
        assert!(try_lock(dir.path()).unwrap().is_some());
    }
}
