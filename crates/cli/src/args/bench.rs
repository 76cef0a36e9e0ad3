//! The command line of `bench`.

use super::time;
use clap::{Args as ClapArgs, Subcommand};
use std::time::Duration;

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
    /// Receive buffers re-mapped against kept mapped: time and work for each, and from which size
    /// on copying costs more
    Copybreak(BenchCopybreak),
    /// Descriptors recycled and announced by batches: register accesses and time for each packet,
    /// on the model of CPSW
    Batch(BenchBatch),
    /// What applications send, copied against taken page by page: to memory, a device's model, TAP,
    /// AF_PACKET and AF_XDP (root)
    Xsk(BenchXsk),
    /// From application to application: through the datapath, kernel UDP, AF_XDP; spinning and
    /// sleeping (root)
    Latency(BenchLatency),
}

/// `towpath bench latency`.
#[derive(Debug, ClapArgs)]
pub(crate) struct BenchLatency {
    /// Bytes of a frame
    #[arg(long, value_name = "BYTES", default_value = "64", value_parser = frame)]
    pub(crate) size: usize,
    /// Messages in each round, of each way in each mode
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = count)]
    pub(crate) messages: usize,
    /// Rounds in which all take turns
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = count)]
    pub(crate) rounds: usize,
    /// Microseconds before each message in which sleepers fall asleep
    #[arg(long, value_name = "US", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) pause: u64,
    /// Fail if anything had to be skipped
    #[arg(long)]
    pub(crate) require: bool,
    /// For machines
    #[arg(long)]
    pub(crate) json: bool,
}

/// `towpath bench xsk`.
#[derive(Debug, ClapArgs)]
pub(crate) struct BenchXsk {
    /// Bytes of a frame
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_value = "64,512,1024,1500", value_parser = clap::value_parser!(u32).range(60..=1514))]
    pub(crate) sizes: Vec<u32>,
    /// Only to these: veth, e1000e, tap, packet, xdp
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) egress: Vec<String>,
    /// Bursts of each variant in each round
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = count)]
    pub(crate) bursts: usize,
    /// Rounds in which copy and page take turns; the median counts
    #[arg(long, value_name = "N", default_value_t = 25, value_parser = count)]
    pub(crate) rounds: usize,
    /// Give the application a thread of its own, so that its bytes come from another core
    #[arg(long)]
    pub(crate) threaded: bool,
    /// The core of that thread
    #[arg(long, value_name = "CORE", requires = "threaded")]
    pub(crate) app_core: Option<usize>,
    /// The application writes every byte of a frame before it sends it
    #[arg(long)]
    pub(crate) write: bool,
    /// Fail if anything had to be skipped
    #[arg(long)]
    pub(crate) require: bool,
    /// For machines
    #[arg(long)]
    pub(crate) json: bool,
}

/// `towpath bench batch`.
#[derive(Debug, ClapArgs)]
pub(crate) struct BenchBatch {
    /// Bursts of each variant in each round; on QEMU: rounds of a burst
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = count)]
    pub(crate) bursts: usize,
    /// Rounds in which the variants take turns; the median counts
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = count)]
    pub(crate) rounds: usize,
    /// Bytes of a frame in the sweeps: 1512 unless given, on QEMU 60
    #[arg(long, value_name = "BYTES", value_parser = frame)]
    pub(crate) size: Option<usize>,
    /// On QEMU, send into a socket instead of a hub with no other port: a system call of QEMU's for
    /// each frame
    #[arg(long)]
    pub(crate) socket: bool,
    /// One of the tables alone
    #[arg(long, value_name = "TABLE")]
    pub(crate) only: Option<BatchTable>,
    /// Fail if anything had to be skipped
    #[arg(long)]
    pub(crate) require: bool,
    /// For machines
    #[arg(long)]
    pub(crate) json: bool,
}

/// A table of `towpath bench batch`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum BatchTable {
    /// Accesses, time and latency by batch size, on the model of CPSW
    Sweep,
    /// The CPSW series' measurements, on the model
    Scenarios,
    /// Frames by batch size on QEMU's e1000e
    Qemu,
}

/// `towpath bench copybreak`.
#[derive(Debug, ClapArgs)]
pub(crate) struct BenchCopybreak {
    /// The device: e1000e:model, or e1000e:vfio=BDF to which another machine sends frames as fast
    /// as it takes them
    #[arg(long, value_name = "PORT")]
    pub(crate) port: Option<String>,
    /// Give the model a thread of its own, so that waiting for its IOMMU is waiting for another
    /// core
    #[arg(long)]
    pub(crate) threaded: bool,
    /// Bytes of a frame (of the model)
    #[arg(long, value_name = "BYTES", default_value_t = 1500, value_parser = frame)]
    pub(crate) size: usize,
    /// Samples of each variant; a sample is a burst of up to 64 buffers
    #[arg(long, value_name = "N", default_value_t = 4750, value_parser = count)]
    pub(crate) samples: usize,
    /// Rounds in which the variants take turns
    #[arg(long, value_name = "N", default_value_t = 25, value_parser = count)]
    pub(crate) rounds: usize,
    /// Leave out the table by sizes
    #[arg(long)]
    pub(crate) no_sizes: bool,
    /// For machines
    #[arg(long)]
    pub(crate) json: bool,
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

fn frame(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| (60..=1514).contains(n)).ok_or_else(|| "must be from 60 to 1514".into())
}

fn count(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| (1..=1_000_000).contains(n)).ok_or_else(|| "must be from 1 to 1000000".into())
}
