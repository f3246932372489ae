//! The nodes that the machine appears as. Pure, but for [`Machine::read`].

use crate::api::{Gpus, NodeCount, SIMULATED_GPUS_MAX, VIRTUAL_NODES_MAX};
use crate::error::Error;
use crate::gpus::{Found, SIMULATED_MODEL};
use crate::ledger::Device;
use regatta_types::conditions::{Condition, READY};
use regatta_types::node::{Node, NodeStatus};
use regatta_types::{ObjectMeta, Quantity, Timestamp, labels};
use serde_json::json;
use std::collections::BTreeMap;

/// Most pods on one node.
const PODS_MAX: i64 = 512;
/// Label on a node: which runtime it has.
pub(crate) const RUNTIME_LABEL: &str = "regatta.dev/runtime";
/// Its value for the nodes of this crate.
pub(crate) const RUNTIME: &str = "process";

/// What the machine is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Machine {
    /// Host name, as a node's name.
    pub(crate) name: String,
    pub(crate) cpu_milli: i64,
    pub(crate) memory_bytes: i64,
    pub(crate) kernel: String,
    pub(crate) architecture: String,
}

impl Machine {
    /// Reads it.
    pub(crate) fn read() -> Result<Self, Error> {
        let uname = rustix::system::uname();
        let cpus = std::thread::available_parallelism()
            .map_err(|source| Error::Machine { what: "the CPUs", source })?;
        let meminfo = std::fs::read_to_string("/proc/meminfo")
            .map_err(|source| Error::Machine { what: "the memory", source })?;
        Ok(Self {
            name: node_name(&uname.nodename().to_string_lossy()),
            cpu_milli: i64::try_from(cpus.get()).unwrap_or(i64::MAX / 1000).saturating_mul(1000),
            memory_bytes: parse_memory_bytes(&meminfo).unwrap_or(0),
            kernel: uname.release().to_string_lossy().into_owned(),
            architecture: architecture(&uname.machine().to_string_lossy()),
        })
    }
}

/// A host name as a node's name: lower case, letters, digits, dots and dashes.
fn node_name(hostname: &str) -> String {
    let clean = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c.to_ascii_lowercase() } else { '-' };
    let name: String = hostname.chars().take(200).map(clean).collect();
    let name = name.trim_matches(['-', '.']);
    if name.is_empty() { "localhost".to_owned() } else { name.to_owned() }
}

fn architecture(machine: &str) -> String {
    match machine {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
    .to_owned()
}

fn parse_memory_bytes(meminfo: &str) -> Option<i64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<i64>().ok()?.checked_mul(1024)
}

/// One node and its devices.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NodeSpec {
    pub(crate) object: Node,
    pub(crate) devices: Vec<Device>,
}

/// The nodes.
pub(crate) fn plan(
    machine: &Machine,
    count: NodeCount,
    gpus: Gpus,
    found: &Found,
    now: Timestamp,
) -> Result<Vec<NodeSpec>, Error> {
    let (names, parts) = match count {
        NodeCount::Machine => (vec![machine.name.clone()], 1),
        NodeCount::Virtual(n) if (1..=VIRTUAL_NODES_MAX).contains(&n) => {
            ((0..n).map(|index| format!("{}-{index}", machine.name)).collect(), i64::from(n))
        }
        NodeCount::Virtual(n) => {
            return Err(Error::Options(format!(
                "{n} nodes are not possible; choose 1 to {VIRTUAL_NODES_MAX} with --nodes"
            )));
        }
    };
    if let Gpus::Simulated(n) = gpus
        && n > SIMULATED_GPUS_MAX
    {
        return Err(Error::Options(format!(
            "{n} GPUs in a node are not possible; choose 0 to {SIMULATED_GPUS_MAX} with --gpus"
        )));
    }
    let nodes = names.iter().enumerate().map(|(index, name)| {
        let devices = devices_of(index, names.len(), gpus, found);
        let model = match gpus {
            Gpus::Simulated(n) => (n > 0).then(|| SIMULATED_MODEL.to_owned()),
            Gpus::Detect => found.model.clone().filter(|_| !devices.is_empty()),
        };
        NodeSpec { object: node(machine, name, parts, devices.len(), model, gpus, now), devices }
    });
    Ok(nodes.collect())
}

