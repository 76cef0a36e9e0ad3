//! An expression as data.

use super::program::{Binary, Compare};
use std::net::Ipv6Addr;
use towpath_wire::ethernet::Mac;

/// A condition on packets.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Expr {
    And(Box<Expr>, Box<Expr>),
    Or(Box<Expr>, Box<Expr>),
    Not(Box<Expr>),
    /// A condition, and the bytes of the text that it is from.
    Is(Primitive, [usize; 2]),
}

/// A condition that is not made of others.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Primitive {
    /// `tcp`: the packet is of this protocol.
    Proto(Proto),
    /// `host` and `net`, with a mask.
    V4 {
        proto: Option<Proto>,
        dir: Dir,
        address: u32,
        mask: u32,
    },
    V6 {
        dir: Dir,
        address: Ipv6Addr,
        mask: u128,
    },
    Mac {
        dir: Dir,
        mac: Mac,
    },
    /// `port` and `portrange`, over one transport or any.
    Port {
        transport: Option<u8>,
        dir: Dir,
        first: u16,
        last: u16,
    },
    /// `ip proto N`, `ip6 proto N`; without a version both.
    IpProto {
        version: Option<Proto>,
        number: u32,
    },
    /// `ether proto N`.
    EtherProto(u32),
    /// `vlan`, `vlan N`.
    Vlan(Option<u16>),
    Broadcast,
    Multicast(Proto),
    /// `less N`, `greater N`: at most, at least so many bytes.
    Length {
        at_least: bool,
        bytes: u32,
    },
    Relation {
        a: Arith,
        compare: Compare,
        negated: bool,
        b: Arith,
    },
}

/// The direction of an address or port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dir {
    Src,
    Dst,
    Either,
    Both,
}

/// A computed number.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Arith {
    Number(u32),
    Len,
    /// Bytes of a header.
    Load {
        proto: Proto,
        index: Box<Arith>,
        size: u8,
    },
    Negate(Box<Arith>),
    Binary(Binary, Box<Arith>, Box<Arith>),
}

/// A protocol with a word of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Proto {
    Ether,
    Ip,
    Ip6,
    Arp,
    Rarp,
    /// Another type or SAP of the link layer.
    Link(u16),
    Tcp,
    Udp,
    Sctp,
    Icmp,
    Icmp6,
    /// Protocols over IPv4.
    OverIp4(u8),
    /// Protocols over both.
    OverIp(u8),
}

impl Proto {
    pub(super) fn named(word: &str) -> Option<Proto> {
        PROTOS.iter().find(|(known, _)| *known == word).map(|(_, proto)| *proto)
    }

    pub(super) fn word(self) -> &'static str {
        PROTOS.iter().find(|(_, known)| *known == self).map_or("", |(word, _)| word)
    }
}

/// Words of protocols. <https://www.tcpdump.org/manpages/pcap-filter.7.html>
pub(super) const PROTOS: [(&str, Proto); 29] = [
    ("ether", Proto::Ether),
    ("link", Proto::Ether),
    ("ip", Proto::Ip),
    ("ip6", Proto::Ip6),
    ("arp", Proto::Arp),
    ("rarp", Proto::Rarp),
    ("tcp", Proto::Tcp),
    ("udp", Proto::Udp),
    ("sctp", Proto::Sctp),
    ("icmp", Proto::Icmp),
    ("icmp6", Proto::Icmp6),
    ("igmp", Proto::OverIp4(2)),
    ("igrp", Proto::OverIp4(9)),
    ("vrrp", Proto::OverIp4(112)),
    ("carp", Proto::OverIp4(112)),
    ("pim", Proto::OverIp(103)),
    ("ah", Proto::OverIp(51)),
    ("esp", Proto::OverIp(50)),
    ("atalk", Proto::Link(0x809b)),
    ("aarp", Proto::Link(0x80f3)),
    ("decnet", Proto::Link(0x6003)),
    ("lat", Proto::Link(0x6004)),
    ("sca", Proto::Link(0x6007)),
    ("moprc", Proto::Link(0x6002)),
    ("mopdl", Proto::Link(0x6001)),
    ("stp", Proto::Link(0x42)),
    ("ipx", Proto::Link(0xe0)),
    ("netbeui", Proto::Link(0xf0)),
    ("iso", Proto::Link(0xfe)),
];
