//! Who receives what: the port's transmit queues.
//!
//! ```text
//!   packet ── the first application of which a rule matches, else the default one ──► its posted chunks ──► its RX ring
//! ```
//!
//! Every queue knows all applications, in the order in which they came, so a packet goes to the same one through whichever queue it
//! comes. A queue has an application's rings for as long as it serves the packets of one burst, or, being the only one, for good
//! ([`app`](super::app)).

use super::app::App;
use super::events::Fault;
use super::gate::Gate;
use super::roster::Roster;
use std::sync::Arc;
use towpath_engine::rules::dissect_packet;
use towpath_engine::software_offload::Finisher;
use towpath_packet::port::{TxQueue, Wake};
use towpath_packet::spsc::{Consumer, Producer};
use towpath_packet::{Batch, Cache, Counters, DropReason, Offloads, Packet};
use towpath_wire::LinkKind;

/// A transmit queue of the port.
#[derive(Debug)]
pub struct SockTx {
    number: u16,
    /// Whether it is the only one.
    alone: bool,
    apps: Roster<App>,
    /// Whether any of them has rules.
    ruled: bool,
    /// Who gets what no rule matches.
    default: Option<usize>,
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

/// What was given in one burst.
#[derive(Debug, Default)]
struct Given {
    packets: u64,
    bytes: u64,
}

/// What applications can be given that is not finished.
pub(super) const TAKEN: Offloads = Offloads::GSO.with(Offloads::CSUM);

/// Nobody's packet.
const NOBODY: u16 = u16::MAX;

/// An application broke the protocol.
#[cold]
fn fail(app: &App, fault: Fault, counters: &Counters) {
    app.receiver.session.fail(fault);
    counters.failed(1);
}

impl SockTx {
    pub(super) fn new(
        number: u16,
        ways: (Consumer<App>, Producer<App>),
        (cache, spare): (Cache, Cache),
        gate: Arc<Gate>,
    ) -> SockTx {
        let counters = Arc::<Counters>::default();
        SockTx {
            number,
            alone: gate.wakers.len() == 1,
            apps: Roster::new(ways, gate.sessions),
            ruled: false,
            default: None,
            next: 0,
            cache,
            finisher: Finisher::new(spare, LinkKind::Ethernet, counters.clone()),
            offloads: false,
            counters,
            gate,
        }
    }

    #[cfg(test)]
    pub(super) fn apps(&mut self) -> &mut [App] {
        &mut self.apps
    }

    /// Who has come, and who has gone.
    #[inline]
    fn greet(&mut self) {
        if self.apps.greet(&self.gate) {
            self.survey();
        }
    }

    /// What follows from who is there.
    #[cold]
    fn survey(&mut self) {
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

    /// Looks into the FILL ring of one application that lives here, in turn, so that those who get nothing are heard as well.
    #[inline]
    fn stock(&mut self) {
        let Some(app) = self.apps.get_mut(self.next) else {
            self.next = 0;
            return;
        };
        self.next += 1;
        if app.receiver.queue == self.number
            && let Err(fault) = app.stock(self.alone)
        {
            fail(app, fault, &self.counters);
        }
    }

    /// Who gets on this queue what is for that application.
    #[inline]
    fn here(&self, app: Option<usize>) -> u16 {
        // There are 1024 at most.
        app.and_then(|app| self.apps.get(app)).map_or(NOBODY, |app| app.here as u16)
    }

    /// Whose packet it is, where there are rules.
    #[inline]
    fn choose(&self, packet: &Packet) -> u16 {
        let found = dissect_packet(packet, LinkKind::Ethernet);
        let matches = |app: &App| app.receiver.rules.first_match(packet, &found).is_some();
        self.here(self.apps.iter().position(matches).or(self.default))
    }

    /// Takes the rings of who was chosen, unless this queue has them; `false` if another queue does.
    #[inline]
    fn take_rings(&mut self, of: u16) -> bool {
        self.apps.get_mut(usize::from(of)).is_none_or(App::take_rings)
    }

    /// Whose each packet is, up to the first whose application's rings another queue has at the moment; returns how many these are.
    #[inline]
    fn choose_each(&mut self, packets: &[Packet], choices: &mut [u16]) -> usize {
        if !self.ruled {
            let to = self.here(self.default);
            choices.fill(to);
            return if self.take_rings(to) { packets.len() } else { 0 };
        }
        for (number, (packet, choice)) in packets.iter().zip(choices).enumerate() {
            *choice = self.choose(packet);
            if !self.take_rings(*choice) {
                return number;
            }
        }
        packets.len()
    }

    /// Gives packets to whose they are.
    #[inline]
    fn give(&mut self, packets: &[Packet], to: u16, given: &mut Given) {
        let Some(app) = self.apps.get_mut(usize::from(to)) else {
            return self.counters.dropped(DropReason::Filtered, packets.len() as u64);
        };
        for packet in packets {
            match app.give(packet) {
                Ok(()) => {
                    given.packets += 1;
                    given.bytes += packet.len() as u64;
                }
                Err((reason, fault)) => {
                    self.counters.dropped(reason, 1);
                    if let Some(fault) = fault {
                        fail(app, fault, &self.counters);
                    }
                }
            }
        }
    }

    /// Gives packets of which some are not finished: those as segments that their application does not take whole.
    fn give_unfinished(&mut self, batch: &mut Batch, choices: &[u16], given: &mut Given) {
        for (packet, &to) in batch.drain_front(choices.len()).zip(choices) {
            let receiver = self.apps.get(usize::from(to)).map(|app| &app.receiver);
            let finished = !packet.wants_offload();
            if finished || receiver.is_none_or(|receiver| receiver.takes(&packet)) {
                self.give(std::slice::from_ref(&packet), to, given);
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
                self.give(cut.as_slice(), to, given);
                self.cache.free_bulk(&mut cut);
            }
        }
    }
}

impl TxQueue for SockTx {
    fn tx(&mut self, batch: &mut Batch) -> usize {
        self.greet();
        let (mut choices, mut given) = ([NOBODY; Batch::<64>::CAPACITY], Given::default());
        let n = self.choose_each(batch.as_slice(), &mut choices);
        let choices = &choices[..n];
        if batch.iter().zip(choices).any(|(packet, _)| packet.wants_offload()) {
            self.give_unfinished(batch, choices, &mut given);
        } else {
            let mut rest = batch.as_slice();
            for run in choices.chunk_by(u16::eq) {
                let packets = rest.split_off(..run.len()).unwrap_or_default();
                self.give(packets, run.first().copied().unwrap_or(NOBODY), &mut given);
            }
            self.cache.free_first(batch, n);
        }
        self.apps.iter_mut().for_each(|app| app.end_burst(self.alone));
        if given.packets > 0 {
            self.counters.moved(given.packets, given.bytes);
        }
        n
    }

    #[inline]
    fn reclaim(&mut self) -> usize {
        self.greet();
        self.stock();
        0
    }

    fn kick(&mut self) {
        self.apps.iter_mut().for_each(App::announce);
    }

    fn offloads(&self) -> Offloads {
        if self.offloads { TAKEN } else { Offloads::NONE }
    }

    fn max_offloads(&self) -> Offloads {
        TAKEN
    }

    fn wake(&self) -> Wake {
        Wake::Never
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}
