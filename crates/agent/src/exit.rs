//! What an agent leaves behind: how each container ended, in words and in facts. Pure.

use crate::protocol::ContainerKind;
use regatta_types::Timestamp;
use regatta_types::evidence::{EXIT_RECORD_BYTES_MAX, ExitRecord, ProcessEnd, RankEnd};
use serde::{Deserialize, Serialize};

/// Longest sentence of a termination message, in bytes.
const SENTENCE_BYTES_MAX: usize = 768;
/// Lengths that the tail of standard error is cut to, one after the other, until a message fits, in bytes.
const TAIL_BYTES: [usize; 5] = [2048, 1024, 512, 256, 0];

/// What became of a pod. Its presence says that every process of the pod is gone.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodExit {
    /// Containers that were to run, init containers first. Those that were never started are left out.
    pub containers: Vec<ContainerExit>,
    /// When the last process was gone.
    pub finished_at: Timestamp,
}

/// What became of a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerExit {
    /// Its name.
    pub name: String,
    /// Whether it was one of those that run first.
    pub kind: ContainerKind,
    /// When it started; none when it could not be.
    pub started_at: Option<Timestamp>,
    /// When its last process had ended.
    pub finished_at: Timestamp,
    /// How it ended: its first failure, or else exit code 0.
    pub end: ProcessEnd,
    /// One word.
    pub reason: String,
    /// A sentence.
    pub message: String,
    /// The facts.
    pub record: ExitRecord,
}

/// How a container's end is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Its first failure, or else exit code 0.
    pub end: ProcessEnd,
    /// One word.
    pub reason: &'static str,
    /// A sentence.
    pub message: String,
}

/// What is known when a container has ended.
#[derive(Debug, Clone, Copy)]
pub struct Ends<'a> {
    /// How its ranks ended, in that order.
    pub ranks: &'a [RankEnd],
    /// How many ranks it had.
    pub rank_count: usize,
    /// Whether the kernel killed a process of it for memory.
    pub oom_killed: bool,
    /// Whether the agent had asked it to stop before its first rank ended.
    pub stop_requested: bool,
    /// Why a rank could not be started, in words, if one could not.
    pub problem: Option<&'a str>,
}

/// The first rank that ended badly.
pub fn first_failure(ranks: &[RankEnd]) -> Option<&RankEnd> {
    ranks.iter().find(|rank| rank.end != ProcessEnd::Exited(0))
}

/// How a container ended, from how its ranks ended.
pub fn verdict(ends: &Ends<'_>) -> Verdict {
    let Some(first) = first_failure(ends.ranks) else {
        return Verdict { end: ProcessEnd::Exited(0), reason: "Completed", message: "completed".to_owned() };
    };
    let who = if ends.rank_count > 1 { format!("rank {}", first.rank) } else { "the process".to_owned() };
    let (reason, message) = match first.end {
        ProcessEnd::NotStarted(_) => (
            "ContainerCannotRun",
            ends.problem.map_or_else(|| format!("{who} could not be started"), str::to_owned),
        ),
        ProcessEnd::Signaled(signal) if ends.oom_killed => (
            "OOMKilled",
            format!(
                "{who} was ended by {}: the kernel killed for memory; raise the memory limit or use less",
                signal_name(signal)
            ),
        ),
        ProcessEnd::Exited(code) if ends.oom_killed => (
            "OOMKilled",
            format!(
                "{who} exited with code {code} after the kernel had killed for memory; raise the memory limit or use less"
            ),
        ),
        ProcessEnd::Signaled(signal) if ends.stop_requested => {
            ("Error", format!("{who} was ended by {} when it was asked to stop", signal_name(signal)))
        }
        ProcessEnd::Exited(code) if ends.stop_requested => {
            ("Error", format!("{who} exited with code {code} when it was asked to stop"))
        }
        ProcessEnd::Signaled(signal) => ("Error", format!("{who} was ended by {}", signal_name(signal))),
        ProcessEnd::Exited(code) => ("Error", format!("{who} exited with code {code}")),
    };
    Verdict { end: first.end, reason, message }
}

