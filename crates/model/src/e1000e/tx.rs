//! Transmission: descriptors are gathered to frames, offloads are applied, frames leave, and
//! descriptors that request it are written back.

use super::env::Env;
use super::faults::FaultInjector;
use super::filter::Cast;
use super::offload::{self, Context};
use super::regs::*;
use super::ring::{DescriptorRing, Fetched};
use super::settings::Settings;
use super::stats::{self, Stats};
use crate::iommu::Transfer;
use crate::violation::{Ring, Violation};
use std::collections::VecDeque;

/// The maximum of bytes that are gathered for a frame: the range of a context's payload length.
const MAX_GATHER: usize = 1 << 20;
/// The longest frame on the wire without FCS; longer ones are dropped.
const MAX: usize = crate::wire::MAX_FRAME;

/// The frames that are ready to leave, stored contiguously.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    bytes: Vec<u8>,
    ends: VecDeque<usize>,
    begin: usize,
}

impl Outbox {
    fn push(&mut self, frame: &[u8]) {
        if self.ends.is_empty() {
            self.bytes.clear();
            self.begin = 0;
        }
        self.bytes.extend_from_slice(frame);
        self.ends.push_back(self.bytes.len());
    }

    /// The next frame.
    pub(crate) fn peek(&self) -> Option<&[u8]> {
        self.bytes.get(self.begin..*self.ends.front()?)
    }

    /// Removes the frame that has left.
    pub(crate) fn pop(&mut self) {
        if let Some(end) = self.ends.pop_front() {
            self.begin = end;
        }
    }
}

/// What both queues share: the chip keeps the context that it has seen last, whichever queue it came
/// from (82574 datasheet §7.2.6), and takes a context with its frame from one queue.
#[derive(Debug, Default)]
pub(crate) struct SharedContext {
    context: Option<(Ring, Context)>,
    /// The queue that a frame is being taken from.
    holder: Option<Ring>,
}

impl SharedContext {
    /// The queue goes on with no frame: it was stopped, or can't read its ring.
    pub(crate) fn release(&mut self, ring: Ring) {
        self.holder = self.holder.filter(|holder| *holder != ring);
    }
}

#[derive(Debug)]
pub(crate) struct Transmitter {
    pub(crate) ring: DescriptorRing,
    /// The frame that is being gathered, and the second word of its first data descriptor.
    frame: Vec<u8>,
    first: Option<u64>,
    /// A buffer could not be read: the frame is discarded.
    unreadable: bool,
    segment: Vec<u8>,
    pub(crate) outbox: Outbox,
    /// Pending write-backs, done when the outbox is empty: index and second word.
    done: VecDeque<(u32, u64)>,
}

impl Transmitter {
    pub(crate) fn new(n: u8) -> Transmitter {
        Transmitter {
            ring: DescriptorRing::new(Ring::Tx(n)),
            frame: Vec::new(),
            first: None,
            unreadable: false,
            segment: Vec::new(),
            outbox: Outbox::default(),
            done: VecDeque::new(),
        }
    }

    pub(crate) fn stop(&mut self, transfer: &mut Transfer<'_>) {
        self.ring.stop(transfer);
        self.frame.clear();
        (self.first, self.unreadable) = (None, false);
        self.done.clear();
        self.outbox = Outbox::default();
    }

    /// Whether the chip has frames that have not left, or whose end it has not reported.
    pub(crate) fn is_pending(&self, env: &Env) -> bool {
        self.ring.available(env) > 0 || self.outbox.peek().is_some() || !self.done.is_empty()
    }

    pub(crate) fn fetch(&mut self, env: &Env, transfer: &mut Transfer<'_>) -> usize {
        self.ring.fetch(env, transfer, 0)
    }

    /// Uses the next descriptor; returns false without one, while frames wait to leave, or while the
    /// chip takes a frame of the other queue.
    #[inline]
    pub(crate) fn take(
        &mut self,
        env: &Env,
        settings: &Settings,
        shared: &mut SharedContext,
        transfer: &mut Transfer<'_>,
        stats: &mut Stats,
    ) -> bool {
        if self.outbox.peek().is_some() || shared.holder.is_some_and(|holder| holder != self.ring.which) {
            return false;
        }
        let Some(fetched) = self.ring.take(env, transfer) else { return false };
        let [address, second] = fetched.words;
        let extended = second & txd::DEXT != 0;
        if second & txd::RS != 0 {
            self.done.push_back((fetched.index, second));
        }
        if extended && second & txd::TYPE == 0 {
            if self.first.is_some() {
                self.report(env, &fetched, "a context must not come between the descriptors of a frame");
            }
            shared.context = Some((self.ring.which, Context::new(fetched.words)));
            shared.holder = Some(self.ring.which);
            return true;
        }
        if env.violations.strict() {
            self.rules(env, shared.context, &fetched);
        }
        shared.holder = (second & txd::EOP == 0).then_some(self.ring.which);
        let len = (if extended { second & txd::LEN } else { second & 0xffff }) as usize;
        let (begin, first) = (self.frame.len(), *self.first.get_or_insert(second));
        if begin + len > MAX_GATHER {
            self.unreadable = true;
        } else {
            self.frame.resize(begin + len, 0);
            let into = self.frame.get_mut(begin..).unwrap_or_default();
            // If any part cannot be read, the whole frame is discarded.
            self.unreadable |= transfer.read(address, into).is_err();
        }
        if second & txd::EOP != 0 {
            if !self.unreadable {
                let context = shared.context.map(|(_, context)| context).unwrap_or_default();
                self.finish(settings, context, stats, (first, second));
            }
            self.frame.clear();
            (self.first, self.unreadable) = (None, false);
        }
        true
    }

