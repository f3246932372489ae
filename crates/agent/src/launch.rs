//! The environment of a rank: the facts of the job, and what launchers expect. Pure.

use crate::spec::{AgentSpec, ContainerSpec};
use regatta_types::Rank;
use regatta_types::job::Launcher;
use regatta_types::pod::LaunchSpec;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How the first container's ranks are started.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Launch {
    /// The facts, as the operator wrote them.
    pub facts: LaunchSpec,
    /// What to fill in; never `Auto`.
    pub launcher: Launcher,
    /// Processes that torchrun shall start in this slot.
    pub procs_per_node: u32,
    /// Place of this slot among all slots of the job.
    pub node_rank: u32,
    /// Where rank 0 is met.
    pub master_address: String,
    /// And at which port.
    pub master_port: u16,
}

// A launch holds only integers and text; `LaunchSpec` has no `Eq` because pods have none.
impl Eq for Launch {}

impl Launch {
    /// Global rank of the process with this number.
    pub fn rank(&self, local_rank: u32) -> Rank {
        Rank(self.facts.first_rank.0.saturating_add(local_rank))
    }
}

/// The whole environment of one process. `index` is the container's place among the main ones, none for an init container.
///
/// What the container sets itself wins over what a launcher would set, but never over `REGATTA_*`.
pub fn environment(
    spec: &AgentSpec,
    container: &ContainerSpec,
    index: Option<usize>,
    local_rank: u32,
) -> BTreeMap<String, String> {
    let mut env = container.env.clone();
    let Some(launch) = &spec.launch else { return env };
    let ranked = index == Some(0);
    let rank = launch.rank(if ranked { local_rank } else { 0 });
    for (name, value) in facts(spec, launch, rank, local_rank) {
        env.insert(name.to_owned(), value);
    }
    if ranked {
        for (name, value) in launcher(launch, rank, local_rank) {
            if !container.own_env.iter().any(|own| own == name) {
                env.insert(name.to_owned(), value);
            }
        }
    }
    env
}

fn facts(spec: &AgentSpec, launch: &Launch, rank: Rank, local_rank: u32) -> Vec<(&'static str, String)> {
    let facts = &launch.facts;
    let mut env = vec![
        ("REGATTA_JOB", facts.job.clone()),
        ("REGATTA_ROLE", facts.role.clone()),
        ("REGATTA_SLOT", facts.slot.to_string()),
        ("REGATTA_EPOCH", facts.epoch.to_string()),
        ("REGATTA_NODE", spec.node.clone()),
        ("REGATTA_RANK", rank.to_string()),
        ("REGATTA_LOCAL_RANK", local_rank.to_string()),
        ("REGATTA_WORLD_SIZE", facts.world_size.to_string()),
        ("REGATTA_HOSTS", facts.hosts.join(",")),
        ("REGATTA_SOCK", spec.progress_socket.to_string_lossy().into_owned()),
    ];
    if let Some(directory) = &facts.checkpoint_dir {
        env.push(("REGATTA_CHECKPOINT_DIR", directory.clone()));
    }
    if let Some(resume) = &facts.resume {
        env.push(("REGATTA_RESUME_FROM", resume.path.clone()));
        env.push(("REGATTA_RESUME_STEP", resume.step.to_string()));
    }
    env
}

