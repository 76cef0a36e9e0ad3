//! Options of `measure`.

use super::{Cores, IdleArg, SandboxArg, number, span, time};
use clap::Args as ClapArgs;
use std::time::Duration;

/// `towpath measure`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Measure {
    /// Where packets are sent
    #[arg(value_name = "A")]
    pub(crate) a: String,
    /// Where they arrive, behind the device that is measured
    #[arg(value_name = "B")]
    pub(crate) b: String,
    /// Also from B to A at the same time, each at the rate that is named
    #[arg(long)]
    pub(crate) bidirectional: bool,
    /// Bytes of a packet from its first header on, as size= of gen:; a search for each
    #[arg(long, value_name = "BYTES|imix", default_value = "64", help_heading = "Packets")]
    pub(crate) size: Vec<String>,
    /// Flows, which take turns
    #[arg(long, value_name = "N", value_parser = number, help_heading = "Packets")]
    pub(crate) flows: Option<u64>,
    /// Options of the generator, as in gen:…: addresses and ports with their ranges, vlan, proto,
    /// template (see 'towpath help gen:'); towards A, sources and destinations are swapped
    #[arg(long = "gen", value_name = "KEY=VALUE,…", help_heading = "Packets")]
    pub(crate) generator: Option<String>,
    /// The part of packets that may be lost: 0, 0.5%; a goal for each
    #[arg(long, value_name = "RATIO", value_parser = ratio, default_value = "0", help_heading = "Search")]
    pub(crate) goal_loss: Vec<f64>,
    /// The lowest rate that is tried, packets per second
    #[arg(long, value_name = "PPS", value_parser = number, default_value = "1k", help_heading = "Search")]
    pub(crate) min_rate: u64,
    /// The highest rate that is tried; what the generator makes into A if it is not given
    #[arg(long, value_name = "PPS", value_parser = number, help_heading = "Search")]
    pub(crate) max_rate: Option<u64>,
    /// Length of a trial that decides
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "1s", help_heading = "Search")]
    pub(crate) trial: Duration,
    /// Length of the first trials; a fifth of --trial if it is not given
    #[arg(long, value_name = "TIME", value_parser = span, help_heading = "Search")]
    pub(crate) initial_trial: Option<Duration>,
    /// Trials at a rate take so long in all, unless fewer decide; 21 times --trial if it is not
    /// given
    #[arg(long, value_name = "TIME", value_parser = span, help_heading = "Search")]
    pub(crate) goal_duration: Option<Duration>,
    /// The part of that time that may have more loss
    #[arg(long, value_name = "RATIO", value_parser = ratio, default_value = "50%", help_heading = "Search")]
    pub(crate) exceed: f64,
    /// Distance of the two bounds, relative to the upper one
    #[arg(long, value_name = "RATIO", value_parser = width, default_value = "0.5%", help_heading = "Search")]
    pub(crate) width: f64,
    /// How long packets of a trial get to arrive after the last one is sent
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "200ms", help_heading = "Search")]
    pub(crate) drain: Duration,
    /// Also measure latencies, at 10, 50 and 90 % of the throughput
    #[arg(long)]
    pub(crate) latency: bool,
    /// Cores of the two workers, that of A first
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = "Workers")]
    pub(crate) cores: Vec<Cores>,
    /// What a worker does when there is nothing to do
    #[arg(long, value_enum, default_value_t = IdleArg::Adaptive, help_heading = "Workers")]
    pub(crate) idle: IdleArg,
    /// Whether the process gives up the rights that its ports no longer need, once they are open
    #[arg(long, value_enum, default_value_t = SandboxArg::Prefer, env = "TOWPATH_SANDBOX", value_name = "LEVEL", help_heading = "Rights")]
    pub(crate) sandbox: SandboxArg,
    /// One JSON object on standard output, at the end
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
    /// No line for each trial
    #[arg(long, short, help_heading = "Output")]
    pub(crate) quiet: bool,
}

/// A ratio from 0 to less than 1, also in percent.
fn ratio(text: &str) -> Result<f64, String> {
    let (number, unit) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 100.0));
    let value = number.parse::<f64>().ok().map(|value| value / unit);
    value
        .filter(|value| (0.0..1.0).contains(value))
        .ok_or_else(|| "must be from 0 to less than 1 (100%): 0, 0.5%".into())
}

/// A ratio above 0.
fn width(text: &str) -> Result<f64, String> {
    ratio(text).ok().filter(|width| *width > 0.0).ok_or_else(|| "must be above 0 and less than 1 (100%): 0.5%".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_numbers_or_percent() {
        assert_eq!([ratio("0"), ratio("0.5%"), ratio("0.25")], [Ok(0.0), Ok(0.005), Ok(0.25)]);
        for bad in ["1", "100%", "-1%", "x", "%", "nan", "inf"] {
            assert!(ratio(bad).is_err() && width(bad).is_err(), "{bad}");
        }
        assert!(width("0").is_err());
    }
}
