//! Messages of the kernel: dumps, bounded by [`Limits`], and parsed.
//!
//! The messages are read by `netlink-packet-route`. One that it can't read is counted and left out:
//! a newer kernel may have messages that it does not know.

use crate::contents::{Address, Contents, Device, DeviceKind, Hop, LimitExceeded, Limits, Outer, Route, RouteKind};
use crate::prefix::Prefix;
use netlink_packet_core::{NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::RouteNetlinkMessage as Message;
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{
    GreIOFlags, InfoData, InfoGre, InfoIpTunnel, InfoKind, InfoVlan, InfoVxlan, LinkAttribute, LinkFlags, LinkInfo,
    LinkLayerType, LinkMessage, VlanProtocol,
};
use netlink_packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteMetric, RouteNextHopFlags, RouteType, RouteVia,
};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;
use std::time::Duration;
use towpath_sys::poll::wait_readable;
use towpath_sys::route_socket::RouteSocket;
use towpath_wire::ethernet::{Mac, ethertype};

/// Bytes of one call: the kernel fills at most 32 KiB.
pub(crate) const BUFFER: usize = 1 << 16;
/// Time limit of an answer of the kernel.
const ANSWER: Duration = Duration::from_secs(10);
/// Dumps in a row that changes interrupted, before the last one is taken as it is.
const INTERRUPTED: usize = 4;

/// The messages in what was received; `None` for one that can't be read.
pub(crate) fn messages(received: &[u8]) -> impl Iterator<Item = Option<NetlinkMessage<Message>>> {
    let mut rest = received;
    std::iter::from_fn(move || {
        let len = u32::from_ne_bytes(*rest.first_chunk()?) as usize;
        // A length that reaches beyond the end, or not over its own header, ends all of it.
        let message = rest.get(..len).filter(|message| message.len() >= 16)?;
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(NetlinkMessage::deserialize(message).ok())
    })
}

/// Reads all links, addresses, routes and neighbours.
pub(crate) fn dump(socket: &RouteSocket, limits: &Limits) -> io::Result<Contents> {
    let mut contents = Contents::default();
    for wanted in [
        Message::GetLink(LinkMessage::default()),
        Message::GetAddress(AddressMessage::default()),
        Message::GetRoute(RouteMessage::default()),
        Message::GetNeighbour(NeighbourMessage::default()),
    ] {
        for attempt in 1..=INTERRUPTED {
            // What an interrupted dump brought is replaced by the next one.
            match wanted {
                Message::GetLink(_) => contents.devices.clear(),
                Message::GetAddress(_) => contents.addresses.clear(),
                Message::GetRoute(_) => contents.routes.clear(),
                _ => contents.neighbours.clear(),
            }
            if dump_one(socket, &wanted, &mut contents, limits)? || attempt == INTERRUPTED {
                break;
            }
        }
    }
    Ok(contents)
}

/// One dump; returns whether it is consistent.
fn dump_one(socket: &RouteSocket, wanted: &Message, into: &mut Contents, limits: &Limits) -> io::Result<bool> {
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    let mut request = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(wanted.clone()));
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    socket.send(&bytes)?;
    let (mut buffer, mut consistent) = (vec![0; BUFFER], true);
    loop {
        if !wait_readable(socket.as_fd(), Some(ANSWER))? {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let Some(len) = socket.receive(&mut buffer)? else { continue };
        for message in messages(buffer.get(..len).unwrap_or_default()) {
            let Some(message) = message else {
                into.unreadable += 1;
                continue;
            };
            consistent &= message.header.flags & NLM_F_DUMP_INTR == 0;
            match message.payload {
                NetlinkPayload::Done(_) => return Ok(consistent),
                NetlinkPayload::Error(error) => {
                    if let Some(code) = error.code {
                        return Err(io::Error::from_raw_os_error(code.get().saturating_neg()));
                    }
                }
                NetlinkPayload::InnerMessage(message) => into.add(message, limits).map_err(io::Error::other)?,
                _ => {}
            }
        }
    }
}

