//! A learning bridge (IEEE 802.1Q): the switch of a [`Hub`](crate::hub::Hub).
//!
//! ```text
//!   burst ─► addresses, VLAN ─► source: learned ─► destination ─┬─ known ──────► its port
//!                                                               ├─ not known ─┐
//!                                                               └─ a group ───┴► flooded: every other port
//! ```
//!
//! | file | content |
//! |---|---|
//! | `mod` | [`Bridge`]: the decision for each frame, flooding, tags |
//! | `decision` | where a frame goes, in two bytes; groups |
//! | `reach` | the ports that an ingress may send to: split horizon |
//! | `fdb` | [`Fdb`]: addresses, the ports that they are behind, ageing, limits |
//! | `vlan` | [`PortMode`]: membership in VLANs |
//! | `storm` | [`StormLimits`]: how many frames per second may be flooded |
//!
//! A frame never leaves by the port that it came from, nor by another port of the same
//! [group](BridgePort::group) (split horizon). Frames to the reserved groups 01:80:C2:00:00:00 to
//! 0F are not forwarded, but for 00, which the spanning tree of others needs: this bridge takes no
//! part in one, and forwards it as Linux does. A source address that is a group or zero is
//! `malformed`.
//!
//! All decisions are made in the order of arrival: a frame to an address that an earlier one of the
//! same burst made known is not flooded. Several hubs, one per worker, share one [`Fdb`].
//!
//! Super-packets pass as they are. A flooded packet is copied for each egress but the last.

mod decision;
pub mod fdb;
mod reach;
mod storm;
mod vlan;

pub use storm::StormLimits;
pub use vlan::{PortMode, VlanSet};

use crate::hub::{Ports, Switch};
use decision::{Decision, PAUSE, To, of_group};
use fdb::{Fdb, Key, Probe};
use reach::{Reach, out_of_reach};
use std::sync::Arc;
use std::time::Instant;
use storm::{FloodKind, StormControl};
use towpath_packet::port::{RxQueue, TxQueue};
use towpath_packet::{Batch, DropReason, Packet, Vlan};
use towpath_wire::ethernet;
use towpath_wire::vlan::HEADER_LEN as TAG_LEN;
use vlan::Membership;

/// Bytes of an Ethernet header with a tag.
const TAGGED_HEADER: usize = ethernet::HEADER_LEN + TAG_LEN;
/// The bit of a group address in its 48 bits.
const GROUP: u64 = 1 << 40;
/// The type of a tag (802.1Q).
const TAG: u64 = 0x8100;

/// A port of a bridge.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct BridgePort {
    /// Its part in VLANs.
    pub mode: PortMode,
    /// Ports of one group do not exchange frames; 0: no group.
    pub group: u16,
    /// Limits of flooding.
    pub storm: StormLimits,
}

/// A bridge's state of a port.
pub struct PortState {
    membership: Membership,
    group: u16,
    storm: StormControl,
}

impl PortState {
    /// The state of a port for one of `workers`, which share its limits.
    pub fn new(port: &BridgePort, workers: u32) -> PortState {
        PortState {
            membership: Membership::new(&port.mode),
            group: port.group,
            storm: StormControl::new(&port.storm, workers, Instant::now()),
        }
    }
}

/// What is known of the frames of a burst; its content is of one burst alone.
struct Burst {
    from: [Probe; BURST],
    to: [Probe; BURST],
    /// The VLAN and the priority; 0 if the bridge ignores VLANs.
    tci: [u16; BURST],
    decisions: [Decision; BURST],
}

const BURST: usize = Batch::<64>::CAPACITY;

/// The switch of a learning bridge, one per worker.
pub struct Bridge {
    fdb: Arc<Fdb>,
    is_vlan_aware: bool,
    /// By ingress.
    reach: Vec<Reach>,
    targets: Vec<u16>,
    burst: Box<Burst>,
}

