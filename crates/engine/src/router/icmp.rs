//! ICMP of a router: errors about packets that go no further, and answers to echo requests
//! ([RFC 792](https://www.rfc-editor.org/rfc/rfc792),
//! [RFC 1812](https://www.rfc-editor.org/rfc/rfc1812) section 4.3,
//! [RFC 4443](https://www.rfc-editor.org/rfc/rfc4443)).
//!
//! ```text
//!   │ IP, from the router │ type, code, checksum, four bytes │ the packet, as much as fits │
//!                                                            └ 576 bytes in all; IPv6: 1280
//! ```
//!
//! No error is about an error, a later fragment, a packet to a group, or one that came in a frame
//! to a group; but "packet too big" of IPv6 is about packets to groups too.

use super::ip::{fill_checksum, upper6};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};
use towpath_wire::icmp::{self, v4, v6};
use towpath_wire::ip::protocol;
use towpath_wire::{checksum, ipv4, ipv6};

/// Longest error message: what every host accepts.
const MAX_V4: usize = 576;
const MAX_V6: usize = 1280;
/// Longest message that [`error`] writes.
pub const MAX_ERROR: usize = MAX_V6;
/// Time to live of messages.
const TTL: u8 = 64;
/// Precedence of errors: internetwork control (RFC 1812 section 4.3.2.5).
const CONTROL: u8 = 0xc0;
/// The bits of the type of service that an error takes over.
const TOS: u8 = 0x1e;

/// What a sender is informed of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// There is no route.
    NoRoute,
    /// A route refuses, or the neighbour does not answer.
    HostUnreachable,
    /// The neighbour of an IPv6 packet does not answer.
    AddressUnreachable,
    /// A route prohibits it.
    Prohibited,
    /// The source address does not reach as far as the destination (IPv6).
    BeyondScope,
    /// The router has no such service.
    PortUnreachable,
    /// The packet is longer than the next link takes.
    TooBig {
        /// What it takes.
        mtu: u32,
    },
    /// The time to live is used up.
    TimeExceeded,
    /// A field can't be understood.
    Parameter {
        /// The code: 0, or 2 for an unknown option.
        code: u8,
        /// The offset of the field.
        pointer: u32,
    },
}

impl Problem {
    /// Type, code and the four bytes behind the checksum, of ICMP for IPv4.
    fn v4(self) -> (u8, u8, u32) {
        match self {
            Problem::NoRoute => (v4::UNREACHABLE, 0, 0),
            Problem::HostUnreachable | Problem::AddressUnreachable | Problem::BeyondScope => (v4::UNREACHABLE, 1, 0),
            Problem::Prohibited => (v4::UNREACHABLE, 13, 0),
            Problem::PortUnreachable => (v4::UNREACHABLE, 3, 0),
            Problem::TooBig { mtu } => (v4::UNREACHABLE, v4::FRAGMENTATION_NEEDED, mtu.min(0xffff)),
            Problem::TimeExceeded => (v4::TIME_EXCEEDED, 0, 0),
            Problem::Parameter { code, pointer } => (v4::PARAMETER_PROBLEM, code, pointer << 24),
        }
    }

    fn v6(self) -> (u8, u8, u32) {
        match self {
            // Linux answers for `unreachable` routes as if there were none.
            Problem::NoRoute | Problem::HostUnreachable => (v6::UNREACHABLE, 0, 0),
            Problem::Prohibited => (v6::UNREACHABLE, 1, 0),
            Problem::BeyondScope => (v6::UNREACHABLE, 2, 0),
            Problem::AddressUnreachable => (v6::UNREACHABLE, 3, 0),
            Problem::PortUnreachable => (v6::UNREACHABLE, 4, 0),
            Problem::TooBig { mtu } => (v6::TOO_BIG, 0, mtu.max(MAX_V6 as u32)),
            Problem::TimeExceeded => (v6::TIME_EXCEEDED, 0, 0),
            Problem::Parameter { code, pointer } => (v6::PARAMETER_PROBLEM, code, pointer),
        }
    }
}

