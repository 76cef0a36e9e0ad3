//! A PCI function of the machine.

use super::dma::QtestDma;
use super::irq::{self, MsixPage, QtestIrq};
use super::qemu::Qemu;
use super::registers::{Accesses, Registers};
use crate::bus::{Bus, BusError, IrqKind, Pci};
use crate::vtd::{AddressSpace, SourceId};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Configuration space (PCI 3.0 §6.1): command, first BAR, capabilities.
const COMMAND: u16 = 0x04;
const BAR0: u16 = 0x10;
const CAPABILITIES: u16 = 0x34;

/// BAR addresses begin here, with a fixed range for each function: RAM is below, the registers of
/// the chipset are above.
const MMIO: u64 = 0xe000_0000;
const MMIO_SHARE: u64 = 2 << 20;

/// A device of a machine, opened for one driver. Dropping it disables its bus mastering.
pub struct QtestBus {
    name: String,
    function: SourceId,
    /// By index: address and length.
    bars: BTreeMap<u8, (u64, usize)>,
    accesses: Mutex<BTreeMap<u8, Arc<Accesses>>>,
    messages: Mutex<Option<MsixPage>>,
    dma: QtestDma,
    qemu: Qemu,
}

impl QtestBus {
    pub(super) fn new(qemu: &Qemu, slot: u8) -> Result<QtestBus, BusError> {
        let function = SourceId::new(0, slot, 0);
        let name = format!("{}:{slot:02x}.0", qemu.name());
        let refuse = |what: String| Err(BusError::device(&name, what));
        if !(1..30).contains(&slot) {
            return refuse("a device's slot is from 1 to 29".to_owned());
        }
        if let id @ (0 | u32::MAX) = qemu.config_r32(function, 0) {
            let why = qemu.gone().map_or_else(|| format!("no device in this slot (reads {id:#x})"), str::to_owned);
            return refuse(why);
        }
        let space = qemu.iommu().map(|unit| AddressSpace::attach(unit, function)).transpose()?;
        let mut bus = QtestBus {
            dma: QtestDma::new(qemu.clone(), space),
            qemu: qemu.clone(),
            function,
            bars: BTreeMap::new(),
            accesses: Mutex::default(),
            messages: Mutex::default(),
            name,
        };
        bus.assign_bars()?;
        bus.set_master(false);
        Ok(bus)
    }

    /// The machine of this device.
    pub fn qemu(&self) -> &Qemu {
        &self.qemu
    }

    /// The device's requester id at the remapping unit.
    pub fn source(&self) -> SourceId {
        self.function
    }

    /// The register accesses of a BAR; `None` if the BAR does not exist.
    pub fn accesses(&self, bar: u8) -> Option<Arc<Accesses>> {
        let &(_, len) = self.bars.get(&bar)?;
        let mut accesses = self.accesses.lock().unwrap_or_else(PoisonError::into_inner);
        Some(accesses.entry(bar).or_insert_with(|| Arc::new(Accesses::new(len))).clone())
    }

    /// Finds the sizes of the memory BARs (PCI 3.0 §6.2.5.1) and assigns their addresses.
    fn assign_bars(&mut self) -> Result<(), BusError> {
        let share = MMIO + u64::from(self.function.0) * MMIO_SHARE;
        let mut next = share;
        self.config_w32(COMMAND, 0);
        let mut index = 0;
        while index < 6 {
            let at = BAR0 + 4 * u16::from(index);
            let here = self.config_r32(at);
            let (io, wide) = (here & 1 != 0, here & 7 == 4);
            self.config_w32(at, u32::MAX);
            let low = self.config_r32(at) & !0xf;
            let high = if wide { self.bar_upper_half(at + 4) } else { u32::MAX };
            let len = (u64::from(high) << 32 | u64::from(low)).wrapping_neg();
            if io || low == 0 || len > MMIO_SHARE {
                self.config_w32(at, here);
                if !io && low != 0 {
                    let what = format!("BAR {index} has {len} bytes: more than the {MMIO_SHARE} that a device gets");
                    return Err(BusError::device(&self.name, what));
                }
            } else {
                let base = next.next_multiple_of(len);
                next = base + len;
                self.config_w32(at, base as u32);
                if wide {
                    self.config_w32(at + 4, 0);
                }
                self.bars.insert(index, (base, len as usize));
            }
            index += if wide { 2 } else { 1 };
        }
        if next > share + MMIO_SHARE {
            let what = format!("its BARs have {} bytes together: more than a device gets", next - share);
            return Err(BusError::device(&self.name, what));
        }
        Ok(())
    }

    /// The upper half of a 64-bit BAR after a write of all ones.
    fn bar_upper_half(&self, at: u16) -> u32 {
        self.config_w32(at, u32::MAX);
        self.config_r32(at)
    }

