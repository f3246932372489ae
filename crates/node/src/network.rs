//! Networks of pods: one for each job, shared by all its pods; one for each pod without a job.
//!
//! With a network of its own a job has its own loopback, its own ports and an address for each slot. A pair of virtual
//! interfaces and address translation on the host let it out. The namespace is bound to a file, so that it outlives the
//! daemon. On the host's network each attempt of a job gets a port that no other has.

mod address;
mod decision;
mod firewall;
mod hosts;
mod links;
mod namespace;
mod ports;

pub(crate) use hosts::{Name, hosts_file};

use crate::api::NetworkMode;
use crate::error::Error;
use crate::layout::Layout;
use crate::runtime::lock;
use address::{Block, Range};
use decision::{Decision, Facts};
use firewall::Firewall;
use regatta_agent::files::{self, Durability};
use regatta_types::{Epoch, Uid};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::Mutex;

/// Where rank 0 is met in a network of its own: torchrun's own default.
const MASTER_PORT: u16 = 29_500;
/// File that a network's namespace is bound to.
const NAMESPACE: &str = "ns";
/// What is remembered of a network.
const STATE: &str = "state.json";

/// What a pod asks of the network.
#[derive(Debug, Clone)]
pub(crate) struct Wish<'a> {
    /// The job's uid, or the pod's for a pod without a job.
    pub(crate) key: &'a str,
    /// The pod.
    pub(crate) pod: &'a Uid,
    /// The attempt.
    pub(crate) epoch: Epoch,
    /// Host names of all slots, in rank order.
    pub(crate) hosts: &'a [String],
    /// Which of them is this pod's.
    pub(crate) own_host: usize,
    /// Whether it wants the host's network, whatever others have.
    pub(crate) on_host: bool,
}

/// What a pod gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attachment {
    /// File of the namespace to enter; none for the host's network.
    pub(crate) namespace: Option<PathBuf>,
    /// Names and addresses of all slots.
    pub(crate) names: Vec<Name>,
    /// What `/etc/resolv.conf` must be, when the host's is of no use.
    pub(crate) resolv_conf: Option<PathBuf>,
    pub(crate) master_address: String,
    pub(crate) master_port: u16,
    pub(crate) pod_ip: IpAddr,
}

/// The networks of one data directory.
pub(crate) struct Network {
    layout: Layout,
    mode: Mode,
    networks: Mutex<BTreeMap<String, JobNetwork>>,
    /// A sentence.
    pub(crate) description: String,
    pub(crate) notices: Vec<String>,
}

enum Mode {
    Host,
    /// Each job has its own; with a way out where there is a firewall to translate addresses.
    Isolated {
        range: Range,
        way_out: Option<Firewall>,
        resolv_conf: Option<PathBuf>,
    },
}

#[derive(Debug, Default)]
struct JobNetwork {
    members: BTreeSet<Uid>,
    state: NetworkState,
}

/// What is remembered of a network across daemons.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NetworkState {
    /// Which block of addresses it has.
    block: Option<u32>,
    /// Ports on the host's network by attempt.
    ports: BTreeMap<u64, u16>,
}

impl Network {
    /// Finds out what this machine permits, and prepares for it.
    pub(crate) fn new(layout: Layout, wanted: NetworkMode) -> Result<Self, Error> {
        let routes = address::routes();
        let facts = Facts {
            is_root: rustix::process::geteuid().is_root(),
            can_make_namespaces: namespace::can_be_made(),
            firewall: Firewall::find(layout.tag()),
            has_default_route: address::has_default_route(&routes),
        };
        let Decision { isolated, way_out, description, mut notices } =
            decision::decide(wanted, &facts).map_err(Error::Options)?;
        let mode = if isolated {
            let range = address::choose_range(&routes).ok_or_else(|| {
                Error::Options(
                    "every range of addresses for job networks is in use on this machine; use --network host"
                        .to_owned(),
                )
            })?;
            if let Some(firewall) = &way_out {
                firewall.open(range).map_err(|source| Error::Network {
                    action: "set up the firewall",
                    key: "(all)".to_owned(),
                    source,
                })?;
            }
            let resolv_conf = hosts::usable_resolv_conf();
            if way_out.is_some() && resolv_conf.is_err() {
                notices.push(
                    "names outside of a job do not resolve: /etc/resolv.conf names only servers on this machine's own loopback".to_owned(),
                );
            }
            Mode::Isolated { range, way_out, resolv_conf: resolv_conf.unwrap_or(None) }
        } else {
            Mode::Host
        };
        fs::create_dir_all(layout.networks()).map_err(|e| Error::file("make", layout.networks(), e))?;
        Ok(Self { layout, mode, networks: Mutex::default(), description, notices })
    }

