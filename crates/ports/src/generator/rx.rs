//! The receive queue: copies the head of the flow and the payload, then writes the packet's own
//! fields.

use super::config::{Config, Protocol};
use super::flow::{Flow, HEAD, Plan, Sizes};
use super::pace::{Pace, PaceShared};
use super::stamp;
use super::tag::{Stamp, Tag};
use super::template::{Frames, chain};
use super::trials::{LOOK, TrialQueue};
use std::sync::Arc;
use std::time::Instant;
use towpath_packet::port::{RxQueue, State, Wake};
use towpath_packet::{Batch, Cache, Counters, Gso, GsoKind, Offloads, Packet};
use towpath_sys::host;

/// A receive queue of generated packets.
#[derive(Debug)]
pub struct GenRx {
    plan: Arc<Plan>,
    flows: Vec<Flow>,
    /// Index of the next flow.
    next: usize,
    kind: GsoKind,
    v6: bool,
    /// Packets left to make; `None` for no end.
    left: Option<u64>,
    pace: Option<Pace>,
    cache: Cache,
    counters: Arc<Counters>,
    /// Set while the egress can segment super-packets.
    super_packet: Option<SuperPacket>,
    /// Packets to allocate at a time: one if packets are longer than a buffer, so that an exhausted
    /// pool does not leave heads without their other buffers.
    burst: usize,
    /// Sent instead of made packets.
    frames: Option<Frames>,
    /// Packets are made when a trial is begun.
    trials: Option<TrialQueue>,
    /// Plan and flows of each size of the trials; in the place of the current one lies nothing of
    /// use.
    sizes: Vec<(Arc<Plan>, Vec<Flow>)>,
    /// The size that is made.
    size: usize,
}

/// The super-packets of this queue.
#[derive(Debug)]
struct SuperPacket {
    sizes: Sizes,
    gso: Gso,
    /// The payload; the tags are written to it before it is copied.
    payload: Vec<u8>,
}

/// One queue's part of the packets.
#[derive(Debug, Clone, Copy)]
pub(super) struct Share {
    /// Packets; `None` for no end.
    pub(super) count: Option<u64>,
    /// Packets per second; `None` for no limit.
    pub(super) rate: Option<u64>,
}

impl GenRx {
    pub(super) fn new(config: &Config, plan: Arc<Plan>, flows: Vec<Flow>, share: Share, cache: Cache) -> GenRx {
        let v6 = !config.is_ipv4();
        let kind = match config.protocol {
            Protocol::Udp => GsoKind::Udp,
            Protocol::Tcp if v6 => GsoKind::Tcp6,
            Protocol::Tcp => GsoKind::Tcp4,
        };
        let chained = plan.headers + plan.payload.len() > cache.chunk() - cache.headroom();
        let burst = if chained { 1 } else { usize::MAX };
        let (left, pace) = (share.count, share.rate.map(Pace::new));
        GenRx {
            plan,
            flows,
            next: 0,
            kind,
            v6,
            left,
            pace,
            cache,
            counters: Arc::default(),
            super_packet: None,
            burst,
            frames: None,
            trials: None,
            sizes: Vec::new(),
            size: 0,
        }
    }

    /// Sends `frames` instead of made packets.
    pub(super) fn with_frames(mut self, frames: Option<Frames>) -> GenRx {
        self.frames = frames;
        if self.frames.as_ref().is_some_and(|frames| frames.longest() > self.cache.chunk() - self.cache.headroom()) {
            self.burst = 1;
        }
        self
    }

    /// Makes packets when a trial is begun only, of one of `sizes`; the first one is that of this
    /// queue.
    pub(super) fn with_trials(mut self, trials: Option<TrialQueue>, sizes: Vec<(Arc<Plan>, Vec<Flow>)>) -> GenRx {
        let room = self.cache.chunk() - self.cache.headroom();
        if sizes.iter().any(|(plan, _)| plan.headers + plan.payload.len() > room) {
            self.burst = 1;
        }
        self.sizes = sizes;
        if trials.is_some() {
            (self.left, self.pace) = (Some(0), None);
        }
        self.trials = trials;
        self
    }

    /// How the rate is kept, if there is one.
    pub(super) fn pace(&self) -> Option<&Arc<PaceShared>> {
        self.pace.as_ref().map(Pace::shared)
    }

    /// Whether all packets are made.
    fn finished(&self) -> bool {
        (self.left == Some(0) && self.trials.is_none()) || self.flows.is_empty()
    }

