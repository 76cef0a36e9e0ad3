//! GRO on packets: the engine of [`towpath_gro`] with fragment chains instead of copies.
//!
//! ```text
//!   incoming ──► engine (holds one aggregate per flow) ──► ready ──► incoming again, merged
//! ```
//!
//! [`GroStage`] decides when aggregates are flushed; [`GroPacket`] is a packet as a segment of the
//! engine. Merging copies no byte: the headers are pulled off the later packet, and its chunk is
//! chained behind the earlier one. A packet that merges with nothing is unchanged.
//!
//! Aggregates are flushed at the end of a burst that emptied the ingress, at the latest after 512
//! packets. With [`GroStageConfig::hold`] they are flushed when they are that old. While almost
//! nothing merges on a busy ingress they are flushed after each burst: a packet without a partner
//! in its burst then passes without opening a flow. A burst that has none with a partner, after one
//! in which nothing merged, is only looked at: it stays in its batch.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use towpath_gro as gro;
use towpath_packet::port::Layer;
use towpath_packet::{Batch, Cache, Checksum, Counters, Offloads, Packet};
use towpath_wire::checksum::{self, Accumulator};

/// Packets after which a busy ingress is flushed as if it were empty: bounds the latency of the
/// first one.
const BUDGET: usize = 512;

/// Whether to coalesce.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GroMode {
    /// Never.
    Off,
    /// Always, whether or not the egress takes super-packets.
    On,
    /// Where the egress takes super-packets, and while something merges.
    #[default]
    Auto,
}

/// Configuration of the GRO stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroStageConfig {
    /// When to coalesce.
    pub mode: GroMode,
    /// How long an aggregate may wait for more packets. Zero: until the ingress is empty.
    pub hold: Duration,
    /// Largest aggregate: IP length, 1280 to 65535.
    pub max_size: u32,
}

impl Default for GroStageConfig {
    /// Auto, no hold time, 65535 bytes.
    fn default() -> GroStageConfig {
        GroStageConfig { mode: GroMode::Auto, hold: Duration::ZERO, max_size: 65535 }
    }
}

impl GroStageConfig {
    /// Whether to coalesce for an egress with these abilities.
    pub fn applies(&self, can: Offloads) -> bool {
        let worth = [Offloads::TSO4, Offloads::TSO6, Offloads::USO].into_iter().any(|kind| can.has(kind));
        self.mode == GroMode::On || (self.mode == GroMode::Auto && worth && can.has(Offloads::CSUM))
    }
}

/// What became of a burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a burst that was bypassed is still in its batch"]
pub enum Pushed {
    /// The stage has it: [`GroStage::fill`] returns what is ready.
    Taken,
    /// Nothing of it merges: it is still in its batch, from where it is sent.
    Bypassed,
}

/// The GRO engine of one route, with its clock and its output queue.
pub struct GroStage {
    engine: gro::Gro<GroPacket>,
    ready: VecDeque<Packet>,
    hold: Duration,
    since_flush: usize,
    /// Measures whether holding packets from one burst of a busy ingress to the next pays. Only
    /// used where the engine never bypasses itself: flushing each burst would hide from the engine
    /// that merging pays again.
    across: Option<gro::Auto>,
    started: Instant,
    merged: u64,
    aggregates: u64,
    counters: Arc<Counters>,
    gro_counters: Arc<super::report::GroCounters>,
}

impl GroStage {
    /// A stage for packets of `layer`, and for an egress with the abilities `can`. Merged packets
    /// are counted in `counters`.
    pub fn new(config: &GroStageConfig, layer: Layer, can: Offloads, counters: Arc<Counters>) -> GroStage {
        let flows = 2048;
        // The metadata of a packet has no fields for outer headers, so tunnels pass unmerged.
        let engine_config = gro::GroConfig::default()
            .link(layer.into())
            .flows(flows)
            .max_size(config.max_size)
            .udp(config.mode == GroMode::On || can.has(Offloads::USO))
            .tunnels(false)
            .auto(config.mode == GroMode::Auto);
        GroStage {
            engine: gro::Gro::new(engine_config),
            ready: VecDeque::with_capacity(2 * flows + BUDGET),
            hold: config.hold,
            since_flush: 0,
            across: (config.mode == GroMode::On).then(gro::Auto::default),
            started: Instant::now(),
            merged: 0,
            aggregates: 0,
            counters,
            gro_counters: Arc::default(),
        }
    }

