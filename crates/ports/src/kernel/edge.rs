//! Losses of the kernel around a port: the drop counters of its interface, of the interface's
//! queueing discipline, and of the other end of a veth.
//!
//! ```text
//!   tun     host ──► qdisc ──► queue of the tun ──► readv         writev ──► interface ──► the host's stack
//!                    drops     tx_dropped                                    rx_dropped
//!   packet  peer of a veth, or driver ──► socket                  sendmmsg ──► qdisc ──► driver
//!           tx_dropped      rx_dropped, rx_missed   (its ring)                 drops     tx_dropped
//!   xdp     peer of a veth, or driver ──► rings                   sendto ──► driver   (reported to the caller)
//!           tx_dropped      rx_missed               (their statistics)
//! ```
//!
//! The kernel counts since the interface was made, the port since it was started. A counter that is
//! smaller than before began anew, for instance that of a replaced queueing discipline. What the
//! kernel refused with an error is counted at the interface too; the queue has retried or dropped
//! it, so it is subtracted. Loss in the sockets themselves is counted by the queues.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use towpath_packet::port::{Capability, Edge, Needs};
use towpath_packet::{Counters, Missed};
use towpath_sys::netdev::Control;
use towpath_sys::rtnl::Link;
use towpath_sys::{netns, tun};

/// The kind of port at an interface: which of the kernel's counters are losses of the port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EdgeKind {
    Tun,
    Packet,
    Xdp,
}

/// The kernel's counters of dropped packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Drops {
    rx_dropped: u64,
    rx_missed: u64,
    tx_dropped: u64,
    qdisc: u64,
    /// `tx_dropped` of the other end of a veth; `None` for other interfaces.
    peer: Option<u64>,
}

impl Drops {
    /// These counters, increased by what happened between `before` and `now`.
    fn plus_step(self, before: Drops, now: Drops) -> Drops {
        let add = |sum: u64, before: u64, now: u64| sum + if now >= before { now - before } else { now };
        Drops {
            rx_dropped: add(self.rx_dropped, before.rx_dropped, now.rx_dropped),
            rx_missed: add(self.rx_missed, before.rx_missed, now.rx_missed),
            tx_dropped: add(self.tx_dropped, before.tx_dropped, now.tx_dropped),
            qdisc: add(self.qdisc, before.qdisc, now.qdisc),
            peer: match (self.peer, before.peer, now.peer) {
                (sum, Some(before), Some(now)) => Some(add(sum.unwrap_or(0), before, now)),
                (sum, ..) => sum,
            },
        }
    }
}

/// The interface, and what is read of it.
#[derive(Debug)]
struct Watched {
    link: Link,
    peer: Option<Link>,
    /// A queue of a tun, by which the interface is found if it was moved to another namespace.
    queue: Weak<File>,
    /// At the last reading.
    last: Drops,
    /// Since the start.
    sum: Drops,
}

/// The interface of a queue, in the namespace where it is now.
fn link_of(queue: &File) -> io::Result<Link> {
    let namespace = tun::namespace(queue)?;
    let inside = || Link::new(Control::new()?.index(&tun::name(queue)?)?);
    netns::within(Some(&format!("/proc/self/fd/{}", namespace.as_raw_fd())), inside)?
}

impl Watched {
    /// Reads the counters, wherever the interface is.
    fn find_and_read(&mut self) -> io::Result<Drops> {
        self.read().or_else(|error| {
            self.link = self.queue.upgrade().map_or(Err(error), |queue| link_of(&queue))?;
            self.read()
        })
    }

    fn read(&self) -> io::Result<Drops> {
        let own = self.link.statistics()?;
        Ok(Drops {
            rx_dropped: own.rx_dropped,
            rx_missed: own.rx_missed,
            tx_dropped: own.tx_dropped,
            // Without a queueing discipline there is nothing to read.
            qdisc: self.link.qdisc_drops().unwrap_or(0),
            peer: self.peer.as_ref().map(|peer| peer.statistics()).transpose()?.map(|peer| peer.tx_dropped),
        })
    }
}

/// What reading the counters needs: the other end of a veth may be in another namespace, about
/// which the kernel tells only processes that may configure it.
pub(crate) fn needs(link: Option<&Link>) -> Needs {
    let peer = link.and_then(|link| link.veth_peer().ok().flatten());
    match peer.is_some_and(|peer| peer.is_elsewhere()) {
        true => Needs::none().capability(Capability::NetAdmin),
        false => Needs::none(),
    }
}

/// The counters of what the kernel lost around one port.
#[derive(Debug)]
pub(crate) struct KernelEdge {
    kind: EdgeKind,
    rx: Arc<Counters>,
    tx: Arc<Counters>,
    refused: AtomicU64,
    /// `None` before the start, and after the end of the last queue.
    watched: Mutex<Option<Watched>>,
}

impl KernelEdge {
    pub(crate) fn new(kind: EdgeKind) -> Arc<KernelEdge> {
        let (rx, tx) = Default::default();
        Arc::new(KernelEdge { kind, rx, tx, refused: AtomicU64::new(0), watched: Mutex::new(None) })
    }

