//! The device: frames, headers, and the control queue (virtio 1.2 §5.1).

use super::command::{Change, Filter};
use super::common::{Common, DRIVER_OK, NEEDS_RESET};
use super::faults::Injector;
use super::queue::{Broken, Chain, Features, Queue};
use super::{Config, Counts};
use crate::iommu::{ModelDma, Transfer};
use crate::violation::{Ring, Violation, Violations};
use crate::wire::Wire;
use std::collections::VecDeque;
use std::sync::Arc;
use towpath_sys::EventFd;

/// Frames per direction and turn.
const BURST: usize = 64;
/// Bytes of the header in front of each frame (§5.1.6).
const HEADER: usize = 12;
/// Bytes of a receive chain, if super-packets come and buffers are not mergeable (§5.1.6.3.1).
const SUPER_BUFFER: usize = 65562;
/// Bytes of a longer frame than this are a super-packet, if these were negotiated.
const ETHERNET: usize = 1514;
/// Flag of a header: its checksum is to be completed.
const NEEDS_CSUM: u8 = 1;

/// Bits of the features that matter here.
const CSUM: u64 = 1;
const GUEST_TSO4: u64 = 1 << 7;
const MRG_RXBUF: u64 = 1 << 15;
const MQ: u64 = 1 << 22;

/// A queue, with the chains that were taken of it.
struct Running {
    queue: Queue,
    held: VecDeque<Chain>,
}

/// The device.
pub(super) struct Machine {
    pub(super) common: Common,
    queues: Vec<Option<Running>>,
    wire: Box<dyn Wire>,
    injector: Injector,
    filter: Filter,
    factory_mac: [u8; 6],
    mac: [u8; 6],
    max_pairs: u16,
    pairs: u16,
    link: bool,
    announce: bool,
    announced: bool,
    stalled: bool,
    /// A frame for which there was no buffer yet.
    waiting: Option<Vec<u8>>,
    /// Messages are signalled here.
    pub(super) messages: Vec<Arc<EventFd>>,
    pub(super) isr: u8,
    pub(super) counts: Counts,
    violations: Arc<Violations>,
}

impl Machine {
    pub(super) fn new(config: &Config, messages: u16, violations: Arc<Violations>, wire: Box<dyn Wire>) -> Machine {
        let pairs = config.pairs.clamp(1, 16);
        let queues = usize::from(pairs) * 2 + 1;
        Machine {
            common: Common::new(config, queues, messages, violations.clone()),
            queues: (0..queues).map(|_| None).collect(),
            wire,
            injector: Injector::new(config.faults),
            filter: Filter::default(),
            factory_mac: config.mac,
            mac: config.mac,
            max_pairs: pairs,
            pairs: 1,
            link: true,
            announce: false,
            announced: false,
            stalled: false,
            waiting: None,
            messages: Vec::new(),
            isr: 0,
            counts: Counts::default(),
            violations,
        }
    }

    /// As after power-on: nothing of the driver's memory is accessed any more.
    pub(super) fn reset(&mut self, dma: &ModelDma) {
        let mut transfer = dma.transfer();
        for running in self.queues.iter_mut().filter_map(Option::take) {
            Queue::drop_chains(&mut transfer, &running.held);
        }
        self.common.reset();
        (self.filter, self.mac, self.pairs) = (Filter::default(), self.factory_mac, 1);
        (self.stalled, self.waiting, self.isr, self.announce, self.announced) = (false, None, 0, false, false);
    }

    /// The control queue is behind the pairs that can be used (§5.1.2).
    fn control_queue(&self) -> usize {
        2 * usize::from(if self.common.features() & MQ != 0 { self.max_pairs } else { 1 })
    }

    /// The driver enabled a queue.
    pub(super) fn start(&mut self, index: u16) {
        let at = usize::from(index);
        let Some(registers) = self.common.queues.get(at).copied() else { return };
        let features = Features::of(self.common.features());
        let ring = if index.is_multiple_of(2) { Ring::Rx((index / 2) as u8) } else { Ring::Tx((index / 2) as u8) };
        let queue = Queue::new(ring, registers.size, registers.areas, features, self.violations.clone());
        if let Some(place) = self.queues.get_mut(at) {
            *place = Some(Running { queue, held: VecDeque::new() });
        }
    }

