//! The open device: regions, configuration space, interrupts and reset, independent of how it was
//! opened.

use super::abi::{self, Caps, u32_at, u64_at};
use super::address_space::AddressSpace;
use super::bdf::Bdf;
use super::ioctl::{self, ioctl, ioctl_value};
use super::irq::VfioIrq;
use crate::bus::{BusError, Events, Irq, IrqKind};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use towpath_sys::Mmap;
use towpath_sys::mmap::page_size;

/// The Command register and its bits (PCI 3.0 §6.2.2).
const COMMAND: u64 = 4;
const MEMORY: u32 = 2;
const MASTER: u32 = 4;
const INTX_DISABLE: u32 = 0x400;

/// The open device. It is closed before its address space, in the order of the fields.
#[derive(Debug)]
pub(super) struct VfioDevice {
    file: File,
    space: Arc<AddressSpace>,
    bdf: Bdf,
    info: abi::DeviceInfo,
    /// Offset of the configuration space in the device's file, and its length.
    config: (u64, u64),
    /// The enabled kind of interrupts, by its index of VFIO.
    irqs: Mutex<Option<u32>>,
}

/// A BAR: its mapping if it has one, its offset in the device's file, and its usable length.
pub(super) struct BarMapping {
    pub(super) map: Option<Mmap>,
    pub(super) offset: u64,
    pub(super) len: usize,
}

impl VfioDevice {
    pub(super) fn new(bdf: Bdf, fd: OwnedFd, space: Arc<AddressSpace>) -> Result<VfioDevice, BusError> {
        let info = ioctl(&fd, abi::DEVICE_GET_INFO, abi::DeviceInfo::default());
        let info = info.map_err(BusError::os(bdf, "VFIO_DEVICE_GET_INFO"))?;
        let (region, _) =
            ioctl::region_info(&fd, abi::REGION_CONFIG).map_err(BusError::os(bdf, "VFIO_DEVICE_GET_REGION_INFO"))?;
        let config = (region.offset, region.size);
        let device = VfioDevice { file: File::from(fd), space, bdf, info, config, irqs: Mutex::new(None) };
        // Until interrupts are enabled: a line without a handler would stay asserted.
        device.command(0, INTX_DISABLE);
        Ok(device)
    }

    pub(super) fn space(&self) -> &Arc<AddressSpace> {
        &self.space
    }

    fn refuse(&self, what: String) -> BusError {
        BusError::device(self.bdf, what)
    }

    /// Reads a word of the device's file; all ones if that fails.
    pub(super) fn read(&self, at: u64) -> u32 {
        let mut word = [0; 4];
        self.file.read_exact_at(&mut word, at).map_or(u32::MAX, |()| u32::from_le_bytes(word))
    }

    /// Writes a word of the device's file; a failure is ignored.
    pub(super) fn write(&self, at: u64, value: u32) {
        let _ = self.file.write_all_at(&value.to_le_bytes(), at);
    }

    fn config_at(&self, at: u64) -> Option<u64> {
        let (offset, len) = self.config;
        (at.is_multiple_of(4) && at + 4 <= len).then_some(offset + at)
    }

    pub(super) fn config_r32(&self, at: u16) -> u32 {
        self.config_at(at.into()).map_or(u32::MAX, |at| self.read(at))
    }

    pub(super) fn config_w32(&self, at: u16, value: u32) {
        if let Some(at) = self.config_at(at.into()) {
            self.write(at, value);
        }
    }

    /// Clears and sets bits of Command. The upper half is Status, whose bits are cleared by writing
    /// ones: zeros are written.
    fn command(&self, clear: u32, set: u32) {
        if let Some(at) = self.config_at(COMMAND) {
            self.write(at, (self.read(at) & 0xffff & !clear) | set);
        }
    }

    /// Whether bus mastering, and so DMA, is enabled.
    pub(super) fn is_master(&self) -> bool {
        self.config_at(COMMAND).is_some_and(|at| self.read(at) & MASTER != 0)
    }

    /// Disables DMA and interrupts.
    pub(super) fn disable(&self) {
        self.command(MASTER, 0);
        let _ = self.disable_irqs();
    }

    pub(super) fn reset(&self) -> Result<(), BusError> {
        if self.info.flags & abi::DEVICE_CAN_RESET == 0 {
            return Err(self.refuse("the kernel knows no way to reset this function alone".to_owned()));
        }
        let was = self.config_at(COMMAND).map_or(0, |at| self.read(at) & 0x7ff);
        ioctl_value(&self.file, abi::DEVICE_RESET, 0).map_err(BusError::os(self.bdf, "VFIO_DEVICE_RESET"))?;
        // Memory decoding must be on before any mapped register is accessed.
        self.command(0, was | MEMORY);
        Ok(())
    }

