//! The contents of a [`Table`] as lists, for what mirrors the kernel's tables without a dump of its
//! own.

use crate::contents::{Address, Route, RouteKind};
use crate::table::Table;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use towpath_wire::ethernet::Mac;

/// What the kernel does with packets of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ListedKind {
    /// They go to a hop.
    Unicast,
    /// An address of this machine.
    Local,
    /// A broadcast address.
    Broadcast,
    /// They vanish.
    Blackhole,
    /// They are answered with "unreachable"; also routes that are not understood here.
    Unreachable,
    /// They are answered with "prohibited".
    Prohibit,
}

/// One way of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListedHop {
    /// Index of the interface.
    pub device: u32,
    /// The gateway, if there is one.
    pub gateway: Option<IpAddr>,
    /// Its part of the flows.
    pub weight: u32,
}

/// A route that the kernel uses.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListedRoute {
    /// First address of its destinations.
    pub prefix: IpAddr,
    /// Length of the prefix in bits.
    pub len: u8,
    /// What happens to packets.
    pub kind: ListedKind,
    /// The hops of unicast routes.
    pub hops: Vec<ListedHop>,
    /// Longest IP packet, if the route says.
    pub mtu: Option<u32>,
}

/// An interface with its addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListedDevice {
    /// Its Ethernet address.
    pub mac: Mac,
    /// Longest IP packet.
    pub mtu: u32,
    /// It is up.
    pub up: bool,
    /// Its addresses with the lengths of their subnets.
    pub addresses: Vec<(IpAddr, u8)>,
}

impl Table {
    /// The routes that decide, in an order in which of two to the same prefix the later one goes
    /// before the other: tables default, main, local; worse metrics are left out.
    pub fn list_routes(&self) -> impl Iterator<Item = ListedRoute> {
        self.fib.used.iter().filter_map(|at| self.fib.routes.get(*at as usize)).filter_map(listed)
    }

    /// An interface; `None` if there is none of that index.
    pub fn list_device(&self, index: u32) -> Option<ListedDevice> {
        let device = self.fib.devices.get(&index)?;
        let of = |address: &&Address| address.device == index && !address.tentative;
        let addresses = self.fib.addresses.iter().filter(of).map(|a| (a.address, a.prefix_len)).collect();
        Some(ListedDevice { mac: device.mac, mtu: device.mtu, up: device.up, addresses })
    }

    /// The neighbours whose addresses are known: interface, address, Ethernet address.
    pub fn list_neighbours(&self) -> impl Iterator<Item = (u32, IpAddr, Mac)> {
        self.neighbours.iter().map(|((device, address), mac)| (*device, *address, *mac))
    }

    /// Whether both have the same routes, addresses and interfaces: only neighbours differ.
    pub fn has_routes_of(&self, other: &Table) -> bool {
        Arc::ptr_eq(&self.fib, &other.fib)
    }
}

fn listed(route: &Route) -> Option<ListedRoute> {
    let kind = match route.kind {
        RouteKind::Unicast => ListedKind::Unicast,
        RouteKind::Local => ListedKind::Local,
        RouteKind::Broadcast => ListedKind::Broadcast,
        RouteKind::Blackhole => ListedKind::Blackhole,
        RouteKind::Prohibit => ListedKind::Prohibit,
        RouteKind::Unreachable | RouteKind::Unsupported(_) => ListedKind::Unreachable,
        RouteKind::Multicast | RouteKind::Throw => return None,
    };
    let first = route.prefix.first;
    let prefix = if route.v4 { Ipv4Addr::from(first as u32).into() } else { Ipv6Addr::from(first).into() };
    let len = route.prefix.len(if route.v4 { 32 } else { 128 });
    let hop = |hop: &crate::contents::Hop| ListedHop { device: hop.device, gateway: hop.gateway, weight: hop.weight };
    let hops = if kind == ListedKind::Unicast { route.hops.iter().map(hop).collect() } else { Vec::new() };
    Some(ListedRoute { prefix, len, kind, hops, mtu: route.mtu })
}
