//! IPv6: checks of a header and its hop-by-hop options, the hop limit, the chain of extension
//! headers.

use super::{Problem, Refusal};
use std::net::Ipv6Addr;
use towpath_packet::DropReason;
use towpath_wire::ip::protocol::{DESTINATION_OPTIONS, FRAGMENT, HOP_BY_HOP, ROUTING};
use towpath_wire::ipv6;

/// Kinds of IPv6 hop-by-hop options.
const PAD1: u8 = 0;
const PADN: u8 = 1;
const ROUTER_ALERT_V6: u8 = 5;
const JUMBO: u8 = 0xc2;

/// The header of an IPv6 packet that may be routed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct V6 {
    /// Source address.
    pub src: Ipv6Addr,
    /// Destination address.
    pub dst: Ipv6Addr,
    /// Bytes of the packet.
    pub total_len: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// The header behind.
    pub next_header: u8,
    /// The hop-by-hop header asks every router to look at the packet.
    pub router_alert: bool,
}

/// Checks an IPv6 packet, as [`check4`](super::check4).
///
/// # Errors
/// Why it is not routed.
#[inline]
pub fn check6(bytes: &[u8], len: usize) -> Result<V6, Refusal> {
    let (header, rest) = ipv6::Header::split(bytes).map_err(|_| DropReason::Malformed)?;
    let total_len = ipv6::HEADER_LEN + usize::from(header.payload_len());
    if header.version() != 6 || total_len > len {
        return Err(DropReason::Malformed.into());
    }
    let (src, dst) = (header.src(), header.dst());
    // Of an interface's own scope is a group that no packet on a link may be for.
    let octets = dst.octets();
    let is_no_group = octets[0] == 0xff && octets[1] & 0xf <= 1;
    if src.is_multicast() || src.is_loopback() || dst.is_loopback() || is_no_group {
        return Err(DropReason::Martian.into());
    }
    let next_header = header.next_header();
    let router_alert = if next_header == HOP_BY_HOP { check_hop_by_hop(rest, dst)? } else { false };
    let (total_len, hop_limit) = (total_len as u32, header.hop_limit());
    Ok(V6 { src, dst, total_len, hop_limit, next_header, router_alert })
}

/// Looks at the options for every router (RFC 8200 section 4.2); returns whether one is an alert.
#[cold]
fn check_hop_by_hop(extension: &[u8], dst: Ipv6Addr) -> Result<bool, Refusal> {
    let len = extension.get(1).map_or(0, |len| (usize::from(*len) + 1) * 8);
    let options = extension.get(..len).filter(|options| options.len() >= 8).ok_or(DropReason::Malformed)?;
    let (mut at, mut alert) = (2, false);
    while let Some(&kind) = options.get(at) {
        if kind == PAD1 {
            at += 1;
            continue;
        }
        let len = options.get(at + 1).map(|len| usize::from(*len) + 2).ok_or(DropReason::Malformed)?;
        if at + len > options.len() {
            return Err(DropReason::Malformed.into());
        }
        match kind {
            PADN => {}
            ROUTER_ALERT_V6 => alert = true,
            JUMBO => return Err(DropReason::Malformed.into()),
            _ => {
                let pointer = (ipv6::HEADER_LEN + at) as u32;
                let unknown = Refusal::with(DropReason::Malformed, Problem::Parameter { code: 2, pointer });
                match kind >> 6 {
                    0 => {}
                    1 => return Err(DropReason::Malformed.into()),
                    2 => return Err(unknown),
                    _ if dst.is_multicast() => return Err(DropReason::Malformed.into()),
                    _ => return Err(unknown),
                }
            }
        }
        at += len;
    }
    Ok(alert)
}

/// Decreases the hop limit. The caller has checked that it is above 1.
#[inline]
pub(crate) fn decrease6(packet: &mut [u8]) {
    if let Ok((mut header, _)) = ipv6::Header::split_mut(packet) {
        let limit = header.hop_limit();
        header.set_hop_limit(limit.wrapping_sub(1));
    }
}

/// The protocol behind the extension headers of an IPv6 packet, and where it begins; `None` if the
/// chain ends before it, or in a fragment that is not the first.
pub(crate) fn upper6(packet: &[u8]) -> Option<(u8, usize)> {
    let (header, _) = ipv6::Header::split(packet).ok()?;
    let (mut next, mut at) = (header.next_header(), ipv6::HEADER_LEN);
    for _ in 0..=ipv6::MAX_EXTENSIONS {
        match next {
            HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS => {
                next = *packet.get(at)?;
                at += (usize::from(*packet.get(at + 1)?) + 1) * 8;
            }
            FRAGMENT => {
                let offset = u16::from_be_bytes([*packet.get(at + 2)?, *packet.get(at + 3)?]);
                if offset >> 3 != 0 {
                    return None;
                }
                next = *packet.get(at)?;
                at += 8;
            }
            protocol => return Some((protocol, at)),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v6(next: u8, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0u8; 40];
        let (mut header, _) = ipv6::Header::split_mut(&mut packet).unwrap();
        header.set_class_and_flow(0, 0);
        header.set_payload_len(payload.len() as u16);
        header.set_next_header(next);
        header.set_hop_limit(64);
        header.set_src("fd00::1".parse().unwrap());
        header.set_dst("fd01::1".parse().unwrap());
        packet.extend(payload);
        packet
    }

    #[test]
    fn hop_by_hop_options_that_are_not_known_do_what_their_first_bits_say() {
        let check = |option: &[u8]| {
            let mut header = vec![59, 0];
            header.extend(option);
            let packet = v6(0, &header);
            check6(&packet, packet.len()).map(|header| header.router_alert)
        };
        assert_eq!(check(&[1, 4, 0, 0, 0, 0]), Ok(false));
        assert_eq!(check(&[5, 2, 0, 0, 1, 0]), Ok(true));
        assert_eq!(check(&[0x3e, 4, 0, 0, 0, 0]), Ok(false));
        assert_eq!(check(&[0x7e, 4, 0, 0, 0, 0]), Err(DropReason::Malformed.into()));
        let unknown = Refusal::with(DropReason::Malformed, Problem::Parameter { code: 2, pointer: 42 });
        assert_eq!(check(&[0xbe, 4, 0, 0, 0, 0]), Err(unknown));
        assert_eq!(check(&[0xfe, 4, 0, 0, 0, 0]), Err(unknown));
        assert_eq!(check(&[1, 9, 0, 0, 0, 0]), Err(DropReason::Malformed.into()));
    }
}
