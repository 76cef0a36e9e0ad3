//! The worker's side: a transmit queue that deals packets out to lanes.

use super::table::{BUCKETS, Steering, Table};
use super::{Full, Gate, LaneConfig, Link};
use crate::rules::dissect_packet;
use std::sync::Arc;
use towpath_packet::notify;
use towpath_packet::port::{State, TxQueue, Wake};
use towpath_packet::spsc::Producer;
use towpath_packet::{Batch, Counters, DropReason, Offloads, Packet};
use towpath_sys::sync::Ordering;
use towpath_wire::LinkKind;

/// The way to one lane.
#[derive(Debug)]
pub(super) struct Outlet {
    /// `None` once closed.
    ring: Option<Producer<Packet>>,
    stage: Batch,
    /// Packets that were staged for this lane so far.
    sent: u64,
    link: Arc<Link>,
    gate: Arc<Gate>,
    unannounced: bool,
    /// Packets that can still be dealt to it in this burst.
    room: usize,
}

impl Outlet {
    pub(super) fn new(ring: Producer<Packet>, link: Arc<Link>, gate: Arc<Gate>) -> Outlet {
        Outlet { ring: Some(ring), stage: Batch::new(), sent: 0, link, gate, unannounced: false, room: 0 }
    }

    /// Packets that ring and stage have room for, as far as `want` goes.
    #[inline]
    fn count_room(&mut self, want: usize) -> usize {
        let staged = self.stage.len();
        self.ring.as_mut().map_or(0, |ring| ring.free(want + staged) + Batch::<64>::CAPACITY - staged)
    }

    /// Puts a packet on the stage; there was room for it when it was dealt.
    #[inline]
    fn put(&mut self, packet: Packet) {
        if self.stage.room() == 0 {
            self.flush();
        }
        if self.stage.push(packet).is_err() {
            self.link.counters.dropped(DropReason::LaneFull, 1);
        }
    }

    /// Moves what is staged into the ring, as far as there is room.
    #[inline]
    fn flush(&mut self) {
        if !self.stage.is_empty()
            && let Some(ring) = &mut self.ring
            && ring.push_batch(&mut self.stage) > 0
        {
            self.unannounced = true;
        }
    }

    /// Closes the ring, then wakes the lane so that it sees it.
    fn close(&mut self) {
        if let Some(ring) = self.ring.take() {
            let left = self.stage.len() as u64;
            self.link.sent.store(self.sent - left, Ordering::Relaxed);
            self.link.counters.dropped(DropReason::Stopped, left);
            drop(ring);
            notify::publish();
            self.gate.notifier.notify();
        }
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        self.close();
    }
}

/// Deals packets out to lanes; owned by the worker that receives them.
#[derive(Debug)]
pub struct Steer {
    outlets: Vec<Outlet>,
    steering: Steering,
    full: Full,
    link: LinkKind,
    table: Arc<Table>,
    /// Where each bucket's packets go at this moment.
    current: Box<[u8; BUCKETS]>,
    /// The number of the last packet of each bucket among those sent to its lane.
    last: Box<[u64; BUCKETS]>,
    next: usize,
    counters: Arc<Counters>,
}

impl Steer {
    pub(super) fn new(outlets: Vec<Outlet>, config: &LaneConfig, table: Arc<Table>, counters: Arc<Counters>) -> Steer {
        Steer {
            outlets,
            steering: config.steering.clone(),
            full: config.full,
            link: config.layer.into(),
            current: Box::new(std::array::from_fn(|bucket| table.lane(bucket))),
            last: Box::new([0; BUCKETS]),
            table,
            next: 0,
            counters,
        }
    }

