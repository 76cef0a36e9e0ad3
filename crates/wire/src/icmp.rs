//! ICMP for IPv4 ([RFC 792](https://www.rfc-editor.org/rfc/rfc792)) and for IPv6
//! ([RFC 4443](https://www.rfc-editor.org/rfc/rfc4443)): the same shape, other types.
//!
//! The checksum of ICMPv6 covers a pseudo-header, the one of ICMP does not.

use crate::Error;

/// Types of ICMP for IPv4.
pub mod v4 {
    /// Echo reply.
    pub const ECHO_REPLY: u8 = 0;
    /// Destination unreachable.
    pub const UNREACHABLE: u8 = 3;
    /// Code of [`UNREACHABLE`]: fragmentation is needed and not permitted
    /// ([RFC 1191](https://www.rfc-editor.org/rfc/rfc1191)).
    pub const FRAGMENTATION_NEEDED: u8 = 4;
    /// Redirect.
    pub const REDIRECT: u8 = 5;
    /// Echo request.
    pub const ECHO_REQUEST: u8 = 8;
    /// Time exceeded.
    pub const TIME_EXCEEDED: u8 = 11;
    /// Parameter problem.
    pub const PARAMETER_PROBLEM: u8 = 12;
}

/// Types of ICMP for IPv6.
pub mod v6 {
    /// Destination unreachable.
    pub const UNREACHABLE: u8 = 1;
    /// Packet too big.
    pub const TOO_BIG: u8 = 2;
    /// Time exceeded.
    pub const TIME_EXCEEDED: u8 = 3;
    /// Parameter problem.
    pub const PARAMETER_PROBLEM: u8 = 4;
    /// Echo request.
    pub const ECHO_REQUEST: u8 = 128;
    /// Echo reply.
    pub const ECHO_REPLY: u8 = 129;
    /// Router solicitation ([RFC 4861](https://www.rfc-editor.org/rfc/rfc4861)).
    pub const ROUTER_SOLICITATION: u8 = 133;
    /// Router advertisement.
    pub const ROUTER_ADVERTISEMENT: u8 = 134;
    /// Neighbour solicitation.
    pub const NEIGHBOUR_SOLICITATION: u8 = 135;
    /// Neighbour advertisement.
    pub const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
}

header! {
    Icmp: 8 bytes;
    /// Type: [`v4`] or [`v6`].
    0 TYPE: u8, kind, set_kind;
    /// Code, refines the type.
    1 CODE: u8, code, set_code;
    /// Checksum.
    2 CHECKSUM: u16, checksum, set_checksum;
    /// Of an echo: identifier.
    4 ID: u16, id, set_id;
    /// Of an echo: sequence number. Of [`v4::FRAGMENTATION_NEEDED`]: the MTU.
    6 SEQ: u16, seq, set_seq;
    /// The four bytes whose meaning depends on the type. Of [`v6::TOO_BIG`]: the MTU.
    4 REST: u32, rest, set_rest;
}

plain_view! {
    /// An ICMP message.
    Icmp;
    /// Reads the message in `bytes`, the payload of an IP packet.
    parse;
    /// Echo data; or, in an error message, the beginning of the packet it is about.
    payload;
}
