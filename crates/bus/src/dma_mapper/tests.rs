//! The mapper before an IOMMU that keeps translations until they are invalidated, and a device that
//! uses what is kept.

use super::*;
use crate::dma::Limits;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use towpath_packet::{Backing, Cache, Direction, ExtBufOwner, ExtBufPool, Pool, PoolConfig, Region, UntrustedMem};

/// Bytes that a slot maps.
const SLOT: usize = 16 << 10;
/// Bytes between two slots.
const STRIDE: u64 = 1 << 16;

/// Page tables of slots, and the translations that the IOMMU keeps of them: addresses by IOVA.
#[derive(Default)]
struct State {
    tables: HashMap<u64, usize>,
    kept: HashMap<u64, usize>,
    flushes: u64,
    /// Regions that were mapped for reading alone.
    read_only: usize,
    /// The next unmap, and every flush, fails.
    refuses_unmap: bool,
    refuses_flush: bool,
}

#[derive(Clone)]
struct Iommu(Arc<Mutex<State>>, Arc<Limits>);

impl Iommu {
    fn new() -> Iommu {
        Iommu(Arc::default(), Arc::new(Limits::new(true, 4096, vec![4096..=u64::MAX])))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// A device accesses an IOVA; returns the address that it reaches.
    fn access(&self, iova: Iova) -> Option<usize> {
        let State { tables, kept, .. } = &mut *self.state();
        let at = *kept.get(&iova.get()).or_else(|| tables.get(&iova.get()))?;
        kept.insert(iova.get(), at);
        Some(at)
    }
}

// SAFETY: no device is there.
unsafe impl Dma for Iommu {
    type Window = Slots;

    fn limits(&self) -> &Limits {
        &self.1
    }

    fn alloc(&self, len: usize) -> Result<Region, MapError> {
        Ok(Region::new(len, Backing::Anonymous)?)
    }

    unsafe fn map(&self, at: NonNull<u8>, _: usize, access: Access) -> Result<Iova, MapError> {
        self.state().read_only += usize::from(access == Access::Read);
        Iova::new(at.addr().get() as u64).ok_or(MapError::Foreign)
    }

    fn unmap(&self, _: Iova, _: usize) -> Result<(), MapError> {
        Ok(())
    }

    fn window(&self, _: u32, _: usize) -> Result<Slots, MapError> {
        Ok(Slots(self.clone()))
    }
}

struct Slots(Iommu);

// SAFETY: no device is there.
unsafe impl Window for Slots {
    unsafe fn map(&mut self, slot: u32, at: NonNull<u8>, _: usize, _: Access) -> Result<Iova, MapError> {
        let iova = (u64::from(slot) + 1) * STRIDE;
        let mut state = self.0.state();
        let at = at.addr().get();
        assert_eq!(state.tables.insert(iova, at), None, "slot {slot} is mapped already");
        let stale = state.kept.get(&iova).copied();
        assert_eq!(stale, None, "slot {slot} is mapped again before its translation was invalidated");
        Iova::new(iova).ok_or(MapError::Foreign)
    }

    fn unmap(&mut self, slot: u32) -> Result<(), MapError> {
        let mut state = self.0.state();
        if std::mem::take(&mut state.refuses_unmap) {
            return Err(MapError::Refused("by the test"));
        }
        assert!(state.tables.remove(&((u64::from(slot) + 1) * STRIDE)).is_some(), "slot {slot} is not mapped");
        Ok(())
    }

