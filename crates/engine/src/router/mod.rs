//! An IP router: the switch of a [`Hub`](crate::hub::Hub).
//!
//! ```text
//!   frame ─► for this port's address? ─► checks ─► longest prefix ─┬─ forward ─► TTL − 1, MTU ─► neighbour ─► egress
//!              │ no: foreign               │                       ├─ local ─► control port, or echo reply
//!              │                           │                       └─ none, refused ──┐
//!              ▼                           ▼                                          ▼
//!            dropped by name            malformed, martian                        ICMP error to the sender
//! ```
//!
//! | file | content |
//! |---|---|
//! | `mod` | [`Router`]: the fast path, and what a burst shares |
//! | `slow` | everything that is not a plain packet to forward |
//! | `originate` | packets of the router's own |
//! | `route` | [`Route`], [`Interface`], and the routes that follow from addresses |
//! | `fib` | [`Fib`]: their lookup, choice among several hops, source addresses |
//! | `snapshot` | [`Publisher`]: the routes are replaced while packets flow |
//! | `neighbour` | [`Neighbours`]: ARP and neighbour discovery, their states and timers |
//! | `ip` | checks of headers, TTL, options |
//! | `icmp` | errors, echo replies, their pace |
//! | `fragment` | IPv4 fragments |
//!
//! The rules are those of [RFC 1812](https://www.rfc-editor.org/rfc/rfc1812) and
//! [RFC 8200](https://www.rfc-editor.org/rfc/rfc8200), with the answers of Linux where they leave a
//! choice. `towpath/tests/router.rs` compares both packet by packet, and lists what differs on
//! purpose.
//!
//! **Control ports.** An interface may have one: what is for the router itself goes there as it is
//! (its addresses, groups, ARP, neighbour discovery, tagged frames), and what comes from there
//! leaves by the interface as it is. Behind it the kernel, or a routing daemon, is the router's
//! control plane. Without one the router answers ARP, neighbour discovery and echo requests itself.
//!
//! Invariants:
//!
//! * Every packet is sent, held for its neighbour, or dropped by name.
//! * No packet waits but for the address of its next hop, and those are bounded.
//! * A packet keeps its flow's hop as long as the routes stay.
//! * What a packet says is checked before it is used: the header that decides is the one that is
//!   sent.

mod fib;
mod fragment;
mod icmp;
mod ip;
pub mod neighbour;
mod originate;
mod route;
mod slow;
mod snapshot;

pub use fib::Fib;
pub use fragment::{Piece, pieces, write_header};
pub use icmp::{MAX_ERROR, Problem, answerable, error, reply};
pub use ip::{Options, Refusal, V4, V6, check4, check6};
pub use route::{Action, FibError, Hop, Interface, MAX_HOPS, Route, connected};
pub use snapshot::{Publisher, Reader};

use crate::hub::{Ports, Switch};
use crate::software_offload::SoftwareOffload;
use fib::{Answer, NextHop, choose};
use icmp::Pace;
use neighbour::{Found, Key, NeighbourCache, Neighbours, Outcome};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;
use towpath_packet::port::{RxQueue, TxQueue, Wake};
use towpath_packet::{Batch, Cache, Counters, DropReason, Packet};
use towpath_wire::LinkKind;
use towpath_wire::ethernet::{self, Mac, ethertype};

/// Longest packet: the largest IP length behind an Ethernet header.
const MAX_FRAME: usize = 65_535 + 40 + ethernet::HEADER_LEN;
/// The first byte of a plain IPv4 header.
const PLAIN_V4: u8 = 0x45;

/// A port of the hub, as the router sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouterPort {
    /// An interface; the [`Fib`] has its addresses.
    Interface,
    /// The control port of an interface.
    Control {
        /// The number of the interface.
        of: u16,
    },
}

