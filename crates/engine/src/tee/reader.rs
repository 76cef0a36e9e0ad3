//! The reading side of a tee.

use super::attachment::Attachment;
use super::{POLL, TeeRecord};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;
use towpath_packet::Notifier;
use towpath_packet::record_ring::Consumer;
use towpath_sys::poll::PollSet;

/// The records of all routes of a tee, for one thread. They come by time, as far as they are in the
/// rings.
#[derive(Debug)]
pub struct TeeReader {
    attachment: Arc<Attachment>,
    rings: Vec<Consumer>,
    notifier: Arc<Notifier>,
}

impl TeeReader {
    pub(super) fn new(attachment: Arc<Attachment>, notifier: Arc<Notifier>) -> TeeReader {
        TeeReader { attachment, rings: Vec::new(), notifier }
    }

    /// Shows up to `most` records and their bytes to `read`, which returns whether it takes them;
    /// returns how many were taken. It ends with the first that is not.
    pub fn read(&mut self, most: usize, mut read: impl FnMut(&TeeRecord, &[u8]) -> bool) -> usize {
        self.attachment.take_new(&mut self.rings);
        let mut taken = 0;
        while taken < most {
            let times = self.rings.iter_mut().enumerate().filter_map(|(i, ring)| Some((ring.peek()?[0], i)));
            let Some((_, first)) = times.min() else { break };
            let Some(ring) = self.rings.get_mut(first) else { break };
            if !ring.take(|words, bytes| read(&TeeRecord::new(words), bytes)) {
                break;
            }
            taken += 1;
        }
        if taken > 0 {
            self.rings.iter_mut().for_each(Consumer::release);
        } else {
            // Those of ports that have left.
            self.rings.retain_mut(|ring| !ring.is_closed());
        }
        taken
    }

    /// Sleeps until a ring fills, `also` is readable, or [`POLL`] has passed.
    pub fn wait(&mut self, also: Option<RawFd>) {
        self.wait_for(also, POLL);
    }

    fn wait_for(&mut self, also: Option<RawFd>, time: Duration) {
        self.notifier.arm();
        // Behind the arming: records in a ring that was added before it woke nothing.
        self.attachment.take_new(&mut self.rings);
        if self.rings.iter_mut().all(|ring| ring.peek().is_none()) {
            let mut set = PollSet::with_capacity(2);
            set.readable(self.notifier.fd());
            also.into_iter().for_each(|fd| set.readable(fd));
            set.wait(time);
        }
        self.notifier.disarm();
    }

    /// Whether the tee is detached and every record was taken.
    pub fn is_closed(&mut self) -> bool {
        // The flag first: no ring is added behind it.
        let is_detached = self.attachment.is_detached();
        self.attachment.take_new(&mut self.rings);
        is_detached && self.rings.iter_mut().all(Consumer::is_closed)
    }
}
