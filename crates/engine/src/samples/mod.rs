//! Samples of the packets of a route, or of a port of a hub: how long they stay, and which
//! flows are largest. And whether its queues work.
//!
//! ```text
//!   burst received ── received(): counts; one burst in 64 is a sample ─► time
//!   end of a turn  ── close(): the sample's packets have left ─────────► time ─► histogram
//!                                        │
//!   reader ── watch() ─► for some seconds more bursts are samples, and their flows are counted
//! ```
//!
//! | file | content |
//! |---|---|
//! | `mod` | [`Samples`], and the side that writes them |
//! | `flows` | [`FlowCount`]: the list of the largest flows |
//!
//! The thread of the route is the only writer of [`Samples`]; a reader takes no lock and holds up
//! nothing. What is not sampled costs two counters and a branch per burst.
//!
//! A sample stands for as many bursts as it was chosen from, so the numbers are estimates of all
//! packets. The time of a burst ends when the route, or each egress of a hub that got some of it,
//! holds no packet any more: it contains GRO, software offload, waiting for the egress, and the
//! call that sends.

mod flows;

pub use flows::{FlowCount, MAX_FLOWS};

use flows::{FlowTable, TopFlows};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use towpath_packet::port::State;
use towpath_packet::{Batch, Packet};
use towpath_wire::LinkKind;

/// Bursts from which one is chosen while nothing reads the flows.
const RARELY: u64 = 64;
/// Bursts from which one is chosen while something reads the flows.
const WATCHED: u64 = 16;
/// While something reads the flows, each burst that is no longer is a sample: a quiet route would
/// show nothing otherwise.
const SHORT: usize = 4;
/// How long flows are counted after they were read.
const WATCH: Duration = Duration::from_secs(10);

/// Buckets of [`Latency`]: bucket `i` has times below 2^i ns that are in no lower one.
pub const LATENCY_BUCKETS: usize = 40;

/// Whether a queue works, as its thread saw it last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum QueueState {
    /// It moves packets.
    #[default]
    Up,
    /// It has no link, or is not up.
    Down,
    /// It is at its end.
    Done,
    /// It never works again.
    Gone,
}

impl QueueState {
    fn of(state: &State) -> QueueState {
        match state {
            State::Up => QueueState::Up,
            State::Down(_) => QueueState::Down,
            State::Done => QueueState::Done,
            State::Gone(_) => QueueState::Gone,
        }
    }

    fn from_number(number: u64) -> QueueState {
        match number & 3 {
            0 => QueueState::Up,
            1 => QueueState::Down,
            2 => QueueState::Done,
            _ => QueueState::Gone,
        }
    }
}

/// How long packets stayed in a route: an estimate for all packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Latency {
    /// Packets by time: bucket `i` has times below 2^i ns, and at least half of that. The last one
    /// has all longer times.
    pub buckets: [u64; LATENCY_BUCKETS],
    /// The sum of all times in nanoseconds.
    pub total_ns: u64,
}

/// Numbers and samples of one route, or of a port of a hub at one worker, readable from any thread.
#[derive(Debug)]
pub struct Samples {
    packets: AtomicU64,
    bursts: AtomicU64,
    buckets: [AtomicU64; LATENCY_BUCKETS],
    total_ns: AtomicU64,
    /// Two bits each: the ingress, the egress; of a port of a hub, its receive and its transmit
    /// queue.
    queue_states: AtomicU64,
    /// The moment until which flows are counted, in milliseconds since `began`; 0: they are not.
    watched: AtomicU64,
    began: Instant,
    flows: FlowTable,
}

impl Samples {
    fn new() -> Samples {
        Samples {
            packets: AtomicU64::new(0),
            bursts: AtomicU64::new(0),
            buckets: [const { AtomicU64::new(0) }; LATENCY_BUCKETS],
            total_ns: AtomicU64::new(0),
            queue_states: AtomicU64::new(0),
            watched: AtomicU64::new(0),
            began: Instant::now(),
            flows: FlowTable::default(),
        }
    }

