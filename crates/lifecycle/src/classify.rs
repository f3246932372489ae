//! Why an attempt failed: from the evidence of all pods to one initiator and its class.
//!
//! One rank fails first; the others follow within moments because their peer is gone. Their ends are consequences, so
//! only the earliest end counts. Evidence of different pods arrives in any order: an end that could be a consequence
//! (an ordinary exit code) waits [`LAST_CALL_MS`] for an earlier or clearer one, an end that cannot be one (a signal,
//! memory, a missing command, a lost agent) is decided on at once.

use crate::facts::{ContainerExit, ContainerKind, PodFacts, PodPhase};
use regatta_types::evidence::{ExitRecord, ProcessEnd, RankEnd};
use regatta_types::reason::EndReason;
use regatta_types::{Rank, Timestamp};

/// How long an ordinary failure waits for the evidence of the other pods.
pub const LAST_CALL_MS: i64 = 1_000;
/// A program that exits with this code must not be restarted.
pub const EXIT_NO_RESTART: i32 = 93;
/// A program that exits with this code asks to be restarted, at nobody's expense (`EX_TEMPFAIL`).
pub const EXIT_RESTART: i32 = 75;
/// How much of the standard error of the failed rank goes into messages.
const TAIL_CHARS_MAX: usize = 200;

/// One failure of an attempt, and where it started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The class.
    pub reason: EndReason,
    /// What and where, in a sentence without a full stop.
    pub message: String,
    /// Exit code of the rank that failed first.
    pub exit_code: i32,
    /// Pod in which it started.
    pub pod: String,
    /// Node of that pod.
    pub node: Option<String>,
    /// The agent's record of it.
    pub record: Option<ExitRecord>,
    /// When it happened.
    pub at: Timestamp,
    /// Whether the program itself asked to be restarted.
    pub restart_requested: RestartRequested,
}

/// Whether a program asked to be restarted, by [`EXIT_RESTART`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartRequested {
    /// It did.
    Yes,
    /// It did not.
    No,
}

/// What the pods of an attempt say of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// No failure so far.
    Healthy,
    /// A failure whose cause may still turn up; look again at this time.
    Unsettled(Timestamp),
    /// A failure.
    Failed(Box<Failure>),
}

/// Finds the first failure among the pods of the current attempt.
pub fn classify(pods: &[&PodFacts], now: Timestamp) -> Finding {
    let ends = pods.iter().filter(|pod| pod.phase == PodPhase::Failed).filter_map(|pod| first_end(pod));
    let Some(first) = ends.min_by_key(|end| (end.is_consequence(), end.at, end.pod.name.clone())) else {
        return Finding::Healthy;
    };
    let others_run = pods.iter().any(|pod| !pod.is_finished());
    let settled_at = first.at.plus_ms(LAST_CALL_MS);
    // A clock that was set back must not keep the job waiting.
    let may_wait = now >= first.at && now < settled_at;
    if others_run && may_wait && !first.is_certain() {
        return Finding::Unsettled(settled_at);
    }
    Finding::Failed(Box::new(first.into_failure()))
}

/// The end that brought one pod down.
struct PodEnd<'a> {
    pod: &'a PodFacts,
    exit: Option<&'a ContainerExit>,
    end: ProcessEnd,
    rank: Option<Rank>,
    reason: EndReason,
    at: Timestamp,
}

fn first_end(pod: &PodFacts) -> Option<PodEnd<'_>> {
    if matches!(pod.reason.as_deref(), Some("AgentLost" | "NodeRebooted" | "NodeLost")) {
        let exit = pod.exits.first();
        let at = exit.map_or(Timestamp::default(), |exit| exit.finished_at);
        return Some(PodEnd {
            pod,
            exit,
            end: ProcessEnd::Signaled(9),
            rank: None,
            reason: EndReason::NodeLost,
            at,
        });
    }
    let failed = pod.exits.iter().filter(|exit| exit.exit_code != 0);
    failed.map(|exit| end_of(pod, exit)).min_by_key(|end| end.at)
}

fn end_of<'a>(pod: &'a PodFacts, exit: &'a ContainerExit) -> PodEnd<'a> {
    let rank = exit.record.as_ref().and_then(first_bad_rank);
    let end = rank.map_or_else(|| container_end(exit), |rank| rank.end);
    PodEnd {
        pod,
        exit: Some(exit),
        end,
        rank: rank.map(|rank| rank.rank),
        reason: reason_of(exit, end),
        at: rank.map_or(exit.finished_at, |rank| rank.at),
    }
}

fn first_bad_rank(record: &ExitRecord) -> Option<&RankEnd> {
    record.ranks.iter().find(|rank| rank.end != ProcessEnd::Exited(0))
}

fn container_end(exit: &ContainerExit) -> ProcessEnd {
    exit.signal.map_or(ProcessEnd::Exited(exit.exit_code), ProcessEnd::Signaled)
}

