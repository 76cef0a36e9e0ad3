//! The device as its queues share it: who is running, the reset that they agree on, and the end.
//!
//! ```text
//!               a queue asks for a reset            the last of them has stopped
//!   Running(n) ─────────────────────────► Halted(n) ─────────────────────────────► Running(n + 1)
//!                                             └──────────── it does not answer ──► Gone
//! ```
//!
//! Queues run on several threads, without locks. One load of [`Device::runs`] at the start of a burst tells a queue that it may go on. If
//! not, it stops there and says so ([`Device::join`]); the last one that does resets the device, while nobody else touches it or its
//! rings. Each queue then empties its own ring and goes on.
//!
//! **End.** A queue that is dropped leaves its ring and buffers here. The last one stops the device, and only when that is
//! *seen* (no accesses to memory are under way, or the bus takes none) everything goes home: buffers, rings, pool, domain. If it can't be
//! seen, all that the device can reach is leaked, and [`Faults::leaked`](super::Faults::leaked) says how many buffers that were.

use super::config::Config;
use super::control::{Control, Fault, Link};
use super::init::{self, Layout};
use super::regs::{STATUS, status};
use super::rx::RxCore;
use super::tx::TxCore;
use std::sync::atomic::{AtomicU32, Ordering::Acquire, Ordering::Release};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use towpath_bus::{Dma, Domain, Mmio, Pci};

/// Tries of one reset.
const TRIES: u32 = 3;
/// Resets in a row without anything moving in between, until the device is given up.
const STRIKES: u32 = 8;

const RUNNING: u32 = 0;
const HALTED: u32 = 1;
const GONE: u32 = 2;
const PHASE: u32 = 3;

/// The device.
pub(super) struct Device<B: Pci> {
    /// Number of resets and phase.
    state: AtomicU32,
    pub(super) bar: B::Bar,
    pub(super) config: Config,
    pub(super) control: Control,
    layout: Layout,
    members: Mutex<Members<B::Dma>>,
    // In this order: the domain takes its memory back from the device before the device is closed.
    domain: Domain<B::Dma>,
    bus: Mutex<B>,
}

struct Members<D: Dma> {
    live: u32,
    halted: u32,
    strikes: u32,
    rx: Vec<RxCore<D>>,
    tx: Vec<TxCore<D>>,
}

/// A queue's standing with its device.
#[derive(Debug)]
pub(super) struct Ticket {
    seen: u32,
    halted: bool,
}

/// What a queue may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Joined {
    /// The device was reset: empty the ring, then go on.
    Restart,
    /// Wait for the other queues.
    Wait,
    /// Nothing any more.
    Gone,
}

impl<B: Pci> Device<B> {
    pub(super) fn new(
        bus: B,
        bar: B::Bar,
        domain: Domain<B::Dma>,
        config: Config,
        layout: Layout,
        control: Control,
    ) -> Device<B> {
        let live = (layout.rx.len() + layout.tx.len()) as u32;
        let members = Members { live, halted: 0, strikes: 0, rx: Vec::new(), tx: Vec::new() };
        let (state, members, bus) = (AtomicU32::new(RUNNING), Mutex::new(members), Mutex::new(bus));
        Device { state, bar, config, control, layout, members, domain, bus }
    }

