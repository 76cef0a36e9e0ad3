//! Settings and events of a running port, and what it measures itself.

use std::fmt;
use std::time::Instant;

/// The value of a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettingValue {
    /// A number.
    Number(u64),
    /// A word, an address, or a list of them with `+` in between.
    Text(String),
}

impl SettingValue {
    /// The number for the setting `name`.
    ///
    /// # Errors
    /// [`ControlError::Value`] if it is a text.
    pub fn number(&self, name: &str) -> Result<u64, ControlError> {
        match self {
            SettingValue::Number(n) => Ok(*n),
            SettingValue::Text(_) => Err(self.breaks(name, "must be a whole number")),
        }
    }

    /// The error for a value of the setting `name` that breaks a rule.
    pub fn breaks(&self, name: &str, rule: impl Into<String>) -> ControlError {
        ControlError::Value { name: name.to_owned(), value: self.clone(), rule: rule.into() }
    }
}

impl fmt::Display for SettingValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingValue::Number(n) => write!(f, "{n}"),
            SettingValue::Text(text) => f.write_str(text),
        }
    }
}

impl From<u64> for SettingValue {
    fn from(n: u64) -> SettingValue {
        SettingValue::Number(n)
    }
}

impl From<String> for SettingValue {
    fn from(text: String) -> SettingValue {
        SettingValue::Text(text)
    }
}

impl From<&str> for SettingValue {
    fn from(text: &str) -> SettingValue {
        SettingValue::Text(text.to_owned())
    }
}

/// What can be changed while the port runs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Setting {
    /// Its name, as in the port's options.
    pub name: &'static str,
    /// Its value now.
    pub value: SettingValue,
    /// Its meaning and unit.
    pub what: &'static str,
}

impl Setting {
    /// A setting with its value and meaning.
    pub fn new(name: &'static str, value: impl Into<SettingValue>, what: &'static str) -> Setting {
        Setting { name, value: value.into(), what }
    }
}

/// Why a setting was not changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The port has no setting of that name.
    #[error("{name}: no such setting; there are: {known}")]
    Unknown {
        /// The name.
        name: String,
        /// The settings of the port.
        known: String,
    },
    /// The value breaks a rule.
    #[error("{name}={value}: {rule}")]
    Value {
        /// The setting.
        name: String,
        /// The value.
        value: SettingValue,
        /// The rule that it breaks.
        rule: String,
    },
}

impl ControlError {
    /// The error for a setting `name` that is none of `settings`.
    pub fn unknown(name: &str, settings: &[Setting]) -> ControlError {
        let known: Vec<_> = settings.iter().map(|setting| setting.name).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        ControlError::Unknown { name: name.to_owned(), known }
    }
}

/// How a paced source keeps its rate.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[non_exhaustive]
pub struct Pacing {
    /// Packets per second that were asked for.
    pub asked: f64,
    /// Packets per second that were made.
    pub reached: f64,
    /// Packets that were due and are never made, because the source fell too far behind.
    pub given_up: u64,
}

impl Pacing {
    /// A source that was asked for `asked` packets per second, and made `reached`.
    pub const fn new(asked: f64, reached: f64, given_up: u64) -> Pacing {
        Pacing { asked, reached, given_up }
    }
}

/// One-way latencies, in nanoseconds, from the time in a packet to its arrival. Both are read once
/// per burst from `CLOCK_MONOTONIC`: sender and receiver are on the same host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Latency {
    /// Packets with a time.
    pub samples: u64,
    /// The least.
    pub min: u64,
    /// The median.
    pub p50: u64,
    /// The 99th percentile.
    pub p99: u64,
    /// The 99.9th percentile.
    pub p999: u64,
    /// The greatest.
    pub max: u64,
}

/// What a port found in the sequence numbers of packets. Make one from the default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Verified {
    /// Packets with a number, each counted once.
    pub arrived: u64,
    /// Packets with a lower number than the highest of their flow that did not arrive.
    pub lost: u64,
    /// Those among the lost that precede the first arrival of their flow: lost, or sent before the
    /// port listened.
    pub before_first: u64,
    /// Packets that did not arrive after the last arrival of their flow, if the port knows how many
    /// there are: lost, or still on their way.
    pub outstanding: u64,
    /// Packets that arrived after a later one of their flow: reordered, as
    /// [RFC 4737](https://www.rfc-editor.org/rfc/rfc4737#section-3) defines it.
    pub late: u64,
    /// The most later packets of its flow that arrived before a late one: the greatest extent of
    /// reordering (RFC 4737 section 4.2), in which other late packets are not counted.
    pub late_extent: u64,
    /// Packets that arrived again.
    pub twice: u64,
    /// Packets so far behind that the port can't tell late from twice; they count as lost.
    pub too_old: u64,
    /// Packets without a number, or of a flow that is not tracked.
    pub foreign: u64,
    /// Packets of another trial than the one that is checked.
    pub other_trial: u64,
    /// Latencies, if packets have a time.
    pub latency: Option<Latency>,
}

/// What the applications of a user have of a resource that a port bounds.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// The user; `None` for all users together.
    pub user: Option<u32>,
    /// The resource: `sessions`, `rules`, or bytes of `memory` and `metadata`.
    pub resource: &'static str,
    /// The amount now.
    pub now: u64,
    /// The most that it was at a time.
    pub peak: u64,
    /// The most that it may be.
    pub limit: u64,
}

impl Usage {
    /// An amount, with its peak and its limit.
    pub fn new(user: Option<u32>, resource: &'static str, now: u64, peak: u64, limit: u64) -> Usage {
        Usage { user, resource, now, peak, limit }
    }
}

/// A handle to a port's settings and events. It works from any thread and may outlive the port.
pub trait PortControl: Send + Sync {
    /// The settings; by default the port has none.
    fn settings(&self) -> Vec<Setting> {
        Vec::new()
    }

    /// Events since the port was started, above all faults that were survived: names and numbers,
    /// in a fixed order.
    fn events(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// How the port keeps its rate until `until`, if it makes packets at one.
    fn pacing(&self, until: Instant) -> Option<Pacing> {
        let _ = until;
        None
    }

    /// What the port found in sequence numbers, if it checks them.
    fn verified(&self) -> Option<Verified> {
        None
    }

    /// The registers of the port's device, for a report: names and values, in a fixed order.
    /// Reading them changes nothing that the port relies on. Empty unless the port runs a device.
    fn registers(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// The sessions of the port's users since it was started, one printable line each. Old lines
    /// may be dropped.
    fn session_log(&self) -> Vec<String> {
        Vec::new()
    }

    /// What users have of the resources that the port bounds: first all together, then each user.
    fn usage(&self) -> Vec<Usage> {
        Vec::new()
    }

    /// Changes a setting until the next change.
    ///
    /// # Errors
    /// [`ControlError`]; nothing has changed then.
    fn set(&self, name: &str, value: &SettingValue) -> Result<(), ControlError> {
        let _ = value;
        Err(ControlError::unknown(name, &self.settings()))
    }
}
