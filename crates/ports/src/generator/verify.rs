//! Checks the tags of packets for loss, order and repetition, flow by flow.
//!
//! A tag is noted in the [window](super::window) of its flow. A packet with a time is also a sample
//! of the latency.
//!
//! All queues of a port share the windows, because a flow may change its queue. They are locked
//! once per batch.

use super::tag::{Stamp, Tag};
use super::window::{Totals, Windows};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};
use towpath_packet::port::{Latency, Verified};
use towpath_packet::{Batch, Packet};
use towpath_sys::host;
use towpath_wire::{LinkKind, dissect};

/// Packets of all trials are checked.
const ANY: u32 = u32::MAX;

/// Checks the packets of all transmit queues of a port.
#[derive(Debug)]
pub(super) struct Verifier {
    windows: Mutex<Windows>,
    totals: Totals,
    link: LinkKind,
    /// Packets that are to arrive.
    expected: Option<u64>,
    /// The trial whose packets are checked, or [`ANY`]; written with the windows locked.
    trial: AtomicU32,
}

impl Verifier {
    /// A verifier of `flows` flows or more, with `expected` packets in all.
    pub(super) fn new(flows: u32, expected: Option<u64>, link: LinkKind) -> Verifier {
        let windows = Mutex::new(Windows::new(flows));
        Verifier { windows, totals: Totals::default(), link, expected, trial: AtomicU32::new(ANY) }
    }

    fn lock(&self) -> MutexGuard<'_, Windows> {
        self.windows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets what was found, and checks packets of the trial `number` from now on.
    pub(super) fn expect(&self, number: u16) {
        let mut windows = self.lock();
        windows.restart();
        self.totals.restart();
        self.trial.store(number.into(), Relaxed);
    }

    /// Checks the tags of a batch, one for each segment of its packets.
    pub(super) fn check(&self, batch: &Batch) {
        let mut windows = self.lock();
        let trial = self.trial.load(Relaxed);
        let mut now = None;
        batch.iter().for_each(|packet| self.check_packet(packet, &mut windows, trial, &mut now));
    }

    /// Checks a packet of a batch. `now` is the time of the batch, read when it is needed first.
    fn check_packet(&self, packet: &Packet, windows: &mut Windows, trial: u32, now: &mut Option<u64>) {
        let found = dissect(packet.linear(), self.link);
        let payload = usize::from(found.payload);
        let step = packet.gso().map_or(usize::MAX, |gso| usize::from(gso.size.max(1)));
        let mut at = payload;
        while at == payload || at < packet.len() {
            let tag = array_at(packet, at).and_then(|bytes| Tag::read(&bytes));
            let stamp = array_at(packet, at).and_then(|bytes| Stamp::read(&bytes));
            match tag {
                None => self.totals.count_foreign(),
                Some(_) if trial != ANY && stamp.is_none_or(|stamp| u32::from(stamp.trial) != trial) => {
                    self.totals.count_other_trial();
                }
                Some(tag) => {
                    if windows.note(tag, &self.totals)
                        && let Some(stamp) = stamp
                    {
                        let now = *now.get_or_insert_with(host::clock_monotonic);
                        windows.sample(now.saturating_sub(stamp.time));
                    }
                }
            }
            at = at.saturating_add(step);
        }
    }

    /// The result up to now.
    pub(super) fn read(&self) -> Verified {
        let windows = self.lock();
        let latency = windows.latency().map(|histogram| {
            let at = |quantile| histogram.value_at_quantile(quantile);
            let mut latency = Latency::default();
            (latency.samples, latency.min, latency.max) = (histogram.len(), histogram.min(), histogram.max());
            (latency.p50, latency.p99, latency.p999) = (at(0.5), at(0.99), at(0.999));
            latency
        });
        drop(windows);
        let mut found = self.totals.read(self.expected);
        found.latency = latency;
        found
    }

    /// The value of a quantile of the latencies, in nanoseconds; `None` without a sample.
    pub(super) fn latency(&self, quantile: f64) -> Option<u64> {
        let windows = self.lock();
        windows.latency().map(|histogram| histogram.value_at_quantile(quantile))
    }
}

