//! Flows and packet lengths, precomputed: each packet needs only a copy and few writes.
//!
//! ```text
//!   Flow.head   │ Ethernet │ IP │ UDP or TCP │ tag │ first payload │  128 bytes, one for each flow
//!   payload                                        │ …             │  one for all flows
//!   Sizes         lengths, and the sum of the payload                one for each length
//! ```
//!
//! All sums are 32-bit sums of 16-bit words. They are folded once, after a packet's own words
//! (sequence numbers, identification) are added
//! ([RFC 1071](https://www.rfc-editor.org/rfc/rfc1071#section-2) section 2).

use super::config::{Config, PORTS, Payload, Protocol, Stamps};
use super::size::{IMIX, Size};
use super::sweep;
use super::tag::{self, Tag};
use crate::random::Random;
use std::net::{IpAddr, Ipv6Addr};
use towpath_packet::port::Layer;
use towpath_wire::emit::{Checksums, Headers, Ip, IpAddresses, Link, Network, Tcp, Transport, Udp};
use towpath_wire::ethernet::ethertype;
use towpath_wire::vlan::{Tag as VlanTag, Tci};
use towpath_wire::{checksum, ipv4, ipv6, tcp, udp};

/// Bytes at the front of each packet that are copied from its flow: all headers and the tag at
/// least.
pub(super) const HEAD: usize = 128;

/// The template of one flow, and the fields of its next packet.
#[repr(C, align(64))]
#[derive(Debug, Clone)]
pub(super) struct Flow {
    pub(super) head: [u8; HEAD],
    /// Its index, as in its tags.
    pub(super) index: u32,
    /// Sum of the IPv4 header without length and identification.
    pub(super) network_sum: u32,
    /// Sum of the pseudo-header without the length.
    pub(super) pseudo_sum: u32,
    /// Sum of the transport header and tag without lengths and sequence numbers.
    pub(super) transport_sum: u32,
    /// Number of the next tag.
    pub(super) number: u32,
    /// TCP sequence number of the next packet.
    pub(super) tcp_seq: u32,
    /// IPv4 identification of the next packet.
    pub(super) id: u16,
    /// Index of the next packet's sizes.
    pub(super) turn: u16,
}

/// The sizes of one packet length, aligned for a cheap index.
#[repr(align(32))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sizes {
    /// Bytes in the packet.
    pub(super) len: usize,
    /// Bytes in the transport's payload.
    pub(super) payload: usize,
    /// The IP header's field: IPv4's total length or IPv6's payload length.
    pub(super) network_len: u16,
    /// Bytes in transport header and payload.
    pub(super) transport_len: u16,
    /// Sum of the payload, and of all lengths that the transport's checksum covers.
    pub(super) sum: u32,
}

/// Everything that does not change while packets are generated.
#[derive(Debug)]
pub(super) struct Plan {
    /// Offset of the IP header.
    pub(super) l3: usize,
    /// Offset of the transport header.
    pub(super) l4: usize,
    /// Bytes in front of the payload.
    pub(super) headers: usize,
    /// Payload of the longest packet, with zeros for the tag.
    pub(super) payload: Vec<u8>,
    /// The sizes, in the order in which each flow uses them.
    pub(super) sizes: Vec<Sizes>,
    /// The sizes of super-packets, and the payload of a segment, if configured.
    pub(super) super_packet: Option<(Sizes, u16)>,
    /// All packets have a tag.
    pub(super) tagged: bool,
    /// The tag has a trial and a time.
    pub(super) timed: bool,
    /// Packets keep the buffer's old bytes behind the head, and have no checksum.
    pub(super) stale: bool,
}

impl Plan {
    /// The plan of a checked configuration.
    pub(super) fn new(config: &Config) -> Plan {
        let (l3, headers) = (config.link(), config.headers());
        let l4 = l3 + if config.is_ipv4() { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN };
        let timed = config.stamp == Stamps::Time;
        let tag_len = if timed { tag::TIMED_LEN } else { tag::LEN };
        let (lengths, whole) = match (&config.size, config.gso) {
            (Size::Fixed(size), Some(segment)) => {
                (vec![headers + usize::from(segment)], Some((*size as usize, segment.max(1))))
            }
            (Size::Fixed(size), None) => (vec![*size as usize], None),
            (Size::Each(sizes), _) => (sizes.iter().map(|size| *size as usize).collect(), None),
            (Size::Imix, _) => {
                let link = if config.layer == Layer::Ip { 14 } else { 0 };
                (IMIX.map(|len| (usize::from(len) - link).max(headers + tag_len)).to_vec(), None)
            }
        };
        let longest = lengths.iter().copied().chain(whole.map(|(len, _)| len)).max().unwrap_or(headers);
        let tagged = config.stamp != Stamps::Off && lengths.iter().all(|len| len - headers >= tag_len);
        let mut payload = vec![0; (longest - headers).max(HEAD)];
        Random::new(config.seed).fill(&mut payload);
        if tagged {
            payload[..tag_len].fill(0);
        }
        let sizes = |len: usize| Sizes::new(config, len, &payload);
        let super_packet = whole.map(|(len, segment)| (sizes(len), segment));
        let sizes = lengths.into_iter().map(sizes).collect();
        Plan { l3, l4, headers, payload, sizes, super_packet, tagged, timed, stale: config.payload == Payload::Stale }
    }

