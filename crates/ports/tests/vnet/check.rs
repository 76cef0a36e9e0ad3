//! What must hold of any virtio-net header in front of any packet. The fuzz target `vnet` uses it
//! too.

use towpath_gro::{Checksums, LinkKind, Offload, Split};
use towpath_packet::{Cache, Checksum, Packet};
use towpath_ports::vnet::{NEEDS_CSUM, VnetHeader, apply, header_of};

/// Longest header of IP and transport, with all extensions, that a segment is longer by.
const MAX_HEADERS: usize = 1024;

/// Applies a header to a packet of `bytes`, whose metadata then holds, or which is refused and left
/// as it was. Returns whether it was applied.
pub(crate) fn header(cache: &mut Cache, header: [u8; 10], bytes: &[u8]) -> bool {
    let parsed = VnetHeader::from_ne_bytes(&header);
    assert_eq!(parsed.to_ne_bytes(), header);
    assert_eq!(VnetHeader::from_le_bytes(&parsed.to_le_bytes()), parsed);
    let mut packet = Packet::copy_from(cache, bytes).expect("a buffer is free");
    let applied = apply(parsed, &mut packet);
    let (csum, gso) = (packet.csum(), packet.gso());
    assert_eq!(packet.to_vec(), bytes, "the bytes are not changed");
    if applied.is_err() {
        assert_eq!((csum, gso), (Checksum::Unknown, None), "a refusal changes nothing");
        return false;
    }
    if let Checksum::Partial { start, offset } = csum {
        assert!(parsed.flags & NEEDS_CSUM != 0);
        assert!(usize::from(start) + usize::from(offset) + 2 <= bytes.len(), "a checksum outside of the packet");
    }
    if let Some(gso) = gso {
        assert!(gso.size > 0 && usize::from(gso.hdr_len) <= bytes.len());
    }
    // What was accepted is written as it is, or refused with a reason.
    if let Ok(again) = header_of(&packet) {
        let mut copy = Packet::copy_from(cache, bytes).expect("a buffer is free");
        apply(again, &mut copy).expect("a header that was made is true of its packet");
        let meaning = |packet: &Packet| (packet.csum(), packet.gso().map(|gso| (gso.kind, gso.ecn, gso.size)));
        assert_eq!(meaning(&copy), meaning(&packet));
        assert_eq!(header_of(&copy), Ok(again));
    }
    if let Some(gso) = gso {
        for link in [LinkKind::Ethernet, LinkKind::Ip] {
            let offload = Offload::new(csum, Some(gso));
            let Ok(mut split) = Split::new([bytes].into_iter(), link, &offload, Checksums::Complete) else { continue };
            let (mut out, mut count) = (vec![0; bytes.len()], 0);
            while let Some(len) = split.next_len() {
                assert!(len <= bytes.len() && len <= usize::from(gso.size) + MAX_HEADERS, "a segment of {len} bytes");
                split.write(&mut out[..len]).expect("it has the room that it asked for");
                count += 1;
            }
            assert!(count > 0 && count <= bytes.len());
        }
    }
    true
}
