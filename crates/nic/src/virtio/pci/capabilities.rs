//! Vendor capabilities: where the registers of a function are (virtio 1.2 §4.1.4).

use towpath_bus::{BusError, Mmio, Pci};

/// The list of capabilities begins here (PCI 3.0 §6.7).
const CAPABILITIES: u16 = 0x34;
const VENDOR_SPECIFIC: u8 = 9;
/// As many as fit, so that a cyclic list ends.
const MOST: usize = 48;

/// A part of a BAR.
#[derive(Debug, Clone)]
pub(super) struct Window<M> {
    bar: M,
    offset: usize,
    len: usize,
}

impl<M: Mmio> Window<M> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The offset in the BAR; registers outside of the window are those outside of the BAR.
    #[inline]
    fn at(&self, at: usize) -> usize {
        if at < self.len { self.offset + at } else { usize::MAX & !7 }
    }

    pub(super) fn r8(&self, at: usize) -> u8 {
        self.bar.r8(self.at(at))
    }

    pub(super) fn r16(&self, at: usize) -> u16 {
        self.bar.r16(self.at(at))
    }

    pub(super) fn r32(&self, at: usize) -> u32 {
        self.bar.r32(self.at(at))
    }

    pub(super) fn w8(&self, at: usize, value: u8) {
        self.bar.w8(self.at(at), value);
    }

    #[inline]
    pub(super) fn w16(&self, at: usize, value: u16) {
        self.bar.w16(self.at(at), value);
    }

    pub(super) fn w32(&self, at: usize, value: u32) {
        self.bar.w32(self.at(at), value);
    }

    /// A field of 64 bits is two accesses (§4.1.3.1).
    pub(super) fn w64(&self, at: usize, value: u64) {
        self.w32(at, value as u32);
        self.w32(at + 4, (value >> 32) as u32);
    }

    pub(super) fn bar(&self) -> &M {
        &self.bar
    }
}

/// The registers of a function.
pub(super) struct Windows<M> {
    pub(super) common: Window<M>,
    pub(super) notify: Window<M>,
    /// Bytes from one notification register to the next.
    pub(super) multiplier: u32,
    pub(super) device: Option<Window<M>>,
}

/// Finds the registers of a function: the first of each kind that can be mapped.
///
/// # Errors
/// [`BusError`] if one is missing: a legacy device has none.
pub(super) fn find<B: Pci>(bus: &B) -> Result<Windows<B::Bar>, BusError> {
    let (mut common, mut notify, mut device) = (None, None, None);
    let mut at = u16::from(bus.config_r32(CAPABILITIES) as u8 & !3);
    for _ in 0..MOST {
        if at < 0x40 {
            break;
        }
        let head = bus.config_r32(at);
        if head as u8 == VENDOR_SPECIFIC {
            let bar = bus.config_r32(at + 4) as u8;
            let (offset, len) = (bus.config_r32(at + 8) as usize, bus.config_r32(at + 12) as usize);
            let window = || bus.bar(bar, offset.saturating_add(len)).ok().map(|bar| Window { bar, offset, len });
            match head >> 24 {
                1 if common.is_none() => common = window().filter(|window| window.len() >= 56),
                2 if notify.is_none() => notify = window().map(|window| (window, bus.config_r32(at + 16))),
                4 if device.is_none() => device = window(),
                _ => {}
            }
        }
        at = u16::from((head >> 8) as u8 & !3);
    }
    let missing = |what| BusError::device(bus.name(), format!("its {what} is missing: a legacy device?"));
    let (notify, multiplier) = notify.ok_or_else(|| missing("notification structure"))?;
    Ok(Windows { common: common.ok_or_else(|| missing("common configuration"))?, notify, multiplier, device })
}
