//! VLAN tags: 802.1Q, and 802.1ad (QinQ), where an outer tag precedes an inner one.
//!
//! ```text
//!   … src │ TPID │ TCI │ ethertype │ …      TPID is in the place of the ethertype
//!           ─────       PCP(3) DEI(1) VID(12)
//! ```
//! Here, a tag's four bytes are *TCI and the type after it*; its TPID is the type before.

use crate::Error;
use crate::ethernet::ethertype;

header! {
    Vlan: 4 bytes;
    /// Tag control information, see [`Tci`].
    0 TCI: u16, tci, set_tci;
    /// The ethertype after the tag.
    2 ETHERTYPE: u16, ethertype, set_ethertype;
}

/// Tag control information (IEEE 802.1Q section 9.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tci(pub u16);

impl Tci {
    /// Makes it of priority 0..=7, drop eligibility and VLAN identifier 0..=4095; larger values are
    /// cut.
    #[must_use]
    pub const fn new(pcp: u8, dei: bool, vid: u16) -> Self {
        Self((pcp as u16) << 13 | (dei as u16) << 12 | vid & 0xfff)
    }

    /// VLAN identifier; 0 marks a tag that carries priority only.
    #[must_use]
    pub const fn vid(self) -> u16 {
        self.0 & 0xfff
    }

    /// Priority code point.
    #[must_use]
    pub const fn pcp(self) -> u8 {
        (self.0 >> 13) as u8
    }

    /// Drop eligible indicator.
    #[must_use]
    pub const fn dei(self) -> bool {
        self.0 & 0x1000 != 0
    }
}

/// A tag with its TPID. All zero if there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tag {
    /// Tag protocol identifier: [`ethertype::VLAN`] or [`ethertype::QINQ`].
    pub tpid: u16,
    /// Tag control information.
    pub tci: Tci,
}

plain_view! {
    /// A tag and what follows it.
    Vlan;
    /// Reads the four bytes after the TPID.
    parse;
    /// The bytes after the tag.
    payload;
}

/// Iterates over tags, outermost first, until another type or a tag that is cut short. Then
/// [`ethertype`](Self::ethertype) and [`payload`](Self::payload) are those of the rest.
#[derive(Clone, Copy, Debug)]
pub struct Tags<'a> {
    ethertype: u16,
    payload: &'a [u8],
}

impl<'a> Tags<'a> {
    /// Starts with the type before `payload`.
    #[inline]
    #[must_use]
    pub const fn new(ethertype: u16, payload: &'a [u8]) -> Self {
        Self { ethertype, payload }
    }

    /// The type of [`payload`](Self::payload). A TPID after the end if the frame ends inside a tag.
    #[inline]
    #[must_use]
    pub const fn ethertype(&self) -> u16 {
        self.ethertype
    }

    /// The bytes after the tags read so far.
    #[inline]
    #[must_use]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

impl Iterator for Tags<'_> {
    type Item = Tag;

    #[inline]
    fn next(&mut self) -> Option<Tag> {
        if !ethertype::is_tag(self.ethertype) {
            return None;
        }
        let vlan = Vlan::parse(self.payload).ok()?;
        let tag = Tag { tpid: self.ethertype, tci: Tci(vlan.tci()) };
        *self = Self::new(vlan.ethertype(), vlan.payload);
        Some(tag)
    }
}
