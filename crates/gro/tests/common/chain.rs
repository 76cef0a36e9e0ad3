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

/// A handle to a chain: for packets that are one word the engine expects flows.
pub struct Handle(pub Box<Chain>);

impl Handle {
    pub fn new(bytes: Vec<u8>, offload: Offload) -> Self {
        Self(Box::new(Chain::new(bytes, offload)))
    }
}

impl Segment for Handle {
    fn head(&self) -> &[u8] {
        self.0.head()
    }
    fn head_mut(&mut self) -> &mut [u8] {
        self.0.head_mut()
    }
    fn packet_len(&self) -> usize {
        self.0.packet_len()
    }
    fn offload(&self) -> Offload {
        self.0.offload()
    }
    fn set_offload(&mut self, offload: Offload) {
        self.0.set_offload(offload);
    }
    fn vlan(&self) -> u32 {
        self.0.vlan()
    }
    fn sum(&self, from: usize) -> u16 {
        self.0.sum(from)
    }
    fn append(&mut self, other: Self, skip: usize, verify: Option<u16>) -> Appended<Self> {
        match self.0.append(*other.0, skip, verify) {
            Appended::Chained => Appended::Chained,
            Appended::Copied(rest) => Appended::Copied(Self(Box::new(rest))),
            Appended::Full(other) => Appended::Full(Self(Box::new(other))),
            Appended::Corrupt(other) => Appended::Corrupt(Self(Box::new(other))),
        }
    }
}
