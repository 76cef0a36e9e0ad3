//! The link header and its tags.

use super::{Dissected, Stop, common};
use crate::ethernet::{self, ethertype};
use crate::ip;
use crate::offload::LinkKind;
use crate::vlan::{self, Tag, Tci};

/// Where the network header begins behind no tag, one and two.
pub(super) const UNTAGGED: usize = ethernet::HEADER_LEN;
pub(super) const TAGGED: usize = UNTAGGED + vlan::HEADER_LEN;
const TWICE_TAGGED: usize = TAGGED + vlan::HEADER_LEN;

/// The part of a frame before the network header.
#[derive(Clone, Copy)]
pub(super) struct LinkLayer {
    pub(super) l3: u16,
    pub(super) ethertype: u16,
    pub(super) tags: [Tag; 2],
}

impl LinkLayer {
    #[inline(always)]
    fn new(l3: usize, ethertype: u16) -> Self {
        Self { l3: l3 as u16, ethertype, tags: [Tag::default(); 2] }
    }

    /// The result if nothing behind the link header is understood.
    #[inline(always)]
    pub(super) fn stop(self, frame: &[u8], stop: Stop) -> Dissected {
        Dissected {
            tags: self.tags,
            ethertype: self.ethertype,
            l3: self.l3,
            l4: self.l3,
            payload: self.l3,
            end: frame.len().min(u32::MAX as usize) as u32,
            stop,
            ..Dissected::default()
        }
    }

    /// The result if no network header follows; `at_tag` is why a tag that follows was not read.
    #[inline(always)]
    fn stop_at_type(self, frame: &[u8], at_tag: Stop) -> Dissected {
        self.stop(frame, if ethertype::is_tag(self.ethertype) { at_tag } else { Stop::NotIp })
    }
}

/// Finds the headers of a frame, reading each once.
#[inline]
#[must_use]
pub fn dissect(frame: &[u8], kind: LinkKind) -> Dissected {
    match kind {
        LinkKind::Ethernet => ethernet(frame),
        LinkKind::Ip => bare_ip(frame),
    }
}

#[inline]
fn ethernet(frame: &[u8]) -> Dissected {
    let Ok((header, _)) = ethernet::Header::split(frame) else {
        return LinkLayer::new(0, 0).stop(frame, Stop::LinkTruncated);
    };
    match header.ethertype() {
        ethertype::IPV4 => untagged_ipv4(frame),
        ethertype::IPV6 => untagged_ipv6(frame),
        other => tagged(frame, other),
    }
}

/// A function of its own, like the next, so that its offsets are constants and its result is
/// written in place, not merged with the other's.
#[inline(never)]
fn untagged_ipv4(frame: &[u8]) -> Dissected {
    common::ipv4(frame, LinkLayer::new(UNTAGGED, ethertype::IPV4))
}

#[inline(never)]
fn untagged_ipv6(frame: &[u8]) -> Dissected {
    common::ipv6(frame, LinkLayer::new(UNTAGGED, ethertype::IPV6))
}

#[inline(never)]
fn bare_ip(frame: &[u8]) -> Dissected {
    match ip::version(frame) {
        4 => common::ipv4(frame, LinkLayer::new(0, ethertype::IPV4)),
        6 => common::ipv6(frame, LinkLayer::new(0, ethertype::IPV6)),
        _ if frame.is_empty() => LinkLayer::new(0, 0).stop(frame, Stop::NetworkTruncated),
        _ => LinkLayer::new(0, 0).stop(frame, Stop::NotIp),
    }
}

/// A frame with tags, or of a type that is not understood. A second tag is the next function's, so
/// that the offsets of each are constants.
#[inline(never)]
fn tagged(frame: &[u8], tpid: u16) -> Dissected {
    let Some((tag, ethertype)) = tag_at(frame, UNTAGGED, tpid) else {
        return LinkLayer::new(UNTAGGED, tpid).stop_at_type(frame, Stop::LinkTruncated);
    };
    let tags = [tag, Tag::default()];
    match ethertype {
        ethertype::IPV4 => common::ipv4(frame, LinkLayer { tags, ..LinkLayer::new(TAGGED, ethertype) }),
        ethertype::IPV6 => tagged_ipv6(frame, tags),
        other => twice_tagged(frame, tag, other),
    }
}

#[inline(never)]
fn tagged_ipv6(frame: &[u8], tags: [Tag; 2]) -> Dissected {
    common::ipv6(frame, LinkLayer { tags, ..LinkLayer::new(TAGGED, ethertype::IPV6) })
}

/// A frame with a tag in front of a tag, or of a type that is not understood.
#[inline(never)]
fn twice_tagged(frame: &[u8], outer: Tag, tpid: u16) -> Dissected {
    let Some((inner, ethertype)) = tag_at(frame, TAGGED, tpid) else {
        let link = LinkLayer { tags: [outer, Tag::default()], ..LinkLayer::new(TAGGED, tpid) };
        return link.stop_at_type(frame, Stop::LinkTruncated);
    };
    let link = LinkLayer { tags: [outer, inner], ..LinkLayer::new(TWICE_TAGGED, ethertype) };
    match ethertype {
        ethertype::IPV4 => common::ipv4(frame, link),
        ethertype::IPV6 => common::ipv6(frame, link),
        _ => link.stop_at_type(frame, Stop::TooManyTags),
    }
}

/// The tag that begins at `at`, and the type behind it; `None` if `tpid`, the type in front of it,
/// is of no tag, or if the frame ends inside.
#[inline(always)]
pub(super) fn tag_at(frame: &[u8], at: usize, tpid: u16) -> Option<(Tag, u16)> {
    if !ethertype::is_tag(tpid) {
        return None;
    }
    // One load for both fields.
    let word = u32::from_be_bytes(*frame.get(at..)?.first_chunk()?);
    Some((Tag { tpid, tci: Tci((word >> 16) as u16) }, word as u16))
}
