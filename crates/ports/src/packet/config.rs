//! Configuration of an AF_PACKET port.

use crate::kernel::ability::Wants;
use crate::kind::{CSUM, Kind, NETNS, PortOption, SWITCH, TSO, USO};
use crate::uri::Uri;
use towpath_packet::port::PortError;
use towpath_sys::af_packet::Qdisc;
use towpath_sys::netdev::valid_name;

/// Members of one group (`PACKET_FANOUT_MAX` in `net/packet/internal.h`, before Linux 5.10).
const MAX_QUEUES: u16 = 256;
/// Frames of a ring: 128 KiB to 128 MiB.
const RING: std::ops::RangeInclusive<u64> = 64..=65535;
/// Smallest and largest buffer of a socket; the kernel doubles it.
const BUFFER: std::ops::RangeInclusive<u64> = 65536..=1 << 29;
/// The receive buffers of a port take at most this share of the memory by default, doubling
/// included, and its rings, whose memory is never free, at most half of that.
const MEMORY_SHARE: u64 = 128;
/// Bytes of a frame of the ring.
const FRAME: u64 = 2048;

/// The default receive buffer of each of `queues` sockets: 4 to 64 MiB.
fn default_receive_buffer(memory: u64, queues: u16) -> i32 {
    (memory / MEMORY_SHARE / 2 / u64::from(queues.max(1))).clamp(4 << 20, 64 << 20) as i32
}

/// The default ring of each of `queues` sockets: 2048 to 16384 frames.
fn default_ring(memory: u64, queues: u16) -> u16 {
    (memory / MEMORY_SHARE / 2 / FRAME / u64::from(queues.max(1))).clamp(2048, 16384) as u16
}

/// What the port is, and its options.
pub const KIND: Kind = Kind {
    name: "packet",
    example: "packet:eth1",
    what: "any interface of the kernel, by AF_PACKET (needs CAP_NET_RAW); the host's stack gets the frames too (to keep them from it: tc qdisc add dev eth1 clsact; tc filter add dev eth1 ingress matchall action drop)",
    options: &[
        NETNS,
        PortOption::new("queues", "1–256", "1", "sockets of one fanout group", "queues=4"),
        PortOption::new("promisc", SWITCH, "on", "receive frames for any address", "promisc=off"),
        PortOption::new(
            "qdisc",
            "normal|bypass",
            "normal",
            "the way of packets to the driver: by the interface's queue discipline, or past it",
            "qdisc=bypass",
        ),
        PortOption::new(
            "ring",
            "PACKETS, 64–65535",
            "16384, or fewer on a small machine",
            "packets that may wait to be received in each queue",
            "ring=4096",
        ),
        PortOption::new(
            "rcvbuf",
            "BYTES, 64Ki–512Mi",
            "64 MiB, or less on a small machine",
            "bytes of long packets that may wait to be received in each queue",
            "rcvbuf=8M",
        ),
        PortOption::new("sndbuf", "BYTES, 64Ki–512Mi", "4 MiB", "bytes that may wait to be sent", "sndbuf=8M"),
        CSUM,
        TSO,
        USO,
    ],
};

/// Configuration of an AF_PACKET port.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// Name of the interface: 1 to 15 bytes.
    pub interface: String,
    /// Network namespace of the interface: a name of `ip netns`, or a path.
    pub netns: Option<String>,
    /// Queues, 1 to 256.
    pub queues: u16,
    /// Whether to receive frames for any address.
    pub promiscuous: bool,
    /// The path of transmitted packets to the driver.
    pub qdisc: Qdisc,
    /// Packets that may wait to be received in each queue, 64 to 65535; rounded up to a multiple of
    /// 64. By default 16384, or fewer on a machine with little memory, but at least 2048.
    pub ring: Option<u16>,
    /// Bytes of packets longer than 1.9 KB that may wait to be received in each queue, 64 KiB to
    /// 512 MiB. By default 64 MiB, or less on a machine with little memory, but at least 4 MiB.
    pub receive_buffer: Option<i32>,
    /// Bytes of packets that may wait to be transmitted, 64 KiB to 512 MiB.
    pub send_buffer: i32,
    /// Offloads of transmitted packets.
    pub wants: Wants,
}

impl Default for Config {
    /// One queue, whose ring and receive buffer depend on the machine's memory.
    fn default() -> Config {
        Config {
            interface: String::new(),
            netns: None,
            queues: 1,
            promiscuous: true,
            qdisc: Qdisc::Normal,
            ring: None,
            receive_buffer: None,
            send_buffer: 4 << 20,
            wants: Wants::default(),
        }
    }
}

