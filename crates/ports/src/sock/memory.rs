//! The memory that applications share, and who has which chunk of it.
//!
//! ```text
//!   aligned     │ chunk 0 │ chunk 1 │ chunk 2 │        a byte per chunk: free, sent, posted
//!   unaligned      │ chunk │   │ chunk │ │ chunk │     anywhere: nobody but the application knows them
//! ```
//!
//! The ledger is a courtesy to applications that err: whoever hands over a chunk twice gets to know. Nothing else relies on it, because
//! what is on its way is known by its [page](towpath_packet::ExtBufPool), not by its chunk. For lenient sessions nothing is noted in it: AF_XDP
//! lets a program send the same frame as often as it likes.

use super::events::Fault;
use std::sync::atomic::{AtomicU8, Ordering};
use towpath_client::protocol::{Address, Hello};
use towpath_packet::UntrustedMem;

/// The application has the chunk.
const FREE: u8 = 0;
/// It is on its way out.
const SENT: u8 = 1;
/// It waits to be received into.
const POSTED: u8 = 2;

/// No chunk of the ledger.
const ANY: u32 = u32::MAX;

/// A piece of the memory that was found to lie inside.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    /// Its first byte.
    pub(super) at: usize,
    /// The chunk in the ledger.
    pub(super) chunk: u32,
}

/// The memory of one session, or of several that share it.
#[derive(Debug)]
pub(super) struct Memory {
    foreign: UntrustedMem,
    /// Device and inode of its file.
    file: (u64, u64),
    len: u64,
    chunk: u32,
    /// What a frame is charged with at least.
    least: u32,
    /// Bytes of an aligned chunk, as a power of two.
    shift: u32,
    /// Who has each aligned chunk; empty if they are unaligned.
    ledger: Box<[AtomicU8]>,
    /// Nobody wants to know who has which.
    lenient: bool,
}

impl Memory {
    pub(super) fn new(foreign: UntrustedMem, file: (u64, u64), hello: &Hello) -> Memory {
        let chunks = if hello.unaligned { 0 } else { hello.umem / u64::from(hello.chunk) };
        let ledger = (0..chunks).map(|_| AtomicU8::new(FREE)).collect();
        let (chunk, shift) = (hello.chunk, hello.chunk.trailing_zeros());
        let least = if hello.unaligned { 0 } else { chunk };
        Memory { foreign, file, len: hello.umem, chunk, least, shift, ledger, lenient: hello.lenient }
    }

    /// Whether a session that says so means this memory.
    pub(super) fn is(&self, file: (u64, u64), hello: &Hello) -> bool {
        let same = (self.len, self.chunk, self.is_unaligned()) == (hello.umem, hello.chunk, hello.unaligned);
        same && self.lenient == hello.lenient && self.file == file
    }

    pub(super) fn foreign(&self) -> &UntrustedMem {
        &self.foreign
    }

    /// Bytes of a chunk.
    #[inline]
    pub(super) fn chunk(&self) -> usize {
        self.chunk as usize
    }

    #[inline]
    fn is_unaligned(&self) -> bool {
        self.ledger.is_empty()
    }

    /// What a frame, at most a chunk, is charged with: the chunk that it keeps busy, or its bytes, where nobody knows of chunks.
    #[inline]
    pub(super) fn truesize(&self, len: u32) -> u64 {
        len.max(self.least).into()
    }

    /// The first byte of what a descriptor names, if it lies inside and the application has it. With `keeps` it is on its way from here
    /// on, until it [came back](Memory::came_back).
    #[inline]
    pub(super) fn send(&self, addr: u64, len: u32, keeps: bool) -> Result<usize, Fault> {
        if self.is_unaligned() {
            let fits = len > 0 && len <= self.chunk;
            return self
                .inside(Address::of(addr).at(), len)
                .and_then(|piece| fits.then_some(piece.at).ok_or(Fault::Descriptor));
        }
        let room = u64::from(self.chunk) - (addr & u64::from(self.chunk - 1));
        // No bytes at all are as wrong as too many.
        if u64::from(len).wrapping_sub(1) >= room {
            return Err(Fault::Descriptor);
        }
        let holder = self.holder(addr)?;
        // Relaxed: as in `free`.
        if holder.load(Ordering::Relaxed) != FREE {
            return Err(Fault::Chunk);
        }
        if keeps && !self.lenient {
            holder.store(SENT, Ordering::Relaxed);
        }
        Ok(addr as usize)
    }

    /// The entry of the ledger of the aligned chunk that an address lies in.
    #[inline]
    fn holder(&self, addr: u64) -> Result<&AtomicU8, Fault> {
        let index = usize::try_from(addr >> self.shift).map_err(|_| Fault::Descriptor)?;
        self.ledger.get(index).ok_or(Fault::Descriptor)
    }

    /// The chunk that an address of the FILL ring names, from its first byte, if it lies inside and the application has it.
    #[inline]
    pub(super) fn fillable(&self, addr: u64) -> Result<Piece, Fault> {
        if self.is_unaligned() {
            return self.inside(Address::of(addr).base, self.chunk);
        }
        let piece = self.free(addr)?;
        Ok(Piece { at: (piece.chunk as usize) << self.shift, ..piece })
    }

    #[inline]
    fn inside(&self, at: u64, len: u32) -> Result<Piece, Fault> {
        // Neither is near the end of what 64 bits can say: the address has 49, the length 32.
        if at + u64::from(len) > self.len {
            return Err(Fault::Descriptor);
        }
        Ok(Piece { at: at as usize, chunk: ANY })
    }

