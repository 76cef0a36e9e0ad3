//! What leaves through a queue: the TX ring, and the COMPLETION ring behind it.
//!
//! ```text
//!   batch ──► lent: chunk ─► packet ──► TX ring ──► kernel, driver ──► COMPLETION ring ──► home
//!                │  in no chunk of ours, in too many pieces, sharing a chunk with one on its way
//!                └──────────► copied first
//! ```
//!
//! A packet counts as sent when its last piece is completed. The kernel does not say what became of it, but when it drops a packet
//! it says so at once (EBUSY), and what it found invalid it counts: as many of the next completions count as refused.

mod complete;
mod place;
mod submit;
mod trouble;
mod wake;

use super::in_flight_table::InFlightTable;
use super::queue::{Loan, Queue, TxRings};
use super::timing::Sample;
use crate::kernel::link::LinkWatch;
use std::sync::Arc;
use std::time::Instant;
use towpath_packet::port::{Info, PortError, State, TxQueue, Wake};
use towpath_packet::{Batch, Cache, Counters, Direction, DropReason, Offloads};

/// Shortest frame that the kernel takes: an Ethernet header.
const SHORTEST: usize = 14;
/// Bytes of an Ethernet header and two tags.
const LINK: usize = 14 + 8;
/// Pieces of a packet, at most, that the kernel takes in any mode.
const MOST_PIECES: usize = 32;

/// A transmit queue of an AF_XDP port.
#[derive(Debug)]
pub struct SocketTx {
    rings: Option<TxRings>,
    pub(super) queue: Arc<Queue>,
    epoch: u32,
    /// The rings have been handed over, and no new ones have come.
    handed: bool,
    /// At most as many chunks as a ring has entries.
    lent: InFlightTable,
    size: usize,
    pieces: usize,
    longest: usize,
    offloads: Offloads,
    /// Packets of which the kernel said that it dropped them, and that are not completed yet.
    refused: u64,
    invalid: u64,
    done: Batch,
    cache: Cache,
    copies: Cache,
    /// The last call left entries in the ring.
    unfinished: bool,
    /// Something was completed since the rings were made.
    worked: bool,
    /// The frame that is timed, where frames are.
    sample: Option<Sample>,
    waits_since: Option<Instant>,
    state: State,
    watch: LinkWatch,
    counters: Arc<Counters>,
}

impl SocketTx {
    pub(super) fn new(
        queue: Arc<Queue>,
        rings: TxRings,
        info: &Info,
        timed: bool,
        watch: LinkWatch,
        pool: &towpath_packet::Pool,
    ) -> Result<SocketTx, PortError> {
        let setup = &queue.setup;
        let failed = |source| PortError::Pool { port: setup.config.port(), source };
        Ok(SocketTx {
            rings: Some(rings),
            epoch: queue.epoch(),
            handed: false,
            lent: InFlightTable::new(setup.frames.capacity()),
            size: setup.config.ring.into(),
            pieces: info.max_chunks.into(),
            longest: info.mtu as usize + LINK,
            offloads: info.tx_offloads,
            refused: 0,
            invalid: 0,
            done: Batch::new(),
            cache: pool.cache(Direction::Tx).map_err(failed)?,
            copies: setup.frames.pool.cache(Direction::Tx).map_err(failed)?,
            unfinished: false,
            worked: false,
            sample: timed.then(Sample::default),
            waits_since: None,
            state: State::Up,
            watch,
            counters: Arc::default(),
            queue,
        })
    }
}

impl TxQueue for SocketTx {
    fn tx(&mut self, batch: &mut Batch) -> usize {
        let lost = match self.state {
            State::Down(_) if self.rings.is_none() => None,
            State::Down(_) => Some(DropReason::LinkDown),
            State::Gone(_) => Some(DropReason::PortGone),
            State::Up | State::Done => None,
        };
        if let Some(reason) = lost {
            let n = batch.len();
            self.counters.dropped(reason, n as u64);
            self.cache.free_bulk(batch);
            return n;
        }
        let n = self.fitting(batch);
        for packet in batch.drain_front(n) {
            if let Err((reason, packet)) = self.submit(packet) {
                self.counters.dropped(reason, 1);
                self.cache.free(packet);
            }
        }
        if n > 0
            && let Some(rings) = &mut self.rings
        {
            rings.tx.submit();
            self.wake_kernel();
            self.collect();
        }
        n
    }

    #[inline]
    fn reclaim(&mut self) -> usize {
        if self.epoch != self.queue.epoch() {
            self.renew();
        }
        let sent = self.collect();
        if self.unfinished {
            self.wake_kernel();
        }
        if (self.lent.packets() > 0 && sent == 0) || self.state != State::Up {
            self.look();
        }
        sent
    }

    fn offloads(&self) -> Offloads {
        self.offloads
    }

    fn pending(&self) -> usize {
        self.lent.packets()
    }

    fn state(&self) -> State {
        self.state.clone()
    }

    fn wake(&self) -> Wake {
        match (&self.state, &self.rings) {
            (State::Gone(_), _) => Wake::Never,
            // A socket counts as writable while half of its TX ring is free, which says nothing of completions.
            _ => Wake::Poll,
        }
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}

impl Drop for SocketTx {
    fn drop(&mut self) {
        self.collect();
        self.give_up(DropReason::Stopped);
        self.rings = None;
        self.queue.leave(self.lent.take().map(Loan::Tx), self.handed);
    }
}
