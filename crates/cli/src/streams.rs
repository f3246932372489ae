//! What ranks write, as streams of whole lines: which streams a pod has, and what stands before their lines. Pure.

use crate::ranks::{self, SlotRanks};
use regatta_types::Timestamp;
use regatta_types::job::Job;
use regatta_types::labels;
use regatta_types::pod::{ContainerStatus, LaunchSpec, Pod};

/// Up to so many ranks each has a stream of its own; beyond, each slot has one.
const RANK_STREAMS_MAX: u32 = 64;

/// One stream of lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogSource {
    /// Uid of the pod, and which of its streams: identity among the streams of a job.
    pub(crate) key: (String, String),
    /// Where it is.
    pub(crate) place: LogPlace,
    /// What stands before each line; nothing where there is only one stream.
    pub(crate) prefix: Option<String>,
}

/// Where a stream is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LogPlace {
    /// In the record of the run. On a server without records, `pod` is asked for.
    Run { epoch: u64, role: String, slot: u32, rank: Option<u32>, pod: Option<String> },
    /// A container of a pod that is still there.
    Container { pod: String, container: String },
}

/// The launch facts of a job's pod.
pub(crate) fn launch(pod: &Pod) -> Option<LaunchSpec> {
    serde_json::from_str(pod.metadata.annotations.get(labels::LAUNCH)?).ok()
}

/// The ranks of a pod: those that its job says, for the launch facts do not have all that a launcher within starts.
pub(crate) fn ranks(job: &Job, launch: &LaunchSpec) -> SlotRanks {
    let slots = ranks::of_job(job);
    let own = slots.into_iter().find(|slot| slot.role == launch.role && slot.slot == launch.slot.0);
    own.unwrap_or_else(|| {
        let (role, slot, first) = (launch.role.clone(), launch.slot.0, launch.first_rank.0);
        let procs = launch.procs.max(1);
        SlotRanks { role, slot, first, procs, ranks: procs.max(launch.procs_per_node.unwrap_or(1)) }
    })
}

/// What stands before the lines of one rank, or of all ranks of a slot that share their log.
pub(crate) fn prefix(slot: &SlotRanks, rank: Option<u32>) -> String {
    match rank.or_else(|| (slot.ranks == 1).then_some(slot.first)) {
        Some(rank) => format!("[{}-{} r{rank}] ", slot.role, slot.slot),
        None => format!("[{}-{}] ", slot.role, slot.slot),
    }
}

/// The ranks of a slot that have a log of their own; none stands for the one log of them all.
pub(crate) fn own_logs(slot: &SlotRanks, world_size: u32, wanted: Option<u32>) -> Vec<Option<u32>> {
    match (slot.procs, wanted) {
        (0 | 1, _) => vec![None],
        (_, Some(rank)) => vec![Some(rank)],
        (procs, None) if world_size <= RANK_STREAMS_MAX => {
            (slot.first..slot.first + procs).map(Some).collect()
        }
        _ => vec![None],
    }
}

fn has_begun(status: &ContainerStatus) -> bool {
    status.state.running.is_some() || status.state.terminated.is_some()
}

/// The streams of a job's pod that can be read now; those of one rank, where only that one is wanted.
pub(crate) fn of_pod(job: &Job, pod: &Pod, wanted: Option<u32>) -> Vec<LogSource> {
    let launch = launch(pod).unwrap_or_default();
    let slot = ranks(job, &launch);
    if wanted.is_some_and(|rank| !slot.holds(rank)) {
        return Vec::new();
    }
    let alone = wanted.is_some() || (launch.world_size <= 1 && job.slots() <= 1);
    let uid = pod.metadata.uid().0;
    let name = &pod.metadata.name;
    let source = |stream: String, place: LogPlace, prefix: String| LogSource {
        key: (uid.clone(), stream),
        place,
        prefix: (!alone).then_some(prefix),
    };
    let mut sources = Vec::new();
    for status in pod.status.init_container_statuses.iter().filter(|status| has_begun(status)) {
        let container = LogPlace::Container { pod: name.clone(), container: status.name.clone() };
        let prefix = format!("[{}-{} {}] ", slot.role, slot.slot, status.name);
        sources.push(source(status.name.clone(), container, prefix));
    }
    if !pod.status.container_statuses.iter().any(has_begun) {
        return sources;
    }
    for (index, rank) in own_logs(&slot, launch.world_size, wanted).into_iter().enumerate() {
        let place = LogPlace::Run {
            epoch: launch.epoch.0,
            role: slot.role.clone(),
            slot: slot.slot,
            rank,
            // Pods know no ranks, so one stream is all that they can give.
            pod: (index == 0).then(|| name.clone()),
        };
        let stream = rank.map_or_else(|| "main".to_owned(), |rank| rank.to_string());
        sources.push(source(stream, place, prefix(&slot, rank)));
    }
    sources
}

