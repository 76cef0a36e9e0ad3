//! Frames that a MAC port has counted and that nothing else accounts for.
//!
//! Two places lose frames without a word to the driver: the DMA engine drops a received frame for
//! which there is no free descriptor, and a MAC whose link is gone drops what lies in its FIFO, the
//! channel's completions notwithstanding. The port's statistics count all frames that came in, and
//! all that went out; what the queues do not account for was lost. Frames that a queue received and
//! found broken are among that.
//!
//! ```text
//!   wire ─► port counts ─► switch, engine ─► descriptors, inboxes ─► queue counts    RxLosses
//!   queue counts ─► channel ─► FIFO ─► port counts ─► wire                           TxLosses
//! ```
//!
//! Frames on their way are not lost: each comparison leaves them out, and so counts too few rather
//! than too many. One queue of a port compares, rarely; it costs up to four register reads.

use super::regs::statistics;
use std::sync::Arc;
use std::time::{Duration, Instant};
use towpath_bus::{Mmio, Reg};
use towpath_packet::{Counters, Missed, Snapshot};

/// Within this time a frame is in its queue, however late a thread of a loaded machine is.
const PERIOD: Duration = Duration::from_secs(1);
/// Calls of the queue between two looks at the clock.
const CALLS: u32 = 256;

/// A statistic of a port without others that are part of it, beyond the wrap of the registers.
#[derive(Debug)]
struct Count<M> {
    bar: M,
    port: u8,
    of: Reg,
    without: &'static [Reg],
    last: u32,
    total: u64,
}

impl<M: Mmio> Count<M> {
    /// Counts from now on.
    fn new(bar: M, port: u8, of: Reg, without: &'static [Reg]) -> Count<M> {
        let mut count = Count { bar, port, of, without, last: 0, total: 0 };
        count.last = count.registers();
        count
    }

    fn registers(&self) -> u32 {
        let read = |register| statistics::of_port(register, self.port).read(&self.bar);
        self.without.iter().fold(read(self.of), |sum, &part| sum.wrapping_sub(read(part)))
    }

    /// The frames until now. It was read last less than half a wrap of the registers ago: 24
    /// minutes of the shortest frames at 1 Gb/s.
    fn read(&mut self) -> u64 {
        let now = self.registers();
        let more = now.wrapping_sub(self.last);
        // The registers are read one after the other: a part may be ahead of the whole.
        if more <= u32::MAX / 2 {
            self.total += u64::from(more);
            self.last = now;
        }
        self.total
    }
}

/// All queues of one direction of a port.
fn sum(queues: &[Arc<Counters>]) -> Snapshot {
    queues.iter().fold(Snapshot::default(), |sum, queue| sum.plus(&queue.snapshot()))
}

/// What is lost between a port and its receive queues.
#[derive(Debug)]
pub(super) struct RxLosses<M> {
    count: Count<M>,
    queues: Vec<Arc<Counters>>,
    /// Frames that the port had received at the last look.
    received: u64,
    calls: u32,
    looked: Instant,
}

impl<M: Mmio> RxLosses<M> {
    /// For a port that is not started. Losses are counted at the first of its `queues`.
    pub(super) fn new(bar: M, port: u8, queues: Vec<Arc<Counters>>) -> RxLosses<M> {
        const WITHOUT: &[Reg] = &[statistics::RX_PAUSE, statistics::ALE_DROP, statistics::PORTMASK_DROP];
        let looked = bar.now();
        let count = Count::new(bar, port, statistics::RX_GOOD, WITHOUT);
        RxLosses { count, queues, received: 0, calls: 0, looked }
    }

    /// Called once a poll. `waiting`: how many frames of before may still lie between the port and
    /// its queues, at most.
    #[inline]
    pub(super) fn look(&mut self, waiting: impl FnOnce() -> usize) {
        self.calls += 1;
        if self.calls >= CALLS {
            self.compare(waiting);
        }
    }

    #[cold]
    fn compare(&mut self, waiting: impl FnOnce() -> usize) {
        self.calls = 0;
        let now = self.count.bar.now();
        if now.duration_since(self.looked) >= PERIOD {
            self.looked = now;
            self.add(waiting());
            self.received = self.count.read();
        }
    }

    /// The port is about to stop: what it has received until now.
    pub(super) fn end(&mut self, waiting: usize) {
        self.received = self.count.read();
        self.add(waiting);
    }

    fn add(&mut self, waiting: usize) {
        let queues = sum(&self.queues);
        let known = queues.packets + queues.all_missed() + waiting as u64;
        if let Some(first) = self.queues.first() {
            first.missed(Missed::Device, self.received.saturating_sub(known));
        }
    }
}

