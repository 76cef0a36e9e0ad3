//! The receive ring and the buffers in its slots: allocated, mapped, unmapped, leaked; and the end
//! of them all.

use super::super::control::{Fault, FaultLog};
use super::super::descriptors::{RxStatus, rx_descriptor};
use crate::common::copybreak::{RxSlot, free_all, unmap_all};
use crate::common::ring::{DescRing, Slots, ahead, distance, next};
use towpath_bus::{Dma, DmaMapper, Iova};
use towpath_packet::{Cache, FromDevice, InFlight, Packet};

/// Descriptors that one tail write announces, at least, unless the device runs out of them or a
/// batch is smaller.
const ANNOUNCE: u32 = 16;

/// Copies the first `len` bytes of a buffer that is unmapped first and then mapped again; returns
/// its new IOVA. `wait`: the IOTLB is flushed for this buffer.
#[inline]
pub(super) fn copy_unmapped<D: Dma>(
    slot: &mut RxSlot,
    mapper: &mut DmaMapper<D>,
    len: usize,
    to: &mut Packet,
    wait: bool,
    log: &FaultLog,
) -> Option<Iova> {
    let unmapped = slot.unmap(mapper, len, log);
    if wait { mapper.flush_iotlb() } else { mapper.sync_iotlb() }.ok().filter(|()| unmapped)?;
    let buffer = slot.buffer.as_ref()?;
    buffer.copy_to(len, to).ok()?;
    let mapped = mapper.map_from_device(buffer).ok()?;
    Some(slot.mapped.insert(mapped).iova())
}

/// The ring, its indices, and its buffers.
pub(super) struct RxBuffers<D: Dma> {
    pub(super) ring: DescRing,
    pub(super) slots: Slots<RxSlot>,
    /// Bytes that the device wrote to each buffer, cut to it, unless it is the last of its frame.
    pub(super) lens: Slots<u16>,
    pub(super) mapper: DmaMapper<D>,
    /// Where buffers come from.
    pub(super) cache: Cache,
    pub(super) next_to_clean: u32,
    pub(super) next_to_scan: u32,
    pub(super) tail: u32,
    pub(super) next_to_use: u32,
    /// The descriptors from here up to `next_to_clean` are rewritten.
    pub(super) rewritten: u32,
    pub(super) log: FaultLog,
}

impl<D: Dma> RxBuffers<D> {
    /// A ring without buffers.
    pub(super) fn new(ring: DescRing, mapper: DmaMapper<D>, cache: Cache, log: FaultLog) -> RxBuffers<D> {
        RxBuffers {
            slots: Slots::new(ring.len()),
            lens: Slots::new(ring.len()),
            ring,
            mapper,
            cache,
            next_to_clean: 0,
            next_to_scan: 0,
            tail: 0,
            next_to_use: 0,
            rewritten: 0,
            log,
        }
    }

    /// Notes the bytes in a buffer that is not the last of its frame.
    #[inline]
    pub(super) fn set_partial_len(&mut self, at: u32, len: usize) {
        if let Some(place) = self.lens.get_mut(at) {
            *place = len as u16;
        }
    }

    /// Bytes in a buffer that is not the last of its frame.
    #[inline]
    pub(super) fn partial_len(&mut self, at: u32) -> usize {
        self.lens.get_mut(at).map_or(0, |len| usize::from(*len))
    }

    /// Whether the device has few buffers: it may have to wait for the driver.
    pub(super) fn is_starved(&self) -> bool {
        distance(self.next_to_clean, self.tail, self.ring.len()) < ANNOUNCE
    }

    /// Whether a descriptor is completed before the one that is next: the device has lost count.
    pub(super) fn is_out_of_order(&self) -> bool {
        let (len, ring) = (self.ring.len(), &self.ring);
        if self.next_to_scan == self.tail || RxStatus::dd(ring.status(self.next_to_scan)) {
            return false;
        }
        let mut at = next(self.next_to_scan, len);
        while at != self.tail {
            if RxStatus::dd(ring.status(at)) {
                return true;
            }
            at = next(at, len);
        }
        false
    }

