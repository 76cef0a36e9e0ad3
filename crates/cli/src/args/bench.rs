//! The command line of `bench`.

use super::time;
use clap::{Args as ClapArgs, Subcommand, ValueHint};
use std::path::PathBuf;
use std::time::Duration;

/// `towpath bench`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Bench {
    /// Which.
    #[command(subcommand)]
    pub(crate) kind: BenchKind,
    /// Also draw the report as SVG
    #[arg(long, value_name = "FILE", global = true, value_hint = ValueHint::FilePath)]
    pub(crate) svg: Option<PathBuf>,
}

/// The benches.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchKind {
    /// GRO off against GRO on: a counting sink, sockets of the kernel behind a TAP (root), a lane
    Gro(BenchGro),
    /// Receive on one core, GRO and the kernel's stack on another: towpath's lane against the
    /// kernel's cpumap, on the same veth (root)
    Cpumap(BenchCpumap),
    /// Receive buffers re-mapped against kept mapped: time and work for each, and from which size
    /// on copying costs more; or (--tx) frames mapped to be sent against copied
    Copybreak(BenchCopybreak),
    /// Descriptors recycled and announced by batches: register accesses and time for each packet,
    /// on the model of CPSW
    Batch(BenchBatch),
    /// What applications send, copied against taken page by page: to memory, a device's model, a
    /// virtio back end (towpath's, DPDK's), TAP, AF_PACKET and AF_XDP (root)
    Xsk(BenchXsk),
    /// Both sides of a virtual machine's rings: a packet's cost to the port vhost: and to the
    /// driver virtio:, each without a peer
    Vm(BenchVm),
    /// From application to application: through the datapath, kernel UDP, AF_XDP; spinning and
    /// sleeping (root)
    Latency(BenchLatency),
    /// Draw a report that --json of a bench, or of measure, has printed
    #[command(after_help = "Example:\n  towpath bench vm --json > vm.json\n  towpath bench plot vm.json --svg vm.svg")]
    Plot(BenchPlot),
}

/// `towpath bench plot`.
#[derive(Debug, ClapArgs)]
pub(crate) struct BenchPlot {
    /// The report
    #[arg(value_name = "FILE.json", value_hint = ValueHint::FilePath)]
    pub(crate) report: PathBuf,
}

/// `towpath bench vm`.
#[derive(Debug, ClapArgs)]
pub(crate) struct BenchVm {
    /// Formats of the rings
    #[arg(long, value_name = "FORMAT", value_delimiter = ',', default_value = "split,packed")]
    pub(crate) rings: Vec<Ring>,
    /// Bytes of a frame
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_value = "64,1500", value_parser = clap::value_parser!(u32).range(60..=1514))]
    pub(crate) sizes: Vec<u32>,
    /// Further options of the driver, as of virtio:user=, such as in-order=off,mergeable=off
    #[arg(long, value_name = "OPTIONS")]
    pub(crate) with: Option<String>,
    /// Packets of a burst: 1 to 64
    #[arg(long, value_name = "N", default_value = "32", value_parser = burst)]
    pub(crate) burst: usize,
    /// Bursts in each direction in each round
    #[arg(long, value_name = "N", default_value_t = 5000, value_parser = count)]
    pub(crate) bursts: usize,
    /// Rounds; the median counts
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = count)]
    pub(crate) rounds: usize,
    /// For machines
    #[arg(long)]
    pub(crate) json: bool,
}

/// A format of virtqueues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Ring {
    /// Three areas: descriptors, available, used
    Split,
    /// One ring of descriptors
    Packed,
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
    /// Only to these: veth, e1000e, virtio, virtio-dpdk, tap, packet, xdp
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
    /// The application writes every byte of a frame before it sends it, copied or by page
    #[arg(long)]
    pub(crate) write: bool,
    /// What the consumer behind the pair in memory (veth) reads of each frame; a table for each
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_value = "none,head,all")]
    pub(crate) read: Vec<Read>,
    /// Give that consumer a thread of its own on this core; otherwise it has the datapath's. Behind
    /// virtio, the core of the back end; otherwise it is another than the datapath's
    #[arg(long, value_name = "CORE")]
    pub(crate) read_core: Option<usize>,
    /// The memory of virtio-dpdk's DPDK lies in huge pages, of which 192 MB must be free
    #[arg(long)]
    pub(crate) huge: bool,
    /// Fail if anything had to be skipped
    #[arg(long)]
    pub(crate) require: bool,
    /// For machines
    #[arg(long)]
    pub(crate) json: bool,
}

