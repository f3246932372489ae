//! Network namespaces, each bound to a file so that it lives without a process in it.

use super::address::{BLOCK_PREFIX, Block};
use super::links::Links;
use rustix::fs::statfs;
use rustix::mount::{UnmountFlags, mount_bind, unmount};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

/// What the kernel calls the file system of namespaces.
const NSFS_MAGIC: rustix::fs::FsWord = 0x6e73_6673;
/// Name of the way out, as pods see it.
const INTERFACE: &str = "eth0";
/// The calling thread's own network namespace.
const OWN: &str = "/proc/thread-self/ns/net";

/// What shall be in a network.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) block: Block,
    /// How many slots have addresses.
    pub(super) slots: usize,
    /// Name of the host's end of the way out; none for no way out.
    pub(super) link: Option<String>,
}

/// Whether this process may make network namespaces.
pub(super) fn can_be_made() -> bool {
    in_new_network(|| Ok(())).is_ok()
}

/// Whether the file is a namespace: after a restart of the machine it is only a file.
pub(super) fn is_bound(file: &Path) -> bool {
    statfs(file).is_ok_and(|found| found.f_type == NSFS_MAGIC)
}

/// Makes a network and binds it to the file.
pub(super) fn make(file: &Path, plan: &Plan) -> io::Result<()> {
    let host = File::open(OWN)?;
    File::create(file)?;
    in_new_network(|| {
        mount_bind(OWN, file)?;
        let mut links = Links::open()?;
        links.up("lo")?;
        let addresses = (0..plan.slots).map(|slot| plan.block.slot(slot));
        match &plan.link {
            None => addresses.into_iter().try_for_each(|address| links.add_address("lo", address, 32)),
            Some(link) => {
                links.add_pair(INTERFACE, link, host.as_raw_fd())?;
                for address in addresses {
                    links.add_address(INTERFACE, address, BLOCK_PREFIX)?;
                }
                links.up(INTERFACE)?;
                links.add_default_route(plan.block.gateway())
            }
        }
    })?;
    if let Some(link) = &plan.link {
        let mut links = Links::open()?;
        links.add_address(link, plan.block.gateway(), BLOCK_PREFIX)?;
        links.up(link)?;
    }
    Ok(())
}

/// Calls `inside` on a thread of its own, in a network of its own.
fn in_new_network(inside: impl FnOnce() -> io::Result<()> + Send) -> io::Result<()> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            regatta_agent::namespaces::enter_new_network().map_err(io::Error::other)?;
            inside()
        });
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread has failed")))
    })
}

/// Lets go of a network. It is gone when its last process is.
pub(super) fn unbind(file: &Path) {
    while is_bound(file) {
        if let Err(error) = unmount(file, UnmountFlags::DETACH) {
            tracing::warn!(%error, file = %file.display(), "a network namespace cannot be let go");
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::address;
    use std::process::Command;

    fn inside(file: &Path, args: &[&str]) -> String {
        let mut command = Command::new("nsenter");
        let output = command.arg(format!("--net={}", file.display())).args(args).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    #[test]
    fn a_network_is_made_and_let_go() {
        if !can_be_made() {
            println!("skipped: network namespaces need root");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let block = address::choose_range(&[]).unwrap().block(1_000);
        for link in [None, Some("rgunit1000".to_owned())] {
            let file = dir.path().join("ns");
            make(&file, &Plan { block, slots: 2, link: link.clone() }).unwrap();
            assert!(is_bound(&file));
            let addresses = inside(&file, &["ip", "-4", "-o", "address"]);
            assert!(addresses.contains(&format!("{}/", block.slot(1))), "{addresses}");
            assert!(addresses.contains("127.0.0.1/8"), "{addresses}");
            let route = inside(&file, &["ip", "route"]);
            assert_eq!(
                route.contains(&format!("default via {}", block.gateway())),
                link.is_some(),
                "{route}"
            );
            unbind(&file);
            assert!(!is_bound(&file));
        }
    }
}
