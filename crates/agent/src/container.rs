//! One container while it runs: its ranks, how they end, how they are stopped.

use crate::exit::{self, ContainerExit, Ends};
use crate::launch;
use crate::log_line::Stream;
use crate::log_writer::LogWriter;
use crate::namespaces::{self, Base};
use crate::output::Output;
use crate::process;
use crate::protocol::{ContainerKind, ContainerPulse};
use crate::spawn::{self, Start};
use crate::spec::{AgentSpec, ContainerSpec, LOG_FILE_PLAIN, RunningRank};
use crate::stopping::{Act, Stopping};
use regatta_types::evidence::{ExitRecord, ProcessEnd, RankEnd};
use regatta_types::{Clock, Rank, Timestamp};
use rustix::process::Signal;
use std::os::fd::OwnedFd;

/// How long the other ranks of a container get after one has failed, in milliseconds: what they would still do is lost.
const PEER_GRACE_MS: u64 = 5_000;

/// A container that was started, or that could not be.
#[derive(Debug)]
pub(crate) struct Container<'a> {
    spec: &'a ContainerSpec,
    pub(crate) kind: ContainerKind,
    ranks: Vec<RankProcess>,
    /// In the order in which they ended.
    ends: Vec<RankEnd>,
    started_at: Option<Timestamp>,
    ended_at: Timestamp,
    oom_kills_before: u64,
    pub(crate) stopping: Stopping,
    stop_requested_before_end: bool,
    problem: Option<String>,
    /// Its mount namespace, kept for a look at the checkpoints when its processes are gone.
    mount_namespace: Option<OwnedFd>,
}

#[derive(Debug)]
struct RankProcess {
    rank: Rank,
    local_rank: u32,
    pid: u32,
    output: Output,
    running: bool,
}

impl<'a> Container<'a> {
    /// Starts the container's processes. What cannot be started has ended at once. `index` is its place among the main
    /// containers, none for an init container.
    pub(crate) fn start(
        spec: &'a AgentSpec,
        own: &'a ContainerSpec,
        index: Option<usize>,
        base: &Base,
        clock: &dyn Clock,
    ) -> Self {
        let mut container = Self {
            spec: own,
            kind: if index.is_some() { ContainerKind::Main } else { ContainerKind::Init },
            ranks: Vec::new(),
            ends: Vec::new(),
            started_at: None,
            ended_at: clock.now(),
            oom_kills_before: own.cgroup.oom_kills(),
            stopping: Stopping::No,
            stop_requested_before_end: false,
            problem: None,
            mount_namespace: None,
        };
        let made = base.make_container(&own.mounts, || container.start_ranks(spec, index, clock));
        match made {
            Ok((mount_namespace, ())) => container.mount_namespace = mount_namespace,
            Err(error) => container.cannot_start(Rank(0), error.errno(), error.to_string(), clock.now()),
        }
        container
    }

