//! Access to a receive flow: a queue has its own, without a lock, or ports share one.
//!
//! Ports that share a flow take one lock per burst. Frames are sorted by their source port: the
//! port that polls passes the frames of the others on through rings. A port that does not receive
//! loses only its own frames.

use super::super::host::Live;
use super::RxFlow;
use super::demux::{Demux, Inbox, Inboxes};
use std::sync::Arc;
use towpath_bus::Bus;
use towpath_packet::spsc::Consumer;
use towpath_packet::{Batch, Counters, Missed, Packet};

/// A flow that retires when it is dropped. With the last flow, the receive channel is torn down.
pub(in crate::cpsw) type LiveFlow<B> = Live<B, RxFlow<B>>;

/// A flow from which several ports receive, each its own frames.
pub(in crate::cpsw) type SharedFlow<B> = Demux<LiveFlow<B>, Packet, Arc<Counters>>;

type PacketInboxes = Inboxes<Packet, Arc<Counters>>;

/// A queue's access to one flow.
pub(in crate::cpsw) enum FlowRef<B: Bus> {
    Own(Box<LiveFlow<B>>),
    Shared { flow: Arc<SharedFlow<B>>, inbox: Consumer<Packet> },
}

impl<B: Bus> FlowRef<B> {
    /// Appends frames of `port` to `out`; returns the number of frames of unknown ports, which are
    /// lost.
    #[inline]
    pub(super) fn poll(&mut self, port: u8, out: &mut Batch) -> u64 {
        let mut lost = 0;
        let mut pull = |live: &mut LiveFlow<B>, mut inboxes: Option<&mut PacketInboxes>, out: &mut Batch| {
            let (Some(flow), room) = (&mut live.part, out.room()) else { return };
            flow.poll(room, |packet, from| {
                if from == port {
                    // The poll was limited to the room.
                    let _ = out.push(packet);
                    return;
                }
                match inboxes.as_mut().and_then(|inboxes| inboxes.of(from)) {
                    Some(Inbox { ring, owner }) => {
                        if ring.push(packet).is_err() {
                            owner.missed(Missed::Device, 1);
                        }
                    }
                    None => lost += 1,
                }
            });
        };
        match self {
            FlowRef::Own(live) => pull(live, None, out),
            FlowRef::Shared { flow, inbox } => {
                let empty = |inbox: &mut Consumer<Packet>, out: &mut Batch| {
                    inbox.pop_batch(out);
                };
                flow.poll(inbox, out, empty, |live, inboxes, out| pull(live, Some(inboxes), out));
            }
        }
        lost
    }

    /// Hands buffers to the device; returns the number of elements.
    #[inline]
    pub(super) fn refill(&mut self, batch: u8) -> usize {
        let refill = |live: &mut LiveFlow<B>| live.part.as_mut().map_or(0, |flow| flow.refill(batch));
        match self {
            FlowRef::Own(live) => refill(live),
            FlowRef::Shared { flow, .. } => flow.try_with(|live, _| refill(live)).unwrap_or(0),
        }
    }

    /// Runs `f` on the flow, which it does not change.
    pub(super) fn read<T>(&self, f: impl FnOnce(&RxFlow<B>) -> T) -> Option<T> {
        match self {
            FlowRef::Own(live) => live.part.as_ref().map(f),
            FlowRef::Shared { flow, .. } => flow.read(|live| live.part.as_ref().map(f)),
        }
    }
}
