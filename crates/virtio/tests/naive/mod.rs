//! The rings of virtio 1.2, sections 2.7 and 2.8, written down a second time: plain loops over
//! bytes in memory, absolute counters, no constant and no code of the crate.

#![allow(dead_code, unreachable_pub, reason = "each test needs a part")]

use std::collections::{BTreeMap, VecDeque};
use towpath_packet::{Backing, Region, UntrustedMem};

/// What the sides call the first byte of the memory.
pub const BASE: u64 = 0x7000_0000;
/// Where the parts of a queue lie, and what follows them.
pub const DESC: usize = 0;
pub const DRIVER: usize = 0x4000;
pub const DEVICE: usize = 0x6004;
pub const TABLES: usize = 0x8000;
pub const DATA: usize = 0x2_0000;
pub const LEN: usize = 0x10_0000;
/// Descriptors of each indirect table.
pub const TABLE: usize = 8;

/// One queue, as negotiated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    pub packed: bool,
    pub n: u16,
    pub indirect: bool,
    pub event_idx: bool,
    pub in_order: bool,
}

impl Shape {
    /// Every combination of formats and features, each with `sizes` of its format.
    pub fn all(split: &[u16], packed: &[u16]) -> Vec<Shape> {
        let mut all = Vec::new();
        for bits in 0..16u8 {
            let is = |bit: u8| bits >> bit & 1 != 0;
            for &n in if is(0) { packed } else { split } {
                all.push(Shape { packed: is(0), n, indirect: is(1), event_idx: is(2), in_order: is(3) });
            }
        }
        all
    }

    /// The feature bits.
    pub fn bits(&self) -> u64 {
        u64::from(self.indirect) << 28 | u64::from(self.event_idx) << 29 | u64::from(self.in_order) << 35
    }
}

/// Memory that both sides access.
#[derive(Debug, Clone)]
pub struct Ram(pub UntrustedMem);

impl Ram {
    pub fn new() -> Ram {
        Ram(UntrustedMem::new(Region::new(LEN, Backing::Memfd).unwrap()))
    }
    pub fn r16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.0.get(at).unwrap())
    }
    pub fn r32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.0.get(at).unwrap())
    }
    pub fn r64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.0.get(at).unwrap())
    }
    pub fn w16(&self, at: usize, value: u16) {
        assert!(self.0.put(at, &value.to_le_bytes()));
    }
    pub fn w32(&self, at: usize, value: u32) {
        assert!(self.0.put(at, &value.to_le_bytes()));
    }
    pub fn w64(&self, at: usize, value: u64) {
        assert!(self.0.put(at, &value.to_le_bytes()));
    }
    fn at(addr: u64) -> usize {
        usize::try_from(addr - BASE).unwrap()
    }
    /// Writes a descriptor: address, length, and its last two fields in the order of the format.
    pub fn desc(&self, at: usize, addr: u64, len: u32, third: u16, fourth: u16) {
        self.w64(at, addr);
        self.w32(at + 8, len);
        self.w16(at + 12, third);
        self.w16(at + 14, fourth);
    }
}

/// A buffer: address, length, and whether the device writes it.
pub type Buffer = (u64, u32, bool);

pub fn writable(chain: &[Buffer]) -> u32 {
    chain.iter().filter(|buffer| buffer.2).map(|buffer| buffer.1).sum()
}

/// Whether `event` is one of the indices from `old` to before `new`.
fn passes(event: u16, old: u64, new: u64) -> bool {
    (old..new).any(|index| index as u16 == event)
}

/// Whether a packed event area asks for a notification about the descriptors from `old` to `new`.
fn packed_asks(ram: &Ram, area: usize, n: u16, old: u64, new: u64) -> bool {
    let (off_wrap, flags) = (ram.r16(area), ram.r16(area + 2));
    let at = |line: u64| {
        let wrap = (line / u64::from(n)).is_multiple_of(2);
        (line % u64::from(n)) as u16 | if wrap { 0x8000 } else { 0 }
    };
    match flags {
        0 => true,
        1 => false,
        2 => (old..new).any(|line| at(line) == off_wrap),
        other => panic!("event flags {other}"),
    }
}

/// A driver.
#[derive(Debug)]
pub struct NaiveDriver {
    pub ram: Ram,
    pub shape: Shape,
    /// Entries (split) or descriptors (packed) that were written, shown, and found used.
    written: u64,
    shown: u64,
    used: u64,
    /// Which descriptors (split) or ids (packed) are taken.
    busy: Vec<bool>,
    cursor: usize,
    free: u16,
    flying: VecDeque<(u16, Vec<usize>, u32)>,
    batch: VecDeque<(u16, u32, u16)>,
    /// Flags of heads that are not shown: where, and what.
    held: Vec<(usize, u16)>,
}

