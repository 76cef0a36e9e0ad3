//! The memory of all rings of a device: one region, mapped once under every policy.
//!
//! ```text
//!   queue 0: descriptors │ driver area │ device area │ indirect tables │ headers     queue 1: …
//! ```

use super::transport::QueueSetup;
use std::sync::atomic::Ordering::Relaxed;
use towpath_bus::{Access, Dma, Domain, Iova, MapError};
use towpath_packet::RegionHandle;
use towpath_virtio::{Area, Areas, Driver, Features, Format, Layout, QueueError, RingWords, Tables};

/// Alignment of a part: no two sides write to the same pair of cache lines.
const ALIGN: usize = 128;

/// What a queue needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct QueuePlan {
    pub(super) format: Format,
    pub(super) size: u16,
    /// Descriptors of an indirect table; 0 without tables.
    pub(super) entries: u16,
    /// Bytes of the header that each chain has a place for; 0 without places.
    pub(super) header: usize,
    /// Bytes of a buffer of its own.
    pub(super) buffer: usize,
}

impl QueuePlan {
    fn tables(&self) -> usize {
        Tables::<Area>::bytes(self.size, self.entries).next_multiple_of(ALIGN)
    }

    /// Bytes of a header's place.
    fn place(&self) -> usize {
        if self.header > 0 { self.header.next_power_of_two() } else { 0 }
    }

    fn headers(&self) -> usize {
        (usize::from(self.size) * self.place()).next_multiple_of(ALIGN)
    }
}

/// Why there are no rings.
#[derive(Debug, thiserror::Error)]
pub(super) enum RingsError {
    #[error(transparent)]
    Map(#[from] MapError),
    #[error(transparent)]
    Queue(#[from] QueueError),
    #[error("the memory of the rings is too short")]
    Short,
}

/// A queue in its memory.
pub(super) struct QueueMemory {
    pub(super) driver: Driver,
    pub(super) setup: QueueSetup,
    pub(super) headers: Option<Headers>,
    /// The buffer of its own, and its address.
    pub(super) buffer: (Area, Iova),
}

/// The region, for a reset.
#[derive(Debug)]
pub(super) struct RingMemory(Area);

impl RingMemory {
    /// Allocates the queues of these plans.
    pub(super) fn new<D: Dma>(
        domain: &Domain<D>,
        plans: &[QueuePlan],
        features: Features,
    ) -> Result<(RingMemory, Vec<QueueMemory>), RingsError> {
        let mut bytes = 0;
        for plan in plans {
            let ring = Layout::new(plan.format, plan.size)?.bytes;
            bytes += ring + plan.tables() + plan.headers() + plan.buffer.next_multiple_of(ALIGN);
        }
        let (region, iova) = domain.alloc(bytes.max(1), Access::Both)?;
        let mut at = Cursor { region: &region, iova, offset: 0 };
        let mut queues = Vec::new();
        for plan in plans {
            queues.push(at.queue(plan, features)?);
        }
        let all = at.area(0, region.len())?;
        Ok((RingMemory(all), queues))
    }

    /// Zeroes all rings, while the device is stopped: it finds no chains of an earlier time.
    pub(super) fn zero(&self) {
        for word in 0..self.0.bytes(8) / 8 {
            self.0.store64(word, 0, Relaxed);
        }
    }
}

/// The place of the next queue.
struct Cursor<'a> {
    region: &'a RegionHandle,
    iova: Iova,
    offset: usize,
}

impl Cursor<'_> {
    fn area(&self, offset: usize, len: usize) -> Result<Area, RingsError> {
        // SAFETY: the region is new and belongs to the rings alone, which access it by areas.
        unsafe { Area::in_region(self.region, offset, len) }.ok_or(RingsError::Short)
    }

    /// The next `len` bytes, and their address for the device.
    fn take(&mut self, len: usize) -> Result<(Area, Iova), RingsError> {
        let at = self.offset;
        self.offset += len;
        Ok((self.area(at, len)?, self.iova.add(at)))
    }

    fn queue(&mut self, plan: &QueuePlan, features: Features) -> Result<QueueMemory, RingsError> {
        let layout = Layout::new(plan.format, plan.size)?;
        let base = self.offset;
        self.offset += layout.bytes;
        let areas = Areas {
            desc: self.area(base + layout.desc, layout.desc_len)?,
            driver: self.area(base + layout.driver, layout.driver_len)?,
            device: self.area(base + layout.device, layout.device_len)?,
        };
        let mut driver = Driver::new(plan.format, areas, plan.size, features)?;
        if plan.entries > 0 {
            let (words, iova) = self.take(plan.tables())?;
            driver.set_tables(Tables::new(words, iova.get(), plan.entries))?;
        }
        let headers = match plan.headers() {
            0 => None,
            len => {
                let (words, iova) = self.take(len)?;
                Some(Headers::new(words, iova, plan))
            }
        };
        let buffer = self.take(plan.buffer.next_multiple_of(ALIGN))?;
        let addresses = [layout.desc, layout.driver, layout.device].map(|part| self.iova.add(base + part));
        Ok(QueueMemory { driver, setup: QueueSetup::new(plan.format, plan.size, addresses), headers, buffer })
    }
}

/// Places for the headers of packets that have no room for one in front.
pub(super) struct Headers {
    words: Area,
    iova: Iova,
    /// Bytes of a place. Behind its first twelve they stay zero.
    place: usize,
    free: Vec<u16>,
    /// Places whose header is not plain.
    written: Box<[bool]>,
}

impl Headers {
    fn new(words: Area, iova: Iova, plan: &QueuePlan) -> Headers {
        let (free, written) = ((0..plan.size).rev().collect(), vec![false; plan.size.into()].into());
        Headers { words, iova, place: plan.place(), free, written }
    }

    /// Writes a header; returns its place and address, or `None` if there is no place.
    #[inline]
    pub(super) fn put(&mut self, header: &[u8; 12], plain: bool) -> Option<(u16, u64)> {
        let place = self.free.pop()?;
        let written = self.written.get_mut(usize::from(place))?;
        let at = usize::from(place) * self.place;
        // A plain header is all zeros: most places keep theirs.
        if !plain || *written {
            let [a, b, c, d, e, f, g, h, i, j, k, l] = *header;
            self.words.store64(at / 8, u64::from_le_bytes([a, b, c, d, e, f, g, h]), Relaxed);
            self.words.store32(at / 4 + 2, u32::from_le_bytes([i, j, k, l]), Relaxed);
            *written = !plain;
        }
        Some((place, self.iova.add(at).get()))
    }

    /// The device is done with a header.
    #[inline]
    pub(super) fn free(&mut self, place: u16) {
        self.free.push(place);
    }

    /// The rings were zeroed.
    pub(super) fn reset(&mut self) {
        self.written.fill(false);
    }
}
