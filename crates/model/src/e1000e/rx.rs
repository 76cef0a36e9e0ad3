//! Reception: from the wire through the filters into the packet buffer, then into the buffers of
//! descriptors.
//!
//! ```text
//!   wire ──► filter ──► packet buffer (FIFO, PBA KiB) ──► buffers of descriptors ──► write-backs
//!              │                │ full: MPC, RXO              │ no descriptor: RNBC, frame waits
//!              └ dropped        └ or the wire waits (pause)
//! ```

use super::env::Env;
use super::faults::FaultInjector;
use super::filter::Cast;
use super::regs::*;
use super::ring::DescriptorRing;
use super::settings::{Format, Settings};
use super::stats::{self, Stats};
use super::{crc, offload};
use crate::iommu::Transfer;
use crate::violation::Ring;
use std::collections::VecDeque;
use towpath_wire::{Dissected, LinkKind, checksum, dissect};

/// The shortest frame in bytes, without FCS.
const MIN: usize = 60;
/// The longest frame without and with RCTL.LPE; without FCS (82574 datasheet §7.1.1, §10.2.5.1).
const MAX: usize = 1518;
const MAX_LONG: usize = 9230;

/// A frame in the packet buffer.
#[derive(Debug, Default)]
struct RxFrame {
    data: Vec<u8>,
    queue: usize,
    /// Bytes that were moved to buffers.
    done: usize,
    /// The frame is counted in RNBC.
    waited: bool,
    /// Status and errors of the last descriptor.
    status: u32,
    mrq: u32,
    hash: u32,
    vlan: u16,
}

/// A pending write-back.
#[derive(Debug, Clone, Copy)]
struct WriteBack {
    index: u32,
    first: Option<u64>,
    second: u64,
}

#[derive(Debug)]
struct Queue {
    ring: DescriptorRing,
    done: VecDeque<WriteBack>,
}

#[derive(Debug)]
pub(crate) struct Receiver {
    queues: [Queue; 2],
    fifo: VecDeque<RxFrame>,
    bytes: usize,
    spare: Vec<Vec<u8>>,
    format: Option<Format>,
}

impl Receiver {
    pub(crate) fn new() -> Receiver {
        let queue = |n| Queue { ring: DescriptorRing::new(Ring::Rx(n)), done: VecDeque::new() };
        Receiver { queues: [queue(0), queue(1)], fifo: VecDeque::new(), bytes: 0, spare: Vec::new(), format: None }
    }

    pub(crate) fn start(&mut self, env: &Env) {
        self.format = Some(Format::new(&env.registers));
        self.queues.iter_mut().for_each(|q| q.ring.start(env));
    }

    /// Stops reception: frames in the packet buffer and pending write-backs are lost.
    pub(crate) fn stop(&mut self, transfer: &mut Transfer<'_>) {
        for queue in &mut self.queues {
            queue.ring.stop(transfer);
            queue.done.clear();
        }
        self.spare.extend(self.fifo.drain(..).map(|f| f.data));
        self.bytes = 0;
        self.format = None;
    }

    /// Whether the packet buffer has room for a frame of maximal length.
    pub(crate) fn has_room(&self, env: &Env, settings: &Settings) -> bool {
        let kib = (env.registers.get(PBA) & 0xffff) as usize;
        self.bytes + if settings.long { MAX_LONG } else { MAX } <= kib << 10
    }