    #[inline]
    fn free(&self, addr: u64) -> Result<Piece, Fault> {
        // Relaxed: whatever gave the chunk back came before the application's word that it has it, by the rings.
        match self.holder(addr)?.load(Ordering::Relaxed) {
            FREE => Ok(Piece { at: addr as usize, chunk: (addr >> self.shift) as u32 }),
            _ => Err(Fault::Chunk),
        }
    }

    /// The chunk waits to be received into.
    #[inline]
    pub(super) fn posted(&self, piece: Piece) {
        if !self.lenient {
            self.note(piece.chunk, POSTED);
        }
    }

    /// The application has the chunk again, or is about to be told.
    #[inline]
    pub(super) fn returned(&self, chunk: u32) {
        self.note(chunk, FREE);
    }

    /// As [`returned`](Memory::returned), for what was sent by this address.
    #[inline]
    pub(super) fn came_back(&self, addr: u64) {
        // Where nobody knows of chunks there is no ledger.
        if let Ok(holder) = self.holder(addr) {
            holder.store(FREE, Ordering::Relaxed);
        }
    }

    #[inline]
    fn note(&self, chunk: u32, holder: u8) {
        if let Some(entry) = self.ledger.get(chunk as usize) {
            entry.store(holder, Ordering::Relaxed);
        }
    }

    /// The first `N` of `len` bytes in front of a frame, if they are in the same chunk.
    pub(super) fn in_front<const N: usize>(&self, addr: u64, len: u32) -> Option<[u8; N]> {
        let (at, room) = if self.is_unaligned() {
            let at = Address::of(addr).at();
            (at, at)
        } else {
            (addr, addr & u64::from(self.chunk - 1))
        };
        let at = room.checked_sub(len.into()).and_then(|_| at.checked_sub(len.into()))?;
        self.foreign.get(usize::try_from(at).ok()?)
    }

    /// The address in the RX ring of the frame `offset` bytes, at most half of a chunk, into a posted chunk.
    #[inline]
    pub(super) fn received(&self, piece: Piece, offset: usize) -> u64 {
        let (base, at) = (piece.at as u64, piece.at as u64 + offset as u64);
        if self.is_unaligned() { Address { base, offset: offset as u16 }.word() } else { at }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use towpath_packet::{Backing, Region};

    fn memory(umem: u64, chunk: u32, unaligned: bool) -> Memory {
        let region = Region::new(umem as usize, Backing::Memfd).unwrap();
        let hello = Hello { umem, chunk, unaligned, ..Hello::default() };
        Memory::new(UntrustedMem::new(region), (1, 2), &hello)
    }

    /// The bytes that a descriptor names, worked out with wide numbers.
    fn range(word: u64, len: u32, unaligned: bool) -> (u128, u128) {
        let at = if unaligned { u128::from(word & 0xffff_ffff_ffff) + u128::from(word >> 48) } else { word.into() };
        (at, at + u128::from(len))
    }

    proptest! {
        #[test]
        fn what_is_let_through_lies_inside_and_in_one_chunk_and_all_of_that_is_let_through(
            word in prop_oneof![0..20_000u64, any::<u64>(), (0..20_000u64, any::<u16>()).prop_map(|(b, o)| b | (u64::from(o) << 48))],
            len in prop_oneof![0..5000u32, any::<u32>()],
        ) {
            let memory = memory(16384, 2048, false);
            let (at, end) = range(word, len, false);
            let right = len > 0 && end <= 16384 && at / 2048 == (end - 1) / 2048;
            let sent = memory.send(word, len, false);
            prop_assert_eq!(sent.is_ok(), right);
            if let Ok(sent) = sent {
                prop_assert_eq!(sent as u128, at);
            }
            let memory = self::memory(15_000, 3000, true);
            let (at, end) = range(word, len, true);
            let sent = memory.send(word, len, true);
            prop_assert_eq!(sent.is_ok(), len > 0 && len <= 3000 && end <= 15_000);
            if let Ok(sent) = sent {
                prop_assert_eq!(sent as u128, at);
            }
            let base = word & 0xffff_ffff_ffff;
            prop_assert_eq!(memory.fillable(word).is_ok(), base + 3000 <= 15_000);
        }
    }

    #[test]
    fn an_aligned_chunk_is_had_once_and_a_frame_is_charged_with_all_of_it() {
        let memory = memory(8192, 2048, false);
        assert_eq!(memory.send(2100, 10, true), Ok(2100));
        assert_eq!(memory.send(4000, 1, true), Err(Fault::Chunk));
        assert!(matches!(memory.fillable(2048), Err(Fault::Chunk)));
        memory.came_back(2100);
        assert_eq!(memory.send(4000, 1, false), Ok(4000), "a copy does not keep it");
        memory.posted(memory.fillable(2100).unwrap());
        assert_eq!(memory.send(4000, 1, false), Err(Fault::Chunk));
        assert_eq!((memory.truesize(10), memory.fillable(4100).unwrap().at), (2048, 4096));
    }

    #[test]
    fn an_unaligned_frame_is_charged_with_its_bytes_and_told_with_its_offset() {
        let memory = memory(9000, 3000, true);
        assert_eq!(memory.truesize(10), 10);
        let piece = memory.fillable(Address { base: 5000, offset: 77 }.word()).unwrap();
        assert_eq!(piece.at, 5000);
        assert_eq!(Address::of(memory.received(piece, 64)), Address { base: 5000, offset: 64 });
    }
}
