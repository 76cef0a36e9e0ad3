//! How far a port may run ahead of its wire, where ports share a channel.
//!
//! ```text
//!            ┌────────── at most WINDOW frames ─────────┐
//!   given ──►│ staged ► channel (in order) ► port's FIFO │──► wire: counted by the port
//!            └───────────────────────────────────────────┘
//! ```
//!
//! A channel is in order. If the FIFO of its next frame's port is full, because the link is slow or its partner pauses it, the channel
//! waits, and with it the frames of every other port behind that one. So nothing is put into a shared channel that its port's FIFO
//! has no room for: the frames that a port was given and has not sent, by its own statistics, never exceed [`WINDOW`]. A port
//! that stands still refuses packets then, and nobody else notices.
//!
//! The statistics are read when the window is used up, not before: two reads for up to [`WINDOW`] frames. A channel that has one owner
//! has no window and costs no read; that is what [`Config`](super::Config) chooses wherever there are channels enough.

use super::regs::statistics;
use towpath_bus::Mmio;

/// Frames that find room in a port's FIFO whatever their length: it has 15 blocks of 1 KiB (`CPSW_MAX_BLKS_TX` in Linux), and the
/// longest frame takes two.
pub(super) const WINDOW: u32 = 7;

/// The window of one port.
#[derive(Debug)]
pub(super) struct PortWindow<M> {
    bar: M,
    port: u8,
    /// Frames given, and frames that left when that was last looked at; they differ by at most the window.
    given: u32,
    left: u32,
}

impl<M: Mmio> PortWindow<M> {
    /// For MAC port `port`, which has nothing to send now.
    pub(super) fn new(bar: M, port: u8) -> PortWindow<M> {
        let mut window = PortWindow { bar, port, given: 0, left: 0 };
        window.reopen();
        window
    }

    /// Frames that the port may be given now; looks at its statistics if by what is known there are none.
    #[inline]
    pub(super) fn room(&mut self) -> usize {
        if self.outstanding() >= WINDOW {
            self.left = self.count();
            if self.outstanding() > WINDOW {
                // It says that it sent more than it was given: it has sent all of it.
                self.given = self.left;
            }
        }
        WINDOW.saturating_sub(self.outstanding()) as usize
    }

    /// One frame more was given.
    #[inline]
    pub(super) fn give(&mut self) {
        self.given = self.given.wrapping_add(1);
    }

    /// Nothing is outstanding: the link was down, and what was lost with it was not counted.
    pub(super) fn reopen(&mut self) {
        self.left = self.count();
        self.given = self.left;
    }

    #[inline]
    fn outstanding(&self) -> u32 {
        self.given.wrapping_sub(self.left)
    }

    /// Frames that have left, without those that the MAC itself made to pause its partner.
    fn count(&self) -> u32 {
        let read = |register| statistics::of_port(register, self.port).read(&self.bar);
        read(statistics::TX_GOOD).wrapping_sub(read(statistics::TX_PAUSE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;
    use std::sync::atomic::Ordering::Relaxed;

    /// The two counters of port 3.
    #[derive(Debug, Default)]
    struct Counted {
        good: AtomicU32,
        pause: AtomicU32,
        reads: AtomicU32,
    }

    #[derive(Debug, Default, Clone)]
    struct Port(Arc<Counted>);

    impl Mmio for Port {
        fn len(&self) -> usize {
            0x4_0000
        }

        fn r32(&self, at: usize) -> u32 {
            self.0.reads.fetch_add(1, Relaxed);
            match at {
                0x3_a634 => self.0.good.load(Relaxed),
                0x3_a640 => self.0.pause.load(Relaxed),
                _ => panic!("{at:#x} was read"),
            }
        }

        fn w32(&self, _: usize, _: u32) {}
    }

    /// A port whose counters begin at `first`, and its window, used up.
    fn used_up(first: u32) -> (Port, PortWindow<Port>) {
        let port = Port::default();
        port.0.good.store(first, Relaxed);
        let mut window = PortWindow::new(port.clone(), 3);
        assert_eq!(window.room(), WINDOW as usize);
        (0..WINDOW).for_each(|_| window.give());
        assert_eq!(window.room(), 0);
        (port, window)
    }

    #[test]
    fn a_port_is_given_what_its_fifo_holds_and_more_only_for_what_has_left() {
        // Across the counter's end.
        let (port, mut window) = used_up(u32::MAX - 2);
        port.0.good.fetch_add(5, Relaxed);
        assert_eq!(window.room(), 5);
        let reads = port.0.reads.load(Relaxed);
        (0..4).for_each(|_| window.give());
        assert_eq!((window.room(), port.0.reads.load(Relaxed)), (1, reads), "known room costs no read");
    }

    #[test]
    fn frames_that_the_mac_made_itself_open_no_window() {
        let (port, mut window) = used_up(0);
        port.0.good.store(4, Relaxed);
        port.0.pause.store(4, Relaxed);
        assert_eq!(window.room(), 0);
    }

    #[test]
    fn a_count_that_cannot_be_opens_the_window_no_wider_than_it_is() {
        let (port, mut window) = used_up(0);
        port.0.good.store(5000, Relaxed);
        assert_eq!(window.room(), WINDOW as usize);
        (0..WINDOW).for_each(|_| window.give());
        assert_eq!(window.room(), 0);
    }

    #[test]
    fn what_a_link_lost_is_outstanding_until_the_window_is_reopened() {
        let (_port, mut window) = used_up(0);
        window.reopen();
        assert_eq!(window.room(), WINDOW as usize);
    }
}