/// The addresses, and the type behind them, in the first 14 bytes.
#[inline]
fn addresses(header: &[u8; ethernet::HEADER_LEN]) -> (u64, u64, u64) {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n] = *header;
    let destination = u64::from_be_bytes([a, b, c, d, e, f, g, h]) >> 16;
    let source_and_type = u64::from_be_bytes([g, h, i, j, k, l, m, n]);
    (destination, source_and_type >> 16, source_and_type & 0xffff)
}

impl Bridge {
    /// A switch that shares `fdb` with those of other workers.
    pub fn new(fdb: Arc<Fdb>, is_vlan_aware: bool) -> Bridge {
        let burst = Burst {
            from: [Probe::ZERO; BURST],
            to: [Probe::ZERO; BURST],
            tci: [0; BURST],
            decisions: [Decision::NONE; BURST],
        };
        let targets = Vec::with_capacity(fdb::MAX_PORTS);
        Bridge { fdb, is_vlan_aware, reach: Vec::new(), targets, burst: Box::new(burst) }
    }

    /// The table.
    pub fn fdb(&self) -> &Arc<Fdb> {
        &self.fdb
    }

    /// Makes the header linear, so that the bytes that decide are those that are sent.
    #[cold]
    fn make_header_linear<R: RxQueue, T: TxQueue>(
        ingress: usize,
        packet: &mut Packet,
        ports: &mut Ports<R, T, PortState>,
    ) -> Result<(), DropReason> {
        if packet.len() < ethernet::HEADER_LEN {
            return Err(DropReason::Malformed);
        }
        let has_head = ports.cache(ingress).is_some_and(|cache| cache.ensure_head(packet));
        if !has_head {
            return Err(DropReason::NoBuffer);
        }
        packet.make_linear(packet.len().min(TAGGED_HEADER)).map_err(|_| DropReason::NoBuffer)
    }

    /// Reads the addresses of a frame; for a VLAN-aware bridge, moves its tag into the
    /// metadata. Returns the keys and the VLAN, or why the frame is dropped without a look at its
    /// source.
    #[inline]
    fn parse<const VLANS: bool, R: RxQueue, T: TxQueue>(
        ingress: usize,
        packet: &mut Packet,
        ports: &mut Ports<R, T, PortState>,
    ) -> Result<(u64, u64, u16), DropReason> {
        if packet.linear().len() < TAGGED_HEADER {
            Bridge::make_header_linear(ingress, packet, ports)?;
        }
        let header = packet.linear().first_chunk().ok_or(DropReason::Malformed)?;
        let (destination, source, ethertype) = addresses(header);
        if source & GROUP != 0 || source == 0 {
            return Err(DropReason::Malformed);
        }
        if destination == PAUSE {
            return Err(DropReason::Reserved);
        }
        let mut tci = 0;
        if VLANS {
            let member = ports.get(ingress).map(|port| &port.membership);
            tci = member.and_then(|member| classify(member, packet, ethertype)).ok_or(DropReason::Vlan)?;
        }
        Ok((destination, source, tci))
    }

