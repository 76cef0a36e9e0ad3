//! Configuration of the faults.

use crate::kind::{Kind, PortOption};
use crate::uri::{Options, Uri, parse_number};
use std::time::Duration;
use towpath_packet::port::PortError;

/// What the port is, and its options.
pub const KIND: Kind = Kind {
    name: "fault",
    example: "fault:drop=1%@tap:tp0",
    what: "another port, with seeded faults",
    options: &[
        PortOption::new("on", "rx|tx|both", "both", "directions with faults", "on=tx"),
        PortOption::new("seed", "NUMBER", "1", "the same seed gives the same faults", "seed=7"),
        PortOption::new("drop", "PROBABILITY: 0.01 or 1%", "0", "per packet: it is dropped", "drop=1%"),
        PortOption::new("duplicate", "PROBABILITY: 0.01 or 1%", "0", "per packet: it is sent twice", "duplicate=1%"),
        PortOption::new(
            "reorder",
            "PROBABILITY: 0.01 or 1%",
            "0",
            "per packet: it is moved behind up to eight others",
            "reorder=2%",
        ),
        PortOption::new("corrupt", "PROBABILITY: 0.01 or 1%", "0", "per packet: one bit is inverted", "corrupt=0.1%"),
        PortOption::new("stall", "PROBABILITY: 0.01 or 1%", "0", "per call: nothing moves for an episode", "stall=1%"),
        PortOption::new("flap", "PROBABILITY: 0.01 or 1%", "0", "per call: the link is down for an episode", "flap=1%"),
        PortOption::new("episode", "CALLS, 1–1M", "32", "calls of a stall, or without a link", "episode=64"),
        PortOption::new("delay", "TIME", "0", "per packet: it waits as long", "delay=50ms"),
        PortOption::new("jitter", "TIME", "0", "per packet: its delay varies by as much", "delay=50ms,jitter=5ms"),
        PortOption::new(
            "distribution",
            "uniform|normal",
            "uniform",
            "of the jitter, which is the bound or the standard deviation",
            "delay=50ms,jitter=5ms,distribution=normal",
        ),
        PortOption::new(
            "order",
            "keep|free",
            "keep",
            "whether a packet with a longer delay holds those behind it, or is overtaken",
            "delay=50ms,jitter=5ms,order=free",
        ),
        PortOption::new("rate", "BITS per second", "no limit", "a token bucket: bits of packets", "rate=10mbit"),
        PortOption::new(
            "burst",
            "BYTES",
            "5 ms of the rate, at least 1600",
            "what leaves at once after a pause",
            "rate=10mbit,burst=16k",
        ),
        PortOption::new(
            "limit",
            "PACKETS, 1–1M",
            "1000",
            "most that wait for their delay or the rate; further ones are dropped",
            "rate=10mbit,limit=100",
        ),
        PortOption::new("vanish", "PACKETS", "never", "packets after which the port is gone", "vanish=1k"),
    ],
};

/// Delay and rate of packets, each queue of a direction for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shape {
    /// How long each packet waits.
    pub delay: Duration,
    /// How much that varies.
    pub jitter: Duration,
    /// The distribution of the jitter.
    pub distribution: Distribution,
    /// A packet does not leave before the one in front of it.
    pub keep_order: bool,
    /// Bits per second.
    pub rate: Option<u64>,
    /// Bytes that leave at once after a pause.
    pub burst: u64,
    /// Most packets that wait.
    pub limit: u32,
}

impl Default for Shape {
    /// No delay and no limit.
    fn default() -> Shape {
        Shape {
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            distribution: Distribution::Uniform,
            keep_order: true,
            rate: None,
            burst: MIN_BURST,
            limit: 1000,
        }
    }
}

impl Shape {
    /// Whether packets wait at all.
    pub(super) fn is_on(&self) -> bool {
        !self.delay.is_zero() || !self.jitter.is_zero() || self.rate.is_some()
    }
}

/// The distribution of a jitter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Distribution {
    /// Any value within the jitter is as likely.
    Uniform,
    /// The jitter is the standard deviation.
    Normal,
}

/// Least burst: a packet of an Ethernet of usual MTU.
const MIN_BURST: u64 = 1600;

/// The directions with faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultDirection {
    /// Receive.
    Rx,
    /// Transmit.
    Tx,
    /// Both.
    Both,
}

