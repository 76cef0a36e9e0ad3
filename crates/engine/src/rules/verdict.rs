//! What becomes of a packet.

use std::fmt;

/// One of the two ends of `fwd A B`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PortSide {
    /// The first.
    A,
    /// The second.
    B,
}

impl PortSide {
    /// The end across.
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

/// What becomes of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Verdict {
    /// Goes on to the egress across, through steering, lanes and GRO.
    #[default]
    Pass,
    /// Is dropped, and counted as [`DropReason::Filtered`](towpath_packet::DropReason::Filtered).
    Drop,
    /// Leaves by the port that it came from.
    Tx,
    /// Leaves by the named end, be it the one that it came from or the one across.
    Port(PortSide),
    /// Goes on in this lane, whatever the hash of its flow says.
    Lane(u16),
}

/// As in a rule.
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
