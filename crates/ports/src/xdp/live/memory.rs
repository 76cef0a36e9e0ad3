//! Frames that wait for the next call, in the memory of a map.

use super::program::{BYTES, DESCRIPTORS, FRAMES, LONGEST, ROOM};
use std::sync::atomic::Ordering::Relaxed;
use towpath_packet::Packet;
use towpath_sys::bpf::Memory;

/// Frames begin at multiples of a cache line.
const LINE: usize = 64;
/// The counter of the next frame, and the length that frames begin with.
const NEXT: usize = 0;
const BEGINS: usize = 8;

/// The frames of the next call, one behind the other.
#[derive(Debug)]
pub(super) struct Gathered {
    memory: Memory,
    frames: usize,
    /// Where the next one begins.
    at: usize,
    bytes: u64,
    longest: usize,
}

impl Gathered {
    pub(super) fn new(memory: Memory) -> Gathered {
        Gathered { memory, frames: 0, at: 0, bytes: 0, longest: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.frames
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Copies a packet of at most [`LONGEST`] bytes; false if there is no room before the next call.
    #[inline]
    pub(super) fn add(&mut self, packet: &Packet) -> bool {
        let len = packet.len();
        if self.frames == FRAMES || self.at + len > ROOM || len > LONGEST {
            return false;
        }
        packet.copy_to(0, self.memory.room(BYTES + self.at, len));
        self.describe(self.frames, self.at as u32, len as u32);
        self.frames += 1;
        self.at += len.next_multiple_of(LINE);
        self.bytes += len as u64;
        self.longest = self.longest.max(len);
        true
    }

    #[inline]
    fn describe(&mut self, frame: usize, offset: u32, len: u32) {
        if let Some((o, l)) = self.memory.room(DESCRIPTORS + 8 * frame, 8).split_at_mut_checked(4) {
            o.copy_from_slice(&offset.to_ne_bytes());
            l.copy_from_slice(&len.to_ne_bytes());
        }
    }

    /// Ready for the program: frames begin as long as the longest, so that none grows, which would clear it first.
    pub(super) fn begin(&self) -> usize {
        let len = self.longest.max(14);
        self.memory.word(NEXT).store(0, Relaxed);
        self.memory.word(BEGINS).store(len as u64, Relaxed);
        len
    }

    /// Ready for frames that the program drops.
    pub(super) fn begin_trial(&mut self) {
        for frame in 0..FRAMES {
            self.describe(frame, 0, 0);
        }
        self.memory.word(NEXT).store(0, Relaxed);
    }

    /// Frames that the program has been run for since [`begin`](Gathered::begin).
    pub(super) fn done(&self) -> usize {
        self.memory.word(NEXT).load(Relaxed).min(self.frames as u64) as usize
    }

    /// Adds bytes that stay, as number `frame`; false if there is no room.
    pub(super) fn keep(&mut self, frame: usize, bytes: &[u8]) -> bool {
        if frame >= FRAMES || self.at + bytes.len() > ROOM || bytes.len() > LONGEST {
            return false;
        }
        self.memory.room(BYTES + self.at, bytes.len()).copy_from_slice(bytes);
        self.describe(frame, self.at as u32, bytes.len() as u32);
        self.at += bytes.len().next_multiple_of(LINE);
        self.longest = self.longest.max(bytes.len());
        true
    }

    /// Runs of the program so far.
    pub(super) fn runs(&self) -> u64 {
        self.memory.word(NEXT).load(Relaxed)
    }

    /// All are gone.
    pub(super) fn clear(&mut self) {
        (self.frames, self.at, self.bytes, self.longest) = (0, 0, 0, 0);
    }
}
