//! A device that goes on with its DMA after the driver has unmapped a buffer.
//!
//! ```text
//!   driver    unmap ─────────── invalidate ──► wait done ── hand the buffer over
//!   device    ▲ writes, as before        ▲ the last time     ✗ blocked
//! ```
//!
//! Until an invalidation is executed, a device may use every translation that the IOTLB keeps (VT-d
//! specification §6.5): a posted write may be late, a read may be repeated. Here it repeats what it
//! did to buffers, either when a test requests it, or at the last moment that it has: each time
//! before an invalidation is executed. It uses nothing but stale translations. A buffer that is
//! mapped, or mapped again, is left alone.

use super::engine::Engine;
use super::tables::{READ, WRITE, Walk};
use super::unit::Unit;
use crate::memory::HostAddr;
use std::collections::VecDeque;

/// The accesses that are remembered.
const REMEMBERED: usize = 256;
const PAGE: usize = 4096;

/// What a device writes late.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LateWrite {
    /// The same bytes once more.
    Repeat,
    /// The complement of each byte.
    Scribble,
}

/// The late accesses of a device, counted by page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct LateCounts {
    /// Reads that found a stale translation.
    pub reads: u64,
    /// Writes that found a stale translation.
    pub writes: u64,
    /// Accesses to unmapped buffers without a translation: the IOMMU blocks them.
    pub blocked: u64,
}

#[derive(Debug)]
struct Access {
    iova: u64,
    len: usize,
    /// The bytes that were written; nothing if it was a read.
    written: Option<Vec<u8>>,
}

/// What the device did to buffers, and does again.
#[derive(Debug, Default)]
pub(super) struct LateDma {
    accesses: VecDeque<Access>,
    pub(super) at_invalidation: Option<LateWrite>,
    pub(super) counts: LateCounts,
}

impl LateDma {
    pub(super) fn remember(&mut self, iova: u64, len: usize, written: Option<&[u8]>) {
        if self.accesses.len() == REMEMBERED {
            self.accesses.pop_front();
        }
        self.accesses.push_back(Access { iova, len, written: written.map(<[u8]>::to_vec) });
    }

    /// Repeats all accesses to buffers that are unmapped.
    #[cold]
    pub(super) fn repeat(&mut self, engine: &mut Engine, unit: &Unit, what: LateWrite) {
        let LateDma { accesses, counts, .. } = self;
        for Access { iova, len, written } in accesses {
            let mut done = 0;
            while done < *len {
                let at = *iova + done as u64;
                let n = (PAGE - at as usize % PAGE).min(*len - done);
                let bytes = written.as_ref().and_then(|bytes| bytes.get(done..done + n));
                done += n;
                let Some(stale) = engine.stale(unit, at, if bytes.is_some() { WRITE } else { READ }) else {
                    counts.blocked += u64::from(unit.on && unit.tables.walk(at) == Walk::Freed);
                    continue;
                };
                let Some(bytes) = bytes else {
                    counts.reads += 1;
                    continue;
                };
                counts.writes += 1;
                let complement = if what == LateWrite::Scribble { 0xff } else { 0 };
                let bytes: Vec<_> = bytes.iter().map(|byte| byte ^ complement).collect();
                // Memory stays in place until the flush of its unmapped slot (`Window::map`).
                // SAFETY: the translation is still in the IOTLB, so its slot was not flushed since
                // it was unmapped, and cannot be now: the flush needs the engine's lock, which is
                // held.
                unsafe { stale.write(&bytes) };
            }
        }
    }
}

impl Engine {
    /// What the IOTLB has for `iova` and `need`, if the tables have it no longer.
    fn stale(&mut self, unit: &Unit, iova: u64, need: u64) -> Option<HostAddr> {
        let (at, _) = self.cached(iova).filter(|(_, access)| access & need != 0)?;
        match unit.tables.walk(iova) {
            Walk::Leaf { page, shift, .. } if page + (iova & ((1 << shift) - 1)) == at => None,
            _ => Some(HostAddr::new(at)),
        }
    }
}
