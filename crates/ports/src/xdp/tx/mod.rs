//! The transmit queue: the TX ring and the COMPLETION ring.
//!
//! ```text
//!   batch ──► in-flight table: chunk ─► packet ──► TX ring ──► kernel, driver ──► COMPLETION ring ──► freed
//!                │  outside the UMEM, in too many fragments, in a chunk in flight
//!                └──────────► copied first
//! ```
//!
//! A packet counts as sent when its last fragment is completed. A completion does not tell whether
//! the frame was sent. But the kernel reports a drop at once (`EBUSY`), and counts invalid
//! descriptors: as many of the next completions count as refused.
//!
//! | file | |
//! |---|---|
//! | `submit.rs` | fragments into the TX ring, copies to the UMEM, the wakeup |
//! | `complete.rs` | completions, reopened queues |
//! | `stall.rs` | whether the kernel completes nothing any more |
//! | `sent_signal.rs` | what a queue that sleeps is woken by |

mod complete;
mod sent_signal;
mod stall;
mod submit;

pub(super) use sent_signal::SentSignal;

use super::in_flight_table::InFlightTable;
use super::live::LiveTx;
use super::queue::{Posted, QueueShared, TxRings};
use super::tx_metadata::TxTimestamp;
use crate::kernel::link::LinkWatch;
use stall::Stall;
use std::sync::Arc;
use towpath_packet::port::{Info, PortError, State, TxQueue, Wake};
use towpath_packet::{Batch, Cache, Counters, Direction, DropReason, Offloads, delegate_tx_queue};
use towpath_wire::{ethernet, vlan};

/// A transmit queue of an AF_XDP port: through the socket, or as frames of a program.
#[derive(Debug)]
pub enum XdpTx {
    /// `tx=socket`.
    Socket(Box<SocketTx>),
    /// `tx=live`.
    Live(Box<LiveTx>),
}

delegate_tx_queue!(impl[] for XdpTx { XdpTx::Socket(queue) => queue, XdpTx::Live(queue) => queue });

/// Bytes of an Ethernet header and two tags.
pub(super) const LINK_LEN: usize = ethernet::HEADER_LEN + 2 * vlan::HEADER_LEN;
/// Most fragments of a packet in any mode.
const MAX_FRAGS: usize = 32;

/// A transmit queue through an AF_XDP socket.
#[derive(Debug)]
pub struct SocketTx {
    rings: Option<TxRings>,
    pub(super) queue: Arc<QueueShared>,
    epoch: u32,
    /// The rings were dropped, and new ones are not attached yet.
    detached: bool,
    /// At most as many chunks as a ring has entries.
    in_flight: InFlightTable,
    ring_size: usize,
    max_frags: usize,
    max_len: usize,
    offloads: Offloads,
    /// Packets that the kernel reported as dropped, and did not complete yet.
    refused: u64,
    last_invalid: u64,
    completed: Batch,
    cache: Cache,
    copy_cache: Cache,
    /// The last wakeup left entries in the TX ring.
    needs_kick: bool,
    /// A frame was completed since the queue was opened.
    worked: bool,
    /// The current sample, if timestamps are used.
    timestamp: Option<TxTimestamp>,
    stall: Stall,
    state: State,
    watch: LinkWatch,
    counters: Arc<Counters>,
}

impl SocketTx {
    pub(super) fn new(
        queue: Arc<QueueShared>,
        rings: TxRings,
        info: &Info,
        timed: bool,
        watch: LinkWatch,
        pool: &towpath_packet::Pool,
    ) -> Result<SocketTx, PortError> {
        let port = &queue.port;
        let failed = |source| PortError::Pool { port: port.config.port(), source };
        Ok(SocketTx {
            rings: Some(rings),
            epoch: queue.epoch(),
            detached: false,
            in_flight: InFlightTable::new(port.umem.capacity()),
            ring_size: port.config.ring.into(),
            max_frags: info.max_chunks.into(),
            max_len: info.mtu as usize + LINK_LEN,
            offloads: info.tx_offloads,
            refused: 0,
            last_invalid: 0,
            completed: Batch::new(),
            cache: pool.cache(Direction::Tx).map_err(failed)?,
            copy_cache: port.umem.pool.cache(Direction::Tx).map_err(failed)?,
            needs_kick: false,
            worked: false,
            timestamp: timed.then(TxTimestamp::default),
            stall: Stall::default(),
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
            batch.iter().for_each(|packet| self.counters.show_dropped(reason, packet));
            self.cache.free_bulk(batch);
            return n;
        }
        let n = self.fits(batch);
        for packet in batch.drain_front(n) {
            if let Err((reason, packet)) = self.submit(packet) {
                self.counters.dropped_packet(reason, &packet);
                self.cache.free(packet);
            }
        }
        if n > 0
            && let Some(rings) = &mut self.rings
        {
            rings.sent_signal.iter().for_each(SentSignal::begin_burst);
            rings.tx.submit();
            self.wake_kernel();
            self.reap();
        }
        n
    }

    #[inline]
    fn reclaim(&mut self) -> usize {
        if self.epoch != self.queue.epoch() {
            self.reattach();
        }
        let sent = self.reap();
        if self.needs_kick {
            self.wake_kernel();
        }
        if (self.in_flight.packets() > 0 && sent == 0) || self.state != State::Up {
            self.check_progress();
        }
        sent
    }

    fn offloads(&self) -> Offloads {
        self.offloads
    }

    fn pending(&self) -> usize {
        self.in_flight.packets()
    }

    fn state(&self) -> State {
        self.state.clone()
    }

    fn wake(&self) -> Wake {
        match (&self.state, &self.rings) {
            (State::Gone(_), _) => Wake::Never,
            // Entries that the kernel did not take wait for nothing that it signals.
            (_, Some(rings)) if !self.needs_kick => {
                // What is freed from now on is signalled; the caller looks once more.
                rings.sent_signal.as_ref().and_then(SentSignal::arm).map_or(Wake::Poll, Wake::Readable)
            }
            _ => Wake::Poll,
        }
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}

impl Drop for SocketTx {
    fn drop(&mut self) {
        self.reap();
        self.abandon(DropReason::Stopped);
        self.rings = None;
        self.queue.close_half(self.in_flight.drain().map(Posted::Tx), self.detached);
    }
}
