//! A packet: a head and the fragments chained behind it.
//!
//! ```text
//!   Packet ──► head                        fragment            fragment
//!              headroom │ linear │ tailroom  ──►  bytes  ──►  bytes (perhaps untrusted)
//!                       └ may be empty
//! ```
//!
//! Headers live in the *linear part*: always memory of a pool, always writable. Fragments are read
//! only, and each has at least one byte. A packet that is passed by value is owned, and every call
//! that refuses it returns it.
//!
//! A packet of a single external buffer, of an [application](crate::ExtBufPool::packet) or
//! [owned](Packet::from_owner), has head and fragment in one:
//!
//! ```text
//!   Packet ──► bytes (perhaps untrusted)   no linear part, no room, no further fragment
//! ```
//!
//! | file | |
//! |---|---|
//! | `mod` | [`Packet`]: its linear part, headroom and tailroom |
//! | `chain` | fragments: linked, unlinked, walked; linearization |
//! | `metadata` | offloads, VLAN tag, flow hash, time of arrival, ingress, lane |

use crate::buf::Buf;
use crate::meta::{Meta, Room, flag};
use crate::pool::{Cache, PoolShared};
use std::ptr::NonNull;
use towpath_sys::uio::{IoVec, Pieces};

mod chain;
mod metadata;

pub use chain::Chunks;

/// Largest number of fragments behind a packet's head: enough for 64 KiB in pieces of 256 bytes.
pub const MAX_FRAGS: usize = 256;

/// Contiguous pieces of a packet, at most: its head and its fragments.
pub const MAX_CHUNKS: usize = MAX_FRAGS + 1;

/// There is less room than the operation needs; nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no room in the packet's chunk")]
pub struct NoRoom;

/// An owned packet: one handle of eight bytes. Dropping it returns all its chunks to their pools.
pub struct Packet(NonNull<Meta>);

// SAFETY: the handle owns its chain alone, and pools accept chunks from any thread.
unsafe impl Send for Packet {}
// SAFETY: `&Packet` only reads.
unsafe impl Sync for Packet {}

impl Packet {
    /// # Safety
    /// The caller owns the chunk, prepared as a head of a pool's own memory (and the chain behind
    /// it) or as a single external buffer, and gives it up.
    #[inline]
    pub(crate) unsafe fn from_meta(meta: NonNull<Meta>) -> Packet {
        Packet(meta)
    }

    #[inline]
    pub(crate) fn into_meta(self) -> NonNull<Meta> {
        let meta = self.0;
        std::mem::forget(self);
        meta
    }

    #[inline]
    pub(crate) fn as_ptr(&self) -> *mut Meta {
        self.0.as_ptr()
    }

    #[inline]
    pub(crate) fn as_meta(&self) -> &Meta {
        self.meta()
    }

    #[inline]
    fn meta(&self) -> &Meta {
        // SAFETY: the handle owns the chunk, and the pool lives as long as one of its chunks is in
        // use.
        unsafe { self.0.as_ref() }
    }

    #[inline]
    fn meta_mut(&mut self) -> &mut Meta {
        // SAFETY: as in `meta`, and the handle is borrowed exclusively.
        unsafe { self.0.as_mut() }
    }

    /// A packet with a copy of `bytes`, in as many chunks as needed; `None` if the pool is empty or
    /// the bytes need more than [`MAX_FRAGS`] fragments.
    pub fn copy_from(cache: &mut Cache, bytes: &[u8]) -> Option<Packet> {
        Packet::build(cache, bytes.len(), |at, out| out.copy_from_slice(&bytes[at..at + out.len()]))
    }

    /// A copy of the packet, metadata included, in chunks of `cache`; `None` as in
    /// [`copy_from`](Packet::copy_from).
    pub fn duplicate(&self, cache: &mut Cache) -> Option<Packet> {
        let mut copy = Packet::build(cache, self.len(), |at, out| {
            self.copy_to(at, out);
        })?;
        copy.copy_metadata_from(self);
        Some(copy)
    }

    /// A packet of `len` bytes; `write` writes it piece by piece, each at its offset.
    #[inline]
    fn build(cache: &mut Cache, len: usize, mut write: impl FnMut(usize, &mut [u8])) -> Option<Packet> {
        let mut packet = cache.alloc()?;
        let mut at = len.min(packet.tailroom());
        write(0, packet.push_back(at).ok()?);
        while at < len {
            let mut next = cache.alloc()?;
            let n = (len - at).min(next.tailroom());
            if n == 0 {
                return None;
            }
            write(at, next.push_back(n).ok()?);
            packet.append(next).ok()?;
            at += n;
        }
        Some(packet)
    }

    /// Bytes in the whole packet.
    #[inline]
    #[allow(clippy::len_without_is_empty)] // an empty packet is only ever one that is being built
    pub fn len(&self) -> usize {
        self.meta().total as usize
    }

