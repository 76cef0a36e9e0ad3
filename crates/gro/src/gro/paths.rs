//! The paths of a packet, from the shortest to the longest.

use super::Gro;
use crate::join::{Joined, append_predicted, begin, join};
use crate::key::Common;
use crate::layout::Unknown;
use crate::rules::{self, First, Shaped};
use crate::segment::{Segment, Sink};
use crate::shape::Shape;
use crate::stats::Flush;
use crate::table::{Chain, Opening};

impl<S: Segment> Gro<S> {
    /// The fast path: an ordinary packet, which is the predicted one of the expected flow. No hash
    /// is needed, because its headers are that flow's.
    #[inline(always)]
    pub(super) fn push_one<const L3: usize, const EXPECTS: bool>(&mut self, packet: S, out: &mut impl Sink<S>) {
        if !EXPECTS {
            return self.push_hashed::<L3, false>(packet, out);
        }
        if !packet.is_ordinary() {
            return self.push_other::<L3>(packet, out);
        }
        if let Some(flow) = self.table.expected()
            && rules::predicted_ordinary::<L3, S>(flow, &packet)
        {
            if flow.segment.is_none() {
                return self.push_again::<L3>(packet, out);
            }
            match append_predicted(flow, packet, None, &self.config, out) {
                Ok(None) => {
                    let trail = flow.trail();
                    self.table.joined_as_expected(trail);
                    self.stats.merged += 1;
                }
                joined => self.after_expected::<L3>(joined, out),
            }
            return;
        }
        self.push_unexpected::<L3>(packet, out);
    }

    /// The same for other packets: their checksums are to be verified, or tags are beside them.
    #[inline(never)]
    fn push_other<const L3: usize>(&mut self, packet: S, out: &mut impl Sink<S>) {
        if let Some(flow) = self.table.expected()
            && flow.segment.is_some()
            && let Some(verify) = rules::predicted::<L3, S>(flow, &packet, packet.head(), packet.vlan())
        {
            match append_predicted(flow, packet, verify, &self.config, out) {
                Ok(None) => {
                    let trail = flow.trail();
                    self.table.joined_as_expected(trail);
                    self.stats.merged += 1;
                }
                joined => self.after_expected::<L3>(joined, out),
            }
            return;
        }
        self.push_hashed::<L3, true>(packet, out);
    }

    /// The predicted packet of the expected flow, which was flushed: it begins the next aggregate.
    #[inline(never)]
    fn push_again<const L3: usize>(&mut self, packet: S, out: &mut impl Sink<S>) {
        match self.table.reopen(self.table.expected_slot(), packet) {
            None => self.table.opened_as_expected(),
            Some(packet) => self.push_unexpected::<L3>(packet, out),
        }
    }

    /// A packet that may be the predicted one of a flow that was flushed.
    #[inline(never)]
    fn push_closed<const L3: usize>(&mut self, packet: S, hash: u64, at: u16, out: &mut impl Sink<S>) {
        let packet = if packet.is_ordinary()
            && let Some(flow) = self.table.flow(at)
            && rules::predicted_ordinary::<L3, S>(flow, &packet)
        {
            let Some(packet) = self.table.reopen(at, packet) else { return };
            packet
        } else {
            packet
        };
        self.push_unpredicted::<L3>(packet, hash, out);
    }

    #[inline(never)]
    fn after_expected<const L3: usize>(&mut self, joined: Joined<S>, out: &mut impl Sink<S>) {
        let at = self.table.expected_slot();
        self.table.joined(at, self.stats.merged);
        self.after::<L3>(at, joined, out);
    }

    #[inline(never)]
    pub(super) fn push_unexpected<const L3: usize>(&mut self, packet: S, out: &mut impl Sink<S>) {
        self.push_hashed::<L3, true>(packet, out);
    }

    /// The second path: the predicted packet of any flow, found by its hash. `EXPECTS`: it also
    /// notes the order of flows.
    #[inline(always)]
    fn push_hashed<const L3: usize, const EXPECTS: bool>(&mut self, packet: S, out: &mut impl Sink<S>) {
        let (b, vlan) = (packet.head(), packet.vlan());
        let Some(hash) = self.hasher.guess::<L3>(b, vlan) else {
            return self.push_uncommon::<L3>(packet, out);
        };
        if let Some((at, flow)) = self.table.youngest(hash) {
            if flow.segment.is_none() {
                if flow.may_go_on::<L3>(b) {
                    return self.push_closed::<L3>(packet, hash, at, out);
                }
            } else if (flow.has_begun() || begin(flow, b, &self.config))
                && let Some(verify) = rules::predicted::<L3, S>(flow, &packet, b, vlan)
            {
                let joined = append_predicted(flow, packet, verify, &self.config, out);
                if EXPECTS {
                    self.table.joined(at, self.stats.merged);
                }
                return match joined {
                    Ok(None) => self.stats.merged += 1,
                    joined => self.after::<L3>(at, joined, out),
                };
            }
        }
        self.push_first::<L3>(packet, hash, vlan, out);
    }

    /// The third path: the first packet of an aggregate.
    #[inline(always)]
    fn push_first<const L3: usize>(&mut self, packet: S, hash: u64, vlan: u32, out: &mut impl Sink<S>) {
        let (b, len) = (packet.head(), packet.packet_len());
        let Some(first) = rules::first_shaped::<L3>(b, len, self.config.tunnels) else {
            return self.push_unpredicted::<L3>(packet, hash, out);
        };
        let Shaped { shape, udp, size } = first;
        let chain = match self.table.find(hash) {
            Err(chain) => chain,
            Ok(at) if self.table.flow(at).is_some_and(|flow| flow.has_no_room_for(size)) => {
                self.end_full(at, out);
                self.table.chain(hash)
            }
            Ok(_) => return self.push_unpredicted::<L3>(packet, hash, out),
        };
        let opening = Opening { vlan, shape, layout: 0, size };
        self.open(packet, hash, chain, udp, opening, out);
    }

