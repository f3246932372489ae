//! The product from outside: the real binary, real processes, the API as kubectl sees it. Each test has a daemon of
//! its own. What this machine cannot do (no root, no kubectl) is skipped with a word.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

mod capacity;
mod daemon;
mod digits;
mod disk;
mod follow;
mod hardware;
mod kubectl;
mod network;
mod recovery;
mod run;

use regatta_testkit::{Builder, TestDaemon};

/// A daemon of the binary under test, not yet started.
fn daemon() -> Builder {
    TestDaemon::of(env!("CARGO_BIN_EXE_regatta"))
}

/// Runs until somebody stops it, and says so once it runs.
const FOREVER: &str = "echo ready; exec sleep 100000";

/// Stands where a program waits for the test: blocks until the test calls [`Gate::open`].
struct Gate {
    path: std::path::PathBuf,
}

impl Gate {
    fn new(daemon: &TestDaemon, name: &str) -> Self {
        let path = daemon.work().join(name);
        let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success(), "mkfifo {}", path.display());
        Self { path }
    }

    /// The shell command that waits.
    fn wait(&self) -> String {
        format!("read line < {}", self.path.display())
    }

    /// Lets one waiter go. Blocks until there is one.
    fn open(&self) {
        std::fs::write(&self.path, "go\n").unwrap();
    }
}

/// Says why a test does not run here. The gate's log shows it.
fn skip(test: &str, why: &str) {
    println!("skipped {test}: {why}");
}

fn is_root() -> bool {
    std::fs::read_to_string("/proc/self/status").unwrap().lines().any(|line| line == "Uid:\t0\t0\t0\t0")
}