    /// A byte of the device's configuration (§5.1.4).
    pub(super) fn config_byte(&self, at: usize) -> u8 {
        let [a, b, c, d, e, f] = self.factory_mac;
        let status = u16::from(self.link) | u16::from(self.announce) << 1;
        let ([g, h], [i, j]) = (status.to_le_bytes(), self.max_pairs.to_le_bytes());
        [a, b, c, d, e, f, g, h, i, j].get(at).copied().unwrap_or(0)
    }

    pub(super) fn pairs_in_use(&self) -> u16 {
        self.pairs
    }

    pub(super) fn is_announced(&self) -> bool {
        self.announced
    }

    pub(super) fn set_link(&mut self, up: bool) {
        self.link = up;
        self.config_changed();
    }

    pub(super) fn ask_for_announcement(&mut self) {
        (self.announce, self.announced) = (true, false);
        self.config_changed();
    }

    /// The device can't go on (§2.1.2).
    pub(super) fn fail(&mut self) {
        let runs = self.common.status & DRIVER_OK != 0;
        self.common.status |= NEEDS_RESET;
        if runs {
            self.config_changed();
        }
    }

    fn config_changed(&mut self) {
        self.common.generation = self.common.generation.wrapping_add(1);
        self.isr |= 2;
        self.message(self.common.config_vector);
    }

    /// Sends a message, unless a fault loses it.
    fn message(&mut self, vector: u16) {
        if let Some(event) = self.messages.get(usize::from(vector))
            && !self.injector.happens(|f| f.message)
        {
            event.signal();
            self.counts.messages += 1;
        }
    }

    /// The wire's descriptor, for a device that is about to sleep.
    pub(super) fn wire_wake(&mut self) -> Option<std::os::fd::RawFd> {
        if self.common.runs() && self.waiting.is_none() { self.wire.wake() } else { None }
    }

    /// A burst of everything that is possible; returns the number of units of work. The device
    /// accesses memory only as `master` of its bus.
    pub(super) fn turn(&mut self, dma: &ModelDma, master: bool) -> usize {
        let mut transfer = dma.transfer();
        if !master || !self.common.runs() || self.stalled {
            return 0;
        }
        match self.work(&mut transfer) {
            // A device without work has no faults: how often an idle one is turned depends on the
            // load of the machine.
            Ok(done) if done > 0 && self.injector.happens(|f| f.stall) => {
                self.stalled = true;
                0
            }
            Ok(done) if done > 0 && self.injector.happens(|f| f.needs_reset) => {
                self.fail();
                0
            }
            Ok(done) => {
                self.send_messages(&mut transfer);
                done
            }
            Err(Broken) => {
                self.fail();
                0
            }
        }
    }

    fn work(&mut self, transfer: &mut Transfer<'_>) -> Result<usize, Broken> {
        let mut done = self.control(transfer)?;
        for pair in 0..usize::from(self.pairs) {
            for _ in 0..BURST {
                if !self.transmit(transfer, pair)? {
                    break;
                }
                done += 1;
            }
        }
        for _ in 0..BURST {
            if !self.receive(transfer)? {
                break;
            }
            done += 1;
        }
        Ok(done)
    }

    fn send_messages(&mut self, transfer: &mut Transfer<'_>) {
        for at in 0..self.queues.len() {
            let Some(Some(running)) = self.queues.get_mut(at) else { continue };
            if running.queue.wants_message(transfer) {
                self.isr |= 1;
                let vector = self.common.queues.get(at).map_or(u16::MAX, |queue| queue.vector);
                self.message(vector);
            }
        }
    }

    fn breach(&self, ring: Ring, rule: &'static str) {
        self.violations.report(Violation::Transmit { ring, index: 0, rule });
    }

    /// The bytes of a chain that the device reads.
    fn readable(transfer: &mut Transfer<'_>, chain: &Chain) -> Result<Vec<u8>, Broken> {
        let mut bytes = Vec::new();
        for piece in chain.pieces.iter().filter(|piece| !piece.writable) {
            let at = bytes.len();
            bytes.resize(at + piece.len as usize, 0);
            if let Some(into) = bytes.get_mut(at..) {
                transfer.read(piece.addr, into).map_err(|_| Broken)?;
            }
        }
        Ok(bytes)
    }