impl Contents {
    /// Adds the contents of a message of a dump.
    pub(crate) fn add(&mut self, message: Message, limits: &Limits) -> Result<(), LimitExceeded> {
        let check = |n: usize, limit, kind| if n < limit { Ok(()) } else { Err(LimitExceeded { kind, limit }) };
        match message {
            Message::NewLink(link) => {
                check(self.devices.len(), limits.devices, "devices")?;
                self.devices.insert(link.header.index, device(&link));
            }
            Message::NewAddress(message) => {
                check(self.addresses.len(), limits.addresses, "addresses")?;
                self.addresses.extend(address(&message));
            }
            Message::NewRoute(message) => {
                check(self.routes.len(), limits.routes, "routes")?;
                self.routes.extend(route(&message));
            }
            Message::NewNeighbour(message) => {
                check(self.neighbours.len(), limits.neighbours, "neighbours")?;
                if let Some((key, Some(mac))) = neighbour(&message) {
                    self.neighbours.insert(key, mac);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// A neighbour, and its address if that is known.
pub(crate) fn neighbour(message: &NeighbourMessage) -> Option<((u32, IpAddr), Option<Mac>)> {
    let (mut address, mut mac) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => address = Some(IpAddr::V4(*v4)),
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => address = Some(IpAddr::V6(*v6)),
            NeighbourAttribute::LinkLayerAddress(bytes) => mac = bytes.as_slice().try_into().ok(),
            _ => {}
        }
    }
    use NeighbourState::{Delay, Noarp, Permanent, Probe, Reachable, Stale};
    let known = matches!(message.header.state, Reachable | Stale | Delay | Probe | Permanent | Noarp);
    Some(((message.header.ifindex, address?), mac.filter(|_| known)))
}

fn address(message: &AddressMessage) -> Option<Address> {
    let (mut local, mut address) = (None, None);
    let header = &message.header;
    let has = |flag: AddressHeaderFlags| header.flags.contains(flag);
    let mut flags = AddressFlags::empty();
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(at) => local = Some(*at),
            AddressAttribute::Address(at) => address = Some(*at),
            AddressAttribute::Flags(bits) => flags = *bits,
            _ => {}
        }
    }
    // Of a point-to-point interface, `Address` is the other end.
    let own = local.or(address)?;
    Some(Address {
        device: header.index,
        address: own,
        prefix_len: header.prefix_len,
        prefix: Prefix::new(address.unwrap_or(own), header.prefix_len)?,
        scope: header.scope.into(),
        secondary: own.is_ipv4() && has(AddressHeaderFlags::Secondary),
        deprecated: has(AddressHeaderFlags::Deprecated),
        tentative: (has(AddressHeaderFlags::Tentative) && !flags.contains(AddressFlags::Optimistic))
            || has(AddressHeaderFlags::Dadfailed),
    })
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(v4) => Some(IpAddr::V4(*v4)),
        RouteAddress::Inet6(v6) => Some(IpAddr::V6(*v6)),
        _ => None,
    }
}

