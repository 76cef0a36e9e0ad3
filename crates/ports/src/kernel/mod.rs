//! What the ports backed by the kernel's interfaces share.
//!
//! ```text
//!   crafted   packets that find out what the kernel takes
//!   link      is the interface up, down, gone?
//!   ability   what was asked for, what was found, what is used
//!   rx_buffers  buffers that the kernel reads packets into
//! ```

pub(crate) mod ability;
pub(crate) mod crafted;
pub(crate) mod link;
pub(crate) mod rx_buffers;

use ability::TSO;
use towpath_packet::{Offloads, Packet};

/// What is left of a queue's abilities when the kernel refused a super-packet whose header was right: without the kind that it
/// was of, or if it was one with CWR, without those.
#[cold]
pub(crate) fn lose(offloads: Offloads, packet: &Packet) -> Offloads {
    let Some(gso) = packet.gso() else { return offloads };
    let left = offloads.without(if gso.ecn { Offloads::TSO_ECN } else { Offloads::for_gso(gso) });
    if left.and(TSO) == Offloads::TSO_ECN { left.without(TSO) } else { left }
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_packet::{Backing, Direction, Gso, GsoKind, Pool, PoolConfig};

    #[test]
    fn only_the_kind_that_was_refused_is_given_up() {
        let config = PoolConfig { capacity: 16, backing: Backing::Anonymous, ..PoolConfig::default() };
        let mut packet = Pool::new(config).unwrap().cache(Direction::Tx).unwrap().alloc().unwrap();
        let mut after = |kind, ecn, before| {
            packet.set_gso(Some(Gso { kind, ecn, size: 1000, segs: 0, hdr_len: 54 }));
            lose(before, &packet)
        };
        let all = Offloads::ALL;
        assert_eq!(after(GsoKind::Tcp4, true, all), all.without(Offloads::TSO_ECN), "first those with CWR");
        let left = after(GsoKind::Tcp4, false, all);
        assert_eq!(left, all.without(Offloads::TSO4));
        assert_eq!(after(GsoKind::Tcp6, false, left), all.without(TSO), "CWR means nothing without TCP");
        assert_eq!(after(GsoKind::Udp, false, all), all.without(Offloads::USO));
    }
}
