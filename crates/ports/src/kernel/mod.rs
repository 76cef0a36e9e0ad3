//! Shared parts of the ports on interfaces of the kernel.
//!
//! ```text
//!   ability      configured offloads, offloads of the kernel, the report
//!   edge         packets that the kernel lost around the port
//!   interface    its name, index, address, driver, queues, master
//!   link         the state of the interface: up, down, deleted
//!   rx_buffers   buffers that the kernel reads packets into
//! ```

pub(crate) mod ability;
pub(crate) mod edge;
pub(crate) mod interface;
pub(crate) mod link;
pub(crate) mod rx_buffers;

use ability::TSO;
use towpath_packet::{Offloads, Packet};

/// A queue's offloads after the kernel refused a super-packet with a correct header: without its
/// kind, or without `TSO_ECN` if the packet has CWR.
#[cold]
pub(crate) fn without_refused(offloads: Offloads, packet: &Packet) -> Offloads {
    let Some(gso) = packet.gso() else { return offloads };
    let left = offloads.without(if gso.ecn { Offloads::TSO_ECN } else { Offloads::for_gso(gso) });
    if left.and(TSO) == Offloads::TSO_ECN { left.without(TSO) } else { left }
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_packet::{Backing, Direction, Gso, GsoKind, Pool, PoolConfig};

    #[test]
    fn only_the_refused_kind_is_switched_off() {
        let config = PoolConfig::default().capacity(16).backing(Backing::Anonymous);
        let mut packet = Pool::new(config).unwrap().cache(Direction::Tx).unwrap().alloc().unwrap();
        let mut after = |kind, ecn, before| {
            packet.set_gso(Some(Gso { kind, ecn, size: 1000, segs: 0, hdr_len: 54 }));
            without_refused(before, &packet)
        };
        let all = Offloads::ALL;
        assert_eq!(after(GsoKind::Tcp4, true, all), all.without(Offloads::TSO_ECN), "first those with CWR");
        let left = after(GsoKind::Tcp4, false, all);
        assert_eq!(left, all.without(Offloads::TSO4));
        assert_eq!(after(GsoKind::Tcp6, false, left), all.without(TSO), "CWR means nothing without TCP");
        assert_eq!(after(GsoKind::Udp, false, all), all.without(Offloads::USO));
    }
}
