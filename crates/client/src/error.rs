//! What goes wrong.

use crate::protocol::{Malformed, Refusal};
use std::io;
use towpath_packet::RegionError;

/// What goes wrong.
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
    /// A super-packet that this session may not send. Its first frame is the first of those that
    /// were passed. See [`Config::segmentation`](crate::Config::segmentation).
    #[error("the session was not opened to send super-packets")]
    Segmentation,
}

/// The error of a system call.
pub(crate) fn os(step: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Os { step, source }
}
