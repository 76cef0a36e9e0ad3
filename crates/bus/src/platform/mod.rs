//! Devices that are no PCI functions, by a character device of a kernel module: TI's CPSW on K3.
//!
//! ```text
//!   PlatformBus ─┬─ PlatformBar   registers: the windows of granted rings and channels, mapped
//!                ├─ PlatformDma   memory of this process, pinned and contiguous
//!                ├─ PlatformIrq   eventfds
//!                └─ firmware()    TISCI messages, checked by the module
//! ```
//!
//! | file | holds |
//! |---|---|
//! | [`abi`] | the character device: requests, structures, errors |
//! | `cdev` | the requests, by `ioctl(2)` |
//! | `bar`, `dma` | the types of [`Bus`] |
//! | `fake` | for tests: a fake of the kernel module |
//!
//! # What a kernel offers without a module, and what it does not
//!
//! | needed | mainline | |
//! |---|---|---|
//! | registers of switch, rings and channels | `uio_pdrv_genirq`: five maps a device, as many as are needed | enough |
//! | memory | reserved huge pages and `/proc/self/pagemap`, or `/dev/dma_heap` | pages may be moved; a heap shows no address |
//! | interrupts | UIO: one a device | none per flow |
//! | power, clocks, pin mode | a driver that is bound, by the device tree | UIO switches them on; the mode of RGMII stays the boot loader's |
//! | **TISCI** | none: no device file, and the kernel owns this host's mailbox | **impossible** |
//!
//! Rings and channels can be set up only by TISCI messages: a firewall keeps all processors from
//! their registers of configuration. So user space alone can't drive the switch on a mainline
//! kernel.
//!
//! # What the kernel module does
//!
//! About a hundred lines beside boilerplate (`docs/board.md` has the device tree):
//!
//! * probe: `pm_runtime_get_sync` (an access to a switch without power is a bus error),
//!   `phy_set_mode_ext` on the mode of the port, `devm_ti_sci_get_handle`, the ranges of this host
//!   by `get_resource_range`; on UDMA, channels and rings that it reserves in the kernel's name.
//! * `mmap`: only the windows of the switch and of granted rings and channels, uncached.
//! * `MAP`: `pin_user_pages_fast` with `FOLL_LONGTERM`; fails unless the pages are contiguous.
//! * `CALL`: parses the message by its type, checks device, index, and that the address of a ring
//!   lies in pinned memory, and passes the fields to `rm_ring_ops`, `rm_udmap_ops` or
//!   `rm_psil_ops`. It answers `GET_RESOURCE_RANGE` itself: on UDMA with what it has reserved.
//! * `IRQS`: the handler disables its interrupt and signals the eventfd; `ENABLE` enables it again.
//!   The level stays high while a ring has elements, so that none is lost in between.
//! * release, also when the process is killed: tears channels down, unpairs threads, resets rings,
//!   and only then unpins memory.
//!
//! The module has not been written for a board yet: this interface is tested against a fake of the
//! requests, whose firmware is one that decodes the messages.

pub mod abi;
mod bar;
mod cdev;
mod dma;
#[cfg(test)]
mod fake;

pub use bar::PlatformBar;
pub use dma::PlatformDma;

use crate::bus::{Bus, BusError, Irq};
use crate::tisci::{Message, Refused, Tisci};
use bar::Window;
use cdev::{Cdev, Shim, size};
use std::io;
use std::os::fd::RawFd;
use std::path::Path;
use std::sync::Arc;
use towpath_sys::EventFd;
use towpath_sys::mmap::page_size;

/// The longest region that is accepted: all rings of a ring accelerator.
const MAX_REGION: u64 = 64 << 20;

/// A device, opened by its kernel module.
#[derive(Debug)]
pub struct PlatformBus {
    name: String,
    soc: String,
    irqs: usize,
    device: Arc<dyn Shim>,
    dma: PlatformDma,
}

impl PlatformBus {
    /// Opens the character device of the module.
    ///
    /// # Errors
    /// [`BusError`] names the step, and what is missing on this machine.
    pub fn open(path: &Path) -> Result<PlatformBus, BusError> {
        let name = path.display().to_string();
        let device = Cdev::open(path).map_err(|source| {
            let hint = match source.raw_os_error() {
                Some(libc::ENOENT | libc::ENXIO | libc::ENODEV) => {
                    "a CPSW is driven through a kernel module on its board, which this machine has not loaded: see docs/board.md"
                }
                Some(libc::EBUSY) => "another process drives the device: fuser -v names it",
                Some(libc::EACCES | libc::EPERM) => "run as root, or give this user the device file",
                _ => "see docs/board.md",
            };
            BusError::os(&name, "opening the device of the kernel module")(source).with_hint(hint)
        })?;
        PlatformBus::with(name, Arc::new(device))
    }

