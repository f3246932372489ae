//! What a job must satisfy before it is accepted: defaults filled in, impossible requests refused with the numbers.
//!
//! Pure: the caller passes what the planner and the runtime say. On one machine the API server asks here on each write;
//! on a cluster the same checks run after the fact and end as `Admitted=False`.

use regatta_types::job::Job;
use regatta_types::labels;
use regatta_types::queue::DEFAULT_QUEUE;

/// Longest label of a host name (RFC 1123).
const HOSTNAME_BYTES_MAX: usize = 63;
/// Most slots in one job.
pub const SLOTS_MAX: u32 = 16_384;
/// Most processes in one slot.
pub const PROCS_PER_NODE_MAX: u32 = 1024;

/// Why a job is refused: a sentence that says what to change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A field has a value that cannot be.
    #[error("{field}: {problem}")]
    Invalid {
        /// Path of the field.
        field: String,
        /// What is wrong and what to write instead.
        problem: String,
    },
    /// No node could ever hold it.
    #[error("{0}")]
    Impossible(String),
}

impl Refusal {
    fn invalid(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Invalid { field: field.into(), problem: problem.into() }
    }
}

/// Fills in what was left out.
pub fn default_job(job: &mut Job) {
    if job.spec.queue.is_empty() {
        job.spec.queue = DEFAULT_QUEUE.to_owned();
    }
    if !job.metadata.finalizers.iter().any(|finalizer| finalizer == labels::JOB_FINALIZER)
        && !job.metadata.is_being_deleted()
    {
        job.metadata.finalizers.push(labels::JOB_FINALIZER.to_owned());
    }
}

/// Checks a new job.
///
/// # Errors
/// The first thing that is wrong with it.
pub fn check_new_job(job: &Job) -> Result<(), Refusal> {
    let spec = &job.spec;
    if spec.roles.is_empty() {
        return Err(Refusal::invalid("spec.roles", "a job needs at least one role; add one with a template"));
    }
    if job.slots() > SLOTS_MAX {
        return Err(Refusal::invalid(
            "spec.roles",
            format!("{} slots are more than a job may have ({SLOTS_MAX})", job.slots()),
        ));
    }
    for (index, role) in spec.roles.iter().enumerate() {
        let field = |rest: &str| format!("spec.roles[{index}].{rest}");
        if !is_dns_label(&role.name) {
            let problem = format!(
                "{:?} is not a DNS label; use lower-case letters, digits and '-', starting with a letter or digit",
                role.name
            );
            return Err(Refusal::invalid(field("name"), problem));
        }
        if spec.roles[..index].iter().any(|other| other.name == role.name) {
            return Err(Refusal::invalid(
                field("name"),
                format!("{:?} is the name of two roles; rename one", role.name),
            ));
        }
        if role.replicas == 0 {
            return Err(Refusal::invalid(field("replicas"), "a role needs at least one slot"));
        }
        if role.procs_per_node.is_some_and(|procs| procs == 0 || procs > PROCS_PER_NODE_MAX) {
            return Err(Refusal::invalid(
                field("procsPerNode"),
                format!("must be between 1 and {PROCS_PER_NODE_MAX}"),
            ));
        }
        if role.template.spec.containers.is_empty() {
            return Err(Refusal::invalid(
                field("template.spec.containers"),
                "a pod needs at least one container",
            ));
        }
        let longest = job.pod_name(
            &role.name,
            regatta_types::SlotIndex(role.replicas - 1),
            regatta_types::Incarnation(9999),
        );
        if longest.len() > HOSTNAME_BYTES_MAX {
            let problem = format!(
                "{:?} is too long: its pods would be called {longest:?}, {} characters of at most {HOSTNAME_BYTES_MAX}; shorten the name of the job or of the role",
                job.metadata.name,
                longest.len()
            );
            return Err(Refusal::invalid("metadata.name", problem));
        }
    }
    if spec.checkpoint.as_ref().is_some_and(|checkpoint| !checkpoint.path.starts_with('/')) {
        return Err(Refusal::invalid("spec.checkpoint.path", "must be an absolute path"));
    }
    check_limits(job)
}