/// A route; `None` for those that no packet of ours takes: of one TOS, of one source, cached.
fn route(message: &RouteMessage) -> Option<Route> {
    let header = &message.header;
    let v4 = header.address_family == AddressFamily::Inet;
    let known = v4 || header.address_family == AddressFamily::Inet6;
    if !known || header.tos != 0 || header.source_prefix_length != 0 || header.flags.contains(RouteFlags::Cloned) {
        return None;
    }
    let mut kind = match header.kind {
        RouteType::Unicast => RouteKind::Unicast,
        RouteType::Local | RouteType::Anycast => RouteKind::Local,
        RouteType::Broadcast => RouteKind::Broadcast,
        RouteType::Multicast => RouteKind::Multicast,
        RouteType::BlackHole => RouteKind::Blackhole,
        RouteType::Unreachable => RouteKind::Unreachable,
        RouteType::Prohibit => RouteKind::Prohibit,
        RouteType::Throw => RouteKind::Throw,
        _ => RouteKind::Unsupported("a route of another type"),
    };
    let any = if v4 { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) };
    let mut destination = any;
    let (mut table, mut metric, mut source, mut mtu) = (u32::from(header.table), 0, None, None);
    let dead = header.flags.contains(RouteFlags::Dead);
    let mut single = Hop { device: 0, gateway: None, source: None, weight: 1, dead };
    let mut hops = Vec::new();
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(address) => destination = ip(address)?,
            RouteAttribute::Table(number) => table = *number,
            RouteAttribute::Priority(priority) => metric = *priority,
            RouteAttribute::PrefSource(address) => source = ip(address),
            RouteAttribute::Metrics(metrics) => {
                mtu = metrics.iter().find_map(|m| if let RouteMetric::Mtu(mtu) = m { Some(*mtu) } else { None });
            }
            RouteAttribute::MultiPath(ways) => {
                for way in ways {
                    let dead = way.flags.contains(RouteNextHopFlags::Dead);
                    let (device, weight) = (way.interface_index, u32::from(way.hops) + 1);
                    let mut hop = Hop { device, gateway: None, source: None, weight, dead };
                    way.attributes.iter().for_each(|attribute| way_attribute(attribute, &mut hop, &mut kind));
                    hops.push(hop);
                }
            }
            other => way_attribute(other, &mut single, &mut kind),
        }
    }
    if hops.is_empty() && single.device != 0 {
        hops.push(single);
    }
    let prefix = Prefix::new(destination, header.destination_prefix_length)?;
    let scope = header.scope.into();
    Some(Route { v4, table, prefix, metric, kind, scope, source, mtu: mtu.filter(|mtu| *mtu > 0), hops })
}

/// An attribute of one way of a route.
fn way_attribute(attribute: &RouteAttribute, hop: &mut Hop, kind: &mut RouteKind) {
    match attribute {
        RouteAttribute::Oif(device) => hop.device = *device,
        RouteAttribute::Gateway(address) => hop.gateway = ip(address),
        RouteAttribute::Via(RouteVia::Inet(v4)) => hop.gateway = Some(IpAddr::V4(*v4)),
        RouteAttribute::Via(RouteVia::Inet6(v6)) => hop.gateway = Some(IpAddr::V6(*v6)),
        RouteAttribute::EncapType(_) | RouteAttribute::Encap(_) => {
            *kind = RouteKind::Unsupported("a route with an encapsulation of its own");
        }
        _ => {}
    }
}

