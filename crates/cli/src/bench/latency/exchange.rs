//! Messages that carry their time of sending, and the measurement of their latency.

use crate::args::BenchLatency;
use hdrhistogram::Histogram;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::resource::{UsageWho, getrusage};
use nix::unistd::Pid;
use std::error::Error;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use towpath::engine::idle::Idle;

/// How threads wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Spin,
    Sleep,
    /// The applications sleep; the datapath does as it is by default.
    Adaptive,
}

impl Mode {
    pub(super) fn name(self) -> &'static str {
        match self {
            Mode::Spin => "spin",
            Mode::Sleep => "sleep",
            Mode::Adaptive => "adaptive",
        }
    }

    /// The idle mode of a datapath worker.
    pub(super) fn idle(self) -> Idle {
        match self {
            Mode::Spin => Idle::SPIN,
            Mode::Sleep => Idle::SLEEP,
            Mode::Adaptive => Idle::ADAPTIVE,
        }
    }
}

/// A measurement.
pub(super) struct Sample {
    pub(super) ns: Histogram<u64>,
    pub(super) lost: u64,
    /// Voluntary switches, without the sender's pauses.
    pub(super) sleeps: i64,
}

impl Sample {
    pub(super) fn new() -> Result<Sample, Box<dyn Error>> {
        Ok(Sample { ns: Histogram::new_with_bounds(1, 60_000_000_000, 3)?, lost: 0, sleeps: 0 })
    }

    pub(super) fn add(&mut self, other: &Sample) {
        // Both have the same bounds.
        let _ = self.ns.add(&other.ns);
        self.lost += other.lost;
        self.sleeps += other.sleeps;
    }
}

/// Bytes of the stamp at the beginning of a message: nanoseconds and one flag bit.
pub(super) const STAMP: usize = 8;
/// A warm-up message: it is not counted.
const UNCOUNTED: u64 = 1 << 63;
/// Time limit of a message, and of the setup of all paths.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Time after which a message counts as lost.
const LOST: Duration = Duration::from_millis(200);

/// A round: shared by sender and receiver.
pub(super) struct Round {
    epoch: Instant,
    mode: Mode,
    messages: u64,
    pause: Duration,
    seen: AtomicU64,
    ns: Mutex<Histogram<u64>>,
}

impl Round {
    pub(super) fn new(mode: Mode, args: &BenchLatency) -> Result<Round, Box<dyn Error>> {
        let pause = Duration::from_micros(args.pause);
        let (messages, ns) = (args.messages as u64, Mutex::new(Sample::new()?.ns));
        Ok(Round { epoch: Instant::now(), mode, messages, pause, seen: AtomicU64::new(0), ns })
    }

    pub(super) fn mode(&self) -> Mode {
        self.mode
    }

    fn now(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    /// Called by the receiver when a message arrives.
    pub(super) fn received(&self, stamp: u64) {
        if stamp & UNCOUNTED == 0
            && let Ok(mut ns) = self.ns.lock()
        {
            ns.saturating_record(self.now().saturating_sub(stamp));
        }
        self.seen.fetch_add(1, Ordering::Release);
    }

    /// Called by the sender for the whole round: `send` sends a message with a stamp, `look` is
    /// called while waiting for it.
    pub(super) fn send_all(
        &self,
        mut send: impl FnMut(u64) -> Result<(), Box<dyn Error>>,
        mut look: impl FnMut() -> Result<(), Box<dyn Error>>,
    ) -> Result<Sample, Box<dyn Error>> {
        let mut until_seen = |n: u64, at_most: Duration| -> Result<bool, Box<dyn Error>> {
            let since = Instant::now();
            while self.seen.load(Ordering::Acquire) < n && since.elapsed() < at_most {
                look()?;
                std::hint::spin_loop();
            }
            Ok(self.seen.load(Ordering::Acquire) >= n)
        };
        // Until the path is up, then a warm-up.
        let since = Instant::now();
        let warm = self.messages / 10 + 10;
        while self.seen.load(Ordering::Acquire) < warm {
            send(self.now() | UNCOUNTED)?;
            until_seen(self.seen.load(Ordering::Acquire) + 1, Duration::from_millis(5))?;
            if since.elapsed() > TIMEOUT {
                return Err("nothing arrives".into());
            }
        }
        // Surplus messages arrive in this time.
        std::thread::sleep(Duration::from_millis(20));
        until_seen(u64::MAX, Duration::from_millis(1))?;
        let (first, slept) = (self.seen.load(Ordering::Acquire), switches()?);
        let mut pauses = 0;
        for n in 0..self.messages {
            match self.mode {
                Mode::Spin => _ = until_seen(first + n, LOST)?,
                Mode::Sleep | Mode::Adaptive => pauses += self.rest(first + n),
            }
            send(self.now())?;
        }
        if self.mode != Mode::Spin {
            pauses += self.rest(first + self.messages);
        }
        let sleeps = switches()? - slept - pauses;
        until_seen(first + self.messages, LOST)?;
        let ns = self.ns.lock().map_err(|_| "the receiver failed")?.clone();
        let lost = self.messages.saturating_sub(ns.len());
        Ok(Sample { ns, lost, sleeps })
    }

    /// Pauses until the `n`th message has arrived or is lost; returns the number of pauses.
    fn rest(&self, n: u64) -> i64 {
        let (since, mut pauses) = (Instant::now(), 0);
        while pauses == 0 || (self.seen.load(Ordering::Acquire) < n && since.elapsed() < LOST) {
            std::thread::sleep(self.pause);
            pauses += 1;
        }
        pauses
    }

    /// Runs a receiver on `core` while `send` runs on this thread; `receive` waits for a message,
    /// as the mode says, and returns its stamp.
    pub(super) fn beside<T>(
        &self,
        core: usize,
        mut receive: impl FnMut() -> Result<Option<u64>, Box<dyn Error>> + Send,
        send: impl FnOnce() -> Result<T, Box<dyn Error>>,
    ) -> Result<T, Box<dyn Error>> {
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let receiver = scope.spawn(|| -> Result<(), String> {
                pin(core);
                while !stop.load(Ordering::Relaxed) {
                    if let Some(stamp) = receive().map_err(|error| error.to_string())? {
                        self.received(stamp);
                    }
                }
                Ok(())
            });
            let sent = send();
            stop.store(true, Ordering::Relaxed);
            receiver.join().map_err(|_| "the receiver failed")??;
            sent
        })
    }
}

/// Voluntary context switches of all threads so far.
fn switches() -> nix::Result<i64> {
    getrusage(UsageWho::RUSAGE_SELF).map(|usage| usage.voluntary_context_switches())
}

/// Pins this thread to a core where that is allowed.
pub(super) fn pin(core: usize) {
    let mut set = CpuSet::new();
    let _ = set.set(core).and_then(|()| sched_setaffinity(Pid::from_raw(0), &set));
}

/// The stamp at the beginning of a message.
pub(super) fn stamp(message: &[u8]) -> Option<u64> {
    message.first_chunk::<STAMP>().map(|bytes| u64::from_ne_bytes(*bytes))
}