    fn with(name: String, device: Arc<dyn Shim>) -> Result<PlatformBus, BusError> {
        let info = device.info().map_err(|source| {
            let hint = "it is no device of the kernel module for CPSW: see docs/board.md";
            BusError::os(&name, "INFO")(source).with_hint(hint)
        })?;
        if info.version != abi::VERSION {
            let (theirs, ours) = (info.version, abi::VERSION);
            return Err(BusError::device(name, format!("the kernel module has interface {theirs}, known is {ours}")));
        }
        let end = info.soc.iter().position(|&byte| byte == 0).unwrap_or(info.soc.len());
        let soc = String::from_utf8_lossy(info.soc.get(..end).unwrap_or_default()).into_owned();
        let dma = PlatformDma::new(device.clone());
        Ok(PlatformBus { name, soc, irqs: info.irqs as usize, device, dma })
    }

    /// The name of the SoC, as the module reports it: `am64x`.
    pub fn soc(&self) -> &str {
        &self.soc
    }

    /// System firmware, through the module.
    pub fn firmware(&self) -> Arc<dyn Tisci> {
        Arc::new(PlatformFirmware(self.device.clone()))
    }

    /// The windows of a region, with at least one.
    fn windows(&self, region: u8) -> Result<Vec<Window>, BusError> {
        let mut windows = Vec::new();
        for window in 0.. {
            let wanted = abi::RegionWindow {
                size: size::<abi::RegionWindow>(),
                region: region.into(),
                window,
                ..Default::default()
            };
            let step = || format!("REGION {region}, window {window}");
            let found = self.device.region(wanted).map_err(BusError::os(&self.name, step()))?;
            let page = page_size() as u64;
            let good = found.len > 0
                && found.len.is_multiple_of(page)
                && found.at.is_multiple_of(page)
                && found.at.checked_add(found.len).is_some_and(|end| end <= MAX_REGION);
            if !good {
                let what = format!("{}: {} bytes at {:#x} can't be mapped", step(), found.len, found.at);
                return Err(BusError::device(&self.name, what));
            }
            let map = self.device.mmap(found.offset, found.len as usize);
            let map = map.map_err(BusError::os(&self.name, format!("mmap of {}", step())))?;
            windows.push(Window { start: found.at as usize, map });
            if window + 1 >= found.windows.min(16) {
                break;
            }
        }
        Ok(windows)
    }
}

impl Bus for PlatformBus {
    type Bar = PlatformBar;
    type Dma = PlatformDma;
    type Irq = PlatformIrq;

    fn name(&self) -> &str {
        &self.name
    }

    fn bar(&self, index: u8, len: usize) -> Result<PlatformBar, BusError> {
        let bar = PlatformBar::new(self.device.clone(), self.windows(index)?);
        if crate::Mmio::len(&bar) < len {
            let what = format!("region {index} ends at {:#x}, {len:#x} bytes are needed", crate::Mmio::len(&bar));
            return Err(BusError::device(&self.name, what));
        }
        Ok(bar)
    }

    fn dma(&self) -> &PlatformDma {
        &self.dma
    }

    fn irqs(&self, count: u16) -> Result<Vec<PlatformIrq>, BusError> {
        let count = usize::from(count);
        let mut wanted = abi::Irqs { size: size::<abi::Irqs>(), count: count as u32, ..Default::default() };
        if count > self.irqs.min(wanted.fds.len()) {
            let what = format!("the kernel module offers {} interrupts, {count} are needed", self.irqs);
            return Err(BusError::device(&self.name, what));
        }
        let irq = |irq| {
            let event = Arc::new(EventFd::new()?);
            Ok(PlatformIrq { event, irq: irq as u32, device: self.device.clone() })
        };
        let made: io::Result<Vec<_>> = (0..count).map(irq).collect();
        let made = made.map_err(BusError::os(&self.name, "eventfd"))?;
        wanted.fds.iter_mut().zip(&made).for_each(|(fd, irq)| *fd = irq.event.fd());
        self.device.irqs(wanted).map_err(BusError::os(&self.name, "IRQS"))?;
        Ok(made)
    }
}

