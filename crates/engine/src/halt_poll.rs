//! Halt polling: how long an idle worker stays awake before it sleeps.
//!
//! ```text
//!   packet │ idle for less than the window            │ packet: a wake-up saved
//!          └ awake ─────────────────────────────────►
//!   packet │ idle for longer than the window          │ packet within `longest`: the window doubles
//!          └ awake ──────►│ asleep
//!   packet │ idle for longer than `longest` ───────── … packet: the window is gone
//!          └ awake ──────►│ asleep
//! ```
//!
//! A packet that finds the worker asleep waits for a wake-up, which is some ten microseconds, in a
//! virtual machine often fifty. Where packets follow one another closely, as requests and responses
//! do, the next one comes before the sleep has paid. So how long to stay awake is measured: packets
//! that come soon after the worker has slept lengthen the window, until it holds the pauses between
//! them, and one long pause closes it. A quiet worker therefore has none. The rule is that of KVM's
//! halt polling (Linux, Documentation/virt/kvm/halt-polling.rst).
//!
//! While it is awake, the worker yields its core after each look. A thread that takes the core for
//! long has more to do with it: then the worker sleeps at once, and for a while has no window.

use crate::core_sharing;
use std::time::{Duration, Instant};

/// The first window.
const FIRST: Duration = Duration::from_micros(20);

/// The window of one worker.
#[derive(Debug)]
pub(crate) struct HaltPoll {
    longest: Duration,
    window: Duration,
    /// When the worker became idle.
    idle_since: Option<Instant>,
    /// Another thread had the core for long: no window until then.
    barred_until: Option<Instant>,
}

impl HaltPoll {
    /// One whose window is at most the `longest`; zero: it never has one.
    pub(crate) fn new(longest: Duration) -> HaltPoll {
        HaltPoll { longest, window: Duration::ZERO, idle_since: None, barred_until: None }
    }

    /// Whether a worker that has nothing to do stays awake; it has then yielded its core. `now` is
    /// the time.
    pub(crate) fn stays_awake(&mut self, mut yielding: impl FnMut(), mut now: impl FnMut() -> Instant) -> bool {
        if self.longest.is_zero() {
            return false;
        }
        let before = now();
        let idle_since = *self.idle_since.get_or_insert(before);
        let awake = before < idle_since + self.window;
        if awake {
            yielding();
            let after = now();
            if let Some(time) = core_sharing::penalty(after.saturating_duration_since(before)) {
                self.window = Duration::ZERO;
                self.barred_until = Some(after + time);
            }
        }
        awake
    }

    /// A turn moved packets. `now` is the time.
    #[inline]
    pub(crate) fn moved(&mut self, now: impl FnOnce() -> Instant) {
        if let Some(since) = self.idle_since.take() {
            self.ended(since, now());
        }
    }

    /// The worker was idle from one time to another.
    #[cold]
    fn ended(&mut self, since: Instant, now: Instant) {
        let idle = now.saturating_duration_since(since);
        if idle > self.longest {
            self.window = Duration::ZERO;
        } else if idle >= self.window && self.barred_until.is_none_or(|until| now >= until) {
            self.window = (self.window * 2).clamp(FIRST.min(self.longest), self.longest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_micros(500);

    /// A worker, and a clock that goes on by a microsecond with each look at it.
    struct Worker {
        poll: HaltPoll,
        time: Instant,
        /// For how long another thread takes the core when it is yielded.
        taken: Duration,
    }

    impl Worker {
        fn new(longest: Duration) -> Worker {
            Worker { poll: HaltPoll::new(longest), time: Instant::now(), taken: Duration::ZERO }
        }

        /// Is idle for a time, until a packet comes; returns how much of it the worker was awake.
        fn idle(&mut self, pause: Duration) -> Duration {
            let Worker { poll, time, taken } = self;
            let clock = std::cell::Cell::new(*time);
            let now = || {
                clock.set(clock.get() + Duration::from_micros(1));
                clock.get()
            };
            let began = clock.get();
            while clock.get() < began + pause && poll.stays_awake(|| clock.set(clock.get() + *taken), now) {}
            let awake = clock.get() - began;
            *time = (began + pause).max(clock.get());
            poll.moved(|| *time);
            awake
        }

        /// Of so many pauses, in how many it slept.
        fn sleeps(&mut self, pauses: usize, pause: Duration) -> usize {
            (0..pauses).filter(|_| self.idle(pause) < pause).count()
        }
    }

    #[test]
    fn a_worker_whose_packets_come_soon_sleeps_a_few_times_and_then_stays_awake() {
        for pause in [15, 50, 100, 450].map(Duration::from_micros) {
            let mut worker = Worker::new(LONGEST);
            let sleeps = worker.sleeps(1000, pause);
            assert!((1..=6).contains(&sleeps), "{pause:?}: {sleeps}");
            assert_eq!(worker.sleeps(1000, pause), 0, "{pause:?}");
        }
    }

    #[test]
    fn a_quiet_worker_sleeps_at_once_also_after_busy_times() {
        let mut worker = Worker::new(LONGEST);
        for _ in 0..10 {
            worker.sleeps(20, Duration::from_micros(100));
            let window = worker.idle(Duration::from_secs(1));
            assert!((100..200).contains(&window.as_micros()), "one window more, and no longer than needed: {window:?}");
            for pause in [1, 10, 1000].map(Duration::from_millis) {
                assert!(worker.idle(pause) < Duration::from_micros(5), "{pause:?}");
            }
        }
    }

    #[test]
    fn short_and_long_pauses_in_turns_open_no_window_worth_the_name() {
        let mut worker = Worker::new(LONGEST);
        let awake: Duration = (0..100)
            .map(|_| {
                worker.idle(Duration::from_micros(100));
                worker.idle(Duration::from_millis(1))
            })
            .sum();
        assert!(awake < 100 * 2 * FIRST, "{awake:?}");
    }

    #[test]
    fn where_another_thread_takes_the_core_for_long_the_worker_sleeps_and_leaves_it_alone_for_a_while() {
        // Its window could be longer than the other thread had the core.
        let mut worker = Worker::new(Duration::from_millis(10));
        let pause = Duration::from_micros(300);
        worker.sleeps(20, pause);
        worker.taken = Duration::from_millis(3);
        // It had the core for three milliseconds, once: 64 times as long there is no window.
        worker.idle(pause);
        let (begin, awake) = (worker.time, (0..600).map(|_| worker.idle(pause)).max());
        assert!(worker.time - begin < Duration::from_millis(192));
        assert!(awake < Some(Duration::from_micros(5)), "{awake:?}");
        worker.taken = Duration::ZERO;
        worker.sleeps(60, pause);
        assert_eq!(worker.sleeps(100, pause), 0, "the core is the worker's again");
    }

    #[test]
    fn a_receiver_that_is_soon_done_may_have_the_core() {
        let mut worker = Worker::new(LONGEST);
        worker.taken = Duration::from_micros(30);
        worker.sleeps(20, Duration::from_micros(300));
        assert_eq!(worker.sleeps(100, Duration::from_micros(300)), 0);
    }

    #[test]
    fn without_a_longest_window_it_never_stays_awake_nor_looks_at_the_clock() {
        let mut poll = HaltPoll::new(Duration::ZERO);
        for _ in 0..10 {
            assert!(!poll.stays_awake(|| panic!("it yields"), || panic!("it looks at the clock")));
            poll.moved(|| panic!("it looks at the clock"));
        }
    }
}