    /// Packets that were received.
    pub fn packets(&self) -> u64 {
        self.packets.load(Relaxed)
    }

    /// Bursts in which they were received.
    pub fn bursts(&self) -> u64 {
        self.bursts.load(Relaxed)
    }

    /// How long packets stayed.
    pub fn latency(&self) -> Latency {
        let buckets = std::array::from_fn(|i| self.buckets[i].load(Relaxed));
        Latency { buckets, total_ns: self.total_ns.load(Relaxed) }
    }

    /// The ingress and the egress, as the thread of the route saw them last; of a port of a hub,
    /// its receive and its transmit queue.
    pub fn queue_states(&self) -> (QueueState, QueueState) {
        let states = self.queue_states.load(Relaxed);
        (QueueState::from_number(states), QueueState::from_number(states >> 2))
    }

    /// From now on, and for ten seconds, flows are counted.
    pub fn watch(&self) {
        let until = self.began.elapsed() + WATCH;
        self.watched.store(until.as_millis() as u64, Relaxed);
    }

    /// The largest flows since they are counted, in no order. A flow that is written at this moment
    /// may be missing.
    pub fn flows(&self) -> Vec<FlowCount> {
        self.flows.read()
    }
}

/// The route's side: chooses samples and counts them.
pub(crate) struct Sampler {
    samples: Arc<Samples>,
    packets: u64,
    bursts: u64,
    /// The sample whose packets have not left: when it was received, and the packets that it stands
    /// for.
    open: Option<(Instant, u64)>,
    top: Box<TopFlows>,
    counts_flows: bool,
    link: LinkKind,
}

impl Sampler {
    pub(crate) fn new(link: LinkKind) -> Sampler {
        let samples = Arc::new(Samples::new());
        Sampler { samples, packets: 0, bursts: 0, open: None, top: Box::default(), counts_flows: false, link }
    }

    pub(crate) fn samples(&self) -> &Arc<Samples> {
        &self.samples
    }

    /// A burst was received.
    #[inline]
    pub(crate) fn received(&mut self, burst: &Batch) {
        self.packets += burst.len() as u64;
        self.bursts += 1;
        self.samples.packets.store(self.packets, Relaxed);
        self.samples.bursts.store(self.bursts, Relaxed);
        if self.bursts.is_multiple_of(RARELY) || self.samples.watched.load(Relaxed) != 0 {
            self.sample(burst);
        }
    }

    /// Whether a sample's packets have not left.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    #[cold]
    fn sample(&mut self, burst: &Batch) {
        let until = self.samples.watched.load(Relaxed);
        let weight = match until {
            0 => RARELY,
            _ if burst.len() <= SHORT => 1,
            _ if self.bursts.is_multiple_of(WATCHED) => WATCHED,
            _ => return,
        };
        let now = Instant::now();
        if until != 0 {
            if now.duration_since(self.samples.began).as_millis() as u64 >= until {
                // The reader may set a later moment meanwhile.
                let _ = self.samples.watched.compare_exchange(until, 0, Relaxed, Relaxed);
                self.counts_flows = false;
            } else {
                self.count_flows(burst.as_slice(), weight);
            }
        }
        if self.open.is_none() {
            self.open = Some((now, weight * burst.len() as u64));
        }
    }

    fn count_flows(&mut self, burst: &[Packet], weight: u64) {
        if !self.counts_flows {
            self.counts_flows = true;
            self.top.clear(&self.samples.flows);
        }
        for packet in burst {
            self.top.count(&self.samples.flows, packet, self.link, weight);
        }
    }

    /// The route holds no packet any more.
    #[cold]
    pub(crate) fn close(&mut self) {
        let Some((began, packets)) = self.open.take() else { return };
        let ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let index = (u64::BITS - ns.leading_zeros()).min(LATENCY_BUCKETS as u32 - 1);
        let add = |to: &AtomicU64, n: u64| to.store(to.load(Relaxed).wrapping_add(n), Relaxed);
        if let Some(bucket) = self.samples.buckets.get(index as usize) {
            add(bucket, packets);
        }
        add(&self.samples.total_ns, ns.saturating_mul(packets));
    }

