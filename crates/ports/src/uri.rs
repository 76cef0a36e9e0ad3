//! Port URIs: `scheme:target?option=value,option=value`.
//!
//! `&` separates options too. Schemes without a target have the options after the colon
//! (`gen:flows=8,size=1448`). Each port takes its options by name, which checks their values; only
//! options of its [table](crate::kind) can be taken. A remaining option is an error that lists the
//! known names.
//!
//! ```
//! # use towpath_ports::{tun, uri::Uri};
//! let uri: Uri = "tap:tp0?mtu=9000,tso=off".parse().unwrap();
//! assert_eq!((uri.scheme(), uri.target()), ("tap", "tp0"));
//! let mut options = uri.options(tun::TAP.options);
//! assert_eq!(options.number("mtu", 68..=65521).unwrap(), Some(9000));
//! assert!(options.finish().unwrap_err().to_string().contains("tso"));
//! ```

use crate::kind::{PortOption, did_you_mean};
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;
use towpath_packet::port::{PortError, TxLinear};

/// Schemes whose options follow the colon directly.
const NO_TARGET: [&str; 2] = ["gen", "null"];

/// A parsed port URI.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uri {
    text: String,
    scheme: String,
    target: String,
    options: Vec<(String, String)>,
}

impl Uri {
    /// The kind of port.
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// The port: an interface, a file; empty if the scheme has no target.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether an option is given.
    pub(crate) fn has(&self, option: &str) -> bool {
        self.options.iter().any(|(key, _)| key == option)
    }

    /// The value of an option.
    pub fn option(&self, name: &str) -> Option<&str> {
        self.options.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The URI without its options: the port's name in tables.
    pub fn short(&self) -> String {
        format!("{}:{}", self.scheme, self.target)
    }

    /// The options, of those in `table`.
    pub fn options(&self, table: &'static [PortOption]) -> Options {
        Options { port: self.text.clone(), table, left: self.options.clone(), known: Vec::new() }
    }

    /// An error about the URI.
    pub fn error(&self, what: impl Into<String>) -> PortError {
        PortError::Input { port: self.text.clone(), what: what.into() }
    }
}

impl FromStr for Uri {
    type Err = PortError;

    fn from_str(text: &str) -> Result<Uri, PortError> {
        let bad = |what: &str| PortError::Input { port: text.to_owned(), what: what.to_owned() };
        let (scheme, rest) = text
            .split_once(':')
            .ok_or_else(|| bad("a port is written scheme:target?option=value, for example tap:tp0"))?;
        let (target, options) = match rest.split_once('?') {
            Some((target, options)) => (target, options),
            None if NO_TARGET.contains(&scheme) => ("", rest),
            None => (rest, ""),
        };
        let mut list = Vec::new();
        for item in options.split([',', '&']).filter(|item| !item.is_empty()) {
            let (key, value) = item.split_once('=').unwrap_or((item, ""));
            if value.is_empty() {
                return Err(bad(&format!("option '{key}' has no value: write {key}=…")));
            }
            if list.iter().any(|(k, _)| k == key) {
                return Err(bad(&format!("option '{key}' is given twice")));
            }
            list.push((key.to_owned(), value.to_owned()));
        }
        Ok(Uri { text: text.to_owned(), scheme: scheme.to_owned(), target: target.to_owned(), options: list })
    }
}

impl std::fmt::Display for Uri {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

/// Configuration of an ability.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Want {
    /// The port must have it; otherwise the open fails.
    Require,
    /// Use it if possible, else report the alternative.
    #[default]
    Prefer,
    /// Don't use it.
    Off,
}

/// Options that are not taken yet.
#[derive(Debug)]
pub struct Options {
    port: String,
    table: &'static [PortOption],
    left: Vec<(String, String)>,
    known: Vec<&'static str>,
}

impl Options {
    /// Takes the text of an option; none if the table of the kind has no such option.
    pub fn text(&mut self, name: &'static str) -> Option<String> {
        let listed = self.table.iter().any(|option| option.name == name);
        debug_assert!(listed, "'{name}' is not in the table of options");
        if !listed {
            return None;
        }
        self.known.push(name);
        let at = self.left.iter().position(|(key, _)| key == name)?;
        Some(self.left.remove(at).1)
    }

    /// An error about one option.
    pub fn error(&self, option: &str, value: impl ToString, rule: impl Into<String>) -> PortError {
        PortError::Option {
            port: self.port.clone(),
            option: option.to_owned(),
            value: value.to_string(),
            rule: rule.into(),
        }
    }

