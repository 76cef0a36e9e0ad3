//! The configuration of a port.

use crate::common::copybreak::Copybreak;
use crate::common::filter::{Filter, Receive};
pub use crate::common::option::ConfigError;
use crate::common::option::within;
use std::time::Duration;
use towpath_bus::DmaPolicy;
use towpath_wire::{Toeplitz, ethernet};

/// Bytes of the tags that a frame may have on top of the MTU.
const TAGS: usize = 8;

/// Configuration of a port: [`Config::default`], with fields changed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// Queues at most, in each direction: 1 to 128. A device with fewer limits them.
    pub queues: u16,
    /// Descriptors of a ring: 16 to 4096, a power of two. A device with smaller rings limits them.
    pub ring: u16,
    /// Packed virtqueues, which the device must offer.
    pub packed: bool,
    /// A received packet may be spread over several buffers, if the device can do so. Without it
    /// a whole frame must fit into one.
    pub mergeable: bool,
    /// Chains of several buffers take one descriptor, if the device can do so.
    pub indirect: bool,
    /// The device and the driver name the position of the next notification, if the device can do
    /// so.
    pub event_idx: bool,
    /// The device uses buffers in order, if it can do so.
    pub in_order: bool,
    /// Checksums may be left to the other side, in both directions, if the device can do so.
    pub csum: bool,
    /// TCP super-packets, in both directions, if the device can do so.
    pub tso: bool,
    /// UDP super-packets, in both directions, if the device can do so.
    pub uso: bool,
    /// The device hashes the flow of each packet, if it can do so. It spreads flows over the
    /// receive queues (RSS), and reports the hash with the packet.
    pub rss: bool,
    /// The key of that hash. With the default, both directions of a flow have the same hash.
    pub rss_key: [u8; 40],
    /// Longest packet in bytes, without Ethernet header and tags: 68 to 9216. A device that names
    /// an MTU limits it.
    pub mtu: u16,
    /// The port's address, and which frames are received, if the device has a control queue.
    pub filter: Filter,
    /// How packet memory is protected from the device.
    pub policy: DmaPolicy,
    /// Received frames that are copied. The default is [`Copybreak::default_for`] the policy if it
    /// maps each buffer; otherwise nothing is copied.
    pub copybreak: Option<Copybreak>,
    /// Whether an idle receiver waits for the device's call; otherwise it polls.
    pub interrupts: bool,
    /// How long a frame may wait to be sent before a PCI device counts as hung: 10 ms to 60 s.
    pub stall: Duration,
}

impl Default for Config {
    /// One pair of split queues of 256 descriptors, and everything that the device offers.
    fn default() -> Config {
        Config {
            queues: 1,
            ring: 256,
            packed: false,
            mergeable: true,
            indirect: true,
            event_idx: true,
            in_order: true,
            csum: true,
            tso: true,
            uso: true,
            rss: true,
            rss_key: Toeplitz::SYMMETRIC_KEY,
            mtu: 1500,
            filter: Filter::default(),
            policy: DmaPolicy::default(),
            copybreak: None,
            interrupts: true,
            stall: Duration::from_secs(5),
        }
    }
}

impl Config {
    /// Checks the rules that the types do not.
    ///
    /// # Errors
    /// [`ConfigError`] names the option, its value and the rule.
    pub fn check(&self) -> Result<(), ConfigError> {
        within("queues", self.queues.into(), 1..=128)?;
        within("ring", self.ring.into(), 16..=4096)?;
        if !self.ring.is_power_of_two() {
            let (value, rule) = (self.ring.to_string(), "must be a power of two".to_owned());
            return Err(ConfigError { option: "ring", value, rule });
        }
        within("mtu", self.mtu.into(), 68..=9216)?;
        within("stall", self.stall.as_millis().try_into().unwrap_or(u64::MAX), 10..=60_000)?;
        self.filter.check()
    }

    /// Longest frame in bytes, tags included, check sequence not.
    pub(super) fn max_frame(&self) -> usize {
        usize::from(self.mtu) + ethernet::HEADER_LEN + TAGS
    }

    /// The threshold of copies at the start.
    pub(super) fn copybreak(&self) -> Copybreak {
        self.copybreak.unwrap_or(match self.policy {
            DmaPolicy::Persistent => Copybreak::OFF,
            per_buffer => Copybreak::default_for(per_buffer),
        })
    }

    /// Whether a device without a control queue can do what the filter asks for: it delivers
    /// everything, from and to any address.
    pub(super) fn needs_control_queue(&self) -> bool {
        self.filter.receive != Receive::All || self.filter.vlans.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_breaks_a_rule_is_named_with_its_value_and_the_rule() {
        let bad = |c: Config| c.check().unwrap_err().to_string();
        assert_eq!(bad(Config { queues: 0, ..Config::default() }), "queues=0: must be from 1 to 128");
        assert_eq!(bad(Config { ring: 300, ..Config::default() }), "ring=300: must be a power of two");
        assert_eq!(bad(Config { mtu: 67, ..Config::default() }), "mtu=67: must be from 68 to 9216");
        assert_eq!(Config::default().check(), Ok(()));
    }
}
