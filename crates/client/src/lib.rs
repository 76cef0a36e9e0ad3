//! The application's side of towpath's sockets: frames in memory that the application shares with the datapath, sent from where they
//! were written, without root and without the kernel in between.
//!
//! ```text
//!   Umem ── alloc ──► Frame ── write into it ──► Socket::tx ─────────────► the datapath sends the page itself
//!                       ▲                           completions ◄───────── the last user of the page is done
//!                       │
//!                       └──────── Socket::fill ──► the datapath copies a received packet into it ──► Socket::rx
//! ```
//!
//! A [`Frame`] is owned: it is not `Copy`, and what was sent or posted is gone until it comes back. So there is no way to write
//! into a page that is on its way, to send it twice, or to use an index that is not one's own:
//!
//! ```compile_fail
//! # fn f(socket: &mut towpath_client::Socket<'_>, frame: towpath_client::Frame<'_>) -> Result<(), towpath_client::Error> {
//! let mut frames = vec![frame];
//! socket.tx(&mut frames)?;
//! frame.bytes(); // it was moved
//! # Ok(()) }
//! ```
//!
//! Several sockets may use one [`Umem`]: a frame that was received by one can be sent by another. Those that
//! [share](Config::share) a session are one application to the datapath.
//!
//! # Example: echo
//!
//! Sends every UDP packet back to where it came from; on the other side, `towpath fwd sock:/run/towpath.sock tap:tp0`. The whole program
//! is `examples/echo.rs`.
//!
//! ```no_run
//! use towpath_client::{Config, Socket, Umem};
//!
//! let umem = Umem::new(1024, 2048)?;
//! let config = Config { rules: vec!["udp".to_owned()], ..Config::default() };
//! let mut socket = Socket::connect(&umem, "/run/towpath.sock", &config)?;
//! let mut empty: Vec<_> = std::iter::from_fn(|| umem.alloc()).take(512).collect();
//! let mut frames = Vec::new();
//! loop {
//!     socket.completions(&mut empty)?;
//!     socket.fill(&mut empty)?;
//!     if socket.rx(&mut frames)? == 0 && frames.is_empty() {
//!         socket.wait(None)?;
//!     }
//!     for frame in &mut frames {
//!         if let Some(addresses) = frame.bytes_mut().get_mut(..12) {
//!             let (to, from) = addresses.split_at_mut(6);
//!             to.swap_with_slice(from);
//!         }
//!     }
//!     socket.tx(&mut frames)?;
//! }
//! # #[allow(unreachable_code)]
//! # Ok::<(), towpath_client::Error>(())
//! ```
//!
//! `unsafe` lives in `umem` (bytes of owned frames), `socket` (rings, `poll`) and `protocol::connection` (system calls).

#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![warn(missing_docs)]

mod handshake;
pub mod protocol;
mod request;
mod socket;
mod umem;

pub use handshake::Session;
pub use protocol::Sizes;
pub use request::Segmentation;
pub use socket::{Config, Error, Socket};
pub use towpath_packet::GsoKind;
pub use umem::{Frame, Umem};
