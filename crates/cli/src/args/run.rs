//! Options of every command that moves packets.

use super::{Cores, number, span, time};
use crate::metrics::Address;
use clap::{Args as ClapArgs, ValueEnum, ValueHint};
use std::path::PathBuf;
use std::time::Duration;
use towpath::engine::idle::Idle;
use towpath::engine::lane::Steering;
use towpath::sandbox::Level;
use towpath::tee::TeeSpec;
use towpath::wire::Toeplitz;

/// Options of every command that moves packets.
#[derive(Debug, Clone, ClapArgs)]
pub(crate) struct Run {
    /// Stop after this time: 10s, 5m, 1h
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub(crate) duration: Option<Duration>,
    /// Stop after so many packets
    #[arg(long, value_name = "N", value_parser = number)]
    pub(crate) count: Option<u64>,
    /// Make a socket at this path, through which 'towpath set' changes settings of the ports while
    /// they run, 'towpath state' and 'towpath top' show what they do, and 'towpath tee' what passes
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub(crate) control: Option<PathBuf>,
    /// Serve HTTP at PORT of the loopback, ADDRESS:PORT or unix:PATH: a page at /, OpenMetrics at
    /// /metrics, JSON at /state. There is no authentication: what can connect can read
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) metrics: Option<Address>,
    /// Copy what passes to a file (pcapng; pcap if it ends in .pcap) or a port, without a wait for
    /// it: 'FILE|PORT', then options: ';at=rx|tx|both;port=NAME;snaplen=96;ring=4M;filter=tcp port
    /// 80'; may be repeated
    #[arg(long, value_name = "SINK[;OPTIONS]", help_heading = "Watching")]
    pub(crate) tee: Vec<TeeSpec>,
    /// Write the packets that are dropped to a file, each with the reason as a comment; options as
    /// for --tee
    #[arg(long, value_name = "FILE[;OPTIONS]", help_heading = "Watching")]
    pub(crate) drops: Vec<TeeSpec>,
    /// Coalesce packets of a flow that follow each other; without it: auto for fwd, off for the
    /// others
    #[arg(long, value_enum, help_heading = "Coalescing")]
    pub(crate) gro: Option<GroArg>,
    /// Whether egresses get super-packets; off: all are cut into segments before
    #[arg(long, value_enum, default_value_t = GsoArg::Auto, help_heading = "Coalescing")]
    pub(crate) gso: GsoArg,
    /// How long an aggregate may wait for more, in microseconds; 0: no longer than the burst
    #[arg(long, value_name = "US", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=1_000_000), help_heading = "Coalescing")]
    pub(crate) gro_flush_us: u64,
    /// Largest aggregate, as its IP header says
    #[arg(long, value_name = "BYTES", default_value_t = 65535, value_parser = clap::value_parser!(u32).range(1280..=65535), help_heading = "Coalescing")]
    pub(crate) gro_max_size: u32,
    /// What becomes of packets as they are received, in order: pass, drop, tx, redirect a|b, lane
    /// N, and what to match: 'drop udp dport 53', 'drop tcp port 80 and not host 10.0.0.1',
    /// 'default drop' (see 'towpath rules')
    #[arg(long, value_name = "RULE", help_heading = "Rules")]
    pub(crate) rule: Vec<String>,
    /// The same, in the lane
    #[arg(long, value_name = "RULE", requires = "lanes", help_heading = "Rules")]
    pub(crate) lane_rule: Vec<String>,
    /// Cores of lanes (0-1,3), which take the packets of their flows from all workers; none: the
    /// workers do all the work
    #[arg(long, value_name = "CORES", value_delimiter = ',', help_heading = "Lanes")]
    pub(crate) lanes: Vec<Cores>,
    /// How a packet gets to its lane: flow, rss, rss:KEY (40 bytes in hex), lane:N, round-robin
    /// (which breaks the order of flows)
    #[arg(long, value_name = "HOW", value_parser = steering, default_value = "flow", requires = "lanes", help_heading = "Lanes")]
    pub(crate) steer: Steering,
    /// What happens to packets whose lane has no room
    #[arg(long, value_enum, default_value_t = FullArg::Hold, requires = "lanes", help_heading = "Lanes")]
    pub(crate) lane_full: FullArg,
    /// Packets that wait between a worker and a lane
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(64..=65536), requires = "lanes", help_heading = "Lanes")]
    pub(crate) lane_ring: u32,
    /// Move flows from busy to idle lanes while running
    #[arg(long, requires = "lanes", help_heading = "Lanes")]
    pub(crate) rebalance: bool,
    /// Threads; each runs one queue of both ports
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Workers")]
    pub(crate) workers: u16,
    /// Cores to pin the workers to, in order: 0-1,3
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = "Workers")]
    pub(crate) cores: Vec<Cores>,
    /// What a worker does when there is nothing to do
    #[arg(long, value_enum, default_value_t = IdleArg::Adaptive, help_heading = "Workers")]
    pub(crate) idle: IdleArg,
    /// Buffers for everything: 16384, or as many larger ones as have the same memory
    #[arg(long, value_name = "N", value_parser = number, help_heading = "Workers")]
    pub(crate) buffers: Option<u64>,
    /// Bytes of a buffer, 2048 to 65472 by 64, with 128 in front of a packet: a super-packet in one
    /// piece takes 65472. For vhost: and virtio:user= it is 64 more where it is a multiple of 2048
    #[arg(long, value_name = "BYTES", value_parser = number, help_heading = "Workers")]
    pub(crate) buffer_size: Option<u64>,
    /// How long a port may refuse packets before those held for it are dropped
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "10ms", help_heading = "Workers")]
    pub(crate) egress_wait: Duration,
    /// How long packets under way get to leave when stopping
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "1s", help_heading = "Workers")]
    pub(crate) drain: Duration,
    /// Whether the process gives up the rights that its ports no longer need, once they are open:
    /// capabilities, system calls, files; prefer: as far as this kernel can (see 'towpath probe')
    #[arg(long, value_enum, default_value_t = SandboxArg::Prefer, env = "TOWPATH_SANDBOX", value_name = "LEVEL", help_heading = "Rights")]
    pub(crate) sandbox: SandboxArg,
    /// JSON on standard output: a line per interval, and the summary as the last
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
    /// Time between live updates
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "1s", help_heading = "Output")]
    pub(crate) interval: Duration,
    /// No live updates, only the summary
    #[arg(long, short, help_heading = "Output")]
    pub(crate) quiet: bool,
}

