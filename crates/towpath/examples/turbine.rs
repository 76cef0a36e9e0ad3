//! Sends UDP datagrams to many destinations, as a validator's turbine does: frames are built in
//! place, each behind the headers of its destination, and leave by an AF_XDP socket beside the
//! host.
//!
//! ```text
//!   NextHops (thread, netlink) ──► Table ──► Template per destination, made again after a change
//!   pool ──► payload, then the headers in front of it ──► TX ring of xdp:IF?rx=off
//! ```
//!
//! ```sh
//! sudo cargo run --release -p towpath --example turbine -- xdp:eth1 \
//!     --to 192.0.2.0/24:8001 --rate 100k --seconds 10
//! ```

use std::collections::HashSet;
use std::error::Error;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;
use std::time::{Duration, Instant};
use towpath::packet::port::{Calls, Needs, Port, Queues, Start, TxQueue, Wake};
use towpath::packet::{Batch, Cache, Direction, Offloads, Packet, Pool, PoolConfig};
use towpath::sandbox::{Level, enforce};
use towpath::wire::emit::{Template, Udp, UdpChecksum};
use towpath::{AnyTx, Opener, Role};
use towpath_nexthop::{NextHops, Reader, Table, Unreachable};
use towpath_sys::poll::PollSet;

const HELP: &str = "\
Sends UDP datagrams to many destinations through an AF_XDP socket, beside the host's own traffic.

Usage: turbine PORT --to DESTINATION… [OPTIONS]

  PORT                  xdp:eth1, with the options of 'towpath probe xdp:eth1'; packet:eth1 works too
  --to DESTINATION      192.0.2.7:8001, [2001:db8::7]:8001, or all hosts of 192.0.2.0/24:8001; may be repeated
  --size BYTES          payload of a datagram, 8 to 1400 [1200]
  --rate PPS            datagrams per second, with k or M [as fast as possible]
  --count N             datagrams to send [no limit]
  --seconds S           time to send [no limit; 10 without --count]
  --source-port PORT    [8000]
  --checksum            UDP checksums over IPv4 too
  --sandbox LEVEL       off, prefer or require: rights that are kept once the port is started [prefer]
  --help

Each payload begins with its number, 8 bytes, big-endian. Needs CAP_NET_RAW; all capabilities are dropped
before the first datagram. A destination with an unknown neighbour is sent to once that is resolved; one that
no route reaches, or a route by another interface, is reported.
";

/// Datagrams of one call.
const BURST: usize = 64;
/// Time after which stale neighbours are confirmed: the kernel sees nothing of this traffic.
const CONFIRM: Duration = Duration::from_secs(10);
/// Time between two resolutions of the same neighbour.
const RESOLVE: Duration = Duration::from_millis(250);
/// Most destinations.
const MAX_DESTINATIONS: usize = 65_536;

struct Args {
    port: String,
    to: Vec<(IpAddr, u16)>,
    size: usize,
    rate: Option<f64>,
    count: u64,
    time: Option<Duration>,
    source_port: u16,
    checksum: UdpChecksum,
    sandbox: Level,
}

type Failure = Box<dyn Error>;

fn parse<T: FromStr>(option: &str, text: &str) -> Result<T, Failure> {
    text.parse().map_err(|_| format!("{option} {text}: must be a number in its range").into())
}

/// A number with an optional factor of a thousand or a million.
fn number(option: &str, text: &str) -> Result<f64, Failure> {
    let (digits, factor) = match text.strip_suffix(['k', 'M']) {
        Some(digits) => (digits, if text.ends_with('k') { 1e3 } else { 1e6 }),
        None => (text, 1.0),
    };
    let value: f64 = parse(option, digits)?;
    if value.is_finite() && value >= 0.0 {
        Ok(value * factor)
    } else {
        Err(format!("{option} {text}: must be 0 or more").into())
    }
}

/// The addresses of `ADDRESS:PORT`, or of the hosts in `ADDRESS/LEN:PORT`.
fn destinations(text: &str) -> Result<Vec<(IpAddr, u16)>, Failure> {
    let bad = || format!("--to {text}: must be ADDRESS:PORT, [ADDRESS]:PORT or ADDRESS/LEN:PORT");
    let (address, port) = text.rsplit_once(':').ok_or_else(bad)?;
    let port = port.parse().map_err(|_| bad())?;
    let Some((net, len)) = address.split_once('/') else {
        let address = address.trim_start_matches('[').trim_end_matches(']');
        return Ok(vec![(address.parse().map_err(|_| bad())?, port)]);
    };
    let (net, len): (Ipv4Addr, u32) = (net.parse().map_err(|_| bad())?, len.parse().map_err(|_| bad())?);
    if !(16..=30).contains(&len) {
        return Err(format!("--to {text}: LEN must be from 16 to 30").into());
    }
    let first = u32::from(net) & !(u32::MAX >> len);
    let hosts = 1..(u32::MAX >> len);
    Ok(hosts.map(|host| (Ipv4Addr::from(first + host).into(), port)).collect())
}

