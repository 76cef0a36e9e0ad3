//! A message: header and body, little-endian, and what an answer says.

/// Bytes of the longest message: a secure proxy passes 60.
pub const MAX_MESSAGE: usize = 60;
/// Bytes of the header: type, host, sequence number, flags.
const HEADER: usize = 8;
/// Flag of a request: firmware answers when it has processed it.
const ACK_ON_PROCESSED: u32 = 1 << 1;

/// The type of a message.
pub mod kind {
    /// `TI_SCI_MSG_RM_RING_CFG`
    pub const RING_CONFIG: u16 = 0x1110;
    /// `TI_SCI_MSG_RM_UDMAP_TX_CH_CFG`
    pub const TX_CHANNEL_CONFIG: u16 = 0x1205;
    /// `TI_SCI_MSG_RM_UDMAP_RX_CH_CFG`
    pub const RX_CHANNEL_CONFIG: u16 = 0x1215;
    /// `TI_SCI_MSG_RM_UDMAP_FLOW_CFG`
    pub const RX_FLOW_CONFIG: u16 = 0x1230;
    /// `TI_SCI_MSG_RM_PSIL_PAIR`
    pub const PSIL_PAIR: u16 = 0x1280;
    /// `TI_SCI_MSG_RM_PSIL_UNPAIR`
    pub const PSIL_UNPAIR: u16 = 0x1281;
    /// `TI_SCI_MSG_GET_RESOURCE_RANGE`
    pub const GET_RANGE: u16 = 0x1500;
}

/// A request, or its answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Message {
    bytes: [u8; MAX_MESSAGE],
    len: usize,
}

impl Message {
    /// A request without a body.
    pub(super) fn request(kind: u16) -> Message {
        Message { bytes: [0; MAX_MESSAGE], len: 0 }.u16(kind).u8(0).u8(0).u32(ACK_ON_PROCESSED)
    }

    /// A message with these bytes; `None` if they are no message: less than a header, or too many.
    pub fn from_bytes(bytes: &[u8]) -> Option<Message> {
        let mut message = Message { bytes: [0; MAX_MESSAGE], len: bytes.len() };
        if bytes.len() < HEADER {
            return None;
        }
        message.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(message)
    }

    /// The bytes, header included.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    /// The type.
    pub fn kind(&self) -> u16 {
        u16::from_le_bytes([self.bytes[0], self.bytes[1]])
    }

    pub(super) fn put<const N: usize>(mut self, bytes: [u8; N]) -> Message {
        if let Some(place) = self.bytes.get_mut(self.len..self.len + N) {
            place.copy_from_slice(&bytes);
            self.len += N;
        }
        self
    }

    pub(super) fn u8(self, value: u8) -> Message {
        self.put([value])
    }

    pub(super) fn u16(self, value: u16) -> Message {
        self.put(value.to_le_bytes())
    }

    pub(super) fn u32(self, value: u32) -> Message {
        self.put(value.to_le_bytes())
    }

    fn u16_at(&self, at: usize) -> Option<u16> {
        let bytes = self.bytes().get(at..at + 2)?;
        Some(u16::from_le_bytes([bytes[0], bytes[1]]))
    }
}

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Message({:02x?})", self.bytes())
    }
}

/// A range of channels, flows or rings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Range {
    /// The first.
    pub start: u16,
    /// Their number.
    pub count: u16,
}

impl Range {
    /// Whether `count` from `start` on lie inside.
    pub fn holds(self, start: u16, count: u16) -> bool {
        let end = |start: u16, count: u16| u32::from(start) + u32::from(count);
        start >= self.start && end(start, count) <= end(self.start, self.count)
    }
}

/// The message that asks for the ranges of a resource: `subtype` of `device`. 255 stands for this
/// host.
pub fn range_message(device: u16, subtype: u8) -> Message {
    Message::request(kind::GET_RANGE).u16(device).u8(subtype).u8(255)
}

/// The ranges of an answer; the second one is usually empty.
pub(super) fn ranges(answer: &Message) -> Option<[Range; 2]> {
    let word = |i: usize| answer.u16_at(HEADER + 2 * i);
    Some([Range { start: word(0)?, count: word(1)? }, Range { start: word(2)?, count: word(3)? }])
}
