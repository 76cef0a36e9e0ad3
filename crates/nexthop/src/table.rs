//! The snapshot that is looked up.
//!
//! ```text
//!   dst ─ local, main, default: longest prefix ─► route ─► hop: device, gateway ─► source
//!                                                            │
//!     VLAN: a tag, and the device below ◄────────────────────┤
//!     GRE, IP in IP: outer header, then the route to the remote
//!     VXLAN: neighbour inside, outer header, then the route to the remote
//!     Ethernet: the neighbour's address ─► NextHop
//! ```

use crate::contents::{Address, Contents, Device, DeviceKind, Hop, Neighbours, Route, RouteKind};
use crate::prefix::number;
use crate::source;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use towpath_wire::emit::{Ip, Link, Template, Tunnel, Udp, UdpChecksum};
use towpath_wire::ethernet::{self, Mac};
use towpath_wire::lpm::Lpm;
use towpath_wire::vlan::{Tag, Tci};
use towpath_wire::{Error, ipv4};

/// Tables in the order of the default rules (`ip rule`): local, main, default.
const TABLES_V4: [u32; 3] = [255, 254, 253];
/// Likewise (`ip -6 rule`): local, main.
const TABLES_V6: [u32; 2] = [255, 254];
/// Most VLAN devices on each other: the tags that a frame can have.
const MAX_TAGS: usize = 2;
/// Ports of encapsulated packets (RFC 7348, section 4): dynamic ones.
const FIRST_SOURCE_PORT: u16 = 0xc000;

/// Why there is no next hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unreachable {
    /// No route.
    #[error("no route")]
    NoRoute,
    /// An address of this machine, which no frame leaves for.
    #[error("an address of this machine")]
    Local,
    /// A route that refuses: `blackhole`, `unreachable`, `prohibit`.
    #[error("the route refuses: {0}")]
    Refused(&'static str),
    /// The interface of the route is down or was deleted.
    #[error("interface {device} is down")]
    Down {
        /// Its index.
        device: u32,
    },
    /// No address to send from.
    #[error("no source address")]
    NoSource,
    /// The address of the link layer is not known: [`NextHops::resolve`](crate::NextHops::resolve)
    /// has the kernel find it.
    #[error("no neighbour {address} on interface {device}")]
    NoNeighbour {
        /// Index of the interface.
        device: u32,
        /// The neighbour: the gateway, or the destination itself.
        address: IpAddr,
    },
    /// A route or an interface with something that is not done here.
    #[error("not supported: {0}")]
    Unsupported(&'static str),
}

/// A route to a destination, without the link layer: what `ip route get` shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Path {
    /// Index of the interface: also of a VLAN or a tunnel.
    pub device: u32,
    /// The gateway, if there is one.
    pub gateway: Option<IpAddr>,
    /// The source address.
    pub source: IpAddr,
    /// Longest IP packet.
    pub mtu: u32,
}

/// What comes in front of a packet, and the interface to send it on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct NextHop {
    /// Index of the interface below all VLANs and tunnels.
    pub device: u32,
    /// The (outer) Ethernet header.
    pub link: Link,
    /// The headers of a tunnel.
    pub tunnel: Option<Tunnel>,
    /// The source address of the packet.
    pub source: IpAddr,
    /// Longest IP packet, without what comes in front of it.
    pub mtu: u32,
}

impl NextHop {
    /// The headers of UDP datagrams to `dst` by this hop.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for IPv6 without a checksum, and if `dst` has another IP version than
    /// the hop's source.
    pub fn template(&self, dst: IpAddr, udp: Udp, checksum: UdpChecksum) -> Result<Template, Error> {
        let ip = match (self.source, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Ip::v4(src, dst),
            (IpAddr::V6(src), IpAddr::V6(dst)) => Ip::v6(src, dst),
            _ => return Err(Error::Unsupported),
        };
        Template::udp(Some(self.link), self.tunnel, ip, udp, checksum)
    }
}