/// The `N` bytes of a packet from `at` on, if it has so many.
#[inline]
fn array_at<const N: usize>(packet: &Packet, at: usize) -> Option<[u8; N]> {
    match packet.linear().get(at..).and_then(|rest| rest.first_chunk()) {
        Some(bytes) => Some(*bytes),
        None if at + N > packet.len() => None,
        None => {
            let mut bytes = [0; N];
            packet.copy_to(at, &mut bytes);
            Some(bytes)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tag;
    use super::super::window::verified;
    use super::*;

    #[test]
    fn packets_of_another_trial_are_not_counted_for_this_one() {
        let pool = towpath_packet::Pool::new(towpath_packet::PoolConfig::default().capacity(64)).unwrap();
        let mut cache = pool.cache(towpath_packet::Direction::Tx).unwrap();
        let verifier = Verifier::new(1, None, LinkKind::Ethernet);
        let mut send = |trial: u16, number: u32| {
            let mut frame = vec![0; 42 + tag::TIMED_LEN];
            frame[12..14].copy_from_slice(&[8, 0]);
            frame[14..24].copy_from_slice(&[0x45, 0, 0, 28 + tag::TIMED_LEN as u8, 0, 0, 0, 0, 9, 17]);
            frame[38..40].copy_from_slice(&[0, 8 + tag::TIMED_LEN as u8]);
            Tag { flow: 0, number }.write_timed(&mut frame[42..]);
            frame[42 + tag::TRIAL..].copy_from_slice(&Stamp { trial, time: host::clock_monotonic() }.bytes());
            let mut batch = Batch::new();
            assert!(batch.push(Packet::copy_from(&mut cache, &frame).unwrap()).is_ok());
            verifier.check(&batch);
            let mut found = verifier.read();
            found.latency = None;
            found
        };
        assert_eq!(send(1, 5), verified! { arrived: 1, lost: 5, before_first: 5 });
        verifier.expect(2);
        assert_eq!(send(1, 6), verified! { other_trial: 1 });
        assert_eq!(send(2, 0), verified! { other_trial: 1, arrived: 1 });
        let latency = verifier.read().latency.unwrap();
        assert!(latency.samples == 1 && latency.min <= latency.p50 && verifier.latency(0.5) == Some(latency.p50));
        verifier.expect(3);
        assert_eq!((verifier.read(), verifier.latency(0.5)), (Verified::default(), None));
    }

    #[test]
    fn a_tag_that_lies_in_two_pieces_is_read_and_one_that_is_cut_short_is_foreign() {
        let pool = towpath_packet::Pool::new(towpath_packet::PoolConfig::default().capacity(64)).unwrap();
        let mut cache = pool.cache(towpath_packet::Direction::Tx).unwrap();
        let verifier = Verifier::new(1, None, LinkKind::Ethernet);
        let mut frame = [0; 42 + tag::LEN];
        frame[12..14].copy_from_slice(&[8, 0]);
        frame[14..24].copy_from_slice(&[0x45, 0, 0, 28 + tag::LEN as u8, 0, 0, 0, 0, 9, 17]);
        frame[38..40].copy_from_slice(&[0, 8 + tag::LEN as u8]);
        Tag { flow: 0, number: 0 }.write(&mut frame[42..]);
        for end in [frame.len(), frame.len() - 1] {
            let mut packet = Packet::copy_from(&mut cache, &frame[..47]).unwrap();
            assert!(packet.append(Packet::copy_from(&mut cache, &frame[47..end]).unwrap()).is_ok());
            let mut batch = Batch::new();
            assert!(batch.push(packet).is_ok());
            verifier.check(&batch);
        }
        assert_eq!(verifier.read(), verified! { arrived: 1, foreign: 1 });
    }

    #[test]
    fn a_count_that_is_known_leaves_what_has_not_arrived_yet_outstanding() {
        let verifier = Verifier::new(1, Some(10), LinkKind::Ip);
        for number in [0, 1, 3] {
            verifier.windows.lock().unwrap().note(Tag { flow: 0, number }, &verifier.totals);
        }
        assert_eq!(verifier.read(), verified! { arrived: 3, lost: 1, outstanding: 6 });
    }
}
