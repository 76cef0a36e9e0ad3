//! Routes, as packets look them up: one immutable set, replaced as a whole.
//!
//! ```text
//!   destination ─► Lpm ─► group ─┬─ forward: hop by the hash of the flow ─► port, gateway, MTU
//!                                └─ local, broadcast, blackhole, unreachable, prohibit
//! ```
//!
//! Routes with the same hops share a group: a million routes by a few neighbours have a few groups.
//! A route with several hops chooses by the hash of the flow among as many parts of its range as
//! the hops' weights say, so that a flow keeps its path.

use super::neighbour::Key;
use super::route::{Action, FibError, Hop, Interface, MAX_HOPS, Route};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use towpath_wire::lpm::Lpm;

/// A hop that is ready for packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct NextHop {
    pub(super) port: u16,
    pub(super) gateway: Option<IpAddr>,
    pub(super) mtu: u32,
    /// Flows with a hash up to this one take this next hop, unless an earlier one took them.
    bound: u32,
}

impl NextHop {
    /// The link of an interface.
    pub(super) fn direct(port: u16) -> NextHop {
        NextHop { port, gateway: None, mtu: u32::MAX, bound: u32::MAX }
    }

    /// The neighbour that packets to `to` go to.
    pub(super) fn key(&self, to: IpAddr) -> Key {
        Key { port: self.port, address: self.gateway.unwrap_or(to) }
    }
}

/// The answer to a lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer<'a> {
    NoRoute,
    /// One next hop, or several to choose from.
    NextHops(&'a [NextHop]),
    Other(Action),
}

#[derive(Debug, Clone, Copy)]
struct Group {
    action: Action,
    first: u32,
    next_hops: u32,
}

/// A set of routes and interfaces that packets are looked up in.
#[derive(Debug, Default)]
pub struct Fib {
    v4: Lpm<u32>,
    v6: Lpm<u128>,
    groups: Vec<Group>,
    next_hops: Vec<NextHop>,
    interfaces: Vec<Option<Interface>>,
    routes: usize,
    /// A set bit for each IPv4 address of the router, by its last bits.
    own4: u64,
}

fn masked(address: IpAddr, len: u8) -> u128 {
    match address {
        IpAddr::V4(v4) => (u32::from(v4) & u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0)).into(),
        IpAddr::V6(v6) => u128::from(v6) & u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0),
    }
}

impl Fib {
    /// Prepares routes; of routes to the same prefix the last one is used. `interfaces` are
    /// indexed by the numbers of their ports.
    ///
    /// # Errors
    /// [`FibError`] names the first route that can't be used.
    pub fn new(interfaces: Vec<Option<Interface>>, routes: &[Route]) -> Result<Fib, FibError> {
        let mut fib = Fib { interfaces, ..Fib::default() };
        let mut known: HashMap<(Action, Vec<NextHop>), u32> = HashMap::new();
        let (mut v4, mut v6) = (HashMap::new(), HashMap::new());
        for route in routes {
            let (prefix, len) = (route.prefix, route.len);
            let most = if prefix.is_ipv4() { 32 } else { 128 };
            if len > most {
                return Err(FibError::Length { prefix, len, most });
            }
            let next_hops = fib.next_hops_of(route)?;
            let next = known.len() as u32;
            let group = *known.entry((route.action, next_hops)).or_insert(next);
            let set = if prefix.is_ipv4() { &mut v4 } else { &mut v6 };
            set.insert((masked(prefix, len), len), group);
        }
        let is_own = |route: &&Route| route.action == Action::Local && route.len == 32;
        for route in routes.iter().filter(is_own) {
            if let IpAddr::V4(v4) = route.prefix {
                fib.own4 |= own_bit(v4.into());
            }
        }
        let mut groups: Vec<_> = known.into_iter().collect();
        groups.sort_unstable_by_key(|(_, number)| *number);
        for ((action, next_hops), _) in groups {
            fib.groups.push(Group { action, first: fib.next_hops.len() as u32, next_hops: next_hops.len() as u32 });
            fib.next_hops.extend(next_hops);
        }
        fib.routes = v4.len() + v6.len();
        fib.v4 = Lpm::new(v4.into_iter().map(|((first, len), group)| (first as u32, len, group)));
        fib.v6 = Lpm::new(v6.into_iter().map(|((first, len), group)| (first, len, group)));
        Ok(fib)
    }