    fn start_ranks(&mut self, spec: &AgentSpec, index: Option<usize>, clock: &dyn Clock) {
        let first_rank = |local_rank| match (&spec.launch, index) {
            (Some(launch), Some(0)) => launch.rank(local_rank),
            _ => Rank(local_rank),
        };
        if !namespaces::is_directory(&self.spec.working_dir) {
            let problem = format!(
                "the working directory {} does not exist; make it, or correct workingDir",
                self.spec.working_dir.display()
            );
            return self.cannot_start(
                first_rank(0),
                rustix::io::Errno::NOENT.raw_os_error(),
                problem,
                clock.now(),
            );
        }
        let cgroups = match spawn::open_cgroups(&self.spec.cgroup.directories) {
            Ok(cgroups) => cgroups,
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or_else(|| rustix::io::Errno::IO.raw_os_error());
                return self.cannot_start(
                    first_rank(0),
                    errno,
                    format!("cannot join the control groups: {error}"),
                    clock.now(),
                );
            }
        };
        let count = index.map_or(1, |index| spec.processes(index));
        for local_rank in 0..count {
            let rank = first_rank(local_rank);
            let env = launch::environment(spec, self.spec, index, local_rank);
            let start = Start {
                argv: &self.spec.argv,
                env: &env,
                working_dir: &self.spec.working_dir,
                cgroups: &cgroups,
            };
            match spawn::start(&start) {
                Ok(started) => {
                    let file =
                        index.map_or_else(|| LOG_FILE_PLAIN.to_owned(), |index| spec.log_file(index, rank));
                    let log = LogWriter::open(self.spec.log_dir.join(file));
                    let output = Output::new(log, started.stdout, started.stderr);
                    self.ranks.push(RankProcess {
                        rank,
                        local_rank,
                        pid: started.pid,
                        output,
                        running: true,
                    });
                    self.started_at.get_or_insert_with(|| clock.now());
                }
                Err(error) => {
                    let errno =
                        error.raw_os_error().unwrap_or_else(|| rustix::io::Errno::INVAL.raw_os_error());
                    let program = self.spec.argv.first().map_or("", String::as_str);
                    self.cannot_start(rank, errno, exit::not_started_sentence(program, errno), clock.now());
                    self.stop_peers(clock);
                    return;
                }
            }
        }
    }

    fn cannot_start(&mut self, rank: Rank, errno: i32, problem: String, now: Timestamp) {
        self.ends.push(RankEnd { rank, end: ProcessEnd::NotStarted(errno), at: now });
        self.problem = Some(problem);
        self.ended_at = now;
    }

    /// Notes the end of a process, if it is one of this container's ranks. Its group is killed with it: what a rank
    /// leaves behind in its group belongs to nobody.
    pub(crate) fn reaped(&mut self, pid: u32, end: ProcessEnd, clock: &dyn Clock) -> bool {
        let Some(process) = self.ranks.iter_mut().find(|rank| rank.pid == pid && rank.running) else {
            return false;
        };
        process.running = false;
        let rank = process.rank;
        process::signal_group(pid, Signal::KILL);
        let now = clock.now();
        if self.ends.is_empty() {
            self.stop_requested_before_end = self.stopping.is_requested();
        }
        self.ends.push(RankEnd { rank, end, at: now });
        self.ended_at = now;
        if end != ProcessEnd::Exited(0) {
            self.stop_peers(clock);
        }
        true
    }

    fn stop_peers(&mut self, clock: &dyn Clock) {
        if self.is_running() {
            self.request_stop(clock.monotonic_ms(), PEER_GRACE_MS);
        }
    }

    /// Whether any of its processes runs.
    pub(crate) fn is_running(&self) -> bool {
        self.ranks.iter().any(|rank| rank.running)
    }

    /// Whether it has ended badly.
    pub(crate) fn has_failed(&self) -> bool {
        exit::first_failure(&self.ends).is_some()
    }

    /// Asks its processes to stop.
    pub(crate) fn request_stop(&mut self, now_ms: u64, grace_ms: u64) {
        if let Some(act) = self.stopping.request(now_ms, grace_ms) {
            self.act(act);
        }
    }

    /// Kills what has had its time.
    pub(crate) fn tend(&mut self, now_ms: u64) {
        if self.is_running()
            && let Some(act) = self.stopping.due(now_ms)
        {
            self.act(act);
        }
    }

    /// When `tend` has something to do.
    pub(crate) fn deadline_ms(&self) -> Option<u64> {
        if self.is_running() { self.stopping.deadline_ms() } else { None }
    }

    fn act(&self, act: Act) {
        for rank in self.ranks.iter().filter(|rank| rank.running) {
            match act {
                Act::Terminate => {
                    process::signal_group(rank.pid, Signal::TERM);
                    // A stopped process hears nothing until it goes on.
                    process::signal_group(rank.pid, Signal::CONT);
                }
                Act::Kill => process::signal_group(rank.pid, Signal::KILL),
            }
        }
        if act == Act::Kill {
            self.kill_all();
        }
    }

    /// Kills every process in its control groups.
    pub(crate) fn kill_all(&self) {
        self.spec.cgroup.kill();
    }

    /// Its open pipes, for polling: which rank, which stream.
    pub(crate) fn pipes(&self) -> Vec<(usize, Stream)> {
        let mut pipes = Vec::new();
        for (index, rank) in self.ranks.iter().enumerate() {
            for stream in [Stream::Stdout, Stream::Stderr] {
                if rank.output.pipe(stream).is_some() {
                    pipes.push((index, stream));
                }
            }
        }
        pipes
    }

    /// The output of a rank, by its place.
    pub(crate) fn output(&self, index: usize) -> &Output {
        &self.ranks[index].output
    }

    /// The same, to read from it.
    pub(crate) fn output_mut(&mut self, index: usize) -> &mut Output {
        &mut self.ranks[index].output
    }

    /// Reads what is left in the pipes and closes them.
    pub(crate) fn finish_output(&mut self, now: Timestamp, progress: &mut dyn FnMut(&[u8])) {
        for rank in &mut self.ranks {
            rank.output.finish(now, progress);
        }
    }

    /// Its processes, for those who want to run a command beside them.
    pub(crate) fn running_ranks(&self) -> impl Iterator<Item = RunningRank> {
        self.ranks.iter().filter_map(|rank| {
            let start_ticks = process::stat(rank.pid).ok()?.start_ticks;
            let container = self.spec.name.clone();
            Some(RunningRank {
                container,
                rank: rank.rank,
                local_rank: rank.local_rank,
                pid: rank.pid,
                start_ticks,
            })
        })
    }

    /// A sign of life; none if it could not be started.
    pub(crate) fn pulse(&self) -> Option<ContainerPulse> {
        Some(ContainerPulse {
            name: self.spec.name.clone(),
            kind: self.kind,
            started_at: self.started_at?,
            pid: self.ranks.first()?.pid,
            ended: !self.is_running(),
        })
    }

    /// Its mount namespace, if it has one of its own.
    pub(crate) const fn mount_namespace(&self) -> Option<&OwnedFd> {
        self.mount_namespace.as_ref()
    }

    /// How it ended. `record` has the facts that are not this container's own: epoch, steps, checkpoints.
    pub(crate) fn exit(&self, mut record: ExitRecord) -> ContainerExit {
        record.ranks = self.ends.clone();
        record.stop_requested = self.stop_requested_before_end;
        record.oom_killed = self.spec.cgroup.oom_kills() > self.oom_kills_before;
        let ends = Ends {
            ranks: &self.ends,
            rank_count: self.ranks.len(),
            oom_killed: record.oom_killed,
            stop_requested: record.stop_requested,
            problem: self.problem.as_deref(),
        };
        let verdict = exit::verdict(&ends);
        if let Some(first) = exit::first_failure(&self.ends) {
            let failed = self.ranks.iter().find(|rank| rank.rank == first.rank);
            record.stderr_tail = failed.map_or_else(String::new, |rank| rank.output.stderr_tail());
        }
        ContainerExit {
            name: self.spec.name.clone(),
            kind: self.kind,
            started_at: self.started_at,
            finished_at: self.ended_at,
            end: verdict.end,
            reason: verdict.reason.to_owned(),
            message: verdict.message,
            record,
        }
    }
}
