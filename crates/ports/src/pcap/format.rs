//! Constants of the two capture formats: pcap (draft-ietf-opsawg-pcap) and pcapng
//! (draft-ietf-opsawg-pcapng).

/// Most bytes of a packet that any tool captures (libpcap's `MAXIMUM_SNAPLEN`). A record that
/// claims more is damaged.
pub const MAX_CAPTURED: u32 = 262_144;

/// First word of a pcap file with microseconds.
pub(super) const PCAP_MICROS: u32 = 0xa1b2_c3d4;
/// First word of a pcap file with nanoseconds.
pub(super) const PCAP_NANOS: u32 = 0xa1b2_3c4d;
/// Bytes of a pcap file's header.
pub(super) const PCAP_HEADER: usize = 24;
/// Bytes of a pcap record's header.
pub(super) const PCAP_RECORD: usize = 16;

/// Block types of pcapng.
pub(super) mod block {
    /// Section header; reads the same in both byte orders.
    pub(in super::super) const SECTION: u32 = 0x0a0d_0d0a;
    pub(in super::super) const INTERFACE: u32 = 1;
    /// Obsolete, still written by old tools.
    pub(in super::super) const PACKET: u32 = 2;
    pub(in super::super) const SIMPLE_PACKET: u32 = 3;
    pub(in super::super) const ENHANCED_PACKET: u32 = 6;
}

/// The byte-order magic of a section.
pub(super) const BYTE_ORDER: u32 = 0x1a2b_3c4d;

/// Options of pcapng blocks.
pub(super) mod option {
    pub(in super::super) const END: u16 = 0;
    /// Of a section: the application that wrote it.
    pub(in super::super) const APPLICATION: u16 = 4;
    /// Of an interface: its name.
    pub(in super::super) const NAME: u16 = 2;
    /// Of an interface: units of its timestamps.
    pub(in super::super) const RESOLUTION: u16 = 9;
    /// Of an interface: bytes of frame check sequence behind each packet.
    pub(in super::super) const FCS: u16 = 13;
    /// Of an interface: seconds to be added to timestamps.
    pub(in super::super) const OFFSET: u16 = 14;
}

/// Link types: <https://www.tcpdump.org/linktypes.html>.
pub(super) const ETHERNET: u32 = 1;
pub(super) const RAW: u32 = 101;

/// The file format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// The classic format, with nanoseconds.
    Pcap,
    /// Blocks with options, also several interfaces in a file.
    Pcapng,
}

/// A link type's name for an error.
pub(super) fn link_name(link: u32) -> String {
    let name = match link {
        3 => "AX.25",
        7 | 129 => "ARCNET",
        122 => "Fibre Channel",
        138 => "IP over FireWire",
        143 => "DOCSIS",
        147..=162 => "user-defined",
        130..=137 | 164 | 182 | 183 | 194 | 200 | 222 => "Juniper",
        187 | 201 => "Bluetooth HCI",
        195 | 215 | 230 => "IEEE 802.15.4",
        189 | 220 | 249 => "USB",
        227 => "CAN",
        231 => "D-Bus",
        235 => "DVB-CI",
        247 => "InfiniBand",
        253 => "netlink",
        271 => "vsock",
        284 | 285 => "Ethernet with the tag of a switch's processor port",
        _ => return format!("link type {link}"),
    };
    format!("link type {link}, {name}")
}

/// Byte order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    Little,
    Big,
}

impl Order {
    /// The 16-bit number at `at`; 0 past the end.
    pub(super) fn u16(self, bytes: &[u8], at: usize) -> u16 {
        let raw = bytes.get(at..).and_then(|b| b.first_chunk().copied()).unwrap_or_default();
        if self == Order::Little { u16::from_le_bytes(raw) } else { u16::from_be_bytes(raw) }
    }

    /// The 32-bit number at `at`; 0 past the end.
    pub(super) fn u32(self, bytes: &[u8], at: usize) -> u32 {
        let raw = bytes.get(at..).and_then(|b| b.first_chunk().copied()).unwrap_or_default();
        if self == Order::Little { u32::from_le_bytes(raw) } else { u32::from_be_bytes(raw) }
    }

    /// The 64-bit number at `at`; 0 past the end.
    pub(super) fn u64(self, bytes: &[u8], at: usize) -> u64 {
        let raw = bytes.get(at..).and_then(|b| b.first_chunk().copied()).unwrap_or_default();
        if self == Order::Little { u64::from_le_bytes(raw) } else { u64::from_be_bytes(raw) }
    }
}
