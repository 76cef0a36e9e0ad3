//! The device's side of a split queue.

use super::{FLAGS, INDEX, avail_entry, avail_event, check, desc, used_entry, used_event};
use crate::area::{Area, Areas, RingWords};
use crate::base::Base;
use crate::chain::{Chain, Single, Token};
use crate::error::{QueueError, RingError};
use crate::event::{NO_NOTIFICATION, passed};
use crate::in_flight_record::split::SplitRecord;
use crate::in_flight_record::{InFlightRecord, Recorded};
use crate::in_order::{InOrder, UsedBatch};
use crate::layout::{Desc, Features, WRITE};
use crate::space::AddressSpace;
use crate::walk;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use towpath_packet::notify::{before_last_look, publish};

/// The side that uses chains.
#[derive(Debug)]
pub struct Device<W = Area> {
    areas: Areas<W>,
    size: u16,
    features: Features,
    /// The next available entry, and the driver's index as last loaded.
    next_avail: u16,
    avail_seen: u16,
    /// The next used entry to write, and the one up to which all were published.
    next_used: u16,
    published: u16,
    /// What was published when the last burst ended.
    burst: u16,
    order: Option<InOrder>,
    recorded: Option<Box<Recorded<SplitRecord<W>>>>,
    broken: Option<RingError>,
    /// The ring is broken, or has a record: chains are taken by another way.
    detour: bool,
    /// The next publication calls: a device before this one may have published without.
    call_once: bool,
}

impl<W: RingWords> Device<W> {
    /// The device of a queue that begins, or goes on, at `base`.
    ///
    /// # Errors
    /// [`QueueError`] for a wrong size, an area that is too short or not aligned, or a base whose
    /// indices are further apart than the size.
    pub fn new(areas: Areas<W>, size: u16, features: Features, base: Base) -> Result<Device<W>, QueueError> {
        check(&areas, size, features)?;
        let Base { avail, used } = base;
        if avail.wrapping_sub(used) > size {
            return Err(QueueError::Base { size, avail, used });
        }
        // Chains that an earlier device took and did not use are lost: they count as used in order.
        let order = features.in_order.then(|| InOrder::new(size, avail & (size - 1)));
        Ok(Device {
            areas,
            size,
            features,
            next_avail: avail,
            avail_seen: avail,
            next_used: used,
            published: used,
            burst: used,
            order,
            recorded: None,
            broken: None,
            detour: false,
            call_once: true,
        })
    }

    /// The device of a queue with a record of its chains in flight. If a device before this one has
    /// written it, those chains are taken again first, and the available index of `base` is not
    /// looked at.
    ///
    /// # Errors
    /// As [`new`](Device::new); [`QueueError::Record`].
    pub fn resume(
        areas: Areas<W>,
        size: u16,
        features: Features,
        base: Base,
        record: InFlightRecord<W>,
    ) -> Result<Device<W>, QueueError> {
        check(&areas, size, features)?;
        let (record, again) = SplitRecord::recover(record, size, base.used)?;
        let base = if again.is_some() { Base { avail: base.used, ..base } } else { base };
        let chains = Recorded::new(record, size, features.in_order, again.unwrap_or_default());
        let new = Device::new(areas, size, features, base)?;
        Ok(Device { order: None, recorded: Some(Box::new(chains)), detour: true, ..new })
    }

    /// The used index as it stands in memory: where a device goes on whose front end names only
    /// the available index.
    pub fn used_index(areas: &Areas<W>) -> u16 {
        areas.device.load16(INDEX, Relaxed)
    }

    /// Takes the next available chain and puts its buffers into `chain`. The shared index is loaded
    /// only after all chains that it covered were taken.
    ///
    /// # Errors
    /// [`RingError`] if the driver broke a rule, then and ever after. Chains taken before can still
    /// be completed.
    #[inline]
    pub fn take<M: AddressSpace>(
        &mut self,
        memory: &M,
        chain: &mut Chain<M::Place>,
    ) -> Result<Option<Token>, RingError> {
        chain.clear();
        if self.detour { self.take_by_detour(memory, chain) } else { self.take_available(memory, chain) }
    }

    #[inline]
    fn take_available<M: AddressSpace>(
        &mut self,
        memory: &M,
        chain: &mut Chain<M::Place>,
    ) -> Result<Option<Token>, RingError> {
        if self.avail_seen == self.next_avail && self.look()? == 0 {
            return Ok(None);
        }
        let slot = self.next_avail & (self.size - 1);
        // Relaxed: the index orders entries and descriptors.
        let head = self.areas.driver.load16(avail_entry(slot), Relaxed);
        match walk::split(head, self.size, self.features.indirect, |index| self.words(index), memory, chain) {
            Ok(()) => {}
            Err(error) => return Err(self.broken(error)),
        }
        let token = Token::new(head, 1, self.next_avail, chain.is_writable());
        self.next_avail = self.next_avail.wrapping_add(1);
        Ok(Some(token))
    }