    /// The linear part: the first bytes of the packet, or nothing if all bytes are in fragments.
    #[inline]
    pub fn linear(&self) -> &[u8] {
        let meta = self.meta();
        // SAFETY: data and len describe initialised bytes inside the head's chunk, which a pool
        // owns and only this packet uses.
        unsafe { std::slice::from_raw_parts(meta.data, usize::from(meta.room.len)) }
    }

    /// The linear part, writable.
    #[inline]
    pub fn linear_mut(&mut self) -> &mut [u8] {
        let meta = self.meta_mut();
        // SAFETY: as in `linear`; the packet is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(meta.data, usize::from(meta.room.len)) }
    }

    /// Free bytes in front of the linear part.
    #[inline]
    pub fn headroom(&self) -> usize {
        usize::from(self.meta().room.headroom)
    }

    /// Free bytes behind the linear part.
    #[inline]
    pub fn tailroom(&self) -> usize {
        usize::from(self.meta().room.tailroom)
    }

    /// First byte of the tailroom.
    #[inline]
    pub(crate) fn spare(&self) -> NonNull<u8> {
        let meta = self.meta();
        // SAFETY: a head's chunk is memory of its pool, so neither its data pointer nor one behind
        // it in the chunk is null.
        unsafe { NonNull::new_unchecked(meta.data.wrapping_add(usize::from(meta.room.len))) }
    }

    /// Makes an empty packet's headroom exactly `n` bytes, whatever the pool's headroom is.
    ///
    /// # Errors
    /// [`NoRoom`] if the chunk is smaller, or the packet not empty.
    #[inline]
    pub fn set_headroom(&mut self, n: usize) -> Result<(), NoRoom> {
        let meta = self.meta_mut();
        let short = u16::try_from(n).ok().filter(|&n| n <= meta.size() && meta.total == 0).ok_or(NoRoom)?;
        // The chunk begins `headroom` bytes before the data, so both steps stay inside it.
        meta.data = meta.data.wrapping_sub(usize::from(meta.room.headroom)).wrapping_add(n);
        meta.room = Room::empty(meta.size(), short);
        Ok(())
    }

    /// Whether it is a single external buffer without a head.
    #[inline]
    pub fn is_extbuf(&self) -> bool {
        self.meta().is_extbuf_head()
    }

    /// Number of fragments.
    #[inline]
    pub fn frags(&self) -> usize {
        usize::from(self.meta().room.frags)
    }

    /// Adds `n` bytes in front and returns them to be written; their content is not cleared.
    ///
    /// # Errors
    /// [`NoRoom`] if the headroom is smaller.
    #[inline(always)] // with a constant it is a few stores
    pub fn push_front(&mut self, n: usize) -> Result<&mut [u8], NoRoom> {
        let meta = self.meta_mut();
        let short = u16::try_from(n).ok().filter(|&n| n <= meta.room.headroom).ok_or(NoRoom)?;
        if meta.flags & (flag::CSUM_PARTIAL | flag::GSO) != 0 {
            meta.csum_start = meta.csum_start.checked_add(short).ok_or(NoRoom)?;
            meta.hdr_len = meta.hdr_len.saturating_add(short);
        }
        meta.room.headroom -= short;
        meta.room.len += short;
        meta.total += u32::from(short);
        meta.data = meta.data.wrapping_sub(n);
        Ok(&mut self.linear_mut()[..n])
    }

    /// Puts these bytes in front. They are not written if they are there already: then their line
    /// stays in the cache of a core that read them.
    ///
    /// # Errors
    /// [`NoRoom`] if the headroom is smaller.
    #[inline(always)] // drivers do it for each packet
    pub fn push_front_array<const N: usize>(&mut self, bytes: [u8; N]) -> Result<(), NoRoom> {
        let place = self.push_front(N)?.first_chunk_mut().ok_or(NoRoom)?;
        if *place != bytes {
            *place = bytes;
        }
        Ok(())
    }

    /// Removes `n` bytes from the front, fragments included. Returns false, and changes nothing, if
    /// the packet is shorter. A partial checksum that began in those bytes is cleared.
    #[inline]
    pub fn pull_front(&mut self, n: usize) -> bool {
        if n > self.len() {
            return false;
        }
        let meta = self.meta_mut();
        let linear = n.min(usize::from(meta.room.len));
        meta.pull(linear as u16);
        meta.total -= linear as u32;
        if meta.flags & (flag::CSUM_PARTIAL | flag::GSO) != 0 {
            meta.hdr_len = meta.hdr_len.saturating_sub(n.min(usize::from(u16::MAX)) as u16);
            match usize::from(meta.csum_start).checked_sub(n) {
                Some(start) => meta.csum_start = start as u16,
                None => meta.flags &= !flag::CSUM_PARTIAL,
            }
        }
        if linear < n {
            self.pull_frags(n - linear);
        }
        true
    }

