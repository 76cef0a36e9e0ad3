//! Packets as records of a capture file, gathered into a buffer.

use super::format::option::{APPLICATION, END, NAME, RESOLUTION};
use super::format::{BYTE_ORDER, ETHERNET, Format, PCAP_NANOS, RAW, block};
use towpath_packet::Packet;
use towpath_packet::port::Layer;

/// Most bytes that a record needs besides the packet's: an enhanced packet block's header, padding
/// and trailer.
pub(super) const OVERHEAD: usize = 36;

/// Encodes packets as records.
#[derive(Debug, Clone)]
pub(super) struct Encoder {
    pub(super) format: Format,
    pub(super) layer: Layer,
    pub(super) snaplen: u32,
    /// Name of the interface, in pcapng.
    pub(super) interface: String,
}

impl Encoder {
    /// Appends the header of a file.
    pub(super) fn header(&self, out: &mut Vec<u8>) {
        let link = if self.layer == Layer::Ip { RAW } else { ETHERNET };
        match self.format {
            Format::Pcap => {
                let [magic, zero] = [PCAP_NANOS, 0];
                for word in [magic, 2 | 4 << 16, zero, zero, self.snaplen, link] {
                    out.extend_from_slice(&word.to_le_bytes());
                }
            }
            Format::Pcapng => {
                self.block(out, block::SECTION, |out| {
                    out.extend_from_slice(&BYTE_ORDER.to_le_bytes());
                    out.extend_from_slice(&[1, 0, 0, 0]);
                    // The length of the section is unknown.
                    out.extend_from_slice(&(-1i64).to_le_bytes());
                    option(out, APPLICATION, concat!("towpath ", env!("CARGO_PKG_VERSION")).as_bytes());
                    option(out, END, &[]);
                });
                self.block(out, block::INTERFACE, |out| {
                    out.extend_from_slice(&link.to_le_bytes());
                    out.extend_from_slice(&self.snaplen.to_le_bytes());
                    option(out, NAME, self.interface.as_bytes());
                    // Nanoseconds: ten to the power of -9.
                    option(out, RESOLUTION, &[9]);
                    option(out, END, &[]);
                });
            }
        }
    }

    /// Bytes of this packet's record, at most.
    pub(super) fn size(&self, packet: &Packet) -> usize {
        OVERHEAD + packet.len().min(self.snaplen as usize)
    }

    /// Appends a packet that was captured at `time` (nanoseconds since the epoch).
    pub(super) fn record(&self, out: &mut Vec<u8>, packet: &Packet, time: u64) {
        let original = packet.len() as u32;
        let captured = original.min(self.snaplen);
        match self.format {
            Format::Pcap => {
                // The format's seconds end in the year 2106.
                let seconds = u32::try_from(time / 1_000_000_000).unwrap_or(u32::MAX);
                for word in [seconds, (time % 1_000_000_000) as u32, captured, original] {
                    out.extend_from_slice(&word.to_le_bytes());
                }
                bytes(out, packet, captured as usize);
            }
            Format::Pcapng => self.block(out, block::ENHANCED_PACKET, |out| {
                for word in [0, (time >> 32) as u32, time as u32, captured, original] {
                    out.extend_from_slice(&word.to_le_bytes());
                }
                bytes(out, packet, captured as usize);
                pad(out, captured as usize);
            }),
        }
    }

    /// Appends a block whose body `fill` appends.
    fn block(&self, out: &mut Vec<u8>, kind: u32, fill: impl FnOnce(&mut Vec<u8>)) {
        let start = out.len();
        out.extend_from_slice(&kind.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        fill(out);
        let len = ((out.len() + 4 - start) as u32).to_le_bytes();
        out.extend_from_slice(&len);
        if let Some(field) = out.get_mut(start + 4..start + 8) {
            field.copy_from_slice(&len);
        }
    }
}

/// Appends the first `n` bytes of a packet.
fn bytes(out: &mut Vec<u8>, packet: &Packet, n: usize) {
    let end = out.len() + n;
    for chunk in packet.chunks() {
        let take = chunk.len().min(end - out.len());
        match chunk.bytes() {
            Some(bytes) => out.extend_from_slice(bytes.get(..take).unwrap_or_default()),
            None => {
                let at = out.len();
                out.resize(at + take, 0);
                chunk.copy_to(0, &mut out[at..]);
            }
        }
    }
}

/// Appends an option of a block: code, length, value, padding.
fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = value.get(..usize::from(u16::MAX)).unwrap_or(value);
    out.extend_from_slice(&code.to_le_bytes());
    out.extend_from_slice(&(value.len() as u16).to_le_bytes());
    out.extend_from_slice(value);
    pad(out, value.len());
}

/// Pads a value of `len` bytes to a multiple of four.
fn pad(out: &mut Vec<u8>, len: usize) {
    out.extend_from_slice(&[0; 3][..len.next_multiple_of(4) - len]);
}