    fn next_hops_of(&self, route: &Route) -> Result<Vec<NextHop>, FibError> {
        let (prefix, len, hops) = (route.prefix, route.len, route.hops.len());
        let rule = match route.action {
            Action::Forward if (1..=MAX_HOPS).contains(&hops) => None,
            Action::Forward => Some("1 to 64"),
            _ if hops == 0 => None,
            _ => Some("none"),
        };
        if let Some(rule) = rule {
            return Err(FibError::Hops { prefix, len, hops, action: route.action.name(), rule });
        }
        let weight = |hop: &Hop| u64::from(hop.weight.max(1));
        let total: u64 = route.hops.iter().map(weight).sum();
        let (mut sum, mut next_hops) = (0, Vec::with_capacity(hops));
        for hop in &route.hops {
            let port = hop.port;
            let interface = self.interface(port).ok_or(FibError::NoInterface { prefix, len, port })?;
            sum += weight(hop);
            // The last one's is u32::MAX.
            let bound = (u128::from(sum) * (1 << 32) / u128::from(total) - 1) as u32;
            let mtu = route.mtu.map_or(interface.mtu, |mtu| mtu.min(interface.mtu));
            next_hops.push(NextHop { port, gateway: hop.gateway, mtu, bound });
        }
        Ok(next_hops)
    }

    /// An interface by the number of its port.
    #[inline]
    pub fn interface(&self, port: u16) -> Option<&Interface> {
        self.interfaces.get(usize::from(port))?.as_ref()
    }

    /// All interfaces with their numbers.
    pub fn interfaces(&self) -> impl Iterator<Item = (u16, &Interface)> {
        self.interfaces.iter().enumerate().filter_map(|(port, interface)| Some((port as u16, interface.as_ref()?)))
    }

    /// The number of routes.
    pub fn routes(&self) -> usize {
        self.routes
    }

    /// Bytes of memory that lookups use.
    pub fn memory(&self) -> usize {
        self.v4.memory() + self.v6.memory() + size_of_val(&*self.groups) + size_of_val(&*self.next_hops)
    }

