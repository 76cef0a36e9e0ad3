//! An assembler for the kernel's virtual machine: as much of it as our programs need
//! (`Documentation/bpf/standardization/instruction-set.rst`).
//!
//! Instructions are appended one after the other; jumps go to labels, forward only, whose places are filled in at the end.

/// A register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reg(u8);

/// What functions return; scratch.
pub const R0: Reg = Reg(0);
/// First argument; lost in a call, as are the next four.
pub const R1: Reg = Reg(1);
pub const R2: Reg = Reg(2);
pub const R3: Reg = Reg(3);
pub const R4: Reg = Reg(4);
pub const R5: Reg = Reg(5);
/// Kept over calls, as are the next three.
pub const R6: Reg = Reg(6);
pub const R7: Reg = Reg(7);
pub const R8: Reg = Reg(8);
pub const R9: Reg = Reg(9);
/// End of the stack: what is below is ours.
pub const STACK: Reg = Reg(10);

/// Bytes of a load or store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    B1 = 0x10,
    B2 = 0x08,
    B4 = 0x00,
    B8 = 0x18,
}

/// Operations, on all 64 bits of a register, or on the low 32, which clears the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alu {
    Add = 0x00,
    Sub = 0x10,
    Mul = 0x20,
    And = 0x50,
    Left = 0x60,
    Right = 0x70,
    Mod = 0x90,
    Xor = 0xa0,
    Mov = 0xb0,
}

/// Conditions, on unsigned numbers of 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum If {
    Equal = 0x10,
    Greater = 0x20,
    AnyBit = 0x40,
    Differs = 0x50,
    Less = 0xa0,
}

/// Functions of the kernel (`enum bpf_func_id`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// `bpf_redirect_map(map, key, flags)`.
    RedirectMap = 51,
    /// `bpf_xdp_adjust_tail(packet, by)`.
    AdjustTail = 65,
    /// `bpf_xdp_store_bytes(packet, offset, from, length)`.
    StoreBytes = 190,
}

/// A place that jumps go to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Label(usize);

/// Instructions in the making.
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

    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// The label stands here.
    pub fn place(&mut self, label: Label) {
        self.labels[label.0] = Some(self.code.len());
    }

    pub fn imm(&mut self, op: Alu, dst: Reg, value: i32) {
        self.put(0x07 | op as u8, dst, R0, 0, value);
    }

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

    /// `R0 = ` up to four bytes of the packet, `off` behind the offset in `src`, in the machine's order: in a filter, that keeps
    /// what it was called with in `R6`. Lost are `R1` to `R5`. Bytes that are not there end the program, with 0.
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

    /// Turns the low 16 or 32 bits from network order to the machine's, and clears the others.
    pub fn order_of_host(&mut self, dst: Reg, bits: i32) {
        self.put(0xdc, dst, R0, 0, bits);
    }

    pub fn jump(&mut self, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.put(0x05, R0, R0, 0, 0);
    }

    pub fn jump_imm(&mut self, when: If, dst: Reg, value: i32, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.put(0x05 | when as u8, dst, R0, 0, value);
    }

    pub fn jump_reg(&mut self, when: If, dst: Reg, src: Reg, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.put(0x0d | when as u8, dst, src, 0, 0);
    }

    /// `dst = ` the map that the descriptor names (`BPF_PSEUDO_MAP_FD`).
    pub fn map(&mut self, dst: Reg, descriptor: i32) {
        self.put(0x18, dst, Reg(1), 0, descriptor);
        self.put(0, R0, R0, 0, 0);
    }

    /// `dst = ` the address of the value number 0 of an array, plus `offset` (`BPF_PSEUDO_MAP_VALUE`).
    pub fn map_value(&mut self, dst: Reg, descriptor: i32, offset: u32) {
        self.put(0x18, dst, Reg(2), 0, descriptor);
        self.put(0, R0, R0, 0, offset as i32);
    }

    pub fn call(&mut self, function: Call) {
        self.put(0x85, R0, R0, 0, function as i32);
    }

    /// Returns `R0`.
    pub fn exit(&mut self) {
        self.put(0x95, R0, R0, 0, 0);
    }

    /// The instructions, each jump with its distance.
    pub fn finish(mut self) -> Vec<u64> {
        for (at, to) in self.jumps {
            // A label that was never placed stands behind the end, which the verifier refuses.
            let target = self.labels[to.0].unwrap_or(self.code.len());
            let distance = (target as i64 - at as i64 - 1) as i16;
            self.code[at] |= u64::from(distance as u16) << 16;
        }
        self.code
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
        let distances: Vec<u16> = a.finish().iter().map(|i| (i >> 16) as u16).collect();
        assert_eq!(distances, [4, 1, 0, 0, 0, 0]);
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
        let bytes: Vec<u8> = a.finish().iter().flat_map(|i| i.to_le_bytes()).collect();
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
