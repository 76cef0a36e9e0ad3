//! A fake device without behaviour: registers keep their values, IOVAs are addresses of the
//! process, mappings are counted and fail on request. The test writes the descriptors.

use super::regs::{CTRL, EECD, EECD_AUTO_READ_DONE, ICR, MDIC, RAH, RAH_VALID, RAL, STATUS, ctrl, mdic, status};
use std::collections::HashMap;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex};
use towpath_bus::{Access, Bus, BusError, Dma, Iova, Irq, IrqKind, Limits, MapError, Mmio, Pci, Window};
use towpath_packet::{Backing, Region};

/// What a test observes and controls.
#[derive(Debug, Default)]
pub(crate) struct Script {
    /// This many of the next maps succeed, before `fail_maps` counts.
    pub(crate) pass_maps: AtomicU32,
    /// This many of the next maps, unmaps, flushes fail.
    pub(crate) fail_maps: AtomicU32,
    pub(crate) fail_unmaps: AtomicU32,
    pub(crate) fail_flushes: AtomicU32,
    /// Buffers that are mapped in windows now: the address for each window and slot.
    pub(crate) live: Mutex<HashMap<(u32, u32), usize>>,
    /// Persistent mappings, made minus removed.
    pub(crate) persistent: AtomicU32,
    /// Only memory that the bus allocated can be mapped; the addresses of its regions.
    pub(crate) foreign: AtomicBool,
    pub(crate) allocated: Mutex<Vec<usize>>,
    /// Every register reads as all ones.
    pub(crate) dead: AtomicBool,
    /// The device never becomes idle, and its bus mastering can't be disabled.
    pub(crate) restless: AtomicBool,
    pub(crate) registers: Mutex<HashMap<usize, u32>>,
    pub(crate) writes: Mutex<Vec<(usize, u32)>>,
    pub(crate) reads: AtomicU32,
    windows: AtomicU32,
    config: Mutex<HashMap<u16, u32>>,
}

fn fails(left: &AtomicU32) -> bool {
    left.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1)).is_ok()
}

#[derive(Debug, Clone)]
pub(crate) struct FakeDma {
    pub(crate) script: Arc<Script>,
    limits: Arc<Limits>,
}

impl FakeDma {
    pub(crate) fn new(script: Arc<Script>, iommu: bool) -> FakeDma {
        let limits = Limits::new(iommu, 4096, vec![4096..=u64::MAX]);
        FakeDma { script, limits: Arc::new(limits) }
    }
}

fn iova(at: NonNull<u8>) -> Iova {
    Iova::new(at.addr().get() as u64).unwrap()
}

// SAFETY: no device is there.
unsafe impl Dma for FakeDma {
    type Window = FakeWindow;

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn alloc(&self, len: usize) -> Result<Region, MapError> {
        let region = Region::new(len, Backing::Anonymous)?;
        self.script.allocated.lock().unwrap().push(region.base().addr().get());
        Ok(region)
    }

    fn reaches(&self, at: NonNull<u8>, _: usize) -> bool {
        !self.script.foreign.load(Relaxed) || self.script.allocated.lock().unwrap().contains(&at.addr().get())
    }

    unsafe fn map(&self, at: NonNull<u8>, len: usize, _: Access) -> Result<Iova, MapError> {
        if !self.reaches(at, len) {
            return Err(MapError::Foreign);
        }
        self.script.persistent.fetch_add(1, Relaxed);
        Ok(iova(at))
    }

    fn unmap(&self, _: Iova, _: usize) -> Result<(), MapError> {
        self.script.persistent.fetch_sub(1, Relaxed);
        Ok(())
    }

    fn window(&self, _: u32, _: usize) -> Result<FakeWindow, MapError> {
        let number = self.script.windows.fetch_add(1, Relaxed);
        Ok(FakeWindow { number, script: self.script.clone() })
    }
}

#[derive(Debug)]
pub(crate) struct FakeWindow {
    number: u32,
    script: Arc<Script>,
}

// SAFETY: no device is there.
unsafe impl Window for FakeWindow {
    unsafe fn map(&mut self, slot: u32, at: NonNull<u8>, _: usize, _: Access) -> Result<Iova, MapError> {
        if !fails(&self.script.pass_maps) && fails(&self.script.fail_maps) {
            return Err(MapError::Refused("by the test"));
        }
        let old = self.script.live.lock().unwrap().insert((self.number, slot), at.addr().get());
        assert_eq!(old, None, "slot {slot} is mapped twice");
        Ok(iova(at))
    }

