//! The messages of TI's K3 system firmware that a driver needs: rings, DMA channels, flows, PSI-L
//! threads, and the ranges of them that this host was granted.
//!
//! ```text
//!   driver ── Tisci: typed calls ──► Message ── call ──► system firmware ──► configuration
//!   driver ── Mmio ──────────────────────────────────────────────────────► real-time registers
//!
//!   Only firmware writes the configuration.
//! ```
//!
//! The messages are those of TI's system controller interface ([TISCI]) for ring accelerator, UDMA
//! and PSI-L: packed, little-endian, behind a header of eight bytes (`drivers/firmware/ti_sci.h` in
//! Linux). A message has a mask of its valid fields; firmware leaves all others as they are. The
//! values and masks are those of Linux (`k3-ringacc.c`, `k3-udma-glue.c`).
//!
//! An implementation of [`Tisci`] provides only the transport, [`call`](Tisci::call). It fills in
//! host and sequence number.
//!
//! | file | content |
//! |---|---|
//! | `message` | the bytes of a message, and the ranges of an answer |
//! | `config` | what is set up: rings, channels, flows |
//!
//! [TISCI]: https://software-dl.ti.com/tisci/esd/latest/

mod config;
mod message;
#[cfg(test)]
mod tests;

pub use config::{RingConfig, RingMode, RxChannelConfig, RxFlowConfig, TxChannelConfig};
pub use message::{MAX_MESSAGE, Message, Range, kind, range_message};

use message::ranges;
use std::borrow::Cow;

/// Firmware refused a call, or did not answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("firmware refused {call}: {what}")]
#[non_exhaustive]
pub struct Refused {
    /// The call.
    pub call: &'static str,
    /// The reason.
    pub what: Cow<'static, str>,
}

impl Refused {
    /// A refusal of a message, by its type.
    pub fn new(message: &Message, what: impl Into<Cow<'static, str>>) -> Refused {
        let call = match message.kind() {
            kind::RING_CONFIG => "ring_config",
            kind::TX_CHANNEL_CONFIG => "tx_channel_config",
            kind::RX_CHANNEL_CONFIG => "rx_channel_config",
            kind::RX_FLOW_CONFIG => "rx_flow_config",
            kind::PSIL_PAIR => "psil_pair",
            kind::PSIL_UNPAIR => "psil_unpair",
            kind::GET_RANGE => "get_range",
            _ => "an unknown message",
        };
        Refused { call, what: what.into() }
    }
}

/// The way to system firmware, and the calls.
pub trait Tisci: Send + Sync + 'static {
    /// Sends a request and waits for its answer, which has a body only for
    /// [`GET_RANGE`](kind::GET_RANGE).
    ///
    /// # Errors
    /// [`Refused`] if firmware does not acknowledge the request, or does not answer.
    fn call(&self, request: &Message) -> Result<Message, Refused>;

    /// Sets up a ring: empty, indices at zero.
    ///
    /// # Errors
    /// [`Refused`].
    fn ring_config(&self, ring: &RingConfig) -> Result<(), Refused> {
        self.call(&ring.message()).map(drop)
    }

    /// Resets a configured ring of `count` elements: indices, counts and flags become zero, the
    /// rest stays.
    ///
    /// # Errors
    /// [`Refused`].
    fn ring_reset(&self, device: u16, ring: u16, count: u32) -> Result<(), Refused> {
        self.call(&RingConfig::reset_message(device, ring, count)).map(drop)
    }

    /// Sets up a transmit channel.
    ///
    /// # Errors
    /// [`Refused`].
    fn tx_channel_config(&self, channel: &TxChannelConfig) -> Result<(), Refused> {
        self.call(&channel.message()).map(drop)
    }

    /// Sets up a receive channel.
    ///
    /// # Errors
    /// [`Refused`].
    fn rx_channel_config(&self, channel: &RxChannelConfig) -> Result<(), Refused> {
        self.call(&channel.message()).map(drop)
    }

    /// Sets up a receive flow.
    ///
    /// # Errors
    /// [`Refused`].
    fn rx_flow_config(&self, flow: &RxFlowConfig) -> Result<(), Refused> {
        self.call(&flow.message()).map(drop)
    }

    /// Pairs a source thread with a destination thread, 0x8000 and up, of the navigator `device`.
    ///
    /// # Errors
    /// [`Refused`].
    fn psil_pair(&self, device: u16, source: u16, destination: u16) -> Result<(), Refused> {
        self.call(&psil_message(kind::PSIL_PAIR, device, source, destination)).map(drop)
    }

    /// Unpairs them.
    ///
    /// # Errors
    /// [`Refused`].
    fn psil_unpair(&self, device: u16, source: u16, destination: u16) -> Result<(), Refused> {
        self.call(&psil_message(kind::PSIL_UNPAIR, device, source, destination)).map(drop)
    }

    /// The ranges of a resource that this host was granted.
    ///
    /// # Errors
    /// [`Refused`], also if the answer is too short.
    fn ranges(&self, device: u16, subtype: u8) -> Result<[Range; 2], Refused> {
        let request = range_message(device, subtype);
        ranges(&self.call(&request)?).ok_or_else(|| Refused::new(&request, "the answer is too short"))
    }
}

fn psil_message(kind: u16, device: u16, source: u16, destination: u16) -> Message {
    Message::request(kind).u32(device.into()).u32(source.into()).u32(destination.into())
}