    /// Whether pods have the host's network.
    pub(crate) const fn is_host(&self) -> bool {
        matches!(self.mode, Mode::Host)
    }

    /// Notes that an adopted pod uses a network.
    pub(crate) fn adopt(&self, key: &str, pod: &Uid) {
        let mut networks = lock(&self.networks);
        let network = networks.entry(key.to_owned()).or_insert_with(|| self.remembered(key));
        network.members.insert(pod.clone());
    }

    /// Removes networks that no adopted pod uses.
    pub(crate) fn sweep(&self) {
        let networks = lock(&self.networks);
        for entry in fs::read_dir(self.layout.networks()).into_iter().flatten().flatten() {
            let key = entry.file_name().to_string_lossy().into_owned();
            if !networks.contains_key(&key) {
                self.dissolve(&key);
            }
        }
    }

    fn remembered(&self, key: &str) -> JobNetwork {
        let state = files::read_json(&self.layout.networks().join(key), STATE).unwrap_or_else(|error| {
            tracing::warn!(%error, "a network is forgotten");
            None
        });
        JobNetwork { members: BTreeSet::new(), state: state.unwrap_or_default() }
    }

    /// Gives a pod its network, making it if the pod is its first. Blocks for a moment.
    pub(crate) fn attach(&self, wish: &Wish<'_>) -> Result<Attachment, Error> {
        let mut networks = lock(&self.networks);
        let taken: BTreeSet<u32> = networks.values().filter_map(|network| network.state.block).collect();
        let ports: BTreeSet<u16> =
            networks.values().flat_map(|network| network.state.ports.values()).copied().collect();
        let network = networks.entry(wish.key.to_owned()).or_default();
        let attached = match &self.mode {
            Mode::Isolated { range, way_out, resolv_conf } if !wish.on_host => self
                .isolated(wish, network, &taken, *range, way_out.as_ref())
                .map(|attachment| Attachment { resolv_conf: resolv_conf.clone(), ..attachment }),
            _ => self.on_host(wish, network, &ports),
        };
        match &attached {
            Ok(_) => {
                network.members.insert(wish.pod.clone());
            }
            Err(_) if network.members.is_empty() => {
                networks.remove(wish.key);
                self.dissolve(wish.key);
            }
            Err(_) => {}
        }
        attached
    }

    fn isolated(
        &self,
        wish: &Wish<'_>,
        network: &mut JobNetwork,
        taken: &BTreeSet<u32>,
        range: Range,
        way_out: Option<&Firewall>,
    ) -> Result<Attachment, Error> {
        let fail = |action, source| Error::Network { action, key: wish.key.to_owned(), source };
        if wish.hosts.len() > address::SLOTS_MAX {
            let text = format!(
                "{} slots are more than the {} that a network has addresses for",
                wish.hosts.len(),
                address::SLOTS_MAX
            );
            return Err(fail("find addresses", io::Error::other(text)));
        }
        let directory = self.layout.networks().join(wish.key);
        let file = directory.join(NAMESPACE);
        let block = match network.state.block {
            Some(index) if namespace::is_bound(&file) => range.block(index),
            _ => {
                let index = range
                    .free_block(self.layout.tag(), taken, &address::routes())
                    .ok_or_else(|| fail("find addresses", io::Error::other("all are in use")))?;
                network.state.block = Some(index);
                self.remember(wish.key, &network.state)?;
                let block = range.block(index);
                let plan = namespace::Plan {
                    block,
                    slots: wish.hosts.len().max(1),
                    link: way_out.map(|_| format!("rg{}{index}", &self.layout.tag()[..6])),
                };
                namespace::make(&file, &plan).map_err(|source| fail("make the namespace", source))?;
                block
            }
        };
        Ok(attachment_in(wish, block, file))
    }

