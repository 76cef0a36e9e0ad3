//! The memory that an application shares, and the state of each of its chunks.
//!
//! ```text
//!   aligned     │ chunk 0 │ chunk 1 │ chunk 2 │        a byte per chunk: free, sent, posted
//!   unaligned      │ chunk │   │ chunk │ │ chunk │     anywhere: the application knows the chunks
//! ```
//!
//! The states report an application that hands over a chunk twice. Nothing else relies on them:
//! what is in flight is known by its [external buffer](towpath_packet::ExtBufPool), not by its
//! chunk. Sessions with `skip_invalid` keep no states, because AF_XDP lets a program send the same
//! frame any number of times.

use super::limits::{Amounts, Resource, Share};
use super::stats::Fault;
use std::sync::atomic::{AtomicU8, Ordering};
use towpath_client::protocol::{Address, Hello};
use towpath_packet::UntrustedMem;
use towpath_sys::memfd::{self, ChangeTime};

/// The application has the chunk.
const FREE: u8 = 0;
/// The chunk is being sent.
const SENT: u8 = 1;
/// The chunk waits for a received packet.
const POSTED: u8 = 2;

/// The index of a chunk that has no state.
const NO_STATE: u32 = u32::MAX;

/// A chunk of the FILL ring that lies inside of the memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct FillChunk {
    /// Its first byte.
    pub(super) at: usize,
    /// The index of its state.
    pub(super) index: u32,
}

/// The memory of one session, or of several that share it.
#[derive(Debug)]
pub(super) struct AppUmem {
    mem: UntrustedMem,
    /// Device and inode of its file.
    file: (u64, u64),
    len: u64,
    chunk: u32,
    /// The least number of bytes that a frame is charged.
    min_truesize: u32,
    /// Bytes of an aligned chunk, as a power of two.
    shift: u32,
    /// The state of each aligned chunk; empty if chunks are unaligned.
    states: Box<[AtomicU8]>,
    /// States stay [`FREE`].
    skip_invalid: bool,
    /// The state of a chunk that is being sent: [`SENT`], or [`FREE`] with `skip_invalid`.
    sent: u8,
    /// The last change of the file before the memory was used.
    unchanged_since: Option<ChangeTime>,
    /// What the memory has of its user's account.
    share: Share,
}

impl Drop for AppUmem {
    /// Memory that changed may have pages that are charged to this process; its bytes stay on the
    /// account.
    fn drop(&mut self) {
        let now = self.mem.fd().and_then(|fd| memfd::changed(fd).ok());
        if now.is_none() || now != self.unchanged_since {
            self.share.keep(Resource::Memory);
        }
    }
}

impl AppUmem {
    /// What memory costs its user's account.
    pub(super) fn amounts(hello: &Hello) -> Amounts {
        let states = if hello.unaligned { 0 } else { hello.umem / u64::from(hello.chunk) };
        Amounts::default().with(Resource::Memory, hello.umem).with(Resource::Metadata, states)
    }

    /// The memory of a file whose pages all exist.
    ///
    /// # Errors
    /// A sentence names what is missing, and how an application gets it.
    pub(super) fn new(mem: UntrustedMem, file: (u64, u64), hello: &Hello, share: Share) -> Result<AppUmem, String> {
        let fd = mem.fd().ok_or("memory without a descriptor")?;
        let changed = memfd::changed(fd).map_err(|error| error.to_string())?;
        // A page that is freed after this changes the time, one that was freed before is missing.
        memfd::settle(changed);
        let hole = memfd::first_hole(fd).map_err(|error| error.to_string())?;
        if hole < hello.umem {
            let how = "touch all pages first (MAP_POPULATE or MADV_POPULATE_WRITE)";
            return Err(format!("no page at byte {hole} of the memory: {how}"));
        }
        Ok(AppUmem::of_whole(mem, file, hello, (Some(changed), share)))
    }

