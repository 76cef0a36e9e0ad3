//! Rules on real packets, and their text form.
//!
//! | module | what |
//! |---|---|
//! | `oracle` | a naive matcher over descriptions of packets |
//! | `sample` | those descriptions, written to bytes |
//! | `errors` | what the parser says of a wrong text |

mod errors;
mod oracle;
mod sample;

use super::*;
use proptest::prelude::*;
use sample::{Body, Memory, Sample};
use std::net::IpAddr;
use towpath_packet::Vlan;
use towpath_wire::LinkKind;

fn rules<const N: usize>(texts: [&str; N]) -> Rules {
    Rules::parse(texts).unwrap()
}

/// The verdict of rules on a linear frame.
fn verdict(rules: &Rules, sample: &Sample) -> Verdict {
    let mut memory = Memory::default();
    let packet = sample.packet(&mut memory, 2000);
    rules.classify(&packet, &dissect_packet(&packet, sample.link()))
}

fn udp4() -> Sample {
    Sample { src: "10.0.0.1".parse().unwrap(), dst: "10.0.0.2".parse().unwrap(), ..Sample::default() }
}

fn udp6() -> Sample {
    Sample { src: "2001:db8::1".parse().unwrap(), dst: "2001:db8::2".parse().unwrap(), ..Sample::default() }
}

#[test]
fn the_first_rule_that_matches_decides() {
    let rules = rules(["tx udp dport 53", "drop udp", "lane 3 src 10.0.0.0/8", "redirect b any"]);
    let at = |sample: Sample| verdict(&rules, &sample);
    assert_eq!(at(Sample { dst_port: 53, ..udp4() }), Verdict::Tx);
    assert_eq!(at(Sample { dst_port: 54, ..udp4() }), Verdict::Drop);
    assert_eq!(at(Sample { protocol: 6, ..udp4() }), Verdict::Lane(3));
    assert_eq!(at(Sample { protocol: 6, ..udp6() }), Verdict::Port(PortSide::B));
}

#[test]
fn without_a_rule_that_matches_packets_pass_unless_the_default_says_otherwise() {
    assert_eq!(verdict(&rules([]), &udp4()), Verdict::Pass);
    assert_eq!(verdict(&rules(["drop tcp"]), &udp4()), Verdict::Pass);
    assert_eq!(verdict(&rules(["pass tcp", "default drop"]), &udp4()), Verdict::Drop);
    assert_eq!(verdict(&rules(["default lane 2", "pass tcp"]), &udp4()), Verdict::Lane(2));
}

#[test]
fn without_rules_the_verdict_is_constant_and_with_one_it_is_not() {
    assert_eq!(Classifier::constant(&rules([])), Some(Verdict::Pass));
    assert_eq!(Classifier::constant(&rules(["default drop"])), Some(Verdict::Drop));
    assert_eq!(Classifier::constant(&rules(["drop any"])), None);
}

#[test]
fn a_v4_rule_leaves_ipv6_and_what_is_not_ip_alone() {
    let all_v4 = rules(["drop src 0.0.0.0/0"]);
    assert_eq!(verdict(&all_v4, &udp4()), Verdict::Drop);
    let mapped = Sample { src: "::ffff:10.0.0.1".parse().unwrap(), ..udp6() };
    assert_eq!(verdict(&all_v4, &mapped), Verdict::Pass, "an IPv6 packet from a mapped address is not IPv4");
    assert_eq!(verdict(&rules(["drop src 10.0.0.0/8"]), &mapped), Verdict::Pass);
    let arp = Sample { body: Body::Other(0x0806), ..udp4() };
    assert_eq!(verdict(&all_v4, &arp), Verdict::Pass);
    assert_eq!(verdict(&rules(["drop src ::/0"]), &arp), Verdict::Pass);
    assert_eq!(verdict(&rules(["drop src ::/0"]), &udp4()), Verdict::Pass);
    assert_eq!(verdict(&rules(["drop src ::/0"]), &udp6()), Verdict::Drop);
    assert_eq!(verdict(&rules(["drop proto 0"]), &arp), Verdict::Pass);
    assert_eq!(verdict(&rules(["drop arp"]), &arp), Verdict::Drop);
}