    fn flush_iotlb(&mut self) -> Result<(), MapError> {
        let mut state = self.0.state();
        state.flushes += 1;
        if state.refuses_flush {
            return Err(MapError::Refused("by the test"));
        }
        state.kept.clear();
        Ok(())
    }
}

struct Rig {
    iommu: Iommu,
    mapper: DmaMapper<Iommu>,
    cache: Cache,
}

const STRICT: DmaPolicy = DmaPolicy::PerBuffer { flush: Flush::Strict };
const DEFERRED: DmaPolicy = DmaPolicy::PerBuffer { flush: Flush::Deferred };

fn rig(policy: DmaPolicy, buffers: u32) -> Rig {
    let iommu = Iommu::new();
    let pool = Pool::new(PoolConfig::default().capacity(1024).backing(Backing::Anonymous)).unwrap();
    let domain = Domain::new(iommu.clone(), policy).unwrap();
    // SAFETY: no device is there.
    unsafe { domain.register(pool.region().unwrap()) }.unwrap();
    let mapper = DmaMapper::new(&domain, buffers, SLOT).unwrap();
    Rig { iommu, mapper, cache: pool.cache(Direction::Rx).unwrap() }
}

impl Rig {
    /// Maps `n` buffers. The device writes to each.
    fn map(&mut self, n: usize) -> Vec<(InFlight<FromDevice>, Mapped)> {
        let post = |_| InFlight::<FromDevice>::post(self.cache.alloc().unwrap()).unwrap();
        let buffers: Vec<_> = (0..n).map(post).collect();
        let mapped = buffers.into_iter().map(|buffer| {
            let mapped = self.mapper.map_from_device(&buffer).unwrap();
            assert_eq!(self.iommu.access(mapped.iova()), Some(buffer.at().addr().get()));
            (buffer, mapped)
        });
        mapped.collect()
    }

    /// Unmaps buffers; returns their IOVAs.
    fn unmap(&mut self, mapped: Vec<(InFlight<FromDevice>, Mapped)>) -> Vec<Iova> {
        let unmap = |(buffer, mapped): (InFlight<FromDevice>, Mapped)| {
            let iova = mapped.iova();
            self.mapper.unmap(mapped).unwrap();
            self.cache.free(buffer.complete(0));
            iova
        };
        mapped.into_iter().map(unmap).collect()
    }

