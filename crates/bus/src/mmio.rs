//! Registers: 32 bits wide, little-endian, at a byte offset of a BAR.

use std::time::{Duration, Instant};

/// The registers of one BAR (base address register: a range of a device's address space).
///
/// A clone is another handle of the same registers; each queue thread has its own.
pub trait Mmio: Clone + Send + Sync + 'static {
    /// Length in bytes.
    fn len(&self) -> usize;

    /// Whether the BAR is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads the register at byte offset `at`, a multiple of four: a round trip to the device,
    /// hundreds of nanoseconds. Returns all ones if the offset is out of bounds or the device is
    /// gone.
    fn r32(&self, at: usize) -> u32;

    /// Writes the register at byte offset `at`, a multiple of four; does nothing when the offset
    /// lies outside or the device is gone. All stores to memory that come before it in the program
    /// are seen by the device before the write is.
    fn w32(&self, at: usize, value: u32);

    /// Whether [`r64`](Mmio::r64) and [`w64`](Mmio::w64) are single accesses of eight bytes. The
    /// FIFO windows of TI's ring accelerator, which pass whole elements, need that. Where it is
    /// false they must not be used.
    const WIDE: bool = false;

    /// Reads eight bytes at byte offset `at`, a multiple of eight: in two halves, the lower first,
    /// unless [`WIDE`](Mmio::WIDE) is set.
    fn r64(&self, at: usize) -> u64 {
        u64::from(self.r32(at)) | u64::from(self.r32(at + 4)) << 32
    }

    /// Writes eight bytes at byte offset `at`, a multiple of eight: in two halves, the lower first,
    /// unless [`WIDE`](Mmio::WIDE) is set.
    fn w64(&self, at: usize, value: u64) {
        self.w32(at, value as u32);
        self.w32(at + 4, (value >> 32) as u32);
    }

    /// Whether [`r8`](Mmio::r8), [`r16`](Mmio::r16), [`w8`](Mmio::w8) and [`w16`](Mmio::w16) are
    /// single accesses. Registers of virtio need that (virtio 1.2 §4.1.3.1). Where it is false they
    /// access the whole word around them, and must not be used for registers with side effects.
    const NARROW: bool = false;

    /// Reads a byte.
    fn r8(&self, at: usize) -> u8 {
        (self.r32(at & !3) >> (8 * (at & 3))) as u8
    }

    /// Reads two bytes at byte offset `at`, a multiple of two.
    fn r16(&self, at: usize) -> u16 {
        (self.r32(at & !3) >> (8 * (at & 2))) as u16
    }

    /// Writes a byte; ordered as [`w32`](Mmio::w32).
    fn w8(&self, at: usize, value: u8) {
        let shift = 8 * (at & 3);
        self.w32(at & !3, (self.r32(at & !3) & !(0xff << shift)) | u32::from(value) << shift);
    }

    /// Writes two bytes at byte offset `at`, a multiple of two; ordered as [`w32`](Mmio::w32).
    fn w16(&self, at: usize, value: u16) {
        let shift = 8 * (at & 2);
        self.w32(at & !3, (self.r32(at & !3) & !(0xffff << shift)) | u32::from(value) << shift);
    }

    /// The time by the device's clock, which is the system's. A model that is stepped by hand has a
    /// clock of its own.
    fn now(&self) -> Instant {
        Instant::now()
    }

    /// Gives the device time: sleeps. In a model that is stepped by hand only its own clock
    /// advances.
    fn pause(&self, time: Duration) {
        std::thread::sleep(time);
    }

    /// Polls until `done`, with [pauses](Mmio::pause) in between: not for hot paths. Returns false
    /// once the pauses add up to `within`.
    fn poll(&self, within: Duration, mut done: impl FnMut() -> bool) -> bool {
        let (mut waited, mut pause) = (Duration::ZERO, Duration::from_micros(1));
        while !done() {
            if waited >= within {
                return false;
            }
            self.pause(pause);
            waited += pause;
            pause = (pause * 2).min(within / 64);
        }
        true
    }
}

