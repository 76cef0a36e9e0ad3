//! Offloads of a packet, in the terms of Linux' `sk_buff`: checksum state and segmentation (from
//! [`towpath_wire::offload`]), out-of-band VLAN tag; and the set of offloads of a port.

pub use towpath_wire::offload::{Checksum, Gso, GsoKind};

/// An out-of-band VLAN tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vlan {
    /// Priority, drop eligibility and identifier, as on the wire (IEEE 802.1Q).
    pub tci: u16,
    /// The tag's type is 0x88a8 (802.1ad service tag) instead of 0x8100.
    pub service: bool,
}

/// A set of offloads of a port of any kind: those of its transmit side, or those that received
/// packets may need (Linux: `netdev_features_t`). A TUN/TAP device has a set of its own, by the
/// kernel's bits: `towpath_tun::TunOffloads`.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Offloads(u16);

impl Offloads {
    /// None: complete checksums, one frame per packet, tags inline.
    pub const NONE: Offloads = Offloads(0);
    /// Partial checksums ([`Checksum::Partial`]).
    pub const CSUM: Offloads = Offloads(1);
    /// TCP over IPv4 super-packets.
    pub const TSO4: Offloads = Offloads(2);
    /// TCP over IPv6 super-packets.
    pub const TSO6: Offloads = Offloads(4);
    /// Super-packets with [`Gso::ecn`].
    pub const TSO_ECN: Offloads = Offloads(8);
    /// UDP super-packets ([`GsoKind::Udp`]).
    pub const USO: Offloads = Offloads(16);
    /// An out-of-band VLAN tag ([`Vlan`]).
    pub const VLAN: Offloads = Offloads(32);
    /// Super-packets of every kind.
    pub const GSO: Offloads = Offloads(2 | 4 | 8 | 16);
    /// Every offload with a name.
    pub const ALL: Offloads = Offloads(63);

    const NAMES: [(Offloads, &'static str); 6] = [
        (Offloads::CSUM, "csum"),
        (Offloads::TSO4, "tso4"),
        (Offloads::TSO6, "tso6"),
        (Offloads::TSO_ECN, "tso-ecn"),
        (Offloads::USO, "uso"),
        (Offloads::VLAN, "vlan"),
    ];

    /// The ability that a port needs to take a super-packet whole.
    pub const fn for_gso(gso: Gso) -> Offloads {
        let kind = match gso.kind {
            GsoKind::Tcp4 => Offloads::TSO4,
            GsoKind::Tcp6 => Offloads::TSO6,
            GsoKind::Udp => Offloads::USO,
        };
        if gso.ecn { kind.with(Offloads::TSO_ECN) } else { kind }
    }

    /// Both sets together.
    #[must_use]
    pub const fn with(self, other: Offloads) -> Offloads {
        Offloads(self.0 | other.0)
    }

    /// This set without the members of `other`.
    #[must_use]
    pub const fn without(self, other: Offloads) -> Offloads {
        Offloads(self.0 & !other.0)
    }

    /// The members of both sets.
    #[must_use]
    pub const fn and(self, other: Offloads) -> Offloads {
        Offloads(self.0 & other.0)
    }

    /// The set as a number, for an atomic.
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// The set of a number that [`bits`](Offloads::bits) returned; bits without a name are dropped.
    pub const fn from_bits(bits: u16) -> Offloads {
        Offloads(bits & Offloads::ALL.0)
    }

    /// Whether every member of `other` is in this set.
    pub const fn has(self, other: Offloads) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether the set is empty.
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// The names of the members, in a fixed order.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Offloads::NAMES.into_iter().filter(move |(bit, _)| self.has(*bit)).map(|(_, name)| name)
    }
}

impl std::fmt::Debug for Offloads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl std::fmt::Display for Offloads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_none() {
            return f.write_str("none");
        }
        for (i, name) in self.names().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            f.write_str(name)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_prints_its_members_by_name() {
        assert_eq!(Offloads::CSUM.with(Offloads::USO).to_string(), "csum,uso");
        assert_eq!(Offloads::NONE.to_string(), "none");
    }

    #[test]
    fn a_set_survives_as_bits_without_bits_that_have_no_name() {
        assert_eq!(Offloads::from_bits(Offloads::USO.bits()), Offloads::USO);
        assert_eq!(Offloads::from_bits(u16::MAX), Offloads::ALL);
    }

    #[test]
    fn a_congestion_marked_super_packet_needs_the_ecn_ability_too() {
        let gso = Gso { kind: GsoKind::Tcp4, ecn: true, size: 1448, segs: 2, hdr_len: 66 };
        assert!(!Offloads::TSO4.has(Offloads::for_gso(gso)));
        assert!(Offloads::TSO4.with(Offloads::TSO_ECN).has(Offloads::for_gso(gso)));
    }
}
