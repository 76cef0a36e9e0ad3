//! Validation of IP packets: what a router requires before it forwards
//! ([RFC 1812](https://www.rfc-editor.org/rfc/rfc1812) section 5,
//! [RFC 8200](https://www.rfc-editor.org/rfc/rfc8200)), in the order and with the answers of Linux.
//!
//! The functions see the bytes of the IP packet, as far as they are contiguous, and its length in
//! the frame. They read; [`decrease4`] and [`decrease6`] write.

use super::icmp::Problem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use towpath_packet::DropReason;
use towpath_wire::ip::protocol::{DESTINATION_OPTIONS, FRAGMENT, HOP_BY_HOP, ROUTING};
use towpath_wire::{checksum, ipv4, ipv6};

/// Kinds of IPv4 options.
const RECORD_ROUTE: u8 = 7;
const LOOSE_SOURCE_ROUTE: u8 = 131;
const STRICT_SOURCE_ROUTE: u8 = 137;
const ROUTER_ALERT: u8 = 148;
/// Kinds of IPv6 hop-by-hop options.
const PAD1: u8 = 0;
const PADN: u8 = 1;
const ROUTER_ALERT_V6: u8 = 5;
const JUMBO: u8 = 0xc2;

/// Why a packet goes no further: the drop's name, and what its sender is informed of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// Counted as.
    pub reason: DropReason,
    /// The error for the sender, if it gets one.
    pub problem: Option<Problem>,
}

impl From<DropReason> for Refusal {
    fn from(reason: DropReason) -> Refusal {
        Refusal { reason, problem: None }
    }
}

impl Refusal {
    pub(super) fn with(reason: DropReason, problem: Problem) -> Refusal {
        Refusal { reason, problem: Some(problem) }
    }
}

/// The header of an IPv4 packet that may be routed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct V4 {
    /// Source address.
    pub src: Ipv4Addr,
    /// Destination address.
    pub dst: Ipv4Addr,
    /// Bytes of the header.
    pub header_len: u8,
    /// Bytes of the packet.
    pub total_len: u16,
    /// Flags and offset.
    pub fragment: u16,
    /// Time to live.
    pub ttl: u8,
    /// The protocol behind.
    pub protocol: u8,
    /// A router alert option, or one that this router looks at: record route.
    pub options: Options,
}

/// What the options of a packet ask of a router.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// The offset of a record route option with room.
    pub record_route: Option<u8>,
    /// The packet is to be looked at by every router (RFC 2113, RFC 2711).
    pub router_alert: bool,
}

/// Whether Linux refuses packets from an address: none, a group, the loopback network.
#[inline]
fn is_martian_source4(src: u32) -> bool {
    // One comparison for 0.0.0.0/8 and one for everything from 224.0.0.0 on, but for 240/4 without
    // its last address, which is unicast for Linux.
    let first = src >> 24;
    first == 0 || first == 127 || (first >> 4 == 14) || src == u32::MAX
}

/// Whether no packet is routed to an address: this network, the loopback network.
#[inline]
fn is_martian_destination4(dst: u32) -> bool {
    matches!(dst >> 24, 0 | 127)
}

/// Checks an IPv4 packet: `bytes` are its contiguous beginning, `len` what the frame has of it.
/// `verified`: the header's checksum needs no check.
///
/// # Errors
/// Why it is not routed.
#[inline]
pub fn check4(bytes: &[u8], len: usize) -> Result<V4, Refusal> {
    let (header, _) = ipv4::Header::split(bytes).map_err(|_| DropReason::Malformed)?;
    let total_len = header.total_len();
    let header_len = header.header_len();
    let is_plain = header.version_ihl() == 0x45;
    if usize::from(total_len) > len || usize::from(total_len) < header_len {
        return Err(DropReason::Malformed.into());
    }
    let mut options = Options::default();
    if is_plain {
        if checksum::sum(header.bytes()) != checksum::VALID {
            return Err(DropReason::Malformed.into());
        }
    } else {
        options = check_options(bytes, header_len)?;
    }
    let (src, dst) = (header.src(), header.dst());
    if is_martian_source4(src.into()) || is_martian_destination4(dst.into()) {
        return Err(DropReason::Martian.into());
    }
    Ok(V4 {
        src,
        dst,
        header_len: header_len as u8,
        total_len,
        fragment: header.fragment(),
        ttl: header.ttl(),
        protocol: header.protocol(),
        options,
    })
}

