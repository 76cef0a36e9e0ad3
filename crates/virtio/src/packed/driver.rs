//! The driver's side of a packed queue.

use super::{EVENT, Position, check, desc, flags};
use crate::area::{Area, Areas, RingWords};
use crate::chain::{Segment, SingleBuffers, Used};
use crate::error::{AddError, QueueError, RingError};
use crate::event::{AT_DESC, DISABLE, ENABLE, packed_wants, word};
use crate::in_flight::{InFlight, checked, flags as buffer_flags, with_more};
use crate::layout::{DESC, Desc, Features, INDIRECT, NEXT, WRITE, packed_word};
use crate::tables::Tables;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use towpath_packet::notify::{before_last_look, publish};

/// The side that makes chains available. An id is a number below the size, as free ones come.
#[derive(Debug)]
pub struct Driver<W = Area> {
    areas: Areas<W>,
    size: u16,
    features: Features,
    tables: Option<Tables<W>>,
    /// By id: the next one of the free list.
    links: Box<[u16]>,
    free_id: u16,
    /// Free descriptors of the ring.
    free: u16,
    in_flight: InFlight,
    next_avail: Position,
    next_used: Position,
    /// The second word of the first chain that was added and not published, and its index.
    held: Option<(usize, u64)>,
    /// Descriptors added since the last publication.
    added: u16,
}

impl<W: RingWords> Driver<W> {
    /// The driver of a new queue, whose areas it zeroes.
    ///
    /// # Errors
    /// [`QueueError`] for a wrong size, or an area that is too short or not aligned.
    pub fn new(areas: Areas<W>, size: u16, features: Features) -> Result<Driver<W>, QueueError> {
        check(&areas, size)?;
        let driver = Driver {
            areas,
            size,
            features,
            tables: None,
            links: (0..size).map(|id| following(id, size)).collect(),
            free_id: 0,
            free: size,
            in_flight: InFlight::new(size),
            next_avail: Position::START,
            next_used: Position::START,
            held: None,
            added: 0,
        };
        driver.zero();
        Ok(driver)
    }

    /// Chains of two and more buffers go into indirect tables from here on, if they fit.
    ///
    /// # Errors
    /// [`QueueError::Area`] if the memory is too short for a table per descriptor.
    pub fn set_tables(&mut self, tables: Tables<W>) -> Result<(), QueueError> {
        tables.check(self.size)?;
        self.tables = Some(tables).filter(|_| self.features.indirect);
        Ok(())
    }

    fn zero(&self) {
        (0..2 * usize::from(self.size)).for_each(|i| self.areas.desc.store64(i, 0, Relaxed));
        self.areas.driver.store32(EVENT, 0, Relaxed);
        self.areas.device.store32(EVENT, 0, Relaxed);
    }

    /// Adds a chain; the device does not see it before [`publish`](Driver::publish).
    ///
    /// # Errors
    /// [`AddError::Full`] if descriptors are missing, [`AddError::Invalid`] for a chain that never
    /// fits. Nothing is written then.
    #[inline(always)] // a call costs as much as a buffer
    pub fn add(&mut self, chain: &[Segment]) -> Result<u16, AddError> {
        let [buffer] = chain else { return self.add_chain(chain) };
        if self.free == 0 || buffer.len == 0 {
            return Err(if buffer.len == 0 { AddError::Invalid } else { AddError::Full });
        }
        let id = self.free_id;
        let whole = Desc { addr: buffer.addr, len: buffer.len, flags: buffer_flags(buffer), link: id };
        self.next_avail = self.write(self.next_avail, true, whole);
        self.offer(id, 1, if buffer.writable { buffer.len } else { 0 });
        Ok(id)
    }

    /// Adds chains of one buffer each, all for the device to read or all to write, as long as
    /// descriptors are free and `buffers` has more; returns how many.
    #[inline]
    pub fn add_singles(&mut self, writable: bool, buffers: &mut impl SingleBuffers) -> usize {
        let flags = if writable { WRITE } else { 0 };
        let (mut at, mut id, mut added) = (self.next_avail, self.free_id, 0);
        while added < self.free
            && let Some((addr, len)) = buffers.next(id)
        {
            at = self.write(at, true, Desc { addr, len: len.get(), flags, link: id });
            self.in_flight.add(id, 1, if writable { len.get() } else { 0 });
            id = self.links[usize::from(id)];
            added += 1;
        }
        (self.next_avail, self.free_id) = (at, id);
        self.free -= added;
        self.added += added;
        added.into()
    }