impl NaiveDriver {
    pub fn new(ram: &Ram, shape: Shape) -> NaiveDriver {
        let busy = vec![false; shape.n.into()];
        NaiveDriver {
            ram: ram.clone(),
            shape,
            written: 0,
            shown: 0,
            used: 0,
            busy,
            cursor: 0,
            free: shape.n,
            flying: VecDeque::new(),
            batch: VecDeque::new(),
            held: Vec::new(),
        }
    }

    fn pick(&mut self) -> usize {
        let n = self.busy.len();
        // In order: in a circle. Otherwise the last free one.
        let at = if self.shape.in_order { self.cursor } else { self.busy.iter().rposition(|busy| !busy).unwrap() };
        assert!(!self.busy[at]);
        self.busy[at] = true;
        self.cursor = (at + 1) % n;
        at
    }

    pub fn add(&mut self, chain: &[Buffer]) -> Option<u16> {
        let table = self.shape.indirect && chain.len() > 1 && chain.len() <= TABLE;
        let slots = if table { 1 } else { chain.len() };
        if slots > self.free.into() {
            return None;
        }
        self.free -= slots as u16;
        let write = |is: bool| if is { 2u16 } else { 0 };
        if self.shape.packed {
            let id = self.pick();
            let place = TABLES + id * TABLE * 16;
            let mut rest: Vec<(u64, u32, u16)> = Vec::new();
            for (i, &(addr, len, is)) in chain.iter().enumerate() {
                if table {
                    self.ram.desc(place + 16 * i, addr, len, 0xabcd, write(is));
                } else {
                    rest.push((addr, len, write(is) | u16::from(i + 1 != chain.len())));
                }
            }
            if table {
                rest.push((BASE + place as u64, 16 * chain.len() as u32, 4));
            }
            for (i, (addr, len, flags)) in rest.into_iter().enumerate() {
                let line = self.written + i as u64;
                let at = DESC + 16 * (line % u64::from(self.shape.n)) as usize;
                let wrap = (line / u64::from(self.shape.n)).is_multiple_of(2);
                let flags = flags | if wrap { 0x0080 } else { 0x8000 };
                let old = self.ram.r16(at + 14);
                self.ram.desc(at, addr, len, id as u16, if i == 0 { old } else { flags });
                if i == 0 {
                    self.held.push((at + 14, flags));
                }
            }
            self.written += slots as u64;
            self.flying.push_back((id as u16, vec![id; slots], writable(chain)));
            return Some(id as u16);
        }
        let descs: Vec<usize> = (0..slots).map(|_| self.pick()).collect();
        let place = TABLES + descs[0] * TABLE * 16;
        for (i, &(addr, len, is)) in chain.iter().enumerate() {
            let more = i + 1 != chain.len();
            let next = |i: usize| if table { i } else { descs[i] } as u16;
            let at = if table { place + 16 * i } else { DESC + 16 * descs[i] };
            let next = if more { next(i + 1) } else { 0x7777 };
            self.ram.desc(at, addr, len, write(is) | u16::from(more), next);
        }
        if table {
            self.ram.desc(DESC + 16 * descs[0], BASE + place as u64, 16 * chain.len() as u32, 4, 0x7777);
        }
        let slot = (self.written % u64::from(self.shape.n)) as usize;
        self.ram.w16(DRIVER + 4 + 2 * slot, descs[0] as u16);
        self.written += 1;
        let head = descs[0] as u16;
        self.flying.push_back((head, descs, writable(chain)));
        Some(head)
    }

    pub fn publish(&mut self) -> bool {
        let (old, new) = (self.shown, self.written);
        if old == new {
            return false;
        }
        self.shown = new;
        if self.shape.packed {
            for (at, flags) in std::mem::take(&mut self.held).into_iter().rev() {
                self.ram.w16(at, flags);
            }
            return packed_asks(&self.ram, DEVICE, self.shape.n, old, new);
        }
        self.ram.w16(DRIVER + 2, new as u16);
        if self.shape.event_idx {
            passes(self.ram.r16(DEVICE + 4 + 8 * usize::from(self.shape.n)), old, new)
        } else {
            self.ram.r16(DEVICE) & 1 == 0
        }
    }

