//! The reset that all queues of a device agree on, and the end of the last queue.
//!
//! ```text
//!              a queue requests a reset             the last queue has halted
//!   Running(n) ────────────────────────► Halted(n) ──────────────────────────► Running(n + 1)
//!                                            └─────── the device does not answer ──► Gone
//! ```
//!
//! Queues run on several threads and take no lock per burst. At the start of a burst one load
//! ([`QueueHandle::runs`]) shows whether the queue may go on. If not, it halts and joins the reset.
//! The last queue that joins resets the device, while no other queue touches the device or its
//! ring. Each queue then empties its own ring and goes on.
//!
//! **Bounds.** A reset that nothing explains is a strike, and progress of any queue clears all
//! strikes. One strike too many, or a device that does not answer, has the bus reset the whole
//! function. If that does not help, the device is given up.
//!
//! **End.** A queue that is dropped leaves its ring to the device ([`QueueHandle::leave`]). The
//! last queue that leaves hands all rings to [`ResetDevice::end`], which stops the device before it
//! frees them.

use crate::sync::{AtomicU32, Mutex, MutexGuard, lock};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// How often one reset is tried.
const TRIES: u32 = 3;
/// Resets in a row that nothing explains, without progress between them. The next resets the
/// function, and the one after it gives the device up.
const STRIKES: u32 = 8;

const RUNNING: u32 = 0;
const HALTED: u32 = 1;
const GONE: u32 = 2;
const PHASE: u32 = 3;

/// Why a device is reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResetCause {
    /// Frames wait, and nothing explains it.
    Stall,
    /// The link was lost with frames in the rings, which the device never sends.
    LinkLost,
    /// A known event, of which the device recovers by a reset.
    Known,
}

/// What is reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResetScope {
    /// The device, by its own registers.
    Device,
    /// The whole function by its bus, then the device.
    Function,
}

/// A device whose queues agree on a reset.
pub(crate) trait ResetDevice {
    /// What a queue leaves when it ends: its ring, with what is in flight.
    type Ring;

    /// The agreement of this device's queues.
    fn resets(&self) -> &ResetGroup<Self::Ring>;

    /// Resets the device and programs it again; returns whether it answers. No queue runs
    /// meanwhile. A bus that can't reset the function counts as no answer.
    fn reset(&self, scope: ResetScope) -> bool;

    /// All queues have ended, and these are their rings: stops the device, then frees them.
    fn end(&self, rings: Vec<Self::Ring>);
}

/// The agreement: a number of resets and a phase, and the queues that have halted.
pub(crate) struct ResetGroup<R> {
    state: AtomicU32,
    /// Packets of any queue have moved since the last reset was requested.
    progress: AtomicU32,
    members: Mutex<Members<R>>,
}

struct Members<R> {
    live: u32,
    halted: u32,
    strikes: u32,
    cause: ResetCause,
    rings: Vec<R>,
}

/// The reset after which a queue runs, and whether it has halted for the next.
#[derive(Debug)]
struct Epoch {
    state: u32,
    halted: bool,
}

/// What a queue that may not go on does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResetStep {
    /// The device was reset: the queue empties its ring and goes on.
    Restart(ResetCause),
    /// The queue waits for the others.
    Wait,
    /// The device was given up.
    Gone,
}

impl<R> ResetGroup<R> {
    /// An agreement of this many queues.
    pub(crate) fn new(queues: u32) -> ResetGroup<R> {
        let members = Members { live: queues, halted: 0, strikes: 0, cause: ResetCause::Stall, rings: Vec::new() };
        ResetGroup { state: AtomicU32::new(RUNNING), progress: AtomicU32::new(0), members: Mutex::new(members) }
    }

    /// Whether a queue may go on: one load.
    #[inline]
    fn runs(&self, epoch: &Epoch) -> bool {
        self.state.load(Acquire) == epoch.state
    }

    /// Whether the device was given up.
    pub(crate) fn is_gone(&self) -> bool {
        self.state.load(Acquire) & PHASE == GONE
    }

