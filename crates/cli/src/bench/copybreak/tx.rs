//! `towpath bench copybreak --tx`: frames that are mapped to be sent, and frames that are copied
//! into memory that stays mapped, under each policy.
//!
//! Timed is the driver: `tx`, from packets to descriptors, and `reclaim`, from written-back
//! descriptors to packets that are free. The doorbell is not, because QEMU's device sends inside of
//! it. A sample is a burst of 64 frames.

use super::rig::{BURST, Source, TIMEOUT};
use super::{POLICIES, PerBuffer, Seen};
use crate::args::BenchCopybreak;
use crate::bench::interrupt::{rounds, until_interrupted};
use crate::bench::{median, show};
use serde::Serialize;
use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use towpath::bus::vfio::{VfioBus, VfioConfig};
use towpath::bus::{DmaCounts, DmaPolicy, Pci};
use towpath::model::e1000e::{self as model, Device};
use towpath::model::{iommu, wire};
use towpath::nic::batching::BatchSize;
use towpath::nic::e1000e::{Config, E1000e, E1000eRx, E1000eTx, TxCopybreak};
use towpath::packet::port::{Port, Queues, Start, TxQueue};
use towpath::packet::{Batch, Cache, Direction, Offloads, Packet, Pool, PoolConfig};

const COUNTED: &str = "nanoseconds of the transmit path for a frame, from a packet to a descriptor, and from the \
                       descriptor's write-back to a free packet; without the doorbell";

/// The thresholds that are compared: nothing is copied, or every frame of ordinary length.
const THRESHOLDS: [u16; 2] = [0, 2048];

/// Lengths of the table by sizes.
const SIZES: [usize; 8] = [64, 128, 256, 512, 768, 1024, 1280, 1500];

#[derive(Debug, Clone, Copy)]
struct Variant {
    policy: DmaPolicy,
    copybreak: u16,
    size: usize,
}

#[derive(Debug, Serialize)]
struct Row {
    policy: &'static str,
    tx_copybreak: u16,
    /// How many times as long as under `persistent` without copies.
    to_persistent: f64,
    #[serde(flatten)]
    seen: Seen,
}

/// Median ns of a frame that is mapped, and of one that is copied, under each policy.
#[derive(Debug, Serialize)]
struct SizeRow {
    size: usize,
    mapped: [f64; 3],
    copied: [f64; 3],
}

#[derive(Debug, Serialize)]
struct Report {
    on: String,
    size: usize,
    rows: Vec<Row>,
    sizes: Vec<SizeRow>,
}

pub(super) fn run(source: &Source, args: &BenchCopybreak) -> Result<ExitCode, Box<dyn Error>> {
    let of = |size| {
        let each = POLICIES.map(|(_, policy)| THRESHOLDS.map(|copybreak| Variant { policy, copybreak, size }));
        measure(source, each.as_flattened(), args)
    };
    let seen = of(args.size)?;
    let persistent = seen.first().cloned().ok_or("nothing was measured")?;
    let names = POLICIES.iter().flat_map(|(name, _)| THRESHOLDS.map(|threshold| (*name, threshold)));
    let rows = names.zip(seen).map(|((policy, tx_copybreak), seen)| {
        let to_persistent = seen.times(&persistent);
        Row { policy, tx_copybreak, to_persistent, seen }
    });
    let mut report = Report { on: source.on(), size: args.size, rows: rows.collect(), sizes: Vec::new() };
    if source.is_model() && !args.no_sizes {
        for size in until_interrupted(SIZES) {
            let seen = of(size)?;
            let ns =
                |copied: usize| [0, 1, 2].map(|policy| seen.get(2 * policy + copied).map_or(f64::NAN, |s| s.median_ns));
            report.sizes.push(SizeRow { size, mapped: ns(0), copied: ns(1) });
        }
    }
    show(args.json, COUNTED, &report, || print(&report))?;
    Ok(ExitCode::SUCCESS)
}

