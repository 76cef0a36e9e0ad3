//! The chains that a driver has in flight, in both formats: looked up by id, bounded, never read
//! from shared memory.
//!
//! With `VIRTIO_F_IN_ORDER` a used entry stands for a *batch*: all chains from the oldest one up to
//! that of its id. The device wrote the last one's length only; the others were used completely
//! (virtio 1.2, 2.7.9 and 2.8.9).

use crate::chain::{Segment, Used};
use crate::error::{AddError, RingError};
use crate::layout::{MAX_SIZE, WRITE};

/// Bytes that the device may write, of a chain that may be added.
#[inline]
pub(crate) fn checked(chain: &[Segment]) -> Result<u32, AddError> {
    let (mut writable, mut all) = (0u32, 0u32);
    for segment in chain {
        all = all.checked_add(segment.len).filter(|_| segment.len > 0).ok_or(AddError::Invalid)?;
        if segment.writable {
            writable += segment.len;
        } else if writable > 0 {
            return Err(AddError::Invalid);
        }
    }
    if chain.is_empty() { Err(AddError::Invalid) } else { Ok(writable) }
}

/// The flags of a buffer's descriptor.
#[inline]
pub(crate) fn flags(segment: &Segment) -> u16 {
    if segment.writable { WRITE } else { 0 }
}

/// Each buffer, and whether another one follows.
#[inline]
pub(crate) fn with_more(chain: &[Segment]) -> impl Iterator<Item = (&Segment, bool)> {
    let last = chain.len().wrapping_sub(1);
    chain.iter().enumerate().map(move |(i, segment)| (segment, i != last))
}

/// One chain in flight.
#[derive(Debug, Clone, Copy, Default)]
struct Flying {
    /// Descriptors of the ring; 0 if no chain has this id.
    slots: u16,
    /// Its number, of all chains that were added.
    number: u16,
    writable: u32,
}

impl Flying {
    /// Whether it is in flight, and was published.
    #[inline]
    fn is_known(&self, published: u16) -> bool {
        self.slots > 0 && (1..=MAX_SIZE).contains(&published.wrapping_sub(self.number))
    }
}

/// All chains in flight, by id.
#[derive(Debug)]
pub(crate) struct InFlight {
    chains: Box<[Flying]>,
    /// Numbers of the next chain to add, and of the first one that was not published.
    added: u16,
    published: u16,
    len: u16,
    /// In order: the id of the oldest chain.
    oldest: u16,
    /// What the device used: the last id of a batch, and its length.
    last: Option<(u16, u32)>,
    broken: Option<RingError>,
    overlong: u64,
}

impl InFlight {
    pub(crate) fn new(size: u16) -> InFlight {
        InFlight {
            chains: vec![Flying::default(); size.into()].into(),
            added: 0,
            published: 0,
            len: 0,
            oldest: 0,
            last: None,
            broken: None,
            overlong: 0,
        }
    }

    #[inline]
    pub(crate) fn check(&self) -> Result<(), RingError> {
        match &self.broken {
            None => Ok(()),
            Some(error) => Err(*error),
        }
    }

    /// Remembers the first error.
    #[cold]
    pub(crate) fn broken(&mut self, error: RingError) -> RingError {
        *self.broken.get_or_insert(error)
    }

    #[inline]
    pub(crate) fn add(&mut self, id: u16, slots: u16, writable: u32) {
        self.chains[usize::from(id)] = Flying { slots, number: self.added, writable };
        self.added = self.added.wrapping_add(1);
        self.len += 1;
    }

    #[inline]
    pub(crate) fn publish(&mut self) {
        self.published = self.added;
    }

    /// Chains in flight.
    #[inline]
    pub(crate) fn len(&self) -> u16 {
        self.len
    }

    /// Those of them that the device may have seen.
    #[inline]
    pub(crate) fn published(&self) -> u16 {
        self.len - self.added.wrapping_sub(self.published)
    }

    /// Whether chains of a used entry are still to be returned.
    #[inline]
    pub(crate) fn in_batch(&self) -> bool {
        self.last.is_some()
    }

    /// Not in order: the chain of a used entry, as the device wrote it, and the number of its
    /// descriptors; `None` if it is not in flight.
    #[inline]
    pub(crate) fn take(&mut self, id: u32, len: u32) -> Option<(Used, u16)> {
        let published = self.published;
        let flying = self.chains.get_mut(id as usize).filter(|flying| flying.is_known(published))?;
        let Flying { slots, writable, .. } = *flying;
        flying.slots = 0;
        self.len -= 1;
        self.overlong += u64::from(len > writable);
        Some((Used { id: id as u16, len: len.min(writable) }, slots))
    }

    /// In order: the oldest chain, used completely, and the number of its descriptors. There must be
    /// one. `after` is the id behind that of a chain of so many descriptors.
    #[inline]
    pub(crate) fn take_oldest(&mut self, after: impl Fn(u16, u16) -> u16) -> (Used, u16) {
        let id = self.oldest;
        let flying = &mut self.chains[usize::from(id)];
        let Flying { slots, writable, .. } = *flying;
        flying.slots = 0;
        self.oldest = after(id, slots);
        self.len -= 1;
        (Used { id, len: writable }, slots)
    }

    /// In order: takes a used entry, as the device wrote it, and returns the oldest chain, as
    /// [`next`](InFlight::next) does; `None` if the chain of the entry is not in flight.
    #[inline]
    pub(crate) fn begin(&mut self, id: u32, len: u32, after: impl Fn(u16, u16) -> u16) -> Option<(Used, u16)> {
        if id == self.oldest.into() {
            // Most entries stand for one chain. It is looked up by what is known here: what follows
            // need not wait for the line of the entry, which the other side wrote.
            let (used, slots) = self.take(self.oldest.into(), len)?;
            self.oldest = after(self.oldest, slots);
            return Some((used, slots));
        }
        self.begin_batch(id, len)?;
        self.next(after)
    }

    /// In order: takes a used entry that stands for several chains.
    #[inline(never)]
    fn begin_batch(&mut self, id: u32, len: u32) -> Option<()> {
        self.chains.get(id as usize).filter(|flying| flying.is_known(self.published))?;
        self.last = Some((id as u16, len));
        Some(())
    }

    /// In order: the next chain of a batch that was begun, and the number of its descriptors;
    /// `None` if there is no batch.
    #[inline]
    pub(crate) fn next(&mut self, after: impl Fn(u16, u16) -> u16) -> Option<(Used, u16)> {
        let (last, len) = self.last?;
        let (mut used, slots) = self.take_oldest(after);
        if used.id == last {
            self.last = None;
            self.overlong += u64::from(len > used.len);
            used.len = len.min(used.len);
        }
        Some((used, slots))
    }

    pub(crate) fn overlong(&self) -> u64 {
        self.overlong
    }

    /// Forgets all chains; `each` gets their ids.
    pub(crate) fn clear(&mut self, mut each: impl FnMut(u16)) {
        for (id, flying) in self.chains.iter_mut().enumerate() {
            if std::mem::take(flying).slots > 0 {
                each(id as u16);
            }
        }
        let overlong = self.overlong;
        *self = InFlight { overlong, chains: std::mem::take(&mut self.chains), ..InFlight::new(0) };
    }
}
