//! Maps: what programs and this process share.

use super::{Attr, command};
use crate::mmap::Mmap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU64;

/// `BPF_F_MMAPABLE`.
const MMAPABLE: u32 = 1 << 10;

/// What a map is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MapKind {
    /// Values by number.
    Array,
    /// AF_XDP sockets by number (`BPF_MAP_TYPE_XSKMAP`).
    Sockets,
    /// Devices by number (`BPF_MAP_TYPE_DEVMAP`).
    Devices,
}

/// A map with 32-bit keys.
#[derive(Debug)]
pub struct Map {
    fd: OwnedFd,
    value: usize,
    entries: u32,
}

impl Map {
    /// A map of `entries` values of `value` bytes each; an array can be [mapped](Map::memory).
    pub fn new(kind: MapKind, value: usize, entries: u32, name: &str) -> io::Result<Map> {
        let (kind, flags) = match kind {
            MapKind::Array => (2, MMAPABLE),
            MapKind::Sockets => (17, 0),
            MapKind::Devices => (14, 0),
        };
        let mut attr = Attr::new().u32(0, kind).u32(4, 4).u32(8, value as u32).u32(12, entries).u32(16, flags);
        attr = attr.name(28, name);
        // SAFETY: no addresses.
        let fd = unsafe { attr.open(command::MAP_CREATE) }?;
        Ok(Map { fd, value, entries })
    }

    /// Puts a socket under a number.
    pub fn set_socket(&self, key: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.set(key, socket.as_raw_fd() as u32)
    }

    /// Puts the device `index` of the calling thread's namespace under a number.
    pub fn set_device(&self, key: u32, index: i32) -> io::Result<()> {
        self.set(key, index as u32)
    }

    fn set(&self, key: u32, value: u32) -> io::Result<()> {
        if self.value != 4 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut attr = Attr::new().fd(0, &self.fd).at(8, &key).at(16, &value);
        // SAFETY: key and value are the four bytes each that this map was made with.
        unsafe { attr.call(command::MAP_UPDATE_ELEM) }.map(drop)
    }

    /// Takes what is under a number away.
    pub fn clear(&self, key: u32) -> io::Result<()> {
        let mut attr = Attr::new().fd(0, &self.fd).at(8, &key);
        // SAFETY: the key is the four bytes that this map was made with.
        unsafe { attr.call(command::MAP_DELETE_ELEM) }.map(drop)
    }

    /// The number that instructions name it by.
    pub fn number(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    /// The values of an array as memory: each takes its size rounded up to eight bytes.
    pub fn memory(&self) -> io::Result<Memory> {
        let len = (self.value.next_multiple_of(8) * self.entries as usize).next_multiple_of(4096);
        Ok(Memory(Mmap::shared(self.fd.as_fd(), 0, len)?))
    }
}

/// The values of a map, mapped. Programs of the kernel read and write them too: whoever writes bytes here knows that
/// none runs meanwhile; what programs count is read as atomic words.
#[derive(Debug)]
pub struct Memory(Mmap);

impl Memory {
    /// The bytes from `at` on, to be written. Nothing is written that lies outside.
    #[inline]
    pub fn room(&mut self, at: usize, len: usize) -> &mut [u8] {
        if at.checked_add(len).is_none_or(|end| end > self.0.len()) {
            return &mut [];
        }
        // SAFETY: at..at+len lies inside the mapping, is initialised (maps begin as zeroes), borrowed exclusively, and no
        // program runs while its owner writes: they run only within `Program::run_live`, a call that has returned.
        unsafe { std::slice::from_raw_parts_mut(self.0.base().as_ptr().add(at), len) }
    }

    /// The eight bytes at `at`, a multiple of eight, as a word that programs change too; the last one for what lies outside.
    #[inline]
    pub fn word(&self, at: usize) -> &AtomicU64 {
        let at = (at & !7).min(self.0.len() - 8);
        // SAFETY: the word lies inside the mapping and is aligned: the mapping begins at a page.
        unsafe { AtomicU64::from_ptr(self.0.base().as_ptr().add(at).cast()) }
    }
}
