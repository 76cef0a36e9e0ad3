//! Turns an aggregate into a legal super-packet.
//!
//! The first packet's headers become those of the whole, in place, with the lengths of all, FIN and
//! PSH of the last, and partial checksums. The rest is [`Offload`].

use towpath_wire::offload::{Checksum, Gso, GsoKind};

use crate::bytes::{array_mut, be16, length_field};
use crate::fixup::{self, Describe};
use crate::layout::{Layout, Outer};
use crate::offload::{Offload, Tunnel, TunnelKind};
use crate::segment::Segment;
use crate::shape::{Shape, WithLayout};
use crate::table::Flow;

/// Makes an aggregate a legal super-packet.
#[inline(always)]
pub(crate) fn finish<S: Segment>(segment: &mut S, flow: &Flow<S>) {
    if flow.shape == Shape::USUAL { finish_usual(segment, flow) } else { finish_any(segment, flow) }
}

/// Apart, because the code of all shapes together uses all registers.
#[inline(never)]
fn finish_usual<S: Segment>(segment: &mut S, flow: &Flow<S>) {
    Finish { segment, flow }.with(&const { Shape::USUAL.layout() });
}

#[inline(never)]
fn finish_any<S: Segment>(segment: &mut S, flow: &Flow<S>) {
    flow.shape.with_layout(flow.expected.layout(), Finish { segment, flow });
}

struct Finish<'a, S> {
    segment: &'a mut S,
    flow: &'a Flow<S>,
}

impl<S: Segment> WithLayout for Finish<'_, S> {
    type Output = ();

    #[inline(always)]
    fn with(self, layout: &Layout) {
        let Self { segment, flow } = self;
        let len = segment.packet_len();
        let h = segment.head_mut();
        describe(h, layout, len, flow.flags);
        let tunnel = if layout.outer == Outer::None {
            None
        } else {
            fixup::outer(h, layout, len, Describe::Whole);
            tunnel(h, layout)
        };
        segment.set_offload(Offload {
            checksum: Checksum::Partial { start: layout.l4, offset: layout.checksum_offset() },
            gso: Some(Gso {
                kind: match (layout.udp, layout.v6) {
                    (true, _) => GsoKind::Udp,
                    (false, false) => GsoKind::Tcp4,
                    (false, true) => GsoKind::Tcp6,
                },
                size: flow.size,
                segs: flow.count(),
                hdr_len: layout.header,
                ecn: false,
            }),
            fixed_id: !layout.v6 && !flow.counts,
            outer_fixed_id: layout.outer != Outer::None && !layout.outer_v6 && !flow.outer_counts,
            tunnel,
        });
    }
}

/// The innermost headers.
#[inline(always)]
fn describe(h: &mut [u8], layout: &Layout, len: usize, flags: u8) {
    let (l3, l4) = (usize::from(layout.l3), usize::from(layout.l4));
    fixup::ip_length(h, l3, layout.v6, len - l3);
    let addresses = fixup::addresses(h, l3, layout.v6);
    let pseudo = fixup::pseudo(addresses, layout.protocol(), len - l4).to_be_bytes();
    if layout.udp {
        if let Some(udp) = array_mut::<8>(h, l4) {
            let [high, low] = length_field(len - l4).to_be_bytes();
            (udp[4], udp[5], udp[6], udp[7]) = (high, low, pseudo[0], pseudo[1]);
        }
    } else if let Some(tcp) = array_mut::<20>(h, l4) {
        tcp[13] |= flags;
        (tcp[16], tcp[17]) = (pseudo[0], pseudo[1]);
    }
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
