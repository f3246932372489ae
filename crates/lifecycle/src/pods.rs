//! The pod of a slot, and what its agent is told.

use regatta_types::evidence::Checkpoint;
use regatta_types::job::{Job, Role, SlotPlacement};
use regatta_types::launch::of_role;
use regatta_types::pod::{LaunchSpec, Pod};
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
    let own = of_role(job, role);
    let mut first_rank = 0;
    let mut world_size: u32 = 0;
    for other in &job.spec.roles {
        if other.name == role.name {
            first_rank = world_size.saturating_add(slot.0.saturating_mul(own.ranks));
        }
        world_size = world_size.saturating_add(of_role(job, other).ranks.saturating_mul(other.replicas));
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
