//! Processes of this machine, found through `/proc` as a person would find them with `ps`.

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The first process of a rank.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RankProcess {
    /// Which rank.
    pub rank: u32,
    /// Attempt in which it was started.
    pub epoch: u64,
    /// Its process.
    pub pid: u32,
}

/// Sends a signal to one process; one that is gone is left alone.
pub fn kill(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
        // It may have ended in the meantime.
        let _ = kill_process(pid, signal);
    }
}

/// Whether there is such a process, dead but unreaped ones included.
pub fn exists(pid: u32) -> bool {
    Pid::from_raw(pid.cast_signed()).is_some_and(|pid| test_kill_process(pid).is_ok())
}

/// Waits until a process is gone, through a descriptor of it. One that was never there is gone.
pub fn wait_gone(pid: u32) {
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::process::{PidfdFlags, pidfd_open};
    let Some(pid) = Pid::from_raw(pid.cast_signed()) else { return };
    let Ok(descriptor) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    let deadline = rustix::time::Timespec { tv_sec: crate::DEADLINE_S.cast_signed(), tv_nsec: 0 };
    let ready =
        rustix::io::retry_on_intr(|| poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&deadline)));
    assert_eq!(ready, Ok(1), "process {pid:?} never ended");
}

/// The ranks of `job` that run under the daemon with the data directory `home`, in order.
pub fn ranks(home: &Path, job: &str) -> Vec<RankProcess> {
    let found: BTreeMap<u32, (RankProcess, u32)> = all()
        .filter_map(|pid| {
            let env = environment(pid)?;
            let ours = env.get("REGATTA_JOB")? == job && belongs(&env, home);
            let rank = env.get("REGATTA_RANK")?.parse().ok()?;
            let epoch = env.get("REGATTA_EPOCH")?.parse().ok()?;
            ours.then_some((pid, (RankProcess { rank, epoch, pid }, parent(pid)?)))
        })
        .collect();
    // What a rank starts inherits its environment; the rank is the one whose parent is none of them.
    let mut ranks: Vec<RankProcess> = found
        .values()
        .filter(|(_, parent)| !found.contains_key(parent))
        .map(|(rank, _)| rank.clone())
        .collect();
    ranks.sort();
    ranks
}

/// All processes that mention the data directory `home` in their command line or environment.
pub fn mentioning(home: &Path) -> Vec<u32> {
    let home = home.as_os_str().as_encoded_bytes();
    let mentions = |pid: &u32| {
        ["cmdline", "environ"].iter().any(|file| {
            let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            bytes.windows(home.len()).any(|window| window == home)
        })
    };
    all().filter(|pid| *pid != std::process::id()).filter(mentions).collect()
}

fn belongs(env: &BTreeMap<String, String>, home: &Path) -> bool {
    // The socket lies in the data directory or, where that has a long name, in memory under the pod's own name.
    env.get("REGATTA_SOCK").is_some_and(|socket| {
        Path::new(socket).starts_with(home)
            || env.get("REGATTA_POD_UID").is_some_and(|uid| home.join("pods").join(uid).exists())
            || Path::new(socket)
                .parent()
                .and_then(Path::file_name)
                .is_some_and(|uid| home.join("pods").join(uid).exists())
    })
}

fn all() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn environment(pid: u32) -> Option<BTreeMap<String, String>> {
    let bytes = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    Some(
        text.split('\0')
            .filter_map(|pair| pair.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
    )
}

/// The parent: field 4 of `/proc/PID/stat` (proc(5)), counted after the command's closing parenthesis.
fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}
