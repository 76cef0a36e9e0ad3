//! What leaves: an aggregate as a legal super-packet.
//!
//! The held packet's headers become those of the whole, in place: the first packet's, with the
//! lengths of all, FIN and PSH of the last, partial checksums. The rest is [`Offload`].

use crate::bytes::{be16, length_field, put16};
use crate::fixup::{self, Describe};
use crate::layout::{Layout, Outer};
use crate::offload::{Checksum, Gso, GsoKind, Offload, Tunnel, TunnelKind};
use crate::segment::Segment;
use crate::table::Flow;

/// Makes an aggregate a legal super-packet.
#[inline(never)]
pub(crate) fn finish<S: Segment>(segment: &mut S, flow: &Flow<S>) {
    let layout = Layout::unpack(flow.opening.layout);
    let len = flow.opening.len as usize;
    let (l3, l4) = (usize::from(layout.l3), usize::from(layout.l4));
    let h = segment.head_mut();
    fixup::ip_length(h, l3, layout.v6, len - l3);
    if layout.udp {
        put16(h, l4 + 4, length_field(len - l4));
    } else if let Some(flags) = h.get_mut(l4 + 13) {
        *flags |= flow.flags;
    }
    let addresses = fixup::addresses(h, l3, layout.v6);
    let pseudo = fixup::pseudo(addresses, layout.protocol(), len - l4);
    put16(h, l4 + usize::from(layout.checksum_offset()), pseudo);
    fixup::outer(h, &layout, len, Describe::Whole);
    let tunnel = tunnel(h, &layout);
    segment.set_offload(Offload {
        checksum: Checksum::Partial { start: layout.l4, offset: layout.checksum_offset() },
        gso: Some(Gso {
            kind: match (layout.udp, layout.v6) {
                (true, _) => GsoKind::Udp,
                (false, false) => GsoKind::Tcp4,
                (false, true) => GsoKind::Tcp6,
            },
            size: flow.opening.size,
            segs: flow.count,
            header_len: layout.header,
            ecn: false,
            fixed_id: !layout.v6 && !flow.counts,
            outer_fixed_id: layout.outer != Outer::None && !layout.outer_v6 && !flow.outer_counts,
            tunnel,
        }),
    });
}

fn tunnel(h: &[u8], layout: &Layout) -> Option<Tunnel> {
    let (kind, checksum) = match layout.outer {
        Outer::None => return None,
        Outer::Udp => (TunnelKind::Udp, be16(h, usize::from(layout.outer_l4) + 6) != Some(0)),
        Outer::Gre { checksum } => (TunnelKind::Gre, checksum),
        Outer::Ip => (TunnelKind::Ip, false),
    };
    let Layout { outer_v6, outer_l4, l3, .. } = *layout;
    Some(Tunnel { kind, outer_v6, checksum, outer_l4, inner_l3: l3 })
}