/// Why a command could not be started, from the error number.
pub fn not_started_sentence(program: &str, errno: i32) -> String {
    match rustix::io::Errno::from_raw_os_error(errno) {
        rustix::io::Errno::NOENT => {
            format!(
                "the command {program:?} was not found; check its name, its path, and that PATH is set for it"
            )
        }
        rustix::io::Errno::ACCESS => {
            format!("the command {program:?} cannot be executed: permission denied; is its file executable?")
        }
        rustix::io::Errno::NOEXEC => {
            format!(
                "the command {program:?} cannot be executed: it is neither a program for this machine nor a script with a #! line"
            )
        }
        other => format!("the command {program:?} cannot be executed: {other}"),
    }
}

/// A container's termination message: the sentence, and the record as one line of JSON. It never exceeds
/// [`EXIT_RECORD_BYTES_MAX`]: the tail of standard error gives way first, then ranks that ended later, then checkpoints.
pub fn termination_message(sentence: &str, record: &ExitRecord) -> String {
    let sentence = cut_end(&sentence.replace('\n', " "), SENTENCE_BYTES_MAX).to_owned();
    let room = EXIT_RECORD_BYTES_MAX - sentence.len() - 1;
    let mut record = record.clone();
    let mut tails = TAIL_BYTES.iter();
    loop {
        let Ok(line) = serde_json::to_string(&record) else { return sentence };
        if line.len() <= room {
            return format!("{sentence}\n{line}");
        }
        if let Some(bytes) = tails.next() {
            record.stderr_tail = cut_start(&record.stderr_tail, *bytes).to_owned();
        } else if record.ranks.len() > 1 {
            record.ranks.truncate(record.ranks.len() / 2);
        } else if record.bad_checkpoints.len() > 1 || record.checkpoints.len() > 1 {
            record.bad_checkpoints.truncate(record.bad_checkpoints.len().div_ceil(2));
            record.checkpoints.truncate(record.checkpoints.len().div_ceil(2));
        } else {
            // One path of thousands of characters: the sentence alone is worth more than a broken record.
            return sentence;
        }
    }
}

/// The record in a termination message, if it has one.
pub fn parse_termination_message(message: &str) -> Option<ExitRecord> {
    let (_, line) = message.split_once('\n')?;
    serde_json::from_str(line).ok()
}

/// At most `bytes` from the end, starting at a character, at a line's start where there is one.
pub fn cut_start(text: &str, bytes: usize) -> &str {
    if text.len() <= bytes {
        return text;
    }
    let mut from = text.len() - bytes;
    while !text.is_char_boundary(from) {
        from += 1;
    }
    let rest = &text[from..];
    match rest.split_once('\n') {
        Some((_, lines)) if !lines.is_empty() => lines,
        _ => rest,
    }
}

fn cut_end(text: &str, bytes: usize) -> &str {
    let mut to = text.len().min(bytes);
    while !text.is_char_boundary(to) {
        to -= 1;
    }
    &text[..to]
}