fn device(message: &LinkMessage) -> Device {
    let (mut mac, mut mtu, mut lower) = (None, 1500, 0);
    let (mut info, mut data) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::Address(bytes) => mac = bytes.as_slice().try_into().ok(),
            LinkAttribute::Mtu(bytes) => mtu = *bytes,
            LinkAttribute::Link(index) => lower = *index,
            LinkAttribute::LinkInfo(list) => {
                for part in list {
                    match part {
                        LinkInfo::Kind(kind) => info = Some(kind),
                        LinkInfo::Data(found) => data = Some(found),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    let ethernet = message.header.link_layer_type == LinkLayerType::Ether && mac.is_some();
    let plain = if ethernet { DeviceKind::Ethernet } else { DeviceKind::Unsupported("an interface without Ethernet") };
    let kind = match (info, data) {
        (Some(InfoKind::Vlan), Some(InfoData::Vlan(data))) => vlan(data, lower),
        (Some(InfoKind::IpIp), Some(InfoData::IpTunnel(data))) => ip_tunnel(data, false),
        (Some(InfoKind::SitTun), Some(InfoData::IpTunnel(data))) => ip_tunnel(data, true),
        (Some(InfoKind::GreTun), Some(InfoData::GreTun(data))) => gre(data),
        (Some(InfoKind::Vxlan), Some(InfoData::Vxlan(data))) => vxlan(data),
        // They carry Ethernet, and put other headers around it.
        (Some(InfoKind::GreTap | InfoKind::GreTap6 | InfoKind::Geneve | InfoKind::ErSpan | InfoKind::MacSec), _) => {
            DeviceKind::Unsupported("a tunnel of this kind")
        }
        _ => plain,
    };
    let up = message.header.flags.contains(LinkFlags::Up);
    Device { kind, mac: mac.unwrap_or_default(), mtu, up }
}

fn vlan(data: &[InfoVlan], lower: u32) -> DeviceKind {
    let (mut id, mut tpid) = (None, ethertype::VLAN);
    for part in data {
        match part {
            InfoVlan::Id(vid) => id = Some(*vid),
            InfoVlan::Protocol(VlanProtocol::Ieee8021Ad) => tpid = ethertype::QINQ,
            _ => {}
        }
    }
    id.map_or(DeviceKind::Unsupported("a VLAN without a number"), |vid| DeviceKind::Vlan { lower, tpid, vid })
}

/// An outer header without addresses.
const OUTER: Outer = Outer {
    local: Ipv4Addr::UNSPECIFIED,
    remote: Ipv4Addr::UNSPECIFIED,
    ttl: 0,
    tos: 0,
    dont_fragment: true,
    lower: 0,
};

/// The type of service of the outer header: 1 stands for that of the packet inside, which is 0.
fn outer_tos(tos: u8) -> u8 {
    if tos == 1 { 0 } else { tos }
}

/// A tunnel with one remote end; others choose it packet by packet.
fn to_one(outer: Outer, kind: DeviceKind) -> DeviceKind {
    if outer.remote.is_unspecified() || outer.remote.is_multicast() {
        return DeviceKind::Unsupported("a tunnel without one remote end");
    }
    kind
}

fn ip_tunnel(data: &[InfoIpTunnel], v6: bool) -> DeviceKind {
    let mut outer = OUTER;
    for part in data {
        match part {
            InfoIpTunnel::Local(IpAddr::V4(v4)) => outer.local = *v4,
            InfoIpTunnel::Remote(IpAddr::V4(v4)) => outer.remote = *v4,
            InfoIpTunnel::Ttl(ttl) => outer.ttl = *ttl,
            InfoIpTunnel::Tos(tos) => outer.tos = outer_tos(*tos),
            InfoIpTunnel::PMtuDisc(on) => outer.dont_fragment = *on,
            InfoIpTunnel::Link(index) => outer.lower = *index,
            _ => {}
        }
    }
    to_one(outer, DeviceKind::IpIp { v6, outer })
}

fn gre(data: &[InfoGre]) -> DeviceKind {
    let (mut outer, mut key, mut flags) = (OUTER, 0, GreIOFlags::empty());
    for part in data {
        match part {
            InfoGre::Local(v4) => outer.local = *v4,
            InfoGre::Remote(v4) => outer.remote = *v4,
            InfoGre::Ttl(ttl) => outer.ttl = *ttl,
            InfoGre::Tos(tos) => outer.tos = outer_tos(*tos),
            InfoGre::PathMTUDiscovery(on) => outer.dont_fragment = *on,
            InfoGre::Link(index) => outer.lower = *index,
            InfoGre::OKey(number) => key = *number,
            InfoGre::OFlags(bits) => flags = *bits,
            _ => {}
        }
    }
    if flags.intersects(GreIOFlags::Checksum | GreIOFlags::Seq) {
        return DeviceKind::Unsupported("GRE with checksums or sequence numbers");
    }
    let key = flags.contains(GreIOFlags::Key).then_some(key);
    to_one(outer, DeviceKind::Gre { key, outer })
}

fn vxlan(data: &[InfoVxlan]) -> DeviceKind {
    let (mut outer, mut vni, mut port) = (Outer { dont_fragment: false, ..OUTER }, 0, towpath_wire::vxlan::PORT);
    for part in data {
        match part {
            InfoVxlan::Id(id) => vni = *id,
            InfoVxlan::Group(v4) => outer.remote = *v4,
            InfoVxlan::Local(v4) => outer.local = *v4,
            InfoVxlan::Link(index) => outer.lower = *index,
            InfoVxlan::Ttl(ttl) => outer.ttl = *ttl,
            InfoVxlan::Tos(tos) => outer.tos = outer_tos(*tos),
            InfoVxlan::Port(number) => port = *number,
            InfoVxlan::Gbp | InfoVxlan::Gpe | InfoVxlan::CollectMetadata(true) => {
                return DeviceKind::Unsupported("VXLAN with extensions");
            }
            _ => {}
        }
    }
    to_one(outer, DeviceKind::Vxlan { vni, port, outer })
}

#[cfg(test)]
mod tests;
