//! What the headers of all segments have in common, found once for each super-packet.

use super::{GsoError, MIN_TCP_SIZE};
use crate::bytes::{be16, be32, sum};
use crate::fixup;
use crate::layout::{Hint, Layout, Unknown, walk};
use crate::offload::Offload;
use towpath_wire::offload::{Checksum, Gso, GsoKind, LinkKind, MAX_UDP_SEGMENTS};

#[derive(Clone, Copy)]
pub(super) struct Template {
    pub(super) layout: Layout,
    pub(super) gso: Gso,
    pub(super) fixed_id: bool,
    pub(super) outer_fixed_id: bool,
    pub(super) id: u16,
    pub(super) outer_id: u16,
    /// Of TCP.
    pub(super) seq: u32,
    /// The word of the TCP header that has the flags.
    pub(super) flags: u16,
    /// The sum of the IP addresses.
    pub(super) addresses: u16,
    /// The sum of the IPv4 header without length, identification and checksum; 0 for IPv6.
    pub(super) ip_sum: u16,
    /// The sum of the transport header without the fields that differ from segment to segment.
    pub(super) l4_sum: u16,
}

impl Template {
    /// Segments of a super-packet of `len` bytes.
    pub(super) fn packets(&self, len: usize) -> Result<usize, GsoError> {
        let packets = (len - usize::from(self.layout.header)).div_ceil(self.gso.size.into()).max(1);
        if self.layout.udp && packets > MAX_UDP_SEGMENTS { Err(GsoError::Size) } else { Ok(packets) }
    }

    /// The template of a super-packet of `len` bytes, whose headers are in `headers`.
    pub(super) fn new(
        headers: &[u8],
        len: usize,
        link: LinkKind,
        gso: Gso,
        offload: &Offload,
    ) -> Result<Self, GsoError> {
        let checksum = offload.checksum;
        let udp = gso.kind == GsoKind::Udp;
        if gso.size == 0 || (!udp && gso.size < MIN_TCP_SIZE) {
            return Err(GsoError::Size);
        }
        let start = match checksum {
            Checksum::Partial { start, .. } => Some(usize::from(start)),
            _ if udp => return Err(GsoError::Checksum),
            _ => None,
        };
        let hint = Hint { opaque: false, l4: start, inner_l3: offload.tunnel.map(|t| usize::from(t.inner_l3)) };
        let walked = walk(headers, link, hint).map_err(|unknown| match unknown {
            Unknown::Short => GsoError::Truncated,
            Unknown::Fragment | Unknown::Foreign => GsoError::Headers,
        })?;
        let layout = walked.layout;
        let v6 = match gso.kind {
            GsoKind::Tcp4 => false,
            GsoKind::Tcp6 => true,
            GsoKind::Udp => layout.v6,
        };
        if layout.udp != udp || layout.v6 != v6 || !walked.segmentable {
            return Err(GsoError::Headers);
        }
        if let Checksum::Partial { start, offset } = checksum
            && (start, offset) != (layout.l4, layout.checksum_offset())
        {
            return Err(GsoError::Checksum);
        }
        let l4 = usize::from(layout.l4);
        let id = |l3: u16| be16(headers, usize::from(l3) + 4).unwrap_or(0);
        // Length and checksum, or sequence number, flags and checksum.
        let fields: &[usize] = if udp { &[l4 + 4, l4 + 6] } else { &[l4 + 4, l4 + 6, l4 + 12, l4 + 16] };
        let segment = usize::from(gso.size).min(len - usize::from(layout.header));
        if usize::from(layout.header) + segment > usize::from(u16::MAX) {
            return Err(GsoError::Size);
        }
        Ok(Self {
            layout,
            gso,
            fixed_id: offload.fixed_id,
            outer_fixed_id: offload.outer_fixed_id,
            id: id(layout.l3),
            outer_id: id(layout.outer_l3),
            seq: be32(headers, l4 + 4).unwrap_or(0),
            flags: be16(headers, l4 + 12).unwrap_or(0),
            addresses: fixup::addresses(headers, layout.l3.into(), layout.v6),
            ip_sum: fixup::ip_sum(headers, layout.l3.into(), l4, layout.v6),
            l4_sum: fixup::without(sum(headers, l4, layout.header.into()), headers, fields),
        })
    }
}
