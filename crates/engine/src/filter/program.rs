//! The compiled form: tests in a row, each with the test that follows it if it holds and if not.
//!
//! ```text
//!   0  ethertype = 0x0800         → 1, else reject
//!   1  byte 23 = 17               → 2, else reject
//!   2  half 20 & 0x1fff           → reject, else 3
//!   3  half 2 of the transport = 53 → accept, else reject
//! ```
//!
//! A jump leads forward only, so a run ends after as many steps as there are tests. A read beyond
//! the packet rejects the packet, also below a `not`: that is how the machine of
//! [BPF](https://www.tcpdump.org/papers/bpf-usenix93.pdf) works.

use towpath_packet::Packet;

/// The packet matches.
pub(super) const ACCEPT: u16 = u16::MAX;
/// The packet does not match.
pub(super) const REJECT: u16 = u16::MAX - 1;
/// Values that a computation may hold at once.
pub(super) const STACK: usize = 16;

/// What a test reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Load {
    /// `size` bytes at a place.
    At { at: u32, size: u8 },
    /// `size` bytes at a place of the transport's header, behind the IPv4 header at `l3`.
    Transport { l3: u32, at: u32, size: u8 },
    /// Length of the packet.
    Len,
    /// A constant.
    Value(u32),
    /// Operations, which leave both sides of the comparison.
    Computed { first: u32, count: u32 },
}

/// How what was read is compared with the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compare {
    Equal,
    Greater,
    NotLess,
    /// Any common bit.
    Common,
}

/// A test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Test {
    pub(super) load: Load,
    pub(super) mask: u32,
    pub(super) compare: Compare,
    pub(super) value: u32,
}

/// A test and what follows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) test: Test,
    pub(super) yes: u16,
    pub(super) no: u16,
}

/// An operation on a stack of 32-bit numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Op {
    Push(u32),
    Len,
    /// Replaces an index by the bytes at `base` and the index.
    Load {
        base: u32,
        size: u8,
    },
    /// Likewise, behind the IPv4 header at `l3`.
    Transport {
        l3: u32,
        size: u8,
    },
    Negate,
    Binary(Binary),
}

/// An operation on two numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    Rem,
    And,
    Or,
    Xor,
    Shl,
    Shr,
}

impl Binary {
    /// `None` for a division by zero.
    pub(super) fn apply(self, a: u32, b: u32) -> Option<u32> {
        Some(match self {
            Binary::Add => a.wrapping_add(b),
            Binary::Sub => a.wrapping_sub(b),
            Binary::Mul => a.wrapping_mul(b),
            Binary::Div => a.checked_div(b)?,
            Binary::Rem => a.checked_rem(b)?,
            Binary::And => a & b,
            Binary::Or => a | b,
            Binary::Xor => a ^ b,
            Binary::Shl => a.checked_shl(b).unwrap_or(0),
            Binary::Shr => a.checked_shr(b).unwrap_or(0),
        })
    }
}

/// The bytes of a packet.
pub(super) trait Source {
    fn len(&self) -> u32;

    /// A big-endian number of 1, 2 or 4 bytes; `None` beyond the end.
    fn read(&self, at: u64, size: u8) -> Option<u32>;
}

impl Source for [u8] {
    #[inline]
    fn len(&self) -> u32 {
        <[u8]>::len(self) as u32
    }

    #[inline(always)]
    fn read(&self, at: u64, size: u8) -> Option<u32> {
        let rest = self.get(usize::try_from(at).ok()?..)?;
        Some(match size {
            1 => u32::from(*rest.first()?),
            2 => u32::from(u16::from_be_bytes(*rest.first_chunk()?)),
            _ => u32::from_be_bytes(*rest.first_chunk()?),
        })
    }
}

/// A packet of several pieces, or with a VLAN tag in its metadata, which is read as if the frame
/// had it behind its addresses.
struct Pieces<'a> {
    packet: &'a Packet,
    tag: Option<[u8; 4]>,
}

/// Bytes in front of an outer tag.
const ADDRESSES: u64 = 12;

impl Source for Pieces<'_> {
    fn len(&self) -> u32 {
        self.packet.len() as u32 + self.tag.map_or(0, |tag| tag.len() as u32)
    }

    fn read(&self, at: u64, size: u8) -> Option<u32> {
        let mut bytes = [0; 4];
        let wanted = bytes.get_mut(..usize::from(size))?;
        match self.tag {
            None => self.copy(at, wanted)?,
            Some(tag) => {
                for (at, byte) in (at..).zip(wanted.iter_mut()) {
                    match at.checked_sub(ADDRESSES) {
                        None => self.copy(at, std::slice::from_mut(byte))?,
                        Some(inside @ 0..4) => *byte = *tag.get(inside as usize)?,
                        Some(_) => self.copy(at - 4, std::slice::from_mut(byte))?,
                    }
                }
            }
        }
        let value = u32::from_be_bytes(bytes);
        Some(if size < 4 { value >> (32 - 8 * u32::from(size)) } else { value })
    }
}