/// Measures the variants in turns.
fn measure(source: &Source, variants: &[Variant], args: &BenchCopybreak) -> Result<Vec<Seen>, Box<dyn Error>> {
    let each = args.samples.div_ceil(args.rounds.max(1));
    match source {
        Source::Model { .. } => {
            let mut rigs = variants.iter().map(|variant| Rig::model(*variant)).collect::<Result<Vec<_>, _>>()?;
            for _ in rounds(args.rounds) {
                rigs.iter_mut().try_for_each(|rig| rig.round(each))?;
            }
            Ok(rigs.iter().map(|rig| rig.taken.seen()).collect())
        }
        // There is one device: it is opened anew for each round of each variant.
        Source::Vfio(bdf) => {
            let mut taken: Vec<Taken> = variants.iter().map(|_| Taken::default()).collect();
            for _ in rounds(args.rounds) {
                for (variant, taken) in variants.iter().zip(&mut taken) {
                    let bus = VfioBus::open(*bdf, &VfioConfig::default())?;
                    let mut rig = Rig::new(bus, *variant, None)?;
                    rig.taken = std::mem::take(taken);
                    rig.round(each)?;
                    *taken = rig.taken;
                }
            }
            Ok(taken.iter().map(Taken::seen).collect())
        }
    }
}

/// What a variant's rounds have shown.
#[derive(Debug, Default)]
struct Taken {
    samples: Vec<f64>,
    /// The median of each round.
    rounds: Vec<f64>,
    /// Operations, and the frames that caused them.
    counts: DmaCounts,
    frames: u64,
}

impl Taken {
    fn seen(&self) -> Seen {
        let DmaCounts { maps, unmaps, flushes, syncs_for_device, copies, .. } = self.counts;
        let each = |count: u64| count as f64 / self.frames.max(1) as f64;
        let per_buffer = PerBuffer {
            maps: each(maps),
            unmaps: each(unmaps),
            waits: each(flushes),
            copies: each(copies),
            syncs: each(syncs_for_device),
        };
        Seen::of(&self.samples, &self.rounds, per_buffer)
    }
}

/// A driver with one queue.
struct Rig<B: Pci> {
    tx: E1000eTx<B>,
    /// The device ends with its last queue.
    _rx: E1000eRx<B>,
    cache: Cache,
    /// The device, if this thread steps it.
    device: Option<Device>,
    frame: Vec<u8>,
    taken: Taken,
}

impl Rig<model::ModelBus> {
    fn model(variant: Variant) -> Result<Rig<model::ModelBus>, Box<dyn Error>> {
        let iommu = match variant.policy {
            DmaPolicy::Persistent => iommu::Config::off(),
            DmaPolicy::PerBuffer { .. } => iommu::Config::default(),
        };
        let bus = model::launch(model::Config::default().iommu(iommu), wire::Sink)?;
        let device = bus.device();
        Rig::new(bus, variant, Some(device))
    }
}

impl<B: Pci> Rig<B> {
    fn new(bus: B, variant: Variant, device: Option<Device>) -> Result<Rig<B>, Box<dyn Error>> {
        let mut config = Config::default();
        config.policy = variant.policy;
        config.tx_copybreak = Some(TxCopybreak::new(variant.copybreak.into())?);
        // A burst rings no doorbell before `kick`.
        config.batch = BatchSize::MAX;
        let port = E1000e::open(bus, "e1000e", config)?;
        let pool = Pool::new(PoolConfig::default().capacity(4096))?;
        let cache = pool.cache(Direction::Tx)?;
        let Queues { rx, tx } = port.start(Start { pool, queues: 1, accept: Offloads::NONE })?;
        let (Some(rx), Some(tx)) = (rx.into_iter().next(), tx.into_iter().next()) else {
            return Err("the device has no queues".into());
        };
        // To an address that the IEEE reserves for local use, of a type for experiments.
        let mut frame = vec![0; variant.size];
        let header = [2, 0x74, 0x6f, 0x77, 0, 1, 2, 0, 0, 0, 0, 9, 0x88, 0xb5];
        frame.iter_mut().zip(header).for_each(|(byte, value)| *byte = value);
        Ok(Rig { tx, _rx: rx, cache, device, frame, taken: Taken::default() })
    }

