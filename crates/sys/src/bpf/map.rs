//! Maps: memory that programs and this process share.

use super::{Attr, command};
use crate::mmap::Mmap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// `BPF_F_MMAPABLE`.
const MMAPABLE: u32 = 1 << 10;

/// Type of a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MapType {
    /// Values by index (`BPF_MAP_TYPE_ARRAY`).
    Array,
    /// AF_XDP sockets by index (`BPF_MAP_TYPE_XSKMAP`).
    Xskmap,
    /// Devices by index (`BPF_MAP_TYPE_DEVMAP`).
    Devmap,
    /// Queues to cores by the core's number (`BPF_MAP_TYPE_CPUMAP`).
    Cpumap,
}

/// A map with 32-bit keys.
#[derive(Debug)]
pub struct Map {
    fd: OwnedFd,
    value: usize,
    entries: u32,
    /// Its memory is mapped: only once, because [`MapMemory`] gives out exclusive references.
    is_mapped: AtomicBool,
}

impl Map {
    /// A map of `entries` values of `value` bytes each; an array can be [mapped](Map::memory).
    ///
    /// # Errors
    /// The error of `bpf(2)`.
    pub fn new(kind: MapType, value: usize, entries: u32, name: &str) -> io::Result<Map> {
        let (kind, flags) = match kind {
            MapType::Array => (2, MMAPABLE),
            MapType::Xskmap => (17, 0),
            MapType::Devmap => (14, 0),
            MapType::Cpumap => (16, 0),
        };
        let mut attr = Attr::new().u32(0, kind).u32(4, 4).u32(8, value as u32).u32(12, entries).u32(16, flags);
        attr = attr.name(28, name);
        // SAFETY: no addresses.
        let fd = unsafe { attr.open(command::MAP_CREATE) }?;
        Ok(Map { fd, value, entries, is_mapped: AtomicBool::new(false) })
    }

    /// Stores a socket at a key.
    ///
    /// # Errors
    /// The error of `bpf(2)`; `InvalidInput` for a map whose values are not four bytes.
    pub fn set_socket(&self, key: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.set(key, socket.as_raw_fd() as u32)
    }

    /// Stores the device `index` of the calling thread's namespace at a key.
    ///
    /// # Errors
    /// The error of `bpf(2)`; `InvalidInput` for a map whose values are not four bytes.
    pub fn set_device(&self, key: u32, index: i32) -> io::Result<()> {
        self.set(key, index as u32)
    }

    /// Makes a queue of `frames` frames, at most 16384, and the kernel's thread that empties it on
    /// `core` into the stack.
    ///
    /// # Errors
    /// The error of `bpf(2)`: `ENODEV` for a core that does not exist, `EOVERFLOW` for more frames;
    /// `InvalidInput` for a map whose values are not four bytes.
    pub fn set_core(&self, core: u32, frames: u32) -> io::Result<()> {
        self.set(core, frames)
    }

    fn set(&self, key: u32, value: u32) -> io::Result<()> {
        if self.value != 4 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut attr = Attr::new().fd(0, &self.fd).address(8, &key).address(16, &value);
        // SAFETY: key and value are the four bytes each that this map was made with.
        unsafe { attr.call(command::MAP_UPDATE_ELEM) }.map(drop)
    }

    /// Deletes the value of a key.
    ///
    /// # Errors
    /// The error of `bpf(2)`.
    pub fn delete(&self, key: u32) -> io::Result<()> {
        let mut attr = Attr::new().fd(0, &self.fd).address(8, &key);
        // SAFETY: the key is the four bytes that this map was made with.
        unsafe { attr.call(command::MAP_DELETE_ELEM) }.map(drop)
    }

    /// The descriptor that instructions refer to.
    pub fn fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    /// Maps the values of an array: each takes its size rounded up to eight bytes.
    ///
    /// # Errors
    /// The error of `mmap(2)`; `AlreadyExists` if the values have been mapped before.
    pub fn memory(&self) -> io::Result<MapMemory> {
        let len = (self.value.next_multiple_of(8) * self.entries as usize).next_multiple_of(4096);
        // Relaxed: the flag guards no other memory.
        if self.is_mapped.swap(true, Ordering::Relaxed) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        Ok(MapMemory(Mmap::shared(self.fd.as_fd(), 0, len)?))
    }
}

/// The mapped values of a map. Programs in the kernel read and write them too: bytes are written
/// only while no program runs, and counters of programs are read as atomic words.
#[derive(Debug)]
pub struct MapMemory(Mmap);

impl MapMemory {
    /// `len` bytes from `at` on; an empty slice if they are not all inside.
    ///
    /// # Safety
    /// No program that writes to these bytes runs while the slice lives.
    #[inline]
    pub unsafe fn bytes_mut(&mut self, at: usize, len: usize) -> &mut [u8] {
        if at.checked_add(len).is_none_or(|end| end > self.0.len()) {
            return &mut [];
        }
        // SAFETY: at..at+len lies inside the mapping, is initialised (maps begin as zeroes), and is
        // borrowed exclusively: a map has one MapMemory. Programs are the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.0.base().as_ptr().add(at), len) }
    }

    /// The word of eight bytes at `at`, rounded down to a multiple of eight; the last word if `at`
    /// is outside. Programs change it too.
    #[inline]
    pub fn word(&self, at: usize) -> &AtomicU64 {
        let at = (at & !7).min(self.0.len() - 8);
        // SAFETY: the word lies inside the mapping and is aligned: the mapping begins at a page.
        unsafe { AtomicU64::from_ptr(self.0.base().as_ptr().add(at).cast()) }
    }
}
