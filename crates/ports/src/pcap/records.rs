//! The packets of a capture, read from anything in bounded memory.

use super::parse::{MAX_BLOCK, Parser, Step};
use std::io::{ErrorKind, Read};
use towpath_packet::port::Layer;

/// Bytes that are read at once, and kept: room for the longest record behind what is left of the one before.
const BUFFER: usize = 2 * MAX_BLOCK.next_power_of_two();

/// Steps that [`Records::peek`] takes at most before it comes back without a packet.
const PATIENCE: usize = 1000;

/// Blocks that may come before the first interface is described.
const PROLOGUE: usize = 1000;

/// Reads a capture, pcap or pcapng, of Ethernet or IP packets. The memory it uses does not depend on what is read.
///
/// ```
/// # use towpath_ports::pcap::{Item, Records};
/// # let file: &[u8] = include_bytes!("../../../tests/data/two.pcap");
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
    /// Bytes after `end` that are to be thrown away.
    skip: u64,
    /// Where `start` is in the source.
    offset: u64,
    /// What [`advance`](Records::advance) will pass over.
    shown: u64,
    /// The source has no more.
    finished: bool,
}

/// A captured packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// Nanoseconds since the epoch; 0 where the file does not tell.
    pub time: u64,
    /// What was captured, without a frame check sequence. Never empty.
    pub data: &'a [u8],
    /// Length of the packet as it was on the link, as the file tells it.
    pub original: u32,
}

/// What comes next in a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Item<'a> {
    /// A packet.
    Packet(Record<'a>),
    /// Something is wrong at this offset, but what follows can be read.
    Bad {
        /// Where.
        at: u64,
        /// What.
        what: &'static str,
    },
    /// Nothing yet: the source has no bytes at this moment, or a great many of them held no packet.
    Wait,
    /// The end of the capture.
    End,
    /// The capture ends here although the file may go on: nothing that follows can be made sense of.
    Lost {
        /// Where.
        at: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// The source could not be read; the capture ends here.
    Failed {
        /// Where.
        at: u64,
        /// Why.
        error: ErrorKind,
    },
}

impl<R: Read> Records<R> {
    /// Reads up to the first packet, so that the [`layer`](Records::layer) is known.
    ///
    /// # Errors
    /// Says what the source is instead of a capture of Ethernet or IP packets.
    pub fn new(source: R) -> Result<Records<R>, String> {
        let mut records = Records {
            source,
            parser: Parser::new(),
            buffer: vec![0; BUFFER].into_boxed_slice(),
            start: 0,
            end: 0,
            skip: 0,
            offset: 0,
            shown: 0,
            finished: false,
        };
        for _ in 0..PROLOGUE {
            if let Some(link) = records.parser.refused() {
                return Err(format!("{link}: only Ethernet and IP packets can be used"));
            }
            if records.parser.layer().is_some() {
                return Ok(records);
            }
            match records.turn() {
                Turn::Step(Step::Other { used } | Step::Bad { used, .. }) => records.pass(used),
                Turn::Step(Step::Lost(what)) => return Err(format!("byte {}: {what}", records.offset)),
                Turn::Failed(error) => return Err(format!("byte {}: {error}", records.offset)),
                Turn::End if records.offset == 0 => return Err("too short for a capture".to_owned()),
                Turn::Step(_) | Turn::End | Turn::Wait => break,
            }
        }
        Err("no interface is described before the first packet".to_owned())
    }

    /// What packets begin with.
    pub fn layer(&self) -> Layer {
        self.parser.layer().unwrap_or(Layer::Any)
    }

    /// Looks at what comes next, and looks at it again the next time unless it is passed over by
    /// [`advance`](Records::advance).
    pub fn peek(&mut self) -> Item<'_> {
        for _ in 0..PATIENCE {
            match self.turn() {
                Turn::Step(Step::Packet { used, data, time, original }) => {
                    self.shown = used;
                    let bytes = self.buffer.get(self.start..self.end).unwrap_or_default();
                    let data = bytes.get(data).unwrap_or_default();
                    return Item::Packet(Record { time, data, original });
                }
                Turn::Step(Step::Bad { used, what }) => {
                    self.shown = used;
                    return Item::Bad { at: self.offset, what };
                }
                Turn::Step(Step::Other { used }) => self.pass(used),
                Turn::Step(Step::Lost(what)) => return Item::Lost { at: self.offset, what },
                Turn::Step(Step::More(_)) | Turn::Wait => return Item::Wait,
                Turn::End if self.start == self.end && self.skip == 0 => return Item::End,
                Turn::End => return Item::Lost { at: self.offset, what: "the file ends within a record" },
                Turn::Failed(error) => return Item::Failed { at: self.offset, error: error.kind() },
            }
        }
        Item::Wait
    }

    /// Passes over what [`peek`](Records::peek) showed last.
    pub fn advance(&mut self) {
        let used = std::mem::take(&mut self.shown);
        self.pass(used);
    }

    /// Takes what comes next. After [`Item::End`] and [`Item::Lost`] it stays there.
    #[allow(clippy::should_implement_trait)] // it lends
    pub fn next(&mut self) -> Item<'_> {
        self.advance();
        self.peek()
    }

    /// One step of the parser, or one read if it needs more.
    fn turn(&mut self) -> Turn {
        let step = match self.skip {
            0 => self.parser.step(self.buffer.get(self.start..self.end).unwrap_or_default()),
            _ => Step::More(0),
        };
        match step {
            Step::More(_) => match self.fill() {
                Filled::More => Turn::Step(Step::Other { used: 0 }),
                Filled::Wait => Turn::Wait,
                Filled::End => Turn::End,
                Filled::Failed(error) => Turn::Failed(error),
            },
            step => Turn::Step(step),
        }
    }

    /// Passes over bytes, also those that were not read yet.
    fn pass(&mut self, used: u64) {
        let here = used.min((self.end - self.start) as u64);
        self.start += here as usize;
        self.skip += used - here;
        self.offset += used;
    }

    /// Reads once, and throws away what is to be skipped.
    fn fill(&mut self) -> Filled {
        if self.finished {
            return Filled::End;
        }
        // What is left is less than a record, so there is room for more behind it.
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
                Filled::End
            }
            Ok(n) => {
                self.end += n.min(room.len());
                let skipped = self.skip.min((self.end - self.start) as u64);
                self.start += skipped as usize;
                self.skip -= skipped;
                Filled::More
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Filled::Wait,
            Err(error) => Filled::Failed(error),
        }
    }

    /// What is read from.
    pub fn source(&self) -> &R {
        &self.source
    }

    /// What is read from, to be replaced by what goes on with the same bytes.
    pub fn source_mut(&mut self) -> &mut R {
        &mut self.source
    }
}

impl<R: Read + std::io::Seek> Records<R> {
    /// Goes back to the first byte.
    ///
    /// # Errors
    /// When the source cannot be wound back.
    pub fn rewind(&mut self) -> std::io::Result<()> {
        self.source.rewind()?;
        self.parser = Parser::new();
        (self.start, self.end, self.skip, self.offset, self.shown, self.finished) = (0, 0, 0, 0, 0, false);
        Ok(())
    }
}

enum Filled {
    More,
    Wait,
    End,
    Failed(std::io::Error),
}

enum Turn {
    Step(Step),
    Wait,
    End,
    Failed(std::io::Error),
}
