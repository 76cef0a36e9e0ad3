//! The errors of a session.

use crate::protocol::{Malformed, Refusal, SHORTEST, Statistic};
use std::io;
use towpath_packet::RegionError;

/// An error of a session.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error("{step}: {source}")]
    Os {
        /// The call.
        step: &'static str,
        /// Its error.
        source: io::Error,
    },
    /// Memory cannot be allocated, or mapped.
    #[error(transparent)]
    Memory(#[from] RegionError),
    /// The configuration breaks a rule.
    #[error("{0}")]
    Config(String),
    /// The datapath refused the session.
    #[error("the datapath refused: {0}")]
    Refused(#[from] Refusal),
    /// The answer is not one of this protocol.
    #[error("the datapath's answer: {0}")]
    Answer(#[from] Malformed),
    /// The session is over.
    #[error("the datapath has closed the session")]
    Closed,
    /// The datapath has closed the session for an entry of its TX or FILL ring, which is counted
    /// as this.
    #[error("the datapath has closed the session: {0}, {rule}", rule = rule(*.0))]
    Ended(Statistic),
    /// The datapath broke the protocol.
    #[error("the datapath broke the protocol: {0}")]
    Broken(&'static str),
    /// A frame of another [`Umem`](crate::Umem) than the socket's: the first of those that were
    /// passed.
    #[error("the frame belongs to another Umem")]
    OtherUmem,
    /// A frame without bytes: the first of those that were passed.
    #[error("the frame is empty")]
    Empty,
    /// A super-packet that this session may not send. See
    /// [`Config::segmentation`](crate::Config::segmentation).
    #[error("the session was not opened to send super-packets")]
    Segmentation,
    /// A packet of a length that the port does not send. Its first frame is the first of those that
    /// were passed, as for all errors below.
    #[error("a packet of {bytes} bytes: must have {SHORTEST} to {longest}")]
    Length {
        /// Its length so far, with its Ethernet header.
        bytes: u32,
        /// That of [`Welcome::longest`](crate::protocol::Welcome::longest).
        longest: u32,
    },
    /// A packet of more than [`MAX_PIECES`](crate::protocol::MAX_PIECES) frames, or a super-packet
    /// of more than [`MAX_SUPER_PIECES`](crate::protocol::MAX_SUPER_PIECES).
    #[error("a packet of too many frames: at most 18, or 64 with segmentation")]
    Pieces,
    /// A request in a later frame than the packet's first.
    #[error("a request in a later frame than the first of its packet")]
    LateRequest,
    /// A received frame whose packet continues, or that has a header, as it came: see
    /// [`Frame`](crate::Frame).
    #[error("a frame as it was received, continued or with a header: forward(), or set its range")]
    Received,
}

/// The error of a system call.
pub(crate) fn os(step: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Os { step, source }
}

/// The rule behind a counter of entries that end a session.
fn rule(counter: Statistic) -> &'static str {
    match counter {
        Statistic::TxInvalidRequests => "a request for a checksum or segments that is not true of its packet",
        Statistic::TxInvalidDescs => "a TX entry that names no chunk of the application, or more bytes than it has",
        Statistic::RxInvalidDescs => "a FILL entry that names no chunk of the application",
        _ => "an invalid entry",
    }
}
