//! Refusals: why a front end's request is refused, or its connection ends.

use super::descriptors::DescriptorError;
use super::in_flight_record::RecordError;
use super::memory::MemoryError;
use super::ring_control::RingRefusal;
use towpath_virtio::vhost_user::{ChannelError, PayloadError, Request};

/// Why a request is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error(transparent)]
    Payload(#[from] PayloadError),
    #[error(transparent)]
    Descriptor(#[from] DescriptorError),
    #[error(transparent)]
    Memory(#[from] MemoryError),
    #[error(transparent)]
    Records(#[from] RecordError),
    #[error("ring {ring}: {why}")]
    Ring { ring: usize, why: RingRefusal },
    #[error("ring {ring}: the device has {rings}, a pair for each worker of the port, at most queues=")]
    Index { ring: u32, rings: usize },
    #[error("{0} were not offered")]
    Features(String),
    #[error("features {0} can't change while a ring runs")]
    Running(String),
    #[error("{0} was not negotiated")]
    NotNegotiated(&'static str),
    #[error("not offered")]
    NotOffered,
    #[error("MTU {0}: must be from 68 to 65535, and not above that of the port")]
    Mtu(u64),
    #[error("the configuration can't be written")]
    Config,
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum End {
    #[error("left")]
    Left,
    #[error("the port ended")]
    Port,
    #[error(transparent)]
    Channel(ChannelError),
    #[error("{request}: {why}")]
    Refused { request: Request, why: Refusal },
    #[error("request {0} is not known")]
    Unknown(u32),
    #[error("a reply to no request")]
    Reply,
    #[error("its memory was truncated")]
    Lost,
    #[error("a counter that it shares was full")]
    Counter,
}

impl From<ChannelError> for End {
    fn from(error: ChannelError) -> End {
        if matches!(error, ChannelError::Closed) { End::Left } else { End::Channel(error) }
    }
}