#[test]
fn port_0_is_a_port_and_not_an_absent_one() {
    let rules = rules(["drop sport 0"]);
    assert_eq!(verdict(&rules, &Sample { src_port: 0, ..udp4() }), Verdict::Drop);
    assert_eq!(verdict(&rules, &Sample { src_port: 0, protocol: 1, ..udp4() }), Verdict::Pass, "ICMP has no ports");
}

#[test]
fn the_ends_of_a_range_belong_to_it() {
    let rules = rules(["drop sport 1024-2047"]);
    let at = |src_port| verdict(&rules, &Sample { src_port, ..udp4() });
    assert_eq!([1023, 1024, 2047, 2048].map(at), [Verdict::Pass, Verdict::Drop, Verdict::Drop, Verdict::Pass]);
}

#[test]
fn a_port_matches_no_fragment_and_frag_matches_each() {
    let (ports, parts) = (rules(["drop udp dport 53"]), rules(["drop udp frag"]));
    for base in [udp4(), udp6()] {
        let whole = Sample { dst_port: 53, ..base };
        let first = Sample { fragment: Some(0), ..whole };
        let later = Sample { fragment: Some(100), ..whole };
        assert_eq!([whole, first, later].map(|s| verdict(&ports, &s)), [Verdict::Drop, Verdict::Pass, Verdict::Pass]);
        assert_eq!([whole, first, later].map(|s| verdict(&parts, &s)), [Verdict::Pass, Verdict::Drop, Verdict::Drop]);
    }
}

#[test]
fn a_vlan_is_found_in_the_outer_tag_the_inner_tag_and_the_metadata() {
    let rules = rules(["drop vlan 100"]);
    let tagged = |tags: [Option<u16>; 2], beside: Option<u16>| {
        let beside = beside.map(|vid| Vlan { tci: vid | 0xe000, service: false });
        verdict(&rules, &Sample { tags, beside, ..udp4() })
    };
    assert_eq!(tagged([Some(100), None], None), Verdict::Drop);
    assert_eq!(tagged([Some(1), Some(100)], None), Verdict::Drop);
    assert_eq!(tagged([None, None], Some(100)), Verdict::Drop);
    assert_eq!(tagged([Some(1), Some(2)], Some(100)), Verdict::Drop);
    assert_eq!(tagged([Some(1), Some(2)], Some(3)), Verdict::Pass);
    assert_eq!(tagged([None, None], None), Verdict::Pass);
}

#[test]
fn vlan_0_is_a_priority_tag_and_not_an_absent_one() {
    let rules = rules(["drop vlan 0"]);
    assert_eq!(verdict(&rules, &udp4()), Verdict::Pass);
    assert_eq!(verdict(&rules, &Sample { tags: [Some(0), None], ..udp4() }), Verdict::Drop);
}

#[test]
fn no_span_of_identifiers_that_a_program_makes_matches_an_untagged_packet() {
    for span in [Span::from(u16::MAX), Span::new(0, u16::MAX).unwrap(), Span::new(4096, u16::MAX).unwrap()] {
        let mut rules = Rules::default();
        rules.push(Rule { verdict: Verdict::Drop, matches: Match { vlan: Some(span), ..Match::default() } });
        assert_eq!(verdict(&rules, &udp4()), Verdict::Pass, "{span}");
        let tagged = Sample { tags: [Some(4095), None], ..udp4() };
        let expected = if span.first() == 0 { Verdict::Drop } else { Verdict::Pass };
        assert_eq!(verdict(&rules, &tagged), expected, "{span}");
    }
}

