#![doc = include_str!("../README.md")]
//!
//! # Modules
//!
//! | module | content |
//! |---|---|
//! | [`worker`] | threads that run routes and hubs, sleep when idle, and stop in bounded time |
//! | [`route`] | one direction: a receive queue, a transmit queue, and the stages between them |
//! | [`hub`] | several ports joined at one place: each receives, and sends what a switch decides |
//! | [`bridge`] | a learning bridge: the switch of a hub |
//! | [`router`] | an IP router: the switch of a hub |
//! | `egress` | the sending half of both: software offload, layout, refusals |
//! | [`lane`] | threads that process the packets of their flows, from every receiving worker |
//! | [`rules`] | verdicts by textual rules or by a closure |
//! | [`filter`] | expressions of pcap-filter(7), compiled, and verdicts by them |
//! | [`gro_stage`] | GRO: consecutive packets of a flow are merged |
//! | [`software_offload`] | segmentation, checksums and VLAN tags in software |
//! | [`linearize`] | contiguous bytes, headroom and tailroom for an egress that requires them |
//! | [`reflect`] | swaps source and destination of a packet |
//! | [`idle`] | spin, yield, then sleep on the descriptors of the queues |
//! | `gap` | how long an idle worker leaves the rings alone after a burst |
//! | `halt_poll` | how long an idle worker stays awake before it sleeps |
//! | `core_sharing` | a busy worker offers its core to the receivers of what it delivers |
//! | [`samples`] | sampled times and the largest flows of routes and hubs, and their links |
//! | [`tee`] | copies of packets for a capture, taken without a wait |
//! | [`report`] | counters of all parts, and the balance |

#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![warn(missing_docs)]

pub mod bridge;
mod core_sharing;
mod egress;
pub mod filter;
mod gap;
pub mod gro_stage;
mod halt_poll;
pub mod hub;
pub mod idle;
pub mod lane;
pub mod linearize;
pub mod reflect;
pub mod report;
pub mod route;
pub mod router;
pub mod rules;
pub mod samples;
pub mod software_offload;
pub mod tee;
pub mod worker;