/// How a router answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RouterConfig {
    /// ICMP errors per second and worker; 0: without a limit.
    pub icmp_rate: u32,
    /// ICMP errors at once.
    pub icmp_burst: u32,
    /// Of the hash that chooses among several hops.
    pub seed: u64,
}

impl Default for RouterConfig {
    /// 1000 errors per second, 50 at once, as Linux.
    fn default() -> RouterConfig {
        RouterConfig { icmp_rate: 1000, icmp_burst: 50, seed: 0 }
    }
}

/// What is done with a packet of a burst.
#[derive(Debug, Clone, Copy)]
enum Decision {
    /// A plain packet to forward.
    Forward { next_hop: NextHop, dst: IpAddr },
    /// Everything else.
    Slow,
}

/// The switch of a router, one per worker. All share the routes and the neighbours.
pub struct Router {
    fib: Reader<Fib>,
    neighbours: Arc<Neighbours>,
    remembered: NeighbourCache,
    generation: u64,
    config: RouterConfig,
    pace: Pace,
    counters: Arc<Counters>,
    /// Finishes packets that are to be fragmented; its cache is the router's.
    software: SoftwareOffload,
    decided: Vec<Decision>,
    outcome: Outcome,
    scratch: Box<[u8]>,
    /// The identification of the last IPv4 packet of the router's own.
    id: u16,
}

/// What a burst, or a tick, has in common.
struct Turn<'a, R, T> {
    fib: &'a Fib,
    ports: &'a mut Ports<R, T, RouterPort>,
    /// The interface that the packets came by; that of the answers, in a tick.
    ingress: usize,
    now: Instant,
}

impl Router {
    /// A switch with the routes of `fib`. Packets of the router's own come from `cache`, which is a
    /// [`Direction::Tx`](towpath_packet::Direction::Tx) cache.
    pub fn new(fib: Reader<Fib>, neighbours: Arc<Neighbours>, cache: Cache, config: RouterConfig) -> Router {
        let counters = Arc::<Counters>::default();
        Router {
            fib,
            generation: neighbours.generation(),
            neighbours,
            remembered: NeighbourCache::new(),
            config,
            pace: Pace::new(config.icmp_rate, config.icmp_burst),
            software: SoftwareOffload::new(cache, LinkKind::Ethernet, counters.clone()),
            counters,
            decided: Vec::with_capacity(Batch::<64>::CAPACITY),
            outcome: Outcome::default(),
            scratch: vec![0; MAX_FRAME].into(),
            id: 0,
        }
    }

    /// Counters of what belongs to no port: packets of the router's own, fragments, packets that
    /// waited for a neighbour.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Drops packets that waited for neighbours at a port that has none any more.
    fn drop_waiting(&mut self, outcome: Outcome, reason: DropReason) {
        for (_, packet) in outcome.failed {
            self.counters.dropped(reason, 1);
            self.software.cache().free(packet);
        }
    }

