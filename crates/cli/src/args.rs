//! What can be typed.

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum, ValueHint};
use std::path::PathBuf;
use std::time::Duration;
use towpath::datapath::lane::Steering;
use towpath::datapath::uri::{parse_duration, parse_number};
use towpath::wire::Toeplitz;

const PORTS_HELP: &str = "\
Ports:
  A port is written scheme:target?option=value,option=value
  tap:tp0             an interface of the kernel with Ethernet frames (made if it does not exist; needs CAP_NET_ADMIN)
  tun:tn0             an interface of the kernel with IP packets
  packet:eth1         any interface that exists, by AF_PACKET (needs CAP_NET_RAW)
  veth:name           one end of a pair in memory; the second port of that name is the other end
  pcap:file.pcapng    a capture file, read or written
  gen:flows=8         a packet generator
  null:               takes everything
  fault:drop=1%@tap:tp0     another port, with seeded faults
  'towpath probe PORT' tells what a port can do here, and its options.";

const FWD_EXAMPLES: &str = "\
Examples:
  towpath fwd                                  try it: built-in ports, no root, ends by itself
  towpath fwd tap:a tap:b                      a cable between two interfaces (root)
  towpath fwd packet:eth1 tap:vm0 --cores 1    pinned to a core
  towpath fwd gen:rate=1M,size=64 null: --oneway --duration 5s --json";

/// A user-space network datapath: moves packets between ports of all kinds.
#[derive(Debug, Parser)]
#[command(name = "towpath", version, about, long_about = None, max_term_width = 110, after_long_help = PORTS_HELP)]
pub(crate) struct Args {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Move packets between two ports, both ways (without ports: a trial on built-in ones)
    #[command(after_help = FWD_EXAMPLES, after_long_help = format!("{FWD_EXAMPLES}\n\n{PORTS_HELP}"))]
    Fwd(Fwd),
    /// Generate packets into a port
    #[command(after_long_help = PORTS_HELP)]
    Gen(Gen),
    /// Receive from a port and count
    #[command(after_long_help = PORTS_HELP)]
    Sink(Sink),
    /// Record what a port receives in a capture file
    #[command(after_long_help = PORTS_HELP)]
    Record(Record),
    /// Send a capture file to a port
    #[command(after_long_help = PORTS_HELP)]
    Replay(Replay),
    /// Tell what a port can do here, what not, why, and the command that would mend it
    #[command(after_long_help = PORTS_HELP)]
    Probe(Probe),
    /// Explain the rules of --rule and --lane-rule
    Rules,
    /// Measure what towpath is judged by, in the shape of the tables that it is compared with
    Bench(Bench),
    /// Print a completion script for a shell
    #[command(after_help = "Example:\n  towpath completions bash > /etc/bash_completion.d/towpath")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// `towpath fwd`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Fwd {
    /// One port
    #[arg(value_name = "A", requires = "b", value_hint = ValueHint::Other)]
    pub(crate) a: Option<String>,
    /// The other port
    #[arg(value_name = "B", value_hint = ValueHint::Other)]
    pub(crate) b: Option<String>,
    /// Only from A to B
    #[arg(long)]
    pub(crate) oneway: bool,
    #[command(flatten)]
    pub(crate) run: Run,
}

/// `towpath gen`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Gen {
    /// Where the packets go
    #[arg(value_name = "PORT")]
    pub(crate) port: String,
    /// Flows, which take turns
    #[arg(long, value_name = "N")]
    pub(crate) flows: Option<String>,
    /// Bytes of a packet from its first header on, or imix
    #[arg(long, value_name = "BYTES|imix")]
    pub(crate) size: Option<String>,
    /// udp or tcp
    #[arg(long, value_name = "PROTO")]
    pub(crate) proto: Option<String>,
    /// IP version, 4 or 6
    #[arg(long, value_name = "4|6")]
    pub(crate) ip: Option<String>,
    /// Packets per second, with k or M; as fast as possible if it is not given
    #[arg(long, value_name = "PPS")]
    pub(crate) rate: Option<String>,
    /// Make super-packets of --size with so many bytes of payload in each segment
    #[arg(long, value_name = "BYTES")]
    pub(crate) segment: Option<String>,
    /// Seed of everything that varies
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<String>,
    /// More options of the generator, as in gen:… (see 'towpath probe gen:')
    #[arg(long = "with", value_name = "KEY=VALUE,…")]
    pub(crate) more: Option<String>,
    #[command(flatten)]
    pub(crate) run: Run,
}

/// `towpath sink`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Sink {
    /// Where the packets come from
    #[arg(value_name = "PORT")]
    pub(crate) port: String,
    #[command(flatten)]
    pub(crate) run: Run,
}

/// `towpath record`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Record {
    /// Where the packets come from
    #[arg(value_name = "PORT")]
    pub(crate) port: String,
    /// The file: .pcap or .pcapng
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// Options of the file, as in pcap:…?rotate-size=100M (see 'towpath probe pcap:FILE')
    #[arg(long = "with", value_name = "KEY=VALUE,…")]
    pub(crate) more: Option<String>,
    #[command(flatten)]
    pub(crate) run: Run,
}

/// `towpath replay`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Replay {
    /// The file: pcap or pcapng
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// Where the packets go
    #[arg(value_name = "PORT")]
    pub(crate) port: String,
    /// Keep the times between packets as they were recorded, instead of sending as fast as possible
    #[arg(long)]
    pub(crate) timing: bool,
    /// Options of the file, as in pcap:…?loop=10
    #[arg(long = "with", value_name = "KEY=VALUE,…")]
    pub(crate) more: Option<String>,
    #[command(flatten)]
    pub(crate) run: Run,
}