fn reason_of(exit: &ContainerExit, end: ProcessEnd) -> EndReason {
    let record = exit.record.as_ref();
    if exit.reason == "OOMKilled" || record.is_some_and(|record| record.oom_killed) {
        return EndReason::OutOfMemory;
    }
    if record.is_some_and(|record| record.stop_requested) {
        return EndReason::PodDeleted;
    }
    match (exit.reason.as_str(), end) {
        ("NoCommand" | "CreateContainerConfigError" | "ContainerCannotRun", _) => EndReason::ConfigError,
        (_, ProcessEnd::NotStarted(_) | ProcessEnd::Exited(126 | 127)) => EndReason::ConfigError,
        (_, ProcessEnd::Exited(EXIT_NO_RESTART)) => EndReason::NoRestartRequested,
        (_, ProcessEnd::Signaled(_)) => EndReason::Signaled,
        (_, ProcessEnd::Exited(code)) if shell_signal(code).is_some() => EndReason::Signaled,
        (_, ProcessEnd::Exited(_)) => EndReason::UserError,
    }
}

/// The signal in an exit code of 128 + signal, for the signals by which programs are killed or crash.
const fn shell_signal(code: i32) -> Option<i32> {
    match code {
        // SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGKILL, SIGSEGV, SIGTERM.
        132..=137 | 139 | 143 => Some(code - 128),
        _ => None,
    }
}

impl PodEnd<'_> {
    /// Whether it was brought about by somebody stopping the pod.
    fn is_consequence(&self) -> bool {
        self.reason == EndReason::PodDeleted
    }

    /// Whether no end of another pod could explain it.
    fn is_certain(&self) -> bool {
        !matches!(self.reason, EndReason::UserError | EndReason::PodDeleted)
    }

    fn into_failure(self) -> Failure {
        let restart_requested = if self.end == ProcessEnd::Exited(EXIT_RESTART) {
            RestartRequested::Yes
        } else {
            RestartRequested::No
        };
        Failure {
            reason: self.reason,
            message: self.sentence(),
            exit_code: self.exit.map_or_else(|| self.end.exit_code(), |exit| exit.exit_code),
            pod: self.pod.name.clone(),
            node: self.pod.node.clone(),
            record: self.exit.and_then(|exit| exit.record.clone()),
            at: self.at,
            restart_requested,
        }
    }

    fn sentence(&self) -> String {
        let who = match (self.rank, self.exit) {
            (_, Some(exit)) if exit.kind == ContainerKind::Init => format!("the {} step", exit.container),
            (Some(rank), Some(exit)) if exit.container != "main" && self.pod.exits.len() > 1 => {
                format!("rank {rank} (container {})", exit.container)
            }
            (Some(rank), _) => format!("rank {rank}"),
            (None, Some(exit)) => format!("container {}", exit.container),
            (None, None) => "a process".to_owned(),
        };
        let node = self.pod.node.as_deref().unwrap_or("no node");
        let place = format!("{}-{} on {node}", self.pod.role, self.pod.slot);
        let step = self.exit.and_then(|exit| exit.record.as_ref()).and_then(|record| record.last_step);
        let step = step.map_or_else(String::new, |step| format!(" at step {step}"));
        let said = || self.exit.map(|exit| exit.message.clone()).filter(|text| !text.is_empty());
        let what = match (self.reason, self.end) {
            (EndReason::NodeLost, _) => {
                let why = self
                    .pod
                    .message
                    .clone()
                    .or_else(said)
                    .unwrap_or_else(|| "its supervisor is gone".to_owned());
                return format!("{place} was lost: {why}");
            }
            (EndReason::ConfigError, end) => {
                let why = said().unwrap_or_else(|| match end.exit_code() {
                    127 => "the command was not found".to_owned(),
                    _ => "the command cannot be executed".to_owned(),
                });
                return format!("{place} cannot start: {why} (exit code {})", end.exit_code());
            }
            (EndReason::OutOfMemory, _) => "was killed for memory".to_owned(),
            (EndReason::PodDeleted, _) => "was stopped from outside".to_owned(),
            (_, ProcessEnd::Signaled(signal)) => {
                format!("was ended by signal {signal} ({})", signal_name(signal))
            }
            (EndReason::Signaled, ProcessEnd::Exited(code)) => {
                let signal = shell_signal(code).unwrap_or(0);
                format!(
                    "exited with {code}, by which shells report signal {signal} ({})",
                    signal_name(signal)
                )
            }
            (_, ProcessEnd::Exited(EXIT_RESTART)) => {
                format!("asked to be restarted (exit code {EXIT_RESTART})")
            }
            (_, end) => format!("exited with {}", end.exit_code()),
        };
        let tail =
            self.exit.and_then(|exit| exit.record.as_ref()).map_or("", |record| record.stderr_tail.as_str());
        let last = tail.lines().rev().map(str::trim).find(|line| !line.is_empty());
        let last = last.map_or_else(String::new, |line| {
            format!(": {}", line.chars().take(TAIL_CHARS_MAX).collect::<String>())
        });
        format!("{who} of {place} {what}{step}{last}")
    }
}

/// Name of a signal on Linux.
pub const fn signal_name(signal: i32) -> &'static str {
    match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        10 => "SIGUSR1",
        11 => "SIGSEGV",
        12 => "SIGUSR2",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        31 => "SIGSYS",
        _ => "signal",
    }
}
