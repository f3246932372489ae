//! The agent's life: start what runs first, start the rest, wait, stop, reap, and leave the exit record.

use crate::container::Container;
use crate::exit::{ContainerExit, PodExit};
use crate::files::{self, Durability};
use crate::log_line::Stream;
use crate::namespaces::{self, Base};
use crate::process::{self, ProcessIdentity};
use crate::progress::{DATAGRAM_BYTES_MAX, Heard};
use crate::protocol::{AgentMessage, ContainerKind};
use crate::spec::{AgentSpec, ContainerSpec, RunningRanks, StopRequest};
use crate::uplink::{Uplink, Urgency};
use crate::{Error, checkpoint};
use regatta_types::evidence::{ExitRecord, ProcessEnd, RankEnd};
use regatta_types::{Clock, Rank, SystemClock};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Signal, WaitOptions, WaitStatus};
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};
use std::io::Read;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};

/// How often left-over processes are looked for while some are left, in milliseconds: a new one may have been started
/// between the look and the kill.
const SWEEP_MS: u64 = 20;
/// Progress messages taken in before others get their turn.
const DATAGRAMS_MAX: usize = 64;

/// Supervises the pod of the directory `dir` until it has ended.
pub(crate) fn run(dir: &Path) -> Result<(), Error> {
    // Fails only for a process group's leader, which has a session of its own already.
    let _ = rustix::process::setsid();
    let _lock = files::try_lock(dir)?.ok_or_else(|| Error::Locked { path: dir.to_owned() })?;
    let spec: AgentSpec =
        files::read_json(dir, files::SPEC)?.ok_or_else(|| Error::Locked { path: dir.to_owned() })?;
    let identity = ProcessIdentity::current().map_err(|e| Error::system("read /proc/self/stat", e))?;
    files::write_json(dir, files::IDENTITY, &identity, Durability::Cached)?;
    let own = process::to_pid(identity.pid);
    rustix::process::set_child_subreaper(own)
        .map_err(|e| Error::system("become the parent of orphans", e))?;
    let clock = SystemClock;
    let mut supervisor = Supervisor::new(dir, &spec, identity.pid, &clock)?;
    let exits = match namespaces::enter_pod(&spec.namespaces) {
        Ok(base) => supervisor.run_containers(&base),
        Err(error) => vec![supervisor.pod_cannot_start(&error)],
    };
    let exit = PodExit { containers: exits, finished_at: clock.now() };
    files::write_json(dir, files::EXIT, &exit, Durability::Synced)
}

struct Supervisor<'a> {
    dir: PathBuf,
    spec: &'a AgentSpec,
    clock: &'a dyn Clock,
    pid: u32,
    child_ended: UnixStream,
    stop_asked: UnixStream,
    progress_socket: Option<UnixDatagram>,
    uplink: Uplink,
    heard: Heard,
    containers: Vec<Container<'a>>,
    /// Grace period of the stop that was asked for.
    stop: Option<u64>,
}

/// What a poll can be about.
enum Source {
    ChildEnded,
    StopAsked,
    Progress,
    Uplink,
    Output { container: usize, rank: usize, stream: Stream },
}

impl<'a> Supervisor<'a> {
    fn new(dir: &Path, spec: &'a AgentSpec, pid: u32, clock: &'a dyn Clock) -> Result<Self, Error> {
        let child_ended = signal_pipe(&[SIGCHLD])?;
        let stop_asked = signal_pipe(&[SIGTERM, SIGINT])?;
        let epoch = spec.launch.as_ref().map(|launch| launch.facts.epoch).unwrap_or_default();
        Ok(Self {
            dir: dir.to_owned(),
            spec,
            clock,
            pid,
            child_ended,
            stop_asked,
            progress_socket: listen(&spec.progress_socket),
            uplink: Uplink::new(&spec.agents_socket),
            heard: Heard::new(epoch, spec.processes(0)),
            containers: Vec::new(),
            stop: None,
        })
    }

    /// Runs every container and returns how each ended.
    fn run_containers(&mut self, base: &Base) -> Vec<ContainerExit> {
        let mut init_done = true;
        for init in &self.spec.init_containers {
            if self.stop.is_some() {
                break;
            }
            self.start(init, None, base);
            self.wait_for_all();
            // Nothing of an init container lives on into the main ones.
            self.kill_left_over();
            if self.containers.last().is_some_and(Container::has_failed) {
                init_done = false;
                break;
            }
        }
        if init_done && self.stop.is_none() {
            for (index, main) in self.spec.containers.iter().enumerate() {
                self.start(main, Some(index), base);
            }
            self.uplink.note(Urgency::State);
            self.wait_for_all();
        }
        self.kill_left_over();
        self.conclude(base)
    }

