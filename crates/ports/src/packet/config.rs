//! Configuration of an AF_PACKET port.

use crate::kernel::ability::Wants;
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
    /// Packets that may wait to be received, 64 to 65535; rounded up to a multiple of 64.
    pub ring: u16,
    /// Bytes of packets longer than 1.9 KB that may wait to be received, 64 KiB to 512 MiB.
    pub receive_buffer: i32,
    /// Bytes of packets that may wait to be transmitted, 64 KiB to 512 MiB.
    pub send_buffer: i32,
    /// Offloads of transmitted packets.
    pub wants: Wants,
}

impl Default for Config {
    /// A ring for 2 ms at a million packets/s, and buffers for 60 super-packets.
    fn default() -> Config {
        Config {
            interface: String::new(),
            netns: None,
            queues: 1,
            promiscuous: true,
            qdisc: Qdisc::Normal,
            ring: 2048,
            receive_buffer: 4 << 20,
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
        let mut o = uri.options();
        let default = Config::default();
        let qdiscs = [("normal", Qdisc::Normal), ("bypass", Qdisc::Bypass)];
        let config = Config {
            interface: uri.target().to_owned(),
            netns: o.text("netns"),
            queues: o.number("queues", 1..=MAX_QUEUES.into())?.map_or(1, |n| n as u16),
            promiscuous: o.switch("promisc")?.unwrap_or(default.promiscuous),
            qdisc: o.choice("qdisc", &qdiscs)?.unwrap_or(default.qdisc),
            ring: o.number("ring", RING)?.map_or(default.ring, |n| n as u16),
            receive_buffer: o.number("rcvbuf", BUFFER)?.map_or(default.receive_buffer, |n| n as i32),
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
        let ring = self.ring;
        rule(RING.contains(&ring.into()), "ring", ring.to_string(), "must be from 64 to 65535")?;
        for (option, bytes) in [("rcvbuf", self.receive_buffer), ("sndbuf", self.send_buffer)] {
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
            ring: 512,
            receive_buffer: 1_000_000,
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

    fn open_zero() -> Result<(), PortError> {
        Config { interface: "lo".to_owned(), send_buffer: -1, ..Config::default() }.check()
    }
}
