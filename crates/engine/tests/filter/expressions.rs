//! Expressions: random ones by the grammar, and those that people type.

use super::Random;
use super::packets::{PORTS, VIDS};

/// A random expression, nested up to `depth` times.
pub(crate) fn expression(random: &mut Random, depth: usize) -> String {
    if depth == 0 || random.one_in(4) {
        return condition(random);
    }
    match random.below(7) {
        0 => format!("{} ({})", random.pick(&["not", "!"]), expression(random, depth - 1)),
        1 => format!("not {}", condition(random)),
        2 => format!("({})", expression(random, depth - 1)),
        _ => {
            let join = random.pick(&["and", "or", "&&", "||"]);
            format!("{} {join} {}", expression(random, depth - 1), expression(random, depth - 1))
        }
    }
}

fn condition(random: &mut Random) -> String {
    match random.below(20) {
        0..3 => random.pick(&PROTOCOLS).to_owned(),
        3..6 => host(random),
        6..9 => ports(random),
        9 => {
            let version = random.pick(&["", "ip ", "ip6 "]);
            format!("{version}proto {}", random.pick(&["\\tcp", "17", "58", "(6 or 17)", "\\sctp", "1"]))
        }
        10 => format!("ether proto {}", random.pick(&["0x0800", "0x86dd", "\\arp", "0x88cc", "0x42", "0xfe", "\\ip6"])),
        11 => {
            let dir = random.pick(&["host", "src", "dst", "src host", "src or dst", "src and dst"]);
            format!("ether {dir} {}", random.pick(&["02:00:00:00:00:01", "2:0:0:0:0:2", "ff-ff-ff-ff-ff-ff"]))
        }
        12 => random
            .pick(&["broadcast", "multicast", "ether multicast", "ip multicast", "ip6 multicast", "ether broadcast"])
            .to_owned(),
        13 => format!("{} {}", random.pick(&["less", "greater"]), 20 + random.below(100)),
        14..16 => match random.below(3) {
            0 => "vlan".to_owned(),
            _ => format!("vlan {}", VIDS[random.below(4)]),
        },
        _ => relation(random),
    }
}

const PROTOCOLS: [&str; 22] = [
    "tcp", "udp", "sctp", "icmp", "icmp6", "ip", "ip6", "arp", "rarp", "igmp", "esp", "ah", "pim", "vrrp", "stp",
    "iso", "atalk", "aarp", "ipx", "netbeui", "decnet", "tcp",
];

fn direction(random: &mut Random) -> &'static str {
    random.pick(&["", "src ", "dst ", "src or dst ", "src and dst ", "dst or src "])
}

fn host(random: &mut Random) -> String {
    let dir = direction(random);
    let v4: &str = random.pick(&["10.0.0.1", "10.0.0.2", "192.168.1.1", "224.0.0.251"]);
    let v6: &str = random.pick(&["2001:db8::1", "2001:db8::2", "2001:db8:1::1"]);
    match random.below(10) {
        0 => format!("{dir}host {v4}"),
        1 => format!("{}{dir}host {v4}", random.pick(&["ip ", "arp ", "rarp "])),
        2 => format!("{dir}host {v6}"),
        3 => format!("ip6 {dir}host {v6}"),
        4 => format!(
            "{dir}net {}",
            random.pick(&["10", "10.0.0", "192.168", "10.0.0.0/24", "172.16.0.0/12", "10.0.0.0/8"])
        ),
        5 => format!("{dir}net {}", random.pick(&["10.0.0.0 mask 255.255.255.0", "10.0.0.1 mask 255.0.0.255"])),
        6 => format!("{dir}net {}", random.pick(&["2001:db8::/32", "2001:db8:1::/48", "ff00::/8", "2001:db8::2/127"])),
        7 => format!("{dir}host ({v4} or 10.1.2.3)"),
        8 => format!("{dir}host {v4} or 10.1.2.3 or {v6}"),
        _ => format!("src {v4} and dst {}", random.pick(&["10.0.0.2", "not 10.0.0.1", "(10.0.0.1 or 10.0.0.2)"])),
    }
}

fn ports(random: &mut Random) -> String {
    let (proto, dir) = (random.pick(&["", "tcp ", "udp ", "sctp "]), direction(random));
    let (a, b) = (PORTS[random.below(8)], PORTS[random.below(8)]);
    match random.below(6) {
        0 => format!("{proto}{dir}port {a} or {b}"),
        1 => format!("{proto}{dir}port ({a} or {b})"),
        2 => format!("{proto}{dir}portrange {a}-{b}"),
        3 => format!("{proto}{dir}port not {a}"),
        4 => format!("{dir}port {}", random.pick(&["domain", "http", "https", "ssh", "ntp"])),
        _ => format!("{proto}{dir}port {a}"),
    }
}

