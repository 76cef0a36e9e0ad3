//! Records of a tee as blocks of pcapng, or as records of pcap.
//!
//! ```text
//!   section │ interface per port │ packet, with direction and comment │ … │ statistics
//! ```
//!
//! A port that is attached later is an interface in front of its first packet.
//!
//! A tag beside the frame is written into it, as on a wire. The comment says what a wire does not
//! show: the reason of a drop, a partial checksum, the segments of a super-packet. The statistics
//! at the end have the totals of the tee, of all interfaces together, at the first one.

use super::Names;
use std::path::Path;
use towpath_engine::tee::{TeeDirection, TeeRecord};
use towpath_packet::port::Layer;
use towpath_packet::{Checksum, GsoKind};

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const STATISTICS: u32 = 5;
const PACKET: u32 = 6;
const COMMENT: u16 = 1;
/// Of a packet: its direction in the lowest bits.
const FLAGS: u16 = 2;
/// Of statistics.
const RECEIVED: u16 = 4;
const DROPPED: u16 = 5;
const ACCEPTED: u16 = 6;
/// Bytes of a tag, and of the addresses in front of it.
const TAG: usize = 4;
const ADDRESSES: usize = 12;

/// The format of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TeeFormat {
    /// pcapng: several interfaces, directions, comments, statistics.
    #[default]
    Pcapng,
    /// pcap with nanoseconds: packets and times alone.
    Pcap,
}

impl TeeFormat {
    /// The format that a file's name asks for: pcap for `.pcap`, else pcapng.
    pub fn of(path: &Path) -> TeeFormat {
        if path.extension().is_some_and(|end| end == "pcap") { TeeFormat::Pcap } else { TeeFormat::Pcapng }
    }
}

/// Encodes the records of a tee.
#[derive(Debug)]
pub(super) struct Encoder {
    format: TeeFormat,
    layer: Layer,
    snaplen: u32,
    /// The interfaces of now.
    names: Names,
    /// Those that the stream has.
    interfaces: Vec<String>,
}

fn word(out: &mut Vec<u8>, word: u32) {
    out.extend_from_slice(&word.to_le_bytes());
}

/// Appends a block whose body `fill` appends.
fn block(out: &mut Vec<u8>, kind: u32, fill: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    word(out, kind);
    word(out, 0);
    fill(out);
    let len = ((out.len() + 4 - start) as u32).to_le_bytes();
    out.extend_from_slice(&len);
    if let Some(field) = out.get_mut(start + 4..start + 8) {
        field.copy_from_slice(&len);
    }
}

fn pad(out: &mut Vec<u8>, len: usize) {
    out.extend_from_slice([0; 3].get(..len.next_multiple_of(4) - len).unwrap_or_default());
}

fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = value.get(..usize::from(u16::MAX)).unwrap_or(value);
    out.extend_from_slice(&code.to_le_bytes());
    out.extend_from_slice(&(value.len() as u16).to_le_bytes());
    out.extend_from_slice(value);
    pad(out, value.len());
}

/// The end of options.
fn end(out: &mut Vec<u8>) {
    word(out, 0);
}

impl Encoder {
    pub(super) fn new(format: TeeFormat, layer: Layer, snaplen: u32, names: Names) -> Encoder {
        Encoder { format, layer, snaplen, names, interfaces: Vec::new() }
    }

    /// The link type.
    fn link(&self) -> u32 {
        if self.layer == Layer::Ip { 101 } else { 1 }
    }

    /// Appends the interfaces that the stream does not have.
    fn describe(&mut self, out: &mut Vec<u8>) {
        let known = self.interfaces.len();
        self.interfaces = self.names.list();
        for name in self.interfaces.iter().skip(known) {
            block(out, INTERFACE, |out| {
                word(out, self.link());
                word(out, self.snaplen);
                option(out, 2, name.as_bytes());
                // Nanoseconds: ten to the power of -9.
                option(out, 9, &[9]);
                end(out);
            });
        }
    }

    /// Appends the beginning of a stream.
    pub(super) fn header(&mut self, out: &mut Vec<u8>) {
        let link = self.link();
        if self.format == TeeFormat::Pcap {
            [0xa1b2_3c4d, 2 | 4 << 16, 0, 0, self.snaplen, link].into_iter().for_each(|field| word(out, field));
            return;
        }
        block(out, SECTION, |out| {
            word(out, 0x1a2b_3c4d);
            word(out, 1);
            // The length of the section is unknown.
            out.extend_from_slice(&(-1i64).to_le_bytes());
            option(out, 4, concat!("towpath ", env!("CARGO_PKG_VERSION")).as_bytes());
            end(out);
        });
        self.describe(out);
    }

