//! A tee as text: `SINK;snaplen=96;at=rx;filter=tcp port 80`.

use super::{TeeConfig, TeeFormat, TeeSink, TeeStream};
use crate::any::{KINDS, Opener, Role};
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;
use towpath_engine::filter::FilterError;
use towpath_packet::port::PortError;
use towpath_ports::kind::did_you_mean;
use towpath_ports::uri::{Uri, parse_number};

/// The options, and what they take.
const OPTIONS: [(&str, &str); 5] = [
    ("at", "must be rx, tx, both or drops"),
    ("port", "must be the name of a port"),
    ("snaplen", "must be bytes from 1 to 262144"),
    ("ring", "must be bytes from 65536 to 1G"),
    ("filter", "must be an expression of pcap-filter(7)"),
];

/// How long a pipe may take nothing, once the tee is detached.
const PATIENCE: Duration = Duration::from_secs(2);

/// Why a text is no tee.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TeeSpecError {
    /// A wrong option.
    #[error("tee '{text}': {option}: {rule}")]
    Option {
        /// The whole text.
        text: String,
        /// The option with its value.
        option: String,
        /// The rule that it breaks, and what is meant.
        rule: String,
    },
    /// A wrong filter.
    #[error(transparent)]
    Filter(#[from] FilterError),
    /// A wrong port, or one that can't be opened.
    #[error(transparent)]
    Port(#[from] PortError),
    /// A file that can't be made.
    #[error("tee {file}: create: {source}")]
    File {
        /// The file.
        file: String,
        /// The error of the system.
        source: std::io::Error,
    },
}

/// What a tee copies, as text: options between semicolons, in any order.
///
/// | option | |
/// |---|---|
/// | `at=rx`, `tx`, `both`, `drops` | packets as they are received, sent, or both (the default); those that are dropped |
/// | `port=NAME` | of this port alone; may be repeated |
/// | `snaplen=BYTES` | the first bytes of each packet; all without it |
/// | `ring=BYTES` | memory between each route and the sink: 4 MiB |
/// | `filter=EXPR` | those that match an expression of pcap-filter(7) |
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct TeeOptions {
    /// What is copied. Its interfaces are all: see [`ports`](TeeOptions::ports).
    pub config: TeeConfig,
    /// The ports; all if it is empty.
    pub ports: Vec<String>,
}

impl FromStr for TeeOptions {
    type Err = TeeSpecError;

    fn from_str(text: &str) -> Result<TeeOptions, TeeSpecError> {
        let mut options = TeeOptions::default();
        let config = &mut options.config;
        for option in text.split(';').map(str::trim).filter(|option| !option.is_empty()) {
            let wrong = |rule: String| TeeSpecError::Option { text: text.to_owned(), option: option.to_owned(), rule };
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let Some((_, rule)) = OPTIONS.iter().find(|(known, _)| *known == name) else {
                let names = OPTIONS.map(|(name, _)| name);
                let meant = did_you_mean(name, names);
                return Err(wrong(format!("no such option; there are: {}{meant}", names.join(", "))));
            };
            let wrong = || wrong((*rule).to_owned());
            let number =
                |least: u64, most: u64| parse_number(value).filter(|n| (least..=most).contains(n)).ok_or_else(wrong);
            match name {
                "at" => {
                    (config.rx, config.tx, config.drops) = match value {
                        "rx" => (true, false, false),
                        "tx" => (false, true, false),
                        "both" => (true, true, false),
                        "drops" => (false, false, true),
                        _ => return Err(wrong()),
                    }
                }
                "port" if !value.is_empty() => options.ports.push(value.to_owned()),
                "snaplen" => config.snaplen = number(1, 262_144)? as u32,
                "ring" => config.ring = number(1 << 16, 1 << 30)? as usize,
                "filter" if !value.is_empty() => config.filter = Some(value.parse()?),
                _ => return Err(wrong()),
            }
        }
        Ok(options)
    }
}

/// A tee as text: the file or the URI of the port that it goes to, then its
/// [options](TeeOptions).
///
/// A file is written as pcapng, with the ports as interfaces, directions, and the reasons of drops;
/// as pcap, if its name ends in `.pcap`. `pcap:FILE?rotate-size=100M` is a port, which rotates.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TeeSpec {
    /// The file, or the URI.
    pub sink: String,
    /// What is copied.
    pub config: TeeConfig,
    /// The ports; all if it is empty.
    pub ports: Vec<String>,
}

