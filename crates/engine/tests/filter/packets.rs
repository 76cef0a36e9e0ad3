//! Random packets, whose fields are often those that expressions name.

use super::Random;

pub(crate) const MACS: [[u8; 6]; 4] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], [0xff; 6], [0x33, 0x33, 0, 0, 0, 1]];
pub(crate) const V4: [[u8; 4]; 6] =
    [[10, 0, 0, 1], [10, 0, 0, 2], [10, 1, 2, 3], [192, 168, 1, 1], [224, 0, 0, 251], [172, 16, 0, 9]];
pub(crate) const PORTS: [u16; 8] = [22, 53, 80, 443, 1000, 1003, 2000, 65535];
pub(crate) const VIDS: [u16; 4] = [0, 100, 200, 4095];

fn v6(random: &mut Random) -> [u8; 16] {
    let mut address = [0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    address[15] = random.below(3) as u8;
    address[5] = random.below(2) as u8;
    if random.one_in(8) {
        address[0] = 0xff;
    }
    address
}

/// A frame, with any number of tags from none to two.
pub(crate) fn frame(random: &mut Random) -> Vec<u8> {
    let mut frame = Vec::new();
    frame.extend(MACS[random.below(4)]);
    frame.extend(MACS[random.below(4)]);
    let tags = if random.one_in(3) { 1 + random.below(2) } else { 0 };
    for _ in 0..tags {
        frame.extend([0x8100u16, 0x88a8, 0x9100][random.below(3)].to_be_bytes());
        frame.extend((VIDS[random.below(4)] | (random.below(8) as u16) << 13).to_be_bytes());
    }
    let (kind, body) = match random.below(12) {
        0..6 => (0x0800u16, v4(random)),
        6..9 => (0x86dd, ip6(random)),
        9 => (0x0806, arp(random)),
        10 => ([0x8035, 0x88cc, 0x8847, 0x8864, 0x809b, 0x80f3, 0x8137, 0x6003][random.below(8)], arp(random)),
        _ => {
            let llc: &[u8] = random.pick(&[
                &[0x42, 0x42, 3, 0, 0, 0, 0, 0],
                &[0xfe, 0xfe, 3, 0x83, 0, 0, 0, 0],
                &[0xaa, 0xaa, 3, 0, 0, 0, 0x81, 0x37],
                &[0xaa, 0xaa, 3, 8, 0, 7, 0x80, 0x9b],
                &[0xe0, 0xe0, 3, 0, 0, 0, 0, 0],
                &[0xff, 0xff, 0, 0, 0, 0, 0, 0],
                &[0xf0, 0xf0, 3, 0, 0, 0, 0, 0],
            ]);
            (llc.len() as u16, llc.to_vec())
        }
    };
    frame.extend(kind.to_be_bytes());
    frame.extend(body);
    cut(random, &mut frame);
    frame
}

/// A packet without an Ethernet header.
pub(crate) fn bare(random: &mut Random) -> Vec<u8> {
    let mut packet = if random.one_in(3) { ip6(random) } else { v4(random) };
    if random.one_in(20) {
        packet[0] = 0x50;
    }
    cut(random, &mut packet);
    packet
}

/// One in six ends early.
fn cut(random: &mut Random, packet: &mut Vec<u8>) {
    if random.one_in(6) {
        packet.truncate(1 + random.below(packet.len()));
    }
}

fn v4(random: &mut Random) -> Vec<u8> {
    let options = if random.one_in(4) { random.below(11) } else { 0 };
    let protocol = [1u8, 6, 6, 6, 17, 17, 17, 132, 2, 50, 103][random.below(11)];
    let mut header = vec![0x45 + options as u8, random.below(256) as u8, 0, 0, 0, random.below(4) as u8];
    let fragment: u16 = match random.below(8) {
        0 => 0x2000,
        1 => 0x2000 | random.below(0x2000) as u16,
        2 => random.below(0x2000) as u16,
        _ => 0x4000,
    };
    header.extend(fragment.to_be_bytes());
    header.extend([random.below(3) as u8 * 32, protocol, 0, 0]);
    header.extend(V4[random.below(6)]);
    header.extend(V4[random.below(6)]);
    header.resize(20 + options * 4, 1);
    if random.one_in(30) {
        // A header length that leads anywhere.
        header[0] = 0x40 | random.below(16) as u8;
    }
    header.extend(transport(random, protocol));
    let len = header.len() as u16;
    header[2..4].copy_from_slice(&len.to_be_bytes());
    header
}

fn ip6(random: &mut Random) -> Vec<u8> {
    let protocol = [6u8, 6, 17, 17, 58, 132, 59][random.below(7)];
    let extension = match random.below(6) {
        0 => Some((44u8, vec![protocol, 0, 0, 1, 0, 0, 0, 7])),
        1 => Some((0, vec![protocol, 0, 1, 4, 0, 0, 0, 0])),
        2 => Some((60, vec![protocol, 0, 1, 4, 0, 0, 0, 0])),
        _ => None,
    };
    let next = extension.as_ref().map_or(protocol, |(number, _)| *number);
    let mut packet = vec![0x60, 0, 0, 0, 0, 0, next, 64];
    packet.extend(v6(random));
    packet.extend(v6(random));
    packet.extend(extension.map(|(_, bytes)| bytes).unwrap_or_default());
    packet.extend(transport(random, protocol));
    packet
}

fn transport(random: &mut Random, protocol: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    match protocol {
        6 | 17 | 132 => {
            bytes.extend(PORTS[random.below(8)].to_be_bytes());
            bytes.extend(PORTS[random.below(8)].to_be_bytes());
            if protocol == 6 {
                bytes.extend([0, 0, 0, 1, 0, 0, 0, 2, 0x50, random.below(256) as u8, 1, 0, 0, 0, 0, 0]);
            } else {
                bytes.extend([0, 8, 0, 0]);
            }
        }
        1 => bytes.extend([[0u8, 3, 8, 11][random.below(4)], random.below(4) as u8, 0, 0, 0, 1, 0, 1]),
        58 => bytes.extend([[128u8, 129, 135, 136][random.below(4)], 0, 0, 0, 0, 1, 0, 1]),
        _ => {}
    }
    for _ in 0..random.below(40) {
        bytes.push(random.below(256) as u8);
    }
    bytes
}

fn arp(random: &mut Random) -> Vec<u8> {
    let mut bytes = vec![0, 1, 8, 0, 6, 4, 0, 1 + random.below(2) as u8];
    bytes.extend(MACS[random.below(4)]);
    bytes.extend(V4[random.below(6)]);
    bytes.extend(MACS[random.below(4)]);
    bytes.extend(V4[random.below(6)]);
    bytes
}
