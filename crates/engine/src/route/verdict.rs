//! What becomes of packets before they are sent: a judge's word on each, and those that leave by the port that they came from.

use super::Route;
use crate::reflect::mirror;
use crate::rules::{Verdict, dissect_packet};
use std::collections::VecDeque;
use towpath_packet::port::{RxQueue, TxQueue};
use towpath_packet::{Batch, DropReason, Packet};
use towpath_wire::LinkKind;

impl<R: RxQueue, T: TxQueue> Route<R, T> {
    /// Lets the judge decide on every packet that has come in.
    pub(super) fn judge_incoming(&mut self) {
        let Some(judge) = &mut self.judge else { return };
        if judge.constant() == Some(Verdict::Pass) {
            return;
        }
        let link = LinkKind::from(self.config.layer);
        let mut verdicts = [Verdict::Pass; Batch::<64>::CAPACITY];
        for (packet, verdict) in self.incoming.as_mut_slice().iter_mut().zip(&mut verdicts) {
            let found = dissect_packet(packet, link);
            *verdict = judge.judge(packet, &found);
            if packet.flow_hash().is_none() {
                packet.set_flow_hash(found.symmetric_hash(0));
            }
        }
        if verdicts[..self.incoming.len()].iter().all(|verdict| *verdict == Verdict::Pass) {
            return;
        }
        let mut judged = std::mem::take(&mut self.incoming);
        let (n, side) = (judged.len(), self.standing.side);
        for (mut packet, verdict) in judged.drain_front(n).zip(verdicts) {
            match verdict {
                Verdict::Drop => {
                    self.counters.dropped(DropReason::Filtered, 1);
                    self.finisher.cache().free(packet);
                    continue;
                }
                Verdict::Tx => {
                    self.turned.push_back(packet);
                    continue;
                }
                Verdict::Port(to) if to == side => {
                    self.turned.push_back(packet);
                    continue;
                }
                Verdict::Lane(lane) => packet.set_lane(u8::try_from(lane).ok()),
                Verdict::Pass | Verdict::Port(_) => {}
            }
            let _ = self.incoming.push(packet);
        }
    }

    /// Turns all that has come in round; what can't be is dropped: as malformed, or for lack of a head.
    pub(super) fn mirror_incoming(&mut self) {
        let mut refused = [None; Batch::<64>::CAPACITY];
        for (packet, refused) in self.incoming.as_mut_slice().iter_mut().zip(&mut refused) {
            *refused = if self.finisher.cache().give_head(packet) {
                (!mirror(packet, self.config.layer)).then_some(DropReason::Malformed)
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
                    self.finisher.cache().free(packet);
                }
            }
        }
    }

    /// Packets that are to leave by the port that they came from.
    pub(crate) fn turned(&mut self) -> &mut VecDeque<Packet> {
        &mut self.turned
    }

    /// Takes packets that the route of the other direction turned back, as many as it has room for, and sends them.
    pub(crate) fn take_turned(&mut self, turned: &mut VecDeque<Packet>) {
        if self.waiting() > 0 {
            return;
        }
        while self.incoming.room() > 0
            && let Some(packet) = turned.pop_front()
        {
            let _ = self.incoming.push(packet);
        }
        self.send();
    }

    /// There is no route of the other direction.
    pub(crate) fn refuse_turned(&mut self) {
        self.counters.dropped(DropReason::Refused, self.turned.len() as u64);
        for packet in self.turned.drain(..) {
            self.finisher.cache().free(packet);
        }
    }
}