fn relation(random: &mut Random) -> String {
    let sign = random.pick(&["=", "==", "!=", "<", "<=", ">", ">="]);
    match random.below(6) {
        0 => random
            .pick(&[
                "tcp[tcpflags] & (tcp-syn|tcp-ack) = tcp-syn",
                "tcp[13] & 2 != 0",
                "tcp[tcpflags] & tcp-rst != 0",
                "icmp[icmptype] = icmp-echo or icmp6[icmp6type] = icmp6-echo",
                "ip[6:2] & 0x1fff != 0",
                "ip[0] & 0xf > 5",
                "ether[0] & 1 = 0",
                "ip[2:2] - ((ip[0] & 0xf) << 2) - ((tcp[12] & 0xf0) >> 2) != 0",
            ])
            .to_owned(),
        1 => format!("len {sign} {}", 20 + random.below(100)),
        _ => {
            format!("{} {sign} {}", arith(random, 2), if random.one_in(3) { arith(random, 1) } else { number(random) })
        }
    }
}

fn number(random: &mut Random) -> String {
    let value = [0, 1, 4, 6, 17, 64, 255, 0x0800, 0x4500, 1000][random.below(10)];
    if random.one_in(3) { format!("{value:#x}") } else { value.to_string() }
}

fn arith(random: &mut Random, depth: usize) -> String {
    if depth > 0 && random.one_in(2) {
        let (a, b) = (arith(random, depth - 1), arith(random, depth - 1));
        return match random.below(12) {
            0 => format!("{a} + {b}"),
            1 => format!("{a} - {b}"),
            2 => format!("{a} * 3"),
            3 => format!("{a} / {b}"),
            4 => format!("{a} % 7"),
            5 => format!("({a} | {b})"),
            6 => format!("{a} ^ {b}"),
            7 => format!("{a} << 2"),
            8 => format!("{a} >> 3"),
            9 => format!("- {a}"),
            _ => format!("{a} & 0x0f"),
        };
    }
    let proto = random.pick(&["ether", "ip", "ip6", "arp", "tcp", "udp", "icmp", "icmp6", "sctp"]);
    let size = random.pick(&["", ":1", ":2", ":4"]);
    let index = match random.below(8) {
        0 => "ip[1] & 3".to_owned(),
        1 => "len".to_owned(),
        _ => random.below(24).to_string(),
    };
    if random.one_in(8) { "len".to_owned() } else { format!("{proto}[{index}{size}]") }
}

/// Expressions as people type them, and corners of the grammar.
pub(crate) const WRITTEN: [&str; 40] = [
    "tcp port 80 and (((ip[2:2] - ((ip[0]&0xf)<<2)) - ((tcp[12]&0xf0)>>2)) != 0)",
    "tcp[tcpflags] & (tcp-syn|tcp-fin) != 0 and not src and dst net 10.0.0.0/8",
    "icmp[icmptype] != icmp-echo and icmp[icmptype] != icmp-echoreply",
    "ether[0] & 1 = 0 and ip[16] >= 224",
    "port 80 or 443 or 22 and not host 10.0.0.1",
    "src or dst port 53 or 80",
    "vlan 100 and vlan 200 and ip",
    "vlan and (tcp or udp)",
    "(vlan and ip) or ip",
    "not vlan and tcp",
    "vlan (100)",
    "host 10.0.0.1 and not (port 80 or 443)",
    "ip proto \\tcp or ip6 proto \\udp",
    "ip6 proto 44 or ip6[6] = 60",
    "greater 60 and less 80",
    "len > 60 && len < 80",
    "ip[8] * 2 + 1 > 60",
    "ip[8] % 7 + 1 = 2",
    "ip[8] + 9 % 4 = 33",
    "ip[8] ^ 3 | 4 = 39",
    "ip[8] | 4 ^ 3 = 39",
    "ip[8] - 1 - 2 = 61",
    "- ip[8] % 5 = 1",
    "- 1 = 0xffffffff",
    "1 = 1",
    "ip[8] << 2 >> 1 & 0xff = 128",
    "(ip[8]) = ((64))",
    "ip[ip[1] & 3] = 0x45",
    "ip[8] + tcp[0] > 64",
    "tcp[0:2] + ip[8] > 64",
    "ip[8] / ip[1] = 1",
    "tcp[1000000000:4] = 0",
    "not tcp[4000000000] = 0",
    "ether src 02:00:00:00:00:01 and ether dst ff:ff:ff:ff:ff:ff",
    "arp host 10.0.0.1 or rarp host 10.0.0.1",
    "net 10.0.0.1 mask 255.0.0.255",
    "net 10 and not net 10.1",
    "dst net 172.16 or 192.168.1",
    "! ! tcp",
    "port 80 and (443 or not 53)",
];

/// What neither takes.
pub(crate) const REFUSED: [&str; 24] = [
    "10.0.0.1",
    "80",
    "tcp and 80",
    "port 70000",
    "host 10.0.0.1/24",
    "net 10.0.0.1/24",
    "net 10.0.0.0/33",
    "ip6 host 10.0.0.1",
    "ip host 2001:db8::1",
    "tcp host 10.0.0.1",
    "icmp port 80",
    "udp port http",
    "host 02:00:00:00:00:01",
    "ether host 10.0.0.1",
    "vlan 4096",
    "tcp[0:3] = 1",
    "ip[0] / 0 = 1",
    "ip[0] << 32 = 1",
    "ip[0] = ",
    "(tcp",
    "tcp)",
    "tcp udp",
    "arp proto 6",
    "tcp multicast",
];
