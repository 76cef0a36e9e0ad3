//! A driver whose receive path is measured, and its source of frames.

use super::{PerBuffer, Seen, Variant};
use crate::args::BenchCopybreak;
use crate::bench::interrupt;
use crate::bench::median;
use std::error::Error;
use std::time::{Duration, Instant};
use towpath::bus::vfio::{Bdf, VfioBus, VfioConfig};
use towpath::bus::{DmaPolicy, Pci};
use towpath::model::e1000e::{self as model, Device};
use towpath::model::{iommu, wire};
use towpath::nic::e1000e::{Config, Copybreak, E1000e, E1000eRx, E1000eTx, RxCounts};
use towpath::packet::port::{Port, Queues, RxQueue, Start, TxQueue};
use towpath::packet::{Batch, Cache, Direction, Offloads, Pool, PoolConfig};

/// Buffers of a burst.
pub(super) const BURST: usize = 64;
/// Time limit for frames of an external sender.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);

/// The device.
pub(super) enum Source {
    /// In this process; its frames are generated here.
    Model {
        /// The device and its IOMMU have a thread of their own.
        threaded: bool,
    },
    /// Behind VFIO; an external sender provides the frames.
    Vfio(Bdf),
}

impl Source {
    pub(super) fn new(args: &BenchCopybreak) -> Result<Source, Box<dyn Error>> {
        match args.port.as_deref() {
            None | Some("e1000e:model") => Ok(Source::Model { threaded: args.threaded }),
            Some(_) if !args.wait_ns.is_empty() => {
                Err("--wait-ns: a parameter of the model's IOMMU; leave it out, or measure --port e1000e:model".into())
            }
            Some(_) if args.threaded => Err("--threaded: only a model can be given a thread".into()),
            Some(port) => match port.strip_prefix("e1000e:vfio=") {
                Some(function) => Ok(Source::Vfio(function.parse()?)),
                None => Err(format!("--port={port}: must be e1000e:model or e1000e:vfio=0000:03:00.0").into()),
            },
        }
    }

    /// A description of the device for the printed table.
    pub(super) fn on(&self) -> String {
        match self {
            Source::Model { threaded: false } => "a model of the device and of its IOMMU, in this thread".to_owned(),
            Source::Model { threaded: true } => {
                "a model of the device and of its IOMMU, in a thread of their own".to_owned()
            }
            Source::Vfio(bdf) => format!("the device {bdf}, by VFIO"),
        }
    }

    /// Whether it is the model, whose frames and IOMMU can be chosen.
    pub(super) fn is_model(&self) -> bool {
        matches!(self, Source::Model { .. })
    }

    /// Measures the variants in turns, in `rounds` rounds with `samples` samples of each variant in
    /// total.
    pub(super) fn measure(
        &self,
        variants: &[Variant],
        samples: usize,
        rounds: usize,
        size: usize,
    ) -> Result<Vec<Seen>, Box<dyn Error>> {
        let each = samples.div_ceil(rounds.max(1));
        match self {
            // Idle threads of other variants would compete for the cores.
            Source::Model { threaded: true } => {
                variants.iter().map(|v| Ok(Rig::model(*v, size, true)?.run(samples)?.seen())).collect()
            }
            Source::Model { threaded: false } => {
                let made: Result<Vec<_>, _> = variants.iter().map(|v| Rig::model(*v, size, false)).collect();
                let mut rigs = made?;
                for _ in interrupt::rounds(rounds) {
                    rigs = rigs.into_iter().map(|rig| rig.run(each)).collect::<Result<_, _>>()?;
                }
                Ok(rigs.iter().map(Rig::seen).collect())
            }
            // There is one device: it is opened anew for each variant.
            Source::Vfio(bdf) => variants
                .iter()
                .map(|variant| {
                    let bus = VfioBus::open(*bdf, &VfioConfig::default())?;
                    Ok(Rig::new(bus, *variant, Feed::Others)?.run(samples)?.seen())
                })
                .collect(),
        }
    }
}

/// The source of frames.
enum Feed {
    Model { device: Device, threaded: bool, frames: Vec<Vec<u8>> },
    Others,
}