/// Name of a signal, such as `SIGKILL`.
pub fn signal_name(signal: i32) -> String {
    const NAMES: [&str; 32] = [
        "",
        "SIGHUP",
        "SIGINT",
        "SIGQUIT",
        "SIGILL",
        "SIGTRAP",
        "SIGABRT",
        "SIGBUS",
        "SIGFPE",
        "SIGKILL",
        "SIGUSR1",
        "SIGSEGV",
        "SIGUSR2",
        "SIGPIPE",
        "SIGALRM",
        "SIGTERM",
        "SIGSTKFLT",
        "SIGCHLD",
        "SIGCONT",
        "SIGSTOP",
        "SIGTSTP",
        "SIGTTIN",
        "SIGTTOU",
        "SIGURG",
        "SIGXCPU",
        "SIGXFSZ",
        "SIGVTALRM",
        "SIGPROF",
        "SIGWINCH",
        "SIGIO",
        "SIGPWR",
        "SIGSYS",
    ];
    match usize::try_from(signal).ok().and_then(|index| NAMES.get(index)) {
        Some(name) if !name.is_empty() => (*name).to_owned(),
        _ => format!("signal {signal}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use regatta_types::evidence::Checkpoint;
    use regatta_types::{Epoch, Rank};

    fn end(rank: u32, end: ProcessEnd) -> RankEnd {
        RankEnd { rank: Rank(rank), end, at: Timestamp::from_unix_ms(0) }
    }

    fn check(ranks: &[RankEnd], oom_killed: bool, stop_requested: bool, expected: (ProcessEnd, &str, &str)) {
        let ends = Ends {
            ranks,
            rank_count: ranks.len(),
            oom_killed,
            stop_requested,
            problem: Some("no such command"),
        };
        let verdict = verdict(&ends);
        assert_eq!((verdict.end, verdict.reason), (expected.0, expected.1), "{ranks:?}");
        assert!(verdict.message.contains(expected.2), "{:?} lacks {:?}", verdict.message, expected.2);
    }

    #[test]
    fn the_first_failure_tells_the_end() {
        use ProcessEnd::{Exited, NotStarted, Signaled};
        check(&[end(0, Exited(0)), end(1, Exited(0))], false, false, (Exited(0), "Completed", "completed"));
        check(
            &[end(0, Exited(0)), end(1, Exited(3))],
            false,
            false,
            (Exited(3), "Error", "rank 1 exited with code 3"),
        );
        check(
            &[end(1, Signaled(9)), end(0, Signaled(15))],
            false,
            false,
            (Signaled(9), "Error", "rank 1 was ended by SIGKILL"),
        );
        check(&[end(1, Signaled(9))], true, false, (Signaled(9), "OOMKilled", "memory limit"));
        check(&[end(1, Exited(1))], true, false, (Exited(1), "OOMKilled", "memory limit"));
        check(&[end(0, Exited(0))], true, false, (Exited(0), "Completed", "completed"));
        check(&[end(0, Signaled(15))], false, true, (Signaled(15), "Error", "asked to stop"));
        check(
            &[end(0, NotStarted(2))],
            false,
            false,
            (NotStarted(2), "ContainerCannotRun", "no such command"),
        );
        check(&[end(0, Signaled(40))], false, false, (Signaled(40), "Error", "signal 40"));
    }

    #[test]
    fn a_message_comes_back_whole() {
        let record = ExitRecord {
            epoch: Epoch(3),
            ranks: vec![end(2, ProcessEnd::Signaled(9))],
            last_step: Some(120),
            checkpoints: vec![Checkpoint { step: 100, path: "/c/ckpt-100.json".to_owned() }],
            stderr_tail: "Traceback\nValueError: \"x\"\n".to_owned(),
            ..ExitRecord::default()
        };
        let message = termination_message("rank 2 was ended\nby SIGKILL", &record);
        assert!(message.starts_with("rank 2 was ended by SIGKILL\n{"));
        assert_eq!(parse_termination_message(&message), Some(record));
    }

    #[test]
    fn a_tail_keeps_whole_lines() {
        assert_eq!(cut_start("one\ntwo\nthree", 9), "three");
        assert_eq!(cut_start("one\ntwo", 100), "one\ntwo");
        assert_eq!(cut_start("äöü", 3), "ü");
        assert_eq!(cut_start("abc\n", 2), "c\n");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn a_message_always_fits(
            sentence in ".{0,2000}",
            tail in "(?s).{0,3000}",
            ranks in 0_u32..200,
            paths in proptest::collection::vec(".{0,900}", 0..6),
        ) {
            let record = ExitRecord {
                epoch: Epoch(1),
                ranks: (0..ranks).map(|rank| end(rank, ProcessEnd::Signaled(9))).collect(),
                stop_requested: true,
                oom_killed: true,
                last_step: Some(u64::MAX),
                checkpoints: paths.iter().map(|path| Checkpoint { step: 1, path: path.clone() }).collect(),
                bad_checkpoints: paths,
                stderr_tail: tail,
            };
            let message = termination_message(&sentence, &record);
            prop_assert!(message.len() <= EXIT_RECORD_BYTES_MAX);
            if let Some(kept) = parse_termination_message(&message) {
                prop_assert_eq!(kept.ranks.first(), record.ranks.first());
                prop_assert_eq!(kept.checkpoints.first(), record.checkpoints.first());
            }
        }
    }
}
