//! What the node runtime itself remembers of a pod, in the pod's directory.

use crate::driver::Started;
use regatta_types::{Timestamp, Uid};
use serde::{Deserialize, Serialize};

/// File in the pod's directory.
pub(crate) const RECORD: &str = "pod.json";

/// One pod.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodRecord {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: Uid,
    pub(crate) node: String,
    /// Its GPUs, as the node counts them.
    pub(crate) devices: Vec<u32>,
    /// Whose network it is in.
    pub(crate) network: String,
    pub(crate) pod_ip: Option<String>,
    /// Ports of the host that it said it would listen on.
    pub(crate) host_ports: Vec<u16>,
    pub(crate) started_at: Timestamp,
}

impl PodRecord {
    /// What the pod was given.
    pub(crate) fn started(&self) -> Started {
        Started {
            at: self.started_at,
            pod_ip: self.pod_ip.clone(),
            gpu_devices: self.devices.iter().map(u32::to_string).collect(),
        }
    }
}
