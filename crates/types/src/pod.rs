//! Pods: the part of the Kubernetes Pod that Regatta reads. Fields it does not read are carried through untouched.

use crate::conditions::Condition;
use crate::id::{Epoch, Rank, SlotIndex};
use crate::meta::ObjectMeta;
use crate::quantity::Quantity;
use crate::time::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// Amounts by resource name (`cpu`, `memory`, `nvidia.com/gpu`).
pub type ResourceList = BTreeMap<String, Quantity>;

/// Reading amounts as integers; what is not listed is 0.
pub trait Quantities {
    /// Thousandths of `resource`.
    fn milli(&self, resource: &str) -> i64;
    /// Whole units of `resource`.
    fn units(&self, resource: &str) -> i64;
}

impl Quantities for ResourceList {
    fn milli(&self, resource: &str) -> i64 {
        self.get(resource).map_or(0, Quantity::milli)
    }
    fn units(&self, resource: &str) -> i64 {
        self.get(resource).map_or(0, Quantity::units)
    }
}

/// Fields carried through untouched.
pub type Other = BTreeMap<String, Value>;

/// A pod: containers that run together on one node.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Pod {
    /// Always `v1`.
    pub api_version: String,
    /// Always `Pod`.
    pub kind: String,
    /// Metadata.
    pub metadata: ObjectMeta,
    /// What shall run.
    pub spec: PodSpec,
    /// What runs.
    pub status: PodStatus,
}

/// A pod without name and status, from which pods are made.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodTemplate {
    /// Labels and annotations of the pods.
    pub metadata: ObjectMeta,
    /// What the pods run.
    pub spec: PodSpec,
}

/// What a pod runs.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    /// Containers that run one after another before the others start.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub init_containers: Vec<Container>,
    /// Containers that run together.
    pub containers: Vec<Container>,
    /// Volumes that containers may mount.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<Volume>,
    /// The node it is bound to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// Labels that the node must have.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// `Always`, `OnFailure` or `Never`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart_policy: Option<String>,
    /// Time between SIGTERM and SIGKILL, in seconds; 30 when left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub termination_grace_period_seconds: Option<i64>,
    /// Host name within the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// Domain of the host name: the job's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subdomain: Option<String>,
    /// Whether the pod shares the host's network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_network: Option<bool>,
    /// Priority of a bare pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// Fields that Regatta does not read, kept as they came.
    #[serde(flatten)]
    #[schemars(skip)]
    pub other: Other,
}

/// One container; on the process runtime a process group.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    /// Name within the pod.
    pub name: String,
    /// Image; the process runtime ignores it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Program and leading arguments.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Further arguments.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Environment.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<EnvVar>,
    /// Whole ConfigMaps and Secrets as environment.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env_from: Vec<EnvFromSource>,
    /// Directory in which the command starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub working_dir: Option<String>,
    /// Where volumes appear.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volume_mounts: Vec<VolumeMount>,
    /// Requests and limits.
    #[serde(skip_serializing_if = "ResourceRequirements::is_empty")]
    pub resources: ResourceRequirements,
    /// Ports, for people and for the check for clashes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<ContainerPort>,
    /// Whether to allocate a terminal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tty: Option<bool>,
    /// Fields that Regatta does not read, kept as they came.
    #[serde(flatten)]
    #[schemars(skip)]
    pub other: Other,
}

/// One environment variable.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EnvVar {
    /// Name.
    pub name: String,
    /// Literal value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Value taken from elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value_from: Option<EnvVarSource>,
}

/// Where the value of a variable comes from.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EnvVarSource {
    /// A key of a Secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_key_ref: Option<KeySelector>,
    /// A key of a ConfigMap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_map_key_ref: Option<KeySelector>,
    /// A field of the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field_ref: Option<FieldSelector>,
    /// Other sources, kept as they came.
    #[serde(flatten)]
    #[schemars(skip)]
    pub other: Other,
}

/// A key of a Secret or ConfigMap.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct KeySelector {
    /// Object name.
    pub name: String,
    /// Key.
    pub key: String,
    /// Whether it may be missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optional: Option<bool>,
}

/// A field of the pod itself.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FieldSelector {
    /// Path, such as `metadata.name`.
    pub field_path: String,
}

/// A ConfigMap or Secret whose keys all become variables.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EnvFromSource {
    /// Put before each name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// A ConfigMap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_map_ref: Option<LocalRef>,
    /// A Secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<LocalRef>,
}