    /// How many of the IOVAs the device reaches.
    fn reached(&self, iovas: &[Iova]) -> usize {
        iovas.iter().filter(|iova| self.iommu.access(**iova).is_some()).count()
    }
}

#[test]
fn strict_a_device_reaches_no_buffer_after_the_sync_which_invalidates_once_for_all() {
    let mut r = rig(STRICT, 64);
    for n in [1, 7, 64] {
        let flushes = r.iommu.state().flushes;
        let mapped = r.map(n);
        let iovas = r.unmap(mapped);
        assert_eq!(r.reached(&iovas), n, "the translations are kept until then");
        r.mapper.sync_iotlb().unwrap();
        assert_eq!(r.reached(&iovas), 0);
        r.mapper.sync_iotlb().unwrap();
        assert_eq!(r.iommu.state().flushes - flushes, 1, "there is nothing more to invalidate");
    }
    assert_eq!((r.mapper.counts().flushes, r.mapper.counts().unmaps), (3, 72));
}

#[test]
fn deferred_a_device_reaches_buffers_until_the_queue_is_full_and_none_afterwards() {
    let mut r = rig(DEFERRED, 64);
    let mut iovas = Vec::new();
    for _ in 0..4 {
        assert_eq!(r.reached(&iovas), iovas.len());
        let mapped = r.map(64);
        iovas.extend(r.unmap(mapped));
        r.mapper.sync_iotlb().unwrap();
    }
    assert_eq!((iovas.len(), r.reached(&iovas)), (256, 0));
}

#[test]
fn a_flush_invalidates_under_every_policy() {
    for policy in [STRICT, DEFERRED] {
        let mut r = rig(policy, 8);
        let mapped = r.map(3);
        let iovas = r.unmap(mapped);
        r.mapper.flush_iotlb().unwrap();
        assert_eq!(r.reached(&iovas), 0, "{policy:?}");
        r.mapper.flush_iotlb().unwrap();
        assert_eq!(r.iommu.state().flushes, 1, "{policy:?}");
    }
}

#[test]
fn a_slot_is_used_again_only_after_its_translation_was_invalidated() {
    let mut r = rig(STRICT, 4);
    // No sync in between: the mapper flushes when it has no slot left. The window checks the rest.
    for round in 0..20 {
        let mapped = r.map(1 + round % 4);
        r.unmap(mapped);
    }
    assert!(r.iommu.state().flushes > 5);
}

#[test]
fn an_invalidation_that_fails_is_an_error_and_the_slots_stay_unused() {
    let mut r = rig(STRICT, 2);
    let mapped = r.map(2);
    let iovas = r.unmap(mapped);
    r.iommu.state().refuses_flush = true;
    assert!(r.mapper.sync_iotlb().is_err());
    assert_eq!((r.reached(&iovas), r.mapper.counts().flushes), (2, 0), "none was confirmed");
    let buffer = InFlight::<FromDevice>::post(r.cache.alloc().unwrap()).unwrap();
    assert!(r.mapper.map_from_device(&buffer).is_err());
    r.iommu.state().refuses_flush = false;
    r.mapper.sync_iotlb().unwrap();
    assert_eq!(r.reached(&iovas), 0);
    assert!(r.mapper.map_from_device(&buffer).is_ok());
}

#[test]
fn a_slot_that_can_not_be_unmapped_is_never_used_again() {
    let mut r = rig(STRICT, 2);
    let mut mapped = r.map(2);
    let (buffer, lost) = mapped.pop().unwrap();
    r.iommu.state().refuses_unmap = true;
    let iova = lost.iova();
    assert!(r.mapper.unmap(lost).is_err());
    assert_eq!(r.iommu.access(iova), Some(buffer.at().addr().get()), "the device may keep the buffer");
    r.unmap(mapped);
    r.mapper.sync_iotlb().unwrap();
    // One slot is left.
    let mapped = r.map(1);
    assert!(r.mapper.map_from_device(&buffer).is_err());
    r.unmap(mapped);
    assert_eq!(r.mapper.counts().lost, 1);
}

/// A packet in the chunks of the pool with these numbers, with bytes in each.
fn chain(pool: &mut [Option<Packet>], chunks: &[usize]) -> Packet {
    let mut take = |i: &usize| pool[*i].take().unwrap();
    let mut packet = take(&chunks[0]);
    chunks[1..].iter().for_each(|i| packet.append(take(i)).unwrap());
    packet
}

#[test]
fn pieces_side_by_side_have_one_mapping_and_all_leave_the_reach_with_it() {
    let mut r = rig(STRICT, 8);
    for (chunks, runs) in [
        // In both directions; chunks of half a page.
        (&[0, 1, 2, 3][..], &[4][..]),
        (&[7, 6, 5], &[3]),
        (&[4, 5, 3, 6], &[4]),
        // With a gap of a page, or more bytes than a slot has.
        (&[0, 1, 4, 5], &[2, 2]),
        (&[0, 9, 2, 30], &[1, 1, 1, 1]),
        (&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9], &[8, 2]),
    ] {
        let mut pool: Vec<_> = (0..64).map(|_| Packet::copy_from(&mut r.cache, &[1; 1000])).collect();
        pool.sort_by_key(|packet| packet.as_ref().unwrap().linear().as_ptr());
        let packet = chain(&mut pool, chunks);
        drop(pool);
        let before = r.mapper.counts();
        let (mut pieces, mut seen, mut mapped) = (packet.chunks(), Vec::new(), Vec::new());
        while pieces.clone().next().is_some() {
            let run = r.mapper.map_run_to_device(pieces.clone()).unwrap();
            let lowest = r.iommu.access(run.mapped.iova()).unwrap();
            for piece in pieces.by_ref().take(run.pieces) {
                let offset = run.iova(&piece).get() - run.mapped.iova().get();
                assert_eq!(lowest + offset as usize, piece.as_ptr().addr(), "{chunks:?}");
            }
            seen.push(run.pieces);
            mapped.push(run.mapped);
        }
        assert_eq!(seen, runs, "{chunks:?}");
        let iovas: Vec<_> = mapped.iter().map(Mapped::iova).collect();
        mapped.into_iter().for_each(|mapped| r.mapper.unmap(mapped).unwrap());
        r.mapper.sync_iotlb().unwrap();
        assert_eq!(r.reached(&iovas), 0);
        let after = r.mapper.counts();
        assert_eq!((after.maps - before.maps, after.unmaps - before.unmaps), (runs.len() as u64, runs.len() as u64));
    }
}