    /// Adds a chain of any length.
    #[inline(never)]
    fn add_chain(&mut self, chain: &[Segment]) -> Result<u16, AddError> {
        let writable = checked(chain)?;
        let id = self.free_id;
        let indirect = self.tables.as_ref().filter(|tables| tables.takes(chain.len()));
        let slots = if indirect.is_some() { 1 } else { chain.len() };
        if slots > usize::from(self.free) {
            return Err(if slots > usize::from(self.size) { AddError::Invalid } else { AddError::Full });
        }
        if let Some(tables) = indirect {
            let (first, addr) = tables.table(id);
            for (i, segment) in chain.iter().enumerate() {
                tables.words.store64(first + 2 * i, segment.addr, Relaxed);
                tables.words.store64(first + 2 * i + 1, packed_word(segment.len, 0, buffer_flags(segment)), Relaxed);
            }
            let table = Desc { addr, len: (chain.len() * DESC) as u32, flags: INDIRECT, link: id };
            self.next_avail = self.write(self.next_avail, true, table);
        } else {
            let mut is_head = true;
            for (segment, more) in with_more(chain) {
                let flags = buffer_flags(segment) | if more { NEXT } else { 0 };
                let buffer = Desc { addr: segment.addr, len: segment.len, flags, link: id };
                self.next_avail = self.write(self.next_avail, is_head, buffer);
                is_head = false;
            }
        }
        self.offer(id, slots as u16, writable);
        Ok(id)
    }

    /// Counts a chain whose descriptors are written.
    #[inline]
    fn offer(&mut self, id: u16, slots: u16, writable: u32) {
        self.free_id = self.links[usize::from(id)];
        self.free -= slots;
        self.added += slots;
        self.in_flight.add(id, slots, writable);
    }

    /// Writes a descriptor of the ring, but the flags of the first one of a burst; returns the next
    /// position.
    #[inline]
    fn write(&mut self, at: Position, is_head: bool, desc_: Desc) -> Position {
        let [first, second] = desc(at.index);
        let word = packed_word(desc_.len, desc_.link, desc_.flags | at.available());
        self.areas.desc.store64(first, desc_.addr, Relaxed);
        if is_head && self.held.is_none() {
            self.held = Some((second, word));
        } else {
            self.areas.desc.store64(second, word, Relaxed);
        }
        at.ahead(1, self.size)
    }

    /// Makes the added chains available, by one store of the first one's flags. Returns whether the
    /// device needs a kick.
    #[inline]
    #[must_use = "a device that sleeps waits for the kick"]
    pub fn publish(&mut self) -> bool {
        let Some((at, word)) = self.held.take() else { return false };
        // Release: all other descriptors come before the flags that lead to them.
        self.areas.desc.store64(at, word, Release);
        self.in_flight.publish();
        let added = std::mem::take(&mut self.added);
        publish();
        let event = self.areas.device.load32(EVENT, Relaxed);
        packed_wants(event, self.next_avail.index, self.next_avail.wrap, self.size, added)
    }

    /// Used chains, whose descriptors are free again, into the first places of `out`: how many, and
    /// the error that followed them.
    ///
    /// # Errors
    /// [`RingError::UsedId`] if the device uses a chain that is not in flight, then and ever after.
    #[inline]
    pub fn take_used(&mut self, out: &mut [Used]) -> (usize, Result<(), RingError>) {
        match self.in_flight.check() {
            Err(error) => (0, Err(error)),
            Ok(()) if self.features.in_order => self.take_in_order(out),
            Ok(()) => self.take(out),
        }
    }

    /// In order: the next chain of a used descriptor that stands for several.
    #[inline]
    pub(crate) fn next_known(&mut self) -> Option<Used> {
        let size = self.size;
        let (used, slots) = self.in_flight.next(|id, _| following(id, size))?;
        self.next_used = self.next_used.ahead(slots, size);
        self.free += slots;
        Some(used)
    }

