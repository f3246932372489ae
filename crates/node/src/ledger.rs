//! Which GPU of which node is whose. Pure.

use regatta_types::Uid;
use std::collections::{BTreeMap, BTreeSet};

/// One GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Device {
    /// Its number within the node, for people.
    pub(crate) index: u32,
    /// Its name in `CUDA_VISIBLE_DEVICES`.
    pub(crate) visible: String,
}

/// The devices of all nodes and who has them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ledger {
    nodes: BTreeMap<String, Vec<Device>>,
    held: BTreeMap<Uid, (String, BTreeSet<u32>)>,
}

impl Ledger {
    pub(crate) fn new(nodes: BTreeMap<String, Vec<Device>>) -> Self {
        Self { nodes, held: BTreeMap::new() }
    }

    /// Whether the node has any device.
    pub(crate) fn has_devices(&self, node: &str) -> bool {
        self.nodes.get(node).is_some_and(|devices| !devices.is_empty())
    }

    /// Gives `count` devices of a node to a pod, lowest numbers first. Asking again gives the same. None when fewer are
    /// free.
    pub(crate) fn take(&mut self, node: &str, uid: &Uid, count: usize) -> Option<Vec<Device>> {
        if !self.held.contains_key(uid) {
            let free: BTreeSet<u32> = self.free(node).take(count).map(|device| device.index).collect();
            if free.len() < count {
                return None;
            }
            self.held.insert(uid.clone(), (node.to_owned(), free));
        }
        Some(self.of(uid))
    }

    /// Notes that an adopted pod has these devices.
    pub(crate) fn adopt(&mut self, node: &str, uid: &Uid, devices: impl IntoIterator<Item = u32>) {
        self.held.insert(uid.clone(), (node.to_owned(), devices.into_iter().collect()));
    }

    /// Takes a pod's devices back.
    pub(crate) fn release(&mut self, uid: &Uid) {
        self.held.remove(uid);
    }

    fn free(&self, node: &str) -> impl Iterator<Item = &Device> {
        let held = self.held.values().filter(move |(at, _)| at == node).flat_map(|(_, devices)| devices);
        let held: BTreeSet<u32> = held.copied().collect();
        self.nodes.get(node).into_iter().flatten().filter(move |device| !held.contains(&device.index))
    }

    fn of(&self, uid: &Uid) -> Vec<Device> {
        let Some((node, indices)) = self.held.get(uid) else { return Vec::new() };
        let devices = self.nodes.get(node).into_iter().flatten();
        devices.filter(|device| indices.contains(&device.index)).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn indices(devices: Option<Vec<Device>>) -> Option<Vec<u32>> {
        devices.map(|devices| devices.iter().map(|device| device.index).collect())
    }

    #[test]
    fn a_device_has_one_holder() {
        let device = |index| Device { index, visible: index.to_string() };
        let nodes = BTreeMap::from([
            ("a".to_owned(), (0..4).map(device).collect()),
            ("b".to_owned(), vec![device(0)]),
        ]);
        let mut ledger = Ledger::new(nodes);
        let (one, two, three) = (Uid::from("1"), Uid::from("2"), Uid::from("3"));
        ledger.adopt("a", &three, [1]);
        assert_eq!(indices(ledger.take("a", &one, 2)), Some(vec![0, 2]));
        assert_eq!(indices(ledger.take("a", &one, 2)), Some(vec![0, 2]), "asking again gives the same");
        assert_eq!(indices(ledger.take("a", &two, 2)), None, "all or nothing");
        assert_eq!(indices(ledger.take("b", &two, 1)), Some(vec![0]), "nodes count for themselves");
        ledger.release(&three);
        ledger.release(&two);
        assert_eq!(indices(ledger.take("a", &two, 2)), Some(vec![1, 3]));
        assert_eq!(indices(ledger.take("a", &three, 0)), Some(vec![]));
        assert!(ledger.has_devices("b") && !ledger.has_devices("c"));
    }
}
