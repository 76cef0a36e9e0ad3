//! A ring in shared memory, its entries read and written as atomic words.

use super::{Desc, RingMemory, wakeup};
use crate::untrusted::UntrustedMem;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use towpath_sys::mmap::Mmap;
use towpath_sys::xsk::RingMap;

mod sealed {
    pub trait Sealed {}
    impl Sealed for u64 {}
    impl Sealed for super::Desc {}
}

/// The entry of a ring: whole words, of which every bit pattern is a value.
pub trait Entry: Copy + sealed::Sealed {
    /// Number of words of eight bytes in an entry.
    const WORDS: usize;
    /// Builds an entry from its words, each read once.
    fn read(word: impl Fn(usize) -> u64) -> Self;
    /// Writes the words of the entry.
    fn write(self, word: impl Fn(usize, u64));
}

impl Entry for u64 {
    const WORDS: usize = 1;
    #[inline]
    fn read(word: impl Fn(usize) -> u64) -> u64 {
        word(0)
    }
    #[inline]
    fn write(self, word: impl Fn(usize, u64)) {
        word(0, self);
    }
}

impl Entry for Desc {
    const WORDS: usize = 2;
    #[inline]
    fn read(word: impl Fn(usize) -> u64) -> Desc {
        let addr = word(0);
        let [a, b, c, d, e, f, g, h] = word(1).to_ne_bytes();
        Desc { addr, len: u32::from_ne_bytes([a, b, c, d]), options: u32::from_ne_bytes([e, f, g, h]) }
    }
    #[inline]
    fn write(self, word: impl Fn(usize, u64)) {
        let ([a, b, c, d], [e, f, g, h]) = (self.len.to_ne_bytes(), self.options.to_ne_bytes());
        word(0, self.addr);
        word(1, u64::from_ne_bytes([a, b, c, d, e, f, g, h]));
    }
}

/// The offsets of a ring's parts from the first byte of its memory (`xdp_ring_offset`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Layout {
    /// The producer's counter, 32 bits.
    pub producer: u64,
    /// The consumer's counter, 32 bits.
    pub consumer: u64,
    /// The first entry.
    pub desc: u64,
    /// The flags, 32 bits.
    pub flags: u64,
}

impl Layout {
    /// A ring that begins at `at`, a multiple of 64, laid out as in Linux: counters and flags in
    /// lines of their own, 128 bytes apart if both sides write.
    pub const fn at(at: u64) -> Layout {
        Layout { producer: at, consumer: at + 128, flags: at + 196, desc: at + 320 }
    }

    /// Bytes of a ring with that layout, to the end of its last entry of `words` words, rounded up
    /// to whole lines.
    pub const fn bytes(size: u32, words: usize) -> u64 {
        (320 + size as u64 * words as u64 * 8).next_multiple_of(128)
    }
}

/// A ring in memory that another process, or the kernel, may write to at any moment.
#[derive(Debug)]
pub struct Mapped<T> {
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    entries: NonNull<AtomicU64>,
    /// The bits of an entry's index: a power of two less one.
    mask: u32,
    _memory: RingPages,
    holds: PhantomData<fn() -> T>,
}

/// The memory of a ring: page-aligned, in place for as long as the value lives, and without
/// references to its bytes.
#[derive(Debug)]
enum RingPages {
    Shared(UntrustedMem),
    Kernel(Mmap),
}

impl RingPages {
    fn at(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
        match self {
            RingPages::Shared(memory) => memory.at(offset, len),
            RingPages::Kernel(memory) => memory.at(offset, len),
        }
    }
}

// SAFETY: the words are only accessed as atomics, and the memory that they lie in is kept alive.
unsafe impl<T> Send for Mapped<T> {}
// SAFETY: as for Send.
unsafe impl<T> Sync for Mapped<T> {}

impl<T: Entry> Mapped<T> {
    /// The ring of `size` entries, a power of two, that lies in `memory` at `layout`; `None` if it
    /// does not lie inside, or is not aligned.
    pub fn new(memory: &UntrustedMem, layout: &Layout, size: u32) -> Option<Mapped<T>> {
        Mapped::in_pages(RingPages::Shared(memory.clone()), layout, size)
    }

