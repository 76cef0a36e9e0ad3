//! The driver's side of a split queue.

use super::{FLAGS, INDEX, avail_entry, avail_event, check, desc, used_entry, used_event};
use crate::area::{Area, Areas, RingWords};
use crate::chain::{Segment, SingleBuffers, Used};
use crate::error::{AddError, QueueError, RingError};
use crate::event::{NO_NOTIFICATION, passed};
use crate::in_flight::{InFlight, checked, flags, with_more};
use crate::layout::{DESC, Features, INDIRECT, NEXT, WRITE, split_word};
use crate::tables::Tables;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use towpath_packet::notify::{before_last_look, publish};

/// The side that makes chains available. An id is the index of a chain's first descriptor.
#[derive(Debug)]
pub struct Driver<W = Area> {
    areas: Areas<W>,
    size: u16,
    features: Features,
    tables: Option<Tables<W>>,
    /// By descriptor: the next one of a chain, or of the free list. Read instead of the table.
    links: Box<[u16]>,
    free_head: u16,
    free: u16,
    in_flight: InFlight,
    /// The next available index, and the one that was published.
    next_avail: u16,
    published: u16,
    /// The next used index to read, and the device's as last loaded.
    next_used: u16,
    used_seen: u16,
    /// Whether the device writes buffers of chains: if one with such buffers was ever added.
    writes: bool,
    /// In order: whether all chains up to `used_seen` are only read by the device. Then their used
    /// entries tell nothing, and may not be there (2.7.9).
    counted: bool,
}

