//! Takes over the pods that an earlier runtime had started.

use super::record::{PodRecord, RECORD};
use super::{Live, PassedOn, ProcessDriver, sweep};
use crate::driver::{Adopted, PodEnd};
use crate::runtime::lock;
use regatta_agent::exit::PodExit;
use regatta_agent::files;
use regatta_agent::process::{self, Liveness, ProcessIdentity, liveness};
use regatta_agent::spec::AgentSpec;
use regatta_types::Uid;
use rustix::process::{PidfdFlags, pidfd_open};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How often an agent that holds its pod's lock is asked for its name; it writes it right after it has the lock.
const IDENTITY_TRIES: u32 = 100;
/// Pause between two tries, in milliseconds.
const IDENTITY_PAUSE_MS: u64 = 20;

/// A pod of an earlier runtime.
pub(super) struct FoundPod {
    record: PodRecord,
    spec: AgentSpec,
    fate: Fate,
}

/// What became of it.
enum Fate {
    /// It runs; this is its agent.
    Runs(OwnedFd),
    /// It has ended.
    Ended(PodEnd),
}

impl ProcessDriver {
    /// Looks at every pod's directory. Those of pods that never ran are removed. Blocks.
    pub(super) fn find_pods(&self) -> Vec<FoundPod> {
        let entries = match fs::read_dir(self.layout.pods()) {
            Ok(entries) => entries,
            Err(error) => {
                tracing::error!(%error, "the pods of an earlier start cannot be found");
                return Vec::new();
            }
        };
        let mut found = Vec::new();
        for entry in entries.flatten() {
            let uid = Uid(entry.file_name().to_string_lossy().into_owned());
            match self.find_pod(&uid) {
                Some(pod) => {
                    if matches!(pod.fate, Fate::Runs(_)) {
                        self.network.adopt(&pod.record.network, &uid);
                    }
                    found.push(pod);
                }
                None => self.remove_all(&uid),
            }
        }
        self.network.sweep();
        found
    }

    fn find_pod(&self, uid: &Uid) -> Option<FoundPod> {
        let dir = self.layout.pod(uid);
        let record: PodRecord = read(&dir, RECORD)?;
        let identity = identify(&dir)?;
        let spec: AgentSpec = read(&dir, files::SPEC)?;
        let fate = match read::<PodExit>(&dir, files::EXIT) {
            Some(exit) => {
                self.cgroups.remove(uid.as_str());
                self.tidy(uid);
                Fate::Ended(PodEnd::Exit(exit))
            }
            None => self.fate(uid, &identity),
        };
        Some(FoundPod { record, spec, fate })
    }

    fn fate(&self, uid: &Uid, identity: &ProcessIdentity) -> Fate {
        let boot_id = process::boot_id().unwrap_or_default();
        let alive = |identity: &ProcessIdentity| {
            liveness(identity, &boot_id, process::stat(identity.pid).ok().as_ref())
        };
        match alive(identity) {
            Liveness::Alive => {
                let pidfd =
                    process::to_pid(identity.pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
                // The number could have passed to another process before it was opened; now it cannot.
                match pidfd.filter(|_| alive(identity) == Liveness::Alive) {
                    Some(pidfd) => Fate::Runs(pidfd),
                    None => Fate::Ended(self.find_end(uid)),
                }
            }
            Liveness::Dead => {
                sweep::end_all(uid.as_str(), Some(identity), &self.cgroups);
                Fate::Ended(self.find_end(uid))
            }
            Liveness::Rebooted => {
                self.tidy(uid);
                let lost = self.lost("NodeRebooted", "the machine was restarted while the pod ran");
                Fate::Ended(PodEnd::Lost(lost))
            }
        }
    }

    /// Observes a pod from now on.
    pub(super) fn take_over(&self, found: FoundPod) -> Adopted {
        let FoundPod { record, spec, fate } = found;
        let uid = record.uid.clone();
        let adopted = |end| Adopted {
            uid: uid.clone(),
            namespace: record.namespace.clone(),
            name: record.name.clone(),
            started: record.started(),
            end,
        };
        let (agent, adopted) = match fate {
            Fate::Runs(pidfd) => {
                lock(&self.ledger).adopt(&record.node, &uid, record.devices.iter().copied());
                (Some(Arc::new(pidfd)), adopted(None))
            }
            Fate::Ended(end) => (None, adopted(Some(end))),
        };
        tracing::info!(pod = record.name, running = agent.is_some(), "a pod of an earlier start is adopted");
        let live = Live { record, job: spec.pod.job, agent: agent.clone(), passed_on: PassedOn::default() };
        lock(&self.live).insert(uid.clone(), live);
        if let Some(pidfd) = agent {
            self.watch(uid, pidfd, None);
        }
        adopted
    }
}

/// The agent that serves the directory; none when none ever did, which is made sure of.
fn identify(dir: &Path) -> Option<ProcessIdentity> {
    for _ in 0..IDENTITY_TRIES {
        if let Some(identity) = read(dir, files::IDENTITY) {
            return Some(identity);
        }
        match files::try_lock(dir) {
            // No agent has it, and one that comes late finds nothing to do.
            Ok(Some(_lock)) => {
                // Between the look and the lock it may have come and gone.
                if let Some(identity) = read(dir, files::IDENTITY) {
                    return Some(identity);
                }
                let _ = fs::remove_file(dir.join(files::SPEC));
                return None;
            }
            Ok(None) => std::thread::sleep(Duration::from_millis(IDENTITY_PAUSE_MS)),
            Err(error) => {
                tracing::warn!(%error, "a pod's directory is given up");
                return None;
            }
        }
    }
    tracing::warn!(dir = %dir.display(), "a pod's directory is locked by somebody who does not say who it is");
    None
}

fn read<T: serde::de::DeserializeOwned>(dir: &Path, name: &str) -> Option<T> {
    files::read_json(dir, name).unwrap_or_else(|error| {
        tracing::error!(%error, "a file of a pod cannot be read");
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use regatta_agent::files::Durability;

    #[test]
    fn an_agent_that_never_came_cannot_come_later() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(files::SPEC), "{}").unwrap();
        assert_eq!(identify(dir.path()), None);
        assert!(!dir.path().join(files::SPEC).exists(), "a late agent finds nothing to do");

        let identity = ProcessIdentity { pid: 7, start_ticks: 1, boot_id: "b".to_owned() };
        files::write_json(dir.path(), files::IDENTITY, &identity, Durability::Cached).unwrap();
        assert_eq!(identify(dir.path()), Some(identity));
    }
}