/// The sender of a packet that may be informed of a problem with it; `None` if no error may be sent
/// about it. `packet`: the IP packet, or its beginning.
pub fn answerable(packet: &[u8], problem: Problem) -> Option<IpAddr> {
    if towpath_wire::ip::version(packet) == 4 {
        let (header, _) = ipv4::Header::split(packet).ok()?;
        let (src, dst) = (header.src(), header.dst());
        let is_later = header.fragment_offset() != 0;
        let is_one = !src.is_unspecified() && !src.is_multicast() && !src.is_broadcast() && !src.is_loopback();
        if is_later || !is_one || dst.is_multicast() || dst.is_broadcast() {
            return None;
        }
        if header.protocol() == protocol::ICMP {
            // Without a type it could be an error. Advertisements and solicitations of routers (9
            // and 10, RFC 1256) stay on their link: as in Linux, no error is about one that does not.
            let kind = *packet.get(header.header_len())?;
            let is_request = matches!(kind, 0 | 8 | 13..=18);
            return is_request.then_some(src.into());
        }
        return Some(src.into());
    }
    let (header, _) = ipv6::Header::split(packet).ok()?;
    let (src, dst) = (header.src(), header.dst());
    if src.is_unspecified() || src.is_multicast() || src.is_loopback() {
        return None;
    }
    let is_for_groups =
        matches!(problem, Problem::TooBig { .. }) || matches!(problem, Problem::Parameter { code: 2, .. });
    if dst.is_multicast() && !is_for_groups {
        return None;
    }
    if let Some((protocol::ICMPV6, at)) = upper6(packet) {
        // Errors are the types below 128; and a redirect.
        let kind = *packet.get(at)?;
        return (kind >= 128 && kind != 137).then_some(src.into());
    }
    Some(src.into())
}

/// Writes an error from `src` about `packet` (the IP packet, or its beginning) to its sender;
/// returns the IP packet's length. `id`: the identification of an IPv4 packet.
///
/// Returns `None` if the addresses are not of the packet's version, or `out` is shorter than
/// [`MAX_ERROR`].
pub fn error(out: &mut [u8], packet: &[u8], problem: Problem, src: IpAddr, id: u16) -> Option<usize> {
    match src {
        IpAddr::V4(src) => error4(out, packet, problem, src, id),
        IpAddr::V6(src) => error6(out, packet, problem, src),
    }
}

fn error4(out: &mut [u8], packet: &[u8], problem: Problem, src: Ipv4Addr, id: u16) -> Option<usize> {
    let (about, _) = ipv4::Header::split(packet).ok().filter(|(header, _)| header.version() == 4)?;
    let quoted = packet.get(..packet.len().min(MAX_V4 - 28))?;
    let len = 28 + quoted.len();
    let out = out.get_mut(..len)?;
    let (mut header, rest) = ipv4::Header::split_mut(out).ok()?;
    header.set_version_ihl(0x45);
    header.set_tos(about.tos() & TOS | CONTROL);
    header.set_total_len(len as u16);
    header.set_id(id);
    header.set_fragment(0);
    header.set_ttl(TTL);
    header.set_protocol(protocol::ICMP);
    header.set_src(src);
    header.set_dst(about.src());
    header.fill_checksum();
    message(rest, problem.v4(), quoted)?;
    fill_message(0, rest);
    Some(len)
}

fn error6(out: &mut [u8], packet: &[u8], problem: Problem, src: Ipv6Addr) -> Option<usize> {
    let (about, _) = ipv6::Header::split(packet).ok().filter(|(header, _)| header.version() == 6)?;
    let quoted = packet.get(..packet.len().min(MAX_V6 - 48))?;
    let len = 48 + quoted.len();
    let out = out.get_mut(..len)?;
    let (mut header, rest) = ipv6::Header::split_mut(out).ok()?;
    header.set_class_and_flow(0, 0);
    header.set_payload_len((len - ipv6::HEADER_LEN) as u16);
    header.set_next_header(protocol::ICMPV6);
    header.set_hop_limit(TTL);
    header.set_src(src);
    header.set_dst(about.src());
    message(rest, problem.v6(), quoted)?;
    fill_checksum6(src, about.src(), rest);
    Some(len)
}

/// The message without its checksum.
fn message(out: &mut [u8], (kind, code, four): (u8, u8, u32), quoted: &[u8]) -> Option<()> {
    let (mut header, data) = icmp::Header::split_mut(out).ok()?;
    header.set_kind(kind);
    header.set_code(code);
    header.set_checksum(0);
    header.set_rest(four);
    data.get_mut(..quoted.len())?.copy_from_slice(quoted);
    Some(())
}