/// Version, lengths and options of a header that is not plain.
#[cold]
fn check_options(bytes: &[u8], header_len: usize) -> Result<Options, Refusal> {
    let is_v4 = towpath_wire::ip::version(bytes) == 4 && header_len >= ipv4::HEADER_LEN;
    let header = bytes.get(..header_len).filter(|_| is_v4).ok_or(DropReason::Malformed)?;
    if checksum::sum(header) != checksum::VALID {
        return Err(DropReason::Malformed.into());
    }
    let mut found = Options::default();
    let mut at = ipv4::HEADER_LEN;
    while let Some(&kind) = header.get(at) {
        let bad = |offset: usize| {
            Refusal::with(DropReason::Malformed, Problem::Parameter { code: 0, pointer: (at + offset) as u32 })
        };
        if kind == 0 {
            break;
        }
        if kind == 1 {
            at += 1;
            continue;
        }
        let len = header.get(at + 1).map_or(0, |len| usize::from(*len));
        if len < 2 || at + len > header.len() {
            return Err(bad(0));
        }
        match kind {
            // Linux refuses them unless accept_source_route is on.
            LOOSE_SOURCE_ROUTE | STRICT_SOURCE_ROUTE => return Err(DropReason::SourceRoute.into()),
            RECORD_ROUTE => {
                let pointer = header.get(at + 2).map_or(0, |pointer| usize::from(*pointer));
                if len < 3 {
                    return Err(bad(1));
                }
                if pointer < 4 {
                    return Err(bad(2));
                }
                if pointer <= len {
                    if pointer + 3 > len {
                        return Err(bad(2));
                    }
                    found.record_route = Some(at as u8);
                }
            }
            ROUTER_ALERT if len >= 4 => found.router_alert = header.get(at + 2..at + 4) == Some(&[0, 0]),
            _ => {}
        }
        at += len;
    }
    Ok(found)
}

/// Writes `own` into the record route option at `at`, and corrects the checksum.
#[cold]
pub(super) fn record_route(header: &mut [u8], at: u8, own: Ipv4Addr) {
    let option = usize::from(at);
    let Some(&pointer) = header.get(option + 2) else { return };
    let slot = option + usize::from(pointer) - 1;
    let Some(address) = header.get_mut(slot..slot + 4) else { return };
    address.copy_from_slice(&own.octets());
    if let Some(field) = header.get_mut(option + 2) {
        *field = pointer + 4;
    }
    fill_checksum(header);
}

/// Computes the checksum of a whole header.
pub(super) fn fill_checksum(header: &mut [u8]) {
    if let Some(field) = header.get_mut(10..12) {
        field.fill(0);
    }
    let check = checksum::finish(checksum::sum(header));
    if let Some(field) = header.get_mut(10..12) {
        field.copy_from_slice(&check.to_be_bytes());
    }
}

/// Decreases the time to live and corrects the checksum (RFC 1624). The caller has checked that
/// it is above 1.
#[inline]
pub(super) fn decrease4(packet: &mut [u8]) {
    let Ok((mut header, _)) = ipv4::Header::split_mut(packet) else { return };
    let (ttl, protocol) = (header.ttl(), u16::from(header.protocol()));
    let new = ttl.wrapping_sub(1);
    let check = checksum::update16(header.checksum(), u16::from(ttl) << 8 | protocol, u16::from(new) << 8 | protocol);
    header.set_checksum(check);
    header.set_ttl(new);
}

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

/// Checks an IPv6 packet, as [`check4`].
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
pub(super) fn decrease6(packet: &mut [u8]) {
    if let Ok((mut header, _)) = ipv6::Header::split_mut(packet) {
        let limit = header.hop_limit();
        header.set_hop_limit(limit.wrapping_sub(1));
    }
}

