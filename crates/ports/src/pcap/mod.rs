//! `pcap:FILE` reads and writes capture files.
//!
//! As an ingress it reads pcap (microseconds or nanoseconds, either byte order) or pcapng, also
//! compressed by gzip, zstd or xz:
//!
//! ```text
//!   timing=fast|original      as fast as possible, or with the capture's gaps  fast
//!   speed=FACTOR              divides the gaps                                 1
//!   pps=N, mbps=N             packets a second, or Mbit/s of their bytes       off
//!   loop=N                    read the file N times; 0 or inf is no end        1
//!   link=ethernet|ip          what packets become                              the egress's
//!   truncated=send|skip|pad   packets that the capture cut                     send
//!   smac= dmac= vlan= src= dst= sport= dport=   edits, see `edit.rs`           none
//! ```
//!
//! As an egress it writes one of the two, with nanoseconds and complete checksums:
//!
//! ```text
//!   format=pcap|pcapng        by default pcapng if FILE ends in .pcapng, else pcap
//!   compress=none|gzip|zstd   by default by FILE's .gz or .zst
//!   link=ethernet|ip          first header of packets                                ethernet
//!   snaplen=BYTES             most bytes of each packet                              262144
//!   rotate-size=BYTES         begin a new file: FILE-00001.pcap, FILE-00002.pcap, …  off
//!   rotate-time=TIME          the same by age, with the next packet                  off
//!   files=N                   keep the last N of them                                all
//!   flush=TIME                longest time before gathered packets are written       100ms
//!   interface=NAME            interface name in pcapng                               towpath
//! ```
//!
//! `pcap:-` is standard input or standard output: `tcpdump -w - | towpath replay - tap:t0`.
//!
//! **Link types.** Frames of 802.11, PPP, HDLC, NULL, Frame Relay, SLIP, raw IP, Linux' cooked
//! captures and others become what the egress takes, per interface of a pcapng file: Ethernet
//! frames, some with a header that is made, or IP packets. A frame that has no such form is skipped
//! and counted; see `link/`.
//!
//! **Damaged files.** Every length in a file is checked, and the memory in use does not depend on
//! the file. An invalid record is skipped; if the next one cannot be found, the file ends. Both are
//! counted (`errors`, and `missed` for a packet), and the queue's last state names the first error
//! with its offset in the file. A regular file without packets is an error, too; a pipe may end
//! without one.
//!
//! **Reasons for a parser of its own.** `pcap-file` 2.0 refuses valid records (original length
//! above snaplen, options without an end mark), reads all pcapng times as nanoseconds and does not
//! bound the interface table. `pcap-parser` 0.17 allocates the options of a packet (2 MB for a
//! block of 240 KB), and its readers do not distinguish an empty pipe from an error.
//!
//! There is one queue: a file has one order.
//!
//! | file | |
//! |---|---|
//! | `config.rs`, `timing.rs` | the options; the times of packets |
//! | `source.rs` | the bytes of a file or a pipe, decompressed |
//! | `format.rs`, `parse.rs`, `records.rs` | constants; one step of the parser; the records of a source |
//! | `link/` | frames of other link types as Ethernet frames or IP packets |
//! | `edit.rs`, `edit/options.rs` | changed addresses, ports, tags, checksums; the options |
//! | `rate.rs`, `events.rs` | packets or bits a second; what was skipped, the port's control |
//! | `encode.rs` | packets as records |
//! | `rx.rs`, `tx.rs` | the queues |

mod config;
mod edit;
mod encode;
mod events;
mod format;
mod link;
mod parse;
mod rate;
mod records;
mod rx;
mod source;
mod timing;
mod tx;

pub use config::{Compress, Config, KIND, Mode, ReadConfig, Role, Truncated, WriteConfig};
pub use edit::{Edits, PortMap, PrefixMap, VlanEdit};
pub use format::{Format, MAX_CAPTURED};
pub use link::{Frame, Frames, LinkType, MADE_DESTINATION, MADE_SOURCE, Unfit};
pub use records::{Item, Record, Records};
pub use rx::Reader;
pub use timing::Timing;
pub use tx::Writer;

