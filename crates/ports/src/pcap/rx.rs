//! The receive queue: the packets of a file, as fast as possible, at a rate, or with the gaps of
//! the capture.
//!
//! ```text
//!   record ─► is it due? ─┬─ a frame of the egress's layer, whole, no edits ─────────► packet
//!                         └─ link header ─► missing bytes ─► edits ─► worked bytes ──► packet
//! ```
//!
//! A record is one frame, or several if it is an A-MSDU of 802.11. What can't be sent is skipped
//! and counted: by name among the port's events, and as missed. It is no damage of the file. A
//! file of which nothing can be sent is a failure, unless a frame of it was understood and has no
//! form that the egress takes: a capture of beacons is replayed as no packets.
//!
//! ```text
//!   records + wifi_further_amsdu_frames = packets + missed
//! ```

use super::config::{ReadConfig, Truncated};
use super::events::{Event, Events};
use super::format::MAX_CAPTURED;
use super::link::Frame;
use super::parse::{EMPTY, OTHER_LINK};
use super::rate::{Rate, Unit};
use super::records::{Item, Records};
use super::source::Source;
use super::timing::Timing;
use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};
use towpath_packet::port::{Layer, RxQueue, State, Wake};
use towpath_packet::{Batch, Cache, Counters, MAX_FRAGS, Missed, Packet};

/// Most bad records that one call skips.
const MAX_BAD_RECORDS: usize = 1000;
/// Most bytes that conversion and edits add: an Ethernet header and a tag.
const ADDED: usize = 18;

/// A receive queue of the packets of a file.
#[derive(Debug)]
pub struct Reader {
    records: Records<Source>,
    config: ReadConfig,
    /// What packets become.
    layer: Layer,
    /// Packets are changed.
    edited: bool,
    /// Completed passes over the file.
    passes: u32,
    /// The file has packets that were sent, and others.
    any: bool,
    /// Frames of the next record that were sent or skipped.
    part: usize,
    skipped: Skipped,
    clock: Option<Clock>,
    rate: Option<Rate>,
    /// The time of the next packet, if it is later than now.
    due: Option<Instant>,
    /// The number of bad records, and the error of the first.
    bad: u64,
    first_bad: String,
    ended: bool,
    /// The bytes of a packet that is not sent as it was captured.
    worked: Vec<u8>,
    events: Arc<Events>,
    cache: Cache,
    counters: Arc<Counters>,
}

impl Reader {
    pub(super) fn new(records: Records<Source>, config: ReadConfig, layer: Layer, make: Parts) -> Reader {
        let Parts { cache, events, rate } = make;
        Reader {
            records,
            layer,
            edited: !config.edits.is_empty(),
            passes: 0,
            any: false,
            part: 0,
            skipped: Skipped::default(),
            clock: Clock::new(config.timing),
            rate,
            due: None,
            bad: 0,
            first_bad: String::new(),
            ended: false,
            worked: Vec::with_capacity(MAX_CAPTURED as usize + ADDED),
            events,
            cache,
            counters: Arc::default(),
            config,
        }
    }

    /// Counts an error of the file.
    #[cold]
    fn count_bad(&mut self, at: Option<u64>, what: &str) {
        // Bytes that can't be decompressed are the cause of what follows.
        let what = self.records.source().failure().unwrap_or(what);
        if self.bad == 0 {
            self.first_bad = at.map_or_else(|| what.to_owned(), |at| format!("byte {at}: {what}"));
        }
        self.bad += 1;
        self.counters.failed(1);
    }

    /// Ends a pass; begins the next one, if there is one.
    #[cold]
    fn end_of_pass(&mut self) {
        self.passes = self.passes.saturating_add(1);
        let again = self.config.loops.is_none_or(|loops| self.passes < loops.get());
        // A decoder in a thread has failed.
        if self.records.source().failure().is_some() {
            self.count_bad(None, "");
            self.ended = true;
            return;
        }
        // Without packets an endless number of passes would not end.
        if !again || !self.any {
            self.ended = true;
            return;
        }
        if let Err(error) = self.records.source_mut().rewind() {
            self.count_bad(None, &error.to_string());
            self.ended = true;
        }
        self.records.restart();
        (self.clock, self.due) = (Clock::new(self.config.timing), None);
    }
}

/// Frames of a sound file that were not sent.
#[derive(Debug, Default)]
struct Skipped {
    count: u64,
    first: Option<Event>,
    /// Some have a link type that is converted, but no form that the egress takes.
    formless: bool,
}

impl Skipped {
    #[cold]
    fn add(&mut self, event: Event, events: &Events, counters: &Counters) {
        self.count += 1;
        self.first.get_or_insert(event);
        self.formless |= event.is_formless();
        events.count(event);
        counters.missed(if event.is_formless() { Missed::NoForm } else { Missed::Unreadable }, 1);
    }
}

/// What a [`Reader`] gets from its port.
pub(super) struct Parts {
    pub(super) cache: Cache,
    pub(super) events: Arc<Events>,
    pub(super) rate: Option<Rate>,
}