    pub fn next_used(&mut self) -> Option<(u16, u32)> {
        if let Some((id, len, slots)) = self.batch.pop_front() {
            self.free += slots;
            return Some((id, len));
        }
        let slot = (self.used % u64::from(self.shape.n)) as usize;
        if !self.has_used() {
            return None;
        }
        let (id, len) = if self.shape.packed {
            (self.ram.r16(DESC + 16 * slot + 12), self.ram.r32(DESC + 16 * slot + 8))
        } else {
            let at = DEVICE + 4 + 8 * slot;
            (u16::try_from(self.ram.r32(at)).unwrap(), self.ram.r32(at + 4))
        };
        loop {
            let which = if self.shape.in_order { 0 } else { self.flying.iter().position(|f| f.0 == id).unwrap() };
            let (this, descs, writable) = self.flying.remove(which).expect("a used chain is in flight");
            self.used += if self.shape.packed { descs.len() as u64 } else { 1 };
            descs.iter().for_each(|&desc| self.busy[desc] = false);
            self.batch.push_back((this, if this == id { len } else { writable }, descs.len() as u16));
            if this == id {
                return self.next_used();
            }
        }
    }

    pub fn free(&self) -> u16 {
        self.free
    }

    pub fn disable_calls(&mut self) {
        if self.shape.packed {
            self.ram.w16(DRIVER + 2, 1);
        } else if !self.shape.event_idx {
            self.ram.w16(DRIVER, 1);
        }
    }

    pub fn enable_calls(&mut self) -> bool {
        let n = u64::from(self.shape.n);
        if self.shape.packed {
            let wrap = (self.used / n).is_multiple_of(2);
            self.ram.w16(DRIVER, (self.used % n) as u16 | if wrap { 0x8000 } else { 0 });
            self.ram.w16(DRIVER + 2, if self.shape.event_idx { 2 } else { 0 });
        } else if self.shape.event_idx {
            self.ram.w16(DRIVER + 4 + 2 * n as usize, self.used as u16);
        } else {
            self.ram.w16(DRIVER, 0);
        }
        !self.batch.is_empty() || self.has_used()
    }

    fn has_used(&self) -> bool {
        if !self.shape.packed {
            return self.ram.r16(DEVICE + 2) != self.used as u16;
        }
        let n = u64::from(self.shape.n);
        let flags = self.ram.r16(DESC + 16 * (self.used % n) as usize + 14);
        let wrap = (self.used / n).is_multiple_of(2);
        (flags & 0x80 != 0) == wrap && (flags & 0x8000 != 0) == wrap
    }
}

/// A chain that a device took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NaiveTaken {
    id: u16,
    slots: u64,
    number: u64,
    writable: u32,
}

/// A device.
#[derive(Debug)]
pub struct NaiveDevice {
    pub ram: Ram,
    pub shape: Shape,
    /// In order: whether a used entry stands for several chains.
    pub batches: bool,
    /// Entries or descriptors taken, written as used, and shown.
    taken: u64,
    used: u64,
    shown: u64,
    /// Chains taken, and the next one to return in order.
    chains: u64,
    next: u64,
    done: BTreeMap<u64, (NaiveTaken, u32)>,
    held: Vec<(usize, u16)>,
}

impl NaiveDevice {
    pub fn new(ram: &Ram, shape: Shape, batches: bool) -> NaiveDevice {
        NaiveDevice {
            ram: ram.clone(),
            shape,
            batches,
            taken: 0,
            used: 0,
            shown: 0,
            chains: 0,
            next: 0,
            done: BTreeMap::new(),
            held: Vec::new(),
        }
    }

    fn buffer(&self, at: usize, flags: u16) -> Buffer {
        (self.ram.r64(at), self.ram.r32(at + 8), flags & 2 != 0)
    }

    fn is_available(&self) -> bool {
        if !self.shape.packed {
            return self.ram.r16(DRIVER + 2) != self.taken as u16;
        }
        let n = u64::from(self.shape.n);
        let flags = self.ram.r16(DESC + 16 * (self.taken % n) as usize + 14);
        let wrap = (self.taken / n).is_multiple_of(2);
        (flags & 0x80 != 0) == wrap && (flags & 0x8000 != 0) != wrap
    }

