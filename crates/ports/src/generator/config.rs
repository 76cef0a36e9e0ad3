//! Configuration of the generator.

use crate::kind::{Kind, PortOption, SWITCH};
use crate::uri::{Options, Uri};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use towpath_packet::port::{Layer, PortError};
use towpath_wire::ethernet::{self, Mac};
use towpath_wire::{ipv4, ipv6, tcp, udp, vlan};

/// What the port is, and its options.
pub const KIND: Kind = Kind {
    name: "gen",
    example: "gen:flows=8,size=imix",
    what: "makes packets, and checks them when they come back",
    options: &[
        PortOption::new("layer", "ethernet|ip", "ethernet", "first header of packets", "layer=ip"),
        PortOption::new("flows", "1–1048576", "8", "flows, which take turns", "flows=64"),
        PortOption::new("size", "BYTES|imix", "64", "length of packets from their first header on", "size=imix"),
        PortOption::new(
            "payload",
            "random|stale",
            "random",
            "stale: the buffer's old bytes behind the first 128, without a checksum",
            "payload=stale",
        ),
        PortOption::new("proto", "udp|tcp", "udp", "transport", "proto=tcp"),
        PortOption::new("ip", "4|6", "4", "IP version", "ip=6"),
        PortOption::new(
            "rate",
            "PACKETS/s",
            "0, as fast as possible",
            "packets per second over all queues",
            "rate=1.5M",
        ),
        PortOption::new("count", "PACKETS", "no end", "packets over all queues; then the port is done", "count=1000"),
        PortOption::new("seed", "NUMBER", "1", "seed of payload, first sequence numbers and identifications", "seed=7"),
        PortOption::new(
            "gso",
            "BYTES, 1–65535",
            "off",
            "super-packets with so much payload in each segment",
            "size=9000,gso=1448",
        ),
        PortOption::new("vlan", "1–4094", "none", "an 802.1Q tag", "vlan=100"),
        PortOption::new("src-mac", "MAC", "00:00:5e:00:53:01", "Ethernet source", "src-mac=02:00:00:00:00:01"),
        PortOption::new("dst-mac", "MAC", "00:00:5e:00:53:02", "Ethernet destination", "dst-mac=02:00:00:00:00:02"),
        PortOption::new(
            "src-ip",
            "ADDRESS",
            "198.18.0.1; 2001:db8:0:1::1",
            "source address of the first flow",
            "src-ip=10.0.0.1",
        ),
        PortOption::new("dst-ip", "ADDRESS", "198.19.0.1; 2001:db8:0:2::1", "destination address", "dst-ip=10.0.0.2"),
        PortOption::new("src-port", "0–65535", "49152", "source port of the first flow", "src-port=5000"),
        PortOption::new("dst-port", "0–65535", "9", "destination port", "dst-port=53"),
        PortOption::new(
            "verify",
            SWITCH,
            "off",
            "check the tags of packets that it is sent: lost, late, twice",
            "verify=on",
        ),
    ],
};

/// Flows that share a source address; the next ones get the next address.
pub(super) const PORTS: u32 = 10_000;

/// The packet lengths of the common "simple IMIX" in the order in which they are sent: 7 : 4 : 1 of
/// twelve, with IP packets of 576 and 1500 bytes behind 14 bytes of Ethernet.
pub const IMIX: [u16; 12] = [64, 590, 64, 64, 590, 64, 1514, 64, 590, 64, 590, 64];

/// Lengths of the packets, from the first byte of the [layer](Config::layer) to the last of the
/// payload: for Ethernet without the frame check sequence, so a "64-byte frame" on a wire is 60
/// here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// All of one length.
    Fixed(u32),
    /// The lengths of [`IMIX`]; on the IP layer 14 bytes less, and at least the headers and the
    /// tag.
    Imix,
}

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

/// Configuration of a generator.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// The first header of packets: Ethernet or IP.
    pub layer: Layer,
    /// Number of flows, 1 to 2^20. They take turns, one packet each. Flow `i` has source port
    /// `src_port + i % 10000` and source address `src_ip + i / 10000`.
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
    pub vlan: Option<u16>,
    /// Ethernet source.
    pub src_mac: Mac,
    /// Ethernet destination.
    pub dst_mac: Mac,
    /// Source address of the first flow; its family is that of the packets.
    pub src_ip: IpAddr,
    /// Destination address.
    pub dst_ip: IpAddr,
    /// Source port of the first flow.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Check the tags of transmitted packets; the result is
    /// [`PortControl::verified`](towpath_packet::port::PortControl::verified). With a count, so many
    /// packets are expected.
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
            src_mac: [0x00, 0x00, 0x5e, 0x00, 0x53, 0x01],
            dst_mac: [0x00, 0x00, 0x5e, 0x00, 0x53, 0x02],
            src_ip: IpAddr::V4(Ipv4Addr::new(198, 18, 0, 1)),
            dst_ip: IpAddr::V4(Ipv4Addr::new(198, 19, 0, 1)),
            src_port: 49152,
            dst_port: 9,
            verify: false,
        }
    }
}