/// The protocol behind the extension headers of an IPv6 packet, and where it begins; `None` if the
/// chain ends before it, or in a fragment that is not the first.
pub(super) fn upper6(packet: &[u8]) -> Option<(u8, usize)> {
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

/// Whether a packet to this destination is for the router itself without a route: a group.
#[inline]
pub(super) fn is_group(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_multicast() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_multicast(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use towpath_wire::ipv4::Header;

    fn v4(options: &[u8], change: impl Fn(&mut Vec<u8>)) -> Vec<u8> {
        let mut packet = vec![0u8; 20];
        packet.extend(options);
        packet.extend([0xab; 8]);
        let (mut header, _) = Header::split_mut(&mut packet).unwrap();
        header.set_version_ihl(0x45 + (options.len() / 4) as u8);
        header.set_total_len(28 + options.len() as u16);
        header.set_ttl(64);
        header.set_protocol(17);
        header.set_src([10, 0, 0, 1].into());
        header.set_dst([10, 1, 0, 1].into());
        change(&mut packet);
        fill_checksum(&mut packet[..20 + options.len()]);
        packet
    }

    fn refusal(packet: &[u8]) -> Option<Refusal> {
        check4(packet, packet.len()).err()
    }

    #[test]
    fn a_sound_packet_passes_and_each_unsound_header_is_malformed() {
        let sound = v4(&[], |_| {});
        assert_eq!(check4(&sound, sound.len()).unwrap().total_len, 28);
        assert_eq!(check4(&sound, sound.len() + 18).unwrap().total_len, 28, "padding follows");
        let malformed = Some(DropReason::Malformed.into());
        for change in [
            |p: &mut Vec<u8>| p[0] = 0x55,
            |p: &mut Vec<u8>| p[0] = 0x44,
            |p: &mut Vec<u8>| p[3] = 200,
            |p: &mut Vec<u8>| p[3] = 19,
        ] {
            assert_eq!(refusal(&v4(&[], change)), malformed);
        }
        let mut wrong = sound.clone();
        wrong[11] ^= 1;
        assert_eq!(refusal(&wrong), malformed);
        assert_eq!(refusal(&sound[..19]), malformed);
    }

    #[test]
    fn martians_go_no_further() {
        let from = |src: [u8; 4]| refusal(&v4(&[], |p| p[12..16].copy_from_slice(&src)));
        let to = |dst: [u8; 4]| refusal(&v4(&[], |p| p[16..20].copy_from_slice(&dst)));
        for src in [[0, 0, 0, 0], [0, 1, 2, 3], [127, 0, 0, 1], [224, 0, 0, 5], [239, 1, 1, 1], [255; 4]] {
            assert_eq!(from(src), Some(DropReason::Martian.into()), "{src:?}");
        }
        assert_eq!(from([240, 0, 0, 1]), None, "as Linux does");
        for dst in [[127, 1, 1, 1], [0, 0, 0, 0]] {
            assert_eq!(to(dst), Some(DropReason::Martian.into()), "{dst:?}");
        }
    }

    #[test]
    fn options_are_walked_and_a_broken_one_is_pointed_at() {
        let options = |options: &[u8]| check4(&v4(options, |_| {}), 28 + options.len()).map(|header| header.options);
        let pointed = |at| Err(Refusal::with(DropReason::Malformed, Problem::Parameter { code: 0, pointer: at }));
        assert_eq!(options(&[1, 1, 1, 0]), Ok(Options::default()));
        assert_eq!(options(&[7, 7, 4, 0, 0, 0, 0, 0]), Ok(Options { record_route: Some(20), router_alert: false }));
        assert_eq!(options(&[7, 7, 8, 0, 0, 0, 0, 0]), Ok(Options::default()), "a full one");
        assert_eq!(options(&[7, 7, 3, 0, 0, 0, 0, 0]), pointed(22));
        assert_eq!(options(&[7, 7, 6, 0, 0, 0, 0, 0]), pointed(22));
        assert_eq!(options(&[148, 4, 0, 0]), Ok(Options { record_route: None, router_alert: true }));
        assert_eq!(options(&[130, 1, 0, 0]), pointed(20));
        assert_eq!(options(&[1, 130, 7, 0]), pointed(21));
        assert_eq!(options(&[131, 3, 4, 0]), Err(DropReason::SourceRoute.into()));
    }

    #[test]
    fn a_recorded_route_has_the_address_and_a_valid_checksum() {
        let mut packet = v4(&[7, 7, 4, 0, 0, 0, 0, 0], |_| {});
        record_route(&mut packet[..28], 20, [192, 168, 1, 1].into());
        assert_eq!(packet[20..28], [7, 7, 8, 192, 168, 1, 1, 0]);
        assert_eq!(checksum::sum(&packet[..28]), checksum::VALID);
    }

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

    proptest! {
        #[test]
        fn any_bytes_are_checked_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..120), longer in 0usize..2000) {
            let _ = check4(&bytes, bytes.len() + longer);
            let _ = check6(&bytes, bytes.len() + longer);
            let _ = upper6(&bytes);
        }

        #[test]
        fn a_decreased_time_to_live_keeps_the_checksum_valid(
            addresses in any::<[u8; 8]>(), id in any::<[u8; 2]>(), ttl in 2u8..=255, protocol in any::<u8>(),
        ) {
            let mut packet = v4(&[], |p| {
                p[12..20].copy_from_slice(&addresses);
                p[4..6].copy_from_slice(&id);
                (p[8], p[9]) = (ttl, protocol);
            });
            decrease4(&mut packet);
            prop_assert_eq!(packet[8], ttl - 1);
            prop_assert_eq!(checksum::sum(&packet[..20]), checksum::VALID);
        }
    }
}
