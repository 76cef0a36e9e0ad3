//! The receive queue of one MAC port, over its flows.

use super::super::link::StartedPort;
use super::super::losses::RxLosses;
use super::{FlowRef, RxCounts};
use crate::batching::Batching;
use std::os::fd::RawFd;
use std::sync::Arc;
use towpath_bus::{Bus, Irq};
use towpath_packet::port::{RxMemory, RxQueue, Wake};
use towpath_packet::{Batch, Counters, Missed, Pool};

/// A receive queue of one MAC port.
pub struct CpswRx<B: Bus> {
    /// Dropped before the flows: the port stops before its receive channel does.
    pub(in crate::cpsw) _started: Option<Arc<StartedPort<B::Bar>>>,
    pub(in crate::cpsw) flows: Vec<FlowRef<B>>,
    /// The flow that is polled first; the next call starts with the next one.
    pub(in crate::cpsw) first: usize,
    pub(in crate::cpsw) port: u8,
    pub(in crate::cpsw) queue: u8,
    pub(in crate::cpsw) batching: Batching,
    /// The pool of the buffers, if it is not the port's: a shared flow has the pool of the port
    /// that started first.
    pub(in crate::cpsw) own_pool: Option<Pool>,
    /// The interrupt of the queue's only flow, if no other queue receives from it.
    pub(in crate::cpsw) irq: Option<B::Irq>,
    /// Finds the frames that the port's queues have not got, if this is its first one.
    pub(in crate::cpsw) losses: Option<RxLosses<B::Bar>>,
    /// Frames that may wait in the flows of the port's other queues.
    pub(in crate::cpsw) elsewhere: usize,
    pub(in crate::cpsw) counters: Arc<Counters>,
}

impl<B: Bus> CpswRx<B> {
    /// The numbers of free descriptors and of all descriptors of the flows.
    pub fn descriptors(&self) -> (usize, usize) {
        let flows = self.flows.iter().filter_map(|flow| flow.read(|flow| flow.buffers.table.numbers()));
        flows.fold((0, 0), |(free, all), (f, a)| (free + f, all + a))
    }

    /// Counters of the flows.
    pub fn counts(&self) -> Vec<RxCounts> {
        self.flows.iter().filter_map(|flow| flow.read(|flow| flow.counts)).collect()
    }
}

impl<B: Bus> RxQueue for CpswRx<B> {
    #[inline]
    fn rx(&mut self, out: &mut Batch) -> usize {
        let start = out.len();
        let flows = self.flows.len();
        for i in 0..flows {
            if out.room() == 0 {
                break;
            }
            let Some(flow) = self.flows.get_mut((self.first + i) % flows) else { break };
            let lost = flow.poll(self.port, out);
            if lost > 0 {
                self.counters.missed(Missed::Device, lost);
            }
        }
        self.first = if self.first + 1 < flows { self.first + 1 } else { 0 };
        let received = out.as_mut_slice().get_mut(start..).unwrap_or_default();
        let mut bytes = 0;
        for packet in received.iter_mut() {
            packet.set_ingress(0, self.queue);
            bytes += packet.len() as u64;
        }
        let packets = received.len();
        if packets > 0 {
            self.counters.moved(packets as u64, bytes);
        }
        if let Some(losses) = &mut self.losses {
            // With room left, all of the queue's flows are empty.
            let (is_empty, flows) = (out.room() > 0, &self.flows);
            losses.look(|| self.elsewhere + if is_empty { 0 } else { posted(flows) });
        }
        packets
    }

    #[inline]
    fn refill(&mut self) -> usize {
        let batch = self.batching.get().get();
        self.flows.iter_mut().map(|flow| flow.refill(batch)).sum()
    }

    fn memory(&self) -> RxMemory {
        self.own_pool.clone().map_or_else(RxMemory::default, RxMemory::own_pool)
    }

    fn wake(&self) -> Wake {
        let fd: Option<RawFd> = self.irq.as_ref().and_then(|irq| {
            // The call of `rx` that follows looks for what was signalled until now.
            irq.take();
            irq.fd()
        });
        fd.map_or(Wake::Poll, Wake::Fd)
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}

/// Descriptors that the device has, or has filled.
fn posted<B: Bus>(flows: &[FlowRef<B>]) -> usize {
    flows.iter().filter_map(|flow| flow.read(|flow| flow.buffers.table.numbers())).map(|(free, all)| all - free).sum()
}

impl<B: Bus> Drop for CpswRx<B> {
    fn drop(&mut self) {
        if let Some(losses) = &mut self.losses {
            losses.end(self.elsewhere + posted(&self.flows));
        }
    }
}

impl<B: Bus> std::fmt::Debug for CpswRx<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CpswRx").field("port", &self.port).field("queue", &self.queue).finish_non_exhaustive()
    }
}
