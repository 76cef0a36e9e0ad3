//! The way out: what the COMPLETION ring says has been sent, and what is counted for it.

use super::super::events::Event;
use super::super::metadata;
use super::SocketTx;
use towpath_packet::{DropReason, Packet};

impl SocketTx {
    /// A chunk came back; the packet, if that was its last.
    #[inline]
    fn complete(&mut self, addr: u64) -> Option<Packet> {
        let located = self.queue.setup.frames.locate(addr);
        let Some(Ok(done)) = located.map(|(chunk, _)| self.lent.complete(chunk)) else {
            // Nothing of ours: the kernel, or someone else with the rings, is confused.
            self.counters.failed(1);
            self.queue.setup.events.count(Event::UnknownCompletion, 1);
            return None;
        };
        let mut packet = done?;
        if let Some(sample) = &mut self.sample {
            let first = packet.chunks().next().and_then(|piece| self.queue.setup.frames.address(&piece));
            if first.is_some_and(|(chunk, _)| sample.is_in(chunk)) {
                sample.end(metadata::timestamp(&mut packet), &self.queue.setup.events.delays);
            }
        }
        Some(packet)
    }

    /// Takes what the kernel is through with; returns how many packets.
    #[inline]
    pub(super) fn collect(&mut self) -> usize {
        let mut sent = 0;
        let mut bytes = 0;
        while let Some(rings) = &mut self.rings {
            let ready = rings.completion.peek(1).min(self.done.room() as u32);
            if ready == 0 {
                break;
            }
            for _ in 0..ready {
                let Some(rings) = &mut self.rings else { break };
                let addr = rings.completion.read();
                if let Some(packet) = self.complete(addr) {
                    bytes += packet.len() as u64;
                    sent += 1;
                    let _ = self.done.push(packet);
                }
            }
            if let Some(rings) = &mut self.rings {
                rings.completion.release();
            }
            self.cache.free_bulk(&mut self.done);
        }
        if sent > 0 {
            self.waits_since = None;
            self.worked = true;
            let refused = self.refused.min(sent);
            if refused > 0 {
                // Which of them it were is not known; their bytes are taken to be as many as those of the others.
                bytes -= bytes / sent * refused;
                self.refused -= refused;
                self.counters.dropped(DropReason::Refused, refused);
            }
            self.counters.moved(sent - refused, bytes);
        }
        sent as usize
    }
}
