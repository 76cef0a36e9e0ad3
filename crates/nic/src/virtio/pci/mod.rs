//! A PCI function (virtio 1.2 §4.1), over any bus.
//!
//! | file | contents |
//! |---|---|
//! | `mod` | [`PciTransport`]: status, features, queues, notifications |
//! | `capabilities` | where its registers are |
//!
//! Behind an IOMMU the device must offer `VIRTIO_F_ACCESS_PLATFORM`. One that does not would take
//! the addresses of the IOMMU for physical ones, and write to memory of others.

mod capabilities;

use super::features::{ACCESS_PLATFORM, VERSION_1};
use super::transport::{Condition, Peer, QueueSetup, Transport};
use crate::sync::{Mutex, lock};
use capabilities::Windows;
use std::os::fd::RawFd;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use towpath_bus::{BusError, Dma, Events, Irq, IrqKind, Mmio, Pci};

/// Device and vendor ID of the devices that this driver supports, as the first word of
/// configuration space has them: a network device, and a transitional one (§4.1.2).
pub const DEVICES: [u32; 2] = [0x1041_1af4, 0x1000_1af4];

/// The common configuration (§4.1.4.3).
const FEATURE_SELECT: usize = 0;
const FEATURE: usize = 4;
const DRIVER_FEATURE_SELECT: usize = 8;
const DRIVER_FEATURE: usize = 12;
const CONFIG_VECTOR: usize = 16;
const STATUS: usize = 20;
const GENERATION: usize = 21;
const QUEUE_SELECT: usize = 22;
const QUEUE_SIZE: usize = 24;
const QUEUE_VECTOR: usize = 26;
const QUEUE_ENABLE: usize = 28;
const QUEUE_NOTIFY_OFF: usize = 30;
const QUEUE_DESC: usize = 32;
const QUEUE_DRIVER: usize = 40;
const QUEUE_DEVICE: usize = 48;

/// Bits of the status (§2.1).
const ACKNOWLEDGE: u8 = 1;
const DRIVER: u8 = 2;
const DRIVER_OK: u8 = 4;
const FEATURES_OK: u8 = 8;
const NEEDS_RESET: u8 = 0x40;

/// Pairs of queues with notification registers of their own, at most; a control queue is behind
/// them.
const MOST_PAIRS: u16 = 128;
const MOST_QUEUES: usize = 2 * MOST_PAIRS as usize + 1;
/// Longest wait for the end of a reset.
const RESET: Duration = Duration::from_secs(1);
/// Attempts to read a configuration that changes.
const TRIES: u32 = 16;
const NO_VECTOR: u16 = 0xffff;

/// How to use the function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PciConfig {
    /// Pairs of queues, at most.
    pub pairs: u16,
    /// Receive queues have messages (MSI-X), if the bus has descriptors for them.
    pub interrupts: bool,
}

impl PciConfig {
    /// For so many pairs of queues.
    pub fn new(pairs: u16, interrupts: bool) -> PciConfig {
        PciConfig { pairs: pairs.clamp(1, MOST_PAIRS), interrupts }
    }
}

/// A function of virtio.
pub struct PciTransport<B: Pci> {
    bus: Mutex<B>,
    name: String,
    dma: B::Dma,
    windows: Windows<B::Bar>,
    offered: u64,
    /// Serializes accesses to what is selected by a register.
    select: Mutex<()>,
    /// By queue: the offset of its notification register.
    notify_at: Box<[AtomicU32]>,
    /// The first one is of the configuration, then each receive queue has one.
    irqs: Vec<B::Irq>,
    events: Events<B::Irq>,
}

