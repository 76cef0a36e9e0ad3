//! Delay, jitter and rate: packets wait in a queue until they may go on.
//!
//! ```text
//!   push ─► due = now + delay ± jitter ─► queue, by due time ─► token bucket ─► pop
//!              │                            at most `limit`
//!              └ not before the one in front of it (order=keep)
//! ```
//!
//! The bucket is at the exit and is charged when a packet leaves: over any time `t` no more than
//! `burst + rate · t` leaves, whatever the jitter and however late the worker is. A packet longer
//! than the burst leaves when the bucket is full, and is paid afterwards. A packet never leaves
//! before it is due. The queue is allocated once.

use super::config::{Distribution, Shape};
use crate::random::Random;
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use towpath_packet::Packet;

#[derive(Debug)]
pub(super) struct Shaper {
    shape: Shape,
    random: Random,
    queue: VecDeque<(Instant, Packet)>,
    bucket: Option<Bucket>,
}

impl Shaper {
    /// `None` if nothing is delayed or limited.
    pub(super) fn new(shape: Shape, seed: u64) -> Option<Shaper> {
        let bucket = shape.rate.map(|rate| Bucket::new(rate, shape.burst));
        let queue = VecDeque::with_capacity(shape.limit as usize);
        shape.is_on().then(|| Shaper { shape, random: Random::new(seed), queue, bucket })
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Queues a packet.
    ///
    /// # Errors
    /// The packet, if the queue is at its limit.
    pub(super) fn push(&mut self, packet: Packet, now: Instant) -> Result<(), Packet> {
        if self.queue.len() >= self.shape.limit as usize {
            return Err(packet);
        }
        let due = now + self.delay();
        let last = self.queue.back().map(|(due, _)| *due);
        match last.filter(|last| *last > due) {
            None => self.queue.push_back((due, packet)),
            Some(last) if self.shape.keep_order => self.queue.push_back((last, packet)),
            Some(_) => {
                let at = self.queue.partition_point(|(other, _)| *other <= due);
                self.queue.insert(at, (due, packet));
            }
        }
        Ok(())
    }

    /// The first packet, if it may leave now.
    pub(super) fn pop(&mut self, now: Instant) -> Option<Packet> {
        let (due, packet) = self.queue.front()?;
        if *due > now || self.bucket.as_mut().is_some_and(|bucket| !bucket.take(packet.len(), now)) {
            return None;
        }
        self.queue.pop_front().map(|(_, packet)| packet)
    }

    /// The time at which the first packet may leave.
    pub(super) fn next(&self) -> Option<Instant> {
        let (due, packet) = self.queue.front()?;
        Some(self.bucket.as_ref().and_then(|bucket| bucket.next(packet.len())).map_or(*due, |next| next.max(*due)))
    }

    /// Removes all packets, whether they are due or not.
    pub(super) fn clear(&mut self) {
        self.queue.clear();
    }

    fn delay(&mut self) -> Duration {
        let jitter = self.shape.jitter;
        if jitter.is_zero() {
            return self.shape.delay;
        }
        // From -1 to 1, or with a standard deviation of 1.
        let factor = match self.shape.distribution {
            Distribution::Uniform => 2.0 * self.fraction() - 1.0,
            // The sum of twelve uniform numbers has a variance of 1.
            Distribution::Normal => (0..12).map(|_| self.fraction()).sum::<f64>() - 6.0,
        };
        let by = jitter.mul_f64(factor.abs());
        if factor < 0.0 { self.shape.delay.saturating_sub(by) } else { self.shape.delay.saturating_add(by) }
    }

    /// A number from 0 to 1.
    fn fraction(&mut self) -> f64 {
        (self.random.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// A token bucket, as the time at which it is full again.
#[derive(Debug)]
struct Bucket {
    /// Bits per second.
    rate: u64,
    /// Bytes.
    burst: u64,
    full: Option<Instant>,
}

impl Bucket {
    fn new(rate: u64, burst: u64) -> Bucket {
        Bucket { rate: rate.max(1), burst: burst.max(1), full: None }
    }

    /// The time that bytes take at the rate; `up` rounds up to the nanosecond.
    fn time(&self, bytes: u64, up: bool) -> Duration {
        let bits = u128::from(bytes) * 8 * 1_000_000_000;
        let rate = u128::from(self.rate);
        let nanos = if up { bits.div_ceil(rate) } else { bits / rate };
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// The time at which a packet may leave; `None` for now, before the first.
    fn next(&self, len: usize) -> Option<Instant> {
        // There are enough tokens as long before the bucket is full as the others need.
        let spare = self.time(self.burst - self.burst.min(len as u64), false);
        self.full.map(|full| full.checked_sub(spare).unwrap_or(full))
    }

    /// Takes the tokens of a packet, if there are enough.
    fn take(&mut self, len: usize, now: Instant) -> bool {
        if self.next(len).is_some_and(|next| next > now) {
            return false;
        }
        let full = self.full.map_or(now, |full| full.max(now));
        self.full = full.checked_add(self.time(len as u64, true)).or(Some(full));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use towpath_packet::{Direction, Pool, PoolConfig};

    fn shape() -> impl Strategy<Value = Shape> {
        let nanos = |most: u64| (0..most).prop_map(Duration::from_nanos);
        let rate = proptest::option::of(prop_oneof![1_000u64..1_000_000, Just(1_000_000_000)]);
        let distribution = prop_oneof![Just(Distribution::Uniform), Just(Distribution::Normal)];
        (nanos(50_000_000), nanos(20_000_000), distribution, any::<bool>(), rate, 1u64..5000, 1u32..100).prop_map(
            |(delay, jitter, distribution, keep_order, rate, burst, limit)| Shape {
                delay,
                jitter,
                distribution,
                keep_order,
                rate,
                burst,
                limit,
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn packets_leave_in_order_not_before_their_delay_and_within_the_bucket(
            shape in shape(), seed in any::<u64>(), lens in vec(1usize..1500, 1..300), gaps in vec(0u64..3_000_000, 300),
        ) {
            let pool = Pool::new(PoolConfig::default().capacity(512)).unwrap();
            let mut cache = pool.cache(Direction::Tx).unwrap();
            let Some(mut shaper) = Shaper::new(shape, seed) else { return Ok(()) };
            let mut now = Instant::now();
            let (mut pushed, mut left, mut refused) = (Vec::new(), Vec::new(), 0);
            let mut leave = |shaper: &mut Shaper, now: Instant, pushed: &[(Instant, usize)]| {
                while let Some(packet) = shaper.pop(now) {
                    left.push((now, packet.timestamp() as usize, packet.len()));
                    assert!(packet.timestamp() < pushed.len() as u64);
                }
                // What is left may not leave now, and may at the time that is named.
                assert!(shaper.next().is_none_or(|next| next > now), "{:?}", shaper.next());
            };
            for (len, gap) in lens.iter().zip(&gaps) {
                now += Duration::from_nanos(*gap);
                let mut packet = Packet::copy_from(&mut cache, &vec![0; *len]).unwrap();
                packet.set_timestamp(pushed.len() as u64);
                let full = shaper.len() == shape.limit as usize;
                match shaper.push(packet, now) {
                    Ok(()) => {
                        assert!(!full);
                        pushed.push((now, *len));
                    }
                    Err(_) => {
                        assert!(full, "a packet is refused at the limit alone");
                        refused += 1;
                    }
                }
                leave(&mut shaper, now, &pushed);
            }
            while let Some(next) = shaper.next() {
                now = next;
                leave(&mut shaper, now, &pushed);
            }
            prop_assert_eq!((left.len(), left.len() + refused, shaper.len()), (pushed.len(), lens.len(), 0));
            let least = match shape.distribution {
                Distribution::Uniform => shape.delay.saturating_sub(shape.jitter),
                Distribution::Normal => shape.delay.saturating_sub(shape.jitter * 6),
            };
            for (at, number, _) in &left {
                prop_assert!(*at - pushed[*number].0 >= least, "left {:?} after", *at - pushed[*number].0);
            }
            if shape.keep_order || shape.jitter.is_zero() {
                prop_assert!(left.windows(2).all(|pair| pair[0].1 < pair[1].1));
            }
            // Over any interval: the burst, the rate, and one packet that is longer than the burst.
            if let Some(rate) = shape.rate {
                for from in 0..left.len() {
                    let mut bytes = 0;
                    for (at, _, len) in &left[from..] {
                        bytes += *len as u64;
                        let passed = (*at - left[from].0).as_nanos();
                        let refilled = passed * u128::from(rate) / 8_000_000_000;
                        let most = u128::from(shape.burst.max(1500)) + refilled + 1;
                        prop_assert!(u128::from(bytes) <= most, "{} bytes in {:?} ns", bytes, passed);
                    }
                }
            }
        }
    }

    #[test]
    fn a_jitter_spreads_around_the_delay() {
        for (distribution, deviation) in [(Distribution::Uniform, 1.0 / 3f64.sqrt()), (Distribution::Normal, 1.0)] {
            let [delay, jitter] = [100, 10].map(Duration::from_millis);
            let shape = Shape { delay, jitter, distribution, ..Shape::default() };
            let mut shaper = Shaper::new(shape, 1).unwrap();
            let all: Vec<f64> = (0..20_000).map(|_| (shaper.delay().as_secs_f64() - 0.1) / 0.01).collect();
            let mean = all.iter().sum::<f64>() / all.len() as f64;
            let variance = all.iter().map(|x| x * x).sum::<f64>() / all.len() as f64;
            assert!(
                mean.abs() < 0.05 && (variance.sqrt() - deviation).abs() < 0.05,
                "{distribution:?} {mean} {variance}"
            );
        }
    }

    #[test]
    fn nothing_to_shape_is_no_shaper() {
        assert!(Shaper::new(Shape::default(), 1).is_none());
    }
}