    /// The flows of queue `queue` of `queues`: every `queues`th.
    pub(super) fn flows(&self, config: &Config, queue: u32, queues: u32) -> Vec<Flow> {
        let numbers = (queue..config.flows).step_by(queues.max(1) as usize);
        numbers.map(|i| self.flow(config, i)).collect()
    }

    fn flow(&self, config: &Config, index: u32) -> Flow {
        let mut random = Random::new(config.seed ^ (u64::from(index) << 32));
        let mut head = [0; HEAD];
        let headers = headers(config, index);
        let (front, behind) = head.split_at_mut(self.headers);
        behind.copy_from_slice(&self.payload[..behind.len()]);
        // The configuration is checked: the headers fit.
        let _ = headers.write(front, Checksums::Partial);
        let pseudo_sum = match headers.network {
            Network::Ip(ip, transport) => u32::from(ip.pseudo_sum(protocol(&transport), 0)),
            Network::Arp(_) => 0,
        };
        clear_variable_fields(front, self.l3, self.l4, config);
        let tag_sum = match self.tagged {
            true => {
                let tag = Tag { flow: index, number: 0 };
                if self.timed {
                    tag.write_timed(behind)
                } else {
                    tag.write(behind)
                }
                u32::from(checksum::sum(&behind[..tag::LEN]))
            }
            false => 0,
        };
        Flow {
            index,
            network_sum: u32::from(checksum::sum(&front[self.l3..self.l4])),
            pseudo_sum,
            transport_sum: u32::from(checksum::sum(&front[self.l4..])) + tag_sum,
            head,
            number: 0,
            tcp_seq: random.next() as u32,
            id: random.next() as u16,
            turn: (random.below(self.sizes.len() as u64)) as u16,
        }
    }
}

impl Sizes {
    fn new(config: &Config, len: usize, payload: &[u8]) -> Sizes {
        let bytes = len - config.headers();
        let transport = match config.protocol {
            Protocol::Udp => udp::HEADER_LEN,
            Protocol::Tcp => tcp::HEADER_LEN,
        };
        let transport_len = transport + bytes;
        let network_len = if config.is_ipv4() { transport_len + ipv4::HEADER_LEN } else { transport_len };
        // UDP has its length in the header as well as in the pseudo-header.
        let lengths = if config.protocol == Protocol::Udp { 2 * transport_len } else { transport_len };
        Sizes {
            len,
            payload: bytes,
            network_len: network_len as u16,
            transport_len: transport_len as u16,
            sum: u32::from(checksum::sum(&payload[..bytes])) + lengths as u32,
        }
    }
}

fn protocol(transport: &Transport<'_>) -> u8 {
    match transport {
        Transport::Tcp(_) => towpath_wire::ip::protocol::TCP,
        _ => towpath_wire::ip::protocol::UDP,
    }
}

fn headers(config: &Config, index: u32) -> Headers<'static> {
    let src_port = match sweep::is_swept(config.src_port) {
        true => sweep::at(config.src_port, index),
        false => config.src_port.first + (index % PORTS) as u16,
    };
    let dst_port = sweep::at(config.dst_port, index);
    let transport = match config.protocol {
        Protocol::Udp => Transport::Udp(Udp { src_port, dst_port }),
        Protocol::Tcp => {
            let (flags, window) = (tcp::flags::ACK, u16::MAX);
            Transport::Tcp(Tcp { src_port, dst_port, ack: 1, flags, window, ..Tcp::default() })
        }
    };
    let src_ip = match sweep::is_swept(config.src_ip) || sweep::is_swept(config.src_port) {
        true => sweep::at(config.src_ip, index),
        false => sweep::above(config.src_ip.first, index / PORTS),
    };
    let addresses = match (src_ip, sweep::at(config.dst_ip, index)) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => IpAddresses::V4 { src, dst },
        (src, dst) => IpAddresses::V6 { src: to_v6(src), dst: to_v6(dst) },
    };
    let ip = Ip { addresses, ..Ip::v4([0; 4], [0; 4]) };
    let id = config.vlan.map(|vlan| sweep::at(vlan, index));
    let tag = id.map(|id| VlanTag { tpid: ethertype::VLAN, tci: Tci::new(0, false, id) });
    let tags = [tag.unwrap_or_default(), VlanTag::default()];
    let (dst, src) = (sweep::at(config.dst_mac, index), sweep::at(config.src_mac, index));
    let link = (config.layer != Layer::Ip).then_some(Link { dst, src, tags });
    Headers { link, network: Network::Ip(ip, transport) }
}

fn to_v6(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

/// Zeroes the fields that each packet sets, so that the sums do not include them.
fn clear_variable_fields(front: &mut [u8], l3: usize, l4: usize, config: &Config) {
    let (network, transport) = front[l3..].split_at_mut(l4 - l3);
    if let Ok((mut ip, _)) = ipv4::Header::split_mut(network)
        && config.is_ipv4()
    {
        ip.set_total_len(0);
        ip.set_checksum(0);
    }
    match config.protocol {
        Protocol::Udp => {
            if let Ok((mut udp, _)) = udp::Header::split_mut(transport) {
                udp.set_length(0);
                udp.set_checksum(0);
            }
        }
        Protocol::Tcp => {
            if let Ok((mut tcp, _)) = tcp::Header::split_mut(transport) {
                tcp.set_checksum(0);
            }
        }
    }
}