    /// Begins a trial, if there is a new one.
    #[inline]
    fn begin_trial(&mut self) {
        let Some(trial) = self.trials.as_mut().and_then(TrialQueue::next) else { return };
        (self.left, self.pace) = (Some(trial.count), Some(Pace::new(trial.rate)));
        if trial.size != self.size && trial.size < self.sizes.len() {
            for at in [self.size, trial.size] {
                if let Some((plan, flows)) = self.sizes.get_mut(at) {
                    std::mem::swap(plan, &mut self.plan);
                    std::mem::swap(flows, &mut self.flows);
                }
            }
            self.size = trial.size;
        }
        self.flows.iter_mut().for_each(|flow| flow.number = 0);
        if let Some(frames) = &mut self.frames {
            frames.restart();
        }
    }

    /// Writes trial and time to the packets from `from` on.
    fn stamp_time(&self, out: &mut Batch, from: usize) {
        let time = host::clock_monotonic();
        let stamp = self.trials.as_ref().map_or(Stamp { trial: 0, time }, |trials| trials.stamp(time));
        if let Some(frames) = &self.frames {
            return frames.stamp(out, from, stamp);
        }
        for packet in out.as_mut_slice().get_mut(from..).unwrap_or_default() {
            match self.kind {
                GsoKind::Udp => stamp::time::<false>(packet.linear_mut(), stamp, &self.plan),
                _ => stamp::time::<true>(packet.linear_mut(), stamp, &self.plan),
            }
        }
    }

    /// Fills the empty packets from `from` on with frames of the template, as
    /// [`fill`](GenRx::fill).
    #[cold]
    fn fill_frames(&mut self, out: &mut Batch, from: usize) -> u64 {
        let Some(frames) = &mut self.frames else { return 0 };
        let empty = out.as_mut_slice().get_mut(from..).unwrap_or_default();
        let (filled, bytes) = frames.fill(empty, &mut self.cache);
        while out.len() > from + filled
            && let Some(packet) = out.pop()
        {
            self.cache.free(packet);
        }
        bytes
    }

    /// Fills the empty packets from `from` on, and frees those for which buffers are missing;
    /// returns the bytes. Not inline: the loop needs all registers.
    #[inline(never)]
    fn fill<const V6: bool, const TCP: bool>(&mut self, out: &mut Batch, from: usize) -> u64 {
        let (mut bytes, mut filled) = (0, from);
        // Not through `self`, which the compiler would read again for each packet.
        let GenRx { plan, flows, super_packet, cache, .. } = self;
        let (plan, flows, mut next) = (&**plan, flows.as_mut_slice(), self.next);
        let mut super_packet = super_packet.as_mut();
        out.as_slice()[from..].iter().for_each(Packet::prefetch_write);
        for packet in &mut out.as_mut_slice()[from..] {
            let Some(flow) = flows.get_mut(next) else { break };
            let made = match &mut super_packet {
                None => make::<V6, TCP>(packet, flow, plan, cache),
                Some(super_packet) => super_packet.make::<V6, TCP>(packet, flow, plan, cache),
            };
            let Some(len) = made else { break };
            next = if next + 1 < flows.len() { next + 1 } else { 0 };
            bytes += len as u64;
            filled += 1;
        }
        self.next = next;
        while out.len() > filled
            && let Some(packet) = out.pop()
        {
            self.cache.free(packet);
        }
        bytes
    }
}

/// Bytes of a line of the cache.
const LINE: usize = 64;

/// Turns an empty packet into the next one of its flow; returns its length. `None` without buffers;
/// the flow is not advanced then.
#[inline]
fn make<const V6: bool, const TCP: bool>(
    packet: &mut Packet,
    flow: &mut Flow,
    plan: &Plan,
    cache: &mut Cache,
) -> Option<usize> {
    let sizes = plan.sizes.get(usize::from(flow.turn))?;
    if let Ok(head) = packet.push_back_array::<HEAD>(sizes.len) {
        // By lines, also in front of a shorter packet: their length is known, and the room is
        // there.
        head[..LINE].copy_from_slice(&flow.head[..LINE]);
        if sizes.len > LINE {
            head[LINE..].copy_from_slice(&flow.head[LINE..]);
        }
        stamp::packet::<V6, TCP>(head, flow, sizes, plan)?;
        if sizes.len > HEAD && !plan.stale {
            packet.linear_mut().get_mut(HEAD..)?.copy_from_slice(behind_head(plan, sizes));
        }
    } else {
        make_chained::<V6, TCP>(packet, flow, sizes, plan, cache)?;
    }
    let turn = usize::from(flow.turn) + 1;
    flow.turn = if turn < plan.sizes.len() { turn as u16 } else { 0 };
    Some(sizes.len)
}

