//! Who receives what: the port's transmit queues.
//!
//! ```text
//!   packet ── the first application of which a rule matches, else the default one ──► its posted chunks ──► its RX ring
//! ```
//!
//! Every queue knows all applications, in the order in which they came, so a packet goes to the same one through whichever queue it
//! comes. A queue takes an application's rings for as long as it serves the packets of one burst.

use super::gate::Gate;
use super::receiving::Receiver;
use crate::finish::Finisher;
use crate::rules::dissect_packet;
use std::sync::Arc;
use towpath_packet::port::{TxQueue, Wake};
use towpath_packet::ring::{Consumer, Producer};
use towpath_packet::{Batch, Cache, Counters, DropReason, Offloads, Packet};
use towpath_wire::LinkKind;

/// An application, and what this queue has to do with it.
#[derive(Debug)]
struct App {
    receiver: Arc<Receiver>,
    /// Who gets its packets from this queue: itself, or the one of its group that lives here.
    here: usize,
    /// It was given something, and not woken.
    unannounced: bool,
}

/// A transmit queue of the port.
#[derive(Debug)]
pub struct SockTx {
    number: u16,
    apps: Vec<App>,
    /// Whether any of them has rules.
    ruled: bool,
    /// Who gets what no rule matches.
    default: Option<usize>,
    new: Consumer<Arc<Receiver>>,
    old: Producer<Arc<Receiver>>,
    /// Up to which change the applications are known.
    changes: u64,
    /// The application whose FILL ring is looked into next.
    next: usize,
    cache: Cache,
    /// For applications that take no more than frames.
    finisher: Finisher,
    /// Whether some application takes more.
    offloads: bool,
    counters: Arc<Counters>,
    gate: Arc<Gate>,
}

/// What applications can be given that is not finished.
pub(super) const TAKEN: Offloads = Offloads::GSO.with(Offloads::CSUM);

/// Nobody's packet.
const NOBODY: u16 = u16::MAX;

impl SockTx {
    pub(super) fn new(
        number: u16,
        (new, old): (Consumer<Arc<Receiver>>, Producer<Arc<Receiver>>),
        (cache, spare): (Cache, Cache),
        gate: Arc<Gate>,
    ) -> SockTx {
        let (apps, counters) = (Vec::with_capacity(gate.sessions), Arc::<Counters>::default());
        SockTx {
            number,
            apps,
            ruled: false,
            default: None,
            new,
            old,
            changes: 0,
            next: 0,
            cache,
            finisher: Finisher::new(spare, towpath_gro::Link::Ethernet, counters.clone()),
            offloads: false,
            counters,
            gate,
        }
    }

    #[cfg(test)]
    pub(super) fn sessions(&self) -> usize {
        self.apps.len()
    }

    /// Who has come, and who has gone.
    #[inline]
    fn greet(&mut self) {
        let changes = self.gate.events.changes();
        if changes != self.changes {
            self.changes = changes;
            self.look();
        }
    }

    #[cold]
    fn look(&mut self) {
        while self.apps.len() < self.apps.capacity()
            && let Some(receiver) = self.new.pop()
        {
            self.apps.push(App { receiver, here: 0, unannounced: false });
        }
        let mut i = 0;
        while let Some(app) = self.apps.get(i) {
            if app.receiver.session.is_closed() {
                drop(self.old.push(self.apps.remove(i).receiver));
                self.gate.call();
            } else {
                i += 1;
            }
        }
        self.ruled = self.apps.iter().any(|app| !app.receiver.rules.is_empty());
        self.offloads = self.apps.iter().any(|app| app.receiver.offloads);
        self.default = self.apps.iter().position(|app| app.receiver.default);
        for i in 0..self.apps.len() {
            let here = self.home_of(i);
            if let Some(app) = self.apps.get_mut(i) {
                app.here = here;
            }
        }
    }

    /// Who of the group of an application lives on this queue; itself, if nobody does.
    fn home_of(&self, i: usize) -> usize {
        let Some(app) = self.apps.get(i) else { return i };
        let lives_here =
            |other: &App| other.receiver.group == app.receiver.group && other.receiver.queue == self.number;
        if lives_here(app) { i } else { self.apps.iter().position(lives_here).unwrap_or(i) }
    }

