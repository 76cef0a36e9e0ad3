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

pub mod fdb;
mod storm;
mod vlan;

pub use storm::StormLimits;
pub use vlan::{PortMode, VlanSet};

use crate::hub::{Ports, Switch};
use fdb::{Fdb, Key};
use std::sync::Arc;
use std::time::Instant;
use storm::{FloodKind, StormControl};
use towpath_packet::port::{RxQueue, TxQueue};
use towpath_packet::{Batch, DropReason, Packet, Vlan};
use vlan::Membership;

/// Bytes of an Ethernet header, and of one with a tag.
const HEADER: usize = 14;
const TAGGED_HEADER: usize = 18;
/// The bit of a group address in its 48 bits.
const GROUP: u64 = 1 << 40;
const BROADCAST: u64 = 0xffff_ffff_ffff;
/// The reserved groups but for their last digit, and the one of pause frames.
const RESERVED: u64 = 0x0180_c200_0000;
const PAUSE: u64 = RESERVED | 1;
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

/// What a bridge knows of a port.
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

/// Where a frame goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum To {
    Port(u16),
    Flood(FloodKind),
    Drop(DropReason),
}

/// The addresses of a frame, as keys of the table.
#[derive(Clone, Copy)]
struct Frame {
    from: Key,
    to: Key,
    /// The low 48 bits of the destination.
    destination: u64,
    /// The VLAN and the priority; 0 if the bridge ignores VLANs.
    tci: u16,
    refused: Option<DropReason>,
}

impl Frame {
    const NONE: Frame =
        Frame { from: Key::ZERO, to: Key::ZERO, destination: 0, tci: 0, refused: Some(DropReason::Malformed) };

    fn refused(reason: DropReason) -> Frame {
        Frame { refused: Some(reason), ..Frame::NONE }
    }
}

/// The switch of a learning bridge, one per worker.
pub struct Bridge {
    fdb: Arc<Fdb>,
    is_vlan_aware: bool,
    targets: Vec<u16>,
}

/// The addresses of the two, and the type behind them, in the first 14 bytes.
#[inline]
fn addresses(header: &[u8; HEADER]) -> (u64, u64, u64) {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n] = *header;
    let destination = u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
    let source_and_type = u64::from_be_bytes([g, h, i, j, k, l, m, n]);
    (destination, source_and_type >> 16, source_and_type & 0xffff)
}

impl Bridge {
    /// A switch that shares `fdb` with those of other workers.
    pub fn new(fdb: Arc<Fdb>, is_vlan_aware: bool) -> Bridge {
        Bridge { fdb, is_vlan_aware, targets: Vec::with_capacity(fdb::MAX_PORTS) }
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
        if packet.len() < HEADER {
            return Err(DropReason::Malformed);
        }
        let has_head = ports.cache(ingress).is_some_and(|cache| cache.ensure_head(packet));
        if !has_head {
            return Err(DropReason::NoBuffer);
        }
        packet.make_linear(packet.len().min(TAGGED_HEADER)).map_err(|_| DropReason::NoBuffer)
    }

    /// Reads the addresses of a frame; for a bridge that knows VLANs, moves its tag into the
    /// metadata.
    #[inline]
    fn parse<R: RxQueue, T: TxQueue>(
        &self,
        ingress: usize,
        packet: &mut Packet,
        ports: &mut Ports<R, T, PortState>,
    ) -> Frame {
        if packet.linear().len() < TAGGED_HEADER
            && let Err(reason) = Bridge::make_header_linear(ingress, packet, ports)
        {
            return Frame::refused(reason);
        }
        let Some(header) = packet.linear().first_chunk() else { return Frame::NONE };
        let (destination, source, ethertype) = addresses(header);
        if source & GROUP != 0 || source == 0 {
            return Frame::NONE;
        }
        if destination == PAUSE {
            return Frame::refused(DropReason::Reserved);
        }
        let mut frame =
            Frame { from: Key::new(0, source), to: Key::new(0, destination), destination, tci: 0, refused: None };
        if self.is_vlan_aware {
            let member = ports.get(ingress).map(|port| &port.membership);
            match member.and_then(|member| classify(member, packet, ethertype)) {
                Some(tci) => {
                    (frame.from, frame.to, frame.tci) = (Key::new(tci, source), Key::new(tci, destination), tci);
                }
                None => return Frame::refused(DropReason::Vlan),
            }
        }
        // After the VLAN, so that the source of a reserved frame is learned where it is.
        if destination & !0xf == RESERVED && destination != RESERVED {
            frame.refused = Some(DropReason::Reserved);
        }
        frame
    }

    /// Where a frame goes. Its source is known by now.
    #[inline]
    fn decide<R: RxQueue, T: TxQueue>(
        &self,
        ingress: usize,
        frame: &Frame,
        ports: &Ports<R, T, PortState>,
        from: &PortState,
    ) -> To {
        if frame.destination & GROUP != 0 {
            let is_broadcast = frame.destination == BROADCAST;
            return To::Flood(if is_broadcast { FloodKind::Broadcast } else { FloodKind::Multicast });
        }
        let Some(to) = self.fdb.lookup(frame.to) else { return To::Flood(FloodKind::Unknown) };
        if to == ingress {
            return To::Drop(DropReason::SamePort);
        }
        let Some(port) = ports.get(to) else { return To::Flood(FloodKind::Unknown) };
        if from.group != 0 && from.group == port.group {
            return To::Drop(DropReason::NoEgress);
        }
        if self.is_vlan_aware && !port.membership.contains(frame.tci & 0xfff) {
            return To::Drop(DropReason::Vlan);
        }
        To::Port(to as u16)
    }

