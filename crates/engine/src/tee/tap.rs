//! A tee at one route: it matches packets and copies them into its ring.

use super::record::Burst;
use super::{TapCounters, TeeConfig};
use crate::filter::Filter;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use towpath_packet::record_ring::Producer;
use towpath_packet::{Batch, Notifier, Packet, notify};
use towpath_wire::LinkKind;

/// Packets in front of the copy whose bytes are prefetched.
const AHEAD: usize = 6;

/// What became of a packet, while it is not known whether the egress takes it.
#[derive(Clone, Copy)]
struct Staged {
    /// The position in the ring behind its record.
    position: usize,
    matched: bool,
    missed: bool,
}

pub(super) struct Tap {
    pub(super) id: u64,
    /// Where it copies, as bits of the slot.
    pub(super) points: u32,
    filter: Option<Filter>,
    snaplen: usize,
    ring: Producer,
    counters: Arc<TapCounters>,
    notifier: Arc<Notifier>,
    /// Fill of the ring from which a sleeping reader is woken.
    wakes_at: usize,
    staged: Box<[Staged; Batch::<64>::CAPACITY]>,
    staged_len: usize,
}

/// One writer, as in [`Counters`](towpath_packet::Counters).
#[inline]
fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(n), Relaxed);
}

impl Tap {
    pub(super) fn new(
        id: u64,
        points: u32,
        config: &TeeConfig,
        ring: Producer,
        counters: Arc<TapCounters>,
        notifier: Arc<Notifier>,
    ) -> Tap {
        let staged = Box::new([Staged { position: 0, matched: false, missed: false }; Batch::<64>::CAPACITY]);
        Tap {
            id,
            points,
            filter: config.filter.clone(),
            snaplen: config.snaplen as usize,
            wakes_at: ring.capacity() / 4,
            ring,
            counters,
            notifier,
            staged,
            staged_len: 0,
        }
    }

    /// Copies packets and makes the records visible.
    #[inline]
    pub(super) fn copy(&mut self, packets: &[Packet], burst: Burst, link: LinkKind) {
        self.ring.refresh();
        let (mut matched, mut written) = (0, 0);
        for (i, packet) in packets.iter().enumerate() {
            if let Some(next) = packets.get(i + AHEAD) {
                next.prefetch_data();
            }
            if !self.matches(packet, link) {
                continue;
            }
            matched += 1;
            if !self.stage(packet, burst) {
                // The ring is full, and was looked at in this burst: the rest is counted only.
                matched += self.count(packets.get(i + 1..).unwrap_or_default(), link);
                break;
            }
            written += 1;
        }
        self.ring.submit();
        self.counted(matched, matched - written);
    }

    /// Copies packets of which the egress may take only the first.
    #[inline]
    pub(super) fn copy_ahead(&mut self, packets: &[Packet], burst: Burst, link: LinkKind) {
        self.ring.refresh();
        let mut full = false;
        self.staged_len = packets.len().min(self.staged.len());
        for (i, packet) in packets.iter().enumerate().take(self.staged_len) {
            if let Some(next) = packets.get(i + AHEAD) {
                next.prefetch_data();
            }
            let matched = self.matches(packet, link);
            full = full || matched && !self.stage(packet, burst);
            let position = self.ring.position();
            if let Some(staged) = self.staged.get_mut(i) {
                *staged = Staged { position, matched, missed: matched && full };
            }
        }
    }

    /// The egress took the first `n` of the packets of [`copy_ahead`](Tap::copy_ahead).
    #[inline]
    pub(super) fn taken(&mut self, n: usize) {
        let staged = std::mem::take(&mut self.staged_len).min(n);
        let taken = self.staged.get(..staged).unwrap_or_default();
        // Packets that met the lock taken before they were sent were not looked at.
        let unseen = (n - staged) as u64;
        let Some(last) = taken.last() else {
            self.ring.forget();
            return self.counted(unseen, unseen);
        };
        let (mut matched, mut missed) = (unseen, unseen);
        for staged in taken {
            matched += u64::from(staged.matched);
            missed += u64::from(staged.missed);
        }
        self.ring.submit_to(last.position);
        self.counted(matched, missed);
    }

    #[inline]
    fn matches(&self, packet: &Packet, link: LinkKind) -> bool {
        self.filter.as_ref().is_none_or(|filter| filter.matches(packet, link))
    }

    #[cold]
    fn count(&self, packets: &[Packet], link: LinkKind) -> u64 {
        match &self.filter {
            None => packets.len() as u64,
            Some(_) => packets.iter().filter(|packet| self.matches(packet, link)).count() as u64,
        }
    }

    #[inline]
    fn stage(&mut self, packet: &Packet, burst: Burst) -> bool {
        let len = packet.len().min(self.snaplen);
        match self.ring.stage(burst.words(packet), len) {
            Some(out) => {
                copy_front(packet, out);
                true
            }
            None => false,
        }
    }

    #[inline]
    fn counted(&self, matched: u64, missed: u64) {
        add(&self.counters.matched, matched);
        if missed > 0 {
            add(&self.counters.missed, missed);
        }
        if self.ring.used() >= self.wakes_at {
            notify::publish();
            self.notifier.notify();
        }
    }
}

/// Copies the first bytes of a packet, as many as `out` has: the usual lengths as two overlapping
/// pieces of a fixed size, without a call.
#[inline]
fn copy_front(packet: &Packet, out: &mut [u8]) {
    let Some(from) = packet.linear().get(..out.len()) else {
        packet.copy_to(0, out);
        return;
    };
    match out.len() {
        32..=64 => ends::<32>(from, out),
        65..=128 => ends::<64>(from, out),
        _ => out.copy_from_slice(from),
    }
}

/// Copies the first and the last `N` bytes: all of up to twice as many.
#[inline]
fn ends<const N: usize>(from: &[u8], to: &mut [u8]) {
    if let (Some(a), Some(b)) = (from.first_chunk::<N>(), to.first_chunk_mut::<N>()) {
        *b = *a;
    }
    if let (Some(a), Some(b)) = (from.last_chunk::<N>(), to.last_chunk_mut::<N>()) {
        *b = *a;
    }
}
