//! Options of `bridge`.

use super::{Run, number, time};
use clap::{Args as ClapArgs, ValueHint};
use std::str::FromStr;
use std::time::Duration;
use towpath::engine::bridge::VlanSet;

/// `towpath bridge`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Bridge {
    /// The ports
    #[arg(value_name = "PORT", required = true, num_args = 2.., value_hint = ValueHint::Other)]
    pub(crate) ports: Vec<String>,
    /// An untagged member of one VLAN. PORT is a port of the command, with or without its options
    #[arg(long, value_name = "PORT=VLAN", help_heading = "VLANs")]
    pub(crate) access: Vec<Of<Vlan>>,
    /// A tagged member of several VLANs: tap:a=10+100-199
    #[arg(long, value_name = "PORT=VLANS", help_heading = "VLANs")]
    pub(crate) trunk: Vec<Of<VlanSet>>,
    /// The VLAN of untagged frames of a trunk, in both directions; without it they are dropped
    #[arg(long, value_name = "PORT=VLAN", help_heading = "VLANs")]
    pub(crate) native: Vec<Of<Vlan>>,
    /// Ports of one group do not exchange frames (split horizon)
    #[arg(long, value_name = "PORT=NUMBER", help_heading = "Ports")]
    pub(crate) group: Vec<Of<Number>>,
    /// Frames per second that each port may have flooded: to the broadcast address, to other
    /// groups, and to addresses that are not known, each
    #[arg(long, value_name = "PPS", value_parser = number, help_heading = "Ports")]
    pub(crate) storm: Option<u64>,
    /// Most addresses behind a port
    #[arg(long, value_name = "PORT=N", help_heading = "Addresses")]
    pub(crate) port_entries: Vec<Of<Number>>,
    /// Most addresses. At the limit new ones are not learned, and counted
    #[arg(long, value_name = "N", default_value = "131072", value_parser = number, help_heading = "Addresses")]
    pub(crate) max_entries: u64,
    /// How long an address without a packet stays; 0s: for ever
    #[arg(long, value_name = "TIME", default_value = "300s", value_parser = time, help_heading = "Addresses")]
    pub(crate) ageing: Duration,
    #[command(flatten)]
    pub(crate) run: Run,
}

/// A value of a port.
#[derive(Debug, Clone)]
pub(crate) struct Of<X> {
    pub(crate) port: String,
    pub(crate) value: X,
}

impl<X: FromStr<Err: ToString>> FromStr for Of<X> {
    type Err = String;

    fn from_str(text: &str) -> Result<Of<X>, String> {
        // The options of a port have equals signs too.
        match text.rsplit_once('=') {
            Some((port, value)) if !port.is_empty() => {
                let value = value.parse().map_err(|error: X::Err| error.to_string())?;
                Ok(Of { port: port.to_owned(), value })
            }
            _ => Err("must be a port and its value: tap:a=10".into()),
        }
    }
}

/// The number of a VLAN.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Vlan(pub(crate) u16);

impl FromStr for Vlan {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Vlan, &'static str> {
        let vlan = text.parse().ok().filter(|vlan| (1..4095).contains(vlan));
        vlan.map(Vlan).ok_or("must be a VLAN from 1 to 4094")
    }
}

/// A number above zero.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Number(pub(crate) u32);

impl FromStr for Number {
    type Err = String;

    fn from_str(text: &str) -> Result<Number, String> {
        let n = number(text)?;
        u32::try_from(n).map(Number).map_err(|_| "must be less than 2^32".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_of_a_port_is_behind_the_last_equals_sign() {
        let of: Of<Vlan> = "tap:a?netns=x=10".parse().unwrap();
        assert_eq!((of.port.as_str(), of.value.0), ("tap:a?netns=x", 10));
        for bad in ["tap:a", "=10", "tap:a=0", "tap:a=4095"] {
            assert!(bad.parse::<Of<Vlan>>().is_err(), "{bad}");
        }
        assert_eq!("a=1+3-4".parse::<Of<VlanSet>>().unwrap().value.to_string(), "1+3-4");
    }
}
