//! The contents of the kernel's messages: devices, addresses, routes, neighbours.

use crate::prefix::Prefix;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use towpath_wire::ethernet::Mac;

/// Most entries of each kind that are kept: more of them are an error, not memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Interfaces.
    pub devices: usize,
    /// Addresses of interfaces.
    pub addresses: usize,
    /// Routes; one with several next hops counts once.
    pub routes: usize,
    /// Neighbours.
    pub neighbours: usize,
}

impl Default for Limits {
    /// A full Internet table, and a large segment.
    fn default() -> Limits {
        Limits { devices: 4096, addresses: 16_384, routes: 2_000_000, neighbours: 262_144 }
    }
}

/// The kernel has more entries of a kind than [`Limits`] permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("more than {limit} {kind}: Limits::{kind} sets how many are kept")]
#[non_exhaustive]
pub struct LimitExceeded {
    /// The kind of entries.
    pub kind: &'static str,
    /// Its limit.
    pub limit: usize,
}

/// What an interface puts in front of IP packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeviceKind {
    /// An Ethernet header.
    Ethernet,
    /// An Ethernet header with a tag, on a lower device.
    Vlan { lower: u32, tpid: u16, vid: u16 },
    /// IP in IP of these protocols: IPv4 (`ipip`) or IPv6 (`sit`).
    IpIp { v6: bool, outer: Outer },
    /// GRE with a key.
    Gre { key: Option<u32>, outer: Outer },
    /// VXLAN with one remote.
    Vxlan { vni: u32, port: u16, outer: Outer },
    /// Nothing that is known here; the reason.
    Unsupported(&'static str),
}

/// The outer header of a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Outer {
    /// Unspecified: the source address of the route to `remote`.
    pub(crate) local: Ipv4Addr,
    pub(crate) remote: Ipv4Addr,
    /// 0: that of the packet inside.
    pub(crate) ttl: u8,
    pub(crate) tos: u8,
    pub(crate) dont_fragment: bool,
    /// 0: any.
    pub(crate) lower: u32,
}

/// An interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Device {
    pub(crate) kind: DeviceKind,
    pub(crate) mac: Mac,
    pub(crate) mtu: u32,
    pub(crate) up: bool,
}

/// An address of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) device: u32,
    pub(crate) address: IpAddr,
    pub(crate) prefix_len: u8,
    pub(crate) prefix: Prefix,
    /// `RT_SCOPE_*`.
    pub(crate) scope: u8,
    /// Not the first of its subnet (IPv4).
    pub(crate) secondary: bool,
    pub(crate) deprecated: bool,
    /// It may not be used yet, or turned out to be another's.
    pub(crate) tentative: bool,
}

/// What a route does with its packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RouteKind {
    Unicast,
    Local,
    Broadcast,
    Multicast,
    Blackhole,
    Unreachable,
    Prohibit,
    /// The lookup goes on in the next table.
    Throw,
    Unsupported(&'static str),
}

/// One way of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hop {
    pub(crate) device: u32,
    pub(crate) gateway: Option<IpAddr>,
    /// The source address if the route names none (IPv4). [`Fib::new`](crate::table::Fib::new)
    /// chooses it: no message has it.
    pub(crate) source: Option<Ipv4Addr>,
    pub(crate) weight: u32,
    pub(crate) dead: bool,
}

/// A route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) v4: bool,
    pub(crate) table: u32,
    pub(crate) prefix: Prefix,
    pub(crate) metric: u32,
    pub(crate) kind: RouteKind,
    pub(crate) scope: u8,
    pub(crate) source: Option<IpAddr>,
    pub(crate) mtu: Option<u32>,
    pub(crate) hops: Vec<Hop>,
}

/// All of it.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    pub(crate) devices: HashMap<u32, Device>,
    /// In the order of the kernel.
    pub(crate) addresses: Vec<Address>,
    /// In the order of the kernel.
    pub(crate) routes: Vec<Route>,
    pub(crate) neighbours: Neighbours,
    /// Messages that could not be read.
    pub(crate) unreadable: u64,
}

/// Addresses of the link layer, by interface and address.
pub(crate) type Neighbours = HashMap<(u32, IpAddr), Mac>;