    fn of_whole(
        mem: UntrustedMem,
        file: (u64, u64),
        hello: &Hello,
        (unchanged_since, share): (Option<ChangeTime>, Share),
    ) -> AppUmem {
        let chunks = if hello.unaligned { 0 } else { hello.umem / u64::from(hello.chunk) };
        let states = (0..chunks).map(|_| AtomicU8::new(FREE)).collect();
        let (chunk, shift) = (hello.chunk, hello.chunk.trailing_zeros());
        let min_truesize = if hello.unaligned { 0 } else { chunk };
        let (len, skip_invalid) = (hello.umem, hello.skip_invalid);
        let sent = if skip_invalid { FREE } else { SENT };
        AppUmem { mem, file, len, chunk, min_truesize, shift, states, skip_invalid, sent, unchanged_since, share }
    }

    /// Whether `file` and `hello` describe this memory.
    pub(super) fn is_same(&self, file: (u64, u64), hello: &Hello) -> bool {
        let same = (self.len, self.chunk, self.is_unaligned()) == (hello.umem, hello.chunk, hello.unaligned);
        same && self.skip_invalid == hello.skip_invalid && self.file == file
    }

    pub(super) fn mem(&self) -> &UntrustedMem {
        &self.mem
    }

    /// Bytes of a chunk.
    #[inline]
    pub(super) fn chunk(&self) -> usize {
        self.chunk as usize
    }

    #[inline]
    fn is_unaligned(&self) -> bool {
        self.states.is_empty()
    }

    /// What frames of at most a chunk, of `bytes` bytes in all, are charged: the whole chunk each
    /// if chunks are aligned, else their bytes.
    #[inline]
    pub(super) fn truesize(&self, frames: u64, bytes: u64) -> u64 {
        bytes.max(frames * u64::from(self.min_truesize))
    }

    /// The first byte of the frame that a TX descriptor names, if it lies inside and the
    /// application has the chunk. With `keeps` the chunk is sent until it is
    /// [completed](AppUmem::complete).
    #[inline]
    pub(super) fn begin_tx(&self, addr: u64, len: u32, keeps: bool) -> Result<usize, Fault> {
        self.try_begin_tx(addr, len, keeps).ok_or_else(|| self.why_not_tx(addr, len))
    }

    /// As [`begin_tx`](AppUmem::begin_tx), without the reason.
    #[inline]
    pub(super) fn try_begin_tx(&self, addr: u64, len: u32, keeps: bool) -> Option<usize> {
        let Ok(state) = self.state(addr) else { return self.begin_unaligned_tx(addr, len) };
        // Relaxed: as in `locate_free`.
        if !self.is_in_chunk(addr, len) || state.load(Ordering::Relaxed) != FREE {
            return None;
        }
        if keeps {
            state.store(self.sent, Ordering::Relaxed);
        }
        Some(addr as usize)
    }

    /// As [`try_begin_tx`](AppUmem::try_begin_tx), if chunks have no states.
    #[inline(never)]
    fn begin_unaligned_tx(&self, addr: u64, len: u32) -> Option<usize> {
        let chunk = self.bounded(Address::of(addr).at(), len).ok()?;
        (self.is_unaligned() && len > 0 && len <= self.chunk).then_some(chunk.at)
    }

    /// Why a TX descriptor is refused. The states change meanwhile, its place does not.
    #[cold]
    fn why_not_tx(&self, addr: u64, len: u32) -> Fault {
        if self.state(addr).is_ok() && self.is_in_chunk(addr, len) { Fault::Chunk } else { Fault::Descriptor }
    }

    /// Whether `len` bytes, at least one, lie in the same aligned chunk.
    #[inline]
    fn is_in_chunk(&self, addr: u64, len: u32) -> bool {
        let room = u64::from(self.chunk) - (addr & u64::from(self.chunk - 1));
        // A length of 0 wraps around and is refused too.
        u64::from(len).wrapping_sub(1) < room
    }

