//! `tx=template`: the frames of a generator, made in the kernel by a program.
//!
//! ```text
//!   gen: ── first packet of each flow ──► memory of a map
//!                                            │ program: flow = next++ mod flows
//!                                            │   identification + 1, number of the tag + 1, TCP sequence + payload,
//!                                            │   both checksums by their difference (RFC 1624)
//!                                            └─► copy into a frame ──► device
//! ```
//!
//! The frames are those that `gen:` makes, in the same order and with the same bytes. One call
//! makes [`CALL`] of them. The port's receive queue makes, sends and counts; its transmit queue
//! only counts.

use super::program::{self, FRAMES, MAX_LEN, ROOM};
use super::tx::TxAccount;
use super::{BATCH, LiveProgram};
use crate::generator;
use crate::generator::GenPort;
use crate::xdp::tx::LINK_LEN;
use crate::xdp::{Config, errors};
use std::io;
use std::sync::Arc;
use std::time::Instant;
use towpath_packet::port::{Calls, Info, Layer, Needs, Port, PortError, Queues, RxQueue, Start, State, TxQueue, Wake};
use towpath_packet::{Backing, Batch, Cache, Counters, Direction, DropReason, Offloads, Pool, PoolConfig};
use towpath_sys::bpf::asm::{Alu, Asm, If, Label, R1, R2, R5, R9, Reg, Size};
use towpath_sys::netdev::Control;
use towpath_sys::netdev_genl::Device;
use towpath_sys::netns;
use towpath_wire::dissect::Stop;
use towpath_wire::ip::protocol;
use towpath_wire::{LinkKind, dissect, ethernet};

/// An interface, and the frames to send to it.
#[derive(Debug)]
pub struct TemplatePort {
    info: Info,
    live: LiveProgram,
    account: TxAccount,
    len: u64,
    count: Option<u64>,
}

/// Makes the interface of `config` a generator of the frames that `frames` describes.
///
/// # Errors
/// [`PortError::Option`] for frames that no template can make, or a device that accepts none;
/// otherwise as [`open`](crate::xdp::open).
pub fn open_templates(config: &Config, frames: &generator::Config) -> Result<TemplatePort, PortError> {
    config.check()?;
    let templates = Templates::new(frames)?;
    let failed = |step: &'static str| errors::os_error(config, step);
    let opened = netns::within(config.netns.as_deref(), || {
        let control = Control::new().map_err(failed("socket"))?;
        let index = control.index(&config.interface).map_err(failed("find the interface"))?;
        let mtu = control.mtu(&config.interface).map_err(failed("SIOCGIFMTU"))?;
        let driver = control.driver(&config.interface).unwrap_or_default();
        let device = Device::new(index).map_err(failed("socket(AF_NETLINK)"))?;
        super::possible(device.features().ok())
            .map_err(|why| config.error("tx", "template", format!("{why} ({})", super::hint(&driver))))?;
        let account = TxAccount::new(Arc::new(control), index).map_err(failed("socket(AF_NETLINK)"))?;
        Ok((index, mtu, account))
    });
    let (index, mtu, account) = opened.map_err(errors::netns_error(config))??;
    let len = templates.frames.first().map_or(0, Vec::len);
    if len > mtu as usize + LINK_LEN {
        return Err(config.error(
            "size",
            len,
            format!("must be at most {}, the interface's MTU and a link header", mtu + ethernet::HEADER_LEN as u32),
        ));
    }
    let info = Info::new(config.port(), Layer::Ethernet, mtu)
        .with_max_chunks(u16::MAX)
        .with_offloads(Offloads::ALL, Offloads::NONE)
        .with_finite(frames.count.is_some());
    let live = LiveProgram::from_templates(config, index, &templates)?;
    Ok(TemplatePort { info, live, account, len: len as u64, count: frames.count })
}

impl Port for TemplatePort {
    type Rx = TemplateRx;
    type Tx = TemplateTx;

    fn info(&self) -> &Info {
        &self.info
    }

    fn needs(&self) -> Needs {
        Needs::none().calls([Calls::Sockets, Calls::Interface, Calls::ProgramRun])
    }

    fn start(self, start: Start) -> Result<Queues<TemplateRx, TemplateTx>, PortError> {
        let failed = |source| PortError::Pool { port: self.info.name.clone(), source };
        let cache = start.pool.cache(Direction::Tx).map_err(failed)?;
        let sent = Arc::<Counters>::default();
        let tx = TemplateTx { cache, counters: sent.clone() };
        let TemplatePort { live, account, len, count, .. } = self;
        let rx = TemplateRx { live, account, len, left: count, state: State::Up, sent, counters: Arc::default() };
        Ok(Queues { rx: vec![rx], tx: vec![tx] })
    }
}