    #[inline]
    fn answer(&self, group: Option<u32>) -> Answer<'_> {
        let Some(group) = group.and_then(|at| self.groups.get(at as usize)) else { return Answer::NoRoute };
        if group.action != Action::Forward {
            return Answer::Other(group.action);
        }
        let (first, next_hops) = (group.first as usize, group.next_hops as usize);
        self.next_hops.get(first..first + next_hops).map_or(Answer::NoRoute, Answer::NextHops)
    }

    #[inline]
    pub(super) fn lookup4(&self, address: u32) -> Answer<'_> {
        self.answer(self.v4.get(address))
    }

    #[inline]
    pub(super) fn lookup6(&self, address: u128) -> Answer<'_> {
        self.answer(self.v6.get(address))
    }

    #[inline]
    pub(super) fn lookup(&self, address: IpAddr) -> Answer<'_> {
        match address {
            IpAddr::V4(v4) => self.lookup4(v4.into()),
            IpAddr::V6(v6) => self.lookup6(v6.into()),
        }
    }

    /// What happens to packets to an address, and the hop of those with `hash` as their flow's.
    pub fn resolve(&self, address: IpAddr, hash: u32) -> Option<(Action, Option<Hop>)> {
        match self.lookup(address) {
            Answer::NoRoute => None,
            Answer::Other(action) => Some((action, None)),
            Answer::NextHops(next_hops) => {
                let next_hop = choose(next_hops, hash)?;
                Some((Action::Forward, Some(Hop { port: next_hop.port, gateway: next_hop.gateway, weight: 1 })))
            }
        }
    }

    /// Whether an IPv4 address may be one of the router's own; false if it is none.
    #[inline]
    pub(super) fn may_be_own4(&self, address: u32) -> bool {
        self.own4 & own_bit(address) != 0
    }

    /// Whether an address is one of the router's own.
    #[inline]
    pub(super) fn is_local(&self, address: IpAddr) -> bool {
        self.lookup(address) == Answer::Other(Action::Local)
    }

    /// The source address of the router's own packets to `to`: one of the next hop's subnet, or the
    /// interface's first, or any interface's.
    pub(super) fn source4(&self, next_hop: &NextHop, to: Ipv4Addr) -> Option<Ipv4Addr> {
        let next = match next_hop.gateway {
            Some(IpAddr::V4(gateway)) => gateway,
            _ => to,
        };
        let of = |interface: &Interface| {
            let v4 = |(address, len): &(IpAddr, u8)| match address {
                IpAddr::V4(v4) => Some((*v4, *len)),
                IpAddr::V6(_) => None,
            };
            let near = |(address, len): &(Ipv4Addr, u8)| masked((*address).into(), *len) == masked(next.into(), *len);
            let mut all = interface.addresses.iter().filter_map(v4);
            all.clone().find(near).or_else(|| all.next()).map(|(address, _)| address)
        };
        self.interface(next_hop.port).and_then(of).or_else(|| self.interfaces.iter().flatten().find_map(of))
    }

    /// As [`source4`](Fib::source4): of the same scope as the destination, with the longest common
    /// prefix (RFC 6724, rules 2 and 8).
    pub(super) fn source6(&self, next_hop: &NextHop, to: Ipv6Addr) -> Option<Ipv6Addr> {
        let of = |interface: &Interface| {
            let usable = |(address, _): &(IpAddr, u8)| match address {
                IpAddr::V6(v6) => Some(*v6),
                IpAddr::V4(_) => None,
            };
            let rank = |from: &Ipv6Addr| {
                let same_scope = from.is_unicast_link_local() == to.is_unicast_link_local();
                (same_scope, (u128::from(*from) ^ u128::from(to)).leading_zeros())
            };
            interface.addresses.iter().filter_map(usable).max_by_key(rank)
        };
        let own = self.interface(next_hop.port).and_then(of);
        let is_enough = |from: &Ipv6Addr| to.is_unicast_link_local() || !from.is_unicast_link_local();
        own.filter(is_enough)
            .or_else(|| self.interfaces.iter().flatten().filter_map(of).find(|from| !from.is_unicast_link_local()))
            .or(own)
    }
}

#[inline]
fn own_bit(address: u32) -> u64 {
    1 << (address.wrapping_mul(0x9e37_79b9) >> 26)
}

/// The next hop of a flow.
#[inline]
pub(super) fn choose(next_hops: &[NextHop], hash: u32) -> Option<&NextHop> {
    next_hops.iter().find(|next_hop| hash <= next_hop.bound)
}

#[cfg(test)]
mod tests {
    use super::super::route::connected;
    use super::*;

    fn interface(mac: u8, addresses: &[(&str, u8)]) -> Option<Interface> {
        let addresses = addresses.iter().map(|(address, len)| (address.parse().unwrap(), *len)).collect();
        Some(Interface { name: format!("p{mac}"), mac: [2, 0, 0, 0, 0, mac], mtu: 1500, addresses, control: None })
    }

    fn hop(port: u16, gateway: &str, weight: u32) -> Hop {
        Hop { port, gateway: gateway.parse().ok(), weight }
    }

    fn route(prefix: &str, len: u8, hops: Vec<Hop>) -> Route {
        Route { prefix: prefix.parse().unwrap(), len, action: Action::Forward, hops, mtu: None }
    }

