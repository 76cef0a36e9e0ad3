//! The configuration of a device that is made, or attached to.

use crate::error::Error;
use crate::offloads::TunOffloads;
use towpath_gro::LinkKind;
use towpath_sys::netdev::valid_name;

/// The layer of a device's packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// IP packets.
    Tun,
    /// Ethernet frames.
    Tap,
}

impl Kind {
    /// The mode of `ip tuntap`, and the scheme of a port's URI.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Tun => "tun",
            Kind::Tap => "tap",
        }
    }

    /// The header that packets begin with.
    #[must_use]
    pub const fn link(self) -> LinkKind {
        match self {
            Kind::Tun => LinkKind::Ip,
            Kind::Tap => LinkKind::Ethernet,
        }
    }

    /// Largest MTU: 65535, less the Ethernet header that TAP counts in (`tun_net_init` in
    /// `drivers/net/tun.c`).
    #[must_use]
    pub const fn max_mtu(self) -> u32 {
        match self {
            Kind::Tun => 65535,
            Kind::Tap => 65521,
        }
    }
}

/// Smallest MTU of any interface (`ETH_MIN_MTU`).
pub const MIN_MTU: u32 = 68;
/// Queues of one device (`MAX_TAP_QUEUES` in `drivers/net/tun.c`).
pub const MAX_QUEUES: u16 = 256;

/// How a device is made, or attached to.
///
/// ```
/// use towpath_tun::{Config, TunOffloads};
///
/// let config = Config::tun("vpn%d").mtu(1420).queue_len(4000);
/// let without = config.clone().offloads(TunOffloads::NONE);
/// # assert_ne!(config, without);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// IP packets or Ethernet frames.
    pub kind: Kind,
    /// Name of the interface: 1 to 15 bytes. `%d` becomes the first number that is free.
    pub name: String,
    /// Network namespace of the interface: a name of `ip netns`, or a path.
    pub netns: Option<String>,
    /// The device may have several queues. All descriptors of one device must agree.
    pub multi_queue: bool,
    /// The offloads that may be used, as far as the kernel has them. [`TunOffloads::NONE`]: packets
    /// come and go as on a wire, without a virtio-net header. The default is all but those in
    /// tunnels, which need a longer header.
    pub offloads: TunOffloads,
    /// Try what the kernel accepts. Otherwise all permitted kinds are used until one is refused.
    pub probe: bool,
    /// With several queues, a BPF program keeps each flow in one of them.
    pub steering: bool,
    /// MTU, 68 to [`Kind::max_mtu`].
    pub mtu: Option<u32>,
    /// Packets that the kernel queues for each queue (`txqueuelen`) before it drops.
    pub queue_len: Option<u32>,
}

impl Config {
    /// A TUN device: IP packets.
    pub fn tun(name: impl Into<String>) -> Config {
        Config {
            kind: Kind::Tun,
            name: name.into(),
            netns: None,
            multi_queue: false,
            offloads: TunOffloads::ALL.without(TunOffloads::TUNNEL).without(TunOffloads::TUNNEL_CSUM),
            probe: true,
            steering: true,
            mtu: None,
            queue_len: None,
        }
    }

    /// A TAP device: Ethernet frames.
    pub fn tap(name: impl Into<String>) -> Config {
        Config { kind: Kind::Tap, ..Config::tun(name) }
    }

    /// Sets [`netns`](Config::netns).
    #[must_use]
    pub fn netns(self, netns: impl Into<String>) -> Config {
        Config { netns: Some(netns.into()), ..self }
    }

    /// Sets [`multi_queue`](Config::multi_queue).
    #[must_use]
    pub fn multi_queue(self, multi_queue: bool) -> Config {
        Config { multi_queue, ..self }
    }

    /// Sets [`offloads`](Config::offloads).
    #[must_use]
    pub fn offloads(self, offloads: TunOffloads) -> Config {
        Config { offloads, ..self }
    }

    /// Sets [`probe`](Config::probe).
    #[must_use]
    pub fn probe(self, probe: bool) -> Config {
        Config { probe, ..self }
    }

    /// Sets [`steering`](Config::steering).
    #[must_use]
    pub fn steering(self, steering: bool) -> Config {
        Config { steering, ..self }
    }

    /// Sets [`mtu`](Config::mtu).
    #[must_use]
    pub fn mtu(self, mtu: u32) -> Config {
        Config { mtu: Some(mtu), ..self }
    }

    /// Sets [`queue_len`](Config::queue_len).
    #[must_use]
    pub fn queue_len(self, packets: u32) -> Config {
        Config { queue_len: Some(packets), ..self }
    }

    /// Checks every field against its rule.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let pattern_ok = self.name.split_once('%').is_none_or(|(_, rest)| rest == "d");
        if !valid_name(&self.name) || !pattern_ok {
            let rule = "must have 1 to 15 bytes, no slash, colon or blank, and no % but a final %d";
            return Err(Error::Option { option: "name", value: format!("'{}'", self.name), rule });
        }
        check_mtu(self.kind, self.mtu.unwrap_or(MIN_MTU))
    }
}

pub(crate) fn check_mtu(kind: Kind, mtu: u32) -> Result<(), Error> {
    if (MIN_MTU..=kind.max_mtu()).contains(&mtu) {
        return Ok(());
    }
    let rule = match kind {
        Kind::Tun => "must be from 68 to 65535",
        Kind::Tap => "must be from 68 to 65521",
    };
    Err(Error::Option { option: "mtu", value: mtu.to_string(), rule })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_value_is_named_with_its_rule() {
        let cases = [
            (Config::tun(""), "name='' must have 1 to 15 bytes"),
            (Config::tun("a%x"), "final %d"),
            (Config::tun("a/b"), "slash"),
            (Config::tun("a").mtu(67), "mtu=67 must be from 68 to 65535"),
            (Config::tap("a").mtu(65522), "68 to 65521"),
        ];
        for (config, part) in cases {
            let error = config.check().unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        Config::tun("vpn%d").mtu(1420).check().unwrap();
    }
}