impl<B: Pci> PciTransport<B> {
    /// Resets the function and reads what it offers.
    ///
    /// # Errors
    /// [`BusError`]: it is no network device of virtio 1, it does not answer, or it would pass by
    /// the IOMMU.
    pub fn open(bus: B, config: PciConfig) -> Result<PciTransport<B>, BusError> {
        let name = bus.name().to_owned();
        let id = bus.config_r32(0);
        if !DEVICES.contains(&id) {
            let what = format!("{:04x}:{:04x} is no network device of virtio", id & 0xffff, id >> 16);
            return Err(BusError::device(name, what));
        }
        if !<B::Bar as Mmio>::NARROW {
            return Err(BusError::device(name, "its bus can't access registers of 8 and 16 bits"));
        }
        bus.set_master(false);
        let windows = capabilities::find(&bus)?;
        let mut irqs = Vec::new();
        if config.interrupts && bus.irq_count(IrqKind::MsiX) > config.pairs {
            irqs = bus.irqs_of(IrqKind::MsiX, config.pairs + 1)?;
        }
        let (dma, events) = (bus.dma().clone(), bus.events()?);
        let notify_at = (0..MOST_QUEUES).map(|_| AtomicU32::new(u32::MAX)).collect();
        let (bus, select) = (Mutex::new(bus), Mutex::new(()));
        let mut new = PciTransport { bus, name, dma, windows, offered: 0, select, notify_at, irqs, events };
        if !new.reset(false) {
            return Err(BusError::device(&new.name, "it does not answer: its status does not become 0"));
        }
        new.offered = new.read_features();
        if new.offered & VERSION_1 != 0 && new.dma.limits().iommu && new.offered & ACCESS_PLATFORM == 0 {
            let what = "it would pass by the IOMMU (VIRTIO_F_ACCESS_PLATFORM is not offered): set iommu_platform=on \
                        and disable-legacy=on for the device";
            return Err(BusError::device(&new.name, what));
        }
        Ok(new)
    }

    fn read_features(&self) -> u64 {
        let _select = lock(&self.select);
        let common = &self.windows.common;
        let half = |select: u32| {
            common.w32(FEATURE_SELECT, select);
            u64::from(common.r32(FEATURE))
        };
        half(0) | half(1) << 32
    }

    fn status(&self) -> u8 {
        self.windows.common.r8(STATUS)
    }

    /// Adds bits to the status; returns it as the device has it then.
    fn add_status(&self, bits: u8) -> u8 {
        self.windows.common.w8(STATUS, self.status() | bits);
        self.status()
    }

    /// Writes 0 to the status, and waits until the device has done that (§4.1.4.3.2).
    fn clear(&self) -> bool {
        let common = &self.windows.common;
        common.w8(STATUS, 0);
        common.bar().poll(RESET, || self.status() == 0)
    }

    /// The vector of a queue: receive queues have one each, others none.
    fn vector(&self, queue: u16) -> u16 {
        let vector = queue / 2 + 1;
        if queue.is_multiple_of(2) && usize::from(vector) < self.irqs.len() { vector } else { NO_VECTOR }
    }

    fn refused(&self, what: impl Into<String>) -> BusError {
        BusError::device(&self.name, what)
    }
}

impl<B: Pci> Transport for PciTransport<B> {
    type Dma = B::Dma;
    const PEER: Peer = Peer::Device;
    const MORE_PAIRS: &'static str = " (QEMU: queues= of its netdev, mq=on of the device)";

    fn name(&self) -> &str {
        &self.name
    }

    fn dma(&self) -> &B::Dma {
        &self.dma
    }

    fn offered(&self) -> u64 {
        self.offered
    }

    /// Before several pairs are negotiated, a device may have one only (QEMU 7.2): its number of
    /// queues says nothing.
    fn pairs(&self) -> u16 {
        MOST_PAIRS
    }

    fn max_size(&self, queue: u16) -> u16 {
        let _select = lock(&self.select);
        self.windows.common.w16(QUEUE_SELECT, queue);
        self.windows.common.r16(QUEUE_SIZE)
    }

    fn config(&self, at: usize, bytes: &mut [u8]) -> bool {
        let Some(device) = self.windows.device.as_ref().filter(|window| at + bytes.len() <= window.len()) else {
            return false;
        };
        (0..TRIES).any(|_| {
            let generation = self.windows.common.r8(GENERATION);
            bytes.iter_mut().enumerate().for_each(|(i, byte)| *byte = device.r8(at + i));
            self.windows.common.r8(GENERATION) == generation
        })
    }

    fn negotiate(&self, features: u64, _: u16) -> Result<(), BusError> {
        lock(&self.bus).set_master(true);
        self.add_status(ACKNOWLEDGE);
        self.add_status(DRIVER);
        let common = &self.windows.common;
        for (select, half) in [(0, features as u32), (1, (features >> 32) as u32)] {
            common.w32(DRIVER_FEATURE_SELECT, select);
            common.w32(DRIVER_FEATURE, half);
        }
        if self.add_status(FEATURES_OK) & FEATURES_OK == 0 {
            return Err(self.refused(format!("it refuses the features {features:#x}")));
        }
        if !self.irqs.is_empty() {
            common.w16(CONFIG_VECTOR, 0);
        }
        Ok(())
    }