/// The faults and their probabilities, from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// The directions with faults.
    pub direction: FaultDirection,
    /// The same seed gives the same faults at the same packets and calls.
    pub seed: u64,
    /// Per packet: it is dropped.
    pub drop: f64,
    /// Per packet: it is duplicated.
    pub duplicate: f64,
    /// Per packet: it is moved behind up to eight others.
    pub reorder: f64,
    /// Per packet: one bit of its linear part is inverted.
    pub corrupt: f64,
    /// Per call: for an [`episode`](Config::episode) of calls no packet is sent or received.
    pub stall: f64,
    /// Per call: for an episode the link is down.
    pub flap: f64,
    /// Calls of a stall, or of a time without link.
    pub episode: u32,
    /// Packets after which the queue is gone.
    pub vanish: Option<u64>,
    /// Delay and rate.
    pub shape: Shape,
}

impl Default for Config {
    /// No faults; both directions, and episodes of 32 calls.
    fn default() -> Config {
        Config {
            direction: FaultDirection::Both,
            seed: 1,
            drop: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            corrupt: 0.0,
            stall: 0.0,
            flap: 0.0,
            episode: 32,
            vanish: None,
            shape: Shape::default(),
        }
    }
}

impl Config {
    /// Parses `fault:OPTIONS@PORT`; returns the faults and the inner port's URI.
    ///
    /// # Errors
    /// [`PortError::Option`] for an invalid value or an unknown option; [`PortError::Input`]
    /// without a valid inner port.
    pub fn from_uri(uri: &Uri) -> Result<(Config, Uri), PortError> {
        let port = || uri.as_str().to_owned();
        let Some((options, inner)) = uri.as_str().strip_prefix("fault:").and_then(|rest| rest.split_once('@')) else {
            return Err(uri.error("is written fault:OPTIONS@PORT, for example fault:drop=1%,seed=7@tap:tp0"));
        };
        let outer: Uri = format!("fault:?{options}").parse()?;
        let mut o = outer.options(KIND.options);
        let config =
            Config::read(&mut o).and_then(|config| o.finish().map(|()| config)).map_err(|error| match error {
                PortError::Option { option, value, rule, .. } => {
                    PortError::Option { port: port(), option, value, rule }
                }
                other => other,
            })?;
        Ok((config, inner.parse()?))
    }

    fn read(o: &mut Options) -> Result<Config, PortError> {
        let default = Config::default();
        Ok(Config {
            direction: o
                .choice(
                    "on",
                    &[("rx", FaultDirection::Rx), ("tx", FaultDirection::Tx), ("both", FaultDirection::Both)],
                )?
                .unwrap_or(default.direction),
            seed: o.number("seed", 0..=u64::MAX)?.unwrap_or(default.seed),
            drop: probability(o, "drop")?,
            duplicate: probability(o, "duplicate")?,
            reorder: probability(o, "reorder")?,
            corrupt: probability(o, "corrupt")?,
            stall: probability(o, "stall")?,
            flap: probability(o, "flap")?,
            episode: o.number("episode", 1..=1_000_000)?.map_or(default.episode, |n| n as u32),
            vanish: o.number("vanish", 0..=u64::MAX)?,
            shape: shape(o)?,
        })
    }
}

/// Delay and rate; an option that nothing refers to is refused.
fn shape(o: &mut Options) -> Result<Shape, PortError> {
    let default = Shape::default();
    let [delay, jitter] = [o.duration("delay")?, o.duration("jitter")?];
    let distribution = [("uniform", Distribution::Uniform), ("normal", Distribution::Normal)];
    let distribution = o.choice("distribution", &distribution)?;
    let keep_order = o.choice("order", &[("keep", true), ("free", false)])?;
    let rate = match o.text("rate") {
        None => None,
        Some(text) => match bits(&text) {
            Some(rate) => Some(rate),
            None => return Err(o.error("rate", text, "must be bits per second such as 500kbit, 10mbit, 1gbit")),
        },
    };
    let burst = o.number("burst", 1..=1 << 40)?;
    let limit = o.number("limit", 1..=1_000_000)?.map(|n| n as u32);
    // An hour is longer than any network takes, and keeps times in range.
    for (name, time) in [("delay", delay), ("jitter", jitter)] {
        if let Some(time) = time.filter(|time| *time > Duration::from_secs(3600)) {
            return Err(o.error(name, format!("{}s", time.as_secs_f64()), "must be 1h at most"));
        }
    }
    let needed = [
        ("jitter", jitter.is_some(), delay.is_some(), "delay"),
        ("distribution", distribution.is_some(), jitter.is_some(), "jitter"),
        ("order", keep_order.is_some(), jitter.is_some(), "jitter"),
        ("burst", burst.is_some(), rate.is_some(), "rate"),
        ("limit", limit.is_some(), delay.is_some() || rate.is_some(), "delay or rate"),
    ];
    if let Some((name, .., what)) = needed.into_iter().find(|(_, given, has, _)| *given && !*has) {
        return Err(o.error(name, "…", format!("needs {what}")));
    }
    let usual = rate.map_or(default.burst, |rate| (rate / 8 / 200).max(MIN_BURST));
    Ok(Shape {
        delay: delay.unwrap_or_default(),
        jitter: jitter.unwrap_or_default(),
        distribution: distribution.unwrap_or(default.distribution),
        keep_order: keep_order.unwrap_or(default.keep_order),
        rate,
        burst: burst.unwrap_or(usual),
        limit: limit.unwrap_or(default.limit),
    })
}

