//! The doorbell: the kernel sends what is in the TX ring when it is called.

use super::super::events::Event;
use super::SocketTx;
use crate::kernel::link::down;
use towpath_sys::netdev::Link;

impl SocketTx {
    /// Lets the kernel send what is in the ring, if it wants to be told.
    #[inline]
    pub(super) fn wake_kernel(&mut self) {
        self.unfinished = false;
        let Some(rings) = &mut self.rings else { return };
        if !rings.tx.ring().needs_wakeup() {
            return;
        }
        let (mut calls, mut waiting) = (0, rings.tx.waiting());
        while waiting > 0 {
            calls += 1;
            let result = rings.socket.wake_tx();
            let left = rings.tx.waiting();
            let progress = left < waiting;
            waiting = left;
            match result.err().and_then(|e| e.raw_os_error()) {
                None | Some(libc::EINTR) if progress => {}
                // The driver dropped one.
                Some(libc::EBUSY) => {
                    self.refused += 1;
                    self.queue.setup.events.count(Event::DroppedByDriver, 1);
                    if !progress {
                        break;
                    }
                }
                // So many in one call, or no room for more; both without loss.
                Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) if progress => {}
                Some(libc::ENETDOWN) => {
                    self.state = down(Link::Down);
                    break;
                }
                Some(libc::ENXIO | libc::ENODEV) => {
                    self.state = self.queue.gone();
                    break;
                }
                _ => {
                    self.counters.retried(1);
                    break;
                }
            }
            // Completions first: the kernel sends no more than there is room for in their ring.
        }
        self.unfinished = waiting > 0;
        self.counters.called(calls);
    }
}
