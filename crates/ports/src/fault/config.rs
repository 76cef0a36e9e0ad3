//! Configuration of the faults.

use crate::kind::{Kind, PortOption};
use crate::uri::{Options, Uri};
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
        PortOption::new("vanish", "PACKETS", "never", "packets after which the port is gone", "vanish=1k"),
    ],
};

/// The directions with faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
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
    pub side: Side,
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
}

impl Default for Config {
    /// No faults; both directions, and episodes of 32 calls.
    fn default() -> Config {
        Config {
            side: Side::Both,
            seed: 1,
            drop: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            corrupt: 0.0,
            stall: 0.0,
            flap: 0.0,
            episode: 32,
            vanish: None,
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
            side: o.choice("on", &[("rx", Side::Rx), ("tx", Side::Tx), ("both", Side::Both)])?.unwrap_or(default.side),
            seed: o.number("seed", 0..=u64::MAX)?.unwrap_or(default.seed),
            drop: probability(o, "drop")?,
            duplicate: probability(o, "duplicate")?,
            reorder: probability(o, "reorder")?,
            corrupt: probability(o, "corrupt")?,
            stall: probability(o, "stall")?,
            flap: probability(o, "flap")?,
            episode: o.number("episode", 1..=1_000_000)?.map_or(default.episode, |n| n as u32),
            vanish: o.number("vanish", 0..=u64::MAX)?,
        })
    }
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
        let text = "fault:on=tx,seed=7,drop=1%,duplicate=0.5,reorder=2%,corrupt=1,stall=0.1,flap=0.2,episode=9,vanish=1k@\
                    tap:a?mtu=9000";
        let expected = Config {
            side: Side::Tx,
            seed: 7,
            drop: 0.01,
            duplicate: 0.5,
            reorder: 0.02,
            corrupt: 1.0,
            stall: 0.1,
            flap: 0.2,
            episode: 9,
            vanish: Some(1000),
        };
        assert_eq!(config(text).unwrap(), (expected, "tap:a?mtu=9000".parse().unwrap()));
        let (_, inner) = config("fault:drop=1%@fault:stall=1%@null:").unwrap();
        assert_eq!(inner.as_str(), "fault:stall=1%@null:");
    }

    #[test]
    fn an_invalid_value_is_named_with_its_rule() {
        for (text, part) in [
            ("fault:drop=1%", "fault:OPTIONS@PORT"),
            ("fault:drop=2@null:", "fault:drop=2@null:: drop=2: must be a probability"),
            ("fault:drop=nan@null:", "drop=nan"),
            ("fault:episode=0@null:", "episode=0"),
            ("fault:dorp=1%@null:", "dorp=1%: no such option; there are: corrupt, drop"),
            ("fault:drop=1%@nowhere", "scheme:target"),
        ] {
            let error = config(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
