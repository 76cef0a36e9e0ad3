//! The ports that an ingress may send to: not itself, nor the others of its group.

use super::decision::Decision;
use super::storm::FloodKind;
use super::{PortState, fdb};
use crate::hub::Ports;
use towpath_packet::DropReason;
use towpath_packet::port::{RxQueue, TxQueue};

/// Ports that an ingress may send to.
#[derive(Clone)]
pub(super) struct Reach {
    /// The [version](Ports::version) of the ports that it was derived from.
    pub(super) version: u64,
    ports: [u64; fdb::MAX_PORTS / 64],
}

impl Reach {
    pub(super) const NONE: Reach = Reach { version: 0, ports: [0; fdb::MAX_PORTS / 64] };

    #[inline]
    pub(super) fn contains(&self, number: usize) -> bool {
        self.ports[number / 64 % (fdb::MAX_PORTS / 64)] >> (number % 64) & 1 != 0
    }

    /// All members but the ingress itself, and those of its group.
    #[cold]
    pub(super) fn derive<R: RxQueue, T: TxQueue>(&mut self, ingress: usize, ports: &Ports<R, T, PortState>) {
        *self = Reach { version: ports.version(), ..Reach::NONE };
        let group = ports.get(ingress).map_or(0, |port| port.group);
        for number in ports.members().iter().map(|number| usize::from(*number)) {
            let other = ports.get(number).map_or(0, |port| port.group);
            if number != ingress && number < fdb::MAX_PORTS && (group == 0 || group != other) {
                self.ports[number / 64] |= 1 << (number % 64);
            }
        }
    }
}

/// Why a port that the table names can't have a frame.
#[cold]
pub(super) fn out_of_reach<R, T>(ingress: usize, to: usize, ports: &Ports<R, T, PortState>) -> Decision {
    if to == ingress {
        Decision::drop(DropReason::SamePort)
    } else if ports.members().contains(&(to as u16)) {
        // It is of the same group.
        Decision::drop(DropReason::NoEgress)
    } else {
        // It left, and its addresses are about to be flushed.
        Decision::flood(FloodKind::Unknown)
    }
}
