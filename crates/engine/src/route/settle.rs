//! When what was received has left by the egress, so that an ingress may let its flows go another way.
//!
//! ```text
//!   mark ──► held for more of its flow ──► released ──► taken by the egress ──► left ──► beyond what is each lane's
//!            at most the hold time         it waits     an egress that sends             own: settled, and the next
//!                                                       behind the caller's back         mark
//!                                                       always has some under way
//! ```
//!
//! Never is everything gone while traffic flows, so a mark is followed through: what came after it may still be anywhere.

use crate::gro_stage::Coalescer;
use std::time::{Duration, Instant};
use towpath_packet::port::{RxBarrier, RxQueue, TxBarrier, TxQueue};

/// Follows the ingress's mark through one route.
#[derive(Debug, Default)]
pub(super) struct Settling {
    mark: Mark,
    /// Packets that the egress took so far.
    taken: u64,
}

/// Where the last packet in front of the mark is.
#[derive(Debug, Clone, Copy, Default)]
enum Mark {
    /// There is no mark.
    #[default]
    Unset,
    /// Held for more of its flow, since this moment at the latest.
    Held(Instant),
    /// On its way to the egress.
    Released,
    /// Taken by the egress, as the one of this number.
    Taken(u64),
    /// Gone from the egress, perhaps to where what another lane sends could still overtake it.
    Left,
}

impl Settling {
    /// The egress took packets.
    #[inline]
    pub(super) fn took(&mut self, packets: usize) {
        self.taken += packets as u64;
    }

    /// Whether the next step may settle something although nothing moves.
    pub(super) fn is_under_way(&self) -> bool {
        matches!(self.mark, Mark::Left)
    }