#[test]
fn a_run_that_can_not_be_mapped_is_tried_piece_by_piece_and_pieces_of_two_regions_are_no_run() {
    let mut r = rig(STRICT, 1);
    let other = rig(STRICT, 1);
    let mut packet = Packet::copy_from(&mut r.cache, &[1; 100]).unwrap();
    packet.append(Packet::copy_from(&mut { other.cache }, &[2; 100]).unwrap()).unwrap();
    let run = r.mapper.map_run_to_device(packet.chunks()).unwrap();
    assert_eq!(run.pieces, 1);
    assert!(matches!(r.mapper.map_run_to_device(packet.chunks().skip(1)), Err(MapError::Unregistered)));
    r.mapper.unmap(run.mapped).unwrap();
}

/// What a device reads: the test's IOMMU has addresses as IOVAs.
fn read((iova, len): (Iova, usize)) -> Vec<u8> {
    let at = std::ptr::with_exposed_provenance::<u8>(iova.get() as usize);
    // SAFETY: bounce memory, which lives with the mapper; no frame is copied meanwhile.
    unsafe { std::slice::from_raw_parts(at, len) }.to_vec()
}

/// Linux before 6.2 pins pages that were never written, for reading alone, as the page of zeros.
#[test]
fn bounce_memory_is_not_mapped_for_reading_alone_and_holds_what_was_copied() {
    let mut r = rig(STRICT, 1);
    r.mapper.reserve_bounce(80, 2048).unwrap();
    assert_eq!(r.iommu.state().read_only, 0);
    let packet = Packet::copy_from(&mut r.cache, &[7; 15]).unwrap();
    let longer = Packet::copy_from(&mut r.cache, &[9; 60]).unwrap();
    for descriptor in [0, 79] {
        assert!(r.mapper.bounce(descriptor, &longer, 17).is_some());
        let copy = r.mapper.bounce(descriptor, &packet, 17).unwrap();
        assert_eq!(read(copy), [[7; 15].as_slice(), &[0, 0]].concat(), "padded with zeros, in the same slot");
    }
    assert_eq!(r.mapper.bounce(80, &packet, 17), None, "there is no such descriptor");
    assert!(r.mapper.bounce(1, &packet, 2048).is_some());
    assert_eq!(r.mapper.bounce(1, &packet, 2049), None, "a slot is shorter");
    assert_eq!((r.mapper.counts().copies, r.mapper.counts().maps), (5, 0));
}

#[test]
fn copies_of_all_lengths_are_whole_in_a_full_ring_that_wraps() {
    const RING: u32 = 80;
    let mut r = rig(STRICT, 1);
    r.mapper.reserve_bounce(RING, 2048).unwrap();
    let mut in_flight = VecDeque::new();
    for n in 0..2032 {
        // All lengths from 17 to 2048: the step has no factor in common with their number.
        let bytes: Vec<u8> = (0..17 + n * 769 % 2032).map(|at| (at * 7 + n) as u8).collect();
        let packet = Packet::copy_from(&mut r.cache, &bytes).unwrap();
        in_flight.push_back((r.mapper.bounce(n % RING, &packet, 17).unwrap(), bytes));
        if in_flight.len() == RING as usize {
            assert!(in_flight.iter().all(|(copy, bytes)| read(*copy) == *bytes), "after frame {n}");
            in_flight.pop_front();
        }
    }
}

#[test]
fn short_copies_share_pages_but_no_line_and_none_crosses_a_page() {
    // Where the slots of one size end, those of the next begin, whatever the number of descriptors.
    for descriptors in [80, 88, 512] {
        let mut r = rig(STRICT, 1);
        r.mapper.reserve_bounce(descriptors, 2048).unwrap();
        let packet = Packet::copy_from(&mut r.cache, &[1; 17]).unwrap();
        let mut lines = HashSet::new();
        for (len, per_page) in [(64, 64), (128, 32), (200, 16), (257, 8), (1024, 4), (1500, 2)] {
            let mut pages = HashSet::new();
            for descriptor in 0..descriptors {
                let (iova, len) = r.mapper.bounce(descriptor, &packet, len).unwrap();
                let (first, last) = (iova.get(), iova.get() + len as u64 - 1);
                assert_eq!((first % 64, first / 4096), (0, last / 4096), "{len} bytes, {descriptor}");
                assert!((first / 64..=last / 64).all(|line| lines.insert(line)), "{len} bytes, {descriptor}");
                pages.insert(first / 4096);
            }
            // One more where the first slot lies inside of a page.
            assert!(pages.len() <= descriptors.div_ceil(per_page) as usize + 1, "{len} bytes: {}", pages.len());
        }
    }
}