    /// Writes bytes to the writable pieces of a chain; returns how many fitted.
    fn fill(transfer: &mut Transfer<'_>, chain: &Chain, bytes: &[u8]) -> Result<usize, Broken> {
        let mut done = 0;
        for piece in chain.pieces.iter().filter(|piece| piece.writable) {
            let end = bytes.len().min(done + piece.len as usize);
            let Some(part) = bytes.get(done..end).filter(|part| !part.is_empty()) else { break };
            transfer.write(piece.addr, part).map_err(|_| Broken)?;
            done = end;
        }
        Ok(done)
    }

    /// Sends a frame of a pair; returns whether there was one, and room on the wire.
    fn transmit(&mut self, transfer: &mut Transfer<'_>, pair: usize) -> Result<bool, Broken> {
        let features = self.common.features();
        let Some(Some(Running { queue, held })) = self.queues.get_mut(2 * pair + 1) else { return Ok(false) };
        let Some(chain) = held.pop_front().map_or_else(|| queue.take(transfer), |chain| Ok(Some(chain)))? else {
            return Ok(false);
        };
        let bytes = Self::readable(transfer, &chain)?;
        let frame = outgoing(bytes, features);
        let sent = match &frame {
            Ok(frame) => !self.link || self.wire.send(frame),
            Err(_) => true,
        };
        if !sent {
            held.push_front(chain);
            return Ok(false);
        }
        queue.put(transfer, &chain, 0, &mut self.injector)?;
        self.counts.sent += 1;
        if chain.pieces.iter().any(|piece| piece.writable) {
            self.breach(Ring::Tx(pair as u8), "a buffer to write in a transmit queue (5.1.6.2)");
        }
        if let Err(rule) = frame {
            self.breach(Ring::Tx(pair as u8), rule);
        }
        Ok(true)
    }

    /// The pair that a frame is received by: frames of one flow by the same.
    fn pair_of(&self, frame: &[u8]) -> usize {
        let addresses = frame.get(26..42).unwrap_or_default();
        addresses.iter().map(|byte| usize::from(*byte)).sum::<usize>() % usize::from(self.pairs.max(1))
    }

    /// Receives a frame; returns whether there was one, and a buffer for it.
    fn receive(&mut self, transfer: &mut Transfer<'_>) -> Result<bool, Broken> {
        let features = self.common.features();
        let frame = match self.waiting.take() {
            Some(frame) => frame,
            None => {
                let mut frame = Vec::new();
                if !self.link || !self.wire.receive(&mut frame) {
                    return Ok(false);
                }
                if !self.filter.passes(&frame, self.mac, features) {
                    self.counts.filtered += 1;
                    return Ok(true);
                }
                frame
            }
        };
        let pair = self.pair_of(&frame);
        let Some(Some(Running { queue, held })) = self.queues.get_mut(2 * pair) else { return Ok(true) };
        let mergeable = features & MRG_RXBUF != 0;
        let needed = HEADER + frame.len();
        let room = |held: &VecDeque<Chain>| held.iter().map(Chain::room).sum::<usize>();
        while held.is_empty() || mergeable && room(held) < needed {
            let Some(chain) = queue.take(transfer)? else {
                self.waiting = Some(frame);
                return Ok(false);
            };
            if chain.pieces.iter().any(|piece| !piece.writable) || chain.room() < HEADER {
                self.breach(Ring::Rx(pair as u8), "a receive buffer is for writing, with room for a header (5.1.6.3)");
                return Err(Broken);
            }
            if !mergeable && features & GUEST_TSO4 != 0 && chain.room() < SUPER_BUFFER {
                self.breach(Ring::Rx(pair as u8), "a receive buffer has room for a super-packet (5.1.6.3.1)");
                return Err(Broken);
            }
            held.push_back(chain);
        }
        if !mergeable && room(held) < needed {
            // The driver chose buffers that its own MTU does not fit into.
            self.counts.missed += 1;
            return Ok(true);
        }
        let (mut chains, mut capacity) = (Vec::new(), 0);
        while capacity < needed
            && let Some(chain) = held.pop_front()
        {
            capacity += chain.room();
            chains.push(chain);
        }
        let header = self.header(chains.len() as u16, frame.len());
        let bytes = [&header[..], &frame].concat();
        let mut at = 0;
        for chain in &chains {
            let filled = Self::fill(transfer, chain, bytes.get(at..).unwrap_or_default())?;
            at += filled;
            let Some(Some(Running { queue, .. })) = self.queues.get_mut(2 * pair) else { break };
            queue.put(transfer, chain, filled, &mut self.injector)?;
        }
        self.counts.received += 1;
        Ok(true)
    }

