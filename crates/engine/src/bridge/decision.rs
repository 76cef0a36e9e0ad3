//! Where a frame goes.

use super::storm::FloodKind;
use towpath_packet::DropReason;

const BROADCAST: u64 = 0xffff_ffff_ffff;
/// The reserved groups but for their last digit, and the one of pause frames.
const RESERVED: u64 = 0x0180_c200_0000;
pub(super) const PAUSE: u64 = RESERVED | 1;

/// Where a frame goes.
pub(super) enum To {
    Port(usize),
    Flood(FloodKind),
    Drop(DropReason),
}

/// A [`To`] in two bytes: a port's number, or a flag with a reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Decision(pub(super) u16);

impl Decision {
    /// The table decides.
    pub(super) const NONE: Decision = Decision(u16::MAX);
    const FLOOD: u16 = 0x8000;
    const DROP: u16 = 0x4000;

    /// To all ports that frames of this kind go to.
    #[inline]
    pub(super) const fn flood(kind: FloodKind) -> Decision {
        Decision(Decision::FLOOD | kind as u16)
    }

    /// To none.
    #[inline]
    pub(super) const fn drop(reason: DropReason) -> Decision {
        Decision(Decision::DROP | reason as u16)
    }

    #[inline]
    pub(super) fn is_port(self) -> bool {
        self.0 & (Decision::FLOOD | Decision::DROP) == 0
    }

    #[inline]
    pub(super) fn to(self) -> To {
        match self.0 {
            number if self.is_port() => To::Port(number.into()),
            code if code & Decision::FLOOD != 0 => To::Flood(FloodKind::ALL[usize::from(code) & 3]),
            code => To::Drop(DropReason::ALL[usize::from(code & 0xff)]),
        }
    }
}

/// The decision for a frame to a group.
#[inline(never)]
pub(super) fn of_group(destination: u64) -> Decision {
    if destination == BROADCAST {
        Decision::flood(FloodKind::Broadcast)
    } else if destination & !0xf == RESERVED && destination != RESERVED {
        Decision::drop(DropReason::Reserved)
    } else {
        Decision::flood(FloodKind::Multicast)
    }
}
