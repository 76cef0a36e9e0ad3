//! Memory that another process may read and write at any moment.
//!
//! # Two threads at the same bytes
//!
//! Other processes write to the memory, and so may several threads of this one: an application
//! that hands the same chunk to two queues makes both write to it. The language calls that a data
//! race if the accesses are ordinary ones. None is:
//!
//! * The memory is a mapping in which no object of this program lies, and to which no reference is
//!   made. Volatile accesses to such memory are the machine's loads and stores and nothing else.
//!   [`UntrustedMem::get`] reads so, a few bytes of a length that is known to the compiler.
//! * Rings in it are accessed as [atomic words](crate::xsk_ring::Mapped).
//! * Bytes of any length are copied by the C library's `memmove`, called through a pointer that the
//!   compiler cannot see through. It is code that the compiler cannot see, as inline assembly,
//!   and does what a loop over relaxed atomic bytes would do, only faster.
//!
//! So a race has wrong bytes as its only effect, and the bytes are not trusted anyway. The crate
//! `vm-memory` does the same with volatile words for short lengths, and with a plain copy for long
//! ones. Exclusive access (`&mut`) would not help: it excludes no other process.

use crate::packet::{Packet, prefetch, prefetch_write};
use crate::region::{Region, RegionError, RegionHandle};
use libc::c_void;
use std::arch::asm;
use std::marker::PhantomData;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;

/// A word at any address, loaded and stored at once where the machine can do that.
#[derive(Clone, Copy)]
#[repr(C, packed)]
struct Unaligned<T>(T);

/// A region that an untrusted process shares. No reference to its bytes is ever made, so the other
/// side can cause wrong bytes and nothing worse. [`ExtBufPool`](crate::ExtBufPool) attaches pieces
/// of it to packets, [`write`](UntrustedMem::write) fills them. A clone is another handle.
#[derive(Debug, Clone)]
pub struct UntrustedMem(RegionHandle);

impl UntrustedMem {
    /// Wraps the only handle of a region, so that no pool has chunks in it.
    pub fn new(region: Region) -> UntrustedMem {
        UntrustedMem(region.into())
    }

    /// Maps memory of another process: the first `len` bytes of its memfd.
    ///
    /// # Errors
    /// [`RegionError::NotSealed`] unless the file is sealed against shrinking,
    /// [`RegionError::Short`] if it is shorter than `len`, [`RegionError::Os`] if it cannot be
    /// examined or mapped.
    pub fn from_memfd(fd: OwnedFd, len: usize) -> Result<UntrustedMem, RegionError> {
        Region::map_memfd(fd, 0, len).map(UntrustedMem::new)
    }

    /// Maps memory of another process that it can truncate at any moment: the first `len` bytes of
    /// a memfd, or of a file of tmpfs or hugetlbfs. Bytes that are gone read as zeroes, and
    /// [`is_lost`](UntrustedMem::is_lost) is true then.
    ///
    /// # Errors
    /// [`RegionError::NotMemory`] for any other file, of which nothing else is asked,
    /// [`RegionError::Short`] if it is shorter than `len`, [`RegionError::Os`] if it cannot be
    /// examined or mapped.
    pub fn from_file(fd: OwnedFd, len: usize) -> Result<UntrustedMem, RegionError> {
        Region::map_guarded(fd, len).map(UntrustedMem::new)
    }

    /// Whether its file was truncated, and bytes were accessed that are gone. The memory is no
    /// longer shared then.
    pub fn is_lost(&self) -> bool {
        self.0.region().is_lost()
    }

