//! A daemon for one test: a data directory of its own, started through the command line, gone with everything it
//! started when the test ends, well or by panic.

use crate::api::Api;
use crate::command::{Finished, Running, run};
use crate::processes::{self, RankProcess};
use rustix::process::Signal;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// How a [`TestDaemon`] shall be.
#[derive(Debug, Clone)]
pub struct Builder {
    binary: PathBuf,
    up: Vec<String>,
    env: Vec<(String, String)>,
    home: Option<PathBuf>,
}

impl Builder {
    /// Number of virtual nodes, and of simulated GPUs in each.
    #[must_use]
    pub fn nodes(self, nodes: u32, gpus: u32) -> Self {
        self.up(&["--nodes", &nodes.to_string(), "--gpus", &gpus.to_string()])
    }

    /// More arguments of `up`.
    #[must_use]
    pub fn up(mut self, arguments: &[&str]) -> Self {
        self.up.extend(arguments.iter().map(|&argument| argument.to_owned()));
        self
    }

    /// A variable of every command, the daemon included.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// A data directory that exists already, or lies on a file system of the test's.
    #[must_use]
    pub fn home(mut self, home: &Path) -> Self {
        self.home = Some(home.to_owned());
        self
    }

    /// Prepares, without starting a daemon.
    pub fn prepare(self) -> TestDaemon {
        // A short path, as sockets must have one; canonical, as the daemon shows it.
        let scratch = tempfile::Builder::new().prefix("rt-").tempdir().expect("a temporary directory");
        let root = scratch.path().canonicalize().expect("the directory is there");
        let home = self.home.unwrap_or_else(|| root.join("home"));
        let work = root.join("work");
        std::fs::create_dir_all(&work).expect("a directory can be made");
        TestDaemon { binary: self.binary, up: self.up, env: self.env, home, work, _scratch: scratch }
    }

    /// Starts the daemon.
    #[track_caller]
    pub fn start(self) -> TestDaemon {
        let daemon = self.prepare();
        daemon.start();
        daemon
    }
}

/// A daemon and its data directory.
#[derive(Debug)]
pub struct TestDaemon {
    binary: PathBuf,
    up: Vec<String>,
    env: Vec<(String, String)>,
    home: PathBuf,
    work: PathBuf,
    _scratch: tempfile::TempDir,
}

impl TestDaemon {
    /// A daemon of this binary: `TestDaemon::of(env!("CARGO_BIN_EXE_regatta"))`.
    pub fn of(binary: impl AsRef<Path>) -> Builder {
        Builder { binary: binary.as_ref().to_owned(), up: Vec::new(), env: Vec::new(), home: None }
    }

    /// Its data directory.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// A directory for the test's own files; commands start in it.
    pub fn work(&self) -> &Path {
        &self.work
    }

    /// Writes a file into the directory of the test.
    pub fn write(&self, name: &str, content: &str) -> PathBuf {
        let path = self.work.join(name);
        std::fs::write(&path, content).expect("a file can be written");
        path
    }

    /// Starts it, also again after a stop, and waits until it serves.
    #[track_caller]
    pub fn start(&self) {
        self.up().ok();
    }

    /// Tries to start it.
    #[track_caller]
    pub fn up(&self) -> Finished {
        run(self.command(["up", "--detach"]).args(&self.up))
    }