/// An object of the same namespace.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LocalRef {
    /// Name.
    pub name: String,
    /// Whether it may be missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optional: Option<bool>,
}

/// A port that a container listens on.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerPort {
    /// Port inside the pod.
    pub container_port: u16,
    /// Other fields, kept as they came.
    #[serde(flatten)]
    #[schemars(skip)]
    pub other: Other,
}

/// Requests and limits of a container.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceRequirements {
    /// Never more than this.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: ResourceList,
    /// Always this much; the limit when left out.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub requests: ResourceList,
    /// Other fields, kept as they came.
    #[serde(flatten)]
    #[schemars(skip)]
    pub other: Other,
}

impl ResourceRequirements {
    /// Whether nothing is asked for.
    pub fn is_empty(&self) -> bool {
        self.limits.is_empty() && self.requests.is_empty() && self.other.is_empty()
    }

    /// What is asked for of `resource`: the request, or else the limit.
    pub fn request(&self, resource: &str) -> Option<&Quantity> {
        self.requests.get(resource).or_else(|| self.limits.get(resource))
    }
}

/// A volume of a pod.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Volume {
    /// Name within the pod.
    pub name: String,
    /// An empty directory that lives as long as the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub empty_dir: Option<EmptyDir>,
    /// A path of the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_path: Option<HostPath>,
    /// The keys of a ConfigMap as files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_map: Option<ConfigMapVolume>,
    /// The keys of a Secret as files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<SecretVolume>,
    /// Other kinds of volume, kept as they came.
    #[serde(flatten)]
    #[schemars(skip)]
    pub other: Other,
}

/// An empty directory.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EmptyDir {
    /// `Memory` for tmpfs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub medium: Option<String>,
    /// Largest size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size_limit: Option<Quantity>,
}

/// A path of the host.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HostPath {
    /// The path.
    pub path: String,
    /// `DirectoryOrCreate`, `Directory`, `File` …; no check when left out.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<String>,
}

/// The keys of a ConfigMap as files.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ConfigMapVolume {
    /// Name of the ConfigMap.
    pub name: String,
    /// Chosen keys and their paths; all keys when empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub items: Vec<KeyToPath>,
    /// Mode of the files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_mode: Option<u32>,
    /// Whether it may be missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optional: Option<bool>,
}

/// The keys of a Secret as files.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SecretVolume {
    /// Name of the Secret.
    pub secret_name: String,
    /// Chosen keys and their paths; all keys when empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub items: Vec<KeyToPath>,
    /// Mode of the files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_mode: Option<u32>,
    /// Whether it may be missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optional: Option<bool>,
}

/// One key as one file.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct KeyToPath {
    /// Key.
    pub key: String,
    /// Relative path.
    pub path: String,
    /// Mode of the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
}

/// Where a volume appears in a container.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeMount {
    /// Name of the volume.
    pub name: String,
    /// Absolute path in the container.
    pub mount_path: String,
    /// Relative path within the volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sub_path: Option<String>,
    /// Whether the container may only read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
}

/// What became of a pod.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    /// `Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`; empty before anybody has looked.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub phase: String,
    /// One word for a failed or waiting pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// A sentence for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Conditions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// When the node first saw the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Timestamp>,
    /// Address within the job's network.
    #[serde(rename = "podIP", skip_serializing_if = "Option::is_none")]
    pub pod_ip: Option<String>,
    /// Address of the node.
    #[serde(rename = "hostIP", skip_serializing_if = "Option::is_none")]
    pub host_ip: Option<String>,
    /// State of the init containers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub init_container_statuses: Vec<ContainerStatus>,
    /// State of the containers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub container_statuses: Vec<ContainerStatus>,
    /// Fields that Regatta does not read, kept as they came.
    #[serde(flatten)]
    pub other: Other,
}

/// State of one container.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStatus {
    /// Name within the pod.
    pub name: String,
    /// State now.
    pub state: ContainerState,
    /// State before the last restart.
    #[serde(skip_serializing_if = "ContainerState::is_empty")]
    pub last_state: ContainerState,
    /// Whether it serves.
    pub ready: bool,
    /// How often it was restarted.
    pub restart_count: i32,
    /// Image, as given.
    pub image: String,
    /// Image identity; empty on the process runtime.
    #[serde(rename = "imageID")]
    pub image_id: String,
    /// `process://PID` on the process runtime.
    #[serde(rename = "containerID", skip_serializing_if = "Option::is_none")]
    pub container_id: Option<String>,
    /// Whether it has started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started: Option<bool>,
}

