//! Configuration of a TUN/TAP port.

use crate::kernel::ability::Wants;
use crate::kind::{CSUM, Kind as PortKind, NETNS, PortOption, SWITCH, TSO, USO, WANT};
use crate::uri::{Options, Uri, Want};
use std::net::IpAddr;
use towpath_packet::port::PortError;
use towpath_sys::netdev::valid_name;
pub use towpath_tun::Kind;
use towpath_tun::{MAX_QUEUES, MIN_MTU};
use towpath_wire::ethernet::{Mac, MacText, parse_mac};

/// Largest `txqueuelen`: each queue has a ring of as many pointers.
const MAX_QUEUE_LEN: u32 = 1 << 16;

/// The name of the option, and of the ability.
pub const VHOST: &str = "vhost";

/// What a TAP port is, and its options.
pub const TAP: PortKind = PortKind {
    name: "tap",
    example: "tap:tp0",
    what: "an interface of the kernel with Ethernet frames (made if it does not exist; needs CAP_NET_ADMIN)",
    options: &[
        NETNS,
        PortOption::new("queues", "1–256", "1", "queues of the interface", "queues=4"),
        PortOption::new(
            "multiqueue",
            SWITCH,
            "if there are several queues",
            "attach as a device of several queues",
            "multiqueue=on",
        ),
        PortOption::new(
            "mtu",
            "BYTES, 68–65521 (tun: 65535)",
            "unchanged",
            "MTU that the interface is given",
            "mtu=9000",
        ),
        PortOption::new(
            "addr",
            "ADDRESS/PREFIX, several with +",
            "none",
            "addresses that the interface is given",
            "addr=10.0.0.1/24+fd00::1/64",
        ),
        PortOption::new(
            "up",
            SWITCH,
            "on",
            "set the interface up at the start; off needs no CAP_NET_ADMIN for an interface that is up",
            "up=off",
        ),
        PortOption::new("persist", SWITCH, "unchanged", "the interface stays when the process ends", "persist=on"),
        PortOption::new(
            "txqueuelen",
            "PACKETS, 1–65536",
            "16384, or fewer on a small machine",
            "packets that the kernel queues for each queue",
            "txqueuelen=4096",
        ),
        PortOption::new("steering", WANT, "prefer", "a program keeps each flow in one queue", "steering=require"),
        CSUM,
        TSO,
        USO,
        // The last two: a TUN port does not have them.
        PortOption::new(
            VHOST,
            WANT,
            "off",
            "the kernel moves the packets by vhost-net, without a system call for each; its MTU is at most 9216",
            "vhost=require",
        ),
        PortOption::new(
            "mac",
            "MAC",
            "the kernel's",
            "hardware address that the interface is given",
            "mac=02:00:00:00:00:01",
        ),
    ],
};

/// What a TUN port is, and its options.
pub const TUN: PortKind = PortKind {
    name: "tun",
    example: "tun:tn0",
    what: "an interface of the kernel with IP packets",
    options: match TAP.options.split_last_chunk::<2>() {
        Some((options, _)) => options,
        None => &[],
    },
};

/// Configuration of a TUN/TAP port.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// Ethernet frames or IP packets.
    pub kind: Kind,
    /// Name of the interface: 1 to 15 bytes. `%d` becomes the first number that is free.
    pub name: String,
    /// Network namespace of the interface: a name of `ip netns`, or a path.
    pub netns: Option<String>,
    /// Queues, 1 to 256.
    pub queues: u16,
    /// Attach as a multi-queue device; by default if `queues` > 1.
    pub multi_queue: Option<bool>,
    /// MTU, 68 to [`Kind::max_mtu`].
    pub mtu: Option<u32>,
    /// Addresses to give to the interface, with the lengths of their prefixes. Of several IPv4
    /// addresses the last one stays.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Hardware address (TAP only).
    pub mac: Option<[u8; 6]>,
    /// Whether to set the interface up at the start.
    pub up: bool,
    /// The interface stays when the process ends; unchanged by default.
    pub persist: Option<bool>,
    /// Packets that the kernel queues for each queue, 1 to 65536. By default 16384, or what a
    /// sixteenth of the memory holds as super-packets, but at least 1000.
    pub queue_len: Option<u32>,
    /// Whether a program keeps each flow in one queue.
    pub steering: Want,
    /// Offloads.
    pub wants: Wants,
    /// Whether vhost-net moves the packets (TAP only). [`open`](super::open) does not do that: the
    /// port has to be left to it, as `towpath`'s `Opener` does.
    pub vhost: Want,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            kind: Kind::Tap,
            name: "tp%d".to_owned(),
            netns: None,
            queues: 1,
            multi_queue: None,
            mtu: None,
            addresses: Vec::new(),
            mac: None,
            up: true,
            persist: None,
            queue_len: None,
            steering: Want::default(),
            wants: Wants::default(),
            vhost: Want::Off,
        }
    }
}

