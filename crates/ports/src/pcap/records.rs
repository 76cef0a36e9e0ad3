//! The packets of a capture, read from any source in bounded memory.

use super::link::{Frames, LinkType};
use super::parse::{MAX_BLOCK, OTHER_LINK, Parser, Step};
use std::io::{ErrorKind, Read};
use towpath_packet::port::Layer;

/// Bytes of the buffer: room for the longest record behind the rest of the previous one.
const BUFFER: usize = 2 * MAX_BLOCK.next_power_of_two();

/// Most steps of one [`Records::peek`] without a packet.
const MAX_STEPS: usize = 1000;

/// Most blocks before the first interface.
const MAX_PROLOGUE: usize = 1000;

/// Reads a capture, pcap or pcapng, of [links](LinkType) whose packets can be sent. Its memory does
/// not depend on the source.
///
/// ```
/// # use towpath_ports::pcap::{Item, Records};
/// # let file: &[u8] = include_bytes!("../../tests/data/two.pcap");
/// let mut records = Records::new(file).unwrap();
/// let mut bytes = 0;
/// while let Item::Packet(record) = records.next() {
///     bytes += record.data.len();
/// }
/// # assert_eq!(bytes, 102);
/// ```
#[derive(Debug)]
pub struct Records<R> {
    source: R,
    parser: Parser,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    /// Bytes after `end` to discard.
    skip: u64,
    /// Offset of `start` in the source.
    offset: u64,
    /// Bytes that [`advance`](Records::advance) skips.
    peeked: u64,
    /// The source is at its end.
    finished: bool,
}

/// A captured packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// Nanoseconds since the epoch; 0 if the file has no time.
    pub time: u64,
    /// The link type of its interface.
    pub link: LinkType,
    /// The captured bytes, without a frame check sequence. Never empty.
    pub data: &'a [u8],
    /// Bytes of the packet without a frame check sequence, before the capture cut it.
    pub original: u32,
}

impl<'a> Record<'a> {
    /// The frames of the record for an egress of `layer`.
    pub fn frames(&self, layer: Layer) -> Frames<'a> {
        self.link.frames(self.data, self.original as usize, layer)
    }
}

/// The next item of a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Item<'a> {
    /// A packet.
    Packet(Record<'a>),
    /// An invalid record; the next one can be read.
    Bad {
        /// Its offset in the source.
        at: u64,
        /// The error.
        what: &'static str,
    },
    /// No packet yet: the source has no bytes now, or many of them held no packet.
    Wait,
    /// The end of the capture.
    End,
    /// The capture ends here, because the next record cannot be found.
    Lost {
        /// Its offset in the source.
        at: u64,
        /// The error.
        what: &'static str,
    },
    /// The capture ends here, because the source cannot be read.
    Failed {
        /// Its offset in the source.
        at: u64,
        /// The error.
        error: ErrorKind,
    },
}

impl<R: Read> Records<R> {
    /// Reads up to the first interface whose packets can be sent, so that the
    /// [`layer`](Records::layer) is known.
    ///
    /// # Errors
    /// A text if the source is no capture, or has none of the [links](LinkType).
    pub fn new(source: R) -> Result<Records<R>, String> {
        let mut records = Records {
            source,
            parser: Parser::new(),
            buffer: vec![0; BUFFER].into_boxed_slice(),
            start: 0,
            end: 0,
            skip: 0,
            offset: 0,
            peeked: 0,
            finished: false,
        };
        for _ in 0..MAX_PROLOGUE {
            if records.parser.link().is_some() {
                return Ok(records);
            }
            if records.parser.has_one_link() {
                break;
            }
            match records.step() {
                // A later interface may have packets that can be sent, but the first packet has
                // come.
                Progress::Step(Step::Bad { what: OTHER_LINK, .. }) => break,
                Progress::Step(Step::Other { used } | Step::Bad { used, .. }) => records.skip_bytes(used),
                Progress::Step(Step::Lost(what)) => return Err(format!("byte {}: {what}", records.offset)),
                Progress::Failed(error) => return Err(format!("byte {}: {error}", records.offset)),
                Progress::End if records.offset == 0 => return Err("too short for a capture".to_owned()),
                Progress::Step(_) | Progress::End | Progress::Wait => break,
            }
        }
        if let Some(link) = records.parser.refused() {
            let sent = "Ethernet, 802.11, raw IP, PPP, HDLC, Frame Relay, SLIP, Linux cooked captures and others";
            return Err(format!("{link}: its frames are neither sent nor converted; those of {sent} are"));
        }
        Err("no interface is described before the first packet".to_owned())
    }

