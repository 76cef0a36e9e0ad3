//! Many UDP datagrams with one call, each with its addresses, interface and traffic class
//! (`udp(7)`, `ip(7)`, `ipv6(7)`).
//!
//! | module | holds |
//! |---|---|
//! | `path` | [`Path`], [`TrafficClass`], [`Ecn`]: what a datagram has beside its bytes |
//! | `name` | socket addresses as bytes |
//! | `control` | control messages as bytes: written within their buffer, read within their bounds |
//! | `send` | [`Sender`]: `sendmmsg(2)` with `UDP_SEGMENT` |
//! | `receive` | [`Receiver`]: `recvmmsg(2)` with `UDP_GRO` |
//! | `options` | what a socket does, what its buffers hold, what it dropped |

mod control;
mod name;
pub mod options;
mod path;
mod receive;
mod send;

pub use path::{Ecn, Path, TrafficClass};
pub use receive::{Message, Receiver};
pub use send::{Outgoing, Sender};

/// Most messages of one call.
pub const MESSAGES: usize = 64;

/// Most datagrams of a message with `UDP_SEGMENT`: `UDP_MAX_SEGMENTS` of kernels before 6.9.
pub const SEGMENTS: usize = 64;

/// Most bytes of a message with `UDP_SEGMENT`. With its headers it is one IP packet, of at most
/// 65 535 bytes.
pub const SEGMENTED: usize = 65_000;

/// The errors of `sendmsg(2)` after which a message of several datagrams is sent again as single
/// ones, or waits.
pub mod errno {
    pub use libc::{EINVAL, EIO, EMSGSIZE, ENOBUFS};
}
