//! The two ports, a generator and a check behind each, and a trial.
//!
//! ```text
//!   gen: ──► A ──► the device that is measured ──► B ──► gen: checks
//!   gen: checks ◄── A ◄──────────────────────────── B ◄── gen:
//! ```
//!
//! The way back carries trials with `--bidirectional`; otherwise packets by which the device learns.
//!
//! Ports and workers are started once, and the process gives up its rights then. A packet of a
//! trial has its number and direction, so that none is counted for another trial.

use crate::args::Measure;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use towpath::engine::gro_stage::GroMode;
use towpath::engine::report::Reading;
use towpath::packet::port::{Layer, Needs, Port, Verified};
use towpath::ports::generator::{self, Fields, Progress, Size, Sweep, Trial, Trials};
use towpath::{AnyPort, Forward, Opener, Ready, Role, Running, Uri};

/// Interval at which a trial is looked at.
const LOOK: Duration = Duration::from_millis(2);
/// How long the generator may take longer than the trial.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a packet may be held in front of a port that does not take it, with some more.
const HELD: Duration = Duration::from_millis(50);
/// How long the first packet gets to arrive: interfaces come up, bridges learn.
const CONNECTED: Duration = Duration::from_secs(10);

/// Started ports whose workers do not run yet.
pub(super) struct Prepared {
    sides: [(Ready, Trials); 2],
}

/// The running ports.
pub(super) struct Rig {
    sides: [(Running, Trials); 2],
    bidirectional: bool,
    drain: Duration,
    interrupted: Arc<AtomicBool>,
    /// Trials up to now.
    trials: u16,
}

/// What became of the packets of one direction.
#[derive(Debug, Clone, Copy)]
pub(super) struct DirectionTrial {
    /// Packets that were to be sent.
    pub(super) count: u64,
    pub(super) progress: Progress,
    /// Packets that were made and that the port did not send.
    pub(super) unsent: u64,
    /// Packets that were lost between the kernel or the device and the receiving port.
    pub(super) missed: u64,
    pub(super) found: Verified,
}

/// The end of a trial before its time: it was asked for.
#[derive(Debug)]
pub(super) struct Interrupted;

impl DirectionTrial {
    /// The ratio of packets that did not arrive, those that were not sent included.
    pub(super) fn loss(&self) -> f64 {
        1.0 - self.found.arrived.min(self.count) as f64 / self.count.max(1) as f64
    }

    /// Packets of the trial that never left.
    pub(super) fn not_offered(&self) -> u64 {
        self.count.saturating_sub(self.progress.made) + self.unsent
    }
}

/// Packets that the port of a side has sent between two readings. The generator is the first port.
fn sent(after: &Reading, before: &Reading) -> u64 {
    let tx = |reading: &Reading| reading.ports.last().map_or(0, |port| port.tx.packets);
    tx(after).saturating_sub(tx(before))
}

/// Packets that were lost before the port of a side had them.
fn missed(reading: &Reading) -> u64 {
    reading.ports.last().map_or(0, |port| port.rx.all_missed())
}

/// The parsed options of the generator.
fn config(args: &Measure, layer: Layer) -> Result<generator::Config, Box<dyn Error>> {
    let more = args.generator.as_deref().unwrap_or_default();
    let own = ["size", "flows", "count", "rate", "verify", "stamp", "gso", "layer"];
    let given = more.split(',').filter_map(|option| option.split_once('=')).map(|(name, _)| name);
    if let Some(option) = given.into_iter().find(|name| own.contains(name)) {
        return Err(format!("--gen {option}=: is not for measure: --size, --flows and the search give it").into());
    }
    let mut options = vec!["verify=on".to_owned(), "stamp=time".to_owned()];
    options.extend((layer == Layer::Ip).then(|| "layer=ip".to_owned()));
    options.extend(args.flows.map(|flows| format!("flows={flows}")));
    options.extend((!more.is_empty()).then(|| more.to_owned()));
    if !more.contains("template=") {
        // The smallest one that all headers fit in: --size decides.
        options.push("size=128".to_owned());
    }
    Ok(generator::Config::from_uri(&format!("gen:{}", options.join(",")).parse()?)?)
}

