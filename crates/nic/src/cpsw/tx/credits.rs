//! The number of frames that a port may have in a channel that ports share.
//!
//! ```text
//!              ┌───────── at most MAX_FRAMES frames ────────┐
//!   submitted ►│ staged ► channel (in order) ► port's FIFO  │──► wire: the port counts them
//!              └────────────────────────────────────────────┘
//! ```
//!
//! A channel is in order. If the FIFO of its next frame's port is full, because the link is slow or
//! its partner pauses it, the channel waits, and the frames of all other ports behind that frame
//! wait too. Therefore a port submits to a shared channel only as many frames as its FIFO takes:
//! the frames that were submitted and that the port's statistics do not count as sent never exceed
//! [`MAX_FRAMES`]. A stalled port refuses packets, and no other port is delayed.
//!
//! The statistics are read only when the credits are used up: two reads for up to [`MAX_FRAMES`]
//! frames. A channel with one owner needs no credits and costs no read;
//! [`Config`](super::super::Config) chooses that wherever there are enough channels.

use super::super::regs::statistics;
use towpath_bus::Mmio;

/// Frames that fit into a port's FIFO at any length: it has 15 blocks of 1 KiB
/// (`CPSW_MAX_BLKS_TX` in Linux), and the longest frame takes two.
const MAX_FRAMES: u32 = 7;

/// The credits of one port.
#[derive(Debug)]
pub(in crate::cpsw) struct TxCredits<M> {
    bar: M,
    port: u8,
    /// Frames submitted, and frames sent by the statistics that were read last. They differ by at
    /// most [`MAX_FRAMES`].
    submitted: u32,
    sent: u32,
}

impl<M: Mmio> TxCredits<M> {
    /// For MAC port `port`, which has no frame to send now.
    pub(in crate::cpsw) fn new(bar: M, port: u8) -> TxCredits<M> {
        let mut credits = TxCredits { bar, port, submitted: 0, sent: 0 };
        credits.reset();
        credits
    }

    /// The number of frames that can be submitted now. Reads the statistics if no credit is left.
    #[inline]
    pub(super) fn available(&mut self) -> usize {
        if self.outstanding() >= MAX_FRAMES {
            self.sent = self.read_sent();
            if self.outstanding() > MAX_FRAMES {
                // The port counts more frames than were submitted: it has sent all of them.
                self.submitted = self.sent;
            }
        }
        MAX_FRAMES.saturating_sub(self.outstanding()) as usize
    }

    /// A frame was submitted.
    #[inline]
    pub(super) fn consume(&mut self) {
        self.submitted = self.submitted.wrapping_add(1);
    }

    /// No frame is outstanding: the link was down, and the statistics do not count the frames that
    /// it lost.
    pub(super) fn reset(&mut self) {
        self.sent = self.read_sent();
        self.submitted = self.sent;
    }

    #[inline]
    fn outstanding(&self) -> u32 {
        self.submitted.wrapping_sub(self.sent)
    }

    /// Frames that the port has sent, without the pause frames of the MAC.
    fn read_sent(&self) -> u32 {
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

    /// A port whose counters start at `first`, and its credits, all used up.
    fn used_up(first: u32) -> (Port, TxCredits<Port>) {
        let port = Port::default();
        port.0.good.store(first, Relaxed);
        let mut credits = TxCredits::new(port.clone(), 3);
        assert_eq!(credits.available(), MAX_FRAMES as usize);
        (0..MAX_FRAMES).for_each(|_| credits.consume());
        assert_eq!(credits.available(), 0);
        (port, credits)
    }

    #[test]
    fn a_port_submits_what_its_fifo_takes_and_more_only_after_frames_were_sent() {
        // Across the wrap of the counter.
        let (port, mut credits) = used_up(u32::MAX - 2);
        port.0.good.fetch_add(5, Relaxed);
        assert_eq!(credits.available(), 5);
        let reads = port.0.reads.load(Relaxed);
        (0..4).for_each(|_| credits.consume());
        assert_eq!((credits.available(), port.0.reads.load(Relaxed)), (1, reads), "known credits cost no read");
    }

    #[test]
    fn pause_frames_of_the_mac_give_no_credit() {
        let (port, mut credits) = used_up(0);
        port.0.good.store(4, Relaxed);
        port.0.pause.store(4, Relaxed);
        assert_eq!(credits.available(), 0);
    }

    #[test]
    fn an_impossible_count_gives_no_more_credits_than_the_fifo_has() {
        let (port, mut credits) = used_up(0);
        port.0.good.store(5000, Relaxed);
        assert_eq!(credits.available(), MAX_FRAMES as usize);
        (0..MAX_FRAMES).for_each(|_| credits.consume());
        assert_eq!(credits.available(), 0);
    }

    #[test]
    fn frames_that_a_link_lost_are_outstanding_until_the_credits_are_reset() {
        let (_port, mut credits) = used_up(0);
        credits.reset();
        assert_eq!(credits.available(), MAX_FRAMES as usize);
    }
}
