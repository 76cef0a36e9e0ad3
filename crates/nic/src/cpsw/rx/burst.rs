//! From the descriptors of a burst to its frames.
//!
//! ```text
//!   descriptor ──harvest──► buffers with their parts ── one IOTLB sync ──deliver──► packets
//! ```
//!
//! A frame that is longer than a buffer continues in further buffers
//! ([`Config::rx_buffers`](super::super::Config::rx_buffers)). PKTDMA fills a chain of descriptors
//! that the driver linked, as far as the frame reaches. UDMA takes one descriptor after the other
//! from the free ring and links them. Only the first descriptor completes on the ring.

use super::super::desc_pool::NO_DESC;
use super::super::descriptors::RxPacketDesc;
use super::RxCounts;
use super::buffers::RxBuffers;
use towpath_bus::Dma;
use towpath_packet::{Checksum, FromDevice, InFlight, Packet};

/// A buffer that was taken back from the device.
struct Filled {
    buffer: InFlight<FromDevice>,
    /// Bytes of the frame in this buffer.
    len: usize,
    /// In the first buffer of a good frame: its descriptor, and the number of its buffers.
    frame: Option<(RxPacketDesc, u16)>,
}

/// The buffers of one burst.
pub(super) struct RxBurst(Vec<Filled>);

impl RxBurst {
    pub(super) fn with_capacity(buffers: usize) -> RxBurst {
        RxBurst(Vec::with_capacity(buffers))
    }

    /// Takes the buffers of a frame back; `first` is its first descriptor.
    #[inline]
    pub(super) fn harvest<D: Dma>(&mut self, buffers: &mut RxBuffers<D>, first: u16, counts: &mut RxCounts) {
        let desc = buffers.table.descriptors.read(first);
        if buffers.chain > 1 {
            return self.harvest_chain(buffers, first, desc, counts);
        }
        let Some(buffer) = buffers.take(first, desc.len) else {
            // It was completed twice, within one pop.
            counts.strays += 1;
            return;
        };
        let good = desc.is_good() && desc.buffer.next == 0 && desc.len <= buffer.room();
        counts.broken += u64::from(!good);
        self.0.push(Filled { buffer, len: desc.len, frame: good.then_some((desc, 1)) });
    }

    /// A frame is good if each buffer is full before the next one starts, and the last one holds
    /// the end of the frame.
    ///
    /// The driver looks up every descriptor that the device linked. A descriptor that is not in
    /// flight, or that is in the chain already, ends the chain. Descriptors that the device
    /// withholds that way are missing until the channel is torn down.
    fn harvest_chain<D: Dma>(
        &mut self,
        buffers: &mut RxBuffers<D>,
        first: u16,
        desc: RxPacketDesc,
        counts: &mut RxCounts,
    ) {
        let (start, mut good) = (self.0.len(), desc.is_good());
        let (mut index, mut filled, mut left) = (first, desc.buffer, desc.len);
        for parts in 1..=buffers.chain {
            let next = buffers.next(index, filled);
            let Some(buffer) = buffers.take(index, filled.len) else {
                good = false;
                break;
            };
            let len = left.min(buffer.room());
            good &= filled.len == len;
            left -= len;
            self.0.push(Filled { buffer, len, frame: None });
            if left == 0 || parts == buffers.chain || next == NO_DESC {
                let linked = buffers.linked;
                good &= left == 0 && (linked || next == NO_DESC);
                buffers.keep_rest(if linked { next } else { NO_DESC });
                break;
            }
            (index, filled) = (next, buffers.table.descriptors.read_buffer(next));
        }
        let parts = (self.0.len() - start) as u16;
        if good && let Some(first) = self.0.get_mut(start) {
            first.frame = Some((desc, parts));
        } else {
            counts.broken += 1;
        }
    }

    /// Delivers the frames after the device can no longer reach their buffers; each goes to
    /// `deliver` with its MAC port, 1 and up. Returns their number.
    #[inline]
    pub(super) fn deliver<D: Dma>(
        &mut self,
        buffers: &mut RxBuffers<D>,
        counts: &mut RxCounts,
        deliver: &mut impl FnMut(Packet, u8),
    ) -> usize {
        // Waits, if the policy demands it.
        if buffers.table.mapper.sync_iotlb().is_err() {
            // Dropping buffers in flight leaks them: the device may still reach them.
            self.0.clear();
        }
        let mut done = 0;
        let mut filled = self.0.drain(..);
        while let Some(Filled { buffer, len, frame }) = filled.next() {
            let mut packet = buffer.complete(len);
            let Some((desc, parts)) = frame else {
                buffers.cache.free(packet);
                continue;
            };
            let mut whole = true;
            for Filled { buffer, len, .. } in filled.by_ref().take(usize::from(parts) - 1) {
                if let Err(part) = packet.append(buffer.complete(len)) {
                    buffers.cache.free(part);
                    whole = false;
                }
            }
            if !whole {
                counts.broken += 1;
                buffers.cache.free(packet);
                continue;
            }
            if desc.is_verified() {
                packet.set_csum(Checksum::Verified);
            }
            counts.received += 1;
            done += 1;
            deliver(packet, desc.port);
        }
        done
    }
}