/// An interrupt: an eventfd that the module signals, with the interrupt off until it is taken.
#[derive(Debug, Clone)]
pub struct PlatformIrq {
    event: Arc<EventFd>,
    irq: u32,
    device: Arc<dyn Shim>,
}

impl Irq for PlatformIrq {
    fn fd(&self) -> Option<RawFd> {
        Some(self.event.fd())
    }

    fn take(&self) -> u64 {
        let taken = self.event.take();
        // A module that refuses leaves the queue to its poll interval.
        let _ = self.device.enable(abi::Enable { size: size::<abi::Enable>(), irq: self.irq });
        taken
    }
}

/// System firmware, through the module.
#[derive(Debug)]
struct PlatformFirmware(Arc<dyn Shim>);

impl Tisci for PlatformFirmware {
    fn call(&self, request: &Message) -> Result<Message, Refused> {
        let bytes = request.bytes();
        let mut call = abi::Call { size: size::<abi::Call>(), len: bytes.len() as u32, ..Default::default() };
        if let Some(place) = call.message.get_mut(..bytes.len()) {
            place.copy_from_slice(bytes);
        }
        let answer = self.0.call(call).map_err(|source| match source.raw_os_error() {
            Some(libc::EREMOTEIO) => Refused::new(request, "it did not acknowledge the message"),
            Some(libc::EPERM) => Refused::new(
                request,
                "the kernel module granted no such channel, flow or ring, or has not mapped its memory",
            ),
            _ => Refused::new(request, format!("the kernel module: {source}")),
        })?;
        let bytes = answer.message.get(..answer.len as usize).unwrap_or_default();
        Message::from_bytes(bytes).ok_or_else(|| Refused::new(request, "the kernel module's answer is no message"))
    }
}

#[cfg(test)]
mod tests {
    use super::fake::FakeShim;
    use super::*;
    use crate::dma::Dma;
    use crate::{Coherent, DmaPolicy, Domain, MapError, Mmio};

    fn bus(fake: FakeShim) -> (PlatformBus, Arc<FakeShim>) {
        let fake = Arc::new(fake);
        (PlatformBus::with("fake".to_owned(), fake.clone()).unwrap(), fake)
    }

    fn word(fake: &FakeShim, at: usize) -> u32 {
        // SAFETY: inside the region, aligned, and accessed by this thread only.
        unsafe { fake.registers.at(at, 4).unwrap().cast::<u32>().read_volatile() }
    }

    #[test]
    fn registers_lie_in_the_windows_of_granted_rings_and_nowhere_else() {
        let (bus, fake) = bus(FakeShim::am64x());
        let rings = bus.bar(1, 129 * 0x2000).unwrap();
        rings.w32(16 * 0x2000 + 0x10, 5);
        rings.w64(128 * 0x2000 + 0x18, 7 << 32 | 6);
        // Behind the switch: ring 16, and after the window of 64 rings ring 128.
        assert_eq!(word(&fake, 0x20_0010), 5);
        let second = 0x20_0000 + 64 * 0x2000 + 0x18;
        assert_eq!((word(&fake, second), word(&fake, second + 4)), (6, 7));
        assert_eq!((rings.r32(128 * 0x2000 + 0x18), rings.r64(128 * 0x2000 + 0x18)), (6, 7 << 32 | 6));
        for outside in [0, 15 * 0x2000, 80 * 0x2000, 127 * 0x2000, 144 * 0x2000, 16 * 0x2000 + 2] {
            rings.w32(outside, 1);
            assert_eq!(rings.r32(outside), u32::MAX, "{outside:#x}");
        }
        // Eight bytes that leave the window, and ones that are not aligned.
        assert_eq!((rings.r64(80 * 0x2000 - 4), rings.r64(16 * 0x2000 + 4)), (u64::MAX, u64::MAX));
    }

    #[test]
    fn a_region_that_is_missing_or_too_short_is_named() {
        let (am64x, fake) = bus(FakeShim::am64x());
        let error = am64x.bar(4, 0x1000).unwrap_err().to_string();
        assert!(error.starts_with("fake: REGION 4, window 0: "), "{error}");
        let error = am64x.bar(3, 0x1_2000).unwrap_err().to_string();
        assert_eq!(error, "fake: region 3 ends at 0x11000, 0x12000 bytes are needed");
        *fake.fails.lock().unwrap() = Some(libc::EIO);
        assert!(am64x.bar(0, 0x1000).is_err());
        for window in [(1, 0x1000), (0, 0), (0, 0x1001), (0, 1 << 40), (u64::MAX - 0xfff, 0x1000)] {
            let fake = FakeShim { windows: vec![vec![window]], ..FakeShim::am64x() };
            let error = bus(fake).0.bar(0, 0x1000).unwrap_err().to_string();
            assert!(error.contains("can't be mapped"), "{window:?}: {error}");
        }
    }

