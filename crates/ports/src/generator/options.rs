//! The options of the generator, and what they are in its configuration.

use super::config::{Config, Payload, Protocol, Stamps};
use super::fields::Fields;
use super::size::Size;
use super::template::{Source, Template};
use crate::kind::{Kind, PortOption, SWITCH};
use crate::uri::Uri;
use std::net::{IpAddr, Ipv6Addr};
use towpath_packet::port::{Layer, PortError};

/// What the port is, and its options.
pub const KIND: Kind = Kind {
    name: "gen",
    example: "gen:flows=8,size=imix",
    what: "makes packets, and checks them when they come back",
    options: &[
        PortOption::new("layer", "ethernet|ip", "ethernet", "first header of packets", "layer=ip"),
        PortOption::new(
            "flows",
            "1–1048576",
            "8, or as many as the longest range or the template has, up to 65536",
            "flows, which take turns, one packet each",
            "flows=64",
        ),
        PortOption::new(
            "size",
            "BYTES|FIRST-LAST[/STEP]|imix, joined by +",
            "64",
            "length of packets from their first header on; each flow goes through a list or range, and begins again",
            "size=64-1518/64+9000",
        ),
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
        PortOption::new(
            "vlan",
            "1–4094, FIRST-LAST",
            "none",
            "an 802.1Q tag; ranges advance by flow, together",
            "vlan=100-199",
        ),
        PortOption::new(
            "src-mac",
            "MAC, FIRST-LAST",
            "00:00:5e:00:53:01",
            "Ethernet source",
            "src-mac=02:00:00:00:00:01-02:00:00:00:00:ff",
        ),
        PortOption::new(
            "dst-mac",
            "MAC, FIRST-LAST",
            "00:00:5e:00:53:02",
            "Ethernet destination",
            "dst-mac=02:00:00:00:00:02",
        ),
        PortOption::new(
            "src-ip",
            "ADDRESS, FIRST-LAST, PREFIX/LENGTH",
            "198.18.0.1; 2001:db8:0:1::1",
            "source address of the first flow, or those of all",
            "src-ip=10.0.0.1-10.0.0.9",
        ),
        PortOption::new(
            "dst-ip",
            "ADDRESS, FIRST-LAST, PREFIX/LENGTH",
            "198.19.0.1; 2001:db8:0:2::1",
            "destination address",
            "dst-ip=198.19.0.0/24",
        ),
        PortOption::new(
            "src-port",
            "0–65535, FIRST-LAST",
            "49152",
            "source port of the first flow, or those of all",
            "src-port=5000-5999",
        ),
        PortOption::new("dst-port", "0–65535, FIRST-LAST", "9", "destination port", "dst-port=53"),
        PortOption::new(
            "template",
            "FILE|hex:DIGITS",
            "none",
            "frames that are sent as they are, those of a capture in turn or one in hexadecimal, with the addresses, \
             ports, tags and stamps that are given",
            "template=hex:ffffffffffff02000000000108060001080006040001020000000001c6120001000000000000c6130001",
        ),
        PortOption::new(
            "stamp",
            "off|number|time",
            "number; off with a template",
            "what the payload begins with: flow and number (10 bytes, where all packets have room), also trial and time (20)",
            "stamp=time",
        ),
        PortOption::new(
            "verify",
            SWITCH,
            "off",
            "check the stamps of packets that it is sent: lost, late, twice, latency",
            "verify=on",
        ),
    ],
};

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
        let flows = o.number("flows", 1..=1 << 20)?.map(|n| n as u32);
        set(&mut config.protocol, o.choice("proto", &[("udp", Protocol::Udp), ("tcp", Protocol::Tcp)])?);
        let payloads = [("random", Payload::Random), ("stale", Payload::Stale)];
        set(&mut config.payload, o.choice("payload", &payloads)?);
        if o.choice("ip", &[("4", false), ("6", true)])? == Some(true) {
            (config.src_ip, config.dst_ip) = (SRC_6.into(), DST_6.into());
        }
        config.rate = o.number("rate", 0..=10_000_000_000)?.filter(|&rate| rate > 0);
        config.count = o.number("count", 1..=u64::MAX)?;
        set(&mut config.seed, o.number("seed", 0..=u64::MAX)?);
        config.gso = o.number("gso", 1..=65_535)?.map(|n| n as u16);
        let fields = Fields::of(&mut o)?;
        let template = o.text("template");
        let size = o.text("size");
        let stamps = [("off", Stamps::Off), ("number", Stamps::Number), ("time", Stamps::Time)];
        let stamp = o.choice("stamp", &stamps)?;
        set(&mut config.verify, o.switch("verify")?);
        if let Some(text) = template {
            let made = ["size", "proto", "ip", "payload", "gso"];
            if let Some(option) = made.into_iter().find(|option| uri.has(option)) {
                return Err(o.error(
                    "template",
                    text,
                    format!("has headers and lengths of its own: leave {option} out"),
                ));
            }
            let source = Source::parse(&text).map_err(|rule| o.error("template", &text, rule))?;
            config.stamp = stamp.unwrap_or(Stamps::Off);
            config.flows = flows.unwrap_or(fields.longest().max(1));
            config.template = Some(Template { source, fields });
        } else {
            fields.apply(&mut config);
            if let Some(text) = size {
                config.size = Size::parse(&text).ok_or_else(|| o.error("size", &text, Size::RULE))?;
            }
            set(&mut config.stamp, stamp);
            config.flows = flows.unwrap_or(fields.longest().max(config.flows));
        }
        o.finish()?;
        config.check(uri.as_str())?;
        Ok(config)
    }
}