    fn unmap(&mut self, slot: u32) -> Result<(), MapError> {
        if fails(&self.script.fail_unmaps) {
            return Err(MapError::Refused("by the test"));
        }
        let old = self.script.live.lock().unwrap().remove(&(self.number, slot));
        assert!(old.is_some(), "slot {slot} was not mapped");
        Ok(())
    }

    fn flush_iotlb(&mut self) -> Result<(), MapError> {
        if fails(&self.script.fail_flushes) { Err(MapError::Refused("by the test")) } else { Ok(()) }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct FakeBar(Arc<Script>);

impl Mmio for FakeBar {
    fn len(&self) -> usize {
        super::regs::BAR_LEN
    }

    fn r32(&self, at: usize) -> u32 {
        self.0.reads.fetch_add(1, Relaxed);
        if self.0.dead.load(Relaxed) {
            return u32::MAX;
        }
        let word = *self.0.registers.lock().unwrap().get(&at).unwrap_or(&0);
        match at {
            _ if at == CTRL.at() => word & !ctrl::RESET,
            _ if at == STATUS.at() => {
                let ctrl = *self.0.registers.lock().unwrap().get(&CTRL.at()).unwrap_or(&0);
                let busy = ctrl & ctrl::MASTER_DISABLE == 0 || self.0.restless.load(Relaxed);
                word | if busy { status::MASTER_ENABLE } else { 0 }
            }
            // A PHY whose registers are all 0, and which answers at once.
            _ if at == MDIC.at() => word & !0xffff | mdic::READY,
            _ => word,
        }
    }

    fn w32(&self, at: usize, value: u32) {
        self.0.writes.lock().unwrap().push((at, value));
        // Causes are cleared by ones, and none comes.
        if at != STATUS.at() && at != EECD.at() && at != ICR.at() {
            self.0.registers.lock().unwrap().insert(at, value);
        }
    }
}

#[derive(Debug)]
pub(crate) struct FakeIrq;

impl Irq for FakeIrq {
    fn fd(&self) -> Option<RawFd> {
        None
    }
    fn take(&self) -> u64 {
        0
    }
}

#[derive(Debug)]
pub(crate) struct FakePci {
    pub(crate) script: Arc<Script>,
    dma: FakeDma,
}

impl FakePci {
    /// A device with this device ID, an address and a link.
    pub(crate) fn new(device: u32, iommu: bool) -> FakePci {
        let script = Arc::new(Script::default());
        let registers = [
            (RAL.at(), 0x0000_0252),
            (RAH.at(), RAH_VALID | 0x0100),
            (STATUS.at(), status::LINK_UP | status::FULL_DUPLEX | 2 << status::SPEED_SHIFT),
            (EECD.at(), EECD_AUTO_READ_DONE),
        ];
        script.registers.lock().unwrap().extend(registers);
        script.config.lock().unwrap().insert(0, device << 16 | 0x8086);
        FakePci { dma: FakeDma::new(script.clone(), iommu), script }
    }
}

impl Bus for FakePci {
    type Bar = FakeBar;
    type Dma = FakeDma;
    type Irq = FakeIrq;

    fn name(&self) -> &str {
        "fake"
    }
    fn bar(&self, _: u8, _: usize) -> Result<FakeBar, BusError> {
        Ok(FakeBar(self.script.clone()))
    }
    fn dma(&self) -> &FakeDma {
        &self.dma
    }
    fn irqs(&self, count: u16) -> Result<Vec<FakeIrq>, BusError> {
        Ok((0..count).map(|_| FakeIrq).collect())
    }
}

impl Pci for FakePci {
    fn config_r32(&self, at: u16) -> u32 {
        if self.script.dead.load(Relaxed) {
            return u32::MAX;
        }
        let word = *self.script.config.lock().unwrap().get(&at).unwrap_or(&0);
        if at == 4 && self.script.restless.load(Relaxed) { word | 4 } else { word }
    }
    fn config_w32(&self, at: u16, value: u32) {
        self.script.config.lock().unwrap().insert(at, value);
    }
    fn reset(&self) -> Result<(), BusError> {
        Ok(())
    }
    fn irq_count(&self, _: IrqKind) -> u16 {
        5
    }
    fn irqs_of(&self, _: IrqKind, count: u16) -> Result<Vec<FakeIrq>, BusError> {
        self.irqs(count)
    }
}