    /// A round: takes `samples` samples after a warm-up.
    fn round(&mut self, samples: usize) -> Result<(), Box<dyn Error>> {
        for _ in 0..samples.min(32) {
            self.sample()?;
        }
        let before = self.tx.dma_counts();
        let round = (0..samples).map(|_| self.sample()).collect::<Result<Vec<_>, _>>()?;
        let (after, counts) = (self.tx.dma_counts(), &mut self.taken.counts);
        counts.maps += after.maps - before.maps;
        counts.unmaps += after.unmaps - before.unmaps;
        counts.flushes += after.flushes - before.flushes;
        counts.syncs_for_device += after.syncs_for_device - before.syncs_for_device;
        counts.copies += after.copies - before.copies;
        self.taken.frames += (samples * BURST) as u64;
        self.taken.samples.extend(&round);
        self.taken.rounds.push(median(round));
        Ok(())
    }

    /// Nanoseconds per frame of one burst.
    fn sample(&mut self) -> Result<f64, Box<dyn Error>> {
        let mut batch: Batch = Batch::new();
        for _ in 0..BURST {
            let packet = Packet::copy_from(&mut self.cache, &self.frame).ok_or("the pool is empty")?;
            let _ = batch.push(packet);
        }
        let deadline = Instant::now() + TIMEOUT;
        let (mut took, mut sent) = (Duration::ZERO, 0);
        while sent < BURST {
            let begun = Instant::now();
            let taken = self.tx.tx(&mut batch);
            let done = begun.elapsed();
            if taken > 0 {
                took += done;
                self.tx.kick();
            }
            if let Some(device) = &self.device {
                device.run_until_idle();
            }
            // Calls that find nothing are not of the path: the device is not that far.
            let begun = Instant::now();
            let completed = self.tx.reclaim();
            let done = begun.elapsed();
            if completed > 0 {
                took += done;
                sent += completed;
            }
            if Instant::now() > deadline {
                return Err("the device sends nothing: has it a link?".into());
            }
        }
        Ok(took.as_nanos() as f64 / BURST as f64)
    }
}

fn print(report: &Report) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{} bytes, on {}", report.size, report.on)?;
    writeln!(
        out,
        "{:10} | {:>12} | {:>7} | {:>9} | {:>8} | {:>7} | {:>5} {:>6} {:>5} {:>6} {:>5} | {:>13}",
        "policy",
        "tx-copybreak",
        "samples",
        "mean (ns)",
        "stdev",
        "median",
        "maps",
        "unmaps",
        "waits",
        "copies",
        "syncs",
        "to persistent"
    )?;
    for Row { policy, tx_copybreak, to_persistent, seen } in &report.rows {
        let PerBuffer { maps, unmaps, waits, copies, syncs } = seen.per_buffer;
        writeln!(
            out,
            "{policy:10} | {tx_copybreak:>12} | {:>7} | {:>9.2} | {:>8.2} | {:>7.2} | {maps:>5.2} {unmaps:>6.2} {waits:>5.2} {copies:>6.2} {syncs:>5.2} | {to_persistent:>13.2}",
            seen.samples, seen.mean_ns, seen.stdev_ns, seen.median_ns,
        )?;
    }
    writeln!(out, "maps … syncs: for each frame. to persistent: times as long, medians of rounds")?;
    if report.sizes.is_empty() {
        return Ok(());
    }
    let rows = report.sizes.iter().map(|row| (row.size, row.mapped, row.copied));
    super::table::sizes(&mut out, "frame", "mapped", rows)
}

#[cfg(test)]
mod tests {
    use super::super::{DEFERRED, STRICT};
    use super::*;

    fn counts(policy: DmaPolicy, copybreak: u16) -> PerBuffer {
        let mut rig = Rig::model(Variant { policy, copybreak, size: 64 }).unwrap();
        rig.round(4).unwrap();
        rig.taken.seen().per_buffer
    }

    #[test]
    fn a_copied_frame_costs_a_copy_and_a_sync_under_every_policy() {
        for (_, policy) in POLICIES {
            let copied = PerBuffer { maps: 0.0, unmaps: 0.0, waits: 0.0, copies: 1.0, syncs: 1.0 };
            assert_eq!(counts(policy, 2048), copied);
        }
    }

    #[test]
    fn a_mapped_frame_costs_a_map_and_an_unmap_and_its_burst_a_wait() {
        let strict = counts(STRICT, 0);
        assert_eq!(strict, PerBuffer { maps: 1.0, unmaps: 1.0, waits: 1.0 / 64.0, copies: 0.0, syncs: 1.0 });
        assert_eq!((counts(DEFERRED, 0).maps, counts(DmaPolicy::Persistent, 0).maps), (1.0, 0.0));
    }
}
