//! The transmit queue: through the socket, or as frames of a program. One match per batch.

use super::live::LiveTx;
use super::tx::SocketTx;
use std::sync::Arc;
use towpath_packet::port::{State, TxQueue, Wake};
use towpath_packet::{Batch, Counters, Offloads};

/// A transmit queue of an AF_XDP port.
#[derive(Debug)]
pub enum XdpTx {
    /// `tx=socket`.
    Socket(Box<SocketTx>),
    /// `tx=live`.
    Live(Box<LiveTx>),
}

macro_rules! either {
    ($self:expr, $queue:ident => $call:expr) => {
        match $self {
            XdpTx::Socket($queue) => $call,
            XdpTx::Live($queue) => $call,
        }
    };
}

impl TxQueue for XdpTx {
    #[inline]
    fn tx(&mut self, batch: &mut Batch) -> usize {
        either!(self, queue => queue.tx(batch))
    }
    #[inline]
    fn reclaim(&mut self) -> usize {
        either!(self, queue => queue.reclaim())
    }
    fn close(&mut self) {
        either!(self, queue => queue.close());
    }
    #[inline]
    fn kick(&mut self) {
        either!(self, queue => queue.kick());
    }
    #[inline]
    fn offloads(&self) -> Offloads {
        either!(self, queue => queue.offloads())
    }
    #[inline]
    fn pending(&self) -> usize {
        either!(self, queue => queue.pending())
    }
    fn state(&self) -> State {
        either!(self, queue => queue.state())
    }
    fn wake(&self) -> Wake {
        either!(self, queue => queue.wake())
    }
    fn counters(&self) -> &Arc<Counters> {
        either!(self, queue => queue.counters())
    }
}
