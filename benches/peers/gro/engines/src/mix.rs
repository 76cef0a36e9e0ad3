//! The packet mix of `mix.h`, byte for byte; `run` compares the digests of the two.
//!
//! TCP over IPv4 with timestamps, DF, right checksums. Flows take turns. A round is what is pushed
//! between two flushes; in it the sequence numbers and identifications of each flow count up; the
//! next round goes on with the flows that come next. The payload is the same in all packets, so
//! that any buffer can take the header of any packet.

pub const ETHERNET: usize = 14;
/// Ethernet, IPv4, TCP with timestamps.
pub const HEADER: usize = ETHERNET + 20 + 32;

pub type Header = [u8; HEADER];

fn sum(bytes: &[u8]) -> u32 {
    bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0))).sum()
}

fn checksum(mut sum: u32) -> [u8; 2] {
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!sum as u16).to_be_bytes()
}

/// Packet `index` of `flow`.
fn packet(flow: u32, index: u32, payload: usize) -> Vec<u8> {
    let mut b = vec![0; HEADER + payload];
    b[..ETHERNET].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
    let (ip, tcp) = b[ETHERNET..].split_at_mut(20);
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&((52 + payload) as u16).to_be_bytes());
    ip[4..6].copy_from_slice(&((flow * 977 + index) as u16).to_be_bytes());
    (ip[6], ip[8], ip[9]) = (0x40, 64, 6);
    ip[12..16].copy_from_slice(&(0x0a00_0001 + (flow & 3)).to_be_bytes());
    ip[16..20].copy_from_slice(&0x0a01_0001u32.to_be_bytes());
    let check = checksum(sum(ip));
    ip[10..12].copy_from_slice(&check);
    tcp[..2].copy_from_slice(&(10_000 + flow as u16).to_be_bytes());
    tcp[2..4].copy_from_slice(&5201u16.to_be_bytes());
    tcp[4..8].copy_from_slice(&(0x1000_0000 + flow * 7919 + index * payload as u32).to_be_bytes());
    tcp[8..12].copy_from_slice(&(0x2222_2222 + flow).to_be_bytes());
    (tcp[12], tcp[13]) = (0x80, 0x10);
    tcp[14..16].copy_from_slice(&501u16.to_be_bytes());
    tcp[20..32].copy_from_slice(&[1, 1, 8, 10, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88]);
    for (i, byte) in tcp[32..].iter_mut().enumerate() {
        *byte = (i * 7) as u8;
    }
    let check = checksum(sum(&ip[12..20]) + (6 + 32 + payload) as u32 + sum(tcp));
    tcp[16..18].copy_from_slice(&check);
    b
}

/// All packets of `pool` bursts.
pub fn packets(flows: usize, payload: usize, burst: usize, pool: usize, hold: usize) -> Vec<Vec<u8>> {
    let round = burst * hold;
    (0..burst * pool).map(|g| packet((g % flows) as u32, (g % round / flows) as u32, payload)).collect()
}

/// FNV-1a over the IP packets.
pub fn digest(packets: &[Vec<u8>]) -> u64 {
    let bytes = packets.iter().flat_map(|packet| &packet[ETHERNET..]);
    bytes.fold(0xcbf2_9ce4_8422_2325, |state, byte| (state ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}
