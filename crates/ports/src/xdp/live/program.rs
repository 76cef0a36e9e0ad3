//! The program that makes frames out of a map's memory, and the memory: the frames of the next
//! call.
//!
//! ```text
//!   value of the map:   0 next │ 8 length of a new frame │ 64 descriptors: offset u32, length u32 │ … │ bytes
//!
//!   i = next++            a new frame of the kernel, as long as the second word says
//!   adjust its tail       to the length of descriptor i
//!   copy                  bytes at the offset ──► frame, the first 64 by instructions
//!   redirect              to the device
//! ```
//!
//! Frames of length 0 are dropped: they measure the cost of a call.

use std::io;
use std::sync::atomic::Ordering::Relaxed;
use towpath_packet::Packet;
use towpath_sys::bpf::MapMemory;
use towpath_sys::bpf::asm::{Alu, Asm, Call, If, Label, R0, R1, R2, R3, R4, R6, R7, R8, R9, Size};
use towpath_wire::ethernet;

/// Descriptors, a power of two: most frames of one call.
pub(super) const FRAMES: usize = 4096;
/// Offset of the descriptors.
pub(super) const DESCRIPTORS: usize = 64;
/// Offset of the frames' bytes.
pub(super) const BYTES: usize = 36864;
/// Bytes for frames, a power of two.
pub(super) const ROOM: usize = 1 << 21;
/// Longest frame: a page less the headroom, the `skb_shared_info` behind the frame (320 bytes), and
/// the `xdp_page_head` of the test run in front (less than 256 bytes).
pub(super) const MAX_LEN: usize = 4096 - 256 - 320 - 256;
/// Size of the map's value: a masked offset stays inside.
pub(super) const VALUE: usize = BYTES + ROOM + 4096;

const _: () = assert!(DESCRIPTORS + 8 * FRAMES <= BYTES && MAX_LEN <= 4096);

/// `XDP_DROP`.
const DROP: i32 = 1;
/// Offsets of the frame's bounds in the context (`struct xdp_md`).
const DATA: i16 = 0;
const DATA_END: i16 = 4;

/// The program: sends the frames of `memory` to the first device of `devices`.
pub(super) fn frames(memory: i32, devices: i32) -> io::Result<Vec<u64>> {
    let mut a = Asm::default();
    let (drop, copy) = (a.label(), a.label());
    begin(&mut a, memory, None, drop);
    a.load(Size::B8, R3, R7, 8);
    a.reg(Alu::Mov, R2, R8);
    a.reg(Alu::Sub, R2, R3);
    a.jump_imm(If::Equal, R2, 0, copy);
    a.reg(Alu::Mov, R1, R6);
    a.call(Call::AdjustTail);
    a.jump_imm(If::Differs, R0, 0, drop);
    a.place(copy);
    store(&mut a, drop);
    end(a, devices, drop)
}

/// Finds this run's bytes in `memory`: the descriptors take turns, all of them or the first `of`.
/// Leaves the context in `R6`, the memory in `R7`, the length in `R8` and the address of the bytes
/// in `R9`; jumps to `drop` if the length is 0.
pub(super) fn begin(a: &mut Asm, memory: i32, of: Option<u32>, drop: Label) {
    a.reg(Alu::Mov, R6, R1);
    a.map_value(R7, memory, 0);
    // One run at a time uses this memory, so the counter needs no lock.
    a.load(Size::B8, R1, R7, 0);
    a.reg(Alu::Mov, R2, R1);
    a.imm(Alu::Add, R2, 1);
    a.store(Size::B8, R7, 0, R2);
    if let Some(of) = of {
        a.imm(Alu::Mod, R1, of as i32);
    }
    // Redundant after `of`, but the verifier needs the bound.
    a.imm(Alu::And, R1, FRAMES as i32 - 1);
    a.imm(Alu::Left, R1, 3);
    a.reg(Alu::Add, R1, R7);
    a.load(Size::B4, R9, R1, DESCRIPTORS as i16);
    a.load(Size::B4, R8, R1, DESCRIPTORS as i16 + 4);
    a.jump_imm(If::Equal, R8, 0, drop);
    a.jump_imm(If::Greater, R8, MAX_LEN as i32, drop);
    a.imm(Alu::And, R9, ROOM as i32 - 1);
    a.reg(Alu::Add, R9, R7);
    a.imm(Alu::Add, R9, BYTES as i32);
}

/// Bytes that instructions copy, in less time than the helper's call takes.
const INLINE: i32 = 64;

