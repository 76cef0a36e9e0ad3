//! Calls everything there is to call on bytes that may be anything. Shared by tests and fuzzing.

use std::hint::black_box;
use towpath_wire::verify::verify;
use towpath_wire::{Arp, Ethernet, Geneve, Gre, Icmp, Ipv4, Ipv6, LinkKind, Tcp, Udp, Vlan, Vxlan, checksum, dissect};

/// Whether `part` lies inside `whole`.
fn within(part: &[u8], whole: &[u8]) -> bool {
    let (part, whole) = (part.as_ptr_range(), whole.as_ptr_range());
    whole.start <= part.start && part.end <= whole.end
}

/// Reads `bytes` as every protocol and uses every getter that computes something.
pub(crate) fn every_view(bytes: &[u8]) {
    if let Ok(view) = Ethernet::parse(bytes) {
        assert!(within(view.payload(), bytes));
        black_box((view.dst(), view.src(), view.ethertype()));
        let mut tags = view.tags();
        assert!(tags.by_ref().count() <= bytes.len() / 4);
        assert!(within(tags.payload(), bytes));
    }
    if let Ok(view) = Vlan::parse(bytes) {
        assert!(within(view.payload(), bytes));
    }
    if let Ok(view) = Arp::parse(bytes) {
        black_box((view.operation(), view.sender_ip(), view.target_mac()));
    }
    if let Ok(view) = Ipv4::parse(bytes) {
        assert!(within(view.payload(), bytes));
        assert_eq!(view.header_len() + view.payload().len(), usize::from(view.total_len()));
        assert!(view.options().count() <= 40);
        black_box((view.is_checksum_valid(), view.pseudo_sum(), view.is_fragment()));
    }
    if let Ok(view) = Ipv6::parse(bytes) {
        assert_eq!(view.payload().len(), usize::from(view.payload_len()));
        assert!(view.extensions().count() <= towpath_wire::ipv6::MAX_EXTENSIONS + 1);
        for extension in view.extensions().flatten() {
            assert!(within(extension.bytes, bytes) && extension.bytes.len() >= 8);
            black_box((extension.fragment(), extension.segments_left()));
        }
        if let Ok(upper) = view.upper() {
            assert!(within(upper.payload, bytes));
        }
        black_box(view.pseudo_sum(view.next_header(), view.payload().len() as u32));
    }
    if let Ok(view) = Tcp::parse(bytes) {
        assert_eq!(view.header_len() + view.payload().len(), bytes.len());
        assert!(view.raw_options().count() <= 40);
        for option in view.options().flatten() {
            if let towpath_wire::tcp::TcpOption::Sack(blocks) = option {
                assert!(blocks.count() <= 4);
            }
        }
    }
    if let Ok(view) = Udp::parse(bytes) {
        assert!(within(view.payload(), bytes));
        assert_eq!(view.payload().len() + 8, usize::from(view.length()));
    }
    if let Ok(view) = Icmp::parse(bytes) {
        assert_eq!(view.payload().len() + 8, bytes.len());
    }
    if let Ok(view) = Vxlan::parse(bytes) {
        assert!(view.vni() < 1 << 24);
        assert_eq!(view.payload().len() + 8, bytes.len());
    }
    if let Ok(view) = Geneve::parse(bytes) {
        assert_eq!(view.header_len() + view.payload().len(), bytes.len());
        assert!(view.options().count() <= 63);
    }
    if let Ok(view) = Gre::parse(bytes) {
        assert_eq!(view.header_len() + view.payload().len(), bytes.len());
        let optional = [view.checksum().is_some(), view.key().is_some(), view.seq().is_some()];
        assert_eq!(view.header_len(), 4 + 4 * optional.iter().filter(|some| **some).count());
    }
}

/// Dissects and hashes `frame` and asserts what must hold for any bytes.
pub(crate) fn dissector(frame: &[u8], kind: LinkKind) {
    let found = dissect(frame, kind);
    let (l3, l4) = (usize::from(found.l3), usize::from(found.l4));
    let (payload, end) = (usize::from(found.payload), found.end as usize);
    assert!(l3 <= l4 && l4 <= payload && payload <= end && end <= frame.len(), "{found:?}");
    assert_eq!(found.payload_len(), end - payload);

    let flow = found.flow;
    assert_eq!(flow.symmetric_hash(3), flow.reversed().symmetric_hash(3));
    assert_eq!(flow.reversed().reversed(), flow);
    assert!(matches!(found.rss_input().as_bytes().len(), 0 | 8 | 12 | 32 | 36));
    black_box(verify(frame, kind));
}

/// Completes a partial checksum anywhere, and sums by every instruction set.
pub(crate) fn checksums(bytes: &[u8], start: usize, offset: usize) {
    let mut frame = bytes.to_vec();
    match checksum::complete_partial(&mut frame, start, offset) {
        Ok(()) => assert!(start + offset + 2 <= bytes.len()),
        Err(_) => assert_eq!(frame, bytes),
    }
    let expected = checksum::sum(bytes);
    for isa in checksum::Isa::available() {
        assert_eq!(checksum::sum_with(isa, bytes), expected);
        assert_eq!(checksum::copy_with(isa, &mut frame, bytes), expected);
        assert_eq!(frame, bytes);
    }
}