    /// Length in bytes, a multiple of the page size.
    #[allow(clippy::len_without_is_empty)] // a region is never empty
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The memfd behind it, for another process; `None` for private memory.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.region().fd()
    }

    /// The handle by which a device or the kernel can map it.
    pub fn handle(&self) -> &RegionHandle {
        &self.0
    }

    /// The address of `offset`, if `offset + len` lies inside.
    #[inline]
    pub(crate) fn at(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
        self.0.at(offset, len)
    }

    /// The `len` bytes at `offset`; `None` if they do not lie inside.
    #[inline]
    pub fn bytes(&self, offset: usize, len: usize) -> Option<UntrustedBytes<'_>> {
        let at = self.0.at(offset, len)?;
        Some(UntrustedBytes { at, len, memory: PhantomData })
    }

    /// A copy of the `N` bytes at `offset`; `None` if they do not lie inside. The caller checks
    /// their meaning.
    #[inline]
    pub fn get<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        self.bytes(offset, N)?.get(0)
    }

    /// Copies `bytes` to `offset`; returns false, and writes nothing, if they do not lie inside.
    #[inline]
    pub fn put(&self, offset: usize, bytes: &[u8]) -> bool {
        let Some(to) = self.bytes(offset, bytes.len()) else { return false };
        // SAFETY: the bytes lie inside the region.
        unsafe { copy(bytes.as_ptr(), to.at.as_ptr(), bytes.len()) };
        true
    }

    /// Writes the `N` bytes to `offset`, for a length that is known to the compiler: stores instead
    /// of a call. Returns false, and writes nothing, if they do not lie inside.
    #[inline]
    pub fn set<const N: usize>(&self, offset: usize, bytes: [u8; N]) -> bool {
        self.bytes(offset, N).is_some_and(|to| to.set(0, bytes))
    }

    /// Appends a copy of `len` bytes at `offset` to the linear part of a packet without fragments.
    /// Returns false, and changes nothing, if they do not lie inside or have no room.
    #[inline]
    pub fn append_to(&self, offset: usize, len: usize, to: &mut Packet) -> bool {
        self.bytes(offset, len).is_some_and(|from| from.append_to(0, to))
    }

    /// Copies up to `len` bytes of `packet`, from its byte `from` on, to `offset`. Returns the
    /// number of bytes, or `None`, and writes nothing, if `len` bytes do not lie inside.
    #[inline]
    pub fn write(&self, offset: usize, packet: &Packet, from: usize, len: usize) -> Option<usize> {
        self.bytes(offset, len)?.write(0, packet, from, len)
    }
}

/// A piece of [`UntrustedMem`]: its place was checked once, for any number of accesses.
#[derive(Debug, Clone, Copy)]
pub struct UntrustedBytes<'a> {
    at: NonNull<u8>,
    len: usize,
    memory: PhantomData<&'a UntrustedMem>,
}

impl UntrustedBytes<'_> {
    /// Number of bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of byte `from`, if `len` bytes follow.
    #[inline]
    fn place(&self, from: usize, len: usize) -> Option<NonNull<u8>> {
        // SAFETY: from <= self.len, so the address stays inside the piece, or one past its end.
        (self.len.checked_sub(from)? >= len).then(|| unsafe { self.at.add(from) })
    }

    /// A copy of the `N` bytes from `from` on; `None` if there are fewer. The caller checks their
    /// meaning.
    #[inline]
    pub fn get<const N: usize>(&self, from: usize) -> Option<[u8; N]> {
        let from = self.place(from, N)?;
        let (mut bytes, mut at) = ([0; N], 0);
        macro_rules! words {
            ($word:ty) => {
                while let Some(to) = bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
                    // SAFETY: the region is readable there for N bytes, of which the word is a
                    // part; it needs no alignment, and any bytes are a value.
                    let word = unsafe { from.add(at).cast::<Unaligned<$word>>().read_volatile() };
                    *to = <$word>::to_ne_bytes(word.0);
                    at += size_of::<$word>();
                }
            };
        }
        words!(u64);
        words!(u32);
        words!(u16);
        words!(u8);
        Some(bytes)
    }

    /// Writes the `N` bytes from `from` on; returns false, and writes nothing, if there is no room.
    #[inline]
    pub fn set<const N: usize>(&self, from: usize, bytes: [u8; N]) -> bool {
        let Some(to) = self.place(from, N) else { return false };
        let mut at = 0;
        macro_rules! words {
            ($word:ty) => {
                while let Some(from) = bytes.get(at..).and_then(|rest| rest.first_chunk()) {
                    let word = Unaligned(<$word>::from_ne_bytes(*from));
                    // SAFETY: the region is writable there for N bytes, of which the word is a
                    // part; it needs no alignment.
                    unsafe { to.add(at).cast::<Unaligned<$word>>().write_volatile(word) };
                    at += size_of::<$word>();
                }
            };
        }
        words!(u64);
        words!(u32);
        words!(u16);
        words!(u8);
        true
    }

    /// Prefetches the line of byte `from`, to be read soon.
    #[inline]
    pub fn prefetch(&self, from: usize) {
        if let Some(at) = self.place(from, 1) {
            prefetch(at.as_ptr());
        }
    }

    /// Prefetches the line of byte `from`, to be written soon.
    #[inline]
    pub fn prefetch_write(&self, from: usize) {
        if let Some(at) = self.place(from, 1) {
            prefetch_write(at.as_ptr());
        }
    }

    /// Appends a copy of all bytes from `from` on to the linear part of a packet without fragments.
    /// Returns false, and changes nothing, if there are fewer than `from`, or too many for it.
    #[inline]
    pub fn append_to(&self, from: usize, to: &mut Packet) -> bool {
        let Some(len) = self.len.checked_sub(from) else { return false };
        let Ok(room) = to.push_back(len) else { return false };
        // SAFETY: the source is the rest of the piece; a packet's linear part is memory of a pool.
        unsafe { copy(self.at.as_ptr().wrapping_add(from), room.as_mut_ptr(), len) };
        true
    }

    /// Copies up to `len` bytes of `packet`, from its byte `from` on, to the bytes from `to` on.
    /// Returns the number of bytes, or `None`, and writes nothing, if there is no room for `len`.
    #[inline]
    pub fn write(&self, to: usize, packet: &Packet, mut from: usize, len: usize) -> Option<usize> {
        let mut to = self.place(to, len)?.as_ptr();
        let linear = packet.linear();
        if linear.len() == packet.len() {
            let piece = linear.get(from..).unwrap_or_default();
            let n = piece.len().min(len);
            // SAFETY: the piece is readable for n bytes while the packet is borrowed; `to` has
            // `len` bytes in the region.
            unsafe { copy(piece.as_ptr(), to, n) };
            return Some(n);
        }
        let mut left = len;
        for chunk in packet.chunks() {
            let piece = chunk.skip(from);
            from = from.saturating_sub(chunk.len());
            let n = piece.len().min(left);
            // SAFETY: the piece is readable for n bytes while the packet is borrowed; `to` has at
            // least `left` bytes in the region.
            unsafe { copy(piece.as_ptr(), to, n) };
            to = to.wrapping_add(n);
            left -= n;
            if left == 0 {
                break;
            }
        }
        Some(len - left)
    }
}

