//! The command line.
//!
//! | file | content |
//! |---|---|
//! | `mod` | commands and their ports |
//! | `run` | options of commands that move packets |
//! | `capture` | options of `record` and `replay` |
//! | `instance` | options of commands about a running instance |
//! | `bench` | options of `bench` |
//! | `bridge` | options of `bridge` |
//! | `file` | options of `run` and `reload` |
//! | `measure` | options of `measure` |
//! | `router` | options of `router` |
//! | `tables` | options of `fdb`, `route` and `neigh` |
//! | `values` | times, numbers, cores |

mod bench;
mod bridge;
mod capture;
mod file;
mod instance;
mod measure;
mod router;
mod run;
mod tables;
mod values;

pub(crate) use bench::{
    BatchTable, Bench, BenchBatch, BenchCopybreak, BenchCpumap, BenchGro, BenchKind, BenchLatency, BenchVm, BenchXsk,
    CpumapTable, Read, Ring,
};
pub(crate) use bridge::{Bridge, Of};
pub(crate) use capture::{Record, Replay};
pub(crate) use file::{Reload, RunFile};
pub(crate) use instance::{Extcap, Set, StateArgs, TeeArgs, TeeAt, Top};
pub(crate) use measure::Measure;
pub(crate) use router::{HopText, RouteText, Router, Subnet};
pub(crate) use run::{FullArg, GroArg, GsoArg, IdleArg, Run, SandboxArg};
pub(crate) use tables::{Fdb, Neigh, Route, TableArgs};
pub(crate) use values::Cores;

use crate::kinds::list;
use clap::{Args as ClapArgs, Parser, Subcommand, ValueHint};
use std::path::PathBuf;
use std::time::Duration;
use towpath::bus::vfio::Bdf;
use values::{number, span, time};

const FWD_EXAMPLES: &str = "\
Examples:
  towpath fwd                                  try it: built-in ports, no root, ends by itself
  towpath fwd tap:a tap:b                      a cable between two interfaces (root)
  towpath fwd packet:eth1 tap:vm0 --cores 1    pinned to a core
  towpath fwd gen:rate=1M,size=64 null: --oneway --duration 5s --json";

const MEASURE_EXAMPLES: &str = "\
Examples:
  towpath measure packet:eth1 packet:eth2                     the rate without loss of what joins eth1 and eth2
  towpath measure xdp:eth1 xdp:eth2 --size 64 --size imix --goal-loss 0 --goal-loss 0.5% --latency
  towpath measure packet:eth1 packet:eth2 --gen dst-mac=02:00:00:00:00:01,dst-ip=10.0.2.0/24 --bidirectional --json";

const ECHO_EXAMPLES: &str = "\
Examples:
  towpath echo xdp:eth1 --idle spin --cores 1          frames with their addresses swapped, as DPDK's macswap and xdpsock's l2fwd do
  towpath echo 'tun:tn0?addr=10.0.0.1/24'              IP packets with addresses and ports swapped: every UDP port answers";

const BRIDGE_EXAMPLES: &str = "\
Examples:
  towpath bridge tap:a tap:b tap:c                            a switch with three interfaces (root)
  towpath bridge packet:eth1 tap:vm0 tap:vm1 --storm 1000     at most 1000 broadcasts per second from each port
  towpath bridge tap:a tap:b xdp:eth1 --access tap:a=10 --access tap:b=20 --trunk xdp:eth1=10+20
  towpath bridge tap:a tap:b tap:c --control /run/towpath.sock      and then: towpath fdb --control /run/towpath.sock";

const RUN_EXAMPLES: &str = "\
Examples:
  towpath run /etc/towpath/main.toml --check
  towpath run /etc/towpath/main.toml

