//! Packet headers as views, one-pass dissection, flow hashes and Internet checksums.
//!
//! Every other crate that looks into a packet does it through this one.
//!
//! # Invariants
//!
//! * No function panics, allocates or blocks, whatever the bytes are. Everything in a frame is
//!   untrusted: a length field is compared with the bytes that are there before it is used.
//! * Numbers in the API are host integers with the value they have on the wire: port 80 is `80`.
//! * `unsafe` is confined to [`checksum`]'s choice of instruction set.
#![deny(unsafe_code)]

pub mod checksum;