/// The rate of the packets, if there is one.
pub(super) fn rate(timing: Timing) -> Option<Rate> {
    match timing {
        Timing::PacketRate(pps) => Some(Rate::new(Unit::Packets, pps)),
        Timing::BitRate(bits) => Some(Rate::new(Unit::Bits, bits)),
        Timing::Fast | Timing::Original { .. } => None,
    }
}

/// Writes a packet as it is to be sent.
fn work(worked: &mut Vec<u8>, frame: &Frame, config: &ReadConfig, layer: Layer) -> Result<(), Event> {
    worked.clear();
    worked.extend(frame.head.iter().flatten());
    worked.extend_from_slice(frame.rest);
    if frame.missing > 0 {
        match config.truncated {
            Truncated::Send => {}
            Truncated::Skip => return Err(Event::Truncated),
            // The file may claim any length.
            Truncated::Pad if frame.rest.len() + frame.missing > MAX_CAPTURED as usize => return Err(Event::TooLong),
            Truncated::Pad => worked.resize(worked.len() + frame.missing, 0),
        }
    }
    if !config.edits.is_empty() {
        config.edits.apply(worked, layer);
    }
    Ok(())
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
            Timing::Fast | Timing::PacketRate(_) | Timing::BitRate(_) => None,
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
        let paced = self.clock.is_some() || self.rate.is_some();
        let now = paced.then(Instant::now);
        if self.ended || self.due.zip(now).is_some_and(|(due, now)| due > now) {
            return 0;
        }
        self.due = None;
        let longest = (self.cache.chunk() - self.cache.headroom()) * (MAX_FRAGS + 1);
        let (mut packets, mut bytes, mut bad_left) = (0, 0, MAX_BAD_RECORDS);
        'turn: while out.room() > 0 && !self.ended && bad_left > 0 {
            match self.records.peek() {
                Item::Packet(record) => {
                    // What is left of it, if the batch had no room for more of its frames.
                    for frame in record.frames(self.layer).skip(self.part) {
                        if out.room() == 0 || bad_left == 0 {
                            break 'turn;
                        }
                        if let Some(now) = now {
                            let due = match (&mut self.clock, &mut self.rate) {
                                (Some(clock), _) => Some(clock.due(record.time, now)),
                                (None, Some(rate)) => rate.due(now),
                                (None, None) => None,
                            };
                            self.due = due.filter(|due| *due > now);
                            if self.due.is_some() {
                                break 'turn;
                            }
                        }
                        let data = frame.map_err(Event::from).and_then(|frame| {
                            let data = if frame.head.is_none() && frame.missing == 0 && !self.edited {
                                frame.rest
                            } else {
                                work(&mut self.worked, &frame, &self.config, self.layer)?;
                                &self.worked
                            };
                            match data.len() {
                                0 => Err(Event::Empty),
                                len if len > longest => Err(Event::TooLong),
                                _ => Ok((data, frame.missing > 0)),
                            }
                        });
                        match data {
                            Ok((data, truncated)) => {
                                // Without a buffer the frame stays the next one.
                                let Some(mut packet) = Packet::copy_from(&mut self.cache, data) else { break 'turn };
                                packet.set_timestamp(record.time);
                                self.any = true;
                                packets += 1;
                                bytes += data.len() as u64;
                                if let (Some(rate), Some(now)) = (&mut self.rate, now) {
                                    rate.sent(data.len(), now);
                                }
                                if truncated {
                                    self.events.count(Event::Truncated);
                                }
                                // There is room.
                                let _ = out.push(packet);
                            }
                            Err(event) => {
                                self.skipped.add(event, &self.events, &self.counters);
                                bad_left -= 1;
                            }
                        }
                        if self.part > 0 {
                            self.events.count(Event::Subframe);
                        }
                        self.part += 1;
                    }
                    self.part = 0;
                    self.records.advance();
                }
                Item::Bad { at: _, what } if what == EMPTY || what == OTHER_LINK => {
                    let event = if what == EMPTY { Event::Empty } else { Event::OtherLink };
                    self.skipped.add(event, &self.events, &self.counters);
                    self.records.advance();
                    bad_left -= 1;
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
        if !self.ended {
            return State::Up;
        }
        let why = match (self.bad, self.skipped.first) {
            (1, _) => format!("damaged file: {}", self.first_bad),
            (2.., _) => format!("damaged file: {} errors, the first at {}", self.bad, self.first_bad),
            (0, Some(first)) if !self.any && !self.skipped.formless => {
                format!("none of {} records can be sent; the first is {}", self.skipped.count, first.what())
            }
            (0, None) if !self.any && self.records.source().is_regular() => "the file has no packets".to_owned(),
            _ => return State::Done,
        };
        State::Gone(Cow::Owned(why))
    }

    fn wake(&self) -> Wake {
        match self.due {
            _ if self.ended => Wake::Never,
            Some(due) => Wake::At(due),
            None if self.records.source().is_regular() => Wake::Poll,
            None => Wake::Fd(self.records.source().fd()),
        }
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}