    fn in_pages(memory: RingPages, layout: &Layout, size: u32) -> Option<Mapped<T>> {
        let entries = (size as usize).checked_mul(T::WORDS * 8).filter(|_| size.is_power_of_two())?;
        let at = |offset: u64, len, align| {
            let offset = usize::try_from(offset).ok().filter(|offset| offset % align == 0)?;
            memory.at(offset, len)
        };
        Some(Mapped {
            producer: at(layout.producer, 4, 4)?.cast(),
            consumer: at(layout.consumer, 4, 4)?.cast(),
            flags: at(layout.flags, 4, 4)?.cast(),
            entries: at(layout.desc, entries, 8)?.cast(),
            mask: size - 1,
            _memory: memory,
            holds: PhantomData,
        })
    }

    /// A ring of an AF_XDP socket; `None` if the kernel placed it outside of its mapping.
    pub fn from_kernel(ring: RingMap) -> Option<Mapped<T>> {
        let at = ring.offsets();
        let layout = Layout { producer: at.producer, consumer: at.consumer, desc: at.desc, flags: at.flags };
        let size = ring.size();
        Mapped::in_pages(RingPages::Kernel(ring.into_memory()), &layout, size)
    }

    #[inline]
    fn word(&self, at: u32, word: usize) -> &AtomicU64 {
        let index = (at & self.mask) as usize * T::WORDS + word;
        // SAFETY: the entry is one of the ring's, and `word` below its number of words, so it lies
        // in the memory, aligned; it is only accessed as an atomic.
        unsafe { self.entries.add(index).as_ref() }
    }

    #[inline]
    fn flags(&self) -> &AtomicU32 {
        // SAFETY: the word lies in memory that is kept alive; it is only accessed as an atomic.
        unsafe { self.flags.as_ref() }
    }

    /// Whether the other side sleeps, or may, and must be woken. Called after the counter was
    /// stored.
    #[inline]
    pub fn needs_wakeup(&self) -> bool {
        wakeup::is_needed(self.flags())
    }

    /// Sets whether this side must be woken. Before it sleeps it reads the ring once more.
    #[inline]
    pub fn set_needs_wakeup(&self, needs: bool) {
        wakeup::set_needed(self.flags(), needs);
    }
}

impl<T: Entry> RingMemory for Mapped<T> {
    type Entry = T;
    type RingCounter = AtomicU32;

    #[inline]
    fn size(&self) -> u32 {
        self.mask + 1
    }

    #[inline]
    fn producer(&self) -> &AtomicU32 {
        // SAFETY: the word lies in memory that is kept alive; it is only accessed as an atomic.
        unsafe { self.producer.as_ref() }
    }

