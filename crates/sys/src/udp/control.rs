//! Control messages as bytes (`cmsg(3)`): a length, a level and a type in front of each value.
//!
//! ```text
//!   length (size_t, with this header) │ level │ type │ value │ padding to the size of a size_t
//! ```

use super::name::array;
use super::{Path, TrafficClass};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU32;

/// Bytes in front of a value.
const HEADER: usize = size_of::<usize>() + 8;

/// Room for all that is sent with a message: addresses, class and segment size.
pub(super) const SEND: usize = 128;

/// Room for all that is received with a message. A socket that was opened elsewhere may report
/// more than this module reads, such as timestamps.
pub(super) const RECEIVE: usize = 512;

/// A control buffer, aligned as `cmsghdr` is.
#[derive(Clone)]
#[repr(C, align(8))]
pub(super) struct Control<const N: usize>(pub(super) [u8; N]);

/// Appends control messages to a buffer.
struct Writer<'a> {
    bytes: &'a mut [u8],
    len: usize,
}

impl Writer<'_> {
    fn put(&mut self, level: libc::c_int, kind: libc::c_int, value: &[u8]) {
        let len = HEADER + value.len();
        let end = self.len + len.next_multiple_of(size_of::<usize>());
        let Some(to) = self.bytes.get_mut(self.len..end) else { return };
        let (header, rest) = to.split_at_mut(HEADER);
        header[..HEADER - 8].copy_from_slice(&len.to_ne_bytes());
        header[HEADER - 8..HEADER - 4].copy_from_slice(&level.to_ne_bytes());
        header[HEADER - 4..].copy_from_slice(&kind.to_ne_bytes());
        rest.fill(0);
        rest[..value.len()].copy_from_slice(value);
        self.len = end;
    }
}

/// Writes what a path and a segment size say; returns the length.
///
/// What concerns an IPv4 destination is of level IP on sockets of both families. An address of the
/// other family than the destination's is left to the kernel to refuse.
pub(super) fn write(to: &mut [u8; SEND], path: &Path, segment: Option<u16>) -> usize {
    let mut writer = Writer { bytes: to, len: 0 };
    if let Some(segment) = segment {
        writer.put(libc::SOL_UDP, libc::UDP_SEGMENT, &segment.to_ne_bytes());
    }
    let v4 = path.peer.is_ipv4();
    let index = path.interface.map_or(0, NonZeroU32::get).to_ne_bytes();
    match path.local.or((path.interface.is_some() && v4).then_some(IpAddr::V4(Ipv4Addr::UNSPECIFIED))) {
        // struct in_pktinfo: index, source address, destination address (unused).
        Some(IpAddr::V4(local)) if v4 => {
            let mut value = [0; 12];
            value[..4].copy_from_slice(&index);
            value[4..8].copy_from_slice(&local.octets());
            writer.put(libc::IPPROTO_IP, libc::IP_PKTINFO, &value);
        }
        // struct in6_pktinfo: source address, index.
        local if local.is_some() || path.interface.is_some() => {
            let local = match local {
                Some(IpAddr::V4(local)) => local.to_ipv6_mapped(),
                Some(IpAddr::V6(local)) => local,
                None => Ipv6Addr::UNSPECIFIED,
            };
            let mut value = [0; 20];
            value[..16].copy_from_slice(&local.octets());
            value[16..].copy_from_slice(&index);
            writer.put(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &value);
        }
        _ => {}
    }
    if let Some(TrafficClass(class)) = path.class {
        let class = libc::c_int::from(class).to_ne_bytes();
        match v4 {
            true => writer.put(libc::IPPROTO_IP, libc::IP_TOS, &class),
            false => writer.put(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &class),
        }
    }
    writer.len
}

/// What the kernel reported with a message.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Reported {
    pub(super) segment: Option<usize>,
    pub(super) destination: Option<IpAddr>,
    pub(super) local: Option<IpAddr>,
    pub(super) interface: Option<NonZeroU32>,
    pub(super) class: Option<TrafficClass>,
}

/// Reads control messages. What is unknown, too short or longer than the rest is left out.
pub(super) fn read(mut bytes: &[u8]) -> Reported {
    let mut reported = Reported::default();
    while let Some(len) = array(bytes, 0).map(usize::from_ne_bytes) {
        let Some(message) = bytes.get(..len).filter(|message| message.len() >= HEADER) else { break };
        let (header, value) = message.split_at(HEADER);
        reported.take(header, value);
        bytes = bytes.get(len.next_multiple_of(size_of::<usize>())..).unwrap_or_default();
    }
    reported
}

