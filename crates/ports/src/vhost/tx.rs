//! The transmit queue of the port: packets, copied into the buffers of the guest's receive ring.
//!
//! ```text
//!   packet ──► [header 12][frame …………]                       one chain
//!          ──► [header 12][frame …] [frame ……] [frame …]     several, if the guest merges them
//!               └ num_buffers, written last
//! ```
//!
//! Each byte is copied once, into the guest's buffers. A packet for which chains are missing stays
//! in the batch, and the chains in the ring.

use super::ring::{DirtyLog, Ring, RingSlot};
use crate::vnet::{self, DATA_VALID, VnetHeader};
use std::sync::Arc;
use towpath_engine::software_offload::needs_software;
use towpath_packet::port::{State, TxQueue};
use towpath_packet::{Batch, Cache, Checksum, Counters, DropReason, Offloads, Packet, UntrustedBytes};
use towpath_virtio::{Piece, RegionPlace, Regions, RingError, Single, Token};
use towpath_wire::ethernet::{self, MAX_PACKET};
use towpath_wire::virtio_net::feature;

/// Chains that are taken ahead of the copies into them.
const AHEAD: usize = 8;
/// Chains after which the guest may begin with those before: half of a burst of most drivers, so
/// that either side works on one half.
const PART: usize = 2 * AHEAD;
/// Bytes of a cache line.
const LINE: usize = 64;

/// A transmit queue of the port: the receive queue of a guest.
#[derive(Debug)]
pub struct VhostTx {
    slot: Arc<RingSlot>,
    cache: Cache,
    /// What a guest may acknowledge.
    offered: Offloads,
    /// What the guest acknowledged.
    acked: Offloads,
    /// Why packets are dropped, if they are.
    down: Option<&'static str>,
    counters: Arc<Counters>,
}

impl VhostTx {
    /// The queue that fills the ring in `slot`; `offered` are the feature bits that a guest may
    /// acknowledge.
    pub(super) fn new(slot: Arc<RingSlot>, cache: Cache, offered: u64) -> VhostTx {
        let offered = guest_offloads(offered);
        let down = Some(super::NO_GUEST);
        VhostTx { slot, cache, offered, acked: offered, down, counters: Arc::default() }
    }
}

/// Drops all packets: none can be delivered.
#[cold]
fn drop_all(batch: &mut Batch, cache: &mut Cache, counters: &Counters) -> usize {
    let n = batch.len();
    counters.dropped(DropReason::LinkDown, n as u64);
    cache.free_bulk(batch);
    n
}

/// The offloads of packets that a guest with these features takes as they are.
fn guest_offloads(features: u64) -> Offloads {
    let kinds = [
        (feature::GUEST_CSUM, Offloads::CSUM),
        (feature::GUEST_CSUM | feature::GUEST_TSO4, Offloads::TSO4),
        (feature::GUEST_CSUM | feature::GUEST_TSO6, Offloads::TSO6),
        (feature::GUEST_CSUM | feature::GUEST_ECN, Offloads::TSO_ECN),
        (feature::GUEST_CSUM | feature::GUEST_USO4 | feature::GUEST_USO6, Offloads::USO),
    ];
    let has = |bits: u64| features & bits == bits;
    kinds.into_iter().filter(|&(bits, _)| has(bits)).fold(Offloads::NONE, |all, (_, kind)| all.with(kind))
}

impl TxQueue for VhostTx {
    fn tx(&mut self, batch: &mut Batch) -> usize {
        if batch.is_empty() {
            return 0;
        }
        let VhostTx { slot, cache, offered, acked: known, down, counters } = self;
        let Some(mut taken) = slot.take() else { return 0 };
        let (still, ring) = match taken.ring() {
            None => (Some(super::NO_GUEST), None),
            Some(ring) => (ring.stands_still(), Some(ring)),
        };
        *down = still;
        let Some(ring) = ring.filter(|_| still.is_none()) else { return drop_all(batch, cache, counters) };
        let acked = guest_offloads(ring.setup.features).and(*offered);
        if acked != *known {
            // Another guest: what it can't take is finished by software first.
            *known = acked;
            if batch.iter().any(|packet| needs_software(packet, acked)) {
                return 0;
            }
        }
        let mut fill = Fill::new(ring, acked);
        if let Err(error) = fill.deliver_all(batch.as_slice(), counters) {
            fill.ring.breaks(error, slot.events());
        }
        let Fill { done, sent, bytes, .. } = fill;
        ring.publish(slot.events());
        drop(taken);
        if sent > 0 {
            counters.moved(sent, bytes);
        }
        if done < batch.len() {
            counters.retried(1);
        }
        cache.free_first(batch, done);
        done
    }