    #[inline]
    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { self.consumer.as_ref() }
    }

    #[inline]
    fn read(&self, at: u32) -> T {
        // Relaxed: the counters order the entries. A side that ignores them reads arbitrary words.
        T::read(|word| self.word(at, word).load(Ordering::Relaxed))
    }

    #[inline]
    fn write(&self, at: u32, entry: T) {
        entry.write(|word, value| self.word(at, word).store(value, Ordering::Relaxed));
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::xsk_ring::{Consumer, Producer, RingCorrupt};
    use crate::{Backing, Region};

    fn region(size: u32) -> UntrustedMem {
        UntrustedMem::new(Region::new(Layout::bytes(size, 2) as usize, Backing::Memfd).unwrap())
    }

    fn ends(region: &UntrustedMem, size: u32) -> (Producer<Mapped<Desc>>, Consumer<Mapped<Desc>>) {
        let ring = || Mapped::new(region, &Layout::at(0), size).unwrap();
        (Producer::new(ring()), Consumer::new(ring()))
    }

    #[test]
    fn descriptors_cross_the_memory_as_they_were() {
        let (mut producer, mut consumer) = ends(&region(4), 4);
        for round in 0..10u32 {
            let desc = Desc { addr: u64::from(round) << 40 | 7, len: round | 1 << 31, options: !round };
            assert_eq!(producer.try_reserve(1), Ok(4));
            producer.write(desc);
            assert_eq!(consumer.try_peek(1), Ok(0), "not before it is submitted");
            producer.submit();
            assert_eq!(consumer.try_peek(1), Ok(1));
            assert_eq!(consumer.read(), desc);
            consumer.release();
            let _ = producer.reserve(4);
        }
    }

    #[test]
    fn a_full_ring_has_a_place_for_each_descriptor() {
        let (mut producer, mut consumer) = ends(&region(4), 4);
        let desc = |n: u32| Desc { addr: n.into(), len: 10 + n, options: 20 + n };
        assert_eq!(producer.try_reserve(4), Ok(4));
        (0..4).for_each(|n| producer.write(desc(n)));
        producer.submit();
        assert_eq!(consumer.try_peek(4), Ok(4));
        (0..4).for_each(|n| assert_eq!(consumer.read(), desc(n)));
    }

    #[test]
    fn entries_are_read_as_long_as_they_are_taken_and_never_more_than_are_ready() {
        let region = region(4);
        let (mut producer, mut consumer) = ends(&region, 4);
        let mut addr = 0;
        for _ in 0..5 {
            assert_eq!(producer.try_reserve(4), Ok(4));
            (0..3).for_each(|n| producer.write(Desc { addr: addr + n, ..Desc::default() }));
            producer.submit();
            assert_eq!(consumer.try_peek(3), Ok(3));
            let mut seen = Vec::new();
            assert_eq!(consumer.read_while(2, |desc| desc.addr != addr + 1), 1, "the second one is not taken");
            assert_eq!(consumer.read_while(1, |desc| (seen.push(desc.addr), true).1), 1);
            assert_eq!(consumer.read_while(usize::MAX, |desc| (seen.push(desc.addr), true).1), 1);
            assert_eq!(seen, [addr + 1, addr + 2]);
            consumer.release();
            addr += 3;
        }
    }

    #[test]
    fn a_descriptor_lies_in_memory_as_the_kernel_has_it() {
        let region = region(2);
        let (mut producer, _) = ends(&region, 2);
        producer.write(Desc { addr: 1, len: 2, options: 3 });
        let bytes = [2u32.to_ne_bytes(), 3u32.to_ne_bytes()].concat();
        assert_eq!(region.get::<8>(328).unwrap(), *bytes);
    }

    #[test]
    fn an_impossible_counter_is_reported() {
        let region = region(4);
        let (mut producer, mut consumer) = ends(&region, 4);
        for ahead in [5, u32::MAX, 1 << 31] {
            consumer.ring().producer().store(ahead, Ordering::Relaxed);
            assert_eq!(consumer.try_peek(1), Err(RingCorrupt));
        }
        for ahead in [1, 5, 1 << 31] {
            producer.ring().consumer().store(ahead, Ordering::Relaxed);
            assert_eq!(producer.try_reserve(5), Err(RingCorrupt));
        }
    }

    #[test]
    fn a_ring_that_does_not_lie_inside_is_refused() {
        let region = region(4);
        let here = Layout::at(0);
        let (far, odd) = (1 << 40, here.desc + 4);
        let cases = [
            (Layout { producer: far, ..here }, 4),
            (Layout { consumer: u64::MAX, ..here }, 4),
            (Layout { flags: 2, ..here }, 4),
            (Layout { desc: odd, ..here }, 4),
            // The last descriptor begins inside.
            (Layout { desc: region.len() as u64 - 3 * 16 - 8, ..here }, 4),
            (here, 3),
            (here, 0),
            (here, 1 << 31),
        ];
        for (layout, size) in cases {
            assert!(Mapped::<Desc>::new(&region, &layout, size).is_none(), "{layout:?} {size}");
        }
    }

    #[test]
    fn the_flag_is_seen_by_the_other_side() {
        let (producer, consumer) = ends(&region(4), 4);
        assert!(!producer.ring().needs_wakeup());
        consumer.ring().set_needs_wakeup(true);
        assert!(producer.ring().needs_wakeup());
        consumer.ring().set_needs_wakeup(false);
        assert!(!producer.ring().needs_wakeup());
    }
}
