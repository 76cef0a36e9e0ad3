//! The bytes of a capture: of a file or a pipe, as they are or decompressed.
//!
//! ```text
//!   file ──► first bytes ──┬─ a capture ──────────────► bytes
//!                          └─ gzip, zstd or xz ───────► decoder ──► bytes
//!   pipe ──► the same; a decoder has a thread of its own and a second pipe, because decoders can't
//!            stop where a pipe has no bytes yet
//! ```
//!
//! Decoders hold a window and no more: 32 KiB for gzip, at most [`MAX_WINDOW`] for zstd and xz. A
//! file that claims a larger one is refused, however little of it there is.

use flate2::bufread::MultiGzDecoder;
use lzma_rust2::XzReader;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Cursor, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Arc, OnceLock};

/// Most bytes of a decoder's window: what `zstd -d` and `xz -9` need.
pub(super) const MAX_WINDOW: u64 = 128 << 20;
/// Bytes of compressed data in one read.
const PIECE: usize = 1 << 16;

/// A way to compress a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compression {
    /// gzip, RFC 1952.
    Gzip,
    /// Zstandard, RFC 8878.
    Zstd,
    /// xz; it is read only.
    Xz,
}

impl Compression {
    /// By the first bytes of a file.
    fn from_magic(bytes: &[u8]) -> Option<Compression> {
        match bytes {
            [0x1f, 0x8b, ..] => Some(Compression::Gzip),
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Some(Compression::Zstd),
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Some(Compression::Xz),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Compression::Gzip => "gzip",
            Compression::Zstd => "zstd",
            Compression::Xz => "xz",
        }
    }
}

/// The rest of a file of which the first bytes were read already.
type Rest = io::Chain<Cursor<Vec<u8>>, File>;
type Compressed = BufReader<Rest>;

/// What the bytes come from.
pub(super) struct Source {
    kind: Kind,
    /// A regular file can be read again, and never lets its reader wait.
    regular: bool,
    /// What is wrong with the compressed bytes.
    failure: Arc<OnceLock<String>>,
    compression: Option<Compression>,
}

enum Kind {
    Plain(Rest),
    Decoder(Decoder),
    /// What a thread decodes.
    Pipe(File),
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Source").field("regular", &self.regular).field("compression", &self.compression).finish()
    }
}

impl Source {
    /// A file whose first bytes show what it is.
    pub(super) fn new(file: File) -> io::Result<Source> {
        let regular = file.metadata()?.is_file();
        let mut first = Vec::with_capacity(6);
        (&file).take(6).read_to_end(&mut first)?;
        let compression = Compression::from_magic(&first);
        let failure = Arc::default();
        let rest = Cursor::new(first).chain(file);
        let kind = match compression {
            None => Kind::Plain(rest),
            Some(compression) => {
                let decoder = Decoder::new(compression, rest);
                if regular { Kind::Decoder(decoder) } else { Kind::Pipe(decode_apart(decoder, &failure)?) }
            }
        };
        Ok(Source { kind, regular, failure, compression })
    }

    /// Whether it is a regular file.
    pub(super) fn is_regular(&self) -> bool {
        self.regular
    }

    /// What is wrong with the compressed bytes, if anything is.
    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// The place of a [`failure`](Source::failure), for a reader that keeps the source.
    pub(super) fn watch(&self) -> Arc<OnceLock<String>> {
        self.failure.clone()
    }

    /// Lets reads of a pipe fail instead of waiting. The pipe is opened again, because processes
    /// that share the descriptor share the flag.
    pub(super) fn set_nonblocking(&mut self) -> io::Result<()> {
        let again = |pipe: &File| {
            let path = format!("/proc/self/fd/{}", pipe.as_raw_fd());
            OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)
        };
        match &mut self.kind {
            Kind::Plain(rest) => {
                let pipe = again(rest.get_ref().1)?;
                *rest.get_mut().1 = pipe;
            }
            Kind::Pipe(pipe) => *pipe = again(pipe)?,
            Kind::Decoder(_) => {}
        }
        Ok(())
    }

    /// The descriptor that is readable when there are bytes.
    pub(super) fn fd(&self) -> RawFd {
        match &self.kind {
            Kind::Plain(rest) => rest.get_ref().1.as_raw_fd(),
            Kind::Pipe(pipe) => pipe.as_raw_fd(),
            Kind::Decoder(decoder) => decoder.rest().get_ref().1.as_raw_fd(),
        }
    }

    /// Goes back to the first byte of a regular file.
    pub(super) fn rewind(&mut self) -> io::Result<()> {
        let again = |rest: &Rest| -> io::Result<Rest> {
            let mut file = rest.get_ref().1.try_clone()?;
            file.seek(SeekFrom::Start(0))?;
            Ok(Cursor::new(Vec::new()).chain(file))
        };
        match &mut self.kind {
            Kind::Plain(rest) => *rest = again(rest)?,
            Kind::Decoder(decoder) => {
                let rest = again(decoder.rest())?;
                *decoder = Decoder::new(decoder.compression(), rest);
            }
            Kind::Pipe(_) => return Err(io::ErrorKind::NotSeekable.into()),
        }
        Ok(())
    }
}

