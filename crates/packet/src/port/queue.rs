//! The queues of a port: what a worker calls, batch by batch.

use super::TxLayout;
use crate::batch::Batch;
use crate::counters::Counters;
use crate::extbuf::ExtBufGauge;
use crate::offload::Offloads;
use crate::pool::Pool;
use std::borrow::Cow;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Instant;

/// The state of a queue. Exhaustive: what moves packets decides about each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// It works.
    Up,
    /// It moves no packets now, but may again: the link is down.
    Down(Cow<'static, str>),
    /// It is at its end: that of the file, or of the count.
    Done,
    /// It never works again: the interface was deleted, the peer has closed.
    Gone(Cow<'static, str>),
}

impl State {
    /// Whether the queue never moves a packet again.
    pub fn ended(&self) -> bool {
        matches!(self, State::Done | State::Gone(_))
    }
}

/// What an idle worker can wait for. Exhaustive: a kind that a worker ignores never wakes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// The descriptor becomes readable (rx) or writable (tx).
    Fd(RawFd),
    /// The descriptor becomes readable, also on the sending side: it signals completions.
    Readable(RawFd),
    /// A moment: the next packet of a paced source is due.
    At(Instant),
    /// Nothing that the kernel can signal: the worker polls.
    Poll,
    /// Nothing at all.
    Never,
}

/// Memory behind a receive queue besides [`Start::pool`](super::Start::pool). All of it is free
/// once the port and its packets have ended.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct RxMemory {
    /// A pool of the port's own.
    pub pool: Option<Pool>,
    /// The gauge of external buffers in the queue's packets, one for all queues of the port.
    pub ext_bufs: Option<Arc<ExtBufGauge>>,
}

impl RxMemory {
    /// A pool of the port's own.
    pub fn own_pool(pool: Pool) -> RxMemory {
        RxMemory { pool: Some(pool), ..RxMemory::default() }
    }

    /// External buffers that `gauge` counts.
    pub fn ext_bufs(gauge: Arc<ExtBufGauge>) -> RxMemory {
        RxMemory { ext_bufs: Some(gauge), ..RxMemory::default() }
    }
}

/// The receive queue's side of a barrier in the order of packets. It informs the queue when earlier
/// packets have left by the egress, so that their flows may take another path without being
/// reordered.
pub trait RxBarrier {
    /// Begins a barrier behind the last packet that was received. Returns `false` if nothing was
    /// received since the barrier that passed last.
    fn begin(&mut self) -> bool;

    /// All packets in front of the barrier have left.
    fn passed(&mut self);
}

/// The transmit queue's side of a barrier in the order of packets, for a queue with a backlog
/// behind it that it does not share with the port's other queues.
pub trait TxBarrier {
    /// Begins a barrier behind the last packet that has left.
    fn begin(&mut self);

    /// Whether no packet of another queue can overtake a packet in front of the barrier any more.
    fn passed(&mut self) -> bool;
}

/// The receiving side of a port, run by one thread.
pub trait RxQueue: Send {
    /// Appends packets that have arrived, as many as the batch has room for; returns how many.
    /// Fewer than the room means that no more are there now.
    fn rx(&mut self, out: &mut Batch) -> usize;

    /// Posts empty buffers ahead of arrivals; returns how many. Called once before each
    /// [`rx`](RxQueue::rx).
    fn refill(&mut self) -> usize {
        0
    }

    /// Restricts the offloads that received packets need to those of the egress, also while
    /// running. The queue finishes a super-packet or a partial checksum that is not in `accept`, or
    /// never makes one.
    fn set_rx_offloads(&mut self, accept: Offloads) {
        let _ = accept;
    }

    /// Sets the layout that the egress needs, before the first packet. A queue that receives
    /// external buffers copies as much as that layout needs, and no more.
    fn set_tx_layout(&mut self, egress: TxLayout) {
        let _ = egress;
    }

    /// The queue's side of an order barrier, if flows can leave the queue for another one.
    #[inline]
    fn order_barrier(&mut self) -> Option<&mut dyn RxBarrier> {
        None
    }

    /// The memory that the queue's packets lie in besides [`Start::pool`](super::Start::pool).
    fn memory(&self) -> RxMemory {
        RxMemory::default()
    }

    /// The state of the queue; read when [`rx`](RxQueue::rx) returned nothing.
    fn state(&self) -> State {
        State::Up
    }

    /// What an idle worker can wait for. A worker that is about to sleep calls this, then
    /// [`rx`](RxQueue::rx) once more, and only then waits. A queue whose other side must signal can
    /// therefore request the signal here without losing one.
    fn wake(&self) -> Wake {
        Wake::Poll
    }

    /// The queue's counters.
    fn counters(&self) -> &Arc<Counters>;
}

/// The sending side of a port, run by one thread.
pub trait TxQueue: Send {
    /// Takes packets from the front of the batch; returns how many. Packets that do not fit now
    /// stay in the batch, in order. Packets that can never be sent are dropped, counted, and part
    /// of the number returned.
    fn tx(&mut self, batch: &mut Batch) -> usize;

    /// Looks for completions and frees the packets that have left; returns how many (DPDK:
    /// `rte_eth_tx_done_cleanup`). Called once before each [`tx`](TxQueue::tx), and while idle.
    fn reclaim(&mut self) -> usize {
        0
    }

    /// Nothing more will be sent. Called once, when everything that was taken has left or was given
    /// up.
    ///
    /// # Errors
    /// Why packets that were taken did not leave: the last write of a file failed.
    fn close(&mut self) -> Result<(), Cow<'static, str>> {
        Ok(())
    }

    /// Rings the doorbell for packets that were queued since the last call, if the port batches
    /// doorbells.
    fn kick(&mut self) {}

    /// The offloads of the queue now. An offload that failed is no longer one of them.
    fn offloads(&self) -> Offloads;

    /// The offloads that the queue may gain while it runs.
    fn max_offloads(&self) -> Offloads {
        self.offloads()
    }

    /// Packets that were taken and have not left yet.
    fn pending(&self) -> usize {
        0
    }

    /// The queue's side of an order barrier, if packets that have left it can still be overtaken.
    #[inline]
    fn order_barrier(&mut self) -> Option<&mut dyn TxBarrier> {
        None
    }

    /// The state of the queue.
    fn state(&self) -> State {
        State::Up
    }

    /// What a worker can wait for when the queue is full or packets are pending. The worker calls
    /// this, then [`reclaim`](TxQueue::reclaim) once more, and only then waits: completions before
    /// this call may not be signalled, nor those of a second burst after it.
    fn wake(&self) -> Wake {
        Wake::Poll
    }

    /// The queue's counters.
    fn counters(&self) -> &Arc<Counters>;
}
