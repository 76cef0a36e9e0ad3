#![doc = include_str!("../README.md")]
//!
//! # How it works
//!
//! ```text
//!   C program ── <xdp/xsk.h>, inline ring helpers ──► rings and UMEM, shared with the datapath
//!       │
//!       └ xsk_umem__create, … ──► this library ── towpath_client::Session ──► sock:PATH
//! ```
//!
//! | module | |
//! |---|---|
//! | [`umem`] | `xsk_umem__*`: creating and deleting a UMEM |
//! | [`socket`] | `xsk_socket__*`: creating and deleting a socket |
//! | [`opts`] | the structures of options of `…__create_opts` |
//! | [`options`] | `getsockopt` with `SOL_XDP`: statistics and options; `setsockopt` for busy polling |
//! | [`poll`](mod@poll) | `poll` and `ppoll`, which wake the datapath; `recvfrom` without room |
//! | [`rlimit`] | `setrlimit` of `RLIMIT_MEMLOCK`, which is not needed here |
//! | [`program`] | functions that load and attach a BPF program, which is not needed here |
//! | [`static_libxdp`] | detects programs that make AF_XDP sockets of the kernel |
//! | [`inline`] | the header's ring helpers as functions |
//! | [`abi`] | structures and constants of the header |
//! | `memory` | makes the program's own memory shareable at its addresses |
//! | `maps` | the mappings of the process, for `memory` |
//! | `ring_area` | the addresses of a socket's rings |
//! | `endpoint` | `TOWPATH_XDP`: the datapath's socket for an interface and a queue |
//! | `next` | the definitions behind those of this library: the C library's, libxdp's |
//! | `failure` | errors as C sees them; panics end here |
//!
//! # Rules of this crate
//!
//! Arguments from C are checked as far as possible: null pointers, lengths, flags and strings give
//! a negative errno and a sentence on standard error, as in libxdp. No panic crosses the boundary.
//! What can't be checked is in each function's `# Safety`: pointers that are not null point to what
//! the header requires. A deleted handle must not be used again.

#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![warn(missing_docs)]

pub mod abi;
mod endpoint;
mod failure;
pub mod inline;
mod maps;
mod memory;
mod next;
pub mod options;
pub mod opts;
pub mod poll;
pub mod program;
mod ring_area;
pub mod rlimit;
pub mod socket;
pub mod static_libxdp;
pub mod umem;
