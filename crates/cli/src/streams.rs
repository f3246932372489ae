//! What ranks write, as streams of whole lines: which streams a pod has, and what stands before their lines. Pure.

use regatta_types::job::{Job, Launcher};
use regatta_types::labels;
use regatta_types::pod::{ContainerStatus, LaunchSpec, Pod};
use std::io::Write;

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

/// Whether a slot has a rank: of those that the agent starts, or of those that a launcher within it starts.
pub(crate) fn holds(launch: &LaunchSpec, rank: u32) -> bool {
    let count = launch.procs.max(launch.procs_per_node.unwrap_or(1)).max(1);
    (launch.first_rank.0..launch.first_rank.0.saturating_add(count)).contains(&rank)
}

fn has_begun(status: &ContainerStatus) -> bool {
    status.state.running.is_some() || status.state.terminated.is_some()
}

/// The streams of a job's pod that can be read now; those of one rank, where only that one is wanted.
pub(crate) fn of_pod(job: &Job, pod: &Pod, wanted: Option<u32>) -> Vec<LogSource> {
    let launch = launch(pod).unwrap_or_default();
    if wanted.is_some_and(|rank| !holds(&launch, rank)) {
        return Vec::new();
    }
    let alone = wanted.is_some() || (launch.world_size <= 1 && job.slots() <= 1);
    let uid = pod.metadata.uid().0;
    let name = &pod.metadata.name;
    let place = format!("{}-{}", launch.role, launch.slot);
    let source = |stream: String, place: LogPlace, prefix: String| LogSource {
        key: (uid.clone(), stream),
        place,
        prefix: (!alone).then_some(prefix),
    };
    let mut sources = Vec::new();
    for status in pod.status.init_container_statuses.iter().filter(|status| has_begun(status)) {
        let container = LogPlace::Container { pod: name.clone(), container: status.name.clone() };
        sources.push(source(status.name.clone(), container, format!("[{place} {}] ", status.name)));
    }
    if !pod.status.container_statuses.iter().any(has_begun) {
        return sources;
    }
    let first = launch.first_rank.0;
    let ranks: Vec<Option<u32>> = match (launch.procs, wanted) {
        (0 | 1, _) => vec![None],
        (_, Some(rank)) => vec![Some(rank)],
        (procs, None) if launch.world_size <= RANK_STREAMS_MAX => (first..first + procs).map(Some).collect(),
        _ => vec![None],
    };
    for (index, rank) in ranks.into_iter().enumerate() {
        let prefix = match rank {
            Some(rank) => format!("[{place} r{rank}] "),
            // A launcher within the slot writes for several ranks at once.
            None if launch.launcher == Launcher::Torchrun || launch.procs > 1 => format!("[{place}] "),
            None => format!("[{place} r{first}] "),
        };
        let run = LogPlace::Run {
            epoch: launch.epoch.0,
            role: launch.role.clone(),
            slot: launch.slot.0,
            rank,
            // Pods know no ranks, so one stream is all that they can give.
            pod: (index == 0).then(|| name.clone()),
        };
        sources.push(source(rank.map_or_else(|| "main".to_owned(), |rank| rank.to_string()), run, prefix));
    }
    sources
}

/// Puts whole lines together, with a prefix, so that the lines of several streams do not mix.
#[derive(Debug)]
pub(crate) struct Lines {
    prefix: Option<String>,
    partial: Vec<u8>,
}

impl Lines {
    pub(crate) fn new(prefix: Option<String>) -> Self {
        Self { prefix, partial: Vec::new() }
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

    fn decorate(&self, lines: Vec<u8>) -> Vec<u8> {
        let Some(prefix) = &self.prefix else { return lines };
        let mut out = Vec::with_capacity(lines.len() * 2);
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            out.write_all(prefix.as_bytes()).expect("invariant: a vector takes every write");
            out.extend_from_slice(line);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use regatta_types::job::Role;
    use regatta_types::pod::{ContainerRunning, ContainerState};
    use regatta_types::{Epoch, Rank, SlotIndex, Uid};

    #[test]
    fn lines_stay_whole() {
        let mut lines = Lines::new(Some("[worker-0 r1] ".into()));
        assert_eq!(lines.push(b"one\ntw"), b"[worker-0 r1] one\n");
        assert_eq!(lines.push(b"o\nthree"), b"[worker-0 r1] two\n");
        assert_eq!(lines.rest(), b"[worker-0 r1] three\n");
        assert_eq!(lines.rest(), b"");
        assert_eq!(Lines::new(None).push(b"a\nb\nc"), b"a\nb\n");
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

    fn job(replicas: u32) -> Job {
        let mut job = Job::default();
        job.spec.roles = vec![Role { replicas, ..Role::default() }];
        job
    }

    fn launch(procs: u32, world_size: u32, launcher: Launcher) -> LaunchSpec {
        LaunchSpec {
            role: "worker".into(),
            slot: SlotIndex(1),
            epoch: Epoch(3),
            launcher,
            procs,
            procs_per_node: (launcher == Launcher::Torchrun).then_some(2),
            first_rank: Rank(2),
            world_size,
            ..LaunchSpec::default()
        }
    }

    #[test]
    fn each_rank_has_a_stream_and_a_prefix() {
        let check = |pod: &Pod, slots: u32, wanted: Option<u32>, expected: &[(&str, Option<&str>)]| {
            let sources = of_pod(&job(slots), pod, wanted);
            let seen: Vec<_> = sources.iter().map(|s| (s.key.1.as_str(), s.prefix.as_deref())).collect();
            assert_eq!(seen, expected);
        };
        let ranks = pod(&launch(2, 4, Launcher::Ranks));
        check(&ranks, 2, None, &[("2", Some("[worker-1 r2] ")), ("3", Some("[worker-1 r3] "))]);
        check(&ranks, 2, Some(3), &[("3", None)]);
        check(&ranks, 2, Some(1), &[]);
        let torchrun = pod(&launch(1, 4, Launcher::Torchrun));
        check(&torchrun, 2, None, &[("main", Some("[worker-1] "))]);
        check(&torchrun, 2, Some(3), &[("main", None)]);
        check(&pod(&launch(1, 2, Launcher::Ranks)), 2, None, &[("main", Some("[worker-1 r2] "))]);
        check(&pod(&launch(1, 1, Launcher::None)), 1, None, &[("main", None)]);
        check(&pod(&launch(8, 800, Launcher::Ranks)), 100, None, &[("main", Some("[worker-1] "))]);
        let mut preparing = ranks;
        preparing.status.container_statuses.clear();
        check(&preparing, 2, None, &[]);
        preparing.status.init_container_statuses = vec![running("setup")];
        check(&preparing, 2, None, &[("setup", Some("[worker-1 setup] "))]);
    }

    #[test]
    fn only_the_first_stream_can_be_had_of_the_pod() {
        let sources = of_pod(&job(2), &pod(&launch(2, 4, Launcher::Ranks)), None);
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
