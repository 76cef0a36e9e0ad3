//! The transmit queue: packets become records in a buffer, which is written in large pieces.
//!
//! ```text
//!   tx ──► records ──► buffer ──(full, or a flush is due)──► one write ──► file ──(long or old)──► the next file
//! ```
//!
//! A compressed file has a gzip member or a Zstandard frame for each write, and is as valid.
//!
//! Only whole records are written, so that the file is valid up to the last flush, even if the
//! process is killed. Packets count as sent after the write. If it fails, the file is truncated to
//! its last whole record, the packets in the buffer are counted as dropped, and the queue is gone.

use super::config::{Compress, WriteConfig};
use super::encode::Encoder;
use flate2::write::GzEncoder;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use std::borrow::Cow;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::io::Write as _;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Instant, SystemTime};
use towpath_packet::port::{State, TxQueue, Wake};
use towpath_packet::{Batch, Cache, Counters, DropReason, Offloads, Packet};

/// Bytes of one write.
const PIECE: usize = 1 << 18;

/// A queue that writes to a file.
#[derive(Debug)]
pub struct Writer {
    encoder: Encoder,
    config: WriteConfig,
    output: Output,
    buffer: Vec<u8>,
    /// Packets in the buffer, and their bytes.
    waiting: (u64, u64),
    flushed: Instant,
    failed: Option<String>,
    cache: Cache,
    counters: Arc<Counters>,
}

impl Writer {
    pub(super) fn new(encoder: Encoder, config: WriteConfig, output: Output, cache: Cache) -> Writer {
        let room = PIECE + encoder.snaplen as usize + super::encode::OVERHEAD;
        let mut writer = Writer {
            encoder,
            config,
            output,
            buffer: Vec::with_capacity(room.max(1 << 17)),
            waiting: (0, 0),
            flushed: Instant::now(),
            failed: None,
            cache,
            counters: Arc::default(),
        };
        // The header is written at once, so that the file is always a capture.
        writer.encoder.header(&mut writer.buffer);
        writer.flush();
        writer
    }

    /// Writes the buffer.
    fn flush(&mut self) {
        if self.buffer.is_empty() || self.failed.is_some() {
            return;
        }
        self.flushed = Instant::now();
        let (packets, bytes) = std::mem::take(&mut self.waiting);
        self.counters.called(1);
        match self.output.write(&self.buffer) {
            Ok(()) => self.counters.moved(packets, bytes),
            Err(error) => {
                self.counters.dropped(DropReason::Refused, packets);
                self.fail("write", error);
            }
        }
        self.buffer.clear();
    }

    #[cold]
    fn fail(&mut self, step: &str, error: io::Error) {
        self.counters.failed(1);
        self.failed = Some(format!("{}: {step}: {error}", self.output.path.display()));
    }

    /// Begins the next file, if this one has reached its size or age.
    fn rotate(&mut self, now: Instant, next: usize) {
        let size = self.output.written + (self.buffer.len() + next) as u64;
        let long = self.config.rotate_size.is_some_and(|max| size > max);
        let old = self.config.rotate_time.is_some_and(|max| now.saturating_duration_since(self.output.opened) >= max);
        if !(long || old) || self.output.records == 0 {
            return;
        }
        self.flush();
        if self.failed.is_none() {
            match self.output.next(self.config.files) {
                Ok(()) => {
                    self.encoder.header(&mut self.buffer);
                    self.flush();
                }
                Err(error) => self.fail("open", error),
            }
        }
    }

    fn add(&mut self, packet: &Packet, time: u64, now: Instant) {
        if self.config.rotates() {
            self.rotate(now, self.encoder.size(packet));
        }
        if self.failed.is_some() {
            self.counters.dropped(DropReason::Refused, 1);
            return;
        }
        self.encoder.record(&mut self.buffer, packet, time);
        self.waiting.0 += 1;
        self.waiting.1 += packet.len() as u64;
        self.output.records += 1;
        if self.buffer.len() >= PIECE {
            self.flush();
        }
    }
}

impl TxQueue for Writer {
    fn tx(&mut self, batch: &mut Batch) -> usize {
        if self.failed.is_some() || batch.is_empty() {
            return 0;
        }
        let now = Instant::now();
        let mut clock = 0;
        for packet in batch.iter() {
            let time = match packet.timestamp() {
                0 if clock == 0 => {
                    let passed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                    clock = u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX);
                    clock
                }
                0 => clock,
                time => time,
            };
            self.add(packet, time, now);
        }
        let taken = batch.len();
        self.cache.free_bulk(batch);
        taken
    }

    fn reclaim(&mut self) -> usize {
        let before = self.waiting.0;
        if before > 0 && self.flushed.elapsed() >= self.config.flush {
            self.flush();
        }
        (before - self.waiting.0) as usize
    }

    fn close(&mut self) -> Result<(), Cow<'static, str>> {
        self.flush();
        self.failed.clone().map_or(Ok(()), |why| Err(Cow::Owned(why)))
    }

    fn offloads(&self) -> Offloads {
        Offloads::NONE
    }

    fn pending(&self) -> usize {
        self.waiting.0 as usize
    }

    fn state(&self) -> State {
        self.failed.clone().map_or(State::Up, |why| State::Gone(Cow::Owned(why)))
    }

    fn wake(&self) -> Wake {
        self.flushed.checked_add(self.config.flush).map_or(Wake::Poll, Wake::At)
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.flush();
    }
}

