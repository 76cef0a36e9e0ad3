//! Who sends: the port's receive queues. A session lives on one of them, which keeps its frames in order.

use super::Transmit;
use super::copying::Copying;
use super::gate::{Gate, Waker};
use super::line::AGAIN;
use super::roster::Roster;
use super::sending::{Sending, Tally};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use towpath_packet::port::{RxMemory, RxQueue, TxLayout, TxLinear, Wake};
use towpath_packet::spsc::{Consumer, Producer};
use towpath_packet::{Batch, Cache, Counters};
use towpath_sys::membarrier;

/// Turns between looks at what programs made of their lines, of a queue that does not come to rest.
const TURNS: u32 = 1024;

/// A receive queue of the port.
#[derive(Debug)]
pub struct SockRx {
    apps: Roster<Sending>,
    /// The application to begin with, so that none is starved.
    first: usize,
    transmit: Transmit,
    copying: Copying,
    cache: Cache,
    waker: Waker,
    armed: Cell<bool>,
    turns: u32,
    counters: Arc<Counters>,
    gate: Arc<Gate>,
}

impl SockRx {
    pub(super) fn new(
        ways: (Consumer<Sending>, Producer<Sending>),
        cache: Cache,
        transmit: Transmit,
        waker: Waker,
        gate: Arc<Gate>,
    ) -> SockRx {
        let unknown = TxLayout { linear: TxLinear::None, headroom: 0, tailroom: 0 };
        SockRx {
            apps: Roster::new(ways, gate.sessions),
            transmit,
            copying: Copying::of(transmit, unknown),
            first: 0,
            cache,
            waker,
            armed: Cell::new(false),
            turns: 0,
            counters: Arc::default(),
            gate,
        }
    }

    /// Who has come, and who has gone.
    #[inline]
    fn greet(&mut self) {
        if self.apps.greet(&self.gate) {
            let armed = self.armed.get();
            self.apps.iter().for_each(|app| app.tx.ring().set_needs_wakeup(armed));
        }
    }

    /// Makes lines say what is true and takes what programs kicked; returns whether one of them has entries to take.
    fn settle(&self) -> bool {
        let mut waiting = false;
        for app in self.apps.iter() {
            if let Some(line) = app.session.line() {
                line.set_full(!app.has_room());
                line.forget_kicks();
                waiting |= app.session.settle();
            }
        }
        waiting
    }
}

impl RxQueue for SockRx {
    fn rx(&mut self, out: &mut Batch) -> usize {
        self.greet();
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(TURNS) {
            self.settle();
        }
        let (before, n) = (out.len(), self.apps.len());
        let (mut tally, mut faults) = (Tally::default(), 0);
        // Each gets its share at first; what one leaves, the others may have.
        let share = (out.room() / n.max(1)).max(1);
        for round in [share, usize::MAX] {
            for i in 0..n {
                let Some(app) = self.apps.get_mut((self.first + i) % n) else { continue };
                let room = out.room().min(round);
                if app.session.is_closed() || room == 0 {
                    continue;
                }
                if let Err(fault) = app.turn(room, self.copying, &mut self.cache, out, &mut tally) {
                    app.session.fail(fault);
                    faults += 1;
                }
            }
            if n < 2 {
                break;
            }
        }
        self.first = if self.first + 1 < n { self.first + 1 } else { 0 };
        if faults > 0 {
            self.counters.failed(faults);
        }
        let got = out.len() - before;
        if got > 0 {
            if self.armed.replace(false) {
                self.waker.notifier.disarm();
                self.apps.iter().for_each(|app| app.tx.ring().set_needs_wakeup(false));
            }
            self.counters.moved(got as u64, tally.bytes as u64);
        }
        if tally.copies > 0 {
            self.counters.copied(tally.copies, tally.copied_bytes);
            self.gate.events.copies.fetch_add(tally.copies, Ordering::Relaxed);
            self.gate.events.copied_bytes.fetch_add(tally.copied_bytes, Ordering::Relaxed);
        }
        if tally.lent > 0 {
            self.gate.events.lent.take(tally.lent);
        }
        if tally.home > 0 {
            self.gate.events.lent.bring_home(tally.home);
        }
        got
    }

    fn memory(&self) -> RxMemory {
        RxMemory::ext_bufs(self.gate.events.lent.clone())
    }

    fn set_tx_layout(&mut self, egress: TxLayout) {
        self.copying = Copying::of(self.transmit, egress);
        if self.copying.linear > 0 {
            self.cache.set_headroom(egress.headroom.into());
        }
    }

    /// Asks all applications to kick; to be called only by who is about to sleep.
    fn wake(&self) -> Wake {
        self.waker.epoll.drain();
        if self.settle() {
            self.waker.timer.set(AGAIN);
        }
        self.waker.notifier.arm();
        self.armed.set(true);
        self.apps.iter().for_each(|app| app.tx.ring().set_needs_wakeup(true));
        // Programs read the flag without a fence behind their counter. A kernel that can't make up for it costs them a timer.
        if self.apps.iter().any(|app| app.session.line().is_some()) && !membarrier::global_expedited() {
            self.waker.timer.set(AGAIN);
        }
        if self.apps.iter().any(|app| (app.pages.has_back() && !app.blocked) || app.session.is_closed()) {
            self.waker.notifier.wake();
        }
        // What waits for something that nobody announces.
        let stalled = self.apps.iter().any(|app| app.starved || app.blocked);
        if stalled { Wake::Poll } else { Wake::Fd(self.waker.epoll.fd()) }
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}