    /// The slow path: an unpredicted packet, which is the first of an aggregate, the last, or
    /// belongs to none.
    #[inline(never)]
    fn push_unpredicted<const L3: usize>(&mut self, packet: S, hash: u64, out: &mut impl Sink<S>) {
        let b = packet.head();
        let Some(common) = self.hasher.common::<L3>(b) else {
            return self.push_uncommon::<L3>(packet, out);
        };
        match self.table.find(hash) {
            Err(chain) => self.open_common::<L3>(packet, hash, chain, common, out),
            Ok(at) => self.join_common::<L3>(at, packet, out),
        }
    }

    #[inline(never)]
    fn join_common<const L3: usize>(&mut self, at: u16, packet: S, out: &mut impl Sink<S>) {
        let joined = self.join::<L3>(at, packet, out);
        // So that a flow behind another one of its chain is expected like any other.
        if Self::HANDLES && joined.is_ok() {
            self.table.joined(at, self.stats.merged);
        }
        self.after::<L3>(at, joined, out);
    }

    /// Handles the result of an attempt to join. A refused packet may open a flow of its own.
    #[inline(never)]
    fn after<const L3: usize>(&mut self, at: u16, joined: Joined<S>, out: &mut impl Sink<S>) {
        let Some(packet) = self.account_join(at, joined, out) else { return };
        let (b, vlan) = (packet.head(), packet.vlan());
        match (self.hasher.common::<L3>(b), self.hasher.guess::<L3>(b, vlan)) {
            (Some(common), Some(hash)) if let Err(chain) = self.table.find(hash) => {
                self.open_common::<L3>(packet, hash, chain, common, out);
            }
            _ => self.pass(packet, out),
        }
    }

    /// Counts the result of an attempt to join. Returns a refused packet, after the aggregate has
    /// left.
    #[inline(always)]
    fn account_join(&mut self, at: u16, joined: Joined<S>, out: &mut impl Sink<S>) -> Option<S> {
        let (packet, ends) = match joined {
            Ok(ends) => {
                self.stats.merged += 1;
                (None, ends)
            }
            Err((packet, reason)) => (Some(packet), Some(reason)),
        };
        if let Some(reason) = ends {
            self.end(at, reason, out);
        }
        packet
    }

    /// A packet whose flow is found by walking its headers.
    #[inline(never)]
    fn push_uncommon<const L3: usize>(&mut self, packet: S, out: &mut impl Sink<S>) {
        let (hash, walk) = match self.hasher.any(packet.head(), packet.vlan()) {
            Ok(found) => found,
            Err(unknown) => return self.pass_unknown(packet, unknown, out),
        };
        let (packet, chain) = match self.table.find(hash) {
            Err(chain) => (packet, chain),
            Ok(at) => {
                let joined = self.join::<L3>(at, packet, out);
                let Some(packet) = self.account_join(at, joined, out) else { return };
                let Err(chain) = self.table.find(hash) else { return self.pass(packet, out) };
                (packet, chain)
            }
        };
        let layout = walk.layout;
        let first = if walk.plain { rules::first(packet.head(), packet.packet_len(), &layout) } else { None };
        let Some(First { udp, size, .. }) = first else { return self.pass(packet, out) };
        let opening = Opening { vlan: packet.vlan(), shape: Shape::ANY, layout: layout.pack(), size };
        self.open(packet, hash, chain, udp, opening, out);
    }

    #[cold]
    fn pass_unknown(&mut self, packet: S, unknown: Unknown, out: &mut impl Sink<S>) {
        let scattered = packet.head().len() < packet.packet_len();
        if unknown == Unknown::Fragment || (unknown == Unknown::Short && scattered) {
            self.flush_because(Flush::Unknown, out);
        }
        self.pass(packet, out);
    }

    fn open_common<const L3: usize>(
        &mut self,
        packet: S,
        hash: u64,
        chain: Chain,
        common: Common,
        out: &mut impl Sink<S>,
    ) {
        let (b, len) = (packet.head(), packet.packet_len());
        let Some(First { udp, size, transport }) = rules::first_common::<L3>(b, len, common) else {
            return self.pass(packet, out);
        };
        let shape = Shape::new::<L3>(common.v6, udp, transport);
        let opening = Opening { vlan: packet.vlan(), shape, layout: 0, size };
        self.open(packet, hash, chain, udp, opening, out);
    }

    /// Holds a packet that may begin an aggregate; nothing of its flow is held.
    #[inline(always)]
    fn open(&mut self, packet: S, hash: u64, mut chain: Chain, udp: bool, opening: Opening, out: &mut impl Sink<S>) {
        if (udp && !self.config.udp) || packet.offload().gso.is_some() {
            return self.pass(packet, out);
        }
        if let Some(victim) = self.table.victim() {
            self.end(victim, Flush::Evict, out);
            chain = self.table.chain(hash);
        }
        if let Some(packet) = self.table.open(hash, chain, packet, opening) {
            self.pass(packet, out);
        }
    }

    /// Appends a packet to the aggregate of its flow, if all rules permit.
    #[inline(always)]
    fn join<const L3: usize>(&mut self, at: u16, packet: S, out: &mut impl Sink<S>) -> Joined<S> {
        match self.table.flow(at) {
            Some(flow) => join::<L3, S>(flow, packet, &mut self.masks, &self.config, out),
            None => Err((packet, Flush::Unknown)),
        }
    }

    #[inline(never)]
    fn end_full(&mut self, at: u16, out: &mut impl Sink<S>) {
        self.end(at, Flush::Full, out);
    }
}