    fn start(&mut self, container: &'a ContainerSpec, index: Option<usize>, base: &Base) {
        let started = Container::start(self.spec, container, index, base, self.clock);
        self.containers.push(started);
        let ranks = self.containers.iter().flat_map(Container::running_ranks).collect();
        if let Err(error) =
            files::write_json(&self.dir, files::RANKS, &RunningRanks { ranks }, Durability::Cached)
        {
            note(&format!("{error}; no command can be run beside the ranks"));
        }
    }

    fn wait_for_all(&mut self) {
        while self.containers.iter().any(Container::is_running) {
            self.turn();
        }
    }

    /// Waits for something to happen, and deals with it.
    fn turn(&mut self) {
        self.reap();
        self.tend();
        let ready = self.poll();
        for source in ready {
            match source {
                Source::ChildEnded => empty(&self.child_ended),
                Source::StopAsked => self.take_stop_request(),
                Source::Progress => self.hear(),
                Source::Uplink => self.uplink.hung_up(self.clock.monotonic_ms()),
                Source::Output { container, rank, stream } => self.drain(container, rank, stream),
            }
        }
        self.reap();
        self.tend();
    }

    /// What is due by the clock.
    fn tend(&mut self) {
        let now_ms = self.clock.monotonic_ms();
        self.stop_beside_main(now_ms);
        for container in &mut self.containers {
            container.tend(now_ms);
        }
        if self.heard.hear_deferred(self.clock.now(), now_ms) {
            self.uplink.note(Urgency::Progress);
        }
        self.report(now_ms);
    }

    /// Tells the node runtime what is due, if it listens.
    fn report(&mut self, now_ms: u64) {
        let (containers, heard) = (&self.containers, &self.heard);
        let (uid, pid) = (&self.spec.pod.uid, self.pid);
        self.uplink.tend(now_ms, || AgentMessage {
            pod_uid: uid.clone(),
            pid,
            containers: containers.iter().filter_map(Container::pulse).collect(),
            progress: heard.progress.clone(),
            checkpoints: heard.checkpoints.clone(),
            bad_checkpoints: heard.bad_checkpoints.clone(),
        });
    }

    /// In a job, the ranks are what counts: when they have ended, what runs beside them is asked to stop.
    fn stop_beside_main(&mut self, now_ms: u64) {
        if self.spec.launch.is_none() {
            return;
        }
        let ranks_ended =
            self.containers.iter().find(|c| c.kind == ContainerKind::Main).is_some_and(|c| !c.is_running());
        if ranks_ended {
            for container in self.containers.iter_mut().filter(|c| c.is_running()) {
                container.request_stop(now_ms, self.spec.grace_period_ms);
            }
        }
    }

    fn poll(&self) -> Vec<Source> {
        let mut sources = vec![Source::ChildEnded, Source::StopAsked];
        let mut fds =
            vec![PollFd::new(&self.child_ended, PollFlags::IN), PollFd::new(&self.stop_asked, PollFlags::IN)];
        if let Some(socket) = &self.progress_socket {
            sources.push(Source::Progress);
            fds.push(PollFd::new(socket, PollFlags::IN));
        }
        if let Some((connection, waits_for_room)) = self.uplink.connection() {
            sources.push(Source::Uplink);
            let flags = if waits_for_room { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            fds.push(PollFd::from_borrowed_fd(connection, flags));
        }
        for (index, container) in self.containers.iter().enumerate() {
            for (rank, stream) in container.pipes() {
                if let Some(pipe) = container.output(rank).pipe(stream) {
                    sources.push(Source::Output { container: index, rank, stream });
                    fds.push(PollFd::from_borrowed_fd(pipe, PollFlags::IN));
                }
            }
        }
        // An interrupted poll has nothing to report; the caller looks at everything anyway.
        let _ = poll(&mut fds, self.timeout().as_ref());
        let ready: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
        let heard = sources.into_iter().zip(ready).filter(|(source, flags)| match source {
            // The node runtime never writes: something to read is the end.
            Source::Uplink => flags.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR),
            _ => !flags.is_empty(),
        });
        heard.map(|(source, _)| source).collect()
    }

