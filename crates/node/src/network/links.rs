//! Interfaces, addresses and routes of the calling thread's network, by netlink.

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily as SocketFamily, SocketFlags, SocketType, socket_with};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{OwnedFd, RawFd};

/// Largest answer that is expected, in bytes.
const ANSWER_BYTES_MAX: usize = 16 * 1024;
/// The main table of routes.
const MAIN_TABLE: u8 = 254;

/// A line to the kernel about one network.
pub(super) struct Links {
    socket: Socket,
    /// For looking up names: it belongs to the same network.
    lookup: OwnedFd,
    sequence: u32,
}

impl Links {
    pub(super) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        let lookup = socket_with(SocketFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        Ok(Self { socket, lookup, sequence: 0 })
    }

    /// Switches an interface on.
    pub(super) fn up(&mut self, name: &str) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = name_to_index(&self.lookup, name)?;
        message.header.flags = LinkFlags::Up;
        message.header.change_mask = LinkFlags::Up;
        self.ask(RouteNetlinkMessage::SetLink(message), 0)
    }

    /// Makes a pair of interfaces: `name` here, `peer` in the network of the descriptor.
    pub(super) fn add_pair(&mut self, name: &str, peer: &str, peer_network: RawFd) -> io::Result<()> {
        let mut other = LinkMessage::default();
        other.attributes = vec![LinkAttribute::IfName(peer.to_owned()), LinkAttribute::NetNsFd(peer_network)];
        let mut message = LinkMessage::default();
        message.attributes = vec![
            LinkAttribute::IfName(name.to_owned()),
            LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Veth),
                LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(other))),
            ]),
        ];
        self.ask(RouteNetlinkMessage::NewLink(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Gives an interface an address.
    pub(super) fn add_address(&mut self, name: &str, address: Ipv4Addr, prefix: u8) -> io::Result<()> {
        let mut message = AddressMessage::default();
        message.header.family = AddressFamily::Inet;
        message.header.prefix_len = prefix;
        message.header.index = name_to_index(&self.lookup, name)?;
        let address = IpAddr::V4(address);
        message.attributes = vec![AddressAttribute::Local(address), AddressAttribute::Address(address)];
        self.ask(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Sends everything else to this address.
    pub(super) fn add_default_route(&mut self, gateway: Ipv4Addr) -> io::Result<()> {
        let mut message = RouteMessage::default();
        message.header.address_family = AddressFamily::Inet;
        message.header.table = MAIN_TABLE;
        message.header.protocol = RouteProtocol::Static;
        message.header.scope = RouteScope::Universe;
        message.header.kind = RouteType::Unicast;
        message.attributes = vec![RouteAttribute::Gateway(RouteAddress::Inet(gateway))];
        self.ask(RouteNetlinkMessage::NewRoute(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Sends one request and waits for the kernel's yes or no.
    fn ask(&mut self, request: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.sequence += 1;
        let mut message = NetlinkMessage::from(request);
        message.header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
        message.header.sequence_number = self.sequence;
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        let mut answer = Vec::with_capacity(ANSWER_BYTES_MAX);
        self.socket.recv(&mut answer, 0)?;
        let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer).map_err(io::Error::other)?;
        match answer.payload {
            NetlinkPayload::Error(error) => match error.code {
                None => Ok(()),
                Some(_) => Err(error.to_io()),
            },
            other => Err(io::Error::other(format!("unexpected answer of the kernel: {other:?}"))),
        }
    }
}
