//! `tx=template`: the frames of a generator, made in the kernel.
//!
//! ```text
//!   gen: ── first packet of each flow ──► memory of a map
//!                                            │ program: flow = next++ mod flows
//!                                            │   identification + 1, number of the tag + 1, TCP sequence + payload,
//!                                            │   both checksums by what changed (RFC 1624)
//!                                            └─► copy into a frame ──► device
//! ```
//!
//! The frames are those that `gen:` makes, in its order, byte by byte; nothing crosses from the process to the kernel but a call for
//! [`CALL`] of them. The port is the generator: its receive queue makes and sends, and counts both.

use super::program::{self, FRAMES, LONGEST, ROOM};
use crate::generator::{self, GenPort};
use towpath_packet::port::{Port, PortError, RxQueue, Start};
use towpath_packet::{Backing, Batch, Offloads, Pool, PoolConfig};
use towpath_sys::bpf::asm::{Alu, Asm, If, Label, R1, R2, R5, R9, Reg, Size};
use towpath_wire::dissect::Stop;
use towpath_wire::ip::protocol;
use towpath_wire::{LinkKind, dissect};

/// Frames of one call: some milliseconds, after which the process can stop.
pub(super) const CALL: u32 = 16384;
/// Where the number is in the payload's tag.
const NUMBER: usize = 6;
/// What a tag begins with.
const MAGIC: &[u8] = b"tp";

/// Where the words are that change from packet to packet, from the first byte of the frame; the same in all flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Places {
    /// Identification and checksum of IPv4.
    ipv4: Option<(usize, usize)>,
    /// TCP's sequence number, and by how much it grows.
    sequence: Option<(usize, u32)>,
    /// The tag's number.
    number: Option<usize>,
    /// The transport's checksum, and whether it is UDP's, which is never zero.
    check: (usize, bool),
}

/// The first packet of each flow.
#[derive(Debug)]
pub(super) struct Templates {
    pub(super) frames: Vec<Vec<u8>>,
    pub(super) places: Places,
}

impl Templates {
    /// Asks the generator for them.
    ///
    /// # Errors
    /// [`PortError::Option`] for what templates can't do: more than 1024 flows, lengths that vary, a pace, segmentation.
    pub(super) fn new(config: &generator::Config) -> Result<Templates, PortError> {
        let error = |option: &str, value: String, rule: &str| PortError::Option {
            port: "gen:".to_owned(),
            option: option.to_owned(),
            value,
            rule: format!("{rule}, to be made in the kernel (tx=template); tx=live takes all"),
        };
        let generator::Size::Fixed(size) = config.size else {
            return Err(error("size", "imix".to_owned(), "must be one length"));
        };
        if size as usize > LONGEST || config.flows as usize > FRAMES || size as usize * config.flows as usize > ROOM / 2
        {
            return Err(error(
                "size",
                format!("{size} in {} flows", config.flows),
                "must fit into 1 MiB, in at most 1024 flows",
            ));
        }
        if let Some(rate) = config.rate {
            return Err(error("rate", rate.to_string(), "can't be paced"));
        }
        if config.payload == generator::Payload::Stale {
            return Err(error("payload", "stale".to_owned(), "must be random"));
        }
        if let Some(segment) = config.gso {
            return Err(error("gso", segment.to_string(), "can't be segmented"));
        }
        let generator = generator::open(generator::Config { count: None, ..config.clone() })?;
        let frames = first(generator, config.flows as usize)?;
        let places = frames.first().and_then(|frame| places(frame));
        let places = places.ok_or_else(|| error("proto", format!("{:?}", config.protocol), "must be UDP or TCP"))?;
        Ok(Templates { frames, places })
    }
}

fn first(generator: GenPort, flows: usize) -> Result<Vec<Vec<u8>>, PortError> {
    let config = PoolConfig { capacity: 256, chunk: 4096, backing: Backing::Anonymous, ..PoolConfig::default() };
    let pool = Pool::new(config).map_err(|source| PortError::Pool { port: "gen:".to_owned(), source })?;
    let mut queues = generator.start(Start { pool, queues: 1, accept: Offloads::NONE })?;
    let (mut frames, mut batch) = (Vec::new(), Batch::new());
    while let Some(rx) = queues.rx.first_mut()
        && frames.len() < flows
        && rx.rx(&mut batch) > 0
    {
        frames.extend(batch.drain_front(64).map(|packet| packet.to_vec()));
    }
    frames.truncate(flows);
    Ok(frames)
}

