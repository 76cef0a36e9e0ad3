//! The driver's side: registers, configuration space and messages behind the traits of
//! `towpath-bus`, and the device's thread.

use super::common::{DRIVER_OK, NO_VECTOR};
use super::net::Machine;
use super::pci::{self, ConfigSpace};
use super::{Config, Counts, Device};
use crate::iommu::ModelDma;
use crate::runner::Runner;
use crate::violation::{Violation, Violations};
use crate::wire::Wire;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use towpath_bus::{Bus, BusError, Irq, IrqKind, Mmio, Pci};
use towpath_sys::EventFd;

/// What both sides share.
pub(super) struct BusShared {
    name: String,
    pub(super) dma: ModelDma,
    pub(super) violations: Arc<Violations>,
    space: Mutex<ConfigSpace>,
    runner: Runner<Machine>,
    messages: u16,
    /// PCI Command: memory decoding, and bus mastering.
    decodes: AtomicBool,
    master: AtomicBool,
    kicks: AtomicU64,
}

impl BusShared {
    pub(super) fn machine(&self) -> MutexGuard<'_, Machine> {
        self.runner.machine()
    }

    fn space(&self) -> MutexGuard<'_, ConfigSpace> {
        self.space.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn counts(&self) -> Counts {
        Counts { kicks: self.kicks.load(Ordering::Relaxed), ..self.machine().counts }
    }

    pub(super) fn turn(&self) -> usize {
        self.turn_of(&mut self.machine())
    }

    fn turn_of(&self, machine: &mut Machine) -> usize {
        machine.turn(&self.dma, self.master.load(Ordering::Acquire))
    }

    /// Whether a register access reaches the device.
    fn answers(&self, at: usize, width: usize) -> bool {
        self.decodes.load(Ordering::Acquire) && at.is_multiple_of(width) && at + width <= pci::BAR_LEN
    }

    fn read(&self, at: usize, width: usize) -> u64 {
        const COMMON_END: usize = pci::COMMON + pci::COMMON_LEN;
        const DEVICE_END: usize = pci::DEVICE + pci::DEVICE_LEN;
        if !self.answers(at, width) {
            return u64::MAX;
        }
        let mut machine = self.machine();
        match at {
            pci::COMMON..COMMON_END => machine.common.read(at - pci::COMMON, width),
            // Reading it clears it (4.1.4.5).
            pci::ISR => std::mem::take(&mut machine.isr).into(),
            pci::DEVICE..DEVICE_END => {
                let byte = |n: usize| u64::from(machine.config_byte(at - pci::DEVICE + n)) << (8 * n);
                (0..width).map(byte).sum()
            }
            _ => 0,
        }
    }

    fn write(&self, at: usize, width: usize, value: u64) {
        const COMMON_END: usize = pci::COMMON + pci::COMMON_LEN;
        const NOTIFY_END: usize = pci::NOTIFY + pci::NOTIFY_LEN;
        const STATUS: usize = 20;
        if !self.answers(at, width) {
            return;
        }
        match at {
            pci::NOTIFY..NOTIFY_END => self.notified(at, width, value),
            pci::COMMON..COMMON_END => {
                let mut machine = self.machine();
                match (at - pci::COMMON, width) {
                    (STATUS, 1) if machine.common.set_status(value as u8) => {}
                    (STATUS, 1) => machine.reset(&self.dma),
                    (at, width) => {
                        if let Some(queue) = machine.common.write(at, width, value) {
                            machine.start(queue);
                        }
                    }
                }
            }
            _ => self.breach(at, value, "a register that is not written"),
        }
        self.runner.wake();
    }

    /// Notifications are of two bytes: the queue's index (4.1.5.2).
    fn notified(&self, at: usize, width: usize, value: u64) {
        let queue = (at - pci::NOTIFY) as u64 / u64::from(pci::NOTIFY_MULTIPLIER);
        self.kicks.fetch_add(1, Ordering::Relaxed);
        if self.violations.strict() {
            if width != 2 || value != queue {
                self.breach(at, value, "a notification is the index of its queue, in two bytes (4.1.5.2)");
            }
            if self.machine().common.status & DRIVER_OK == 0 {
                self.breach(at, value, "a notification before DRIVER_OK (3.1.1)");
            }
        }
    }

    fn breach(&self, at: usize, value: u64, rule: &'static str) {
        self.violations.report(Violation::Register { at: at as u32, value: value as u32, rule });
    }
}

impl std::fmt::Debug for BusShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("virtio model").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The driver's handle of a model. Dropping it stops the device and its thread.
#[derive(Debug)]
pub struct VirtioBus {
    shared: Arc<BusShared>,
    thread: Option<JoinHandle<()>>,
}

/// The registers of a model.
#[derive(Debug, Clone)]
pub struct VirtioBar {
    shared: Arc<BusShared>,
}

/// A message of MSI-X.
#[derive(Debug, Clone)]
pub struct VirtioIrq(Arc<EventFd>);

