//! The short way: frames of one buffer that are copied, one after the other.
//!
//! Their buffers stay mapped, so nothing has to settle, and one pass is enough: while slot and descriptor are at hand the descriptor is
//! written again as well, and refilling passes over it. The first frame that is anything else ends this; the three passes take it, and
//! what follows it in the burst.

use super::super::config::{ETHERNET, RecycleMode};
use super::super::descriptors::{self, Received};
use super::{RxCore, Terms, describe};
use crate::common::ring::next;
use towpath_bus::Dma;
use towpath_packet::Batch;

impl<D: Dma> RxCore<D> {
    /// Copies frames as long as there is nothing else to do; returns how many packets were appended, and their bytes.
    #[inline(never)]
    pub(super) fn copy_run(&mut self, out: &mut Batch, terms: Terms) -> (usize, u64) {
        let (mut packets, mut bytes) = (0, 0);
        if self.mode != RecycleMode::KeepMapped || self.begun.descriptors > 0 || self.discarding {
            return (packets, bytes);
        }
        let longest = self.max_frame.min(self.copy_room).min(self.buffer_size);
        let small = ETHERNET..terms.copybreak.min(longest + 1);
        let (len, room, told, mut at) = (self.ring.len(), out.room(), self.told, self.clean);
        let copies = self.copies.as_mut().unwrap_or(&mut self.buffers);
        while packets < room && at != told {
            let Some(said) = Received::new(self.ring.status(at), || self.ring.first(at)) else { break };
            if !small.contains(&said.len()) || !said.ends() || said.is_broken() {
                break;
            }
            let Some(slot) = self.slots.get_mut(at) else { break };
            let (Some(buffer), Some(mapped)) = (&slot.buffer, &slot.mapped) else { break };
            let Some(mut packet) = copies.alloc() else { break };
            self.mapper.sync_for_cpu(mapped, said.len());
            let copied = buffer.copy_to(said.len(), &mut packet);
            self.mapper.sync_for_device(mapped, said.len());
            if copied.is_err() || !describe(&mut packet, said, self.queue, terms) {
                // The long way counts it.
                copies.free(packet);
                break;
            }
            self.ring.store(at, descriptors::empty(mapped.iova().get()));
            at = next(at, len);
            bytes += packet.len() as u64;
            packets += usize::from(out.push(packet).is_ok());
        }
        (self.clean, self.scan) = (at, at);
        self.counts.completed += packets as u64;
        self.counts.copies += packets as u64;
        self.counts.recycled += packets as u64;
        (packets, bytes)
    }
}
