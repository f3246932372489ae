//! Addresses of job networks. Pure, but for [`routes`].

use regatta_types::seed::Seed;
use std::collections::BTreeSet;
use std::net::Ipv4Addr;

/// Most slots of one job that have addresses.
pub(super) const SLOTS_MAX: usize = 1_000;
/// Bits of a block's prefix.
pub(super) const BLOCK_PREFIX: u8 = 22;
const RANGE_PREFIX: u8 = 12;
const BLOCK_ADDRESSES: u32 = 1 << (32 - BLOCK_PREFIX);
const BLOCKS: u32 = 1 << (BLOCK_PREFIX - RANGE_PREFIX);
/// Ranges to choose from, each `/12`: the first that the host does not use.
const RANGES: [Ipv4Addr; 3] =
    [Ipv4Addr::new(10, 208, 0, 0), Ipv4Addr::new(100, 80, 0, 0), Ipv4Addr::new(172, 16, 0, 0)];
/// How names of our interfaces on the host begin.
pub(super) const LINK_PREFIX: &str = "rg";

/// A route of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Route {
    pub(super) interface: String,
    pub(super) destination: u32,
    pub(super) mask: u32,
}

/// The routes of the host; none that can be read, none.
pub(super) fn routes() -> Vec<Route> {
    parse_routes(&std::fs::read_to_string("/proc/net/route").unwrap_or_default())
}

fn parse_routes(text: &str) -> Vec<Route> {
    let parse = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // The kernel writes addresses as they lie in memory.
        let number = |field: &str| u32::from_str_radix(field, 16).ok().map(u32::from_be);
        Some(Route {
            interface: (*fields.first()?).to_owned(),
            destination: number(fields.get(1)?)?,
            mask: number(fields.get(7)?)?,
        })
    };
    text.lines().skip(1).filter_map(parse).collect()
}

pub(super) fn has_default_route(routes: &[Route]) -> bool {
    routes.iter().any(|route| route.destination == 0 && route.mask == 0)
}

/// The addresses of all job networks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    base: u32,
}

/// The addresses of one job network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Block {
    base: u32,
}

/// The first range that overlaps no route of the host, other than the default one and our own.
pub(super) fn choose_range(routes: &[Route]) -> Option<Range> {
    let mask = u32::MAX << (32 - u32::from(RANGE_PREFIX));
    let is_free = |base: u32| {
        routes.iter().filter(|route| route.mask != 0 && !route.interface.starts_with(LINK_PREFIX)).all(
            |route| {
                let common = route.mask & mask;
                route.destination & common != base & common
            },
        )
    };
    RANGES.iter().map(|base| base.to_bits()).find(|base| is_free(*base)).map(|base| Range { base })
}

impl Range {
    /// As networks are written.
    pub(super) fn text(self) -> String {
        format!("{}/{RANGE_PREFIX}", Ipv4Addr::from_bits(self.base))
    }

    pub(super) const fn block(self, index: u32) -> Block {
        Block { base: self.base + index * BLOCK_ADDRESSES }
    }

    /// A block that nobody uses: not we, and no other daemon, whose networks are among the host's routes. Daemons begin
    /// to look at different places.
    pub(super) fn free_block(self, tag: &str, taken: &BTreeSet<u32>, routes: &[Route]) -> Option<u32> {
        let first = u32::try_from(Seed(0).child(tag).0 % u64::from(BLOCKS)).unwrap_or(0);
        let is_routed = |index: u32| routes.iter().any(|route| route.destination == self.block(index).base);
        (0..BLOCKS).map(|n| (first + n) % BLOCKS).find(|index| !taken.contains(index) && !is_routed(*index))
    }
}

impl Block {
    /// The host's end of the way out.
    pub(super) const fn gateway(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.base + 1)
    }

    /// The address of a slot.
    pub(super) fn slot(self, slot: usize) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.base + 4 + u32::try_from(slot.min(SLOTS_MAX)).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ROUTES: &str = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
        eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
        eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";

    fn route(interface: &str, destination: Ipv4Addr, prefix: u32) -> Route {
        let mask = u32::MAX.checked_shl(32 - prefix).unwrap_or(0);
        Route { interface: interface.to_owned(), destination: destination.to_bits(), mask }
    }

    #[test]
    fn routes_are_read_as_the_kernel_writes_them() {
        let routes = parse_routes(ROUTES);
        assert_eq!(
            routes,
            [route("eth0", Ipv4Addr::UNSPECIFIED, 0), route("eth0", Ipv4Addr::new(192, 0, 2, 0), 24)]
        );
        assert!(has_default_route(&routes) && !has_default_route(&routes[1..]));
    }

    #[test]
    fn a_range_that_the_host_uses_is_passed_over() {
        let range = |routes: &[Route]| choose_range(routes).map(Range::text);
        let first = Some("10.208.0.0/12".to_owned());
        assert_eq!(range(&parse_routes(ROUTES)), first);
        assert_eq!(
            range(&[route("rg0a1b2c7", Ipv4Addr::new(10, 208, 4, 0), 22)]),
            first,
            "our own are no obstacle"
        );
        assert_eq!(range(&[route("vpn", Ipv4Addr::new(10, 0, 0, 0), 8)]), Some("100.80.0.0/12".to_owned()));
        assert_eq!(
            range(&[route("vpn", Ipv4Addr::new(10, 223, 9, 0), 24)]),
            Some("100.80.0.0/12".to_owned())
        );
        let all = [Ipv4Addr::new(10, 0, 0, 0), Ipv4Addr::new(100, 0, 0, 0), Ipv4Addr::new(172, 0, 0, 0)];
        let all: Vec<Route> = all.iter().map(|base| route("x", *base, 8)).collect();
        assert_eq!(range(&all), None);
    }

    #[test]
    fn blocks_do_not_touch() {
        let range = choose_range(&[]).unwrap();
        let block = range.block(1);
        assert_eq!(block.gateway(), Ipv4Addr::new(10, 208, 4, 1));
        assert_eq!(block.slot(0), Ipv4Addr::new(10, 208, 4, 4));
        assert!(block.slot(SLOTS_MAX - 1) < range.block(2).gateway());
    }

    proptest! {
        #[test]
        fn a_free_block_is_free(taken in proptest::collection::btree_set(0_u32..BLOCKS, 0..40), routed in 0_u32..BLOCKS) {
            let range = Range { base: RANGES[0].to_bits() };
            let routes = [Route { interface: "rg1".to_owned(), destination: range.block(routed).base, mask: 0 }];
            let index = range.free_block("tag", &taken, &routes).unwrap();
            prop_assert!(!taken.contains(&index) && index != routed && index < BLOCKS);
        }
    }
}