    /// The state of the aligned chunk that an address lies in.
    #[inline]
    fn state(&self, addr: u64) -> Result<&AtomicU8, Fault> {
        let index = usize::try_from(addr >> self.shift).map_err(|_| Fault::Descriptor)?;
        self.states.get(index).ok_or(Fault::Descriptor)
    }

    /// The chunk that an address of the FILL ring names, if it lies inside and the application has
    /// it.
    #[inline]
    pub(super) fn locate_fill(&self, addr: u64) -> Result<FillChunk, Fault> {
        if self.is_unaligned() {
            return self.bounded(Address::of(addr).base, self.chunk);
        }
        let chunk = self.locate_free(addr)?;
        Ok(FillChunk { at: (chunk.index as usize) << self.shift, ..chunk })
    }

    #[inline]
    fn bounded(&self, at: u64, len: u32) -> Result<FillChunk, Fault> {
        // No overflow: the address has 49 bits, the length 32.
        if at + u64::from(len) > self.len {
            return Err(Fault::Descriptor);
        }
        Ok(FillChunk { at: at as usize, index: NO_STATE })
    }

    #[inline]
    fn locate_free(&self, addr: u64) -> Result<FillChunk, Fault> {
        // Relaxed: the rings order the return of a chunk before the entry that hands it over again.
        match self.state(addr)?.load(Ordering::Relaxed) {
            FREE => Ok(FillChunk { at: addr as usize, index: (addr >> self.shift) as u32 }),
            _ => Err(Fault::Chunk),
        }
    }

    /// The chunk waits for a received packet.
    #[inline]
    pub(super) fn post(&self, chunk: FillChunk) {
        if !self.skip_invalid {
            self.set_state(chunk.index, POSTED);
        }
    }

    /// The application has the posted chunk again, or is about to learn that it has.
    #[inline]
    pub(super) fn unpost(&self, index: u32) {
        self.set_state(index, FREE);
    }

    /// The application has the chunk again that it sent by this address.
    #[inline]
    pub(super) fn end_tx(&self, addr: u64) {
        // Unaligned chunks have no state.
        if let Ok(state) = self.state(addr) {
            state.store(FREE, Ordering::Relaxed);
        }
    }

    #[inline]
    fn set_state(&self, index: u32, state: u8) {
        if let Some(entry) = self.states.get(index as usize) {
            entry.store(state, Ordering::Relaxed);
        }
    }

    /// The first `N` of the `len` bytes in front of a frame, if they lie in the same chunk.
    pub(super) fn metadata<const N: usize>(&self, addr: u64, len: u32) -> Option<[u8; N]> {
        let (at, room) = if self.is_unaligned() {
            let at = Address::of(addr).at();
            (at, at)
        } else {
            (addr, addr & u64::from(self.chunk - 1))
        };
        let at = room.checked_sub(len.into()).and_then(|_| at.checked_sub(len.into()))?;
        self.mem.get(usize::try_from(at).ok()?)
    }

