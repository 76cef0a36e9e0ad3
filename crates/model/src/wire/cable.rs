//! A cable: two ends, and a bounded queue of frames in each direction.
//!
//! ```text
//!   Plug ── frames ring ──► Plug
//!        ◄── empties ring ──          vectors are recycled: no allocation in steady state
//! ```
//!
//! A frame from one end wakes a device that sleeps at the other.

use super::Wire;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use towpath_packet::spsc::{Consumer, Producer, ring};
use towpath_sys::EventFd;

/// The sleep state of the receiver at one end.
#[derive(Debug)]
struct SleepState {
    asleep: AtomicBool,
    /// `None` if the system has no descriptor left: the receiver polls then.
    wakeup: Option<EventFd>,
}

impl SleepState {
    fn new() -> Arc<SleepState> {
        Arc::new(SleepState { asleep: AtomicBool::new(false), wakeup: EventFd::new().ok() })
    }
}

/// One end of a cable.
#[derive(Debug)]
pub struct Plug {
    out: Producer<Vec<u8>>,
    out_empties: Consumer<Vec<u8>>,
    into: Consumer<Vec<u8>>,
    in_empties: Producer<Vec<u8>>,
    carrier: Arc<AtomicBool>,
    local: Arc<SleepState>,
    peer: Arc<SleepState>,
}

/// A cable with room for `frames` frames in each direction, rounded up to a power of two.
pub fn cable(frames: usize) -> (Plug, Plug) {
    let frames = frames.clamp(1, 1 << 20).next_power_of_two();
    let ((a_out, b_in), (b_empty_out, a_empties)) = (ring(frames), ring(frames));
    let ((b_out, a_in), (a_empty_out, b_empties)) = (ring(frames), ring(frames));
    let carrier = Arc::new(AtomicBool::new(true));
    let (local, peer) = (SleepState::new(), SleepState::new());
    let b = Plug {
        out: b_out,
        out_empties: b_empties,
        into: b_in,
        in_empties: b_empty_out,
        carrier: carrier.clone(),
        local: peer.clone(),
        peer: local.clone(),
    };
    let a = Plug { out: a_out, out_empties: a_empties, into: a_in, in_empties: a_empty_out, carrier, local, peer };
    (a, b)
}

impl Plug {
    /// Disconnects or reconnects the cable: both ends lose or regain their carrier. Frames in
    /// flight still arrive.
    pub fn set_carrier(&self, on: bool) {
        self.carrier.store(on, Ordering::Release);
    }

    /// Returns the next frame that has arrived.
    pub fn pop(&mut self) -> Option<Vec<u8>> {
        self.into.pop()
    }

    /// Returns all frames that have arrived.
    pub fn drain(&mut self) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| self.pop()).collect()
    }
}

impl Wire for Plug {
    fn send(&mut self, frame: &[u8]) -> bool {
        if self.out.free(1) == 0 {
            return false;
        }
        let mut copy = self.out_empties.pop().unwrap_or_default();
        copy.clear();
        copy.extend_from_slice(frame);
        let sent = self.out.push(copy).is_ok();
        // Dekker's pattern: the sender sees `asleep`, or the receiver sees the frame, because it
        // looks once more after it has set `asleep`.
        fence(Ordering::SeqCst);
        if self.peer.asleep.load(Ordering::Relaxed)
            && self.peer.asleep.swap(false, Ordering::Relaxed)
            && let Some(wakeup) = &self.peer.wakeup
        {
            wakeup.signal();
        }
        sent
    }

    fn receive(&mut self, into: &mut Vec<u8>) -> bool {
        let Some(frame) = self.into.pop() else { return false };
        let empty = std::mem::replace(into, frame);
        // If the other end has more empties than frames in flight, this one is freed.
        let _ = self.in_empties.push(empty);
        true
    }

    fn carrier(&self) -> bool {
        self.carrier.load(Ordering::Acquire)
    }

    fn wake(&mut self) -> Option<RawFd> {
        let wakeup = self.local.wakeup.as_ref()?;
        wakeup.clear();
        self.local.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        Some(wakeup.fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::BorrowedFd;
    use towpath_sys::poll::is_readable;

    #[test]
    fn each_end_receives_what_the_other_sent() {
        let (mut a, mut b) = cable(4);
        assert!(a.send(b"ping") && b.send(b"pong"));
        assert_eq!((a.pop().unwrap(), b.pop().unwrap()), (b"pong".to_vec(), b"ping".to_vec()));
        assert!(a.pop().is_none());
    }

    #[test]
    fn a_full_cable_refuses_and_keeps_what_it_has() {
        let (mut a, mut b) = cable(2);
        assert!(a.send(b"1") && a.send(b"2") && !a.send(b"3"));
        assert_eq!(b.drain(), [b"1", b"2"]);
        assert!(a.send(b"4"));
    }

    #[test]
    fn vectors_are_recycled() {
        let (mut a, mut b) = cable(1);
        let mut frame = Vec::with_capacity(77);
        assert!(a.send(b"1") && b.receive(&mut frame) && a.send(b"2"));
        assert!(b.pop().unwrap().capacity() >= 77, "the second frame uses the vector of the first");
    }

    #[test]
    fn a_receiver_about_to_sleep_is_woken_by_the_next_frame() {
        // SAFETY: the descriptor belongs to a cable that outlives the call.
        let readable = |fd| is_readable(unsafe { BorrowedFd::borrow_raw(fd) });
        let (mut a, mut b) = cable(4);
        assert!(a.send(b"before"));
        let fd = b.wake().unwrap();
        assert!(!readable(fd));
        assert!(a.send(b"after") && readable(fd));
        assert!(b.wake().is_some_and(|fd| !readable(fd)), "cleared by wake");
    }

    #[test]
    fn a_pulled_cable_has_no_carrier_at_either_end() {
        let (a, b) = cable(1);
        a.set_carrier(false);
        assert!(!a.carrier() && !b.carrier());
    }
}
