//! The ports and routes of each command.

use crate::args::{Args, Command, Cores, Echo, FullArg, Fwd, Gen, GroArg, GsoArg, Record, Replay, Run, Serve, Sink};
use crate::output::{self, outln, show};
use crate::units::grouped;
use crate::{bench, bind, bridge, control, kinds, measure, probe, report, router, run, state, tables, tee, top, watch};
use clap::CommandFactory;
use std::error::Error;
use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;
use towpath::engine::filter::{Filter, FilterRules};
use towpath::engine::gro_stage::GroMode;
use towpath::engine::lane::FullPolicy;
use towpath::engine::rules::RuleError;
use towpath::packet::port::{Layer, Port};
use towpath::{Directions, Forward, Gso, Opener, Role, Uri, Verdicts};

/// What `towpath rules` prints.
const RULES: &str = "\
A rule is a verdict and what to match; all of it must match, and the first rule that does decides.

  pass                goes on: steering, lanes, GRO, egress
  drop                is dropped, and counted as filtered
  tx                  leaves by the port that it came from
  redirect a|b        leaves by that end of 'fwd A B'
  lane N              goes on in lane N, whatever its hash

  tcp udp sctp icmp icmp6 proto N      the transport
  src PREFIX  dst PREFIX               10.0.0.0/8, 2001:db8::/32
  sport PORTS dport PORTS              53, 1024-2047; never a fragment
  vlan IDS                             100, 100-199; in the frame or beside it
  smac MAC  dmac MAC                   02:00:00:00:00:01
  ip ip6 arp ether TYPE                the type behind all tags
  frag                                 parts of IP packets
  any                                  everything

Everything else is an expression of pcap-filter(7), as tcpdump takes it:

  drop tcp port 80 or 443 and not src net 10.0.0.0/8
  tx icmp[icmptype] = icmp-echo
  drop tcp[tcpflags] & (tcp-syn|tcp-fin) = (tcp-syn|tcp-fin)
  redirect b vlan 100 and ip6

Where both read a text ('drop tcp'), it is a rule; in parentheses, 'drop (tcp)', it is an expression, which sees no
further than pcap does: not behind tags without the word vlan, nor behind IPv6 extension headers.

  default VERDICT                      what becomes of the rest; pass if it is not given

Example:
  towpath fwd tap:a tap:b --rule 'drop udp dport 53' --rule 'tx icmp' --rule 'default pass'";

type Outcome = Result<ExitCode, Box<dyn Error>>;