    /// Decides on every frame of a burst, in order. Returns the port that all of them leave by, if
    /// it is one.
    #[inline]
    fn decide<const VLANS: bool, R: RxQueue, T: TxQueue>(
        &mut self,
        ingress: usize,
        burst: &mut Batch,
        ports: &mut Ports<R, T, PortState>,
        tick: u32,
    ) -> Option<usize> {
        let table = self.fdb.table();
        let Burst { from, to, tci: tcis, decisions } = &mut *self.burst;
        for (at, packet) in burst.as_mut_slice().iter_mut().enumerate().take(BURST) {
            match Bridge::parse::<VLANS, R, T>(ingress, packet, ports) {
                Ok((destination, source, tci)) => {
                    let is_group = destination & GROUP != 0;
                    decisions[at] = if is_group { of_group(destination) } else { Decision::NONE };
                    from[at] = table.probe(Key::new(tci, source));
                    to[at] = table.probe(Key::new(tci, destination));
                    table.prefetch(&from[at]);
                    table.prefetch(&to[at]);
                    tcis[at] = tci;
                }
                Err(reason) => (decisions[at], from[at]) = (Decision::drop(reason), Probe::ZERO),
            }
        }
        let (reach, mut learned, mut others) = (&self.reach[ingress], Key::ZERO, 0);
        let n = burst.len().min(BURST);
        for at in 0..n {
            let source = &from[at];
            if source.key() != learned && source.key() != Key::ZERO {
                table.learn(source, ingress, tick);
                learned = source.key();
            }
            if decisions[at] == Decision::NONE {
                decisions[at] = match table.lookup(&to[at]) {
                    None => Decision::flood(FloodKind::Unknown),
                    Some(port) if !reach.contains(port) => out_of_reach(ingress, port, ports),
                    Some(port) if VLANS && !is_member(ports, port, tcis[at]) => Decision::drop(DropReason::Vlan),
                    Some(port) => Decision(port as u16),
                };
            }
            others |= decisions[at].0 ^ decisions[0].0;
        }
        (!VLANS && others == 0 && decisions[0].is_port()).then_some(decisions[0].0.into())
    }

    /// Sends frame `at` to its port, or floods or drops it.
    #[inline]
    fn dispatch<R: RxQueue, T: TxQueue>(
        &mut self,
        ingress: usize,
        at: usize,
        packet: Packet,
        ports: &mut Ports<R, T, PortState>,
        now: Instant,
    ) {
        match self.burst.decisions[at].to() {
            To::Port(to) => self.send(ingress, at, to, packet, ports),
            To::Drop(reason) => ports.drop(ingress, reason, packet),
            To::Flood(kind) => self.flood(ingress, at, packet, kind, ports, now),
        }
    }

    /// Sends frame `at`, or a copy of it, to a port.
    #[inline]
    fn send<R: RxQueue, T: TxQueue>(
        &self,
        ingress: usize,
        at: usize,
        to: usize,
        mut packet: Packet,
        ports: &mut Ports<R, T, PortState>,
    ) {
        if self.is_vlan_aware {
            match Bridge::tag(ingress, packet, self.burst.tci[at], to, ports) {
                Some(tagged) => packet = tagged,
                None => return,
            }
        }
        ports.send(ingress, to, packet);
    }

    /// Gives a packet the tag that it leaves with. A packet that can't have it is dropped by name.
    #[inline]
    fn tag<R: RxQueue, T: TxQueue>(
        ingress: usize,
        mut packet: Packet,
        tci: u16,
        to: usize,
        ports: &mut Ports<R, T, PortState>,
    ) -> Option<Packet> {
        let vlan = tci & 0xfff;
        let strips = ports.get(to).is_some_and(|port| port.membership.strips(vlan));
        let service = packet.vlan().is_some_and(|tag| tag.service);
        if strips {
            if !service {
                packet.set_vlan(None);
            }
            return Some(packet);
        }
        if service {
            match ports.insert_vlan(ingress, packet) {
                Ok(inserted) => packet = inserted,
                Err((reason, packet)) => {
                    ports.drop(ingress, reason, packet);
                    return None;
                }
            }
        }
        packet.set_vlan(Some(Vlan { tci, service: false }));
        Some(packet)
    }