    /// Begins to count at an interface, until the last copy of what it returns is dropped. The
    /// queue of a tun finds its interface again if it is moved to another namespace. Without an
    /// interface nothing is counted.
    pub(crate) fn start(self: &Arc<KernelEdge>, link: Option<Link>, queue: Weak<File>) -> Arc<EdgeGuard> {
        let watch = |link: Link| {
            let peer = link.veth_peer().ok().flatten();
            let mut watched = Watched { link, peer, queue, last: Drops::default(), sum: Drops::default() };
            watched.last = watched.read().ok()?;
            Some(watched)
        };
        *self.lock() = link.and_then(watch);
        Arc::new(EdgeGuard(self.clone()))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Watched>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, sum: Drops) {
        let refused = self.refused.load(Relaxed);
        let raise = |counters: &Counters, place: Missed, to: u64| {
            counters.missed(place, to.saturating_sub(counters.snapshot().missed_at(place)));
        };
        match self.kind {
            EdgeKind::Tun => {
                raise(&self.rx, Missed::TunQueue, sum.tx_dropped);
                raise(&self.rx, Missed::Qdisc, sum.qdisc);
                raise(&self.tx, Missed::Host, sum.rx_dropped.saturating_sub(refused));
            }
            EdgeKind::Packet => {
                match sum.peer {
                    Some(peer) => raise(&self.rx, Missed::VethPeer, peer),
                    None => raise(&self.rx, Missed::Interface, sum.rx_dropped),
                }
                raise(&self.rx, Missed::Device, sum.rx_missed);
                raise(&self.tx, Missed::Qdisc, sum.qdisc.saturating_sub(refused));
                raise(&self.tx, Missed::Driver, sum.tx_dropped.saturating_sub(refused.saturating_sub(sum.qdisc)));
            }
            EdgeKind::Xdp => {
                raise(&self.rx, Missed::VethPeer, sum.peer.unwrap_or(0));
                raise(&self.rx, Missed::Device, sum.rx_missed);
            }
        }
    }
}

impl Edge for KernelEdge {
    fn refresh(&self) {
        let mut watched = self.lock();
        let Some(watched) = watched.as_mut() else { return };
        // The interface may have been deleted.
        let Ok(now) = watched.find_and_read() else { return };
        watched.sum = watched.sum.plus_step(watched.last, now);
        watched.last = now;
        self.count(watched.sum);
    }

    fn rx(&self) -> &Arc<Counters> {
        &self.rx
    }

    fn tx(&self) -> &Arc<Counters> {
        &self.tx
    }
}

/// Held by every queue of a port. The last one reads the counters once more and ends the counting,
/// before it closes its socket.
#[derive(Debug)]
pub(crate) struct EdgeGuard(Arc<KernelEdge>);

impl EdgeGuard {
    /// The kernel refused `n` packets with an error, and counted them at the interface.
    #[cold]
    pub(crate) fn refused(&self, n: u64) {
        self.0.refused.fetch_add(n, Relaxed);
    }
}

impl Drop for EdgeGuard {
    fn drop(&mut self) {
        self.0.refresh();
        *self.0.lock() = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Places = Vec<(Missed, u64)>;

    fn counted(kind: EdgeKind, refused: u64, sum: Drops) -> (Places, Places) {
        let edge = KernelEdge::new(kind);
        edge.start(None, Weak::new()).refused(refused);
        // Counted twice, it is the same.
        edge.count(sum);
        edge.count(sum);
        (edge.rx.snapshot().missed().collect(), edge.tx.snapshot().missed().collect())
    }

    #[test]
    fn every_kind_of_port_counts_its_own_places_and_nothing_that_was_refused() {
        let sum = Drops { rx_dropped: 100, rx_missed: 1, tx_dropped: 20, qdisc: 5, peer: None };
        let on_veth = Drops { peer: Some(7), ..sum };
        let tun = (vec![(Missed::TunQueue, 20), (Missed::Qdisc, 5)], vec![(Missed::Host, 70)]);
        assert_eq!(counted(EdgeKind::Tun, 30, sum), tun);
        let tx = vec![(Missed::Driver, 17)];
        assert_eq!(
            counted(EdgeKind::Packet, 8, sum),
            (vec![(Missed::Interface, 100), (Missed::Device, 1)], tx.clone())
        );
        assert_eq!(counted(EdgeKind::Packet, 8, on_veth), (vec![(Missed::VethPeer, 7), (Missed::Device, 1)], tx));
        assert_eq!(counted(EdgeKind::Xdp, 8, on_veth), (vec![(Missed::VethPeer, 7), (Missed::Device, 1)], vec![]));
    }

    #[test]
    fn a_counter_that_began_anew_adds_what_it_has_counted_since() {
        let before = Drops { qdisc: 50, tx_dropped: 10, peer: Some(3), ..Drops::default() };
        let now = Drops { qdisc: 4, tx_dropped: 12, peer: Some(9), ..Drops::default() };
        let sum = Drops { qdisc: 7, ..Drops::default() }.plus_step(before, now);
        assert_eq!(sum, Drops { qdisc: 11, tx_dropped: 2, peer: Some(6), ..Drops::default() });
    }
}
