//! A bus whose register writes are posted: a write is a store into a queue, as it is into the
//! buffers of an interconnect, and reaches the model at the next read or outside of timed sections.
//!
//! ```text
//!   driver ── w32 ──► queue ──┐ deliver(): before a read, and before the model works
//!          ── r32 ────────────┴──► CpswBus ──► model          the time of reads adds up in `reading`
//! ```
//!
//! So the time of a section less that of its reads is the driver's own: the model's bookkeeping for
//! a register access is in neither. One thread uses the bus.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use towpath::bus::{Bus, BusError, Mmio};
use towpath::model::cpsw::{CpswBus, CpswIrq, Registers};
use towpath::model::iommu::ModelDma;

/// Writes that wait; a longer queue is delivered.
const QUEUE: usize = 1024;
/// In a slot's place: the write has eight bytes.
const WIDE: u64 = 1 << 63;
/// In a slot's place: the lowest bit of the region's number.
const REGION: u32 = 48;

/// The writes that wait, and the regions they go to.
#[derive(Debug)]
pub(super) struct Queue {
    regions: Mutex<Vec<(u8, Registers)>>,
    len: AtomicUsize,
    /// Place and value of each write.
    slots: Box<[(AtomicU64, AtomicU64)]>,
    reading: AtomicU64,
}

impl Queue {
    fn new() -> Arc<Queue> {
        let slots = (0..QUEUE).map(|_| Default::default()).collect();
        Arc::new(Queue { regions: Mutex::default(), len: AtomicUsize::new(0), slots, reading: AtomicU64::new(0) })
    }

    fn post(&self, place: u64, value: u64) {
        let mut len = self.len.load(Relaxed);
        if len == QUEUE {
            self.deliver();
            len = 0;
        }
        if let Some(slot) = self.slots.get(len) {
            slot.0.store(place, Relaxed);
            slot.1.store(value, Relaxed);
            self.len.store(len + 1, Relaxed);
        }
    }

    /// Passes all writes to the model, in their order.
    pub(super) fn deliver(&self) {
        let regions = self.regions.lock().unwrap_or_else(PoisonError::into_inner);
        for (place, value) in self.slots.iter().take(self.len.swap(0, Relaxed)) {
            let (place, value) = (place.load(Relaxed), value.load(Relaxed));
            let (number, at) = ((place & !WIDE) >> REGION, (place & ((1 << REGION) - 1)) as usize);
            match regions.iter().find(|(region, _)| u64::from(*region) == number) {
                Some((_, registers)) if place & WIDE != 0 => registers.w64(at, value),
                Some((_, registers)) => registers.w32(at, value as u32),
                None => {}
            }
        }
    }

    /// Nanoseconds of all reads so far, with the writes that they delivered.
    pub(super) fn reading(&self) -> u64 {
        self.reading.load(Relaxed)
    }

    fn read<R>(&self, read: impl FnOnce() -> R) -> R {
        let begun = Instant::now();
        self.deliver();
        let value = read();
        let spent = begun.elapsed().as_nanos() as u64;
        self.reading.store(self.reading() + spent, Relaxed);
        value
    }
}

/// The bus.
#[derive(Debug)]
pub(super) struct Posted {
    bus: CpswBus,
    queue: Arc<Queue>,
}

impl Posted {
    pub(super) fn new(bus: CpswBus) -> (Posted, Arc<Queue>) {
        let queue = Queue::new();
        (Posted { bus, queue: queue.clone() }, queue)
    }
}

impl Bus for Posted {
    type Bar = PostedRegisters;
    type Dma = ModelDma;
    type Irq = CpswIrq;

    fn name(&self) -> &str {
        self.bus.name()
    }

    fn bar(&self, index: u8, len: usize) -> Result<PostedRegisters, BusError> {
        let registers = self.bus.bar(index, len)?;
        let mut regions = self.queue.regions.lock().unwrap_or_else(PoisonError::into_inner);
        regions.push((index, registers.clone()));
        Ok(PostedRegisters { registers, index, queue: self.queue.clone() })
    }

    fn dma(&self) -> &ModelDma {
        self.bus.dma()
    }

    fn irqs(&self, count: u16) -> Result<Vec<CpswIrq>, BusError> {
        self.bus.irqs(count)
    }
}

/// One region of registers.
#[derive(Debug, Clone)]
pub(super) struct PostedRegisters {
    registers: Registers,
    index: u8,
    queue: Arc<Queue>,
}

impl PostedRegisters {
    fn place(&self, at: usize) -> u64 {
        u64::from(self.index) << REGION | at as u64
    }
}

impl Mmio for PostedRegisters {
    const WIDE: bool = Registers::WIDE;

    fn len(&self) -> usize {
        self.registers.len()
    }

    fn r32(&self, at: usize) -> u32 {
        self.queue.read(|| self.registers.r32(at))
    }

    fn w32(&self, at: usize, value: u32) {
        self.queue.post(self.place(at), value.into());
    }

    fn r64(&self, at: usize) -> u64 {
        self.queue.read(|| self.registers.r64(at))
    }

    fn w64(&self, at: usize, value: u64) {
        self.queue.post(self.place(at) | WIDE, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath::model::cpsw::{Config, Cpsw, Soc};

    /// `P0_FLOW_ID_OFFSET`, a register that keeps what is written.
    const KEEPS: usize = 0x2_1008;

    #[test]
    fn a_write_waits_until_a_register_is_read_and_the_last_one_counts() {
        let model = Cpsw::new(Config::lenient(Soc::Am64x, 1)).unwrap();
        let (bus, queue) = Posted::new(model.bus());
        let (direct, posted) = (model.bus().bar(0, 0x4_0000).unwrap(), bus.bar(0, 0x4_0000).unwrap());
        let before = direct.r32(KEEPS);
        (1..=QUEUE as u32 - 1).for_each(|value| posted.w32(KEEPS, value));
        assert_eq!(direct.r32(KEEPS), before);
        assert_eq!(posted.r32(KEEPS), QUEUE as u32 - 1);
        assert!(queue.reading() > 0);
        posted.w32(KEEPS, 5);
        queue.deliver();
        assert_eq!(direct.r32(KEEPS), 5);
    }

    #[test]
    fn a_full_queue_is_delivered() {
        let model = Cpsw::new(Config::lenient(Soc::Am64x, 1)).unwrap();
        let (bus, _) = Posted::new(model.bus());
        let (direct, posted) = (model.bus().bar(0, 0x4_0000).unwrap(), bus.bar(0, 0x4_0000).unwrap());
        (1..=QUEUE as u32 + 1).for_each(|value| posted.w32(KEEPS, value));
        assert_eq!(direct.r32(KEEPS), QUEUE as u32);
    }
}