    /// Time until something is due; none when nothing is.
    fn timeout(&self) -> Option<Timespec> {
        let now_ms = self.clock.monotonic_ms();
        let containers = self.containers.iter().filter_map(Container::deadline_ms);
        let due = containers.chain(self.heard.deferred_until_ms()).chain(self.uplink.deadline_ms()).min()?;
        Some(timespec(due.saturating_sub(now_ms)))
    }

    fn drain(&mut self, container: usize, rank: usize, stream: Stream) {
        let (now, now_ms) = (self.clock.now(), self.clock.monotonic_ms());
        let mut news = false;
        let heard = &mut self.heard;
        let output = self.containers[container].output_mut(rank);
        output.drain(stream, now, &mut |message| news |= heard.hear(message, now, now_ms));
        if news {
            self.uplink.note(Urgency::Progress);
        }
    }

    fn hear(&mut self) {
        let (now, now_ms) = (self.clock.now(), self.clock.monotonic_ms());
        let mut buffer = [0_u8; DATAGRAM_BYTES_MAX];
        for _ in 0..DATAGRAMS_MAX {
            let Some(Ok(bytes)) = self.progress_socket.as_ref().map(|socket| socket.recv(&mut buffer)) else {
                return;
            };
            if self.heard.hear(&buffer[..bytes], now, now_ms) {
                self.uplink.note(Urgency::Progress);
            }
        }
    }

    fn take_stop_request(&mut self) {
        empty(&self.stop_asked);
        let request = files::read_json::<StopRequest>(&self.dir, files::STOP).unwrap_or_else(|error| {
            note(&error.to_string());
            None
        });
        let grace_ms = request.map_or(self.spec.grace_period_ms, |request| request.grace_period_ms);
        self.stop = Some(grace_ms);
        let now_ms = self.clock.monotonic_ms();
        for container in self.containers.iter_mut().filter(|c| c.is_running()) {
            container.request_stop(now_ms, grace_ms);
        }
    }

