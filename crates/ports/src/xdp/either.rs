//! The transmit queue: through the socket, or as frames of a program. One match per batch.

use super::live::LiveTx;
use super::tx::SocketTx;
use towpath_packet::delegate_tx_queue;

/// A transmit queue of an AF_XDP port.
#[derive(Debug)]
pub enum XdpTx {
    /// `tx=socket`.
    Socket(Box<SocketTx>),
    /// `tx=live`.
    Live(Box<LiveTx>),
}

delegate_tx_queue!(impl[] for XdpTx { XdpTx::Socket(queue) => queue, XdpTx::Live(queue) => queue });
