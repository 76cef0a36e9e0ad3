//! The worker's side: a transmit queue that steers packets to lanes.

use super::table::{BUCKETS, LaneTable, Steering};
use super::{FullPolicy, LaneConfig, LaneShared, RingShared};
use crate::rules::{dissect_packet, symmetric_hash};
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
    /// Packets that were put into the ring so far.
    enqueued: u64,
    ring_shared: Arc<RingShared>,
    lane_shared: Arc<LaneShared>,
    needs_notify: bool,
}

impl RingTx {
    pub(super) fn new(ring: Producer<Packet>, ring_shared: Arc<RingShared>, lane_shared: Arc<LaneShared>) -> RingTx {
        RingTx { ring: Some(ring), enqueued: 0, ring_shared, lane_shared, needs_notify: false }
    }

    /// Makes the packets of a burst visible to the lane.
    #[inline]
    fn submit(&mut self) {
        if let Some(ring) = &mut self.ring {
            self.needs_notify |= ring.submit() > 0;
        }
    }

    /// Takes packets from the front of a batch, as many as fit. Returns how many.
    #[inline]
    fn take(&mut self, batch: &mut Batch) -> usize {
        let taken = self.ring.as_mut().map_or(0, |ring| ring.push_batch(batch));
        self.needs_notify |= taken > 0;
        self.enqueued += taken as u64;
        taken
    }

    /// Closes the ring, then wakes the lane so that it notices.
    fn close(&mut self) {
        if let Some(ring) = self.ring.take() {
            self.ring_shared.enqueued.store(self.enqueued, Ordering::Relaxed);
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

/// What a worker knows of a bucket.
#[derive(Debug)]
struct Bucket {
    /// The number of its last packet among those of its lane's ring.
    last: u64,
    /// Its lane at this moment.
    lane: u8,
}

impl Bucket {
    /// Moves the bucket if the old lane has sent its last packet.
    #[cold]
    fn try_move(&mut self, rings: &[RingTx], lane: u8) -> bool {
        if let Some(old) = rings.get(usize::from(self.lane)) {
            // Acquire: the sends of the old lane happen before the new lane gets the next packet.
            if old.ring_shared.completed.load(Ordering::Acquire) < self.last {
                return false;
            }
        }
        *self = Bucket { last: 0, lane };
        true
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
    buckets: Box<[Bucket; BUCKETS]>,
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
            buckets: Box::new(std::array::from_fn(|bucket| Bucket { last: 0, lane: table.lane(bucket) })),
            table,
            next: 0,
            counters,
        }
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

    /// Finds the buckets of a burst by the flows of its packets, all before the first packet is
    /// steered, so that neither loop has many values to keep. A packet keeps its hash: it is not
    /// looked for again if the packet has to wait.
    #[inline(never)]
    fn find_buckets(&self, packets: &mut [Packet]) -> [u8; Batch::<64>::CAPACITY] {
        let mut buckets = [0; Batch::<64>::CAPACITY];
        for (packet, bucket) in packets.iter_mut().zip(&mut buckets) {
            *bucket = bucket_of(flow_hash(packet, self.link));
        }
        buckets
    }

    /// Writes packets from the front of a batch to the rings of their lanes, up to the first that
    /// has to wait; returns how many left the batch.
    #[inline(never)]
    fn steer(&mut self, batch: &mut Batch) -> usize {
        let by_flow = matches!(self.steering, Steering::Flow).then(|| self.find_buckets(batch.as_mut_slice()));
        let Steer { rings, buckets, next, .. } = self;
        let (table, mut taken) = (&*self.table, 0);
        let mut packets = batch.front();
        while let Some(packet) = packets.peek() {
            let number = match (packet.lane(), &by_flow, &self.steering) {
                (None, Some(found), _) => Some(found[taken % found.len()]),
                (None, None, Steering::Rss(key)) => Some(bucket_of(dissect_packet(packet, self.link).toeplitz(key))),
                _ => None,
            };
            let (lane, bucket) = match number.map(usize::from) {
                Some(number) => {
                    let (bucket, lane) = (&mut buckets[number], table.lane(number));
                    if lane != bucket.lane && !bucket.try_move(rings, lane) {
                        break;
                    }
                    (usize::from(lane), Some((bucket, number)))
                }
                None => match packet.lane() {
                    Some(lane) => (usize::from(lane) % rings.len(), None),
                    None => (self.steering.next_lane(next, rings.len()), None),
                },
            };
            let Some(ring_tx) = rings.get_mut(lane) else { break };
            if let Some(vacant) = ring_tx.ring.as_mut().and_then(Producer::vacant) {
                let Some(packet) = packets.take() else { break };
                vacant.write(packet);
                ring_tx.enqueued += 1;
                if let Some((bucket, number)) = bucket {
                    bucket.last = ring_tx.enqueued;
                    table.count(number, 1);
                }
            } else if self.full_policy == FullPolicy::Hold && ring_tx.ring.is_some() {
                break;
            } else {
                drop(packets.take().inspect(|packet| self.counters.dropped_packet(DropReason::LaneFull, packet)));
            }
            taken += 1;
        }
        taken
    }
}

#[inline]
fn bucket_of(hash: u32) -> u8 {
    const { assert!(BUCKETS == 256) };
    hash as u8
}

/// The symmetric hash of a packet's flow, cached in the packet.
#[inline]
fn flow_hash(packet: &mut Packet, link: LinkKind) -> u32 {
    if let Some(hash) = packet.flow_hash() {
        return hash;
    }
    let hash = symmetric_hash(packet, link);
    packet.set_flow_hash(hash);
    hash
}

impl TxQueue for Steer {
    #[inline]
    fn tx(&mut self, batch: &mut Batch) -> usize {
        if let Some(taken) = self.give_to_only(batch) {
            return taken;
        }
        let taken = self.steer(batch);
        self.rings.iter_mut().for_each(RingTx::submit);
        taken
    }

    /// Frees nothing: packets are the lanes'.
    #[inline]
    fn reclaim(&mut self) -> usize {
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
        0
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
