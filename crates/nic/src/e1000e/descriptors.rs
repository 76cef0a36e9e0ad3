//! Descriptors: what 16 bytes mean, in each direction (82574 datasheet §7.1.4 and §7.2.10).
//!
//! ```text
//!   receive, for the device    address                          │ 0
//!   receive, written back      type, queue 32 │ hash 32         │ status, errors 32 │ length 16 │ VLAN 16
//!   transmit, data             address                          │ length, command 32 │ status, options, VLAN 32
//!   transmit, context          where checksums are              │ payload, command 32 │ status, header, segment 32
//! ```
//!
//! A [`DescRing`](crate::common::ring::DescRing) loads and stores the two words. The write-back of a receive descriptor **replaces the address**, so that
//! the driver writes the address again each time.

pub(super) use crate::common::ring::Words;

/// What the device wrote back to a receive descriptor; read once, nothing of it believed.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Received {
    hash: u64,
    status: u64,
}

/// Status and errors of a received frame (§7.1.5.2).
mod rx {
    pub(super) const DONE: u64 = 1;
    pub(super) const END: u64 = 1 << 1;
    pub(super) const NOT_CHECKED: u64 = 1 << 2;
    pub(super) const VLAN: u64 = 1 << 3;
    pub(super) const UDP_CHECKED: u64 = 1 << 4;
    pub(super) const TCP_CHECKED: u64 = 1 << 5;
    /// CRC or alignment, symbol, sequence, carrier extension, reception.
    pub(super) const FRAME_ERRORS: u64 = 0x9700_0000;
    /// The TCP, UDP or IP checksum is wrong.
    pub(super) const CSUM_ERRORS: u64 = 0x6000_0000;
    pub(super) const HASH_TYPE: u64 = 0xf;
}

impl Received {
    /// The words, if the device is through with the descriptor. `second` is to be loaded before `first`, with acquire.
    #[inline]
    pub(super) fn new(second: u64, first: impl FnOnce() -> u64) -> Option<Received> {
        (second & rx::DONE != 0).then(|| Received { hash: first(), status: second })
    }

    /// Whether the second word of a descriptor says that the device is through with it.
    #[inline]
    pub(super) fn done(second: u64) -> bool {
        second & rx::DONE != 0
    }

    /// Bytes that the device says it wrote.
    #[inline]
    pub(super) fn len(self) -> usize {
        (self.status >> 32 & 0xffff) as usize
    }

    /// Whether this is the last descriptor of a frame. What follows holds for the last one only.
    #[inline]
    pub(super) fn ends(self) -> bool {
        self.status & rx::END != 0
    }

    /// Whether the frame was damaged on the wire.
    #[inline]
    pub(super) fn is_broken(self) -> bool {
        self.status & rx::FRAME_ERRORS != 0
    }

    /// Whether the device looked at the TCP or UDP checksum and found it right.
    #[inline]
    pub(super) fn is_verified(self) -> bool {
        self.status & (rx::TCP_CHECKED | rx::UDP_CHECKED) != 0 && self.status & (rx::CSUM_ERRORS | rx::NOT_CHECKED) == 0
    }

    /// The tag that was stripped.
    #[inline]
    pub(super) fn vlan(self) -> Option<u16> {
        (self.status & rx::VLAN != 0).then_some((self.status >> 48) as u16)
    }

    /// The Toeplitz hash, where the frame is of a kind that is hashed.
    #[inline]
    pub(super) fn hash(self) -> Option<u32> {
        (self.hash & rx::HASH_TYPE != 0).then_some((self.hash >> 32) as u32)
    }
}

/// A buffer for the device to fill.
#[inline]
pub(super) fn empty(address: u64) -> Words {
    [address, 0]
}

/// Command and status bits of a transmit descriptor (§7.2.10.1.4, §7.2.11.2); those of context and data lie in the same place.
pub(super) mod tx {
    /// Last piece of the frame.
    pub(crate) const END: u64 = 1 << 24;
    /// The device adds the check sequence.
    pub(crate) const CRC: u64 = 1 << 25;
    /// Segmentation, in data and context.
    pub(crate) const SEGMENT: u64 = 1 << 26;
    /// The device is to report when it is through.
    pub(crate) const REPORT: u64 = 1 << 27;
    /// Not a legacy descriptor.
    pub(crate) const EXTENDED: u64 = 1 << 29;
    /// A tag is inserted.
    pub(crate) const VLAN: u64 = 1 << 30;
    /// Data, not context.
    pub(crate) const DATA: u64 = 1 << 20;
    /// The context is for TCP; else UDP.
    pub(crate) const TCP: u64 = 1 << 24;
    /// The context is for IPv4.
    pub(crate) const IP4: u64 = 1 << 25;
    /// The device is through.
    pub(crate) const DONE: u64 = 1 << 32;
    /// The device makes the IPv4 checksum.
    pub(crate) const IP_CSUM: u64 = 1 << 40;
    /// The device makes the TCP or UDP checksum.
    pub(crate) const L4_CSUM: u64 = 1 << 41;
    pub(crate) const TCI_SHIFT: u32 = 48;
}