    /// Gives the device up.
    #[cold]
    pub(crate) fn give_up(&self) {
        let _members = lock(&self.members);
        let state = self.state.load(Acquire);
        self.state.store((state & !PHASE) | GONE, Release);
    }

    /// Called by a queue that may not go on, until it may.
    #[cold]
    fn join(&self, epoch: &mut Epoch, reset: impl FnMut(ResetScope) -> bool) -> ResetStep {
        let mut members = lock(&self.members);
        if self.state.load(Acquire) & PHASE == HALTED && !epoch.halted {
            epoch.halted = true;
            members.halted += 1;
            self.recover(&mut members, reset);
        }
        let state = self.state.load(Acquire);
        match state & PHASE {
            RUNNING => {
                *epoch = Epoch { state, halted: false };
                ResetStep::Restart(members.cause)
            }
            HALTED => ResetStep::Wait,
            _ => ResetStep::Gone,
        }
    }

    /// Requests a reset.
    #[cold]
    fn request(&self, epoch: &Epoch, cause: ResetCause) {
        let mut members = lock(&self.members);
        if !self.runs(epoch) {
            return;
        }
        if self.progress.swap(0, Relaxed) != 0 {
            members.strikes = 0;
        }
        members.strikes += u32::from(cause == ResetCause::Stall);
        members.cause = cause;
        let phase = if members.strikes > STRIKES + 1 { GONE } else { HALTED };
        self.state.store((epoch.state & !PHASE) | phase, Release);
    }

    /// Requests the reset that a change of settings takes effect with: no strike. A reset that was
    /// requested already serves both.
    #[cold]
    pub(crate) fn request_change(&self) {
        let mut members = lock(&self.members);
        let state = self.state.load(Acquire);
        if state & PHASE == RUNNING {
            members.cause = ResetCause::Known;
            self.state.store((state & !PHASE) | HALTED, Release);
        }
    }

    /// Resets the device if all queues have halted.
    fn recover(&self, members: &mut MutexGuard<'_, Members<R>>, mut reset: impl FnMut(ResetScope) -> bool) {
        if members.halted < members.live {
            return;
        }
        members.halted = 0;
        let state = self.state.load(Acquire) & !PHASE;
        let by_itself = members.strikes <= STRIKES && (0..TRIES).any(|_| reset(ResetScope::Device));
        let answers = by_itself || reset(ResetScope::Function);
        let next = if answers { state.wrapping_add(PHASE + 1) | RUNNING } else { state | GONE };
        self.state.store(next, Release);
    }

    /// A queue has ended, and leaves its ring; returns the rings of all queues if it was the last.
    fn leave(&self, epoch: &Epoch, ring: R, reset: impl FnMut(ResetScope) -> bool) -> Option<Vec<R>> {
        let mut members = lock(&self.members);
        members.rings.push(ring);
        members.live = members.live.saturating_sub(1);
        if members.live == 0 {
            return Some(std::mem::take(&mut members.rings));
        }
        let state = self.state.load(Acquire);
        if state & PHASE == HALTED {
            // An epoch that has halted counts for this halt only if it is of the same run: `join`
            // of the next run clears it.
            members.halted -= u32::from(epoch.halted && epoch.state >> 2 == state >> 2).min(members.halted);
            self.recover(&mut members, reset);
        }
        None
    }
}

/// A queue's part in its device.
pub(crate) struct QueueHandle<D: ResetDevice> {
    device: Arc<D>,
    epoch: Epoch,
    /// Packets have moved since the last reset.
    progress: bool,
}

impl<D: ResetDevice> QueueHandle<D> {
    /// For a queue that starts with its device.
    pub(crate) fn new(device: Arc<D>) -> QueueHandle<D> {
        QueueHandle { epoch: Epoch { state: RUNNING, halted: false }, progress: false, device }
    }

    pub(crate) fn device(&self) -> &D {
        &self.device
    }

    /// Whether the queue may go on, as long as no queue requests a reset.
    pub(crate) fn is_running(&self) -> bool {
        self.device.resets().runs(&self.epoch)
    }

