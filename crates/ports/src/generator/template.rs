//! Frames of a capture, or one in hexadecimal, that are sent as they are.
//!
//! Flow `i` sends frame `i mod n` of the `n` frames, always the same. The [fields](Fields) that are
//! given are written once, when the port is started. With `stamp=number` or `time` the payload of
//! UDP and TCP begins with a tag, and its checksum is completed for each packet; everything else is
//! a copy.

use super::config::{Config, Stamps};
use super::fields::{Fields, transport};
use super::stamp;
use super::tag::{self, Stamp, Tag, words};
use crate::pcap::{Item, Records};
use std::fs::File;
use std::path::PathBuf;
use towpath_packet::port::PortError;
use towpath_packet::{Batch, Cache, Packet};
use towpath_wire::ip::protocol;
use towpath_wire::{LinkKind, checksum, dissect, ethernet};

/// Frames of a capture that are used at most, the first ones.
const MOST: usize = 1024;
/// Bytes of a frame at most.
const LONGEST: usize = 65_550;

/// Where the frames come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The first 1024 frames of a capture, pcap or pcapng.
    File(PathBuf),
    /// One frame.
    Hex(Vec<u8>),
}

/// Frames to send, and what is changed in them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    /// The frames.
    pub source: Source,
    /// What the options give.
    pub fields: Fields,
}

impl Source {
    /// Parses `FILE` or `hex:DIGITS`.
    ///
    /// # Errors
    /// The rule.
    pub(super) fn parse(text: &str) -> Result<Source, String> {
        let Some(digits) = text.strip_prefix("hex:") else { return Ok(Source::File(text.into())) };
        let pairs = digits.as_bytes().chunks(2).map(|pair| match pair {
            [a, b] => Some((char::from(*a).to_digit(16)? * 16 + char::from(*b).to_digit(16)?) as u8),
            _ => None,
        });
        match pairs.collect::<Option<Vec<u8>>>().filter(|bytes| (1..=LONGEST).contains(&bytes.len())) {
            Some(bytes) => Ok(Source::Hex(bytes)),
            None => Err(format!("must be an even number of hexadecimal digits, of at most {LONGEST} bytes")),
        }
    }
}

/// A frame of a flow.
#[derive(Debug, Clone)]
struct Frame {
    bytes: Vec<u8>,
    /// Number of the next tag.
    number: u32,
    tag: Option<TagOffsets>,
}

/// Where a frame has its tag.
#[derive(Debug, Clone, Copy)]
struct TagOffsets {
    tag: usize,
    /// The transport's checksum, unless it is left out, and whether it is UDP's.
    check: Option<(usize, bool)>,
    /// The checksum, with number, trial and time zero.
    base: u16,
}

/// The frames of one queue's flows.
#[derive(Debug)]
pub(super) struct Frames {
    flows: Vec<Frame>,
    next: usize,
}

/// The frames of a template, checked.
pub(super) fn load(config: &Config, template: &Template) -> Result<Vec<Vec<u8>>, PortError> {
    let (source, frames) = match &template.source {
        Source::Hex(bytes) => ("hex".to_owned(), vec![bytes.clone()]),
        Source::File(path) => {
            let name = path.display().to_string();
            let file = File::open(path).map_err(|error| bad(&name, error.to_string()))?;
            (name.clone(), read(file, config).map_err(|rule| bad(&name, rule))?)
        }
    };
    let link = LinkKind::from(config.layer);
    for (number, frame) in (1..).zip(&frames) {
        if link == LinkKind::Ethernet && frame.len() < ethernet::HEADER_LEN {
            return Err(bad(
                &source,
                format!("frame {number}: has {} bytes: must have an Ethernet header", frame.len()),
            ));
        }
        // Every flow of this frame has its fields at the same places.
        make(frame.clone(), config, template, number - 1, 0)
            .map_err(|rule| bad(&source, format!("frame {number}: {rule}")))?;
    }
    Ok(frames)
}

fn bad(source: &str, rule: String) -> PortError {
    PortError::Option { port: "gen:".to_owned(), option: "template".to_owned(), value: source.to_owned(), rule }
}

fn read(file: File, config: &Config) -> Result<Vec<Vec<u8>>, String> {
    let mut records = Records::new(file)?;
    if !records.layer().fits(config.layer) {
        let (has, give) = match config.layer {
            towpath_packet::port::Layer::Ip => ("Ethernet frames", "ethernet"),
            _ => ("IP packets", "ip"),
        };
        return Err(format!("has {has}: give layer={give}"));
    }
    let mut frames = Vec::new();
    while frames.len() < MOST {
        let number = frames.len() + 1;
        match records.peek() {
            Item::Packet(record) if record.original as usize > record.data.len() => {
                let (has, of) = (record.data.len(), record.original);
                return Err(format!("frame {number}: has {has} of {of} bytes: record whole frames"));
            }
            Item::Packet(record) if record.data.len() > LONGEST => {
                return Err(format!("frame {number}: has {} bytes: must have at most {LONGEST}", record.data.len()));
            }
            Item::Packet(record) => {
                for frame in record.frames(config.layer).take(MOST - frames.len()) {
                    frames.push(frame.map_err(|unfit| format!("frame {number}: {unfit}"))?.to_vec());
                }
            }
            Item::Bad { what, .. } | Item::Lost { what, .. } => return Err(format!("frame {number}: {what}")),
            Item::Failed { error, .. } => return Err(format!("frame {number}: {error}")),
            Item::Wait => continue,
            Item::End => break,
        }
        records.advance();
    }
    if frames.is_empty() { Err("must have a frame".to_owned()) } else { Ok(frames) }
}