fn args() -> Result<Option<Args>, Failure> {
    let mut args = Args {
        port: String::new(),
        to: Vec::new(),
        size: 1200,
        rate: None,
        count: u64::MAX,
        time: None,
        source_port: 8000,
        checksum: UdpChecksum::None,
        sandbox: Level::Prefer,
    };
    let mut all = std::env::args().skip(1);
    while let Some(arg) = all.next() {
        let mut value = || all.next().ok_or_else(|| format!("{arg}: its value is missing"));
        match arg.as_str() {
            "--help" | "-h" => return Ok(None),
            "--to" => args.to.extend(destinations(&value()?)?),
            "--size" => args.size = parse(&arg, &value()?)?,
            "--rate" => args.rate = Some(number(&arg, &value()?)?),
            "--count" => args.count = number(&arg, &value()?)? as u64,
            "--seconds" => {
                let seconds = value()?;
                let time = Duration::try_from_secs_f64(number(&arg, &seconds)?);
                args.time = Some(time.map_err(|error| format!("{arg} {seconds}: {error}"))?);
            }
            "--source-port" => args.source_port = parse(&arg, &value()?)?,
            "--checksum" => args.checksum = UdpChecksum::Full,
            "--sandbox" => {
                args.sandbox = match value()?.as_str() {
                    "off" => Level::Off,
                    "prefer" => Level::Prefer,
                    "require" => Level::Require,
                    other => return Err(format!("--sandbox {other}: must be off, prefer or require").into()),
                }
            }
            _ if args.port.is_empty() && !arg.starts_with('-') => args.port = arg,
            _ => return Err(format!("{arg}: no such option; --help shows them").into()),
        }
    }
    if args.port.is_empty() || args.to.is_empty() {
        return Err("a port and --to are needed; --help shows the rest".into());
    }
    if args.to.len() > MAX_DESTINATIONS || !(8..=1400).contains(&args.size) {
        return Err(format!("--to: at most {MAX_DESTINATIONS} destinations; --size: from 8 to 1400").into());
    }
    if args.count == u64::MAX && args.time.is_none() {
        args.time = Some(Duration::from_secs(10));
    }
    Ok(Some(args))
}

/// A destination, and the headers of its frames.
struct Destination {
    address: IpAddr,
    port: u16,
    headers: Result<Template, Unreachable>,
    /// Time of the last resolution of its neighbour.
    resolved: Option<Instant>,
    sent: u64,
}

/// What all frames have in common.
struct Frames {
    size: usize,
    source_port: u16,
    checksum: UdpChecksum,
    /// The interfaces that the port sends on: its own, or the one that it is a part of.
    devices: Vec<u32>,
}

impl Frames {
    /// The headers of frames to a destination.
    fn headers(&self, table: &Table, address: IpAddr, port: u16) -> Result<Template, Unreachable> {
        let hop = table.next_hop(address)?;
        if !self.devices.contains(&hop.device) {
            return Err(Unreachable::Unsupported("the route takes another interface than the port"));
        }
        let ip_header = if address.is_ipv4() { 20 } else { 40 };
        if self.size + ip_header + 8 > hop.mtu as usize {
            return Err(Unreachable::Unsupported("the datagram exceeds the MTU"));
        }
        // IPv6 has always a checksum.
        let checksum = if address.is_ipv4() { self.checksum } else { UdpChecksum::Full };
        let udp = Udp { src_port: self.source_port, dst_port: port };
        hop.template(address, udp, checksum).map_err(|_| Unreachable::Unsupported("headers of another version"))
    }

    /// A frame: the payload where the pool's headroom ends, the headers in the headroom.
    fn build(&self, cache: &mut Cache, headers: &Template, number: u64) -> Option<Packet> {
        let mut packet = cache.alloc()?;
        let payload = packet.push_back(self.size).ok()?;
        payload.fill(0);
        payload.first_chunk_mut().map(|to| *to = number.to_be_bytes())?;
        packet.push_front(headers.len()).ok()?;
        headers.write(packet.linear_mut()).ok()?;
        Some(packet)
    }
}

/// Sleeps until frames complete, for a millisecond at most.
fn rest(tx: &mut AnyTx, poll: &mut PollSet) {
    let time = Duration::from_millis(1);
    match tx.wake() {
        // What completed before the call of `wake` is not signalled.
        Wake::Readable(_) if tx.reclaim() > 0 => {}
        Wake::Readable(fd) => {
            poll.clear();
            poll.readable(fd);
            poll.wait(time);
        }
        _ => std::thread::sleep(time / 10),
    }
}

