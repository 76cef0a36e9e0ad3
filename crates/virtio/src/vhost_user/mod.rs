//! The messages of vhost-user: a front end, which has virtqueues, asks a back end, which moves what
//! is in them.
//!
//! Source: QEMU, `docs/interop/vhost-user.rst`.
//!
//! ```text
//!    front end                       UNIX stream socket                     back end
//!    Request, payload, descriptors ─► ┌ request │ flags │ size ┐ payload ─► Channel::receive
//!    Channel::receive ◄─ payload ──── └ 12 bytes, native order ┘ ◄───────── reply, by some requests
//! ```
//!
//! | file | contents |
//! |---|---|
//! | `request` | [`Request`]: the numbers and names of a front end's requests |
//! | `payload` | the structures behind the header, of exact sizes |
//! | `protocol` | [`protocol`]: bits of the protocol's own features |
//! | `channel` | [`Channel`], [`Message`]: framed messages with descriptors on a socket |
//!
//! Both sides use the same code. A peer is not trusted. A message is bounded before it is stored,
//! and its size must be exactly that of its payload. Every descriptor that came with it is in
//! [`Message::fds`], or in that of the next one if it came between two.

mod channel;
mod payload;
pub mod protocol;
mod request;

pub use channel::{Channel, ChannelError, Message};
pub use payload::{
    CONFIG_SIZE, ConfigSpace, InFlightArea, Log, MAX_REGIONS, MemoryRegion, MemoryTable, PayloadError, SingleRegion,
    VringAddr, VringFd, VringState, read_u64,
};
pub use request::Request;
