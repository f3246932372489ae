//! From the operator's launch facts to how the agent starts ranks. Pure.

use crate::driver::StartFailure;
use crate::network::Attachment;
use regatta_agent::launch::Launch;
use regatta_types::job::Launcher;
use regatta_types::labels;
use regatta_types::launch::{self, Distributed};
use regatta_types::pod::{LaunchSpec, Pod};

/// Most processes that one pod may start.
const PROCS_MAX: u32 = 1_024;

/// The launch facts of a pod; none for a pod without a job.
pub(crate) fn facts(pod: &Pod) -> Result<Option<LaunchSpec>, StartFailure> {
    let Some(text) = pod.metadata.annotations.get(labels::LAUNCH) else { return Ok(None) };
    let facts: LaunchSpec = serde_json::from_str(text).map_err(|error| {
        let message = format!("the annotation {} is not the launch facts of a slot: {error}", labels::LAUNCH);
        StartFailure::refused("CreateContainerConfigError", message)
    })?;
    if facts.procs > PROCS_MAX {
        let message = format!(
            "{} processes in one pod are more than the {PROCS_MAX} that are possible; use more nodes",
            facts.procs
        );
        return Err(StartFailure::refused("CreateContainerConfigError", message));
    }
    Ok(Some(facts))
}

/// Host name of a slot within its job.
pub(crate) fn hostname(pod: &Pod) -> String {
    // A host name has at most 63 characters; a pod's name may have more.
    let name = pod.spec.hostname.as_ref().unwrap_or(&pod.metadata.name);
    name.chars().take(63).collect::<String>().trim_end_matches(['-', '.']).to_owned()
}

/// Place of this pod's host among the job's.
pub(crate) fn own_host(pod: &Pod, facts: &LaunchSpec) -> usize {
    let name = hostname(pod);
    let by_name = facts.hosts.iter().position(|host| host.split('.').next() == Some(name.as_str()));
    by_name.unwrap_or_else(|| {
        usize::try_from(facts.slot.0).unwrap_or(0).min(facts.hosts.len().saturating_sub(1))
    })
}

/// How the agent starts the ranks.
pub(crate) fn launch(
    pod: &Pod,
    facts: LaunchSpec,
    argv: &[String],
    gpus: usize,
    attachment: &Attachment,
) -> Launch {
    let gpus = u32::try_from(gpus).unwrap_or(u32::MAX);
    let launcher = match facts.launcher {
        Launcher::Auto => resolve(argv, &facts, gpus),
        known => known,
    };
    Launch {
        launcher,
        procs_per_node: facts.procs_per_node.unwrap_or_else(|| gpus.max(1)),
        node_rank: u32::try_from(own_host(pod, &facts)).unwrap_or(0),
        master_address: attachment.master_address.clone(),
        master_port: attachment.master_port,
        facts,
    }
}

/// What `Auto` means here: the rule is shared with the operator.
fn resolve(argv: &[String], facts: &LaunchSpec, gpus: u32) -> Launcher {
    let several = gpus > 0 || facts.procs > 1 || facts.procs_per_node.is_some() || facts.hosts.len() > 1;
    let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
    launch::resolve(Launcher::Auto, &argv, if several { Distributed::Yes } else { Distributed::No })
}

#[cfg(test)]
mod tests {
    use super::*;
    use regatta_types::SlotIndex;

    #[test]
    fn variables_are_for_those_who_are_many() {
        let torchrun = ["torchrun".to_owned()];
        let train = ["train".to_owned()];
        let facts = |procs, hosts: usize, procs_per_node| LaunchSpec {
            procs,
            procs_per_node,
            hosts: vec!["h".to_owned(); hosts],
            ..LaunchSpec::default()
        };
        for (argv, facts, gpus, expected) in [
            (&train, facts(1, 1, None), 0, Launcher::None),
            (&train, facts(1, 1, None), 1, Launcher::Ranks),
            (&train, facts(1, 2, None), 0, Launcher::Ranks),
            (&train, facts(2, 1, None), 0, Launcher::Ranks),
            (&torchrun, facts(1, 1, Some(1)), 0, Launcher::Torchrun),
            (&torchrun, facts(1, 1, None), 0, Launcher::None),
        ] {
            assert_eq!(resolve(argv, &facts, gpus), expected, "{argv:?} {facts:?} {gpus}");
        }
    }

    #[test]
    fn a_slot_knows_its_place() {
        let mut pod = Pod::default();
        pod.metadata.name = "job-worker-1-4".to_owned();
        pod.spec.hostname = Some("job-worker-1".to_owned());
        let hosts = ["job-leader-0.job", "job-worker-0.job", "job-worker-1.job"].map(str::to_owned).to_vec();
        let facts = LaunchSpec { slot: SlotIndex(1), hosts, ..LaunchSpec::default() };
        assert_eq!(own_host(&pod, &facts), 2);
        assert_eq!(own_host(&Pod::default(), &facts), 1);
        pod.spec.hostname = None;
        pod.metadata.name = format!("{}-x", "n".repeat(62));
        assert_eq!(hostname(&pod), "n".repeat(62));
    }

    #[test]
    fn facts_that_cannot_be_are_refused() {
        let mut pod = Pod::default();
        assert_eq!(facts(&pod).unwrap(), None);
        for (text, expected) in
            [("{", "is not the launch facts"), (r#"{"procs":5000}"#, "more than the 1024")]
        {
            pod.metadata.annotations.insert(labels::LAUNCH.to_owned(), text.to_owned());
            assert!(facts(&pod).unwrap_err().message.contains(expected), "{text}");
        }
    }
}
