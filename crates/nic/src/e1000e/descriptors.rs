//! Descriptors: the meaning of their 16 bytes in each direction (82574 datasheet §7.1.4 and
//! §7.2.10).
//!
//! ```text
//!   receive, for the device address                    │ 0
//!   receive, written back   type, queue 32 │ hash 32   │ status, errors │ length 16 │ VLAN 16
//!   transmit, data          address                    │ length, command 32 │ status, options, VLAN
//!   transmit, context       positions of checksums     │ payload, command 32 │ status, header, MSS
//! ```
//!
//! A [`DescRing`] loads and stores the two words. The write-back of a receive descriptor **replaces
//! the address**, so that the driver writes the address again each time.

use crate::common::ring::{DescRing, Words};

/// The write-back of a receive descriptor; loaded once, and every field is checked.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RxStatus {
    hash: u64,
    status: u64,
}

/// Status and errors of a received frame (§7.1.5.2).
mod rx {
    /// Descriptor done.
    pub(super) const DD: u64 = 1;
    /// End of packet.
    pub(super) const EOP: u64 = 1 << 1;
    /// Ignore the checksum indications.
    pub(super) const IXSM: u64 = 1 << 2;
    /// A VLAN tag was stripped.
    pub(super) const VP: u64 = 1 << 3;
    /// The UDP checksum was checked.
    pub(super) const UDPCS: u64 = 1 << 4;
    /// The TCP checksum was checked.
    pub(super) const TCPCS: u64 = 1 << 5;
    /// CRC or alignment, symbol, sequence, carrier extension, reception (CE, SE, SEQ, CXE, RXE).
    pub(super) const FRAME_ERRORS: u64 = 0x9700_0000;
    /// The TCP, UDP or IP checksum is wrong (TCPE, IPE).
    pub(super) const CSUM_ERRORS: u64 = 0x6000_0000;
    pub(super) const HASH_TYPE: u64 = 0xf;
}

impl RxStatus {
    /// Loads a descriptor; `None` unless the device has completed it.
    #[inline]
    pub(super) fn load(ring: &DescRing, index: u32) -> Option<RxStatus> {
        let status = ring.status(index);
        RxStatus::dd(status).then(|| RxStatus { hash: ring.first(index), status })
    }

    /// Descriptor done, in the second word.
    #[inline]
    pub(super) fn dd(second: u64) -> bool {
        second & rx::DD != 0
    }

    /// Bytes that the device reports to have written.
    #[inline]
    pub(super) fn len(self) -> usize {
        (self.status >> 32 & 0xffff) as usize
    }

    /// End of packet: this is the last descriptor of a frame. Only the last one has the fields that
    /// follow.
    #[inline]
    pub(super) fn eop(self) -> bool {
        self.status & rx::EOP != 0
    }

    /// Whether the frame was damaged on the wire.
    #[inline]
    pub(super) fn has_error(self) -> bool {
        self.status & rx::FRAME_ERRORS != 0
    }

    /// Whether the device checked the TCP or UDP checksum and found it right.
    #[inline]
    pub(super) fn is_verified(self) -> bool {
        self.status & (rx::TCPCS | rx::UDPCS) != 0 && self.status & (rx::CSUM_ERRORS | rx::IXSM) == 0
    }

    /// The tag that was stripped.
    #[inline]
    pub(super) fn vlan(self) -> Option<u16> {
        (self.status & rx::VP != 0).then_some((self.status >> 48) as u16)
    }

    /// The Toeplitz hash, if the device hashes frames of this kind.
    #[inline]
    pub(super) fn hash(self) -> Option<u32> {
        (self.hash & rx::HASH_TYPE != 0).then_some((self.hash >> 32) as u32)
    }
}

/// A receive descriptor: a buffer that the device fills.
#[inline]
pub(super) fn rx_descriptor(address: u64) -> Words {
    [address, 0]
}

/// Command and status bits of a transmit descriptor (§7.2.10.1.4, §7.2.11.2); those of context and
/// data lie in the same place.
pub(super) mod tx {
    /// End of packet: the last piece of the frame.
    pub(crate) const EOP: u64 = 1 << 24;
    /// Insert the frame check sequence.
    pub(crate) const IFCS: u64 = 1 << 25;
    /// TCP segmentation enable, in data and context.
    pub(crate) const TSE: u64 = 1 << 26;
    /// Report status: the device writes the descriptor back when it is done.
    pub(crate) const RS: u64 = 1 << 27;
    /// Descriptor extension: no legacy descriptor.
    pub(crate) const DEXT: u64 = 1 << 29;
    /// VLAN packet enable: a tag is inserted.
    pub(crate) const VLE: u64 = 1 << 30;
    /// Descriptor type: data, not context.
    pub(crate) const DTYP_DATA: u64 = 1 << 20;
    /// The context is for TCP; otherwise for UDP.
    pub(crate) const TCP: u64 = 1 << 24;
    /// The context is for IPv4.
    pub(crate) const IPV4: u64 = 1 << 25;
    /// Descriptor done.
    pub(crate) const DD: u64 = 1 << 32;
    /// Insert the IPv4 checksum.
    pub(crate) const IXSM: u64 = 1 << 40;
    /// Insert the TCP or UDP checksum.
    pub(crate) const TXSM: u64 = 1 << 41;
    pub(crate) const TCI_SHIFT: u32 = 48;
}

/// Bytes of one data descriptor, at most: these fit into the smallest transmit buffer on the chip
/// (8 KiB) with its bookkeeping.
pub(super) const MAX_PIECE: usize = (8 << 10) - 96;
/// Data descriptors of a frame, at most, in every implementation: QEMU drops a frame with more, and
/// reports that it was sent.
pub(super) const MAX_PIECES: usize = 64;

/// The command of all data descriptors of a frame. QEMU takes some bits from the first descriptor
/// and some from the last, silicon the other way round; all descriptors of a frame have the same
/// command for this reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Command(pub(super) u64);

impl Command {
    /// A frame as it is.
    pub(super) const PLAIN: Command = Command(tx::DTYP_DATA | tx::DEXT | tx::IFCS);

    /// With a tag to be inserted.
    #[inline]
    pub(super) fn with_vlan(self, tci: u16) -> Command {
        Command(self.0 | tx::VLE | u64::from(tci) << tx::TCI_SHIFT)
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
    /// First byte of the IP header, of its checksum, and its last byte (0: the end of the frame).
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
        let mut second = tx::DEXT;
        if self.tcp {
            second |= tx::TCP;
        }
        if self.ip4 {
            second |= tx::IPV4;
        }
        if let Some((header, payload, mss)) = self.segment {
            second |= tx::TSE | u64::from(payload) & 0xf_ffff | u64::from(header) << 40 | u64::from(mss) << 48;
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
        let of = |status, hash| RxStatus { hash, status };
        let r = of(0x0000_007a_0002_0273, 0x0000_1234_0000_0000);
        assert_eq!((r.len(), r.eop(), r.has_error(), r.is_verified()), (122, true, false, true));
        assert_eq!((r.vlan(), r.hash()), (None, None));
        let bad = of(0x0000_007a_2002_0273, 0);
        assert!(!bad.is_verified() && !bad.has_error(), "a wrong checksum is no reason to lose the frame");
        let tagged = of(0x8123_0040_0000_000b, 0xdead_beef_0000_0001);
        assert_eq!((tagged.vlan(), tagged.hash()), (Some(0x8123), Some(0xdead_beef)));
        assert!(RxStatus::dd(0x0000_007a_0002_0273) && !RxStatus::dd(0x0000_007a_0002_0272));
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
