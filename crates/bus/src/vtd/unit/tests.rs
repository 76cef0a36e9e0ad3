//! The unit against a fake register file: the order of commands, and units that do not answer.

use super::*;
use crate::dma::{Access, Iova, Window};
use crate::vtd::address_space::AddressSpace;
use crate::vtd::phys_memory::IdentityMemory;
use crate::vtd::registers::{IQA, PPF, VER};
use crate::vtd::window::SlotWindow;
use std::collections::HashMap;
use std::sync::MutexGuard;
use std::time::Instant;
use towpath_packet::{Backing, Region};

/// How the fake unit behaves.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Behaviour {
    /// It executes every command.
    Normal,
    /// It never reports that translation is enabled.
    NeverEnables,
    /// Its queue has stopped with an error.
    QueueStopped,
    /// It is gone.
    Gone,
}

struct State {
    behaviour: Behaviour,
    registers: HashMap<usize, u32>,
    head: u64,
    /// A thread processes the queue, not the doorbell.
    slow: bool,
    /// The low halves of all descriptors except waits.
    received: Vec<u64>,
    waits: usize,
    /// Translations that devices have used: leaf entries by domain id and page.
    iotlb: HashMap<(u64, u64), u64>,
}

#[derive(Clone)]
struct Fake(Arc<Mutex<State>>);

