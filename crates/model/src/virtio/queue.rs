//! A virtqueue from the device's side (virtio 1.2 §2.7 split, §2.8 packed): one chain at a time, in
//! memory as the driver left it.

use super::faults::Injector;
use crate::iommu::Transfer;
use crate::violation::{Ring, Violation, Violations};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// Flags of a descriptor.
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// A buffer of a chain.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    pub(super) addr: u64,
    pub(super) len: u32,
    pub(super) writable: bool,
}

/// A chain of buffers.
#[derive(Debug)]
pub(super) struct Chain {
    id: u16,
    /// Descriptors of a packed ring.
    slots: u16,
    pub(super) pieces: Vec<Piece>,
}

impl Chain {
    /// Bytes that the device may write.
    pub(super) fn room(&self) -> usize {
        self.pieces.iter().filter(|piece| piece.writable).map(|piece| piece.len as usize).sum()
    }
}

/// The driver broke a rule of the ring, or its memory is not mapped: the device can't go on.
#[derive(Debug)]
pub(super) struct Broken;

/// What the features mean for a queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct Features {
    pub(super) packed: bool,
    pub(super) indirect: bool,
    pub(super) event_idx: bool,
    pub(super) in_order: bool,
}

impl Features {
    pub(super) fn of(bits: u64) -> Features {
        let has = |bit: u32| bits >> bit & 1 == 1;
        Features { packed: has(34), indirect: has(28), event_idx: has(29), in_order: has(35) }
    }
}

/// A position in a packed ring, with its wrap counter; in a split one, the index alone counts.
type Position = (u16, bool);

/// A queue that runs.
#[derive(Debug)]
pub(super) struct Queue {
    ring: Ring,
    size: u16,
    /// Addresses of the descriptor, driver and device areas.
    desc: u64,
    driver: u64,
    device: u64,
    features: Features,
    avail: Position,
    used: Position,
    /// Ids of the chains that the device has.
    out: HashSet<u16>,
    /// Positions that were used since the last message.
    since: Vec<Position>,
    /// The next head of a ring that is used in order.
    next_head: u16,
    violations: Arc<Violations>,
}

impl Queue {
    pub(super) fn new(
        ring: Ring,
        size: u16,
        [desc, driver, device]: [u64; 3],
        features: Features,
        violations: Arc<Violations>,
    ) -> Queue {
        let (avail, used) = ((0, true), (0, true));
        let (out, since, next_head) = (HashSet::new(), Vec::new(), 0);
        Queue { ring, size, desc, driver, device, features, avail, used, out, since, next_head, violations }
    }

    fn breach<T>(&self, index: u16, rule: &'static str) -> Result<T, Broken> {
        self.violations.report(Violation::Transmit { ring: self.ring, index: index.into(), rule });
        Err(Broken)
    }

    fn rule(&self, holds: bool, index: u16, rule: &'static str) -> Result<(), Broken> {
        if holds { Ok(()) } else { self.breach(index, rule) }
    }

    /// The position `n` behind.
    fn ahead(&self, (index, wrap): Position, n: u16) -> Position {
        let next = u32::from(index) + u32::from(n);
        if next >= self.size.into() { ((next - u32::from(self.size)) as u16, !wrap) } else { (next as u16, wrap) }
    }

    /// Takes the next chain that is available.
    pub(super) fn take(&mut self, transfer: &mut Transfer<'_>) -> Result<Option<Chain>, Broken> {
        let taken = if self.features.packed { self.take_packed(transfer) } else { self.take_split(transfer) }?;
        let Some(chain) = taken else { return Ok(None) };
        let mut writable = false;
        for piece in &chain.pieces {
            self.rule(piece.writable || !writable, chain.id, "a buffer to read behind one to write (2.7.4.2)")?;
            writable = piece.writable;
            transfer.own(piece.addr, piece.len as usize);
        }
        let within = chain.pieces.len() <= self.size.into();
        self.rule(within, chain.id, "a chain is longer than the queue (2.7.5.3.1)")?;
        let is_new = self.out.insert(chain.id);
        self.rule(is_new, chain.id, "a chain is available that the device has (2.7.13)")?;
        Ok(Some(chain))
    }

