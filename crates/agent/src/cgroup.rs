//! Control groups as the agent uses them: join at start, count kernel kills, kill what is left.
//!
//! Which groups exist, and where, is the node runtime's business.

use crate::process;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Control groups of one container.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CgroupSpec {
    /// Directories of the groups that its processes join, one for each hierarchy.
    pub directories: Vec<PathBuf>,
    /// File that counts processes that the kernel killed for memory (`memory.events` or `memory.oom_control`).
    pub oom_file: Option<PathBuf>,
}

impl CgroupSpec {
    /// How many processes the kernel has killed for memory so far.
    pub fn oom_kills(&self) -> u64 {
        let text = self.oom_file.as_ref().and_then(|file| std::fs::read_to_string(file).ok());
        text.as_deref().and_then(parse_oom_kills).unwrap_or(0)
    }

    /// Kills every process in the groups. Has an effect at once where the kernel can (version 2), and on those that are
    /// there now otherwise; call it until the groups are empty.
    pub fn kill(&self) {
        for directory in &self.directories {
            kill(directory);
        }
    }
}

/// Kills every process in one group.
pub fn kill(directory: &Path) {
    if std::fs::write(directory.join("cgroup.kill"), "1").is_ok() {
        return;
    }
    for pid in processes(directory) {
        process::signal(pid, Signal::KILL);
    }
}

/// The processes in one group.
pub fn processes(directory: &Path) -> Vec<u32> {
    let text = std::fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

/// Both versions of control groups write the counter in the same way.
fn parse_oom_kills(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_kills_are_counted_in_both_versions() {
        for (text, expected) in [
            ("low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n", Some(2)),
            ("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n", Some(1)),
            ("oom_kill_disable 0\n", None),
            ("", None),
        ] {
            assert_eq!(parse_oom_kills(text), expected, "{text:?}");
        }
    }
}