    /// A recycled vector for the next frame.
    pub(crate) fn vector(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    pub(crate) fn recycle(&mut self, vector: Vec<u8>) {
        self.spare.push(vector);
    }

    /// Receives a frame; returns the interrupt causes.
    pub(crate) fn arrive(
        &mut self,
        env: &Env,
        settings: &Settings,
        stats: &mut Stats,
        faults: &mut FaultInjector,
        mut data: Vec<u8>,
    ) -> u32 {
        if data.len() < MIN {
            // The sender's MAC padded it.
            data.resize(MIN, 0);
        }
        let len = data.len() + 4;
        stats.add(stats::TPR, 1);
        stats.add(stats::TOR, len as u64);
        let longest = if settings.long { MAX_LONG } else { MAX };
        if data.len() > longest {
            stats.add(stats::ROC, 1);
        } else if settings.filter.accepts(&data) {
            let room = (env.registers.get(PBA) & 0xffff) as usize * 1024;
            if self.bytes + data.len() > room {
                stats.add(stats::MPC, 1);
                self.spare.push(data);
                return cause::RXO;
            }
            self.accept(settings, stats, faults, data);
            return 0;
        }
        self.spare.push(data);
        0
    }

    fn accept(&mut self, settings: &Settings, stats: &mut Stats, faults: &mut FaultInjector, mut data: Vec<u8>) {
        let errors = errors(faults, stats);
        if errors == 0 {
            let len = data.len() + 4;
            stats.add(stats::GPRC, 1);
            stats.add(stats::GORC, len as u64);
            stats.size(stats::PRC64, len);
            match Cast::of(&data) {
                Cast::Uni => {}
                Cast::Multi => stats.add(stats::MPRC, 1),
                Cast::Broad => stats.add(stats::BPRC, 1),
            }
        }
        let mut status = errors | if settings.filter.inexact(&data) { rxd::PIF } else { 0 };
        let mut vlan = 0;
        if !settings.strip_crc {
            let fcs = crc::fcs(&data);
            data.extend_from_slice(&fcs);
        }
        let found = dissect(&data, LinkKind::Ethernet);
        status |= offload::receive(settings, &data, &found);
        let (mrq, hash, queue) = hash(settings, &data, &found, &mut status);
        if let (Some(kind), Some(&[a, b, c, d])) = (settings.vlan, data.get(12..).and_then(|f| f.first_chunk()))
            && u16::from_be_bytes([a, b]) == kind
        {
            vlan = u16::from_be_bytes([c, d]);
            status |= rxd::VP;
            data.drain(12..16);
        }
        self.bytes += data.len();
        self.fifo.push_back(RxFrame { data, queue, done: 0, waited: false, status, mrq, hash, vlan });
    }

    /// Fetches descriptors of queue `n`; returns their number.
    pub(crate) fn fetch(&mut self, env: &Env, transfer: &mut Transfer<'_>, n: usize) -> usize {
        let buffer = self.format.map_or(0, |f| f.buffer);
        self.queues.get_mut(n).map_or(0, |q| q.ring.fetch(env, transfer, buffer))
    }

    /// Moves data of the first frame into the buffer of the next descriptor; returns false without
    /// a frame or a descriptor.
    #[inline]
    pub(crate) fn store(
        &mut self,
        env: &Env,
        transfer: &mut Transfer<'_>,
        stats: &mut Stats,
        faults: &mut FaultInjector,
    ) -> bool {
        let (Some(frame), Some(format)) = (self.fifo.front_mut(), self.format) else { return false };
        let Some(queue) = self.queues.get_mut(frame.queue) else { return false };
        let Some(fetched) = queue.ring.peek().copied() else {
            if !frame.waited {
                frame.waited = true;
                stats.add(stats::RNBC, 1);
            }
            return false;
        };
        queue.ring.take(env, transfer);
        let address = fetched.words[0];
        let rest = frame.data.get(frame.done..).unwrap_or_default();
        // A descriptor with address zero is consumed without data.
        let piece = if address == 0 { &[] } else { rest.get(..format.buffer).unwrap_or(rest) };
        // A posted write that is blocked is lost without notice to the device: the IOMMU records
        // the fault.
        let _ = transfer.write(address, piece);
        let len = piece.len();
        frame.done += len;
        let last = frame.done == frame.data.len();
        queue.done.push_back(write_back_of(frame, format, faults, fetched.index, len, last));
        if last {
            self.bytes -= frame.data.len();
            if let Some(frame) = self.fifo.pop_front() {
                self.spare.push(frame.data);
            }
        }
        true
    }

    /// Writes the next descriptor of queue `n` back; returns false if none is pending.
    #[inline]
    pub(crate) fn write_back(&mut self, transfer: &mut Transfer<'_>, faults: &mut FaultInjector, n: usize) -> bool {
        let Some(Queue { ring, done }) = self.queues.get_mut(n) else { return false };
        if done.len() > 1 && faults.inject(|f| f.reorder) {
            done.swap(0, 1);
        }
        let Some(back) = done.pop_front() else { return false };
        if faults.inject(|f| f.wild) {
            let index = faults.seed.below(ring.len() as usize) as u32;
            let _ = transfer.write_back(ring.address(index), back.first, back.second);
        }
        if !faults.inject(|f| f.lose) {
            let _ = transfer.write_back(ring.address(back.index), back.first, back.second);
        }
        true
    }

    /// Whether queue `n` has at most the share of free descriptors of RCTL.RDMTS.
    pub(crate) fn is_low(&self, env: &Env, settings: &Settings, n: usize) -> bool {
        self.queues.get(n).is_some_and(|q| q.ring.available(env) <= q.ring.len() >> settings.low_shift)
    }

    pub(crate) fn check_owned(&self, env: &Env, transfer: &mut Transfer<'_>) {
        self.queues.iter().for_each(|q| q.ring.check_owned(env, transfer));
    }

    /// Frames in the packet buffer.
    pub(crate) fn waiting(&self) -> usize {
        self.fifo.len()
    }
}

/// The injected errors of a frame.
fn errors(faults: &mut FaultInjector, stats: &mut Stats) -> u32 {
    let mut errors = 0;
    if faults.inject(|f| f.crc) {
        errors |= rxd::CE;
        stats.add(stats::CRCERRS, 1);
    }
    if faults.inject(|f| f.symbol) {
        errors |= rxd::SE;
        stats.add(stats::RXERRC, 1);
    }
    if faults.inject(|f| f.data) {
        errors |= rxd::RXE;
        stats.add(stats::RXERRC, 1);
    }
    errors
}

/// The parts of the write-back's first word, and the queue.
fn hash(settings: &Settings, data: &[u8], found: &Dissected, status: &mut u32) -> (u32, u32, usize) {
    if settings.rxcsum & RXCSUM_PCSD != 0 {
        let hash = settings.rss.hash(found);
        return (u32::from(hash.kind) | u32::from(hash.queue) << 8, hash.value, usize::from(hash.queue));
    }
    let start = (settings.rxcsum & RXCSUM_PCSS) as usize;
    let sum = data.get(start..).map_or(0, checksum::sum);
    let mut id = 0;
    if found.is_ipv4() {
        *status |= rxd::IPIDV;
        let at = usize::from(found.l3) + 4;
        id = data.get(at..).and_then(|f| f.first_chunk()).map_or(0, |b| u16::from_be_bytes(*b));
    }
    (0, u32::from(id) | u32::from(sum) << 16, 0)
}

/// The write-back of one of a frame's descriptors: the last one carries status, errors, hash and
/// VLAN (82574 datasheet §7.1.3).
fn write_back_of(
    frame: &RxFrame,
    format: Format,
    faults: &mut FaultInjector,
    index: u32,
    len: usize,
    last: bool,
) -> WriteBack {
    let mut len = len as u64;
    let mut status = rxd::DD | if last { rxd::EOP | frame.status } else { 0 };
    let mut mrq = if last { frame.mrq } else { 0 };
    if faults.inject(|f| f.bad_length) {
        len = [0, 1, 0xffff, len + 1, 0x4000, faults.seed.next() & 0xffff][faults.seed.below(6)];
    }
    if faults.inject(|f| f.no_eop) {
        status &= !rxd::EOP;
    }
    if faults.inject(|f| f.garbage) {
        let noise = faults.seed.next();
        mrq = noise as u32;
        status |= (noise >> 32) as u32;
    }
    let vlan = if last { u64::from(frame.vlan) } else { 0 };
    if format.extended {
        let hash = if last { u64::from(frame.hash) } else { 0 };
        let first = Some(u64::from(mrq) | hash << 32);
        return WriteBack { index, first, second: u64::from(status) | len << 32 | vlan << 48 };
    }
    let csum = if last { u64::from(frame.hash >> 16) } else { 0 };
    let (low, errors) = (u64::from(status & 0xff), u64::from(status >> 24));
    WriteBack { index, first: None, second: len | csum << 16 | low << 32 | errors << 40 | vlan << 48 }
}