    /// Looks into the FILL ring of one application, in turn, so that those who get nothing are heard as well.
    #[inline]
    fn stock(&mut self) {
        let Some(app) = self.apps.get(self.next) else {
            self.next = 0;
            return;
        };
        self.next += 1;
        if let Err(fault) = app.receiver.stock() {
            app.receiver.session.fail(fault);
            self.counters.failed(1);
        }
    }

    /// Whose packet it is.
    #[inline]
    fn choose(&self, packet: &Packet) -> Option<usize> {
        let mut first = self.default;
        if self.ruled {
            let found = dissect_packet(packet, LinkKind::Ethernet);
            let matches = |app: &App| app.receiver.rules.first_match(packet, &found).is_some();
            first = self.apps.iter().position(matches).or(first);
        }
        self.apps.get(first?).map(|app| app.here)
    }

    /// Gives an application those packets that are its own.
    #[inline]
    fn deliver(&mut self, to: u16, packets: &[Packet], choices: &[u16]) {
        let mine = packets.iter().zip(choices).filter(|(_, choice)| **choice == to).map(|(packet, _)| packet);
        let Some(app) = self.apps.get_mut(usize::from(to)) else {
            return self.counters.dropped(DropReason::Filtered, mine.count() as u64);
        };
        let (session, mut half) = (&app.receiver.session, app.receiver.half());
        let (mut moved, mut bytes) = (0, 0);
        for packet in mine {
            if session.is_closed() {
                self.counters.dropped(DropReason::PortGone, 1);
                continue;
            }
            match half.deliver(session, packet) {
                Ok(None) => {
                    moved += 1;
                    bytes += packet.len() as u64;
                }
                Ok(Some(reason)) => {
                    half.lost(reason);
                    self.counters.dropped(reason, 1);
                }
                Err(fault) => {
                    session.fail(fault);
                    self.counters.failed(1);
                    self.counters.dropped(DropReason::PortGone, 1);
                }
            }
        }
        if moved > 0 {
            half.publish();
            app.unannounced = true;
            self.counters.moved(moved, bytes);
        }
    }
}

impl SockTx {
    /// Packets of which some are not finished: one by one, those as segments that their application does not take whole.
    fn tx_each(&mut self, batch: &mut Batch, choices: &[u16]) -> usize {
        let n = batch.len();
        for (packet, &to) in batch.drain_front(n).zip(choices) {
            let receiver = self.apps.get(usize::from(to)).map(|app| &app.receiver);
            let finished = !packet.wants_offload();
            if finished || receiver.is_none_or(|receiver| receiver.takes(&packet)) {
                self.deliver(to, std::slice::from_ref(&packet), &[to]);
                self.cache.free(packet);
                continue;
            }
            let (mut whole, mut cut) = (Batch::new(), Batch::new());
            // It is empty, and so has room.
            let _ = whole.push(packet);
            loop {
                self.finisher.finish(&mut whole, &mut cut, Offloads::NONE);
                if cut.is_empty() {
                    break;
                }
                self.deliver(to, cut.as_slice(), &[to; Batch::<64>::CAPACITY]);
                self.cache.free_bulk(&mut cut);
            }
        }
        n
    }
}

impl TxQueue for SockTx {
    fn tx(&mut self, batch: &mut Batch) -> usize {
        self.greet();
        let mut choices = [NOBODY; Batch::<64>::CAPACITY];
        for (packet, choice) in batch.iter().zip(&mut choices) {
            // There are 1024 at most.
            *choice = self.choose(packet).map_or(NOBODY, |i| i as u16);
        }
        if batch.iter().any(Packet::wants_offload) {
            return self.tx_each(batch, &choices);
        }
        let (packets, choices) = (batch.as_slice(), &choices[..batch.len()]);
        for (i, &to) in choices.iter().enumerate() {
            if !choices[..i].contains(&to) {
                self.deliver(to, packets, choices);
            }
        }
        let n = batch.len();
        self.cache.free_first(batch, n);
        n
    }

    #[inline]
    fn reclaim(&mut self) -> usize {
        self.greet();
        self.stock();
        0
    }

    fn kick(&mut self) {
        for app in self.apps.iter_mut().filter(|app| app.unannounced) {
            app.unannounced = false;
            app.receiver.session.tell_received();
        }
    }

    fn offloads(&self) -> Offloads {
        if self.offloads { TAKEN } else { Offloads::NONE }
    }

    fn potential(&self) -> Offloads {
        TAKEN
    }

    fn wake(&self) -> Wake {
        Wake::Never
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}