impl Fake {
    fn new() -> Fake {
        let registers = HashMap::from([(0, 0x10), (8, 0x2226_0206), (12, 0xd2_008c), (16, 0xf0_0f4a)]);
        let behaviour = Behaviour::Normal;
        Fake(Arc::new(Mutex::new(State {
            behaviour,
            registers,
            head: 0,
            slow: false,
            received: vec![],
            waits: 0,
            iotlb: HashMap::new(),
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }

    fn received(&self) -> Vec<u64> {
        std::mem::take(&mut self.state().received)
    }

    /// A device accesses an IOVA; returns the address that it reaches.
    fn access(&self, source: SourceId, iova: Iova) -> Option<u64> {
        self.state().access(source, iova.get())
    }
}

/// A word of the unit's memory.
fn word(at: u64) -> &'static AtomicU64 {
    // SAFETY: `IdentityMemory`: the address is that of a descriptor, of the status word or of a
    // table, which the unit under test holds while it is used here.
    unsafe { &*(at as *const AtomicU64) }
}

impl State {
    /// Processes descriptors until the queue is empty.
    fn process(&mut self) {
        let tail = u64::from(self.registers[&IQT.at()]);
        let base = u64::from(self.registers[&(IQA.at() + 4)]) << 32 | u64::from(self.registers[&IQA.at()]);
        while self.head != tail {
            let at = (base & !0xfff) + self.head;
            let (first, second) = (word(at).load(Ordering::Relaxed), word(at + 8).load(Ordering::Relaxed));
            match first & 0xf {
                5 => {
                    word(second).store(first >> 32, Ordering::Release);
                    self.waits += 1;
                }
                // Of the IOTLB (type 2), by granularity: all, a domain, an aligned block of pages.
                2 => {
                    let (did, mask) = (first >> 16 & 0xffff, second & 0x3f);
                    let block = second >> 12 >> mask;
                    self.iotlb.retain(|&(of, page), _| match first >> 4 & 3 {
                        1 => false,
                        2 => of != did,
                        _ => of != did || page >> mask != block,
                    });
                    self.received.push(first);
                }
                _ => self.received.push(first),
            }
            self.head = (self.head + 16) % PAGE;
        }
    }

    /// Translates an IOVA: by what the IOTLB keeps, else by the tables, whose entry it then keeps.
    fn access(&mut self, source: SourceId, iova: u64) -> Option<u64> {
        let address = |entry: u64| entry & 0x000f_ffff_ffff_f000;
        let entry = |at: u64| Some(word(at).load(Ordering::Acquire)).filter(|entry| entry & 3 != 0);
        let register = |at: usize| u64::from(self.registers.get(&at).copied().unwrap_or(0));
        let root = register(RTADDR.at() + 4) << 32 | register(RTADDR.at());
        let context = address(entry(root + u64::from(source.0 >> 8) * 16)?) + u64::from(source.0 & 0xff) * 16;
        let did = word(context + 8).load(Ordering::Acquire) >> 8 & 0xffff;
        let key = (did, iova / PAGE);
        if let Some(leaf) = self.iotlb.get(&key) {
            return Some(address(*leaf) + iova % PAGE);
        }
        let mut table = address(entry(context)?);
        // Three levels: 39 bits.
        for level in [2, 1, 0] {
            let shift = 12 + 9 * level;
            let found = entry(table + (iova >> shift & 511) * 8)?;
            if level == 0 || found & 1 << 7 != 0 {
                // Of a large page, the entry of the small one.
                let leaf = address(found) + (iova & ((1 << shift) - 1) & !(PAGE - 1));
                self.iotlb.insert(key, leaf);
                return Some(leaf + iova % PAGE);
            }
            table = address(found);
        }
        None
    }
}

impl Mmio for Fake {
    fn len(&self) -> usize {
        LEN
    }

    fn r32(&self, at: usize) -> u32 {
        let state = self.state();
        match (state.behaviour, at) {
            (Behaviour::Gone, _) => u32::MAX,
            (Behaviour::QueueStopped, 0x34) => 0x10,
            _ => state.registers.get(&at).copied().unwrap_or(0),
        }
    }

    fn w32(&self, at: usize, value: u32) {
        let mut state = self.state();
        // WaitStatus bits are cleared by writing ones.
        let cleared = if at == FSTS.at() { state.registers.get(&at).copied().unwrap_or(0) & !value } else { value };
        state.registers.insert(at, cleared);
        if at == GCMD.at() {
            let ignored = if state.behaviour == Behaviour::NeverEnables { TE } else { 0 };
            // One-shot bits are reported until the next command.
            state.registers.insert(GSTS.at(), value & !ignored);
        }
        if at == IQT.at() && state.registers.get(&GSTS.at()).is_some_and(|s| s & QIE != 0) {
            let works = !matches!(state.behaviour, Behaviour::QueueStopped | Behaviour::Gone) && !state.slow;
            if works {
                state.process();
            }
        }
    }
}

const NIC: SourceId = SourceId::new(0, 4, 0);

fn unit(fake: &Fake) -> Unit<Fake, IdentityMemory> {
    Unit::new("fake", fake.clone(), IdentityMemory).unwrap()
}

#[test]
fn translation_is_enabled_last_and_disabled_at_the_end() {
    let fake = Fake::new();
    let unit = unit(&fake);
    assert_eq!(fake.received(), [0x11, 0xd2], "all contexts, then all translations");
    assert_eq!(GSTS.read(&fake) & (TE | QIE), TE | QIE);
    assert_eq!(FECTL.read(&fake), FECTL_MASKED);
    assert!(Unit::<Fake, IdentityMemory>::is_at(&fake));
    drop(unit);
    assert_eq!(GSTS.read(&fake) & (TE | QIE), 0);
    VER.write(&fake, 0);
    assert!(!Unit::<Fake, IdentityMemory>::is_at(&fake));
    assert!(Unit::new("fake", fake, IdentityMemory).err().unwrap().to_string().contains("no remapping unit"));
}

#[test]
fn an_enabled_unit_is_disabled_first() {
    let fake = Fake::new();
    GSTS.write(&fake, TE | QIE);
    let unit = unit(&fake);
    assert_eq!(fake.received(), [0x11, 0xd2]);
    drop(unit);
}

#[test]
fn a_device_is_attached_and_detached_with_its_context_and_its_domain() {
    let fake = Fake::new();
    let unit = unit(&fake);
    fake.received();
    let first = AddressSpace::attach(&unit, NIC).unwrap();
    assert_eq!(fake.received(), [0x20_0000_0031, 0x1_00e2], "the absent entry, then the earlier use of its domain id");
    let error = AddressSpace::attach(&unit, NIC).err().unwrap().to_string();
    assert!(error.contains("has tables already"), "{error}");
    let second = AddressSpace::attach(&unit, SourceId::new(7, 0, 1)).unwrap();
    assert_eq!(fake.received(), [0x701_0000_0031, 0x2_00e2]);
    drop(first);
    assert_eq!(fake.received(), [0x20_0001_0031, 0x1_00e2], "its tables are freed after that, not before");
    assert_eq!(lock(&unit.0.contexts).attached.len(), 1);
    drop((unit, second));
    assert_eq!(fake.received(), [0x701_0002_0031, 0x2_00e2]);
    assert_eq!(GSTS.read(&fake) & TE, 0, "off when its last device is detached");
}

/// Maps `slots` buffers of `bytes` bytes from `offset` of the region on; returns the first and the
/// last byte of each, by IOVA and by address.
fn map_all(
    window: &mut SlotWindow<Fake, IdentityMemory>,
    region: &Region,
    (slots, bytes, offset): (u32, usize, usize),
) -> Vec<(Iova, u64)> {
    let map = |slot: u32| {
        let at = region.at(offset + slot as usize * bytes, bytes).unwrap();
        // SAFETY: the region lives until the test has unmapped and flushed the slot; no device
        // writes.
        let iova = unsafe { window.map(slot, at, bytes, Access::Both) }.unwrap();
        let at = at.addr().get() as u64;
        [(iova, at), (iova.add(bytes - 1), at + bytes as u64 - 1)]
    };
    (0..slots).flat_map(map).collect()
}

#[test]
fn a_device_reaches_an_unmapped_buffer_until_the_flush_and_its_slots_new_buffer_afterwards() {
    let fake = Fake::new();
    let space = AddressSpace::attach(&unit(&fake), NIC).unwrap();
    for (slots, bytes) in [(1, 100), (3, 9000), (64, 2048), (65, 2048), (200, 5000)] {
        let region = Region::new(slots as usize * bytes + 8192, Backing::Anonymous).unwrap();
        let mut window = SlotWindow::new(&space, slots, bytes).unwrap();
        for offset in [0, 4095, 100, 8192] {
            let ends = map_all(&mut window, &region, (slots, bytes, offset));
            let reached = |(iova, at): &&(Iova, u64)| fake.access(NIC, *iova) == Some(*at);
            assert_eq!(ends.iter().filter(reached).count(), ends.len(), "{slots} slots of {bytes} bytes, at {offset}");
            (0..slots).for_each(|slot| window.unmap(slot).unwrap());
            assert_eq!(ends.iter().filter(reached).count(), ends.len(), "they are still cached");
            window.flush_iotlb().unwrap();
            let left = ends.iter().filter(|(iova, _)| fake.access(NIC, *iova).is_some()).count();
            assert_eq!(left, 0, "{slots} slots of {bytes} bytes, at {offset}");
        }
    }
}

#[test]
fn a_flush_returns_only_after_the_unit_has_invalidated() {
    let fake = Fake::new();
    let space = AddressSpace::attach(&unit(&fake), NIC).unwrap();
    let region = Region::new(8 * 2048, Backing::Anonymous).unwrap();
    let mut window = SlotWindow::new(&space, 8, 2048).unwrap();
    let ends = map_all(&mut window, &region, (8, 2048, 0));
    assert!(ends.iter().all(|(iova, at)| fake.access(NIC, *iova) == Some(*at)));
    (0..8).for_each(|slot| window.unmap(slot).unwrap());
    fake.state().slow = true;
    let tail = IQT.read(&fake);
    std::thread::scope(|scope| {
        let flush = scope.spawn(|| {
            window.flush_iotlb().unwrap();
            ends.iter().filter(|(iova, _)| fake.access(NIC, *iova).is_some()).count()
        });
        // The doorbell, or the end of a flush that rings none.
        while IQT.read(&fake) == tail && !flush.is_finished() {
            std::thread::yield_now();
        }
        // Time for a flush that does not wait; little beside what one waits for a unit, also on a
        // busy machine.
        let end = Instant::now() + Duration::from_millis(20);
        while Instant::now() < end && !flush.is_finished() {
            std::thread::yield_now();
        }
        fake.state().process();
        assert_eq!(flush.join().unwrap(), 0, "reached after the flush");
    });
    fake.state().slow = false;
}

#[test]
fn a_device_reaches_no_persistently_mapped_memory_after_its_unmap() {
    let fake = Fake::new();
    let space = AddressSpace::attach(&unit(&fake), NIC).unwrap();
    let region = Region::new(5 << 20, Backing::Anonymous).unwrap();
    // SAFETY: the region lives longer than the mapping; no device writes.
    let iova = unsafe { space.map(region.base(), region.len(), Access::Both) }.unwrap();
    let bytes: Vec<_> = (0..region.len()).step_by(4096).map(|at| iova.add(at)).collect();
    let at = |iova: &Iova| fake.access(NIC, *iova);
    let base = region.base().addr().get() as u64;
    assert!(bytes.iter().all(|byte| at(byte) == Some(base + (byte.get() - iova.get()))));
    space.unmap(iova, region.len()).unwrap();
    assert!(bytes.iter().all(|byte| at(byte).is_none()));
}

/// The ring wraps many times with batches in flight: no descriptor is overwritten before it was
/// processed.
#[test]
fn no_descriptor_of_a_slow_queue_is_lost() {
    let fake = Fake::new();
    let unit = unit(&fake);
    fake.received();
    fake.state().slow = true;
    std::thread::scope(|scope| {
        let threads = [(); 4].map(|()| {
            scope.spawn(|| {
                for n in 1..=300u64 {
                    let page = |i| Invalidation::Pages { did: 9, iova: (n << 20 | i) * PAGE, mask: 0 };
                    // Two batches and one wait.
                    let pages: Vec<_> = (0..n % 120 + 1).map(page).collect();
                    unit.0.invalidate(&pages).unwrap();
                }
            })
        });
        while threads.iter().any(|thread| !thread.is_finished()) {
            fake.state().process();
            std::thread::yield_now();
        }
    });
    fake.state().slow = false;
    assert_eq!(fake.received().len() as u64, (1..=300).map(|n| n % 120 + 1).sum::<u64>() * 4);
    assert_eq!(fake.state().waits as u64, unit.invalidations().batches);
}

#[test]
fn a_command_without_effect_is_named() {
    let fake = Fake::new();
    fake.state().behaviour = Behaviour::NeverEnables;
    let error = Unit::new("fake", fake, IdentityMemory).err().unwrap().to_string();
    assert!(error.contains("enabling translation"), "{error}");
    let fake = Fake::new();
    fake.state().behaviour = Behaviour::Gone;
    assert!(Unit::new("fake", fake.clone(), IdentityMemory).is_err());
}

#[test]
fn an_unconfirmed_unmap_is_an_error_and_its_address_is_not_reused() {
    for behaviour in [Behaviour::QueueStopped, Behaviour::Gone] {
        let fake = Fake::new();
        let unit = unit(&fake);
        let space = AddressSpace::attach(&unit, NIC).unwrap();
        let memory = Region::new(8192, Backing::Anonymous).unwrap();
        // SAFETY: nothing walks the tables of this unit.
        let iova = unsafe { space.map(memory.base(), 4096, Access::Both) }.unwrap();
        let mut window = SlotWindow::new(&space, 4, 2048).unwrap();
        // SAFETY: as above.
        unsafe { window.map(0, memory.base(), 2048, Access::Read) }.unwrap();
        window.unmap(0).unwrap();
        fake.state().behaviour = behaviour;
        assert!(window.flush_iotlb().is_err());
        assert!(space.unmap(iova, 4096).is_err());
        fake.state().behaviour = Behaviour::Normal;
        // SAFETY: as above.
        let next = unsafe { space.map(memory.base(), 4096, Access::Both) }.unwrap();
        assert_ne!(next, iova, "an address that may still be translated is not reused");
    }
}

#[test]
fn what_the_unit_did_not_confirm_is_out_of_a_devices_reach() {
    let fake = Fake::new();
    // Caching mode: also a new entry is invalidated.
    fake.state().registers.insert(8, 0x2226_0286);
    let unit = unit(&fake);
    let space = AddressSpace::attach(&unit, NIC).unwrap();
    let memory = Region::new(8192, Backing::Anonymous).unwrap();
    let mut window = SlotWindow::new(&space, 4, 2048).unwrap();
    // SAFETY: the region outlives the window.
    let iova = unsafe { window.map(0, memory.base(), 2048, Access::Read) }.unwrap();
    assert!(fake.access(NIC, iova).is_some());
    window.unmap(0).unwrap();
    window.flush_iotlb().unwrap();
    fake.state().behaviour = Behaviour::QueueStopped;
    // SAFETY: as above.
    assert!(unsafe { window.map(0, memory.base(), 2048, Access::Read) }.is_err());
    assert_eq!(fake.access(NIC, iova), None);
    let other = SourceId(NIC.0 + 8);
    assert!(AddressSpace::attach(&unit, other).is_err());
    let register = |at: usize| u64::from(fake.state().registers[&at]);
    let root = register(RTADDR.at() + 4) << 32 | register(RTADDR.at());
    let contexts = word(root + u64::from(other.0 >> 8) * 16).load(Ordering::Acquire) & !0xfff;
    assert_eq!(word(contexts + u64::from(other.0 & 0xff) * 16).load(Ordering::Acquire), 0, "no tables");
}

#[test]
fn pages_are_invalidated_in_aligned_blocks_or_by_their_domain() {
    let fake = Fake::new();
    let unit = unit(&fake);
    let blocks = |start: u64, pages: u64| -> Vec<(u64, u8)> {
        let blocks = unit.0.invalidations_for(3, start * PAGE, pages * PAGE).into_iter();
        blocks
            .map(|i| if let Invalidation::Pages { iova, mask, .. } = i { (iova / PAGE, mask) } else { (0, 0xff) })
            .collect()
    };
    assert_eq!(blocks(5, 1), [(5, 0)]);
    assert_eq!(blocks(8, 8), [(8, 3)]);
    assert_eq!(blocks(7, 10), [(7, 0), (8, 3), (16, 0)]);
    // The maximum that the unit supports: 2^18 pages.
    assert_eq!(blocks(1 << 20, 1 << 19), [(1 << 20, 18), ((1 << 20) + (1 << 18), 18)]);
    assert_eq!(blocks((1 << 18) + 1, 1 << 26), [(0, 0xff)], "more than a batch: the domain");
}

#[test]
fn faults_are_read_from_every_record_and_cleared() {
    let fake = Fake::new();
    let unit = unit(&fake);
    let record = 0x220;
    for (at, value) in
        [(0x34, PPF), (record, 0x5678_9000), (record + 4, 1), (record + 8, 0x20), (record + 12, 1 << 31 | 5)]
    {
        fake.state().registers.insert(at, value);
    }
    let faults = unit.faults();
    let fault = faults.records[0];
    assert_eq!((fault.source, fault.page, fault.access), (NIC, 0x1_5678_9000, Access::Write));
    assert_eq!(fault.to_string(), "device 00:04.0 tried to write at 0x156789000: page is not mapped for writing (0x5)");
    assert_eq!((fake.r32(record + 8), fake.r32(record + 12)), (0, 1 << 31), "writing F frees the record");
}