pub(crate) fn dispatch(args: Args) -> Outcome {
    match args.command {
        Command::Fwd(fwd) => forward(fwd),
        Command::Gen(gen_) => generate(gen_),
        Command::Sink(sink) => drain(sink),
        Command::Echo(args) => echo(args),
        Command::Bridge(args) => bridge::bridge(&args),
        Command::Router(args) => router::router(&args),
        Command::Fdb(args) => tables::fdb(&args),
        Command::Route(args) => tables::route(&args),
        Command::Neigh(args) => tables::neigh(&args),
        Command::Serve(args) => serve(args),
        Command::Measure(args) => measure::measure(&args),
        Command::Record(record) => capture(record),
        Command::Replay(replay) => play(replay),
        Command::Probe(args) => probe::probe(&args),
        Command::Report(args) => report::report(&args),
        Command::Bind(args) => bind::bind(&args),
        Command::Unbind(args) => bind::unbind(&args),
        Command::Run(args) => run::run(args),
        Command::Reload(args) => control::reload(&args),
        Command::Set(args) => control::set(&args),
        Command::State(args) => state::state(&args),
        Command::Top(args) => top::top(&args),
        Command::Tee(args) => tee::watch(&args),
        Command::Extcap(args) => tee::extcap(&args),
        Command::Rules => {
            outln!("{RULES}")?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Help { topic } => kinds::help(&topic),
        Command::Complete { command, word } => {
            let words = kinds::complete(&command, &word);
            show(words.iter().map(|full| format!("{full}\n")).collect::<String>())?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Bench(args) => bench::bench(&args),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Args::command(), "towpath", &mut script);
            show(kinds::script(shell, &String::from_utf8_lossy(&script)))?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Man { directory } => {
            clap_mangen::generate_to(Args::command(), &directory)
                .and_then(|()| kinds::write_pages(&directory))
                .map_err(|error| format!("the man pages can't be written to {}: {error}", directory.display()))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn forward(mut fwd: Fwd) -> Outcome {
    let (a, b) = match (fwd.a, fwd.b) {
        (Some(a), Some(b)) => (a, b),
        _ => {
            fwd.oneway = true;
            fwd.run.duration.get_or_insert(Duration::from_secs(3));
            let seconds = fwd.run.duration.unwrap_or_default().as_secs_f32();
            eprintln!("no ports named: gen:flows=64,size=imix -> null: for {seconds} s, no root needed");
            eprintln!(
                "packets are made, coalesced (--gro off) and counted; the generator alone: towpath gen null: --size 64"
            );
            eprintln!("for real traffic: towpath fwd tap:a tap:b (see 'towpath fwd --help')\n");
            ("gen:flows=64,size=imix".to_owned(), "null:".to_owned())
        }
    };
    let directions = if fwd.oneway { Directions::OneWay } else { Directions::Both };
    let (from, to) = if fwd.oneway { (Role::Ingress, Role::Egress) } else { (Role::Both, Role::Both) };
    // A file is emptied when it is opened: what can be wrong with other options is found before.
    let plan = plan(&fwd.run, directions, true)?;
    let mut opener = Opener::new();
    let a = opener.open(&a.parse()?, from)?;
    let b: Uri = b.parse()?;
    note_file(&b)?;
    let b = opener.open(&b, to)?;
    opener.check()?;
    watch::run(plan, a, b, &fwd.run)
}

fn generate(mut args: Gen) -> Outcome {
    let mut opener = Opener::new();
    let address: Uri = args.port.parse()?;
    let mut options = Vec::new();
    // The generator stops at exactly this count; a limit on the route would generate more and drop
    // the rest.
    let count = args.run.count.take().map(|n| n.to_string());
    let named = [
        ("flows", args.flows),
        ("size", args.size),
        ("proto", args.proto),
        ("ip", args.ip),
        ("rate", args.rate),
        ("count", count),
        ("gso", args.segment),
        ("seed", args.seed),
    ];
    options.extend(named.into_iter().filter_map(|(key, value)| Some(format!("{key}={}", value?))));
    options.extend(args.more);
    let frames: Uri = format!("gen:{}", options.join(",")).parse()?;
    if let Some(maker) = opener.open_template_generator(&address, &frames)? {
        let nothing = opener.open(&"null:".parse()?, Role::Egress)?;
        return watch::run(plan(&args.run, Directions::OneWay, false)?, maker, nothing, &args.run);
    }
    note_file(&address)?;
    let to = opener.open(&address, Role::Egress)?;
    if to.info().layer == Layer::Ip {
        options.push("layer=ip".into());
    }
    let from = opener.open(&format!("gen:{}", options.join(",")).parse()?, Role::Ingress)?;
    opener.check()?;
    watch::run(plan(&args.run, Directions::OneWay, false)?, from, to, &args.run)
}

fn drain(args: Sink) -> Outcome {
    let mut opener = Opener::new();
    let from = opener.open(&args.port.parse()?, Role::Ingress)?;
    let layer = if from.info().layer == Layer::Ip { "ip" } else { "ethernet" };
    let expected = args.expect.map(|n| format!(",count={n}")).unwrap_or_default();
    let to = if args.verify { format!("gen:verify=on,layer={layer}{expected}") } else { "null:".to_owned() };
    let to = opener.open(&to.parse()?, Role::Egress)?;
    opener.check()?;
    watch::run(plan(&args.run, Directions::OneWay, false)?, from, to, &args.run)
}

fn echo(args: Echo) -> Outcome {
    let mut opener = Opener::new();
    let port = opener.open(&args.port.parse()?, Role::Both)?;
    opener.check()?;
    let plan = plan(&args.run, Directions::OneWay, false)?;
    watch::watch(plan.prepare_echo(port)?, &args.run)
}

fn serve(args: Serve) -> Outcome {
    let path = args.path.strip_prefix("sock:").unwrap_or(&args.path);
    forward(Fwd { a: Some(format!("sock:{path}")), b: Some(args.port), oneway: false, run: args.run })
}

fn capture(args: Record) -> Outcome {
    // Before the file is opened, as in `forward`.
    let mut plan = plan(&args.run, Directions::OneWay, false)?;
    if let Some(text) = args.filter {
        plan.at_rx = Verdicts::Rules(FilterRules::only(text.parse::<Filter>()?));
    }
    let mut opener = Opener::new();
    let from = opener.open(&args.port.parse()?, Role::Ingress)?;
    let mut more: Vec<String> = args.more.into_iter().collect();
    if from.info().layer == Layer::Ip {
        more.push("link=ip".into());
    }
    let to = file(&args.file, &more)?;
    note_file(&to)?;
    let to = opener.open(&to, Role::Egress)?;
    opener.check()?;
    watch::run(plan, from, to, &args.run)
}

fn play(args: Replay) -> Outcome {
    let mut opener = Opener::new();
    let mut more: Vec<String> = args.more.into_iter().collect();
    let timing = [(args.topspeed, "timing=fast"), (args.timing, "timing=original")];
    more.extend(timing.into_iter().filter(|(given, _)| *given).map(|(_, option)| option.to_owned()));
    let joined = |items: Vec<String>| (!items.is_empty()).then(|| items.join("+"));
    let (addresses, ports) = (joined(args.map_ip), joined(args.map_port));
    let named = [
        ("speed", args.speed),
        ("pps", args.pps),
        ("mbps", args.mbps),
        ("loop", args.passes),
        ("truncated", args.truncated),
        ("smac", args.smac),
        ("dmac", args.dmac),
        ("vlan", args.vlan),
        ("src", addresses.clone()),
        ("dst", addresses),
        ("sport", ports.clone()),
        ("dport", ports),
    ];
    more.extend(named.into_iter().filter_map(|(key, value)| Some(format!("{key}={}", value?))));
    // Before a file of the egress is emptied, as in `forward`.
    let plan = plan(&args.run, Directions::OneWay, false)?;
    let from = opener.open(&file(&args.file, &more)?, Role::Ingress)?;
    let to: Uri = args.port.parse()?;
    note_file(&to)?;
    let to = opener.open(&to, Role::Egress)?;
    opener.check()?;
    watch::run(plan, from, to, &args.run)
}

/// A file that is there already is written anew: it is named before. A capture on standard output
/// leaves it to nothing else.
pub(crate) fn note_file(to: &Uri) -> Result<(), String> {
    if to.scheme() != "pcap" {
        return Ok(());
    }
    if ["-", "/dev/stdout"].contains(&to.target()) {
        if std::io::stdout().is_terminal() {
            return Err(format!("{}: standard output is a terminal: redirect it, as in > file.pcap", to.short()));
        }
        output::leave_stdout();
        return Ok(());
    }
    let had = std::fs::metadata(to.target()).ok();
    if let Some(bytes) = had.filter(|file| file.is_file() && file.len() > 0).map(|file| file.len()) {
        eprintln!("note: {}: the file had {} bytes, and is overwritten", to.short(), grouped(bytes));
    }
    Ok(())
}

fn file(path: &Path, options: &[String]) -> Result<Uri, Box<dyn Error>> {
    let path = path.to_str().ok_or_else(|| format!("FILE={}: must be valid UTF-8", path.display()))?;
    Ok(format!("pcap:{path}?{}", options.join(",")).parse()?)
}

fn verdicts(texts: &[String]) -> Result<Verdicts, RuleError> {
    if texts.is_empty() { Ok(Verdicts::Pass) } else { FilterRules::parse(texts).map(Verdicts::Rules) }
}

/// The options that a unit of a file has.
pub(crate) fn run_of(command: &Command) -> Option<&Run> {
    match command {
        Command::Fwd(args) => Some(&args.run),
        Command::Bridge(args) => Some(&args.run),
        Command::Router(args) => Some(&args.run),
        _ => None,
    }
}

/// The options that all commands have.
pub(crate) fn plan(run: &Run, directions: Directions, forwards: bool) -> Result<Forward, RuleError> {
    let mut plan = Forward::default();
    plan.directions = directions;
    plan.workers = run.workers;
    plan.cores = Cores::all(&run.cores);
    plan.idle = run.idle.into();
    plan.egress_wait = run.egress_wait;
    plan.drain = run.drain;
    plan.lanes = Cores::all(&run.lanes);
    plan.steering.steering = run.steer.clone();
    plan.steering.full = if run.lane_full == FullArg::Drop { FullPolicy::Drop } else { FullPolicy::Hold };
    plan.steering.ring = run.lane_ring as usize;
    plan.rebalance = run.rebalance;
    plan.at_rx = verdicts(&run.rule)?;
    plan.in_lane = verdicts(&run.lane_rule)?;
    plan.gro.mode = match run.gro {
        Some(GroArg::On) => GroMode::On,
        Some(GroArg::Auto) => GroMode::Auto,
        Some(GroArg::Off) => GroMode::Off,
        // Generated, replayed and recorded packets arrive one by one unless the user asks
        // otherwise.
        None if forwards => GroMode::Auto,
        None => GroMode::Off,
    };
    plan.gro.hold = Duration::from_micros(run.gro_flush_us);
    plan.gro.max_size = run.gro_max_size;
    plan.gso = match run.gso {
        GsoArg::On => Gso::On,
        GsoArg::Off => Gso::Off,
        GsoArg::Auto => Gso::Auto,
    };
    plan.count = run.count;
    if let Some(size) = run.buffer_size {
        let memory = plan.pool.capacity * plan.pool.chunk;
        plan.pool.chunk = usize::try_from(size).unwrap_or(usize::MAX);
        plan.pool.capacity = memory / plan.pool.chunk.max(1);
    }
    if let Some(buffers) = run.buffers {
        plan.pool.capacity = usize::try_from(buffers).unwrap_or(usize::MAX);
    }
    plan.pool.floors.tx = plan.pool.capacity / 16;
    Ok(plan)
}