/// Addresses of `ip=6`: documentation (2001:db8::/32, RFC 3849).
const SRC_6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, 1));
const DST_6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 2, 0, 0, 0, 1));

impl Config {
    /// Parses `gen:flows=8,size=1448,…`; see the [module](super) for the options.
    ///
    /// # Errors
    /// [`PortError::Option`] names the option, its value and the rule that it breaks.
    pub fn from_uri(uri: &Uri) -> Result<Config, PortError> {
        let mut o = uri.options(KIND.options);
        let mut config = Config::default();
        set(&mut config.layer, o.choice("layer", &[("ethernet", Layer::Ethernet), ("ip", Layer::Ip)])?);
        set(&mut config.flows, o.number("flows", 1..=1 << 20)?.map(|n| n as u32));
        set(&mut config.protocol, o.choice("proto", &[("udp", Protocol::Udp), ("tcp", Protocol::Tcp)])?);
        let payloads = [("random", Payload::Random), ("stale", Payload::Stale)];
        set(&mut config.payload, o.choice("payload", &payloads)?);
        if o.choice("ip", &[("4", false), ("6", true)])? == Some(true) {
            (config.src_ip, config.dst_ip) = (SRC_6, DST_6);
        }
        config.rate = o.number("rate", 0..=10_000_000_000)?.filter(|&rate| rate > 0);
        config.count = o.number("count", 1..=u64::MAX)?;
        set(&mut config.seed, o.number("seed", 0..=u64::MAX)?);
        config.gso = o.number("gso", 1..=65_535)?.map(|n| n as u16);
        config.vlan = o.number("vlan", 1..=4094)?.map(|n| n as u16);
        set(&mut config.src_mac, parsed(&mut o, "src-mac", mac, "must be six bytes such as 02:00:00:00:00:01")?);
        set(&mut config.dst_mac, parsed(&mut o, "dst-mac", mac, "must be six bytes such as 02:00:00:00:00:01")?);
        set(&mut config.src_ip, parsed(&mut o, "src-ip", |t| t.parse().ok(), "must be an IP address")?);
        set(&mut config.dst_ip, parsed(&mut o, "dst-ip", |t| t.parse().ok(), "must be an IP address")?);
        set(&mut config.src_port, o.number("src-port", 0..=65_535)?.map(|n| n as u16));
        set(&mut config.dst_port, o.number("dst-port", 0..=65_535)?.map(|n| n as u16));
        set(&mut config.verify, o.switch("verify")?);
        let size = |text: &str| match text {
            "imix" => Some(Size::Imix),
            number => Some(Size::Fixed(u32::try_from(crate::uri::parse_number(number)?).ok()?)),
        };
        set(&mut config.size, parsed(&mut o, "size", size, "must be a number of bytes or imix")?);
        o.finish()?;
        config.check(uri.as_str())?;
        Ok(config)
    }

    /// Checks every field against its rule.
    pub(super) fn check(&self, port: &str) -> Result<(), PortError> {
        let bad = |option: &str, value: String, rule: String| {
            Err(PortError::Option { port: port.to_owned(), option: option.to_owned(), value, rule })
        };
        if !(1..=1 << 20).contains(&self.flows) {
            return bad("flows", self.flows.to_string(), "must be from 1 to 1048576".to_owned());
        }
        if self.src_ip.is_ipv4() != self.dst_ip.is_ipv4() {
            let rule = format!("must be of the same family as src-ip={}", self.src_ip);
            return bad("dst-ip", self.dst_ip.to_string(), rule);
        }
        if u32::from(self.src_port) + self.flows.min(PORTS) > 65_536 {
            let rule = format!("must leave room for the ports of {} flows", self.flows.min(PORTS));
            return bad("src-port", self.src_port.to_string(), rule);
        }
        if self.layer == Layer::Any {
            return bad("layer", "any".to_owned(), "must be ethernet or ip".to_owned());
        }
        if self.vlan.is_some_and(|id| !(1..=4094).contains(&id) || self.layer == Layer::Ip) {
            let rule = "must be from 1 to 4094, and layer=ethernet".to_owned();
            return bad("vlan", self.vlan.unwrap_or(0).to_string(), rule);
        }
        let (min, max) = (self.headers() + 1, self.link() + 65_535);
        if let Size::Fixed(size) = self.size
            && !(min..=max).contains(&(size as usize))
        {
            return bad("size", size.to_string(), format!("must be from {min} to {max} with these headers"));
        }
        let unsummed = self.protocol == Protocol::Udp && self.src_ip.is_ipv4() && self.gso.is_none();
        if self.payload == Payload::Stale && !unsummed {
            let rule = "goes without checksums: with proto=udp and ip=4 only, and without gso".to_owned();
            return bad("payload", "stale".to_owned(), rule);
        }
        if let Some(gso) = self.gso {
            let Size::Fixed(size) = self.size else {
                return bad("gso", gso.to_string(), "needs packets of one size, the super-packet's".to_owned());
            };
            let payload = size as usize - self.headers();
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
        let longest = match (self.size, self.gso) {
            (Size::Fixed(bytes), None) => bytes,
            (Size::Fixed(bytes), Some(payload)) => bytes.min(self.headers() as u32 + u32::from(payload)),
            (Size::Imix, _) => IMIX.into_iter().max().unwrap_or(0).into(),
        };
        longest.saturating_sub(self.link() as u32)
    }

    /// Bytes in front of the payload.
    pub(super) fn headers(&self) -> usize {
        let network = if self.src_ip.is_ipv4() { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN };
        let transport = match self.protocol {
            Protocol::Udp => udp::HEADER_LEN,
            Protocol::Tcp => tcp::HEADER_LEN,
        };
        self.link() + network + transport
    }
}

fn set<T>(field: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *field = value;
    }
}