/// Routes, addresses and devices.
#[derive(Debug, Default)]
pub(crate) struct Fib {
    pub(crate) devices: HashMap<u32, Device>,
    pub(crate) addresses: Vec<Address>,
    pub(crate) routes: Vec<Route>,
    /// Those that are looked up: of the default table, then of main, then of local.
    pub(crate) used: Vec<u32>,
    v4: [Lpm<u32>; TABLES_V4.len()],
    v6: [Lpm<u128>; TABLES_V6.len()],
    unreadable: u64,
}

impl Fib {
    /// Prepares everything that does not depend on a destination.
    pub(crate) fn new(contents: Contents) -> (Fib, Neighbours) {
        let Contents { devices, addresses, mut routes, neighbours, unreadable } = contents;
        let is_usable = |hop: &Hop| !hop.dead && devices.get(&hop.device).is_some_and(|device| device.up);
        for route in &mut routes {
            // A route of several ways keeps those that work.
            if route.hops.iter().any(is_usable) {
                route.hops.retain(is_usable);
            }
            if route.v4 && route.source.is_none() {
                for hop in &mut route.hops {
                    hop.source = source::v4(&addresses, hop.device, hop.gateway, route.scope);
                }
            }
        }
        let best = |v4: bool, table: u32| {
            let mut best: HashMap<_, u32> = HashMap::new();
            for (at, route) in routes.iter().enumerate().filter(|(_, r)| r.v4 == v4 && r.table == table) {
                let index = at as u32;
                best.entry(route.prefix)
                    .and_modify(|known| {
                        // Of equal ones the kernel lists first the one that it uses.
                        if routes.get(*known as usize).is_some_and(|known| is_better(route, known, is_usable)) {
                            *known = index;
                        }
                    })
                    .or_insert(index);
            }
            best
        };
        let all = |v4: bool, tables: &[u32]| {
            let of = |table: &u32| best(v4, *table).into_values();
            tables.iter().rev().flat_map(of).collect::<Vec<u32>>()
        };
        let used = [all(true, &TABLES_V4), all(false, &TABLES_V6)].concat();
        let v4 = TABLES_V4.map(|table| {
            Lpm::new(best(true, table).into_iter().map(|(at, route)| (at.first as u32, at.len(32), route)))
        });
        let v6 = TABLES_V6
            .map(|table| Lpm::new(best(false, table).into_iter().map(|(at, route)| (at.first, at.len(128), route))));
        (Fib { v4, v6, used, devices, addresses, routes, unreadable }, neighbours)
    }
}

/// Whether a route goes before another one to the same prefix: it works, or its metric is lower.
fn is_better(route: &Route, known: &Route, is_usable: impl Fn(&Hop) -> bool) -> bool {
    let rank = |route: &Route| (!route.hops.is_empty() && !route.hops.iter().any(&is_usable), route.metric);
    rank(route) < rank(known)
}

/// A snapshot of the kernel's routes and neighbours.
#[derive(Debug, Default)]
pub struct Table {
    pub(crate) fib: Arc<Fib>,
    pub(crate) neighbours: Neighbours,
    pub(crate) generation: u64,
}

impl Table {
    /// The number of the snapshot: it grows with each change.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The number of routes.
    pub fn routes(&self) -> usize {
        self.fib.routes.len()
    }

    /// The number of neighbours whose address is known.
    pub fn neighbours(&self) -> usize {
        self.neighbours.len()
    }

    /// Messages of the kernel that could not be read: their contents are missing here.
    pub fn unreadable(&self) -> u64 {
        self.fib.unreadable
    }

