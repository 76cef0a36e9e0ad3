//! A naive matcher: works on the description of a packet, one field at a time, with addresses as
//! text of their bits.

use super::sample::{self, Body, Sample};
use super::{Match, PortSide, Prefix, Rule, Span, Verdict};
use proptest::prelude::*;
use std::net::IpAddr;

fn in_prefix(prefix: &Prefix, address: IpAddr) -> bool {
    let bits = |address: IpAddr| match address {
        IpAddr::V4(v4) => format!("4:{:032b}", u32::from(v4)),
        IpAddr::V6(v6) => format!("6:{:0128b}", u128::from(v6)),
    };
    let significant = 2 + usize::from(prefix.len());
    bits(address).starts_with(&bits(prefix.address())[..significant])
}

fn within(span: Span, number: u16) -> bool {
    (span.first()..=span.last()).contains(&number)
}

/// Whether a rule matches the packet.
pub(super) fn matches(rule: &Match, packet: &Sample) -> bool {
    let ip = packet.body == Body::Ip;
    let ports = ip && packet.fragment.is_none() && [6, 17, 132].contains(&packet.protocol);
    let mut vids: Vec<u16> = packet.tags.iter().flatten().copied().collect();
    vids.extend(packet.beside.map(|tag| tag.tci % 4096));
    let mut wrong = Vec::new();
    if let Some(ethertype) = rule.ethertype {
        wrong.push(ethertype != packet.ethertype());
    }
    if let Some(protocol) = rule.protocol {
        wrong.push(!ip || protocol != packet.protocol);
    }
    if let Some(prefix) = &rule.src {
        wrong.push(!ip || !in_prefix(prefix, packet.src));
    }
    if let Some(prefix) = &rule.dst {
        wrong.push(!ip || !in_prefix(prefix, packet.dst));
    }
    if let Some(span) = rule.src_port {
        wrong.push(!ports || !within(span, packet.src_port));
    }
    if let Some(span) = rule.dst_port {
        wrong.push(!ports || !within(span, packet.dst_port));
    }
    if let Some(span) = rule.vlan {
        wrong.push(!vids.iter().any(|vid| within(span, *vid)));
    }
    if let Some(mac) = rule.src_mac {
        wrong.push(packet.bare || mac != packet.src_mac);
    }
    if let Some(mac) = rule.dst_mac {
        wrong.push(packet.bare || mac != packet.dst_mac);
    }
    if rule.fragment {
        wrong.push(!ip || packet.fragment.is_none());
    }
    !wrong.contains(&true)
}

/// The single matches of a rule.
pub(super) fn parts(rule: &Match) -> Vec<(&'static str, Match)> {
    let none = Match::default();
    let mut parts = vec![
        ("ethertype", Match { ethertype: rule.ethertype, ..none }),
        ("protocol", Match { protocol: rule.protocol, ..none }),
        ("src", Match { src: rule.src, ..none }),
        ("dst", Match { dst: rule.dst, ..none }),
        ("sport", Match { src_port: rule.src_port, ..none }),
        ("dport", Match { dst_port: rule.dst_port, ..none }),
        ("vlan", Match { vlan: rule.vlan, ..none }),
        ("smac", Match { src_mac: rule.src_mac, ..none }),
        ("dmac", Match { dst_mac: rule.dst_mac, ..none }),
        ("frag", Match { fragment: rule.fragment, ..none }),
    ];
    parts.retain(|(_, part)| *part != none);
    parts
}

fn verdict() -> impl Strategy<Value = Verdict> {
    prop_oneof![
        Just(Verdict::Pass),
        Just(Verdict::Drop),
        Just(Verdict::Tx),
        Just(Verdict::Port(PortSide::A)),
        Just(Verdict::Port(PortSide::B)),
        any::<u16>().prop_map(Verdict::Lane),
    ]
}

fn prefix() -> impl Strategy<Value = Prefix> {
    any::<bool>().prop_flat_map(|v4| {
        (sample::address(v4), 0..=if v4 { 32u8 } else { 128 }).prop_map(|(a, len)| Prefix::covering(a, len).unwrap())
    })
}

fn span(number: impl Strategy<Value = u16> + Clone) -> impl Strategy<Value = Span> {
    (number.clone(), number).prop_map(|(a, b)| Span::new(a.min(b), a.max(b)).unwrap())
}

/// Rules with few matches, so that they match often, in any combination.
pub(super) fn rule() -> impl Strategy<Value = Rule> {
    let few = 0.2;
    let ethertype = prop_oneof![Just(0x0800u16), Just(0x86dd), sample::ethertype()];
    let link = (
        prop::option::weighted(few, ethertype),
        prop::option::weighted(few, span(sample::vid())),
        prop::option::weighted(few, sample::mac()),
        prop::option::weighted(few, sample::mac()),
    );
    let network =
        (prop::option::weighted(few, prefix()), prop::option::weighted(few, prefix()), prop::bool::weighted(few));
    let transport = (
        prop::option::weighted(few, sample::protocol()),
        prop::option::weighted(few, span(sample::port())),
        prop::option::weighted(few, span(sample::port())),
    );
    (verdict(), link, network, transport).prop_map(
        |(verdict, (ethertype, vlan, src_mac, dst_mac), (src, dst, fragment), (protocol, src_port, dst_port))| {
            let matches = Match { ethertype, protocol, src, dst, src_port, dst_port, vlan, src_mac, dst_mac, fragment };
            Rule { verdict, matches }
        },
    )
}
