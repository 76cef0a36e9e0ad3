//! What travels beside a packet: the state of its checksum, and how it is to be segmented.
//!
//! [`Offload`] says what a virtio-net header says (virtio 1.3, section 5.1.6) in types that cannot
//! contradict themselves, plus the two facts that header has no room for: whether IPv4
//! identifications count up, and tunnels other than over UDP. [`crate::virtio`] converts.

/// The state of a packet's transport checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// Nobody looked at it.
    #[default]
    Unverified,
    /// The outermost transport checksum that is present (a UDP checksum of 0 is absent) is right.
    Verified,
    /// The field holds the folded pseudo-header sum, not complemented, with the full transport
    /// length; whoever sends the packet sums from `start` to the end and stores the complement at
    /// `start + offset`.
    Partial {
        /// First byte under the checksum, counted from the start of the packet.
        start: u16,
        /// Where the field is, counted from `start`.
        offset: u16,
    },
}

/// What a super-packet consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GsoKind {
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP datagrams of equal length over IPv4 or IPv6 (`GSO_UDP_L4`, not fragmentation).
    Udp,
}

/// What carries the inner packet of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunnelKind {
    /// VXLAN (RFC 7348) or GENEVE (RFC 8926).
    Udp,
    /// GRE (RFC 2784), with key (RFC 2890).
    Gre,
    /// IP directly in IP: IPIP (RFC 2003), SIT (RFC 4213), IP6IP6 (RFC 2473).
    Ip,
}

/// The outer headers of a super-packet inside a tunnel. Offsets count from the start of the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// What carries the inner packet.
    pub kind: TunnelKind,
    /// The outer header is IPv6.
    pub outer_v6: bool,
    /// The outer UDP or GRE header carries a checksum, to be computed for each segment.
    pub checksum: bool,
    /// Offset of the outer UDP or GRE header; of the inner IP header where there is neither.
    pub outer_l4: u16,
    /// Offset of the inner IP header.
    pub inner_l3: u16,
}

/// How a super-packet is to be segmented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gso {
    /// The transport.
    pub kind: GsoKind,
    /// Payload bytes of every segment but the last, which may have fewer.
    pub size: u16,
    /// How many segments there are; 0 where the producer did not say.
    pub segs: u16,
    /// Bytes of all headers up to the payload. A hint: what it says is not relied on.
    pub header_len: u16,
    /// Only the first segment is to carry the CWR flag (RFC 3168); otherwise all carry the flags of
    /// the super-packet.
    pub ecn: bool,
    /// All segments carry the same (inner) IPv4 identification; otherwise it counts up.
    pub fixed_id: bool,
    /// As `fixed_id`, for the outer IPv4 header of a tunnel.
    pub outer_fixed_id: bool,
    /// The outer headers, if the super-packet is inside a tunnel.
    pub tunnel: Option<Tunnel>,
}

/// What travels beside a packet. The default is an ordinary packet nobody has verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// The state of its checksum.
    pub checksum: Checksum,
    /// How it is to be segmented; `None` for an ordinary packet.
    pub gso: Option<Gso>,
}