/// A driver with one queue.
pub(super) struct Rig<B: Pci> {
    rx: E1000eRx<B>,
    tx: E1000eTx<B>,
    cache: Cache,
    feed: Feed,
    samples: Vec<f64>,
    /// The median of each round.
    rounds: Vec<f64>,
    /// Counts at the first sample.
    before: Option<RxCounts>,
}

impl Rig<model::ModelBus> {
    /// Over a model that is stepped by this thread or has a thread of its own.
    pub(super) fn model(variant: Variant, size: usize, threaded: bool) -> Result<Rig<model::ModelBus>, Box<dyn Error>> {
        let iommu = match variant.policy {
            DmaPolicy::Persistent => iommu::Config::off(),
            DmaPolicy::PerBuffer { .. } => iommu::Config::default().wait(variant.wait),
        };
        let bus = model::launch(model::Config::default().iommu(iommu).threaded(threaded), wire::Loopback::default())?;
        let frame = |i: usize| (0..size).map(|at| if at < 6 { 0xff } else { (at * 7 + i) as u8 }).collect();
        let feed = Feed::Model { device: bus.device(), threaded, frames: (0..BURST).map(frame).collect() };
        Rig::new(bus, variant, feed)
    }
}

impl<B: Pci> Rig<B> {
    fn new(bus: B, variant: Variant, feed: Feed) -> Result<Rig<B>, Box<dyn Error>> {
        let mut config = Config::default();
        config.policy = variant.policy;
        config.copybreak = Some(Copybreak::new(variant.copybreak.into())?);
        config.recycle = variant.recycle;
        config.wait_each = variant.wait_each;
        let port = E1000e::open(bus, "e1000e", config)?;
        let pool = Pool::new(PoolConfig::default().capacity(4096))?;
        let cache = pool.cache(Direction::Rx)?;
        let Queues { rx, tx } = port.start(Start { pool, queues: 1, accept: Offloads::NONE })?;
        let (Some(mut rx), Some(tx)) = (rx.into_iter().next(), tx.into_iter().next()) else {
            return Err("the device has no queues".into());
        };
        rx.refill();
        Ok(Rig { rx, tx, cache, feed, samples: Vec::new(), rounds: Vec::new(), before: None })
    }

    /// A round: takes `samples` samples after a warm-up.
    pub(super) fn run(mut self, samples: usize) -> Result<Self, Box<dyn Error>> {
        for _ in 0..samples.min(32) {
            self.sample()?;
        }
        self.before.get_or_insert(self.rx.counts());
        let round = (0..samples).map(|_| self.sample()).collect::<Result<Vec<_>, _>>()?;
        self.samples.extend(&round);
        self.rounds.push(median(round));
        Ok(self)
    }

    /// Nanoseconds per buffer of one burst.
    fn sample(&mut self) -> Result<f64, Box<dyn Error>> {
        let mut batch: Batch = Batch::new();
        if let Feed::Model { device, threaded, frames } = &self.feed {
            device.deliver(frames.iter().map(Vec::as_slice));
            match threaded {
                false => _ = device.run_until_idle(),
                true => while device.waiting() > 0 {},
            }
        }
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let begun = Instant::now();
            let n = self.rx.rx(&mut batch);
            self.rx.refill();
            let took = begun.elapsed();
            if n > 0 {
                self.cache.free_bulk(&mut batch);
                return Ok(took.as_nanos() as f64 / n as f64);
            }
            self.tx.reclaim();
            if Instant::now() > deadline {
                return Err(
                    "no frame arrives: another machine has to send frames to the device, as fast as it takes them"
                        .into(),
                );
            }
        }
    }

    /// The measurement so far.
    pub(super) fn seen(&self) -> Seen {
        let (now, then) = (self.rx.counts(), self.before.unwrap_or_default());
        let buffers = (now.completed - then.completed).max(1) as f64;
        let each = |of: fn(&RxCounts) -> u64| (of(&now) - of(&then)) as f64 / buffers;
        let per_buffer = PerBuffer {
            maps: each(|c| c.maps),
            unmaps: each(|c| c.unmaps),
            waits: each(|c| c.flushes),
            copies: each(|c| c.copies),
            syncs: each(|c| c.syncs_for_cpu + c.syncs_for_device),
        };
        Seen::of(&self.samples, &self.rounds, per_buffer)
    }
}