    fn on_host(
        &self,
        wish: &Wish<'_>,
        network: &mut JobNetwork,
        taken: &BTreeSet<u16>,
    ) -> Result<Attachment, Error> {
        let port = match network.state.ports.get(&wish.epoch.0) {
            Some(port) => *port,
            None => {
                let port = ports::find(wish.key, wish.epoch, taken).ok_or_else(|| Error::Network {
                    action: "find a free port",
                    key: wish.key.to_owned(),
                    source: io::Error::from(io::ErrorKind::AddrInUse),
                })?;
                // Earlier attempts are over by now.
                network.state.ports = BTreeMap::from([(wish.epoch.0, port)]);
                self.remember(wish.key, &network.state)?;
                port
            }
        };
        let here = IpAddr::V4(Ipv4Addr::LOCALHOST);
        Ok(Attachment {
            namespace: None,
            names: wish.hosts.iter().map(|host| Name::new(here, host)).collect(),
            resolv_conf: None,
            master_address: here.to_string(),
            master_port: port,
            pod_ip: here,
        })
    }

    fn remember(&self, key: &str, state: &NetworkState) -> Result<(), Error> {
        let directory = self.layout.networks().join(key);
        fs::create_dir_all(&directory).map_err(|e| Error::file("make", &directory, e))?;
        // Networks are lost with the machine, and so are the pods in them.
        files::write_json(&directory, STATE, state, Durability::Cached)
            .map_err(|e| Error::file("write", directory.join(STATE), io::Error::other(e)))
    }

    /// A pod has ended for good; its network goes with its last pod.
    pub(crate) fn release(&self, key: &str, pod: &Uid) {
        let mut networks = lock(&self.networks);
        let Some(network) = networks.get_mut(key) else { return };
        network.members.remove(pod);
        if network.members.is_empty() {
            networks.remove(key);
            self.dissolve(key);
        }
    }

    fn dissolve(&self, key: &str) {
        let directory = self.layout.networks().join(key);
        namespace::unbind(&directory.join(NAMESPACE));
        if let Err(error) = fs::remove_dir_all(&directory)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, directory = %directory.display(), "a network cannot be removed");
        }
    }

    /// The runtime stops: takes the firewall's rules away if no network is left that needs them.
    pub(crate) fn close(&self) {
        let in_use = lock(&self.networks).values().any(|network| network.state.block.is_some());
        if let (false, Mode::Isolated { way_out: Some(firewall), .. }) = (in_use, &self.mode) {
            firewall.close();
        }
    }
}

fn attachment_in(wish: &Wish<'_>, block: Block, namespace: PathBuf) -> Attachment {
    let address = |slot: usize| IpAddr::V4(block.slot(slot));
    let names = wish.hosts.iter().enumerate().map(|(slot, host)| Name::new(address(slot), host)).collect();
    Attachment {
        namespace: Some(namespace),
        names,
        resolv_conf: None,
        master_address: wish.hosts.first().cloned().unwrap_or_else(|| Ipv4Addr::LOCALHOST.to_string()),
        master_port: MASTER_PORT,
        pod_ip: address(wish.own_host),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host_network() -> (tempfile::TempDir, Network) {
        let dir = tempfile::tempdir().unwrap();
        let network = Network::new(Layout::new(dir.path()), NetworkMode::Host).unwrap();
        (dir, network)
    }

    fn wish<'a>(key: &'a str, pod: &'a Uid, epoch: u64, hosts: &'a [String]) -> Wish<'a> {
        Wish { key, pod, epoch: Epoch(epoch), hosts, own_host: 0, on_host: false }
    }

    #[test]
    fn slots_of_an_attempt_share_a_port_and_attempts_do_not() {
        let (dir, network) = host_network();
        let hosts = ["job-worker-0.job".to_owned(), "job-worker-1.job".to_owned()];
        let (one, two, other) = (Uid::from("1"), Uid::from("2"), Uid::from("3"));
        let first = network.attach(&wish("job", &one, 1, &hosts)).unwrap();
        assert_eq!(first.master_port, network.attach(&wish("job", &two, 1, &hosts)).unwrap().master_port);
        assert_eq!((first.master_address.as_str(), first.namespace), ("127.0.0.1", None));
        let elsewhere = network.attach(&wish("other", &other, 1, &hosts)).unwrap();
        assert_ne!(elsewhere.master_port, first.master_port);

        // The next daemon goes on with the same port.
        let next = Network::new(Layout::new(dir.path()), NetworkMode::Host).unwrap();
        next.adopt("job", &one);
        assert_eq!(next.attach(&wish("job", &two, 1, &hosts)).unwrap().master_port, first.master_port);
        next.sweep();
        assert!(dir.path().join("net/job").exists() && !dir.path().join("net/other").exists());
        next.release("job", &one);
        assert!(dir.path().join("net/job").exists(), "one pod is left");
        next.release("job", &two);
        assert!(!dir.path().join("net/job").exists());
    }
}