impl Config {
    /// Parses `tap:NAME?…` or `tun:NAME?…`.
    ///
    /// # Errors
    /// [`PortError::Option`] names the option, its value and the rule.
    pub fn from_uri(uri: &Uri) -> Result<Config, PortError> {
        let kind = match uri.scheme() {
            "tap" => Kind::Tap,
            "tun" => Kind::Tun,
            other => return Err(uri.error(format!("'{other}' is neither tap nor tun"))),
        };
        let mut o = uri.options(if kind == Kind::Tap { TAP.options } else { TUN.options });
        let config = Config {
            kind,
            name: uri.target().to_owned(),
            netns: o.text("netns"),
            queues: o.number("queues", 1..=MAX_QUEUES.into())?.map_or(1, |n| n as u16),
            multi_queue: o.switch("multiqueue")?,
            mtu: o.number("mtu", MIN_MTU.into()..=kind.max_mtu().into())?.map(|n| n as u32),
            addresses: addresses(&mut o)?,
            mac: if kind == Kind::Tap { mac(&mut o)? } else { None },
            up: o.switch("up")?.unwrap_or(true),
            persist: o.switch("persist")?,
            queue_len: o.number("txqueuelen", 1..=MAX_QUEUE_LEN.into())?.map(|n| n as u32),
            steering: o.want("steering")?.unwrap_or_default(),
            wants: Wants::from_options(&mut o)?,
            vhost: if kind == Kind::Tap { o.want(VHOST)?.unwrap_or(Want::Off) } else { Want::Off },
        };
        o.finish()?;
        config.check()?;
        Ok(config)
    }

    /// The port's name before its interface has one.
    pub(super) fn port(&self) -> String {
        format!("{}:{}", self.kind.name(), self.name)
    }

    /// Whether the queues are attached as those of a multi-queue device.
    pub(super) fn is_multi_queue(&self) -> bool {
        self.multi_queue.unwrap_or(self.queues > 1)
    }

    /// Checks every field against its rule.
    pub(super) fn check(&self) -> Result<(), PortError> {
        let rule = |ok: bool, option: &str, value: String, rule: &str| {
            let (port, option, rule) = (self.port(), option.to_owned(), rule.to_owned());
            if ok { Ok(()) } else { Err(PortError::Option { port, option, value, rule }) }
        };
        let pattern_ok = match self.name.split_once('%') {
            None => true,
            Some((_, rest)) => rest == "d",
        };
        rule(
            valid_name(&self.name) && pattern_ok,
            "name",
            format!("'{}'", self.name),
            "must have 1 to 15 bytes, no slash, colon or blank, and no % but a final %d",
        )?;
        let (queues, max) = (self.queues, self.kind.max_mtu());
        rule((1..=MAX_QUEUES).contains(&queues), "queues", queues.to_string(), "must be from 1 to 256")?;
        let single = self.multi_queue == Some(false) && queues > 1;
        rule(!single, "multiqueue", "off".to_owned(), "must be on for more than one queue")?;
        let mtu = self.mtu.unwrap_or(MIN_MTU);
        rule((MIN_MTU..=max).contains(&mtu), "mtu", mtu.to_string(), &format!("must be from {MIN_MTU} to {max}"))?;
        let len = self.queue_len.unwrap_or(1);
        rule((1..=MAX_QUEUE_LEN).contains(&len), "txqueuelen", len.to_string(), "must be from 1 to 65536")?;
        if let Some(mac) = self.mac {
            rule(self.kind == Kind::Tap, "mac", MacText(mac).to_string(), "only a tap has a hardware address")?;
            let unicast = mac[0] & 1 == 0 && mac != [0; 6];
            rule(unicast, "mac", MacText(mac).to_string(), "must be a unicast address")?;
        }
        for &(address, prefix) in &self.addresses {
            let bits = if address.is_ipv4() { 32 } else { 128 };
            rule(prefix <= bits, "addr", format!("{address}/{prefix}"), "the prefix is longer than the address")?;
        }
        Ok(())
    }
}