use crate::null::NullRx;
use encode::Encoder;
use events::ReadControl;
use source::Source;
use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use towpath_packet::port::{
    Calls, Info, Layer, Needs, PathUse, Port, PortControl, PortError, Queues, Start, State, TxQueue, Wake,
};
use towpath_packet::{Batch, Cache, Counters, Direction, Offloads, delegate_rx_queue, delegate_tx_queue};
use tx::Output;

/// Opens a file. One that is read is parsed up to its first interface, which has the layer; one
/// that is written is created.
///
/// # Errors
/// [`PortError::Os`] for a failed system call; [`PortError::Input`] if the file is no capture, or
/// one of a link type that can't be sent; [`PortError::Option`] for an option that a pipe does not
/// support.
pub fn open(config: Config) -> Result<PcapPort, PortError> {
    let name = format!("pcap:{}", config.path.display());
    let os = |step: &str, source| PortError::Os { port: name.clone(), step: step.to_owned(), source, hint: None };
    let (opened, layer, finite) = match config.mode {
        Mode::Read(read) => {
            let file = open_input(&config.path).map_err(|source| {
                let first = tx::numbered(&config.path, 1);
                let rotated = source.kind() == io::ErrorKind::NotFound && first.exists();
                let hint = rotated.then(|| format!("it was rotated: its files are {}, …", first.display()));
                PortError::Os { port: name.clone(), step: "open".to_owned(), source, hint }
            })?;
            let regular = file.metadata().map_err(|e| os("stat", e))?.is_file();
            if !regular && read.loops.is_none_or(|loops| loops.get() > 1) {
                let value = read.loops.map_or(0, |loops| loops.get()).to_string();
                let rule = "must be 1: only a regular file can be read again".to_owned();
                return Err(PortError::Option { port: name, option: "loop".to_owned(), value, rule });
            }
            let source = Source::new(file).map_err(|e| os("read", e))?;
            let failure = source.watch();
            let mut records = Records::new(source).map_err(|what| {
                let what = failure.get().cloned().unwrap_or(what);
                PortError::Input { port: name.clone(), what }
            })?;
            if !regular {
                records.source_mut().set_nonblocking().map_err(|e| os("open", e))?;
            }
            let layer = read.layer.unwrap_or(records.layer());
            let finite = read.loops.is_some();
            let rate = rx::rate(read.timing);
            let shared = rate.as_ref().map(|rate| rate.shared().clone());
            let control = Arc::new(ReadControl { events: Arc::default(), rate: shared });
            (Opened::Read(Box::new(Reading { records, config: read, rate, control })), layer, finite)
        }
        Mode::Write(write) => {
            if write.snaplen == 0 || write.snaplen > MAX_CAPTURED || write.layer == Layer::Any {
                let what = "snaplen must be from 1 to 262144, link ethernet or ip".to_owned();
                return Err(PortError::Input { port: name, what });
            }
            let compress = write.compress.unwrap_or_else(|| Compress::from_name(&config.path));
            let output = Output::create(&config.path, write.rotates(), compress).map_err(|e| os("create", e))?;
            let by_name = tx::extension(&config.path).is_some_and(|e| e == "pcapng" || e == "ntar");
            let format = write.format.unwrap_or(if by_name { Format::Pcapng } else { Format::Pcap });
            let (layer, snaplen, interface) = (write.layer, write.snaplen, write.interface.clone());
            let encoder = Encoder { format, layer, snaplen, interface };
            (Opened::Write(Box::new(Writing { encoder, output, config: write })), layer, false)
        }
    };
    let info = Info::new(name, layer, u16::MAX.into()).with_finite(finite);
    Ok(PcapPort { info, opened })
}

/// The file; standard input for `-`.
fn open_input(path: &Path) -> io::Result<File> {
    if path == Path::new("-") { Ok(io::stdin().as_fd().try_clone_to_owned()?.into()) } else { File::open(path) }
}

/// An opened file.
#[derive(Debug)]
pub struct PcapPort {
    info: Info,
    opened: Opened,
}

#[derive(Debug)]
enum Opened {
    Read(Box<Reading>),
    Write(Box<Writing>),
}

/// A file that is written.
#[derive(Debug)]
struct Writing {
    encoder: Encoder,
    output: Output,
    config: WriteConfig,
}

