//! The records of a tee as packets: the ingress of a route to a port that shows them.

use super::{TeeReader, TeeRecord};
use std::sync::Arc;
use towpath_packet::port::{RxQueue, State, Wake};
use towpath_packet::{Batch, Cache, Checksum, Counters, DropReason, Gso, Offloads, Packet};

/// A receive queue of what a tee copied. A whole packet keeps its tag, and its partial checksum or
/// segmentation as far as the egress takes them or software does; one that was cut short is plain
/// bytes.
#[derive(Debug)]
pub struct TeeRx {
    reader: TeeReader,
    cache: Cache,
    counters: Arc<Counters>,
    closed: bool,
}

impl TeeRx {
    /// A queue of the records of `reader`, in packets of `cache`.
    pub fn new(reader: TeeReader, cache: Cache) -> TeeRx {
        TeeRx { reader, cache, counters: Arc::default(), closed: false }
    }
}

/// The packet of a record; `None` without buffers.
fn packet(cache: &mut Cache, record: &TeeRecord, bytes: &[u8]) -> Option<Packet> {
    let mut packet = Packet::copy_from(cache, bytes)?;
    packet.set_timestamp(record.time);
    packet.set_vlan(record.vlan);
    if bytes.len() == record.original as usize {
        // A partial checksum begins in the packet that had it.
        if matches!(record.csum, Checksum::Partial { start, offset }
            if usize::from(start) + usize::from(offset) + 2 <= bytes.len())
        {
            packet.set_csum(record.csum);
        }
        packet.set_gso(record.gso.map(|(kind, size)| Gso { kind, size, ecn: false, segs: 0, hdr_len: 0 }));
    }
    Some(packet)
}

impl RxQueue for TeeRx {
    fn rx(&mut self, out: &mut Batch) -> usize {
        let (cache, counters) = (&mut self.cache, &self.counters);
        let (mut packets, mut total, mut lost) = (0, 0, 0);
        self.reader.read(out.room(), |record, bytes| {
            match packet(cache, record, bytes) {
                Some(packet) => {
                    packets += 1;
                    total += packet.len() as u64;
                    let _ = out.push(packet);
                }
                None => lost += 1,
            }
            true
        });
        counters.moved(packets, total);
        counters.dropped(DropReason::NoBuffer, lost);
        if packets == 0 {
            self.closed = self.reader.is_closed();
        }
        packets as usize
    }

    fn set_rx_offloads(&mut self, _: Offloads) {
        // The route finishes in software what the egress does not take.
    }

    fn state(&self) -> State {
        if self.closed { State::Done } else { State::Up }
    }

    fn wake(&self) -> Wake {
        Wake::Poll
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}