fn run(args: &Args) -> Result<(), Failure> {
    let port = Opener::new().open(&args.port.parse()?, Role::Egress)?;
    let interface = port.info().interface.clone().ok_or("the port has no interface whose routes there could be")?;
    let next_hops = NextHops::watch()?;
    // Headers of every kind fit in front of the payload.
    let pool = Pool::new(PoolConfig::default().capacity(8192).headroom(256))?;
    let mut cache = pool.cache(Direction::Tx)?;
    let Queues { mut tx, .. } = port.start(Start { pool: pool.clone(), queues: 1, accept: Offloads::NONE })?;
    let tx = tx.first_mut().ok_or("the port has no queue")?;
    // From here on nothing needs a capability. The system calls are those of open sockets.
    enforce(&Needs::none().calls([Calls::Sockets, Calls::Interface]), args.sandbox)?;

    let devices = std::iter::once(interface.index).chain(interface.master.map(|master| master.index)).collect();
    let (size, source_port, checksum) = (args.size, args.source_port, args.checksum);
    let frames = Frames { size, source_port, checksum, devices };
    let mut reader = next_hops.reader();
    let of = |(address, port): &(IpAddr, u16)| Destination {
        address: *address,
        port: *port,
        headers: frames.headers(reader.table(), *address, *port),
        resolved: None,
        sent: 0,
    };
    let mut to: Vec<_> = args.to.iter().map(of).collect();
    let mut poll = PollSet::with_capacity(1);
    let start = Instant::now();
    // A time beyond what the clock can express is no limit.
    let end = args.time.and_then(|time| start.checked_add(time));
    let (mut made, mut next, mut confirmed, mut batch) = (0, 0, start, Batch::<BURST>::new());
    while made < args.count && end.is_none_or(|end| Instant::now() < end) {
        let now = Instant::now();
        if reader.refresh() {
            for destination in &mut to {
                destination.headers = frames.headers(reader.table(), destination.address, destination.port);
            }
        }
        if now - confirmed > CONFIRM {
            confirm(&next_hops, &reader, &to);
            confirmed = now;
        }
        let allowed = args.rate.map_or(u64::MAX, |rate| (rate * (now - start).as_secs_f64()) as u64 + 1);
        let room = BURST - batch.len();
        let want = batch.len() + allowed.min(args.count).saturating_sub(made).min(room as u64) as usize;
        let mut looked_at = 0;
        while batch.len() < want && looked_at < to.len().max(BURST) {
            let at = next % to.len();
            match &to[at].headers {
                Ok(headers) => {
                    let Some(packet) = frames.build(&mut cache, headers, made) else { break };
                    let _ = batch.push(packet);
                    (made, to[at].sent) = (made + 1, to[at].sent + 1);
                }
                Err(Unreachable::NoNeighbour { device, address }) => {
                    if to[at].resolved.is_none_or(|at| now - at > RESOLVE) {
                        let _ = next_hops.resolve(*device, *address);
                        to[at].resolved = Some(now);
                    }
                }
                Err(_) => {}
            }
            (next, looked_at) = (next + 1, looked_at + 1);
        }
        tx.reclaim();
        // What the queue refuses stays in the batch, and goes first in the next turn.
        if tx.tx(&mut batch) == 0 {
            rest(tx, &mut poll);
        }
        tx.kick();
    }
    // What is left has two seconds.
    let patience = Instant::now() + Duration::from_secs(2);
    while (tx.pending() > 0 || !batch.is_empty()) && Instant::now() < patience {
        tx.tx(&mut batch);
        if tx.reclaim() == 0 {
            rest(tx, &mut poll);
        }
    }
    report(&to, tx, start.elapsed());
    Ok(())
}

/// Has the kernel confirm the neighbours that are used.
fn confirm(next_hops: &NextHops, reader: &Reader, to: &[Destination]) {
    let neighbour = |to: &Destination| {
        let path = reader.table().path(to.address).ok()?;
        Some((path.device, path.gateway.unwrap_or(to.address)))
    };
    for (device, address) in to.iter().filter_map(neighbour).collect::<HashSet<_>>() {
        let _ = next_hops.resolve(device, address);
    }
}

fn report(to: &[Destination], tx: &AnyTx, time: Duration) {
    let counters = tx.counters().snapshot();
    let reached = to.iter().filter(|destination| destination.sent > 0).count();
    let rate = counters.packets as f64 / time.as_secs_f64() / 1e6;
    println!(
        "sent {} datagrams to {reached} of {} destinations in {:.2} s: {rate:.3} Mpps; dropped {}",
        counters.packets,
        to.len(),
        time.as_secs_f64(),
        counters.all_drops(),
    );
    for destination in to.iter().filter(|destination| destination.sent == 0).take(10) {
        let why =
            destination.headers.as_ref().err().map_or_else(|| "not reached in time".to_owned(), |e| e.to_string());
        println!("{}:{}: {why}", destination.address, destination.port);
    }
}

fn main() -> std::process::ExitCode {
    let done = args().and_then(|args| match args {
        Some(args) => run(&args),
        None => {
            print!("{HELP}");
            Ok(())
        }
    });
    match done {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("turbine: {error}");
            std::process::ExitCode::from(2)
        }
    }
}
