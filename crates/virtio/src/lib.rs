#![doc = include_str!("../README.md")]
//!
//! # Parts
//!
//! ```text
//!            driver's side                                    device's side
//!   Segment ─► Driver::add ─┐                        ┌─ Device::take ─► Chain of Piece, a Token
//!              publish ─────┤   Areas, in memory     ├─ add_used(Token, len)
//!   Used ◄─ next_used ──────┘   that both may write  └─ publish
//!      trusted: free list, chains in flight             trusted: positions, chains out of order
//!                                                       AddressSpace: where addresses lead
//! ```
//!
//! | module | contents |
//! |---|---|
//! | `queue` | [`Driver`], [`Device`]: either format, chosen at run time |
//! | [`split`], [`packed`] | the queues of one format |
//! | `layout` | [`Format`], [`Layout`], [`Features`]: where words lie, what was negotiated |
//! | `area` | [`Area`], [`Areas`]: words in memory that the other side may write |
//! | `chain` | [`Segment`], [`Used`] of a driver; [`Chain`], [`Piece`], [`Token`] of a device |
//! | `space` | [`AddressSpace`], and [`Regions`]: a table as vhost-user sends it |
//! | `tables` | [`Tables`]: a driver's indirect tables |
//! | `base` | [`Base`]: where a queue goes on after its device was replaced |
//! | `in_flight_record` | [`InFlightRecord`]: chains in flight, for the next device after a kill |
//! | [`vhost_user`] | messages between a front end, which has queues, and a back end |
//! | `event` | when the other side is to be notified |
//! | `error` | [`AddError`], [`QueueError`], [`RingError`] |
//! | `interleavings` | both protocols in every interleaving, under `--cfg loom` |
//! | `in_flight`, `in_order`, `walk` | chains in flight, chains out of order, chains followed |
//!
//! # Invariants
//!
//! * **The other side may write anything at any moment.** Each word is read once, as an atomic.
//!   What decides where this side writes, and how often, lies in memory of its own.
//! * **Bounded work.** A chain has at most as many steps as the queue, or its table, has
//!   descriptors. One index is loaded per burst, and nothing waits for the other side.
//! * **A breach is final.** The first [`RingError`] is returned ever after, until the queue is made
//!   anew. Chains that are out can still be completed.
//! * **A device returns each chain once.** A [`Token`] is not copied; `add_used` or `untake` takes
//!   it.
//! * **Nothing is visible before `publish`**: a burst costs one store that the other side waits
//!   for, one fence and one decision about a notification. A device may show a part of a long burst
//!   by [`publish_early`](Device::publish_early), for one more such store: whole packets only.
//! * **No allocation, lock, system call or panic** behind `new`, whatever the other side writes.
//!
//! # Notifications
//!
//! This crate decides *whether*: [`Driver::publish`] whether to kick, [`Device::publish`] whether
//! to call. *How* is the transport's: a register, an eventfd. With `VIRTIO_F_EVENT_IDX` a side that
//! polls leaves its event index behind instead of setting a flag, so that one notification in
//! 65 536 chains comes all the same.
//!
//! # A port on top
//!
//! *Zero copy.* The pieces of a [`Chain`] name memory by [`AddressSpace::Place`], so that a port
//! can attach them to packets as external buffers. [`Token::into_raw`] fits into the token of an
//! external buffer, or into a table of the port's, in which it counts the pieces of a chain that
//! are still out. As many chains as the queue has descriptors are out at most. They are completed
//! in any order; with `VIRTIO_F_IN_ORDER` the queue holds them back until it is their turn.
//!
//! *Mergeable buffers.* [`Device::take`] chain after chain and fill them; keep the place of the
//! first chain's header, write `num_buffers` there, [`add_used`](Device::add_used) all of them, and
//! publish once a burst. If chains are missing, [`untake`](Device::untake) them, last one first.
//!
//! `unsafe` lives in `area` only.
//!
//! Section numbers are those of virtio 1.2.

#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![warn(missing_docs)]

mod area;
mod base;
mod chain;
mod error;
mod event;
mod in_flight;
mod in_flight_record;
mod in_order;
mod layout;
pub mod packed;
mod queue;
mod space;
pub mod split;
mod tables;
pub mod vhost_user;
mod walk;

#[cfg(all(test, loom))]
mod interleavings;

pub use area::{Area, Areas, RingWords};
pub use base::Base;
pub use chain::{Chain, Piece, Segment, Single, SingleBuffers, Token, Used};
pub use error::{AddError, QueueError, RingError};
pub use in_flight_record::InFlightRecord;
pub use layout::{Features, Format, Layout, MAX_SIZE};
pub use queue::{Device, Driver};
pub use space::{AddressSpace, RegionPlace, Regions, RegionsError};
pub use tables::Tables;
