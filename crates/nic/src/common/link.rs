//! The state of the link: the watchdog of one queue notes it, and all queues and handles read it.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// State of the link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkStatus {
    /// Whether the link is up.
    pub up: bool,
    /// Mb/s.
    pub speed: u32,
    /// Whether both sides can send at once.
    pub full_duplex: bool,
}

/// A [`LinkStatus`] that threads share, in one word. At first the link is down.
#[derive(Debug, Default)]
pub(crate) struct LinkCell(AtomicU32);

impl LinkCell {
    /// The status as it was noted last.
    pub(crate) fn get(&self) -> LinkStatus {
        let word = self.0.load(Relaxed);
        LinkStatus { up: word & 1 != 0, full_duplex: word & 2 != 0, speed: word >> 2 }
    }

    /// Whether the link is up: one load.
    #[inline]
    pub(crate) fn is_up(&self) -> bool {
        self.0.load(Relaxed) & 1 != 0
    }

    /// Notes a status; returns whether the link was up and is down now.
    pub(crate) fn set(&self, status: LinkStatus) -> bool {
        let word = u32::from(status.up) | u32::from(status.full_duplex) << 1 | status.speed << 2;
        let before = self.0.swap(word, Relaxed);
        before & 1 != 0 && !status.up
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_goes_down_is_noticed_once() {
        let link = LinkCell::default();
        let up = LinkStatus { up: true, speed: 1000, full_duplex: true };
        assert!(!link.set(up) && link.is_up());
        assert_eq!(link.get(), up);
        assert!(link.set(LinkStatus { up: false, ..up }));
        assert!(!link.set(LinkStatus { up: false, ..up }) && !link.is_up());
    }
}