    /// Counters of the engine, readable from other threads.
    pub fn gro_counters(&self) -> &Arc<super::report::GroCounters> {
        &self.gro_counters
    }

    /// Number of packets that are ready to be sent.
    #[inline]
    pub fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Number of aggregates that wait for more packets.
    #[inline]
    pub fn held(&self) -> usize {
        self.engine.held()
    }

    /// How long an aggregate may wait for more packets.
    pub fn hold(&self) -> Duration {
        self.hold
    }

    /// Takes a burst, unless the engine is bypassed. `emptied`: the ingress has no more packets at
    /// this moment.
    #[inline]
    pub fn push(&mut self, burst: &mut Batch, emptied: bool) -> Pushed {
        let n = burst.len();
        if self.engine.is_bypassed() && self.ready.is_empty() {
            // Nothing merges: the burst stays in place.
            self.engine.account_bypassed(n);
            self.account();
            return Pushed::Bypassed;
        }
        self.since_flush += n;
        let leaves = self.hold.is_zero()
            && (emptied || self.since_flush >= BUDGET || self.across.is_some_and(|across| across.is_bypassed()));
        if leaves && self.ready.is_empty() && self.engine.pass_unmatched(burst.as_slice(), Packet::linear) {
            self.since_flush = 0;
            self.observe(n, emptied);
            self.account();
            return Pushed::Bypassed;
        }
        let now = self.now();
        let ready = &mut self.ready;
        let mut sink = (|packet: GroPacket| ready.push_back(packet.0), drop);
        let packets = burst.drain_front(n).map(GroPacket);
        if !self.hold.is_zero() {
            self.engine.push_batch(packets, now, &mut sink);
            self.engine.flush(now.saturating_sub(self.hold.as_nanos() as u64), &mut sink);
        } else if leaves {
            self.engine.push_and_flush(packets, &mut sink);
            self.since_flush = 0;
        } else {
            self.engine.push_batch(packets, now, &mut sink);
        }
        self.observe(n, emptied);
        self.account();
        Pushed::Taken
    }

    /// Observes whether holding packets of a busy ingress pays.
    #[inline]
    fn observe(&mut self, packets: usize, emptied: bool) {
        if let Some(across) = &mut self.across
            && !emptied
        {
            across.observe(packets, (self.engine.stats().merged - self.merged) as usize);
        }
    }

    /// Nothing was received: flushes aggregates that are old enough.
    #[inline]
    pub fn idle(&mut self) {
        if self.engine.held() == 0 {
            return;
        }
        let now = self.now();
        let ready = &mut self.ready;
        let mut sink = (|packet: GroPacket| ready.push_back(packet.0), drop);
        if self.hold.is_zero() {
            self.engine.flush_all(&mut sink);
            self.since_flush = 0;
        } else {
            self.engine.flush(now.saturating_sub(self.hold.as_nanos() as u64), &mut sink);
        }
        self.account();
    }

    /// Flushes all aggregates.
    pub fn flush(&mut self) {
        let ready = &mut self.ready;
        self.engine.flush_all(&mut (|packet: GroPacket| ready.push_back(packet.0), drop));
        self.account();
    }

    /// Moves ready packets to the end of a batch, as many as fit.
    #[inline]
    pub fn fill(&mut self, to: &mut Batch) {
        while to.room() > 0
            && let Some(packet) = self.ready.pop_front()
        {
            let _ = to.push(packet);
        }
    }

    /// Shows all ready packets and frees them; the caller counts them.
    pub fn drop_ready(&mut self, cache: &mut Cache, mut show: impl FnMut(&Packet)) {
        for packet in self.ready.drain(..) {
            show(&packet);
            cache.free(packet);
        }
    }

