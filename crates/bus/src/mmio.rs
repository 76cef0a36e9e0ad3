//! Registers: 32 bits wide, little-endian, at a byte offset of a BAR.

use std::time::{Duration, Instant};

/// The registers of one BAR (base address register: one window of a device's address space).
///
/// A clone is another handle of the same registers; queues on several threads have one each.
pub trait Mmio: Clone + Send + Sync + 'static {
    /// Length in bytes.
    fn len(&self) -> usize;

    /// Whether there are no registers.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads the register at byte offset `at`, a multiple of four: a round trip to the device, hundreds of nanoseconds. All
    /// ones when the offset lies outside or the device is gone.
    fn r32(&self, at: usize) -> u32;

    /// Writes the register at byte offset `at`, a multiple of four; does nothing when the offset lies outside or the device
    /// is gone. All stores to memory that come before it in the program are seen by the device before the write is.
    fn w32(&self, at: usize, value: u32);

    /// Whether [`r64`](Mmio::r64) and [`w64`](Mmio::w64) are single accesses of eight bytes. Windows through which elements
    /// pass whole (the FIFOs of TI's ring accelerator) need that; where it is false they must not be used.
    const WIDE: bool = false;

    /// Reads eight bytes at byte offset `at`, a multiple of eight; in two halves, the lower first, unless [`WIDE`](Mmio::WIDE).
    fn r64(&self, at: usize) -> u64 {
        u64::from(self.r32(at)) | u64::from(self.r32(at + 4)) << 32
    }

    /// Writes eight bytes at byte offset `at`, a multiple of eight; in two halves, the lower first, unless [`WIDE`](Mmio::WIDE).
    fn w64(&self, at: usize, value: u64) {
        self.w32(at, value as u32);
        self.w32(at + 4, (value >> 32) as u32);
    }
}

/// A register did not take the awaited value in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("register {at:#x} is {last:#010x}: bits {mask:#x} did not become {want:#x} within {within:?}")]
pub struct Timeout {
    /// Its byte offset.
    pub at: usize,
    /// What it held when the time was over.
    pub last: u32,
    /// The bits that were looked at.
    pub mask: u32,
    /// What they should have become.
    pub want: u32,
    /// How long was waited.
    pub within: Duration,
}

/// A register by name: its byte offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Reg(pub u32);

impl Reg {
    /// The same register of the `n`-th of several units that lie `stride` bytes apart.
    #[inline]
    pub const fn nth(self, n: u32, stride: u32) -> Reg {
        Reg(self.0 + n * stride)
    }

    /// Byte offset.
    #[inline]
    pub const fn at(self) -> usize {
        self.0 as usize
    }

    /// Its value.
    #[inline]
    pub fn read<M: Mmio>(self, bar: &M) -> u32 {
        bar.r32(self.at())
    }

    /// Sets its value.
    #[inline]
    pub fn write<M: Mmio>(self, bar: &M, value: u32) {
        bar.w32(self.at(), value);
    }

    /// Reads it, and writes it with the bits of `clear` off and those of `set` on.
    pub fn change<M: Mmio>(self, bar: &M, clear: u32, set: u32) {
        self.write(bar, (self.read(bar) & !clear) | set);
    }

    /// Waits until the bits of `mask` are `want`; returns the value. Sleeps between looks: not for hot paths.
    ///
    /// # Errors
    /// [`Timeout`] when they are not after `within`.
    pub fn wait<M: Mmio>(self, bar: &M, mask: u32, want: u32, within: Duration) -> Result<u32, Timeout> {
        let begun = Instant::now();
        let mut pause = Duration::from_micros(1);
        loop {
            let last = self.read(bar);
            if last & mask == want {
                return Ok(last);
            }
            if begun.elapsed() >= within {
                return Err(Timeout { at: self.at(), last, mask, want, within });
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(1));
        }
    }
}
