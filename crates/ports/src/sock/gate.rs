//! How queues and the listening thread call each other.

use super::events::Events;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use towpath_packet::Notifier;
use towpath_sys::{Epoll, EventFd, Timer};

/// Wakes a receive queue.
#[derive(Debug, Clone)]
pub(super) struct Waker {
    /// Rung from inside.
    pub(super) notifier: Arc<Notifier>,
    /// The notifier, the timer, and the kick of every application that lives on the queue.
    pub(super) epoll: Arc<Epoll>,
    /// For looking at lines again.
    pub(super) timer: Arc<Timer>,
}

impl Waker {
    fn new() -> std::io::Result<Waker> {
        let (notifier, epoll, timer) = (Arc::new(Notifier::new()?), Arc::new(Epoll::new()?), Arc::new(Timer::new()?));
        epoll.add(notifier.fd(), false)?;
        epoll.add(timer.fd(), true)?;
        Ok(Waker { notifier, epoll, timer })
    }
}

/// What the port's queues and its thread share.
#[derive(Debug)]
pub(super) struct Gate {
    /// One for each receive queue.
    pub(super) wakers: Vec<Waker>,
    /// Sessions that there may be.
    pub(super) sessions: usize,
    pub(super) events: Arc<Events>,
    /// Wakes the listening thread.
    called: EventFd,
    stop: AtomicBool,
}

impl Gate {
    pub(super) fn new(queues: u16, sessions: u16, events: Arc<Events>) -> std::io::Result<Gate> {
        let wakers = (0..queues).map(|_| Waker::new()).collect::<Result<_, _>>()?;
        Ok(Gate { wakers, sessions: sessions.into(), events, called: EventFd::new()?, stop: AtomicBool::new(false) })
    }

    /// There is something for the listening thread to free.
    pub(super) fn call(&self) {
        self.called.signal();
    }

    /// The listening thread is to end.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.call();
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Readable when the listening thread was called.
    pub(super) fn called(&self) -> RawFd {
        self.called.fd()
    }

    /// The listening thread has heard.
    pub(super) fn heard(&self) {
        self.called.clear();
    }
}