/// Copies `len` bytes of which others may write some at the same time. The two ranges may overlap.
///
/// # Safety
/// `from` is readable and `to` writable for `len` bytes. References exist only to bytes that
/// nothing else writes to.
#[inline]
#[allow(clippy::pointers_in_nomem_asm_block, reason = "the assembly follows no pointer")]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    let mut memmove: unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> *mut c_void = libc::memmove;
    // SAFETY: no instruction. The compiler must not know what is called.
    unsafe { asm!("/* {0} */", inout(reg) memmove, options(pure, nomem, nostack, preserves_flags)) };
    // SAFETY: the ranges are the caller's.
    unsafe { memmove(to.cast(), from.cast(), len) };
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::{Backing, Direction, Pool, PoolConfig};

    #[test]
    fn any_range_of_a_packet_in_pieces_is_written_and_nothing_around_it() {
        let pool = Pool::new(PoolConfig::default().capacity(32).chunk(64).headroom(0)).unwrap();
        let bytes: Vec<u8> = (1..=200).collect();
        let packet = Packet::copy_from(&mut pool.cache(Direction::Tx).unwrap(), &bytes).unwrap();
        assert!(packet.frags() > 2);
        for (from, len) in [(0, 200), (63, 2), (64, 64), (199, 1), (150, 100), (200, 5), (0, 0)] {
            let memory = UntrustedMem::new(Region::new(4096, Backing::Memfd).unwrap());
            let expected = &bytes[from..bytes.len().min(from + len)];
            assert_eq!(memory.write(100, &packet, from, len), Some(expected.len()));
            // SAFETY: inside of the region; the test is its only user.
            let seen = unsafe { std::slice::from_raw_parts(memory.handle().base().as_ptr(), 400) };
            assert_eq!(&seen[100..100 + expected.len()], expected);
            assert!(seen[..100].iter().chain(&seen[100 + expected.len()..]).all(|&b| b == 0));
        }
    }

    #[test]
    fn bytes_outside_the_region_are_not_written() {
        let pool = Pool::new(PoolConfig::default().capacity(32).chunk(64).headroom(0)).unwrap();
        let packet = Packet::copy_from(&mut pool.cache(Direction::Tx).unwrap(), &[1; 10]).unwrap();
        let memory = UntrustedMem::new(Region::new(4096, Backing::Memfd).unwrap());
        assert_eq!(memory.write(4090, &packet, 0, 10), None);
        assert_eq!(memory.write(usize::MAX, &packet, 0, 10), None);
        assert_eq!(memory.write(4086, &packet, 0, 10), Some(10));
        assert_eq!((memory.get::<2>(4095), memory.get::<2>(4094)), (None, Some([1; 2])));
        assert!(!memory.put(4087, &[1; 10]) && memory.put(4086, &[1; 10]));
    }
}
