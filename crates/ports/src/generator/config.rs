//! Configuration of the generator, and its rules.

use super::size::{IMIX, Size};
use super::sweep::{self, Sweep};
use super::tag;
use super::template::Template;
use std::net::{IpAddr, Ipv4Addr};
use towpath_packet::port::{Layer, PortError};
use towpath_wire::ethernet::{self, Mac};
use towpath_wire::{ipv4, ipv6, tcp, udp, vlan};

/// Flows that share a source address; the next ones get the next address.
pub(super) const PORTS: u32 = 10_000;

/// The transport protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// UDP.
    Udp,
    /// TCP: segments of an established connection, ACK set, no options, contiguous sequence
    /// numbers.
    Tcp,
}

/// The bytes behind the headers and the tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payload {
    /// Random bytes from the seed, the same in all packets.
    Random,
    /// The buffer's old bytes, which may be those of received packets; for measurements. The UDP
    /// checksum is left out.
    Stale,
}

/// What the payload of packets begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stamps {
    /// Nothing.
    Off,
    /// A tag of flow and number, if all packets have room for it.
    Number,
    /// Such a tag with a trial and a time behind it; all packets have room for it.
    Time,
}

/// Configuration of a generator.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// The first header of packets: Ethernet or IP.
    pub layer: Layer,
    /// Number of flows, 1 to 2^20. They take turns, one packet each. Where neither `src_port` nor
    /// `src_ip` is a range, flow `i` has source port `src_port + i % 10000` and source address
    /// `src_ip + i / 10000`.
    pub flows: u32,
    /// Lengths of the packets.
    pub size: Size,
    /// Transport protocol.
    pub protocol: Protocol,
    /// Payload behind the first 128 bytes of a packet.
    pub payload: Payload,
    /// Packets per second over all queues; `None` for no limit.
    pub rate: Option<u64>,
    /// Packets over all queues; `None` for no end.
    pub count: Option<u64>,
    /// Seed of the payload, the first TCP sequence numbers and IPv4 identifications.
    pub seed: u64,
    /// Payload bytes of each segment: packets are super-packets that the egress segments. If it
    /// cannot, each segment is a packet of its own.
    pub gso: Option<u16>,
    /// An 802.1Q tag in the packet.
    pub vlan: Option<Sweep<u16>>,
    /// Ethernet source.
    pub src_mac: Sweep<Mac>,
    /// Ethernet destination.
    pub dst_mac: Sweep<Mac>,
    /// Source address of the first flow; its family is that of the packets.
    pub src_ip: Sweep<IpAddr>,
    /// Destination address.
    pub dst_ip: Sweep<IpAddr>,
    /// Source port of the first flow.
    pub src_port: Sweep<u16>,
    /// Destination port.
    pub dst_port: Sweep<u16>,
    /// Frames that are sent instead of made ones.
    pub template: Option<Template>,
    /// What the payload begins with.
    pub stamp: Stamps,
    /// Check the tags of transmitted packets; the result is
    /// [`PortControl::verified`](towpath_packet::port::PortControl::verified). With a count, so
    /// many packets are expected.
    pub verify: bool,
}

impl Default for Config {
    /// Eight flows of 64-byte UDP over IPv4, as fast as possible, without end. The addresses are
    /// reserved for benchmarks (198.18.0.0/15, [RFC 2544](https://www.rfc-editor.org/rfc/rfc2544))
    /// and documentation (00:00:5e:00:53:xx, [RFC 7042](https://www.rfc-editor.org/rfc/rfc7042));
    /// the port is *discard*.
    fn default() -> Config {
        Config {
            layer: Layer::Ethernet,
            flows: 8,
            size: Size::Fixed(64),
            protocol: Protocol::Udp,
            payload: Payload::Random,
            rate: None,
            count: None,
            seed: 1,
            gso: None,
            vlan: None,
            src_mac: [0x00, 0x00, 0x5e, 0x00, 0x53, 0x01].into(),
            dst_mac: [0x00, 0x00, 0x5e, 0x00, 0x53, 0x02].into(),
            src_ip: IpAddr::V4(Ipv4Addr::new(198, 18, 0, 1)).into(),
            dst_ip: IpAddr::V4(Ipv4Addr::new(198, 19, 0, 1)).into(),
            src_port: 49152.into(),
            dst_port: 9.into(),
            template: None,
            stamp: Stamps::Number,
            verify: false,
        }
    }
}