/// How much of the sandbox must be in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SandboxArg {
    /// All parts, or nothing is moved
    Require,
    /// What this kernel can do
    Prefer,
    /// Nothing is given up
    Off,
}

impl SandboxArg {
    pub(crate) fn level(self) -> Level {
        match self {
            SandboxArg::Require => Level::Require,
            SandboxArg::Prefer => Level::Prefer,
            SandboxArg::Off => Level::Off,
        }
    }
}

/// Whether egresses get super-packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum GsoArg {
    /// They must take them
    On,
    /// Never
    Off,
    /// Those that take them do
    Auto,
}

/// What happens to packets whose lane has no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum FullArg {
    /// They are dropped, as lane-full
    Drop,
    /// They wait, and the port is held back
    Hold,
}

/// Whether to coalesce.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum GroArg {
    /// Always, whatever the egress takes
    On,
    /// Never
    Off,
    /// Where the egress takes super-packets, and while something merges
    Auto,
}

/// What a worker does when there is nothing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum IdleArg {
    /// Never gives the core away: lowest latency
    Spin,
    /// Gives way to others, but never sleeps
    Yield,
    /// Sleeps, but not while packets come within half a millisecond of one another
    Adaptive,
    /// Sleeps as soon as there is nothing to do: least processor time
    Sleep,
}

impl From<IdleArg> for Idle {
    fn from(idle: IdleArg) -> Idle {
        match idle {
            IdleArg::Spin => Idle::SPIN,
            IdleArg::Yield => Idle::YIELD,
            IdleArg::Adaptive => Idle::ADAPTIVE,
            IdleArg::Sleep => Idle::SLEEP,
        }
    }
}

fn steering(text: &str) -> Result<Steering, String> {
    const RULE: &str = "must be flow, rss, rss:KEY with a key of 80 hexadecimal digits, lane:N, or round-robin";
    match text.split_once(':') {
        None => match text {
            "flow" => Ok(Steering::Flow),
            "rss" => Ok(Steering::Rss(Box::new(Toeplitz::new(&Toeplitz::MICROSOFT_KEY)))),
            "round-robin" => Ok(Steering::RoundRobin),
            _ => Err(RULE.into()),
        },
        Some(("rss", hex)) if hex.len() == 80 && hex.is_ascii() => {
            let mut key = [0; 40];
            for (byte, digits) in key.iter_mut().zip(hex.as_bytes().chunks(2)) {
                let digits = str::from_utf8(digits).map_err(|_| RULE)?;
                *byte = u8::from_str_radix(digits, 16).map_err(|_| RULE)?;
            }
            Ok(Steering::Rss(Box::new(Toeplitz::new(&key))))
        }
        Some(("lane", n)) => n.parse().map(Steering::Lane).map_err(|_| RULE.into()),
        Some(_) => Err(RULE.into()),
    }
}