struct NoOwner;
impl ExtBufOwner for NoOwner {
    fn on_free(&self) {}
}

#[test]
fn memory_of_an_application_stays_as_long_as_the_device_may_reach_it() {
    let mut r = rig(DEFERRED, 4);
    let region = UntrustedMem::new(Region::new(4096, Backing::Memfd).unwrap());
    let alive = region.handle().downgrade();
    let mut pages = ExtBufPool::new(1, region, Arc::new(NoOwner)).unwrap();
    let packet = pages.packet(0, 100, 0).unwrap();
    assert!(r.mapper.map_external(&packet));
    let mapped = r.mapper.map_to_device(packet.chunks().next().unwrap()).unwrap();
    let iova = mapped.iova();
    assert!(r.iommu.access(iova).is_some());
    r.mapper.unmap(mapped).unwrap();
    r.mapper.sync_iotlb().unwrap();
    drop((packet, pages));
    r.iommu.state().refuses_flush = true;
    r.mapper.unmap_unused();
    assert!(r.iommu.access(iova).is_some() && !alive.is_gone());
    r.iommu.state().refuses_flush = false;
    r.mapper.unmap_unused();
    assert!(r.iommu.access(iova).is_none() && alive.is_gone());
}

/// A page of 100 bytes in a region of its own, at this offset.
fn page(offset: usize) -> Packet {
    let region = UntrustedMem::new(Region::new(4096, Backing::Memfd).unwrap());
    ExtBufPool::new(1, region, Arc::new(NoOwner)).unwrap().packet(offset, 100, 0).unwrap()
}

#[test]
fn memory_that_stays_mapped_is_known_from_its_second_buffer_on_until_it_is_unmapped() {
    let mut r = rig(DmaPolicy::Persistent, 1);
    let pages: Vec<_> = [0, 3996, 50, 7, 9].map(page).into();
    let chunk = |n: usize| pages[n].only_chunk().unwrap();
    let known = |r: &Rig, chunk: Chunk<'_>| r.mapper.last.iova(chunk.as_ptr().addr(), chunk.len());
    for n in 0..pages.len() {
        assert!(r.mapper.map_external(&pages[n]));
        for is_known in [false, true] {
            let iova = r.mapper.map_to_device(chunk(n)).unwrap().iova();
            assert_eq!(iova.get(), chunk(n).as_ptr().addr() as u64);
            assert_eq!(known(&r, chunk(n)), is_known.then_some(iova));
            assert!((0..pages.len()).all(|other| other == n || known(&r, chunk(other)).is_none()));
        }
    }
    r.mapper.unmap_unused();
    assert_eq!(known(&r, chunk(4)), None);
    // Nothing is known of memory that is mapped buffer by buffer.
    let mut r = rig(STRICT, 4);
    assert!(r.mapper.map_external(&pages[0]));
    for _ in 0..2 {
        let mapped = r.mapper.map_to_device(chunk(0)).unwrap();
        assert_eq!((mapped.is_temporary(), known(&r, chunk(0))), (true, None));
    }
}

#[test]
fn a_persistent_buffer_costs_neither_a_slot_nor_an_invalidation() {
    let mut r = rig(DmaPolicy::Persistent, 1);
    let buffers = [(); 3].map(|()| InFlight::<FromDevice>::post(r.cache.alloc().unwrap()).unwrap());
    for buffer in buffers {
        let mapped = r.mapper.map_from_device(&buffer).unwrap();
        assert_eq!(mapped.iova().get(), buffer.at().addr().get() as u64);
        r.mapper.unmap(mapped).unwrap();
        r.mapper.sync_iotlb().unwrap();
        r.cache.free(buffer.complete(0));
    }
    r.mapper.flush_iotlb().unwrap();
    assert_eq!((r.iommu.state().flushes, r.mapper.counts().maps), (0, 0));
}
