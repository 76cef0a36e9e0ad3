//! The four rings of an AF_XDP socket, each seen from this process's end.

use std::io;
use towpath_packet::xsk_ring::{Consumer, Desc, Entry, Mapped, Producer};
use towpath_sys::xsk::{self, RingMap};

/// The rings of a socket.
#[derive(Debug)]
pub(super) struct Rings {
    pub(super) fill: Producer<Mapped<u64>>,
    pub(super) completion: Consumer<Mapped<u64>>,
    pub(super) rx: Consumer<Mapped<Desc>>,
    pub(super) tx: Producer<Mapped<Desc>>,
}

impl Rings {
    /// Takes the rings that the kernel made.
    ///
    /// # Errors
    /// `InvalidData` if the kernel placed a ring outside of its mapping.
    pub(super) fn new(rings: xsk::Rings) -> io::Result<Rings> {
        Ok(Rings {
            fill: Producer::new(mapped(rings.fill)?),
            completion: Consumer::new(mapped(rings.completion)?),
            rx: Consumer::new(mapped(rings.rx)?),
            tx: Producer::new(mapped(rings.tx)?),
        })
    }
}

fn mapped<T: Entry>(ring: RingMap) -> io::Result<Mapped<T>> {
    let outside = || io::Error::new(io::ErrorKind::InvalidData, "a ring of the kernel lies outside of its mapping");
    Mapped::from_kernel(ring).ok_or_else(outside)
}