impl Irq for VirtioIrq {
    fn fd(&self) -> Option<RawFd> {
        Some(self.0.fd())
    }

    fn take(&self) -> u64 {
        self.0.take()
    }
}

impl Mmio for VirtioBar {
    const NARROW: bool = true;

    fn len(&self) -> usize {
        pci::BAR_LEN
    }

    fn r8(&self, at: usize) -> u8 {
        self.shared.read(at, 1) as u8
    }

    fn r16(&self, at: usize) -> u16 {
        self.shared.read(at, 2) as u16
    }

    fn r32(&self, at: usize) -> u32 {
        self.shared.read(at, 4) as u32
    }

    fn w8(&self, at: usize, value: u8) {
        self.shared.write(at, 1, value.into());
    }

    fn w16(&self, at: usize, value: u16) {
        self.shared.write(at, 2, value.into());
    }

    fn w32(&self, at: usize, value: u32) {
        self.shared.write(at, 4, value.into());
    }
}

impl VirtioBus {
    pub(super) fn new(
        config: Config,
        dma: ModelDma,
        violations: Arc<Violations>,
        wire: Box<dyn Wire>,
    ) -> Result<VirtioBus, BusError> {
        // One of the configuration, and one of each receive queue.
        let messages = config.pairs.clamp(1, 16) + 1;
        let machine = Machine::new(&config, messages, violations.clone(), wire);
        let shared = Arc::new(BusShared {
            dma,
            space: Mutex::new(ConfigSpace::new(messages)),
            runner: Runner::new(machine, config.threaded).map_err(BusError::os(&config.name, "eventfd"))?,
            violations,
            messages,
            decodes: AtomicBool::new(false),
            master: AtomicBool::new(false),
            kicks: AtomicU64::new(0),
            name: config.name,
        });
        let thread = match config.threaded {
            true => {
                let device = shared.clone();
                let spawned = std::thread::Builder::new().name("virtio model".into()).spawn(move || {
                    device.runner.run(&device.dma, |machine| device.turn_of(machine), Machine::wire_wake);
                });
                Some(spawned.map_err(BusError::os(&shared.name, "the device's thread"))?)
            }
            false => None,
        };
        Ok(VirtioBus { shared, thread })
    }

    /// The device's far side, to turn and examine it.
    pub fn device(&self) -> Device {
        Device { shared: self.shared.clone() }
    }
}

impl Bus for VirtioBus {
    type Bar = VirtioBar;
    type Dma = ModelDma;
    type Irq = VirtioIrq;

    fn name(&self) -> &str {
        &self.shared.name
    }

    fn bar(&self, index: u8, len: usize) -> Result<VirtioBar, BusError> {
        if index != pci::BAR || len > pci::BAR_LEN {
            let what = format!("no {len} bytes of registers in BAR {index}: BAR {} has {}", pci::BAR, pci::BAR_LEN);
            return Err(BusError::device(&self.shared.name, what));
        }
        Ok(VirtioBar { shared: self.shared.clone() })
    }

    fn dma(&self) -> &ModelDma {
        &self.shared.dma
    }

    fn irqs(&self, count: u16) -> Result<Vec<VirtioIrq>, BusError> {
        self.irqs_of(IrqKind::MsiX, count)
    }
}

impl Pci for VirtioBus {
    fn config_r32(&self, at: u16) -> u32 {
        self.shared.space().read(at)
    }

    fn config_w32(&self, at: u16, value: u32) {
        let (memory, master) = self.shared.space().write(at, value);
        // Under the machine's lock: without bus mastering, no access is in flight afterwards.
        let _machine = self.shared.machine();
        self.shared.decodes.store(memory, Ordering::Release);
        self.shared.master.store(master, Ordering::Release);
    }

    fn reset(&self) -> Result<(), BusError> {
        self.shared.machine().reset(&self.shared.dma);
        self.config_w32(4, 0);
        Ok(())
    }

    fn irq_count(&self, kind: IrqKind) -> u16 {
        if kind == IrqKind::MsiX { self.shared.messages } else { 0 }
    }

    fn irqs_of(&self, kind: IrqKind, count: u16) -> Result<Vec<VirtioIrq>, BusError> {
        let offered = self.irq_count(kind);
        if count > offered || count == NO_VECTOR {
            let what = format!("{count} interrupts of {}: there are {offered}", kind.name());
            return Err(BusError::device(&self.shared.name, what));
        }
        let events = (0..count).map(|_| EventFd::new().map(Arc::new)).collect::<Result<Vec<_>, _>>();
        let events = events.map_err(BusError::os(&self.shared.name, "eventfd"))?;
        self.shared.machine().messages = events.clone();
        Ok(events.into_iter().map(VirtioIrq).collect())
    }
}

impl Drop for VirtioBus {
    fn drop(&mut self) {
        self.shared.runner.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        // The device is closed: no register answers, and no memory is accessed any more.
        self.shared.machine().reset(&self.shared.dma);
        self.shared.decodes.store(false, Ordering::Release);
        self.shared.master.store(false, Ordering::Release);
    }
}