    /// Takes a whole number within `range`; `k`, `M` and `G` multiply by powers of 1000: `1.5M`.
    ///
    /// # Errors
    /// [`PortError::Option`] names the range.
    pub fn number(&mut self, name: &'static str, range: RangeInclusive<u64>) -> Result<Option<u64>, PortError> {
        let Some(value) = self.text(name) else { return Ok(None) };
        match parse_number(&value).filter(|n| range.contains(n)) {
            Some(n) => Ok(Some(n)),
            None => {
                let rule = format!("must be a whole number from {} to {}", range.start(), range.end());
                Err(self.error(name, value, rule))
            }
        }
    }

    /// Takes `on` or `off` (also `yes`, `no`, `true`, `false`, `1`, `0`).
    ///
    /// # Errors
    /// [`PortError::Option`] for another value.
    pub fn switch(&mut self, name: &'static str) -> Result<Option<bool>, PortError> {
        let Some(value) = self.text(name) else { return Ok(None) };
        match value.as_str() {
            "on" | "yes" | "true" | "1" => Ok(Some(true)),
            "off" | "no" | "false" | "0" => Ok(Some(false)),
            _ => Err(self.error(name, value, "must be on or off")),
        }
    }

    /// Takes `require`, `prefer` or `off` (`on` means `prefer`).
    ///
    /// # Errors
    /// [`PortError::Option`] for another value.
    pub fn want(&mut self, name: &'static str) -> Result<Option<Want>, PortError> {
        let Some(value) = self.text(name) else { return Ok(None) };
        match value.as_str() {
            "require" => Ok(Some(Want::Require)),
            "prefer" | "on" => Ok(Some(Want::Prefer)),
            "off" => Ok(Some(Want::Off)),
            _ => Err(self.error(name, value, "must be require, prefer or off")),
        }
    }

