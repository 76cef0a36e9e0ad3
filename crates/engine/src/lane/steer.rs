//! The worker's side: a transmit queue that steers packets to lanes.

use super::table::{BUCKETS, LaneTable, Steering};
use super::{FullPolicy, LaneConfig, LaneShared, RingShared};
use crate::rules::dissect_packet;
use std::borrow::Cow;
use std::sync::Arc;
use towpath_packet::port::{State, TxQueue, Wake};
use towpath_packet::spsc::Producer;
use towpath_packet::{Batch, Counters, DropReason, Offloads, Packet, notify};
use towpath_sys::sync::Ordering;
use towpath_wire::LinkKind;

/// The sending side of one lane's ring.
#[derive(Debug)]
pub(super) struct RingTx {
    /// `None` once it is closed.
    ring: Option<Producer<Packet>>,
    stage: Batch,
    /// Packets that were staged for this lane so far.
    staged: u64,
    ring_shared: Arc<RingShared>,
    lane_shared: Arc<LaneShared>,
    needs_notify: bool,
    /// Packets that can still be steered to it in this burst.
    room: usize,
}

impl RingTx {
    pub(super) fn new(ring: Producer<Packet>, ring_shared: Arc<RingShared>, lane_shared: Arc<LaneShared>) -> RingTx {
        RingTx {
            ring: Some(ring),
            stage: Batch::new(),
            staged: 0,
            ring_shared,
            lane_shared,
            needs_notify: false,
            room: 0,
        }
    }

    /// Free places in ring and stage, counted up to `want`.
    #[inline]
    fn count_room(&mut self, want: usize) -> usize {
        let waiting = self.stage.len();
        self.ring.as_mut().map_or(0, |ring| ring.free(want + waiting) + Batch::<64>::CAPACITY - waiting)
    }

    /// Stages a packet, for which `steer` found room.
    #[inline]
    fn stage(&mut self, packet: Packet) {
        if self.stage.room() == 0 {
            self.flush();
        }
        if let Err(packet) = self.stage.push(packet) {
            self.ring_shared.counters.dropped_packet(DropReason::LaneFull, &packet);
        }
    }

    /// Moves staged packets into the ring, as many as fit.
    #[inline]
    fn flush(&mut self) {
        if !self.stage.is_empty()
            && let Some(ring) = &mut self.ring
            && ring.push_batch(&mut self.stage) > 0
        {
            self.needs_notify = true;
        }
    }

    /// Takes packets from the front of a batch: into the ring, and into the stage what that has no
    /// room for. Returns how many.
    #[inline]
    fn take(&mut self, batch: &mut Batch) -> usize {
        self.flush();
        let Some(ring) = &mut self.ring else { return 0 };
        let mut taken = 0;
        if self.stage.is_empty() {
            taken = ring.push_batch(batch);
            self.needs_notify |= taken > 0;
        }
        if !batch.is_empty() {
            for packet in batch.drain_front(self.stage.room()) {
                // There is room for as many as were drained.
                let _ = self.stage.push(packet);
                taken += 1;
            }
        }
        self.staged += taken as u64;
        taken
    }

    /// Closes the ring, then wakes the lane so that it notices.
    fn close(&mut self) {
        if let Some(ring) = self.ring.take() {
            let left = self.stage.len() as u64;
            self.ring_shared.enqueued.store(self.staged - left, Ordering::Relaxed);
            self.ring_shared.counters.dropped(DropReason::Stopped, left);
            drop(ring);
            notify::publish();
            self.lane_shared.notifier.notify();
        }
    }
}

impl Drop for RingTx {
    fn drop(&mut self) {
        self.close();
    }
}

/// Steers packets to lanes; owned by the worker that receives them.
#[derive(Debug)]
pub struct Steer {
    rings: Vec<RingTx>,
    steering: Steering,
    full_policy: FullPolicy,
    link: LinkKind,
    table: Arc<LaneTable>,
    /// The lane of each bucket at this moment.
    current: Box<[u8; BUCKETS]>,
    /// The sequence number of each bucket's last packet within its lane's ring.
    last_staged: Box<[u64; BUCKETS]>,
    next: usize,
    counters: Arc<Counters>,
}

impl Steer {
    pub(super) fn new(
        rings: Vec<RingTx>,
        config: &LaneConfig,
        table: Arc<LaneTable>,
        counters: Arc<Counters>,
    ) -> Steer {
        Steer {
            rings,
            steering: config.steering.clone(),
            full_policy: config.full,
            link: config.layer.into(),
            current: Box::new(std::array::from_fn(|bucket| table.lane(bucket))),
            last_staged: Box::new([0; BUCKETS]),
            table,
            next: 0,
            counters,
        }
    }

    /// The lane of a packet, and the bucket if it decided; `None` while the bucket moves to another
    /// lane.
    #[inline]
    fn choose(&mut self, packet: &mut Packet) -> Option<(usize, Option<usize>)> {
        if let Some(lane) = packet.lane() {
            return Some((usize::from(lane) % self.rings.len(), None));
        }
        let hash = match &self.steering {
            Steering::Flow => flow_hash(packet, self.link),
            Steering::Rss(key) => dissect_packet(packet, self.link).toeplitz(key),
            Steering::Lane(lane) => return Some((usize::from(*lane) % self.rings.len(), None)),
            Steering::RoundRobin => {
                self.next = (self.next + 1) % self.rings.len();
                return Some((self.next, None));
            }
        };
        let bucket = hash as usize % BUCKETS;
        let wanted = self.table.lane(bucket);
        if wanted != self.current[bucket] && !self.try_move(bucket, wanted) {
            return None;
        }
        Some((usize::from(self.current[bucket]), Some(bucket)))
    }

