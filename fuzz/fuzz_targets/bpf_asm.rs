//! Any program of the assembler: each jump lands on the place of its label, and nothing but jumps
//! is changed at the end; or the program is refused.
#![no_main]

use libfuzzer_sys::fuzz_target;
use towpath_fuzz::Input;
use towpath_sys::bpf::asm::{Alu, Asm, Call, If, Label, R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, Reg, STACK, Size};

const REGISTERS: [Reg; 11] = [R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, STACK];
const SIZES: [Size; 4] = [Size::B1, Size::B2, Size::B4, Size::B8];
const OPERATIONS: [Alu; 9] =
    [Alu::Add, Alu::Sub, Alu::Mul, Alu::And, Alu::Left, Alu::Right, Alu::Mod, Alu::Xor, Alu::Mov];
const CONDITIONS: [If; 5] = [If::Equal, If::Greater, If::AnyBit, If::Differs, If::Less];
const CALLS: [Call; 3] = [Call::RedirectMap, Call::AdjustTail, Call::StoreBytes];

/// Instructions of a program that is long enough for any jump to be too far.
const LONG: usize = 1 << 15;

/// One of a list.
fn one<T: Copy>(list: &[T], byte: u8) -> T {
    list[usize::from(byte) % list.len()]
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let mut asm = Asm::default();
    let labels: [Label; 8] = std::array::from_fn(|_| asm.label());
    // Instructions so far, the places of labels, and the jumps with their labels.
    let (mut len, mut places, mut jumps) = (0usize, [None; 8], Vec::new());
    while !input.0.is_empty() {
        let (what, a, b) = (input.byte(), input.byte(), input.byte());
        let (dst, src, size, op) = (one(&REGISTERS, a), one(&REGISTERS, a >> 4), one(&SIZES, b), one(&OPERATIONS, b));
        let (when, to) = (one(&CONDITIONS, b), usize::from(b >> 5));
        match what % 17 {
            0 => {
                asm.place(labels[to]);
                places[to] = Some(len);
                continue;
            }
            1 => asm.imm(op, dst, input.int() as i32),
            2 => asm.reg(op, dst, src),
            3 => asm.imm32(op, dst, input.int()),
            4 => asm.reg32(op, dst, src),
            5 => asm.packet(size, src, input.int() as i32),
            6 => asm.load(size, dst, src, input.word() as i16),
            7 => asm.store(size, dst, input.word() as i16, src),
            8 => asm.store_imm(size, dst, input.word() as i16, input.int() as i32),
            9 => asm.be_to_host(dst, 16 << (b & 1)),
            10..=12 => {
                jumps.push((len, to));
                match what % 17 {
                    10 => asm.jump(labels[to]),
                    11 => asm.jump_imm(when, dst, input.int() as i32, labels[to]),
                    _ => asm.jump_reg(when, dst, src, labels[to]),
                }
            }
            13 | 14 => {
                let (descriptor, offset) = (input.int() as i32, input.int());
                if what % 17 == 13 {
                    asm.map(dst, descriptor)
                } else {
                    asm.map_value(dst, descriptor, offset)
                }
                len += 1;
            }
            15 => asm.call(one(&CALLS, b)),
            // A long program, in few bytes. Most are short, so that a run is fast.
            _ if len < LONG => {
                let many = match usize::from(input.word()) {
                    few @ ..0xff00 => few % 64,
                    far => LONG - 0x80 + (far & 0xff),
                };
                (0..many).for_each(|_| asm.imm(op, dst, many as i32));
                len += many;
                continue;
            }
            _ => asm.exit(),
        }
        len += 1;
    }
    let distance = |&(at, to): &(usize, usize)| places[to].map(|place| place as i64 - at as i64 - 1);
    let resolved = jumps.iter().all(|jump| distance(jump).is_some_and(|far| (0..=i64::from(i16::MAX)).contains(&far)));
    let code = asm.finish();
    assert_eq!(code.is_ok(), resolved);
    let Ok(code) = code else { return };
    assert_eq!(code.len(), len);
    for jump in &jumps {
        assert_eq!(i64::from((code[jump.0] >> 16) as i16), distance(jump).unwrap());
    }
});
