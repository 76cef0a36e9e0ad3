//! Queues of a port that has a thread of its own.

use std::fmt::Debug;
use std::sync::Arc;
use towpath_packet::port::{RxQueue, TxQueue};
use towpath_packet::{delegate_rx_queue, delegate_tx_queue};

/// A queue that ends the port's thread if it is the last one.
#[derive(Debug)]
pub struct Ended<Q> {
    pub(crate) queue: Q,
    // Declared after the queue: what the queue leaves in its rings is freed first.
    _thread: Arc<dyn Debug + Send + Sync>,
}

impl<Q> Ended<Q> {
    /// The queues of a port whose thread ends when `thread` is dropped.
    pub(crate) fn all(queues: Vec<Q>, thread: &Arc<impl Debug + Send + Sync + 'static>) -> Vec<Ended<Q>> {
        queues.into_iter().map(|queue| Ended { queue, _thread: thread.clone() }).collect()
    }
}

delegate_rx_queue!(impl[Q: RxQueue] for Ended<Q> { Ended { queue, .. } => queue });
delegate_tx_queue!(impl[Q: TxQueue] for Ended<Q> { Ended { queue, .. } => queue });
