#![doc = include_str!("../README.md")]
//! # Modules
//!
//! ```text
//!   tun        TAP and TUN interfaces
//!   packet     AF_PACKET: an interface of the host
//!   xdp        AF_XDP: queues of an interface; and frames of a program
//!   sock       applications: zero-copy UMEM, rings in shared memory
//!   vhost      virtual machines: the back end of vhost-user
//!   veth       a pair of ports in memory
//!   pcap       capture files
//!   generator  generated packets, verified on return
//!   null       counts and frees
//!   fault      another port with drops, reordering, corruption, stalls
//!   uri        the URI of a port: scheme, target, options
//!   kind       what a kind of port is, and its options: for parser, help, man pages, completion
//!   vnet       the virtio-net header of packets on TUN/TAP and AF_PACKET
//!
//!   kernel     shared by ports on interfaces of the kernel: link, counters, buffers
//!   copy_plan  which bytes of an untrusted owner are copied for an egress
//!   closing    descriptors of other processes, closed where nothing waits for it
//!   pace       a limit of what other processes make a control thread do
//!   ended      queues of a port that has a thread of its own
//!   random     a seeded random number generator
//! ```
//!
//! Each port is a module with a `Config` (with `Default` and `from_uri`), an `open`, and its queues
//! `rx` and `tx`.

#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![warn(missing_docs)]

mod closing;
mod copy_plan;
mod ended;
pub mod fault;
pub mod generator;
mod kernel;
pub mod kind;
pub mod null;
mod pace;
pub mod packet;
pub mod pcap;
mod random;
pub mod sock;
pub mod tun;
pub mod uri;
pub mod veth;
pub mod vhost;
pub mod vnet;
pub mod xdp;

pub use ended::Ended;
pub use kernel::link::NOT_UP;

#[cfg(all(test, not(loom)))]
#[global_allocator]
static ALLOCATOR: towpath_testing::Counting = towpath_testing::Counting;