    /// Writes descriptors, all free ones but one; returns how many. `write_tail` gets the index for
    /// the tail register, for each `batch` of descriptors and perhaps for the rest.
    #[inline]
    pub(super) fn refill(&mut self, batch: u32, mut write_tail: impl FnMut(u32)) -> usize {
        let len = self.ring.len();
        // The device does not wait for a batch that is as large as the ring.
        let batch = batch.min(len / 4);
        let free = len - 1 - distance(self.next_to_clean, self.next_to_use, len);
        let rewritten = distance(self.rewritten, self.next_to_clean, len);
        // One descriptor stays free: the last.
        let unwritten = (free + 1).saturating_sub(rewritten).min(free);
        let ring = &self.ring;
        let (mut filled, mut staged) = (0, distance(self.tail, self.next_to_use, len));
        while filled < unwritten {
            let Some(slot) = self.slots.get_mut(self.next_to_use) else { break };
            if slot.mapped.is_none() && !prepare(slot, &mut self.cache, &mut self.mapper, &self.log) {
                break;
            }
            let Some(mapped) = &slot.mapped else { break };
            ring.store(self.next_to_use, rx_descriptor(mapped.iova().get()));
            self.next_to_use = next(self.next_to_use, len);
            filled += 1;
            staged += 1;
            if staged >= batch {
                self.tail = self.next_to_use;
                write_tail(self.next_to_use);
                staged = 0;
            }
        }
        // The descriptors from here on are rewritten, including the last, which stays free.
        if rewritten > 0 && filled == unwritten {
            while filled < free {
                // The batch may have been larger when the staged descriptors were written.
                let n = (free - filled).min(batch.saturating_sub(staged).max(1));
                self.next_to_use = ahead(self.next_to_use, n, len);
                filled += n;
                staged += n;
                if staged >= batch {
                    self.tail = self.next_to_use;
                    write_tail(self.next_to_use);
                    staged = 0;
                }
            }
            self.rewritten = self.next_to_use;
        }
        if staged >= ANNOUNCE || (staged > 0 && distance(self.next_to_clean, self.tail, len) < len / 4) {
            self.tail = self.next_to_use;
            write_tail(self.next_to_use);
        }
        filled as usize
    }

    /// Unmaps a buffer, in which the device wrote `len` bytes. Returns false if that fails: the
    /// buffer is leaked then.
    #[inline]
    pub(super) fn unmap(&mut self, at: u32, len: usize) -> bool {
        self.slots.get_mut(at).is_some_and(|slot| slot.unmap(&mut self.mapper, len, &self.log))
    }

    /// An IOTLB flush has failed, so that the device may still reach what was unmapped: leaks every
    /// buffer that is not mapped, also those that never could be mapped.
    #[cold]
    pub(super) fn leak_unmapped(&mut self) {
        self.slots.iter_mut().filter(|slot| slot.mapped.is_none()).for_each(|slot| slot.leak(&self.log));
    }

    /// No frame has come for a while: flushes what was unmapped.
    #[cold]
    pub(super) fn idle(&mut self) {
        if self.mapper.flush_iotlb().is_err() {
            self.leak_unmapped();
        }
    }

    /// The device was reset, and its ring is empty: frames that were not taken from it are lost.
    pub(super) fn restart(&mut self) {
        let mut at = self.next_to_clean;
        while at != self.tail {
            if RxStatus::load(&self.ring, at).is_some_and(RxStatus::eop) {
                self.log.fault(Fault::LostFrame);
            }
            at = next(at, self.ring.len());
        }
        self.ring.clear();
        (self.next_to_clean, self.next_to_scan, self.tail, self.next_to_use, self.rewritten) = (0, 0, 0, 0, 0);
    }

    /// The device was stopped: frees all buffers.
    pub(super) fn release(mut self) {
        if !unmap_all(self.slots.iter_mut(), &mut self.mapper, &self.log) {
            return self.abandon();
        }
        free_all(self.slots.iter_mut(), &mut self.cache);
    }

    /// The device may still write: leaks all buffers, the ring, and the IOVA window, whose pages
    /// may be in use.
    pub(super) fn abandon(mut self) {
        self.slots.iter_mut().for_each(|slot| slot.leak(&self.log));
        std::mem::forget((self.mapper, self.ring));
    }
}

/// Gives a slot a buffer that the device may write; returns false if the pool is empty, or the
/// buffer can't be mapped.
#[inline]
fn prepare<D: Dma>(slot: &mut RxSlot, cache: &mut Cache, mapper: &mut DmaMapper<D>, log: &FaultLog) -> bool {
    let buffer = match slot.buffer.take() {
        Some(buffer) => buffer,
        None => {
            let Some(packet) = cache.alloc() else {
                log.fault(Fault::NoBuffer);
                return false;
            };
            let Ok(buffer) = InFlight::<FromDevice>::post(packet) else { return false };
            buffer
        }
    };
    match mapper.map_from_device(&buffer) {
        Ok(mapped) => {
            *slot = RxSlot { buffer: Some(buffer), mapped: Some(mapped) };
            true
        }
        Err(_) => {
            log.fault(Fault::MapFailed);
            *slot = RxSlot { buffer: Some(buffer), mapped: None };
            false
        }
    }
}