    #[test]
    fn memory_is_pinned_by_the_module_and_released_once() {
        let (bus, fake) = bus(FakeShim::am64x());
        let domain = Domain::new(bus.dma().clone(), DmaPolicy::Persistent).unwrap();
        let memory = Coherent::new(&domain, 512).unwrap();
        assert_eq!(memory.iova().get(), 0x8_8000_0000);
        let page = page_size() as u64;
        assert_eq!(fake.seen.lock().unwrap().mapped, [(0x8_8000_0000, page)]);
        *fake.fails.lock().unwrap() = Some(libc::ENXIO);
        assert!(matches!(Coherent::new(&domain, 512), Err(MapError::NonContiguous { .. })));
        // An address that PKTDMA can't have.
        *fake.next.lock().unwrap() = 1 << 36;
        assert!(matches!(Coherent::new(&domain, 512), Err(MapError::Range { .. })));
        drop((memory, domain));
        assert_eq!(fake.seen.lock().unwrap().mapped, []);
        assert!(matches!(bus.dma().window(4, 2048), Err(MapError::NoIommu)));
    }

    #[test]
    fn messages_pass_as_they_are_and_errors_of_the_module_are_told() {
        let (bus, fake) = bus(FakeShim::am64x());
        let firmware = bus.firmware();
        let range = firmware.ranges(30, 0x24).unwrap()[0];
        assert_eq!((range.start, range.count), (16, 8));
        firmware.psil_pair(25, 0x1010, 0xc500).unwrap();
        let seen = std::mem::take(&mut fake.seen.lock().unwrap().messages);
        assert_eq!(seen[0], [0, 0x15, 0, 0, 2, 0, 0, 0, 30, 0, 0x24, 255]);
        assert_eq!((seen[1].len(), &seen[1][..2]), (20, &[0x80, 0x12][..]));
        for (code, what) in [
            (libc::EREMOTEIO, "firmware refused psil_pair: it did not acknowledge"),
            (libc::EPERM, "firmware refused psil_pair: the kernel module granted no such"),
            (libc::EIO, "firmware refused psil_pair: the kernel module: "),
        ] {
            *fake.fails.lock().unwrap() = Some(code);
            let error = firmware.psil_pair(25, 0x1010, 0xc500).unwrap_err().to_string();
            assert!(error.starts_with(what), "{error}");
        }
    }

    #[test]
    fn interrupts_are_eventfds_in_order_and_no_more_than_the_module_offers() {
        let (bus, fake) = bus(FakeShim::am64x());
        let irqs = bus.irqs(9).unwrap();
        let fds: Vec<_> = irqs.iter().map(|irq| irq.fd().unwrap()).collect();
        assert_eq!(fake.seen.lock().unwrap().fds, fds);
        irqs[8].take();
        assert_eq!(fake.seen.lock().unwrap().enabled, [8]);
        bus.irqs(0).unwrap();
        assert_eq!(fake.seen.lock().unwrap().fds, []);
        let error = bus.irqs(17).unwrap_err().to_string();
        assert_eq!(error, "fake: the kernel module offers 16 interrupts, 17 are needed");
    }

    #[test]
    fn another_version_another_file_and_no_file_are_refused_with_what_to_do() {
        let with = |fake| PlatformBus::with("fake".to_owned(), Arc::new(fake)).unwrap_err().to_string();
        let info = FakeShim::am64x().info;
        let error = with(FakeShim { info: abi::Info { version: 2, ..info }, ..FakeShim::am64x() });
        assert_eq!(error, "fake: the kernel module has interface 2, known is 1");
        let fake = FakeShim::am64x();
        *fake.fails.lock().unwrap() = Some(libc::ENOTTY);
        assert!(with(fake).contains("no device of the kernel module"));
        // Real files, by real system calls.
        let error = PlatformBus::open(Path::new("/dev/null")).unwrap_err().to_string();
        assert!(error.contains("INFO") && error.contains("docs/board.md"), "{error}");
        let error = PlatformBus::open(Path::new("/dev/towpath-no-such-device")).unwrap_err().to_string();
        assert!(error.contains("not loaded: see docs/board.md"), "{error}");
        assert_eq!(bus(FakeShim::am64x()).0.soc(), "am64x");
    }
}
