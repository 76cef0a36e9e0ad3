#![doc = include_str!("../README.md")]
//! # Parts
//!
//! ```text
//!   Region              one mapping: anonymous, huge pages, or a memfd that can be shared
//!     └─ Pool           equal chunks of a region, each described by a 64-byte Meta
//!          ├─ Cache         per core, !Sync: allocates and frees without touching another core
//!          ├─ IndirectPool  pieces of one shared buffer, which is freed with the last of them
//!          └─ ExtBufPool    external buffers: memory of an owner, notified of each free
//!   Buf                 8-byte owned handle of one chunk:  headroom | data | tailroom
//!   Packet              8-byte owned handle of a chain:    head ─► fragment ─► fragment
//!   Batch               an array of packets
//! ```
//!
//! A *chunk* is a buffer of fixed size, as in the UMEM of AF_XDP. A [`Chunk`] is the part of one
//! that has bytes of a packet. A device *completes* what is [in flight](InFlight). A transmit queue
//! [*reclaims*](port::TxQueue::reclaim) what was completed.
//!
//! | module | contents |
//! |---|---|
//! | `buf`, `packet`, `batch` | [`Buf`], [`Chunk`], [`Packet`], [`Batch`] |
//! | `pool`, `region` | [`Pool`], [`Cache`]; [`Region`]: memory; [`RegionHandle`]: its addresses |
//! | `extbuf`, `indirect` | [`ExtBufPool`], [`IndirectPool`]: chunks without memory of their own |
//! | `owned` | [`Packet::from_owner`]: a packet of bytes that the process already has |
//! | `in_flight` | [`InFlight`]: a packet that a device owns has an address, but no bytes |
//! | `untrusted` | [`UntrustedMem`]: a region that others may write to, accessed by address |
//! | `offload` | [`Checksum`], [`Gso`], [`Offloads`], [`Vlan`]: offloads that a packet requests |
//! | [`vnet`] | the virtio-net header of a packet |
//! | [`spsc`] | single-producer single-consumer ring between threads |
//! | [`record_ring`] | ring of records of any length between two threads; it never waits |
//! | [`xsk_ring`] | rings shared with an untrusted side: the kernel (AF_XDP), applications |
//! | [`notify`] | [`Notifier`]: sleep and wake between threads |
//! | `take_cell` | [`TakeCell`]: a value that threads use in turn without waiting |
//! | [`port`] | [`RxQueue`](port::RxQueue), [`TxQueue`](port::TxQueue), [`Port`](port::Port) |
//! | `counters` | [`Counters`], [`DropReason`] |
//! | `meta` | the cache line that describes a chunk |
//! | `setters` | a setter for each field of a configuration |
//! | `sync` | atomics, from the loom switch |
//!
//! # Invariants
//!
//! * **A packet has one owner.** Handles are moved, never copied; dropping one frees its chunks.
//! * **Free + in use = capacity.** At any quiet moment a pool knows how many of its chunks are in
//!   use, and its memory outlives the last of them.
//! * **No lock, no allocation, no system call** on the path of a packet: a [`Cache`] works on its
//!   own arrays and exchanges whole magazines with the pool, a few atomic operations per 64
//!   packets. (Where the C library has no other way to learn the core, it calls `getcpu` then.)
//! * Metadata lies out of line: no device, guest or application can write to anything that decides
//!   where a pointer goes.
//!
//! `unsafe` lives in `batch`, `buf`, `extbuf`, `in_flight`, `indirect`, `meta`, `owned`, `packet`,
//! `pool`, `record_ring`, `region`, `spsc`, `take_cell`, `untrusted` and `xsk_ring::mapped`;
//! everything that they export is safe to call, except [`Pool::in_region`],
//! [`Region::from_memfd_at`] and [`RegionHandle::memfd`].

#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![warn(missing_docs)]

mod batch;
mod buf;
mod counters;
mod extbuf;
mod in_flight;
mod indirect;
mod meta;
pub mod notify;
mod offload;
mod owned;
mod packet;
mod pool;
pub mod port;
pub mod record_ring;
mod region;
mod setters;
pub mod spsc;
mod sync;
mod take_cell;
mod untrusted;
pub mod vnet;
pub mod xsk_ring;

pub use batch::{Batch, DrainFront, Front};
pub use buf::{Buf, Chunk};
pub use counters::{Counters, DropReason, DropWatch, Missed, Snapshot};
pub use extbuf::{ExtBufGauge, ExtBufOwner, ExtBufPool};
pub use in_flight::{FromDevice, InFlight, ToDevice};
pub use indirect::{IndirectPool, SharedBuf};
pub use notify::Notifier;
pub use offload::{Checksum, Gso, GsoKind, Offloads, Vlan};
pub use owned::BadLength;
pub use packet::{Chunks, MAX_CHUNKS, MAX_FRAGS, NoRoom, Packet, prefetch_line};
pub use pool::{Cache, Direction, Floors, Pool, PoolConfig, PoolError, PoolStats};
pub use region::{Backing, Region, RegionError, RegionHandle, WeakRegionHandle};
pub use take_cell::TakeCell;
pub use untrusted::{UntrustedBytes, UntrustedMem};
