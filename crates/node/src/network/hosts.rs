//! Names: the hosts file of a job, and whether the host's resolver can be used. Pure, but for [`usable_resolv_conf`].

use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

const RESOLV_CONF: &str = "/etc/resolv.conf";
/// Where systemd keeps the servers that its own stub asks.
const RESOLV_CONF_SYSTEMD: &str = "/run/systemd/resolve/resolv.conf";

/// A name of a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) address: IpAddr,
    /// In full, such as `digits-worker-0.digits`.
    pub(crate) host: String,
}

impl Name {
    pub(crate) fn new(address: IpAddr, host: &str) -> Self {
        Self { address, host: host.to_owned() }
    }
}

/// The hosts file of a job: its slots by full and short name, and what the host's file says of the rest of the world.
pub(crate) fn hosts_file(names: &[Name], host_file: &str) -> String {
    let mut text = String::from("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n");
    for name in names {
        let short = name.host.split('.').next().unwrap_or(&name.host);
        // Writing to a string cannot fail.
        let _ = match short {
            short if short == name.host => writeln!(text, "{}\t{short}", name.address),
            short => writeln!(text, "{}\t{}\t{short}", name.address, name.host),
        };
    }
    for line in host_file.lines() {
        let entry = line.split('#').next().unwrap_or_default();
        let address = entry.split_whitespace().next().and_then(|address| address.parse::<IpAddr>().ok());
        if address.is_some_and(|address| !address.is_loopback()) {
            let _ = writeln!(text, "{}", entry.trim_end());
        }
    }
    text
}

/// Whether the host's resolver can be used from another network: `Ok(None)` as it is, `Ok(Some(…))` by another file,
/// an error when it cannot.
pub(super) fn usable_resolv_conf() -> Result<Option<PathBuf>, ()> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    match choose(&read(RESOLV_CONF), &read(RESOLV_CONF_SYSTEMD)) {
        Choice::AsItIs => Ok(None),
        Choice::Systemd => Ok(Some(Path::new(RESOLV_CONF_SYSTEMD).to_owned())),
        Choice::None => Err(()),
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Choice {
    AsItIs,
    Systemd,
    None,
}

fn choose(resolv_conf: &str, systemd: &str) -> Choice {
    if has_server(resolv_conf) {
        Choice::AsItIs
    } else if has_server(systemd) {
        Choice::Systemd
    } else {
        Choice::None
    }
}

/// Whether it names a server that is not on the loopback interface, which every network has for itself.
fn has_server(resolv_conf: &str) -> bool {
    resolv_conf.lines().any(|line| {
        let mut words = line.split_whitespace();
        words.next() == Some("nameserver")
            && words
                .next()
                .and_then(|address| address.split('%').next()?.parse::<IpAddr>().ok())
                .is_some_and(|a| !a.is_loopback())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_have_two_names_and_the_world_keeps_its_own() {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let names =
            [Name::new(address("10.208.0.4"), "job-worker-0.job"), Name::new(address("10.208.0.5"), "alone")];
        let host = "127.0.0.1 localhost\n127.0.1.1 box\n# comment\n192.0.2.7 registry.corp registry # ours\n::1 localhost\nnonsense\n";
        assert_eq!(
            hosts_file(&names, host),
            "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n\
             10.208.0.4\tjob-worker-0.job\tjob-worker-0\n10.208.0.5\talone\n\
             192.0.2.7 registry.corp registry\n"
        );
    }

    #[test]
    fn a_resolver_on_loopback_is_of_no_use() {
        for (resolv_conf, systemd, expected) in [
            ("nameserver 192.0.2.53\n", "", Choice::AsItIs),
            ("nameserver 127.0.0.53\nnameserver 192.0.2.53\n", "", Choice::AsItIs),
            ("nameserver 127.0.0.53\n", "nameserver 192.0.2.53\n", Choice::Systemd),
            ("nameserver ::1\n", "", Choice::None),
            ("nameserver fe80::1%eth0\n", "", Choice::AsItIs),
            ("search example\n", "", Choice::None),
        ] {
            assert_eq!(choose(resolv_conf, systemd), expected, "{resolv_conf:?} {systemd:?}");
        }
    }
}
