//! The open device: regions, configuration space, interrupts and reset, independent of how it was
//! opened.

use super::abi::{self, Caps, u32_at, u64_at};
use super::address_space::AddressSpace;
use super::bdf::Bdf;
use super::ioctl::{self, ioctl, ioctl_value};
use super::irq::VfioIrq;
use crate::bus::{BusError, Irq};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError};
use towpath_sys::Mmap;
use towpath_sys::mmap::page_size;

/// The Command register and its bits (PCI 3.0 §6.2.2).
const COMMAND: u64 = 4;
const MEMORY: u32 = 2;
const MASTER: u32 = 4;

/// The open device. It is closed before its address space, in the order of the fields.
#[derive(Debug)]
pub(super) struct VfioDevice {
    file: File,
    space: Arc<AddressSpace>,
    bdf: Bdf,
    info: abi::DeviceInfo,
    /// Offset of the configuration space in the device's file, and its length.
    config: (u64, u64),
    /// The enabled kind of interrupts.
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
        Ok(VfioDevice { file: File::from(fd), space, bdf, info, config, irqs: Mutex::new(None) })
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
        let _ = self.irqs(0);
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

    /// Enables interrupts 0 to `count - 1`: MSI-X if the device has enough, otherwise MSI.
    pub(super) fn irqs(&self, count: u16) -> Result<Vec<VfioIrq>, BusError> {
        let mut on = self.irqs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kind) = on.take() {
            ioctl::set_irqs(&self.file, kind, &[]).map_err(BusError::os(self.bdf, "taking interrupts away"))?;
        }
        if count == 0 {
            return Ok(Vec::new());
        }
        let has = |index| {
            let info = abi::IrqInfo { index, ..Default::default() };
            ioctl(&self.file, abi::DEVICE_GET_IRQ_INFO, info).map_or(0, |info| info.count)
        };
        let Some(kind) = [abi::IRQ_MSIX, abi::IRQ_MSI].into_iter().find(|&kind| has(kind) >= count.into()) else {
            let (x, msi) = (has(abi::IRQ_MSIX), has(abi::IRQ_MSI));
            return Err(self.refuse(format!("{count} interrupts are needed; it has {x} of MSI-X and {msi} of MSI")));
        };
        let irqs: Result<Vec<_>, _> = (0..count).map(|_| VfioIrq::new()).collect();
        let irqs = irqs.map_err(BusError::os(self.bdf, "eventfd"))?;
        let fds: Vec<_> = irqs.iter().filter_map(Irq::fd).collect();
        ioctl::set_irqs(&self.file, kind, &fds).map_err(BusError::os(self.bdf, "VFIO_DEVICE_SET_IRQS"))?;
        *on = Some(kind);
        Ok(irqs)
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