    /// Appends a record.
    pub(super) fn record(&mut self, out: &mut Vec<u8>, record: &TeeRecord, bytes: &[u8]) {
        let tag = record.vlan.filter(|_| self.layer != Layer::Ip && bytes.len() >= ADDRESSES).map(|vlan| {
            let [a, b] = if vlan.service { [0x88, 0xa8] } else { [0x81, 0x00] };
            let [c, d] = vlan.tci.to_be_bytes();
            [a, b, c, d]
        });
        let more = if tag.is_some() { TAG } else { 0 };
        let (captured, original) = (bytes.len() + more, record.original + more as u32);
        let frame = |out: &mut Vec<u8>| match (tag, bytes.split_at_checked(ADDRESSES)) {
            (Some(tag), Some((addresses, rest))) => {
                out.extend_from_slice(addresses);
                out.extend_from_slice(&tag);
                out.extend_from_slice(rest);
            }
            _ => out.extend_from_slice(bytes),
        };
        let time = record.time;
        if self.format == TeeFormat::Pcap {
            // The format's seconds end in the year 2106.
            word(out, u32::try_from(time / 1_000_000_000).unwrap_or(u32::MAX));
            [(time % 1_000_000_000) as u32, captured as u32, original].into_iter().for_each(|field| word(out, field));
            return frame(out);
        }
        if usize::from(record.interface) >= self.interfaces.len() {
            self.describe(out);
        }
        block(out, PACKET, |out| {
            let interface = usize::from(record.interface).min(self.interfaces.len().saturating_sub(1));
            let fields = [interface as u32, (time >> 32) as u32, time as u32, captured as u32, original];
            fields.into_iter().for_each(|field| word(out, field));
            frame(out);
            pad(out, captured);
            let direction: u32 = match record.direction {
                TeeDirection::Received => 1,
                TeeDirection::Sent => 2,
                TeeDirection::Dropped(_) => 0,
            };
            option(out, FLAGS, &direction.to_le_bytes());
            if let Some(comment) = self.comment(record, interface) {
                option(out, COMMENT, comment.as_bytes());
            }
            end(out);
        });
    }

    /// What a wire does not show.
    fn comment(&self, record: &TeeRecord, interface: usize) -> Option<String> {
        let mut parts = Vec::new();
        if let TeeDirection::Dropped(reason) = record.direction {
            let port = self.interfaces.get(interface).map_or("", String::as_str);
            parts.push(format!("dropped: {}, at {port}", reason.name()));
        }
        if let Checksum::Partial { start, offset } = record.csum {
            parts.push(format!("partial checksum: from {start}, at {}", u32::from(start) + u32::from(offset)));
        }
        if let Some((kind, size)) = record.gso {
            let kind = match kind {
                GsoKind::Tcp4 => "tcp4",
                GsoKind::Tcp6 => "tcp6",
                GsoKind::Udp => "udp",
            };
            parts.push(format!("gso: {kind}, segments of {size}"));
        }
        (!parts.is_empty()).then(|| parts.join("; "))
    }

    /// Appends the end of a stream: its totals.
    pub(super) fn trailer(&self, out: &mut Vec<u8>, time: u64, matched: u64, missed: u64) {
        if self.format == TeeFormat::Pcap {
            return;
        }
        block(out, STATISTICS, |out| {
            [0, (time >> 32) as u32, time as u32].into_iter().for_each(|field| word(out, field));
            for (code, n) in [(RECEIVED, matched), (DROPPED, missed), (ACCEPTED, matched)] {
                option(out, code, &n.to_le_bytes());
            }
            end(out);
        });
    }
}

/// The totals in the body of the statistics at the end of a stream: what matched, and what of that
/// was missed.
pub fn interface_totals(kind: u32, body: &[u8]) -> Option<(u64, u64)> {
    let number = |code: u16| {
        let mut options = body.get(12..)?;
        while let Some((&[a, b, c, d], rest)) = options.split_first_chunk() {
            let len = usize::from(u16::from_le_bytes([c, d]));
            if u16::from_le_bytes([a, b]) == code {
                return rest.first_chunk().filter(|_| len == 8).map(|bytes| u64::from_le_bytes(*bytes));
            }
            options = rest.get(len.next_multiple_of(4)..)?;
        }
        None
    };
    if kind == STATISTICS { number(ACCEPTED).zip(number(DROPPED)) } else { None }
}
