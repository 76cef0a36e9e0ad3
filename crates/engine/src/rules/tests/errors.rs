//! Errors of the parser name the rule, the word, and the valid alternatives.

use super::*;

fn error<const N: usize>(texts: [&str; N]) -> String {
    Rules::parse(texts).unwrap_err().to_string()
}

const VERDICTS: &str = "pass, drop, tx, redirect a, redirect b or lane N";
const MATCHES: &str =
    "tcp, udp, sctp, icmp, icmp6, proto, src, dst, sport, dport, vlan, smac, dmac, ip, ip6, arp, ether, frag or any";

/// Pairs of a rule and the rest of its error text.
fn all_say(cases: &[(&str, &str)]) {
    for (rule, problem) in cases {
        assert_eq!(error([rule]), format!("rule '{rule}': {problem}"));
    }
}

#[test]
fn a_wrong_verdict_names_the_verdicts() {
    all_say(&[
        ("", &format!("ends too early: a rule begins with {VERDICTS}; or it is default and one of these")),
        ("accept udp", &format!("'accept' must be {VERDICTS}")),
        ("udp drop", &format!("'udp' must be {VERDICTS}")),
        ("redirect", "ends too early: redirect wants a or b"),
        ("redirect udp", "'udp' must be a or b, the ends of fwd A B (for a lane write lane N)"),
        ("lane", "ends too early: lane wants the number of a lane"),
        ("lane udp", "'udp' must be the number of a lane, from 0 to 65535"),
        ("lane 65536 udp", "'65536' must be the number of a lane, from 0 to 65535"),
    ]);
}

#[test]
fn a_wrong_default_says_how_it_is_written() {
    all_say(&[
        ("default", &format!("ends too early: default wants {VERDICTS}")),
        ("default deny", &format!("'deny' must be {VERDICTS}")),
        ("default drop any", "'any' is too much: default applies to all packets that no rule matches"),
    ]);
    assert_eq!(error(["default drop", "default pass"]), "rule 'default pass': 'default' is given twice");
    let one = "default drop".parse::<Rule>().unwrap_err().to_string();
    assert_eq!(one, "rule 'default drop': 'default' belongs to a list of rules, not to one");
}

#[test]
fn a_missing_or_unknown_match_names_the_matches() {
    all_say(&[
        ("drop", &format!("ends too early: what to match is missing: {MATCHES} (all packets)")),
        ("drop everything", &format!("'everything' must be {MATCHES}")),
        ("drop udp port 53", &format!("'port' must be {MATCHES}")),
        ("drop any udp", "'udp' is too much: any stands alone"),
        ("drop udp any", "'any' is too much: any stands alone"),
    ]);
}

#[test]
fn a_missing_value_names_its_form() {
    all_say(&[
        ("drop proto", "ends too early: proto wants a protocol number"),
        ("drop ether", "ends too early: ether wants a type such as 0x88cc"),
        ("drop src", "ends too early: src wants an address or a prefix such as 10.0.0.0/8 or 2001:db8::/32"),
        ("drop dst", "ends too early: dst wants an address or a prefix such as 10.0.0.0/8 or 2001:db8::/32"),
        ("drop sport", "ends too early: sport wants a port or a range such as 1024-2047"),
        ("drop dport", "ends too early: dport wants a port or a range such as 1024-2047"),
        ("drop vlan", "ends too early: vlan wants an identifier or a range such as 100-199"),
        ("drop smac", "ends too early: smac wants a MAC address"),
        ("drop dmac", "ends too early: dmac wants a MAC address"),
    ]);
}

#[test]
fn a_wrong_value_names_its_rule() {
    all_say(&[
        ("drop proto gre", "'gre' must be a protocol number from 0 to 255"),
        ("drop proto 256", "'256' must be a protocol number from 0 to 255"),
        ("drop proto +6", "'+6' must be a protocol number from 0 to 255"),
        ("lane +1 any", "'+1' must be the number of a lane, from 0 to 65535"),
        ("drop ether 2048", "'2048' must be an Ethernet type from 0x0600 to 0xffff"),
        ("drop ether 0x05ff", "'0x05ff' must be an Ethernet type from 0x0600 to 0xffff"),
        ("drop ether 0x+800", "'0x+800' must be an Ethernet type from 0x0600 to 0xffff"),
        ("drop ether 0x88a8", "'0x88a8' announces a VLAN tag: write vlan and its identifier"),
        ("drop src host", "'host' must be an address or a prefix such as 10.0.0.0/8 or 2001:db8::/32"),
        ("drop src 10.0.0.0/33", "'10.0.0.0/33' must have a prefix length from 0 to 32"),
        ("drop dst ::/129", "'::/129' must have a prefix length from 0 to 128"),
        ("drop dst ::/+8", "'::/+8' must have a prefix length from 0 to 128"),
        ("drop dst ::/", "'::/' must have a prefix length from 0 to 128"),
        ("drop src 10.1.2.3/8", "'10.1.2.3/8' has bits behind the prefix: write 10.0.0.0/8"),
        ("drop dst 2001:db8::1/32", "'2001:db8::1/32' has bits behind the prefix: write 2001:db8::/32"),
        ("drop sport http", "'http' must be a port from 0 to 65535, or a range of them: 1024-2047"),
        ("drop dport 65536", "'65536' must be a port from 0 to 65535, or a range of them: 1024-2047"),
        ("drop dport 1-", "'1-' must be a port from 0 to 65535, or a range of them: 1024-2047"),
        ("drop dport 9-5", "'9-5' is an empty range: write 5-9"),
        ("drop vlan 4096", "'4096' must be a VLAN identifier from 0 to 4095, or a range of them: 100-199"),
        ("drop smac 02:00:00:00:00", "'02:00:00:00:00' must be six bytes in hexadecimal: 02:00:00:00:00:01"),
        (
            "drop dmac 02:00:00:00:00:00:00",
            "'02:00:00:00:00:00:00' must be six bytes in hexadecimal: 02:00:00:00:00:01",
        ),
        ("drop dmac 02:00:00:00:00:+1", "'02:00:00:00:00:+1' must be six bytes in hexadecimal: 02:00:00:00:00:01"),
    ]);
}

