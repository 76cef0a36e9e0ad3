//! The offload metadata of a packet: its checksum's state and its segmentation, in the terms of
//! Linux' `sk_buff`.
//!
//! Every crate uses these types. [`virtio_net`](crate::virtio_net) writes them as bytes.

/// The header that a packet begins with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LinkKind {
    /// An Ethernet header, perhaps followed by VLAN tags.
    #[default]
    Ethernet,
    /// An IPv4 or IPv6 header, as on a TUN device. Its version field says which.
    Ip,
}

/// The state of a packet's transport checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// The checksum is complete, as on a wire, and not verified (`CHECKSUM_NONE`).
    #[default]
    Unknown,
    /// The checksum is right (`CHECKSUM_UNNECESSARY`). In a tunnel this is the outermost transport
    /// checksum that is present; a UDP checksum of 0 is absent.
    Verified,
    /// The field holds the folded pseudo-header sum, not complemented, with the full transport
    /// length (`CHECKSUM_PARTIAL`). To complete it, sum from `start` to the end of the packet and
    /// store the complement at `start + offset`.
    Partial {
        /// First byte under the checksum, counted from the start of the packet.
        start: u16,
        /// Position of the checksum field, counted from `start`.
        offset: u8,
    },
}

/// Whether written packets carry their transport checksums, or leave them to the sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Checksums {
    /// All checksums are right.
    #[default]
    Complete,
    /// TCP, UDP and ICMPv6 fields hold the sum of the pseudo-header, for a sender that completes
    /// it: see [`Checksum::Partial`]. ICMP for IPv4 has none, and is always complete.
    Partial,
}

/// The transport of a super-packet. The values are those of `gso_type` in a virtio-net header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum GsoKind {
    /// TCP over IPv4 (`VIRTIO_NET_HDR_GSO_TCPV4`).
    Tcp4 = 1,
    /// TCP over IPv6 (`VIRTIO_NET_HDR_GSO_TCPV6`).
    Tcp6 = 4,
    /// UDP over IPv4 or IPv6, each segment a datagram of its own (`VIRTIO_NET_HDR_GSO_UDP_L4`; not
    /// fragmentation).
    Udp = 5,
}

/// How a super-packet is segmented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gso {
    /// Transport of the segments.
    pub kind: GsoKind,
    /// Only the first segment carries the CWR flag
    /// ([RFC 3168](https://www.rfc-editor.org/rfc/rfc3168), `VIRTIO_NET_HDR_GSO_ECN`). Otherwise
    /// every segment carries the flags of the super-packet.
    pub ecn: bool,
    /// Payload bytes of each segment but the last, which may have fewer. Never zero in a packet
    /// that a port emits.
    pub size: u16,
    /// Number of segments, or 0 if the producer did not count them.
    pub segs: u16,
    /// Bytes of all headers in front of the payload. A hint, which may be 0 or too large.
    pub hdr_len: u16,
}

/// The most datagrams in one UDP super-packet (`UDP_MAX_SEGMENTS` in `include/linux/udp.h`).
pub const MAX_UDP_SEGMENTS: usize = 128;