#[test]
fn a_mac_of_zeros_is_an_address_and_a_bare_ip_packet_has_none() {
    let rules = rules(["drop smac 00:00:00:00:00:00"]);
    assert_eq!(verdict(&rules, &Sample { src_mac: [0; 6], ..udp4() }), Verdict::Drop);
    assert_eq!(verdict(&rules, &Sample { bare: true, ..udp4() }), Verdict::Pass);
    assert_eq!(verdict(&rules, &Sample { src_mac: [0, 0, 0, 0, 0, 1], ..udp4() }), Verdict::Pass);
}

#[test]
fn headers_are_found_whatever_the_pieces_they_lie_in() {
    let rules = rules(["drop udp smac 02:00:00:00:00:0a src 2001:db8::1 dport 53 vlan 7"]);
    let sample = Sample { src_mac: [2, 0, 0, 0, 0, 10], dst_port: 53, tags: [Some(7), None], ..udp6() };
    let mut memory = Memory::default();
    for piece in 1..100 {
        for packet in [sample.packet(&mut memory, piece), sample.packet_without_linear_part(&mut memory, piece)] {
            let found = dissect_packet(&packet, LinkKind::Ethernet);
            assert_eq!(rules.classify(&packet, &found), Verdict::Drop, "pieces of {piece}");
        }
    }
}

#[test]
fn the_hash_of_a_packet_in_pieces_is_that_of_the_packet_in_one() {
    let mut memory = Memory::default();
    for sample in [udp4(), udp6()] {
        let (whole, pieces) = (sample.packet(&mut memory, 2000), sample.packet_without_linear_part(&mut memory, 13));
        let hash = |packet| dissect_packet(packet, LinkKind::Ethernet).symmetric_hash(7);
        assert_eq!(hash(&whole), hash(&pieces));
    }
}

#[test]
fn the_complete_headers_of_a_truncated_frame_are_matched() {
    let rules = rules(["tx udp", "drop smac 02:00:00:00:00:01"]);
    let sample = udp4();
    let bytes = sample.bytes();
    let mut memory = Memory::default();
    let mut classify_batch = Vec::new();
    for len in 0..bytes.len() {
        let packet = memory.pieces(&bytes[..len], 2000, true);
        classify_batch.push(rules.classify(&packet, &dissect_packet(&packet, LinkKind::Ethernet)));
    }
    assert!(classify_batch[..14].iter().all(|v| *v == Verdict::Pass));
    assert!(classify_batch[14..34].iter().all(|v| *v == Verdict::Drop));
    assert!(classify_batch[34..].iter().all(|v| *v == Verdict::Tx));
}

#[test]
fn a_batch_is_classified_packet_by_packet_by_rules_and_closures_alike() {
    let mut memory = Memory::default();
    let samples = [udp4(), Sample { protocol: 6, ..udp4() }, udp6()];
    let batch: Vec<Packet> = samples.iter().map(|s| s.packet(&mut memory, 2000)).collect();
    let expected = [Verdict::Drop, Verdict::Pass, Verdict::Lane(1)];

    let mut out = [Verdict::Tx; 4];
    let mut rules = rules(["drop udp ip", "lane 1 ip6"]);
    classify_batch(&mut rules, &batch, LinkKind::Ethernet, &mut out);
    assert_eq!(out[..3], expected);
    assert_eq!(out[3], Verdict::Tx, "behind the batch nothing is written");

    let mut count = 0;
    let mut closure = |packet: &Packet, found: &Dissected| {
        assert!(packet.len() > 40);
        count += 1;
        match found.flow.protocol {
            17 if found.is_ipv4() => Verdict::Drop,
            _ if found.is_ipv6() => Verdict::Lane(1),
            _ => Verdict::Pass,
        }
    };
    let mut out = [Verdict::Tx; 3];
    let classify: &mut dyn Classifier = &mut closure;
    classify_batch(classify, &batch, LinkKind::Ethernet, &mut out);
    assert_eq!(out, expected);
    assert_eq!(count, 3);

    let mut out = [Verdict::Tx; 2];
    classify_batch(&mut Rules::parse(["default drop"]).unwrap(), &batch, LinkKind::Ethernet, &mut out);
    assert_eq!(out, [Verdict::Drop; 2], "a batch longer than the room for classify_batch");
}