impl Config {
    /// Parses `packet:IF?…`.
    ///
    /// # Errors
    /// [`PortError::Option`] names the option, its value and the rule.
    pub fn from_uri(uri: &Uri) -> Result<Config, PortError> {
        let mut o = uri.options(KIND.options);
        let default = Config::default();
        let qdiscs = [("normal", Qdisc::Normal), ("bypass", Qdisc::Bypass)];
        let config = Config {
            interface: uri.target().to_owned(),
            netns: o.text("netns"),
            queues: o.number("queues", 1..=MAX_QUEUES.into())?.map_or(1, |n| n as u16),
            promiscuous: o.switch("promisc")?.unwrap_or(default.promiscuous),
            qdisc: o.choice("qdisc", &qdiscs)?.unwrap_or(default.qdisc),
            ring: o.number("ring", RING)?.map(|n| n as u16),
            receive_buffer: o.number("rcvbuf", BUFFER)?.map(|n| n as i32),
            send_buffer: o.number("sndbuf", BUFFER)?.map_or(default.send_buffer, |n| n as i32),
            wants: Wants::from_options(&mut o)?,
        };
        o.finish()?;
        config.check()?;
        Ok(config)
    }

    /// The port's name.
    pub(super) fn port(&self) -> String {
        format!("packet:{}", self.interface)
    }

    /// The length of each ring on a machine with `memory` bytes.
    pub(super) fn ring(&self, memory: u64) -> u16 {
        self.ring.unwrap_or_else(|| default_ring(memory, self.queues))
    }

    /// The receive buffer of each socket on a machine with `memory` bytes.
    pub(super) fn receive_buffer(&self, memory: u64) -> i32 {
        self.receive_buffer.unwrap_or_else(|| default_receive_buffer(memory, self.queues))
    }

    /// Checks every field against its rule.
    pub(super) fn check(&self) -> Result<(), PortError> {
        let rule = |ok: bool, option: &str, value: String, rule: &str| {
            let (port, option, rule) = (self.port(), option.to_owned(), rule.to_owned());
            if ok { Ok(()) } else { Err(PortError::Option { port, option, value, rule }) }
        };
        let name = &self.interface;
        rule(valid_name(name), "interface", format!("'{name}'"), "must have 1 to 15 bytes, no slash, colon or blank")?;
        let queues = self.queues;
        rule((1..=MAX_QUEUES).contains(&queues), "queues", queues.to_string(), "must be from 1 to 256")?;
        let ring = self.ring.unwrap_or(2048);
        rule(RING.contains(&ring.into()), "ring", ring.to_string(), "must be from 64 to 65535")?;
        let receive_buffer = self.receive_buffer.unwrap_or(4 << 20);
        for (option, bytes) in [("rcvbuf", receive_buffer), ("sndbuf", self.send_buffer)] {
            let ok = u64::try_from(bytes).is_ok_and(|bytes| BUFFER.contains(&bytes));
            rule(ok, option, bytes.to_string(), "must be from 65536 to 536870912")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Result<Config, PortError> {
        Config::from_uri(&text.parse().unwrap())
    }

    #[test]
    fn every_option_reaches_its_field() {
        let c =
            config("packet:eth0?netns=blue,queues=2,promisc=off,qdisc=bypass,ring=512,rcvbuf=1M,sndbuf=100k,csum=off")
                .unwrap();
        let expected = Config {
            interface: "eth0".to_owned(),
            netns: Some("blue".to_owned()),
            queues: 2,
            promiscuous: false,
            qdisc: Qdisc::Bypass,
            ring: Some(512),
            receive_buffer: Some(1_000_000),
            send_buffer: 100_000,
            wants: Wants { csum: crate::uri::Want::Off, ..Wants::default() },
        };
        assert_eq!(c, expected);
    }

    #[test]
    fn an_invalid_value_is_named_with_its_rule() {
        let cases = [
            ("packet:", "1 to 15 bytes"),
            ("packet:a/b", "slash"),
            ("packet:a?queues=257", "from 1 to 256"),
            ("packet:a?qdisc=no", "normal, bypass"),
            ("packet:a?rings=64", "no such option"),
            ("packet:a?rcvbuf=1", "from 65536"),
            ("packet:a?ring=63", "from 64"),
        ];
        for (text, part) in cases {
            let error = config(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        assert!(open_zero().is_err());
    }

    #[test]
    fn defaults_scale_with_memory_and_queues_within_their_bounds() {
        let of = |gib: u64, queues| {
            let c = Config { queues, ..Config::default() };
            (c.ring(gib << 30), c.receive_buffer(gib << 30) >> 20)
        };
        assert_eq!([of(24, 1), of(2, 1), of(1, 1), of(0, 1)], [(16384, 64), (4096, 8), (2048, 4), (2048, 4)]);
        assert_eq!([of(24, 2), of(24, 64)], [(16384, 48), (2048, 4)]);
        let set = Config { ring: Some(64), receive_buffer: Some(65536), ..Config::default() };
        assert_eq!((set.ring(24 << 30), set.receive_buffer(24 << 30)), (64, 65536));
    }

    fn open_zero() -> Result<(), PortError> {
        Config { interface: "lo".to_owned(), send_buffer: -1, ..Config::default() }.check()
    }
}
