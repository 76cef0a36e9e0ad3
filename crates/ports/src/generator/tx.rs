//! The receiving end: counts and frees, and looks at the tags first if asked.

use super::super::null::NullTx;
use super::verify::{Verification, Verifier};
use std::sync::Arc;
use towpath_packet::port::{TxQueue, Wake};
use towpath_packet::{Batch, Counters, Offloads};

/// A transmit queue of the generator.
#[derive(Debug)]
pub struct GenTx {
    sink: NullTx,
    verifier: Option<Verifier>,
    found: Arc<Verification>,
}

impl GenTx {
    pub(super) fn new(sink: NullTx, verifier: Option<Verifier>) -> GenTx {
        GenTx { sink, verifier, found: Arc::default() }
    }

    /// What the tags said; `None` without `verify=on`.
    pub fn verification(&self) -> Option<&Arc<Verification>> {
        self.verifier.as_ref().map(|_| &self.found)
    }
}

impl TxQueue for GenTx {
    #[inline]
    fn tx(&mut self, batch: &mut Batch) -> usize {
        if let Some(verifier) = &mut self.verifier {
            batch.iter().for_each(|packet| verifier.look(packet, &self.found));
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