    /// Sends frame `at` to every other port that may have it.
    fn flood<R: RxQueue, T: TxQueue>(
        &mut self,
        ingress: usize,
        at: usize,
        packet: Packet,
        kind: FloodKind,
        ports: &mut Ports<R, T, PortState>,
        now: Instant,
    ) {
        if !ports.get_mut(ingress).is_some_and(|from| from.storm.grants(kind, now)) {
            return ports.drop(ingress, DropReason::Storm, packet);
        }
        let mut targets = std::mem::take(&mut self.targets);
        targets.clear();
        let (reach, vlan) = (&self.reach[ingress], self.burst.tci[at] & 0xfff);
        let may = |number: usize| reach.contains(number) && (!self.is_vlan_aware || is_member(ports, number, vlan));
        targets.extend(ports.members().iter().copied().filter(|number| may(usize::from(*number))));
        match targets.split_last() {
            None => ports.drop(ingress, DropReason::NoEgress, packet),
            Some((last, others)) => {
                let (mut copies, mut lost) = (0, 0);
                for &to in others {
                    match ports.cache(ingress).and_then(|cache| packet.duplicate(cache)) {
                        Some(copy) => {
                            copies += 1;
                            self.send(ingress, at, to.into(), copy, ports);
                        }
                        None => lost += 1,
                    }
                }
                ports.flooded(ingress, copies, lost);
                self.send(ingress, at, usize::from(*last), packet, ports);
            }
        }
        self.targets = targets;
    }

    /// Brings the reach of an ingress up to date.
    #[inline]
    fn update_reach<R: RxQueue, T: TxQueue>(&mut self, ingress: usize, ports: &Ports<R, T, PortState>) {
        if self.reach.len() <= ingress {
            self.reach.resize(ingress + 1, Reach::NONE);
        }
        if self.reach[ingress].version != ports.version() {
            self.reach[ingress].derive(ingress, ports);
        }
    }
}

/// Whether a port is a member of the VLAN of a frame.
#[inline]
fn is_member<R, T>(ports: &Ports<R, T, PortState>, number: usize, tci: u16) -> bool {
    ports.get(number).is_some_and(|port| port.membership.contains(tci & 0xfff))
}

/// The VLAN and priority of a received frame; its tag, in its bytes or beside them, is in its
/// metadata only afterwards, or gone. `None` if the port is no member.
#[inline]
fn classify(member: &Membership, packet: &mut Packet, ethertype: u64) -> Option<u16> {
    let beside = packet.vlan();
    match beside {
        Some(tag) if !tag.service => return member.classify(Some(tag.tci)),
        // A service tag is payload, and so is what follows it.
        Some(_) => return member.classify(None),
        None if ethertype != TAG => return member.classify(None),
        None => {}
    }
    let bytes = packet.linear_mut();
    let &[high, low] = bytes.get(ethernet::HEADER_LEN..ethernet::HEADER_LEN + 2)?.first_chunk()?;
    let tci = member.classify(Some(u16::from_be_bytes([high, low])))?;
    bytes.copy_within(..ethernet::HEADER_LEN - 2, TAGGED_HEADER - ethernet::HEADER_LEN);
    packet.pull_front(TAGGED_HEADER - ethernet::HEADER_LEN).then_some(tci)
}

impl Switch for Bridge {
    type Port = PortState;

    fn forward<R: RxQueue, T: TxQueue>(
        &mut self,
        ingress: usize,
        burst: &mut Batch,
        ports: &mut Ports<R, T, PortState>,
        now: Instant,
    ) {
        let n = burst.len();
        if n == 0 {
            return;
        }
        self.update_reach(ingress, ports);
        burst.iter().for_each(Packet::prefetch_data);
        let tick = self.fdb.tick_of(now);
        let common = if self.is_vlan_aware {
            self.decide::<true, R, T>(ingress, burst, ports, tick)
        } else {
            self.decide::<false, R, T>(ingress, burst, ports, tick)
        };
        if let Some(port) = common {
            return ports.send_all(ingress, port, burst);
        }
        let mut packets = std::mem::take(burst);
        for (at, packet) in packets.drain_front(n).enumerate() {
            self.dispatch(ingress, at, packet, ports, now);
        }
    }

    fn port_down(&mut self, number: usize) {
        self.fdb.flush(number, false);
    }

    #[inline]
    fn tick<R: RxQueue, T: TxQueue>(&mut self, _: &mut Ports<R, T, PortState>, now: Instant) {
        self.fdb.tick(now);
    }
}

#[cfg(test)]
pub(crate) mod tests;