fn check_limits(job: &Job) -> Result<(), Refusal> {
    let spec = &job.spec;
    if spec.limits.runtime_seconds.is_some_and(|seconds| seconds <= 0) {
        return Err(Refusal::invalid("spec.limits.runtimeSeconds", "must be more than 0"));
    }
    if spec.limits.cost_micros.is_some_and(|micros| micros <= 0) {
        return Err(Refusal::invalid("spec.limits.costMicros", "must be more than 0"));
    }
    Ok(())
}

/// Checks a change of a job.
///
/// # Errors
/// When it changes what cannot change once a job exists.
pub fn check_changed_job(old: &Job, new: &Job) -> Result<(), Refusal> {
    let frozen = [
        ("spec.roles", old.spec.roles == new.spec.roles),
        ("spec.launcher", old.spec.launcher == new.spec.launcher),
        ("spec.checkpoint", old.spec.checkpoint == new.spec.checkpoint),
        ("spec.source", old.spec.source == new.spec.source),
    ];
    if let Some((field, _)) = frozen.iter().find(|(_, same)| !same) {
        return Err(Refusal::invalid(
            *field,
            "cannot be changed once the job exists; submit a new job instead",
        ));
    }
    check_limits(new)?;
    if old.spec.cancel && !new.spec.cancel {
        return Err(Refusal::invalid(
            "spec.cancel",
            "a cancelled job cannot be brought back; submit a new job instead",
        ));
    }
    if old.queue() != new.queue() && old.status.phase.holds_resources() {
        return Err(Refusal::invalid(
            "spec.queue",
            "cannot be changed while the job holds resources; suspend it first",
        ));
    }
    Ok(())
}

/// RFC 1123: what a part of a host name may be.
fn is_dns_label(text: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    !text.is_empty()
        && text.len() <= HOSTNAME_BYTES_MAX
        && text.bytes().all(allowed)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;
    use regatta_types::job::Role;
    use regatta_types::pod::Container;

    fn job(name: &str) -> Job {
        let mut job = Job::default();
        job.metadata.name = name.to_owned();
        let mut role = Role::default();
        role.template.spec.containers.push(Container::default());
        job.spec.roles.push(role);
        job
    }

    fn check(change: impl FnOnce(&mut Job), expected: Result<(), &str>) {
        let mut candidate = job("digits");
        change(&mut candidate);
        let result = check_new_job(&candidate).map_err(|refusal| refusal.to_string());
        match (result, expected) {
            (Ok(()), Ok(())) => {}
            (Err(text), Err(part)) => assert!(text.contains(part), "{text:?} does not contain {part:?}"),
            (got, want) => panic!("got {got:?}, want {want:?}"),
        }
    }

    #[test]
    fn new_jobs() {
        check(|_| {}, Ok(()));
        check(|job| job.spec.roles.clear(), Err("at least one role"));
        check(|job| job.spec.roles[0].replicas = 0, Err("at least one slot"));
        check(|job| job.spec.roles[0].name = "Worker".into(), Err("not a DNS label"));
        check(|job| job.spec.roles[0].procs_per_node = Some(0), Err("between 1 and"));
        check(|job| job.spec.roles[0].template.spec.containers.clear(), Err("at least one container"));
        check(|job| job.metadata.name = "x".repeat(60), Err("too long"));
        check(|job| job.spec.roles[0].replicas = SLOTS_MAX + 1, Err("more than a job may have"));
        check(|job| job.spec.limits.runtime_seconds = Some(0), Err("more than 0"));
        check(
            |job| {
                let role = job.spec.roles[0].clone();
                job.spec.roles.push(role);
            },
            Err("two roles"),
        );
    }

    #[test]
    fn what_may_change() {
        let old = job("digits");
        let mut new = old.clone();
        new.spec.priority = 5;
        new.spec.cancel = true;
        assert_eq!(check_changed_job(&old, &new), Ok(()));
        assert!(check_changed_job(&new, &old).is_err(), "cancel is final");
        let mut new = old.clone();
        new.spec.roles[0].replicas = 2;
        assert!(check_changed_job(&old, &new).is_err());
    }

    #[test]
    fn defaults() {
        let mut fresh = job("digits");
        default_job(&mut fresh);
        default_job(&mut fresh);
        assert_eq!(fresh.spec.queue, "default");
        assert_eq!(fresh.metadata.finalizers, [labels::JOB_FINALIZER]);
    }
}
