//! Filters on packets, their errors, and their translation to rules. What they match, compared with
//! libpcap, is in `tests/filter`.

use super::*;
use crate::rules::{Match, PortSide, Rule, Verdict, dissect_packet};
use towpath_packet::{Backing, Cache, Direction, Packet, Pool, PoolConfig, Vlan};

fn cache() -> Cache {
    let config = PoolConfig::default().capacity(256).backing(Backing::Anonymous);
    Pool::new(config).unwrap().cache(Direction::Tx).unwrap()
}

/// UDP from 10.0.0.1 port 1000 to 10.0.0.2 port 53.
fn frame() -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    frame.extend([0x45, 0, 0, 32, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend([3, 0xe8, 0, 53, 0, 12, 0, 0, 1, 2, 3, 4]);
    frame
}

/// The frame with a tag in it.
fn tagged(tpid: u16, tci: u16) -> Vec<u8> {
    let mut frame = frame();
    let [a, b] = tpid.to_be_bytes();
    let [c, d] = tci.to_be_bytes();
    frame.splice(12..12, [a, b, c, d]);
    frame
}

fn filter(text: &str) -> Filter {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

fn refused(text: &str) -> FilterError {
    text.parse::<Filter>().expect_err(text)
}

const EXPRESSIONS: [&str; 9] = [
    "udp dst port 53",
    "udp[8:4] = 0x01020304",
    "host 10.0.0.1",
    "len = 46",
    "vlan",
    "vlan 100 and udp port 53",
    "ether[12:2] = 0x8100 and ether[16:2] = 0x0800",
    "ether[13:4] != 0",
    "len = 50 and ether[49] = 4",
];

#[test]
fn a_packet_in_pieces_gets_the_verdict_of_the_whole() {
    let mut cache = cache();
    for bytes in [frame(), tagged(0x8100, 100)] {
        for piece in 1..20 {
            for linear in [true, false] {
                let mut pieces = bytes.chunks(piece);
                let first = if linear { pieces.next().unwrap() } else { &[] };
                let mut packet = Packet::copy_from(&mut cache, first).unwrap();
                let appended = pieces.all(|piece| packet.append(Packet::copy_from(&mut cache, piece).unwrap()).is_ok());
                if !appended {
                    continue;
                }
                for text in EXPRESSIONS {
                    let filter = filter(text);
                    let whole = filter.matches_bytes(&bytes, LinkKind::Ethernet);
                    assert_eq!(filter.matches(&packet, LinkKind::Ethernet), whole, "'{text}' in pieces of {piece}");
                }
            }
        }
    }
}

#[test]
fn a_tag_in_the_metadata_is_read_as_if_it_were_in_the_frame() {
    let mut cache = cache();
    for (service, tpid) in [(false, 0x8100), (true, 0x88a8)] {
        let mut packet = Packet::copy_from(&mut cache, &frame()).unwrap();
        packet.set_vlan(Some(Vlan { tci: 0x2064, service }));
        let inside = tagged(tpid, 0x2064);
        for text in EXPRESSIONS {
            let filter = filter(text);
            let expected = filter.matches_bytes(&inside, LinkKind::Ethernet);
            assert_eq!(filter.matches(&packet, LinkKind::Ethernet), expected, "'{text}' with {tpid:#x}");
        }
        assert!(filter("vlan 100 and udp").matches(&packet, LinkKind::Ethernet));
        assert!(!filter("udp").matches(&packet, LinkKind::Ethernet));
    }
}

#[test]
fn a_read_beyond_the_packet_rejects_it_also_below_not() {
    let short = &frame()[..30];
    for text in ["udp port 53", "not udp port 53", "not udp[0] = 1 or ip"] {
        assert!(!filter(text).matches_bytes(short, LinkKind::Ethernet), "{text}");
    }
    assert!(filter("ip or not udp port 53").matches_bytes(short, LinkKind::Ethernet));
}

#[test]
fn bare_ip_packets_have_no_ethernet_header() {
    let frame = frame();
    assert!(filter("udp port 53 and src 10.0.0.1").matches_bytes(&frame[14..], LinkKind::Ip));
    for (text, column) in [("udp and vlan 1", 9), ("ether src 02:00:00:00:00:01", 1), ("ip or broadcast", 7)] {
        let filter = filter(text);
        let error = filter.check(LinkKind::Ip).unwrap_err();
        assert!(error.problem.contains("bare IP"), "{error}");
        // The address is the place of a condition about one.
        assert!(error.column >= column, "{error}");
        assert!(!filter.matches_bytes(&frame[14..], LinkKind::Ip));
        filter.check(LinkKind::Ethernet).unwrap();
    }
}

#[test]
fn an_error_names_the_place_what_is_expected_and_what_is_meant() {
    for (text, column, word, part) in [
        ("", 1, None, "ends too early"),
        ("tcp and", 8, None, "ends too early"),
        ("tcp prot 80", 5, Some("prot"), "is it port?"),
        ("upd port 53", 1, Some("upd"), "is it udp?"),
        ("port htpp", 6, Some("htpp"), "is it http?"),
        ("port 80-90", 6, Some("80-90"), "write portrange 80-90"),
        ("host example.org", 6, Some("example.org"), "names are not resolved"),
        ("mpls 3", 1, Some("mpls"), "MPLS"),
        ("tcp and pppoes", 9, Some("pppoes"), "PPPoE"),
        ("port 80, 443", 8, Some(","), "write port 80 or 443"),
        ("tcp and (udp", 9, Some("("), ") is missing"),
        ("tcp) and udp", 4, Some(")"), "closes no parenthesis"),
        ("udp and 53", 9, Some("53"), "without host, net, port"),
        ("net 10.0.0.1/8", 14, Some("8"), "the network is 10.0.0.0"),
        ("net 10.0.0.0/40", 14, Some("40"), "from 0 to 32"),
        ("tcp[13:3] = 1", 8, Some("3"), "1, 2 or 4"),
        ("tcp[13] 2", 9, Some("2"), "="),
        ("ip[0] / 0 = 1", 9, Some("0"), "divides by zero"),
        ("vlan 5000", 6, Some("5000"), "0 to 4095"),
        ("ip broadcast", 4, Some("broadcast"), "netmask"),
        ("host 1:2:3", 6, Some("1:2:3"), "neither"),
        ("tcp ä", 5, Some("ä"), "not a sign"),
        ("udp port http", 10, Some("http"), "port of tcp"),
        ("0xfffffffff = 1", 1, Some("0xfffffffff"), "32 bits"),
    ] {
        let error = refused(text);
        assert_eq!((error.column, error.word.as_deref()), (column, word), "{error}");
        assert!(error.problem.contains(part), "{error}");
        assert!(error.to_string().contains(&format!("column {column}")), "{error}");
    }
}

#[test]
fn nesting_and_length_are_bounded() {
    for open in ["(", "not ", "- "] {
        let deep = format!("{}1 = 1{}", open.repeat(500), if open == "(" { ")".repeat(500) } else { String::new() });
        assert!(refused(&deep).problem.contains("nested"), "{}", refused(&deep));
    }
    assert!(refused(&"tcp or ".repeat(1000)).problem.contains("4096 bytes"));
    let long = vec!["port 1"; 400].join(" or ");
    assert!(!filter(&long).matches_bytes(&frame(), LinkKind::Ethernet));
    let held = format!("{}1{} = 1", "1 + (".repeat(20), ")".repeat(20));
    assert!(refused(&held).problem.contains("at once"));
}

fn steered(text: &str) -> Vec<String> {
    let flows = steering_matches(text).unwrap_or_else(|error| panic!("{error}"));
    flows.iter().map(Match::to_string).collect()
}

#[test]
fn expressions_of_fields_become_the_rules_that_ports_steer_by() {
    for (text, flows) in [
        ("udp dport 53", &["udp dport 53"][..]),
        ("udp dst port 53", &["udp dport 53"]),
        ("tcp port 80", &["tcp sport 80", "tcp dport 80"]),
        ("dst port 80 or 443", &["dport 80", "dport 443"]),
        ("host 10.0.0.1", &["src 10.0.0.1", "dst 10.0.0.1"]),
        ("src net 10.0.0.0/8 and dst net 10.1.0.0/16", &["src 10.0.0.0/8 dst 10.1.0.0/16"]),
        ("src net 10 and src net 10.1", &["src 10.1.0.0/16"]),
        ("src and dst host 2001:db8::1", &["src 2001:db8::1 dst 2001:db8::1"]),
        ("udp dst portrange 1000-2000", &["udp dport 1000-2000"]),
        ("vlan 100 and ip6", &["ip6 vlan 100"]),
        ("ether src 02:00:00:00:00:01", &["smac 02:00:00:00:00:01"]),
        ("ether proto 0x88cc or arp", &["ether 0x88cc", "arp"]),
        ("(tcp or udp) and dst port domain", &["tcp dport 53", "udp dport 53"]),
        ("tcp and (udp or dst port 80)", &["tcp dport 80"]),
        ("frag", &["frag"]),
    ] {
        assert_eq!(steered(text), flows, "{text}");
    }
}

#[test]
fn what_no_field_expresses_is_refused_with_its_name_and_the_hint() {
    for (text, word) in [
        ("not udp", "udp"),
        ("udp and tcp[13] & 2 != 0", "tcp[13] & 2 != 0"),
        ("udp and greater 100", "greater 100"),
        ("multicast", "multicast"),
        ("net 10.0.0.1 mask 255.0.0.255", "10.0.0.1 mask 255.0.0.255"),
    ] {
        let error = steering_matches(text).unwrap_err();
        assert_eq!(error.word.as_deref(), Some(word), "{error}");
        assert!(error.problem.contains("--rule"), "{error}");
    }
    assert!(steering_matches("tcp and (udp)").unwrap_err().problem.contains("never matches"));
    let many = format!("port ({})", (1..99).map(|n| n.to_string()).collect::<Vec<_>>().join(" or "));
    assert!(steering_matches(&many).unwrap_err().problem.contains("64 flows"));
}

fn decide(rules: &FilterRules, bytes: &[u8]) -> Verdict {
    let packet = Packet::copy_from(&mut cache(), bytes).unwrap();
    let mut classifier = rules.classifier(LinkKind::Ethernet);
    classifier.classify(&packet, &dissect_packet(&packet, LinkKind::Ethernet))
}

#[test]
fn the_first_rule_or_expression_that_matches_decides_and_is_counted() {
    let texts = ["drop udp dport 54", "tx udp port 54 or 53 and not host 10.0.0.9", "drop udp", "default redirect b"];
    let rules = FilterRules::parse(texts).unwrap();
    assert_eq!(decide(&rules, &frame()), Verdict::Tx);
    assert_eq!(decide(&rules, &frame()), Verdict::Tx);
    assert_eq!(decide(&rules, &tagged(0x8100, 1)), Verdict::Drop, "a rule of fields looks behind tags");
    assert_eq!(decide(&rules, &frame()[..20]), Verdict::Port(PortSide::B));
    assert_eq!(rules.hits().total(), [0, 2, 1, 1]);
    assert_eq!(rules.hits().texts(), texts);
}

#[test]
fn a_text_that_rules_read_keeps_their_meaning_and_parentheses_make_it_an_expression() {
    let verdict = |text: &str| decide(&FilterRules::parse([text]).unwrap(), &tagged(0x8100, 7));
    assert_eq!(verdict("drop udp"), Verdict::Drop);
    assert_eq!(verdict("drop (udp)"), Verdict::Pass);
    assert_eq!(verdict("drop vlan and udp"), Verdict::Drop);
    assert_eq!(verdict("drop udp dport 53 vlan 7"), Verdict::Drop);
}

#[test]
fn a_list_of_rules_names_what_is_wrong_in_the_language_that_was_meant() {
    let problem = |text: &str| FilterRules::parse([text]).unwrap_err().to_string();
    assert!(problem("drop udp port").contains("a port"), "{}", problem("drop udp port"));
    assert!(problem("drop tcp and prot 80").contains("is it port?"));
    assert!(problem("drop udp smac 5").contains("six bytes"), "{}", problem("drop udp smac 5"));
    assert!(problem("lose udp").contains("must be pass, drop"));
    assert!(problem("drop").contains("what to match is missing"));
    assert!(problem("drop src 10.0.0.0/8 dst ::1").contains("mixes IPv4 and IPv6"));
    assert!(FilterRules::parse(["default drop", "default pass"]).is_err());
}

#[test]
fn rules_are_checked_for_lanes_links_and_what_they_send_back() {
    let rules = FilterRules::parse(["lane 2 tcp port 80 or 81", "tx icmp and greater 100", "default pass"]).unwrap();
    assert!(rules.check(LinkKind::Ethernet, 3).is_ok());
    let error = rules.check(LinkKind::Ethernet, 2).unwrap_err();
    assert_eq!(error.rule, "lane 2 tcp port 80 or 81");
    assert_eq!(rules.first_naming_lane().as_deref(), Some("lane 2 tcp port 80 or 81"));
    assert_eq!(rules.first_reflecting(PortSide::A).as_deref(), Some("tx icmp and greater 100"));
    let vlan = FilterRules::parse(["drop vlan and ip"]).unwrap();
    assert!(vlan.check(LinkKind::Ip, 0).unwrap_err().problem.contains("bare IP"));
    let smac = FilterRules::parse(["drop smac 02:00:00:00:00:01"]).unwrap();
    assert!(smac.check(LinkKind::Ip, 0).is_err());
}

#[test]
fn a_rule_prints_as_it_was_written_and_only_keeps_what_matches() {
    let rules = FilterRules::only(filter("udp port 53"));
    assert_eq!(decide(&rules, &frame()), Verdict::Pass);
    assert_eq!(decide(&rules, &tagged(0x8100, 7)), Verdict::Drop);
    assert_eq!(rules.hits().texts(), ["pass udp port 53", "default drop"]);
    assert_eq!(rules.hits().total(), [1, 1]);
    let rule: Rule = "drop udp dport 53".parse().unwrap();
    assert_eq!(rule.to_string(), "drop udp dport 53");
}
