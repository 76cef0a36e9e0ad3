//! The driver's side of the device: register regions, DMA, interrupts.

use super::Cpsw;
use super::config::IrqMode;
use super::device::{Area, Device};
use super::thread::Running;
use crate::iommu::ModelDma;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use towpath_bus::{Bus, BusError, Irq, Mmio};
use towpath_sys::EventFd;

/// Steps while a driver pauses, for each that a register read takes.
const STEPS_PER_PAUSE: u32 = 64;

/// The bus of a [`Cpsw`].
///
/// Regions: 0 the switch; 1 real-time registers of the rings, 2 of the transmit channels, 3 of the
/// receive channels; 4 FIFO windows of the rings. Interrupts 0 to 7 are the completions of the
/// transmit channels, in the order of the switch's threads; those of the receive flows follow from
/// 8 on.
#[derive(Debug)]
pub struct CpswBus {
    model: Cpsw,
    /// The device's thread, if the bus owns it.
    _running: Option<Running>,
}

impl CpswBus {
    pub(super) fn new(model: Cpsw, running: Option<Running>) -> CpswBus {
        CpswBus { model, _running: running }
    }
}

impl Bus for CpswBus {
    type Bar = Registers;
    type Dma = ModelDma;
    type Irq = CpswIrq;

    fn name(&self) -> &str {
        "cpsw:model"
    }

    fn bar(&self, index: u8, len: usize) -> Result<Registers, BusError> {
        let wrong = |what: String| BusError::Device { device: self.name().to_owned(), what };
        let area = Area::ALL.get(usize::from(index)).ok_or_else(|| wrong(format!("there is no region {index}")))?;
        let has = area.len(self.model.config());
        if len > has {
            return Err(wrong(format!("region {index} has {has} bytes, {len} are needed")));
        }
        Ok(Registers { model: self.model.clone(), area: *area, len: has })
    }

    fn dma(&self) -> &ModelDma {
        &self.model.dma
    }

    fn irqs(&self, count: u16) -> Result<Vec<CpswIrq>, BusError> {
        let made: io::Result<Vec<_>> = (0..count).map(|_| EventFd::new().map(Arc::new)).collect();
        let events = made.map_err(|source| BusError::Os {
            device: self.name().to_owned(),
            step: "eventfd".to_owned(),
            source,
            hint: Some("raise the limit on open files".to_owned()),
        })?;
        self.model.shared.lines.set(&events);
        let irq = |(line, event)| CpswIrq { event, line: line as u16, model: self.model.clone() };
        Ok(events.into_iter().enumerate().map(irq).collect())
    }
}

/// One region of registers.
#[derive(Debug, Clone)]
pub struct Registers {
    model: Cpsw,
    area: Area,
    len: usize,
}

impl Registers {
    /// After a write: levels may have fallen, and the device may have work.
    fn after_write(&self, device: MutexGuard<'_, Device>) {
        self.model.shared.lines.update(&device);
        drop(device);
        self.model.shared.wakeup.signal();
    }
}

impl Mmio for Registers {
    const WIDE: bool = true;

    fn len(&self) -> usize {
        self.len
    }

    fn r32(&self, at: usize) -> u32 {
        if at >= self.len || !at.is_multiple_of(4) {
            return u32::MAX;
        }
        self.model.device().read(self.area, at)
    }

    fn w32(&self, at: usize, value: u32) {
        if at < self.len && at.is_multiple_of(4) {
            let mut device = self.model.device();
            device.write(self.area, at, value);
            self.after_write(device);
        }
    }

    fn r64(&self, at: usize) -> u64 {
        if self.area != Area::Fifos {
            return u64::from(self.r32(at)) | u64::from(self.r32(at + 4)) << 32;
        }
        let mut device = self.model.device();
        let element = device.read_wide(at);
        self.model.shared.lines.update(&device);
        element
    }

    fn w64(&self, at: usize, value: u64) {
        if self.area == Area::Fifos {
            let mut device = self.model.device();
            device.write_wide(at, value);
            self.after_write(device);
        } else {
            self.w32(at, value as u32);
            self.w32(at + 4, (value >> 32) as u32);
        }
    }

    fn now(&self) -> Instant {
        self.model.device().switch.now()
    }

    /// With [`steps_per_read`](super::Config::steps_per_read) the device works instead of a sleep.
    fn pause(&self, time: Duration) {
        let mut device = self.model.device();
        if device.config.steps_per_read > 0 {
            device.switch.ahead += time;
        }
        let steps = STEPS_PER_PAUSE * u32::from(device.config.steps_per_read);
        if steps == 0 {
            drop(device);
            return std::thread::sleep(time);
        }
        let _ = (0..steps).take_while(|_| device.random_step()).count();
        self.model.shared.lines.update(&device);
    }
}

/// The interrupts: file descriptor `i` becomes readable when level `i` rises.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// Interrupts were requested.
    used: AtomicBool,
    lines: Mutex<Vec<(Arc<EventFd>, bool)>>,
}

impl Lines {
    fn set(&self, events: &[Arc<EventFd>]) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        *lines = events.iter().map(|event| (event.clone(), false)).collect();
        self.used.store(true, Ordering::Release);
    }

    /// Signals the interrupts whose level has risen. To be called whenever a level may have
    /// changed.
    pub(super) fn update(&self, device: &Device) {
        if !self.used.load(Ordering::Acquire) {
            return;
        }
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        for (line, (event, was)) in lines.iter_mut().enumerate() {
            let level = device.level(line as u16);
            if level && !*was {
                event.signal();
            }
            *was = level;
        }
    }
}

/// One interrupt.
#[derive(Debug)]
pub struct CpswIrq {
    event: Arc<EventFd>,
    line: u16,
    model: Cpsw,
}

impl Irq for CpswIrq {
    fn fd(&self) -> Option<RawFd> {
        Some(self.event.fd())
    }

    fn take(&self) -> u64 {
        let taken = self.event.take();
        if self.model.config().irq == IrqMode::Level && self.model.device().level(self.line) {
            self.event.signal();
        }
        taken
    }
}
