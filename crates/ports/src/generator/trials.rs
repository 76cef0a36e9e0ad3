//! Trials: a generator that waits, and sends a number of packets at a rate each time it is asked.
//!
//! ```text
//!   Trials::begin ──► serial + 1 ──► GenRx: at its next burst, new numbers, count and pace
//!   Trials::expect ─► Verifier: counts packets of this trial only
//!   Trials::progress ◄── made, given up, complete
//! ```
//!
//! Ports and workers run on between trials. A packet carries the number of its trial
//! (`stamp=time`), so that a late one is not counted for the next trial.

use super::tag::Stamp;
use super::verify::Verifier;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use towpath_packet::port::Verified;

/// How long a queue without a trial waits before it looks for one again.
pub(super) const LOOK: Duration = Duration::from_millis(1);

/// Packets to send: all of them are due `count / rate` seconds after the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Trial {
    /// The number that the packets carry.
    pub number: u16,
    /// Packets per second, over all queues; at least 1.
    pub rate: u64,
    /// Packets, over all queues.
    pub count: u64,
    /// Which of the generator's [sizes](super::GenPort::trials), from 0.
    pub size: usize,
}

/// How far a trial is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Progress {
    /// Packets that were made.
    pub made: u64,
    /// Packets that were due and are never made, because the generator fell behind.
    pub given_up: u64,
    /// From the first packet to the last, or until now.
    pub elapsed: Duration,
    /// All packets are made or given up.
    pub complete: bool,
}

/// The handle of a generator with trials. A clone refers to the same generator.
#[derive(Debug, Clone)]
pub struct Trials(Arc<TrialsShared>);

#[derive(Debug)]
pub(super) struct TrialsShared {
    /// Counts trials; written behind `current`.
    serial: AtomicU64,
    current: Mutex<Trial>,
    queues: OnceLock<Vec<Arc<QueueProgress>>>,
    verifier: Option<Arc<Verifier>>,
}

/// One queue's progress: one writer, any number of readers.
#[derive(Debug)]
pub(super) struct QueueProgress {
    epoch: Instant,
    /// The trial that the rest is about; written last when a trial begins.
    serial: AtomicU64,
    made: AtomicU64,
    count: AtomicU64,
    /// Nanoseconds from the epoch to the first and to the last packet.
    begun: AtomicU64,
    ended: AtomicU64,
    complete: AtomicBool,
}

impl Trials {
    pub(super) fn new(verifier: Option<Arc<Verifier>>) -> Trials {
        let (serial, current, queues) = (AtomicU64::new(0), Mutex::default(), OnceLock::new());
        Trials(Arc::new(TrialsShared { serial, current, queues, verifier }))
    }

    /// Begins a trial; one that goes on is abandoned.
    pub fn begin(&self, trial: Trial) {
        let mut current = self.0.current.lock().unwrap_or_else(PoisonError::into_inner);
        *current = trial;
        self.0.serial.fetch_add(1, Release);
    }

    /// From now on the generator checks packets of the trial `number` of another generator, and
    /// forgets what it found before. Needs `verify=on`.
    pub fn expect(&self, number: u16) {
        if let Some(verifier) = &self.0.verifier {
            verifier.expect(number);
        }
    }

    /// What was found since [`expect`](Trials::expect).
    pub fn verified(&self) -> Verified {
        self.0.verifier.as_ref().map(|verifier| verifier.read()).unwrap_or_default()
    }

    /// The value of a quantile of the latencies since [`expect`](Trials::expect), in nanoseconds;
    /// `None` without a sample.
    pub fn latency(&self, quantile: f64) -> Option<u64> {
        self.0.verifier.as_ref()?.latency(quantile)
    }

    /// How far the trial is that was begun last.
    pub fn progress(&self) -> Progress {
        let serial = self.0.serial.load(Acquire);
        let Some(queues) = self.0.queues.get().filter(|_| serial > 0) else { return Progress::default() };
        let mut sum = Progress { complete: true, ..Progress::default() };
        for queue in queues {
            let Some(one) = queue.read(serial) else {
                sum.complete = false;
                continue;
            };
            sum.made += one.made;
            sum.given_up += one.given_up;
            sum.elapsed = sum.elapsed.max(one.elapsed);
            sum.complete &= one.complete;
        }
        sum
    }