/// Whether lines start with their time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Times {
    /// Nothing is known of times: what comes is shown.
    Unread,
    /// They do, and it is shown.
    Shown,
    /// They do, so that a stream can be resumed, but it is not shown.
    Hidden,
}

/// Puts whole lines together, with a prefix, so that the lines of several streams do not mix. A stream that broke and
/// is read again goes on where it was.
#[derive(Debug)]
pub(crate) struct Lines {
    prefix: Option<String>,
    times: Times,
    partial: Vec<u8>,
    /// Time of the last line, and how many lines of that time there were.
    last: Option<(Timestamp, usize)>,
    /// The lines before and of this time, so many of it, have been shown already.
    shown: Option<(Timestamp, usize)>,
}

impl Lines {
    pub(crate) fn new(prefix: Option<String>, times: Times) -> Self {
        Self { prefix, times, partial: Vec::new(), last: None, shown: None }
    }

    /// From here on the stream comes again from its beginning.
    pub(crate) fn again(&mut self) {
        self.partial.clear();
        self.shown = self.last;
    }

    /// The whole lines that there are with `chunk`.
    pub(crate) fn push(&mut self, chunk: &[u8]) -> Vec<u8> {
        self.partial.extend_from_slice(chunk);
        let Some(end) = self.partial.iter().rposition(|byte| *byte == b'\n') else { return Vec::new() };
        let rest = self.partial.split_off(end + 1);
        let whole = std::mem::replace(&mut self.partial, rest);
        self.decorate(whole)
    }

    /// A last line without its end, once no more comes.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        let mut rest = std::mem::take(&mut self.partial);
        if rest.is_empty() {
            return rest;
        }
        rest.push(b'\n');
        self.decorate(rest)
    }

    fn decorate(&mut self, lines: Vec<u8>) -> Vec<u8> {
        if self.prefix.is_none() && self.times == Times::Unread {
            return lines;
        }
        let mut out = Vec::with_capacity(lines.len() * 2);
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            let timed = (self.times != Times::Unread).then(|| timed(line)).flatten();
            if timed.as_ref().is_some_and(|timed| self.was_shown(timed.at)) {
                continue;
            }
            out.extend_from_slice(self.prefix.as_deref().unwrap_or_default().as_bytes());
            match timed.filter(|_| self.times == Times::Hidden) {
                Some(timed) => {
                    out.extend_from_slice(timed.label);
                    out.extend_from_slice(timed.text);
                }
                None => out.extend_from_slice(line),
            }
        }
        out
    }

    /// Whether a line of this time has been shown before the stream broke.
    fn was_shown(&mut self, at: Timestamp) -> bool {
        match &mut self.shown {
            Some((until, _)) if at < *until => return true,
            Some((until, left)) if at == *until && *left > 0 => {
                *left -= 1;
                return true;
            }
            _ => {}
        }
        self.last = match self.last {
            Some((last, count)) if last == at => Some((last, count + 1)),
            _ => Some((at, 1)),
        };
        false
    }
}

/// A line taken apart.
struct Timed<'a> {
    /// `[rank 3] `, where the server says of which rank a line is.
    label: &'a [u8],
    at: Timestamp,
    text: &'a [u8],
}

fn timed(line: &[u8]) -> Option<Timed<'_>> {
    let label_len = match line.strip_prefix(b"[rank ") {
        Some(rest) => line.len() - rest.len() + rest.iter().position(|byte| *byte == b' ')? + 1,
        None => 0,
    };
    let (label, rest) = line.split_at(label_len);
    let space = rest.iter().position(|byte| *byte == b' ')?;
    let at = Timestamp::parse(std::str::from_utf8(&rest[..space]).ok()?)?;
    Some(Timed { label, at, text: &rest[space + 1..] })
}

#[cfg(test)]
mod tests {
    use super::*;
    use regatta_types::job::Role;
    use regatta_types::pod::{Container, ContainerRunning, ContainerState};
    use regatta_types::{Epoch, SlotIndex, Uid};

    #[test]
    fn lines_stay_whole() {
        let mut lines = Lines::new(Some("[worker-0 r1] ".into()), Times::Unread);
        assert_eq!(lines.push(b"one\ntw"), b"[worker-0 r1] one\n");
        assert_eq!(lines.push(b"o\nthree"), b"[worker-0 r1] two\n");
        assert_eq!(lines.rest(), b"[worker-0 r1] three\n");
        assert_eq!(lines.rest(), b"");
        assert_eq!(Lines::new(None, Times::Unread).push(b"a\nb\nc"), b"a\nb\n");
    }