fn launcher(launch: &Launch, rank: Rank, local_rank: u32) -> Vec<(&'static str, String)> {
    let facts = &launch.facts;
    let address = launch.master_address.clone();
    let port = launch.master_port.to_string();
    match launch.launcher {
        Launcher::None | Launcher::Auto => Vec::new(),
        Launcher::Ranks => vec![
            ("MASTER_ADDR", address),
            ("MASTER_PORT", port),
            ("RANK", rank.to_string()),
            ("LOCAL_RANK", local_rank.to_string()),
            ("WORLD_SIZE", facts.world_size.to_string()),
            ("LOCAL_WORLD_SIZE", facts.procs.max(1).to_string()),
            ("NODE_RANK", launch.node_rank.to_string()),
            ("GROUP_RANK", launch.node_rank.to_string()),
        ],
        Launcher::Torchrun => vec![
            ("MASTER_ADDR", address.clone()),
            ("MASTER_PORT", port.clone()),
            ("NODE_RANK", launch.node_rank.to_string()),
            ("PET_NNODES", facts.hosts.len().max(1).to_string()),
            ("PET_NPROC_PER_NODE", launch.procs_per_node.max(1).to_string()),
            ("PET_NODE_RANK", launch.node_rank.to_string()),
            ("PET_MASTER_ADDR", address),
            ("PET_MASTER_PORT", port),
            ("PET_RDZV_BACKEND", "static".to_owned()),
            // Exactly one layer restarts ranks, and torchrun is not the one.
            ("PET_MAX_RESTARTS", "0".to_owned()),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use regatta_types::evidence::Checkpoint;
    use regatta_types::{Epoch, SlotIndex};

    fn spec(kind: Launcher) -> AgentSpec {
        let facts = LaunchSpec {
            job: "digits".to_owned(),
            role: "worker".to_owned(),
            slot: SlotIndex(1),
            epoch: Epoch(2),
            procs: 2,
            first_rank: Rank(2),
            world_size: 4,
            hosts: vec!["digits-worker-0.digits".to_owned(), "digits-worker-1.digits".to_owned()],
            resume: Some(Checkpoint { step: 120, path: "/ckpt/ckpt-120.json".to_owned() }),
            checkpoint_dir: Some("/ckpt".to_owned()),
            ..LaunchSpec::default()
        };
        let launch = Launch {
            facts,
            launcher: kind,
            procs_per_node: 8,
            node_rank: 1,
            master_address: "digits-worker-0.digits".to_owned(),
            master_port: 29_500,
        };
        AgentSpec {
            node: "box-1".to_owned(),
            launch: Some(launch),
            progress_socket: "/run/s".into(),
            ..AgentSpec::default()
        }
    }

    fn check(kind: Launcher, index: Option<usize>, own: &[(&str, &str)], expected: &[(&str, Option<&str>)]) {
        let container = ContainerSpec {
            env: own.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            own_env: own.iter().map(|(name, _)| (*name).to_owned()).collect(),
            ..ContainerSpec::default()
        };
        let env = environment(&spec(kind), &container, index, 1);
        for (name, value) in expected {
            assert_eq!(env.get(*name).map(String::as_str), *value, "{kind:?} {index:?} {name}");
        }
    }

    #[test]
    fn every_process_knows_the_facts() {
        for kind in [Launcher::None, Launcher::Ranks, Launcher::Torchrun] {
            check(
                kind,
                Some(0),
                &[("REGATTA_JOB", "forged")],
                &[
                    ("REGATTA_JOB", Some("digits")),
                    ("REGATTA_RANK", Some("3")),
                    ("REGATTA_LOCAL_RANK", Some("1")),
                    ("REGATTA_EPOCH", Some("2")),
                    ("REGATTA_NODE", Some("box-1")),
                    ("REGATTA_HOSTS", Some("digits-worker-0.digits,digits-worker-1.digits")),
                    ("REGATTA_RESUME_FROM", Some("/ckpt/ckpt-120.json")),
                    ("REGATTA_RESUME_STEP", Some("120")),
                    ("REGATTA_CHECKPOINT_DIR", Some("/ckpt")),
                    ("REGATTA_SOCK", Some("/run/s")),
                ],
            );
        }
    }

    #[test]
    fn launchers_get_their_variables() {
        check(
            Launcher::Ranks,
            Some(0),
            &[("WORLD_SIZE", "7")],
            &[
                ("RANK", Some("3")),
                ("LOCAL_RANK", Some("1")),
                ("LOCAL_WORLD_SIZE", Some("2")),
                ("WORLD_SIZE", Some("7")),
                ("NODE_RANK", Some("1")),
                ("MASTER_ADDR", Some("digits-worker-0.digits")),
                ("MASTER_PORT", Some("29500")),
                ("PET_NNODES", None),
            ],
        );
        check(
            Launcher::Torchrun,
            Some(0),
            &[],
            &[
                ("PET_NNODES", Some("2")),
                ("PET_NPROC_PER_NODE", Some("8")),
                ("PET_NODE_RANK", Some("1")),
                ("PET_MASTER_PORT", Some("29500")),
                ("PET_RDZV_BACKEND", Some("static")),
                ("PET_MAX_RESTARTS", Some("0")),
                ("RANK", None),
            ],
        );
        check(Launcher::None, Some(0), &[], &[("MASTER_ADDR", None), ("RANK", None)]);
    }

    #[test]
    fn containers_beside_the_ranks_get_facts_only() {
        for index in [None, Some(1)] {
            check(
                Launcher::Ranks,
                index,
                &[],
                &[("REGATTA_JOB", Some("digits")), ("RANK", None), ("MASTER_ADDR", None)],
            );
        }
    }
}
