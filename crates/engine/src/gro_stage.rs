//! GRO on packets: the engine of [`towpath_gro`], fed with chains instead of bytes.
//!
//! ```text
//!   incoming ──► engine (holds one aggregate per flow) ──► ready ──► incoming again, merged
//! ```
//!
//! Merging moves no byte: the headers are pulled off the later packet, and its chunk is chained behind the earlier one's. What a
//! packet merged with nothing asked for stays as it was.
//!
//! When aggregates leave: at the end of a burst that emptied the ingress, after 512 packets at the latest; or, with
//! [`CoalesceConfig::hold`], when they have been held that long. While next to nothing merges on a busy ingress, they leave at
//! the end of each burst: a packet that is alone in its burst then passes without a flow being opened for it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use towpath_gro as gro;
use towpath_packet::port::Layer;
use towpath_packet::{Batch, Cache, Counters, Offloads, Packet};

mod chain;

pub use chain::Chain;

/// Packets after which a busy ingress is flushed, as if it had been emptied: it bounds what the first of them waits.
const BUDGET: usize = 512;

/// Whether to coalesce.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Never.
    Off,
    /// Always, whether or not the egress takes super-packets.
    On,
    /// Where the egress takes super-packets, and while something merges.
    #[default]
    Auto,
}

/// How packets are coalesced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CoalesceConfig {
    /// Whether to.
    pub mode: Mode,
    /// How long an aggregate may wait for more. Zero: until the ingress has no more packets.
    pub hold: Duration,
    /// Largest aggregate: IP length, 1280 to 65535.
    pub max_size: u32,
}

impl Default for CoalesceConfig {
    /// Auto, no longer than the burst, 65535 bytes.
    fn default() -> CoalesceConfig {
        CoalesceConfig { mode: Mode::Auto, hold: Duration::ZERO, max_size: 65535 }
    }
}

impl CoalesceConfig {
    /// Whether an egress with these abilities gets aggregates.
    pub fn applies(&self, can: Offloads) -> bool {
        let worth = [Offloads::TSO4, Offloads::TSO6, Offloads::USO].into_iter().any(|kind| can.has(kind));
        self.mode == Mode::On || (self.mode == Mode::Auto && worth && can.has(Offloads::CSUM))
    }
}

/// The engine of one route, with its clock and what leaves it.
pub struct Coalescer {
    engine: gro::Gro<Chain>,
    ready: VecDeque<Packet>,
    hold: Duration,
    since_flush: usize,
    /// Whether it pays to hold packets from one burst of a busy ingress to the next. Not asked where the engine itself steps aside:
    /// what this one splits up would keep the engine from seeing that merging pays again.
    across: Option<gro::Auto>,
    started: Instant,
    merged: u64,
    counters: Arc<Counters>,
    figures: Arc<super::report::GroCounters>,
}

impl Coalescer {
    /// An engine for packets that begin as `layer` says, bound for an egress that `can` do as said. Merged packets are counted
    /// in `counters`.
    pub fn new(config: &CoalesceConfig, layer: Layer, can: Offloads, counters: Arc<Counters>) -> Coalescer {
        let flows = 2048;
        // The metadata of a packet has no place for outer headers, so what is inside tunnels passes.
        let gro_config = gro::GroConfig::default()
            .link(layer.into())
            .flows(flows)
            .max_size(config.max_size)
            .udp(config.mode == Mode::On || can.has(Offloads::USO))
            .tunnels(false)
            .auto(config.mode == Mode::Auto);
        Coalescer {
            engine: gro::Gro::new(gro_config),
            ready: VecDeque::with_capacity(2 * flows + BUDGET),
            hold: config.hold,
            since_flush: 0,
            across: (config.mode == Mode::On).then(gro::Auto::default),
            started: Instant::now(),
            merged: 0,
            counters,
            figures: Arc::default(),
        }
    }

    /// What the engine did, readable from other threads.
    pub fn figures(&self) -> &Arc<super::report::GroCounters> {
        &self.figures
    }

    /// Packets that are ready to leave.
    #[inline]
    pub fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Aggregates that wait for more.
    #[inline]
    pub fn held(&self) -> usize {
        self.engine.held()
    }

    /// How long an aggregate may wait for more.
    pub fn hold(&self) -> Duration {
        self.hold
    }

    /// Takes a burst. `emptied` says that the ingress has no more packets at this moment.
    #[inline]
    pub fn push(&mut self, burst: &mut Batch, emptied: bool) {
        let n = burst.len();
        if self.engine.is_bypassed() && self.ready.is_empty() {
            // Nothing merges: the burst stays where it is.
            self.engine.account_bypassed(n);
            return self.account();
        }
        let now = self.now();
        let ready = &mut self.ready;
        let mut sink = |chain: Chain| ready.push_back(chain.0);
        let packets = burst.drain_front(n).map(Chain);
        self.since_flush += n;
        if !self.hold.is_zero() {
            self.engine.push_batch(packets, now, &mut sink);
            self.engine.flush(now.saturating_sub(self.hold.as_nanos() as u64), &mut sink);
        } else if emptied || self.since_flush >= BUDGET || self.across.is_some_and(|across| across.is_bypassed()) {
            self.engine.push_and_flush(packets, &mut sink);
            self.since_flush = 0;
        } else {
            self.engine.push_batch(packets, now, &mut sink);
        }
        if let Some(across) = &mut self.across
            && !emptied
        {
            across.observe(n, (self.engine.stats().merged - self.merged) as usize);
        }
        self.account();
    }

    /// Nothing has come: what has been held long enough leaves.
    #[inline]
    pub fn idle(&mut self) {
        if self.engine.held() == 0 {
            return;
        }
        let now = self.now();
        let ready = &mut self.ready;
        let mut sink = |chain: Chain| ready.push_back(chain.0);
        if self.hold.is_zero() {
            self.engine.flush_all(&mut sink);
            self.since_flush = 0;
        } else {
            self.engine.flush(now.saturating_sub(self.hold.as_nanos() as u64), &mut sink);
        }
        self.account();
    }

    /// Everything leaves.
    pub fn flush(&mut self) {
        let ready = &mut self.ready;
        self.engine.flush_all(&mut |chain: Chain| ready.push_back(chain.0));
        self.account();
    }

    /// Moves what is ready to the end of a batch, as far as there is room.
    #[inline]
    pub fn fill(&mut self, to: &mut Batch) {
        while to.room() > 0
            && let Some(packet) = self.ready.pop_front()
        {
            let _ = to.push(packet);
        }
    }

    /// Frees what is ready; the caller counts it.
    pub fn drop_ready(&mut self, cache: &mut Cache) {
        for packet in self.ready.drain(..) {
            cache.free(packet);
        }
    }

    /// Nanoseconds since the engine was made; 0 when ages don't matter.
    fn now(&self) -> u64 {
        if self.hold.is_zero() { 0 } else { self.started.elapsed().as_nanos() as u64 }
    }

    #[inline]
    fn account(&mut self) {
        let stats = self.engine.stats();
        if stats.merged != self.merged {
            self.counters.merged(stats.merged - self.merged);
            self.merged = stats.merged;
        }
        self.figures.store(stats, self.engine.is_bypassed());
    }
}

#[cfg(test)]
pub(crate) mod tests;