    #[inline]
    fn take(&mut self, out: &mut [Used]) -> (usize, Result<(), RingError>) {
        let (mut at, mut freed, mut taken, mut result) = (self.next_used, 0, 0, Ok(()));
        for place in out {
            let Some((id, len)) = self.used(at) else { break };
            let Some((used, slots)) = self.in_flight.take(id.into(), len) else {
                result = Err(self.in_flight.broken(RingError::UsedId(id.into())));
                break;
            };
            (at, freed) = (at.ahead(slots, self.size), freed + slots);
            // Free ids are a stack: what belongs to them is in the cache.
            self.links[usize::from(used.id)] = self.free_id;
            self.free_id = used.id;
            *place = used;
            taken += 1;
        }
        self.next_used = at;
        self.free += freed;
        (taken, result)
    }

    #[inline]
    fn take_in_order(&mut self, out: &mut [Used]) -> (usize, Result<(), RingError>) {
        let size = self.size;
        let after = |id, _| following(id, size);
        let (mut at, mut freed, mut taken, mut result) = (self.next_used, 0, 0, Ok(()));
        for place in out {
            let next = if self.in_flight.in_batch() {
                self.in_flight.next(after)
            } else {
                let Some((id, len)) = self.used(at) else { break };
                let begun = self.in_flight.begin(id.into(), len, after);
                if begun.is_none() {
                    result = Err(self.in_flight.broken(RingError::UsedId(id.into())));
                }
                begun
            };
            let Some((used, slots)) = next else { break };
            (at, freed) = (at.ahead(slots, size), freed + slots);
            *place = used;
            taken += 1;
        }
        self.next_used = at;
        self.free += freed;
        (taken, result)
    }

    /// The descriptor at a position, if the device used it: id and length.
    #[inline]
    fn used(&self, at: Position) -> Option<(u16, u32)> {
        let [_, second] = desc(at.index);
        // Acquire: the device wrote the buffers before the flags.
        let word = self.areas.desc.load64(second, Acquire);
        let used = Desc::from_packed([0, word]);
        at.is_used(flags(word)).then_some((used.link, used.len))
    }

    /// Requests no calls while this side polls. One may come all the same.
    pub fn disable_calls(&mut self) {
        self.areas.driver.store32(EVENT, word(0, false, DISABLE), Relaxed);
    }

    /// Requests a call for the next used chain. Returns true if there is one already, for which no
    /// call comes: then this side must not sleep.
    #[must_use = "a call for chains that are used already never comes"]
    pub fn enable_calls(&self) -> bool {
        // One store: the position never goes with other flags.
        let how = if self.features.event_idx { AT_DESC } else { ENABLE };
        let position = if self.features.event_idx { self.next_used } else { Position { index: 0, wrap: false } };
        self.areas.driver.store32(EVENT, word(position.index, position.wrap, how), Relaxed);
        before_last_look();
        let [_, second] = desc(self.next_used.index);
        self.in_flight.in_batch() || self.next_used.is_used(flags(self.areas.desc.load64(second, Relaxed)))
    }

    /// Descriptors that are free.
    #[inline]
    pub fn num_free(&self) -> u16 {
        self.free
    }

    /// Chains that were added and not returned.
    #[inline]
    pub fn in_flight(&self) -> u16 {
        self.in_flight.len()
    }

    /// Used chains whose length was more than their writable bytes.
    pub fn overlong(&self) -> u64 {
        self.in_flight.overlong()
    }

    /// The base with which a device goes on that lost its connection: what is used is used, all
    /// behind it is available again.
    pub fn base(&self) -> crate::Base {
        let at = self.next_used.encode();
        crate::Base { avail: at, used: at }
    }

    /// A queue as new, for a device that was stopped and forgot it (`VIRTIO_F_RING_RESET`, 2.6.1).
    /// `each` gets the ids of the chains that were in flight.
    pub fn reset(&mut self, each: impl FnMut(u16)) {
        self.in_flight.clear(each);
        let size = self.size;
        (0..size).for_each(|id| self.links[usize::from(id)] = following(id, size));
        (self.free_id, self.free) = (0, size);
        (self.next_avail, self.next_used) = (Position::START, Position::START);
        (self.held, self.added) = (None, 0);
        self.zero();
    }
}

/// The id behind `id`, in a circle.
#[inline]
fn following(id: u16, size: u16) -> u16 {
    if id + 1 == size { 0 } else { id + 1 }
}