    /// Takes the next chain of a ring with a record: one that a device before this one took comes
    /// first.
    #[cold]
    #[inline(never)]
    fn take_by_detour<M: AddressSpace>(
        &mut self,
        memory: &M,
        chain: &mut Chain<M::Place>,
    ) -> Result<Option<Token>, RingError> {
        if let Some(error) = self.broken {
            return Err(error);
        }
        let is_again = self.to_take_again() > 0;
        let taken = if is_again { self.take_again(memory, chain) } else { self.take_available(memory, chain) };
        let (Some(token), Some(chains)) = (taken?, &mut self.recorded) else { return Ok(None) };
        Ok(Some(if is_again { chains.take_again(&token) } else { chains.take(&token) }))
    }

    /// Chains that a device before this one had in flight, and that are to be taken again.
    pub fn to_take_again(&self) -> usize {
        self.recorded.as_ref().map_or(0, |chains| chains.again())
    }

    /// Takes the next one of them. It stands for the next available entry, which is not looked at.
    fn take_again<M: AddressSpace>(
        &mut self,
        memory: &M,
        chain: &mut Chain<M::Place>,
    ) -> Result<Option<Token>, RingError> {
        let Some(head) = self.recorded.as_ref().and_then(|chains| chains.next_again()) else { return Ok(None) };
        match walk::split(head, self.size, self.features.indirect, |index| self.words(index), memory, chain) {
            Ok(()) => {}
            Err(error) => return Err(self.broken(error)),
        }
        self.next_avail = self.next_avail.wrapping_add(1);
        self.avail_seen = self.next_avail;
        Ok(Some(Token::new(head, 1, 0, chain.is_writable())))
    }

    /// Takes chains of one buffer, up to the first one of another shape.
    #[inline]
    pub fn take_singles<M: AddressSpace>(&mut self, memory: &M, writable: bool, out: &mut [Single<M::Place>]) -> usize {
        if self.detour || (self.avail_seen == self.next_avail && self.look().is_err()) {
            return 0;
        }
        let available = usize::from(self.avail_seen.wrapping_sub(self.next_avail));
        let flags = if writable { WRITE } else { 0 };
        let mut taken = 0;
        for to in out.iter_mut().take(available) {
            let slot = self.next_avail & (self.size - 1);
            // Relaxed: the index orders entries and descriptors.
            let head = self.areas.driver.load16(avail_entry(slot), Relaxed);
            if head >= self.size {
                break;
            }
            let buffer = Desc::from_split(self.words(head));
            if buffer.flags != flags {
                break;
            }
            let Some(piece) = walk::single(&buffer, memory) else { break };
            *to = Single::new(Token::new(head, 1, self.next_avail, writable), piece);
            self.next_avail = self.next_avail.wrapping_add(1);
            taken += 1;
        }
        taken
    }

    /// The words of a descriptor.
    #[inline(always)] // as little as the call
    fn words(&self, index: u16) -> [u64; 2] {
        let [first, second] = desc(index);
        [self.areas.desc.load64(first, Relaxed), self.areas.desc.load64(second, Relaxed)]
    }

    /// Loads the driver's index; returns how many chains are available.
    #[inline]
    fn look(&mut self) -> Result<u16, RingError> {
        // Acquire: the driver wrote descriptors and entries before it counted them.
        let seen = self.areas.driver.load16(INDEX, Acquire);
        // A descriptor is in one chain, and a chain is available again only after it was used.
        if seen.wrapping_sub(self.published) > self.size || seen.wrapping_sub(self.next_avail) > self.size {
            return Err(self.broken(RingError::AvailIndex));
        }
        self.avail_seen = seen;
        Ok(seen.wrapping_sub(self.next_avail))
    }

    #[cold]
    fn broken(&mut self, error: RingError) -> RingError {
        self.detour = true;
        *self.broken.get_or_insert(error)
    }

    /// Returns the chain that was taken last, unused, to be taken again.
    ///
    /// # Errors
    /// The token, if another chain was taken after it; with a record also if it was taken before
    /// the last publication.
    pub fn untake(&mut self, token: Token) -> Result<(), Token> {
        if let Some(chains) = &mut self.recorded {
            if !chains.untake(&token) {
                return Err(token);
            }
            self.next_avail = self.next_avail.wrapping_sub(1);
            return Ok(());
        }
        if token.at() != self.next_avail.wrapping_sub(1) || self.outstanding() == 0 {
            return Err(token);
        }
        self.next_avail = token.at();
        Ok(())
    }

