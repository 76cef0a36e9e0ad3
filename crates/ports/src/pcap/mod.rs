//! `pcap:FILE` reads and writes capture files.
//!
//! As an ingress it reads pcap (microseconds or nanoseconds, either byte order) and pcapng, whichever the file is, of
//! Ethernet or raw IP packets:
//!
//! ```text
//!   timing=fast|original   as fast as packets are taken, or with their gaps                     fast
//!   speed=FACTOR           divides the gaps                                                     1
//!   loop=N                 read the file N times; 0 is no end                                   1
//! ```
//!
//! As an egress it writes one of the two, with nanoseconds and complete checksums:
//!
//! ```text
//!   format=pcap|pcapng     by default pcapng if FILE ends in .pcapng, else pcap
//!   link=ethernet|ip       what packets begin with                                              ethernet
//!   snaplen=BYTES          keep no more of each packet                                          262144
//!   rotate-size=BYTES      begin a new file: FILE-00001.pcap, FILE-00002.pcap, …                off
//!   rotate-time=TIME       the same by age, when a packet comes                                 off
//!   files=N                keep the last N of them                                              all
//!   flush=TIME             write what was gathered at least so often                            100ms
//!   interface=NAME         noted in pcapng                                                      towpath
//! ```
//!
//! `pcap:/dev/stdin` and `pcap:/dev/stdout` join a pipe: `tcpdump -w - | towpath fwd pcap:/dev/stdin tap:t0 --oneway`.
//!
//! **Damaged files.** What is in a file is believed only as far as it has been checked, and the memory in use does not
//! depend on it. A record that is wrong in itself is passed over; after one by which the next cannot be found the
//! file is at its end. Either way the records are counted (`errors`, and those that held a packet as `missed`), and
//! the queue's last state names the first of them with its position in the file.
//!
//! **Why the parser is ours.** `pcap-file` 2.0 refuses sound records (original length above snaplen, options without an
//! end mark), takes all pcapng times for nanoseconds and bounds no interface table. `pcap-parser` 0.17 puts options of
//! a packet on the heap (2 MB for a block of 240 KB), and its readers cannot tell a pipe without bytes from an error.
//!
//! There is one queue: a file has one order.

mod config;
mod encode;
mod format;
mod parse;
mod read;
mod records;
mod write;

pub use config::{Config, Mode, Read, Role, Timing, Write};
pub use format::{Format, MAX_CAPTURED};
pub use read::Reader;
pub use records::{Item, Record, Records};
pub use write::Writer;

use encode::Encoder;
use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use towpath_packet::port::{Info, Layer, Port, PortError, Queues, RxQueue, Start, State, TxLinear, TxQueue, Wake};
use towpath_packet::{Batch, Cache, Counters, Direction, MAX_FRAGS, Offloads};
use write::Output;

/// Opens a file: for reading up to the first packet, so that the kind of its packets is known; for writing, which
/// makes it.
///
/// # Errors
/// [`PortError::Os`] when the system refuses; [`PortError::Input`] when the file is no capture of Ethernet or IP packets;
/// [`PortError::Option`] for what cannot be done with a pipe.
pub fn open(config: Config) -> Result<PcapPort, PortError> {
    let name = format!("pcap:{}", config.path.display());
    let os = |step: &str, source| PortError::Os { port: name.clone(), step: step.to_owned(), source, hint: None };
    let (opened, layer, finite) = match config.mode {
        Mode::Read(read) => {
            let file = File::open(&config.path).map_err(|e| os("open", e))?;
            let regular = file.metadata().map_err(|e| os("stat", e))?.is_file();
            if !regular && read.loops.is_none_or(|loops| loops.get() > 1) {
                let value = read.loops.map_or(0, |loops| loops.get()).to_string();
                let rule = "must be 1: only a regular file can be read again".to_owned();
                return Err(PortError::Option { port: name, option: "loop".to_owned(), value, rule });
            }
            let mut records = Records::new(file).map_err(|what| PortError::Input { port: name.clone(), what })?;
            if !regular {
                *records.source_mut() = unblocked(records.source()).map_err(|e| os("open", e))?;
            }
            let layer = records.layer();
            (Opened::Read { records, regular, config: read }, layer, read.loops.is_some())
        }
        Mode::Write(write) => {
            if write.snaplen == 0 || write.snaplen > MAX_CAPTURED || write.layer == Layer::Any {
                let what = "snaplen must be from 1 to 262144, link ethernet or ip".to_owned();
                return Err(PortError::Input { port: name, what });
            }
            let output = Output::create(&config.path, write.rotates()).map_err(|e| os("create", e))?;
            let by_name = config.path.extension().is_some_and(|e| e == "pcapng" || e == "ntar");
            let format = write.format.unwrap_or(if by_name { Format::Pcapng } else { Format::Pcap });
            let (layer, snaplen, interface) = (write.layer, write.snaplen, write.interface.clone());
            let encoder = Encoder { format, layer, snaplen, interface };
            (Opened::Write { encoder, output, config: write }, layer, false)
        }
    };
    let info = Info {
        name,
        layer,
        mtu: u32::from(u16::MAX),
        tx_linear: TxLinear::None,
        headroom: 0,
        tailroom: 0,
        max_chunks: MAX_FRAGS as u16 + 1,
        tx_offloads: Offloads::NONE,
        rx_offloads: Offloads::NONE,
        max_queues: 1,
        finite,
        abilities: Vec::new(),
    };
    Ok(PcapPort { info, opened })
}