/// The frame of flow `index`.
fn make(mut bytes: Vec<u8>, config: &Config, template: &Template, index: u32, number: u32) -> Result<Frame, String> {
    let link = LinkKind::from(config.layer);
    template.fields.write(&mut bytes, link, index).map_err(|(option, rule)| format!("{option} {rule}"))?;
    let tag = match config.stamp {
        Stamps::Off => None,
        stamp => Some(tag_offsets(&mut bytes, link, stamp == Stamps::Time, index)?),
    };
    Ok(Frame { bytes, number, tag })
}

/// Makes a place for the tag.
fn tag_offsets(bytes: &mut [u8], link: LinkKind, timed: bool, flow: u32) -> Result<TagOffsets, String> {
    let found = dissect(bytes, link);
    let (at, len) = (usize::from(found.payload), if timed { tag::TIMED_LEN } else { tag::LEN });
    let check = transport(&found).ok_or("stamp needs a UDP or TCP header in the frame")?;
    let room = bytes.get_mut(at..).and_then(|payload| payload.get_mut(..len));
    let room = room.ok_or_else(|| format!("stamp needs {len} bytes of payload in the frame"))?;
    let before = room.to_vec();
    room.fill(0);
    let tag = Tag { flow, number: 0 };
    if timed {
        tag.write_timed(room)
    } else {
        tag.write(room)
    }
    let after = room.to_vec();
    let is_udp = found.flow.protocol == protocol::UDP;
    let field = bytes.get(check..).and_then(<[u8]>::first_chunk::<2>).ok_or("is cut short")?;
    let base = u16::from_be_bytes(*field);
    let check = (!is_udp || base != 0).then_some((check, is_udp));
    Ok(TagOffsets { tag: at, check, base: checksum::update_bytes(base, &before, &after) })
}

impl Frames {
    /// The flows of queue `queue` of `queues`: every `queues`th.
    pub(super) fn new(
        frames: &[Vec<u8>],
        config: &Config,
        template: &Template,
        queue: u32,
        queues: u32,
    ) -> Result<Frames, PortError> {
        let flows = (queue..config.flows).step_by(queues.max(1) as usize);
        let flow = |index: u32| {
            let frame = frames.get(index as usize % frames.len().max(1)).cloned().unwrap_or_default();
            make(frame, config, template, index, 0).map_err(|rule| bad("flow", format!("{index}: {rule}")))
        };
        Ok(Frames { flows: flows.map(flow).collect::<Result<_, _>>()?, next: 0 })
    }

    /// Bytes of the longest frame.
    pub(super) fn longest(&self) -> usize {
        self.flows.iter().map(|frame| frame.bytes.len()).max().unwrap_or(0)
    }

    /// Begins with number 0 in each flow again.
    pub(super) fn restart(&mut self) {
        self.flows.iter_mut().for_each(|frame| frame.number = 0);
    }

    /// Turns empty packets into the next ones, as many as there are buffers for; returns their
    /// number and bytes.
    pub(super) fn fill(&mut self, out: &mut [Packet], cache: &mut Cache) -> (usize, u64) {
        let (mut filled, mut bytes) = (0, 0);
        for packet in out {
            let Some(frame) = self.flows.get_mut(self.next) else { break };
            if chain(packet, &[], &frame.bytes, cache).is_none() {
                break;
            }
            if let Some(offsets) = frame.tag {
                let linear = packet.linear_mut();
                if let Some(field) = linear.get_mut(offsets.tag + tag::NUMBER..).and_then(<[u8]>::first_chunk_mut) {
                    *field = frame.number.to_be_bytes();
                }
                if let Some((at, is_udp)) = offsets.check
                    && let Some(check) = linear.get_mut(at..).and_then(<[u8]>::first_chunk_mut)
                {
                    *check = stamp::added(offsets.base, words(frame.number), is_udp).to_be_bytes();
                }
                frame.number = frame.number.wrapping_add(1);
            }
            self.next = if self.next + 1 < self.flows.len() { self.next + 1 } else { 0 };
            bytes += packet.len() as u64;
            filled += 1;
        }
        (filled, bytes)
    }

    /// Writes trial and time to the packets from `from` on, which [`fill`](Frames::fill) made last.
    pub(super) fn stamp(&self, out: &mut Batch, from: usize, stamp: Stamp) {
        let packets = out.as_mut_slice().get_mut(from..).unwrap_or_default();
        let flows = self.flows.len().max(1);
        let first = (self.next + flows - packets.len() % flows) % flows;
        for (packet, flow) in packets.iter_mut().zip((0..flows).cycle().skip(first)) {
            if let Some(offsets) = self.flows.get(flow).and_then(|frame| frame.tag) {
                stamp::write_time(packet.linear_mut(), stamp, offsets.tag, offsets.check);
            }
        }
    }
}

/// Copies `head` to the linear part of an empty packet, and `rest` behind it, in as many chunks as
/// needed.
pub(super) fn chain(packet: &mut Packet, head: &[u8], rest: &[u8], cache: &mut Cache) -> Option<()> {
    let (first, mut rest) = rest.split_at(rest.len().min(packet.tailroom().checked_sub(head.len())?));
    let (front, behind) = packet.push_back(head.len() + first.len()).ok()?.split_at_mut(head.len());
    front.copy_from_slice(head);
    behind.copy_from_slice(first);
    while !rest.is_empty() {
        let mut next = cache.alloc()?;
        let (piece, after) = rest.split_at(rest.len().min(next.tailroom()));
        next.push_back(piece.len()).ok()?.copy_from_slice(piece);
        packet.append(next).ok()?;
        rest = after;
    }
    Some(())
}