fn set<T>(field: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *field = value;
    }
}

#[cfg(test)]
mod tests {
    use super::super::Sweep;
    use super::*;

    fn config(options: &str) -> Result<Config, String> {
        Config::from_uri(&format!("gen:{options}").parse().unwrap()).map_err(|e| e.to_string())
    }

    #[test]
    fn every_option_is_read() {
        let text = "layer=ethernet,flows=12k,size=65000,proto=tcp,ip=6,rate=2M,count=7,seed=9,stamp=time,vlan=5,\
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
            gso: None,
            vlan: Some(5.into()),
            src_mac: [2, 0, 0, 0, 0, 10].into(),
            dst_mac: [255; 6].into(),
            src_ip: "2001:db8::7".parse::<IpAddr>().unwrap().into(),
            dst_ip: DST_6.into(),
            src_port: 1000.into(),
            dst_port: 80.into(),
            template: None,
            stamp: Stamps::Time,
            verify: true,
        };
        assert_eq!(got, expected);
        assert_eq!(config("size=imix").unwrap(), Config { size: Size::Imix, ..Config::default() });
        assert_eq!(config("rate=0").unwrap(), Config::default());
        assert_eq!(config("payload=stale").unwrap(), Config { payload: Payload::Stale, ..Config::default() });
    }

    #[test]
    fn ranges_have_as_many_flows_as_the_longest_unless_they_are_given() {
        let got = config("src-ip=10.0.0.0/24,vlan=100-199,dst-port=7-8").unwrap();
        assert_eq!(
            (got.flows, got.vlan, got.dst_port),
            (256, Some(Sweep { first: 100, last: 199 }), Sweep { first: 7, last: 8 })
        );
        assert_eq!(config("src-ip=10.0.0.0/8").unwrap().flows, 1 << 16);
        assert_eq!(config("src-ip=10.0.0.0/8,flows=3").unwrap().flows, 3);
        assert_eq!(config("vlan=1-2").unwrap().flows, 8);
    }

    #[test]
    fn sizes_are_lists_of_numbers_and_ranges_with_steps() {
        let sizes = |text: &str| config(&format!("size={text}")).map(|config| config.size);
        assert_eq!(sizes("64-67"), Ok(Size::Each(vec![64, 65, 66, 67])));
        assert_eq!(sizes("64-200/64+1500+64"), Ok(Size::Each(vec![64, 128, 192, 1500, 64])));
        for bad in ["67-64", "64-70/0", "64+imix", "64-", "64+", "-64", "43-65535+43-1000", "64-99999999999"] {
            assert!(sizes(bad).unwrap_err().contains("joined by +"), "{bad}");
        }
        assert!(sizes("40-80").unwrap_err().contains("size=40: must be from 43"));
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
            ("size=61,stamp=time", "size=61: must be from 62 to 65549 with these headers and stamp=time"),
            ("size=9000,gso=1000,stamp=time", "stamp=time: goes without gso"),
            ("vlan=4000-4095", "vlan=4095"),
            ("dst-port=9-8", "dst-port=9-8: must be a number from 0 to 65535, or FIRST-LAST"),
            ("src-ip=10.0.0.0/33", "src-ip=10.0.0.0/33: must be an IP address"),
            ("template=hex:00,size=64", "leave size out"),
            ("template=hex:0", "template=hex:0: must be an even number of hexadecimal digits"),
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