/// A file that is read.
#[derive(Debug)]
struct Reading {
    records: Records<Source>,
    config: ReadConfig,
    rate: Option<rate::Rate>,
    control: Arc<ReadControl>,
}

impl PcapPort {
    /// Makes the packets of a file that is read those of an egress of `layer`, unless the
    /// configuration names another. Nothing else of the port changes.
    pub fn convert_to(&mut self, layer: Layer) {
        if let Opened::Read(reading) = &self.opened
            && reading.config.layer.is_none()
            && layer != Layer::Any
        {
            self.info.layer = layer;
        }
    }
}

impl Port for PcapPort {
    type Rx = PcapRx;
    type Tx = PcapTx;

    fn info(&self) -> &Info {
        &self.info
    }

    fn control(&self) -> Option<Arc<dyn PortControl>> {
        match &self.opened {
            Opened::Read(reading) => Some(reading.control.clone()),
            Opened::Write(_) => None,
        }
    }

    fn needs(&self) -> Needs {
        let needs = Needs::none().calls([Calls::Files]);
        match &self.opened {
            Opened::Write(writing) if writing.config.rotates() => {
                needs.directory_of(writing.output.base(), PathUse::MakeFiles)
            }
            _ => needs,
        }
    }

    fn start(self, start: Start) -> Result<Queues<PcapRx, PcapTx>, PortError> {
        self.info.queues(start.queues)?;
        let (port, layer) = (self.info.name, self.info.layer);
        let cache = |direction| -> Result<Cache, PortError> {
            start.pool.cache(direction).map_err(|source| PortError::Pool { port: port.clone(), source })
        };
        let (rx, tx) = match self.opened {
            Opened::Read(reading) => {
                let Reading { records, config, rate, control } = *reading;
                if let Some(option) = config.edits.needs_ethernet().filter(|_| layer == Layer::Ip) {
                    let what = format!(
                        "{option}= needs an Ethernet header, and the packets are those of an IP layer: add link=ethernet"
                    );
                    return Err(PortError::Input { port, what });
                }
                let parts = rx::Parts { cache: cache(Direction::Rx)?, events: control.events.clone(), rate };
                let reader = Reader::new(records, config, layer, parts);
                (PcapRx::Reader(Box::new(reader)), PcapTx::ReadOnly(ReadOnlyTx::default()))
            }
            Opened::Write(writing) => {
                let Writing { encoder, output, config } = *writing;
                let writer = Writer::new(encoder, config, output, cache(Direction::Tx)?);
                if let State::Gone(what) = writer.state() {
                    return Err(PortError::Input { port, what: what.into_owned() });
                }
                (PcapRx::WriteOnly(NullRx::default()), PcapTx::Writer(Box::new(writer)))
            }
        };
        Ok(Queues { rx: vec![rx], tx: vec![tx] })
    }
}

/// The receive queue.
#[derive(Debug)]
pub enum PcapRx {
    /// Of a file that is read.
    Reader(Box<Reader>),
    /// Of a file that is written: receives no packet.
    WriteOnly(NullRx),
}

delegate_rx_queue!(impl[] for PcapRx { PcapRx::Reader(queue) => queue, PcapRx::WriteOnly(queue) => queue });

/// The transmit queue.
#[derive(Debug)]
pub enum PcapTx {
    /// Of a file that is written.
    Writer(Box<Writer>),
    /// Of a file that is read.
    ReadOnly(ReadOnlyTx),
}

delegate_tx_queue!(impl[] for PcapTx { PcapTx::Writer(queue) => queue, PcapTx::ReadOnly(queue) => queue });

/// The transmit queue of a file that is read: accepts no packet.
#[derive(Debug, Default)]
pub struct ReadOnlyTx(Arc<Counters>);

impl TxQueue for ReadOnlyTx {
    fn tx(&mut self, _: &mut Batch) -> usize {
        0
    }

    fn offloads(&self) -> Offloads {
        Offloads::NONE
    }

    fn state(&self) -> State {
        State::Gone(Cow::Borrowed("the file is being read"))
    }

    fn wake(&self) -> Wake {
        Wake::Never
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.0
    }
}

#[cfg(test)]
mod tests;
