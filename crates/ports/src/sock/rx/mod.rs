//! The port's receive queues: what applications send. A session belongs to one of them, which keeps
//! its frames in order.
//!
//! | file | |
//! |---|---|
//! | `mod` | [`SockRx`]: the burst over all applications, sleep and wake-up |
//! | `turns` | [`Turns`]: fair among users, then among the sessions of a user |
//! | `rings` | [`AppTxRings`]: one application's TX and COMPLETION rings, and its end |
//! | `app` | its descriptors, taken as packets |
//!
//! [`CopyPlan`] decides what is copied.

mod app;
pub(super) mod rings;
mod turns;

use super::config::Transmit;
use super::notify::{PortShared, QueueWaker, RESYNC, Unusable};
use super::session::SessionList;
use super::stats::{Fault, RxTotals};
use crate::copy_plan::CopyPlan;
use rings::{AppTxRings, Stall};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use towpath_packet::port::{RxMemory, RxQueue, TxLayout, TxLinear, Wake};
use towpath_packet::spsc::{Consumer, Producer};
use towpath_packet::{Batch, Cache, Counters};
use towpath_sys::membarrier;
use turns::{Taken, Turns};

/// Bursts between synchronizations of the poll descriptors, of a queue that does not sleep.
const SYNC_PERIOD: u32 = 1024;

/// The longest time to the next look for a session that [may not kick](AppTxRings::may_not_kick).
const LONGEST_PAUSE: Duration = Duration::from_millis(64);

/// A receive queue of the port.
#[derive(Debug)]
pub struct SockRx {
    apps: SessionList<AppTxRings>,
    turns: Turns,
    transmit: Transmit,
    plan: CopyPlan,
    cache: Cache,
    waker: QueueWaker,
    armed: Cell<bool>,
    /// The time to the next look for a session that [may not kick](AppTxRings::may_not_kick).
    pause: Cell<Duration>,
    bursts: u32,
    counters: Arc<Counters>,
    shared: Arc<PortShared>,
}

/// What `transmit` copies for an egress.
fn plan(transmit: Transmit, egress: TxLayout) -> CopyPlan {
    let linear = match transmit {
        Transmit::Page => TxLinear::None,
        Transmit::Auto => egress.linear,
        Transmit::Copy => TxLinear::Whole,
    };
    CopyPlan::new(TxLayout { linear, ..egress })
}

impl SockRx {
    pub(super) fn new(
        sessions: (Consumer<AppTxRings>, Producer<AppTxRings>),
        cache: Cache,
        transmit: Transmit,
        waker: QueueWaker,
        shared: Arc<PortShared>,
    ) -> SockRx {
        let unknown = TxLayout { linear: TxLinear::None, headroom: 0, tailroom: 0 };
        SockRx {
            apps: SessionList::new(sessions, shared.sessions),
            transmit,
            plan: plan(transmit, unknown),
            turns: Turns::new(shared.sessions),
            cache,
            waker,
            armed: Cell::new(false),
            pause: Cell::new(RESYNC),
            bursts: 0,
            counters: Arc::default(),
            shared,
        }
    }

    /// The descriptor that wakes the queue.
    #[cfg(test)]
    pub(super) fn sleeps_on(&self) -> std::os::fd::RawFd {
        self.waker.epoll.fd()
    }

    /// Adds new sessions and removes those that are done.
    #[inline]
    fn sync_sessions(&mut self) {
        if self.apps.sync(&self.shared) {
            self.turns.regroup(self.apps.sort_by_user());
            let armed = self.armed.get();
            self.apps.iter().for_each(|app| app.tx.ring().set_needs_wakeup(armed));
        }
    }

    /// Makes the poll descriptors reflect the rings, and drops kicks. Returns whether an
    /// application with a poll descriptor has entries to take.
    fn sync_poll_fds(&self) -> bool {
        let mut waiting = false;
        for app in self.apps.iter() {
            if let Some(poll_fd) = app.session.poll_fd()
                && !app.session.is_closed()
            {
                poll_fd.set_tx_full(!app.has_room());
                match app.session.sync_poll_fd() {
                    Ok(entries) => waiting |= entries,
                    Err(why) => self.end(app, why),
                }
            }
        }
        waiting
    }

