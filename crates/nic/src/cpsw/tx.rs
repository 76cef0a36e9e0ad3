//! A transmit channel: descriptors, submission, completion. One owner.
//!
//! ```text
//!   stage ──► staged ──flush──► in flight ──────────collect──► descriptors to the recycler, packets to be freed
//!             stored in the     announced by one               popped by one doorbell for up to 127
//!             ring, not yet     doorbell for up to 127
//!             announced
//!
//!   credits = ring slots − staged − in flight.   A slot is free when its completion was popped, not when it was fetched.
//! ```
//!
//! Nothing that was staged stays behind: it is announced when a batch is full, at the end of a burst ([`flush`](TxChannel::flush)),
//! before completions are looked at, and before the channel stops.

mod complete;

use super::config::{Config, Family};
use super::descriptor::{Descriptors, Piece, TxHead};
use super::doorbell::{MOST, Side};
use super::recycler::Recycler;
use super::regs::Regions;
use towpath_bus::{Bus, Coherent, DmaMapper, Domain, MapError, Mapped};
use towpath_packet::{InFlight, Packet, ToDevice};

/// Pieces of a packet that is sent as it is.
pub(super) const MAX_PIECES: u16 = 18;
/// The host port and up to eight MAC ports.
const PORTS: usize = 9;
/// No descriptor follows.
const LAST: u16 = u16::MAX;

/// What only the driver knows of a descriptor.
#[derive(Debug, Default)]
struct Shadow {
    /// Of a packet's first descriptor: the packet.
    loan: Option<InFlight<ToDevice>>,
    mapped: Option<Mapped>,
    next: u16,
    /// MAC port of the packet.
    port: u8,
}

/// Numbers of one channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TxCounts {
    /// Packets announced to the device.
    pub announced: u64,
    /// Packets that came back.
    pub completed: u64,
    /// Doorbells for what was announced.
    pub submit_doorbells: u64,
    /// Doorbells for what came back.
    pub completion_doorbells: u64,
    /// Counts of completions that were read.
    pub occupancy_reads: u64,
    /// Elements that came back and were none of ours.
    pub strays: u64,
}

/// A transmit channel.
pub(super) struct TxChannel<B: Bus> {
    pub(super) number: u16,
    pub(super) submit: Side<B::Bar>,
    done: Side<B::Bar>,
    pub(super) slots: Coherent,
    /// Elements that came back; those of a two-sided ring stay where they are.
    pub(super) completions: Option<Coherent>,
    return_ring: u16,
    descriptors: Descriptors,
    recycler: Recycler,
    shadows: Box<[Shadow]>,
    /// First descriptor of the packet in each slot.
    order: Box<[u16]>,
    /// Room for what is popped at once.
    popped: Vec<u16>,
    mapper: DmaMapper<B::Dma>,
    /// Bytes of the longest frame.
    pub(super) longest: usize,
    size: u32,
    /// Elements that the side which gives back has.
    pub(super) back_size: u32,
    head: u32,
    back: u32,
    staged: u32,
    in_flight: u32,
    /// Packets of each MAC port that have not come back, staged or in flight.
    away: [u32; PORTS],
    /// Sent since completions were last looked for.
    busy: bool,
    /// Packets in flight at which it is worth looking again.
    look_at: u32,
    singly: bool,
    /// The device has said that teardown is complete.
    pub(super) torn_down: bool,
    pub(super) counts: TxCounts,
}

impl<B: Bus> TxChannel<B> {
    pub(super) fn new(
        number: u16,
        config: &Config,
        regions: &Regions<B::Bar>,
        domain: &Domain<B::Dma>,
    ) -> Result<TxChannel<B>, MapError> {
        let soc = &config.soc;
        let (submit, returns) = (soc.submit_ring(number), soc.tx_completion_ring(number));
        let ring = |count: u32| Coherent::new(domain, count as usize * 8);
        let size = config.tx_ring;
        // The end of a teardown is recorded on the ring of completions, which may be full of them.
        let (done, completions, back_size) = match soc.family {
            Family::Pktdma => (Side::reverse(regions, submit), None, size),
            Family::Udma => (Side::forward(regions, returns), Some(ring(size + 1)?), size + 1),
        };
        let count = config.tx_descriptors as u16;
        Ok(TxChannel {
            number,
            submit: Side::forward(regions, submit),
            done,
            slots: ring(size)?,
            completions,
            // On a two-sided ring the field has no meaning.
            return_ring: if soc.family == Family::Udma { returns } else { 0 },
            descriptors: Descriptors::new(domain, count, soc)?,
            recycler: Recycler::new(count, config.discipline),
            shadows: (0..count).map(|_| Shadow::default()).collect(),
            order: vec![LAST; config.tx_ring as usize].into(),
            popped: Vec::with_capacity(MOST as usize),
            mapper: DmaMapper::new(domain, config.tx_descriptors, 1 << 16)?,
            longest: config.longest(),
            size,
            back_size,
            head: 0,
            back: 0,
            staged: 0,
            in_flight: 0,
            away: [0; PORTS],
            busy: false,
            look_at: 0,
            singly: config.singly,
            torn_down: false,
            counts: TxCounts::default(),
        })
    }

    /// Whether a packet can be sent in the pieces that it has; if not, a copy in one piece can.
    #[inline]
    pub(super) fn takes(&self, packet: &Packet) -> bool {
        pieces(packet) <= self.shadows.len().min(usize::from(MAX_PIECES))
    }

    /// How many of the packets fit, from the first on: each takes a slot, and a descriptor for each of its pieces.
    #[inline]
    pub(super) fn fits(&self, packets: &[Packet]) -> usize {
        let mut free = self.recycler.len();
        let slots = (self.size - self.staged - self.in_flight) as usize;
        let enough = |packet: &&Packet| {
            let pieces = if self.takes(packet) { pieces(packet) } else { 1 };
            let fits = pieces <= free;
            free = free.saturating_sub(pieces);
            fits
        };
        packets.iter().take(slots).take_while(enough).count()
    }

