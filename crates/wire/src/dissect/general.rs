//! The general path, for any IP packet: options, extension headers, fragments, frames cut short.
//! Each step checks that its header is inside the frame and reads it through an array of its size.

use super::{Dissected, Flags, LinkLayer, Stop};
use crate::ethernet::ethertype;
use crate::ip::{self, protocol};
use crate::ipv6::{Extensions, is_extension};
use crate::vlan::Tag;
use crate::{Error, icmp, ipv4, ipv6, tcp, udp};
use core::cmp::Ordering;

/// Length of SCTP's common header
/// ([RFC 9260 section 3.1](https://www.rfc-editor.org/rfc/rfc9260#section-3.1)).
const SCTP_HEADER_LEN: usize = 12;

impl Dissected {
    #[inline]
    fn stopped(mut self, stop: Stop) -> Self {
        self.stop = stop;
        self
    }
}

/// Flags of a frame whose IP header states this length.
#[inline]
fn length_flags(promised: usize, frame: &[u8]) -> Flags {
    match promised.cmp(&frame.len()) {
        Ordering::Less => Flags::PADDED,
        Ordering::Equal => Flags::default(),
        Ordering::Greater => Flags::TRUNCATED,
    }
}

/// Finds the headers of an IPv4 packet.
#[inline(never)]
pub(super) fn ipv4(frame: &[u8], l3: u16, tags: [Tag; 2]) -> Dissected {
    let link = LinkLayer { l3, ethertype: ethertype::IPV4, tags };
    let mut found = link.stop(frame, Stop::NetworkTruncated);
    let l3 = usize::from(l3);
    let packet = frame.get(l3..).unwrap_or_default();
    let Ok((header, _)) = ipv4::Header::split(packet) else {
        return found;
    };
    let (header_len, total_len) = (header.header_len(), usize::from(header.total_len()));
    if header.version() != 4 || header_len < ipv4::HEADER_LEN || total_len < header_len {
        return found.stopped(Stop::NetworkMalformed);
    }
    if header_len > packet.len() {
        return found;
    }
    found.flow.src = ip::mapped(header.src());
    found.flow.dst = ip::mapped(header.dst());
    found.flow.protocol = header.protocol();
    found.flags = Flags::IPV4 | length_flags(l3 + total_len, frame);
    if header_len > ipv4::HEADER_LEN {
        found.flags |= Flags::OPTIONS;
    }
    if header.is_fragment() {
        found.flags |= Flags::FRAGMENT;
        if header.fragment_offset() == 0 {
            found.flags |= Flags::FIRST_FRAGMENT;
        }
    }
    transport(found, frame, l3 + header_len, l3 + total_len)
}

/// Finds the headers of an IPv6 packet.
#[inline(never)]
pub(super) fn ipv6(frame: &[u8], l3: u16, tags: [Tag; 2]) -> Dissected {
    let link = LinkLayer { l3, ethertype: ethertype::IPV6, tags };
    let mut found = link.stop(frame, Stop::NetworkTruncated);
    let l3 = usize::from(l3);
    let packet = frame.get(l3..).unwrap_or_default();
    let Ok((header, _)) = ipv6::Header::split(packet) else {
        return found;
    };
    if header.version() != 6 {
        return found.stopped(Stop::NetworkMalformed);
    }
    let l4 = l3 + ipv6::HEADER_LEN;
    let end = l4 + usize::from(header.payload_len());
    found.flow.src = header.src();
    found.flow.dst = header.dst();
    found.flow.protocol = header.next_header();
    found.flags = Flags::IPV6 | length_flags(end, frame);
    if is_extension(header.next_header()) {
        return extensions(found, frame, l4, end);
    }
    transport(found, frame, l4, end)
}

fn extensions(mut found: Dissected, frame: &[u8], l4: usize, end: usize) -> Dissected {
    let end = end.min(frame.len());
    let mut walk = Extensions::new(found.flow.protocol, frame.get(l4..end).unwrap_or_default());
    let mut error = None;
    for extension in walk.by_ref() {
        match extension {
            Ok(extension) => {
                found.flags |= Flags::EXTENSIONS;
                if let Some(fragment) = extension.fragment().filter(|f| f.is_fragment()) {
                    found.flags |= Flags::FRAGMENT;
                    // A fragment may contain a fragment header again. The last one decides.
                    found.flags = match fragment.offset {
                        0 => found.flags | Flags::FIRST_FRAGMENT,
                        _ => Flags(found.flags.0 & !Flags::FIRST_FRAGMENT.0),
                    };
                }
            }
            Err(e) => error = Some(e),
        }
    }
    found.flow.protocol = walk.next_header();
    let l4 = end - walk.payload().len();
    let found = transport(found, frame, l4, end);
    match error {
        None => found,
        Some(Error::Truncated) => found.stopped(Stop::ExtensionTruncated),
        Some(_) => found.stopped(Stop::TooManyExtensions),
    }
}

/// Reads the transport header at `l4` of a packet that ends at `end` by its IP header.
#[inline]
fn transport(mut found: Dissected, frame: &[u8], l4: usize, end: usize) -> Dissected {
    let end = end.min(frame.len());
    let segment = frame.get(l4..end).unwrap_or_default();
    found.l4 = l4 as u16;
    found.payload = l4 as u16;
    found.end = end as u32;
    if found.flags.intersects(Flags::FRAGMENT) && !found.flags.contains(Flags::FIRST_FRAGMENT) {
        return found.stopped(Stop::LaterFragment);
    }
    let header_len = match found.flow.protocol {
        protocol::TCP => {
            let Ok((header, _)) = tcp::Header::split(segment) else {
                return found.stopped(Stop::TransportTruncated);
            };
            found.tcp_flags = header.flags();
            ports(&mut found, header.src_port(), header.dst_port());
            if header.header_len() < tcp::HEADER_LEN {
                return found.stopped(Stop::TransportMalformed);
            }
            header.header_len()
        }
        protocol::UDP => {
            let Ok((header, _)) = udp::Header::split(segment) else {
                return found.stopped(Stop::TransportTruncated);
            };
            ports(&mut found, header.src_port(), header.dst_port());
            udp::HEADER_LEN
        }
        protocol::SCTP => {
            let Some((&[s0, s1, d0, d1], _)) = segment.split_first_chunk() else {
                return found.stopped(Stop::TransportTruncated);
            };
            ports(&mut found, u16::from_be_bytes([s0, s1]), u16::from_be_bytes([d0, d1]));
            SCTP_HEADER_LEN
        }
        protocol::ICMP | protocol::ICMPV6 => icmp::HEADER_LEN,
        _ => return found.stopped(Stop::OtherTransport),
    };
    if header_len > segment.len() {
        return found.stopped(Stop::TransportTruncated);
    }
    found.payload = (l4 + header_len) as u16;
    found.stopped(Stop::Complete)
}

/// Fragments have no ports in their key, so that all fragments of a packet have the same key.
#[inline]
fn ports(found: &mut Dissected, src_port: u16, dst_port: u16) {
    if !found.flags.contains(Flags::FRAGMENT) {
        found.flow.src_port = src_port;
        found.flow.dst_port = dst_port;
        found.flags |= Flags::PORTS;
    }
}