    /// Adds `n` bytes behind the linear part of a packet without fragments and returns them to be
    /// written; their content is not cleared.
    ///
    /// # Errors
    /// [`NoRoom`] if the tailroom is smaller, or if fragments follow.
    #[inline]
    pub fn push_back(&mut self, n: usize) -> Result<&mut [u8], NoRoom> {
        let meta = self.meta_mut();
        let short = u16::try_from(n).ok().filter(|&n| n <= meta.room.tailroom && meta.room.frags == 0).ok_or(NoRoom)?;
        let old = usize::from(meta.room.len);
        meta.room.tailroom -= short;
        meta.room.len += short;
        meta.total += u32::from(short);
        Ok(&mut self.linear_mut()[old..])
    }

    /// Adds `n` bytes as [`push_back`](Packet::push_back), and returns the `N` bytes that begin
    /// there to be written: those of them that are not added stay tailroom.
    ///
    /// # Errors
    /// [`NoRoom`] if the tailroom is smaller than either, or if fragments follow.
    #[inline]
    pub fn push_back_array<const N: usize>(&mut self, n: usize) -> Result<&mut [u8; N], NoRoom> {
        let at = self.spare();
        let meta = self.meta_mut();
        let room = usize::from(meta.room.tailroom);
        if n > room || N > room || meta.room.frags != 0 {
            return Err(NoRoom);
        }
        meta.room.tailroom -= n as u16;
        meta.room.len += n as u16;
        meta.total += n as u32;
        // SAFETY: the tailroom had `N` initialised bytes from `at` on, inside the head's chunk,
        // which only this packet uses; the packet is borrowed exclusively.
        Ok(unsafe { at.cast().as_mut() })
    }

    /// The head's chunk alone, to be [shared](crate::SharedBuf).
    ///
    /// # Errors
    /// Returns the packet if it has fragments.
    pub fn into_linear_buf(self) -> Result<Buf, Packet> {
        if self.frags() > 0 {
            return Err(self);
        }
        // SAFETY: the packet owned its head, which has no successor.
        Ok(unsafe { Buf::from_meta(self.into_meta()) })
    }

    /// Copies the bytes from `offset` on into `out`, each read once; returns the number of bytes.
    #[inline]
    pub fn copy_to(&self, mut offset: usize, out: &mut [u8]) -> usize {
        let mut done = 0;
        for chunk in self.chunks() {
            done += chunk.copy_to(offset, &mut out[done..]);
            offset = offset.saturating_sub(chunk.len());
        }
        done
    }

    /// All bytes in one vector; for tests and tools, not for hot paths.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        self.copy_to(0, &mut bytes);
        bytes
    }

    /// Prefetches the line of the metadata.
    #[inline]
    pub fn prefetch(&self) {
        prefetch(self.0.as_ptr().cast());
    }

    /// Prefetches the first two lines of the linear part: TCP's timestamps reach into the second.
    #[inline]
    pub fn prefetch_data(&self) {
        let data = self.meta().data;
        prefetch(data);
        prefetch(data.wrapping_add(64));
    }

    /// Prefetches the line behind the linear part, to be written soon. A burst of them is fetched at
    /// once; stores wait for one line after the other.
    #[inline]
    pub fn prefetch_write(&self) {
        let meta = self.meta();
        prefetch_write(meta.data.wrapping_add(meta.room.len.into()));
    }

    /// Prefetches the rest of the linear part, to be summed or copied soon.
    #[inline]
    pub fn prefetch_payload(&self) {
        let meta = self.meta();
        let (mut at, len) = (128, usize::from(meta.room.len));
        // Two at a time, because there are many of them.
        while at < len {
            prefetch(meta.data.wrapping_add(at));
            prefetch(meta.data.wrapping_add(at + 64));
            at += 128;
        }
    }
}

/// Prefetches the cache line in which a value begins: a hint, that it will be read soon.
#[inline]
pub fn prefetch_line<T>(at: &T) {
    prefetch(std::ptr::from_ref(at).cast());
}

#[inline]
pub(crate) fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint; it never faults, whatever the address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Prefetches a line to be written: no other processor has it then.
#[inline]
pub(crate) fn prefetch_write(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint; it never faults, whatever the address. Processors without the
    // instruction take it for none.
    unsafe {
        std::arch::asm!("prefetchw [{0}]", in(reg) at, options(readonly, nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

impl Drop for Packet {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the handle owned the chain, and nothing uses it after the drop.
        unsafe { PoolShared::free_chain(self.0) };
    }
}

impl std::fmt::Debug for Packet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Packet")
            .field("len", &self.len())
            .field("linear", &self.linear().len())
            .field("frags", &self.frags())
            .field("csum", &self.csum())
            .field("gso", &self.gso())
            .finish()
    }
}

impl Pieces for Packet {
    #[inline]
    fn count(&self) -> usize {
        self.frags() + 1
    }

    #[inline]
    fn pieces(&self) -> impl Iterator<Item = IoVec<'_>> {
        self.chunks().map(|chunk| chunk.io_vec())
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