    /// Sends a frame to its port, or floods or drops it.
    #[inline]
    fn dispatch<R: RxQueue, T: TxQueue>(
        &mut self,
        ingress: usize,
        mut packet: Packet,
        frame: &Frame,
        to: To,
        ports: &mut Ports<R, T, PortState>,
        now: Instant,
    ) {
        match to {
            To::Port(to) => {
                let to = usize::from(to);
                if self.is_vlan_aware {
                    match Bridge::tag(ingress, packet, frame, to, ports) {
                        Some(tagged) => packet = tagged,
                        None => return,
                    }
                }
                ports.send(to, packet);
            }
            To::Drop(reason) => ports.drop(ingress, reason, packet),
            To::Flood(kind) => self.flood(ingress, packet, frame, kind, ports, now),
        }
    }

    /// Gives a packet the tag that it leaves with. A packet that can't have it is dropped by name.
    #[inline]
    fn tag<R: RxQueue, T: TxQueue>(
        ingress: usize,
        mut packet: Packet,
        frame: &Frame,
        to: usize,
        ports: &mut Ports<R, T, PortState>,
    ) -> Option<Packet> {
        let vlan = frame.tci & 0xfff;
        let strips = ports.get(to).is_some_and(|port| port.membership.strips(vlan));
        let service = packet.vlan().is_some_and(|tag| tag.service);
        if strips {
            if !service {
                packet.set_vlan(None);
            }
            return Some(packet);
        }
        if service {
            match ports.insert_tag(ingress, packet) {
                Ok(inserted) => packet = inserted,
                Err((reason, packet)) => {
                    ports.drop(ingress, reason, packet);
                    return None;
                }
            }
        }
        packet.set_vlan(Some(Vlan { tci: frame.tci, service: false }));
        Some(packet)
    }

    /// Sends a frame to every other port that may have it.
    fn flood<R: RxQueue, T: TxQueue>(
        &mut self,
        ingress: usize,
        packet: Packet,
        frame: &Frame,
        kind: FloodKind,
        ports: &mut Ports<R, T, PortState>,
        now: Instant,
    ) {
        let Some(from) = ports.get_mut(ingress) else { return };
        if !from.storm.grants(kind, now) {
            return ports.drop(ingress, DropReason::Storm, packet);
        }
        let group = from.group;
        let mut targets = std::mem::take(&mut self.targets);
        targets.clear();
        let may = |number: &u16| {
            usize::from(*number) != ingress
                && ports.get(usize::from(*number)).is_some_and(|port| {
                    (group == 0 || port.group != group)
                        && (!self.is_vlan_aware || port.membership.contains(frame.tci & 0xfff))
                })
        };
        targets.extend(ports.members().iter().copied().filter(may));
        match targets.split_last() {
            None => ports.drop(ingress, DropReason::NoEgress, packet),
            Some((last, others)) => {
                let (mut copies, mut lost) = (0, 0);
                for &to in others {
                    match ports.cache(ingress).and_then(|cache| packet.duplicate(cache)) {
                        Some(copy) => {
                            copies += 1;
                            self.dispatch(ingress, copy, frame, To::Port(to), ports, now);
                        }
                        None => lost += 1,
                    }
                }
                ports.flooded(ingress, copies, lost);
                self.dispatch(ingress, packet, frame, To::Port(*last), ports, now);
            }
        }
        self.targets = targets;
    }
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
    let &[high, low] = bytes.get(HEADER..HEADER + 2)?.first_chunk()?;
    let tci = member.classify(Some(u16::from_be_bytes([high, low])))?;
    bytes.copy_within(..HEADER - 2, TAGGED_HEADER - HEADER);
    packet.pull_front(TAGGED_HEADER - HEADER).then_some(tci)
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
        let mut frames = [Frame::NONE; Batch::<64>::CAPACITY];
        burst.iter().for_each(Packet::prefetch_data);
        for (packet, frame) in burst.as_mut_slice().iter_mut().zip(&mut frames) {
            *frame = self.parse(ingress, packet, ports);
            self.fdb.prefetch(frame.from);
            self.fdb.prefetch(frame.to);
        }
        let Some(from) = ports.get(ingress) else { return };
        let tick = self.fdb.tick_of(now);
        let mut decisions = [To::Drop(DropReason::Malformed); Batch::<64>::CAPACITY];
        let mut learned = Key::ZERO;
        for (frame, to) in frames[..n].iter().zip(&mut decisions) {
            if frame.from != learned && frame.from != Key::ZERO {
                self.fdb.learn(frame.from, ingress, tick);
                learned = frame.from;
            }
            *to = match frame.refused {
                None => self.decide(ingress, frame, ports, from),
                Some(reason) => To::Drop(reason),
            };
        }
        if let (To::Port(to), false) = (decisions[0], self.is_vlan_aware)
            && decisions[1..n].iter().all(|other| *other == decisions[0])
        {
            return ports.send_all(usize::from(to), burst);
        }
        let mut packets = std::mem::take(burst);
        for ((packet, frame), to) in packets.drain_front(n).zip(&frames).zip(decisions) {
            self.dispatch(ingress, packet, frame, to, ports, now);
        }
    }

    fn port_down(&mut self, number: usize) {
        self.fdb.flush(number, false);
    }

    #[inline]
    fn tick(&mut self, now: Instant) {
        self.fdb.tick(now);
    }
}

#[cfg(test)]
pub(crate) mod tests;