impl Pieces<'_> {
    fn copy(&self, at: u64, out: &mut [u8]) -> Option<()> {
        let at = usize::try_from(at).ok()?;
        (at < self.packet.len() && self.packet.copy_to(at, out) == out.len()).then_some(())
    }
}

/// A compiled expression, for one kind of link.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Program {
    pub(super) steps: Vec<Step>,
    pub(super) ops: Vec<Op>,
    /// Where it begins: a step, [`ACCEPT`] or [`REJECT`].
    pub(super) start: u16,
}

impl Program {
    /// Whether a packet matches.
    #[inline]
    pub(super) fn matches(&self, packet: &Packet) -> bool {
        match packet.vlan() {
            None if packet.linear().len() == packet.len() => self.run(packet.linear()),
            vlan => {
                let tag = vlan.map(|vlan| {
                    let [a, b] = vlan.tci.to_be_bytes();
                    if vlan.service { [0x88, 0xa8, a, b] } else { [0x81, 0x00, a, b] }
                });
                self.run(&Pieces { packet, tag })
            }
        }
    }

    #[inline]
    pub(super) fn run<S: Source + ?Sized>(&self, source: &S) -> bool {
        let mut next = self.start;
        while let Some(step) = self.steps.get(usize::from(next)) {
            let test = &step.test;
            let (read, value) = match test.load {
                Load::At { at, size } => (source.read(at.into(), size), test.value),
                Load::Transport { l3, at, size } => (behind(source, l3, at.into(), size), test.value),
                Load::Len => (Some(source.len()), test.value),
                Load::Value(value) => (Some(value), test.value),
                Load::Computed { first, count } => match self.compute(source, first, count) {
                    Some([a, b]) => (Some(a), b),
                    None => (None, 0),
                },
            };
            let Some(read) = read else { return false };
            let read = read & test.mask;
            let holds = match test.compare {
                Compare::Equal => read == value,
                Compare::Greater => read > value,
                Compare::NotLess => read >= value,
                Compare::Common => read & value != 0,
            };
            next = if holds { step.yes } else { step.no };
        }
        next == ACCEPT
    }

    /// Both sides of a comparison; `None` if a read is beyond the packet, or for a division by
    /// zero.
    #[inline(never)]
    fn compute<S: Source + ?Sized>(&self, source: &S, first: u32, count: u32) -> Option<[u32; 2]> {
        let mut stack = [0u32; STACK];
        let mut top = 0usize;
        for op in self.ops.get(first as usize..)?.get(..count as usize)? {
            match *op {
                Op::Push(value) => {
                    *stack.get_mut(top)? = value;
                    top += 1;
                }
                Op::Len => {
                    *stack.get_mut(top)? = source.len();
                    top += 1;
                }
                Op::Load { base, size } => {
                    let cell = stack.get_mut(top.checked_sub(1)?)?;
                    *cell = source.read(u64::from(base) + u64::from(*cell), size)?;
                }
                Op::Transport { l3, size } => {
                    let cell = stack.get_mut(top.checked_sub(1)?)?;
                    *cell = behind(source, l3, u64::from(*cell), size)?;
                }
                Op::Negate => {
                    let cell = stack.get_mut(top.checked_sub(1)?)?;
                    *cell = cell.wrapping_neg();
                }
                Op::Binary(binary) => {
                    top = top.checked_sub(1)?;
                    let b = *stack.get(top)?;
                    let cell = stack.get_mut(top.checked_sub(1)?)?;
                    *cell = binary.apply(*cell, b)?;
                }
            }
        }
        let [a, b, ..] = stack;
        (top == 2).then_some([a, b])
    }
}

/// Reads behind the IPv4 header at `l3`, whose length is its own. The sum of header length and
/// index is a 32-bit number, which may wrap.
#[inline]
fn behind<S: Source + ?Sized>(source: &S, l3: u32, at: u64, size: u8) -> Option<u32> {
    let header = (source.read(l3.into(), 1)? & 0xf) * 4;
    let index = header.wrapping_add(at as u32);
    source.read(u64::from(l3) + u64::from(index), size)
}
