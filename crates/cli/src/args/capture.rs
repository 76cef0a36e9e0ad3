//! Options of `record` and `replay`.

use super::Run;
use clap::{Args as ClapArgs, ValueHint};
use std::path::PathBuf;

/// `towpath record`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Record {
    /// Where the packets come from
    #[arg(value_name = "PORT")]
    pub(crate) port: String,
    /// The file: .pcap or .pcapng, also with .gz or .zst; - is standard output, and the summary
    /// goes to standard error
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// Options of the file, as in pcap:…?rotate-size=100M (see 'towpath help pcap')
    #[arg(long = "with", value_name = "KEY=VALUE,…")]
    pub(crate) more: Option<String>,
    /// What is recorded, as an expression of pcap-filter(7): 'tcp port 80 and not host 10.0.0.1';
    /// the rest is dropped and counted as filtered
    #[arg(long, value_name = "EXPR", conflicts_with = "rule")]
    pub(crate) filter: Option<String>,
    #[command(flatten)]
    pub(crate) run: Run,
}

/// `towpath replay`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Replay {
    /// The file: pcap or pcapng, also compressed by gzip, zstd or xz; - is standard input
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// Where the packets go
    #[arg(value_name = "PORT")]
    pub(crate) port: String,
    /// As fast as possible, as it is without the other options of timing
    #[arg(long, group = "pace", help_heading = "Timing")]
    pub(crate) topspeed: bool,
    /// Keep the times between packets as they were recorded
    #[arg(long, group = "pace", help_heading = "Timing")]
    pub(crate) timing: bool,
    /// The same, with the times divided by a factor: 2 is twice as fast
    #[arg(long, value_name = "FACTOR", group = "pace", help_heading = "Timing")]
    pub(crate) speed: Option<String>,
    /// Packets per second: 10k
    #[arg(long, value_name = "N", group = "pace", help_heading = "Timing")]
    pub(crate) pps: Option<String>,
    /// Mbit/s of the bytes of frames: 0.5
    #[arg(long, value_name = "N", group = "pace", help_heading = "Timing")]
    pub(crate) mbps: Option<String>,
    /// Passes over the file; 0 or inf: until it is stopped
    #[arg(long = "loop", value_name = "N", help_heading = "Timing")]
    pub(crate) passes: Option<String>,
    /// Packets of which the capture has a part: send, skip or pad (with zeros)
    #[arg(long, value_name = "HOW", help_heading = "Changes")]
    pub(crate) truncated: Option<String>,
    /// The Ethernet source of all packets
    #[arg(long, value_name = "MAC", help_heading = "Changes")]
    pub(crate) smac: Option<String>,
    /// The Ethernet destination of all packets
    #[arg(long, value_name = "MAC", help_heading = "Changes")]
    pub(crate) dmac: Option<String>,
    /// The ID of the outer VLAN tag, which is added where there is none; strip: it is removed
    #[arg(long, value_name = "ID|strip", help_heading = "Changes")]
    pub(crate) vlan: Option<String>,
    /// Map a prefix of source and destination addresses to another of the same length, as
    /// 10.0.0.0/8:172.16.0.0; for one side: --with src=… or dst=…
    #[arg(long, value_name = "OLD/LEN:NEW", help_heading = "Changes")]
    pub(crate) map_ip: Vec<String>,
    /// Map a port of TCP and UDP on both sides, as 80:8080; for one side: --with sport=… or dport=…
    #[arg(long, value_name = "OLD:NEW", help_heading = "Changes")]
    pub(crate) map_port: Vec<String>,
    /// Options of the file, as in pcap:…?loop=10 (see 'towpath help pcap')
    #[arg(long = "with", value_name = "KEY=VALUE,…")]
    pub(crate) more: Option<String>,
    #[command(flatten)]
    pub(crate) run: Run,
}