    fn set_queue(&self, queue: u16, setup: &QueueSetup) -> Result<(), BusError> {
        let _select = lock(&self.select);
        let common = &self.windows.common;
        common.w16(QUEUE_SELECT, queue);
        let most = common.r16(QUEUE_SIZE);
        if most < setup.size {
            return Err(
                self.refused(format!("its queue {queue} has {most} descriptors, and {} are needed", setup.size))
            );
        }
        common.w16(QUEUE_SIZE, setup.size);
        common.w64(QUEUE_DESC, setup.desc.get());
        common.w64(QUEUE_DRIVER, setup.driver.get());
        common.w64(QUEUE_DEVICE, setup.device.get());
        let vector = self.vector(queue);
        if vector != NO_VECTOR {
            common.w16(QUEUE_VECTOR, vector);
            if common.r16(QUEUE_VECTOR) != vector {
                return Err(self.refused(format!("it has no vector {vector} for queue {queue}")));
            }
        }
        let at = u32::from(common.r16(QUEUE_NOTIFY_OFF)).saturating_mul(self.windows.multiplier);
        match self.notify_at.get(usize::from(queue)) {
            Some(place) if (at as usize) + 2 <= self.windows.notify.len() => place.store(at, Relaxed),
            _ => return Err(self.refused(format!("the notification register of queue {queue} is missing"))),
        }
        common.w16(QUEUE_ENABLE, 1);
        if common.r16(QUEUE_ENABLE) != 1 {
            return Err(self.refused(format!("queue {queue} can't be enabled")));
        }
        Ok(())
    }

    fn run(&self) -> Result<(), BusError> {
        let status = self.add_status(DRIVER_OK);
        if status & DRIVER_OK == 0 || status & NEEDS_RESET != 0 {
            return Err(self.refused(format!("it does not start: its status is {status:#x}")));
        }
        Ok(())
    }

    fn condition(&self) -> Condition {
        if self.events.removal.as_ref().is_some_and(|event| event.take() > 0) {
            return Condition::Gone("the system wants the device back".into());
        }
        if self.events.error.as_ref().is_some_and(|event| event.take() > 0) {
            return Condition::NeedsReset;
        }
        match self.status() {
            u8::MAX if lock(&self.bus).config_r32(0) == u32::MAX => Condition::Gone("the device was removed".into()),
            // A device that was reset by others, or whose registers do not answer.
            status if status & NEEDS_RESET != 0 || status & DRIVER_OK == 0 => Condition::NeedsReset,
            _ => Condition::Up,
        }
    }

    fn reset(&self, function: bool) -> bool {
        if function {
            let bus = lock(&self.bus);
            if bus.reset().is_err() {
                return false;
            }
            bus.set_master(false);
        }
        let cleared = self.clear();
        lock(&self.bus).set_master(false);
        cleared
    }

    fn stop(&self) -> bool {
        let bus = lock(&self.bus);
        if bus.config_r32(0) == u32::MAX {
            // What is not there reaches no memory; behind an IOMMU that is believed.
            return self.dma.limits().iommu;
        }
        let idle = self.clear();
        bus.set_master(false);
        idle
    }

    #[inline]
    fn kick(&self, queue: u16) {
        if let Some(at) = self.notify_at.get(usize::from(queue)) {
            self.windows.notify.w16(at.load(Relaxed) as usize, queue);
        }
    }

    fn call(&self, queue: u16) -> Option<RawFd> {
        self.irqs.get(usize::from(self.vector(queue))).and_then(Irq::fd)
    }

    fn take_calls(&self, queue: u16) {
        if let Some(irq) = self.irqs.get(usize::from(self.vector(queue))) {
            irq.take();
        }
    }

    fn events(&self) -> Option<RawFd> {
        self.irqs.first().and_then(Irq::fd)
    }
}

impl<B: Pci> Drop for PciTransport<B> {
    /// A device that was opened and not started is left as it was found: reset.
    fn drop(&mut self) {
        self.stop();
    }
}

impl<B: Pci> std::fmt::Debug for PciTransport<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PciTransport").field("name", &self.name).finish_non_exhaustive()
    }
}