    /// Takes one of a few words.
    ///
    /// # Errors
    /// [`PortError::Option`] lists them.
    pub fn choice<T: Copy>(
        &mut self,
        name: &'static str,
        choices: &[(&'static str, T)],
    ) -> Result<Option<T>, PortError> {
        let Some(value) = self.text(name) else { return Ok(None) };
        match choices.iter().find(|(word, _)| *word == value) {
            Some(&(_, choice)) => Ok(Some(choice)),
            None => {
                let words: Vec<_> = choices.iter().map(|(word, _)| *word).collect();
                Err(self.error(name, value, format!("must be one of {}", words.join(", "))))
            }
        }
    }

    /// Takes the linear part of packets: `none`, `whole`, or a number of bytes.
    ///
    /// # Errors
    /// [`PortError::Option`] shows the forms.
    pub fn linear(&mut self, name: &'static str) -> Result<Option<TxLinear>, PortError> {
        let Some(value) = self.text(name) else { return Ok(None) };
        match parse_linear(&value) {
            Some(linear) => Ok(Some(linear)),
            None => Err(self.error(name, value, "must be none, whole, or a number of bytes from 1 to 65535")),
        }
    }

    /// Takes a duration: a number with `us`, `ms`, `s`, `m` or `h`.
    ///
    /// # Errors
    /// [`PortError::Option`] shows the form.
    pub fn duration(&mut self, name: &'static str) -> Result<Option<Duration>, PortError> {
        let Some(value) = self.text(name) else { return Ok(None) };
        match parse_duration(&value) {
            Some(d) => Ok(Some(d)),
            None => Err(self.error(name, value, "must be a time such as 250us, 10ms, 5s, 2m")),
        }
    }

    /// Checks that no option is left.
    ///
    /// # Errors
    /// [`PortError::Option`] names the first remaining option, the known ones, and the one that is
    /// probably meant.
    pub fn finish(mut self) -> Result<(), PortError> {
        let Some((key, value)) = self.left.first() else { return Ok(()) };
        self.known.sort_unstable();
        let rule = match self.known.as_slice() {
            [] => "this port has no options".to_owned(),
            known => {
                let meant = did_you_mean(key, known.iter().copied());
                format!("no such option; there are: {}{meant}", known.join(", "))
            }
        };
        Err(self.error(key, value, rule))
    }
}

/// How much of a packet is to be linear: `none`, `whole`, or a number of bytes.
pub fn parse_linear(text: &str) -> Option<TxLinear> {
    match text {
        "none" => Some(TxLinear::None),
        "whole" => Some(TxLinear::Whole),
        number => number.parse().ok().filter(|&n| n > 0).map(TxLinear::Header),
    }
}

/// A whole number, with an optional `k`, `M` or `G` (powers of 1000): `1500`, `10k`, `1.5M`.
pub fn parse_number(text: &str) -> Option<u64> {
    let (digits, unit) = match text.strip_suffix(['k', 'K']) {
        Some(d) => (d, 1_000),
        None => match text.strip_suffix('M') {
            Some(d) => (d, 1_000_000),
            None => text.strip_suffix('G').map_or((text, 1), |d| (d, 1_000_000_000)),
        },
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
    let unsigned = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u64>().ok())?;
    // A fraction of at most nine digits, in units of the last one.
    let scale = 10u64.checked_pow(u32::try_from(fraction.len()).ok().filter(|&digits| digits <= 9)?)?;
    let part = unsigned(fraction)?.checked_mul(unit).filter(|part| part % scale == 0)? / scale;
    unsigned(whole)?.checked_mul(unit)?.checked_add(part)
}

/// A span of time: a decimal number with `ns`, `us`, `ms`, `s`, `m` or `h`; seconds where there is
/// no unit.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let seconds = match unit {
        "ns" => 1e-9,
        "us" => 1e-6,
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return None,
    };
    let value = number.parse::<f64>().ok().filter(|v| v.is_finite() && *v >= 0.0)?;
    Duration::try_from_secs_f64(value * seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(text: &str) -> Uri {
        text.parse().unwrap()
    }

    #[test]
    fn options_follow_the_question_mark_or_the_colon() {
        assert_eq!(
            uri("gen:flows=8,size=1448").options(crate::generator::KIND.options).number("size", 0..=9000).unwrap(),
            Some(1448)
        );
        let mut o = uri("xdp:eth0?queue=1&zerocopy=prefer").options(crate::xdp::KIND.options);
        assert_eq!(o.want("zerocopy").unwrap(), Some(Want::Prefer));
        assert_eq!(o.number("queue", 0..=3).unwrap(), Some(1));
        o.finish().unwrap();
        assert_eq!(uri("vhost:/run/vm0.sock").target(), "/run/vm0.sock");
    }

    #[test]
    fn what_is_wrong_is_named_with_its_rule() {
        let options = |text: &str| uri(text).options(crate::tun::TAP.options);
        let error = |text: &str| options(text).number("mtu", 68..=65521).unwrap_err().to_string();
        assert_eq!(error("tap:a?mtu=70000"), "tap:a?mtu=70000: mtu=70000: must be a whole number from 68 to 65521");
        assert!(error("tap:a?mtu=x").contains("mtu=x"));
        assert!("tap".parse::<Uri>().unwrap_err().to_string().contains("scheme:target"));
        assert!("tap:a?mtu".parse::<Uri>().unwrap_err().to_string().contains("'mtu' has no value"));
        assert!("tap:a?netns=".parse::<Uri>().unwrap_err().to_string().contains("'netns' has no value: write netns=…"));
        assert!("tap:a?mtu=1,mtu=2".parse::<Uri>().unwrap_err().to_string().contains("twice"));
    }

    #[test]
    fn a_misspelt_option_is_answered_with_the_one_that_is_meant() {
        let mut options = uri("tap:a?mut=9000").options(crate::tun::TAP.options);
        for name in ["mtu", "netns"] {
            assert_eq!(options.text(name), None);
        }
        let error = options.finish().unwrap_err().to_string();
        assert!(error.ends_with("mut=9000: no such option; there are: mtu, netns; did you mean mtu?"), "{error}");
    }

    #[test]
    fn times_and_numbers_take_units() {
        assert_eq!(parse_duration("250us"), Some(Duration::from_micros(250)));
        assert_eq!(parse_duration("1.5"), Some(Duration::from_millis(1500)));
        assert_eq!(parse_duration("2m"), Some(Duration::from_secs(120)));
        for bad in ["", "-1s", "x", "5d", "1e400s", "nan"] {
            assert_eq!(parse_duration(bad), None, "{bad}");
        }
        for (text, number) in [("2M", 2_000_000), ("1.5M", 1_500_000), ("0.25k", 250), ("7.0", 7)] {
            assert_eq!(parse_number(text), Some(number), "{text}");
        }
        for bad in ["", "M", ".5k", "1.", "1.5", "1.0001k", "-1", "+1", "1.+5k", "1.5.5k", "99999999999G"] {
            assert_eq!(parse_number(bad), None, "{bad}");
        }
    }
}
