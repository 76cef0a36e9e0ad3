//! Options of the commands about a running instance: `set`, `state`, `top`, `tee`, `extcap`.

use super::{number, span};
use crate::control::settings::Value;
use clap::{Args as ClapArgs, ValueEnum, ValueHint};
use std::path::PathBuf;
use std::time::Duration;
use towpath::ports::uri::parse_number;

/// `towpath set`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Set {
    /// The socket that the running towpath was given
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub(crate) control: PathBuf,
    /// The port, as the summary names it; without it, all settings of all ports are shown
    #[arg(value_name = "PORT")]
    pub(crate) port: Option<String>,
    /// What to change; without it, the port's settings are shown
    #[arg(value_name = "NAME=VALUE", value_parser = setting)]
    pub(crate) settings: Vec<(String, Value)>,
    /// One line of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `towpath state`.
#[derive(Debug, ClapArgs)]
pub(crate) struct StateArgs {
    /// The socket that the running towpath was given
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub(crate) control: PathBuf,
    /// One line of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `towpath top`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Top {
    /// The socket that the running towpath was given
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub(crate) control: PathBuf,
    /// Time between pictures
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "1s")]
    pub(crate) interval: Duration,
    /// The view at the start
    #[arg(long, value_enum, default_value_t = crate::top::View::Overview)]
    pub(crate) view: crate::top::View,
    /// Print one picture as text, with the rates of one interval, and end
    #[arg(long)]
    pub(crate) once: bool,
}

/// `towpath tee`.
#[derive(Debug, ClapArgs)]
pub(crate) struct TeeArgs {
    /// The socket that the running towpath was given
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub(crate) control: PathBuf,
    /// The ports, as the summary names them; all without one
    #[arg(value_name = "PORT")]
    pub(crate) ports: Vec<String>,
    /// The file: pcapng, or pcap if it ends in .pcap; - is standard output
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) write: Option<PathBuf>,
    /// Packets that match an expression of pcap-filter(7)
    #[arg(long, value_name = "EXPR")]
    pub(crate) filter: Option<String>,
    /// The first bytes of each packet
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=262_144))]
    pub(crate) snaplen: Option<u32>,
    /// Where packets are copied
    #[arg(long, value_enum, default_value_t = TeeAt::Both)]
    pub(crate) at: TeeAt,
    /// Those that are dropped, each with the reason as a comment
    #[arg(long, conflicts_with = "at")]
    pub(crate) drops: bool,
    /// Stop after so many packets
    #[arg(long, value_name = "N", value_parser = number)]
    pub(crate) count: Option<u64>,
    /// Stop after this time: 10s, 5m, 1h
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub(crate) duration: Option<Duration>,
}

/// Where packets are copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TeeAt {
    /// As they are received
    Rx,
    /// As they are sent
    Tx,
    /// Both
    Both,
    /// Where they are dropped
    Drops,
}

impl TeeAt {
    pub(crate) fn name(self) -> &'static str {
        match self {
            TeeAt::Rx => "rx",
            TeeAt::Tx => "tx",
            TeeAt::Both => "both",
            TeeAt::Drops => "drops",
        }
    }
}

/// `towpath extcap`. The options are those of Wireshark's protocol.
#[derive(Debug, ClapArgs)]
pub(crate) struct Extcap {
    /// List the instances
    #[arg(long = "extcap-interfaces")]
    pub(crate) interfaces: bool,
    /// An instance: towpath-NAME of a socket in $XDG_RUNTIME_DIR/towpath or /run/towpath
    #[arg(long = "extcap-interface", value_name = "INTERFACE")]
    pub(crate) interface: Option<String>,
    /// List the link types
    #[arg(long = "extcap-dlts")]
    pub(crate) dlts: bool,
    /// List the options
    #[arg(long = "extcap-config")]
    pub(crate) config: bool,
    /// Capture
    #[arg(long)]
    pub(crate) capture: bool,
    /// The pipe that packets are written to
    #[arg(long, value_name = "FIFO")]
    pub(crate) fifo: Option<PathBuf>,
    /// Packets that match
    #[arg(long = "extcap-capture-filter", value_name = "EXPR")]
    pub(crate) filter: Option<String>,
    /// Where packets are copied
    #[arg(long, value_enum)]
    pub(crate) at: Option<TeeAt>,
    /// The first bytes of each packet
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=262_144))]
    pub(crate) snaplen: Option<u32>,
    /// The version of Wireshark
    #[arg(long = "extcap-version", value_name = "VERSION")]
    pub(crate) version: Option<String>,
}

fn setting(text: &str) -> Result<(String, Value), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => {
            let value = parse_number(value).map_or_else(|| Value::Text(value.to_owned()), Value::Number);
            Ok((name.to_owned(), value))
        }
        _ => Err("must be a name and a value: copybreak=256, vlans=10+100-199".into()),
    }
}
