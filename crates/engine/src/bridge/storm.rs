//! Storm control: how many packets per second an ingress may have flooded.

use std::time::Instant;

/// Limits of a port in packets per second, by the reason of flooding; `None`: no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct StormLimits {
    /// Frames to the broadcast address.
    pub broadcast: Option<u32>,
    /// Frames to other groups.
    pub multicast: Option<u32>,
    /// Frames to addresses that are not known.
    pub unknown: Option<u32>,
}

impl StormLimits {
    /// The same limit for all three.
    pub fn all(pps: u32) -> StormLimits {
        StormLimits { broadcast: Some(pps), multicast: Some(pps), unknown: Some(pps) }
    }

    fn of(&self, kind: FloodKind) -> Option<u32> {
        match kind {
            FloodKind::Broadcast => self.broadcast,
            FloodKind::Multicast => self.multicast,
            FloodKind::Unknown => self.unknown,
        }
    }
}

/// Why a frame is flooded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FloodKind {
    Broadcast,
    Multicast,
    Unknown,
}

impl FloodKind {
    /// By their numbers; the last one again, so that two bits name one.
    pub(super) const ALL: [FloodKind; 4] =
        [FloodKind::Broadcast, FloodKind::Multicast, FloodKind::Unknown, FloodKind::Unknown];
}

/// Nanoseconds per second.
const SECOND: u64 = 1_000_000_000;
/// Packets that a bucket holds at least: a burst.
const SMALLEST_BUCKET: u64 = 64;

/// A token bucket: a tenth of a second's packets, and 64 at least.
#[derive(Debug, Clone)]
struct Bucket {
    /// Nanoseconds that a packet costs.
    cost: u64,
    depth: u64,
    credit: u64,
    renewed: Instant,
}

impl Bucket {
    fn new(pps: u64, now: Instant) -> Bucket {
        // Nothing is granted at a limit of zero.
        let cost = SECOND.checked_div(pps).unwrap_or(u64::MAX);
        let depth = if pps == 0 { 0 } else { (SECOND / 10).max(SMALLEST_BUCKET * cost) };
        Bucket { cost, depth, credit: depth, renewed: now }
    }

    fn take(&mut self, now: Instant) -> bool {
        if self.credit < self.cost {
            let since = now.saturating_duration_since(self.renewed).as_nanos();
            self.credit = self.credit.saturating_add(u64::try_from(since).unwrap_or(u64::MAX)).min(self.depth);
            self.renewed = now;
        }
        let is_granted = self.credit >= self.cost;
        if is_granted {
            self.credit -= self.cost;
        }
        is_granted
    }
}

/// The limits of an ingress, as far as one worker applies them.
#[derive(Debug, Clone)]
pub(super) struct StormControl([Option<Bucket>; 3]);

impl StormControl {
    /// Each of `workers` grants its share.
    pub(super) fn new(limits: &StormLimits, workers: u32, now: Instant) -> StormControl {
        let kinds = [FloodKind::Broadcast, FloodKind::Multicast, FloodKind::Unknown];
        let share = |pps: u32| if pps == 0 { 0 } else { u64::from(pps.div_ceil(workers.max(1))) };
        StormControl(kinds.map(|kind| limits.of(kind).map(|pps| Bucket::new(share(pps), now))))
    }

    /// Whether another packet may be flooded.
    #[inline]
    pub(super) fn grants(&mut self, kind: FloodKind, now: Instant) -> bool {
        self.0[kind as usize].as_mut().is_none_or(|bucket| bucket.take(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_storm_gets_a_burst_and_then_its_rate_and_other_kinds_are_not_limited() {
        let begin = Instant::now();
        let limits = StormLimits { broadcast: Some(1000), ..StormLimits::default() };
        let mut control = StormControl::new(&limits, 1, begin);
        let mut granted = 0;
        for millisecond in 0..2000 {
            let now = begin + Duration::from_millis(millisecond);
            granted += (0..50).filter(|_| control.grants(FloodKind::Broadcast, now)).count();
            assert!(control.grants(FloodKind::Unknown, now) && control.grants(FloodKind::Multicast, now));
        }
        assert!((2000..=2101).contains(&granted), "{granted}");
    }

    #[test]
    fn a_limit_of_zero_grants_nothing_and_a_low_one_at_least_a_burst() {
        let begin = Instant::now();
        let limits = StormLimits { unknown: Some(0), multicast: Some(1), broadcast: None };
        let mut control = StormControl::new(&limits, 2, begin);
        let later = begin + Duration::from_secs(1000);
        assert!(!control.grants(FloodKind::Unknown, begin) && !control.grants(FloodKind::Unknown, later));
        assert_eq!((0..1000).filter(|_| control.grants(FloodKind::Multicast, begin)).count(), 64);
    }
}