    /// Gives the packets to the only lane, whatever their flows are; `None` if there are several.
    #[inline]
    fn give_to_only(&mut self, batch: &mut Batch) -> Option<usize> {
        let [only] = self.rings.as_mut_slice() else { return None };
        let mut taken = only.take(batch);
        // Any bucket is the lane's.
        self.table.count(0, taken as u64);
        if !batch.is_empty() && (self.full_policy == FullPolicy::Drop || only.ring.is_none()) {
            for packet in batch.drain_front(batch.len()) {
                self.counters.dropped_packet(DropReason::LaneFull, &packet);
                taken += 1;
            }
        }
        Some(taken)
    }

    /// Moves a bucket if the old lane has sent its last packet.
    #[cold]
    fn try_move(&mut self, bucket: usize, wanted: u8) -> bool {
        let Some(old) = self.rings.get_mut(usize::from(self.current[bucket])) else { return true };
        // Acquire: the sends of the old lane happen before the new lane gets the next packet.
        if old.ring_shared.completed.load(Ordering::Acquire) < self.last_staged[bucket] {
            old.flush();
            return false;
        }
        self.current[bucket] = wanted;
        self.last_staged[bucket] = 0;
        true
    }

    /// Steers packets: writes their lanes to `lanes` (`None`: to be dropped) and returns how many
    /// were steered.
    #[inline]
    fn steer(&mut self, packets: &mut [Packet], lanes: &mut [Option<u8>]) -> usize {
        for ring_tx in &mut self.rings {
            ring_tx.room = ring_tx.count_room(packets.len());
        }
        let mut steered = 0;
        for (n, (packet, to)) in packets.iter_mut().zip(lanes).enumerate() {
            steered = n + 1;
            let Some((lane, bucket)) = self.choose(packet) else { return n };
            let Some(ring_tx) = self.rings.get_mut(lane) else { return n };
            if ring_tx.room == 0 {
                if self.full_policy == FullPolicy::Hold && ring_tx.ring.is_some() {
                    return n;
                }
                *to = None;
                continue;
            }
            ring_tx.room -= 1;
            ring_tx.staged += 1;
            if let Some(bucket) = bucket {
                self.last_staged[bucket] = ring_tx.staged;
                self.table.count(bucket, 1);
            }
            *to = Some(lane as u8);
        }
        steered
    }
}

/// The symmetric hash of a packet's flow, cached in the packet.
#[inline]
fn flow_hash(packet: &mut Packet, link: LinkKind) -> u32 {
    if let Some(hash) = packet.flow_hash() {
        return hash;
    }
    let hash = dissect_packet(packet, link).symmetric_hash(0);
    packet.set_flow_hash(hash);
    hash
}

impl TxQueue for Steer {
    #[inline]
    fn tx(&mut self, batch: &mut Batch) -> usize {
        if let Some(taken) = self.give_to_only(batch) {
            return taken;
        }
        let mut lanes = [None; Batch::<64>::CAPACITY];
        let taken = self.steer(batch.as_mut_slice(), &mut lanes);
        for (packet, lane) in batch.drain_front(taken).zip(lanes) {
            match lane.and_then(|lane| self.rings.get_mut(usize::from(lane))) {
                Some(ring_tx) => ring_tx.stage(packet),
                None => {
                    self.counters.dropped_packet(DropReason::LaneFull, &packet);
                    drop(packet);
                }
            }
        }
        for ring_tx in &mut self.rings {
            ring_tx.flush();
        }
        taken
    }

    /// Frees nothing; moves staged packets into the rings. There may be no further send, so the
    /// lanes are notified here.
    #[inline]
    fn reclaim(&mut self) -> usize {
        for ring_tx in &mut self.rings {
            ring_tx.flush();
        }
        self.kick();
        0
    }

    fn close(&mut self) -> Result<(), Cow<'static, str>> {
        self.rings.iter_mut().for_each(RingTx::close);
        Ok(())
    }

    #[inline]
    fn kick(&mut self) {
        if self.rings.iter().any(|ring_tx| ring_tx.needs_notify) {
            notify::publish();
            for ring_tx in &mut self.rings {
                if std::mem::take(&mut ring_tx.needs_notify) {
                    ring_tx.lane_shared.notifier.notify();
                }
            }
        }
    }

    /// The offloads that the egresses of all lanes support.
    #[inline]
    fn offloads(&self) -> Offloads {
        self.rings.iter().fold(Offloads::ALL, |can, ring_tx| {
            can.and(Offloads::from_bits(ring_tx.lane_shared.offloads.load(Ordering::Relaxed)))
        })
    }

    #[inline]
    fn pending(&self) -> usize {
        self.rings.iter().filter(|ring_tx| ring_tx.ring.is_some()).map(|ring_tx| ring_tx.stage.len()).sum()
    }

    fn state(&self) -> State {
        match self.rings.iter().any(|ring_tx| ring_tx.ring.as_ref().is_none_or(Producer::is_closed)) {
            true => State::Gone("a lane has ended".into()),
            false => State::Up,
        }
    }

    fn wake(&self) -> Wake {
        Wake::Poll
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}