/// Makes frames and sends them; receives none.
#[derive(Debug)]
pub struct TemplateRx {
    live: LiveProgram,
    account: TxAccount,
    len: u64,
    left: Option<u64>,
    state: State,
    sent: Arc<Counters>,
    counters: Arc<Counters>,
}

impl TemplateRx {
    fn update(&mut self) {
        self.state = self.account.update(&self.sent);
        if self.left == Some(0) && !self.state.ended() {
            self.state = State::Done;
        }
    }
}

impl RxQueue for TemplateRx {
    fn rx(&mut self, _out: &mut Batch) -> usize {
        let want = self.left.unwrap_or(u64::MAX).min(CALL.into()) as u32;
        if self.state == State::Up && want > 0 {
            let result = self.live.run(want, BATCH);
            let made = self.live.take_made();
            self.sent.called(1);
            if let Err(error) = result
                && error.raw_os_error() != Some(libc::EINTR)
            {
                self.sent.failed(1);
                self.state = State::Gone(format!("the kernel does not run the program: {error}").into());
            }
            self.counters.moved(made, made * self.len);
            self.account.submitted(made, made * self.len);
            if let Some(left) = &mut self.left {
                *left = left.saturating_sub(made);
            }
        }
        if self.account.is_due() || self.left == Some(0) && self.state == State::Up {
            self.update();
        }
        0
    }

    fn state(&self) -> State {
        self.state.clone()
    }

    /// The next call can be made at once.
    fn wake(&self) -> Wake {
        match self.state {
            State::Up => Wake::At(Instant::now()),
            State::Down(_) => Wake::Poll,
            State::Done | State::Gone(_) => Wake::Never,
        }
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}

impl Drop for TemplateRx {
    /// Counts the last frames.
    fn drop(&mut self) {
        self.account.update(&self.sent);
    }
}

/// Counts the frames of [`TemplateRx`]; refuses all packets.
#[derive(Debug)]
pub struct TemplateTx {
    cache: Cache,
    counters: Arc<Counters>,
}

impl TxQueue for TemplateTx {
    fn tx(&mut self, batch: &mut Batch) -> usize {
        let n = batch.len();
        self.counters.dropped(DropReason::Refused, n as u64);
        self.cache.free_bulk(batch);
        n
    }