impl Read for Source {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match &mut self.kind {
            Kind::Plain(rest) => rest.read(out),
            Kind::Pipe(pipe) => pipe.read(out),
            Kind::Decoder(decoder) => decoder.read(out).inspect_err(|error| {
                if error.kind() != io::ErrorKind::Interrupted {
                    let _ = self.failure.set(decoder.describe(error));
                }
            }),
        }
    }
}

/// Decodes in a thread; returns the pipe of what it decodes. The thread ends with its input, with
/// the first error, or when the pipe is closed.
fn decode_apart(mut decoder: Decoder, failure: &Arc<OnceLock<String>>) -> io::Result<File> {
    let (from, mut to) = io::pipe()?;
    let failure = failure.clone();
    let work = move || {
        let mut piece = vec![0; PIECE];
        loop {
            match decoder.read(&mut piece) {
                Ok(0) => break,
                Ok(n) => {
                    if to.write_all(piece.get(..n).unwrap_or_default()).is_err() {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let _ = failure.set(decoder.describe(&error));
                    break;
                }
            }
        }
    };
    std::thread::Builder::new().name("pcap-decoder".to_owned()).spawn(work)?;
    Ok(File::from(OwnedFd::from(from)))
}

/// A decoder of concatenated streams.
enum Decoder {
    Gzip(Box<MultiGzDecoder<Compressed>>),
    Zstd(Box<Zstd>),
    Xz(Box<XzReader<Compressed>>),
}

impl Decoder {
    fn new(compression: Compression, rest: Rest) -> Decoder {
        let rest = BufReader::with_capacity(PIECE, rest);
        match compression {
            Compression::Gzip => Decoder::Gzip(Box::new(MultiGzDecoder::new(rest))),
            Compression::Zstd => {
                let mut decoder = FrameDecoder::new();
                decoder.set_max_window_size(MAX_WINDOW);
                Decoder::Zstd(Box::new(Zstd { decoder, rest, within: false }))
            }
            Compression::Xz => Decoder::Xz(Box::new(XzReader::new_mem_limit(rest, true, (MAX_WINDOW >> 10) as u32))),
        }
    }

    fn compression(&self) -> Compression {
        match self {
            Decoder::Gzip(_) => Compression::Gzip,
            Decoder::Zstd(_) => Compression::Zstd,
            Decoder::Xz(_) => Compression::Xz,
        }
    }

    fn rest(&self) -> &Rest {
        match self {
            Decoder::Gzip(gzip) => gzip.get_ref().get_ref(),
            Decoder::Zstd(zstd) => zstd.rest.get_ref(),
            Decoder::Xz(xz) => xz.inner().get_ref(),
        }
    }

    fn buffer(&mut self) -> &mut Compressed {
        match self {
            Decoder::Gzip(gzip) => gzip.get_mut(),
            Decoder::Zstd(zstd) => &mut zstd.rest,
            Decoder::Xz(xz) => xz.inner_mut(),
        }
    }

    /// An error of [`read`](Read::read), for people.
    #[cold]
    fn describe(&mut self, error: &io::Error) -> String {
        let name = self.compression().name();
        let at_end = self.buffer().fill_buf().is_ok_and(<[u8]>::is_empty);
        match error.raw_os_error() {
            Some(_) => error.to_string(),
            None if at_end || error.kind() == io::ErrorKind::UnexpectedEof => {
                format!("the {name} data is cut short: the file is not complete")
            }
            None => format!("the {name} data is damaged: {error}"),
        }
    }
}

impl Read for Decoder {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match self {
            Decoder::Gzip(gzip) => gzip.read(out),
            Decoder::Zstd(zstd) => zstd.read(out),
            Decoder::Xz(xz) => xz.read(out),
        }
    }
}

/// Frames of Zstandard, one after the other; skippable ones are skipped.
struct Zstd {
    decoder: FrameDecoder,
    rest: Compressed,
    /// A frame has begun.
    within: bool,
}

impl Read for Zstd {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.within {
                if self.rest.fill_buf()?.is_empty() {
                    return Ok(0);
                }
                match self.decoder.init(&mut self.rest) {
                    Ok(()) => self.within = true,
                    Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                        length, ..
                    })) => {
                        let length = u64::from(length);
                        if io::copy(&mut self.rest.by_ref().take(length), &mut io::sink())? < length {
                            return Err(io::ErrorKind::UnexpectedEof.into());
                        }
                        continue;
                    }
                    Err(error) => return Err(io::Error::other(error)),
                }
            }
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                self.decoder
                    .decode_blocks(&mut self.rest, BlockDecodingStrategy::UptoBlocks(1))
                    .map_err(io::Error::other)?;
            }
            let got = self.decoder.read(out)?;
            if got > 0 || out.is_empty() {
                return Ok(got);
            }
            let checksums = (self.decoder.get_checksum_from_data(), self.decoder.get_calculated_checksum());
            if let (Some(expected), Some(found)) = checksums
                && expected != found
            {
                return Err(io::Error::other("a frame's checksum is wrong"));
            }
            self.within = false;
        }
    }
}
