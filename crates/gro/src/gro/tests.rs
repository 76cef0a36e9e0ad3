use alloc::boxed::Box;
use alloc::vec::Vec;

use towpath_wire::checksum;
use towpath_wire::offload::Checksum;

use super::*;
use crate::offload::Offload;
use crate::segment::Appended;
use crate::table::HEADS;

/// A packet, and the bytes that were appended to it.
struct Handle(Box<(Vec<u8>, usize)>);

impl Segment for Handle {
    fn head(&self) -> &[u8] {
        &self.0.0
    }

    fn head_mut(&mut self) -> &mut [u8] {
        &mut self.0.0
    }

    fn packet_len(&self) -> usize {
        self.0.0.len() + self.0.1
    }

    fn offload(&self) -> Offload {
        Offload::new(Checksum::Verified, None)
    }

    fn set_offload(&mut self, _: Offload) {}

    fn append(&mut self, other: Self, skip: usize, _: Option<u16>) -> Appended<Self> {
        self.0.1 += other.packet_len() - skip;
        Appended::Chained
    }
}

const PAYLOAD: usize = 100;

/// Packet `n` of the TCP flow from `port`.
fn packet(port: u16, n: u8) -> Handle {
    let mut b = [0; 40 + PAYLOAD];
    (b[0], b[3], b[5], b[6], b[8], b[9]) = (0x45, 40 + PAYLOAD as u8, n, 0x40, 64, 6);
    let check = !checksum::sum(&b[..20]);
    b[10..12].copy_from_slice(&check.to_be_bytes());
    b[20..22].copy_from_slice(&port.to_be_bytes());
    b[24..28].copy_from_slice(&(u32::from(n) * PAYLOAD as u32).to_be_bytes());
    (b[32], b[33]) = (0x50, 0x10);
    Handle(Box::new((b.to_vec(), 0)))
}

#[test]
fn flows_whose_hashes_end_alike_are_expected_like_any_others() {
    let mut gro = Gro::new(GroConfig::default().link(LinkKind::Ip).seed(1));
    let hasher = gro.hasher;
    let hash = |port| hasher.guess::<0>(packet(port, 0).head(), 0).unwrap_or(0);
    let alike = |port: u16| (1..port).find(|other| (hash(*other) ^ hash(port)).is_multiple_of(HEADS as u64));
    let (one, other) = (1..2000).find_map(|port| Some((alike(port)?, port))).unwrap();
    let mut out = (drop, drop);
    for n in 0..4 {
        // Either is expected after the other, once they took turns.
        for (port, next) in [(one, other), (other, one)] {
            gro.push(packet(port, n), 0, &mut out);
            let found = gro.table.find(hash(next)).ok();
            assert!(n < 3 || found == Some(gro.table.expected_slot()));
        }
    }
    assert_eq!(gro.stats().merged, 6);
}
