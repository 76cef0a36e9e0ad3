//! The ring on which a flow hands free descriptors to the engine (free descriptor queue, FDQ).
//!
//! Each flow has a ring of its own, so that its descriptors complete only to the flow itself.

use super::super::config::Config;
use super::super::regs::{Regions, fifo};
use super::super::ring::SubmitRing;
use super::super::soc::FreeRing;
use towpath_bus::{Coherent, Dma, Domain, MapError, Mmio};

/// The free descriptor queue, in one of its two modes.
pub(in crate::cpsw) enum FreeQueue<M> {
    /// Elements are stored to memory and announced by doorbells.
    Exposed(SubmitRing<M>),
    /// Each element is a register write of eight bytes; the ring's memory is the engine's.
    Message { elements: Coherent, bar: M, fifo: usize },
}

impl<M: Mmio> FreeQueue<M> {
    pub(super) fn new<D: Dma>(
        config: &Config,
        regions: &Regions<M>,
        domain: &Domain<D>,
        ring: u16,
    ) -> Result<FreeQueue<M>, MapError> {
        Ok(match (&regions.fifos, config.soc.free_ring) {
            (Some(bar), FreeRing::Message) => FreeQueue::Message {
                elements: Coherent::new(domain, config.rx_ring as usize * 8)?,
                bar: bar.clone(),
                fifo: usize::from(ring) * fifo::STRIDE,
            },
            _ => FreeQueue::Exposed(SubmitRing::new(domain, regions, ring, config.rx_ring)?),
        })
    }

    /// The ring's memory.
    pub(in crate::cpsw) fn elements(&self) -> &Coherent {
        match self {
            FreeQueue::Exposed(ring) => &ring.elements,
            FreeQueue::Message { elements, .. } => elements,
        }
    }

    /// Hands over an element. Returns its slot in an exposed ring, where it is the engine's only
    /// after [`announce`](FreeQueue::announce).
    #[inline]
    pub(super) fn push(&mut self, element: u64) -> Option<u32> {
        match self {
            FreeQueue::Exposed(ring) => Some(ring.store(element)),
            FreeQueue::Message { bar, fifo, .. } => {
                // The write is ordered behind the stores to the descriptor: the contract of `Mmio`.
                bar.w64(*fifo + fifo::PUSH_TAIL, element);
                None
            }
        }
    }

    /// Announces the last `n` elements; returns the number of doorbells, none in message mode.
    pub(super) fn announce(&self, n: u32) -> u64 {
        match self {
            FreeQueue::Exposed(ring) => ring.announce(n),
            FreeQueue::Message { .. } => 0,
        }
    }

    /// Takes back up to `posted` elements that the engine has not used, of a channel that has been
    /// torn down.
    pub(super) fn drain(&mut self, posted: u32) {
        match self {
            FreeQueue::Exposed(ring) => ring.drain(posted),
            FreeQueue::Message { bar, fifo, .. } => {
                for _ in 0..posted {
                    if bar.r64(*fifo + fifo::POP_HEAD) == 0 {
                        break;
                    }
                }
            }
        }
    }
}