    fn members(&self) -> MutexGuard<'_, Members<B::Dma>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn bus(&self) -> MutexGuard<'_, B> {
        self.bus.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The standing of a queue that starts with the device.
    pub(super) fn ticket(&self) -> Ticket {
        Ticket { seen: RUNNING, halted: false }
    }

    /// Whether a queue may go on: one load.
    #[inline]
    pub(super) fn runs(&self, ticket: &Ticket) -> bool {
        self.state.load(Acquire) == ticket.seen
    }

    /// Whether the device was given up.
    pub(super) fn is_gone(&self) -> bool {
        self.state.load(Acquire) & PHASE == GONE
    }

    /// Called by a queue that may not go on, until it may.
    #[cold]
    pub(super) fn join(&self, ticket: &mut Ticket) -> Joined {
        let mut members = self.members();
        if self.state.load(Acquire) & PHASE == HALTED && !ticket.halted {
            ticket.halted = true;
            members.halted += 1;
            self.recover(&mut members);
        }
        let state = self.state.load(Acquire);
        match state & PHASE {
            RUNNING => {
                *ticket = Ticket { seen: state, halted: false };
                Joined::Restart
            }
            HALTED => Joined::Wait,
            _ => Joined::Gone,
        }
    }

    /// Asks for a reset. `progress`: something has moved since the last.
    #[cold]
    pub(super) fn ask_reset(&self, ticket: &Ticket, progress: bool) {
        let mut members = self.members();
        if !self.runs(ticket) {
            return;
        }
        members.strikes = if progress { 1 } else { members.strikes + 1 };
        let phase = if members.strikes > STRIKES { GONE } else { HALTED };
        self.state.store((ticket.seen & !PHASE) | phase, Release);
    }

    /// Gives the device up.
    #[cold]
    pub(super) fn give_up(&self) {
        let _members = self.members();
        let state = self.state.load(Acquire);
        self.state.store((state & !PHASE) | GONE, Release);
    }

    /// Resets the device if all queues have stopped.
    fn recover(&self, members: &mut Members<B::Dma>) {
        if members.halted < members.live {
            return;
        }
        members.halted = 0;
        let state = self.state.load(Acquire) & !PHASE;
        for _ in 0..TRIES {
            self.control.fault(Fault::Reset);
            if init::reset(&self.bar, &self.config).is_ok() {
                self.bus().set_master(true);
                init::program(&self.bar, &self.config, &self.layout);
                self.state.store(state.wrapping_add(PHASE + 1) | RUNNING, Release);
                return;
            }
        }
        self.state.store(state | GONE, Release);
    }

    /// Looks whether there is a link, and whether the device is there at all; returns its status.
    #[cold]
    pub(super) fn look(&self) -> u32 {
        let word = STATUS.read(&self.bar);
        if word == u32::MAX {
            self.give_up();
        }
        let up = word != u32::MAX && word & status::LINK_UP != 0;
        let speed = [10, 100, 1000, 1000][(word >> status::SPEED_SHIFT & 3) as usize];
        self.control.set_link(Link { up, speed, full_duplex: word & status::FULL_DUPLEX != 0 });
        word
    }

    /// A receive queue has ended.
    pub(super) fn leave_rx(&self, ticket: &Ticket, core: RxCore<B::Dma>) {
        let mut members = self.members();
        members.rx.push(core);
        self.leave(members, ticket);
    }

    /// A transmit queue has ended.
    pub(super) fn leave_tx(&self, ticket: &Ticket, core: TxCore<B::Dma>) {
        let mut members = self.members();
        members.tx.push(core);
        self.leave(members, ticket);
    }

    fn leave(&self, mut members: MutexGuard<'_, Members<B::Dma>>, ticket: &Ticket) {
        members.live = members.live.saturating_sub(1);
        let state = self.state.load(Acquire);
        if members.live == 0 {
            return self.end(&mut members);
        }
        if state & PHASE == HALTED {
            // A ticket that has halted belongs to this halt: only `join` of the next run takes that back.
            members.halted -= u32::from(ticket.halted && ticket.seen >> 2 == state >> 2).min(members.halted);
            self.recover(&mut members);
        }
    }

    /// All queues have ended.
    fn end(&self, members: &mut Members<B::Dma>) {
        let idle = stop(&*self.bus(), &self.bar, &self.config);
        for core in members.rx.drain(..) {
            if idle { core.release() } else { core.abandon() }
        }
        for core in members.tx.drain(..) {
            if idle { core.release() } else { core.abandon() }
        }
        if !idle {
            std::mem::forget(self.domain.clone());
        }
    }
}

/// Stops the device; returns whether it is known to access memory no more: it said so, or it may not by its configuration and nothing
/// is under way (PCI Express 4.0 §7.5.1.1.3 Command, §7.5.3.5 Device Status).
pub(super) fn stop<B: Pci>(bus: &B, bar: &impl Mmio, config: &Config) -> bool {
    let confirmed = init::quiesce(bar, config);
    // What it fetched already must not be sent or filled later, under another driver.
    let _ = init::reset(bar, config);
    bus.set_master(false);
    confirmed || is_silent(bus)
}

/// Whether configuration space says that the device is there, is no master, and waits for nothing.
fn is_silent<B: Pci>(bus: &B) -> bool {
    const COMMAND: u16 = 0x04;
    const MASTER: u32 = 0x4;
    /// Device Status of the PCI Express capability, which this device has at 0xe0.
    const DEVICE_CONTROL_STATUS: u16 = 0xe8;
    const PENDING: u32 = 1 << 21;
    let command = bus.config_r32(COMMAND);
    if command == u32::MAX || command & MASTER != 0 {
        return false;
    }
    for _ in 0..100 {
        if bus.config_r32(DEVICE_CONTROL_STATUS) & PENDING == 0 {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}
