//! The offload metadata of a packet, in and out of the engine.

use towpath_wire::offload::{Checksum, Gso};
use towpath_wire::virtio_net::{Malformed, Undescribable, VnetHeader};

/// What carries the inner packet of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunnelKind {
    /// VXLAN ([RFC 7348](https://www.rfc-editor.org/rfc/rfc7348)) or GENEVE
    /// ([RFC 8926](https://www.rfc-editor.org/rfc/rfc8926)).
    Udp,
    /// GRE ([RFC 2784](https://www.rfc-editor.org/rfc/rfc2784)), with key
    /// ([RFC 2890](https://www.rfc-editor.org/rfc/rfc2890)).
    Gre,
    /// IP directly in IP: IPIP ([RFC 2003](https://www.rfc-editor.org/rfc/rfc2003)), SIT
    /// ([RFC 4213](https://www.rfc-editor.org/rfc/rfc4213)), IP6IP6
    /// ([RFC 2473](https://www.rfc-editor.org/rfc/rfc2473)).
    Ip,
}

/// The outer headers of a super-packet inside a tunnel. Offsets count from the start of the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// What carries the inner packet.
    pub kind: TunnelKind,
    /// The outer header is IPv6.
    pub outer_v6: bool,
    /// The outer UDP or GRE header carries a checksum, which is computed for each segment.
    pub checksum: bool,
    /// Offset of the outer UDP or GRE header; of the inner IP header if there is neither.
    pub outer_l4: u16,
    /// Offset of the inner IP header.
    pub inner_l3: u16,
}

/// What travels beside a packet: the fields of a virtio-net header, and facts that this header has
/// no room for. The default is an ordinary packet with an unverified checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// The state of its checksum.
    pub checksum: Checksum,
    /// How it is segmented; `None` for an ordinary packet.
    pub gso: Option<Gso>,
    /// All segments carry the same (inner) IPv4 identification; otherwise it counts up.
    pub fixed_id: bool,
    /// As `fixed_id`, for the outer IPv4 header of a tunnel.
    pub outer_fixed_id: bool,
    /// The outer headers, if the super-packet is inside a tunnel.
    pub tunnel: Option<Tunnel>,
}

impl Offload {
    /// A packet outside of tunnels, IPv4 identifications counting up.
    #[inline]
    #[must_use]
    pub const fn new(checksum: Checksum, gso: Option<Gso>) -> Self {
        Self { checksum, gso, fixed_id: false, outer_fixed_id: false, tunnel: None }
    }

    /// The virtio-net header of a packet of `len` bytes.
    ///
    /// # Errors
    ///
    /// [`Undescribable`], for a super-packet in a tunnel among others: [`crate::Split`] it.
    pub fn to_virtio(&self, len: usize) -> Result<VnetHeader, Undescribable> {
        match self.tunnel {
            None => VnetHeader::new(self.checksum, self.gso, len),
            Some(_) => Err(Undescribable::Unsupported),
        }
    }

    /// The offload that a header describes, of a packet of `len` bytes.
    ///
    /// # Errors
    ///
    /// [`Malformed`] for what is unknown here (fragmentation of UDP, tunnels) or contradicts the
    /// length. [`crate::Split`] checks it against the bytes of the packet.
    pub fn from_virtio(header: &VnetHeader, len: usize) -> Result<Self, Malformed> {
        let (checksum, gso) = header.offload(len)?;
        Ok(Self::new(checksum, gso))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_wire::offload::GsoKind;

    #[test]
    fn what_is_written_is_read() {
        let gso = Gso { kind: GsoKind::Tcp6, size: 1428, segs: 0, hdr_len: 86, ecn: true };
        let checksum = Checksum::Partial { start: 54, offset: 16 };
        let datagrams = Gso { kind: GsoKind::Udp, ecn: false, hdr_len: 62, ..gso };
        for offload in [
            Offload::default(),
            Offload::new(Checksum::Verified, None),
            Offload::new(checksum, None),
            Offload::new(checksum, Some(gso)),
            Offload::new(Checksum::Partial { start: 54, offset: 6 }, Some(datagrams)),
        ] {
            let header = offload.to_virtio(9000);
            assert_eq!(header.map(|h| Offload::from_virtio(&h, 9000)), Ok(Ok(offload)));
        }
    }

    #[test]
    fn the_bytes_are_those_of_the_specification() {
        let gso = Gso { kind: GsoKind::Tcp4, size: 0x5a8, segs: 3, hdr_len: 66, ecn: false };
        let offload = Offload::new(Checksum::Partial { start: 34, offset: 16 }, Some(gso));
        assert_eq!(offload.to_virtio(4000).map(|h| h.to_le_bytes()), Ok([1, 1, 66, 0, 0xa8, 5, 34, 0, 16, 0]));
        let tunnel = Tunnel { kind: TunnelKind::Udp, outer_v6: false, checksum: false, outer_l4: 34, inner_l3: 64 };
        let offload = Offload { tunnel: Some(tunnel), ..offload };
        assert_eq!(offload.to_virtio(4000), Err(Undescribable::Unsupported));
    }

    #[test]
    fn what_is_not_known_is_refused() {
        for kind in [3, 0x21] {
            let header = VnetHeader { gso_type: kind, ..VnetHeader::default() };
            assert_eq!(Offload::from_virtio(&header, 100), Err(Malformed::GsoKind(kind)));
        }
    }
}