    /// The layer of the first interface's packets.
    pub fn layer(&self) -> Layer {
        self.parser.link().map_or(Layer::Any, LinkType::layer)
    }

    /// The next item. It stays the next one until [`advance`](Records::advance).
    pub fn peek(&mut self) -> Item<'_> {
        for _ in 0..MAX_STEPS {
            match self.step() {
                Progress::Step(Step::Packet { used, link, data, time, original }) => {
                    self.peeked = used;
                    let bytes = self.buffer.get(self.start..self.end).unwrap_or_default();
                    let data = bytes.get(data).unwrap_or_default();
                    return Item::Packet(Record { time, link, data, original });
                }
                Progress::Step(Step::Bad { used, what }) => {
                    self.peeked = used;
                    return Item::Bad { at: self.offset, what };
                }
                Progress::Step(Step::Other { used }) => self.skip_bytes(used),
                Progress::Step(Step::Lost(what)) => return Item::Lost { at: self.offset, what },
                Progress::Step(Step::More(_)) | Progress::Wait => return Item::Wait,
                Progress::End if self.start == self.end && self.skip == 0 => return Item::End,
                Progress::End => return Item::Lost { at: self.offset, what: "the file ends within a record" },
                Progress::Failed(error) => return Item::Failed { at: self.offset, error: error.kind() },
            }
        }
        Item::Wait
    }

    /// Skips the item of the last [`peek`](Records::peek).
    pub fn advance(&mut self) {
        let used = std::mem::take(&mut self.peeked);
        self.skip_bytes(used);
    }

    /// Skips the last item and returns the next one. After [`Item::End`] and [`Item::Lost`] it
    /// stays the same.
    #[allow(clippy::should_implement_trait)] // it lends
    pub fn next(&mut self) -> Item<'_> {
        self.advance();
        self.peek()
    }

    /// One step of the parser, or one read if it needs more.
    fn step(&mut self) -> Progress {
        let step = match self.skip {
            0 => self.parser.step(self.buffer.get(self.start..self.end).unwrap_or_default()),
            _ => Step::More(0),
        };
        match step {
            Step::More(_) => match self.fill() {
                ReadResult::More => Progress::Step(Step::Other { used: 0 }),
                ReadResult::Wait => Progress::Wait,
                ReadResult::End => Progress::End,
                ReadResult::Failed(error) => Progress::Failed(error),
            },
            step => Progress::Step(step),
        }
    }

    /// Skips bytes, also those that are not read yet.
    fn skip_bytes(&mut self, used: u64) {
        let here = used.min((self.end - self.start) as u64);
        self.start += here as usize;
        self.skip += used - here;
        self.offset += used;
    }

    /// Reads once, and discards the bytes to skip.
    fn fill(&mut self) -> ReadResult {
        if self.finished {
            return ReadResult::End;
        }
        // The rest is less than a record, so there is room behind it.
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        let room = self.buffer.get_mut(self.end..).unwrap_or_default();
        let got = loop {
            match self.source.read(room) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        match got {
            Ok(0) => {
                self.finished = true;
                ReadResult::End
            }
            Ok(n) => {
                self.end += n.min(room.len());
                let skipped = self.skip.min((self.end - self.start) as u64);
                self.start += skipped as usize;
                self.skip -= skipped;
                ReadResult::More
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => ReadResult::Wait,
            Err(error) => ReadResult::Failed(error),
        }
    }

    /// The source.
    pub fn source(&self) -> &R {
        &self.source
    }

    /// The source, to be replaced by one that continues with the same bytes.
    pub fn source_mut(&mut self) -> &mut R {
        &mut self.source
    }
}

impl<R: Read + std::io::Seek> Records<R> {
    /// Rewinds to the first byte.
    ///
    /// # Errors
    /// The error of the source's `seek`.
    pub fn rewind(&mut self) -> std::io::Result<()> {
        self.source.rewind()?;
        self.restart();
        Ok(())
    }
}

impl<R> Records<R> {
    /// Begins with the source's first byte, to which it went back.
    pub(super) fn restart(&mut self) {
        self.parser = Parser::new();
        (self.start, self.end, self.skip, self.offset, self.peeked, self.finished) = (0, 0, 0, 0, 0, false);
    }
}

enum ReadResult {
    More,
    Wait,
    End,
    Failed(std::io::Error),
}

enum Progress {
    Step(Step),
    Wait,
    End,
    Failed(std::io::Error),
}
