//! Packets in byte buffers, with checksums that are not trusted: the payloads of a flow's packets
//! are copied behind its first one, and summed in the same pass.

use crate::floor::{SLOTS, changing, constant, predict, same, slot};
use crate::mix::{self, HEADER};
use crate::sum::Avx2;
use crate::{BURST, PAYLOAD, ROUNDS, Turns};
use towpath_gro::{Checksum, Gro, GroConfig, Linear, Offload, Segment, Sink};
use towpath_wire::checksum::{VALID, add};

/// Bytes of a packet.
const LEN: usize = HEADER + PAYLOAD;
/// Bytes of a buffer: the longest IP packet behind Ethernet's header.
const ROOM: usize = 65535 + 14;

/// One side of the job.
pub trait Copy {
    type Packet;

    /// The first bytes of a buffer as a packet.
    fn packet(buffer: Box<[u8]>) -> Self::Packet;

    /// A packet's buffer, and its length.
    fn buffer(packet: Self::Packet) -> (Box<[u8]>, usize);

    /// Takes all packets of a burst. They leave to `out`, and those that were copied to `free`.
    fn push(&mut self, burst: &mut Vec<Self::Packet>, out: &mut Left<Self::Packet>);
}

/// The packets that leave, and those whose bytes were copied into another.
pub struct Left<P> {
    packets: Vec<P>,
    free: Vec<P>,
}

impl<P> Sink<P> for &mut Left<P> {
    #[inline]
    fn packet(&mut self, packet: P) {
        self.packets.push(packet);
    }

    #[inline]
    fn recycle(&mut self, packet: P) {
        self.free.push(packet);
    }
}

/// The engine as it is.
pub struct Ours(Gro<Linear<Box<[u8]>>>);

impl Ours {
    pub fn new() -> Ours {
        Ours(Gro::new(GroConfig::default()))
    }
}

impl Copy for Ours {
    type Packet = Linear<Box<[u8]>>;

    fn packet(buffer: Box<[u8]>) -> Self::Packet {
        Linear::new(buffer, LEN, Offload::new(Checksum::Unknown, None))
    }

    fn buffer(packet: Self::Packet) -> (Box<[u8]>, usize) {
        let len = packet.packet_len();
        (packet.into_buffer(), len)
    }

    #[inline]
    fn push(&mut self, burst: &mut Vec<Self::Packet>, mut out: &mut Left<Self::Packet>) {
        self.0.push_and_flush(burst.drain(..), &mut out);
    }
}

/// A buffer, and the length of the packet in it.
pub struct Buffer(Box<[u8]>, usize);

struct Flow {
    held: Option<Buffer>,
    predicted: [u8; HEADER],
    constant: u16,
}

/// The floor: this kind of packet, and buffers that have room.
pub struct Floor {
    flows: Box<[Flow; SLOTS]>,
    open: Vec<u16>,
    avx2: Avx2,
}

impl Floor {
    pub fn new() -> Floor {
        let flows: Vec<Flow> = (0..SLOTS).map(|_| Flow { held: None, predicted: [0; HEADER], constant: 0 }).collect();
        let avx2 = Avx2::new().expect("a processor with AVX2");
        Floor { flows: flows.try_into().ok().expect("as many"), open: Vec::with_capacity(SLOTS), avx2 }
    }

    #[cold]
    #[inline(never)]
    fn open(&mut self, slot: usize, packet: Buffer, out: &mut Left<Buffer>) {
        let flow = &mut self.flows[slot];
        if let Some((header, rest)) = packet.0.split_first_chunk()
            && let Some(payload) = rest.first_chunk()
        {
            flow.constant = constant(header);
            if add(add(flow.constant, changing(header)), self.avx2.sum(payload)) != VALID {
                return out.packets.push(packet);
            }
            flow.predicted = *header;
            predict(&mut flow.predicted, header);
        }
        match flow.held.replace(packet) {
            Some(other) => out.packets.push(other),
            None => self.open.push(slot as u16),
        }
    }
}

/// Copies the payload behind the held packet; `false` if there is no room or the sum is wrong.
#[inline(always)]
fn join(avx2: Avx2, held: &mut Buffer, rest: u16, payload: &[u8; PAYLOAD]) -> bool {
    let Some(to) = held.0.get_mut(held.1..).and_then(|room| room.first_chunk_mut()) else { return false };
    let is_right = add(rest, avx2.copy(to, payload)) == VALID;
    held.1 += if is_right { PAYLOAD } else { 0 };
    is_right
}

impl Copy for Floor {
    type Packet = Buffer;

    fn packet(buffer: Box<[u8]>) -> Buffer {
        Buffer(buffer, LEN)
    }

    fn buffer(Buffer(buffer, len): Buffer) -> (Box<[u8]>, usize) {
        (buffer, len)
    }

    #[inline]
    fn push(&mut self, burst: &mut Vec<Buffer>, out: &mut Left<Buffer>) {
        for packet in burst.drain(..) {
            let Some((header, rest)) = packet.0.split_first_chunk() else { continue };
            let slot = slot(header);
            let flow = &mut self.flows[slot];
            if packet.1 == LEN
                && let Some(payload) = rest.first_chunk()
                && let Some(held) = &mut flow.held
                && same(&flow.predicted, header)
                && join(self.avx2, held, add(flow.constant, changing(header)), payload)
            {
                predict(&mut flow.predicted, header);
                out.free.push(packet);
            } else {
                self.open(slot, packet, out);
            }
        }
        for slot in self.open.drain(..) {
            out.packets.extend(self.flows[usize::from(slot)].held.take());
        }
    }
}

/// Bursts through a side of the job.
pub struct Bursts<C: Copy> {
    side: C,
    burst: Vec<C::Packet>,
    left: Left<C::Packet>,
    free: Vec<Box<[u8]>>,
    mix: Vec<Vec<u8>>,
    next: usize,
    /// Bytes that left.
    bytes: u64,
}

impl<C: Copy> Bursts<C> {
    pub fn new(side: C, flows: usize) -> Bursts<C> {
        let mut bursts = Bursts {
            side,
            burst: Vec::with_capacity(BURST),
            left: Left { packets: Vec::with_capacity(BURST), free: Vec::with_capacity(BURST) },
            free: (0..BURST).map(|_| vec![0; ROOM].into()).collect(),
            mix: mix::packets(flows, PAYLOAD, BURST, ROUNDS * flows.div_ceil(BURST), ROUNDS),
            next: 0,
            bytes: 0,
        };
        bursts.fill();
        bursts
    }

    fn fill(&mut self) {
        for mut buffer in self.free.drain(..) {
            buffer[..LEN].copy_from_slice(&self.mix[self.next]);
            self.next = (self.next + 1) % self.mix.len();
            self.burst.push(C::packet(buffer));
        }
    }
}

impl<C: Copy> Turns for Bursts<C> {
    #[inline]
    fn turn(&mut self) -> usize {
        self.side.push(&mut self.burst, &mut self.left);
        self.left.packets.len()
    }

    fn leave(&mut self) {
        for packet in self.left.packets.drain(..) {
            let (buffer, len) = C::buffer(packet);
            self.bytes += len as u64;
            self.free.push(buffer);
        }
        self.free.extend(self.left.free.drain(..).map(|packet| C::buffer(packet).0));
        self.fill();
    }

    fn result(&mut self) -> u64 {
        self.bytes
    }
}