    fn take_split(&mut self, transfer: &mut Transfer<'_>) -> Result<Option<Chain>, Broken> {
        let available = transfer.load_half(self.driver + 2).ok_or(Broken)?;
        let (at, _) = self.avail;
        if available == at {
            return Ok(None);
        }
        let ahead = available.wrapping_sub(at) as usize + self.out.len();
        self.rule(ahead <= self.size.into(), at, "more chains are available than the queue has (2.7.6)")?;
        let mut head = [0; 2];
        let slot = u64::from(at % self.size);
        transfer.read(self.driver + 4 + 2 * slot, &mut head).map_err(|_| Broken)?;
        let head = u16::from_le_bytes(head);
        if self.features.in_order {
            self.rule(head == self.next_head, head, "descriptors are not used in the order of the ring (2.7.9)")?;
        }
        let pieces = self.follow_split(transfer, head)?;
        self.avail.0 = at.wrapping_add(1);
        if self.features.event_idx {
            // Each further chain is to be announced.
            transfer.store_half(self.device + 4 + 8 * u64::from(self.size), self.avail.0);
        }
        Ok(Some(Chain { id: head, slots: 1, pieces }))
    }

    /// A descriptor: address, length, flags, and its last field.
    fn descriptor(transfer: &mut Transfer<'_>, at: u64) -> Result<(u64, u32, u16, u16), Broken> {
        let mut bytes = [0; 16];
        transfer.read(at, &mut bytes).map_err(|_| Broken)?;
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = bytes;
        let half = |low, high| u16::from_le_bytes([low, high]);
        Ok((u64::from_le_bytes([a, b, c, d, e, f, g, h]), u32::from_le_bytes([i, j, k, l]), half(m, n), half(o, p)))
    }

    fn follow_split(&mut self, transfer: &mut Transfer<'_>, head: u16) -> Result<Vec<Piece>, Broken> {
        let (mut table, mut len, mut at) = (self.desc, u64::from(self.size), head);
        let (mut pieces, mut steps, mut direct) = (Vec::new(), 0, 0);
        loop {
            self.rule(u64::from(at) < len, at, "an index beyond its table (2.7.5)")?;
            let (addr, bytes, flags, next) = Self::descriptor(transfer, table + 16 * u64::from(at))?;
            direct += u32::from(table == self.desc);
            steps += 1;
            self.rule(steps <= 65_536, at, "a chain without an end (2.7.5)")?;
            if flags & INDIRECT != 0 {
                let may = self.features.indirect && table == self.desc;
                self.rule(may, at, "an indirect table that was not negotiated, or in another (2.7.5.3.1)")?;
                self.rule(flags & NEXT == 0, at, "an indirect table with a next descriptor (2.7.5.3.1)")?;
                self.rule(bytes > 0 && bytes % 16 == 0, at, "the length of an indirect table (2.7.5.3)")?;
                (table, len, at) = (addr, u64::from(bytes / 16), 0);
                continue;
            }
            pieces.push(Piece { addr, len: bytes, writable: flags & WRITE != 0 });
            if flags & NEXT == 0 {
                break;
            }
            at = next;
        }
        self.next_head = (u32::from(head) + direct).rem_euclid(self.size.into()) as u16;
        Ok(pieces)
    }

