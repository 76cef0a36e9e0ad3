//! An assembler for BPF: the instructions that this workspace's programs need
//! (`Documentation/bpf/standardization/instruction-set.rst`).
//!
//! Instructions are appended in order. Jumps go forward, to labels; [`Asm::finish`] resolves them.

use std::io;

/// A register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reg(u8);

/// Result of functions and of the program; scratch.
pub const R0: Reg = Reg(0);
/// First argument. A call clobbers `R1` to `R5`.
pub const R1: Reg = Reg(1);
/// Second argument.
pub const R2: Reg = Reg(2);
/// Third argument.
pub const R3: Reg = Reg(3);
/// Fourth argument.
pub const R4: Reg = Reg(4);
/// Fifth argument.
pub const R5: Reg = Reg(5);
/// Callee-saved, as are `R7` to `R9`.
pub const R6: Reg = Reg(6);
/// Callee-saved.
pub const R7: Reg = Reg(7);
/// Callee-saved.
pub const R8: Reg = Reg(8);
/// Callee-saved.
pub const R9: Reg = Reg(9);
/// The frame pointer: the stack is the 512 bytes below it.
pub const STACK: Reg = Reg(10);

/// Bytes of a load or store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// One byte.
    B1 = 0x10,
    /// Two bytes.
    B2 = 0x08,
    /// Four bytes.
    B4 = 0x00,
    /// Eight bytes.
    B8 = 0x18,
}

/// Operations on all 64 bits of a register, or on the low 32, which clears the high 32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alu {
    /// `dst += src`.
    Add = 0x00,
    /// `dst -= src`.
    Sub = 0x10,
    /// `dst *= src`.
    Mul = 0x20,
    /// `dst &= src`.
    And = 0x50,
    /// `dst <<= src`.
    Left = 0x60,
    /// `dst >>= src`.
    Right = 0x70,
    /// `dst %= src`.
    Mod = 0x90,
    /// `dst ^= src`.
    Xor = 0xa0,
    /// `dst = src`.
    Mov = 0xb0,
}

/// Conditions on unsigned numbers of 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum If {
    /// `dst == src`.
    Equal = 0x10,
    /// `dst > src`.
    Greater = 0x20,
    /// `dst & src != 0`.
    AnyBit = 0x40,
    /// `dst != src`.
    Differs = 0x50,
    /// `dst < src`.
    Less = 0xa0,
}

/// Helper functions of the kernel (`enum bpf_func_id`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// `bpf_redirect_map(map, key, flags)`.
    RedirectMap = 51,
    /// `bpf_xdp_adjust_tail(packet, by)`.
    AdjustTail = 65,
    /// `bpf_xdp_store_bytes(packet, offset, from, length)`.
    StoreBytes = 190,
}

/// The target of jumps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Label(usize);

/// A program under construction.
#[derive(Debug, Default)]
pub struct Asm {
    code: Vec<u64>,
    labels: Vec<Option<usize>>,
    jumps: Vec<(usize, Label)>,
}

impl Asm {
    fn put(&mut self, op: u8, dst: Reg, src: Reg, off: i16, imm: i32) {
        let (off, imm) = (u64::from(off as u16), u64::from(imm as u32));
        self.code.push(u64::from(op) | u64::from(dst.0) << 8 | u64::from(src.0) << 12 | off << 16 | imm << 32);
    }

    /// A new label, without a place.
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Places the label before the next instruction.
    pub fn place(&mut self, label: Label) {
        self.labels[label.0] = Some(self.code.len());
    }

    /// `dst = dst op value`.
    pub fn imm(&mut self, op: Alu, dst: Reg, value: i32) {
        self.put(0x07 | op as u8, dst, R0, 0, value);
    }

    /// `dst = dst op src`.
    pub fn reg(&mut self, op: Alu, dst: Reg, src: Reg) {
        self.put(0x0f | op as u8, dst, src, 0, 0);
    }

    /// As [`imm`](Asm::imm), on 32 bits.
    pub fn imm32(&mut self, op: Alu, dst: Reg, value: u32) {
        self.put(0x04 | op as u8, dst, R0, 0, value as i32);
    }

    /// As [`reg`](Asm::reg), on 32 bits.
    pub fn reg32(&mut self, op: Alu, dst: Reg, src: Reg) {
        self.put(0x0c | op as u8, dst, src, 0, 0);
    }

    /// `R0 = ` up to four bytes of the packet at the offset `src + off`, in host order
    /// (`BPF_LD | BPF_IND`). Only for a socket filter, which keeps its context in `R6`. `R1` to
    /// `R5` are clobbered. An offset past the packet's end ends the program with 0.
    pub fn packet(&mut self, size: Size, src: Reg, off: i32) {
        self.put(0x40 | size as u8, R0, src, 0, off);
    }

    /// `dst = *(src + off)`.
    pub fn load(&mut self, size: Size, dst: Reg, src: Reg, off: i16) {
        self.put(0x61 | size as u8, dst, src, off, 0);
    }

    /// `*(dst + off) = src`.
    pub fn store(&mut self, size: Size, dst: Reg, off: i16, src: Reg) {
        self.put(0x63 | size as u8, dst, src, off, 0);
    }

