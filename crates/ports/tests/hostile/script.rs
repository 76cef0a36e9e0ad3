//! The actions of an application, read from bytes: valid and invalid frames, words at any place of
//! the rings and its memory, opening and closing sessions. In between the queues are stepped, and
//! an honest application works.
//!
//! A property test runs the same function on random bytes, and the fuzz target `sock` on chosen
//! ones.

use crate::rig::{Honest, Rig, udp, until};
use crate::rogue::{CHUNK, COUNT, PORT, Rogue, hello, super_packet};
use std::collections::VecDeque;
use std::os::fd::AsFd;
use towpath_client::Umem;
use towpath_client::protocol::{HEADER, Hello, MAX_PIECES, MAX_SUPER_PIECES, Sizes};
use towpath_packet::port::{RxQueue, TxQueue};
use towpath_packet::xsk_ring::Desc;
use towpath_packet::{Batch, Checksum, Packet};
use towpath_sys::seqpacket;

/// The input, a byte at a time; zeros after its end.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn word(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    fn long(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// An address of a chunk, mostly of an existing one.
    fn chunk(&mut self) -> u64 {
        u64::from(self.byte()) % (u64::from(COUNT) + 2) * CHUNK
    }
}

/// Packets in flight at a time: the pool has more heads than that.
const HELD: usize = 100;
/// Longest packet that is sent, without its Ethernet header.
const MTU: usize = 4000;

/// Sessions of the rogue in a script.
const SESSIONS: u64 = 3;

/// A port with an honest application, at which scripts are followed one after the other.
pub(crate) struct Stage {
    rig: Rig,
    honest: Honest,
    copies: bool,
}

impl Stage {
    /// A stage of one of eight kinds.
    pub(crate) fn new(kind: u8) -> Stage {
        let (budget, copies) = (4096u64 << (kind % 4 * 2), kind & 4 != 0);
        let mut rig = Rig::new(&format!("mtu={MTU},budget={budget},tx={}", if copies { "copy" } else { "auto" }));
        let honest = Honest::new(&mut rig, &Umem::new(256, 2048).unwrap());
        Stage { rig, honest, copies }
    }

    /// Follows a script.
    ///
    /// # Panics
    /// If a packet is not as it may be, the honest application loses one or gets another one's, or
    /// a page or a buffer is missing in the end.
    pub(crate) fn follow(&mut self, script: &[u8]) {
        let Stage { rig, honest, copies } = self;
        let mut input = Input(script);
        let mut held: VecDeque<Packet> = VecDeque::new();
        let end = rig.event("sessions-ended") + SESSIONS;
        while !input.0.is_empty() && rig.event("sessions-ended") < end {
            let ended = rig.event("sessions-ended");
            let mut rogue = Rogue::connect(rig, &introduce(&mut input));
            while !input.0.is_empty() && rig.event("sessions-ended") == ended {
                if !act(&mut input, rig, &mut rogue, &mut held) {
                    break;
                }
                turn(rig, honest, *copies, &mut held);
            }
            drop(rogue);
            until(|| {
                drop(honest.turn(rig, 0, &[]));
                rig.event("sessions-ended") > ended
            });
        }
        held.clear();
        (0..3).for_each(|_| drop(honest.turn(rig, 0, &[])));
        assert_eq!((honest.sent, honest.got), (honest.offered, honest.expected));
        until(|| {
            drop(honest.turn(rig, 0, &[]));
            honest.has_completed()
        });
        rig.assert_balance();
    }

    /// Ends the port.
    pub(crate) fn end(mut self) {
        self.honest.end(&mut self.rig);
        self.rig.end();
    }
}

/// Its message, always a valid one.
fn introduce(input: &mut Input<'_>) -> Hello {
    let how = input.byte();
    let size = |bits: u8| 2 << (((how >> bits) & 3) * 2);
    let rings = Sizes { fill: size(0), completion: size(2), rx: size(4), tx: size(6) };
    let more = input.byte();
    let headroom = u32::from(more >> 4) * 64;
    let [pieces, one_descriptor, unaligned, offloads] = [1, 2, 4, 8].map(|bit| more & bit != 0);
    // Offloads need both.
    let offloads = offloads && pieces && headroom > 0;
    let skip_invalid = input.byte() & 1 != 0;
    let (tx_metadata, segmentation) = match input.byte() % 4 {
        0 => (0, false),
        1 => (16, false),
        asks => (HEADER as u32, asks == 2),
    };
    Hello {
        rings,
        headroom,
        pieces,
        one_descriptor,
        skip_invalid,
        unaligned,
        offloads,
        tx_metadata,
        segmentation,
        ..hello()
    }
}