fn mac(o: &mut Options) -> Result<Option<Mac>, PortError> {
    let Some(text) = o.text("mac") else { return Ok(None) };
    match parse_mac(&text) {
        None => Err(o.error("mac", text, "must be six bytes such as 02:00:00:00:00:01")),
        mac => Ok(mac),
    }
}

fn addresses(o: &mut Options) -> Result<Vec<(IpAddr, u8)>, PortError> {
    let Some(text) = o.text("addr") else { return Ok(Vec::new()) };
    let one = |text: &str| {
        let (address, prefix) = text.split_once('/')?;
        Some((address.parse().ok()?, prefix.parse().ok()?))
    };
    let all: Option<Vec<_>> = text.split('+').map(one).collect();
    all.ok_or_else(|| o.error("addr", text, "must be addresses with their prefix, such as 10.0.0.1/24+fd00::1/64"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Result<Config, PortError> {
        Config::from_uri(&text.parse().unwrap())
    }

    #[test]
    fn every_option_reaches_its_field() {
        let c = config(
            "tap:tp0?netns=blue,queues=4,mtu=9000,addr=10.0.0.1/24+fd00::1/64,mac=02:00:00:00:00:0a,up=off,persist=on,\
             txqueuelen=2000,steering=require,uso=require,tso=off,vhost=prefer",
        )
        .unwrap();
        let expected = Config {
            name: "tp0".to_owned(),
            netns: Some("blue".to_owned()),
            queues: 4,
            mtu: Some(9000),
            addresses: vec![("10.0.0.1".parse().unwrap(), 24), ("fd00::1".parse().unwrap(), 64)],
            mac: Some([2, 0, 0, 0, 0, 10]),
            up: false,
            persist: Some(true),
            queue_len: Some(2000),
            steering: Want::Require,
            wants: Wants { tso: Want::Off, uso: Want::Require, ..Wants::default() },
            vhost: Want::Prefer,
            ..Config::default()
        };
        assert_eq!(c, expected);
        assert!(c.is_multi_queue() && !config("tun:t%d").unwrap().is_multi_queue());
    }

    #[test]
    fn an_invalid_value_is_named_with_its_rule() {
        let cases = [
            ("tap:", "1 to 15 bytes"),
            ("tap:a-name-that-is-too-long", "1 to 15 bytes"),
            ("tap:a/b", "slash"),
            ("tap:a%x", "final %d"),
            ("tap:a?mtu=65522", "from 68 to 65521"),
            ("tun:a?mtu=67", "from 68 to 65535"),
            ("tap:a?queues=0", "from 1 to 256"),
            ("tap:a?queues=2,multiqueue=off", "more than one queue"),
            ("tun:a?mac=02:00:00:00:00:01", "no such option"),
            ("tun:a?vhost=on", "no such option"),
            ("tap:a?vhost=yes", "require, prefer or off"),
            ("tap:a?mac=01:00:00:00:00:01", "unicast"),
            ("tap:a?mac=2:0:0:0:0:1", "six bytes"),
            ("tap:a?addr=10.0.0.1", "with their prefix"),
            ("tap:a?addr=10.0.0.1/33", "longer than the address"),
            ("tap:a?qeues=2", "no such option"),
        ];
        for (text, part) in cases {
            let error = config(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
