//! The set of offloads of a device.

use std::fmt;
use towpath_gro::{Checksum, GsoKind, Offload, TunnelKind};

/// A set of offloads of a TUN/TAP device. The bits are those of `TUNSETOFFLOAD` (`TUN_F_*` in
/// `include/uapi/linux/if_tun.h`).
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct TunOffloads(u32);

impl TunOffloads {
    /// None: complete checksums, one packet per call.
    pub const NONE: TunOffloads = TunOffloads(0);
    /// Partial checksums.
    pub const CSUM: TunOffloads = TunOffloads(1);
    /// Super-packets of TCP over IPv4.
    pub const TSO4: TunOffloads = TunOffloads(2);
    /// Super-packets of TCP over IPv6.
    pub const TSO6: TunOffloads = TunOffloads(4);
    /// Super-packets of TCP with CWR in the first segment only.
    pub const TSO_ECN: TunOffloads = TunOffloads(8);
    /// Super-packets of UDP over IPv4 and IPv6, which the kernel has only together (since Linux
    /// 6.2).
    pub const USO: TunOffloads = TunOffloads(0x60);
    /// Super-packets in VXLAN and GENEVE (since Linux 6.17).
    pub const TUNNEL: TunOffloads = TunOffloads(0x80);
    /// The same with a checksum in the outer UDP header.
    pub const TUNNEL_CSUM: TunOffloads = TunOffloads(0x100);
    /// Super-packets of TCP of every kind.
    pub const TSO: TunOffloads = TunOffloads(2 | 4 | 8);
    /// Every offload with a name.
    pub const ALL: TunOffloads = TunOffloads(0x1ef);

    const NAMES: [(TunOffloads, &'static str); 7] = [
        (TunOffloads::CSUM, "csum"),
        (TunOffloads::TSO4, "tso4"),
        (TunOffloads::TSO6, "tso6"),
        (TunOffloads::TSO_ECN, "tso-ecn"),
        (TunOffloads::USO, "uso"),
        (TunOffloads::TUNNEL, "tunnel"),
        (TunOffloads::TUNNEL_CSUM, "tunnel-csum"),
    ];

    /// The offloads that a packet needs to be passed on as it is.
    #[inline]
    pub const fn needed(offload: &Offload) -> TunOffloads {
        let mut set = match offload.checksum {
            Checksum::Partial { .. } => TunOffloads::CSUM,
            Checksum::Unknown | Checksum::Verified => TunOffloads::NONE,
        };
        if let Some(gso) = offload.gso {
            set = set.with(match gso.kind {
                GsoKind::Tcp4 => TunOffloads::TSO4,
                GsoKind::Tcp6 => TunOffloads::TSO6,
                GsoKind::Udp => TunOffloads::USO,
            });
            if gso.ecn {
                set = set.with(TunOffloads::TSO_ECN);
            }
            set = match offload.tunnel {
                None => set,
                Some(tunnel) if tunnel.checksum => set.with(TunOffloads::TUNNEL).with(TunOffloads::TUNNEL_CSUM),
                Some(_) => set.with(TunOffloads::TUNNEL),
            };
        }
        set
    }

    /// Whether a header for tunnels describes the packet: it has fields for UDP tunnels only.
    pub(crate) const fn is_describable(offload: &Offload) -> bool {
        match offload.tunnel {
            None => true,
            Some(tunnel) => matches!(tunnel.kind, TunnelKind::Udp),
        }
    }

    /// Both sets together.
    #[must_use]
    pub const fn with(self, other: TunOffloads) -> TunOffloads {
        TunOffloads(self.0 | other.0)
    }

    /// This set without the members of `other`.
    #[must_use]
    pub const fn without(self, other: TunOffloads) -> TunOffloads {
        TunOffloads(self.0 & !other.0)
    }

    /// The members of both sets.
    #[must_use]
    pub const fn and(self, other: TunOffloads) -> TunOffloads {
        TunOffloads(self.0 & other.0)
    }

    /// Whether every member of `other` is in this set.
    #[must_use]
    pub const fn has(self, other: TunOffloads) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether the set is empty.
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// The argument of `TUNSETOFFLOAD`.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    pub(crate) const fn from_bits(bits: u32) -> TunOffloads {
        TunOffloads(bits & TunOffloads::ALL.0)
    }

    /// The set as the kernel takes it: without checksums nothing is segmented, and without TSO
    /// nothing in tunnels.
    #[must_use]
    pub const fn consistent(self) -> TunOffloads {
        if !self.has(TunOffloads::CSUM) {
            return TunOffloads::NONE;
        }
        let set = if self.has(TunOffloads::TUNNEL) { self } else { self.without(TunOffloads::TUNNEL_CSUM) };
        if set.and(TunOffloads::TSO4.with(TunOffloads::TSO6)).is_none() {
            return set.without(TunOffloads::TSO).without(TunOffloads::TUNNEL).without(TunOffloads::TUNNEL_CSUM);
        }
        set
    }

    /// The names of the members, in a fixed order.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        TunOffloads::NAMES.into_iter().filter(move |(one, _)| self.has(*one)).map(|(_, name)| name)
    }
}

impl fmt::Display for TunOffloads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_none() {
            return f.write_str("none");
        }
        for (i, name) in self.names().enumerate() {
            f.write_str(if i > 0 { "," } else { "" })?;
            f.write_str(name)?;
        }
        Ok(())
    }
}

impl fmt::Debug for TunOffloads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_gro::Gso;

    #[test]
    fn segmentation_without_checksums_is_not_requested() {
        assert_eq!(TunOffloads::TSO.with(TunOffloads::USO).consistent(), TunOffloads::NONE);
        assert_eq!(TunOffloads::CSUM.with(TunOffloads::USO).consistent().bits(), 0x61);
        assert_eq!(TunOffloads::CSUM.with(TunOffloads::TUNNEL).consistent(), TunOffloads::CSUM);
        assert_eq!(TunOffloads::ALL.consistent(), TunOffloads::ALL);
    }

    #[test]
    fn a_packet_needs_what_its_metadata_says() {
        assert_eq!(TunOffloads::needed(&Offload::default()), TunOffloads::NONE);
        let partial = Checksum::Partial { start: 20, offset: 16 };
        assert_eq!(TunOffloads::needed(&Offload::new(partial, None)), TunOffloads::CSUM);
        let gso = Gso { kind: GsoKind::Tcp6, ecn: true, size: 1000, segs: 0, hdr_len: 0 };
        let all = TunOffloads::needed(&Offload::new(partial, Some(gso)));
        assert_eq!(all.to_string(), "csum,tso6,tso-ecn");
    }
}
