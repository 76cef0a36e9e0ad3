//! Buckets of the table: keys and values as atomic words, and the look at them.
//!
//! ```text
//!   one cache line    │ key │ key │ key │ key │ value │ value │ value │ value │
//!
//!   key     used? │ VLAN │ MAC
//!   value   16 bits of the hash │ present? static? │ port │ time of the last packet
//! ```

use super::MAX_PORTS;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// Entries of a bucket.
pub(super) const WAYS: usize = 4;

const USED: u64 = 1 << 63;
pub(super) const PRESENT: u64 = 1 << 43;
pub(super) const STATIC: u64 = 1 << 42;
pub(super) const PORT_SHIFT: u32 = 32;
pub(super) const TAG_SHIFT: u32 = 48;

/// A VLAN and an address, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key(pub(super) u64);

impl Key {
    /// No key: nothing is found under it.
    pub const ZERO: Key = Key(0);

    /// The key of an address; `mac` has it in its low 48 bits, as read from the frame. A bridge
    /// that ignores VLANs uses 0.
    #[inline]
    pub fn new(vlan: u16, mac: u64) -> Key {
        Key(USED | u64::from(vlan & 0xfff) << 48 | (mac & 0xffff_ffff_ffff))
    }

    /// The VLAN.
    pub fn vlan(self) -> u16 {
        (self.0 >> 48) as u16 & 0xfff
    }

    /// The address.
    pub fn mac(self) -> [u8; 6] {
        let [_, _, mac @ ..] = self.0.to_be_bytes();
        mac
    }
}

/// A key with its hash, which is computed once.
#[derive(Debug, Clone, Copy)]
pub struct Probe {
    pub(super) key: Key,
    pub(super) hash: u64,
}

impl Probe {
    /// No key: nothing is found under it.
    pub const ZERO: Probe = Probe { key: Key::ZERO, hash: 0 };

    /// The key.
    #[inline]
    pub fn key(&self) -> Key {
        self.key
    }
}

/// One cache line of entries: the key and the value of each.
#[derive(Default)]
#[repr(align(64))]
pub(super) struct Bucket {
    pub(super) keys: [AtomicU64; WAYS],
    pub(super) values: [AtomicU64; WAYS],
}

/// A slot with the key that was looked for.
pub(super) struct Found<'a> {
    pub(super) slot: &'a AtomicU64,
    pub(super) value: u64,
}

impl Found<'_> {
    #[inline]
    pub(super) fn port(&self) -> usize {
        port_of(self.value)
    }
}

/// The port in a value.
#[inline]
pub(super) fn port_of(value: u64) -> usize {
    (value >> PORT_SHIFT) as usize & (MAX_PORTS - 1)
}

/// The bits of a hash that values carry.
#[inline]
pub(super) fn tag_of(hash: u64) -> u64 {
    (hash << 16) & (u64::MAX << TAG_SHIFT)
}

/// The slot of a key in a bucket.
#[inline]
pub(super) fn find_in<'a>(bucket: &'a Bucket, probe: &Probe) -> Option<Found<'a>> {
    const MASK: u64 = u64::MAX << TAG_SHIFT | PRESENT;
    for (at, slot) in bucket.keys.iter().zip(&bucket.values) {
        if at.load(Relaxed) == probe.key.0 {
            // The value's key was written before it: the second look at the key sees that one, or
            // a later one.
            let value = slot.load(Acquire);
            let is_whole = (value ^ (tag_of(probe.hash) | PRESENT)) & MASK == 0;
            if is_whole && at.load(Relaxed) == probe.key.0 {
                return Some(Found { slot, value });
            }
        }
    }
    None
}