    fn offloads(&self) -> Offloads {
        Offloads::NONE
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}

/// Frames of one call: some milliseconds, which bounds the time to stop.
pub(super) const CALL: u32 = 16384;
/// Offset of the number in the payload's tag.
const NUMBER: usize = 6;
/// The first bytes of a tag.
const MAGIC: &[u8] = b"tp";

/// Offsets in the frame of the words that change from packet to packet; the same in all flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FieldOffsets {
    /// Identification and checksum of IPv4.
    ipv4: Option<(usize, usize)>,
    /// TCP's sequence number, and its increment.
    sequence: Option<(usize, u32)>,
    /// The tag's number.
    number: Option<usize>,
    /// The transport checksum, and whether it is UDP's, which is never zero.
    check: (usize, bool),
}

/// The first packet of each flow.
#[derive(Debug)]
pub(super) struct Templates {
    pub(super) frames: Vec<Vec<u8>>,
    pub(super) offsets: FieldOffsets,
}

impl Templates {
    /// Makes the templates with a generator.
    ///
    /// # Errors
    /// [`PortError::Option`] for more than 4096 flows, varying lengths, a rate, or segmentation.
    pub(super) fn new(config: &generator::Config) -> Result<Templates, PortError> {
        let error = |option: &str, value: String, rule: &str| PortError::Option {
            port: "gen:".to_owned(),
            option: option.to_owned(),
            value,
            rule: format!("{rule}, to be made in the kernel (tx=template); tx=live takes all"),
        };
        let generator::Size::Fixed(size) = config.size else {
            return Err(error("size", format!("{:?}", config.size), "must be one length"));
        };
        if size as usize > MAX_LEN || config.flows as usize > FRAMES || size as usize * config.flows as usize > ROOM / 2
        {
            return Err(error(
                "size",
                format!("{size} in {} flows", config.flows),
                "must fit into 1 MiB, in at most 4096 flows",
            ));
        }
        if let Some(rate) = config.rate {
            return Err(error("rate", rate.to_string(), "can't be paced"));
        }
        if config.payload == generator::Payload::Stale {
            return Err(error("payload", "stale".to_owned(), "must be random"));
        }
        if config.template.is_some() {
            return Err(error("template", "FILE".to_owned(), "must be left out"));
        }
        if config.stamp == generator::Stamps::Time {
            return Err(error("stamp", "time".to_owned(), "can't be written"));
        }
        if let Some(segment) = config.gso {
            return Err(error("gso", segment.to_string(), "can't be segmented"));
        }
        let generator = generator::open(generator::Config { count: None, ..config.clone() })?;
        let frames = first_packets(generator, config.flows as usize)?;
        let offsets = frames.first().and_then(|frame| field_offsets(frame));
        let offsets = offsets.ok_or_else(|| error("proto", format!("{:?}", config.protocol), "must be UDP or TCP"))?;
        Ok(Templates { frames, offsets })
    }
}

fn first_packets(generator: GenPort, flows: usize) -> Result<Vec<Vec<u8>>, PortError> {
    let config = PoolConfig::default().capacity(256).chunk(4096).backing(Backing::Anonymous);
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

fn field_offsets(frame: &[u8]) -> Option<FieldOffsets> {
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
    Some(FieldOffsets { ipv4, sequence, number: tagged.then_some(payload + NUMBER), check })
}

/// The program: sends the frames of `flows` templates in `memory` to the first device of `devices`.
/// A template is sent, then advanced.
pub(super) fn program(memory: i32, devices: i32, flows: u32, offsets: &FieldOffsets) -> io::Result<Vec<u64>> {
    let mut a = Asm::default();
    let drop = a.label();
    program::begin(&mut a, memory, Some(flows), drop);
    program::store(&mut a, drop);
    advance(&mut a, offsets);
    program::end(a, devices, drop)
}

/// Advances the template at `R9` to the next packet of its flow.
fn advance(a: &mut Asm, offsets: &FieldOffsets) {
    if let Some((id, check)) = offsets.ipv4 {
        load_sum(a, check);
        a.load(Size::B2, R1, R9, id as i16);
        a.be_to_host(R1, 16);
        a.reg(Alu::Sub, R5, R1);
        a.imm(Alu::Add, R1, 1);
        a.imm(Alu::And, R1, 0xffff);
        a.reg(Alu::Add, R5, R1);
        a.be_to_host(R1, 16);
        a.store(Size::B2, R9, id as i16, R1);
        store_sum(a, check, None);
    }
    let (check, udp) = offsets.check;
    let number = offsets.number.map(|at| (at, 1));
    if number.is_none() && offsets.sequence.is_none() {
        return;
    }
    load_sum(a, check);
    for (at, by) in number.into_iter().chain(offsets.sequence) {
        a.load(Size::B4, R1, R9, at as i16);
        a.be_to_host(R1, 32);
        add_halves(a, Alu::Sub, R1);
        a.imm(Alu::Add, R1, by as i32);
        for op in [Alu::Left, Alu::Right] {
            a.imm(op, R1, 32);
        }
        add_halves(a, Alu::Add, R1);
        a.be_to_host(R1, 32);
        a.store(Size::B4, R9, at as i16, R1);
    }
    let never_zero = udp.then(|| a.label());
    store_sum(a, check, never_zero);
}

/// `R5 = ` the sum behind the checksum at `check`, plus a multiple of 0xffff, which changes no sum
/// of this kind and keeps the later differences positive.
fn load_sum(a: &mut Asm, check: usize) {
    a.load(Size::B2, R5, R9, check as i16);
    a.be_to_host(R5, 16);
    a.imm(Alu::Xor, R5, 0xffff);
    a.imm(Alu::Add, R5, 4 * 0xffff);
}

/// `R5 op= ` both halves of `number`.
fn add_halves(a: &mut Asm, op: Alu, number: Reg) {
    a.reg(Alu::Mov, R2, number);
    a.imm(Alu::Right, R2, 16);
    a.reg(op, R5, R2);
    a.reg(Alu::Mov, R2, number);
    a.imm(Alu::And, R2, 0xffff);
    a.reg(op, R5, R2);
}

/// Folds `R5`, inverts it and stores it as the checksum; with `never_zero`, zero becomes 0xffff.
fn store_sum(a: &mut Asm, check: usize, never_zero: Option<Label>) {
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
    a.be_to_host(R5, 16);
    a.store(Size::B2, R9, check as i16, R5);
}