/// The generator of the other direction: sources and destinations are swapped.
fn mirrored(config: &generator::Config) -> generator::Config {
    let mut other = config.clone();
    (other.src_mac, other.dst_mac) = (config.dst_mac, config.src_mac);
    (other.src_ip, other.dst_ip) = (config.dst_ip, config.src_ip);
    (other.src_port, other.dst_port) = (ports(config), config.src_port);
    if let Some(template) = &mut other.template {
        let Fields { src_mac, dst_mac, src_ip, dst_ip, src_port, dst_port, .. } = template.fields.clone();
        (template.fields.src_mac, template.fields.dst_mac) = (dst_mac, src_mac);
        (template.fields.src_ip, template.fields.dst_ip) = (dst_ip, src_ip);
        (template.fields.src_port, template.fields.dst_port) = (dst_port, src_port);
    }
    other
}

/// The ports of the other direction: one port counts up only where there is room for the flows.
fn ports(config: &generator::Config) -> Sweep<u16> {
    let Sweep { first, last } = config.dst_port;
    let flows = config.flows.min(10_000) as u16;
    if first == last && first.checked_add(flows).is_none() { (u16::MAX - flows).into() } else { config.dst_port }
}

/// Opens and starts both ports, without workers.
pub(super) fn prepare(args: &Measure, sizes: &[Size]) -> Result<Prepared, Box<dyn Error>> {
    let mut opener = Opener::new();
    let [a, b] = [args.a.parse::<Uri>()?, args.b.parse::<Uri>()?];
    let (a, b) = (opener.open(&a, Role::Both)?, opener.open(&b, Role::Both)?);
    opener.check()?;
    let config = config(args, a.info().layer)?;
    let other = mirrored(&config);
    let cores = crate::args::Cores::all(&args.cores);
    let mut at = cores.into_iter();
    let mut side = |config: generator::Config, port: AnyPort| -> Result<_, Box<dyn Error>> {
        let is_template = config.template.is_some();
        let mut generator = generator::open(config)?;
        let trials = generator.trials(if is_template { &[] } else { sizes })?;
        let mut plan = Forward::default();
        plan.gro.mode = GroMode::Off;
        plan.cores = at.next().into_iter().collect();
        plan.idle = args.idle.into();
        let (longest, mtu, name) = (generator.info().mtu, port.info().mtu, port.info().name.clone());
        // The kernel takes longer packets of a TUN/TAP device.
        let is_tun = ["tap:", "tun:"].iter().any(|scheme| name.starts_with(scheme));
        if longest > mtu && !is_tun {
            let hint = "measure shorter ones (--size), or raise the MTU of all interfaces on the way";
            return Err(format!(
                "{name}: packets of {longest} bytes behind the link header exceed its MTU of {mtu}: {hint}"
            )
            .into());
        }
        Ok((plan.prepare(AnyPort::Gen(generator), port)?, trials))
    };
    Ok(Prepared { sides: [side(config, a)?, side(other, b)?] })
}

impl Prepared {
    /// What both ports use of the kernel from now on.
    pub(super) fn needs(&self) -> Needs {
        let [(a, _), (b, _)] = &self.sides;
        a.needs().clone().and(b.needs().clone())
    }

    /// The ports' names.
    pub(super) fn names(&self) -> [String; 2] {
        let name = |ready: &Ready| ready.infos().last().map(|info| info.name.clone()).unwrap_or_default();
        let [(a, _), (b, _)] = &self.sides;
        [name(a), name(b)]
    }

    /// Starts the workers.
    pub(super) fn launch(self, args: &Measure, interrupted: Arc<AtomicBool>) -> Result<Rig, Box<dyn Error>> {
        let [(a, from_a), (b, from_b)] = self.sides;
        let sides = [(a.launch()?, from_a), (b.launch()?, from_b)];
        Ok(Rig { sides, bidirectional: args.bidirectional, drain: args.drain, interrupted, trials: 0 })
    }
}

