//! One flow of the table.

use super::Trail;
use crate::layout::Layout;
use crate::predict::Expected;
use crate::shape::Shape;

/// One held packet or aggregate.
#[repr(align(64))]
pub(crate) struct Flow<S> {
    /// `None` if the flow is closed.
    pub(crate) segment: Option<S>,
    /// The predicted packet's tag and length, [together](tag_and_len); no length if none is
    /// predicted.
    pub(crate) expects: u64,
    /// Possibly 0; kept when the flow is closed.
    pub(super) hash: u32,
    /// The prediction of the next packet.
    pub(crate) expected: Expected,
    /// Bytes before the payload of the predicted packet.
    pub(crate) header: u16,
    /// Payload bytes of each packet.
    pub(crate) size: u16,
    /// How many full-sized packets it can have. 0 until the second one came: this field and the
    /// prediction are unknown until then.
    pub(super) most: u16,
    /// How many of them are missing; -1 until the second one came, so that the difference of the
    /// two is always the number of packets.
    pub(super) left: u16,
    /// With a shape: the sum of the constant fields in a full-sized packet's transport header and
    /// pseudo-header; 0 until it is first needed.
    pub(crate) constant_sum: u16,
    /// The next flow of its chain; itself if it is the last.
    pub(super) chain: u16,
    /// Its own slot, and that of the flow whose packet came after a packet of this flow the last
    /// time. It stays when the slot gets another flow, because flows often come in the order of the
    /// burst before.
    pub(super) trail: Trail,
    pub(crate) shape: Shape,
    /// FIN and PSH of those merged.
    pub(crate) flags: u8,
    /// Identifications count up, as predicted of the second packet; otherwise they repeat, or there
    /// are none. Inner and outer.
    pub(crate) counts: bool,
    pub(crate) outer_counts: bool,
    /// Its shape [is usual](Shape::is_usual), and identifications count up.
    pub(crate) usual: bool,
    /// It was [opened again](Table::reopen): what its second packet decides is assumed to be as
    /// before.
    pub(crate) reopened: bool,
}

impl<S> Flow<S> {
    /// A slot without a flow.
    pub(super) fn free(slot: u16) -> Self {
        Self {
            segment: None,
            expects: 0,
            hash: 0,
            expected: Expected::NONE,
            header: 0,
            size: 0,
            most: 0,
            left: 0,
            constant_sum: 0,
            chain: 0,
            trail: Trail::of(slot),
            shape: Shape::ANY,
            flags: 0,
            counts: false,
            outer_counts: false,
            usual: false,
            reopened: false,
        }
    }

    /// The layout, valid once there is a second packet.
    #[inline(always)]
    pub(crate) fn layout(&self) -> Layout {
        if self.shape == Shape::ANY { Layout::unpack(self.expected.layout()) } else { self.shape.layout() }
    }

    /// What is expected after its packet.
    #[inline(always)]
    pub(crate) fn trail(&self) -> Trail {
        self.trail
    }

    /// The VLAN tag beside its packets.
    #[inline(always)]
    pub(crate) fn vlan(&self) -> u32 {
        (self.expects >> 32) as u32
    }

    /// Predicts packets of `header` bytes before the payload, or none.
    #[inline(always)]
    pub(crate) fn expect(&mut self, header: Option<u16>) {
        let len = header.map_or(0, |header| usize::from(header) + usize::from(self.size));
        self.header = header.unwrap_or(0);
        self.expects = tag_and_len(self.vlan(), len);
    }

    /// Whether it has as many full-sized packets as fit, and one of `size` payload bytes is not
    /// shorter.
    #[inline(always)]
    pub(crate) fn has_no_room_for(&self, size: u16) -> bool {
        self.has_begun() && self.is_full() && size >= self.size
    }

    /// Packets.
    #[inline(always)]
    pub(crate) fn count(&self) -> u16 {
        self.most.wrapping_sub(self.left)
    }

    /// Whether the second packet came.
    #[inline(always)]
    pub(crate) fn has_begun(&self) -> bool {
        self.most > 0
    }

    /// Whether what the second packet decides is unknown or assumed.
    #[inline(always)]
    pub(crate) fn is_undecided(&self) -> bool {
        !self.has_begun() || (self.reopened && self.count() == 1)
    }

    /// Whether `b` may be the beginning of the packet that was predicted of it when it was closed:
    /// a field that differs in every packet is as predicted. Asked of [usual](Shape::is_usual)
    /// flows.
    #[inline(always)]
    pub(crate) fn may_go_on<const L3: usize>(&self, b: &[u8]) -> bool {
        self.usual && self.expected.has_ip_word::<L3>(b)
    }

    /// Limits an aggregate of one packet to `most` full-sized ones, at least one.
    #[inline(always)]
    pub(crate) fn set_most(&mut self, most: u16) {
        (self.most, self.left) = (most, most.wrapping_sub(1));
    }

    /// Counts a packet. A shorter one behind the last that fits is counted too; it is the last.
    #[inline(always)]
    pub(crate) fn add_one(&mut self) {
        self.left = self.left.wrapping_sub(1);
    }

    /// Whether it has all full-sized packets that it can have.
    #[inline(always)]
    pub(crate) fn is_full(&self) -> bool {
        self.left == 0
    }
}

/// A packet's tag in the high half, its length in the low one.
#[inline(always)]
pub(crate) fn tag_and_len(vlan: u32, len: usize) -> u64 {
    u64::from(vlan) << 32 | len as u64
}
