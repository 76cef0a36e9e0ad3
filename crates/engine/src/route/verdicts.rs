//! Verdicts on received packets, and reflection.

use super::{Route, RouteId};
use crate::reflect::reflect;
use crate::rules::{Classifier, Verdict, dissect_packet};
use std::collections::VecDeque;
use towpath_packet::port::{RxQueue, TxQueue};
use towpath_packet::{Batch, DropReason, Packet};
use towpath_wire::LinkKind;

/// Classifies a burst; returns whether any verdict is not to pass.
#[inline]
pub(crate) fn classify_burst(
    classifier: &mut dyn Classifier,
    burst: &mut Batch,
    link: LinkKind,
    verdicts: &mut [Verdict; Batch::<64>::CAPACITY],
) -> bool {
    if classifier.constant() == Some(Verdict::Pass) {
        return false;
    }
    for (packet, verdict) in burst.as_mut_slice().iter_mut().zip(verdicts.iter_mut()) {
        let found = dissect_packet(packet, link);
        *verdict = classifier.classify(packet, &found);
        if packet.flow_hash().is_none() {
            packet.set_flow_hash(found.symmetric_hash(0));
        }
    }
    verdicts[..burst.len()].iter().any(|verdict| *verdict != Verdict::Pass)
}

/// Passes reflected packets to the routes of the other direction.
#[cold]
pub(super) fn exchange_reflected<R: RxQueue, T: TxQueue>(routes: &mut [Route<R, T>]) {
    for i in 0..routes.len() {
        let RouteId { side, pair } = routes[i].id();
        let back = RouteId { side: side.other(), pair };
        let mut reflected = std::mem::take(routes[i].reflected());
        match routes.iter_mut().find(|route| route.id() == back) {
            Some(other) => {
                other.take_reflected(&mut reflected);
                *routes[i].reflected() = reflected;
            }
            None => {
                *routes[i].reflected() = reflected;
                routes[i].drop_reflected();
            }
        }
    }
}

impl<R: RxQueue, T: TxQueue> Route<R, T> {
    /// Classifies every received packet and applies the verdicts.
    pub(super) fn classify_incoming(&mut self) {
        let Some(classifier) = &mut self.classifier else { return };
        let mut verdicts = [Verdict::Pass; Batch::<64>::CAPACITY];
        if !classify_burst(&mut **classifier, &mut self.incoming, LinkKind::from(self.config.layer), &mut verdicts) {
            return;
        }
        let mut packets = std::mem::take(&mut self.incoming);
        let (n, side) = (packets.len(), self.id.side);
        for (mut packet, verdict) in packets.drain_front(n).zip(verdicts) {
            match verdict {
                Verdict::Drop => {
                    self.counters.dropped(DropReason::Filtered, 1);
                    self.egress.cache().free(packet);
                    continue;
                }
                Verdict::Tx => {
                    self.reflected.push_back(packet);
                    continue;
                }
                Verdict::Port(to) if to == side => {
                    self.reflected.push_back(packet);
                    continue;
                }
                Verdict::Lane(lane) => packet.set_lane(u8::try_from(lane).ok()),
                Verdict::Pass | Verdict::Port(_) => {}
            }
            let _ = self.incoming.push(packet);
        }
    }

    /// Reflects every received packet; failures are dropped as malformed or as lacking a buffer for
    /// a head.
    pub(super) fn reflect_incoming(&mut self) {
        let mut refused = [None; Batch::<64>::CAPACITY];
        for (packet, refused) in self.incoming.as_mut_slice().iter_mut().zip(&mut refused) {
            *refused = if self.egress.cache().ensure_head(packet) {
                (!reflect(packet, self.config.layer)).then_some(DropReason::Malformed)
            } else {
                Some(DropReason::NoBuffer)
            };
        }
        if refused.iter().all(Option::is_none) {
            return;
        }
        let mut all = std::mem::take(&mut self.incoming);
        let n = all.len();
        for (packet, refused) in all.drain_front(n).zip(refused) {
            match refused {
                None => drop(self.incoming.push(packet)),
                Some(reason) => {
                    self.counters.dropped(reason, 1);
                    self.egress.cache().free(packet);
                }
            }
        }
    }

    /// Packets that leave by the port that they came from.
    fn reflected(&mut self) -> &mut VecDeque<Packet> {
        &mut self.reflected
    }

    /// Takes packets that the route of the other direction reflected, as many as fit, and sends
    /// them.
    fn take_reflected(&mut self, reflected: &mut VecDeque<Packet>) {
        if self.waiting() > 0 {
            return;
        }
        while self.incoming.room() > 0
            && let Some(packet) = reflected.pop_front()
        {
            let _ = self.incoming.push(packet);
        }
        self.send();
    }

    /// Drops reflected packets: there is no route of the other direction.
    fn drop_reflected(&mut self) {
        self.counters.dropped(DropReason::Refused, self.reflected.len() as u64);
        for packet in self.reflected.drain(..) {
            self.egress.cache().free(packet);
        }
    }
}