/// What is lost between the transmit queues of a port and its wire, with its link.
#[derive(Debug)]
pub(super) struct TxLosses<M> {
    count: Count<M>,
    queues: Vec<Arc<Counters>>,
    /// The link was down at the last look, too: nothing is on its way any more.
    was_down: bool,
}

impl<M: Mmio> TxLosses<M> {
    /// For a port that is not started. Losses are counted at the first of its `queues`.
    pub(super) fn new(bar: M, port: u8, queues: Vec<Arc<Counters>>) -> TxLosses<M> {
        const WITHOUT: &[Reg] = &[statistics::TX_PAUSE];
        TxLosses { count: Count::new(bar, port, statistics::TX_GOOD, WITHOUT), queues, was_down: false }
    }

    /// Called once a look at the link. `pending`: frames that the channel has not completed.
    pub(super) fn look(&mut self, is_up: bool, pending: usize) {
        let sent = self.count.read();
        if !is_up && self.was_down && pending == 0 {
            let queues = sum(&self.queues);
            let known = sent + queues.all_missed();
            if let Some(first) = self.queues.first() {
                first.missed(Missed::Link, queues.packets.saturating_sub(known));
            }
        }
        self.was_down = !is_up;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::sync::atomic::AtomicU64;
    use std::sync::atomic::Ordering::Relaxed;

    /// The statistics of port 2, and a clock that goes on by a period with each question.
    #[derive(Debug, Clone)]
    struct Port(Arc<(Mutex<[u32; 0x90 / 4]>, AtomicU64, Instant)>);

    impl Port {
        fn new() -> Port {
            Port(Arc::new((Mutex::new([0; 0x90 / 4]), AtomicU64::new(0), Instant::now())))
        }

        fn add(&self, at: usize, n: u32) {
            let mut counters = self.0.0.lock().unwrap();
            counters[at / 4] = counters[at / 4].wrapping_add(n);
        }
    }

    impl Mmio for Port {
        fn len(&self) -> usize {
            0x4_0000
        }

        fn r32(&self, at: usize) -> u32 {
            self.0.0.lock().unwrap()[(at - 0x3_a400) / 4]
        }

        fn w32(&self, _: usize, _: u32) {}

        fn now(&self) -> Instant {
            self.0.2 + PERIOD * self.0.1.fetch_add(1, Relaxed) as u32
        }
    }

    fn queues() -> Vec<Arc<Counters>> {
        (0..2).map(|_| Arc::default()).collect()
    }

    #[test]
    fn a_frame_is_missed_when_it_was_counted_a_period_ago_and_is_in_no_queue() {
        let (port, queues) = (Port::new(), queues());
        port.add(0, u32::MAX - 5);
        let mut losses = RxLosses::new(port.clone(), 2, queues.clone());
        let mut missed = |waiting| {
            (0..CALLS).for_each(|_| losses.look(|| waiting));
            queues[0].snapshot().missed_at(Missed::Device)
        };
        // Across the wrap of the register. Pause frames, and frames for others, are not ours.
        for (at, n) in [(0, 100), (0xc, 5), (0x28, 10), (0x88, 5)] {
            port.add(at, n);
        }
        assert_eq!(missed(0), 0, "they may be on their way");
        queues[0].moved(30, 0);
        queues[1].moved(20, 0);
        assert_eq!(missed(16), 14, "sixteen may lie in descriptors");
        assert_eq!(missed(0), 30);
        port.add(0, 10);
        assert_eq!(missed(0), 30);
        queues[1].moved(10, 0);
        assert_eq!((missed(0), missed(0)), (30, 30));
        port.add(0, 40);
        losses.end(32);
        assert_eq!(queues[0].snapshot().missed_at(Missed::Device), 38, "the last ones");
    }

    #[test]
    fn a_frame_is_lost_with_the_link_when_the_port_has_not_sent_it() {
        let (port, queues) = (Port::new(), queues());
        let mut losses = TxLosses::new(port.clone(), 2, queues.clone());
        let lost = || queues[0].snapshot().missed_at(Missed::Link);
        queues[0].moved(40, 0);
        queues[1].moved(20, 0);
        // A pause frame of the MAC is none of ours.
        port.add(0x34, 51);
        port.add(0x40, 1);
        losses.look(true, 0);
        losses.look(false, 0);
        assert_eq!(lost(), 0, "they may be on their way");
        losses.look(false, 3);
        assert_eq!(lost(), 0, "the channel has some");
        losses.look(false, 0);
        losses.look(false, 0);
        assert_eq!(lost(), 10);
    }
}
