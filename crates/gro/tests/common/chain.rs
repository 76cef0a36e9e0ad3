//! A segment that chains, as a packet library does: the head is the first piece only.

use towpath_gro::{Appended, Offload, Segment};
use towpath_wire::checksum::{self, VALID};

#[derive(Clone, Debug, Default)]
pub struct Chain {
    pub pieces: Vec<Vec<u8>>,
    pub offload: Offload,
    pub vlan: u32,
}

impl Chain {
    pub fn new(bytes: Vec<u8>, offload: Offload) -> Self {
        Self { pieces: vec![bytes], offload, vlan: 0 }
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.pieces.concat()
    }
}

impl Segment for Chain {
    fn head(&self) -> &[u8] {
        &self.pieces[0]
    }
    fn head_mut(&mut self) -> &mut [u8] {
        &mut self.pieces[0]
    }
    fn packet_len(&self) -> usize {
        self.pieces.iter().map(Vec::len).sum()
    }
    fn offload(&self) -> Offload {
        self.offload
    }
    fn set_offload(&mut self, offload: Offload) {
        self.offload = offload;
    }
    fn vlan(&self) -> u32 {
        self.vlan
    }
    fn sum(&self, from: usize) -> u16 {
        checksum::sum(&self.bytes()[from..])
    }
    fn append(&mut self, other: Self, skip: usize, verify: Option<u16>) -> Appended<Self> {
        if verify.is_some_and(|rest| checksum::add(rest, other.sum(skip)) != VALID) {
            return Appended::Corrupt(other);
        }
        let mut rest = skip;
        for piece in other.pieces {
            let from = rest.min(piece.len());
            rest -= from;
            self.pieces.push(piece[from..].to_vec());
        }
        Appended::Chained
    }
}