/// Sets the checksum of an ICMPv6 message.
pub(super) fn fill_checksum6(src: Ipv6Addr, dst: Ipv6Addr, message: &mut [u8]) {
    fill_message(checksum::pseudo_v6(src, dst, protocol::ICMPV6, message.len() as u32), message);
}

/// Sets the checksum of a message with the sum of its pseudo-header: 0 in IPv4, which has none.
fn fill_message(pseudo: u16, message: &mut [u8]) {
    if let Ok((mut header, _)) = icmp::Header::split_mut(message) {
        header.set_checksum(0);
    }
    let check = checksum::finish(checksum::add(pseudo, checksum::sum(message)));
    if let Ok((mut header, _)) = icmp::Header::split_mut(message) {
        header.set_checksum(check);
    }
}

/// Whether the checksum of an ICMPv6 message is right.
pub(super) fn is_valid6(src: Ipv6Addr, dst: Ipv6Addr, message: &[u8]) -> bool {
    let pseudo = checksum::pseudo_v6(src, dst, protocol::ICMPV6, message.len() as u32);
    checksum::add(pseudo, checksum::sum(message)) == checksum::VALID
}

/// Turns an echo request into its reply, in place: `packet` is the whole, contiguous IP packet, and
/// `own` the address that it was for. Returns false, and changes nothing, if it is none or its
/// checksum is wrong.
pub fn reply(packet: &mut [u8], own: IpAddr) -> bool {
    match own {
        IpAddr::V4(own) => reply4(packet, own),
        IpAddr::V6(own) => reply6(packet, own),
    }
}

fn reply4(packet: &mut [u8], own: Ipv4Addr) -> bool {
    let Ok((header, _)) = ipv4::Header::split(packet) else { return false };
    let (at, src) = (header.header_len(), header.src());
    let is_icmp = header.protocol() == protocol::ICMP && !header.is_fragment();
    let Some(message) = packet.get_mut(at..).filter(|message| message.len() >= icmp::HEADER_LEN && is_icmp) else {
        return false;
    };
    let is_request = message.first() == Some(&v4::ECHO_REQUEST) && message.get(1) == Some(&0);
    if !is_request || checksum::sum(message) != checksum::VALID {
        return false;
    }
    if let Ok((mut echo, _)) = icmp::Header::split_mut(message) {
        echo.set_kind(v4::ECHO_REPLY);
    }
    // Not an update of the old one: a reply of zeros alone would get the checksum 0, which is
    // wrong.
    fill_message(0, message);
    if let Ok((mut header, _)) = ipv4::Header::split_mut(packet) {
        header.set_src(own);
        header.set_dst(src);
        header.set_ttl(TTL);
        header.set_fragment(0);
    }
    if let Some(header) = packet.get_mut(..at) {
        fill_checksum(header);
    }
    true
}

fn reply6(packet: &mut [u8], own: Ipv6Addr) -> bool {
    let Ok((header, message)) = ipv6::Header::split(packet) else { return false };
    let (src, dst) = (header.src(), header.dst());
    let is_request = header.next_header() == protocol::ICMPV6
        && message.len() >= icmp::HEADER_LEN
        && message.starts_with(&[v6::ECHO_REQUEST, 0]);
    if !is_request || !is_valid6(src, dst, message) {
        return false;
    }
    let Ok((mut header, message)) = ipv6::Header::split_mut(packet) else { return false };
    header.set_src(own);
    header.set_dst(src);
    header.set_hop_limit(TTL);
    if let Some(kind) = message.first_mut() {
        *kind = v6::ECHO_REPLY;
    }
    fill_checksum6(own, src, message);
    true
}

/// How many errors a worker sends: a token bucket.
#[derive(Debug)]
pub(super) struct Pace {
    /// Between two errors; zero: no limit.
    interval: Duration,
    burst: u32,
    tokens: u32,
    renewed: Option<Instant>,
}

impl Pace {
    /// `rate` errors per second, 0: without a limit; up to `burst` at once.
    pub(super) fn new(rate: u32, burst: u32) -> Pace {
        let interval = Duration::from_secs(1).checked_div(rate).unwrap_or_default();
        Pace { interval, burst: burst.max(1), tokens: burst.max(1), renewed: None }
    }