    /// Completes a frame. Its first descriptor has the options, its last one the command (82574
    /// datasheet §7.2.5).
    fn finish(&mut self, settings: &Settings, context: Context, stats: &mut Stats, (first, last): (u64, u64)) {
        let extended = first & txd::DEXT != 0;
        if !extended && last & txd::LEGACY_IC != 0 {
            let at = (first >> 16 & 0xff) as usize;
            offload::insert(&mut self.frame, (first >> 40 & 0xff) as usize, at, 0, false);
        }
        let tag = settings.vlan.filter(|_| last & txd::VLE != 0).map(|kind| (kind, (last >> 48) as u16));
        let Transmitter { frame, segment, outbox, .. } = self;
        if extended && first & txd::TSE != 0 {
            let options = first;
            let n = offload::segment(frame, &context, options, segment, |segment| {
                leave(segment, tag, settings.pad, outbox, stats)
            });
            stats.add(stats::TSCTC, u64::from(n > 0));
            return;
        }
        if extended {
            offload::insert_all(frame, &context, first);
        }
        leave(frame, tag, settings.pad, outbox, stats);
    }

    /// Does the next pending write-back; returns false without one, or if its frame has not left.
    #[inline]
    pub(crate) fn write_back(&mut self, transfer: &mut Transfer<'_>, faults: &mut FaultInjector) -> bool {
        if self.outbox.peek().is_some() {
            return false;
        }
        if self.done.len() > 1 && faults.inject(|f| f.reorder) {
            self.done.swap(0, 1);
        }
        let Some((index, second)) = self.done.pop_front() else { return false };
        if faults.inject(|f| f.wild) {
            let wild = faults.seed.below(self.ring.len() as usize) as u32;
            let _ = transfer.write_back(self.ring.address(wild), None, second | txd::DD);
        }
        if !faults.inject(|f| f.lose) {
            let _ = transfer.write_back(self.ring.address(index), None, second | txd::DD);
        }
        true
    }

    #[cold]
    fn report(&self, env: &Env, fetched: &Fetched, rule: &'static str) {
        env.violations.report(Violation::Transmit { ring: self.ring.which, index: fetched.index, rule });
    }

    /// Strict: checks a data descriptor against its context.
    #[cold]
    fn rules(&self, env: &Env, shared: Option<(Ring, Context)>, fetched: &Fetched) {
        let second = fetched.words[1];
        if second & txd::DEXT == 0 {
            return;
        }
        let len = (second & txd::LEN) as usize;
        let offloads = second & (txd::TSE | txd::IXSM | txd::TXSM) != 0;
        let context = shared.map(|(_, context)| context).unwrap_or_default();
        let first = self.first.is_none();
        let alike = txd::TSE | txd::VLE | txd::IXSM | txd::TXSM | 0xffff << 48;
        if offloads && shared.is_none() {
            self.report(env, fetched, "offloads need a context before them");
        } else if offloads && shared.is_some_and(|(ring, _)| ring != self.ring.which) {
            self.report(env, fetched, "the context of the chip is that of the other queue");
        } else if second & txd::TSE != 0 && env.registers.get(STATUS) & STATUS_SPEED < STATUS_1000 {
            self.report(env, fetched, "there is no segmentation below 1000 Mb/s");
        } else if self.first.is_some_and(|f| (f ^ second) & alike != 0) {
            self.report(env, fetched, "options, VLAN and TSE of all descriptors of a frame are the same");
        } else if second & txd::TSE != 0 && !context.tse {
            self.report(env, fetched, "segmentation needs a context for it");
        } else if second & txd::TSE != 0 && first && len < context.header {
            self.report(env, fetched, "the first descriptor of a segmented frame has all of its header");
        } else if second & txd::TSE != 0 && first && len == context.header {
            self.report(env, fetched, "the first descriptor of a segmented frame has more than its header");
        } else if second & txd::TSE != 0
            && second & txd::EOP != 0
            && self.frame.len() + len != context.header + context.payload
        {
            self.report(env, fetched, "a segmented frame is as long as its context says");
        } else if second & txd::TSE == 0 && offloads && context.tse {
            self.report(env, fetched, "checksums without segmentation need a context without it");
        }
    }
}

/// Tags, pads and counts a frame, and puts it into the outbox.
#[inline]
fn leave(frame: &mut Vec<u8>, tag: Option<(u16, u16)>, pad: bool, outbox: &mut Outbox, stats: &mut Stats) {
    if let Some((kind, tag)) = tag.filter(|_| frame.len() >= 12) {
        let ([a, b], [c, d]) = (kind.to_be_bytes(), tag.to_be_bytes());
        frame.splice(12..12, [a, b, c, d]);
    }
    if pad && frame.len() < 60 {
        frame.resize(60, 0);
    }
    if frame.len() < 14 || frame.len() > MAX {
        return;
    }
    let len = frame.len() + 4;
    for (at, n) in [(stats::GPTC, 1), (stats::TPT, 1), (stats::GOTC, len as u64), (stats::TOT, len as u64)] {
        stats.add(at, n);
    }
    stats.size(stats::PTC64, len);
    match Cast::of(frame) {
        Cast::Uni => {}
        Cast::Multi => stats.add(stats::MPTC, 1),
        Cast::Broad => stats.add(stats::BPTC, 1),
    }
    outbox.push(frame);
}
