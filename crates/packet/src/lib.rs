//! Packet memory: regions, buffers, pools, rings, and the traits that ports implement.
//!
//! ```text
//!   Region           one mapping: anonymous, huge pages, or a memfd that can be shared
//!     └─ Pool        equal chunks cut from a region, each described by a 64-byte Meta
//!          ├─ Cache  per core, !Sync: allocates and frees without touching another core
//!          ├─ IndirectPool  slices of a larger buffer that they share, which goes home with the last of them
//!          └─ ExtBufPool  bytes of a region that belongs to someone else, who is told when they are free again
//!   Buf              8-byte owned handle of one chunk:  headroom | data | tailroom
//!   Packet           8-byte owned handle of a chain:    head ─► fragment ─► fragment
//!   Batch            what crosses every interface: an array of packets
//!   InFlight           a packet in a device's hands: it has an address, but no bytes
//!   UntrustedMem          a region that somebody else may write to: written by address, never seen as a slice
//!   ring             single producer, single consumer, reserve/commit in bulk
//!   xsk_ring            rings shared with those who are not trusted: the kernel (AF_XDP), applications
//!   TakeCell         a value that threads take turns with, without waiting
//!   port             RxQueue, TxQueue, Port, Info: what a driver or a kernel port is
//! ```
//!
//! Invariants that everything above stands on:
//!
//! * **A packet has one owner.** Handles are moved, never copied; dropping one gives its chunks home.
//! * **Buffers out = buffers home.** A pool can say at any quiet moment how many of its chunks are away,
//!   and its memory outlives the last of them.
//! * **No lock, no allocation, no system call** on the paths that a packet takes: a [`Cache`] works on its own
//!   arrays and exchanges whole magazines with the pool by one compare-and-swap per 64 packets.
//! * Metadata lies out of line: nothing that a device, a guest or an application can write decides where a
//!   pointer goes.
//!
//! `unsafe` lives in `region`, `meta`, `buf`, `packet`, `batch`, `ring`, `pool`, `loan`, `view`, `pages`, `foreign`,
//! `take` and `xsk_ring`; everything that
//! they export is safe to call.

#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![warn(missing_docs)]

mod batch;
mod buf;
mod chunk;
mod counters;
mod extbuf;
mod in_flight;
mod indirect;
mod meta;
pub mod notify;
mod offload;
mod packet;
mod pool;
pub mod port;
mod region;
pub mod spsc;
mod sync;
mod take;
mod untrusted;
pub mod xsk_ring;

pub use batch::{Batch, DrainFront};
pub use buf::Buf;
pub use chunk::Chunk;
pub use counters::{Counters, DropReason, Snapshot};
pub use extbuf::{ExtBufOwner, ExtBufPool};
pub use in_flight::{FromDevice, InFlight, ToDevice};
pub use indirect::{IndirectPool, SharedBuf};
pub use notify::Notifier;
pub use offload::{Checksum, Gso, GsoKind, Offloads, Vlan};
pub use packet::{Chunks, MAX_CHUNKS, MAX_FRAGS, NoRoom, Packet};
pub use pool::{Cache, Direction, Floors, Pool, PoolConfig, PoolError, PoolStats};
pub use region::{Backing, Region, RegionError};
pub use take::TakeCell;
pub use untrusted::UntrustedMem;
