//! Reports to the ingress when the packets before a barrier have left by the egress, so that it may
//! move their flows.
//!
//! ```text
//!   begin ──► Held ────────────► Released ──► Sent ─────────► Left ────────────► passed
//!             for more of their  waiting      accepted by     the egress, until
//!             flow, at most the  for the      the egress,     its own barrier
//!             hold time          egress       still pending   has passed
//! ```
//!
//! Under traffic there is never a moment without packets under way, so the packets before the
//! barrier are followed; later packets may be anywhere.

use crate::gro_stage::GroStage;
use std::time::{Duration, Instant};
use towpath_packet::port::{RxBarrier, RxQueue, TxBarrier, TxQueue};

/// Follows the barrier of the ingress through one route.
#[derive(Debug, Default)]
pub(super) struct OrderBarrier {
    state: BarrierState,
    /// Packets that the egress has accepted so far.
    sent_packets: u64,
}

/// Position of the last packet before the barrier.
#[derive(Debug, Clone, Copy, Default)]
enum BarrierState {
    /// There is no barrier.
    #[default]
    None,
    /// Held for more of its flow, since this moment at the latest.
    Held(Instant),
    /// Waiting for the egress.
    Released,
    /// Accepted by the egress; the number of packets accepted until then.
    Sent(u64),
    /// Gone from the egress, but packets of another lane may still overtake it below.
    Left,
}

impl OrderBarrier {
    /// Counts packets that the egress accepted.
    #[inline]
    pub(super) fn sent(&mut self, packets: usize) {
        self.sent_packets += packets as u64;
    }

    /// Whether the barrier may pass although no packet moves.
    pub(super) fn is_pending(&self) -> bool {
        matches!(self.state, BarrierState::Left)
    }

    /// Advances the barrier; called while no packet waits for the egress.
    #[inline]
    pub(super) fn step(&mut self, rx: &mut impl RxQueue, gro_stage: Option<&mut GroStage>, tx: &mut impl TxQueue) {
        let (held, hold) = gro_stage.as_ref().map_or((0, Duration::ZERO), |c| (c.held(), c.hold()));
        if matches!(self.state, BarrierState::None) {
            // Without a hold time the GRO stage flushes with the burst or after a few bursts.
            if (held > 0 && hold.is_zero()) || !rx.order_barrier().is_some_and(RxBarrier::begin) {
                return;
            }
            self.state =
                if held == 0 { BarrierState::Sent(self.sent_packets) } else { BarrierState::Held(Instant::now()) };
        }
        match self.state {
            BarrierState::Held(_) if held == 0 => self.state = BarrierState::Sent(self.sent_packets),
            BarrierState::Held(since) if since.elapsed() > hold => {
                if let Some(gro_stage) = gro_stage {
                    gro_stage.idle();
                }
                self.state = BarrierState::Released;
            }
            BarrierState::Released => self.state = BarrierState::Sent(self.sent_packets),
            _ => {}
        }
        if let BarrierState::Sent(number) = self.state
            && self.sent_packets.saturating_sub(tx.pending() as u64) >= number
        {
            if let Some(barrier) = tx.order_barrier() {
                barrier.begin();
            }
            self.state = BarrierState::Left;
        }
        if matches!(self.state, BarrierState::Left) && tx.order_barrier().is_none_or(TxBarrier::passed) {
            if let Some(barrier) = rx.order_barrier() {
                barrier.passed();
            }
            self.state = BarrierState::None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gro_stage::{GroMode, GroStageConfig};
    use std::sync::Arc;
    use towpath_packet::port::{Layer, State, Wake};
    use towpath_packet::{Backing, Batch, Checksum, Counters, Direction, Offloads, Packet, Pool, PoolConfig};

    /// Counts barriers that began, and those that passed.
    #[derive(Default)]
    struct Ingress {
        begun: usize,
        passed_barriers: usize,
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
            self.begun += 1;
            true
        }
        fn passed(&mut self) {
            self.passed_barriers = self.begun;
        }
    }

    /// An egress with pending packets; `lagging`: its own barrier has not passed.
    #[derive(Default)]
    struct Egress {
        pending: usize,
        lagging: bool,
        begun: usize,
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
            self.begun += 1;
        }
        fn passed(&mut self) -> bool {
            !self.lagging
        }
    }

