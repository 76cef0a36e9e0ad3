//! IPv4 fragmentation ([RFC 791](https://www.rfc-editor.org/rfc/rfc791) section 3.2): the plan.
//!
//! ```text
//!   │ header, all options │ 8·n bytes │   │ header, copied options │ 8·n bytes │   …  │ rest │
//! ```
//!
//! An option whose kind has its first bit set is in every fragment, the others are in the first
//! one only, where the later ones have NOPs, as Linux does: so all headers have one length.

use super::ip::fill_checksum;
use towpath_wire::ipv4::{self, DONT_FRAGMENT, FRAGMENT_OFFSET, MORE_FRAGMENTS};

/// Of an option's kind: it is in every fragment.
const COPIED: u8 = 0x80;
const END: u8 = 0;
const NOP: u8 = 1;

/// A fragment: which bytes of the payload it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Offset of its payload in the packet's.
    pub at: usize,
    /// Bytes of its payload.
    pub len: usize,
}

/// The fragments of a packet with `header_len` bytes of header and `payload` behind, each at most
/// `mtu` bytes; `None` if no fragment has room for 8 bytes.
pub fn pieces(header_len: usize, payload: usize, mtu: usize) -> Option<impl Iterator<Item = Piece>> {
    let room = mtu.checked_sub(header_len)?;
    let step = room & !7;
    if step == 0 {
        return None;
    }
    let mut at = 0;
    Some(std::iter::from_fn(move || {
        let rest = payload - at;
        if rest == 0 {
            return None;
        }
        let len = if rest <= room { rest } else { step };
        let piece = Piece { at, len };
        at += len;
        Some(piece)
    }))
}

/// Makes `header`, a copy of the packet's, that of a fragment. `more`: others follow.
pub fn write_header(header: &mut [u8], piece: Piece, more: bool) {
    let len = header.len();
    let Ok((mut fixed, options)) = ipv4::Header::split_mut(header) else { return };
    let field = fixed.fragment();
    // Behind the packet's own offset: it may be a fragment.
    let offset = (field & FRAGMENT_OFFSET) + (piece.at / 8) as u16;
    let more = if more { MORE_FRAGMENTS } else { field & MORE_FRAGMENTS };
    // Without the reserved bit, as Linux.
    fixed.set_fragment(field & DONT_FRAGMENT | more | offset & FRAGMENT_OFFSET);
    fixed.set_total_len((len + piece.len) as u16);
    if piece.at > 0 {
        blank_options(options);
    }
    fill_checksum(header);
}

/// Overwrites the options that later fragments do not have.
fn blank_options(options: &mut [u8]) {
    let mut at = 0;
    while let Some(&kind) = options.get(at) {
        if kind == END {
            return;
        }
        let len = if kind == NOP { 1 } else { options.get(at + 1).map_or(0, |len| usize::from(*len)) };
        let Some(option) = options.get_mut(at..at + len).filter(|_| len > 0) else { return };
        if kind & COPIED == 0 {
            option.fill(NOP);
        }
        at += len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use towpath_wire::Ipv4;

    fn packet(options: &[u8], fragment: u16, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0u8; 20];
        packet.extend(options);
        let (mut header, _) = ipv4::Header::split_mut(&mut packet).unwrap();
        header.set_version_ihl(0x45 + (options.len() / 4) as u8);
        header.set_total_len((20 + options.len() + payload.len()) as u16);
        header.set_fragment(fragment);
        header.set_id(77);
        header.set_ttl(9);
        header.set_src([10, 0, 0, 1].into());
        header.set_dst([10, 1, 0, 1].into());
        fill_checksum(&mut packet);
        packet.extend(payload);
        packet
    }

    fn fragments(packet: &[u8], header_len: usize, mtu: usize) -> Vec<Vec<u8>> {
        let payload = packet.len() - header_len;
        let pieces: Vec<Piece> = pieces(header_len, payload, mtu).unwrap().collect();
        let one = |piece: &Piece| {
            let mut fragment = packet[..header_len].to_vec();
            write_header(&mut fragment, *piece, piece.at + piece.len < payload);
            fragment.extend(&packet[header_len + piece.at..][..piece.len]);
            fragment
        };
        pieces.iter().map(one).collect()
    }

    proptest! {
        #[test]
        fn fragments_fit_and_reassemble_to_the_packet(
            payload in prop::collection::vec(any::<u8>(), 1..4000), mtu in 68usize..1500,
            options in prop::sample::select(vec![vec![], vec![1, 1, 1, 0], vec![148, 4, 0, 0, 7, 3, 4, 0]]),
            offset in 0u16..100, more in any::<bool>(),
        ) {
            let field = offset | if more { MORE_FRAGMENTS } else { 0 };
            let whole = packet(&options, field, &payload);
            let header_len = 20 + options.len();
            let made = fragments(&whole, header_len, mtu);
            let mut reassembled = vec![0; payload.len()];
            for (i, fragment) in made.iter().enumerate() {
                let ip = Ipv4::parse(fragment).unwrap();
                prop_assert!(fragment.len() <= mtu && ip.is_checksum_valid());
                prop_assert_eq!(usize::from(ip.total_len()), fragment.len());
                prop_assert_eq!((ip.id(), ip.ttl()), (77, 9));
                let is_last = i + 1 == made.len();
                prop_assert_eq!(ip.more_fragments(), !is_last || more);
                prop_assert!(is_last || ip.payload().len().is_multiple_of(8));
                let at = ip.fragment_offset() - usize::from(offset) * 8;
                reassembled[at..at + ip.payload().len()].copy_from_slice(ip.payload());
            }
            prop_assert_eq!(reassembled, payload);
        }
    }

    #[test]
    fn later_fragments_have_copied_options_only() {
        let whole = packet(&[148, 4, 0, 0, 7, 3, 4, 0], 0, &[5; 200]);
        let made = fragments(&whole, 28, 100);
        assert_eq!(made[0][20..28], [148, 4, 0, 0, 7, 3, 4, 0]);
        for later in &made[1..] {
            assert_eq!(later[20..28], [148, 4, 0, 0, 1, 1, 1, 0]);
        }
    }

    #[test]
    fn an_mtu_without_room_for_eight_bytes_makes_no_fragment() {
        assert!(pieces(60, 100, 67).is_none());
        assert!(pieces(60, 100, 20).is_none());
    }
}