#[test]
fn a_match_given_twice_is_refused() {
    all_say(&[
        ("drop udp tcp", "'tcp' says the protocol a second time"),
        ("drop udp proto 6", "'proto' says the protocol a second time"),
        ("drop ip arp", "'arp' says the type a second time"),
        ("drop ip ether 0x88cc", "'ether' says the type a second time"),
        ("drop src 1.1.1.1 src 2.2.2.2", "'src' says the source address a second time"),
        ("drop dst 1.1.1.1 dst 2.2.2.2", "'dst' says the destination address a second time"),
        ("drop sport 1 sport 2", "'sport' says the source port a second time"),
        ("drop dport 1 dport 2", "'dport' says the destination port a second time"),
        ("drop vlan 1 vlan 2", "'vlan' says the VLAN a second time"),
        ("drop smac 02:00:00:00:00:01 smac 02:00:00:00:00:02", "'smac' says the source MAC address a second time"),
        ("drop dmac 02:00:00:00:00:01 dmac 02:00:00:00:00:02", "'dmac' says the destination MAC address a second time"),
        ("drop frag frag", "'frag' is given twice"),
    ]);
}

#[test]
fn a_rule_that_could_never_match_is_refused() {
    all_say(&[
        ("drop src 10.0.0.1 dst ::1", "'dst' mixes IPv4 and IPv6: no packet has both addresses"),
        ("drop ip src ::1", "'src' never matches: type and address are of different versions of IP"),
        ("drop dst 10.0.0.1 ip6", "'ip6' never matches: type and address are of different versions of IP"),
        ("drop arp tcp", "'tcp' never matches: a packet of this type is not IP"),
        ("drop arp src 10.0.0.1", "'src' never matches: a packet of this type is not IP"),
        ("drop frag arp", "'arp' never matches: a packet of this type is not IP"),
        ("drop dport 1 ether 0x88cc", "'ether' never matches: a packet of this type is not IP"),
        ("drop icmp src ::1", "'src' never matches: over IPv6 it is icmp6"),
        ("drop icmp ip6", "'ip6' never matches: over IPv6 it is icmp6"),
        ("drop icmp6 dst 10.0.0.1", "'dst' never matches: over IPv4 it is icmp"),
        ("drop ip icmp6", "'icmp6' never matches: over IPv4 it is icmp"),
        ("drop icmp dport 7", "'dport' never matches: only tcp, udp and sctp have ports"),
        ("drop dport 53 frag", "'frag' never matches: fragments are not looked at for ports"),
    ]);
}

#[test]
fn rules_that_do_not_fit_the_ports_or_lanes_are_refused_by_name() {
    let check = |text: &str, link, lanes| match rules([text]).check(link, lanes) {
        Ok(()) => String::new(),
        Err(error) => error.to_string(),
    };
    let (ethernet, ip) = (LinkKind::Ethernet, LinkKind::Ip);
    assert_eq!(check("lane 1 udp", ethernet, 2), "");
    assert_eq!(check("lane 2 udp", ethernet, 2), "rule 'lane 2 udp': 'lane 2' lanes are 0 to 1");
    assert_eq!(check("lane 1 udp", ip, 1), "rule 'lane 1 udp': 'lane 1' the only lane is 0");
    assert_eq!(check("default lane 0", ip, 0), "rule 'default lane 0': 'lane 0' there are no lanes");
    let bare = "the port carries bare IP packets, which have no Ethernet header";
    for (text, word) in [
        ("drop smac 02:00:00:00:00:01", "smac"),
        ("drop dmac 02:00:00:00:00:01", "dmac"),
        ("drop vlan 7", "vlan"),
        ("drop arp", "arp"),
        ("drop ether 0x88cc", "ether"),
    ] {
        assert_eq!(check(text, ethernet, 0), "");
        assert_eq!(check(text, ip, 0), format!("rule '{text}': '{word}' {bare}"));
    }
    for text in ["drop ip", "drop ip6", "drop any", "drop tcp dport 22", "default drop"] {
        assert_eq!(check(text, ip, 0), "");
    }
}