/// Most bytes that one data descriptor is given: what fits into the smallest transmit buffer on the chip (8 KiB) with its bookkeeping.
pub(super) const MAX_PIECE: usize = (8 << 10) - 96;
/// Most data descriptors of a frame that every implementation takes: QEMU drops what has more, and says that it was sent.
pub(super) const MAX_PIECES: usize = 64;

/// What all data descriptors of a frame say. QEMU takes some of it from the first and some from the last, silicon the other way
/// round, so that they are the same in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Command(pub(super) u64);

impl Command {
    /// A frame as it is.
    pub(super) const PLAIN: Command = Command(tx::DATA | tx::EXTENDED | tx::CRC);

    /// With the tag to be inserted.
    #[inline]
    pub(super) fn with_vlan(self, tci: u16) -> Command {
        Command(self.0 | tx::VLAN | u64::from(tci) << tx::TCI_SHIFT)
    }

    /// The descriptor of one piece.
    #[inline]
    pub(super) fn piece(self, address: u64, len: usize) -> Words {
        [address, self.0 | len as u64 & 0xf_ffff]
    }
}

/// A context: where the headers of the frames that follow lie, until the next context (§7.2.10.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Context {
    /// First byte of the IP header, of its checksum, last byte of it (0: the end of the frame).
    pub(super) ip: (u8, u8, u16),
    /// First byte of the TCP or UDP header, and of its checksum.
    pub(super) l4: (u8, u8),
    /// TCP, not UDP.
    pub(super) tcp: bool,
    /// IPv4, not IPv6.
    pub(super) ip4: bool,
    /// Segmentation: length of all headers, of the payload, of each segment's payload.
    pub(super) segment: Option<(u8, u32, u16)>,
}

impl Context {
    pub(super) fn words(self) -> Words {
        let (start, field, end) = self.ip;
        let (l4_start, l4_field) = self.l4;
        let first = u64::from(start)
            | u64::from(field) << 8
            | u64::from(end) << 16
            | u64::from(l4_start) << 32
            | u64::from(l4_field) << 40;
        let mut second = tx::EXTENDED;
        if self.tcp {
            second |= tx::TCP;
        }
        if self.ip4 {
            second |= tx::IP4;
        }
        if let Some((header, payload, mss)) = self.segment {
            second |= tx::SEGMENT | u64::from(payload) & 0xf_ffff | u64::from(header) << 40 | u64::from(mss) << 48;
        }
        [first, second]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_back_descriptor_is_read_as_the_datasheet_draws_it() {
        // A good UDP frame of 122 bytes, as QEMU writes it: 00000000 34120000 73020200 7a000000.
        let r = Received::new(0x0000_007a_0002_0273, || 0x0000_1234_0000_0000).unwrap();
        assert_eq!((r.len(), r.ends(), r.is_broken(), r.is_verified()), (122, true, false, true));
        assert_eq!((r.vlan(), r.hash()), (None, None));
        let bad = Received::new(0x0000_007a_2002_0273, || 0).unwrap();
        assert!(!bad.is_verified() && !bad.is_broken(), "a wrong checksum is no reason to lose the frame");
        let tagged = Received::new(0x8123_0040_0000_000b, || 0xdead_beef_0000_0001).unwrap();
        assert_eq!((tagged.vlan(), tagged.hash()), (Some(0x8123), Some(0xdead_beef)));
        assert!(Received::new(0x0000_007a_0002_0272, || 0).is_none());
    }

    #[test]
    fn a_frame_without_offloads_is_one_word_of_constants_and_its_length() {
        let [address, command] = Command::PLAIN.piece(0x1000, 64);
        assert_eq!((address, command), (0x1000, 0x2210_0040));
        assert_eq!(Command::PLAIN.with_vlan(0xa001).piece(0, 60)[1] >> 32, 0xa001_0000);
    }

    #[test]
    fn a_segmentation_context_has_its_fields_where_the_datasheet_has_them() {
        let c = Context { ip: (14, 24, 33), l4: (34, 50), tcp: true, ip4: true, segment: Some((54, 4000, 1460)) };
        assert_eq!(c.words(), [0x0000_3222_0021_180e, 0x05b4_3600_2700_0fa0]);
    }
}