/// Simulated devices are each node's own; real ones are dealt out in turn, keeping their numbers.
fn devices_of(node: usize, nodes: usize, gpus: Gpus, found: &Found) -> Vec<Device> {
    match gpus {
        Gpus::Simulated(n) => (0..n).map(|index| Device { index, visible: index.to_string() }).collect(),
        Gpus::Detect => {
            let share = found.devices.len().div_ceil(nodes.max(1)).max(1);
            found.devices.iter().skip(node * share).take(share).cloned().collect()
        }
    }
}

fn node(
    machine: &Machine,
    name: &str,
    parts: i64,
    gpus: usize,
    model: Option<String>,
    kind: Gpus,
    now: Timestamp,
) -> Node {
    let mut node_labels = BTreeMap::from([
        (labels::HOSTNAME.to_owned(), name.to_owned()),
        ("kubernetes.io/os".to_owned(), "linux".to_owned()),
        ("kubernetes.io/arch".to_owned(), machine.architecture.clone()),
        (RUNTIME_LABEL.to_owned(), RUNTIME.to_owned()),
    ]);
    if let Some(model) = model {
        node_labels.insert(labels::GPU_MODEL.to_owned(), model);
    }
    let mut annotations = BTreeMap::new();
    if matches!(kind, Gpus::Simulated(n) if n > 0) {
        annotations.insert(labels::SIMULATED_GPUS.to_owned(), "true".to_owned());
    }
    let mut capacity = BTreeMap::from([
        ("cpu".to_owned(), Quantity::from_milli(machine.cpu_milli / parts)),
        ("memory".to_owned(), Quantity::from_bytes(machine.memory_bytes / parts / 1024 * 1024)),
        ("pods".to_owned(), Quantity::from_units(PODS_MAX)),
    ]);
    if gpus > 0 {
        let gpus = i64::try_from(gpus).unwrap_or(i64::MAX);
        capacity.insert(labels::GPU_RESOURCE.to_owned(), Quantity::from_units(gpus));
    }
    let ready = Condition {
        type_: READY.to_owned(),
        status: "True".to_owned(),
        reason: "RuntimeReady".to_owned(),
        message: "the node runtime starts pods".to_owned(),
        last_transition_time: now,
    };
    let text = |value: &str| value.to_owned();
    Node {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        metadata: ObjectMeta {
            name: name.to_owned(),
            labels: node_labels,
            annotations,
            ..ObjectMeta::default()
        },
        status: NodeStatus {
            allocatable: capacity.clone(),
            capacity,
            conditions: vec![ready],
            addresses: vec![
                json!({"type": "Hostname", "address": name}),
                json!({"type": "InternalIP", "address": "127.0.0.1"}),
            ],
            node_info: BTreeMap::from([
                (text("architecture"), machine.architecture.clone()),
                (text("containerRuntimeVersion"), format!("regatta-process://{}", env!("CARGO_PKG_VERSION"))),
                (text("kernelVersion"), machine.kernel.clone()),
                (text("kubeletVersion"), format!("regatta-{}", env!("CARGO_PKG_VERSION"))),
                (text("operatingSystem"), text("linux")),
                (text("osImage"), text("linux")),
            ]),
            ..NodeStatus::default()
        },
        ..Node::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use regatta_types::pod::Quantities;

    fn machine() -> Machine {
        Machine {
            name: "box".to_owned(),
            cpu_milli: 3_000,
            memory_bytes: 8 << 30,
            kernel: "6.1".to_owned(),
            architecture: "amd64".to_owned(),
        }
    }

    fn found(count: u32) -> Found {
        let devices = (0..count).map(|index| Device { index, visible: format!("GPU-{index}") }).collect();
        Found { devices, model: Some("h100".to_owned()), description: String::new() }
    }

    fn nodes(count: NodeCount, gpus: Gpus, real: u32) -> Vec<NodeSpec> {
        plan(&machine(), count, gpus, &found(real), Timestamp::default()).unwrap()
    }

    #[test]
    fn the_machine_is_one_node() {
        let nodes = nodes(NodeCount::Machine, Gpus::Detect, 2);
        assert_eq!(nodes.len(), 1);
        let node = &nodes[0].object;
        assert_eq!(node.metadata.name, "box");
        assert_eq!(node.status.capacity.milli("cpu"), 3_000);
        assert_eq!(node.status.allocatable.units("memory"), 8 << 30);
        assert_eq!(node.status.allocatable.units(labels::GPU_RESOURCE), 2);
        assert_eq!(node.metadata.labels[labels::GPU_MODEL], "h100");
        assert!(node.metadata.annotations.is_empty());
    }

    #[test]
    fn virtual_nodes_share_evenly_and_say_what_is_simulated() {
        let nodes = nodes(NodeCount::Virtual(2), Gpus::Simulated(4), 0);
        let names: Vec<&str> = nodes.iter().map(|node| node.object.metadata.name.as_str()).collect();
        assert_eq!(names, ["box-0", "box-1"]);
        for node in &nodes {
            assert_eq!(node.object.status.capacity.milli("cpu"), 1_500);
            assert_eq!(node.object.status.capacity.units("memory"), 4 << 30);
            assert_eq!(node.object.status.capacity.units(labels::GPU_RESOURCE), 4);
            assert_eq!(node.object.metadata.annotations[labels::SIMULATED_GPUS], "true");
            assert_eq!(node.devices[3].visible, "3");
        }
    }

    #[test]
    fn real_gpus_are_dealt_out_once() {
        for (nodes_count, real) in [(2, 8), (3, 8), (4, 2), (2, 0)] {
            let nodes = nodes(NodeCount::Virtual(nodes_count), Gpus::Detect, real);
            let all: Vec<u32> =
                nodes.iter().flat_map(|node| node.devices.iter().map(|device| device.index)).collect();
            assert_eq!(all, (0..real).collect::<Vec<u32>>(), "{nodes_count} nodes, {real} GPUs");
            let without = nodes.iter().filter(|node| node.devices.is_empty());
            assert!(without.clone().all(|node| !node.object.metadata.labels.contains_key(labels::GPU_MODEL)));
        }
    }

    #[test]
    fn impossible_counts_get_a_sentence() {
        for (count, gpus) in [
            (NodeCount::Virtual(0), Gpus::Detect),
            (NodeCount::Virtual(VIRTUAL_NODES_MAX + 1), Gpus::Detect),
            (NodeCount::Machine, Gpus::Simulated(SIMULATED_GPUS_MAX + 1)),
        ] {
            let error = plan(&machine(), count, gpus, &found(0), Timestamp::default()).unwrap_err();
            assert!(error.to_string().contains("not possible; choose"), "{error}");
        }
    }

    #[test]
    fn host_names_become_node_names() {
        for (hostname, expected) in
            [("vm", "vm"), ("My_Box.local", "my-box.local"), ("-", "localhost"), ("", "localhost")]
        {
            assert_eq!(node_name(hostname), expected, "{hostname:?}");
        }
        assert_eq!(
            parse_memory_bytes("MemTotal:       24576000 kB\nMemFree: 1 kB\n"),
            Some(24_576_000 * 1024)
        );
        assert_eq!(parse_memory_bytes("nothing"), None);
        let here = Machine::read().unwrap();
        assert!(here.cpu_milli >= 1_000 && here.memory_bytes > 0, "{here:?}");
    }
}