    fn offloads(&self) -> Offloads {
        self.acked
    }

    fn max_offloads(&self) -> Offloads {
        self.offered
    }

    fn state(&self) -> State {
        self.down.map_or(State::Up, |why| State::Down(why.into()))
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}

/// The result for one packet.
enum Outcome {
    Sent,
    Dropped(DropReason),
    /// It stays in the batch: chains are missing.
    Kept,
    /// It stays in the batch: the guest broke a rule.
    Broken(RingError),
}

/// What a burst fills buffers with.
struct Fill<'a> {
    ring: &'a mut Ring,
    acked: Offloads,
    header_len: usize,
    mergeable: bool,
    /// Packets go into chains of one piece without further ado: a header of 12 bytes, no log.
    short_way: bool,
    /// Packets that were sent or dropped.
    done: usize,
    sent: u64,
    bytes: u64,
    /// Chains that took the short way since the guest was shown some.
    part: usize,
}

impl<'a> Fill<'a> {
    fn new(ring: &'a mut Ring, acked: Offloads) -> Fill<'a> {
        let (header_len, mergeable) = (ring.header_len(), ring.has(feature::MRG_RXBUF));
        let short_way = header_len == VnetHeader::LEN_V1 && ring.setup.log.is_none();
        Fill { ring, acked, header_len, mergeable, short_way, done: 0, sent: 0, bytes: 0, part: 0 }
    }

    /// Delivers packets until one has to stay.
    #[inline]
    fn deliver_all(&mut self, packets: &[Packet], counters: &Counters) -> Result<(), RingError> {
        let mut singles = [Single::vacant(RegionPlace { region: 0, offset: 0 }); AHEAD];
        while self.done < packets.len() {
            let most = (packets.len() - self.done).min(AHEAD);
            if self.short_way {
                let Ring { device, setup, .. } = &mut *self.ring;
                let n = device.take_singles(&setup.memory, true, &mut singles[..most]);
                if n > 0 && self.fill(&singles[..n], packets, counters) == most {
                    continue;
                }
            }
            // No chain is left, or the next one is not a single piece in which the packet fits.
            let Some(packet) = packets.get(self.done) else { break };
            match self.deliver(packet) {
                Outcome::Sent => self.count_sent(packet),
                Outcome::Dropped(reason) => self.count_drop(reason, packet, counters),
                Outcome::Kept => break,
                Outcome::Broken(error) => return Err(error),
            }
        }
        Ok(())
    }

    #[inline]
    fn count_sent(&mut self, packet: &Packet) {
        self.done += 1;
        self.sent += 1;
        self.bytes += packet.len() as u64;
    }

    #[cold]
    fn count_drop(&mut self, reason: DropReason, packet: &Packet, counters: &Counters) {
        self.done += 1;
        counters.dropped_packet(reason, packet);
    }

    /// Copies packets into chains of one buffer, as long as they fit. Returns the number of chains;
    /// the others are available again.
    #[inline]
    fn fill(&mut self, singles: &[Single<RegionPlace>], packets: &[Packet], counters: &Counters) -> usize {
        let Ring { device, setup, .. } = &mut *self.ring;
        let (mut views, mut lens) = ([None; AHEAD], [0; AHEAD]);
        for (single, view) in singles.iter().zip(&mut views) {
            *view = setup.memory.bytes(single.piece);
            view.iter().for_each(prefetch);
        }
        let mut used = 0;
        while let (Some(view), Some(len), Some(packet)) =
            (views.get(used).filter(|_| used < singles.len()), lens.get_mut(used), packets.get(self.done))
        {
            if let Some(next) = packets.get(self.done + AHEAD / 2) {
                next.prefetch_data();
            }
            let total = VnetHeader::LEN_V1 + packet.len();
            let Some(to) = view.filter(|to| to.len() >= total) else { break };
            let header =
                if is_plain(packet) { Ok(plain_header(packet, self.acked)) } else { header(packet, self.acked) };
            match header {
                Ok(header) => {
                    // Most buffers still have this header: their line is not taken from the guest's
                    // core.
                    if to.get(0) != Some(header) {
                        to.set(0, header);
                    }
                    to.write(VnetHeader::LEN_V1, packet, 0, packet.len());
                    *len = total as u32;
                    used += 1;
                    self.done += 1;
                    self.sent += 1;
                    self.bytes += packet.len() as u64;
                }
                Err(reason) => {
                    self.done += 1;
                    counters.dropped_packet(reason, packet);
                }
            }
        }
        let (filled, rest) = singles.split_at(used);
        // The last one first.
        for single in rest.iter().rev() {
            let _ = device.untake(single.token());
        }
        device.add_used_all(filled.iter().zip(lens).map(|(single, len)| (single.token(), len)));
        self.part += used;
        if self.part >= PART {
            device.publish_early();
            self.part = 0;
        }
        used
    }

    /// Copies a packet into the next chain, or chains.
    #[inline(never)]
    fn deliver(&mut self, packet: &Packet) -> Outcome {
        let header = match header(packet, self.acked) {
            Ok(header) => header,
            Err(reason) => return Outcome::Dropped(reason),
        };
        let Ring { device, setup, chain, .. } = &mut *self.ring;
        let token = match device.take(&setup.memory, chain) {
            Ok(Some(token)) => token,
            Ok(None) => return Outcome::Kept,
            Err(error) => return Outcome::Broken(error),
        };
        let total = self.header_len + packet.len();
        let log = setup.log.as_ref().map(|log| &*log.pages);
        let to = Buffers { memory: &setup.memory, pieces: chain.writable(), log };
        if chain.writable_len() as usize >= total {
            to.write(&header[..self.header_len], packet, 0, total);
            device.add_used(token, total as u32);
            return Outcome::Sent;
        }
        if !self.mergeable || (chain.writable_len() as usize) < self.header_len {
            // The next packet may be shorter.
            let _ = device.untake(token);
            return Outcome::Dropped(DropReason::TooLong);
        }
        self.deliver_merged(packet, &header, token)
    }

    /// Copies a packet into the chain of `token`, which was taken last, and as many more as it
    /// needs.
    #[inline(never)]
    fn deliver_merged(&mut self, packet: &Packet, header: &[u8], token: Token) -> Outcome {
        let Fill { ring, header_len, .. } = self;
        let header = header.get(..*header_len).unwrap_or_default();
        let Ring { device, setup, chain, chains, .. } = &mut **ring;
        let (total, log) = (header.len() + packet.len(), setup.log.as_ref().map(|log| &*log.pages));
        // Mergeable buffers have headers of 12 bytes, the number in the last two.
        let number = [10, 11].map(|at| place_of(chain.writable(), at));
        chains.clear();
        let (mut at, mut token) = (0, token);
        let failed = loop {
            let n = (chain.writable_len() as usize).min(total - at);
            let to = Buffers { memory: &setup.memory, pieces: chain.writable(), log };
            to.write(header, packet, at, n);
            at += n;
            chains.push((token, n as u32));
            if at == total {
                break None;
            }
            if chains.len() == chains.capacity() {
                break Some(Outcome::Dropped(DropReason::TooLong));
            }
            token = match device.take(&setup.memory, chain) {
                Ok(Some(token)) => token,
                Ok(None) => break Some(Outcome::Kept),
                Err(error) => break Some(Outcome::Broken(error)),
            };
        };
        if let Some(outcome) = failed {
            for (token, _) in chains.drain(..).rev() {
                let _ = device.untake(token);
            }
            return outcome;
        }
        // The chains of a ring are at most 32768.
        for (place, byte) in number.into_iter().zip((chains.len() as u16).to_le_bytes()) {
            if let Some(place) = place
                && let Some(memory) = setup.memory.memory(place.region)
            {
                memory.set(place.offset, [byte]);
                // It was marked with the header, and may have been copied since.
                if let (Some(log), Some(addr)) = (log, setup.memory.address(place)) {
                    log.mark(addr, 1);
                }
            }
        }
        for (token, len) in chains.drain(..) {
            device.add_used(token, len);
        }
        Outcome::Sent
    }
}

/// Whether any guest takes a packet.
#[inline]
fn is_plain(packet: &Packet) -> bool {
    !packet.wants_offload() && (ethernet::HEADER_LEN..=MAX_PACKET).contains(&packet.len())
}

/// The header of a plain packet, in one chain.
#[inline]
fn plain_header(packet: &Packet, acked: Offloads) -> [u8; VnetHeader::LEN_V1] {
    let verified = packet.csum() == Checksum::Verified && acked.has(Offloads::CSUM);
    let flags = if verified { DATA_VALID } else { 0 };
    let (first, second) = (u64::from(flags).to_le_bytes(), (1u32 << 16).to_le_bytes());
    let mut bytes = [0; VnetHeader::LEN_V1];
    bytes[..8].copy_from_slice(&first);
    bytes[8..].copy_from_slice(&second);
    bytes
}

/// The header of a packet that the guest takes, in one chain; the reason why it does not.
#[cold]
fn header(packet: &Packet, acked: Offloads) -> Result<[u8; VnetHeader::LEN_V1], DropReason> {
    match packet.len() {
        0..ethernet::HEADER_LEN => Err(DropReason::Malformed),
        ethernet::HEADER_LEN..=MAX_PACKET if needs_software(packet, acked) => Err(DropReason::Offload),
        ethernet::HEADER_LEN..=MAX_PACKET if is_plain(packet) => Ok(plain_header(packet, acked)),
        ethernet::HEADER_LEN..=MAX_PACKET => Ok(vnet::header_of(packet)?.to_le_bytes_v1(1)),
        _ => Err(DropReason::TooLong),
    }
}

/// Prefetches the header, mostly to be compared, and the first bytes behind it, to be written: the
/// guest read them last, on another core.
#[inline]
fn prefetch(bytes: &UntrustedBytes<'_>) {
    bytes.prefetch(0);
    bytes.prefetch_write(VnetHeader::LEN_V1);
    bytes.prefetch_write(VnetHeader::LEN_V1 + LINE - 1);
}

/// The place of byte `at` of some buffers.
fn place_of(pieces: &[Piece<RegionPlace>], mut at: usize) -> Option<RegionPlace> {
    for &Piece { place, len } in pieces {
        match at.checked_sub(len as usize) {
            None => return Some(RegionPlace { offset: place.offset + at, ..place }),
            Some(behind) => at = behind,
        }
    }
    None
}

/// The writable buffers of a chain.
struct Buffers<'a> {
    memory: &'a Regions,
    pieces: &'a [Piece<RegionPlace>],
    log: Option<&'a dyn DirtyLog>,
}

impl Buffers<'_> {
    /// Writes `n` bytes of header and packet, from byte `from` of both on, to the first bytes of
    /// the buffers, which have as many.
    #[inline]
    fn write(&self, header: &[u8], packet: &Packet, mut from: usize, mut n: usize) {
        for &Piece { place, len } in self.pieces {
            let Some(memory) = self.memory.memory(place.region).filter(|_| n > 0) else { return };
            let here = n.min(len as usize);
            // The rest of the header, then bytes of the packet.
            let head = header.get(from..).unwrap_or_default();
            let head = head.get(..here).unwrap_or(head);
            if !head.is_empty() {
                memory.put(place.offset, head);
            }
            if here > head.len() {
                let at = from + head.len() - header.len();
                memory.write(place.offset + head.len(), packet, at, here - head.len());
            }
            if let Some(log) = self.log
                && let Some(addr) = self.memory.address(place)
            {
                log.mark(addr, here as u64);
            }
            (from, n) = (from + here, n - here);
        }
    }
}
