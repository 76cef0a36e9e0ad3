//! A receive queue: buffers into the ring, frames out of it.
//!
//! | file | idea |
//! |---|---|
//! | `queue` | the port trait, interrupts, the watchdog |
//! | `burst` | frames out of the ring: harvest, unmap, deliver; and the short way, copy |
//! | `buffers` | the ring and the buffers in its slots: refill, restart, end |
//!
//! Five indices divide the ring, always in this order:
//!
//! ```text
//!   rewritten    next_to_clean    next_to_scan       tail        next_to_use
//!  ─────┬──────────────┬────────────────┬──────────────┬──────────────┬───────
//!  free │ free,        │ begun frame    │ the device's │ written, not │ free
//!       │ rewritten    │                │              │ announced    │
//! ```
//!
//! A slot is mapped (M: a buffer that the device may write), unmapped (U: a buffer that could not
//! be mapped) or empty (E).
//!
//! | completed descriptor | what the driver does with the buffer | slot |
//! |---|---|---|
//! | damaged frame, part of a frame that is discarded | nothing | M |
//! | frame below copybreak, and a buffer for the copy | sync for CPU, copy, sync for device | M |
//! | the same without a buffer for the copy; longer frame | sync for CPU, unmap, deliver | E |
//! | | unmapping fails: leak the buffer | E |
//!
//! | refill | what the driver does | slot |
//! |---|---|---|
//! | M | rewrite the descriptor | M |
//! | U, E | allocate a buffer if there is none, and map it | M |
//! | | allocation or mapping fails: stop here, and begin here the next time | E, U |

mod buffers;
mod burst;
mod queue;

pub use queue::E1000eRx;

use super::config::{Config, RecycleMode};
use super::control::FaultLog;
use crate::common::copybreak::RxCounts;
use crate::common::end::EndedRing;
use crate::common::ring::DescRing;
use buffers::RxBuffers;
use burst::{Frame, PartialFrame};
use towpath_bus::{Dma, DmaMapper, DmaPolicy, Flush};
use towpath_packet::{Batch, Cache};

const STRICT: DmaPolicy = DmaPolicy::PerBuffer { flush: Flush::Strict };

/// Frames of one burst.
const BURST: usize = Batch::<64>::CAPACITY;

/// How a burst is received.
#[derive(Debug, Clone, Copy)]
pub(super) struct BurstOptions {
    /// Frames shorter than this are copied.
    pub(super) copybreak: usize,
    /// Whether a VLAN tag may stay beside the packet.
    pub(super) keep_tags: bool,
}

/// The ring of a receive queue, with what a burst needs.
pub(super) struct RxRing<D: Dma> {
    buffers: RxBuffers<D>,
    /// The cache for copies, if they come from another pool than the device's buffers.
    copy_cache: Option<Cache>,
    /// Bytes that the device writes to one buffer, at most.
    buffer_size: usize,
    /// Bytes of a frame that fit in a copy.
    copy_room: usize,
    max_frame: usize,
    mode: RecycleMode,
    wait_each: bool,
    /// Frames may be copied in one pass: no buffer is unmapped, or none that shares the burst's
    /// IOTLB flush.
    one_pass: bool,
    partial: PartialFrame,
    /// The frame that has begun is discarded up to its end.
    discarding: bool,
    /// Buffers for the copies of a burst.
    targets: Batch,
    frames: Box<[Frame; BURST]>,
    counts: RxCounts,
    queue: u8,
}

/// The parts of a ring.
pub(super) struct RxParts<D: Dma> {
    pub(super) ring: DescRing,
    pub(super) mapper: DmaMapper<D>,
    pub(super) cache: Cache,
    pub(super) copy_cache: Option<Cache>,
    pub(super) buffer_size: usize,
}

impl<D: Dma> RxRing<D> {
    pub(super) fn new(parts: RxParts<D>, config: &Config, queue: u8, log: FaultLog) -> RxRing<D> {
        let RxParts { ring, mapper, cache, copy_cache, buffer_size } = parts;
        let of = copy_cache.as_ref().unwrap_or(&cache);
        let copy_room = of.chunk() - of.headroom();
        let policy = mapper.domain().policy();
        // Persistently mapped buffers have nothing to unmap: both modes are the same.
        let mode = if policy == DmaPolicy::Persistent { RecycleMode::KeepMapped } else { config.recycle };
        let shares_flush = policy == STRICT && !config.wait_each;
        RxRing {
            buffers: RxBuffers::new(ring, mapper, cache, log),
            copy_cache,
            buffer_size,
            copy_room,
            max_frame: config.max_frame(),
            mode,
            wait_each: config.wait_each,
            one_pass: mode == RecycleMode::KeepMapped || !shares_flush,
            partial: PartialFrame::default(),
            discarding: false,
            targets: Batch::new(),
            frames: Box::new([Frame::default(); BURST]),
            counts: RxCounts::default(),
            queue,
        }
    }

    pub(super) fn descriptors(&self) -> &DescRing {
        &self.buffers.ring
    }

    pub(super) fn counts(&self) -> RxCounts {
        self.counts.with_dma(self.buffers.mapper.counts())
    }

    /// Sets the length of the longest frame.
    #[inline]
    fn set_max_frame(&mut self, bytes: usize) {
        self.max_frame = bytes;
    }

    /// The device was reset, and its ring is empty: starts again with the buffers that are there,
    /// mapped as they are. The device writes at most `buffer_size` bytes to each now.
    #[cold]
    fn restart(&mut self, buffer_size: usize) {
        self.buffer_size = buffer_size;
        self.buffers.restart();
        self.partial = PartialFrame::default();
        self.discarding = false;
    }
}

impl<D: Dma> EndedRing for RxRing<D> {
    #[cold]
    fn release(self) {
        self.buffers.release();
    }

    #[cold]
    fn abandon(self) {
        self.buffers.abandon();
    }
}

#[cfg(test)]
mod tests;