    /// The states of both queues.
    pub(crate) fn queue_states(&self, rx: &State, tx: &State) {
        let states = QueueState::of(rx) as u64 | (QueueState::of(tx) as u64) << 2;
        self.samples.queue_states.store(states, Relaxed);
    }

    /// Both queues never work again.
    pub(crate) fn gone(&self) {
        let states = QueueState::Gone as u64 | (QueueState::Gone as u64) << 2;
        self.samples.queue_states.store(states, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_packet::{Direction, Pool, PoolConfig};

    /// A burst of UDP packets, one for each source port.
    fn burst(cache: &mut towpath_packet::Cache, ports: &[u16]) -> Batch {
        let mut batch = Batch::new();
        for port in ports {
            let mut frame = [0u8; 60];
            frame[12..14].copy_from_slice(&[8, 0]);
            frame[14] = 0x45;
            frame[16..18].copy_from_slice(&46u16.to_be_bytes());
            frame[22..24].copy_from_slice(&[64, 17]);
            frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
            frame[34..36].copy_from_slice(&port.to_be_bytes());
            frame[36..38].copy_from_slice(&53u16.to_be_bytes());
            frame[38..40].copy_from_slice(&26u16.to_be_bytes());
            let packet = Packet::copy_from(cache, &frame).unwrap();
            assert!(batch.push(packet).is_ok());
        }
        batch
    }

    #[test]
    fn flows_are_counted_only_while_they_are_read_and_anew_each_time() {
        let pool = Pool::new(PoolConfig::default()).unwrap();
        let mut cache = pool.cache(Direction::Tx).unwrap();
        let mut sampler = Sampler::new(LinkKind::Ethernet);
        let samples = sampler.samples().clone();
        let mut one = burst(&mut cache, &[7, 7, 9]);
        sampler.received(&one);
        assert_eq!((samples.packets(), samples.bursts(), samples.flows()), (3, 1, Vec::new()));
        samples.watch();
        sampler.received(&one);
        let mut flows = samples.flows();
        flows.sort_by_key(|flow| flow.packets);
        let found: Vec<_> = flows.iter().map(|flow| (flow.key.src_port, flow.packets, flow.bytes)).collect();
        assert_eq!(found, [(9, 1, 60), (7, 2, 120)]);
        assert_eq!((flows[0].key.dst_port, flows[0].ethertype, flows[0].at_most), (53, 0x800, 1));
        // The time is over.
        samples.watched.store(1, Relaxed);
        std::thread::sleep(Duration::from_millis(2));
        sampler.received(&one);
        assert_eq!((samples.flows().len(), samples.watched.load(Relaxed)), (2, 0));
        samples.watch();
        cache.free_bulk(&mut one);
        let mut other = burst(&mut cache, &[1]);
        sampler.received(&other);
        assert_eq!(samples.flows().len(), 1);
        cache.free_bulk(&mut other);
    }

    #[test]
    fn one_burst_in_64_is_timed_and_stands_for_all_of_them() {
        let pool = Pool::new(PoolConfig::default()).unwrap();
        let mut cache = pool.cache(Direction::Tx).unwrap();
        let mut sampler = Sampler::new(LinkKind::Ethernet);
        let mut one = burst(&mut cache, &[1, 2]);
        for _ in 0..640 {
            sampler.received(&one);
            if sampler.is_open() {
                sampler.close();
            }
        }
        let latency = sampler.samples().latency();
        assert_eq!(latency.buckets.iter().sum::<u64>(), 1280);
        assert!(latency.total_ns > 0);
        cache.free_bulk(&mut one);
    }

    #[test]
    fn the_state_of_a_queue_is_seen_as_it_was_last() {
        let sampler = Sampler::new(LinkKind::Ethernet);
        assert_eq!(sampler.samples().queue_states(), (QueueState::Up, QueueState::Up));
        sampler.queue_states(&State::Gone("away".into()), &State::Down("no link".into()));
        assert_eq!(sampler.samples().queue_states(), (QueueState::Gone, QueueState::Down));
    }
}