    /// To be called while nothing waits for the egress.
    #[inline]
    pub(super) fn step(&mut self, rx: &mut impl RxQueue, coalescer: Option<&mut Coalescer>, tx: &mut impl TxQueue) {
        let (held, hold) = coalescer.as_ref().map_or((0, Duration::ZERO), |c| (c.held(), c.hold()));
        if matches!(self.mark, Mark::Unset) {
            // With nothing to hold for: let go with the burst, or after a few.
            if (held > 0 && hold.is_zero()) || !rx.order_barrier().is_some_and(RxBarrier::begin) {
                return;
            }
            self.mark = if held == 0 { Mark::Taken(self.taken) } else { Mark::Held(Instant::now()) };
        }
        match self.mark {
            Mark::Held(_) if held == 0 => self.mark = Mark::Taken(self.taken),
            Mark::Held(since) if since.elapsed() > hold => {
                if let Some(coalescer) = coalescer {
                    coalescer.idle();
                }
                self.mark = Mark::Released;
            }
            Mark::Released => self.mark = Mark::Taken(self.taken),
            _ => {}
        }
        if let Mark::Taken(taken) = self.mark
            && self.taken.saturating_sub(tx.pending() as u64) >= taken
        {
            if let Some(barrier) = tx.order_barrier() {
                barrier.begin();
            }
            self.mark = Mark::Left;
        }
        if matches!(self.mark, Mark::Left) && tx.order_barrier().is_none_or(TxBarrier::passed) {
            if let Some(barrier) = rx.order_barrier() {
                barrier.passed();
            }
            self.mark = Mark::Unset;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gro_stage::{CoalesceConfig, Mode};
    use std::sync::Arc;
    use towpath_packet::port::{Layer, State, Wake};
    use towpath_packet::{Backing, Batch, Checksum, Counters, Direction, Offloads, Packet, Pool, PoolConfig};

    /// Counts marks, and how many of them were settled.
    #[derive(Default)]
    struct Ingress {
        marks: usize,
        settled: usize,
        counters: Arc<Counters>,
    }

    impl RxQueue for Ingress {
        fn rx(&mut self, _: &mut Batch) -> usize {
            0
        }
        fn order_barrier(&mut self) -> Option<&mut dyn RxBarrier> {
            Some(self)
        }
        fn state(&self) -> State {
            State::Up
        }
        fn wake(&self) -> Wake {
            Wake::Poll
        }
        fn set_rx_offloads(&mut self, _: Offloads) {}
        fn counters(&self) -> &Arc<Counters> {
            &self.counters
        }
    }

    impl RxBarrier for Ingress {
        fn begin(&mut self) -> bool {
            self.marks += 1;
            true
        }
        fn passed(&mut self) {
            self.settled = self.marks;
        }
    }

    /// An egress that has packets under way, and some behind it.
    #[derive(Default)]
    struct Egress {
        pending: usize,
        behind: bool,
        marks: usize,
        counters: Arc<Counters>,
    }

    impl TxQueue for Egress {
        fn tx(&mut self, _: &mut Batch) -> usize {
            0
        }
        fn offloads(&self) -> Offloads {
            Offloads::ALL
        }
        fn pending(&self) -> usize {
            self.pending
        }
        fn order_barrier(&mut self) -> Option<&mut dyn TxBarrier> {
            Some(self)
        }
        fn counters(&self) -> &Arc<Counters> {
            &self.counters
        }
    }

    impl TxBarrier for Egress {
        fn begin(&mut self) {
            self.marks += 1;
        }
        fn passed(&mut self) -> bool {
            !self.behind
        }
    }

    fn step(settling: &mut Settling, rx: &mut Ingress, tx: &mut Egress, pending: usize) {
        tx.pending = pending;
        settling.step(rx, None, tx);
    }

    #[test]
    fn an_egress_that_always_has_something_under_way_settles_what_left_before() {
        let (mut settling, mut rx, mut tx) = (Settling::default(), Ingress::default(), Egress::default());
        settling.took(10);
        step(&mut settling, &mut rx, &mut tx, 10);
        assert_eq!((rx.marks, rx.settled), (1, 0));
        settling.took(10);
        step(&mut settling, &mut rx, &mut tx, 11);
        assert_eq!((rx.marks, rx.settled), (1, 0), "one from before the mark is still there");
        settling.took(10);
        step(&mut settling, &mut rx, &mut tx, 20);
        assert_eq!((rx.marks, rx.settled), (1, 1));
        step(&mut settling, &mut rx, &mut tx, 0);
        assert_eq!((rx.marks, rx.settled), (2, 2));
    }

    #[test]
    fn what_has_left_settles_only_when_another_lane_cannot_overtake_it_any_more() {
        let (mut settling, mut rx, mut tx) = (Settling::default(), Ingress::default(), Egress::default());
        tx.behind = true;
        settling.took(10);
        step(&mut settling, &mut rx, &mut tx, 10);
        assert_eq!((tx.marks, settling.is_under_way()), (0, false));
        for _ in 0..3 {
            step(&mut settling, &mut rx, &mut tx, 0);
            assert_eq!((tx.marks, rx.settled, settling.is_under_way()), (1, 0, true));
        }
        tx.behind = false;
        step(&mut settling, &mut rx, &mut tx, 0);
        assert_eq!((tx.marks, rx.settled, settling.is_under_way()), (1, 1, false));
    }

    #[test]
    fn with_a_hold_time_what_was_held_at_the_mark_must_have_been_sent_and_what_came_later_may_be_held() {
        let config = PoolConfig { capacity: 256, backing: Backing::Anonymous, ..Default::default() };
        let mut cache = Pool::new(config).unwrap().cache(Direction::Tx).unwrap();
        let config = CoalesceConfig { mode: Mode::On, hold: Duration::from_millis(5), ..Default::default() };
        let mut coalescer = Coalescer::new(&config, Layer::Ip, Offloads::ALL, Arc::default());
        let mut flow = 0u8;
        let mut push = |coalescer: &mut Coalescer| {
            flow = flow.wrapping_add(1);
            let mut bytes = [0; 28 + 100];
            bytes[..12].copy_from_slice(&[0x45, 0, 0, 128, 0, 0, 0x40, 0, 64, 17, 0, 0]);
            bytes[12..28].copy_from_slice(&[198, 18, 0, 1, 198, 19, 0, 1, 4, flow, 0, 9, 0, 108, 1, 1]);
            let sum = !towpath_wire::checksum::sum(&bytes[..20]);
            bytes[10..12].copy_from_slice(&sum.to_be_bytes());
            let mut batch = Batch::new();
            let mut packet = Packet::copy_from(&mut cache, &bytes).unwrap();
            packet.set_csum(Checksum::Verified);
            batch.push(packet).unwrap();
            coalescer.push(&mut batch, true);
        };
        let (mut settling, mut rx) = (Settling::default(), Ingress::default());
        push(&mut coalescer);
        assert_eq!(coalescer.held(), 1);
        settling.step(&mut rx, Some(&mut coalescer), &mut Egress::default());
        let (marked, mut sent) = (Instant::now(), 0);
        // More comes all the time, so there is always something held.
        while rx.settled == 0 {
            assert!(marked.elapsed() < Duration::from_secs(10), "never settled");
            std::thread::sleep(Duration::from_micros(200));
            push(&mut coalescer);
            let mut batch = Batch::new();
            coalescer.fill(&mut batch);
            sent += batch.len();
            settling.took(batch.len());
            settling.step(&mut rx, Some(&mut coalescer), &mut Egress::default());
            assert!(coalescer.held() > 0);
        }
        assert!(marked.elapsed() >= config.hold && sent > 0);
    }
}
