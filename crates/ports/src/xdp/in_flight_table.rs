//! Packets in flight, found by the chunks that hold them.

use towpath_packet::{InFlight, Packet, ToDevice};

/// State of a chunk.
#[derive(Debug)]
enum Slot {
    Empty,
    /// A packet in this chunk alone.
    Whole(InFlight<ToDevice>),
    /// The first fragment of a packet, and the number of fragments that are not completed yet.
    First(InFlight<ToDevice>, u16),
    /// A further fragment of the packet whose first fragment is in the chunk of this index.
    Next(u32),
}

/// The chunk is not in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NotInFlight;

/// A slot for each chunk of the UMEM.
#[derive(Debug)]
pub(super) struct InFlightTable {
    slots: Box<[Slot]>,
    chunks: usize,
    packets: usize,
}

impl InFlightTable {
    /// A table of empty slots.
    pub(super) fn new(capacity: usize) -> InFlightTable {
        let slots = std::iter::repeat_with(|| Slot::Empty).take(capacity).collect();
        InFlightTable { slots, chunks: 0, packets: 0 }
    }

    /// Chunks in flight.
    #[inline]
    pub(super) fn chunks(&self) -> usize {
        self.chunks
    }

    /// Packets in flight, 0 after [`abandon`](InFlightTable::abandon).
    #[inline]
    pub(super) fn packets(&self) -> usize {
        self.packets
    }

    /// Whether a chunk is not in flight.
    #[inline]
    pub(super) fn is_free(&self, chunk: usize) -> bool {
        matches!(self.slots.get(chunk), Some(Slot::Empty))
    }

    /// Posts a packet that lies in one chunk, which must be [free](InFlightTable::is_free).
    #[inline]
    pub(super) fn post(&mut self, packet: Packet, chunk: usize) {
        if let Some(slot) = self.slots.get_mut(chunk) {
            *slot = Slot::Whole(InFlight::<ToDevice>::post(packet));
            self.chunks += 1;
            self.packets += 1;
        }
    }

    /// Posts a packet of several chunks, the head's first, which must all be free and different.
    #[cold]
    pub(super) fn post_frags(&mut self, packet: Packet, chunks: &[usize]) {
        let Some((&first, others)) = chunks.split_first() else { return };
        for &other in others {
            if let Some(slot) = self.slots.get_mut(other) {
                *slot = Slot::Next(first as u32);
            }
        }
        if let Some(slot) = self.slots.get_mut(first) {
            *slot = Slot::First(InFlight::<ToDevice>::post(packet), chunks.len() as u16);
        }
        self.chunks += chunks.len();
        self.packets += 1;
    }

    /// Completes a chunk; returns the packet if that was its last one.
    #[inline]
    pub(super) fn complete(&mut self, chunk: usize) -> Result<Option<Packet>, NotInFlight> {
        let slot = self.slots.get_mut(chunk).ok_or(NotInFlight)?;
        match std::mem::replace(slot, Slot::Empty) {
            Slot::Whole(packet) => {
                self.chunks -= 1;
                self.packets -= 1;
                Ok(Some(packet.complete()))
            }
            Slot::Empty => Err(NotInFlight),
            Slot::First(packet, left) => Ok(self.complete_frag(packet, left, chunk)),
            Slot::Next(first) => {
                let first = first as usize;
                let slot = self.slots.get_mut(first).ok_or(NotInFlight)?;
                match std::mem::replace(slot, Slot::Empty) {
                    Slot::First(packet, left) => Ok(self.complete_frag(packet, left, first)),
                    _ => Err(NotInFlight),
                }
            }
        }
    }

    /// Completes one of the `left` fragments of a packet. The first slot keeps the packet until the
    /// last one.
    #[cold]
    fn complete_frag(&mut self, packet: InFlight<ToDevice>, left: u16, first: usize) -> Option<Packet> {
        self.chunks -= 1;
        if left == 1 {
            self.packets -= 1;
            return Some(packet.complete());
        }
        if let Some(slot) = self.slots.get_mut(first) {
            *slot = Slot::First(packet, left - 1);
        }
        None
    }

    /// Resets the counts. The packets stay in flight until [`drain`](InFlightTable::drain).
    pub(super) fn abandon(&mut self) {
        (self.chunks, self.packets) = (0, 0);
    }

    /// Removes all packets in flight.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = InFlight<ToDevice>> {
        self.slots.iter_mut().filter_map(|slot| match std::mem::replace(slot, Slot::Empty) {
            Slot::Whole(packet) | Slot::First(packet, _) => Some(packet),
            Slot::Empty | Slot::Next(_) => None,
        })
    }
}