    /// Ends the session of an application whose poll descriptor can't be used any more.
    #[cold]
    fn end(&self, app: &AppTxRings, why: Unusable) {
        match why {
            Unusable::Shut => app.session.end("shut"),
            Unusable::Descriptors => {
                app.session.fail(Fault::Files);
                self.counters.failed(1);
            }
        }
    }
}

impl RxQueue for SockRx {
    fn rx(&mut self, out: &mut Batch) -> usize {
        self.sync_sessions();
        self.bursts = self.bursts.wrapping_add(1);
        if self.bursts.is_multiple_of(SYNC_PERIOD) {
            self.sync_poll_fds();
        }
        let before = out.len();
        let (mut totals, mut faults) = (RxTotals::default(), 0);
        let SockRx { apps, turns, plan, cache, .. } = self;
        // Each session in its turn, with its share of the room; a single session has all of it.
        turns.burst(apps, out.room(), |app, most| {
            let taken = match app.session.is_closed() {
                false => app.poll(most, *plan, cache, out, &mut totals),
                true => app.poll_rest(most, *plan, cache, out, &mut totals),
            };
            let descriptors = taken.unwrap_or_else(|fault| {
                app.session.fail(fault);
                faults += 1;
                0
            });
            Taken { descriptors, room: out.room() }
        });
        if faults > 0 {
            self.counters.failed(faults);
        }
        let got = out.len() - before;
        if got > 0 {
            self.pause.set(RESYNC);
            if self.armed.replace(false) {
                self.waker.notifier.disarm();
                self.apps.iter().for_each(|app| app.tx.ring().set_needs_wakeup(false));
            }
            self.counters.moved(got as u64, totals.bytes as u64);
        }
        if totals.copies > 0 {
            self.counters.copied(totals.copies, totals.copied_bytes);
            self.shared.events.copies.fetch_add(totals.copies, Ordering::Relaxed);
            self.shared.events.copied_bytes.fetch_add(totals.copied_bytes, Ordering::Relaxed);
        }
        if totals.attached > 0 {
            self.shared.events.ext_bufs.attach(totals.attached);
        }
        if totals.completed > 0 {
            self.shared.events.ext_bufs.free(totals.completed);
        }
        got
    }

    fn memory(&self) -> RxMemory {
        RxMemory::ext_bufs(self.shared.events.ext_bufs.clone())
    }

    fn set_tx_layout(&mut self, egress: TxLayout) {
        self.plan = plan(self.transmit, egress);
        if self.plan.linear() > 0 {
            self.cache.set_headroom(egress.headroom.into());
        }
    }

    /// Arms every wake-up source; only a worker that is about to sleep calls this.
    ///
    /// The sleeper's part of the pattern of [`towpath_packet::notify`], three times: the notifier,
    /// the flag of each TX ring, and each `PollFd`. The worker polls the
    /// queue once more before it sleeps.
    fn wake(&self) -> Wake {
        self.waker.epoll.drain();
        let entries = self.sync_poll_fds();
        self.waker.notifier.arm();
        self.armed.set(true);
        self.apps.iter().for_each(|app| app.tx.ring().set_needs_wakeup(true));
        // AF_XDP programs have no fence between their counter and their look at the flag. The
        // kernel makes up for it, or a timer does.
        let fenceless =
            || self.apps.iter().any(|app| app.session.poll_fd().is_some()) && !membarrier::global_expedited();
        // Nothing announces a buffer that is free again. A kick announces room in the COMPLETION
        // ring, the notifier freed pages. Whatever a session waits for, the descriptor wakes the
        // queue for the others.
        if entries || self.apps.iter().any(|app| app.stall == Stall::NoHead) || fenceless() {
            self.waker.timer.set(RESYNC);
        } else if self.apps.iter().any(AppTxRings::may_not_kick) {
            let pause = self.pause.get();
            self.waker.timer.set(pause);
            self.pause.set((2 * pause).min(LONGEST_PAUSE));
        }
        if self.apps.iter().any(AppTxRings::has_work) {
            self.waker.notifier.wake();
        }
        Wake::Fd(self.waker.epoll.fd())
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}