/// `towpath probe`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Probe {
    /// The port
    #[arg(value_name = "PORT")]
    pub(crate) port: String,
    /// For machines
    #[arg(long)]
    pub(crate) json: bool,
}

/// `towpath bench`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Bench {
    /// Which.
    #[command(subcommand)]
    pub(crate) kind: BenchKind,
}

/// The benches.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchKind {
    /// GRO off against GRO on: a counting sink, the kernel's stack behind a TAP (root), a lane
    Gro(BenchGro),
}

/// `towpath bench gro`.
#[derive(Debug, ClapArgs)]
pub(crate) struct BenchGro {
    /// Bytes of a UDP frame
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u32).range(43..=1514))]
    pub(crate) size: u32,
    /// Flows, which take turns
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) flows: u32,
    /// Rounds, each with GRO off and on; the median counts
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Time of one measurement
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "1s")]
    pub(crate) seconds: Duration,
    /// Fail if anything had to be skipped
    #[arg(long)]
    pub(crate) require: bool,
    /// For machines
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of every command that moves packets.
#[derive(Debug, Clone, ClapArgs)]
pub(crate) struct Run {
    /// Stop after this time: 10s, 5m, 1h
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) duration: Option<Duration>,
    /// Stop after so many packets
    #[arg(long, value_name = "N", value_parser = number)]
    pub(crate) count: Option<u64>,
    /// Coalesce packets of a flow that follow each other; without it: auto for fwd, off for the others
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
    /// What becomes of packets as they are received, in order: pass, drop, tx, redirect a|b, lane N, and what to match:
    /// 'drop udp dport 53', 'redirect b vlan 100', 'default drop' (see 'towpath rules')
    #[arg(long, value_name = "RULE", help_heading = "Rules")]
    pub(crate) rule: Vec<String>,
    /// The same, in the lane
    #[arg(long, value_name = "RULE", requires = "lanes", help_heading = "Rules")]
    pub(crate) lane_rule: Vec<String>,
    /// Cores of lanes, which take the packets of their flows from all workers; none: the workers do all the work
    #[arg(long, value_name = "CORES", value_delimiter = ',', help_heading = "Lanes")]
    pub(crate) lanes: Vec<usize>,
    /// How a packet gets to its lane: flow, rss, rss:KEY (40 bytes in hex), lane:N, round-robin (which breaks the order of flows)
    #[arg(long, value_name = "HOW", value_parser = steering, default_value = "flow", help_heading = "Lanes")]
    pub(crate) steer: Steering,
    /// What happens to packets whose lane has no room
    #[arg(long, value_enum, default_value_t = FullArg::Hold, help_heading = "Lanes")]
    pub(crate) lane_full: FullArg,
    /// Packets that wait between a worker and a lane
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(64..=65536), help_heading = "Lanes")]
    pub(crate) lane_ring: u32,
    /// Move flows from busy to idle lanes while running
    #[arg(long, help_heading = "Lanes")]
    pub(crate) rebalance: bool,
    /// Threads; each runs one queue of both ports
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Workers")]
    pub(crate) workers: u16,
    /// Cores to pin the workers to, in order
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = "Workers")]
    pub(crate) cores: Vec<usize>,
    /// What a worker does when there is nothing to do
    #[arg(long, value_enum, default_value_t = IdleArg::Sleep, help_heading = "Workers")]
    pub(crate) idle: IdleArg,
    /// Buffers of 2 KiB for everything
    #[arg(long, value_name = "N", value_parser = number, help_heading = "Workers")]
    pub(crate) buffers: Option<u64>,
    /// How long a port may refuse packets before those held for it are dropped
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "10ms", help_heading = "Workers")]
    pub(crate) egress_wait: Duration,
    /// How long packets under way get to leave when stopping
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "1s", help_heading = "Workers")]
    pub(crate) drain: Duration,
    /// JSON on standard output: a line per interval, and the summary as the last
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
    /// Time between live updates
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "1s", help_heading = "Output")]
    pub(crate) interval: Duration,
    /// No live updates, only the summary
    #[arg(long, short, help_heading = "Output")]
    pub(crate) quiet: bool,
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
    /// Sleeps until something arrives: a quiet datapath costs nothing
    Sleep,
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

fn time(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text).ok_or("must be a time such as 250us, 10ms, 5s, 2m")?;
    if time > Duration::from_secs(100 * 365 * 86400) {
        Err("must be less than a hundred years".into())
    } else {
        Ok(time)
    }
}

fn number(text: &str) -> Result<u64, String> {
    match parse_number(text) {
        Some(n) if n > 0 => Ok(n),
        _ => Err("must be a whole number above 0; k, M and G are powers of 1000".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_contradicts_itself_nowhere() {
        use clap::CommandFactory;
        Args::command().debug_assert();
    }

    #[test]
    fn one_port_alone_is_refused() {
        assert!(Args::try_parse_from(["towpath", "fwd", "tap:a"]).is_err());
        assert!(Args::try_parse_from(["towpath", "fwd", "tap:a", "tap:b"]).is_ok());
    }

    #[test]
    fn bad_numbers_name_the_option_and_the_rule() {
        let error = Args::try_parse_from(["towpath", "fwd", "--duration", "soon"]).unwrap_err().to_string();
        assert!(error.contains("--duration") && error.contains("soon") && error.contains("10ms"), "{error}");
    }
}