    /// The route to a destination, with the source address.
    ///
    /// # Errors
    /// [`Unreachable`], without [`NoNeighbour`](Unreachable::NoNeighbour).
    pub fn path(&self, dst: IpAddr) -> Result<Path, Unreachable> {
        let route = self.route(dst)?;
        let hop = choose(&route.hops, dst).ok_or(Unreachable::NoRoute)?;
        let device = self.device(hop.device)?;
        let source = match (route.source, dst) {
            (Some(source), _) => Some(source),
            (None, IpAddr::V4(_)) => hop.source.map(IpAddr::V4),
            (None, IpAddr::V6(dst)) => source::v6(&self.fib.addresses, hop.device, dst).map(IpAddr::V6),
        };
        let mtu = route.mtu.map_or(device.mtu, |mtu| mtu.min(device.mtu));
        let source = source.ok_or(Unreachable::NoSource)?;
        Ok(Path { device: hop.device, gateway: hop.gateway, source, mtu })
    }

    /// What comes in front of a packet to `dst`, and the interface to send it on. It takes no lock,
    /// allocates nothing and calls nothing.
    ///
    /// # Errors
    /// [`Unreachable`]: the reason why there is none.
    pub fn next_hop(&self, dst: IpAddr) -> Result<NextHop, Unreachable> {
        let path = self.path(dst)?;
        let device = self.device(path.device)?;
        let outer = match device.kind {
            DeviceKind::Ethernet | DeviceKind::Vlan { .. } => {
                let (device, link) = self.link(&path, dst)?;
                return Ok(NextHop { device, link, tunnel: None, source: path.source, mtu: path.mtu });
            }
            DeviceKind::IpIp { v6, .. } if v6 == dst.is_ipv4() => {
                return Err(Unreachable::Unsupported("an IP-in-IP tunnel of the other IP version"));
            }
            DeviceKind::IpIp { outer, .. } | DeviceKind::Gre { outer, .. } | DeviceKind::Vxlan { outer, .. } => outer,
            DeviceKind::Unsupported(why) => return Err(Unreachable::Unsupported(why)),
        };
        let remote = IpAddr::V4(outer.remote);
        let below = self.path(remote)?;
        if outer.lower != 0 && below.device != outer.lower {
            return Err(Unreachable::Unsupported("a tunnel that is bound to another interface than its route's"));
        }
        let (on, link) = self.link(&below, remote)?;
        let local = match below.source {
            _ if !outer.local.is_unspecified() => outer.local,
            IpAddr::V4(source) => source,
            IpAddr::V6(_) => return Err(Unreachable::NoSource),
        };
        let mut ip = Ip::v4(local, outer.remote);
        (ip.ttl, ip.tos) = (if outer.ttl == 0 { ip.ttl } else { outer.ttl }, outer.tos);
        ip.fragment = if outer.dont_fragment { ipv4::DONT_FRAGMENT } else { 0 };
        let tunnel = match device.kind {
            DeviceKind::Gre { key, .. } => Tunnel::Gre { ip, key },
            DeviceKind::Vxlan { vni, port, .. } => {
                // The interface carries Ethernet: its neighbour is inside.
                let inner = Link { dst: self.mac_of(&path, dst)?, src: device.mac, ..Link::default() };
                let udp = Udp { src_port: FIRST_SOURCE_PORT | (spread(dst) as u16 & 0x3fff), dst_port: port };
                Tunnel::Vxlan { ip, udp, vni, inner }
            }
            _ => Tunnel::IpIp { ip },
        };
        // An interface that is bound to no other one does not know what its tunnel leaves.
        let mtu = path.mtu.min(below.mtu.saturating_sub(tunnel.header_len() as u32));
        Ok(NextHop { device: on, link, tunnel: Some(tunnel), source: path.source, mtu })
    }

    fn device(&self, index: u32) -> Result<&Device, Unreachable> {
        self.fib.devices.get(&index).filter(|device| device.up).ok_or(Unreachable::Down { device: index })
    }

