//! The device's side: translation, DMA, invalidation.

use super::fault::{Fault, FaultReason};
use super::iotlb::Iotlb;
use super::late::{LateCounts, LateDma, LateWrite};
use super::queue::Invalidate;
use super::tables::{READ, WRITE, Walk};
use super::unit::{Counts, Unit};
use crate::memory::HostAddr;
use crate::violation::Violation;
use std::collections::{HashMap, VecDeque};
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The maximum of fault records; further faults are only counted.
const RECORDS: usize = 64;
/// Without translation: the maximum of removed ranges that are remembered.
const REMOVED: usize = 64;

#[derive(Debug)]
pub(super) struct Engine {
    tlb: Iotlb,
    pub(super) counts: Counts,
    pub(super) faults: VecDeque<Fault>,
    /// Without translation: the mapped ranges, ascending, first and last address.
    ranges: Vec<(u64, u64)>,
    removed: VecDeque<(u64, u64)>,
    last: usize,
    /// Strict: the pages of descriptors that the device owns, and their number.
    owned: Option<HashMap<u64, u32>>,
    /// The accesses that the device repeats, if a test requests it.
    late: Option<Box<LateDma>>,
}

impl Engine {
    pub(super) fn new(strict: bool) -> Engine {
        Engine {
            tlb: Iotlb::new(),
            counts: Counts::default(),
            faults: VecDeque::new(),
            ranges: Vec::new(),
            removed: VecDeque::new(),
            last: 0,
            owned: strict.then(HashMap::new),
            late: None,
        }
    }

    /// Processes the invalidation queue.
    #[inline]
    pub(super) fn run(&mut self, unit: &Unit) {
        if let Some(what) = self.late.as_ref().and_then(|late| late.at_invalidation)
            && !unit.queue.is_empty()
        {
            self.repeat_late(unit, what);
        }
        while let Some(descriptor) = unit.queue.take() {
            match descriptor {
                Invalidate::Pages { iova, order } => {
                    self.counts.page_invalidations += 1;
                    self.tlb.invalidate(iova, 4096 << order);
                }
                Invalidate::All => {
                    self.counts.full_invalidations += 1;
                    self.tlb.clear();
                }
                Invalidate::Wait(data) => {
                    self.counts.waits += 1;
                    if !unit.wait.is_zero() {
                        spend(unit.wait);
                    }
                    unit.queue.reach(data);
                }
            }
        }
    }

    /// Remembers the device's accesses to buffers from now on. At each invalidation it repeats them
    /// with `at_invalidation`.
    pub(super) fn remember_late(&mut self, at_invalidation: Option<LateWrite>) {
        self.late.get_or_insert_default().at_invalidation = at_invalidation;
    }

    /// The device repeats its accesses to unmapped buffers, as far as the IOTLB lets it. Returns
    /// the counts since the first.
    pub(super) fn repeat_late(&mut self, unit: &Unit, what: LateWrite) -> LateCounts {
        let Some(mut late) = self.late.take() else { return LateCounts::default() };
        late.repeat(self, unit, what);
        let counts = late.counts;
        self.late = Some(late);
        counts
    }

    /// The counts of late accesses.
    pub(super) fn late_counts(&self) -> LateCounts {
        self.late.as_ref().map_or(LateCounts::default(), |late| late.counts)
    }

    #[inline]
    fn remember(&mut self, iova: u64, len: usize, written: Option<&[u8]>) {
        if let Some(late) = &mut self.late {
            late.remember(iova, len, written);
        }
    }

    /// The address that the IOTLB has for `iova`, and the permissions.
    pub(super) fn cached(&mut self, iova: u64) -> Option<(u64, u64)> {
        self.tlb.lookup(iova)
    }

