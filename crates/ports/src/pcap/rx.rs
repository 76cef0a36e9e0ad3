//! The receive queue: the packets of a file, as fast as possible or with the gaps of the capture.

use super::config::{ReadConfig, Timing};
use super::parse::{EMPTY, OTHER_LINK};
use super::records::{Item, Records};
use std::borrow::Cow;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use towpath_packet::port::{RxQueue, State, Wake};
use towpath_packet::{Batch, Cache, Counters, MAX_FRAGS, Missed, Packet};

/// Most bad records that one call skips.
const MAX_BAD_RECORDS: usize = 1000;
/// A packet that no chain of buffers holds.
const TOO_LONG: &str = "a packet that is longer than buffers can be chained to";
/// Errors of files that are not damaged.
const SOUND: [&str; 3] = [EMPTY, OTHER_LINK, TOO_LONG];

/// A receive queue of the packets of a file.
#[derive(Debug)]
pub struct Reader {
    records: Records<File>,
    /// A regular file; another one may have no bytes yet.
    regular: bool,
    config: ReadConfig,
    /// Completed passes over the file.
    passes: u32,
    /// The file has packets.
    any: bool,
    clock: Option<Clock>,
    /// The time of the next packet, if it is later than now.
    due: Option<Instant>,
    /// The number of bad records, and the error of the first.
    bad: u64,
    first_bad: String,
    /// A bad record is not one of a sound file.
    damaged: bool,
    ended: bool,
    cache: Cache,
    counters: Arc<Counters>,
}

impl Reader {
    pub(super) fn new(records: Records<File>, regular: bool, config: ReadConfig, cache: Cache) -> Reader {
        Reader {
            records,
            regular,
            config,
            passes: 0,
            any: false,
            clock: Clock::new(config.timing),
            due: None,
            bad: 0,
            first_bad: String::new(),
            damaged: false,
            ended: false,
            cache,
            counters: Arc::default(),
        }
    }

    /// Counts an error of the file.
    #[cold]
    fn count_bad(&mut self, at: Option<u64>, what: &str) {
        if self.bad == 0 {
            self.first_bad = at.map_or_else(|| what.to_owned(), |at| format!("byte {at}: {what}"));
        }
        self.damaged |= !SOUND.contains(&what);
        self.bad += 1;
        self.counters.failed(1);
    }

    /// Whether the file is damaged, or sound and has records that can't be sent.
    fn trouble(&self) -> &'static str {
        if self.damaged { "damaged file" } else { "not all records can be sent" }
    }

    /// Ends a pass; begins the next one, if there is one.
    #[cold]
    fn end_of_pass(&mut self) {
        self.passes = self.passes.saturating_add(1);
        let again = self.config.loops.is_none_or(|loops| self.passes < loops.get());
        // Without packets an endless number of passes would not end.
        if !again || !self.any {
            self.ended = true;
            return;
        }
        if let Err(error) = self.records.rewind() {
            self.count_bad(None, &error.to_string());
            self.ended = true;
        }
        (self.clock, self.due) = (Clock::new(self.config.timing), None);
    }
}

/// Timing of a pass, which begins with its first packet.
#[derive(Debug)]
struct Clock {
    speed: f64,
    /// The times at which the first packet of the pass was received, and captured.
    origin: Option<(Instant, u64)>,
}

impl Clock {
    fn new(timing: Timing) -> Option<Clock> {
        match timing {
            Timing::Fast => None,
            Timing::Original { speed } => Some(Clock { speed, origin: None }),
        }
    }

    /// The time at which a packet that was captured at `time` is due; at once if that is before the
    /// first.
    fn due(&mut self, time: u64, now: Instant) -> Instant {
        let (start, first) = *self.origin.get_or_insert((now, time));
        let after = time.saturating_sub(first) as f64 / 1e9 / self.speed;
        // A gap of more than a year is the result of a damaged file or of an extreme speed.
        let after = Duration::try_from_secs_f64(after.min(366.0 * 86_400.0)).unwrap_or_default();
        start + after
    }
}

impl RxQueue for Reader {
    fn rx(&mut self, out: &mut Batch) -> usize {
        let now = self.clock.is_some().then(Instant::now);
        if self.ended || self.due.zip(now).is_some_and(|(due, now)| due > now) {
            return 0;
        }
        self.due = None;
        let longest = (self.cache.chunk() - self.cache.headroom()) * (MAX_FRAGS + 1);
        let (mut packets, mut bytes, mut bad_left) = (0, 0, MAX_BAD_RECORDS);
        while out.room() > 0 && !self.ended && bad_left > 0 {
            match self.records.peek() {
                Item::Packet(record) if record.data.len() > longest => {
                    self.records.advance();
                    self.counters.missed(Missed::Unreadable, 1);
                    self.count_bad(None, TOO_LONG);
                    bad_left -= 1;
                }
                Item::Packet(record) => {
                    if let (Some(clock), Some(now)) = (&mut self.clock, now) {
                        self.due = Some(clock.due(record.time, now)).filter(|due| *due > now);
                        if self.due.is_some() {
                            break;
                        }
                    }
                    // Without a buffer the record stays the next one.
                    let Some(mut packet) = Packet::copy_from(&mut self.cache, record.data) else { break };
                    packet.set_timestamp(record.time);
                    self.any = true;
                    packets += 1;
                    bytes += record.data.len() as u64;
                    // The loop's condition leaves room.
                    let _ = out.push(packet);
                    self.records.advance();
                }
                Item::Bad { at, what } => {
                    self.records.advance();
                    self.counters.missed(Missed::Unreadable, 1);
                    self.count_bad(Some(at), what);
                    bad_left -= 1;
                }
                Item::Wait => break,
                Item::End => self.end_of_pass(),
                Item::Lost { at, what } => {
                    self.count_bad(Some(at), what);
                    self.ended = true;
                }
                Item::Failed { at, error } => {
                    self.count_bad(Some(at), &error.to_string());
                    self.ended = true;
                }
            }
        }
        self.counters.moved(packets, bytes);
        packets as usize
    }

    fn state(&self) -> State {
        match (self.ended, self.bad) {
            (false, _) => State::Up,
            (true, 0) if self.regular && !self.any => State::Gone(Cow::Borrowed("the file has no packets")),
            (true, 0) => State::Done,
            (true, 1) => State::Gone(Cow::Owned(format!("{}: {}", self.trouble(), self.first_bad))),
            (true, n) => {
                State::Gone(Cow::Owned(format!("{}: {n} errors, the first at {}", self.trouble(), self.first_bad)))
            }
        }
    }

    fn wake(&self) -> Wake {
        match self.due {
            _ if self.ended => Wake::Never,
            Some(due) => Wake::At(due),
            None if self.regular => Wake::Poll,
            None => Wake::Fd(self.records.source().as_raw_fd()),
        }
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}
