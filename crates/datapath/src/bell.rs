//! Wakes the other side of a ring, and only when it sleeps: a busy pair never makes a system call.

use crate::sync::{AtomicBool, Event, Ordering, fence};
use std::io;
use std::os::fd::RawFd;

/// A flag that the sleeper sets and a descriptor that the waker writes.
///
/// ```text
///   sleeper:  armed = true │ fence │ look into the ring, once more │ sleep on the descriptor
///   waker:    put something into the ring │ fence │ armed? ── yes ──► write the descriptor
/// ```
///
/// Both sides write one word and then read the other's, with a sequentially consistent fence in between (Dekker's pattern).
/// The two fences have an order: if the sleeper's comes first, the waker sees the flag; if the waker's comes first, the sleeper
/// sees what is in the ring. So nothing is put into the ring unnoticed by a sleeper.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Bell {
    armed: AtomicBool,
    event: Event,
}

impl Bell {
    pub(crate) fn new() -> io::Result<Bell> {
        Ok(Bell { armed: AtomicBool::new(false), event: Event::new()? })
    }

    /// The descriptor that becomes readable when the bell rings.
    pub(crate) fn fd(&self) -> RawFd {
        self.event.fd()
    }

    /// By the sleeper, before its last look: whatever comes from here on rings.
    pub(crate) fn arm(&self) {
        // Before the flag is set: a ring that comes after it must not be lost.
        self.event.clear();
        self.armed.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// By the sleeper, awake and busy: rings would be system calls for nothing.
    pub(crate) fn disarm(&self) {
        self.armed.store(false, Ordering::Relaxed);
    }

    /// By the waker, after it put something into the ring and [published](publish) it.
    #[inline]
    pub(crate) fn ring(&self) {
        if self.armed.load(Ordering::Relaxed) {
            self.wake();
        }
    }

    /// Rings if nobody has since the bell was armed.
    #[cold]
    pub(crate) fn wake(&self) {
        if self.armed.swap(false, Ordering::Relaxed) {
            self.event.signal();
        }
    }
}

#[cfg(all(test, not(loom)))]
impl Bell {
    /// How often it rang since it was last armed, as the kernel tells it.
    pub(crate) fn rung(&self) -> Option<u64> {
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", self.fd())).ok()?;
        let count = info.lines().find_map(|line| line.strip_prefix("eventfd-count:"))?;
        u64::from_str_radix(count.trim(), 16).ok()
    }
}

#[cfg(all(test, loom))]
impl Bell {
    /// Sleeps on the descriptor.
    pub(crate) fn sleep(&self) {
        self.event.wait();
    }
}

/// The waker's fence, between what it put into the ring and its look at the flag.
#[inline]
pub(crate) fn publish() {
    fence(Ordering::SeqCst);
}

#[cfg(all(test, loom))]
mod loom_models {
    use super::*;
    use std::sync::Arc;
    use towpath_packet::spsc::ring;

    #[test]
    fn whoever_looks_once_more_before_sleeping_misses_nothing() {
        crate::sync::model(|| {
            let bell = Arc::new(Bell::new().unwrap());
            let (mut producer, mut consumer) = ring::<u32>(2);
            let waker = bell.clone();
            let thread = loom::thread::spawn(move || {
                for number in 0..2 {
                    producer.push(number).unwrap();
                    publish();
                    waker.ring();
                }
            });
            let mut expected = 0;
            while expected < 2 {
                if let Some(number) = consumer.pop() {
                    assert_eq!(number, expected);
                    expected += 1;
                    bell.disarm();
                    continue;
                }
                bell.arm();
                if consumer.available(1) == 0 {
                    bell.sleep();
                }
            }
            thread.join().unwrap();
        });
    }
}