    /// Without translation: adds a range.
    pub(super) fn add_range(&mut self, first: u64, len: u64) {
        let at = self.ranges.partition_point(|r| r.0 < first);
        self.ranges.insert(at, (first, first + (len - 1)));
        self.removed.retain(|r| r.1 < first || first + (len - 1) < r.0);
    }

    /// Without translation: removes a range.
    pub(super) fn remove_range(&mut self, first: u64) {
        if let Ok(at) = self.ranges.binary_search_by_key(&first, |r| r.0) {
            self.removed.push_back(self.ranges.remove(at));
            self.removed.truncate(REMOVED);
        }
    }

    /// Strict: the first page of a range that belongs to a descriptor owned by the device.
    pub(super) fn owned(&self, iova: u64, len: u64) -> Option<u64> {
        let owned = self.owned.as_ref()?;
        let pages = (iova >> 12)..=((iova + (len.max(1) - 1)) >> 12);
        if pages.end() - pages.start() < owned.len() as u64 {
            return pages.map(|p| p << 12).find(|p| owned.contains_key(p));
        }
        owned.keys().copied().find(|p| pages.contains(&(p >> 12)))
    }

    /// Translates `iova`; returns the address and the number of contiguous bytes.
    #[inline]
    fn translate(&mut self, unit: &Unit, iova: u64, write: bool) -> Result<(HostAddr, usize), FaultReason> {
        if !unit.on {
            return self.range(iova).map(|last| (HostAddr::new(iova), (last - iova + 1) as usize));
        }
        let (need, rest) = (if write { WRITE } else { READ }, (4096 - (iova & 0xfff)) as usize);
        if let Some((at, access)) = self.tlb.lookup(iova)
            && access & need != 0
        {
            self.counts.hits += 1;
            return Ok((HostAddr::new(at), rest));
        }
        self.counts.walks += 1;
        match unit.tables.walk(iova) {
            Walk::Leaf { page, shift, access } if access & need != 0 => {
                self.tlb.insert(iova, page, shift, access);
                Ok((HostAddr::new(page + (iova & ((1 << shift) - 1))), rest))
            }
            Walk::Leaf { .. } => Err(FaultReason::Permission),
            Walk::Freed => Err(FaultReason::Unmapped),
            Walk::Absent => Err(FaultReason::NotMapped),
            Walk::Width => Err(FaultReason::Width),
            Walk::Entry => Err(FaultReason::Entry),
        }
    }

    /// Without translation: the last address of the range around `iova`.
    #[inline]
    fn range(&mut self, iova: u64) -> Result<u64, FaultReason> {
        let inside = |r: &(u64, u64)| r.0 <= iova && iova <= r.1;
        if let Some(range) = self.ranges.get(self.last).filter(|r| inside(r)) {
            return Ok(range.1);
        }
        self.last = self.ranges.partition_point(|r| r.0 <= iova).saturating_sub(1);
        match self.ranges.get(self.last).filter(|r| inside(r)) {
            Some(range) => Ok(range.1),
            None if self.removed.iter().any(inside) => Err(FaultReason::Unmapped),
            None => Err(FaultReason::NotMapped),
        }
    }
}

/// Spends a time that is too short to sleep.
#[cold]
fn spend(time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// Accesses to memory by IOVA. While it exists, no memory can be unmapped.
pub(crate) struct Transfer<'a> {
    unit: &'a Unit,
    engine: MutexGuard<'a, Engine>,
}

