//! Verdicts.

use std::fmt;

/// One of the two sides of `fwd A B`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PortSide {
    /// The first.
    A,
    /// The second.
    B,
}

impl PortSide {
    /// The opposite side.
    #[must_use]
    pub fn other(self) -> PortSide {
        match self {
            PortSide::A => PortSide::B,
            PortSide::B => PortSide::A,
        }
    }
}

impl fmt::Display for PortSide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PortSide::A => "a",
            PortSide::B => "b",
        })
    }
}

/// What happens to a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Verdict {
    /// Continues to the opposite egress, through steering, lanes and GRO.
    #[default]
    Pass,
    /// Dropped and counted as [`DropReason::Filtered`](towpath_packet::DropReason::Filtered).
    Drop,
    /// Leaves by the port that it came from.
    Tx,
    /// Leaves by the named side, which may be the one that it came from.
    Port(PortSide),
    /// Continues in this lane, whatever the hash of its flow.
    Lane(u16),
}

/// The text form, as in a rule.
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Pass => f.write_str("pass"),
            Verdict::Drop => f.write_str("drop"),
            Verdict::Tx => f.write_str("tx"),
            Verdict::Port(side) => write!(f, "redirect {side}"),
            Verdict::Lane(lane) => write!(f, "lane {lane}"),
        }
    }
}