    /// The offset of a capability (PCI 3.0 §6.7).
    pub(super) fn capability(&self, id: u8) -> Option<u16> {
        let mut at = self.config_r32(CAPABILITIES) as u8 & !3;
        // At most as many as fit, so that a cyclic list ends.
        for _ in 0..48 {
            if at < 0x40 {
                return None;
            }
            let header = self.config_r32(u16::from(at));
            if header as u8 == id {
                return Some(u16::from(at));
            }
            at = (header >> 8) as u8 & !3;
        }
        None
    }

    fn messages(&self) -> std::sync::MutexGuard<'_, Option<MsixPage>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Bus for QtestBus {
    type Bar = Registers;
    type Dma = QtestDma;
    type Irq = QtestIrq;

    fn name(&self) -> &str {
        &self.name
    }

    fn bar(&self, index: u8, len: usize) -> Result<Registers, BusError> {
        match (self.bars.get(&index), self.accesses(index)) {
            (Some(&(base, actual)), Some(accesses)) if len <= actual => Ok(self.qemu.registers(base, accesses)),
            (found, _) => {
                let actual = found.map_or(0, |&(_, len)| len);
                let what = format!("BAR {index} has {actual} bytes of registers, {len} are needed");
                Err(BusError::device(&self.name, what))
            }
        }
    }

    fn dma(&self) -> &QtestDma {
        &self.dma
    }

    /// Interrupts are MSI-X messages into the machine's memory. They cannot be waited for, only
    /// polled ([`Irq::take`](crate::Irq::take)).
    fn irqs(&self, count: u16) -> Result<Vec<QtestIrq>, BusError> {
        let mut messages = self.messages();
        irq::disable(self, self.capability(irq::MSI_X));
        *messages = None;
        if count == 0 {
            return Ok(Vec::new());
        }
        let (set_up, irqs) = irq::enable(self, self.capability(irq::MSI_X), count)?;
        *messages = Some(set_up);
        Ok(irqs)
    }
}

impl Pci for QtestBus {
    fn config_r32(&self, at: u16) -> u32 {
        // Configuration mechanism #1 reaches 256 bytes, which is all that QEMU's devices need.
        if at < 256 { self.qemu.config_r32(self.function, at) } else { u32::MAX }
    }

    fn config_w32(&self, at: u16, value: u32) {
        if at < 256 {
            self.qemu.config_w32(self.function, at, value);
        }
    }

    /// Resets by function-level reset (PCI Express 3.0 §6.6.2), if the device supports it.
    fn reset(&self) -> Result<(), BusError> {
        const PCI_EXPRESS: u8 = 0x10;
        const DEVICE_CAPABILITIES: u16 = 4;
        const DEVICE_CONTROL: u16 = 8;
        const CAN_RESET: u32 = 1 << 28;
        const RESET: u32 = 1 << 15;
        let refused = || BusError::device(&self.name, "has no function-level reset: reset it by its own registers");
        let at = self.capability(PCI_EXPRESS).ok_or_else(refused)?;
        if self.config_r32(at + DEVICE_CAPABILITIES) & CAN_RESET == 0 {
            return Err(refused());
        }
        // Device Status, the upper half, is cleared by ones.
        let control = self.config_r32(at + DEVICE_CONTROL) & 0xffff;
        self.config_w32(at + DEVICE_CONTROL, control | RESET);
        std::thread::sleep(Duration::from_millis(100));
        for (&index, &(base, _)) in &self.bars {
            self.config_w32(BAR0 + 4 * u16::from(index), base as u32);
        }
        self.set_master(false);
        Ok(())
    }

    /// Only MSI-X: the machine's CPU serves no interrupts, and only messages can go to memory.
    fn irq_count(&self, kind: IrqKind) -> u16 {
        match (kind, self.capability(irq::MSI_X)) {
            (IrqKind::MsiX, Some(at)) => irq::vectors(self.config_r32(at)),
            _ => 0,
        }
    }

    fn irqs_of(&self, kind: IrqKind, count: u16) -> Result<Vec<QtestIrq>, BusError> {
        match kind {
            IrqKind::MsiX => self.irqs(count),
            _ => Err(BusError::device(&self.name, format!("has no {} here", kind.name()))),
        }
    }
}

impl Drop for QtestBus {
    fn drop(&mut self) {
        irq::disable(self, self.capability(irq::MSI_X));
        self.config_w32(COMMAND, 0);
        // Writes are posted. The read waits until the device has no access to memory.
        let _ = self.config_r32(COMMAND);
    }
}

impl std::fmt::Debug for QtestBus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QtestBus").field("name", &self.name).field("bars", &self.bars).finish()
    }
}
