//! The open device: its regions, configuration space, interrupts and reset, whichever way it was opened.

use super::abi::{self, Caps, u32_at, u64_at};
use super::bar::VfioBar;
use super::bdf::Bdf;
use super::irq::VfioIrq;
use super::space::{Space, os};
use super::sys::{self, Mapping};
use crate::bus::{BusError, Irq};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError};

/// Command and its bits (PCI 3.0 §6.2.2).
const COMMAND: u64 = 4;
const MEMORY: u32 = 2;
const MASTER: u32 = 4;

/// A device that this process has. Closed before its address space is: the fields stand in that order.
#[derive(Debug)]
pub(super) struct Device {
    file: File,
    space: Arc<Space>,
    bdf: Bdf,
    info: abi::DeviceInfo,
    /// Where the configuration space lies in the file, and its length.
    config: (u64, u64),
    /// Which kind of interrupts is on.
    irqs: Mutex<Option<u32>>,
}

impl Device {
    pub(super) fn new(bdf: Bdf, fd: OwnedFd, space: Arc<Space>) -> Result<Device, BusError> {
        let info = sys::call(&fd, abi::DEVICE_GET_INFO, abi::DeviceInfo::default());
        let info = info.map_err(os(bdf, "VFIO_DEVICE_GET_INFO"))?;
        let (region, _) = sys::region_info(&fd, abi::REGION_CONFIG).map_err(os(bdf, "VFIO_DEVICE_GET_REGION_INFO"))?;
        let config = (region.offset, region.size);
        Ok(Device { file: File::from(fd), space, bdf, info, config, irqs: Mutex::new(None) })
    }

    pub(super) fn space(&self) -> &Arc<Space> {
        &self.space
    }

    fn wrong(&self, what: String) -> BusError {
        BusError::Device { device: self.bdf.to_string(), what }
    }

    /// A word of the device's file; all ones when it can't be read.
    pub(super) fn read(&self, at: u64) -> u32 {
        let mut word = [0; 4];
        self.file.read_exact_at(&mut word, at).map_or(u32::MAX, |()| u32::from_le_bytes(word))
    }

    /// Writes a word of the device's file; lost when it is not there.
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

    /// Sets and clears bits of Command. Its other half is Status, whose bits are cleared by writing ones: zeros are written.
    fn command(&self, clear: u32, set: u32) {
        if let Some(at) = self.config_at(COMMAND) {
            self.write(at, (self.read(at) & 0xffff & !clear) | set);
        }
    }

    /// Whether the device may use DMA.
    pub(super) fn is_master(&self) -> bool {
        self.config_at(COMMAND).is_some_and(|at| self.read(at) & MASTER != 0)
    }

    /// Takes DMA and interrupts from the device.
    pub(super) fn quiet(&self) {
        self.command(MASTER, 0);
        let _ = self.irqs(0);
    }

    pub(super) fn reset(&self) -> Result<(), BusError> {
        if self.info.flags & abi::DEVICE_CAN_RESET == 0 {
            return Err(self.wrong("the kernel knows no way to reset this function alone".to_owned()));
        }
        let was = self.config_at(COMMAND).map_or(0, |at| self.read(at) & 0x7ff);
        sys::plain(&self.file, abi::DEVICE_RESET, 0).map_err(os(self.bdf, "VFIO_DEVICE_RESET"))?;
        // Memory has to be decoded again before any mapped register is touched.
        self.command(0, was | MEMORY);
        Ok(())
    }

    /// The registers of a BAR.
    pub(super) fn bar(self: &Arc<Device>, index: u8, len: usize) -> Result<VfioBar, BusError> {
        if index > 5 {
            return Err(self.wrong(format!("BAR {index}: there are BARs 0 to 5")));
        }
        let (region, answer) = sys::region_info(&self.file, index.into())
            .map_err(os(self.bdf, format!("VFIO_DEVICE_GET_REGION_INFO of BAR {index}")))?;
        let size = usize::try_from(region.size).unwrap_or(usize::MAX);
        if len == 0 || size < len || region.flags & abi::REGION_READ == 0 {
            return Err(self.wrong(format!("BAR {index} has {size} bytes, {len} are needed")));
        }
        self.command(0, MEMORY);
        let caps = if region.flags & abi::HAS_CAPS != 0 { region.cap_offset } else { 0 };
        let sparse = Caps::new(&answer, caps).find(|cap| cap.0 == abi::CAP_REGION_SPARSE).map(|cap| cap.1);
        let map = if region.flags & abi::REGION_MMAP != 0 && sparse.is_none_or(|areas| begins_with(areas, len as u64)) {
            let rounded = len.next_multiple_of(sys::page_size()).min(size);
            let map = Mapping::new(&self.file, region.offset, rounded);
            Some(map.map_err(os(self.bdf, format!("mapping BAR {index}")))?)
        } else {
            None
        };
        Ok(VfioBar::new(self.clone(), map, region.offset, size.min(len.next_multiple_of(sys::page_size()))))
    }

    /// Interrupts 0 to `count`: MSI-X if the device has as many, else MSI.
    pub(super) fn irqs(&self, count: u16) -> Result<Vec<VfioIrq>, BusError> {
        let mut on = self.irqs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kind) = on.take() {
            sys::set_irqs(&self.file, kind, &[]).map_err(os(self.bdf, "taking interrupts away"))?;
        }
        if count == 0 {
            return Ok(Vec::new());
        }
        let has = |index| {
            let info = abi::IrqInfo { index, ..Default::default() };
            sys::call(&self.file, abi::DEVICE_GET_IRQ_INFO, info).map_or(0, |info| info.count)
        };
        let Some(kind) = [abi::IRQ_MSIX, abi::IRQ_MSI].into_iter().find(|&kind| has(kind) >= count.into()) else {
            let (x, msi) = (has(abi::IRQ_MSIX), has(abi::IRQ_MSI));
            return Err(self.wrong(format!("{count} interrupts are needed; it has {x} of MSI-X and {msi} of MSI")));
        };
        let irqs: Result<Vec<_>, _> = (0..count).map(|_| VfioIrq::new()).collect();
        let irqs = irqs.map_err(os(self.bdf, "eventfd"))?;
        let fds: Vec<_> = irqs.iter().filter_map(Irq::fd).collect();
        sys::set_irqs(&self.file, kind, &fds).map_err(os(self.bdf, "VFIO_DEVICE_SET_IRQS"))?;
        *on = Some(kind);
        Ok(irqs)
    }
}

/// Whether a list of areas that can be mapped (`{count, reserved, {offset, size}…}`) has one that covers the first `len` bytes.
fn begins_with(areas: &[u8], len: u64) -> bool {
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
        assert!(begins_with(&areas(&[(0, 8192)]), 8192));
        assert!(!begins_with(&areas(&[(0, 4096), (8192, 4096)]), 8192));
        assert!(!begins_with(&areas(&[(4096, 8192)]), 4096));
        assert!(!begins_with(&9u32.to_ne_bytes(), 1), "a list that is shorter than it says covers nothing");
    }
}
