//! The path of a datagram: its addresses, interface and traffic class.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;

/// The two ends of a datagram, as this host sees them (a path of
/// [RFC 9000](https://www.rfc-editor.org/rfc/rfc9000#section-9)), and its marks.
///
/// An IPv4 address is an IPv4 address also on an IPv6 socket: it is mapped, and mapped back, at the
/// system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Path {
    /// The other host: the source of a received datagram, the destination of a sent one.
    pub peer: SocketAddr,
    /// An address of this host. Sent: the source address; the kernel chooses one for `None`.
    /// Received: the source address of an answer; `None` if the socket does not report it.
    pub local: Option<IpAddr>,
    /// The index of an interface. Sent: the datagram leaves through it, whatever the routes say.
    pub interface: Option<NonZeroU32>,
    /// The traffic class. Sent: the socket's own (`IP_TOS`, `IPV6_TCLASS`) for `None`.
    pub class: Option<TrafficClass>,
}

impl Path {
    /// A path to `peer`. The kernel chooses the rest.
    pub const fn to(peer: SocketAddr) -> Path {
        Path { peer, local: None, interface: None, class: None }
    }

    /// With a source address.
    #[must_use]
    pub const fn from(self, local: IpAddr) -> Path {
        Path { local: Some(local), ..self }
    }

    /// Through an interface; 0 leaves it to the routes.
    #[must_use]
    pub const fn through(self, interface: u32) -> Path {
        Path { interface: NonZeroU32::new(interface), ..self }
    }

    /// With a traffic class.
    #[must_use]
    pub const fn marked(self, class: TrafficClass) -> Path {
        Path { class: Some(class), ..self }
    }

    /// The path of an answer to a received datagram: from the address that the datagram was sent
    /// to, through the interface of the routes, unmarked.
    #[must_use]
    pub const fn reply(&self) -> Path {
        Path { interface: None, class: None, ..*self }
    }
}

/// The byte of an IP header with the differentiated services field and ECN
/// ([RFC 2474](https://www.rfc-editor.org/rfc/rfc2474),
/// [RFC 3168](https://www.rfc-editor.org/rfc/rfc3168)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TrafficClass(pub u8);

impl TrafficClass {
    /// A class of a DSCP, of which six bits count, and an ECN codepoint.
    pub const fn new(dscp: u8, ecn: Ecn) -> TrafficClass {
        TrafficClass(dscp << 2 | ecn as u8)
    }

    /// The differentiated services codepoint, 0 to 63.
    pub const fn dscp(self) -> u8 {
        self.0 >> 2
    }

    /// The ECN codepoint.
    pub const fn ecn(self) -> Ecn {
        match self.0 & 3 {
            0 => Ecn::NotEct,
            1 => Ecn::Ect1,
            2 => Ecn::Ect0,
            _ => Ecn::Ce,
        }
    }
}

impl From<Ecn> for TrafficClass {
    fn from(ecn: Ecn) -> TrafficClass {
        TrafficClass::new(0, ecn)
    }
}

/// An ECN codepoint ([RFC 3168, section 5](https://www.rfc-editor.org/rfc/rfc3168#section-5)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Ecn {
    /// The transport takes no part in ECN.
    #[default]
    NotEct = 0,
    /// ECN-capable transport, codepoint 01.
    Ect1 = 1,
    /// ECN-capable transport, codepoint 10.
    Ect0 = 2,
    /// Congestion experienced.
    Ce = 3,
}
