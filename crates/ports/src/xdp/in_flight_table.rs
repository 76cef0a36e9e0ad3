//! Packets in the kernel's hands, found by the chunks that they lie in.

use towpath_packet::{InFlight, Packet, ToDevice};

/// What the kernel has of a chunk.
#[derive(Debug)]
enum Slot {
    Empty,
    /// A packet that is all in this chunk.
    Whole(InFlight<ToDevice>),
    /// A packet, and its pieces that are not completed yet, in whatever chunks.
    First(InFlight<ToDevice>, u16),
    /// Another piece of the packet whose first is in the chunk of this number.
    Next(u32),
}

/// The chunk was not lent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NotLent;

/// All chunks of the memory, and what is lent of them.
#[derive(Debug)]
pub(super) struct InFlightTable {
    slots: Box<[Slot]>,
    chunks: usize,
    packets: usize,
}

impl InFlightTable {
    /// For a memory of so many chunks, of which none is lent.
    pub(super) fn new(capacity: usize) -> InFlightTable {
        let slots = std::iter::repeat_with(|| Slot::Empty).take(capacity).collect();
        InFlightTable { slots, chunks: 0, packets: 0 }
    }

    /// Chunks that are lent.
    #[inline]
    pub(super) fn chunks(&self) -> usize {
        self.chunks
    }

    /// Packets that are lent and counted: until [`forget`](InFlightTable::forget).
    #[inline]
    pub(super) fn packets(&self) -> usize {
        self.packets
    }

    /// Whether a chunk can be lent.
    #[inline]
    pub(super) fn is_free(&self, chunk: usize) -> bool {
        matches!(self.slots.get(chunk), Some(Slot::Empty))
    }

    /// Lends a packet that is all in one chunk, which must be [free](InFlightTable::is_free).
    #[inline]
    pub(super) fn lend(&mut self, packet: Packet, chunk: usize) {
        if let Some(slot) = self.slots.get_mut(chunk) {
            *slot = Slot::Whole(InFlight::<ToDevice>::post(packet));
            self.chunks += 1;
            self.packets += 1;
        }
    }

    /// Lends a packet in several chunks, the head's first, which must all be free and different.
    #[cold]
    pub(super) fn lend_pieces(&mut self, packet: Packet, chunks: &[usize]) {
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

    /// A chunk came back; the packet, if that was its last.
    #[inline]
    pub(super) fn complete(&mut self, chunk: usize) -> Result<Option<Packet>, NotLent> {
        let slot = self.slots.get_mut(chunk).ok_or(NotLent)?;
        match std::mem::replace(slot, Slot::Empty) {
            Slot::Whole(loan) => {
                self.chunks -= 1;
                self.packets -= 1;
                Ok(Some(loan.complete()))
            }
            Slot::Empty => Err(NotLent),
            Slot::First(loan, left) => Ok(self.complete_piece(loan, left, chunk)),
            Slot::Next(first) => {
                let first = first as usize;
                let slot = self.slots.get_mut(first).ok_or(NotLent)?;
                match std::mem::replace(slot, Slot::Empty) {
                    Slot::First(loan, left) => Ok(self.complete_piece(loan, left, first)),
                    _ => Err(NotLent),
                }
            }
        }
    }

    /// One of the `left` pieces of a packet came back. The first stands for the packet until all others have.
    #[cold]
    fn complete_piece(&mut self, loan: InFlight<ToDevice>, left: u16, first: usize) -> Option<Packet> {
        self.chunks -= 1;
        if left == 1 {
            self.packets -= 1;
            return Some(loan.complete());
        }
        if let Some(slot) = self.slots.get_mut(first) {
            *slot = Slot::First(loan, left - 1);
        }
        None
    }

    /// What is lent is not counted any more, and stays lent until [`take`](InFlightTable::take).
    pub(super) fn forget(&mut self) {
        (self.chunks, self.packets) = (0, 0);
    }

    /// Everything that is lent.
    pub(super) fn take(&mut self) -> impl Iterator<Item = InFlight<ToDevice>> {
        self.slots.iter_mut().filter_map(|slot| match std::mem::replace(slot, Slot::Empty) {
            Slot::Whole(loan) | Slot::First(loan, _) => Some(loan),
            Slot::Empty | Slot::Next(_) => None,
        })
    }
}
