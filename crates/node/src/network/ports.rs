//! A port on the host's network for one attempt of one job.

use regatta_types::Epoch;
use regatta_types::seed::Seed;
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};

/// First port that is given: above well-known services, below those that the kernel gives to outgoing connections.
const PORT_FIRST: u16 = 20_000;
/// How many ports there are to give.
const PORTS: u16 = 10_000;

/// A port that no other attempt has and that nobody listens on now. Each attempt begins to look at a place of its own, so
/// that an old rank that is still about to die does not meet the next attempt.
pub(super) fn find(key: &str, epoch: Epoch, taken: &BTreeSet<u16>) -> Option<u16> {
    candidates(key, epoch)
        .find(|port| !taken.contains(port) && TcpListener::bind((Ipv4Addr::UNSPECIFIED, *port)).is_ok())
}

fn candidates(key: &str, epoch: Epoch) -> impl Iterator<Item = u16> {
    let first = u16::try_from(Seed(epoch.0).child(key).0 % u64::from(PORTS)).unwrap_or(0);
    (0..PORTS).map(move |n| PORT_FIRST + (first + n) % PORTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_in_use_is_passed_over() {
        let all: Vec<u16> = candidates("job", Epoch(1)).collect();
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), usize::from(PORTS));
        assert!(all.iter().all(|port| (PORT_FIRST..PORT_FIRST + PORTS).contains(port)));
        let first = find("job", Epoch(1), &BTreeSet::new()).unwrap();
        assert_ne!(find("job", Epoch(1), &BTreeSet::from([first])), Some(first));
        let _listener = TcpListener::bind((Ipv4Addr::LOCALHOST, first)).unwrap();
        assert_ne!(find("job", Epoch(1), &BTreeSet::new()), Some(first));
        assert_ne!(candidates("job", Epoch(2)).next(), candidates("job", Epoch(1)).next());
    }
}
