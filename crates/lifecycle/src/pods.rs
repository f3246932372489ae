//! The pod of a slot, and what its agent is told.

use regatta_types::evidence::Checkpoint;
use regatta_types::job::{Job, Launcher, Role, SlotPlacement};
use regatta_types::launch::{Distributed, resolve};
use regatta_types::pod::{LaunchSpec, Pod, ResourceTotals};
use regatta_types::{OwnerReference, Rank, SlotIndex, labels};

/// Longest label of a host name, by RFC 1123.
const HOSTNAME_CHARS_MAX: usize = 63;

/// Host names of all slots in rank order, such as `job-worker-0.job`.
pub fn hosts(job: &Job) -> Vec<String> {
    slots(job)
        .map(|(role, slot)| format!("{}.{}", job.hostname(&role.name, slot), job.metadata.name))
        .collect()
}

fn slots(job: &Job) -> impl Iterator<Item = (&Role, SlotIndex)> {
    job.spec.roles.iter().flat_map(|role| (0..role.replicas).map(move |slot| (role, SlotIndex(slot))))
}

/// How one role is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RoleLaunch {
    launcher: Launcher,
    /// Processes that the agent starts.
    procs: u32,
    /// Ranks in each slot, whoever starts them.
    ranks: u32,
}

fn role_launch(job: &Job, role: &Role) -> RoleLaunch {
    let container = role.template.spec.containers.first();
    let argv: Vec<&str> =
        container.into_iter().flat_map(|c| c.command.iter().chain(&c.args)).map(String::as_str).collect();
    let gpus = u32::try_from(ResourceTotals::of(&role.template.spec).gpu_milli / 1000).unwrap_or(0);
    let alone = gpus == 0 && role.procs_per_node.is_none() && job.slots() <= 1;
    let launcher = resolve(job.spec.launcher, &argv, if alone { Distributed::No } else { Distributed::Yes });
    // GPUs alone never multiply processes: a program that drives all of them by itself is as common as one per GPU.
    match launcher {
        Launcher::Torchrun => {
            RoleLaunch { launcher, procs: 1, ranks: role.procs_per_node.unwrap_or(gpus).max(1) }
        }
        _ => {
            let procs = role.procs_per_node.unwrap_or(1).max(1);
            RoleLaunch { launcher, procs, ranks: procs }
        }
    }
}

/// The pod that holds `slot` in the current epoch of `job`.
pub fn pod_for(job: &Job, slot: &SlotPlacement) -> Pod {
    let role = job.spec.roles.iter().find(|role| role.name == slot.role).cloned().unwrap_or_default();
    let resume = job.current_epoch().and_then(|record| record.resumed_from.clone());
    let launch = launch_spec(job, &role, slot.slot, resume);
    let mut pod = Pod { api_version: "v1".to_owned(), kind: "Pod".to_owned(), ..Pod::default() };
    pod.metadata.labels = role.template.metadata.labels;
    pod.metadata.annotations = role.template.metadata.annotations;
    pod.spec = role.template.spec;
    pod.metadata.name = job.pod_name(&slot.role, slot.slot, slot.incarnation);
    pod.metadata.namespace.clone_from(&job.metadata.namespace);
    pod.metadata.labels.extend(job.pod_labels());
    let mut label = |name: &str, value: String| pod.metadata.labels.insert(name.to_owned(), value);
    label(labels::ROLE, slot.role.clone());
    label(labels::SLOT, slot.slot.to_string());
    label(labels::INCARNATION, slot.incarnation.to_string());
    if let Some(user) = job.metadata.labels.get(labels::USER) {
        label(labels::USER, user.clone());
    }
    pod.metadata.annotations.insert(labels::EPOCH.to_owned(), job.status.epoch.to_string());
    let json = serde_json::to_string(&launch).expect("invariant: launch facts are plain data");
    pod.metadata.annotations.insert(labels::LAUNCH.to_owned(), json);
    pod.metadata.owner_references = vec![OwnerReference {
        api_version: job.api_version.clone(),
        kind: job.kind.clone(),
        name: job.metadata.name.clone(),
        uid: job.metadata.uid(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }];
    pod.spec.node_name = Some(slot.node.clone());
    // The lifecycle is the only layer that restarts things.
    pod.spec.restart_policy = Some("Never".to_owned());
    let hostname = job.hostname(&slot.role, slot.slot);
    if hostname.len() <= HOSTNAME_CHARS_MAX {
        pod.spec.hostname = Some(hostname);
        pod.spec.subdomain = Some(job.metadata.name.clone());
    }
    pod
}

fn launch_spec(job: &Job, role: &Role, slot: SlotIndex, resume: Option<Checkpoint>) -> LaunchSpec {
    let own = role_launch(job, role);
    let mut first_rank = 0;
    let mut world_size: u32 = 0;
    for other in &job.spec.roles {
        if other.name == role.name {
            first_rank = world_size.saturating_add(slot.0.saturating_mul(own.ranks));
        }
        world_size = world_size.saturating_add(role_launch(job, other).ranks.saturating_mul(other.replicas));
    }
    LaunchSpec {
        job: job.metadata.name.clone(),
        role: role.name.clone(),
        slot,
        epoch: job.status.epoch,
        launcher: own.launcher,
        procs: own.procs,
        procs_per_node: role.procs_per_node,
        first_rank: Rank(first_rank),
        world_size,
        hosts: hosts(job),
        resume,
        checkpoint_dir: job.spec.checkpoint.as_ref().map(|checkpoint| checkpoint.path.clone()),
    }
}
