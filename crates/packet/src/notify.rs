//! Wakes the other side of a ring, and only while it sleeps: a busy pair makes no system call.
//!
//! ```text
//!   sleeper:  armed = true      │ fence │ look into the ring once more │ sleep on the descriptor
//!   waker:    fill the ring     │ fence │ armed? ── yes ──► write the descriptor
//! ```
//!
//! Both sides write one word and then read the other's, with a sequentially consistent fence in
//! between (Dekker's pattern). The two fences have an order. If the sleeper's fence is first, the
//! waker sees the flag. If the waker's fence is first, the sleeper sees the entry in the ring. So
//! no entry is added to the ring of a sleeper without a wake-up.
//!
//! Every sleep and wake-up of the datapath follows this pattern, with the two fences of this
//! module:
//!
//! | flag | sleeper | waker |
//! |---|---|---|
//! | [`Notifier`] | a worker: `arm`, polls its queues once more, sleeps | pushes, [`publish`], `notify` |
//! | `XDP_RING_NEED_WAKEUP` | `set_needs_wakeup`, a last look, sleeps | submits, `needs_wakeup` |
//! | `PollFd` of `sock`, inverted | clears it, [`before_last_look`], a last look | submits, [`publish`] |
//!
//! The loom models here and of `xsk_ring` run the first two in every interleaving.

use crate::sync::{Ordering, fence};
use std::io;
use std::os::fd::RawFd;
use towpath_sys::sync::{EventFd, ExchangeBool};

/// A flag that the sleeper sets, and an eventfd that the waker writes.
#[derive(Debug)]
#[repr(align(128))]
pub struct Notifier {
    armed: ExchangeBool,
    event: EventFd,
}

impl Notifier {
    /// A notifier that is not armed.
    ///
    /// # Errors
    /// The error of `eventfd(2)`: no descriptor left.
    pub fn new() -> io::Result<Notifier> {
        Ok(Notifier { armed: ExchangeBool::new(false), event: EventFd::new()? })
    }

    /// The descriptor that becomes readable by a notification.
    pub fn fd(&self) -> RawFd {
        self.event.fd()
    }

    /// Sleeper, before its last look into the ring: notifications write the descriptor from here
    /// on.
    pub fn arm(&self) {
        // Before the flag is set: a notification after it must not be lost.
        self.event.clear();
        self.armed.store(true, Ordering::Relaxed);
        before_last_look();
    }

    /// Sleeper, awake and busy: notifications make no system call from here on.
    pub fn disarm(&self) {
        self.armed.store(false, Ordering::Relaxed);
    }

    /// Waker, after it added entries to the ring and called [`publish`].
    #[inline]
    pub fn notify(&self) {
        if self.armed.load(Ordering::Relaxed) {
            self.wake();
        }
    }

    /// Writes the descriptor if the notifier is armed, and disarms it.
    #[cold]
    pub fn wake(&self) {
        if self.armed.swap(false, Ordering::Relaxed) {
            self.event.signal();
        }
    }

    /// Sleeps on the descriptor.
    #[cfg(loom)]
    pub fn sleep(&self) {
        self.event.wait();
    }
}

/// The sleeper's fence, between its write to the flag and its last look into the ring.
#[inline]
pub fn before_last_look() {
    fence(Ordering::SeqCst);
}

/// The waker's fence, between its write to the ring and its look at the flag.
#[inline]
pub fn publish() {
    fence(Ordering::SeqCst);
}

#[cfg(all(test, loom))]
mod loom_models {
    use super::*;
    use crate::spsc::ring;
    use std::sync::Arc;

    #[test]
    fn a_sleeper_that_looks_once_more_misses_nothing() {
        crate::sync::model(|| {
            let notifier = Arc::new(Notifier::new().unwrap());
            let (mut producer, mut consumer) = ring::<u32>(2);
            let waker = notifier.clone();
            let thread = loom::thread::spawn(move || {
                for number in 0..2 {
                    producer.push(number).unwrap();
                    publish();
                    waker.notify();
                }
            });
            let mut expected = 0;
            while expected < 2 {
                if let Some(number) = consumer.pop() {
                    assert_eq!(number, expected);
                    expected += 1;
                    notifier.disarm();
                    continue;
                }
                notifier.arm();
                if consumer.peek(1) == 0 {
                    notifier.sleep();
                }
            }
            thread.join().unwrap();
        });
    }
}
