//! The link header and its tags.

use super::{Dissected, Stop, common};
use crate::ethernet::{self, ethertype};
use crate::ip;
use crate::offload::LinkKind;
use crate::vlan::{Tag, Tags};

/// What lies before the network header.
#[derive(Clone, Copy)]
pub(super) struct Link {
    pub(super) l3: u16,
    pub(super) ethertype: u16,
    pub(super) tags: [Tag; 2],
}

impl Link {
    #[inline(always)]
    fn new(l3: usize, ethertype: u16) -> Self {
        Self { l3: l3 as u16, ethertype, tags: [Tag::default(); 2] }
    }

    /// Nothing behind the link header is understood.
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
        return Link::new(0, 0).stop(frame, Stop::LinkTruncated);
    };
    match header.ethertype() {
        ethertype::IPV4 => untagged_ipv4(frame),
        ethertype::IPV6 => untagged_ipv6(frame),
        other => tagged(frame, other),
    }
}

/// A function of its own, like the next, so that offsets are constants in it and its result is
/// written where the caller wants it, not merged with the other's.
#[inline(never)]
fn untagged_ipv4(frame: &[u8]) -> Dissected {
    common::ipv4(frame, Link::new(ethernet::HEADER_LEN, ethertype::IPV4))
}

#[inline(never)]
fn untagged_ipv6(frame: &[u8]) -> Dissected {
    common::ipv6(frame, Link::new(ethernet::HEADER_LEN, ethertype::IPV6))
}

#[inline(never)]
fn bare_ip(frame: &[u8]) -> Dissected {
    match ip::version(frame) {
        4 => common::ipv4(frame, Link::new(0, ethertype::IPV4)),
        6 => common::ipv6(frame, Link::new(0, ethertype::IPV6)),
        _ if frame.is_empty() => Link::new(0, 0).stop(frame, Stop::NetworkTruncated),
        _ => Link::new(0, 0).stop(frame, Stop::NotIp),
    }
}

/// A frame with any number of tags, none included.
#[inline(never)]
fn tagged(frame: &[u8], ethertype: u16) -> Dissected {
    let behind = frame.get(ethernet::HEADER_LEN..).unwrap_or_default();
    let mut walk = Tags::new(ethertype, behind);
    let tags = core::array::from_fn(|_| walk.next().unwrap_or_default());
    let l3 = frame.len() - walk.payload().len();
    let link = Link { tags, ..Link::new(l3, walk.ethertype()) };
    match link.ethertype {
        ethertype::IPV4 => common::ipv4(frame, link),
        ethertype::IPV6 => common::ipv6(frame, link),
        other if !ethertype::is_tag(other) => link.stop(frame, Stop::NotIp),
        _ if tags[1] == Tag::default() => link.stop(frame, Stop::LinkTruncated),
        _ => link.stop(frame, Stop::TooManyTags),
    }
}