/// Bits per second, as `tc` writes them, at least 1: `10mbit`, `1gbit`, `1.5Mbit`, or a plain
/// number with `k`, `M` or `G`.
fn bits(text: &str) -> Option<u64> {
    let number = match text.to_ascii_lowercase().strip_suffix("bit") {
        Some(number) => number.replace('m', "M").replace('g', "G"),
        None => text.to_owned(),
    };
    parse_number(&number).filter(|bits| (1..=1_000_000_000_000).contains(bits))
}

/// A number from 0 to 1, also in percent.
fn probability(o: &mut Options, name: &'static str) -> Result<f64, PortError> {
    let Some(text) = o.text(name) else { return Ok(0.0) };
    let value = match text.strip_suffix('%') {
        Some(percent) => percent.parse::<f64>().map(|p| p / 100.0),
        None => text.parse::<f64>(),
    };
    match value {
        Ok(p) if (0.0..=1.0).contains(&p) => Ok(p),
        _ => Err(o.error(name, text, "must be a probability such as 0.01 or 1%")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Result<(Config, Uri), String> {
        Config::from_uri(&text.parse().unwrap()).map_err(|e| e.to_string())
    }

    #[test]
    fn the_options_and_the_inner_port_are_parsed() {
        let shape = Shape {
            delay: Duration::from_millis(50),
            jitter: Duration::from_millis(5),
            distribution: Distribution::Normal,
            keep_order: false,
            rate: Some(10_000_000),
            burst: 2000,
            limit: 7,
        };
        let text = "fault:delay=50ms,jitter=5ms,distribution=normal,order=free,rate=10mbit,burst=2k,limit=7,\
                    on=tx,seed=7,drop=1%,duplicate=0.5,reorder=2%,corrupt=1,stall=0.1,flap=0.2,episode=9,vanish=1k@\
                    tap:a?mtu=9000";
        let expected = Config {
            direction: FaultDirection::Tx,
            seed: 7,
            drop: 0.01,
            duplicate: 0.5,
            reorder: 0.02,
            corrupt: 1.0,
            stall: 0.1,
            flap: 0.2,
            episode: 9,
            vanish: Some(1000),
            shape,
        };
        assert_eq!(config(text).unwrap(), (expected, "tap:a?mtu=9000".parse().unwrap()));
        let (_, inner) = config("fault:drop=1%@fault:stall=1%@null:").unwrap();
        assert_eq!(inner.as_str(), "fault:stall=1%@null:");
    }

    #[test]
    fn a_rate_is_written_as_tc_writes_it_and_has_a_burst_of_five_milliseconds() {
        for (text, rate, burst) in [
            ("10mbit", 10_000_000, 6250),
            ("1Gbit", 1_000_000_000, 625_000),
            ("1.5Mbit", 1_500_000, 1600),
            ("64kbit", 64_000, 1600),
            ("100M", 100_000_000, 62_500),
            ("9600bit", 9600, 1600),
        ] {
            let shape = config(&format!("fault:rate={text}@null:")).unwrap().0.shape;
            assert_eq!((shape.rate, shape.burst, shape.limit), (Some(rate), burst, 1000), "{text}");
        }
    }

    #[test]
    fn an_invalid_value_is_named_with_its_rule() {
        for (text, part) in [
            ("fault:drop=1%", "fault:OPTIONS@PORT"),
            ("fault:drop=2@null:", "fault:drop=2@null:: drop=2: must be a probability"),
            ("fault:drop=nan@null:", "drop=nan"),
            ("fault:episode=0@null:", "episode=0"),
            ("fault:dorp=1%@null:", "dorp=1%: no such option; there are: burst, corrupt, delay"),
            ("fault:drop=1%@nowhere", "scheme:target"),
            ("fault:rate=fast@null:", "rate=fast: must be bits per second such as"),
            ("fault:rate=0@null:", "rate=0: must be bits"),
            ("fault:jitter=5ms@null:", "jitter=…: needs delay"),
            ("fault:delay=5ms,order=free@null:", "order=…: needs jitter"),
            ("fault:burst=5k@null:", "burst=…: needs rate"),
            ("fault:limit=5@null:", "limit=…: needs delay or rate"),
            ("fault:delay=2h@null:", "delay=7200s: must be 1h at most"),
        ] {
            let error = config(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