/// Exactly one of the three is set.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerState {
    /// Not started yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<ContainerWaiting>,
    /// Runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running: Option<ContainerRunning>,
    /// Ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminated: Option<ContainerTerminated>,
}

impl ContainerState {
    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Why a container waits.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ContainerWaiting {
    /// One word.
    pub reason: String,
    /// A sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// A running container.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerRunning {
    /// Since when.
    pub started_at: Timestamp,
}

/// An ended container.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerTerminated {
    /// Exit code; 128 + signal for a signal, as shells report it.
    pub exit_code: i32,
    /// The signal that ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// `Completed`, `Error`, `OOMKilled`, `ContainerCannotRun`, `NoCommand` …
    pub reason: String,
    /// A sentence; a second line, when present, is the JSON of [`crate::evidence::ExitRecord`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Start.
    pub started_at: Timestamp,
    /// End.
    pub finished_at: Timestamp,
}

/// What the agent of one slot needs to start its ranks; written into the pod's annotation
/// [`crate::labels::LAUNCH`] by the operator.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LaunchSpec {
    /// Job name.
    pub job: String,
    /// Role of this slot.
    pub role: String,
    /// This slot.
    pub slot: SlotIndex,
    /// Attempt for which the pod was created.
    pub epoch: Epoch,
    /// How ranks are started, resolved by the operator; `Auto` leaves it to the node runtime, which looks at the
    /// command by the same rule.
    #[serde(skip_serializing_if = "crate::job::Launcher::is_auto")]
    pub launcher: crate::job::Launcher,
    /// Processes that the agent starts; each gets its own rank.
    pub procs: u32,
    /// Processes that a launcher within the command (torchrun) starts in each slot; its GPUs, else 1, when none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub procs_per_node: Option<u32>,
    /// Global rank of this slot's first process.
    pub first_rank: Rank,
    /// Number of processes in the whole gang.
    pub world_size: u32,
    /// Host names of all slots in rank order, such as `job-worker-0.job`.
    pub hosts: Vec<String>,
    /// Checkpoint to resume from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resume: Option<crate::evidence::Checkpoint>,
    /// Checkpoint directory, as the ranks see it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_dir: Option<String>,
}

impl Pod {
    /// The pod's own resource requests: the sum over containers, or the largest init container where that is more.
    pub fn requests(&self) -> ResourceTotals {
        ResourceTotals::of(&self.spec)
    }

    /// Whether the pod has ended, well or badly.
    pub fn is_finished(&self) -> bool {
        matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }
}

/// What a pod asks for, as integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ResourceTotals {
    /// CPU in thousandths of a core.
    pub cpu_milli: i64,
    /// Memory in bytes.
    pub memory_bytes: i64,
    /// GPUs in thousandths of a device.
    pub gpu_milli: i64,
}

impl ResourceTotals {
    /// Whole GPUs.
    pub const fn gpus(&self) -> i64 {
        self.gpu_milli / 1000
    }

    /// What `spec` asks for, by the rule of Kubernetes: max(sum of containers, largest init container).
    pub fn of(spec: &PodSpec) -> Self {
        let one = |container: &Container| Self {
            cpu_milli: container.resources.request("cpu").map_or(0, Quantity::milli),
            memory_bytes: container.resources.request("memory").map_or(0, Quantity::units),
            gpu_milli: container.resources.request(crate::labels::GPU_RESOURCE).map_or(0, Quantity::milli),
        };
        let mut total = Self::default();
        for container in spec.containers.iter().map(one) {
            total.cpu_milli = total.cpu_milli.saturating_add(container.cpu_milli);
            total.memory_bytes = total.memory_bytes.saturating_add(container.memory_bytes);
            total.gpu_milli = total.gpu_milli.saturating_add(container.gpu_milli);
        }
        for container in spec.init_containers.iter().map(one) {
            total.cpu_milli = total.cpu_milli.max(container.cpu_milli);
            total.memory_bytes = total.memory_bytes.max(container.memory_bytes);
            total.gpu_milli = total.gpu_milli.max(container.gpu_milli);
        }
        total
    }
}
