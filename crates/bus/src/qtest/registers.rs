//! Registers of a device in QEMU, with access counters.

use super::channel::Channel;
use crate::mmio::Mmio;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The number of register accesses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Count {
    /// Reads: round trips.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
}

impl std::ops::Sub for Count {
    type Output = Count;

    /// The accesses since `earlier`.
    fn sub(self, earlier: Count) -> Count {
        Count { reads: self.reads - earlier.reads, writes: self.writes - earlier.writes }
    }
}

/// The accesses to every register of one BAR, through all of its handles.
///
/// Register accesses dominate the cost on a real device. Here they are counted exactly.
#[derive(Debug)]
pub struct Accesses(Box<[[AtomicU32; 2]]>);

impl Accesses {
    pub(super) fn new(len: usize) -> Accesses {
        Accesses((0..len / 4).map(|_| Default::default()).collect())
    }

    /// All accesses.
    pub fn total(&self) -> Count {
        self.of(0..self.0.len() * 4)
    }

    /// The accesses to registers at the byte offsets `at`.
    pub fn of(&self, at: Range<usize>) -> Count {
        let registers = self.0.get(at.start / 4..(at.end.div_ceil(4)).min(self.0.len())).unwrap_or_default();
        registers.iter().fold(Count::default(), |sum, [reads, writes]| Count {
            reads: sum.reads + u64::from(reads.load(Ordering::Relaxed)),
            writes: sum.writes + u64::from(writes.load(Ordering::Relaxed)),
        })
    }
}

/// Registers of one BAR or of the remapping unit.
#[derive(Clone)]
pub struct Registers {
    channel: Arc<Channel>,
    base: u64,
    accesses: Arc<Accesses>,
}

impl Registers {
    pub(super) fn new(channel: Arc<Channel>, base: u64, accesses: Arc<Accesses>) -> Registers {
        Registers { channel, base, accesses }
    }

    /// The access counters.
    pub fn accesses(&self) -> &Arc<Accesses> {
        &self.accesses
    }

    /// Counts an access and returns the address of the register; `None` if it is out of bounds or
    /// misaligned.
    #[inline]
    fn address(&self, at: usize, width: usize, kind: usize) -> Option<u64> {
        let register = self.accesses.0.get(at / 4).filter(|_| at.is_multiple_of(width))?;
        register.get(kind)?.fetch_add(1, Ordering::Relaxed);
        Some(self.base + at as u64)
    }

    /// Reads by a command of the protocol; all ones if the register is not there.
    fn read(&self, command: &str, at: usize, width: usize) -> u64 {
        let address = self.address(at, width, 0);
        address.and_then(|at| self.channel.request(format_args!("{command} {at:#x}"))).unwrap_or(u64::MAX)
    }

    /// Writes by a command of the protocol.
    fn write(&self, command: &str, at: usize, width: usize, value: u32) {
        // The system call that sends the command is a barrier for the processor as well.
        crate::barrier::dma_wmb();
        if let Some(address) = self.address(at, width, 1) {
            self.channel.post(format_args!("{command} {address:#x} {value:#x}"));
        }
    }
}

impl Mmio for Registers {
    fn len(&self) -> usize {
        self.accesses.0.len() * 4
    }

    fn r32(&self, at: usize) -> u32 {
        self.read("readl", at, 4) as u32
    }

    fn w32(&self, at: usize, value: u32) {
        self.write("writel", at, 4, value);
    }

    const NARROW: bool = true;

    fn r8(&self, at: usize) -> u8 {
        self.read("readb", at, 1) as u8
    }

    fn r16(&self, at: usize) -> u16 {
        self.read("readw", at, 2) as u16
    }

    fn w8(&self, at: usize, value: u8) {
        self.write("writeb", at, 1, value.into());
    }

    fn w16(&self, at: usize, value: u16) {
        self.write("writew", at, 2, value.into());
    }
}

impl std::fmt::Debug for Registers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registers").field("base", &self.base).field("len", &self.len()).finish()
    }
}