    /// `*(dst + off) = value`.
    pub fn store_imm(&mut self, size: Size, dst: Reg, off: i16, value: i32) {
        self.put(0x62 | size as u8, dst, R0, off, value);
    }

    /// Converts the low 16 or 32 bits from network to host order, and clears the others.
    pub fn be_to_host(&mut self, dst: Reg, bits: i32) {
        self.put(0xdc, dst, R0, 0, bits);
    }

    /// Jumps to a label.
    pub fn jump(&mut self, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.put(0x05, R0, R0, 0, 0);
    }

    /// Jumps if `dst` compares to `value`.
    pub fn jump_imm(&mut self, when: If, dst: Reg, value: i32, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.put(0x05 | when as u8, dst, R0, 0, value);
    }

    /// Jumps if `dst` compares to `src`.
    pub fn jump_reg(&mut self, when: If, dst: Reg, src: Reg, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.put(0x0d | when as u8, dst, src, 0, 0);
    }

    /// `dst = ` the map of a descriptor (`BPF_PSEUDO_MAP_FD`).
    pub fn map(&mut self, dst: Reg, descriptor: i32) {
        self.put(0x18, dst, Reg(1), 0, descriptor);
        self.put(0, R0, R0, 0, 0);
    }

    /// `dst = ` the address of an array's first value, plus `offset` (`BPF_PSEUDO_MAP_VALUE`).
    pub fn map_value(&mut self, dst: Reg, descriptor: i32, offset: u32) {
        self.put(0x18, dst, Reg(2), 0, descriptor);
        self.put(0, R0, R0, 0, offset as i32);
    }

    /// Calls a helper: arguments in `R1` to `R5`, result in `R0`.
    pub fn call(&mut self, function: Call) {
        self.put(0x85, R0, R0, 0, function as i32);
    }

    /// Ends the program with `R0`.
    pub fn exit(&mut self) {
        self.put(0x95, R0, R0, 0, 0);
    }

    /// The instructions, with the distances of all jumps.
    ///
    /// # Errors
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) for a jump backwards, to a label without a
    /// place, or over more instructions than its 16 bits can express.
    pub fn finish(mut self) -> io::Result<Vec<u64>> {
        let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidInput, why);
        for (at, to) in self.jumps {
            let target = self.labels[to.0].ok_or_else(|| invalid(format!("the jump at {at} has no target")))?;
            let distance = target.checked_sub(at + 1);
            let distance = distance.ok_or_else(|| invalid(format!("the jump at {at} goes back to {target}")))?;
            let distance = i16::try_from(distance).map_err(|_| {
                invalid(format!("a jump over {distance} instructions: a program may jump over {} at most", i16::MAX))
            })?;
            self.code[at] |= u64::from(distance as u16) << 16;
        }
        Ok(self.code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jump_counts_the_instructions_between() {
        let mut a = Asm::default();
        let (near, far) = (a.label(), a.label());
        a.jump(far);
        a.jump(near);
        a.exit();
        a.place(near);
        a.map(R1, 5);
        a.place(far);
        a.exit();
        let distances: Vec<u16> = a.finish().unwrap().iter().map(|i| (i >> 16) as u16).collect();
        assert_eq!(distances, [4, 1, 0, 0, 0, 0]);
    }

    #[test]
    fn a_jump_that_cannot_be_expressed_is_refused() {
        let over = |instructions: usize, place: bool| {
            let mut a = Asm::default();
            let end = a.label();
            a.jump(end);
            (0..instructions).for_each(|_| a.exit());
            if place {
                a.place(end);
            }
            a.finish().map(|code| code[0] >> 16 & 0xffff).map_err(|error| error.to_string())
        };
        assert_eq!(over(32767, true), Ok(32767));
        assert!(over(32768, true).unwrap_err().contains("32768 instructions"));
        assert!(over(1, false).unwrap_err().contains("no target"));
        let mut a = Asm::default();
        let begin = a.label();
        a.place(begin);
        a.jump(begin);
        assert!(a.finish().unwrap_err().to_string().contains("goes back"));
    }

    #[test]
    fn instructions_are_encoded_as_the_kernel_reads_them() {
        let mut a = Asm::default();
        let end = a.label();
        a.load(Size::B4, R2, R1, 16);
        a.map(R1, 5);
        a.imm(Alu::Mov, R3, 2);
        a.jump_imm(If::Differs, R2, 0, end);
        a.call(Call::RedirectMap);
        a.place(end);
        a.exit();
        let bytes: Vec<u8> = a.finish().unwrap().iter().flat_map(|i| i.to_le_bytes()).collect();
        let expected = [
            [0x61, 0x12, 0x10, 0, 0, 0, 0, 0],
            [0x18, 0x11, 0, 0, 5, 0, 0, 0],
            [0, 0, 0, 0, 0, 0, 0, 0],
            [0xb7, 0x03, 0, 0, 2, 0, 0, 0],
            [0x55, 0x02, 1, 0, 0, 0, 0, 0],
            [0x85, 0, 0, 0, 0x33, 0, 0, 0],
            [0x95, 0, 0, 0, 0, 0, 0, 0],
        ];
        assert_eq!(bytes, expected.concat());
    }
}
