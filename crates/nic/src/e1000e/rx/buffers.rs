//! The buffers in the ring's slots: had, mapped, unmapped, leaked; and the end, when all of them go home.

use super::super::control::{Fault, Log};
use super::super::descriptors;
use super::{ANNOUNCE, Begun, RxCore};
use crate::common::ring::{ahead, distance, next};
use crate::common::slots::Slots;
use towpath_bus::{Dma, DmaMapper, Mapped};
use towpath_packet::{Cache, FromDevice, InFlight};

/// One descriptor's buffer. `mapped` without `buffer` does not occur.
#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) buffer: Option<InFlight<FromDevice>>,
    pub(super) mapped: Option<Mapped>,
    /// Bytes that the device said it wrote, at most a buffer's, if this was not the last descriptor of a frame.
    pub(super) said: u16,
}

impl<D: Dma> RxCore<D> {
    /// Writes descriptors up to one before the first that is not free; returns how many. What is to be written to the tail
    /// register, for every `batch` of them and perhaps for the rest, is told to `announce`.
    #[inline]
    pub(in super::super) fn refill(&mut self, batch: u32, mut announce: impl FnMut(u32)) -> usize {
        let len = self.ring.len();
        // The device is not to wait for a batch that is as large as the ring.
        let batch = batch.min(len / 4);
        let free = len - 1 - distance(self.clean, self.fill, len);
        let ready = distance(self.ready, self.clean, len);
        // There is one free descriptor more than may be filled: the last one.
        let unwritten = (free + 1).saturating_sub(ready).min(free);
        let ring = &self.ring;
        let (mut filled, mut news) = (0, distance(self.told, self.fill, len));
        while filled < unwritten {
            let Some(slot) = self.slots.get_mut(self.fill) else { break };
            if slot.mapped.is_none() && !prepare(slot, &mut self.buffers, &mut self.mapper, &self.log) {
                break;
            }
            let Some(mapped) = &slot.mapped else { break };
            ring.store(self.fill, descriptors::empty(mapped.iova().get()));
            self.fill = next(self.fill, len);
            filled += 1;
            news += 1;
            if news >= batch {
                self.told = self.fill;
                announce(self.fill);
                news = 0;
            }
        }
        // From here on they are written already, the last one, which stays free, included.
        if ready > 0 && filled == unwritten {
            while filled < free {
                // The batch may have been larger when those that wait were written.
                let n = (free - filled).min(batch.saturating_sub(news).max(1));
                self.fill = ahead(self.fill, n, len);
                filled += n;
                news += n;
                if news >= batch {
                    self.told = self.fill;
                    announce(self.fill);
                    news = 0;
                }
            }
            self.ready = self.fill;
        }
        if news >= ANNOUNCE || (news > 0 && distance(self.clean, self.told, len) < len / 4) {
            self.told = self.fill;
            announce(self.fill);
        }
        filled as usize
    }

    /// Nobody knows when the device is through with what was unmapped: no buffer that is not mapped is used again. (A few among them
    /// may be innocent, because they never could be mapped.)
    #[cold]
    pub(super) fn lose_unmapped(&mut self) {
        for slot in self.slots.iter_mut().filter(|slot| slot.mapped.is_none()) {
            if let Some(buffer) = slot.buffer.take() {
                leak(buffer, &self.log);
            }
        }
    }

    /// Nothing has come for a while: what was unmapped need not stay within reach any longer.
    #[cold]
    pub(in super::super) fn idle(&mut self) {
        if self.mapper.flush().is_err() {
            self.lose_unmapped();
        }
    }

    /// The device was reset, and its ring is empty: starts again with the buffers that are there, mapped as they are.
    #[cold]
    pub(in super::super) fn restart(&mut self) {
        self.ring.clear();
        (self.clean, self.scan, self.told, self.fill, self.ready) = (0, 0, 0, 0, 0);
        self.begun = Begun::default();
        self.discarding = false;
    }

    /// The device was stopped: gives every buffer home.
    #[cold]
    pub(in super::super) fn release(mut self) {
        for slot in self.slots.iter_mut() {
            if let Some(mapped) = slot.mapped.take()
                && self.mapper.unmap(mapped).is_err()
                && let Some(buffer) = slot.buffer.take()
            {
                leak(buffer, &self.log);
            }
        }
        if self.mapper.flush().is_err() {
            return self.abandon();
        }
        for slot in self.slots.iter_mut() {
            if let Some(buffer) = slot.buffer.take() {
                self.buffers.free(buffer.complete(0));
            }
        }
    }

    /// It is not known whether the device has stopped: nothing that it can reach is used again.
    #[cold]
    pub(in super::super) fn abandon(mut self) {
        for slot in self.slots.iter_mut() {
            if let Some(buffer) = slot.buffer.take() {
                leak(buffer, &self.log);
            }
        }
        // The window of addresses must not go either: its pages may be in use.
        std::mem::forget((self.mapper, self.ring));
    }
}

impl Slots<Slot> {
    /// What the device said it wrote to a buffer that is not a frame's last.
    pub(super) fn said(&mut self, at: u32) -> usize {
        self.get_mut(at).map_or(0, |slot| usize::from(slot.said))
    }
}

/// Takes a slot's buffer, with the `len` bytes that the device wrote, from it; false when it is not known whether that worked: the buffer
/// is gone then.
#[inline]
pub(super) fn unmap<D: Dma>(
    slots: &mut Slots<Slot>,
    mapper: &mut DmaMapper<D>,
    at: u32,
    len: usize,
    log: &Log,
) -> bool {
    let Some(slot) = slots.get_mut(at) else { return false };
    let Some(mapped) = slot.mapped.take() else { return slot.buffer.is_some() };
    mapper.sync_for_cpu(&mapped, len);
    if mapper.unmap(mapped).is_ok() {
        return true;
    }
    if let Some(buffer) = slot.buffer.take() {
        leak(buffer, log);
    }
    false
}

/// A buffer that the device may keep for ever.
#[cold]
fn leak(buffer: InFlight<FromDevice>, log: &Log) {
    log.fault(Fault::Leaked);
    // A loan that is dropped keeps its packet from going home.
    drop(buffer);
}

/// Gives a slot a buffer that the device may write to; false when there is none, or it can't be mapped.
#[inline]
fn prepare<D: Dma>(slot: &mut Slot, buffers: &mut Cache, mapper: &mut DmaMapper<D>, log: &Log) -> bool {
    let buffer = match slot.buffer.take() {
        Some(buffer) => buffer,
        None => {
            let Some(packet) = buffers.alloc() else {
                log.fault(Fault::NoBuffer);
                return false;
            };
            let Ok(buffer) = InFlight::<FromDevice>::post(packet) else { return false };
            buffer
        }
    };
    match mapper.map_from_device(&buffer) {
        Ok(mapped) => {
            *slot = Slot { buffer: Some(buffer), mapped: Some(mapped), said: 0 };
            true
        }
        Err(_) => {
            log.fault(Fault::MapFailed);
            *slot = Slot { buffer: Some(buffer), mapped: None, said: 0 };
            false
        }
    }
}