    /// The address in the RX ring of the frame that begins `offset` bytes, at most half of a chunk,
    /// into a posted chunk.
    #[inline]
    pub(super) fn rx_addr(&self, chunk: FillChunk, offset: usize) -> u64 {
        let (base, at) = (chunk.at as u64, chunk.at as u64 + offset as u64);
        if self.is_unaligned() { Address { base, offset: offset as u16 }.word() } else { at }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sock::limits::Account;
    use proptest::prelude::*;
    use std::sync::Arc;
    use towpath_packet::{Backing, Region};

    fn umem(umem: u64, chunk: u32, unaligned: bool) -> AppUmem {
        let region = Region::new(umem as usize, Backing::Memfd).unwrap();
        let hello = Hello { umem, chunk, unaligned, ..Hello::default() };
        let share = Arc::new(Account::default()).take(0, Amounts::default()).unwrap();
        AppUmem::of_whole(UntrustedMem::new(region), (1, 2), &hello, (None, share))
    }

    /// The bytes that a descriptor names, in wide arithmetic.
    fn range(word: u64, len: u32, unaligned: bool) -> (u128, u128) {
        let at = if unaligned { u128::from(word & 0xffff_ffff_ffff) + u128::from(word >> 48) } else { word.into() };
        (at, at + u128::from(len))
    }

    proptest! {
        #[test]
        fn a_descriptor_is_accepted_if_and_only_if_it_lies_inside_and_in_one_chunk(
            word in prop_oneof![0..20_000u64, any::<u64>(), (0..20_000u64, any::<u16>()).prop_map(|(b, o)| b | (u64::from(o) << 48))],
            len in prop_oneof![0..5000u32, any::<u32>()],
        ) {
            let aligned = umem(16384, 2048, false);
            let (at, end) = range(word, len, false);
            let right = len > 0 && end <= 16384 && at / 2048 == (end - 1) / 2048;
            let located = aligned.begin_tx(word, len, false);
            prop_assert_eq!(located.is_ok(), right);
            if let Ok(located) = located {
                prop_assert_eq!(located as u128, at);
            }
            let unaligned = umem(15_000, 3000, true);
            let (at, end) = range(word, len, true);
            let located = unaligned.begin_tx(word, len, true);
            prop_assert_eq!(located.is_ok(), len > 0 && len <= 3000 && end <= 15_000);
            if let Ok(located) = located {
                prop_assert_eq!(located as u128, at);
            }
            let base = word & 0xffff_ffff_ffff;
            prop_assert_eq!(unaligned.locate_fill(word).is_ok(), base + 3000 <= 15_000);
        }
    }

    #[test]
    fn an_aligned_chunk_is_handed_over_once_and_a_frame_is_charged_all_of_it() {
        let umem = umem(8192, 2048, false);
        assert_eq!(umem.begin_tx(2100, 1997, false), Err(Fault::Descriptor), "a byte too many");
        assert_eq!(umem.begin_tx(2100, 1996, false), Ok(2100));
        assert_eq!(umem.begin_tx(2100, 10, true), Ok(2100));
        assert_eq!(umem.begin_tx(4000, 1, true), Err(Fault::Chunk));
        assert!(matches!(umem.locate_fill(2048), Err(Fault::Chunk)));
        umem.end_tx(2100);
        assert_eq!(umem.begin_tx(4000, 1, false), Ok(4000), "a copy does not keep it");
        umem.post(umem.locate_fill(2100).unwrap());
        assert_eq!(umem.begin_tx(4000, 1, false), Err(Fault::Chunk));
        assert_eq!((umem.truesize(1, 10), umem.locate_fill(4100).unwrap().at), (2048, 4096));
        assert_eq!(umem.truesize(3, 3 * 2048), 3 * 2048);
    }

    #[test]
    fn metadata_lies_in_front_of_its_frame_in_the_same_chunk() {
        let aligned = umem(8192, 2048, false);
        assert!(aligned.mem.put(2048 + 4, &[1, 2, 3, 4]));
        assert_eq!(aligned.metadata(2048 + 12, 8), Some([1, 2, 3, 4]));
        assert_eq!(aligned.metadata::<4>(2048 + 7, 8), None, "it would begin in the chunk before");
        let unaligned = umem(9000, 3000, true);
        assert!(unaligned.mem.put(2996, &[5, 6, 7, 8]));
        assert_eq!(unaligned.metadata(Address { base: 3000, offset: 4 }.word(), 8), Some([5, 6, 7, 8]));
        assert_eq!(unaligned.metadata::<4>(7, 8), None, "it would begin before the memory");
    }

    #[test]
    fn an_unaligned_frame_is_charged_its_bytes_and_its_address_has_its_offset() {
        let umem = umem(9000, 3000, true);
        assert_eq!((umem.truesize(1, 10), umem.truesize(3, 11)), (10, 11));
        let chunk = umem.locate_fill(Address { base: 5000, offset: 77 }.word()).unwrap();
        assert_eq!(chunk.at, 5000);
        assert_eq!(Address::of(umem.rx_addr(chunk, 64)), Address { base: 5000, offset: 64 });
    }
}
