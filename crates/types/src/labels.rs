//! Label, annotation and environment names that Regatta sets or reads.

/// Label on a pod: name of the job it belongs to.
pub const JOB_NAME: &str = "regatta.dev/job";
/// Label on a pod: role within the job.
pub const ROLE: &str = "regatta.dev/role";
/// Label on a pod: slot index within the role.
pub const SLOT: &str = "regatta.dev/slot";
/// Label on a pod: incarnation of the slot.
pub const INCARNATION: &str = "regatta.dev/incarnation";
/// Annotation on a pod: epoch for which it was created.
pub const EPOCH: &str = "regatta.dev/epoch";
/// Label on any pod: queue in which it waits.
pub const QUEUE: &str = "regatta.dev/queue";
/// Label and annotation: the person on whose behalf an object exists.
pub const USER: &str = "regatta.dev/user";
/// Annotation on a pod: the launch facts for the agent, JSON of [`crate::pod::LaunchSpec`].
pub const LAUNCH: &str = "regatta.dev/launch";
/// Annotation on a pod: comma-separated device indices that the node runtime gave it.
pub const GPU_DEVICES: &str = "regatta.dev/gpu-devices";
/// Annotation on a node: the GPUs are simulated, there is no such hardware.
pub const SIMULATED_GPUS: &str = "regatta.dev/simulated-gpus";
/// Label on a node: GPU model in lower case (`h100`).
pub const GPU_MODEL: &str = "regatta.dev/gpu-model";
/// Label on a node: the name of the host, as Kubernetes sets it.
pub const HOSTNAME: &str = "kubernetes.io/hostname";
/// Extended resource under which GPUs are counted.
pub const GPU_RESOURCE: &str = "nvidia.com/gpu";
/// Finalizer on jobs: their pods are stopped before the job goes.
pub const JOB_FINALIZER: &str = "regatta.dev/stop-pods";