    #[test]
    fn flows_spread_over_the_hops_by_their_weights_and_each_keeps_its_own() {
        let hops = vec![hop(0, "10.0.0.2", 1), hop(0, "10.0.0.3", 3)];
        let fib = Fib::new(vec![interface(1, &[("10.0.0.1", 24)])], &[route("20.0.0.0", 8, hops)]).unwrap();
        let mut counts = [0; 2];
        for flow in 0..4096u32 {
            let hash = flow.wrapping_mul(0x9e37_79b9);
            let chosen = |hash| fib.resolve("20.1.1.1".parse().unwrap(), hash).unwrap().1.unwrap().gateway;
            assert_eq!(chosen(hash), chosen(hash));
            counts[usize::from(chosen(hash) == "10.0.0.3".parse().ok())] += 1;
        }
        assert!((900..1150).contains(&counts[0]), "{counts:?}");
    }

    #[test]
    fn addresses_bring_their_subnet_themselves_and_its_broadcast_address() {
        let port = interface(1, &[("10.0.0.1", 24), ("fd00::1", 64), ("10.9.9.9", 32), ("10.8.0.0", 31)]);
        let routes = connected(0, port.as_ref().unwrap());
        let fib = Fib::new(vec![port], &routes).unwrap();
        let action = |address: &str| fib.resolve(address.parse().unwrap(), 0).map(|(action, _)| action);
        assert_eq!(action("10.0.0.1"), Some(Action::Local));
        assert_eq!(action("10.0.0.255"), Some(Action::Broadcast));
        assert_eq!(action("10.0.0.7"), Some(Action::Forward));
        assert_eq!(action("10.9.9.9"), Some(Action::Local));
        assert_eq!(action("10.8.0.1"), Some(Action::Forward));
        assert_eq!(action("fd00::7"), Some(Action::Forward));
        assert_eq!(action("fd00::1"), Some(Action::Local));
        assert_eq!(action("11.0.0.1"), None);
    }

    #[test]
    fn routes_that_can_not_be_used_are_refused_by_name() {
        let make = |routes: &[Route]| Fib::new(vec![interface(1, &[])], routes).map(drop).map_err(|e| e.to_string());
        let far = route("1.0.0.0", 8, vec![hop(3, "1.1.1.1", 1)]);
        assert_eq!(make(&[far]), Err("route 1.0.0.0/8: there is no interface 3".into()));
        let none = route("1.0.0.0", 8, vec![]);
        assert_eq!(make(&[none]), Err("route 1.0.0.0/8: 0 hops, where a unicast route has 1 to 64".into()));
        let long = route("1.0.0.0", 33, vec![hop(0, "1.1.1.1", 1)]);
        assert_eq!(make(&[long]), Err("route 1.0.0.0/33: the length is at most 32".into()));
        let hole = Route { action: Action::Blackhole, ..route("::", 0, vec![hop(0, "", 1)]) };
        assert_eq!(make(&[hole]), Err("route ::/0: 1 hops, where a blackhole route has none".into()));
    }

    #[test]
    fn the_source_address_is_of_the_next_hops_subnet_or_the_first_one() {
        let fib = Fib::new(vec![interface(1, &[("10.0.0.1", 24), ("10.1.0.1", 24)]), interface(2, &[])], &[]).unwrap();
        let next_hop =
            |port, gateway: &str| NextHop { port, gateway: gateway.parse().ok(), mtu: 1500, bound: u32::MAX };
        let source = |next_hop: &NextHop, to: &str| fib.source4(next_hop, to.parse().unwrap());
        assert_eq!(source(&next_hop(0, "10.1.0.9"), "99.0.0.1"), Some([10, 1, 0, 1].into()));
        assert_eq!(source(&next_hop(0, ""), "10.1.0.77"), Some([10, 1, 0, 1].into()));
        assert_eq!(source(&next_hop(0, "10.7.0.9"), "99.0.0.1"), Some([10, 0, 0, 1].into()));
        assert_eq!(source(&next_hop(1, ""), "99.0.0.1"), Some([10, 0, 0, 1].into()), "of another interface");
    }
}