A file has units with the options of the commands, without dashes:
  control = \"/run/towpath.sock\"

  [bridge.lan]                                  # as 'towpath bridge'
  ageing = \"60s\"
  rule = [\"drop udp dport 53\"]
  [bridge.lan.ports]
  a = \"tap:a\"
  up = { port = \"xdp:eth1\", trunk = \"10+20\", native = 1 }

  [pair.wan]                                    # as 'towpath fwd'; [router.NAME] as 'towpath router'
  a = \"packet:eth2\"
  b = \"tap:wan\"";

const SERVE_EXAMPLES: &str = "\
Examples:
  towpath serve /run/towpath.sock 'tap:tp0?addr=10.0.0.1/24'
  towpath serve '/run/towpath.sock?mode=666,budget=1M' xdp:eth1     options as in sock:…
  towpath serve '/run/towpath.sock?mode=666,user-memory=256M,allow=1000:udp dport 5000-5999' xdp:eth1
                                               several users: limits, and what each may ask for (docs/limits.md)";

/// A user-space network datapath: moves packets between ports of all kinds.
#[derive(Debug, Parser)]
#[command(name = "towpath", version, about, long_about = None, max_term_width = 110, disable_help_subcommand = true, after_long_help = list())]
pub(crate) struct Args {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Move packets between two ports, both ways (without ports: a trial on built-in ones)
    #[command(after_help = FWD_EXAMPLES, after_long_help = format!("{FWD_EXAMPLES}\n\n{}", list()))]
    Fwd(Fwd),
    /// Generate packets into a port
    #[command(after_long_help = list())]
    Gen(Gen),
    /// Receive from a port and count
    #[command(after_long_help = list())]
    Sink(Sink),
    /// Send back what a port receives: Ethernet addresses swapped, or, where there are none, IP
    /// addresses and ports
    #[command(after_help = ECHO_EXAMPLES, after_long_help = format!("{ECHO_EXAMPLES}\n\n{}", list()))]
    Echo(Echo),
    /// Join ports by a learning bridge: frames go to the port that their address is behind
    #[command(after_help = BRIDGE_EXAMPLES, after_long_help = format!("{BRIDGE_EXAMPLES}\n\n{}", list()))]
    Bridge(Bridge),
    /// Route IP packets between ports, with own tables or beside a routing daemon
    #[command(
        after_help = "Examples:\n  towpath router tap:a tap:b --address tap:a=192.0.2.1/24 --address tap:b=198.51.100.1/24\n  \
        towpath router tap:a tap:b … --route 'default via 198.51.100.254'\n  \
        towpath router xdp:eth1 xdp:eth2 --mirror plane      FRR or BIRD run in the network namespace 'plane' (docs/router.md)"
    )]
    Router(Router),
    /// Run what a file describes: any number of pairs, bridges and routers; SIGHUP or 'towpath
    /// reload' reads it again
    #[command(after_help = RUN_EXAMPLES, after_long_help = format!("{RUN_EXAMPLES}\n\n{}", list()))]
    Run(RunFile),
    /// Have a running 'towpath run' read its file again (see --control); what did not change goes
    /// on
    #[command(after_help = "Example:\n  towpath reload --control /run/towpath.sock")]
    Reload(Reload),
    /// Show the addresses that a running bridge knows (see --control of 'bridge')
    #[command(after_help = "Examples:\n  towpath fdb --control /run/towpath.sock --port tap:a\n  \
        towpath fdb --control /run/towpath.sock --flush tap:a")]
    Fdb(Fdb),
    /// Show the routes that a running router uses (see --control of 'router')
    #[command(
        alias = "routes",
        after_help = "Examples:\n  towpath route --control /run/towpath.sock 198.51.100.7\n  \
        towpath route --control /run/towpath.sock 10.0.0.0/8 --json"
    )]
    Route(Route),
    /// Show the neighbours of a running router: their addresses, MAC addresses and states (see
    /// --control of 'router')
    #[command(aliases = ["neighbour", "neighbor", "neighbours", "neighbors"],
        after_help = "Example:\n  towpath neigh --control /run/towpath.sock --port tap:a")]
    Neigh(Neigh),
    /// Let applications send and receive through a port: 'fwd sock:PATH PORT'
    #[command(after_help = SERVE_EXAMPLES, after_long_help = format!("{SERVE_EXAMPLES}\n\n{}", list()))]
    Serve(Serve),
    /// Find the highest rate that the device between two ports forwards, by MLRsearch, and its
    /// latency
    #[command(after_help = MEASURE_EXAMPLES, after_long_help = format!("{MEASURE_EXAMPLES}\n\n{}", list()))]
    Measure(Measure),
    /// Record what a port receives in a capture file
    #[command(after_long_help = list())]
    Record(Record),
    /// Send a capture file to a port
    #[command(after_long_help = list())]
    Replay(Replay),
    /// Tell what a port can do here, what not, why, and the command that would fix it
    #[command(after_long_help = list())]
    Probe(Probe),
    /// Collect what is needed to find out why a device does not work, in one file to send back
    #[command(after_help = "Example:\n  towpath report e1000e:vfio=0000:03:00.0 >report.txt\n\n\
        It has no packets, no serial numbers and no addresses of hosts; it has the port's MAC address. A port of a device runs for \
        a while: its link comes up, and what it receives is counted and dropped.", after_long_help = list())]
    Report(ReportArgs),
    /// Hand a PCI function over to vfio-pci, so that a port can use it (root)
    #[command(after_help = "Example:\n  towpath bind 0000:03:00.0 && towpath probe e1000e:vfio=0000:03:00.0")]
    Bind(Bind),
    /// Give a PCI function back to the driver that had it (root)
    Unbind(Unbind),
    /// Show or change settings of ports while they run (see --control of the commands that move
    /// packets)
    #[command(after_help = "Example:\n  towpath fwd e1000e:vfio=0000:03:00.0 tap:a --control /run/towpath.sock\n  \
        towpath set --control /run/towpath.sock e1000e:vfio=0000:03:00.0 copybreak=256\n  \
        towpath set --control /run/towpath.sock e1000e:vfio=0000:03:00.0 receive=own vlans=10+100-199")]
    Set(Set),
    /// Show the state of a running towpath: ports, routes, drops, times, flows (see --control)
    #[command(after_help = "Example:\n  towpath fwd tap:a tap:b --control /run/towpath.sock\n  \
        towpath state --control /run/towpath.sock\n  \
        towpath state --control /run/towpath.sock --json | jq '.units[0].ports[].rx'")]
    State(StateArgs),
    /// Watch a running towpath in this terminal: rates of ports and routes, flows, drops (see
    /// --control)
    #[command(
        after_help = "Keys: 1 to 7 or Tab for the views, s and r sort, / filters, p pauses, + and - change the interval, \
        ? for help, q ends.\n\nExample:\n  towpath top --control /run/towpath.sock\n  \
        towpath top --control /run/towpath.sock --once --view flows"
    )]
    Top(Top),
    /// Watch the packets of a running towpath (see --control of the commands that move packets)
    #[command(after_help = "Examples:\n  towpath tee --control /run/towpath/eth1 | tshark -r -\n  \
        towpath tee --control /run/towpath/eth1 --filter 'tcp port 80' --snaplen 96 -w web.pcapng\n  \
        towpath tee --control /run/towpath/eth1 --drops | tshark -r - -T fields -e frame.comment")]
    Tee(TeeArgs),
    /// Running instances as interfaces of Wireshark: the Debian package has the plugin,
    /// docs/tee.md has it for others
    Extcap(Extcap),
    /// Explain the rules of --rule and --lane-rule
    Rules,
    /// Measure what towpath is judged by, in the shape of the tables that it is compared with
    Bench(Bench),
    /// Print the help of a command, or the options of a kind of port: 'towpath help tap'
    Help {
        /// A command, or a kind of port (with a colon where both have the name: gen:)
        #[arg(value_name = "COMMAND|KIND")]
        topic: Vec<String>,
    },
    /// Print what a word of the command line may become, for the completion of shells
    #[command(hide = true)]
    Complete {
        /// The command
        command: String,
        /// The word so far
        word: String,
    },
    /// Print a completion script for a shell; those for bash, zsh and fish have ports, their
    /// options, interfaces and namespaces
    #[command(after_help = "Example:\n  towpath completions bash > /etc/bash_completion.d/towpath")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the man pages, towpath.1, one for each command, and one for each kind of port
    /// (section 7), into a directory
    #[command(after_help = "Example:\n  towpath man /usr/local/share/man/man1")]
    Man {
        /// The directory, which exists
        #[arg(value_hint = ValueHint::DirPath)]
        directory: PathBuf,
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
    /// Check the numbers of packets that 'towpath gen' made: lost, late, twice
    #[arg(long)]
    pub(crate) verify: bool,
    /// How many packets --verify expects, over all flows
    #[arg(long, value_name = "N", requires = "verify", value_parser = number)]
    pub(crate) expect: Option<u64>,
    #[command(flatten)]
    pub(crate) run: Run,
}