    /// Nanoseconds since the stage was made; 0 if ages are not needed.
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
        if stats.aggregates != self.aggregates {
            // The packets of this burst are the last ones, and no more of them left than are ready.
            let new = (stats.aggregates - self.aggregates) as usize;
            let sizes = self.ready.iter().rev().filter(|packet| packet.gso().is_some()).take(new).map(Packet::len);
            self.gro_counters.add_sizes(sizes);
            self.aggregates = stats.aggregates;
        }
        self.gro_counters.store(stats, self.engine.is_bypassed());
    }
}

/// A packet to which the engine chains others ([`towpath_gro::Gro`]).
pub struct GroPacket(pub Packet);

impl gro::Segment for GroPacket {
    #[inline]
    fn head(&self) -> &[u8] {
        self.0.linear()
    }

    #[inline]
    fn head_mut(&mut self) -> &mut [u8] {
        self.0.linear_mut()
    }

    #[inline]
    fn packet_len(&self) -> usize {
        self.0.len()
    }

    #[inline]
    fn offload(&self) -> gro::Offload {
        gro::Offload::new(self.0.csum(), self.0.gso())
    }

    #[inline]
    fn set_offload(&mut self, offload: gro::Offload) {
        self.0.set_csum(offload.checksum);
        self.0.set_gso(offload.gso);
    }

    #[inline]
    fn vlan(&self) -> u32 {
        vlan(&self.0)
    }

    #[inline(always)]
    fn is_ordinary(&self) -> bool {
        // Without short circuits: these are bits of one byte.
        (self.0.csum() == Checksum::Verified) & self.0.gso().is_none() & self.0.vlan().is_none()
    }

    #[inline]
    fn sum(&self, from: usize) -> u16 {
        match self.0.frags() {
            0 => checksum::sum(self.0.linear().get(from..).unwrap_or_default()),
            _ => self.sum_chunks(from),
        }
    }

    #[inline(always)]
    fn append(&mut self, other: GroPacket, skip: usize, verify: Option<u16>) -> gro::Appended<GroPacket> {
        if let Some(rest) = verify
            && checksum::add(rest, other.sum(skip)) != checksum::VALID
        {
            return gro::Appended::Corrupt(other);
        }
        match self.0.append_from(other.0, skip) {
            Ok(()) => gro::Appended::Chained,
            Err(back) => gro::Appended::Full(GroPacket(back)),
        }
    }

    #[inline]
    fn prefetch(&self) {
        self.0.prefetch_data();
    }

    #[inline]
    fn prefetch_payload(&self) {
        if self.0.csum() == Checksum::Unknown {
            self.0.prefetch_payload();
        }
    }
}

/// The tag beside a packet, as [`gro::Segment::vlan`] returns it.
#[inline]
fn vlan(packet: &Packet) -> u32 {
    if packet.vlan().is_none() { 0 } else { tag(packet) }
}

/// The VLAN tag in the metadata, if there is one. Out of line, to keep the path without tags short.
#[inline(never)]
fn tag(packet: &Packet) -> u32 {
    packet.vlan().map_or(0, |vlan| (if vlan.service { 0x88a8_0000 } else { 0x8100_0000 }) | u32::from(vlan.tci))
}

impl GroPacket {
    /// The checksum of a packet in several chunks.
    #[inline(never)]
    fn sum_chunks(&self, from: usize) -> u16 {
        let (mut sum, mut skip) = (Accumulator::new(), from);
        for chunk in self.0.chunks() {
            let mut piece = chunk.skip(skip);
            skip = skip.saturating_sub(chunk.len());
            match piece.bytes() {
                Some(bytes) => sum.add_bytes(bytes),
                None => {
                    let mut copy = [0; 256];
                    while !piece.is_empty() {
                        let n = piece.copy_to(0, &mut copy);
                        sum.add_bytes(&copy[..n]);
                        piece = piece.skip(n);
                    }
                }
            }
        }
        sum.sum()
    }
}

#[cfg(test)]
pub(crate) mod tests;