    /// Maps the registers of a BAR, if the kernel allows that.
    pub(super) fn map_bar(&self, index: u8, len: usize) -> Result<BarMapping, BusError> {
        if index > 5 {
            return Err(self.refuse(format!("BAR {index}: there are BARs 0 to 5")));
        }
        let (region, answer) = ioctl::region_info(&self.file, index.into())
            .map_err(BusError::os(self.bdf, format!("VFIO_DEVICE_GET_REGION_INFO of BAR {index}")))?;
        let size = usize::try_from(region.size).unwrap_or(usize::MAX);
        if len == 0 || size < len || region.flags & abi::REGION_READ == 0 {
            return Err(self.refuse(format!("BAR {index} has {size} bytes, {len} are needed")));
        }
        self.command(0, MEMORY);
        let caps = if region.flags & abi::HAS_CAPS != 0 { region.cap_offset } else { 0 };
        let sparse = Caps::new(&answer, caps).find(|cap| cap.0 == abi::CAP_REGION_SPARSE).map(|cap| cap.1);
        let map = if region.flags & abi::REGION_MMAP != 0 && sparse.is_none_or(|areas| covers_start(areas, len as u64))
        {
            let rounded = len.next_multiple_of(page_size()).min(size);
            let map = Mmap::shared(self.file.as_fd(), region.offset, rounded);
            Some(map.map_err(BusError::os(self.bdf, format!("mapping BAR {index}")))?)
        } else {
            None
        };
        let len = size.min(len.next_multiple_of(page_size()));
        Ok(BarMapping { map, offset: region.offset, len })
    }

    /// The number of interrupts at an index of VFIO.
    fn irq_count_at(&self, index: u32) -> u32 {
        let info = abi::IrqInfo { index, ..Default::default() };
        ioctl(&self.file, abi::DEVICE_GET_IRQ_INFO, info).map_or(0, |info| info.count)
    }

    pub(super) fn irq_count(&self, kind: IrqKind) -> u16 {
        u16::try_from(self.irq_count_at(index_of(kind))).unwrap_or(u16::MAX)
    }

    /// Disables all interrupts.
    pub(super) fn disable_irqs(&self) -> Result<(), BusError> {
        match self.enabled_irqs().take() {
            Some(kind) => {
                ioctl::set_irqs(&self.file, kind, &[]).map_err(BusError::os(self.bdf, "disabling interrupts"))
            }
            None => Ok(()),
        }
    }

    fn enabled_irqs(&self) -> MutexGuard<'_, Option<u32>> {
        self.irqs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enables interrupts 0 to `count - 1` of a kind.
    pub(super) fn irqs(self: &Arc<Self>, kind: IrqKind, count: u16) -> Result<Vec<VfioIrq>, BusError> {
        self.disable_irqs()?;
        if count == 0 {
            return Ok(Vec::new());
        }
        if self.irq_count(kind) < count {
            let counts = IrqKind::ALL.map(|kind| format!("{} of {}", self.irq_count(kind), kind.name()));
            let what = format!("{count} interrupts of {} are needed; it has {}", kind.name(), counts.join(", "));
            return Err(self.refuse(what));
        }
        let line = (kind == IrqKind::Intx).then(|| self.clone());
        if line.is_some() {
            self.command(INTX_DISABLE, 0);
        } else {
            self.command(0, INTX_DISABLE);
        }
        let irqs: Result<Vec<_>, _> = (0..count).map(|_| VfioIrq::new(line.clone())).collect();
        let irqs = irqs.map_err(BusError::os(self.bdf, "eventfd"))?;
        self.connect(index_of(kind), &irqs)?;
        *self.enabled_irqs() = Some(index_of(kind));
        Ok(irqs)
    }

    fn connect(&self, index: u32, irqs: &[VfioIrq]) -> Result<(), BusError> {
        let fds: Vec<_> = irqs.iter().filter_map(Irq::fd).collect();
        ioctl::set_irqs(&self.file, index, &fds).map_err(BusError::os(self.bdf, "VFIO_DEVICE_SET_IRQS"))
    }

    /// The request to give the device back, and errors of the bus, which only PCI Express reports.
    pub(super) fn events(&self) -> Result<Events<VfioIrq>, BusError> {
        let event = |index| {
            if self.irq_count_at(index) == 0 {
                return Ok(None);
            }
            let event = VfioIrq::new(None).map_err(BusError::os(self.bdf, "eventfd"))?;
            self.connect(index, std::slice::from_ref(&event))?;
            Ok(Some(event))
        };
        Ok(Events::new(event(abi::IRQ_REQ)?, event(abi::IRQ_ERR)?))
    }

    /// The device's file.
    pub(super) fn file(&self) -> &File {
        &self.file
    }
}

/// VFIO's index of a kind of interrupts.
fn index_of(kind: IrqKind) -> u32 {
    match kind {
        IrqKind::MsiX => abi::IRQ_MSIX,
        IrqKind::Msi => abi::IRQ_MSI,
        IrqKind::Intx => abi::IRQ_INTX,
    }
}

/// Whether one area of a sparse mmap capability (`{count, reserved, {offset, size}…}`) covers the
/// first `len` bytes.
fn covers_start(areas: &[u8], len: u64) -> bool {
    let count = u32_at(areas, 0).unwrap_or(0) as usize;
    (0..count.min(64)).any(|i| {
        let (offset, size) = (u64_at(areas, 8 + 16 * i), u64_at(areas, 16 + 16 * i));
        offset == Some(0) && size >= Some(len)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_mapped_only_where_all_that_is_asked_for_may_be() {
        let areas = |list: &[(u64, u64)]| {
            let body = list.iter().flat_map(|a| [a.0.to_ne_bytes(), a.1.to_ne_bytes()].concat());
            [(list.len() as u32).to_ne_bytes().to_vec(), vec![0; 4], body.collect()].concat()
        };
        assert!(covers_start(&areas(&[(0, 8192)]), 8192));
        assert!(!covers_start(&areas(&[(0, 4096), (8192, 4096)]), 8192));
        assert!(!covers_start(&areas(&[(4096, 8192)]), 4096));
        assert!(!covers_start(&9u32.to_ne_bytes(), 1), "a list that is shorter than it says covers nothing");
    }
}
