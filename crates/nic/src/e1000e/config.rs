//! The configuration of a port.

use crate::common::batching::BatchSize;
use crate::common::copybreak::Copybreak;
use crate::common::filter::Filter;
pub use crate::common::option::ConfigError;
use crate::common::option::within;
use crate::common::phy::FlowControl;
use std::ops::RangeInclusive;
use std::time::Duration;
use towpath_bus::{DmaPolicy, IrqKind};
use towpath_wire::{Toeplitz, ethernet};

/// The longest frame with the largest [`Config::mtu`], without check sequence (9234 bytes with it).
pub(super) const MAX_FRAME: usize = 9230;
pub(super) const MS: Duration = Duration::from_millis(1);
/// Bytes of the tags that a frame may have on top of the MTU.
pub(super) const TAGS: usize = 8;

const RING: RangeInclusive<u64> = 80..=4096;
const MTU: RangeInclusive<u64> = 68..=9216;
/// Frames that are copied for transmission are shorter than this at most: a slot of bounce memory.
pub(super) const TX_SLOT: usize = 2048;
const TX_COPYBREAK: RangeInclusive<u64> = 0..=TX_SLOT as u64;
const RS: RangeInclusive<u64> = 1..=64;
const STALL_MS: RangeInclusive<u64> = 10..=60_000;
/// One tail write for a worker's batch.
const BURST: BatchSize = match BatchSize::new(64) {
    Some(size) => size,
    None => BatchSize::MAX,
};

/// Checks an MTU in bytes.
pub(super) fn check_mtu(bytes: u64) -> Result<u16, ConfigError> {
    within("mtu", bytes, MTU)?;
    Ok(bytes as u16)
}

/// Descriptors in a ring: 80 to 4096, a multiple of 8 (a ring is whole units of 128 bytes,
/// §10.2.5.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingSize(u16);

impl RingSize {
    /// Checks a number of descriptors; `option` is the name in the error.
    ///
    /// # Errors
    /// [`ConfigError`] names the rule.
    pub fn new(option: &'static str, descriptors: u64) -> Result<RingSize, ConfigError> {
        within(option, descriptors, RING)?;
        if !descriptors.is_multiple_of(8) {
            let (value, rule) = (descriptors.to_string(), "must be a multiple of 8".to_owned());
            return Err(ConfigError { option, value, rule });
        }
        Ok(RingSize(descriptors as u16))
    }

    /// Number of descriptors.
    pub fn get(self) -> u32 {
        self.0.into()
    }
}

/// Frames shorter than this many bytes are copied for transmission, into memory that stays mapped:
/// 0 (never) to 2048.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TxCopybreak(u16);

impl TxCopybreak {
    /// Nothing is copied.
    pub const OFF: TxCopybreak = TxCopybreak(0);

    /// Checks a threshold in bytes.
    ///
    /// # Errors
    /// [`ConfigError`] names the rule.
    pub fn new(bytes: u64) -> Result<TxCopybreak, ConfigError> {
        within("tx-copybreak", bytes, TX_COPYBREAK)?;
        Ok(TxCopybreak(bytes as u16))
    }

    /// Bytes.
    pub fn get(self) -> u32 {
        self.0.into()
    }

    /// The best threshold for a policy, by `towpath bench copybreak --tx` (`docs/perf/e1000e.md`).
    /// A copy saves nothing if no buffer is mapped alone; otherwise it saves a mapping.
    pub fn default_for(policy: DmaPolicy) -> TxCopybreak {
        match policy {
            DmaPolicy::Persistent => TxCopybreak::OFF,
            DmaPolicy::PerBuffer { .. } => TxCopybreak(2048),
        }
    }
}

/// What happens to a receive buffer whose bytes were copied out, or whose frame was damaged.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RecycleMode {
    /// The buffer stays mapped and goes back to the device.
    #[default]
    KeepMapped,
    /// Every completed buffer is unmapped first, and mapped again when it goes back to the device,
    /// as drivers did before; without effect if buffers are mapped persistently. For comparison
    /// only.
    UnmapFirst,
}

/// The pauses between the steps of a reset.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pauses {
    /// All pauses that silicon needs.
    #[default]
    Silicon,
    /// None: for models, in tests with thousands of resets.
    None,
}

impl Pauses {
    /// A pause that silicon needs.
    pub(super) fn wait(self, time: Duration) {
        if self == Pauses::Silicon {
            std::thread::sleep(time);
        }
    }
}

/// How an idle receiver learns of frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum InterruptMode {
    /// It polls from time to time.
    #[default]
    Off,
    /// It waits for the best kind of interrupts that the function offers.
    Auto,
    /// It waits for interrupts of this kind.
    Only(IrqKind),
}