    fn step(barrier: &mut OrderBarrier, rx: &mut Ingress, tx: &mut Egress, pending: usize) {
        tx.pending = pending;
        barrier.step(rx, None, tx);
    }

    #[test]
    fn a_barrier_passes_an_egress_that_always_has_pending_packets() {
        let (mut barrier, mut rx, mut tx) = (OrderBarrier::default(), Ingress::default(), Egress::default());
        barrier.sent(10);
        step(&mut barrier, &mut rx, &mut tx, 10);
        assert_eq!((rx.begun, rx.passed_barriers), (1, 0));
        barrier.sent(10);
        step(&mut barrier, &mut rx, &mut tx, 11);
        assert_eq!((rx.begun, rx.passed_barriers), (1, 0), "one packet from before the barrier is still pending");
        barrier.sent(10);
        step(&mut barrier, &mut rx, &mut tx, 20);
        assert_eq!((rx.begun, rx.passed_barriers), (1, 1));
        step(&mut barrier, &mut rx, &mut tx, 0);
        assert_eq!((rx.begun, rx.passed_barriers), (2, 2));
    }

    #[test]
    fn a_barrier_passes_only_when_another_lane_cannot_overtake_the_packets_before_it() {
        let (mut barrier, mut rx, mut tx) = (OrderBarrier::default(), Ingress::default(), Egress::default());
        tx.lagging = true;
        barrier.sent(10);
        step(&mut barrier, &mut rx, &mut tx, 10);
        assert_eq!((tx.begun, barrier.is_pending()), (0, false));
        for _ in 0..3 {
            step(&mut barrier, &mut rx, &mut tx, 0);
            assert_eq!((tx.begun, rx.passed_barriers, barrier.is_pending()), (1, 0, true));
        }
        tx.lagging = false;
        step(&mut barrier, &mut rx, &mut tx, 0);
        assert_eq!((tx.begun, rx.passed_barriers, barrier.is_pending()), (1, 1, false));
    }

    #[test]
    fn with_a_hold_time_packets_held_at_the_barrier_are_sent_and_later_ones_may_be_held() {
        let config = PoolConfig::default().capacity(256).backing(Backing::Anonymous);
        let mut cache = Pool::new(config).unwrap().cache(Direction::Tx).unwrap();
        let config = GroStageConfig { mode: GroMode::On, hold: Duration::from_millis(5), ..Default::default() };
        let mut gro_stage = GroStage::new(&config, Layer::Ip, Offloads::ALL, Arc::default());
        let mut flow = 0u8;
        let mut push = |gro_stage: &mut GroStage| {
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
            let _ = gro_stage.push(&mut batch, true);
        };
        let (mut barrier, mut rx) = (OrderBarrier::default(), Ingress::default());
        push(&mut gro_stage);
        assert_eq!(gro_stage.held(), 1);
        barrier.step(&mut rx, Some(&mut gro_stage), &mut Egress::default());
        let (begun_at, mut sent) = (Instant::now(), 0);
        // Packets keep coming, so the stage always holds some.
        while rx.passed_barriers == 0 {
            assert!(begun_at.elapsed() < Duration::from_secs(10), "never passed");
            std::thread::sleep(Duration::from_micros(200));
            push(&mut gro_stage);
            let mut batch = Batch::new();
            gro_stage.fill(&mut batch);
            sent += batch.len();
            barrier.sent(batch.len());
            barrier.step(&mut rx, Some(&mut gro_stage), &mut Egress::default());
            assert!(gro_stage.held() > 0);
        }
        assert!(begun_at.elapsed() >= config.hold && sent > 0);
    }
}