/// Copies the bytes that [`begin`] found to the frame: the first [`INLINE`] by instructions, and
/// what a longer frame has behind them, or a shorter frame, by the helper.
pub(super) fn store(a: &mut Asm, drop: Label) {
    let (rest, done) = (a.label(), a.label());
    a.imm(Alu::Mov, R2, 0);
    a.jump_imm(If::Less, R8, INLINE, rest);
    a.load(Size::B4, R1, R6, DATA);
    a.load(Size::B4, R2, R6, DATA_END);
    a.reg(Alu::Mov, R3, R1);
    a.imm(Alu::Add, R3, INLINE);
    // Never true: the verifier needs the comparison.
    a.jump_reg(If::Greater, R3, R2, drop);
    for at in (0..INLINE as i16).step_by(16) {
        a.load(Size::B8, R2, R9, at);
        a.load(Size::B8, R3, R9, at + 8);
        a.store(Size::B8, R1, at, R2);
        a.store(Size::B8, R1, at + 8, R3);
    }
    a.jump_imm(If::Less, R8, INLINE + 1, done);
    a.imm(Alu::Mov, R2, INLINE);
    a.place(rest);
    a.reg(Alu::Mov, R1, R6);
    a.reg(Alu::Mov, R3, R9);
    a.reg(Alu::Add, R3, R2);
    a.reg(Alu::Mov, R4, R8);
    a.reg(Alu::Sub, R4, R2);
    a.call(Call::StoreBytes);
    a.jump_imm(If::Differs, R0, 0, drop);
    a.place(done);
}

/// Ends the program: redirects to the first device, or drops the frame if there is none, and at the
/// label `drop`.
pub(super) fn end(mut a: Asm, devices: i32, drop: Label) -> io::Result<Vec<u64>> {
    a.map(R1, devices);
    a.imm(Alu::Mov, R2, 0);
    a.imm(Alu::Mov, R3, DROP);
    a.call(Call::RedirectMap);
    a.exit();
    a.place(drop);
    a.imm(Alu::Mov, R0, DROP);
    a.exit();
    a.finish()
}

/// Frames begin at multiples of a cache line.
const LINE: usize = 64;
/// Offsets of the counter of the next frame, and of the length of a new frame.
const NEXT: usize = 0;
const FRAME_LEN: usize = 8;

/// The frames of the next call, one after the other.
#[derive(Debug)]
pub(super) struct FrameMemory {
    memory: MapMemory,
    frames: usize,
    /// Offset of the next frame.
    at: usize,
    bytes: u64,
    longest: usize,
}

impl FrameMemory {
    pub(super) fn new(memory: MapMemory) -> FrameMemory {
        FrameMemory { memory, frames: 0, at: 0, bytes: 0, longest: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.frames
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    #[inline]
    fn slice(&mut self, at: usize, len: usize) -> &mut [u8] {
        // SAFETY: the only program with this memory is the owner's, which runs within
        // `Program::run_live` and never while this value is borrowed.
        unsafe { self.memory.bytes_mut(at, len) }
    }

    /// Copies a packet of at most [`MAX_LEN`] bytes; `false` if the memory is full.
    #[inline]
    pub(super) fn add(&mut self, packet: &Packet) -> bool {
        let len = packet.len();
        if self.frames == FRAMES || self.at + len > ROOM || len > MAX_LEN {
            return false;
        }
        packet.copy_to(0, self.slice(BYTES + self.at, len));
        self.describe(self.frames, self.at as u32, len as u32);
        self.frames += 1;
        self.at += len.next_multiple_of(LINE);
        self.bytes += len as u64;
        self.longest = self.longest.max(len);
        true
    }

    #[inline]
    fn describe(&mut self, frame: usize, offset: u32, len: u32) {
        if let Some((o, l)) = self.slice(DESCRIPTORS + 8 * frame, 8).split_at_mut_checked(4) {
            o.copy_from_slice(&offset.to_ne_bytes());
            l.copy_from_slice(&len.to_ne_bytes());
        }
    }

    /// Prepares a call; returns the length of new frames. That is the longest one, so that the
    /// program only shortens frames: the kernel clears the bytes of a frame that grows.
    pub(super) fn begin(&self) -> usize {
        let len = self.longest.max(ethernet::HEADER_LEN);
        self.memory.word(NEXT).store(0, Relaxed);
        self.memory.word(FRAME_LEN).store(len as u64, Relaxed);
        len
    }

    /// Prepares a call whose frames the program drops.
    pub(super) fn begin_trial(&mut self) {
        for frame in 0..FRAMES {
            self.describe(frame, 0, 0);
        }
        self.memory.word(NEXT).store(0, Relaxed);
    }

    /// Runs of the program since [`begin`](FrameMemory::begin).
    pub(super) fn done(&self) -> usize {
        self.memory.word(NEXT).load(Relaxed).min(self.frames as u64) as usize
    }

    /// Stores a template as frame number `frame`; `false` if the memory is full.
    pub(super) fn store_template(&mut self, frame: usize, bytes: &[u8]) -> bool {
        if frame >= FRAMES || self.at + bytes.len() > ROOM || bytes.len() > MAX_LEN {
            return false;
        }
        self.slice(BYTES + self.at, bytes.len()).copy_from_slice(bytes);
        self.describe(frame, self.at as u32, bytes.len() as u32);
        self.at += bytes.len().next_multiple_of(LINE);
        self.longest = self.longest.max(bytes.len());
        true
    }

    /// All runs of the program.
    pub(super) fn runs(&self) -> u64 {
        self.memory.word(NEXT).load(Relaxed)
    }

    /// Removes all frames.
    pub(super) fn clear(&mut self) {
        (self.frames, self.at, self.bytes, self.longest) = (0, 0, 0, 0);
    }
}