    /// Looks at a packet without changing it. Everything that is not plain takes the slow path.
    #[inline]
    fn decide(&self, fib: &Fib, own: u64, packet: &Packet) -> Decision {
        let linear = packet.linear();
        let Some((header, ip)) = linear.split_first_chunk::<{ ethernet::HEADER_LEN }>() else { return Decision::Slow };
        let [a, b, c, d, e, f, .., x, y] = *header;
        if u64::from_be_bytes([0, 0, a, b, c, d, e, f]) != own || packet.vlan().is_some() {
            return Decision::Slow;
        }
        let frame_len = packet.len() - ethernet::HEADER_LEN;
        let kind = u16::from_be_bytes([x, y]);
        let (answer, dst, len) = if kind == ethertype::IPV4 && ip.first() == Some(&PLAIN_V4) {
            let Ok(v4) = check4(ip, frame_len) else { return Decision::Slow };
            if v4.ttl <= 1 || v4.dst.is_multicast() || v4.dst.is_broadcast() || fib.may_be_own4(v4.src.into()) {
                return Decision::Slow;
            }
            (fib.lookup4(v4.dst.into()), IpAddr::V4(v4.dst), u32::from(v4.total_len))
        } else if kind == ethertype::IPV6 {
            let Ok(v6) = check6(ip, frame_len) else { return Decision::Slow };
            let is_plain = v6.hop_limit > 1 && !v6.router_alert && !v6.dst.is_multicast();
            if !is_plain || v6.src.is_unicast_link_local() || v6.dst.is_unicast_link_local() || v6.src.is_unspecified()
            {
                return Decision::Slow;
            }
            (fib.lookup6(v6.dst.into()), IpAddr::V6(v6.dst), v6.total_len)
        } else {
            return Decision::Slow;
        };
        let next_hop = match answer {
            Answer::NextHops([next_hop]) => *next_hop,
            Answer::NextHops(next_hops) => match choose(next_hops, self.hash_of(packet)) {
                Some(next_hop) => *next_hop,
                None => return Decision::Slow,
            },
            _ => return Decision::Slow,
        };
        if frame_len != len as usize || longest(packet, len) > next_hop.mtu {
            return Decision::Slow;
        }
        Decision::Forward { next_hop, dst }
    }

    /// The hash that chooses among several hops: one for all packets of a flow.
    fn hash_of(&self, packet: &Packet) -> u32 {
        towpath_wire::dissect(packet.linear(), LinkKind::Ethernet).flow.directed_hash(self.config.seed)
    }

    /// Forwards a packet that was decided on.
    #[inline]
    fn send<R: RxQueue, T: TxQueue>(
        &mut self,
        mut packet: Packet,
        next_hop: &NextHop,
        dst: IpAddr,
        turn: &mut Turn<'_, R, T>,
    ) {
        if let Some(ip) = packet.linear_mut().get_mut(ethernet::HEADER_LEN..) {
            match dst {
                IpAddr::V4(_) => ip::decrease4(ip),
                IpAddr::V6(_) => ip::decrease6(ip),
            }
        }
        let key = Key { port: next_hop.port, address: next_hop.gateway.unwrap_or(dst) };
        match self.remembered.get(key, self.generation, turn.now) {
            Some(known) => transmit(packet, key.port, known.mac, turn),
            None => self.resolve(packet, key, turn),
        }
    }

    /// Sends a packet to a neighbour whose address is not remembered.
    #[cold]
    fn resolve<R: RxQueue, T: TxQueue>(&mut self, packet: Packet, key: Key, turn: &mut Turn<'_, R, T>) {
        // Before the lookup, so that a change after it is seen.
        let generation = self.neighbours.generation();
        let mut packet = Some(packet);
        let found = self.neighbours.lookup(key, &mut packet, turn.now, &mut self.outcome);
        match (found, packet) {
            (Found::Mac(mac, until), Some(packet)) => {
                self.remembered.put(key, mac, generation, until);
                transmit(packet, key.port, mac, turn);
            }
            (Found::Failed, Some(packet)) => self.unreachable(packet, turn),
            (_, Some(packet)) => turn.ports.drop(turn.ingress, DropReason::NoNeighbour, packet),
            (_, None) => {}
        }
    }
}

/// Bytes of the longest IP packet that this one becomes on the wire: of a super-packet, a segment.
#[inline]
fn longest(packet: &Packet, len: u32) -> u32 {
    match packet.gso() {
        None => len,
        Some(gso) => {
            u32::from(gso.hdr_len) + u32::from(gso.size) - (ethernet::HEADER_LEN as u32).min(gso.hdr_len.into())
        }
    }
}

