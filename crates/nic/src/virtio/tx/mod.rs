//! A transmit queue: packets become chains, used chains become free packets.
//!
//! ```text
//!   one descriptor    [ header │ frame ]            the header lies in the packet's headroom
//!   a chain           [ header │ head ] [ fragment ] …
//!   a page            [ header ] [ page of an application ]     the header has a place of its own
//! ```
//!
//! A chain of several pieces takes one descriptor of the ring if indirect tables were negotiated.
//! The driver sends any layout: the device parses nothing before it has all pieces (virtio 1.2
//! §5.1.6.2).
//!
//! | file | contents |
//! |---|---|
//! | `mod` | [`TxRing`]: its parts, and the chains in flight |
//! | `submit` | packets become chains |
//! | `complete` | used chains are unmapped and freed; the end of the ring |
//! | `queue` | [`VirtioTx`]: the port's queue |

mod complete;
mod queue;
mod submit;

pub use queue::VirtioTx;

use super::control::Control;
use super::memory::Headers;
use std::sync::Arc;
use towpath_bus::{Dma, DmaMapper, Mapped};
use towpath_packet::{Cache, Counters, InFlight, Offloads, RegionHandle, ToDevice};
use towpath_virtio::{Driver, Used};

/// Pieces of a packet, and one for its header, at most; packets of more are copied.
pub(super) const MAX_PIECES: usize = 64;

/// Used chains that are taken at a time.
const BURST: usize = 32;

/// A chain in flight.
#[derive(Debug, Default)]
struct TxSlot {
    frame: Option<InFlight<ToDevice>>,
    /// The place of its header; `None` if that is in front of the packet, of which it is a part.
    header: Option<u16>,
    /// The mapping of its first piece, if it ends with the chain; those of the others are in the
    /// [`Mappings`] from `more` on.
    mapped: Option<Mapped>,
    more: Option<u16>,
}

/// Mappings of further pieces: lists in one array, so that a chain of any length needs no
/// allocation.
struct Mappings {
    entries: Box<[(Option<Mapped>, Option<u16>)]>,
    free: Option<u16>,
}

impl Mappings {
    fn new(n: u16) -> Mappings {
        let entries = (0..n).map(|i| (None, (i + 1 < n).then_some(i + 1))).collect();
        Mappings { entries, free: (n > 0).then_some(0) }
    }

    /// Puts a mapping in front of a list.
    fn push(&mut self, list: Option<u16>, mapped: Mapped) -> Result<Option<u16>, Mapped> {
        let Some((at, entry)) = self.free.and_then(|at| Some((at, self.entries.get_mut(usize::from(at))?))) else {
            return Err(mapped);
        };
        self.free = entry.1;
        *entry = (Some(mapped), list);
        Ok(Some(at))
    }

    /// Takes the first mapping of a list.
    fn pop(&mut self, list: &mut Option<u16>) -> Option<Mapped> {
        let at = (*list)?;
        let entry = self.entries.get_mut(usize::from(at))?;
        *list = std::mem::replace(&mut entry.1, self.free);
        self.free = Some(at);
        entry.0.take()
    }
}

/// What a transmit ring is made of.
pub(super) struct TxParts<D: Dma> {
    pub(super) driver: Driver,
    pub(super) headers: Headers,
    pub(super) mapper: DmaMapper<D>,
    /// Where copies come from.
    pub(super) cache: Cache,
    /// The datapath's pool, if the device can't reach it.
    pub(super) out_of_reach: Option<RegionHandle>,
}

/// The ring and the packets in it.
pub(super) struct TxRing<D: Dma> {
    driver: Driver,
    headers: Headers,
    mapper: DmaMapper<D>,
    cache: Cache,
    out_of_reach: Option<RegionHandle>,
    slots: Box<[TxSlot]>,
    mappings: Mappings,
    /// Used chains, before they are unmapped.
    used: [Used; BURST],
    /// Packets that were used, before the IOTLB is flushed, and the bytes of the headers in front
    /// of them.
    unmapped: Vec<InFlight<ToDevice>>,
    in_front: u64,
    offloads: Offloads,
    /// Bytes of a header.
    header: usize,
    max_frame: usize,
    pub(super) pending: usize,
    pub(super) counters: Arc<Counters>,
    control: Control,
}

impl<D: Dma> TxRing<D> {
    pub(super) fn new(
        parts: TxParts<D>,
        size: u16,
        offloads: Offloads,
        header: usize,
        max_frame: usize,
        control: Control,
    ) -> TxRing<D> {
        let TxParts { driver, headers, mapper, cache, out_of_reach } = parts;
        let per_buffer = mapper.domain().policy() != towpath_bus::DmaPolicy::Persistent;
        let mut driver = driver;
        driver.disable_calls();
        TxRing {
            driver,
            headers,
            mapper,
            cache,
            out_of_reach,
            slots: (0..size).map(|_| TxSlot::default()).collect(),
            mappings: Mappings::new(if per_buffer { size } else { 0 }),
            used: [Used { id: 0, len: 0 }; BURST],
            unmapped: Vec::with_capacity(size.into()),
            in_front: 0,
            offloads,
            header,
            max_frame,
            pending: 0,
            counters: Arc::default(),
            control,
        }
    }
}
