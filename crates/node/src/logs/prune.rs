//! Makes room among the logs: the oldest go when all together take too much.

use regatta_types::Uid;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Most room that logs of pods that are gone may take together, in bytes.
const LOGS_BYTES_MAX: u64 = 10 * 1024 * 1024 * 1024;

struct PodLog {
    path: PathBuf,
    modified: SystemTime,
    bytes: u64,
}

/// Removes the logs of the longest-gone pods until the rest fits. Logs of `live` pods stay.
pub(crate) fn prune(root: &Path, live: &BTreeSet<Uid>) -> io::Result<()> {
    prune_to(root, live, LOGS_BYTES_MAX)
}

fn prune_to(root: &Path, live: &BTreeSet<Uid>, bytes_max: u64) -> io::Result<()> {
    let mut logs = Vec::new();
    for namespace in subdirectories(root)? {
        for path in subdirectories(&namespace)? {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name.rsplit_once('_').is_none_or(|(_, uid)| !live.contains(&Uid::from(uid))) {
                let (bytes, modified) = measure(&path)?;
                logs.push(PodLog { path, modified, bytes });
            }
        }
    }
    logs.sort_by_key(|log| log.modified);
    let mut total: u64 = logs.iter().map(|log| log.bytes).sum();
    for log in logs {
        if total <= bytes_max {
            break;
        }
        fs::remove_dir_all(&log.path)?;
        tracing::info!(log = %log.path.display(), "an old log is removed to make room");
        total -= log.bytes;
    }
    Ok(())
}

fn subdirectories(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// Size of all files below, and when the newest of them was written.
fn measure(directory: &Path) -> io::Result<(u64, SystemTime)> {
    let mut total = (0, fs::metadata(directory)?.modified()?);
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        let (bytes, modified) =
            if metadata.is_dir() { measure(&entry.path())? } else { (metadata.len(), metadata.modified()?) };
        total = (total.0 + bytes, total.1.max(modified));
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_oldest_go_and_the_living_stay() {
        let dir = tempfile::tempdir().unwrap();
        for (age_s, name) in [(40, "a_1"), (30, "b_2"), (20, "c_3"), (10, "d_4")] {
            let log = dir.path().join("default").join(name).join("main");
            fs::create_dir_all(&log).unwrap();
            fs::write(log.join("output.log"), [b'x'; 100]).unwrap();
            let when = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 - age_s);
            for path in [log.join("output.log"), log.clone(), dir.path().join("default").join(name)] {
                fs::File::open(path).unwrap().set_modified(when).unwrap();
            }
        }
        prune_to(dir.path(), &BTreeSet::from([Uid::from("1")]), 250).unwrap();
        let mut left: Vec<_> =
            fs::read_dir(dir.path().join("default")).unwrap().map(|e| e.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["a_1", "c_3", "d_4"]);
        prune_to(&dir.path().join("nothing"), &BTreeSet::new(), 0).unwrap();
    }
}
