//! Second and third pass: what is handed on is taken from the device, and packets are made.

use super::super::config::RecycleMode;
use super::super::control::Fault;
use super::buffers::unmap;
use super::{Frame, RxCore, Terms, describe};
use crate::common::ring::next;
use towpath_bus::Dma;
use towpath_packet::{Batch, Packet};

impl<D: Dma> RxCore<D> {
    /// Second pass: takes from the device what will be handed on.
    #[inline]
    pub(super) fn let_go(&mut self, frames: usize) {
        let (len, mut targets) = (self.ring.len(), self.targets.len());
        for frame in self.frames.iter_mut().take(frames) {
            if frame.copy && targets > 0 {
                targets -= 1;
                continue;
            }
            frame.copy = false;
            let (mut at, mut left) = (frame.first, frame.len as usize);
            for i in 0..frame.descriptors {
                let said = if i + 1 == frame.descriptors { left } else { self.slots.said(at).min(left) };
                left -= said;
                frame.lost |= !unmap(&mut self.slots, &mut self.mapper, at, said, &self.log);
                if self.wait_each {
                    // One that fails is made up for when the burst settles.
                    let _ = self.mapper.flush();
                }
                at = next(at, len);
            }
        }
    }

    /// Third pass: makes packets.
    #[inline]
    pub(super) fn make(&mut self, frames: usize, out: &mut Batch, terms: Terms, settled: bool) -> (usize, u64) {
        let (mut packets, mut bytes) = (0, 0);
        for i in 0..frames {
            let Some(&frame) = self.frames.get(i) else { break };
            let unmapped = !frame.copy || self.mode == RecycleMode::UnmapFirst;
            if frame.lost || (unmapped && !settled) {
                // What is left of it in the slots is leaked by `lose_unmapped`, or goes back to the device.
                self.log.fault(Fault::LostFrame);
                continue;
            }
            let packet = if frame.copy { self.copy(&frame) } else { self.hand_on(&frame) };
            let Some(mut packet) = packet else {
                self.log.fault(Fault::LostFrame);
                continue;
            };
            if !describe(&mut packet, frame.said, self.queue, terms) {
                self.log.fault(Fault::LostFrame);
                continue;
            }
            bytes += packet.len() as u64;
            packets += usize::from(out.push(packet).is_ok());
        }
        (packets, bytes)
    }

    /// Copies a frame out of its buffers, which stay where they are.
    #[inline]
    fn copy(&mut self, frame: &Frame) -> Option<Packet> {
        let mut packet = self.targets.pop()?;
        let (ring, mut at, mut left) = (self.ring.len(), frame.first, frame.len as usize);
        for i in 0..frame.descriptors {
            let slot = self.slots.get_mut(at)?;
            let said = if i + 1 == frame.descriptors { left } else { usize::from(slot.said).min(left) };
            let buffer = slot.buffer.as_ref()?;
            if let Some(mapped) = &slot.mapped {
                self.mapper.sync_for_cpu(mapped, said);
            }
            let copied = buffer.copy_to(said, &mut packet);
            if let Some(mapped) = &slot.mapped {
                self.mapper.sync_for_device(mapped, said);
            }
            copied.ok()?;
            left -= said;
            self.counts.copies += 1;
            self.counts.recycled += 1;
            at = next(at, ring);
        }
        (packet.len() == frame.len as usize).then_some(packet)
    }

    /// Makes a packet of a frame's buffers.
    #[inline]
    fn hand_on(&mut self, frame: &Frame) -> Option<Packet> {
        if frame.descriptors == 1 {
            let buffer = self.slots.get_mut(frame.first)?.buffer.take()?;
            self.counts.handed += 1;
            let packet = buffer.complete(frame.len as usize);
            // Whoever gets it looks at its headers next.
            packet.prefetch_data();
            return Some(packet);
        }
        self.chain(frame)
    }

    /// The same for a frame of several buffers. Buffers without bytes stay out of it.
    fn chain(&mut self, frame: &Frame) -> Option<Packet> {
        let (ring, mut at, mut left) = (self.ring.len(), frame.first, frame.len as usize);
        let mut whole: Option<Packet> = None;
        for i in 0..frame.descriptors {
            let slot = self.slots.get_mut(at)?;
            let said = if i + 1 == frame.descriptors { left } else { usize::from(slot.said).min(left) };
            at = next(at, ring);
            left -= said;
            if said == 0 {
                continue;
            }
            let buffer = slot.buffer.take()?;
            self.counts.handed += 1;
            let part = buffer.complete(said);
            match &mut whole {
                None => whole = Some(part),
                Some(packet) => packet.append(part).ok()?,
            }
        }
        whole.filter(|packet| packet.len() == frame.len as usize)
    }
}
