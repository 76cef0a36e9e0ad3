//! One step of the parser: the record at the front of some bytes.
//!
//! The parser owns no bytes and allocates only a small table of interfaces. Every length in the
//! file is checked against a bound, and every step makes progress or ends the file, so that the
//! parser terminates for any file.

use super::format::{
    BYTE_ORDER, MAX_CAPTURED, Order, PCAP_HEADER, PCAP_MICROS, PCAP_NANOS, PCAP_RECORD, block, link_name, option,
};
use super::link::LinkType;
use std::ops::Range;

/// Most interfaces of a section; packets of others are bad.
const MAX_INTERFACES: usize = 1024;

/// Records of a sound file that are no packets to be sent.
pub(super) const EMPTY: &str = "an empty packet";
pub(super) const OTHER_LINK: &str = "a packet of a link type that is neither sent nor converted";

/// Longest block of pcapng that is read whole.
pub(super) const MAX_BLOCK: usize = MAX_CAPTURED as usize + 4096;

/// The result of a step.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A packet: the range of its bytes, its time in nanoseconds since the epoch, and its length
    /// before it was cut.
    Packet { used: u64, link: LinkType, data: Range<usize>, time: u64, original: u32 },
    /// Another valid record.
    Other { used: u64 },
    /// An invalid record whose end is known.
    Bad { used: u64, what: &'static str },
    /// The step needs this number of bytes.
    More(usize),
    /// The position of the next record is unknown.
    Lost(&'static str),
}

/// The state of the parser.
#[derive(Debug)]
pub(super) struct Parser {
    kind: Kind,
    /// The link of the first interface that has one.
    first: Option<LinkType>,
    /// The number of the first link type that can't be sent.
    refused: Option<u32>,
}

#[derive(Debug)]
enum Kind {
    /// Before the first bytes.
    Unknown,
    Pcap {
        order: Order,
        interface: Interface,
    },
    Pcapng {
        order: Order,
        interfaces: Vec<Interface>,
    },
}

/// An interface of the capture.
#[derive(Debug, Clone, Copy)]
struct Interface {
    /// `None` if its packets can't be sent.
    link: Option<LinkType>,
    snaplen: u32,
    clock: Clock,
    /// Bytes of frame check sequence behind each packet.
    fcs: u32,
}

/// Units of timestamps.
#[derive(Debug, Clone, Copy)]
struct Clock {
    /// Units in a second; 0 if that exceeds the range.
    units: u128,
    /// Seconds to be added.
    offset: i64,
}

impl Clock {
    /// Nanoseconds since the epoch; 0 if out of range.
    fn nanoseconds(self, time: u64) -> u64 {
        let passed = (u128::from(time) * 1_000_000_000).checked_div(self.units).unwrap_or(0);
        let shifted = i128::try_from(passed).unwrap_or(0) + i128::from(self.offset) * 1_000_000_000;
        u64::try_from(shifted).unwrap_or(0)
    }

    /// From the option `if_tsresol`: a power of ten, or of two if the highest bit is set.
    fn from_resolution(resolution: u8) -> Clock {
        let power = u32::from(resolution & 0x7f);
        let base: u128 = if resolution & 0x80 == 0 { 10 } else { 2 };
        Clock { units: base.checked_pow(power).unwrap_or(0), offset: 0 }
    }
}

impl Interface {
    /// The packet whose `captured` bytes begin at `from`, without check sequence.
    fn packet(&self, used: u64, from: usize, captured: u32, original: u32, time: u64) -> Step {
        let fcs = if self.link.is_some_and(LinkType::knows_fcs) { 0 } else { self.fcs };
        let original = original.max(captured).saturating_sub(fcs);
        let data = from..from + captured.min(original) as usize;
        match self.link {
            _ if data.is_empty() => Step::Bad { used, what: EMPTY },
            Some(link) => Step::Packet { used, link, data, time, original },
            None => Step::Bad { used, what: OTHER_LINK },
        }
    }
}

impl Parser {
    pub(super) fn new() -> Parser {
        Parser { kind: Kind::Unknown, first: None, refused: None }
    }

    /// The link of the first interface whose packets can be sent; `None` before it.
    pub(super) fn link(&self) -> Option<LinkType> {
        self.first
    }

    /// The first link type whose packets can't be sent.
    pub(super) fn refused(&self) -> Option<String> {
        self.refused.map(link_name)
    }

    /// Whether the file is of one link type for all packets.
    pub(super) fn has_one_link(&self) -> bool {
        matches!(self.kind, Kind::Pcap { .. })
    }

    /// The link of a number, noted.
    fn link_of(&mut self, number: u32) -> Option<LinkType> {
        let link = LinkType::from_number(number);
        self.first = self.first.or(link);
        if link.is_none() {
            self.refused.get_or_insert(number);
        }
        link
    }

    /// Parses the front of `bytes`.
    pub(super) fn step(&mut self, bytes: &[u8]) -> Step {
        match &self.kind {
            Kind::Unknown => self.begin(bytes),
            Kind::Pcap { order, interface } => record(*order, interface, bytes),
            Kind::Pcapng { order, .. } => self.block(*order, bytes),
        }
    }

    /// Detects the format by the first bytes.
    fn begin(&mut self, bytes: &[u8]) -> Step {
        if bytes.len() < 4 {
            return Step::More(4);
        }
        let (little, big) = (Order::Little.u32(bytes, 0), Order::Big.u32(bytes, 0));
        let (order, units) = match (little, big) {
            (block::SECTION, _) => {
                self.kind = Kind::Pcapng { order: Order::Little, interfaces: Vec::new() };
                return Step::Other { used: 0 };
            }
            (PCAP_MICROS, _) => (Order::Little, 1_000_000),
            (PCAP_NANOS, _) => (Order::Little, 1_000_000_000),
            (_, PCAP_MICROS) => (Order::Big, 1_000_000),
            (_, PCAP_NANOS) => (Order::Big, 1_000_000_000),
            _ => return Step::Lost("neither a pcap nor a pcapng file: the first four bytes are of no such format"),
        };
        if bytes.len() < PCAP_HEADER {
            return Step::More(PCAP_HEADER);
        }
        if order.u16(bytes, 4) != 2 {
            return Step::Lost("a pcap file of a version other than 2");
        }
        // The upper bits may hold the length of the frame check sequence, in units of 16 bits.
        let network = order.u32(bytes, 20);
        let fcs = if network & 0x0400_0000 != 0 { (network >> 28) * 2 } else { 0 };
        let clock = Clock { units, offset: 0 };
        let link = self.link_of(network & 0x03ff_ffff);
        let interface = Interface { link, snaplen: order.u32(bytes, 16), clock, fcs };
        self.kind = Kind::Pcap { order, interface };
        Step::Other { used: PCAP_HEADER as u64 }
    }

    /// A block of pcapng.
    fn block(&mut self, order: Order, bytes: &[u8]) -> Step {
        if bytes.len() < 12 {
            return Step::More(12);
        }
        let kind = order.u32(bytes, 0);
        let order = match kind {
            block::SECTION if Order::Little.u32(bytes, 8) == BYTE_ORDER => Order::Little,
            block::SECTION if Order::Big.u32(bytes, 8) == BYTE_ORDER => Order::Big,
            block::SECTION => return Step::Lost("a section header without a byte order"),
            _ => order,
        };
        let len = order.u32(bytes, 4);
        let (used, whole) = (u64::from(len), len as usize);
        if len < 12 || len % 4 != 0 {
            return Step::Lost("a block whose length cannot be");
        }
        let read = [block::SECTION, block::INTERFACE, block::PACKET, block::SIMPLE_PACKET, block::ENHANCED_PACKET];
        if !read.contains(&kind) {
            return Step::Other { used };
        }
        if whole > MAX_BLOCK {
            return Step::Bad { used, what: "a block longer than any packet" };
        }
        let Some(bytes) = bytes.get(..whole) else { return Step::More(whole) };
        if order.u32(bytes, whole - 4) != len {
            return Step::Lost("a block whose two lengths differ");
        }
        let body = &bytes[8..whole - 4];
        match kind {
            block::SECTION => self.section(order, body, used),
            block::INTERFACE => self.interface(order, body, used),
            _ => self.packet(order, kind, body, used),
        }
    }

    fn section(&mut self, order: Order, body: &[u8], used: u64) -> Step {
        if order.u16(body, 4) != 1 {
            return Step::Lost("a pcapng section of a version other than 1");
        }
        self.kind = Kind::Pcapng { order, interfaces: Vec::new() };
        Step::Other { used }
    }

    fn interface(&mut self, order: Order, body: &[u8], used: u64) -> Step {
        if body.len() < 8 {
            return Step::Bad { used, what: "an interface description that is cut short" };
        }
        let link = self.link_of(u32::from(order.u16(body, 0)));
        let Kind::Pcapng { interfaces, .. } = &mut self.kind else { return Step::Other { used } };
        if interfaces.len() >= MAX_INTERFACES {
            return Step::Bad { used, what: "more interfaces than are remembered" };
        }
        let clock = Clock { units: 1_000_000, offset: 0 };
        let mut interface = Interface { link, snaplen: order.u32(body, 4), clock, fcs: 0 };
        for (code, value) in options(order, &body[8..]) {
            match (code, value) {
                (option::RESOLUTION, [resolution, ..]) => {
                    interface.clock.units = Clock::from_resolution(*resolution).units;
                }
                (option::OFFSET, value) if value.len() >= 8 => interface.clock.offset = order.u64(value, 0) as i64,
                (option::FCS, [fcs, ..]) => interface.fcs = u32::from(*fcs),
                _ => {}
            }
        }
        interfaces.push(interface);
        Step::Other { used }
    }

    fn packet(&self, order: Order, kind: u32, body: &[u8], used: u64) -> Step {
        let Kind::Pcapng { interfaces, .. } = &self.kind else { return Step::Other { used } };
        let bad = |what| Step::Bad { used, what };
        let (header, number) = match kind {
            block::SIMPLE_PACKET => (4, 0),
            block::PACKET => (20, usize::from(order.u16(body, 0))),
            _ => (20, order.u32(body, 0) as usize),
        };
        let Some(room) = body.len().checked_sub(header) else {
            return bad("a packet block that is cut short");
        };
        let Some(interface) = interfaces.get(number) else {
            return bad("a packet of an interface that was not described");
        };
        let (captured, original, time) = match kind {
            block::SIMPLE_PACKET => {
                let original = order.u32(body, 0);
                let snaplen = if interface.snaplen == 0 { u32::MAX } else { interface.snaplen };
                (original.min(snaplen), original, 0)
            }
            _ => {
                let time = u64::from(order.u32(body, 4)) << 32 | u64::from(order.u32(body, 8));
                (order.u32(body, 12), order.u32(body, 16), interface.clock.nanoseconds(time))
            }
        };
        if captured as usize > room || captured > MAX_CAPTURED {
            return bad("a packet that is longer than its block");
        }
        interface.packet(used, 8 + header, captured, original, time)
    }
}

/// A record of pcap.
fn record(order: Order, interface: &Interface, bytes: &[u8]) -> Step {
    if bytes.len() < PCAP_RECORD {
        return Step::More(PCAP_RECORD);
    }
    let [seconds, fraction, captured, original] = [0, 4, 8, 12].map(|at| order.u32(bytes, at));
    // The format has no means to find the next record.
    if captured > MAX_CAPTURED {
        return Step::Lost("a record longer than any packet");
    }
    let whole = PCAP_RECORD + captured as usize;
    if bytes.len() < whole {
        return Step::More(whole);
    }
    let units = interface.clock.units as u64;
    let time = interface.clock.nanoseconds(u64::from(seconds) * units + u64::from(fraction));
    interface.packet(whole as u64, PCAP_RECORD, captured, original, time)
}

/// The options of a block, up to the end mark or the first truncated one.
fn options(order: Order, mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (code, len) = (order.u16(bytes, 0), usize::from(order.u16(bytes, 2)));
        let value = bytes.get(4..4 + len).filter(|_| code != option::END)?;
        bytes = bytes.get(4 + len.next_multiple_of(4)..).unwrap_or_default();
        Some((code, value))
    })
}