#[test]
fn rules_print_as_they_are_typed() {
    let text = "drop udp dport 53\ntx icmp\nredirect b src 10.0.0.0/8 vlan 100\n\
                lane 1 tcp dst 2001:db8::/32 sport 1024-2047\ndrop smac 02:00:00:00:00:01\ndrop ether 0x88cc\npass proto 47 frag\n\
                redirect a arp\npass any\ndefault drop";
    assert_eq!(Rules::parse(text.lines()).unwrap().to_string(), text);
}

#[test]
fn other_ways_to_write_the_same_are_the_same() {
    let same = |a: &str, b: &str| assert_eq!(a.parse::<Rule>().unwrap(), b.parse::<Rule>().unwrap(), "{a}, {b}");
    same("drop proto 6", "drop tcp");
    same("drop ether 0x0800", "drop ip");
    same("drop src 10.0.0.1/32", "drop src 10.0.0.1");
    same("  drop\tudp  ", "drop udp");
    same("redirect A any", "redirect a any");
    same("drop smac 02:AB:cd:00:00:01", "drop smac 02:ab:CD:00:00:01");
    same("drop dport 53-53", "drop dport 53");
    same("drop dport 53 udp", "drop udp dport 53");
}

#[test]
fn a_match_covers_what_requires_at_least_as_much() {
    let of = |text: &str| format!("pass {text}").parse::<Rule>().unwrap().matches;
    let covered = [
        ("any", "arp"),
        ("any", "any"),
        ("udp dport 1000-2000", "udp dport 1000-2000"),
        ("udp dport 1000-2000", "udp dport 1000 sport 1"),
        ("ip", "src 10.0.0.1"),
        ("ip6", "udp dst 2001:db8::/64"),
        ("src 10.0.0.0/8", "src 10.9.0.0/16 tcp"),
        ("vlan 10-20", "vlan 15"),
        ("smac 02:00:00:00:00:01", "smac 02:00:00:00:00:01 arp"),
        ("frag", "frag udp"),
    ];
    for (wide, narrow) in covered {
        assert!(of(wide).covers(&of(narrow)), "{wide} covers {narrow}");
        assert!(wide == narrow || !of(narrow).covers(&of(wide)), "{narrow} covers {wide}");
    }
    let apart = [("udp", "dport 53"), ("ip", "udp"), ("src 10.0.0.0/8", "src 10.0.0.0/7"), ("ip6", "src 10.0.0.1")];
    for (one, other) in apart {
        assert!(!of(one).covers(&of(other)), "{one} covers {other}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

    #[test]
    fn every_packet_of_a_covered_match_matches_the_one_that_covers_it(
        (wide, narrow) in (oracle::rule(), oracle::rule()),
        keep in 0u16..1 << 10,
        packets in prop::collection::vec(sample::sample(), 1..20),
    ) {
        // The narrow one requires some parts of the wide one, which makes covering likely.
        let mut narrow = narrow.matches;
        let (wide, bit) = (wide.matches, |at: u32| keep & (1 << at) != 0);
        if bit(0) { narrow.ethertype = wide.ethertype; }
        if bit(1) { narrow.protocol = wide.protocol; }
        if bit(2) { narrow.src = wide.src.or(narrow.src); }
        if bit(3) { narrow.dst = wide.dst.or(narrow.dst); }
        if bit(4) { narrow.src_port = wide.src_port.or(narrow.src_port); }
        if bit(5) { narrow.dst_port = wide.dst_port.or(narrow.dst_port); }
        if bit(6) { narrow.vlan = wide.vlan.or(narrow.vlan); }
        if bit(7) { narrow.src_mac = wide.src_mac; }
        if bit(8) { narrow.dst_mac = wide.dst_mac; }
        if bit(9) { narrow.fragment |= wide.fragment; }
        let covered = wide.covers(&narrow);
        for packet in packets {
            let only_narrow = oracle::matches(&narrow, &packet) && !oracle::matches(&wide, &packet);
            prop_assert!(!covered || !only_narrow, "{wide}, {narrow}");
        }
    }

    #[test]
    fn compiled_rules_agree_with_a_slow_matcher_that_never_sees_bytes(
        list in prop::collection::vec(oracle::rule(), 0..6),
        sample in sample::sample(),
        piece in prop_oneof![1usize..150, Just(2000)],
        linear: bool,
    ) {
        let mut rules = Rules::default();
        list.iter().for_each(|rule| rules.push(*rule));
        rules.set_default(Verdict::Lane(9));
        let mut memory = Memory::default();
        let packet = if linear { sample.packet(&mut memory, piece) } else { sample.packet_without_linear_part(&mut memory, piece) };
        let found = dissect_packet(&packet, sample.link());
        let expected = list.iter().position(|rule| oracle::matches(&rule.matches, &sample));
        prop_assert_eq!(rules.first_match(&packet, &found), expected);
        prop_assert_eq!(rules.classify(&packet, &found), expected.map_or(Verdict::Lane(9), |n| list[n].verdict));
    }

    #[test]
    fn a_rule_that_is_printed_and_parsed_is_the_same_rule(rule in oracle::rule()) {
        match rule.to_string().parse::<Rule>() {
            Ok(parsed) => prop_assert_eq!(parsed, rule),
            // A program may build a rule that never matches; the parser rejects it.
            Err(error) => prop_assert!(error.problem.contains("never matches") || error.problem.contains("mixes"), "{}", error),
        }
    }

    #[test]
    fn a_prefix_covers_what_shares_its_bits(a: u32, b: u32, c: u128, d: u128, len in 0u8..=128) {
        let common = |x: String, y: String| x.chars().zip(y.chars()).take(usize::from(len)).all(|(x, y)| x == y);
        if len <= 32 {
            let (x, y) = (IpAddr::V4(a.into()), IpAddr::V4((a ^ b.checked_shr(u32::from(len) / 2).unwrap_or(0)).into()));
            let (IpAddr::V4(p), IpAddr::V4(q)) = (x, y) else { unreachable!() };
            let same = common(format!("{:032b}", p.to_bits()), format!("{:032b}", q.to_bits()));
            prop_assert_eq!(Prefix::covering(x, len) == Prefix::covering(y, len), same);
        }
        let (x, y) = (IpAddr::V6(c.into()), IpAddr::V6((c ^ d.checked_shr(u32::from(len) / 2).unwrap_or(0)).into()));
        let (IpAddr::V6(p), IpAddr::V6(q)) = (x, y) else { unreachable!() };
        let same = common(format!("{:0128b}", p.to_bits()), format!("{:0128b}", q.to_bits()));
        prop_assert_eq!(Prefix::covering(x, len) == Prefix::covering(y, len), same);
    }
}

#[test]
fn the_comparison_with_the_slow_matcher_sees_every_kind_of_match_succeed_and_fail() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut hits = std::collections::BTreeMap::<&str, [u32; 2]>::new();
    for _ in 0..20_000 {
        let rule = oracle::rule().new_tree(&mut runner).unwrap().current();
        let sample = sample::sample().new_tree(&mut runner).unwrap().current();
        for (name, single) in oracle::parts(&rule.matches) {
            hits.entry(name).or_default()[usize::from(oracle::matches(&single, &sample))] += 1;
        }
        hits.entry("all").or_default()[usize::from(oracle::matches(&rule.matches, &sample))] += 1;
    }
    assert_eq!(hits.len(), 11);
    assert!(hits.values().flatten().all(|n| *n > 100), "{hits:?}");
}