/// Writes the Ethernet addresses and stages the packet.
#[inline]
fn transmit<R: RxQueue, T: TxQueue>(mut packet: Packet, port: u16, mac: Mac, turn: &mut Turn<'_, R, T>) {
    let Some(interface) = turn.fib.interface(port) else {
        return turn.ports.drop(turn.ingress, DropReason::NoRoute, packet);
    };
    if let Some(header) = packet.linear_mut().first_chunk_mut::<12>() {
        header[..6].copy_from_slice(&mac);
        header[6..].copy_from_slice(&interface.mac);
    }
    turn.ports.send(turn.ingress, port.into(), packet);
}

/// A MAC address as a number.
#[inline]
fn mac_number([a, b, c, d, e, f]: Mac) -> u64 {
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

impl Switch for Router {
    type Port = RouterPort;

    #[inline]
    fn forward<R: RxQueue, T: TxQueue>(
        &mut self,
        ingress: usize,
        burst: &mut Batch,
        ports: &mut Ports<R, T, RouterPort>,
        now: Instant,
    ) {
        self.fib.refresh();
        self.generation = self.neighbours.generation();
        let fib = self.fib.value().clone();
        if let Some(&RouterPort::Control { of }) = ports.get(ingress) {
            return from_control(ingress, of.into(), burst, ports);
        }
        let own = fib.interface(ingress as u16).map(|interface| mac_number(interface.mac));
        let mut turn = Turn { fib: &fib, ports, ingress, now };
        // All lookups before the first packet is changed: their cache misses overlap.
        let mut decided = std::mem::take(&mut self.decided);
        decided.clear();
        decided.extend(burst.iter().map(|packet| match own {
            Some(own) => self.decide(&fib, own, packet),
            None => Decision::Slow,
        }));
        for (packet, decision) in burst.drain_front(decided.len()).zip(&decided) {
            match decision {
                Decision::Forward { next_hop, dst } => self.send(packet, next_hop, *dst, &mut turn),
                Decision::Slow => self.slow(packet, &mut turn),
            }
        }
        self.decided = decided;
        if !self.outcome.is_empty() {
            self.act(&mut turn);
        }
    }

    fn port_down(&mut self, number: usize) {
        // Its neighbours may be other ones when it comes back.
        let port = number as u16;
        let mut outcome = Outcome::default();
        let is_learned = |state| !matches!(state, neighbour::State::Permanent | neighbour::State::Kernel);
        self.neighbours.remove_where(|key, state| key.port == port && is_learned(state), &mut outcome);
        self.drop_waiting(outcome, DropReason::LinkDown);
    }

    fn port_gone(&mut self, number: usize) {
        let mut outcome = Outcome::default();
        self.neighbours.remove_where(|key, _| usize::from(key.port) == number, &mut outcome);
        self.drop_waiting(outcome, DropReason::PortGone);
    }

    fn tick<R: RxQueue, T: TxQueue>(&mut self, ports: &mut Ports<R, T, RouterPort>, now: Instant) {
        self.fib.refresh();
        self.neighbours.tick(now, &mut self.outcome);
        if !self.outcome.is_empty() {
            let fib = self.fib.value().clone();
            let ingress = fib.interfaces().next().map_or(0, |(port, _)| usize::from(port));
            self.act(&mut Turn { fib: &fib, ports, ingress, now });
        }
    }

    fn wake(&self) -> [Wake; 2] {
        let due = self.neighbours.next_due().map_or(Wake::Never, Wake::At);
        [due, Wake::Readable(self.neighbours.fd())]
    }

    fn end(&mut self) {
        for packet in self.neighbours.take_waiting() {
            self.counters.dropped(DropReason::Stopped, 1);
            self.software.cache().free(packet);
        }
    }
}

/// What the control plane sends leaves by its interface, as it is.
fn from_control<R: RxQueue, T: TxQueue>(
    ingress: usize,
    to: usize,
    burst: &mut Batch,
    ports: &mut Ports<R, T, RouterPort>,
) {
    ports.send_all(ingress, to, burst);
}

impl std::fmt::Debug for Router {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Router").field("routes", &self.fib.value().routes()).finish_non_exhaustive()
    }
}
