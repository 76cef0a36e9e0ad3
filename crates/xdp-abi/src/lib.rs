//! `libtowpath_xdp.so`: the AF_XDP socket functions of libxdp, on towpath's application sockets.
//!
//! ```text
//!   C program ── <xdp/xsk.h>, inline ring helpers ──► rings, UMEM: the very memory that the datapath works on
//!       │
//!       └ xsk_umem__create, xsk_socket__create, … ──► this library ── towpath_client::Session ──► towpath fwd sock:PATH …
//! ```
//!
//! A program is linked with `-ltowpath_xdp` instead of `-lxdp`, or started with `LD_PRELOAD=libtowpath_xdp.so`. It needs no privilege,
//! no interface and no BPF. Which socket stands for which interface is what the variable `TOWPATH_XDP` says. `docs/c-abi.md` is the manual for its
//! user: the functions, and what is different.
//!
//! | module | |
//! |---|---|
//! | [`umem`] | `xsk_umem__*`; `memory` makes the program's memory one that can be shared, `area` is where rings lie |
//! | [`socket`] | `xsk_socket__*`; `place` says which socket stands for which interface |
//! | [`options`] | `getsockopt`, for what programs ask of a socket |
//! | [`program`] | what would load a BPF program, and has nothing to do here |
//! | [`inline`] | the ring helpers as functions, for who can't inline them |
//! | [`abi`] | structures and constants of the header |
//!
//! # Rules of this crate
//!
//! Whatever comes from C is checked as far as it can be: null pointers, lengths, flags and strings give a negative errno and a sentence on
//! standard error, as libxdp does; nothing panics across the boundary. What can't be checked is each function's
//! `# Safety`: pointers that are not null point to what the header says. A handle that was deleted must not be used again.

#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod abi;
mod area;
mod failure;
pub mod inline;
mod maps;
mod memory;
pub mod options;
mod place;
pub mod program;
pub mod socket;
pub mod umem;