/// A register did not reach the expected value in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("register {at:#x} is {last:#010x}: bits {mask:#x} did not become {want:#x} within {within:?}")]
#[non_exhaustive]
pub struct Timeout {
    /// The byte offset of the register.
    pub at: usize,
    /// The last value.
    pub last: u32,
    /// The bits that were tested.
    pub mask: u32,
    /// Their expected value.
    pub want: u32,
    /// The time limit.
    pub within: Duration,
}

/// A register: its byte offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Reg(pub u32);

impl Reg {
    /// The same register of the `n`-th unit; units lie `stride` bytes apart.
    #[inline]
    pub const fn nth(self, n: u32, stride: u32) -> Reg {
        Reg(self.0 + n * stride)
    }

    /// The byte offset.
    #[inline]
    pub const fn at(self) -> usize {
        self.0 as usize
    }

    /// Reads the register.
    #[inline]
    pub fn read<M: Mmio>(self, bar: &M) -> u32 {
        bar.r32(self.at())
    }

    /// Writes the register.
    #[inline]
    pub fn write<M: Mmio>(self, bar: &M, value: u32) {
        bar.w32(self.at(), value);
    }

    /// Read-modify-write: clears the bits of `clear`, then sets those of `set`.
    pub fn change<M: Mmio>(self, bar: &M, clear: u32, set: u32) {
        self.write(bar, (self.read(bar) & !clear) | set);
    }

    /// [Polls](Mmio::poll) until the bits of `mask` equal `want` and returns the value.
    ///
    /// # Errors
    /// [`Timeout`] if they do not within `within`.
    pub fn wait<M: Mmio>(self, bar: &M, mask: u32, want: u32, within: Duration) -> Result<u32, Timeout> {
        let mut last = 0;
        let equal = bar.poll(within, || {
            last = self.read(bar);
            last & mask == want
        });
        if equal { Ok(last) } else { Err(Timeout { at: self.at(), last, mask, want, within }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    /// One register that counts its reads. Pauses take no time.
    #[derive(Clone, Default)]
    struct Counting {
        reads: Arc<Mutex<u32>>,
        pauses: Arc<Mutex<Vec<Duration>>>,
    }

    impl Mmio for Counting {
        fn len(&self) -> usize {
            4
        }

        fn r32(&self, _: usize) -> u32 {
            let mut reads = self.reads.lock().unwrap();
            *reads += 1;
            *reads
        }

        fn w32(&self, _: usize, _: u32) {}

        fn pause(&self, time: Duration) {
            self.pauses.lock().unwrap().push(time);
        }
    }

    #[test]
    fn a_register_that_becomes_ready_is_read_until_then_with_pauses_that_grow() {
        let bar = Counting::default();
        assert_eq!(Reg(0).wait(&bar, 4, 4, Duration::from_millis(10)), Ok(4));
        let micros: Vec<_> = bar.pauses.lock().unwrap().iter().map(Duration::as_micros).collect();
        assert_eq!(micros, [1, 2, 4]);
    }

    #[test]
    fn a_register_that_never_becomes_ready_is_waited_for_as_long_as_the_limit_says() {
        for within in [Duration::ZERO, Duration::from_nanos(5), Duration::from_millis(10), Duration::from_secs(1)] {
            let bar = Counting::default();
            let timeout = Reg(0).wait(&bar, 1 << 31, 1 << 31, within).unwrap_err();
            let (pauses, reads) = (bar.pauses.lock().unwrap().clone(), *bar.reads.lock().unwrap());
            let waited: Duration = pauses.iter().sum();
            assert!(waited >= within && waited <= within + within / 32 + Duration::from_micros(1), "{waited:?}");
            assert!(pauses.len() < 80 && reads as usize == pauses.len() + 1, "{} pauses", pauses.len());
            assert_eq!((timeout.within, timeout.last), (within, reads));
        }
    }
}