    /// Whether the queue may go on. If not, it waits for a reset, or has ended. After a reset,
    /// `restart` empties its ring first, and is given the cause.
    #[inline]
    pub(crate) fn runs(&mut self, restart: impl FnOnce(ResetCause)) -> bool {
        self.device.resets().runs(&self.epoch) || self.join(restart)
    }

    #[cold]
    fn join(&mut self, restart: impl FnOnce(ResetCause)) -> bool {
        let QueueHandle { device, epoch, .. } = self;
        let ResetStep::Restart(cause) = device.resets().join(epoch, |scope| device.reset(scope)) else {
            return false;
        };
        restart(cause);
        self.progress = false;
        true
    }

    /// Notes that packets have moved: a reset after which packets move is not one of many in a row.
    #[inline]
    pub(crate) fn moved(&mut self, packets: usize) {
        if packets > 0 && !self.progress {
            self.note_progress();
        }
    }

    #[cold]
    fn note_progress(&mut self) {
        self.progress = true;
        // Relaxed: it orders nothing, and a reset that misses it counts one strike more.
        self.device.resets().progress.store(1, Relaxed);
    }

    /// Requests a reset.
    #[cold]
    pub(crate) fn request_reset(&self, cause: ResetCause) {
        self.device.resets().request(&self.epoch, cause);
    }