/// `towpath echo`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Echo {
    /// Where the packets come from and go back to
    #[arg(value_name = "PORT")]
    pub(crate) port: String,
    #[command(flatten)]
    pub(crate) run: Run,
}

/// `towpath serve`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Serve {
    /// Where applications connect to
    #[arg(value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub(crate) path: String,
    /// What they send and receive through
    #[arg(value_name = "PORT", value_hint = ValueHint::Other)]
    pub(crate) port: String,
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

/// `towpath report`.
#[derive(Debug, ClapArgs)]
pub(crate) struct ReportArgs {
    /// The port
    #[arg(value_name = "PORT")]
    pub(crate) port: String,
    /// How long a device runs; 0s: not at all
    #[arg(long, value_name = "TIME", default_value = "6s", value_parser = time)]
    pub(crate) run: Duration,
    /// One line of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `towpath bind`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Bind {
    /// PCI addresses, as lspci -D shows them; all or none are handed over
    #[arg(value_name = "BDF", required = true)]
    pub(crate) bdfs: Vec<Bdf>,
    /// Also one whose interface has addresses or is part of a bridge, or for which there is no
    /// driver here
    #[arg(long)]
    pub(crate) force: bool,
}

/// `towpath unbind`. A device that a killed process left running is stopped first.
#[derive(Debug, ClapArgs)]
pub(crate) struct Unbind {
    /// PCI addresses
    #[arg(value_name = "BDF", required = true)]
    pub(crate) bdfs: Vec<Bdf>,
    /// Also one that a process has open: the kernel asks it to close the function, and waits; a
    /// port of towpath does at once
    #[arg(long)]
    pub(crate) force: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
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