impl<W: RingWords> Driver<W> {
    /// The driver of a new queue, whose areas it zeroes.
    ///
    /// # Errors
    /// [`QueueError`] for a wrong size, or an area that is too short or not aligned.
    pub fn new(areas: Areas<W>, size: u16, features: Features) -> Result<Driver<W>, QueueError> {
        check(&areas, size, features)?;
        let links = (0..size).map(|i| (i + 1) & (size - 1)).collect();
        let in_flight = InFlight::new(size);
        let mut driver = Driver {
            areas,
            size,
            features,
            tables: None,
            links,
            free_head: 0,
            free: size,
            in_flight,
            next_avail: 0,
            published: 0,
            next_used: 0,
            used_seen: 0,
            writes: false,
            counted: false,
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

    fn zero(&mut self) {
        (0..2 * usize::from(self.size)).for_each(|i| self.areas.desc.store64(i, 0, Relaxed));
        let event = usize::from(self.features.event_idx);
        (0..used_event(self.size) + event).for_each(|i| self.areas.driver.store16(i, 0, Relaxed));
        self.areas.device.store16(FLAGS, 0, Relaxed);
        self.areas.device.store16(INDEX, 0, Relaxed);
        (0..self.size).flat_map(used_entry).for_each(|i| self.areas.device.store32(i, 0, Relaxed));
        if self.features.event_idx {
            self.areas.device.store16(avail_event(self.size), 0, Relaxed);
        }
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
        let head = self.free_head;
        self.write(head, buffer.addr, split_word(buffer.len, flags(buffer), 0));
        self.free_head = self.links[usize::from(head)];
        self.offer(head, 1, if buffer.writable { buffer.len } else { 0 });
        Ok(head)
    }

    /// Adds chains of one buffer each, all for the device to read or all to write, as long as
    /// descriptors are free and `buffers` has more; returns how many.
    #[inline]
    pub fn add_singles(&mut self, writable: bool, buffers: &mut impl SingleBuffers) -> usize {
        let (mask, avail, flags) = (self.size - 1, self.next_avail, if writable { WRITE } else { 0 });
        let (mut head, mut added) = (self.free_head, 0);
        while added < self.free
            && let Some((addr, len)) = buffers.next(head)
        {
            self.write(head, addr, split_word(len.get(), flags, 0));
            self.in_flight.add(head, 1, if writable { len.get() } else { 0 });
            self.write_avail(avail.wrapping_add(added) & mask, head);
            head = self.links[usize::from(head)];
            added += 1;
        }
        self.free_head = head;
        self.free -= added;
        self.next_avail = avail.wrapping_add(added);
        self.writes |= writable;
        added.into()
    }

    /// Adds a chain of any length.
    #[inline(never)]
    fn add_chain(&mut self, chain: &[Segment]) -> Result<u16, AddError> {
        let writable = checked(chain)?;
        let head = self.free_head;
        let indirect = self.tables.as_ref().filter(|tables| tables.takes(chain.len()));
        let slots = if indirect.is_some() { 1 } else { chain.len() };
        if slots > usize::from(self.free) {
            return Err(if slots > usize::from(self.size) { AddError::Invalid } else { AddError::Full });
        }
        let mut at = head;
        if let Some(tables) = indirect {
            let (first, addr) = tables.table(head);
            for (i, (segment, more)) in with_more(chain).enumerate() {
                let (flags, next) = if more { (flags(segment) | NEXT, i as u16 + 1) } else { (flags(segment), 0) };
                tables.words.store64(first + 2 * i, segment.addr, Relaxed);
                tables.words.store64(first + 2 * i + 1, split_word(segment.len, flags, next), Relaxed);
            }
            self.write(at, addr, split_word((chain.len() * DESC) as u32, INDIRECT, 0));
            at = self.links[usize::from(at)];
        } else {
            for (segment, more) in with_more(chain) {
                let next = self.links[usize::from(at)];
                let word = if more {
                    split_word(segment.len, flags(segment) | NEXT, next)
                } else {
                    split_word(segment.len, flags(segment), 0)
                };
                self.write(at, segment.addr, word);
                at = next;
            }
        }
        self.free_head = at;
        self.offer(head, slots as u16, writable);
        Ok(head)
    }

    /// Puts a chain whose descriptors are written into the available ring.
    #[inline]
    fn offer(&mut self, head: u16, slots: u16, writable: u32) {
        self.free -= slots;
        self.in_flight.add(head, slots, writable);
        self.write_avail(self.next_avail & (self.size - 1), head);
        self.next_avail = self.next_avail.wrapping_add(1);
        self.writes |= writable > 0;
    }

    /// Writes an entry of the available ring. In order it is mostly the one that lies there: then
    /// its line stays in the device's cache too.
    #[inline]
    fn write_avail(&self, slot: u16, head: u16) {
        let at = avail_entry(slot);
        if !self.features.in_order || self.areas.driver.load16(at, Relaxed) != head {
            self.areas.driver.store16(at, head, Relaxed);
        }
    }

    #[inline]
    fn write(&self, at: u16, addr: u64, word: u64) {
        let [first, second] = desc(at);
        self.areas.desc.store64(first, addr, Relaxed);
        self.areas.desc.store64(second, word, Relaxed);
    }

    /// Makes the added chains available, by one store of the index. Returns whether the device
    /// needs a kick.
    #[inline]
    #[must_use = "a device that sleeps waits for the kick"]
    pub fn publish(&mut self) -> bool {
        let (old, new) = (self.published, self.next_avail);
        if old == new {
            return false;
        }
        // Release: descriptors and entries come before the index that covers them.
        self.areas.driver.store16(INDEX, new, Release);
        self.published = new;
        self.in_flight.publish();
        publish();
        if self.features.event_idx {
            passed(self.areas.device.load16(avail_event(self.size), Relaxed), new, old)
        } else {
            self.areas.device.load16(FLAGS, Relaxed) & NO_NOTIFICATION == 0
        }
    }

    /// Used chains, whose descriptors are free again, into the first places of `out`: how many, and
    /// the error that followed them. The shared index is loaded only after all chains that it
    /// covered were returned.
    ///
    /// # Errors
    /// [`RingError::UsedIndex`] and [`RingError::UsedId`] if the device counts chains that are not
    /// in flight, then and ever after.
    #[inline]
    pub fn take_used(&mut self, out: &mut [Used]) -> (usize, Result<(), RingError>) {
        let mut taken = 0;
        let result = self.in_flight.check().and_then(|()| self.take_runs(out, &mut taken));
        (taken, result)
    }

    #[inline]
    fn take_runs(&mut self, mut out: &mut [Used], taken: &mut usize) -> Result<(), RingError> {
        while !out.is_empty() {
            if self.used_seen == self.next_used {
                if self.in_flight.in_batch() {
                    return Err(self.in_flight.broken(RingError::UsedIndex));
                }
                if self.look()? == 0 {
                    break;
                }
            }
            let counted = self.used_seen.wrapping_sub(self.next_used);
            let (run, rest) = out.split_at_mut(out.len().min(counted.into()));
            let (n, result) = if self.counted {
                (self.take_counted(run), Ok(()))
            } else if self.features.in_order {
                self.take_in_order(run)
            } else {
                self.take(run)
            };
            self.next_used = self.next_used.wrapping_add(n);
            *taken += usize::from(n);
            result?;
            out = rest;
        }
        Ok(())
    }

    /// Takes as many chains as there are places, which the device has counted: how many, and the
    /// error that followed them.
    #[inline]
    fn take(&mut self, out: &mut [Used]) -> (u16, Result<(), RingError>) {
        let (mask, next_used) = (self.size - 1, self.next_used);
        let (mut taken, mut freed, mut result) = (0, 0, Ok(()));
        for place in out {
            let (id, len) = self.used(next_used.wrapping_add(taken) & mask);
            let Some((used, slots)) = self.in_flight.take(id, len) else {
                // What the device writes there later is not looked at.
                self.used_seen = next_used.wrapping_add(taken);
                result = Err(self.in_flight.broken(RingError::UsedId(id)));
                break;
            };
            self.give_back(used.id, slots);
            (*place, freed) = (used, freed + slots);
            taken += 1;
        }
        self.free += freed;
        (taken, result)
    }

    /// Puts a chain's descriptors before the free ones. Those are a stack: the next chain finds these
    /// in the cache.
    #[inline]
    fn give_back(&mut self, head: u16, slots: u16) {
        let last = (1..slots).fold(head, |at, _| self.links[usize::from(at)]);
        self.links[usize::from(last)] = self.free_head;
        self.free_head = head;
    }

    /// The next one of the chains that the index counts, if there is one and it is known without a
    /// batch. Of an entry that is wrong [`take_used`](Driver::take_used) tells.
    #[inline]
    pub(crate) fn next_known(&mut self) -> Option<Used> {
        if self.used_seen == self.next_used {
            return None;
        }
        let (used, slots) = if self.counted {
            self.in_flight.take_oldest(following(self.size))
        } else if self.features.in_order {
            return None;
        } else {
            let (id, len) = self.used(self.next_used & (self.size - 1));
            let (used, slots) = self.in_flight.take(id, len)?;
            self.give_back(used.id, slots);
            (used, slots)
        };
        self.next_used = self.next_used.wrapping_add(1);
        self.free += slots;
        Some(used)
    }

    /// In order, of chains that the device only reads: no entry is looked at.
    #[inline]
    fn take_counted(&mut self, out: &mut [Used]) -> u16 {
        let (following, mut freed) = (following(self.size), 0);
        for place in &mut *out {
            let (used, slots) = self.in_flight.take_oldest(following);
            (*place, freed) = (used, freed + slots);
        }
        self.free += freed;
        out.len() as u16
    }

    /// In order, by the entries.
    #[inline]
    fn take_in_order(&mut self, out: &mut [Used]) -> (u16, Result<(), RingError>) {
        let (mask, next_used) = (self.size - 1, self.next_used);
        let following = following(self.size);
        let (mut taken, mut freed, mut result) = (0, 0, Ok(()));
        for place in out {
            let next = if self.in_flight.in_batch() {
                self.in_flight.next(following)
            } else {
                let (id, len) = self.used(next_used.wrapping_add(taken) & mask);
                let begun = self.in_flight.begin(id, len, following);
                if begun.is_none() {
                    result = Err(self.in_flight.broken(RingError::UsedId(id)));
                }
                begun
            };
            let Some((used, slots)) = next else { break };
            (*place, freed) = (used, freed + slots);
            taken += 1;
        }
        self.free += freed;
        (taken, result)
    }

    /// Loads the device's index; returns how many chains are used.
    #[inline]
    fn look(&mut self) -> Result<u16, RingError> {
        // Acquire: the device wrote buffers and entries before it counted them.
        let index = self.areas.device.load16(INDEX, Acquire);
        let used = index.wrapping_sub(self.next_used);
        if used > self.in_flight.published() {
            return Err(self.in_flight.broken(RingError::UsedIndex));
        }
        // An index that is wrong is not kept: what it counts would be known to be used.
        self.used_seen = index;
        // The index goes on by whole batches, and all chains of these are in flight.
        self.counted = self.features.in_order && !self.writes;
        Ok(used)
    }

    /// A used entry: id and length.
    #[inline]
    fn used(&self, slot: u16) -> (u32, u32) {
        let [id, len] = used_entry(slot);
        (self.areas.device.load32(id, Relaxed), self.areas.device.load32(len, Relaxed))
    }

    /// Requests no calls while this side polls. One may come all the same.
    pub fn disable_calls(&mut self) {
        // With event indices the event stays behind, where it is passed once in 65 536 chains.
        if !self.features.event_idx {
            self.areas.driver.store16(FLAGS, NO_NOTIFICATION, Relaxed);
        }
    }

    /// Requests a call for the next used chain. Returns true if there is one already, for which no
    /// call comes: then this side must not sleep.
    #[must_use = "a call for chains that are used already never comes"]
    pub fn enable_calls(&self) -> bool {
        if self.features.event_idx {
            self.areas.driver.store16(used_event(self.size), self.next_used, Relaxed);
        } else {
            self.areas.driver.store16(FLAGS, 0, Relaxed);
        }
        before_last_look();
        self.in_flight.in_batch() || self.areas.device.load16(INDEX, Relaxed) != self.next_used
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
        crate::Base { avail: self.next_used, used: self.next_used }
    }

    /// A queue as new, for a device that was stopped and forgot it (`VIRTIO_F_RING_RESET`, 2.6.1).
    /// `each` gets the ids of the chains that were in flight.
    pub fn reset(&mut self, each: impl FnMut(u16)) {
        self.in_flight.clear(each);
        let size = self.size;
        (0..size).for_each(|i| self.links[usize::from(i)] = (i + 1) & (size - 1));
        (self.free_head, self.free) = (0, size);
        (self.next_avail, self.published, self.next_used, self.used_seen) = (0, 0, 0, 0);
        (self.writes, self.counted) = (false, false);
        self.zero();
    }
}

/// In order: the id behind that of a chain of so many descriptors, in a circle.
#[inline]
fn following(size: u16) -> impl Fn(u16, u16) -> u16 + Copy {
    move |id, slots| id.wrapping_add(slots) & (size - 1)
}
