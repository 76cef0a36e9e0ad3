//! The rings by which an application transmits, and what is taken from them when it has left.

use crate::copy_plan::CopyPlan;
use crate::sock::session::{Session, SessionHalf};
use crate::sock::source::Sources;
use crate::sock::stats::{Fault, RxTotals, SessionStats};
use crate::sock::tx_metadata::TxMetadata;
use crate::vnet::VnetHeader;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use towpath_packet::xsk_ring::RingMemory;
use towpath_packet::{Batch, Cache, ExtBufPool, Packet, xsk_ring};

/// The rings by which an application transmits, TX and COMPLETION. A receive queue of the port has
/// them: what an application transmits, the port receives.
#[derive(Debug)]
pub(crate) struct AppTxRings {
    /// The queue of the session.
    pub(crate) queue: u8,
    pub(crate) session: Arc<Session>,
    pub(crate) tx: xsk_ring::Consumer<xsk_ring::Mapped<xsk_ring::Desc>>,
    pub(crate) completion: xsk_ring::Producer<xsk_ring::Mapped<u64>>,
    pub(crate) stats: SessionStats,
    /// Invalid descriptors are counted and do not end the session.
    pub(crate) skip_invalid: bool,
    /// The pages in flight. Their tokens are the addresses of their descriptors.
    pub(crate) pages: ExtBufPool,
    /// Bytes of chunks that may be in flight.
    pub(crate) budget: u64,
    /// Bytes of chunks that are in flight.
    pub(crate) charged: u64,
    /// Bytes of the longest frame.
    pub(crate) longest: usize,
    /// The first pieces of a packet whose last one has not come.
    pub(crate) partial: Option<Packet>,
    /// How many these are.
    pub(crate) pieces: usize,
    /// The source addresses that it may send from, if they are compared.
    pub(crate) sources: Option<Sources>,
    /// The metadata that frames may have.
    pub(crate) metadata: TxMetadata,
    /// What the metadata of the packet asks for.
    pub(crate) request: Option<VnetHeader>,
    /// The COMPLETION ring has entries that were not submitted.
    pub(crate) unsubmitted: bool,
    /// The COMPLETION ring had no room for all pages that came back, or for any copy.
    pub(crate) completion_full: bool,
    /// Why descriptors stayed in the TX ring.
    pub(crate) stall: Stall,
    /// After the end of the session: descriptors that were submitted before it, and not taken.
    pub(crate) rest: Option<u32>,
}

/// Why descriptors stay in a TX ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stall {
    /// None did.
    None,
    /// The burst has no more room: there is work.
    Burst,
    /// No page, no budget, or no room in the COMPLETION ring. The application or a freed page wakes
    /// the queue.
    Waits,
    /// There was no buffer for a head. Nothing wakes the queue.
    NoHead,
}

impl SessionHalf for AppTxRings {
    fn session(&self) -> &Session {
        &self.session
    }

    fn is_done(&self) -> bool {
        self.session.is_closed() && (self.rest == Some(0) || self.session.broken.load(Ordering::Relaxed))
    }
}

impl AppTxRings {
    /// Takes what the application submitted before it left, at most its ring once, so that it need
    /// not wait for the datapath before it exits. Descriptors that stay when a turn takes none are
    /// counted, and the session is done.
    #[cold]
    #[inline(never)]
    pub(super) fn poll_rest(
        &mut self,
        room: usize,
        plan: CopyPlan,
        cache: &mut Cache,
        out: &mut Batch,
        totals: &mut RxTotals,
    ) -> Result<usize, Fault> {
        if self.is_done() {
            return Ok(0);
        }
        let before = self.tx.waiting();
        let rest = self.rest.unwrap_or(before);
        let polled = self.poll(room.min(rest as usize), plan, cache, out, totals)?;
        // A process that kept the ring may submit more, which only ends this earlier.
        let taken = before.saturating_sub(self.tx.waiting());
        let rest = rest.saturating_sub(taken);
        if taken > 0 && rest > 0 {
            self.rest = Some(rest);
        } else {
            self.rest = Some(0);
            self.session.events.unsent.fetch_add(rest.into(), Ordering::Relaxed);
            self.session.events.change();
        }
        Ok(polled)
    }

    /// Whether the queue has work that nothing will announce: completions to write, descriptors
    /// that did not fit in a burst, the end of the session.
    #[inline]
    pub(super) fn has_work(&self) -> bool {
        let completions = self.pages.has_freed() && !self.completion_full;
        completions || self.stall == Stall::Burst || self.session.is_closed()
    }

    /// Whether the application waits for room in its COMPLETION ring and may not kick when it has
    /// made some: an AF_XDP program may call `poll` instead, which sends by itself there.
    #[inline]
    pub(super) fn may_not_kick(&self) -> bool {
        self.completion_full && self.session.poll_fd().is_some()
    }

    /// Whether the application has room to send, by AF_XDP's rule: at most half of its TX ring is
    /// full.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.tx.waiting() <= self.tx.ring().size() / 2
    }
}