    /// The lane of a packet, and its bucket if that decided; `None` while the bucket is on its way to another lane.
    #[inline]
    fn choose(&mut self, packet: &mut Packet) -> Option<(usize, Option<usize>)> {
        if let Some(lane) = packet.lane() {
            return Some((usize::from(lane) % self.outlets.len(), None));
        }
        let hash = match &self.steering {
            Steering::Flow => flow_hash(packet, self.link),
            Steering::Rss(key) => dissect_packet(packet, self.link).toeplitz(key),
            Steering::Lane(lane) => return Some((usize::from(*lane) % self.outlets.len(), None)),
            Steering::RoundRobin => {
                self.next = (self.next + 1) % self.outlets.len();
                return Some((self.next, None));
            }
        };
        let bucket = hash as usize % BUCKETS;
        let wanted = self.table.lane(bucket);
        if wanted != self.current[bucket] && !self.follow(bucket, wanted) {
            return None;
        }
        Some((usize::from(self.current[bucket]), Some(bucket)))
    }

    /// Moves a bucket if the old lane has sent its last packet.
    #[cold]
    fn follow(&mut self, bucket: usize, wanted: u8) -> bool {
        let Some(old) = self.outlets.get_mut(usize::from(self.current[bucket])) else { return true };
        // Acquire: what the old lane sent happened before the new lane gets the next packet.
        if old.link.settled.load(Ordering::Acquire) < self.last[bucket] {
            old.flush();
            return false;
        }
        self.current[bucket] = wanted;
        self.last[bucket] = 0;
        true
    }

    /// How many of the packets can be dealt out, with their lanes in `lanes`; a packet that will be dropped has none.
    #[inline]
    fn deal(&mut self, packets: &mut [Packet], lanes: &mut [Option<u8>]) -> usize {
        for outlet in &mut self.outlets {
            outlet.room = outlet.count_room(packets.len());
        }
        let mut dealt = 0;
        for (n, (packet, to)) in packets.iter_mut().zip(lanes).enumerate() {
            dealt = n + 1;
            let Some((lane, bucket)) = self.choose(packet) else { return n };
            let Some(outlet) = self.outlets.get_mut(lane) else { return n };
            if outlet.room == 0 {
                if self.full == Full::Hold && outlet.ring.is_some() {
                    return n;
                }
                *to = None;
                continue;
            }
            outlet.room -= 1;
            outlet.sent += 1;
            if let Some(bucket) = bucket {
                self.last[bucket] = outlet.sent;
                self.table.count(bucket, 1);
            }
            *to = Some(lane as u8);
        }
        dealt
    }
}

/// The symmetric hash of a packet's flow, kept in the packet.
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
        let mut lanes = [None; Batch::<64>::CAPACITY];
        let taken = self.deal(batch.as_mut_slice(), &mut lanes);
        for (packet, lane) in batch.drain_front(taken).zip(lanes) {
            match lane.and_then(|lane| self.outlets.get_mut(usize::from(lane))) {
                Some(outlet) => outlet.put(packet),
                None => {
                    self.counters.dropped(DropReason::LaneFull, 1);
                    drop(packet);
                }
            }
        }
        for outlet in &mut self.outlets {
            outlet.flush();
        }
        taken
    }

    /// Frees nothing; what waited for room goes into the rings. Nobody else need have anything to send now, so the lanes are told.
    #[inline]
    fn reclaim(&mut self) -> usize {
        for outlet in &mut self.outlets {
            outlet.flush();
        }
        self.kick();
        0
    }

    fn close(&mut self) {
        self.outlets.iter_mut().for_each(Outlet::close);
    }

    #[inline]
    fn kick(&mut self) {
        if self.outlets.iter().any(|outlet| outlet.unannounced) {
            notify::publish();
            for outlet in &mut self.outlets {
                if std::mem::take(&mut outlet.unannounced) {
                    outlet.gate.notifier.notify();
                }
            }
        }
    }

    /// What all lanes' egresses take.
    #[inline]
    fn offloads(&self) -> Offloads {
        self.outlets
            .iter()
            .fold(Offloads::ALL, |can, outlet| can.and(Offloads::from_bits(outlet.gate.accept.load(Ordering::Relaxed))))
    }

    #[inline]
    fn pending(&self) -> usize {
        self.outlets.iter().filter(|outlet| outlet.ring.is_some()).map(|outlet| outlet.stage.len()).sum()
    }

    fn state(&self) -> State {
        match self.outlets.iter().any(|outlet| outlet.ring.as_ref().is_none_or(Producer::is_closed)) {
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