/// Configuration of a port: [`Config::default`], with fields changed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// Descriptors for reception, of each queue.
    pub rx_ring: RingSize,
    /// Descriptors for transmission, of each queue.
    pub tx_ring: RingSize,
    /// Queues at most, in each direction: 1 or 2 (82583V: 1). The chip has one offload context for
    /// both transmit queues, so that with two of them each frame with offloads costs a descriptor
    /// more, and stalls the chip's reads.
    pub queues: u16,
    /// Longest packet in bytes, without Ethernet header and tags: 68 to 9216. It can be changed
    /// while the port runs. From 1497 to 1500, frames of that length with two tags are received
    /// only into buffers with room for 2048 bytes behind their headroom (`PoolConfig::chunk`); from
    /// 1501 on, into all.
    pub mtu: u16,
    /// How packet memory is protected from the device.
    pub policy: DmaPolicy,
    /// Received frames that are copied; the default is [`Copybreak::default_for`] the policy.
    pub copybreak: Option<Copybreak>,
    /// Frames that are copied for transmission; the default is [`TxCopybreak::default_for`] the
    /// policy. A port that is opened with [`TxCopybreak::OFF`] and [`DmaPolicy::Persistent`] has no
    /// memory for copies, and keeps to that.
    pub tx_copybreak: Option<TxCopybreak>,
    /// The port's address, and which frames are received. It can be changed while the port runs.
    pub filter: Filter,
    /// Frames, or receive buffers, that one tail write announces, at most. It can be changed while
    /// the port runs.
    pub batch: BatchSize,
    /// Frames for which the device writes back one status (RS), in addition to the last of a burst:
    /// 1 to 64.
    pub report_every: u16,
    /// How an idle receiver learns of frames.
    pub interrupts: InterruptMode,
    /// Whether the device checks and completes TCP and UDP checksums.
    pub csum: bool,
    /// Whether the device segments TCP super-packets.
    pub tso: bool,
    /// Whether the device strips and inserts VLAN tags.
    pub vlan: bool,
    /// The pause frames that the port offers to its partner.
    pub flow_control: FlowControl,
    /// Key of the receive hash. With the default, both directions of a flow have the same hash.
    pub rss_key: [u8; 40],
    /// How long a frame may wait to be sent before the device counts as hung: 10 ms to 60 s.
    pub stall: Duration,
    #[doc(hidden)]
    pub recycle: RecycleMode,
    /// Whether each received buffer has an IOTLB flush of its own, not one for the burst. For
    /// comparison only.
    #[doc(hidden)]
    pub wait_each: bool,
    #[doc(hidden)]
    pub pauses: Pauses,
}

impl Default for Config {
    /// One queue of 512 descriptors in each direction, and all offloads.
    fn default() -> Config {
        Config {
            rx_ring: RingSize(512),
            tx_ring: RingSize(512),
            queues: 1,
            mtu: 1500,
            policy: DmaPolicy::default(),
            copybreak: None,
            tx_copybreak: None,
            filter: Filter::default(),
            batch: BURST,
            report_every: 32,
            interrupts: InterruptMode::Off,
            csum: true,
            tso: true,
            vlan: true,
            flow_control: FlowControl::default(),
            rss_key: Toeplitz::SYMMETRIC_KEY,
            stall: Duration::from_secs(1),
            recycle: RecycleMode::default(),
            wait_each: false,
            pauses: Pauses::default(),
        }
    }
}

impl Config {
    /// Checks the rules that the types do not.
    ///
    /// # Errors
    /// [`ConfigError`] names the option, its value and the rule.
    pub fn check(&self) -> Result<(), ConfigError> {
        within("queues", self.queues.into(), 1..=2)?;
        check_mtu(self.mtu.into())?;
        self.filter.check()?;
        within("rs", self.report_every.into(), RS)?;
        within("stall", self.stall.as_millis().try_into().unwrap_or(u64::MAX), STALL_MS)
    }

    /// The threshold for transmission at the start.
    pub(super) fn tx_copybreak(&self) -> TxCopybreak {
        self.tx_copybreak.unwrap_or(TxCopybreak::default_for(self.policy))
    }

    /// Whether a transmit queue has bounce memory.
    pub(super) fn has_bounce(&self) -> bool {
        self.policy != DmaPolicy::Persistent || self.tx_copybreak() != TxCopybreak::OFF
    }

    /// Longest frame in bytes, tags included, check sequence not.
    pub(super) fn max_frame(&self) -> usize {
        (usize::from(self.mtu) + ethernet::HEADER_LEN + TAGS).min(MAX_FRAME)
    }

    /// Whether frames are longer than ordinary Ethernet frames.
    pub(super) fn is_jumbo(&self) -> bool {
        self.mtu > 1500
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_breaks_a_rule_is_named_with_its_value_and_the_rule() {
        let text = |e: ConfigError| e.to_string();
        assert_eq!(text(RingSize::new("rx", 79).unwrap_err()), "rx=79: must be from 80 to 4096");
        assert_eq!(text(RingSize::new("tx", 84).unwrap_err()), "tx=84: must be a multiple of 8");
        assert_eq!(text(TxCopybreak::new(2049).unwrap_err()), "tx-copybreak=2049: must be from 0 to 2048");
        let bad = |c: Config| text(c.check().unwrap_err());
        assert_eq!(bad(Config { queues: 3, ..Config::default() }), "queues=3: must be from 1 to 2");
        assert_eq!(bad(Config { mtu: 9217, ..Config::default() }), "mtu=9217: must be from 68 to 9216");
        assert_eq!(bad(Config { report_every: 0, ..Config::default() }), "rs=0: must be from 1 to 64");
        assert!(bad(Config { stall: Duration::ZERO, ..Config::default() }).starts_with("stall=0"));
        assert_eq!(Config::default().check(), Ok(()));
    }

    #[test]
    fn the_largest_mtu_gives_the_longest_frame_of_the_device() {
        assert_eq!(Config { mtu: 9216, ..Config::default() }.max_frame(), 9230);
        assert_eq!(Config::default().max_frame(), 1522);
    }
}