/// As [`make`], in as many chunks as needed.
#[inline(never)]
fn make_chained<const V6: bool, const TCP: bool>(
    packet: &mut Packet,
    flow: &mut Flow,
    sizes: &Sizes,
    plan: &Plan,
    cache: &mut Cache,
) -> Option<()> {
    let len = sizes.len.min(HEAD);
    chain(packet, flow.head.get(..len)?, behind_head(plan, sizes), cache)?;
    let mut head = flow.head;
    stamp::packet::<V6, TCP>(&mut head, flow, sizes, plan)?;
    packet.linear_mut().get_mut(..len)?.copy_from_slice(head.get(..len)?);
    Some(())
}

/// The payload behind the copied head.
#[inline]
fn behind_head<'a>(plan: &'a Plan, sizes: &Sizes) -> &'a [u8] {
    plan.payload.get(HEAD - plan.headers..sizes.payload).unwrap_or_default()
}

impl SuperPacket {
    /// Turns an empty packet into the next super-packet of its flow, as [`make`].
    #[inline(never)]
    fn make<const V6: bool, const TCP: bool>(
        &mut self,
        packet: &mut Packet,
        flow: &mut Flow,
        plan: &Plan,
        cache: &mut Cache,
    ) -> Option<usize> {
        if plan.tagged {
            for (number, piece) in (0..).zip(self.payload.chunks_mut(usize::from(self.gso.size.max(1)))) {
                Tag { flow: flow.index, number: flow.number.wrapping_add(number) }.write(piece);
            }
        }
        chain(packet, flow.head.get(..plan.headers)?, &self.payload, cache)?;
        packet.set_gso(Some(self.gso));
        stamp::super_packet::<V6, TCP>(packet, flow, &self.sizes, plan, self.gso.segs)?;
        Some(packet.len())
    }
}

impl RxQueue for GenRx {
    #[inline]
    fn rx(&mut self, out: &mut Batch) -> usize {
        if self.trials.is_some() {
            self.begin_trial();
        }
        let mut want = self.left.unwrap_or(u64::MAX).min(out.room() as u64);
        if let Some(pace) = &mut self.pace
            && want > 0
        {
            want = want.min(pace.due(Instant::now()));
            if let Some(trials) = &mut self.trials {
                // What is given up is a part of the trial, too.
                let left = trials.left(pace.done());
                self.left = Some(left);
                want = want.min(left);
            }
        }
        if want == 0 || self.flows.is_empty() {
            return 0;
        }
        let (from, mut bytes) = (out.len(), 0);
        let end = from + want as usize;
        while out.len() < end {
            let at = out.len();
            self.cache.alloc_bulk(out, self.burst.min(end - at));
            bytes += match (self.v6, self.kind) {
                _ if self.frames.is_some() => self.fill_frames(out, at),
                (false, GsoKind::Udp) => self.fill::<false, false>(out, at),
                (true, GsoKind::Udp) => self.fill::<true, false>(out, at),
                (false, _) => self.fill::<false, true>(out, at),
                (true, _) => self.fill::<true, true>(out, at),
            };
            if out.len() - at < self.burst.min(end - at) {
                break;
            }
        }
        let made = (out.len() - from) as u64;
        if self.plan.timed {
            self.stamp_time(out, from);
        }
        if let Some(left) = &mut self.left {
            *left -= made;
            if let Some(trials) = &mut self.trials {
                trials.made(made, *left);
            }
        }
        if let Some(pace) = &mut self.pace {
            pace.sent(made);
            if self.left == Some(0) {
                pace.finish();
            }
        }
        self.counters.moved(made, bytes);
        made as usize
    }

    fn set_rx_offloads(&mut self, accept: Offloads) {
        let Some((sizes, segment)) = self.plan.super_packet else { return };
        let segs = sizes.payload.div_ceil(usize::from(segment)) as u16;
        let gso = Gso { kind: self.kind, ecn: false, size: segment, segs, hdr_len: self.plan.headers as u16 };
        self.super_packet = accept.has(Offloads::for_gso(gso).with(Offloads::CSUM)).then(|| {
            let payload = self.plan.payload.get(..sizes.payload).unwrap_or_default().to_vec();
            SuperPacket { sizes, gso, payload }
        });
    }

    fn state(&self) -> State {
        if self.finished() { State::Done } else { State::Up }
    }

    fn wake(&self) -> Wake {
        match &self.pace {
            _ if self.finished() => Wake::Never,
            _ if self.trials.is_some() && self.left == Some(0) => Wake::At(Instant::now() + LOOK),
            // A due packet waits for a buffer.
            Some(pace) => pace.next().filter(|at| *at > Instant::now()).map_or(Wake::Poll, Wake::At),
            None => Wake::Poll,
        }
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}
