//! QEMU's bus in a wrapper that records which buffer was mapped where, and leaves out IOTLB flushes
//! on request.

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use towpath_bus::qtest::{QtestBus, QtestDma, QtestIrq, Registers};
use towpath_bus::{Access, Bus, BusError, Dma, Iova, IrqKind, Limits, MapError, Pci, Window};
use towpath_packet::Region;

/// What the driver has mapped and flushed.
#[derive(Debug, Default)]
pub(crate) struct Log {
    /// The last IOVA of each buffer, by its address.
    mapped: Mutex<HashMap<usize, u64>>,
    /// Leaves out flushes from now on.
    pub(crate) forget: AtomicBool,
    /// Flushes that the driver requested.
    pub(crate) flushes: AtomicU64,
}

impl Log {
    /// The IOVA of the buffer that begins at `at`.
    pub(crate) fn iova(&self, at: *const u8) -> Option<u64> {
        self.mapped.lock().unwrap().get(&(at as usize)).copied()
    }
}

pub(crate) struct Spy {
    real: QtestBus,
    dma: SpyDma,
}

impl Spy {
    pub(crate) fn new(real: QtestBus, log: Arc<Log>) -> Spy {
        Spy { dma: SpyDma { real: real.dma().clone(), log }, real }
    }

    pub(crate) fn real_dma(&self) -> &QtestDma {
        &self.dma.real
    }

    pub(crate) fn registers(&self) -> Registers {
        self.real.bar(0, 128 << 10).unwrap()
    }
}

impl Bus for Spy {
    type Bar = Registers;
    type Dma = SpyDma;
    type Irq = QtestIrq;

    fn name(&self) -> &str {
        self.real.name()
    }
    fn bar(&self, index: u8, len: usize) -> Result<Registers, BusError> {
        self.real.bar(index, len)
    }
    fn dma(&self) -> &SpyDma {
        &self.dma
    }
    fn irqs(&self, count: u16) -> Result<Vec<QtestIrq>, BusError> {
        self.real.irqs(count)
    }
}

impl Pci for Spy {
    fn config_r32(&self, at: u16) -> u32 {
        self.real.config_r32(at)
    }
    fn config_w32(&self, at: u16, value: u32) {
        self.real.config_w32(at, value);
    }
    fn reset(&self) -> Result<(), BusError> {
        self.real.reset()
    }
    fn irq_count(&self, kind: IrqKind) -> u16 {
        self.real.irq_count(kind)
    }
    fn irqs_of(&self, kind: IrqKind, count: u16) -> Result<Vec<QtestIrq>, BusError> {
        self.real.irqs_of(kind, count)
    }
}

#[derive(Clone)]
pub(crate) struct SpyDma {
    real: QtestDma,
    log: Arc<Log>,
}

// SAFETY: it passes every call to the real one.
unsafe impl Dma for SpyDma {
    type Window = SpyWindow;

    fn limits(&self) -> &Limits {
        self.real.limits()
    }
    fn alloc(&self, len: usize) -> Result<Region, MapError> {
        self.real.alloc(len)
    }
    fn reaches(&self, at: NonNull<u8>, len: usize) -> bool {
        self.real.reaches(at, len)
    }
    unsafe fn map(&self, at: NonNull<u8>, len: usize, access: Access) -> Result<Iova, MapError> {
        // SAFETY: the caller's promise is the one that this call needs.
        unsafe { self.real.map(at, len, access) }
    }
    fn unmap(&self, iova: Iova, len: usize) -> Result<(), MapError> {
        self.real.unmap(iova, len)
    }
    fn window(&self, slots: u32, bytes: usize) -> Result<SpyWindow, MapError> {
        Ok(SpyWindow { real: self.real.window(slots, bytes)?, log: self.log.clone() })
    }
}

pub(crate) struct SpyWindow {
    real: <QtestDma as Dma>::Window,
    log: Arc<Log>,
}

// SAFETY: it passes every call to the real one, but the flushes that a test leaves out.
unsafe impl Window for SpyWindow {
    unsafe fn map(&mut self, slot: u32, at: NonNull<u8>, len: usize, access: Access) -> Result<Iova, MapError> {
        // SAFETY: the caller's promise is the one that this call needs. (`forget` breaks it on
        // purpose; the device can then write only to memory of the machine.)
        let iova = unsafe { self.real.map(slot, at, len, access) }?;
        self.log.mapped.lock().unwrap().insert(at.addr().get(), iova.get());
        Ok(iova)
    }
    fn unmap(&mut self, slot: u32) -> Result<(), MapError> {
        self.real.unmap(slot)
    }
    fn flush_iotlb(&mut self) -> Result<(), MapError> {
        self.log.flushes.fetch_add(1, Ordering::Relaxed);
        if self.log.forget.load(Ordering::Relaxed) { Ok(()) } else { self.real.flush_iotlb() }
    }
}