/// What a consumer reads of each frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Read {
    /// Nothing
    None,
    /// Its first 64 bytes
    Head,
    /// Every byte
    All,
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
    /// Measure transmission: frames mapped, or copied into memory that stays mapped (tx-copybreak)
    #[arg(long, conflicts_with_all = ["threaded", "wait_ns"])]
    pub(crate) tx: bool,
    /// The device: e1000e:model, or e1000e:vfio=BDF to which (without --tx) another machine sends
    /// frames as fast as it takes them
    #[arg(long, value_name = "PORT")]
    pub(crate) port: Option<String>,
    /// Give the model a thread of its own, so that waiting for its IOMMU is waiting for another
    /// core
    #[arg(long)]
    pub(crate) threaded: bool,
    /// Bytes of a frame that the model receives, or (--tx) that is sent; with --tx 64, otherwise
    #[arg(long, value_name = "BYTES", default_value_if("tx", "true", "64"), default_value = "1500", value_parser = frame)]
    pub(crate) size: usize,
    /// Samples of each variant; a sample is a burst of up to 64 buffers
    #[arg(long, value_name = "N", default_value_t = 4750, value_parser = count)]
    pub(crate) samples: usize,
    /// Rounds in which the variants take turns
    #[arg(long, value_name = "N", default_value_t = 25, value_parser = count)]
    pub(crate) rounds: usize,
    /// Also measure with the IOMMU taking this long for an invalidation: a parameter of the model,
    /// which takes no time for it otherwise; without a value, steps from 0 to 2000
    #[arg(long, value_name = "NS", value_delimiter = ',', num_args = 0..=1, default_missing_value = "0,100,250,500,1000,2000", value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    pub(crate) wait_ns: Vec<u64>,
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
    /// Flows, which take turns; a table for each number
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "8,64,2000", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) flows: Vec<u32>,
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

/// `towpath bench cpumap`.
#[derive(Debug, ClapArgs)]
pub(crate) struct BenchCpumap {
    /// Only this traffic
    #[arg(long, value_name = "TRAFFIC")]
    pub(crate) only: Option<CpumapTable>,
    /// Flows of UDP, a table for each number
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "8,64,2000", value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub(crate) flows: Vec<u32>,
    /// Bytes of payload of a datagram
    #[arg(long, value_name = "BYTES", default_value_t = 22, value_parser = payload)]
    pub(crate) payload: usize,
    /// Datagrams that a flow sends before the next flow's turn
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) train: u32,
    /// Connections of TCP_RR, a table for each number
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,8,64", value_parser = connections)]
    pub(crate) connections: Vec<usize>,
    /// Frames between the two cores: entries of the CPUMAP's queue, of the AF_XDP ring and of the
    /// lane's ring, a power of two
    #[arg(long, value_name = "N", default_value_t = 16384, value_parser = queue)]
    pub(crate) queue: u32,
    /// Rounds in which all rows take turns; the median counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = count)]
    pub(crate) rounds: usize,
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

/// Traffic of `towpath bench cpumap`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum CpumapTable {
    /// Small datagrams, to a plain socket and to one with UDP_GRO
    Udp,
    /// One TCP connection in one direction
    Stream,
    /// Requests and responses of a byte
    Rr,
}

fn payload(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| (1..=1000).contains(n)).ok_or_else(|| "must be from 1 to 1000".into())
}

fn connections(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| (1..=1000).contains(n)).ok_or_else(|| "must be from 1 to 1000".into())
}

fn queue(text: &str) -> Result<u32, String> {
    let ok = |n: &u32| n.is_power_of_two() && (64..=16384).contains(n);
    text.parse().ok().filter(ok).ok_or_else(|| "must be a power of two from 64 to 16384".into())
}

fn frame(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| (60..=1514).contains(n)).ok_or_else(|| "must be from 60 to 1514".into())
}

fn burst(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| (1..=64).contains(n)).ok_or_else(|| "must be from 1 to 64".into())
}

fn count(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| (1..=1_000_000).contains(n)).ok_or_else(|| "must be from 1 to 1000000".into())
}