    /// Puts a packet into the ring; it is announced with the next [`flush`](TxChannel::flush). To be called for what
    /// [`fits`](TxChannel::fits) only.
    ///
    /// # Errors
    /// Hands the packet back: its memory can't be mapped for the device, or there is no slot or descriptor.
    #[inline]
    pub(super) fn stage(&mut self, packet: Packet, port: u8, checksum: u32, batch: u8) -> Result<(), Packet> {
        let len = packet.len() as u32;
        let loan = InFlight::<ToDevice>::post(packet);
        let Some(first) = self.describe(&loan, len, port, checksum) else { return Err(loan.complete()) };
        let slot = self.head;
        self.slots.store64(slot as usize * 8, self.descriptors.element(first));
        if let Some(order) = self.order.get_mut(slot as usize) {
            *order = first;
        }
        if let Some(shadow) = self.shadows.get_mut(usize::from(first)) {
            (shadow.loan, shadow.port) = (Some(loan), port);
            self.away[usize::from(port) % PORTS] += 1;
        }
        self.head = if slot + 1 == self.size { 0 } else { slot + 1 };
        self.staged += 1;
        if self.staged >= u32::from(batch) || self.singly {
            self.flush();
        }
        Ok(())
    }

    /// Fills descriptors, from the last piece to the first, because each names the next.
    #[inline]
    fn describe(&mut self, loan: &InFlight<ToDevice>, len: u32, port: u8, checksum: u32) -> Option<u16> {
        let mut chunks = loan.chunks().filter(|chunk| !chunk.is_empty());
        let first = self.recycler.take()?;
        let (mut index, mut chunk) = (first, chunks.next());
        let head = TxHead { len, port, return_ring: self.return_ring, checksum };
        let mut written = 0;
        while let Some(piece) = chunk {
            let mapped = self.mapper.map_to_device(piece);
            chunk = chunks.next();
            let next = if chunk.is_some() { self.recycler.take() } else { None };
            let (Ok(mapped), true) = (mapped, chunk.is_none() || next.is_some()) else {
                next.into_iter().for_each(|next| self.recycler.give(next));
                // What was taken is linked up to `index`; a mapping that failed has none.
                self.link(index, LAST);
                self.undo(first);
                return None;
            };
            self.mapper.sync_for_device(&mapped, piece.len());
            let piece = Piece { at: mapped.iova(), len: piece.len() as u32 };
            if written == 0 {
                self.descriptors.write_head(index, head, piece, next);
            } else {
                self.descriptors.write_piece(index, piece, next);
            }
            written += 1;
            if let Some(shadow) = self.shadows.get_mut(usize::from(index)) {
                shadow.mapped = Some(mapped);
                shadow.next = next.unwrap_or(LAST);
            }
            index = next.unwrap_or(index);
        }
        if written == 0 {
            self.recycler.give(first);
            return None;
        }
        Some(first)
    }

    /// Makes the memory that a packet's pages lie in known to the device, an application's; whether there is some that it can read now.
    #[cold]
    pub(super) fn map_external(&mut self, packet: &Packet) -> bool {
        self.mapper.map_external(packet)
    }

    /// Lets go of such memory when nobody else holds it.
    #[cold]
    pub(super) fn unmap_unused(&mut self) {
        self.mapper.unmap_unused();
    }

    fn link(&mut self, index: u16, next: u16) {
        if let Some(shadow) = self.shadows.get_mut(usize::from(index)) {
            shadow.next = next;
        }
    }

    #[cold]
    fn undo(&mut self, first: u16) {
        // The pieces that were mapped were never announced; one whose unmapping fails stays mapped, as the mapper counts.
        let _ = self.release(first);
        let _ = self.mapper.sync_iotlb();
    }

    /// Unmaps the pieces of a packet and gives its descriptors back; the packet, if it can be used again.
    #[inline]
    fn release(&mut self, first: u16) -> Option<Packet> {
        let mut loan = None;
        let (mut index, mut lost) = (first, false);
        while let Some(shadow) = self.shadows.get_mut(usize::from(index)) {
            if let Some(packet) = shadow.loan.take() {
                loan = Some(packet);
                self.away[usize::from(shadow.port) % PORTS] -= 1;
            }
            let next = std::mem::replace(&mut shadow.next, LAST);
            if let Some(mapped) = shadow.mapped.take() {
                lost |= self.mapper.unmap(mapped).is_err();
            }
            self.recycler.give(index);
            index = next;
        }
        // A loan that is dropped leaks its packet: that is what is to happen to one that the device may keep.
        if lost { None } else { loan.map(InFlight::<ToDevice>::complete) }
    }

    /// Announces what was staged.
    #[inline]
    pub(super) fn flush(&mut self) {
        if self.staged > 0 {
            self.counts.submit_doorbells += self.submit.push(self.staged);
            self.counts.announced += u64::from(self.staged);
            self.in_flight += std::mem::take(&mut self.staged);
            self.busy = true;
        }
    }

    /// Packets of MAC port `port` that were taken and have not come back.
    #[inline]
    pub(super) fn pending(&self, port: u8) -> usize {
        self.away[usize::from(port) % PORTS] as usize
    }

    /// Descriptors that are free, and all.
    pub(super) fn home(&self) -> (usize, usize) {
        (self.recycler.len(), self.shadows.len())
    }
}

/// Descriptors that a packet takes.
#[inline]
fn pieces(packet: &Packet) -> usize {
    packet.frags() + usize::from(!packet.linear().is_empty())
}