    /// Reaps every child that has ended, ranks and orphans alike. Returns whether children are left.
    fn reap(&mut self) -> bool {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    let pid = u32::try_from(pid.as_raw_nonzero().get()).unwrap_or(0);
                    let Some(end) = process_end(status) else { continue };
                    let mut ended = false;
                    for container in &mut self.containers {
                        ended |= container.reaped(pid, end, self.clock);
                    }
                    if ended {
                        self.uplink.note(Urgency::State);
                    }
                }
                Ok(None) => return true,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }

    /// Kills what is left of the pod until nothing is: as the parent of all orphans, the agent sees every process
    /// that the pod has started as a descendant, and having no children means that there is none.
    fn kill_left_over(&mut self) {
        while self.reap() {
            for container in &self.containers {
                container.kill_all();
            }
            for pid in process::descendants(self.pid, &process::all()) {
                process::signal(pid, Signal::KILL);
            }
            let mut fds = [PollFd::new(&self.child_ended, PollFlags::IN)];
            let _ = poll(&mut fds, Some(&timespec(SWEEP_MS)));
            empty(&self.child_ended);
        }
    }

    /// Everything has ended: reads the last words, looks for checkpoints, and says how each container ended.
    fn conclude(&mut self, base: &Base) -> Vec<ContainerExit> {
        let (now, now_ms) = (self.clock.now(), self.clock.monotonic_ms());
        let heard = &mut self.heard;
        for container in &mut self.containers {
            // Commands that were run beside the ranks are no descendants, but they are in the groups.
            container.kill_all();
            container.finish_output(now, &mut |message| {
                heard.hear(message, now, now_ms);
            });
        }
        self.hear();
        let last_step = self.heard.finish(now);
        // The last words of a program are often the ones that matter most.
        self.uplink.note(Urgency::State);
        self.report(now_ms);
        let mut exits = Vec::new();
        for index in 0..self.containers.len() {
            let is_ranked = self.containers[index].kind == ContainerKind::Main
                && self.containers[..index].iter().all(|c| c.kind == ContainerKind::Init);
            let record = if is_ranked {
                self.record(base, index, last_step)
            } else {
                ExitRecord { epoch: self.epoch(), ..ExitRecord::default() }
            };
            exits.push(self.containers[index].exit(record));
        }
        let main_missing =
            exits.iter().all(|exit| exit.kind == ContainerKind::Init || exit.started_at.is_none());
        if self.stop.is_some() && main_missing && exits.iter().all(|exit| exit.end == ProcessEnd::Exited(0)) {
            exits.extend(self.spec.containers.iter().map(|container| self.stopped_before_start(container)));
        }
        exits
    }

    fn epoch(&self) -> regatta_types::Epoch {
        self.spec.launch.as_ref().map(|launch| launch.facts.epoch).unwrap_or_default()
    }

    /// The facts of the ranks that are not about processes.
    fn record(&self, base: &Base, container: usize, last_step: Option<u64>) -> ExitRecord {
        let directory = self.spec.launch.as_ref().and_then(|launch| launch.facts.checkpoint_dir.as_deref());
        let namespace = self.containers[container].mount_namespace();
        let checkpoints =
            directory.map(|directory| base.inside(namespace, || checkpoint::scan(Path::new(directory))));
        let checkpoints = checkpoints.unwrap_or_else(|| Ok(Vec::new())).unwrap_or_else(|error| {
            note(&format!("{error}; the checkpoints are not known"));
            Vec::new()
        });
        ExitRecord {
            epoch: self.epoch(),
            last_step,
            checkpoints,
            bad_checkpoints: self.heard.bad_checkpoints.clone(),
            ..ExitRecord::default()
        }
    }

    fn stopped_before_start(&self, container: &ContainerSpec) -> ContainerExit {
        let now = self.clock.now();
        let end = ProcessEnd::Signaled(Signal::TERM.as_raw());
        ContainerExit {
            name: container.name.clone(),
            kind: ContainerKind::Main,
            started_at: None,
            finished_at: now,
            end,
            reason: "Error".to_owned(),
            message: "the pod was asked to stop before the container started".to_owned(),
            record: ExitRecord {
                epoch: self.epoch(),
                ranks: vec![RankEnd { rank: Rank(0), end, at: now }],
                stop_requested: true,
                ..ExitRecord::default()
            },
        }
    }

    /// The pod's namespaces cannot be entered: its first container says so.
    fn pod_cannot_start(&self, error: &Error) -> ContainerExit {
        let now = self.clock.now();
        let init = self.spec.init_containers.first().map(|container| (container, ContainerKind::Init));
        let first =
            init.or_else(|| self.spec.containers.first().map(|container| (container, ContainerKind::Main)));
        let end = ProcessEnd::NotStarted(error.errno());
        ContainerExit {
            name: first.map_or_else(String::new, |(container, _)| container.name.clone()),
            kind: first.map_or(ContainerKind::Main, |(_, kind)| kind),
            started_at: None,
            finished_at: now,
            end,
            reason: "ContainerCannotRun".to_owned(),
            message: format!("the pod's surroundings could not be made: {error}"),
            record: ExitRecord {
                epoch: self.epoch(),
                ranks: vec![RankEnd { rank: Rank(0), end, at: now }],
                ..ExitRecord::default()
            },
        }
    }
}

/// A stream that becomes readable when one of the signals arrives.
fn signal_pipe(signals: &[i32]) -> Result<UnixStream, Error> {
    let fail = |e| Error::system("listen for signals", e);
    let (read, write) = UnixStream::pair().map_err(fail)?;
    read.set_nonblocking(true).map_err(fail)?;
    for signal in signals {
        let write = write.try_clone().map_err(fail)?;
        signal_hook::low_level::pipe::register(*signal, write).map_err(fail)?;
    }
    Ok(read)
}

fn empty(mut stream: &UnixStream) {
    let mut buffer = [0_u8; 64];
    while stream.read(&mut buffer).is_ok_and(|bytes| bytes == buffer.len()) {}
}

/// The socket for progress. Without it ranks still have their standard output.
fn listen(path: &Path) -> Option<UnixDatagram> {
    let _ = std::fs::remove_file(path);
    let socket = UnixDatagram::bind(path).and_then(|socket| socket.set_nonblocking(true).map(|()| socket));
    socket.inspect_err(|error| note(&format!("cannot listen on {}: {error}", path.display()))).ok()
}

fn process_end(status: WaitStatus) -> Option<ProcessEnd> {
    let exited = status.exit_status().map(ProcessEnd::Exited);
    exited.or_else(|| status.terminating_signal().map(ProcessEnd::Signaled))
}

fn timespec(ms: u64) -> Timespec {
    let ms = i64::try_from(ms).unwrap_or(i64::MAX);
    Timespec { tv_sec: ms / 1000, tv_nsec: (ms % 1000) * 1_000_000 }
}

/// A word for the agent's own log.
fn note(text: &str) {
    use std::io::Write;
    // The log file may be gone or the disk full; ranks matter more.
    let _ = writeln!(std::io::stderr(), "regatta agent: {text}");
}