impl FromStr for TeeSpec {
    type Err = TeeSpecError;

    fn from_str(text: &str) -> Result<TeeSpec, TeeSpecError> {
        let (sink, rest) = text.split_once(';').unwrap_or((text, ""));
        if sink.is_empty() {
            let rule = "a file or a port is missing: FILE;at=rx".to_owned();
            return Err(TeeSpecError::Option { text: text.to_owned(), option: "sink".to_owned(), rule });
        }
        let TeeOptions { config, ports } = rest.parse()?;
        Ok(TeeSpec { sink: sink.to_owned(), config, ports })
    }
}

impl TeeSpec {
    /// Makes the file, or opens the port.
    ///
    /// # Errors
    /// [`TeeSpecError`] of the file or the port.
    pub fn open(&self) -> Result<TeeSink, TeeSpecError> {
        let scheme = self.sink.split_once(':').map(|(scheme, _)| scheme);
        if scheme.is_some_and(|scheme| KINDS.iter().any(|kind| kind.name == scheme)) {
            let uri: Uri = self.sink.parse()?;
            let mut opener = Opener::new();
            let port = opener.open(&uri, Role::Egress)?;
            opener.check()?;
            return Ok(TeeSink::Port(Box::new(port)));
        }
        let file = self.sink.clone();
        // A pipe is written without waiting, and one without a reader is an error.
        let out = OpenOptions::new().write(true).create(true).truncate(true).custom_flags(libc::O_NONBLOCK).open(&file);
        let out = out.map_err(|source| TeeSpecError::File { file: file.clone(), source })?;
        let format = TeeFormat::of(Path::new(&file));
        Ok(TeeSink::Stream(TeeStream {
            name: file,
            out,
            format,
            greeting: Vec::new(),
            patience: PATIENCE,
            ends_with_peer: false,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tee_is_its_sink_and_options_in_any_order() {
        let spec: TeeSpec =
            "tap:mon?mtu=9000; snaplen=96;at=rx;port=xdp:e0;ring=1M;filter=tcp port 80".parse().unwrap();
        assert_eq!(spec.sink, "tap:mon?mtu=9000");
        let mut expected = TeeConfig::default();
        expected.filter = Some("tcp port 80".parse().unwrap());
        (expected.snaplen, expected.tx, expected.ring) = (96, false, 1_000_000);
        assert_eq!((spec.config, spec.ports), (expected, vec!["xdp:e0".to_owned()]));
        let plain: TeeSpec = "a.pcapng".parse().unwrap();
        assert_eq!((plain.sink.as_str(), plain.config), ("a.pcapng", TeeConfig::default()));
        let drops: TeeOptions = "at=drops".parse().unwrap();
        assert!(drops.config.drops && !drops.config.rx && !drops.config.tx);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_rule() {
        for (text, part) in [
            (";at=rx", "a file or a port is missing"),
            ("a;at=middle", "at=middle: must be rx, tx, both or drops"),
            ("a;snaplen=0", "snaplen=0: must be bytes from 1 to 262144"),
            ("a;snaplne=9", "no such option; there are: at, port, snaplen, ring, filter; did you mean snaplen?"),
            ("a;filter=", "must be an expression"),
            ("a;filter=tcp prot 80", "column 5"),
            ("a;ring=9", "ring=9: must be bytes from 65536"),
            ("a;port=", "must be the name of a port"),
        ] {
            let error = text.parse::<TeeSpec>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
