use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

/// The ones'-complement sum, byte by byte.
fn naive(parts: &[&[u8]]) -> u16 {
    let bytes = parts.concat();
    let mut sum: u32 = 0;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// A packet to be edited, and where its parts are.
#[derive(Debug, Clone)]
struct Made {
    v6: bool,
    protocol: u8,
    /// The segments left of a routing header, if there is one.
    route: Option<u8>,
    source: [u8; 16],
    destination: [u8; 16],
    ports: [u16; 2],
    payload: Vec<u8>,
    options: bool,
}

impl Made {
    fn addresses(&self) -> (&[u8], &[u8]) {
        let n = if self.v6 { 16 } else { 4 };
        (&self.source[..n], &self.destination[..n])
    }

    /// The packet, and the offset of its transport header. Checksums are right.
    fn packet(&self) -> (Vec<u8>, usize) {
        let mut segment = Vec::new();
        match self.protocol {
            TCP => {
                self.ports.iter().for_each(|port| segment.extend(port.to_be_bytes()));
                segment.extend([0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 1, 1, 0, 0, 0, 0]);
            }
            UDP => {
                self.ports.iter().for_each(|port| segment.extend(port.to_be_bytes()));
                segment.extend((8 + self.payload.len() as u16).to_be_bytes());
                segment.extend([0, 0]);
            }
            _ => segment.extend([128, 0, 0, 0]),
        }
        segment.extend(&self.payload);
        let (source, destination) = self.addresses();
        let mut packet = Vec::new();
        if self.v6 {
            let mut more = Vec::new();
            if self.options {
                more.extend([if self.route.is_some() { 43 } else { self.protocol }, 0, 1, 4, 0, 0, 0, 0]);
            }
            if let Some(left) = self.route {
                more.extend([self.protocol, 2, 0, left, 0, 0, 0, 0]);
                more.extend(LAST);
            }
            let first = match (self.options, self.route) {
                (true, _) => 60,
                (_, Some(_)) => 43,
                _ => self.protocol,
            };
            packet.extend([0x60, 0, 0, 0]);
            packet.extend(((more.len() + segment.len()) as u16).to_be_bytes());
            packet.extend([first, 64]);
            packet.extend(source);
            packet.extend(destination);
            packet.extend(more);
        } else {
            let words = if self.options { 6 } else { 5 };
            packet.extend([0x40 | words, 0]);
            packet.extend((u16::from(words) * 4 + segment.len() as u16).to_be_bytes());
            packet.extend([0, 1, 0, 0, 64, self.protocol, 0, 0]);
            packet.extend(source);
            packet.extend(destination);
            packet.resize(usize::from(words) * 4, 1);
            let check = !naive(&[&packet]);
            packet[10..12].copy_from_slice(&check.to_be_bytes());
        }
        let at = packet.len();
        packet.extend(&segment);
        let field = at + field(self.protocol);
        let check = !self.sum(&packet, at);
        let check = if self.protocol == UDP && check == 0 { 0xffff } else { check };
        packet[field..field + 2].copy_from_slice(&check.to_be_bytes());
        (packet, at)
    }

    /// The sum over pseudo-header and segment, recomputed from the packet alone.
    fn sum(&self, packet: &[u8], at: usize) -> u16 {
        let segment = &packet[at..];
        let (source, mut destination) =
            if self.v6 { (&packet[8..24], &packet[24..40]) } else { (&packet[12..16], &packet[16..20]) };
        // While a route has segments left, the sum has its last address.
        if self.v6 && self.route.is_some_and(|left| left > 0) {
            destination = &LAST;
        }
        let rest = [0, self.protocol, (segment.len() >> 8) as u8, segment.len() as u8];
        let pseudo = [source, destination, &rest].concat();
        if !self.v6 && self.protocol == 58 { naive(&[segment]) } else { naive(&[&pseudo, segment]) }
    }
}

const LAST: [u8; 16] = [0x20, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 77];

fn field(protocol: u8) -> usize {
    match protocol {
        TCP => 16,
        UDP => 6,
        _ => 2,
    }
}

fn made() -> impl Strategy<Value = Made> {
    let address = any::<[u8; 16]>();
    let port = prop_oneof![Just(80), Just(0), Just(53), any::<u16>()];
    let ports = [port.clone(), port];
    let protocol = prop_oneof![Just(TCP), Just(UDP), Just(ICMP6)];
    let route = proptest::option::of(0u8..3);
    (any::<bool>(), protocol, route, address, address, ports, vec(any::<u8>(), 0..40), any::<bool>()).prop_map(
        |(v6, protocol, route, source, destination, ports, payload, options)| Made {
            v6: v6 || protocol == ICMP6,
            protocol,
            route,
            source,
            destination,
            ports,
            payload,
            options,
        },
    )
}

fn maps() -> impl Strategy<Value = Vec<PrefixMap>> {
    let pair = |v6: bool, old: [u8; 16], new: [u8; 16], len: u8| {
        let [old, new] = [old, new].map(|bytes| match v6 {
            true => IpAddr::from(bytes),
            false => IpAddr::from(*bytes.first_chunk::<4>().unwrap()),
        });
        PrefixMap::new(old, len % if v6 { 129 } else { 33 }, new).unwrap()
    };
    // Short prefixes, so that many match.
    vec((any::<bool>(), any::<[u8; 16]>(), any::<[u8; 16]>(), prop_oneof![Just(0), Just(1), any::<u8>()]), 0..4)
        .prop_map(move |all| all.into_iter().map(|(v6, old, new, len)| pair(v6, old, new, len)).collect())
}

fn port_maps() -> impl Strategy<Value = Vec<PortMap>> {
    vec((prop_oneof![Just(80), Just(0), Just(53)], any::<u16>()).prop_map(|(old, new)| PortMap { old, new }), 0..3)
}

/// An address by the definition: bit by bit.
fn expected(maps: &[PrefixMap], address: &[u8]) -> Vec<u8> {
    let bits = |bytes: &[u8]| -> Vec<bool> {
        bytes.iter().flat_map(|byte| (0..8).map(move |bit| byte >> (7 - bit) & 1 == 1)).collect()
    };
    let octets = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    for map in maps.iter().filter(|map| map.old.is_ipv4() == (address.len() == 4)) {
        let (old, new, have) = (bits(&octets(map.old)), bits(&octets(map.new)), bits(address));
        let len = usize::from(map.len);
        if old[..len] == have[..len] {
            let all = [&new[..len], &have[len..]].concat();
            return all.chunks(8).map(|byte| byte.iter().fold(0, |sum, bit| sum << 1 | u8::from(*bit))).collect();
        }
    }
    address.to_vec()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_right_checksum_stays_right_and_a_wrong_one_stays_wrong(
        made in made(), src in maps(), dst in maps(), sport in port_maps(), dport in port_maps(),
        wrong in proptest::option::of(1u16..0xffff), wrong_header in proptest::option::of(1u16..0xffff),
        head in 0usize..3,
    ) {
        let (mut packet, at) = made.packet();
        let field = at + field(made.protocol);
        let damage = |packet: &mut [u8], at: usize, by: u16| {
            let old = u16::from_be_bytes([packet[at], packet[at + 1]]);
            let (sum, carry) = old.overflowing_add(by);
            packet[at..at + 2].copy_from_slice(&(sum + u16::from(carry)).to_be_bytes());
        };
        if let Some(by) = wrong {
            damage(&mut packet, field, by);
            // A UDP checksum of zero is none.
            prop_assume!(made.protocol != UDP || packet[field..field + 2] != [0, 0]);
        }
        if let Some(by) = wrong_header.filter(|_| !made.v6) {
            damage(&mut packet, 10, by);
        }
        let edits = Edits { src: src.clone(), dst: dst.clone(), sport: sport.clone(), dport: dport.clone(), ..Edits::default() };
        // Behind no tag, one, two.
        let kind: [u8; 2] = if made.v6 { [0x86, 0xdd] } else { [8, 0] };
        let ethernet = [&[9; 12][..], &[0x88, 0xa8, 0, 1, 0x81, 0, 0, 2][8 - 4 * head..], &kind].concat();
        let mut frame = [&ethernet[..], &packet].concat();
        edits.apply(&mut frame, Layer::Ethernet);
        prop_assert_eq!(&frame[..ethernet.len()], &ethernet[..]);
        let mut alone = packet.clone();
        edits.apply(&mut alone, Layer::Ip);
        prop_assert_eq!(&frame[ethernet.len()..], &alone[..], "the layer makes no difference");

        let (source, destination) = made.addresses();
        let n = source.len();
        let addresses = if made.v6 { 8 } else { 12 };
        prop_assert_eq!(&alone[addresses..addresses + n], &expected(&src, source)[..]);
        prop_assert_eq!(&alone[addresses + n..addresses + 2 * n], &expected(&dst, destination)[..]);
        if made.protocol != ICMP6 {
            for (maps, i) in [(&sport, 0), (&dport, 1)] {
                let new = maps.iter().find(|map| map.old == made.ports[i]).map_or(made.ports[i], |map| map.new);
                prop_assert_eq!(alone[at + 2 * i..at + 2 * i + 2].to_vec(), new.to_be_bytes().to_vec());
            }
        }
        let is_right = |sum: u16| sum == 0xffff;
        prop_assert_eq!(is_right(made.sum(&alone, at)), wrong.is_none(), "the transport checksum");
        if !made.v6 {
            prop_assert_eq!(is_right(naive(&[&alone[..at]])), wrong_header.is_none(), "the header checksum");
        }
        // Nothing else changes.
        let mut fields = vec![(addresses, 2 * n), (field, 2)];
        if !made.v6 {
            fields.push((10, 2));
        }
        if made.protocol != ICMP6 {
            fields.push((at, 4));
        }
        let [mut before, mut after] = [packet, alone];
        for (at, len) in fields {
            before[at..at + len].fill(0);
            after[at..at + len].fill(0);
        }
        prop_assert_eq!(before, after);
    }

    #[test]
    fn any_bytes_are_edited_without_a_panic_and_change_by_a_tag_at_most(
        mut bytes in vec(any::<u8>(), 0..120), src in maps(), sport in port_maps(), ip in any::<bool>(),
        kind in prop::sample::select(vec![[8, 0], [0x86, 0xdd], [8, 6], [0x81, 0], [1, 2]]), vlan in 0u16..4095,
    ) {
        if let Some(field) = bytes.get_mut(12..14) {
            field.copy_from_slice(&kind);
        }
        let vlan = if vlan == 0 { VlanEdit::Strip } else { VlanEdit::Set(vlan) };
        let edits = Edits { src: src.clone(), dst: src, sport, vlan: Some(vlan), smac: Some([1; 6]), ..Edits::default() };
        let before = bytes.len();
        edits.apply(&mut bytes, if ip { Layer::Ip } else { Layer::Ethernet });
        prop_assert!(before.abs_diff(bytes.len()) <= 4);
    }
}

#[test]
fn a_udp_checksum_of_zero_and_a_later_fragment_have_no_checksum_to_update() {
    let map = PrefixMap::parse("10.0.0.0/8:172.16.0.0").unwrap();
    let edits = Edits { src: vec![map], sport: vec![PortMap { old: 53, new: 54 }], ..Edits::default() };
    let made = Made {
        v6: false,
        protocol: UDP,
        route: None,
        source: [10; 16],
        destination: [11; 16],
        ports: [53, 53],
        payload: vec![1; 9],
        options: false,
    };
    let (packet, at) = made.packet();
    let mut none = packet.clone();
    none[at + 6..at + 8].fill(0);
    edits.apply(&mut none, Layer::Ip);
    assert_eq!(
        (&none[12..16], &none[at..at + 2], &none[at + 6..at + 8]),
        (&[172, 10, 10, 10][..], &[0, 54][..], &[0, 0][..])
    );
    let mut later = packet.clone();
    later[7] = 5;
    edits.apply(&mut later, Layer::Ip);
    assert_eq!((&later[12..16], &later[at..]), (&[172, 10, 10, 10][..], &packet[at..]));
}

#[test]
fn a_tag_is_added_replaced_and_removed_and_keeps_its_priority() {
    let frame = |kind: &[u8]| [&[1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2][..], kind, &[7; 10]].concat();
    let edited = |vlan, frame: &[u8]| {
        let mut frame = frame.to_vec();
        Edits { vlan: Some(vlan), ..Edits::default() }.apply(&mut frame, Layer::Ethernet);
        frame
    };
    let (plain, tagged) = (frame(&[8, 6]), frame(&[0x81, 0, 0xa0, 5, 8, 6]));
    assert_eq!(edited(VlanEdit::Set(100), &plain), frame(&[0x81, 0, 0, 100, 8, 6]));
    assert_eq!(edited(VlanEdit::Set(100), &tagged), frame(&[0x81, 0, 0xa0, 100, 8, 6]));
    assert_eq!(edited(VlanEdit::Strip, &tagged), plain);
    assert_eq!(edited(VlanEdit::Strip, &plain), plain);
}

#[test]
fn arp_is_mapped_and_macs_are_set() {
    let arp = [0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2];
    let mut frame = [&[5; 12][..], &[8, 6], &arp].concat();
    let map = |new: &str| vec![PrefixMap::parse(&format!("10.0.0.0/24:{new}")).unwrap()];
    let edits = Edits {
        smac: Some([1; 6]),
        dmac: Some([2; 6]),
        src: map("10.1.0.0"),
        dst: map("10.2.0.0"),
        ..Edits::default()
    };
    edits.apply(&mut frame, Layer::Ethernet);
    assert_eq!(frame[..12], [2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1]);
    assert_eq!((&frame[14 + 14..14 + 18], &frame[14 + 24..]), (&[10, 1, 0, 1][..], &[10, 2, 0, 2][..]));
}
