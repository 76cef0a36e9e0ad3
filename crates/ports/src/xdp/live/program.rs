//! The program that makes frames out of what lies in memory.
//!
//! ```text
//!   value of the map:   0 next │ 8 length of a new frame │ 64 descriptors: offset u32, length u32 │ … │ bytes
//!
//!   i = next++            a frame of the kernel's, as long as the first word says
//!   adjust its tail       to the length of descriptor i
//!   copy                  bytes at the offset ──► frame
//!   redirect              to the device
//! ```
//!
//! A descriptor of length 0 is a frame that is dropped: with these the cost of a call is measured.

use towpath_sys::bpf::asm::{Alu, Asm, Call, If, Label, R0, R1, R2, R3, R4, R6, R7, R8, R9, Size};

/// Descriptors, a power of two: frames of one call at most.
pub(super) const FRAMES: usize = 1024;
/// Where they begin.
pub(super) const DESCRIPTORS: usize = 64;
/// Where bytes begin.
pub(super) const BYTES: usize = 16384;
/// Bytes for frames, a power of two.
pub(super) const ROOM: usize = 1 << 21;
/// Longest frame: a page less the headroom, what is behind a frame (`skb_shared_info`, 320 bytes), and what the test run keeps in front
/// (`struct xdp_page_head`, below 256 bytes).
pub(super) const LONGEST: usize = 4096 - 256 - 320 - 256;
/// Size of the map's value: what a masked offset can reach.
pub(super) const VALUE: usize = BYTES + ROOM + 4096;

const _: () = assert!(DESCRIPTORS + 8 * FRAMES <= BYTES && LONGEST <= 4096);

/// `XDP_DROP`.
const DROP: i32 = 1;

/// Frames out of `memory` to the first device of `devices`.
pub(super) fn frames(memory: i32, devices: i32) -> Vec<u64> {
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

/// Finds this run's bytes in `memory`: the descriptors have turns, all of them or the first `of`. Leaves the context in `R6`, the memory in `R7`,
/// the length in `R8` and where the bytes begin in `R9`; goes to `drop` where there are none.
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
    // With `of` known already, but not to the verifier.
    a.imm(Alu::And, R1, FRAMES as i32 - 1);
    a.imm(Alu::Left, R1, 3);
    a.reg(Alu::Add, R1, R7);
    a.load(Size::B4, R9, R1, DESCRIPTORS as i16);
    a.load(Size::B4, R8, R1, DESCRIPTORS as i16 + 4);
    a.jump_imm(If::Equal, R8, 0, drop);
    a.jump_imm(If::Greater, R8, LONGEST as i32, drop);
    a.imm(Alu::And, R9, ROOM as i32 - 1);
    a.reg(Alu::Add, R9, R7);
    a.imm(Alu::Add, R9, BYTES as i32);
}

/// Makes the bytes that [`begin`] found the frame's.
pub(super) fn store(a: &mut Asm, drop: Label) {
    a.reg(Alu::Mov, R1, R6);
    a.imm(Alu::Mov, R2, 0);
    a.reg(Alu::Mov, R3, R9);
    a.reg(Alu::Mov, R4, R8);
    a.call(Call::StoreBytes);
    a.jump_imm(If::Differs, R0, 0, drop);
}

/// Returns what `bpf_redirect_map` says of the first device; a frame that has none is dropped, and so is one that came by `drop`.
pub(super) fn end(mut a: Asm, devices: i32, drop: Label) -> Vec<u64> {
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
