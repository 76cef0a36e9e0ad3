//! When what was received has left by the egress, so that an ingress may let its flows go another way.
//!
//! ```text
//!   mark ──► held for more of its flow ──► released ──► taken by the egress ──► left: settled, and the next mark
//!            at most the hold time         it waits     an egress that sends behind the
//!                                                       caller's back always has some under way
//! ```
//!
//! Never is everything gone while traffic flows, so a mark is followed through: what came after it may still be anywhere.

use crate::coalesce::Coalescer;
use std::time::{Duration, Instant};
use towpath_packet::port::RxQueue;

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
}

impl Settling {
    /// The egress took packets.
    #[inline]
    pub(super) fn took(&mut self, packets: usize) {
        self.taken += packets as u64;
    }

    /// To be called while nothing waits for the egress, of whose packets `pending` have not left yet.
    #[inline]
    pub(super) fn step(&mut self, rx: &mut impl RxQueue, coalescer: Option<&mut Coalescer>, pending: usize) {
        let (held, hold) = coalescer.as_ref().map_or((0, Duration::ZERO), |c| (c.held(), c.hold()));
        if matches!(self.mark, Mark::Unset) {
            self.mark = match (held, hold.is_zero()) {
                (0, _) => Mark::Taken(self.taken),
                (_, false) => Mark::Held(Instant::now()),
                // Let go with the burst, or after a few.
                (_, true) => return,
            };
            rx.mark();
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
            && self.taken.saturating_sub(pending as u64) >= taken
        {
            rx.settled();
            self.mark = Mark::Unset;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coalesce::{CoalesceConfig, Mode};
    use std::sync::Arc;
    use towpath_packet::port::{Layer, State, Wake};
    use towpath_packet::{Backing, Batch, Counters, Csum, Direction, Offloads, Packet, Pool, PoolConfig};

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
        fn mark(&mut self) {
            self.marks += 1;
        }
        fn settled(&mut self) {
            self.settled = self.marks;
        }
        fn state(&self) -> State {
            State::Up
        }
        fn wake(&self) -> Wake {
            Wake::Poll
        }
        fn restrict(&mut self, _: Offloads) {}
        fn counters(&self) -> &Arc<Counters> {
            &self.counters
        }
    }

    #[test]
    fn an_egress_that_always_has_something_under_way_settles_what_left_before() {
        let (mut settling, mut rx) = (Settling::default(), Ingress::default());
        settling.took(10);
        settling.step(&mut rx, None, 10);
        assert_eq!((rx.marks, rx.settled), (1, 0));
        settling.took(10);
        settling.step(&mut rx, None, 11);
        assert_eq!((rx.marks, rx.settled), (1, 0), "one from before the mark is still there");
        settling.took(10);
        settling.step(&mut rx, None, 20);
        assert_eq!((rx.marks, rx.settled), (1, 1));
        settling.step(&mut rx, None, 0);
        assert_eq!((rx.marks, rx.settled), (2, 2));
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
            packet.set_csum(Csum::Verified);
            batch.push(packet).unwrap();
            coalescer.push(&mut batch, true);
        };
        let (mut settling, mut rx) = (Settling::default(), Ingress::default());
        push(&mut coalescer);
        assert_eq!(coalescer.held(), 1);
        settling.step(&mut rx, Some(&mut coalescer), 0);
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
            settling.step(&mut rx, Some(&mut coalescer), 0);
            assert!(coalescer.held() > 0);
        }
        assert!(marked.elapsed() >= config.hold && sent > 0);
    }
}
