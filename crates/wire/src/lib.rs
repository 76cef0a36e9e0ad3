#![doc = include_str!("../README.md")]
//!
//! # Overview
//!
//! ```text
//!   bytes ──▶ dissect ──▶ Dissected: offsets, flags, FlowKey ──▶ symmetric_hash, Toeplitz
//!     │                                                            (which lane, which slot)
//!     ├────▶ Ethernet, Ipv4, Tcp, … ::parse ──▶ views with getters, options, payload
//!     ├────▶ ethernet::Header, … ::split_mut ──▶ the same fields with setters
//!     ├────▶ checksum: sum, copy, update, complete_partial; verify: is this frame sound?
//!     └────▶ virtio_net::VnetHeader ──▶ offload: Checksum, Gso
//!   emit::Headers ──▶ bytes
//! ```
//!
//! | you look for | module |
//! |---|---|
//! | offsets, tags and flow of a frame | [`dissect`](mod@dissect) |
//! | RSS, Toeplitz, symmetric flow hash; repeatable random numbers | [`hash`] |
//! | fields of link headers | [`ethernet`], [`vlan`], [`arp`] |
//! | fields of IP and transport headers | [`ip`], [`ipv4`], [`ipv6`], [`tcp`], [`udp`], [`icmp`] |
//! | tunnels | [`vxlan`], [`geneve`], [`gre`] |
//! | Internet checksums: sum, copy and sum, update | [`checksum`] |
//! | checking all checksums of a frame | [`verify`](mod@verify) |
//! | writing headers | [`emit`] |
//! | options of IPv4 and TCP | [`options`] |
//! | longest prefix match | `lpm` |
//! | checksum state, GSO, link kind | [`offload`] |
//! | the virtio-net header | [`virtio_net`] |
//! | the types of fixed headers, by a macro; errors of parsers | `header`, `error` |
//!
//! # Invariants
//!
//! * No function panics, allocates (but for building `lpm`) or blocks on any bytes. Everything in a
//!   frame is untrusted: a length field is compared with the number of bytes before it is used.
//! * A view is checked once, by `parse`; its getters cannot fail. Its slices end where the
//!   header's own length says, so Ethernet padding is in no payload of IP.
//! * Numbers in the API are host integers with the value they have on the wire: port 80 is `80`.
//!   IP addresses are those of `core::net`.
//! * `unsafe` is confined to [`checksum`]'s choice of instruction set.
//!
//! # Features
//!
//! `std` (default): checksums use the best instruction set that the CPU has at run time. Without it
//! the crate is `no_std` and uses what the target has at compile time.

#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![deny(unsafe_code)]
#![cfg_attr(not(any(feature = "std", test)), no_std)]

#[macro_use]
mod header;

pub mod arp;
pub mod checksum;
pub mod dissect;
pub mod emit;
mod error;
pub mod ethernet;
pub mod geneve;
pub mod gre;
pub mod hash;
pub mod icmp;
pub mod ip;
pub mod ipv4;
pub mod ipv6;
#[cfg(any(feature = "std", test))]
pub mod lpm;
pub mod offload;
pub mod options;
pub mod tcp;
pub mod udp;
pub mod verify;
pub mod virtio_net;
pub mod vlan;
pub mod vxlan;

pub use arp::Arp;
pub use dissect::{Dissected, dissect};
pub use error::Error;
pub use ethernet::Ethernet;
pub use geneve::Geneve;
pub use gre::Gre;
pub use hash::{FlowKey, Toeplitz};
pub use icmp::Icmp;
pub use ipv4::Ipv4;
pub use ipv6::Ipv6;
pub use offload::LinkKind;
pub use tcp::Tcp;
pub use udp::Udp;
pub use vlan::Vlan;
pub use vxlan::Vxlan;