    #[test]
    fn a_stream_goes_on_where_it_broke() {
        let log = b"2026-12-01T06:00:00Z a\n2026-12-01T06:00:00.250Z b\n2026-12-01T06:00:00.250Z c\n\
            2026-12-01T06:00:00.250Z d\n2026-12-01T06:00:01Z e\n";
        let all: &[u8] = b"a\nb\nc\nd\ne\n";
        for breaks_at in 0..=log.len() {
            let mut lines = Lines::new(None, Times::Hidden);
            let mut shown = lines.push(&log[..breaks_at]);
            lines.again();
            shown.extend(lines.push(log));
            lines.again();
            shown.extend(lines.push(log));
            assert_eq!(shown, all, "broken after {breaks_at} bytes");
        }
    }

    #[test]
    fn times_are_shown_only_where_they_are_wanted() {
        let check = |times: Times, line: &str, expected: &str| {
            let mut lines = Lines::new(Some("> ".into()), times);
            assert_eq!(String::from_utf8(lines.push(line.as_bytes())).unwrap(), expected);
        };
        check(Times::Hidden, "2026-12-01T06:00:00Z a b\n", "> a b\n");
        check(Times::Shown, "2026-12-01T06:00:00Z a b\n", "> 2026-12-01T06:00:00Z a b\n");
        check(Times::Hidden, "[rank 3] 2026-12-01T06:00:00Z a\n", "> [rank 3] a\n");
        check(Times::Hidden, "no time\n", "> no time\n");
        check(Times::Hidden, "2026-12-01T06:00:00Z \n", "> \n");
    }

    fn running(name: &str) -> ContainerStatus {
        let state =
            ContainerState { running: Some(ContainerRunning::default()), ..ContainerState::default() };
        ContainerStatus { name: name.into(), state, ..ContainerStatus::default() }
    }

    fn pod(launch: &LaunchSpec) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.name = "digits-worker-1-0".into();
        pod.metadata.uid = Some(Uid::from("u"));
        pod.metadata.annotations.insert(labels::LAUNCH.into(), serde_json::to_string(launch).unwrap());
        pod.status.container_statuses = vec![running("main")];
        pod
    }

    fn job(command: &str, replicas: u32, procs_per_node: Option<u32>) -> Job {
        let mut role = Role { replicas, procs_per_node, ..Role::default() };
        let command = vec![command.to_owned()];
        role.template.spec.containers.push(Container { command, ..Container::default() });
        let mut job = Job::default();
        job.spec.roles = vec![role];
        job
    }

    fn launch(world_size: u32) -> LaunchSpec {
        let role = "worker".to_owned();
        LaunchSpec { role, slot: SlotIndex(1), epoch: Epoch(3), world_size, ..LaunchSpec::default() }
    }

    #[test]
    fn each_rank_has_a_stream_and_a_prefix() {
        let check = |job: &Job, pod: &Pod, wanted: Option<u32>, expected: &[(&str, Option<&str>)]| {
            let sources = of_pod(job, pod, wanted);
            let seen: Vec<_> = sources.iter().map(|s| (s.key.1.as_str(), s.prefix.as_deref())).collect();
            assert_eq!(seen, expected);
        };
        let ranks = job("python", 2, Some(2));
        check(
            &ranks,
            &pod(&launch(4)),
            None,
            &[("2", Some("[worker-1 r2] ")), ("3", Some("[worker-1 r3] "))],
        );
        check(&ranks, &pod(&launch(4)), Some(3), &[("3", None)]);
        check(&ranks, &pod(&launch(4)), Some(1), &[]);
        let torchrun = job("torchrun", 2, Some(2));
        check(&torchrun, &pod(&launch(4)), None, &[("main", Some("[worker-1] "))]);
        check(&torchrun, &pod(&launch(4)), Some(3), &[("main", None)]);
        check(&job("python", 2, None), &pod(&launch(2)), None, &[("main", Some("[worker-1 r1] "))]);
        let alone = LaunchSpec { slot: SlotIndex(0), ..launch(1) };
        check(&job("python", 1, None), &pod(&alone), None, &[("main", None)]);
        check(&job("python", 100, Some(8)), &pod(&launch(800)), None, &[("main", Some("[worker-1] "))]);
        let mut preparing = pod(&launch(4));
        preparing.status.container_statuses.clear();
        check(&ranks, &preparing, None, &[]);
        preparing.status.init_container_statuses = vec![running("setup")];
        check(&ranks, &preparing, None, &[("setup", Some("[worker-1 setup] "))]);
    }

    #[test]
    fn only_the_first_stream_can_be_had_of_the_pod() {
        let sources = of_pod(&job("python", 2, Some(2)), &pod(&launch(4)), None);
        let pods: Vec<_> = sources
            .iter()
            .map(|source| match &source.place {
                LogPlace::Run { pod, .. } => pod.as_deref(),
                LogPlace::Container { .. } => None,
            })
            .collect();
        assert_eq!(pods, [Some("digits-worker-1-0"), None]);
    }
}