    fn route(&self, dst: IpAddr) -> Result<&Route, Unreachable> {
        let tables = if dst.is_ipv4() { TABLES_V4.len() } else { TABLES_V6.len() };
        for table in 0..tables {
            let at = match dst {
                IpAddr::V4(v4) => self.fib.v4[table].get(v4.into()),
                IpAddr::V6(v6) => self.fib.v6[table].get(v6.into()),
            };
            let Some(route) = at.and_then(|at| self.fib.routes.get(at as usize)) else { continue };
            return match route.kind {
                RouteKind::Throw => continue,
                RouteKind::Unicast | RouteKind::Multicast => Ok(route),
                RouteKind::Local => Err(Unreachable::Local),
                RouteKind::Broadcast => Err(Unreachable::Unsupported("a broadcast address")),
                RouteKind::Blackhole => Err(Unreachable::Refused("blackhole")),
                RouteKind::Unreachable => Err(Unreachable::Refused("unreachable")),
                RouteKind::Prohibit => Err(Unreachable::Refused("prohibit")),
                RouteKind::Unsupported(why) => Err(Unreachable::Unsupported(why)),
            };
        }
        Err(Unreachable::NoRoute)
    }

    /// The Ethernet address of the next hop on the path's own interface.
    fn mac_of(&self, path: &Path, dst: IpAddr) -> Result<Mac, Unreachable> {
        let address = path.gateway.unwrap_or(dst);
        if let Some(mac) = multicast_mac(address) {
            return Ok(mac);
        }
        let missing = Unreachable::NoNeighbour { device: path.device, address };
        self.neighbours.get(&(path.device, address)).copied().ok_or(missing)
    }

    /// The Ethernet header with its tags, and the interface below all VLANs.
    fn link(&self, path: &Path, dst: IpAddr) -> Result<(u32, Link), Unreachable> {
        let mut device = self.device(path.device)?;
        let mut link = Link { src: device.mac, ..Link::default() };
        let mut index = path.device;
        for _ in 0..=MAX_TAGS {
            match device.kind {
                DeviceKind::Ethernet => {
                    link.dst = self.mac_of(path, dst)?;
                    return Ok((index, link));
                }
                DeviceKind::Vlan { lower, tpid, vid } => {
                    // The tag of a lower device is the outer one.
                    if link.tags[1].tpid != 0 {
                        return Err(Unreachable::Unsupported("more than two VLAN tags"));
                    }
                    link.tags = [Tag { tpid, tci: Tci::new(0, false, vid) }, link.tags[0]];
                    index = lower;
                    device = self.device(lower)?;
                }
                DeviceKind::Unsupported(why) => return Err(Unreachable::Unsupported(why)),
                _ => return Err(Unreachable::Unsupported("a tunnel in a tunnel, or a VLAN on one")),
            }
        }
        Err(Unreachable::Unsupported("more than two VLAN tags"))
    }
}

/// The Ethernet address of a multicast group ([RFC 1112](https://www.rfc-editor.org/rfc/rfc1112),
/// [RFC 2464](https://www.rfc-editor.org/rfc/rfc2464)).
fn multicast_mac(address: IpAddr) -> Option<Mac> {
    match address {
        IpAddr::V4(v4) if v4.is_multicast() => {
            let [_, b, c, d] = v4.octets();
            Some([1, 0, 0x5e, b & 0x7f, c, d])
        }
        IpAddr::V4(v4) if v4.is_broadcast() => Some(ethernet::BROADCAST),
        IpAddr::V6(v6) if v6.is_multicast() => {
            let [.., a, b, c, d] = v6.octets();
            Some([0x33, 0x33, a, b, c, d])
        }
        _ => None,
    }
}

/// A number that differs between destinations.
fn spread(dst: IpAddr) -> u64 {
    let bits = number(dst);
    let folded = (bits >> 64) as u64 ^ bits as u64;
    // Fibonacci hashing.
    folded.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}

/// The way of a destination, by the weights: all packets to one address go the same way.
fn choose(hops: &[Hop], dst: IpAddr) -> Option<&Hop> {
    if let [only] = hops {
        return Some(only);
    }
    let total: u64 = hops.iter().map(|hop| u64::from(hop.weight)).sum();
    let mut left = spread(dst).checked_rem(total)?;
    hops.iter().find(|hop| match left.checked_sub(hop.weight.into()) {
        Some(rest) => {
            left = rest;
            false
        }
        None => true,
    })
}

#[cfg(test)]
mod tests;
