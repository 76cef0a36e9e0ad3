#![doc = include_str!("../README.md")]
//!
//! # How it works
//!
//! ```text
//!   Umem ── alloc ──► Frame ── write into it ──► Socket::tx ────────────► sent from its page
//!                       ▲                           completions ◄──────── its last user is done
//!                       │
//!                       └──── Socket::fill ──► a received packet is copied into it ──► Socket::rx
//! ```
//!
//! A [`Frame`] is owned: it is not `Copy`, and a frame that was sent or posted is gone until it
//! comes back. A program can therefore not write into a page in flight, send it twice, or use the
//! index of another frame:
//!
//! ```compile_fail,E0382
//! # use towpath_client::{Error, Frame, Socket};
//! # fn f(socket: &mut Socket, frame: Frame) -> Result<(), Error> {
//! let mut frames = vec![frame];
//! socket.tx(&mut frames)?;
//! frame.bytes(); // it was moved
//! # Ok(()) }
//! ```
//!
//! A received frame has a mark that its packet continues, or has a header. The program chooses
//! whether it keeps that before it is sent: two packets cannot grow together, and a header cannot
//! describe bytes that have changed since, by an oversight. See [`Frame`].
//!
//! Several sockets may use one [`Umem`]: one may send the frame that another one received. Sockets
//! that [share](Config::share) a session are one application to the datapath.
//!
//! | module | |
//! |---|---|
//! | `socket` | [`Socket`]: the rings; [`Config`] |
//! | `packets` | the rules of sent packets, checked in front of the ring |
//! | `umem` | [`Umem`]: chunks in a sealed memfd; the holder of each of them |
//! | `frame` | [`Frame`]: a chunk that the program owns, its bytes and its header |
//! | `request` | [`Segmentation`]: what a sent super-packet asks for |
//! | `handshake` | [`Session`]: the handshake alone, for a program that has its own rings |
//! | `connection` | [`Connection`]: the UNIX socket of a session, closed in order |
//! | `error` | [`Error`] |
//! | [`protocol`] | messages, layouts and rules of the protocol |
//!
//! `unsafe` lies in `frame` (the bytes of owned frames), `umem` (a count of references that is left
//! with a chunk) and `socket` (`recv`).

#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![warn(missing_docs)]

mod connection;
mod error;
mod frame;
mod handshake;
mod packets;
pub mod protocol;
mod request;
mod socket;
mod umem;

pub use connection::Connection;
pub use error::Error;
pub use frame::Frame;
pub use handshake::Session;
pub use protocol::Sizes;
pub use request::Segmentation;
pub use socket::{Config, Socket};
pub use towpath_packet::GsoKind;
pub use umem::Umem;