    fn take_packed(&mut self, transfer: &mut Transfer<'_>) -> Result<Option<Chain>, Broken> {
        let (mut pieces, mut slots, first) = (Vec::new(), 0, self.avail);
        let id = loop {
            let (index, wrap) = self.ahead(first, slots);
            let at = self.desc + 16 * u64::from(index);
            let seen = transfer.load_half(at + 14).ok_or(Broken)?;
            let is_available = (seen >> 7 & 1 == 1) == wrap && (seen >> 15 & 1 == 1) != wrap;
            if !is_available {
                // The first one is made available last.
                self.rule(slots == 0, index, "a chain that is available without its end (2.8.16)")?;
                return Ok(None);
            }
            let (addr, bytes, id, flags) = Self::descriptor(transfer, at)?;
            slots += 1;
            self.rule(slots <= self.size, index, "a chain without an end (2.8.5)")?;
            if flags & INDIRECT != 0 {
                self.rule(self.features.indirect, index, "an indirect table that was not negotiated (2.8.7)")?;
                self.rule(flags & NEXT == 0 && slots == 1, index, "an indirect table in a chain (2.8.19)")?;
                self.rule(bytes > 0 && bytes % 16 == 0, index, "the length of an indirect table (2.8.7)")?;
                for entry in 0..u64::from(bytes / 16).min(u64::from(self.size) + 1) {
                    let (addr, len, _, flags) = Self::descriptor(transfer, addr + 16 * entry)?;
                    self.rule(flags & INDIRECT == 0, index, "an indirect table in another (2.8.19)")?;
                    pieces.push(Piece { addr, len, writable: flags & WRITE != 0 });
                }
                break id;
            }
            pieces.push(Piece { addr, len: bytes, writable: flags & WRITE != 0 });
            if flags & NEXT == 0 {
                break id;
            }
        };
        self.avail = self.ahead(first, slots);
        Ok(Some(Chain { id, slots, pieces }))
    }

    /// Returns a chain, of which `len` bytes were written.
    pub(super) fn put(
        &mut self,
        transfer: &mut Transfer<'_>,
        chain: &Chain,
        len: usize,
        injector: &mut Injector,
    ) -> Result<(), Broken> {
        for piece in &chain.pieces {
            transfer.disown(piece.addr, piece.len as usize);
        }
        self.out.remove(&chain.id);
        let id = if injector.happens(|f| f.used_id) { injector.seed.next() as u16 } else { chain.id };
        let over = injector.happens(|f| f.used_len);
        let len = if over { (chain.room() + 1 + injector.seed.below(100_000)) as u32 } else { len as u32 };
        let (index, wrap) = self.used;
        let done = if self.features.packed {
            let at = self.desc + 16 * u64::from(index);
            let [a, b, c, d] = len.to_le_bytes();
            let [e, f] = id.to_le_bytes();
            let flags = if wrap { 1 << 7 | 1 << 15 } else { 0 } | if len > 0 { WRITE } else { 0 };
            let written = transfer.write(at + 8, &[a, b, c, d, e, f]).is_ok();
            (0..chain.slots).for_each(|n| self.since.push(self.ahead(self.used, n)));
            self.used = self.ahead(self.used, chain.slots);
            written && transfer.store_half(at + 14, flags)
        } else {
            let at = self.device + 4 + 8 * u64::from(index % self.size);
            let [a, b] = id.to_le_bytes();
            let [e, f, g, h] = len.to_le_bytes();
            let written = transfer.write(at, &[a, b, 0, 0, e, f, g, h]).is_ok();
            self.since.push((index, true));
            self.used.0 = index.wrapping_add(1);
            written && transfer.store_half(self.device + 2, self.used.0)
        };
        if done { Ok(()) } else { Err(Broken) }
    }

    /// Whether the driver requests a message for what was used since the last one.
    pub(super) fn wants_message(&mut self, transfer: &mut Transfer<'_>) -> bool {
        if self.since.is_empty() {
            return false;
        }
        // Used chains come before the look at what the driver requests (2.7.10, 2.8.10).
        fence(Ordering::SeqCst);
        let half = |transfer: &mut Transfer<'_>, at: u64| transfer.load_half(at).unwrap_or(0);
        let wants = match (self.features.packed, self.features.event_idx) {
            (false, false) => half(transfer, self.driver) & 1 == 0,
            (false, true) => {
                let event = half(transfer, self.driver + 4 + 2 * u64::from(self.size));
                self.since.contains(&(event, true))
            }
            (true, _) => match half(transfer, self.driver + 2) & 3 {
                0 => true,
                2 => {
                    let event = half(transfer, self.driver);
                    self.since.contains(&(event & 0x7fff, event >> 15 == 1))
                }
                _ => false,
            },
        };
        self.since.clear();
        wants
    }

    /// Returns the memory of chains that the device has.
    pub(super) fn drop_chains<'a>(transfer: &mut Transfer<'_>, chains: impl IntoIterator<Item = &'a Chain>) {
        for piece in chains.into_iter().flat_map(|chain| &chain.pieces) {
            transfer.disown(piece.addr, piece.len as usize);
        }
    }
}