    /// The header of a received frame, with what a fault makes of it.
    fn header(&mut self, buffers: u16, len: usize) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        if self.common.features() & GUEST_TSO4 != 0 && len > ETHERNET {
            // TCP over IPv4 without options, in segments of 1448 bytes.
            header = [NEEDS_CSUM, 1, 66, 0, 0xa8, 5, 34, 0, 16, 0, 0, 0];
        }
        let mut buffers = buffers;
        if self.injector.happens(|f| f.num_buffers) {
            buffers = self.injector.seed.next() as u16;
        }
        if self.injector.happens(|f| f.header) {
            // A checksum behind the frame, or a kind of segmentation that there is not.
            let [a, b] = (len as u16).to_le_bytes();
            header = [NEEDS_CSUM, self.injector.seed.below(8) as u8, 0, 0, 9, 9, a, b, 16, 0, 0, 0];
        }
        [header[10], header[11]] = buffers.to_le_bytes();
        header
    }

    /// Does a command of the control queue.
    fn control(&mut self, transfer: &mut Transfer<'_>) -> Result<usize, Broken> {
        let (features, at, pairs) = (self.common.features(), self.control_queue(), self.max_pairs);
        let Some(Some(Running { queue, .. })) = self.queues.get_mut(at) else { return Ok(0) };
        let Some(chain) = queue.take(transfer)? else { return Ok(0) };
        let bytes = Self::readable(transfer, &chain)?;
        let refuses = self.injector.happens(|rates| rates.command);
        let change = if refuses { None } else { self.filter.command(&bytes, features, pairs) };
        // VIRTIO_NET_OK, VIRTIO_NET_ERR.
        Self::fill(transfer, &chain, &[u8::from(change.is_none())])?;
        queue.put(transfer, &chain, 1, &mut self.injector)?;
        self.counts.commands += u64::from(change.is_some());
        match change {
            Some(Change::Mac(mac)) => self.mac = mac,
            Some(Change::Pairs(pairs)) => self.pairs = pairs,
            Some(Change::Announced) => (self.announce, self.announced) = (false, true),
            Some(Change::Nothing) | None => {}
        }
        Ok(1)
    }
}

/// The frame behind a header, its checksum completed; the rule that the header breaks.
fn outgoing(bytes: Vec<u8>, features: u64) -> Result<Vec<u8>, &'static str> {
    let Some((header, frame)) = bytes.split_first_chunk::<HEADER>() else {
        return Err("a chain shorter than a header (5.1.6)");
    };
    let mut frame = frame.to_vec();
    if frame.len() < 14 {
        return Err("a frame shorter than its Ethernet header");
    }
    let [flags, gso, ..] = *header;
    if gso != 0 {
        return Err("segmentation that was not negotiated (5.1.6.2)");
    }
    if header[10..] != [0, 0] {
        return Err("num_buffers of a sent frame is not 0 (5.1.6.2)");
    }
    match flags {
        0 => {}
        NEEDS_CSUM if features & CSUM != 0 => {
            let [_, _, _, _, _, _, a, b, c, d, ..] = *header;
            let (start, offset) = (usize::from(u16::from_le_bytes([a, b])), usize::from(u16::from_le_bytes([c, d])));
            let sum = frame.get(start..).map(internet_checksum);
            let (Some(sum), Some([high, low])) =
                (sum, frame.get_mut(start + offset..).and_then(|rest| rest.first_chunk_mut()))
            else {
                return Err("a checksum outside of its frame (5.1.6.2)");
            };
            [*high, *low] = sum.to_be_bytes();
        }
        _ => return Err("flags of a sent frame (5.1.6.2)"),
    }
    Ok(frame)
}

/// The Internet checksum (RFC 1071), 16 bits at a time.
fn internet_checksum(bytes: &[u8]) -> u16 {
    let mut sum = 0u64;
    for pair in bytes.chunks(2) {
        sum += u64::from(pair[0]) << 8 | u64::from(pair.get(1).copied().unwrap_or(0));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let sum = !(sum as u16);
    // A UDP checksum of 0 means that there is none (RFC 768).
    if sum == 0 { 0xffff } else { sum }
}
