//! The sending half of a route or of a hub's port: what stands between packets and a transmit
//! queue.
//!
//! ```text
//!   packets ─┬─ one needs software ─► SoftwareOffload ─► outgoing ─┬─► Linearizer ─► tx
//!            └─ none does ─────────────────────────────────────────┘
//! ```
//!
//! Order is kept, also through software offload, refusals and lost abilities. What the queue
//! refuses stays where it is, in order: in the caller's batch, or in `outgoing` behind software
//! offload.

use crate::linearize::Linearizer;
use crate::route::RouteConfig;
use crate::software_offload::{SoftwareOffload, any_needs_software};
use crate::tee::TeeSlot;
use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};
use towpath_packet::port::{State, TxLinear, TxQueue};
use towpath_packet::{Batch, Cache, Counters, DropReason, Offloads};
use towpath_wire::LinkKind;

/// A transmit queue, and what its packets need before it; owned by the thread that runs it.
pub(crate) struct Egress<T> {
    tx: T,
    outgoing: Batch,
    software_offload: SoftwareOffload,
    linearizer: Option<Linearizer>,
    offloads: Offloads,
    allowed: Offloads,
    egress_wait: Duration,
    refused_since: Option<Instant>,
    counters: Arc<Counters>,
    tee: Option<Arc<TeeSlot>>,
    closed: bool,
}

/// What became of an attempt to send.
pub(crate) enum Step {
    /// There was no packet.
    Nothing,
    /// The queue accepted this many packets, which were all.
    Sent(usize),
    /// The queue accepted this many packets and refused the next.
    Refused(usize),
    /// The queue accepted this many packets, and its offloads changed: the caller informs the
    /// ingress and tries again.
    Changed(usize),
}

impl<T: TxQueue> Egress<T> {
    /// Segments and copies come from `cache`; drops and splits are counted in `counters`.
    pub(crate) fn new(tx: T, cache: Cache, config: &RouteConfig, counters: Arc<Counters>) -> Egress<T> {
        let mut allowed = config.offloads;
        if config.tx_layout.linear == TxLinear::Whole {
            // A super-packet is longer than any chunk.
            allowed = allowed.without(Offloads::GSO);
        }
        let software_offload = SoftwareOffload::new(cache, LinkKind::from(config.layer), counters.clone());
        Egress {
            offloads: tx.offloads().and(allowed),
            tx,
            outgoing: Batch::new(),
            software_offload,
            linearizer: Linearizer::new(config.tx_layout, counters.clone()),
            allowed,
            egress_wait: config.egress_wait,
            refused_since: None,
            counters,
            tee: None,
            closed: false,
        }
    }

    /// Shows sent packets to the tees of `slot`.
    pub(crate) fn set_tee(&mut self, slot: Arc<TeeSlot>) {
        self.tee = Some(slot);
    }

    /// The queue.
    pub(crate) fn tx(&self) -> &T {
        &self.tx
    }

    /// The queue, to be reclaimed, kicked and closed.
    #[inline]
    pub(crate) fn tx_mut(&mut self) -> &mut T {
        &mut self.tx
    }

    /// The offloads that the queue performs now, as far as they are allowed.
    #[inline]
    pub(crate) fn offloads(&self) -> Offloads {
        self.offloads
    }

    /// The offloads that the queue may gain, as far as they are allowed.
    pub(crate) fn max_offloads(&self) -> Offloads {
        self.tx.max_offloads().and(self.allowed)
    }

    /// Drops and splits in front of the queue.
    pub(crate) fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// The cache, for freeing packets on the thread that runs the queue.
    #[inline]
    pub(crate) fn cache(&mut self) -> &mut Cache {
        self.software_offload.cache()
    }

    /// Software offload, for tags in the metadata.
    pub(crate) fn software_offload(&mut self) -> &mut SoftwareOffload {
        &mut self.software_offload
    }

    /// Packets that wait here, behind software offload.
    #[inline]
    pub(crate) fn held(&self) -> usize {
        self.software_offload.held() + self.outgoing.len()
    }

    /// Sends from the front of `packets`, behind those that wait here; at most one burst.
    #[inline]
    pub(crate) fn step(&mut self, packets: &mut Batch) -> Step {
        let direct = self.outgoing.is_empty()
            && self.software_offload.held() == 0
            && !any_needs_software(packets.as_slice(), self.offloads);
        let batch = if direct {
            packets
        } else {
            self.software_offload.apply(packets, &mut self.outgoing, self.offloads);
            &mut self.outgoing
        };
        if batch.is_empty() {
            return Step::Nothing;
        }
        if let Some(linearizer) = &mut self.linearizer {
            linearizer.linearize(batch, self.software_offload.cache());
        }
        let tee = self.tee.as_deref().filter(|tee| tee.has_tx());
        if let Some(tee) = tee {
            tee.sending(batch.as_slice());
        }
        let taken = self.tx.tx(batch);
        if let Some(tee) = tee {
            tee.sent(taken);
        }
        let refused = !batch.is_empty();
        let offloads = self.tx.offloads().and(self.allowed);
        if offloads != self.offloads {
            self.offloads = offloads;
            self.software_offload.reapply(&mut self.outgoing, offloads);
            return Step::Changed(taken);
        }
        if refused { Step::Refused(taken) } else { Step::Sent(taken) }
    }

    /// Everything that waited has left.
    #[inline]
    pub(crate) fn accepted(&mut self) {
        self.refused_since = None;
    }

    /// Packets wait. Returns the reason for which the caller drops all of them now: the port is
    /// gone, or has refused for longer than it may. `progress`: some left just now.
    #[cold]
    pub(crate) fn refused(&mut self, progress: bool) -> Option<DropReason> {
        let reason = match self.tx.state() {
            State::Gone(_) | State::Done => DropReason::PortGone,
            State::Down(_) => DropReason::LinkDown,
            State::Up => DropReason::EgressFull,
        };
        let now = Instant::now();
        if progress {
            self.refused_since = None;
        }
        let since = *self.refused_since.get_or_insert(now);
        let is_over = reason == DropReason::PortGone || now.duration_since(since) >= self.egress_wait;
        if is_over {
            self.refused_since = None;
        }
        is_over.then_some(reason)
    }

    /// Drops what waits here.
    pub(crate) fn drop_held(&mut self, reason: DropReason) {
        self.counters.dropped(reason, self.held() as u64);
        self.outgoing.iter().for_each(|packet| self.counters.show_dropped(reason, packet));
        self.software_offload.drop_held(reason);
        self.software_offload.cache().free_bulk(&mut self.outgoing);
    }

    /// Closes the queue, once.
    ///
    /// # Errors
    /// Why packets that it took did not leave.
    pub(crate) fn close(&mut self) -> Result<(), Cow<'static, str>> {
        if std::mem::replace(&mut self.closed, true) { Ok(()) } else { self.tx.close() }
    }
}
