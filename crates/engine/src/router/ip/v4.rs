//! IPv4: checks of a header and its options, the time to live, the checksum.

use super::{Problem, Refusal};
use std::net::Ipv4Addr;
use towpath_packet::DropReason;
use towpath_wire::{checksum, ipv4};

/// Kinds of IPv4 options.
const RECORD_ROUTE: u8 = 7;
const LOOSE_SOURCE_ROUTE: u8 = 131;
const STRICT_SOURCE_ROUTE: u8 = 137;
const ROUTER_ALERT: u8 = 148;

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
pub(crate) fn record_route(header: &mut [u8], at: u8, own: Ipv4Addr) {
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
pub(crate) fn fill_checksum(header: &mut [u8]) {
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
pub(crate) fn decrease4(packet: &mut [u8]) {
    let Ok((mut header, _)) = ipv4::Header::split_mut(packet) else { return };
    let (ttl, protocol) = (header.ttl(), u16::from(header.protocol()));
    let new = ttl.wrapping_sub(1);
    let check = checksum::update16(header.checksum(), u16::from(ttl) << 8 | protocol, u16::from(new) << 8 | protocol);
    header.set_checksum(check);
    header.set_ttl(new);
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

    proptest! {
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
