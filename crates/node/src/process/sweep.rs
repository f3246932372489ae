//! Ends what is left of a pod whose agent is gone.

use crate::cgroups::Cgroups;
use regatta_agent::process::{self, ProcessIdentity};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::time::Duration;

/// Pause between two looks, in milliseconds.
const PAUSE_MS: u64 = 20;
/// Looks after which the wait is worth a word.
const LOOKS_WARN: u32 = 250;

/// Kills every process of the pod and returns when none is left: those in its control groups, in its agent's session, and
/// those that carry its mark. Blocks.
pub(super) fn end_all(uid: &str, agent: Option<&ProcessIdentity>, cgroups: &Cgroups) {
    for look in 0_u32.. {
        let left = left(uid, agent, cgroups);
        if left.is_empty() {
            return;
        }
        for pid in &left {
            process::signal(*pid, Signal::KILL);
        }
        if look == LOOKS_WARN {
            tracing::warn!(pod = uid, processes = ?left, "processes of a lost pod do not end; waiting for them");
        }
        std::thread::sleep(Duration::from_millis(PAUSE_MS));
    }
}

fn left(uid: &str, agent: Option<&ProcessIdentity>, cgroups: &Cgroups) -> BTreeSet<u32> {
    let own = std::process::id();
    let grouped = cgroups.processes(uid);
    let found = process::all().into_iter().filter(|stat| {
        // The agent's number may belong to another session's leader by now; then nothing of ours is in it.
        let in_session =
            agent.is_some_and(|agent| stat.session == agent.pid && stat.start_ticks >= agent.start_ticks);
        !stat.is_zombie()
            && stat.pid != own
            && (grouped.contains(&stat.pid)
                || in_session && process::is_marked(stat.pid, uid)
                || process::is_marked(stat.pid, uid))
    });
    found.map(|stat| stat.pid).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn marked_processes_are_ended_and_others_are_not() {
        let sleep = |uid: &str| {
            let mut command = Command::new("/bin/sh");
            command.args(["-c", "sleep 600 & wait"]).env(process::POD_UID_VARIABLE, uid).stdin(Stdio::null());
            command.spawn().unwrap()
        };
        let (mut ours, mut other) = (sleep("sweep-test-1"), sleep("sweep-test-2"));
        end_all("sweep-test-1", None, &Cgroups::default());
        assert!(!ours.wait().unwrap().success());
        assert!(other.try_wait().unwrap().is_none());
        end_all("sweep-test-2", None, &Cgroups::default());
        other.wait().unwrap();
    }
}