/// The current file, and the complete ones.
#[derive(Debug)]
pub(super) struct Output {
    /// The configured path.
    base: PathBuf,
    /// The path of the current file.
    path: PathBuf,
    file: File,
    compress: Compress,
    /// Bytes written: whole records.
    written: u64,
    /// Packets in the file and in the buffer.
    records: u64,
    opened: Instant,
    number: u32,
    /// The complete files, the oldest first.
    complete: VecDeque<PathBuf>,
}

impl Output {
    /// The configured path, without a number.
    pub(super) fn base(&self) -> &Path {
        &self.base
    }

    /// Creates the file, or the first of several.
    pub(super) fn create(base: &Path, rotates: bool, compress: Compress) -> io::Result<Output> {
        let number = u32::from(rotates);
        let path = numbered(base, number);
        let file = if base == Path::new("-") {
            io::stdout().as_fd().try_clone_to_owned()?.into()
        } else {
            File::create(&path)?
        };
        let (base, opened) = (base.to_owned(), Instant::now());
        Ok(Output { base, path, file, compress, written: 0, records: 0, opened, number, complete: VecDeque::new() })
    }

    /// Creates the next file, and removes the oldest if there are more than `keep`.
    fn next(&mut self, keep: Option<u32>) -> io::Result<()> {
        let number = self.number.saturating_add(1);
        let path = numbered(&self.base, number);
        self.file = File::create(&path)?;
        self.complete.push_back(std::mem::replace(&mut self.path, path));
        (self.number, self.written, self.records, self.opened) = (number, 0, 0, Instant::now());
        if let Some(keep) = keep {
            while self.complete.len() >= keep.max(1) as usize
                && let Some(oldest) = self.complete.pop_front()
            {
                match std::fs::remove_file(oldest) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Writes whole records; after an error the file has none of them.
    fn write(&mut self, records: &[u8]) -> io::Result<()> {
        let compressed = match self.compress {
            Compress::None => Vec::new(),
            Compress::Gzip => {
                let mut member = GzEncoder::new(Vec::new(), flate2::Compression::default());
                member.write_all(records)?;
                member.finish()?
            }
            Compress::Zstd => compress_to_vec(records, CompressionLevel::Fastest),
        };
        let records = if self.compress == Compress::None { records } else { &compressed };
        match self.file.write_all(records) {
            Ok(()) => {
                self.written += records.len() as u64;
                Ok(())
            }
            Err(error) => {
                // A pipe cannot be truncated; its reader sees the end.
                let _ = self.file.set_len(self.written);
                Err(error)
            }
        }
    }
}

/// The path of a file: `out-00001.pcap` for number 1 of `out.pcap`; `out.pcap` for 0.
pub(super) fn numbered(base: &Path, number: u32) -> PathBuf {
    if number == 0 {
        return base.to_owned();
    }
    let (stem, extensions) = split(base);
    base.with_file_name(format!("{stem}-{number:05}{extensions}"))
}

/// The extension in front of that of a compression.
pub(super) fn extension(base: &Path) -> Option<String> {
    let (_, extensions) = split(base);
    extensions.split('.').nth(1).map(str::to_owned)
}

/// The name of a file without its extension, and the extension, with that of a compression.
fn split(base: &Path) -> (String, String) {
    let inner = if Compress::from_name(base) == Compress::None { base.to_owned() } else { base.with_extension("") };
    let stem = inner.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let name = base.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let extensions = name.strip_prefix(&stem).unwrap_or_default().to_owned();
    (stem, extensions)
}

#[cfg(test)]
mod tests {
    use super::super::format::Format;
    use super::*;
    use towpath_packet::port::Layer;
    use towpath_packet::{Direction, Pool, PoolConfig};

    #[test]
    fn when_the_disk_is_full_the_gathered_packets_are_dropped_and_the_queue_is_gone() {
        let path = tempfile::tempdir().unwrap().path().with_extension("pcap");
        let pool = Pool::new(PoolConfig::default().capacity(64)).unwrap();
        let mut cache = pool.cache(Direction::Tx).unwrap();
        let interface = String::new();
        let encoder = Encoder { format: Format::Pcap, layer: Layer::Ethernet, snaplen: 1000, interface };
        let output = Output::create(&path, false, Compress::None).unwrap();
        let mut writer = Writer::new(encoder, WriteConfig::default(), output, pool.cache(Direction::Tx).unwrap());
        let mut burst = move || {
            let mut batch = Batch::new();
            (0..5).for_each(|_| batch.push(Packet::copy_from(&mut cache, &[1; 60]).unwrap()).unwrap());
            batch
        };
        assert_eq!(writer.tx(&mut burst()), 5);
        writer.flush();
        writer.output.file = File::options().write(true).open("/dev/full").unwrap();
        assert_eq!(writer.tx(&mut burst()), 5);
        writer.flush();
        let counted = writer.counters.snapshot();
        assert_eq!((counted.packets, counted.dropped(DropReason::Refused), counted.errors), (5, 5, 1));
        assert!(matches!(writer.state(), State::Gone(why) if why.contains("No space left")));
        let mut refused = burst();
        assert_eq!((writer.tx(&mut refused), refused.len(), writer.pending()), (0, 5, 0));
        drop((writer, burst, refused));
        assert_eq!(pool.stats().free, 64);
        std::fs::remove_file(path).unwrap();
    }
}