fn parsed<T>(
    options: &mut Options,
    name: &'static str,
    parse: impl Fn(&str) -> Option<T>,
    rule: &str,
) -> Result<Option<T>, PortError> {
    let Some(text) = options.text(name) else { return Ok(None) };
    parse(&text).map(Some).ok_or_else(|| options.error(name, text, rule))
}

fn mac(text: &str) -> Option<Mac> {
    let mut bytes = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut bytes {
        let digits = parts.next().filter(|d| (1..=2).contains(&d.len()) && !d.starts_with('+'))?;
        *byte = u8::from_str_radix(digits, 16).ok()?;
    }
    parts.next().is_none().then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(options: &str) -> Result<Config, String> {
        Config::from_uri(&format!("gen:{options}").parse().unwrap()).map_err(|e| e.to_string())
    }

    #[test]
    fn every_option_is_read() {
        let text = "layer=ethernet,flows=12k,size=65000,proto=tcp,ip=6,rate=2M,count=7,seed=9,gso=1428,vlan=5,\
                    src-mac=2:0:0:0:0:a,dst-mac=ff:ff:ff:ff:ff:ff,src-ip=2001:db8::7,src-port=1000,dst-port=80,verify=on";
        let got = config(text).unwrap();
        let expected = Config {
            layer: Layer::Ethernet,
            flows: 12_000,
            size: Size::Fixed(65_000),
            protocol: Protocol::Tcp,
            payload: Payload::Random,
            rate: Some(2_000_000),
            count: Some(7),
            seed: 9,
            gso: Some(1428),
            vlan: Some(5),
            src_mac: [2, 0, 0, 0, 0, 10],
            dst_mac: [255; 6],
            src_ip: "2001:db8::7".parse().unwrap(),
            dst_ip: DST_6,
            src_port: 1000,
            dst_port: 80,
            verify: true,
        };
        assert_eq!(got, expected);
        assert_eq!(config("size=imix").unwrap(), Config { size: Size::Imix, ..Config::default() });
        assert_eq!(config("rate=0").unwrap(), Config::default());
        assert_eq!(config("payload=stale").unwrap(), Config { payload: Payload::Stale, ..Config::default() });
    }

    #[test]
    fn what_cannot_be_is_named_with_its_rule() {
        for (text, part) in [
            ("size=42", "size=42: must be from 43 to 65549"),
            ("size=62,ip=6", "must be from 63"),
            ("size=big", "size=big: must be a number of bytes or imix"),
            ("flows=0", "flows=0"),
            ("ip=5", "must be one of 4, 6"),
            ("src-ip=10.0.0.1,dst-ip=::1", "dst-ip=::1: must be of the same family"),
            ("src-port=60000,flows=6000", "src-port=60000: must leave room"),
            ("vlan=4095", "vlan=4095"),
            ("vlan=7,layer=ip", "layer=ethernet"),
            ("gso=1448", "gso=1448: must be less than the payload of size, 22"),
            ("payload=stale,proto=tcp", "payload=stale: goes without checksums"),
            ("payload=stale,ip=6", "payload=stale"),
            ("gso=100,size=imix", "needs packets of one size"),
            ("src-mac=2:0:0:0:0", "src-mac=2:0:0:0:0"),
            ("src-mac=2:0:0:0:0:0:0", "six bytes"),
            ("sise=4", "sise=4: no such option; there are: count, dst-ip"),
        ] {
            let error = config(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