fn places(frame: &[u8]) -> Option<Places> {
    let found = dissect(frame, LinkKind::Ethernet);
    if found.stop != Stop::Complete {
        return None;
    }
    let (l3, l4, payload) = (usize::from(found.l3), usize::from(found.l4), usize::from(found.payload));
    let tagged = frame.get(payload..payload + MAGIC.len()) == Some(MAGIC);
    let (sequence, check) = match found.flow.protocol {
        protocol::UDP => (None, (l4 + 6, true)),
        protocol::TCP => (Some((l4 + 4, (frame.len() - payload) as u32)), (l4 + 16, false)),
        _ => return None,
    };
    let ipv4 = found.is_ipv4().then_some((l3 + 4, l3 + 10));
    Some(Places { ipv4, sequence, number: tagged.then_some(payload + NUMBER), check })
}

/// The frames of `flows` templates in `memory`, to the first device of `devices`. The template goes first, then it is moved on.
pub(super) fn program(memory: i32, devices: i32, flows: u32, places: &Places) -> Vec<u64> {
    let mut a = Asm::default();
    let drop = a.label();
    program::begin(&mut a, memory, Some(flows), drop);
    program::store(&mut a, drop);
    move_on(&mut a, places);
    program::end(a, devices, drop)
}

/// Makes the template at `R9` the next packet of its flow.
fn move_on(a: &mut Asm, places: &Places) {
    if let Some((id, check)) = places.ipv4 {
        begin(a, check);
        a.load(Size::B2, R1, R9, id as i16);
        a.order_of_host(R1, 16);
        a.reg(Alu::Sub, R5, R1);
        a.imm(Alu::Add, R1, 1);
        a.imm(Alu::And, R1, 0xffff);
        a.reg(Alu::Add, R5, R1);
        a.order_of_host(R1, 16);
        a.store(Size::B2, R9, id as i16, R1);
        end(a, check, None);
    }
    let (check, udp) = places.check;
    let number = places.number.map(|at| (at, 1));
    if number.is_none() && places.sequence.is_none() {
        return;
    }
    begin(a, check);
    for (at, by) in number.into_iter().chain(places.sequence) {
        a.load(Size::B4, R1, R9, at as i16);
        a.order_of_host(R1, 32);
        halves(a, Alu::Sub, R1);
        a.imm(Alu::Add, R1, by as i32);
        for op in [Alu::Left, Alu::Right] {
            a.imm(op, R1, 32);
        }
        halves(a, Alu::Add, R1);
        a.order_of_host(R1, 32);
        a.store(Size::B4, R9, at as i16, R1);
    }
    let never_zero = udp.then(|| a.label());
    end(a, check, never_zero);
}

/// `R5` becomes the sum behind the checksum at `check`, and so much more that what is subtracted leaves it positive: a multiple
/// of 0xffff, which is nothing to a sum of that kind.
fn begin(a: &mut Asm, check: usize) {
    a.load(Size::B2, R5, R9, check as i16);
    a.order_of_host(R5, 16);
    a.imm(Alu::Xor, R5, 0xffff);
    a.imm(Alu::Add, R5, 4 * 0xffff);
}

/// `R5 op= ` both halves of `number`.
fn halves(a: &mut Asm, op: Alu, number: Reg) {
    a.reg(Alu::Mov, R2, number);
    a.imm(Alu::Right, R2, 16);
    a.reg(op, R5, R2);
    a.reg(Alu::Mov, R2, number);
    a.imm(Alu::And, R2, 0xffff);
    a.reg(op, R5, R2);
}

/// Folds `R5`, inverts it and stores it as the checksum; zero becomes 0xffff where it must not be zero.
fn end(a: &mut Asm, check: usize, never_zero: Option<Label>) {
    for _ in 0..2 {
        a.reg(Alu::Mov, R2, R5);
        a.imm(Alu::Right, R2, 16);
        a.imm(Alu::And, R5, 0xffff);
        a.reg(Alu::Add, R5, R2);
    }
    a.imm(Alu::Xor, R5, 0xffff);
    if let Some(label) = never_zero {
        a.jump_imm(If::Differs, R5, 0, label);
        a.imm(Alu::Mov, R5, 0xffff);
        a.place(label);
    }
    a.order_of_host(R5, 16);
    a.store(Size::B2, R9, check as i16, R5);
}
