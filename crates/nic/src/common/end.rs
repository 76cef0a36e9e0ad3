//! The end of a port, when its last queue has left: what its rings hold is freed, or leaked.

use towpath_bus::{Dma, Domain};

/// A ring that has ended, with what is in flight.
pub(crate) trait EndedRing {
    /// The device was stopped: frees everything.
    fn release(self);

    /// The device may still reach memory: leaks all of it that the ring holds, the ring itself, and
    /// the IOVA window, whose pages may be in use.
    fn abandon(self);
}

/// The ring of a queue that has ended.
pub(crate) enum QueueRing<R, T> {
    Rx(Box<R>),
    Tx(Box<T>),
}

/// Frees what the rings hold, if the device is `idle`. Otherwise it is leaked, and the domain too.
pub(crate) fn end<R: EndedRing, T: EndedRing, D: Dma>(rings: Vec<QueueRing<R, T>>, idle: bool, domain: &Domain<D>) {
    for ring in rings {
        match ring {
            QueueRing::Rx(ring) if idle => ring.release(),
            QueueRing::Rx(ring) => ring.abandon(),
            QueueRing::Tx(ring) if idle => ring.release(),
            QueueRing::Tx(ring) => ring.abandon(),
        }
    }
    if !idle {
        std::mem::forget(domain.clone());
    }
}
