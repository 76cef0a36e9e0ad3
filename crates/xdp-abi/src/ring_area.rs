//! The place of a socket's rings in the program's address space.
//!
//! ```text
//!   xsk_umem__create      [ FILL │ COMPLETION │ reserved .............. ]   private
//!   xsk_socket__create    [ FILL │ COMPLETION │ RX │ TX │ reserved .... ]   the datapath's memory
//! ```
//!
//! A program gets its FILL and COMPLETION rings with the UMEM, before there is a session. It may
//! post chunks at once, and keep copies of the pointers. The addresses are therefore reserved with
//! the UMEM. When the session opens, its rings are mapped over the same addresses, and the posted
//! chunks are posted again.

use crate::abi::Ring;
use crate::failure::{Failure, failure, system};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use towpath_client::Sizes;
use towpath_client::protocol::{RING, Rings, Welcome};
use towpath_packet::UntrustedMem;
use towpath_packet::xsk_ring::Layout;

/// The addresses of one socket's rings.
#[derive(Debug)]
pub(crate) struct RingArea {
    base: NonNull<u8>,
    len: usize,
    fill: u32,
    completion: u32,
}

// SAFETY: the area owns its addresses until it is dropped; its words are accessed as atomics only.
unsafe impl Send for RingArea {}
// SAFETY: as for Send.
unsafe impl Sync for RingArea {}

impl RingArea {
    /// Reserves addresses, with private FILL and COMPLETION rings. The sizes are in the range of
    /// [`RING`].
    pub(crate) fn reserve(fill: u32, completion: u32) -> Result<RingArea, Failure> {
        let largest = *RING.end();
        let (_, len) = Rings::lay_out(&Sizes { fill, completion, rx: largest, tx: largest });
        let (_, now) = Rings::lay_out(&Sizes { fill, completion, rx: 0, tx: 0 });
        let sizes = (usize::try_from(len), usize::try_from(now));
        let (Ok(len), Ok(now)) = sizes else { return Err(failure(libc::EINVAL, "rings that can't be")) };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let at = unsafe { libc::mmap(null_mut(), len, libc::PROT_NONE, flags, -1, 0) };
        let base = NonNull::new(at.cast()).filter(|_| at != libc::MAP_FAILED);
        let base = base.ok_or_else(|| system("addresses for rings"))?;
        let area = RingArea { base, len, fill, completion };
        // SAFETY: the first pages of the new mapping.
        if unsafe { libc::mprotect(at, now, libc::PROT_READ | libc::PROT_WRITE) } != 0 {
            return Err(system("memory for rings"));
        }
        Ok(area)
    }

    /// The sizes of all rings.
    pub(crate) fn sizes(&self, rx: u32, tx: u32) -> Sizes {
        Sizes { fill: self.fill, completion: self.completion, rx, tx }
    }

    /// Maps a session's rings. The chunks that the program has posted so far are posted there.
    ///
    /// A failure changes nothing.
    pub(crate) fn open(&self, rings: &OwnedFd, welcome: &Welcome, sizes: &Sizes) -> Result<Rings, Failure> {
        let (expected, bytes) = Rings::lay_out(sizes);
        let len = usize::try_from(welcome.memory).unwrap_or(usize::MAX);
        if welcome.rings != expected || welcome.memory < bytes || len > self.len {
            return Err(failure(libc::EPROTO, "the datapath lays rings out in another way than this library"));
        }
        // Checks length and seals: the mapped memory cannot shrink.
        let rings = rings.try_clone().map_err(|error| failure(libc::EMFILE, error.to_string()))?;
        let memory = UntrustedMem::from_memfd(rings, len).map_err(|error| failure(libc::EPROTO, error.to_string()))?;
        let file = memory.fd().ok_or_else(|| failure(libc::EPROTO, "rings without a descriptor"))?;
        let posted: Vec<u64> = (0..self.fill).map(|i| self.entry(&expected.fill, i).load(Ordering::Relaxed)).collect();
        let count = self.word(expected.fill.producer).load(Ordering::Acquire);
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
        // SAFETY: the range lies in the area, which owns it.
        let at = unsafe { libc::mmap(self.base.as_ptr().cast(), len, protection, flags, file.as_raw_fd(), 0) };
        if at == libc::MAP_FAILED {
            return Err(system("mapping rings"));
        }
        for (i, addr) in (0..self.fill).zip(posted) {
            self.entry(&expected.fill, i).store(addr, Ordering::Relaxed);
        }
        // Release: the entries come before the counter that covers them.
        self.word(expected.fill.producer).store(count, Ordering::Release);
        Ok(expected)
    }

    /// The program's view of a ring for which it is the producer.
    pub(crate) fn producer(&self, at: &Layout, size: u32) -> Ring {
        Ring { cached_cons: size, ..self.consumer(at, size) }
    }

    /// The program's view of a ring for which it is the consumer.
    pub(crate) fn consumer(&self, at: &Layout, size: u32) -> Ring {
        Ring {
            cached_prod: 0,
            cached_cons: 0,
            mask: size.wrapping_sub(1),
            size,
            producer: self.at(at.producer).cast(),
            consumer: self.at(at.consumer).cast(),
            ring: self.at(at.desc).cast(),
            flags: self.at(at.flags).cast(),
        }
    }

    /// FILL, with the chunks that the program has posted, and COMPLETION.
    pub(crate) fn prepared(&self) -> (Ring, Ring) {
        let (rings, _) = Rings::lay_out(&self.sizes(0, 0));
        let posted = self.word(rings.fill.producer).load(Ordering::Relaxed);
        let fill = Ring { cached_prod: posted, ..self.producer(&rings.fill, self.fill) };
        (fill, self.consumer(&rings.completion, self.completion))
    }

    /// An address in the area: offsets come from [`Rings::lay_out`], for sizes that fit.
    fn at(&self, offset: u64) -> *mut u8 {
        self.base.as_ptr().wrapping_add(offset as usize)
    }

    /// A counter of an open session, of [`Rings::statistics`], which the datapath writes.
    pub(crate) fn counter(&self, at: &Layout, i: u32) -> u64 {
        self.entry(at, i).load(Ordering::Relaxed)
    }

    /// Whether the TX ring of an open session has `XDP_RING_NEED_WAKEUP`, and entries.
    pub(crate) fn needs_wakeup(&self, tx: &Layout) -> bool {
        // The entries' counter before the flag, as in [`towpath_packet::notify`].
        std::sync::atomic::fence(Ordering::SeqCst);
        let load = |offset| self.word(offset).load(Ordering::Relaxed);
        load(tx.flags) & 1 != 0 && load(tx.producer) != load(tx.consumer)
    }

    fn word(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: the offset is that of a word of the FILL ring, whose pages are mapped from the
        // start, or of another ring of an open session, and aligned by the layout; the word is
        // accessed as an atomic only.
        unsafe { &*self.at(offset).cast() }
    }

    fn entry(&self, at: &Layout, i: u32) -> &AtomicU64 {
        // SAFETY: as above, for an entry of the FILL ring, or of the counters.
        unsafe { &*self.at(at.desc + 8 * u64::from(i)).cast() }
    }
}

impl Drop for RingArea {
    fn drop(&mut self) {
        // SAFETY: the area owns the addresses; the program has deleted the socket, and must not use
        // them any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}