impl Reported {
    fn take(&mut self, header: &[u8], value: &[u8]) -> Option<()> {
        let int = || array(value, 0).map(libc::c_int::from_ne_bytes);
        let level = libc::c_int::from_ne_bytes(array(header, HEADER - 8)?);
        match (level, libc::c_int::from_ne_bytes(array(header, HEADER - 4)?)) {
            (libc::SOL_UDP, libc::UDP_GRO) => self.segment = usize::try_from(int()?).ok().filter(|&size| size > 0),
            (libc::IPPROTO_IP, libc::IP_TOS) => self.class = Some(TrafficClass(*value.first()?)),
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => self.class = u8::try_from(int()?).ok().map(TrafficClass),
            // The address that routing chose is an answer's source also if the destination is a
            // group's or a broadcast address.
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                self.interface = NonZeroU32::new(u32::from_ne_bytes(array(value, 0)?));
                self.local = Some(IpAddr::from(array::<4>(value, 4)?)).filter(|local| !local.is_unspecified());
                self.destination = Some(IpAddr::from(array::<4>(value, 8)?));
            }
            // On an IPv6 socket a datagram of IPv4 has both; IP_PKTINFO also has the local address.
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                let destination = Ipv6Addr::from(array::<16>(value, 0)?);
                if destination.to_ipv4_mapped().is_none() {
                    self.interface = NonZeroU32::new(u32::from_ne_bytes(array(value, 16)?));
                    self.destination = Some(destination.into());
                    self.local = self.destination.filter(|local| !local.is_multicast());
                }
            }
            _ => {}
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written(path: &Path, segment: Option<u16>) -> Vec<u8> {
        let mut bytes = [0xff; SEND];
        let len = write(&mut bytes, path, segment);
        bytes[..len].to_vec()
    }

    #[test]
    fn a_plain_path_needs_no_control_message() {
        assert_eq!(written(&Path::to(([192, 0, 2, 1], 9).into()), None), []);
    }

    #[test]
    fn everything_at_once_fits_and_is_read_again() {
        let peer = (Ipv6Addr::LOCALHOST, 9).into();
        let local: IpAddr = "2001:db8::5".parse().unwrap();
        let path = Path::to(peer).from(local).through(3).marked(TrafficClass::new(46, super::super::Ecn::Ect0));
        let bytes = written(&path, Some(1400));
        assert!(bytes.len() < SEND);
        let read = read(&bytes);
        assert_eq!((read.local, read.interface, read.class), (path.local, path.interface, path.class));
        // UDP_SEGMENT is what is sent, UDP_GRO what is received.
        assert_eq!(read.segment, None);
    }

    #[test]
    fn a_source_address_of_the_other_family_is_not_left_out_in_silence() {
        for (peer, local) in [("192.0.2.1:9", "2001:db8::1"), ("[2001:db8::1]:9", "192.0.2.1")] {
            let path = Path::to(peer.parse().unwrap()).from(local.parse().unwrap());
            assert_eq!(written(&path, None).len(), (HEADER + 20).next_multiple_of(size_of::<usize>()));
        }
    }

    #[test]
    fn a_segment_size_that_is_none_is_none() {
        for size in [0, -1, i32::MIN] {
            let mut bytes = [0; SEND];
            let mut writer = Writer { bytes: &mut bytes, len: 0 };
            writer.put(libc::SOL_UDP, libc::UDP_GRO, &i32::to_ne_bytes(size));
            let len = writer.len;
            assert_eq!(read(&bytes[..len]), Reported::default());
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_to_an_end(bytes in proptest::collection::vec(any::<u8>(), 0..RECEIVE)) {
            read(&bytes);
        }

        #[test]
        fn messages_of_any_length_are_read_within_their_bytes(
            messages in proptest::collection::vec((0..48usize, 0..64usize, 0..96i32, 0..24usize), 0..8)
        ) {
            let mut bytes = vec![];
            for (len, level, kind, value) in messages {
                bytes.extend(len.to_ne_bytes());
                bytes.extend((level as i32).to_ne_bytes());
                bytes.extend(kind.to_ne_bytes());
                bytes.extend(vec![0xa5; value]);
            }
            read(&bytes);
        }
    }
}
