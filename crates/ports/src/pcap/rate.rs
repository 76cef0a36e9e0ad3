//! The rate of a replay: packets or bits a second.
//!
//! A packet is due when those before it have had their time: packet `k` after `k / rate` seconds,
//! or after the bits of the first `k` packets at the bit rate. No packet is left out. After a delay
//! of more than [`LONGEST_CATCH_UP`] the schedule is moved, so that there is a short burst only;
//! the rate that is reached is lower then.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use towpath_packet::port::Pacing;

/// What a delayed replay catches up with.
const LONGEST_CATCH_UP: Duration = Duration::from_millis(10);
const SECOND: u128 = 1_000_000_000;
/// No packet yet.
const NEVER: u64 = u64::MAX;

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    Packets,
    Bits,
}

#[derive(Debug)]
pub(super) struct Rate {
    unit: Unit,
    per_second: u64,
    /// The schedule begins here.
    origin: Option<Instant>,
    /// Units since the origin.
    done: u128,
    shared: Arc<RateShared>,
}

/// The progress of a [`Rate`]: one writer, any number of readers.
#[derive(Debug)]
pub(super) struct RateShared {
    unit: Unit,
    per_second: u64,
    epoch: Instant,
    /// Nanoseconds from the epoch to the first packet and to the last.
    first: AtomicU64,
    last: AtomicU64,
    packets: AtomicU64,
    /// Units of all packets, and of all but the last.
    units: AtomicU64,
    before_last: AtomicU64,
}

impl Rate {
    /// `per_second` units, at least 1.
    pub(super) fn new(unit: Unit, per_second: u64) -> Rate {
        let (per_second, epoch) = (per_second.max(1), Instant::now());
        let [first, last, packets, units, before_last] = [NEVER, 0, 0, 0, 0].map(AtomicU64::new);
        let shared = Arc::new(RateShared { unit, per_second, epoch, first, last, packets, units, before_last });
        Rate { unit, per_second, origin: None, done: 0, shared }
    }

    pub(super) fn shared(&self) -> &Arc<RateShared> {
        &self.shared
    }

    /// The time of the next packet, if that is later than now.
    pub(super) fn due(&mut self, now: Instant) -> Option<Instant> {
        let origin = *self.origin.get_or_insert(now);
        let after = (self.done * SECOND).div_ceil(u128::from(self.per_second));
        let due = origin.checked_add(Duration::from_nanos(u64::try_from(after).unwrap_or(NEVER)))?;
        if due > now {
            return Some(due);
        }
        if now - due > LONGEST_CATCH_UP {
            self.origin = Some(now - LONGEST_CATCH_UP);
            self.done = 0;
        }
        None
    }

    /// Counts a packet that is sent at `now`.
    pub(super) fn sent(&mut self, bytes: usize, now: Instant) {
        let units = if self.unit == Unit::Packets { 1 } else { bytes as u64 * 8 };
        self.done += u128::from(units);
        let shared = &self.shared;
        let at = u64::try_from(now.saturating_duration_since(shared.epoch).as_nanos()).unwrap_or(NEVER - 1);
        if shared.first.load(Relaxed) == NEVER {
            shared.first.store(at, Relaxed);
        }
        shared.last.store(at, Relaxed);
        let before = shared.units.load(Relaxed);
        shared.before_last.store(before, Relaxed);
        shared.units.store(before + units, Relaxed);
        shared.packets.store(shared.packets.load(Relaxed) + 1, Relaxed);
    }
}

impl RateShared {
    /// How the rate was kept up to the last packet. A bit rate is given in packets of the mean
    /// length. What is late by less than a packet is not late.
    pub(super) fn read(&self) -> Pacing {
        let [packets, units, before_last] =
            [&self.packets, &self.units, &self.before_last].map(|counter| counter.load(Relaxed));
        let mean = units as f64 / packets.max(1) as f64;
        let asked = match self.unit {
            Unit::Packets => self.per_second as f64,
            Unit::Bits => self.per_second as f64 / if mean > 0.0 { mean } else { 1.0 },
        };
        let passed = self.last.load(Relaxed).saturating_sub(self.first.load(Relaxed));
        let due = passed as f64 / 1e9 * self.per_second as f64;
        let late = due - before_last as f64;
        let reached = match packets {
            0 => 0.0,
            _ if late < mean => asked,
            _ => asked * before_last as f64 / due,
        };
        Pacing::new(asked, reached, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_due_when_those_before_it_have_had_their_time() {
        let start = Instant::now();
        for (unit, per_second, size) in [(Unit::Packets, 1000, 700), (Unit::Bits, 8_000_000, 1000)] {
            let mut rate = Rate::new(unit, per_second);
            let mut now = start;
            for packet in 0..5000u32 {
                let due = start + Duration::from_millis(1) * packet;
                if packet > 0 {
                    assert_eq!(rate.due(now), Some(due), "{unit:?}");
                    assert_eq!(rate.due(due - Duration::from_nanos(1)), Some(due), "{unit:?}");
                }
                now = due;
                assert_eq!(rate.due(now), None, "{unit:?}");
                rate.sent(size, now);
            }
            assert_eq!(rate.shared().read(), Pacing::new(1000.0, 1000.0, 0));
        }
    }

    #[test]
    fn after_a_pause_there_is_a_short_burst_and_the_rate_is_not_reached() {
        let (start, mut rate) = (Instant::now(), Rate::new(Unit::Packets, 1000));
        assert_eq!(rate.due(start), None);
        rate.sent(60, start);
        let late = start + Duration::from_secs(2);
        let mut burst = 0;
        while rate.due(late).is_none() {
            rate.sent(60, late);
            burst += 1;
        }
        assert_eq!(burst, 11, "those of ten milliseconds, and the one that is due now");
        let read = rate.shared().read();
        assert!((read.reached - 1000.0 * 11.0 / 2000.0).abs() < 1.0, "{read:?}");
    }

    #[test]
    fn nothing_sent_is_nothing_reached() {
        assert_eq!(Rate::new(Unit::Bits, 8).shared().read().reached, 0.0);
    }
}
