//! A receive queue: buffers become chains of one buffer, used chains become packets.
//!
//! ```text
//!   one buffer       [ header │ frame ]                                num_buffers = 1
//!   mergeable        [ header │ frame … ] [ … ] [ … ]                  num_buffers = 3
//! ```
//!
//! A burst takes three passes, which share one IOTLB flush: used chains are harvested and their
//! buffers unmapped; [`sync_iotlb`](towpath_bus::DmaMapper::sync_iotlb) flushes the IOTLB; packets
//! are made. No byte of a buffer is read before the flush.
//!
//! | file | contents |
//! |---|---|
//! | `mod` | [`RxRing`]: its parts, refill, and the end |
//! | `burst` | used chains become packets |
//! | `queue` | [`VirtioRx`]: the port's queue |

mod burst;
mod queue;

pub use queue::VirtioRx;

use super::control::{Control, Fault};
use burst::{BURST, Partial};
use std::sync::Arc;
use towpath_bus::{Dma, DmaMapper, Mapped};
use towpath_packet::{Batch, Cache, Counters, FromDevice, InFlight, Offloads};
use towpath_virtio::{Driver, Segment, Used};

/// The buffer of a chain. One that is mapped has a buffer.
#[derive(Debug, Default)]
struct RxSlot {
    buffer: Option<InFlight<FromDevice>>,
    mapped: Option<Mapped>,
}

/// What was negotiated for received packets.
#[derive(Debug, Clone, Copy)]
pub(super) struct RxRules {
    /// A packet may have several buffers.
    pub(super) mergeable: bool,
    /// What packets may need.
    pub(super) offloads: Offloads,
    /// A hash follows the header.
    pub(super) hashes: bool,
    /// Bytes of the longest frame that is not a super-packet.
    pub(super) max_frame: usize,
}

/// The ring and the buffers in it.
pub(super) struct RxRing<D: Dma> {
    driver: Driver,
    mapper: DmaMapper<D>,
    cache: Cache,
    slots: Box<[RxSlot]>,
    rules: RxRules,
    queue: u8,
    used: [Used; BURST],
    /// Buffers that are about to be posted.
    fresh: Batch,
    /// A packet whose last buffer was not used yet.
    partial: Option<Partial>,
    counters: Arc<Counters>,
    control: Control,
}

impl<D: Dma> RxRing<D> {
    pub(super) fn new(
        driver: Driver,
        mapper: DmaMapper<D>,
        cache: Cache,
        size: u16,
        rules: RxRules,
        queue: u16,
        control: Control,
    ) -> RxRing<D> {
        let mut driver = driver;
        driver.disable_calls();
        RxRing {
            driver,
            mapper,
            cache,
            slots: (0..size).map(|_| RxSlot::default()).collect(),
            rules,
            queue: queue as u8,
            used: [Used { id: 0, len: 0 }; BURST],
            fresh: Batch::new(),
            partial: None,
            counters: Arc::default(),
            control,
        }
    }

    /// Whether the device has few buffers: it may have to wait for the driver.
    fn is_starved(&self) -> bool {
        usize::from(self.driver.in_flight()) < self.slots.len() / 4
    }

    /// Adds buffers, once an eighth of the ring is free, and makes them available. Returns how
    /// many, and whether the device wants a kick.
    #[inline]
    fn refill(&mut self) -> (usize, bool) {
        let free = usize::from(self.driver.free());
        if free < (self.slots.len() / 8).min(32) {
            return (0, false);
        }
        let mut posted = 0;
        while posted < free {
            let wanted = (free - posted).min(64);
            if self.cache.alloc_bulk(&mut self.fresh, wanted) == 0 {
                self.control.fault(Fault::NoBuffer);
                self.counters.retried(1);
                break;
            }
            let n = self.post_fresh();
            posted += n;
            if n < wanted {
                break;
            }
        }
        (posted, posted > 0 && self.driver.publish())
    }

    /// Adds the fresh buffers; returns how many.
    #[inline]
    fn post_fresh(&mut self) -> usize {
        let mut posted = 0;
        while let Some(packet) = self.fresh.pop() {
            let Ok(buffer) = InFlight::<FromDevice>::post(packet) else { continue };
            let Ok(mapped) = self.mapper.map_from_device(&buffer) else {
                self.control.fault(Fault::MapFailed);
                self.cache.free(buffer.complete(0));
                break;
            };
            match self.driver.add(&[Segment::writable(mapped.iova().get(), buffer.room() as u32)]) {
                Ok(id) => {
                    if let Some(slot) = self.slots.get_mut(usize::from(id)) {
                        *slot = RxSlot { buffer: Some(buffer), mapped: Some(mapped) };
                    }
                    posted += 1;
                }
                Err(_) => {
                    // No descriptor names the buffer.
                    let _ = self.mapper.unmap(mapped);
                    self.cache.free(buffer.complete(0));
                    break;
                }
            }
        }
        self.cache.free_bulk(&mut self.fresh);
        posted
    }

    /// No packet has come for a while: flushes what was unmapped.
    #[cold]
    fn idle(&mut self) {
        let _ = self.mapper.flush();
    }

    /// The device was reset, and knows no buffer: frees them all, and what was received and not
    /// taken is lost.
    #[cold]
    fn restart(&mut self) {
        if self.partial.take().is_some() {
            self.control.fault(Fault::LostFrame);
        }
        for at in 0..self.slots.len() {
            self.unmap(at);
        }
        self.driver.reset(|_| {});
        self.driver.disable_calls();
        let flushed = self.mapper.flush().is_ok();
        for slot in &mut self.slots {
            match slot.buffer.take() {
                Some(buffer) if flushed => self.cache.free(buffer.complete(0)),
                Some(buffer) => leak(buffer, &self.control),
                None => {}
            }
        }
    }

    /// Unmaps the buffer of a slot. A buffer that can't be unmapped is leaked.
    #[inline]
    fn unmap(&mut self, at: usize) {
        let Some(slot) = self.slots.get_mut(at) else { return };
        if let Some(mapped) = slot.mapped.take()
            && self.mapper.unmap(mapped).is_err()
            && let Some(buffer) = slot.buffer.take()
        {
            leak(buffer, &self.control);
        }
    }

    /// The device was stopped: frees all buffers.
    #[cold]
    pub(super) fn release(mut self) {
        self.restart();
    }

    /// The device may still write: leaks all buffers, the ring, and the IOVA window, whose pages
    /// may be in use.
    #[cold]
    pub(super) fn abandon(mut self) {
        for slot in &mut self.slots {
            if let Some(buffer) = slot.buffer.take() {
                leak(buffer, &self.control);
            }
        }
        std::mem::forget((self.mapper, self.driver));
    }
}

/// A buffer that the device may write for ever.
#[cold]
fn leak(buffer: InFlight<FromDevice>, control: &Control) {
    control.fault(Fault::Leaked);
    // The packet of an `InFlight` that is dropped does not return to its pool.
    drop(buffer);
}
