//! The device's thread.
//!
//! It works in bursts. Without work it polls some thousand times, then sleeps until the wire's descriptor
//! is readable, a register is written, or a short timeout has passed. The timeout is needed because a tail
//! is written without a fence: the driver may not see that the thread is about to sleep.

use super::Shared;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

/// Bursts without work before the thread yields, and before it sleeps.
const SPINS: u32 = 256;
const YIELDS: u32 = 1024;
/// The longest sleep, in milliseconds.
const NAP: i32 = 1;

impl Shared {
    /// Wakes the thread, if there is one.
    #[cold]
    pub(super) fn wake(&self) {
        if let Some(bell) = self.bell.as_ref().filter(|_| self.asleep.swap(false, Ordering::AcqRel)) {
            bell.ring();
        }
    }

    fn sleep(&self) {
        let Some(bell) = &self.bell else { return };
        let wire = self.lock().wire_wake(&self.env).unwrap_or(-1);
        let poll = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut fds = [poll(bell.fd()), poll(wire)];
        self.asleep.store(true, Ordering::SeqCst);
        // Look once more: work that arrived before `asleep` was set has not signalled.
        if self.lock().turn(&self.env) > 0 {
            self.asleep.store(false, Ordering::Relaxed);
            return;
        }
        // SAFETY: the pointer and length are those of an array that lives across the call; -1 is passed over.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, NAP) };
        self.asleep.store(false, Ordering::Relaxed);
        bell.take();
    }

    fn run(&self) {
        let mut idle = 0;
        self.env.dma.set_served(true);
        while !self.stop.load(Ordering::Acquire) {
            // Locks are not fair: a driver that waits for a register of a busy device is let in
            // first.
            if self.waiting.load(Ordering::Relaxed) > 0 {
                std::thread::yield_now();
                continue;
            }
            if self.lock().turn(&self.env) > 0 {
                idle = 0;
                continue;
            }
            idle += 1;
            match idle {
                ..SPINS => std::hint::spin_loop(),
                SPINS..YIELDS => std::thread::yield_now(),
                _ => {
                    self.env.dma.set_served(false);
                    self.sleep();
                    self.env.dma.set_served(true);
                }
            }
        }
        self.env.dma.set_served(false);
    }
}

pub(super) fn spawn(shared: &Arc<Shared>) -> io::Result<JoinHandle<()>> {
    let shared = shared.clone();
    std::thread::Builder::new().name("e1000e model".into()).spawn(move || shared.run())
}
