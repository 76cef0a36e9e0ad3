//! Interrupts as words in the machine's memory.
//!
//! An MSI-X message is a write of 32 bits to an address (PCI 3.0 §6.8.2). The machine's CPU handles
//! no interrupts, so the address is a word of memory that is mapped for the device like any other.

use super::dma::QtestDma;
use crate::bus::{BusError, Irq, Pci};
use crate::dma::{Access, Dma, Iova};
use crate::mmio::Mmio;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use towpath_packet::Region;

pub(super) const MSI_X: u8 = 0x11;
/// Message Control, in the upper half of the capability's first word.
const ENABLE: u32 = 1 << 31;
const MASK_ALL: u32 = 1 << 30;
const PAGE: usize = 4096;

/// An interrupt that can be polled, but not waited for.
pub struct QtestIrq {
    page: Arc<Region>,
    vector: usize,
}

impl Irq for QtestIrq {
    fn fd(&self) -> Option<RawFd> {
        None
    }

    /// Returns 1 if messages have arrived: several count as one.
    fn take(&self) -> u64 {
        let Some(word) = self.page.at(self.vector * 4, 4) else { return 0 };
        // SAFETY: four bytes inside the page, aligned, alive as long as the region that `self`
        // holds. Only the device and the irq handles access them, the latter as atomics.
        let word = unsafe { word.cast::<AtomicU32>().as_ref() };
        // Acquire: later reads see all that the device wrote before the message.
        u64::from(word.swap(0, Ordering::Acquire) != 0)
    }
}

/// The target page of the messages. Unmapped on drop, after MSI-X was disabled.
pub(super) struct MsixPage {
    page: Arc<Region>,
    at: Iova,
    dma: QtestDma,
}

impl Drop for MsixPage {
    fn drop(&mut self) {
        if self.dma.unmap(self.at, PAGE).is_err() {
            std::mem::forget(self.page.clone());
        }
    }
}

/// The number of vectors, by the first word of the MSI-X capability.
pub(super) fn vectors(control: u32) -> u16 {
    (control >> 16 & 0x7ff) as u16 + 1
}

/// Enables vectors 0 to `count - 1` by the MSI-X capability at offset `capability`.
pub(super) fn enable(
    bus: &impl Pci<Dma = QtestDma>,
    capability: Option<u16>,
    count: u16,
) -> Result<(MsixPage, Vec<QtestIrq>), BusError> {
    let device = |what: String| BusError::device(bus.name(), what);
    let map = BusError::map(bus.name());
    let at = capability.ok_or_else(|| device("has no MSI-X".to_owned()))?;
    let control = bus.config_r32(at);
    let vectors = vectors(control);
    if count > vectors.min((PAGE / 4) as u16) {
        return Err(device(format!("has {vectors} interrupts, not {count}")));
    }
    let place = bus.config_r32(at + 4);
    let (bar, table) = ((place & 7) as u8, (place & !7) as usize);
    let registers = bus.bar(bar, table + usize::from(vectors) * 16)?;
    let page = Arc::new(bus.dma().alloc(PAGE).map_err(&map)?);
    // SAFETY: the page stays in place until `MsixPage` has unmapped it; its bytes are accessed as
    // atomics only.
    let iova = unsafe { bus.dma().map(page.base(), PAGE, Access::Both) }.map_err(&map)?;
    bus.config_w32(at, control & 0xffff_0000 | ENABLE | MASK_ALL);
    for vector in 0..usize::from(vectors) {
        let (entry, used) = (table + vector * 16, vector < usize::from(count));
        let to = iova.get() + vector as u64 * 4;
        registers.w32(entry, to as u32);
        registers.w32(entry + 4, (to >> 32) as u32);
        registers.w32(entry + 8, 1);
        registers.w32(entry + 12, u32::from(!used));
    }
    bus.config_w32(at, control & 0xffff_0000 & !MASK_ALL | ENABLE);
    let irqs = (0..usize::from(count)).map(|vector| QtestIrq { page: page.clone(), vector }).collect();
    Ok((MsixPage { page, at: iova, dma: bus.dma().clone() }, irqs))
}

/// Disables MSI-X. No message arrives after the return.
pub(super) fn disable(bus: &impl Pci, capability: Option<u16>) {
    if let Some(at) = capability {
        let control = bus.config_r32(at);
        bus.config_w32(at, control & 0xffff_0000 & !ENABLE);
        let _ = bus.config_r32(at);
    }
}
