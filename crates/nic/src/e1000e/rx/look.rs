//! First pass: what has come back, and what is to become of it.

use super::super::config::{ETHERNET, RecycleMode};
use super::super::control::Fault;
use super::super::descriptors::Received;
use super::buffers::unmap;
use super::{Begun, Frame, MAX_CHAIN, RxCore};
use crate::common::ring::next;
use towpath_bus::Dma;

impl<D: Dma> RxCore<D> {
    /// First pass: which descriptors have come back, and what is to become of their frames. Returns the number of frames that are kept,
    /// of those that are to be copied, and whether buffers were unmapped already.
    #[inline]
    pub(super) fn look(&mut self, room: usize, copybreak: usize) -> (usize, usize, bool) {
        let len = self.ring.len();
        let copybreak = copybreak.min(self.copy_room + 1);
        let (mut frames, mut small) = (0, 0);
        let (begin, mut completed) = (self.clean, 0);
        while frames < room && self.scan != self.told {
            let at = self.scan;
            let Some(said) = Received::new(self.ring.status(at), || self.ring.first(at)) else { break };
            self.scan = next(at, len);
            completed += 1;
            if self.mode == RecycleMode::UnmapFirst {
                unmap(&mut self.slots, &mut self.mapper, at, said.len().min(self.buffer_size), &self.log);
                if self.wait_each {
                    let _ = self.mapper.flush();
                }
            }
            let begun = &mut self.begun;
            begun.descriptors += 1;
            begun.len += said.len();
            if said.len() > self.buffer_size {
                self.log.fault(Fault::BadLength);
                begun.bad = true;
            }
            if !said.ends() {
                if let Some(slot) = self.slots.get_mut(at) {
                    slot.said = said.len().min(self.buffer_size) as u16;
                }
                if begun.descriptors >= MAX_CHAIN && !self.discarding {
                    self.log.fault(Fault::Endless);
                    self.discarding = true;
                }
                if self.discarding {
                    self.recycle_begun();
                }
                continue;
            }
            let whole = std::mem::take(begun);
            if self.discarding || whole.bad || said.is_broken() || !self.is_frame(whole.len) {
                if said.is_broken() {
                    self.log.fault(Fault::BrokenFrame);
                }
                self.discarding = false;
                self.counts.recycled += u64::from(whole.descriptors);
                self.clean = self.scan;
                continue;
            }
            let copy = whole.len < copybreak;
            small += usize::from(copy);
            if let Some(frame) = self.frames.get_mut(frames) {
                let (first, len) = (self.clean, whole.len as u32);
                *frame = Frame { first, descriptors: whole.descriptors, len, copy, lost: false, said };
            }
            frames += 1;
            self.clean = self.scan;
        }
        if begin != self.clean {
            self.ready = self.clean;
        }
        self.counts.completed += completed;
        (frames, small, begin != self.clean && self.mode == RecycleMode::UnmapFirst)
    }

    /// Whether a frame of this length is one.
    #[inline]
    fn is_frame(&self, len: usize) -> bool {
        if (ETHERNET..=self.max_frame).contains(&len) {
            return true;
        }
        self.log.fault(if len < ETHERNET { Fault::Runt } else { Fault::Oversize });
        false
    }

    /// Gives back what has come of a frame that is thrown away.
    #[cold]
    fn recycle_begun(&mut self) {
        self.counts.recycled += u64::from(self.begun.descriptors);
        self.begun = Begun::default();
        self.clean = self.scan;
    }

    /// Whether a descriptor came back before the one that is next: a device that does so has lost count.
    pub(in super::super) fn is_out_of_order(&self) -> bool {
        let (len, ring) = (self.ring.len(), &self.ring);
        if self.scan == self.told || Received::done(ring.status(self.scan)) {
            return false;
        }
        let mut at = next(self.scan, len);
        while at != self.told {
            if Received::done(ring.status(at)) {
                return true;
            }
            at = next(at, len);
        }
        false
    }
}