    /// The queue has ended: leaves its ring to the device. The last queue stops the device.
    pub(crate) fn leave(&self, ring: D::Ring) {
        let rings = self.device.resets().leave(&self.epoch, ring, |scope| self.device.reset(scope));
        if let Some(rings) = rings {
            self.device.end(rings);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::AtomicU32;
    use ResetCause::Stall;

    /// A device that counts its resets, and the queues that are at work.
    struct Fake {
        resets: ResetGroup<u8>,
        count: AtomicU32,
        functions: AtomicU32,
        working: AtomicU32,
        ended: AtomicU32,
        answers: bool,
    }

    impl ResetDevice for Fake {
        type Ring = u8;
        fn resets(&self) -> &ResetGroup<u8> {
            &self.resets
        }
        fn reset(&self, scope: ResetScope) -> bool {
            assert_eq!(self.working.load(Relaxed), 0, "a queue is at work");
            self.count.fetch_add(1, Relaxed);
            self.functions.fetch_add(u32::from(scope == ResetScope::Function), Relaxed);
            self.answers
        }
        fn end(&self, rings: Vec<u8>) {
            self.ended.fetch_add(rings.len() as u32, Relaxed);
        }
    }

    fn fake(queues: u32, answers: bool) -> (Arc<Fake>, Vec<QueueHandle<Fake>>) {
        let [count, functions, working, ended] = [0; 4].map(AtomicU32::new);
        let fake = Arc::new(Fake { resets: ResetGroup::new(queues), count, functions, working, ended, answers });
        let handles = (0..queues).map(|_| QueueHandle::new(fake.clone())).collect();
        (fake, handles)
    }

    #[cfg(not(loom))]
    #[test]
    fn a_device_is_reset_after_all_queues_have_halted_and_each_restarts_once() {
        let (device, mut handles) = fake(2, true);
        let mut restarts = 0;
        handles[0].request_reset(Stall);
        assert!(!handles[0].runs(|_| restarts += 1));
        assert_eq!(device.count.load(Relaxed), 0);
        assert!(handles[1].runs(|_| restarts += 1) && handles[0].runs(|_| restarts += 1));
        assert!(handles[1].runs(|_| restarts += 1));
        assert_eq!((device.count.load(Relaxed), restarts), (1, 2));
    }

    #[cfg(not(loom))]
    #[test]
    fn resets_without_progress_or_without_an_answer_end_in_giving_the_device_up() {
        let (device, mut handles) = fake(1, true);
        for _ in 0..=STRIKES {
            assert_eq!(device.functions.load(Relaxed), 0);
            handles[0].request_reset(Stall);
            assert!(handles[0].runs(|cause| assert_eq!(cause, Stall)));
        }
        assert_eq!((device.count.load(Relaxed), device.functions.load(Relaxed)), (STRIKES + 1, 1));
        handles[0].request_reset(Stall);
        assert!(!handles[0].runs(|_| ()) && device.resets.is_gone());
        let (device, mut handles) = fake(1, false);
        handles[0].request_reset(Stall);
        assert!(!handles[0].runs(|_| ()) && device.resets.is_gone());
        assert_eq!((device.count.load(Relaxed), device.functions.load(Relaxed)), (TRIES + 1, 1));
    }

    #[cfg(not(loom))]
    #[test]
    fn what_is_explained_is_no_strike_and_progress_of_any_queue_clears_all() {
        let (device, mut handles) = fake(2, true);
        let mut reset = |cause, progress: usize| {
            handles[1].moved(progress);
            handles[0].request_reset(cause);
            assert!(!handles[0].runs(|_| ()));
            assert!(handles[1].runs(|is| assert_eq!(is, cause)) && handles[0].runs(|_| ()));
        };
        (0..3 * STRIKES).for_each(|_| reset(ResetCause::LinkLost, 0));
        for _ in 0..3 {
            (0..STRIKES).for_each(|_| reset(Stall, 0));
            reset(ResetCause::LinkLost, 1);
        }
        (0..STRIKES).for_each(|_| reset(Stall, 0));
        assert_eq!((device.resets.is_gone(), device.functions.load(Relaxed)), (false, 0));
        reset(Stall, 0);
        assert_eq!(device.functions.load(Relaxed), 1);
    }

    #[cfg(not(loom))]
    #[test]
    fn a_reset_for_a_change_of_settings_is_no_strike_and_two_requests_are_one_reset() {
        let (device, mut handles) = fake(1, true);
        for _ in 0..2 * STRIKES {
            device.resets.request_change();
            device.resets.request_change();
            assert!(!handles[0].is_running() && handles[0].runs(|_| ()));
        }
        assert_eq!(device.count.load(Relaxed), 2 * STRIKES);
        device.resets.give_up();
        device.resets.request_change();
        assert!(!handles[0].runs(|_| ()) && device.resets.is_gone());
    }

    #[cfg(not(loom))]
    #[test]
    fn a_queue_that_ends_during_a_halt_is_not_waited_for_and_the_last_ends_the_device() {
        let (device, mut handles) = fake(3, true);
        handles[0].request_reset(Stall);
        assert!(!handles[0].runs(|_| ()) && !handles[1].runs(|_| ()));
        handles.remove(0).leave(0);
        assert_eq!(device.count.load(Relaxed), 0, "one queue has not halted");
        handles.remove(1).leave(2);
        assert_eq!(device.count.load(Relaxed), 1);
        assert!(handles[0].runs(|_| ()));
        handles.remove(0).leave(1);
        assert_eq!(device.ended.load(Relaxed), 3);
    }

    #[cfg(loom)]
    #[test]
    fn no_queue_works_during_a_reset_in_all_interleavings() {
        crate::sync::model(|| {
            let (device, handles) = fake(2, true);
            let device = device.clone();
            let run = |mut handle: QueueHandle<Fake>, requests: bool| {
                let mut bursts = 0;
                while bursts < 2 {
                    if !handle.runs(|_| ()) {
                        loom::thread::yield_now();
                        continue;
                    }
                    handle.device().working.fetch_add(1, Relaxed);
                    bursts += 1;
                    handle.device().working.fetch_sub(1, Relaxed);
                    if requests && bursts == 1 {
                        handle.request_reset(Stall);
                    }
                }
                handle.leave(0);
            };
            let mut handles = handles.into_iter();
            let (first, second) = (handles.next().unwrap(), handles.next().unwrap());
            let thread = loom::thread::spawn(move || run(second, false));
            run(first, true);
            thread.join().unwrap();
            assert_eq!((device.count.load(Relaxed), device.ended.load(Relaxed)), (1, 2));
        });
    }
}
