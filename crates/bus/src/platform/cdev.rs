//! The requests to the kernel module: by its character device, or to a fake in tests.

use super::abi;
use libc::Ioctl;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use towpath_sys::Mmap;

/// The requests of [`abi`].
pub(super) trait Shim: std::fmt::Debug + Send + Sync {
    fn info(&self) -> io::Result<abi::Info>;
    fn region(&self, wanted: abi::RegionWindow) -> io::Result<abi::RegionWindow>;
    fn call(&self, call: abi::Call) -> io::Result<abi::Call>;
    /// # Safety
    /// As for [`Dma::map`](crate::Dma::map).
    unsafe fn map(&self, map: abi::Map) -> io::Result<abi::Map>;
    fn unmap(&self, map: abi::Map) -> io::Result<()>;
    fn irqs(&self, irqs: abi::Irqs) -> io::Result<()>;
    fn enable(&self, irq: abi::Enable) -> io::Result<()>;
    /// Maps registers.
    fn mmap(&self, offset: u64, len: usize) -> io::Result<Mmap>;
}

/// The open character device.
#[derive(Debug)]
pub(super) struct Cdev(File);

impl Cdev {
    pub(super) fn open(path: &Path) -> io::Result<Cdev> {
        OpenOptions::new().read(true).write(true).open(path).map(Cdev)
    }

    fn request<T: Sized>(&self, request: Ioctl, mut structure: T) -> io::Result<T> {
        // SAFETY: the request holds the length of the structure, which outlives the call; the
        // kernel writes integers, of which all bit patterns are valid.
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), request, &raw mut structure) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(structure) }
    }
}

/// The length of a structure, for its first field.
pub(super) const fn size<T>() -> u32 {
    size_of::<T>() as u32
}

impl Shim for Cdev {
    fn info(&self) -> io::Result<abi::Info> {
        self.request(abi::INFO, abi::Info { size: size::<abi::Info>(), ..abi::Info::default() })
    }

    fn region(&self, wanted: abi::RegionWindow) -> io::Result<abi::RegionWindow> {
        self.request(abi::REGION, wanted)
    }

    fn call(&self, call: abi::Call) -> io::Result<abi::Call> {
        self.request(abi::CALL, call)
    }

    unsafe fn map(&self, map: abi::Map) -> io::Result<abi::Map> {
        self.request(abi::MAP, map)
    }

    fn unmap(&self, map: abi::Map) -> io::Result<()> {
        self.request(abi::UNMAP, map).map(drop)
    }

    fn irqs(&self, irqs: abi::Irqs) -> io::Result<()> {
        self.request(abi::IRQS, irqs).map(drop)
    }

    fn enable(&self, irq: abi::Enable) -> io::Result<()> {
        self.request(abi::ENABLE, irq).map(drop)
    }

    fn mmap(&self, offset: u64, len: usize) -> io::Result<Mmap> {
        Mmap::shared(self.0.as_fd(), offset, len)
    }
}