/// The rogue does one thing; false if it leaves.
fn act(input: &mut Input<'_>, rig: &mut Rig, rogue: &mut Rogue, held: &mut VecDeque<Packet>) -> bool {
    match input.byte() % 18 {
        0..=3 => {
            let n = input.byte() % 4 + 1;
            let frames = (0..n).map(|_| (input.chunk(), u32::from(input.word()) % 2049, u32::from(input.byte() & 1)));
            let frames: Vec<_> = frames.collect();
            rogue.send(&frames);
        }
        4 => rogue.send(&[(input.long(), u32::from(input.word()), u32::from(input.byte()))]),
        5 | 6 => {
            let chunks: Vec<_> = (0..input.byte() % 8).map(|_| input.chunk() + u64::from(input.byte())).collect();
            rogue.post(&chunks);
        }
        7 => rogue.post(&[input.long()]),
        8 => rogue.scribble(input.word().into(), input.long() as u32),
        9 => rogue.scrawl(input.word().into(), input.long() as u32),
        10 => drop((rogue.reap(), rogue.drain())),
        11 => {
            let (n, len) = (u32::from(input.byte() % 20), usize::from(input.word()) % 9000);
            rig.send(&(0..n).map(|i| udp(PORT, len, i)).collect::<Vec<_>>());
        }
        12 => {
            for _ in 0..input.byte() {
                let at = usize::from(input.byte()) % held.len().max(1);
                drop(held.swap_remove_back(at));
            }
        }
        13 => {
            rogue.kick();
            let _ = (rig.rx.wake(), rig.tx.wake());
        }
        14 => {
            let desc = Desc { addr: input.chunk(), len: 60, options: 0 };
            // Entries behind the counters, and counters without entries.
            rogue.stage(desc);
            rogue.fill.write(input.chunk());
        }
        15 | 16 => ask(input, rogue),
        _ if input.byte().is_multiple_of(8) => {
            let _ = seqpacket::send(rogue.connection.as_fd(), &[input.byte()], &[rogue.kick.as_fd()]);
            return false;
        }
        _ => {}
    }
    true
}

/// The rogue asks for segmentation of a packet of one frame or more, perhaps with wrong fields.
fn ask(input: &mut Input<'_>, rogue: &mut Rogue) {
    let (mut header, mut start) = super_packet(input.word() % 1500);
    for _ in 0..input.byte() % 4 {
        let (at, byte) = (usize::from(input.byte()), input.byte());
        if let Some(place) = header.iter_mut().chain(&mut start).nth(at % (HEADER + 54)) {
            *place = byte;
        }
    }
    let at = rogue.describe(input.chunk(), &header, &start);
    let mut frames = vec![(at, u32::from(input.word()) % 2033, Desc::METADATA)];
    frames.extend((0..input.byte() % 20).map(|_| (input.chunk(), u32::from(input.word()) % 2049, 0)));
    let last = frames.len() - 1;
    frames[..last].iter_mut().for_each(|frame| frame.2 |= Desc::CONTINUED);
    rogue.send(&frames);
}

/// Steps the queues, checks the packets that come, and holds them.
fn turn(rig: &mut Rig, honest: &mut Honest, copies: bool, held: &mut VecDeque<Packet>) {
    let mut batch: Batch = honest.turn(rig, 1, &[]);
    while let Some(packet) = batch.pop() {
        let bytes = packet.to_vec();
        // Packets with metadata may have headers in a head of their own, and super-packets may be
        // longer than their segments.
        let asks = matches!(packet.csum(), Checksum::Partial { .. });
        let (len, most) = match packet.gso() {
            Some(gso) => (usize::from(gso.hdr_len + gso.size), MAX_SUPER_PIECES),
            None => (bytes.len(), if asks { MAX_SUPER_PIECES } else { MAX_PIECES }),
        };
        assert!(bytes.len() == packet.len() && (14..=MTU + 22).contains(&len), "{} bytes, {len}", bytes.len());
        assert!((asks || packet.linear().is_empty() != copies) && packet.frags() <= most);
        held.push_back(packet);
    }
    held.drain(..held.len().saturating_sub(HELD)).for_each(drop);
}