    pub fn take(&mut self) -> Option<(NaiveTaken, Vec<Buffer>)> {
        if !self.is_available() {
            return None;
        }
        let n = u64::from(self.shape.n);
        let mut chain = Vec::new();
        let (id, slots);
        if self.shape.packed {
            let mut line = self.taken;
            id = loop {
                let at = DESC + 16 * (line % n) as usize;
                let flags = self.ram.r16(at + 14);
                line += 1;
                if flags & 4 != 0 {
                    let (addr, len, _) = self.buffer(at, flags);
                    for i in 0..len as usize / 16 {
                        let entry = Ram::at(addr) + 16 * i;
                        chain.push(self.buffer(entry, self.ram.r16(entry + 14)));
                    }
                } else {
                    chain.push(self.buffer(at, flags));
                }
                if flags & 1 == 0 {
                    break self.ram.r16(at + 12);
                }
            };
            slots = line - self.taken;
        } else {
            id = self.ram.r16(DRIVER + 4 + 2 * (self.taken % n) as usize);
            slots = 1;
            let (mut table, mut index) = (DESC, id);
            loop {
                let at = table + 16 * usize::from(index);
                let flags = self.ram.r16(at + 12);
                if flags & 4 != 0 {
                    assert_eq!(flags & 1, 0);
                    (table, index) = (Ram::at(self.ram.r64(at)), 0);
                    continue;
                }
                chain.push(self.buffer(at, flags));
                if flags & 1 == 0 {
                    break;
                }
                index = self.ram.r16(at + 14);
            }
        }
        self.taken += slots;
        self.chains += 1;
        let taken = NaiveTaken { id, slots, number: self.chains - 1, writable: writable(&chain) };
        Some((taken, chain))
    }

    pub fn untake(&mut self, taken: NaiveTaken) {
        assert_eq!(taken.number, self.chains - 1);
        self.chains -= 1;
        self.taken -= taken.slots;
    }

    pub fn complete(&mut self, taken: NaiveTaken, len: u32) {
        if self.shape.in_order {
            self.done.insert(taken.number, (taken, len));
        } else {
            self.write(taken.id, len, taken.slots);
        }
    }

    fn write(&mut self, id: u16, len: u32, slots: u64) {
        let n = u64::from(self.shape.n);
        let slot = (self.used % n) as usize;
        if self.shape.packed {
            let wrap = (self.used / n).is_multiple_of(2);
            self.ram.w32(DESC + 16 * slot + 8, len);
            self.ram.w16(DESC + 16 * slot + 12, id);
            self.held.push((DESC + 16 * slot + 14, if wrap { 0x8080 } else { 0 }));
        } else {
            self.ram.w32(DEVICE + 4 + 8 * slot, id.into());
            self.ram.w32(DEVICE + 4 + 8 * slot + 4, len);
        }
        self.used += slots;
    }

    pub fn publish(&mut self) -> bool {
        let mut slots = 0;
        while let Some((taken, len)) = self.done.remove(&self.next) {
            self.next += 1;
            slots += taken.slots;
            let goes_on = self.batches && len == taken.writable && self.done.contains_key(&self.next);
            if !goes_on {
                self.write(taken.id, len, slots);
                slots = 0;
            }
        }
        let (old, new) = (self.shown, self.used);
        if old == new {
            return false;
        }
        self.shown = new;
        if self.shape.packed {
            for (at, flags) in std::mem::take(&mut self.held).into_iter().rev() {
                self.ram.w16(at, flags);
            }
            return packed_asks(&self.ram, DRIVER, self.shape.n, old, new);
        }
        self.ram.w16(DEVICE + 2, new as u16);
        if self.shape.event_idx {
            passes(self.ram.r16(DRIVER + 4 + 2 * usize::from(self.shape.n)), old, new)
        } else {
            self.ram.r16(DRIVER) & 1 == 0
        }
    }

    pub fn disable_kicks(&mut self) {
        if self.shape.packed {
            self.ram.w16(DEVICE + 2, 1);
        } else if !self.shape.event_idx {
            self.ram.w16(DEVICE, 1);
        }
    }

    pub fn enable_kicks(&mut self) -> bool {
        let n = u64::from(self.shape.n);
        if self.shape.packed {
            let wrap = (self.taken / n).is_multiple_of(2);
            self.ram.w16(DEVICE, (self.taken % n) as u16 | if wrap { 0x8000 } else { 0 });
            self.ram.w16(DEVICE + 2, if self.shape.event_idx { 2 } else { 0 });
        } else if self.shape.event_idx {
            self.ram.w16(DEVICE + 4 + 8 * n as usize, self.taken as u16);
        } else {
            self.ram.w16(DEVICE, 0);
        }
        self.is_available()
    }
}
