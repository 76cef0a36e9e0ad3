//! Routes and interfaces, as they are configured or mirrored from a kernel.

use std::net::IpAddr;
use towpath_wire::ethernet::Mac;

/// Most hops of a route.
pub const MAX_HOPS: usize = 64;

/// What a route does with its packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Action {
    /// They go to a hop.
    #[default]
    Forward,
    /// The destination is an address of the router.
    Local,
    /// The destination is the broadcast address of a subnet.
    Broadcast,
    /// They vanish.
    Blackhole,
    /// They vanish, and their sender gets "host unreachable".
    Unreachable,
    /// They vanish, and their sender gets "administratively prohibited".
    Prohibit,
}

impl Action {
    /// Its name, as `ip route` prints it.
    pub const fn name(self) -> &'static str {
        match self {
            Action::Forward => "unicast",
            Action::Local => "local",
            Action::Broadcast => "broadcast",
            Action::Blackhole => "blackhole",
            Action::Unreachable => "unreachable",
            Action::Prohibit => "prohibit",
        }
    }
}

/// One next hop of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hop {
    /// The number of the interface.
    pub port: u16,
    /// The router that gets the packets; `None`: the destination is on the interface's link.
    pub gateway: Option<IpAddr>,
    /// Its part of the flows, relative to those of the other hops; 0 counts as 1.
    pub weight: u32,
}

/// A route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// First address of its destinations.
    pub prefix: IpAddr,
    /// Length of the prefix in bits.
    pub len: u8,
    /// What happens to packets.
    pub action: Action,
    /// The hops of [`Action::Forward`].
    pub hops: Vec<Hop>,
    /// Longest IP packet, if it is less than the interface's.
    pub mtu: Option<u32>,
}

/// An interface of the router.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its Ethernet address.
    pub mac: Mac,
    /// Longest IP packet.
    pub mtu: u32,
    /// Its addresses with the lengths of their subnets, in the order of preference as a source.
    pub addresses: Vec<(IpAddr, u8)>,
    /// The port of the control plane, which gets what is for the router itself.
    pub control: Option<u16>,
}

/// Why routes can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FibError {
    /// A hop on an interface that does not exist.
    #[error("route {prefix}/{len}: there is no interface {port}")]
    NoInterface {
        /// First address of the route.
        prefix: IpAddr,
        /// Its length.
        len: u8,
        /// The number of the interface.
        port: u16,
    },
    /// The number of hops is not what the action needs.
    #[error("route {prefix}/{len}: {hops} hops, where a {action} route has {rule}")]
    Hops {
        /// First address of the route.
        prefix: IpAddr,
        /// Its length.
        len: u8,
        /// The hops.
        hops: usize,
        /// The action.
        action: &'static str,
        /// How many it may have.
        rule: &'static str,
    },
    /// The prefix is longer than an address.
    #[error("route {prefix}/{len}: the length is at most {most}")]
    Length {
        /// First address of the route.
        prefix: IpAddr,
        /// Its length.
        len: u8,
        /// The length of an address.
        most: u8,
    },
}

/// The routes that follow from an interface's addresses: its subnets, the addresses themselves, and
/// the broadcast addresses.
pub fn connected(port: u16, interface: &Interface) -> Vec<Route> {
    let mut routes = Vec::new();
    let mut add = |prefix: IpAddr, len, action| {
        let hops = if action == Action::Forward { vec![Hop { port, gateway: None, weight: 1 }] } else { Vec::new() };
        routes.push(Route { prefix, len, action, hops, mtu: None });
    };
    for &(address, len) in &interface.addresses {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        if len < bits {
            add(address, len, Action::Forward);
        }
        if let IpAddr::V4(v4) = address
            && len < 31
        {
            let mask = u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0);
            add(IpAddr::V4((u32::from(v4) | !mask).into()), 32, Action::Broadcast);
        }
    }
    // Last, so that they win over the others.
    for &(address, _) in &interface.addresses {
        add(address, if address.is_ipv4() { 32 } else { 128 }, Action::Local);
    }
    routes
}