/// The same pipe, with reads that return when there is nothing. (The flag would also be seen by whoever shares the
/// descriptor, so it is opened anew.)
fn unblocked(pipe: &File) -> io::Result<File> {
    let path = format!("/proc/self/fd/{}", pipe.as_raw_fd());
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)
}

/// An opened file.
#[derive(Debug)]
pub struct PcapPort {
    info: Info,
    opened: Opened,
}

#[derive(Debug)]
enum Opened {
    Read { records: Records<File>, regular: bool, config: Read },
    Write { encoder: Encoder, output: Output, config: Write },
}

impl Port for PcapPort {
    type Rx = PcapRx;
    type Tx = PcapTx;

    fn info(&self) -> &Info {
        &self.info
    }

    fn start(self, start: Start) -> Result<Queues<PcapRx, PcapTx>, PortError> {
        self.info.queues(start.queues)?;
        let port = self.info.name;
        let cache = |direction| -> Result<Cache, PortError> {
            start.pool.cache(direction).map_err(|source| PortError::Pool { port: port.clone(), source })
        };
        let (rx, tx) = match self.opened {
            Opened::Read { records, regular, config } => {
                let reader = Reader::new(records, regular, config, cache(Direction::Rx)?);
                (PcapRx::Reader(Box::new(reader)), PcapTx::ReadOnly(Arc::default()))
            }
            Opened::Write { encoder, output, config } => {
                let writer = Writer::new(encoder, config, output, cache(Direction::Tx)?);
                if let State::Gone(what) = writer.state() {
                    return Err(PortError::Input { port, what: what.into_owned() });
                }
                (PcapRx::WriteOnly(Arc::default()), PcapTx::Writer(Box::new(writer)))
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
    /// Of a file that is written: brings nothing.
    WriteOnly(Arc<Counters>),
}

impl RxQueue for PcapRx {
    fn rx(&mut self, out: &mut Batch) -> usize {
        match self {
            PcapRx::Reader(reader) => reader.rx(out),
            PcapRx::WriteOnly(_) => 0,
        }
    }

    fn state(&self) -> State {
        match self {
            PcapRx::Reader(reader) => reader.state(),
            PcapRx::WriteOnly(_) => State::Up,
        }
    }

    fn wake(&self) -> Wake {
        match self {
            PcapRx::Reader(reader) => reader.wake(),
            PcapRx::WriteOnly(_) => Wake::Never,
        }
    }

    fn counters(&self) -> &Arc<Counters> {
        match self {
            PcapRx::Reader(reader) => reader.counters(),
            PcapRx::WriteOnly(counters) => counters,
        }
    }
}

/// The transmit queue.
#[derive(Debug)]
pub enum PcapTx {
    /// Of a file that is written.
    Writer(Box<Writer>),
    /// Of a file that is read: takes nothing, and says so.
    ReadOnly(Arc<Counters>),
}

impl TxQueue for PcapTx {
    fn tx(&mut self, batch: &mut Batch) -> usize {
        match self {
            PcapTx::Writer(writer) => writer.tx(batch),
            PcapTx::ReadOnly(_) => 0,
        }
    }

    fn reclaim(&mut self) -> usize {
        match self {
            PcapTx::Writer(writer) => writer.reclaim(),
            PcapTx::ReadOnly(_) => 0,
        }
    }

    fn close(&mut self) {
        if let PcapTx::Writer(writer) = self {
            writer.close();
        }
    }

    fn offloads(&self) -> Offloads {
        Offloads::NONE
    }

    fn pending(&self) -> usize {
        match self {
            PcapTx::Writer(writer) => writer.pending(),
            PcapTx::ReadOnly(_) => 0,
        }
    }

    fn state(&self) -> State {
        match self {
            PcapTx::Writer(writer) => writer.state(),
            PcapTx::ReadOnly(_) => State::Gone(Cow::Borrowed("the file is being read")),
        }
    }

    fn wake(&self) -> Wake {
        match self {
            PcapTx::Writer(writer) => writer.wake(),
            PcapTx::ReadOnly(_) => Wake::Never,
        }
    }

    fn counters(&self) -> &Arc<Counters> {
        match self {
            PcapTx::Writer(writer) => writer.counters(),
            PcapTx::ReadOnly(counters) => counters,
        }
    }
}

#[cfg(test)]
mod tests;