    /// Returns a chain of which `len` bytes were written. The driver does not see it before
    /// [`publish`](Device::publish).
    #[inline(always)] // a call costs as much as the rest
    pub fn add_used(&mut self, token: Token, len: u32) {
        if let Some(order) = &mut self.order {
            if let Some(used) = order.complete(token, len) {
                self.write(used);
            }
        } else if let Some(chains) = &mut self.recorded {
            chains.complete(&token, len);
        } else {
            self.write(UsedBatch::one(&token, len));
        }
    }

    #[inline]
    fn write(&mut self, used: UsedBatch) {
        let [id_word, len_word] = used_entry(self.next_used & (self.size - 1));
        self.areas.device.store32(id_word, used.id.into(), Relaxed);
        self.areas.device.store32(len_word, used.len, Relaxed);
        self.next_used = self.next_used.wrapping_add(used.chains);
    }

    /// Makes the used chains known, by one store of the index. Returns whether the driver
    /// needs a call.
    #[inline]
    #[must_use = "a driver that sleeps waits for the call"]
    pub fn publish(&mut self) -> bool {
        if self.recorded.is_some() {
            return self.publish_recorded();
        }
        self.write_batch();
        self.end_burst()
    }

    /// In order: writes the used entries of chains whose turn has come.
    #[inline]
    fn write_batch(&mut self) {
        while let Some(used) = self.order.as_mut().and_then(InOrder::next) {
            self.write(used);
        }
    }

    /// Makes the used chains known before the burst ends. Whether the driver needs a call is left
    /// to [`publish`](Device::publish) at its end. With a record chains go there in whole bursts,
    /// and this does nothing.
    #[inline]
    pub fn publish_early(&mut self) {
        if self.recorded.is_some() {
            return;
        }
        self.write_batch();
        self.show();
    }

    /// Publishes with the record.
    #[cold]
    #[inline(never)]
    fn publish_recorded(&mut self) -> bool {
        let Some(mut chains) = self.recorded.take() else { return false };
        chains.mark_taken(|record, key, _, _| record.mark(key));
        chains.use_completed(|record, key, used| {
            record.link(key);
            self.write(used);
        });
        let call = self.end_burst();
        chains.record.commit(self.published);
        self.recorded = Some(chains);
        call
    }

    /// Stores the index that makes used entries known.
    #[inline]
    fn show(&mut self) {
        if self.published != self.next_used {
            // Release: buffers and entries come before the index that covers them.
            self.areas.device.store16(INDEX, self.next_used, Release);
            self.published = self.next_used;
        }
    }

    /// Shows what is left of a burst; returns whether the driver needs a call for it.
    #[inline]
    fn end_burst(&mut self) -> bool {
        self.show();
        let (old, new) = (std::mem::replace(&mut self.burst, self.published), self.published);
        if old == new {
            return false;
        }
        publish();
        if std::mem::take(&mut self.call_once) {
            return true;
        }
        if self.features.event_idx {
            passed(self.areas.driver.load16(used_event(self.size), Relaxed), new, old)
        } else {
            self.areas.driver.load16(FLAGS, Relaxed) & NO_NOTIFICATION == 0
        }
    }

    /// Requests no kicks while this side polls. One may come all the same.
    pub fn disable_kicks(&mut self) {
        // With event indices the event stays behind, where it is passed once in 65 536 chains.
        if !self.features.event_idx {
            self.areas.device.store16(FLAGS, NO_NOTIFICATION, Relaxed);
        }
    }

    /// Requests a kick for the next available chain. Returns true if there is one already, for
    /// which no kick comes: then this side must not sleep.
    #[must_use = "a kick for chains that are available already never comes"]
    pub fn enable_kicks(&mut self) -> bool {
        if self.features.event_idx {
            self.areas.device.store16(avail_event(self.size), self.next_avail, Relaxed);
        } else {
            self.areas.device.store16(FLAGS, 0, Relaxed);
        }
        before_last_look();
        self.areas.driver.load16(INDEX, Relaxed) != self.next_avail || self.to_take_again() > 0
    }

    /// Chains that were taken and not published as used.
    #[inline]
    pub fn outstanding(&self) -> u16 {
        self.next_avail.wrapping_sub(self.published)
    }

    /// Where another device can go on.
    pub fn base(&self) -> Base {
        Base { avail: self.next_avail, used: self.published }
    }
}