impl Rig {
    /// Whether the end was asked for, or a worker has ended.
    pub(super) fn is_ending(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed) || self.sides.iter().any(|(running, _)| running.is_finished())
    }

    /// Sends a few packets both ways until some arrive: interfaces come up, bridges learn.
    ///
    /// # Errors
    /// A text names the direction in which none arrives.
    pub(super) fn connect(&mut self, names: &[String; 2]) -> Result<Result<(), Interrupted>, String> {
        let end = Instant::now() + CONNECTED;
        loop {
            let directions = match self.send(1000, 64, 0, Duration::from_millis(50), true) {
                Ok(directions) => directions,
                Err(interrupted) => return Ok(Err(interrupted)),
            };
            let wanted = if self.bidirectional { 2 } else { 1 };
            let is_silent = |direction: &DirectionTrial| direction.found.arrived == 0;
            let Some(at) = directions.iter().take(wanted).position(is_silent) else { return Ok(Ok(())) };
            if Instant::now() >= end {
                let (from, to) = (&names[at], &names[1 - at]);
                let DirectionTrial { progress, unsent, found, .. } = directions[at];
                let sent = progress.made.saturating_sub(unsent);
                return Err(format!(
                    "no packet from {from} arrives at {to} ({sent} sent, {} others arrived): is the device between them up, and does it \
                     forward to the addresses (--gen dst-mac=…,src-ip=…,dst-ip=…)?",
                    found.foreign
                ));
            }
        }
    }

    /// A trial: `rate` packets per second for `duration`, of the size with index `size`.
    pub(super) fn trial(
        &mut self,
        rate: u64,
        duration: Duration,
        size: usize,
    ) -> Result<Vec<DirectionTrial>, Interrupted> {
        let count = ((rate as f64 * duration.as_secs_f64()).round() as u64).max(1);
        self.send(rate, count, size, self.drain, self.bidirectional)
    }

    fn send(
        &mut self,
        rate: u64,
        count: u64,
        size: usize,
        drain: Duration,
        both: bool,
    ) -> Result<Vec<DirectionTrial>, Interrupted> {
        self.trials = self.trials.wrapping_add(1);
        let directions = if both { 2 } else { 1 };
        let number = |direction: u16| self.trials << 1 | direction;
        let before: Vec<_> = self.sides.iter().map(|(running, _)| running.meter().read()).collect();
        for direction in 0..directions {
            self.sides[1 - direction].1.expect(number(direction as u16));
        }
        for direction in 0..directions {
            self.sides[direction].1.begin(Trial { number: number(direction as u16), rate, count, size });
        }
        let length = Duration::from_secs_f64(count as f64 / rate.max(1) as f64);
        self.wait(length + PATIENCE, |rig| (0..directions).all(|from| rig.sides[from].1.progress().complete))?;
        let progress: Vec<_> = self.sides.iter().map(|(_, trials)| trials.progress()).collect();
        for ((_, trials), _) in self.sides.iter().zip(&progress).filter(|(_, progress)| !progress.complete) {
            // A trial that is not complete is abandoned.
            trials.begin(Trial::default());
        }
        let ended = Instant::now();
        self.wait(drain, |rig| {
            (0..directions).all(|from| rig.has_settled(from, &before[from], progress[from], ended))
        })?;
        let after: Vec<_> = self.sides.iter().map(|(running, _)| running.meter().read()).collect();
        let trial = |from: usize| {
            let sent = sent(&after[from], &before[from]);
            let missed = missed(&after[1 - from]).saturating_sub(missed(&before[1 - from]));
            let found = self.sides[1 - from].1.verified();
            let unsent = progress[from].made.saturating_sub(sent);
            DirectionTrial { count, progress: progress[from], unsent, missed, found }
        };
        Ok((0..directions).map(trial).collect())
    }

    /// Whether all packets of a direction that were sent have arrived, and no more are on their way
    /// into the port.
    fn has_settled(&self, from: usize, before: &Reading, progress: Progress, ended: Instant) -> bool {
        let sent = sent(&self.sides[from].0.meter().read(), before);
        let arrived = self.sides[1 - from].1.verified().arrived;
        arrived >= sent && (sent >= progress.made || ended.elapsed() > HELD)
    }

    /// Waits until `done`, or for `longest`.
    fn wait(&self, longest: Duration, done: impl Fn(&Rig) -> bool) -> Result<(), Interrupted> {
        let end = Instant::now() + longest;
        while !done(self) && Instant::now() < end {
            if self.is_ending() {
                return Err(Interrupted);
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Stops the workers; returns what failed before, as text. Afterwards a port may find its other
    /// end closed.
    pub(super) fn stop(self) -> Vec<String> {
        let failed = self.sides.iter().any(|(running, _)| running.is_finished());
        let ended = self.sides.map(|(running, _)| running.stop());
        let failures = ended.iter().flat_map(|summary| summary.failures());
        failures.filter(|_| failed).map(|failure| failure.to_string()).collect()
    }
}
