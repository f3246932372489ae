//! Processes as the kernel describes them: who they are, who descends from whom.

use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io;

/// Variable in the environment of every process of a pod: the pod's uid. It is how left-over processes are found when
/// neither a control group nor an agent is there to name them.
pub const POD_UID_VARIABLE: &str = "REGATTA_POD_UID";

/// A process that cannot be mistaken for a later one with the same number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessIdentity {
    /// Its number.
    pub pid: u32,
    /// When it started, in clock ticks since boot.
    pub start_ticks: u64,
    /// Which boot of the machine.
    pub boot_id: String,
}

impl ProcessIdentity {
    /// The calling process.
    ///
    /// # Errors
    /// When `/proc` is not mounted.
    pub fn current() -> io::Result<Self> {
        let pid = std::process::id();
        let stat = stat(pid)?;
        Ok(Self { pid, start_ticks: stat.start_ticks, boot_id: boot_id()? })
    }
}

/// Whether the process of an identity still runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Liveness {
    /// It runs.
    Alive,
    /// It has ended in this boot of the machine.
    Dead,
    /// The machine was restarted since.
    Rebooted,
}

/// Compares an identity with what `/proc` says now: the boot, and the process with that number if there is one.
pub fn liveness(identity: &ProcessIdentity, boot_id_now: &str, now: Option<&Stat>) -> Liveness {
    if identity.boot_id != boot_id_now {
        return Liveness::Rebooted;
    }
    match now {
        Some(stat) if stat.start_ticks == identity.start_ticks && !stat.is_zombie() => Liveness::Alive,
        _ => Liveness::Dead,
    }
}

/// What `/proc/PID/stat` says, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    /// The process.
    pub pid: u32,
    /// One letter; `Z` for a zombie.
    pub state: u8,
    /// Its parent.
    pub parent: u32,
    /// Its process group.
    pub group: u32,
    /// Its session.
    pub session: u32,
    /// When it started, in clock ticks since boot.
    pub start_ticks: u64,
}

impl Stat {
    /// Whether it has ended and only waits to be reaped.
    pub const fn is_zombie(&self) -> bool {
        matches!(self.state, b'Z' | b'X')
    }
}

/// Parses `/proc/PID/stat`. The name in parentheses may hold anything, parentheses and spaces too.
pub fn parse_stat(text: &str) -> Option<Stat> {
    let (pid, rest) = text.split_once(" (")?;
    let (_, rest) = rest.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    Some(Stat {
        pid: pid.parse().ok()?,
        state: *fields.first()?.as_bytes().first()?,
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        // Field 22 of the file; the first after the name is field 3.
        start_ticks: fields.get(19)?.parse().ok()?,
    })
}

/// Reads `/proc/PID/stat`.
///
/// # Errors
/// When there is no such process.
pub fn stat(pid: u32) -> io::Result<Stat> {
    let text = std::fs::read(format!("/proc/{pid}/stat"))?;
    parse_stat(&String::from_utf8_lossy(&text)).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

/// Identity of the current boot.
///
/// # Errors
/// When `/proc` is not mounted.
pub fn boot_id() -> io::Result<String> {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|text| text.trim().to_owned())
}

/// Every process there is. Those that end while they are read are left out.
pub fn all() -> Vec<Stat> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| stat(pid).ok()).collect()
}

/// The processes that descend from `ancestor`, without itself and without zombies.
pub fn descendants(ancestor: u32, processes: &[Stat]) -> BTreeSet<u32> {
    let mut children: BTreeMap<u32, Vec<&Stat>> = BTreeMap::new();
    for process in processes {
        children.entry(process.parent).or_default().push(process);
    }
    let mut found = BTreeSet::new();
    let mut seen = BTreeSet::from([ancestor]);
    let mut open = vec![ancestor];
    while let Some(parent) = open.pop() {
        for child in children.get(&parent).into_iter().flatten() {
            if seen.insert(child.pid) {
                open.push(child.pid);
                if !child.is_zombie() {
                    found.insert(child.pid);
                }
            }
        }
    }
    found
}

/// Whether the process carries the mark of the pod with this uid in its environment.
pub fn is_marked(pid: u32, pod_uid: &str) -> bool {
    let Ok(environ) = std::fs::read(format!("/proc/{pid}/environ")) else { return false };
    let mark = format!("{POD_UID_VARIABLE}={pod_uid}");
    environ.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
}

/// Sends a signal to one process; one that is gone is no error.
pub fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = to_pid(pid) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// Sends a signal to a process group; one that is gone is no error.
pub fn signal_group(group: u32, signal: Signal) {
    if let Some(group) = to_pid(group) {
        let _ = rustix::process::kill_process_group(group, signal);
    }
}

/// The number as the kernel's type; none for 0 and for what cannot be one.
pub fn to_pid(pid: u32) -> Option<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, parent: u32, state: u8) -> Stat {
        Stat { pid, state, parent, group: pid, session: 1, start_ticks: 1 }
    }

    #[test]
    fn stat_is_parsed_past_any_name() {
        let line = "42 (a) b (c) S 7 42 40 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 123456 0 0";
        let expected = Stat { pid: 42, state: b'S', parent: 7, group: 42, session: 40, start_ticks: 123_456 };
        assert_eq!(parse_stat(line), Some(expected));
        for broken in
            ["", "42", "42 (name", "42 (name) S 1", "x (name) S 7 42 40 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 1"]
        {
            assert_eq!(parse_stat(broken), None, "{broken}");
        }
        let own = stat(std::process::id()).unwrap();
        assert_eq!(own.pid, std::process::id());
        assert!(!own.is_zombie());
    }

    #[test]
    fn descendants_are_found_across_generations() {
        let processes = [
            process(2, 1, b'S'),
            process(3, 2, b'R'),
            process(4, 3, b'Z'),
            process(5, 4, b'S'),
            process(9, 8, b'S'),
        ];
        assert_eq!(descendants(2, &processes), BTreeSet::from([3, 5]));
        assert_eq!(descendants(9, &processes), BTreeSet::new());
        // A table that was read while numbers were reused may hold a cycle.
        assert_eq!(descendants(1, &[process(1, 2, b'S'), process(2, 1, b'S')]), BTreeSet::from([2]));
    }

    #[test]
    fn a_process_is_adopted_only_if_it_is_the_same() {
        let identity = ProcessIdentity { pid: 42, start_ticks: 1, boot_id: "b".to_owned() };
        let mut other = process(42, 1, b'S');
        other.start_ticks = 2;
        for (boot, now, expected) in [
            ("b", Some(process(42, 1, b'S')), Liveness::Alive),
            ("b", Some(process(42, 1, b'Z')), Liveness::Dead),
            ("b", Some(other), Liveness::Dead),
            ("b", None, Liveness::Dead),
            ("c", Some(process(42, 1, b'S')), Liveness::Rebooted),
        ] {
            assert_eq!(liveness(&identity, boot, now.as_ref()), expected, "{boot} {now:?}");
        }
    }
}