    /// `regatta ARGUMENTS` with this data directory, not yet started.
    pub fn command<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(&self.binary);
        command.args(arguments).current_dir(&self.work);
        self.prepare_env(&mut command);
        command
    }

    fn prepare_env(&self, command: &mut Command) {
        // What the tests' own caller has set must not reach the jobs.
        let foreign = std::env::vars_os().map(|(name, _)| name);
        for name in foreign.filter(|name| name.to_string_lossy().starts_with("REGATTA_")) {
            command.env_remove(name);
        }
        command
            .env_remove("KUBECONFIG")
            .env("REGATTA_HOME", &self.home)
            .env("HOME", &self.work)
            .env("NO_COLOR", "1");
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
    }

    /// Runs `regatta ARGUMENTS` to its end.
    #[track_caller]
    pub fn regatta<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Finished {
        run(&mut self.command(arguments))
    }

    /// Starts `regatta ARGUMENTS`.
    #[track_caller]
    pub fn spawn<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Running {
        Running::start(&mut self.command(arguments))
    }

    /// Runs a shell script as `regatta run FLAGS -- sh -c SCRIPT`.
    #[track_caller]
    pub fn run_script(&self, flags: &[&str], script: &str) -> Finished {
        run(&mut self.script(flags, script))
    }

    /// The command of [`Self::run_script`], not yet started.
    pub fn script(&self, flags: &[&str], script: &str) -> Command {
        let mut command = self.command(["run"]);
        command.args(flags).args(["--", "sh", "-c", script]);
        command
    }

    /// Runs `kubectl ARGUMENTS` to its end; none when there is no kubectl on this machine.
    #[track_caller]
    pub fn kubectl<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Option<Finished> {
        let mut command = Command::new(find_program("kubectl")?);
        self.prepare_env(&mut command);
        command.env("KUBECONFIG", self.kubeconfig()).current_dir(&self.work).args(arguments);
        Some(run(&mut command))
    }

    /// Its kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.home.join("kubeconfig")
    }

    /// A connection to it.
    #[track_caller]
    pub fn api(&self) -> Api {
        Api::connect(&self.kubeconfig())
    }

    /// Its process, as it announced itself; it may be gone.
    pub fn pid(&self) -> Option<u32> {
        let text = std::fs::read_to_string(self.home.join("daemon.json")).ok()?;
        let value: serde_json::Value = serde_json::from_str(&text).ok()?;
        value["pid"].as_u64().and_then(|pid| pid.try_into().ok())
    }

    /// Kills it with SIGKILL and waits until it is gone.
    #[track_caller]
    pub fn kill(&self) {
        let pid = self.pid().expect("the daemon has announced itself");
        processes::kill(pid, Signal::KILL);
        // It is not our child, so its end shows in the lock that the kernel takes back.
        let lock = std::fs::File::open(self.home.join("daemon.lock")).expect("the lock file is there");
        lock.lock_shared().expect("the lock can be had");
    }

    /// The ranks of a job, as processes.
    pub fn ranks(&self, job: &str) -> Vec<RankProcess> {
        processes::ranks(&self.home, job)
    }

    /// Kills one rank of a job with SIGKILL.
    #[track_caller]
    pub fn kill_rank(&self, job: &str, rank: u32) {
        let ranks = self.ranks(job);
        let found = ranks.iter().find(|one| one.rank == rank);
        processes::kill(found.unwrap_or_else(|| panic!("no rank {rank} in {ranks:?}")).pid, Signal::KILL);
    }
}

impl Drop for TestDaemon {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.home.join("daemon.log")).unwrap_or_default();
            let tail: Vec<&str> = log.lines().rev().take(30).collect();
            let tail: Vec<&str> = tail.into_iter().rev().collect();
            // Into the output of the failing test.
            #[allow(clippy::print_stderr)]
            {
                eprintln!("-- end of the daemon's log\n{}", tail.join("\n"));
            }
        }
        if self.home.join("daemon.lock").exists() {
            // A daemon that was killed comes back once, to stop what it had started and to take down networks.
            let quiet = |arguments: &[&str]| {
                let mut command = self.command(arguments);
                let _ = command.stdin(std::process::Stdio::null()).output();
            };
            if !self.pid().is_some_and(processes::exists) {
                let mut up = vec!["up", "--detach"];
                up.extend(self.up.iter().map(String::as_str));
                quiet(&up);
            }
            quiet(&["down", "--yes"]);
        }
        for pid in processes::mentioning(&self.home) {
            processes::kill(pid, Signal::KILL);
        }
    }
}

/// A program on the PATH.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(name)).find(|path| path.is_file())
}