impl<'a> Transfer<'a> {
    pub(super) fn new(unit: &'a Unit) -> Transfer<'a> {
        let mut engine = unit.engine();
        engine.run(unit);
        Transfer { unit, engine }
    }

    /// Calls `each` with every contiguous part of `len` bytes at `iova`, and its offset.
    #[inline]
    fn parts(
        &mut self,
        iova: u64,
        len: usize,
        write: bool,
        mut each: impl FnMut(HostAddr, usize, usize),
    ) -> Result<(), Fault> {
        let mut done = 0;
        while done < len {
            let at = iova.wrapping_add(done as u64);
            let (addr, room) = match self.engine.translate(self.unit, at, write) {
                Ok(found) => found,
                Err(reason) => return Err(self.fault(Fault { iova: at, len: len - done, write, reason })),
            };
            if self.engine.owned.is_some() {
                self.check_strict(at, room.min(len - done), write);
            }
            let n = room.min(len - done);
            each(addr, done, n);
            done += n;
        }
        Ok(())
    }

    /// Strict: checks that the used translation is still in the tables, and that the device sees
    /// the CPU's last writes.
    #[cold]
    fn check_strict(&mut self, iova: u64, len: usize, write: bool) {
        let access = if write { "write" } else { "read" };
        if self.unit.on && self.unit.tables.walk(iova) == Walk::Freed {
            self.unit.violations.report(Violation::UseAfterUnmap { access, iova, len });
        }
        if self.unit.bounce && !write && !self.unit.bounces.same(iova, len) {
            self.unit.violations.report(Violation::MissingSync { iova, len });
        }
    }

    #[cold]
    fn fault(&mut self, fault: Fault) -> Fault {
        self.engine.counts.faults += 1;
        if self.engine.faults.len() < RECORDS {
            self.engine.faults.push_back(fault);
        }
        let Fault { iova, len, reason, .. } = fault;
        let access = fault.access();
        self.unit.violations.report(match reason {
            FaultReason::Unmapped => Violation::UseAfterUnmap { access, iova, len },
            _ => Violation::NotMapped { access, iova, len },
        });
        fault
    }

    /// Reads `into.len()` bytes.
    #[inline]
    pub(crate) fn read(&mut self, iova: u64, into: &mut [u8]) -> Result<(), Fault> {
        let len = into.len();
        self.engine.remember(iova, len, None);
        self.parts(iova, len, false, |addr, at, n| {
            if let Some(into) = into.get_mut(at..at + n) {
                // SAFETY: the translation shows that these bytes are mapped; the engine's lock
                // keeps them mapped.
                unsafe { addr.read(into) };
            }
        })
    }

    /// Writes bytes. The bytes before a page that faults are written.
    #[inline]
    pub(crate) fn write(&mut self, iova: u64, from: &[u8]) -> Result<(), Fault> {
        self.engine.remember(iova, from.len(), Some(from));
        self.parts(iova, from.len(), true, |addr, at, n| {
            if let Some(from) = from.get(at..at + n) {
                // SAFETY: as in `read`.
                unsafe { addr.write(from) };
            }
        })
    }

    /// Reads descriptors: pairs of words. The second word is read first, because the driver writes
    /// it last.
    #[inline]
    pub(crate) fn descriptors(&mut self, iova: u64, into: &mut [[u64; 2]]) -> Result<(), Fault> {
        let len = into.len() * 16;
        self.parts(iova, len, false, |addr, at, n| {
            for (i, descriptor) in into.iter_mut().skip(at / 16).take(n / 16).enumerate() {
                let addr = addr.offset(i * 16);
                // SAFETY: as in `read`; sixteen bytes from here on are inside the part.
                let words = unsafe { (addr.offset(8).load(), addr.load()) };
                *descriptor = [words.1.unwrap_or(0), words.0.unwrap_or(0)];
            }
        })
    }

    /// Writes a descriptor back: the first word if given, then the second, which holds the done
    /// bit.
    #[inline]
    pub(crate) fn write_back(&mut self, iova: u64, first: Option<u64>, second: u64) -> Result<(), Fault> {
        self.parts(iova, 16, true, |addr, _, n| {
            if n == 16 {
                // SAFETY: as in `read`; all sixteen bytes are inside this part.
                unsafe {
                    if let Some(first) = first {
                        addr.store(first);
                    }
                    addr.offset(8).store(second);
                }
            }
        })
    }

    /// Loads an aligned word of a descriptor or ring.
    #[inline]
    pub(crate) fn load(&mut self, iova: u64) -> Option<u64> {
        let mut word = None;
        // SAFETY: the translation shows that these bytes are mapped; the engine's lock keeps them
        // mapped.
        let each = |addr: HostAddr, _, n: usize| word = if n == 8 { unsafe { addr.load() } } else { None };
        self.parts(iova, 8, false, each).ok()?;
        word
    }

    /// Loads aligned words of a descriptor; returns false if any is not mapped.
    #[inline]
    pub(crate) fn load_words(&mut self, iova: u64, into: &mut [u64]) -> bool {
        let len = into.len() * 8;
        let each = |addr: HostAddr, at: usize, n: usize| {
            for (i, word) in into.iter_mut().skip(at / 8).take(n / 8).enumerate() {
                // SAFETY: as in `load`; eight bytes from here on are inside the part.
                *word = unsafe { addr.offset(i * 8).load() }.unwrap_or(0);
            }
        };
        self.parts(iova, len, false, each).is_ok()
    }

    /// Stores an aligned word of a descriptor or ring; returns false if it is not mapped for
    /// writing.
    #[inline]
    pub(crate) fn store(&mut self, iova: u64, value: u64) -> bool {
        let each = |addr: HostAddr, _, n: usize| {
            if n == 8 {
                // SAFETY: as in `load`.
                unsafe { addr.store(value) };
            }
        };
        self.parts(iova, 8, true, each).is_ok()
    }

    /// Loads an aligned half word of a ring: an index or flags. What the driver wrote before it is
    /// visible.
    pub(crate) fn load_half(&mut self, iova: u64) -> Option<u16> {
        let mut value = None;
        let each = |addr: HostAddr, _, n: usize| {
            // SAFETY: as in `load`.
            let half = unsafe { addr.half() }.filter(|_| n == 2);
            value = half.map(|half| half.load(Ordering::Acquire));
        };
        self.parts(iova, 2, false, each).ok()?;
        value.map(u16::from_le)
    }

    /// Stores an aligned half word of a ring. Who sees it sees what was written before. Returns
    /// false if it is not mapped for writing.
    pub(crate) fn store_half(&mut self, iova: u64, value: u16) -> bool {
        let each = |addr: HostAddr, _, n: usize| {
            // SAFETY: as in `load`.
            if let Some(half) = unsafe { addr.half() }.filter(|_| n == 2) {
                half.store(value.to_le(), Ordering::Release);
            }
        };
        self.parts(iova, 2, true, each).is_ok()
    }

    /// Whether the bytes are memory that was allocated for descriptors and rings. Accesses nothing,
    /// so there is no fault.
    pub(crate) fn is_coherent(&mut self, iova: u64, len: usize) -> bool {
        match self.engine.translate(self.unit, iova, true) {
            Ok((addr, room)) => len <= room && self.unit.is_coherent(addr.address(), len as u64),
            Err(_) => false,
        }
    }

    /// Strict: the device becomes the owner of a descriptor for these bytes.
    pub(crate) fn own(&mut self, iova: u64, len: usize) {
        self.owned_pages(iova, len, |owned, page| *owned.entry(page).or_default() += 1);
    }

    /// Strict: the device returns it.
    pub(crate) fn disown(&mut self, iova: u64, len: usize) {
        self.owned_pages(iova, len, |owned, page| {
            if let Some(n) = owned.get_mut(&page) {
                *n -= 1;
                if *n == 0 {
                    owned.remove(&page);
                }
            }
        });
    }

    fn owned_pages(&mut self, iova: u64, len: usize, each: impl Fn(&mut HashMap<u64, u32>, u64)) {
        if let Some(owned) = &mut self.engine.owned {
            for page in (iova >> 12)..=(iova.saturating_add(len.max(1) as u64 - 1) >> 12) {
                each(owned, page << 12);
            }
        }
    }
}