impl Config {
    /// Whether the packets are IPv4.
    pub(super) fn is_ipv4(&self) -> bool {
        self.src_ip.first.is_ipv4()
    }

    /// Checks every field against its rule.
    pub(super) fn check(&self, port: &str) -> Result<(), PortError> {
        let bad = |option: &str, value: String, rule: String| {
            Err(PortError::Option { port: port.to_owned(), option: option.to_owned(), value, rule })
        };
        if !(1..=1 << 20).contains(&self.flows) {
            return bad("flows", self.flows.to_string(), "must be from 1 to 1048576".to_owned());
        }
        if self.template.is_some() {
            return Ok(());
        }
        if self.is_ipv4() != self.dst_ip.first.is_ipv4() {
            let rule = format!("must be of the same family as src-ip={}", self.src_ip.first);
            return bad("dst-ip", self.dst_ip.first.to_string(), rule);
        }
        let first = self.src_port.first;
        if !sweep::is_swept(self.src_port) && u32::from(first) + self.flows.min(PORTS) > 65_536 {
            let rule = format!("must leave room for the ports of {} flows", self.flows.min(PORTS));
            return bad("src-port", first.to_string(), rule);
        }
        if self.layer == Layer::Any {
            return bad("layer", "any".to_owned(), "must be ethernet or ip".to_owned());
        }
        if let Some(vlan) = self.vlan
            && (vlan.first < 1 || vlan.last > 4094 || self.layer == Layer::Ip)
        {
            let rule = "must be from 1 to 4094, and layer=ethernet".to_owned();
            return bad("vlan", vlan.first.max(vlan.last).to_string(), rule);
        }
        let (stamp, of) = if self.stamp == Stamps::Time { (tag::TIMED_LEN, " and stamp=time") } else { (1, "") };
        let (min, max) = (self.headers() + stamp, self.link() + 65_535);
        let lengths = match &self.size {
            Size::Fixed(size) => std::slice::from_ref(size),
            Size::Each(sizes) => sizes,
            Size::Imix => &[],
        };
        if let Some(size) = lengths.iter().find(|size| !(min..=max).contains(&(**size as usize))) {
            return bad("size", size.to_string(), format!("must be from {min} to {max} with these headers{of}"));
        }
        if self.stamp == Stamps::Time && self.gso.is_some() {
            return bad("stamp", "time".to_owned(), "goes without gso".to_owned());
        }
        let unsummed = self.protocol == Protocol::Udp && self.is_ipv4() && self.gso.is_none();
        if self.payload == Payload::Stale && !unsummed {
            let rule = "goes without checksums: with proto=udp and ip=4 only, and without gso".to_owned();
            return bad("payload", "stale".to_owned(), rule);
        }
        if let Some(gso) = self.gso {
            let Size::Fixed(size) = &self.size else {
                return bad("gso", gso.to_string(), "needs packets of one size, the super-packet's".to_owned());
            };
            let payload = *size as usize - self.headers();
            if usize::from(gso) >= payload {
                return bad("gso", gso.to_string(), format!("must be less than the payload of size, {payload}"));
            }
        }
        Ok(())
    }

    /// Bytes in front of the IP header.
    pub(super) fn link(&self) -> usize {
        match self.layer {
            Layer::Ip => 0,
            _ => ethernet::HEADER_LEN + if self.vlan.is_some() { vlan::HEADER_LEN } else { 0 },
        }
    }

    /// Length of the longest packet, or segment of a super-packet, without its Ethernet header.
    pub(super) fn mtu(&self) -> u32 {
        let longest = match (&self.size, self.gso) {
            (Size::Fixed(bytes), None) => *bytes,
            (Size::Fixed(bytes), Some(payload)) => (*bytes).min(self.headers() as u32 + u32::from(payload)),
            (Size::Each(sizes), _) => sizes.iter().copied().max().unwrap_or(0),
            (Size::Imix, _) => IMIX.into_iter().max().unwrap_or(0).into(),
        };
        longest.saturating_sub(self.link() as u32)
    }

    /// Bytes in front of the payload.
    pub(super) fn headers(&self) -> usize {
        let network = if self.is_ipv4() { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN };
        let transport = match self.protocol {
            Protocol::Udp => udp::HEADER_LEN,
            Protocol::Tcp => tcp::HEADER_LEN,
        };
        self.link() + network + transport
    }
}
