//! The transmit queue: frees and counts packets; with `verify=on` it checks their tags first.

use super::verify::Verifier;
use crate::null::NullTx;
use std::sync::Arc;
use towpath_packet::port::{TxQueue, Wake};
use towpath_packet::{Batch, Counters, Offloads};

/// A transmit queue of the generator.
#[derive(Debug)]
pub struct GenTx {
    sink: NullTx,
    /// Shared by the queues of the port.
    verifier: Option<Arc<Verifier>>,
}

impl GenTx {
    pub(super) fn new(sink: NullTx, verifier: Option<Arc<Verifier>>) -> GenTx {
        GenTx { sink, verifier }
    }
}

impl TxQueue for GenTx {
    #[inline]
    fn tx(&mut self, batch: &mut Batch) -> usize {
        if let Some(verifier) = &self.verifier {
            verifier.check(batch);
        }
        self.sink.tx(batch)
    }

    fn offloads(&self) -> Offloads {
        self.sink.offloads()
    }

    fn wake(&self) -> Wake {
        Wake::Never
    }

    fn counters(&self) -> &Arc<Counters> {
        self.sink.counters()
    }
}