    pub(super) fn grants(&mut self, now: Instant) -> bool {
        if self.interval.is_zero() {
            return true;
        }
        let renewed = *self.renewed.get_or_insert(now);
        let since = now.saturating_duration_since(renewed);
        let new = u32::try_from(since.as_nanos() / self.interval.as_nanos()).unwrap_or(u32::MAX);
        if new > 0 {
            self.tokens = self.tokens.saturating_add(new).min(self.burst);
            self.renewed = if new >= self.burst { Some(now) } else { Some(renewed + self.interval * new) };
        }
        let granted = self.tokens > 0;
        self.tokens -= u32::from(granted);
        granted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use towpath_wire::{Icmp, Ipv4, Ipv6};

    fn v4_packet(protocol: u8, fragment: u16, dst: [u8; 4], payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0u8; 20];
        let (mut header, _) = ipv4::Header::split_mut(&mut packet).unwrap();
        header.set_version_ihl(0x45);
        header.set_total_len(20 + payload.len() as u16);
        header.set_fragment(fragment);
        header.set_ttl(1);
        header.set_protocol(protocol);
        header.set_src([10, 0, 0, 1].into());
        header.set_dst(dst.into());
        header.fill_checksum();
        packet.extend(payload);
        packet
    }

    fn v6_packet(next: u8, dst: &str, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0u8; 40];
        let (mut header, _) = ipv6::Header::split_mut(&mut packet).unwrap();
        header.set_class_and_flow(0, 0);
        header.set_payload_len(payload.len() as u16);
        header.set_next_header(next);
        header.set_hop_limit(1);
        header.set_src("fd00::1".parse().unwrap());
        header.set_dst(dst.parse().unwrap());
        packet.extend(payload);
        packet
    }

    #[test]
    fn no_error_is_about_an_error_a_later_fragment_or_a_group() {
        let answered = |packet: &[u8]| answerable(packet, Problem::TimeExceeded).is_some();
        let one = [10, 1, 0, 1];
        assert!(answered(&v4_packet(17, 0, one, &[0; 8])));
        assert!(answered(&v4_packet(17, 0x2000, one, &[0; 8])), "a first fragment");
        assert!(!answered(&v4_packet(17, 0x2001, one, &[0; 8])));
        assert!(!answered(&v4_packet(17, 0, [224, 0, 0, 9], &[0; 8])));
        assert!(!answered(&v4_packet(17, 0, [255; 4], &[0; 8])));
        for (kind, may) in
            [(0, true), (3, false), (5, false), (8, true), (9, false), (11, false), (12, false), (200, false)]
        {
            assert_eq!(answered(&v4_packet(1, 0, one, &[kind, 0, 0, 0, 0, 0, 0, 0])), may, "type {kind}");
        }
        assert!(!answered(&v4_packet(1, 0, one, &[])));
        assert!(answered(&v6_packet(17, "fd01::1", &[0; 8])));
        assert!(!answered(&v6_packet(58, "fd01::1", &[1, 0, 0, 0, 0, 0, 0, 0])));
        assert!(!answered(&v6_packet(58, "fd01::1", &[137, 0, 0, 0, 0, 0, 0, 0])));
        assert!(answered(&v6_packet(58, "fd01::1", &[128, 0, 0, 0, 0, 0, 0, 0])));
        assert!(!answered(&v6_packet(17, "ff0e::1", &[0; 8])));
        assert!(answerable(&v6_packet(17, "ff0e::1", &[0; 8]), Problem::TooBig { mtu: 1280 }).is_some());
        let hidden = [58, 0, 1, 4, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
        assert!(!answered(&v6_packet(60, "fd01::1", &hidden)), "behind destination options");
    }

    proptest! {
        #[test]
        fn an_error_quotes_the_packet_and_its_checksums_are_right(
            payload in prop::collection::vec(any::<u8>(), 0..1600), mtu in 68u32..9000, which in 0usize..6,
        ) {
            let problem = [
                Problem::NoRoute, Problem::HostUnreachable, Problem::Prohibited, Problem::TooBig { mtu },
                Problem::TimeExceeded, Problem::Parameter { code: 0, pointer: 21 },
            ][which];
            let mut out = [0; MAX_ERROR];
            let packet = v4_packet(17, 0, [10, 1, 0, 1], &payload);
            let len = error(&mut out, &packet, problem, Ipv4Addr::new(10, 0, 0, 9).into(), 7).unwrap();
            prop_assert!(len <= MAX_V4);
            let ip = Ipv4::parse(&out[..len]).unwrap();
            prop_assert!(ip.is_checksum_valid() && checksum::sum(ip.payload()) == checksum::VALID);
            prop_assert_eq!(ip.dst(), Ipv4Addr::new(10, 0, 0, 1));
            let message = Icmp::parse(ip.payload()).unwrap();
            prop_assert!(packet.starts_with(message.payload()));
            prop_assert!(message.payload().len() == packet.len() || len == MAX_V4);
            if let Problem::TooBig { .. } = problem {
                prop_assert_eq!(u32::from(message.seq()), mtu);
            }

            let packet = v6_packet(17, "fd01::1", &payload);
            let src: Ipv6Addr = "fd00::9".parse().unwrap();
            let len = error(&mut out, &packet, problem, src.into(), 0).unwrap();
            let ip = Ipv6::parse(&out[..len]).unwrap();
            prop_assert!(is_valid6(ip.src(), ip.dst(), ip.payload()) && len <= MAX_V6);
            prop_assert!(packet.starts_with(Icmp::parse(ip.payload()).unwrap().payload()));
        }

        #[test]
        fn a_reply_is_the_request_with_its_addresses_swapped(data in prop::collection::vec(any::<u8>(), 4..300)) {
            let mut message = vec![8, 0, 0, 0];
            message.extend(&data);
            let check = checksum::finish(checksum::sum(&message));
            message[2..4].copy_from_slice(&check.to_be_bytes());
            let mut packet = v4_packet(1, 0, [10, 0, 0, 9], &message);
            prop_assert!(reply(&mut packet, Ipv4Addr::new(10, 0, 0, 9).into()));
            let ip = Ipv4::parse(&packet).unwrap();
            prop_assert!(ip.is_checksum_valid() && checksum::sum(ip.payload()) == checksum::VALID);
            prop_assert_eq!((ip.payload()[0], &ip.payload()[4..]), (0, &data[..]));
            prop_assert_eq!((ip.src(), ip.dst(), ip.ttl()), ([10, 0, 0, 9].into(), [10, 0, 0, 1].into(), 64));
            message[2] ^= 1;
            prop_assert!(!reply(&mut v4_packet(1, 0, [10, 0, 0, 9], &message), Ipv4Addr::new(10, 0, 0, 9).into()));

            let own: Ipv6Addr = "fd00::9".parse().unwrap();
            message[0] = 128;
            fill_checksum6("fd00::1".parse().unwrap(), own, &mut message);
            let mut packet = v6_packet(58, "fd00::9", &message);
            prop_assert!(reply(&mut packet, own.into()));
            let ip = Ipv6::parse(&packet).unwrap();
            prop_assert!(is_valid6(ip.src(), ip.dst(), ip.payload()));
            prop_assert_eq!((ip.payload()[0], &ip.payload()[4..]), (129, &data[..]));
        }
    }

    #[test]
    fn a_request_of_zeros_gets_a_reply_whose_checksum_is_not_zero() {
        let mut packet = v4_packet(1, 0, [10, 0, 0, 9], &[8, 0, 0xf7, 0xff, 0, 0, 0, 0, 0, 0]);
        assert!(reply(&mut packet, Ipv4Addr::new(10, 0, 0, 9).into()));
        assert_eq!(packet[20..], [0, 0, 0xff, 0xff, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn errors_are_paced_after_a_burst() {
        let begin = Instant::now();
        let mut pace = Pace::new(100, 10);
        let granted = |pace: &mut Pace, ms| (0..50).filter(|_| pace.grants(begin + Duration::from_millis(ms))).count();
        assert_eq!(granted(&mut pace, 0), 10);
        assert_eq!(granted(&mut pace, 55), 5);
        assert_eq!(granted(&mut pace, 10_000), 10);
        let mut free = Pace::new(0, 1);
        assert_eq!(granted(&mut free, 0), 50);
    }
}
