//! The port's transmit queues: what applications receive.
//!
//! ```text
//!   packet ── the first application with a rule that matches, else the default one ──► its RX ring
//! ```
//!
//! Every queue has all applications, in the order in which they came, so a packet gets the same
//! application on every queue. A queue has an application's rings for the packets of one burst, or
//! for good if it is the only queue.
//!
//! | file | |
//! |---|---|
//! | `mod` | [`SockTx`]: classification, runs of packets for one application, segmentation |
//! | `app` | [`App`](app::App): an application as a queue has it; its rings |

pub(super) mod app;

use super::notify::PortShared;
use super::session::SessionList;
use super::stats::Fault;
use app::App;
use std::sync::Arc;
use towpath_engine::rules::dissect_packet;
use towpath_engine::software_offload::SoftwareOffload;
use towpath_packet::port::{TxQueue, Wake};
use towpath_packet::spsc::{Consumer, Producer};
use towpath_packet::{Batch, Cache, Counters, DropReason, Offloads, Packet};
use towpath_wire::LinkKind;

/// A transmit queue of the port.
#[derive(Debug)]
pub struct SockTx {
    number: u16,
    /// It is the only transmit queue of the port.
    single_queue: bool,
    apps: SessionList<App>,
    /// An application has rules.
    has_rules: bool,
    /// The application that gets what no rule matches.
    default: Option<usize>,
    /// The application whose FILL ring is looked into next.
    next: usize,
    cache: Cache,
    /// For applications without offloads.
    software: SoftwareOffload,
    /// An application takes offloads.
    offloads: bool,
    counters: Arc<Counters>,
    shared: Arc<PortShared>,
}

/// What was delivered in one burst.
#[derive(Debug, Default)]
struct TxTotals {
    packets: u64,
    bytes: u64,
}

/// The offloads that applications can take.
pub(super) const OFFLOADS: Offloads = Offloads::GSO.with(Offloads::CSUM);

/// No application gets the packet.
const NO_APP: u16 = u16::MAX;

/// An application broke the protocol.
#[cold]
fn fail(app: &App, fault: Fault, counters: &Counters) {
    app.destination.session.fail(fault);
    counters.failed(1);
}

impl SockTx {
    pub(super) fn new(
        number: u16,
        sessions: (Consumer<App>, Producer<App>),
        (cache, spare): (Cache, Cache),
        shared: Arc<PortShared>,
    ) -> SockTx {
        let counters = Arc::<Counters>::default();
        SockTx {
            number,
            single_queue: shared.wakers.len() == 1,
            apps: SessionList::new(sessions, shared.sessions),
            has_rules: false,
            default: None,
            next: 0,
            cache,
            software: SoftwareOffload::new(spare, LinkKind::Ethernet, counters.clone()),
            offloads: false,
            counters,
            shared,
        }
    }

    #[cfg(test)]
    pub(super) fn shared(&self) -> &PortShared {
        &self.shared
    }

    #[cfg(test)]
    pub(super) fn apps(&mut self) -> &mut [App] {
        &mut self.apps
    }

    /// Adds new sessions and removes closed ones.
    #[inline]
    fn sync_sessions(&mut self) {
        if self.apps.sync(&self.shared) {
            self.refresh();
        }
    }

    /// Sets what depends on the list of applications.
    #[cold]
    fn refresh(&mut self) {
        self.has_rules = self.apps.iter().any(|app| !app.destination.rules.is_empty());
        self.offloads = self.apps.iter().any(|app| app.destination.offloads);
        self.default = self.apps.iter().position(|app| app.destination.default);
        for i in 0..self.apps.len() {
            let local = self.find_local(i);
            if let Some(app) = self.apps.get_mut(i) {
                app.local = local;
            }
        }
    }

    /// The member of an application's group whose session belongs to this queue; the application
    /// itself if there is none.
    fn find_local(&self, i: usize) -> usize {
        let Some(app) = self.apps.get(i) else { return i };
        let is_local =
            |other: &App| other.destination.group == app.destination.group && other.destination.queue == self.number;
        if is_local(app) { i } else { self.apps.iter().position(is_local).unwrap_or(i) }
    }

    /// Takes chunks from the FILL ring of one application of this queue, in turn, so that the
    /// faults of applications without packets are noticed too.
    #[inline]
    fn take_fill(&mut self) {
        let Some(app) = self.apps.get_mut(self.next) else {
            self.next = 0;
            return;
        };
        self.next += 1;
        if app.destination.queue == self.number
            && let Err(fault) = app.take_fill(self.single_queue)
        {
            fail(app, fault, &self.counters);
        }
    }