    /// The parts of `queues` queues. A port is started once: later calls change nothing.
    pub(super) fn queues(&self, queues: u64) -> Vec<TrialQueue> {
        let made: Vec<_> = (0..queues).map(|_| Arc::new(QueueProgress::new())).collect();
        let _ = self.0.queues.set(made.clone());
        let part = |(queue, progress)| {
            let shared = self.0.clone();
            TrialQueue { shared, progress, queue, queues, serial: 0, trial: Trial::default() }
        };
        (0..).zip(made).map(part).collect()
    }
}

impl QueueProgress {
    fn new() -> QueueProgress {
        let [serial, made, count, begun, ended] = [0; 5].map(AtomicU64::new);
        let complete = AtomicBool::new(true);
        QueueProgress { epoch: Instant::now(), serial, made, count, begun, ended, complete }
    }

    fn nanos(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.epoch).as_nanos()).unwrap_or(u64::MAX)
    }

    /// The progress, if it is that of the trial `serial`.
    fn read(&self, serial: u64) -> Option<Progress> {
        if self.serial.load(Acquire) != serial {
            return None;
        }
        let complete = self.complete.load(Acquire);
        let (made, begun) = (self.made.load(Relaxed), self.begun.load(Relaxed));
        let ended = if complete { self.ended.load(Relaxed) } else { self.nanos(Instant::now()) };
        let given_up = if complete { self.count.load(Relaxed).saturating_sub(made) } else { 0 };
        Some(Progress { made, given_up, elapsed: Duration::from_nanos(ended.saturating_sub(begun)), complete })
    }
}

/// One queue's part of the trials.
#[derive(Debug)]
pub(super) struct TrialQueue {
    shared: Arc<TrialsShared>,
    progress: Arc<QueueProgress>,
    queue: u64,
    queues: u64,
    serial: u64,
    /// This queue's share.
    trial: Trial,
}

impl TrialQueue {
    /// A trial that was begun since the last call: this queue's share of it.
    #[inline]
    pub(super) fn next(&mut self) -> Option<Trial> {
        if self.shared.serial.load(Acquire) == self.serial { None } else { Some(self.take_share()) }
    }

    #[cold]
    fn take_share(&mut self) -> Trial {
        let (trial, serial) = {
            let current = self.shared.current.lock().unwrap_or_else(PoisonError::into_inner);
            (*current, self.shared.serial.load(Acquire))
        };
        let share = |total: u64| total / self.queues + u64::from(self.queue < total % self.queues);
        self.serial = serial;
        self.trial = Trial {
            number: trial.number,
            rate: share(trial.rate.max(1)).max(1),
            count: share(trial.count),
            size: trial.size,
        };
        let progress = &self.progress;
        let now = progress.nanos(Instant::now());
        progress.made.store(0, Relaxed);
        progress.count.store(self.trial.count, Relaxed);
        progress.begun.store(now, Relaxed);
        progress.ended.store(now, Relaxed);
        progress.complete.store(self.trial.count == 0, Relaxed);
        progress.serial.store(serial, Release);
        self.trial
    }

    /// Packets of the trial that are neither made nor given up, if `done` are.
    #[inline]
    pub(super) fn left(&mut self, done: u64) -> u64 {
        let left = self.trial.count.saturating_sub(done);
        if left == 0 {
            self.finish();
        }
        left
    }

    /// Counts packets; after the last one the trial is complete.
    #[inline]
    pub(super) fn made(&mut self, packets: u64, left: u64) {
        let made = self.progress.made.load(Relaxed);
        self.progress.made.store(made + packets, Relaxed);
        if left == 0 {
            self.finish();
        }
    }

    fn finish(&self) {
        if !self.progress.complete.load(Relaxed) {
            self.progress.ended.store(self.progress.nanos(Instant::now()), Relaxed);
            self.progress.complete.store(true, Release);
        }
    }

    /// The stamp of packets that are made at `time`.
    pub(super) fn stamp(&self, time: u64) -> Stamp {
        Stamp { trial: self.trial.number, time }
    }
}