    /// The application that gets the packets of `app` on this queue.
    #[inline]
    fn local(&self, app: Option<usize>) -> u16 {
        // There are at most 1024.
        app.and_then(|app| self.apps.get(app)).map_or(NO_APP, |app| app.local as u16)
    }

    /// The application that gets a packet, if there are rules.
    #[inline]
    fn classify(&self, packet: &Packet) -> u16 {
        let found = dissect_packet(packet, LinkKind::Ethernet);
        let matches = |app: &App| app.destination.rules.first_match(packet, &found).is_some();
        self.local(self.apps.iter().position(matches).or(self.default))
    }

    /// Takes the rings of an application, unless this queue has them; `false` if another queue
    /// does.
    #[inline]
    fn take_rings(&mut self, of: u16) -> bool {
        self.apps.get_mut(usize::from(of)).is_none_or(App::take_rings)
    }

    /// Finds the application of each packet, up to the first whose rings another queue has. Returns
    /// the number of packets in front of that one.
    #[inline]
    fn classify_burst(&mut self, packets: &[Packet], choices: &mut [u16]) -> usize {
        if !self.has_rules {
            let to = self.local(self.default);
            choices.fill(to);
            return if self.take_rings(to) { packets.len() } else { 0 };
        }
        for (number, (packet, choice)) in packets.iter().zip(choices).enumerate() {
            *choice = self.classify(packet);
            if !self.take_rings(*choice) {
                return number;
            }
        }
        packets.len()
    }

    /// Delivers packets to one application.
    #[inline]
    fn deliver(&mut self, packets: &[Packet], to: u16, totals: &mut TxTotals) {
        let Some(app) = self.apps.get_mut(usize::from(to)) else {
            return self.counters.dropped(DropReason::Unclaimed, packets.len() as u64);
        };
        for packet in packets {
            match app.deliver(packet) {
                Ok(()) => {
                    totals.packets += 1;
                    totals.bytes += packet.len() as u64;
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

    /// Delivers packets of which some have offloads. A packet that its application does not accept
    /// is segmented, and its checksums are completed.
    fn deliver_with_offloads(&mut self, batch: &mut Batch, choices: &[u16], totals: &mut TxTotals) {
        for (packet, &to) in batch.drain_front(choices.len()).zip(choices) {
            let destination = self.apps.get(usize::from(to)).map(|app| &app.destination);
            let finished = !packet.wants_offload();
            if finished || destination.is_none_or(|destination| destination.accepts(&packet)) {
                self.deliver(std::slice::from_ref(&packet), to, totals);
                self.cache.free(packet);
                continue;
            }
            let (mut whole, mut cut) = (Batch::new(), Batch::new());
            // An empty batch has room.
            let _ = whole.push(packet);
            loop {
                self.software.apply(&mut whole, &mut cut, Offloads::NONE);
                if cut.is_empty() {
                    break;
                }
                self.deliver(cut.as_slice(), to, totals);
                self.cache.free_bulk(&mut cut);
            }
        }
    }
}

impl TxQueue for SockTx {
    fn tx(&mut self, batch: &mut Batch) -> usize {
        self.sync_sessions();
        let (mut choices, mut totals) = ([NO_APP; Batch::<64>::CAPACITY], TxTotals::default());
        let n = self.classify_burst(batch.as_slice(), &mut choices);
        let choices = &choices[..n];
        if batch.iter().zip(choices).any(|(packet, _)| packet.wants_offload()) {
            self.deliver_with_offloads(batch, choices, &mut totals);
        } else {
            let mut rest = batch.as_slice();
            for run in choices.chunk_by(u16::eq) {
                let packets = rest.split_off(..run.len()).unwrap_or_default();
                self.deliver(packets, run.first().copied().unwrap_or(NO_APP), &mut totals);
            }
            self.cache.free_first(batch, n);
        }
        self.apps.iter_mut().for_each(|app| app.end_burst(self.single_queue));
        if totals.packets > 0 {
            self.counters.moved(totals.packets, totals.bytes);
        }
        n
    }

    #[inline]
    fn reclaim(&mut self) -> usize {
        self.sync_sessions();
        self.take_fill();
        0
    }

    fn kick(&mut self) {
        self.apps.iter_mut().for_each(App::notify);
    }

    fn offloads(&self) -> Offloads {
        if self.offloads { OFFLOADS } else { Offloads::NONE }
    }

    fn max_offloads(&self) -> Offloads {
        OFFLOADS
    }

    fn wake(&self) -> Wake {
        Wake::Never
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}
