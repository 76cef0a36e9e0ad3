//! The device's side of a packed queue.

use super::{EVENT, Position, check, desc, flags};
use crate::area::{Area, Areas, RingWords};
use crate::base::Base;
use crate::chain::{Chain, Single, Token};
use crate::error::{QueueError, RingError};
use crate::event::{AT_DESC, DISABLE, ENABLE, packed_wants, word};
use crate::in_flight_record::packed::PackedRecord;
use crate::in_flight_record::{InFlightRecord, Recorded};
use crate::in_order::{InOrder, UsedBatch};
use crate::layout::{Desc, Features, INDIRECT, NEXT, USED, WRITE, packed_word};
use crate::space::AddressSpace;
use crate::walk;
use std::collections::VecDeque;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use towpath_packet::notify::{before_last_look, publish};

/// The side that uses chains.
#[derive(Debug)]
pub struct Device<W = Area> {
    areas: Areas<W>,
    size: u16,
    features: Features,
    next_avail: Position,
    /// The next used descriptor to write.
    next_used: Position,
    /// Descriptors of the chains that were taken and whose used descriptors are not written.
    taken: u16,
    /// Descriptors of the chains that were used and not published.
    unpublished: u16,
    /// Descriptors that were published early, for which the next publication may call.
    early: u16,
    /// The second word of the first used descriptor that is not published, and its index.
    held: Option<(usize, u64)>,
    order: Option<InOrder>,
    recorded: Option<Box<Recorded<PackedRecord<W>>>>,
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
    /// [`QueueError`] for a wrong size, an area that is too short or not aligned, or a base that is
    /// no position of the ring.
    pub fn new(areas: Areas<W>, size: u16, features: Features, base: Base) -> Result<Device<W>, QueueError> {
        check(&areas, size)?;
        let refused = QueueError::Base { size, avail: base.avail, used: base.used };
        let (next_avail, next_used) = (Position::decode(base.avail), Position::decode(base.used));
        // The distance is a number of descriptors of the ring, from 0 on to all of them.
        let line = |at: Position| u32::from(at.index) + if at.wrap == next_used.wrap { 0 } else { size.into() };
        let taken = line(next_avail).checked_sub(line(next_used)).filter(|&n| n <= size.into()).ok_or(refused)?;
        if next_avail.index >= size || next_used.index >= size {
            return Err(refused);
        }
        let order = features.in_order.then(|| InOrder::new(size, next_avail.index));
        Ok(Device {
            areas,
            size,
            features,
            next_avail,
            next_used,
            taken: taken as u16,
            unpublished: 0,
            early: 0,
            held: None,
            order,
            recorded: None,
            broken: None,
            detour: false,
            call_once: true,
        })
    }

    /// The device of a queue with a record of its chains in flight. If a device before this one has
    /// written it, those chains are taken again first, and `base` is not looked at.
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
        check(&areas, size)?;
        let Position { index, wrap } = Position::decode(base.used);
        // The bit goes with the wrap counter until the descriptor is available once more, and then.
        let is_used = |(index, wrap)| {
            let [_, second] = desc(index);
            (flags(areas.desc.load64(second, Acquire)) & USED != 0) == wrap
        };
        let (record, recovered) = PackedRecord::recover(record, size, (index, wrap), is_used)?;
        let (mut base, mut again) = (base, VecDeque::new());
        if let Some(recovered) = recovered {
            let (index, wrap) = recovered.used;
            let at = Position { index, wrap };
            (base, again) = (Base { avail: at.encode(), used: at.encode() }, recovered.again);
            let slots = again.iter().map(|&key| record.slots(key)).sum();
            Self::hide_used(&areas, at, slots, size);
        }
        let chains = Recorded::new(record, size, features.in_order, again);
        let new = Device::new(areas, size, features, base)?;
        Ok(Device { order: None, recorded: Some(Box::new(chains)), detour: true, ..new })
    }

    /// Makes descriptors available again that a device before this one wrote as used, behind one
    /// that it did not.
    fn hide_used(areas: &Areas<W>, mut at: Position, slots: u16, size: u16) {
        for _ in 0..slots {
            let [_, second] = desc(at.index);
            let word = areas.desc.load64(second, Relaxed);
            if at.is_used(flags(word)) {
                areas.desc.store64(second, word ^ u64::from(USED) << 48, Relaxed);
            }
            at = at.ahead(1, size);
        }
    }

    /// Takes the next available chain and puts its buffers into `chain`.
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
        let [first, second] = desc(self.next_avail.index);
        // Acquire: the driver wrote all else of the burst before these flags.
        let word = self.areas.desc.load64(second, Acquire);
        if !self.next_avail.is_available(flags(word)) {
            return Ok(None);
        }
        let head = Desc::from_packed([self.areas.desc.load64(first, Relaxed), word]);
        match self.follow(head, memory, chain) {
            Ok((id, slots)) => {
                let token = Token::new(id, slots, self.next_avail.index, chain.is_writable());
                self.next_avail = self.next_avail.ahead(slots, self.size);
                self.taken += slots;
                Ok(Some(token))
            }
            Err(error) => Err(self.broken(error)),
        }
    }

    /// Chains that a device before this one had in flight, and that are to be taken again.
    pub fn to_take_again(&self) -> usize {
        self.recorded.as_ref().map_or(0, |chains| chains.again())
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

    /// Takes the next one of them, by the copies of its descriptors. It stands for those at the
    /// next available position, which are not looked at.
    fn take_again<M: AddressSpace>(
        &mut self,
        memory: &M,
        chain: &mut Chain<M::Place>,
    ) -> Result<Option<Token>, RingError> {
        let Some(chains) = &self.recorded else { return Ok(None) };
        let Some(key) = chains.next_again() else { return Ok(None) };
        let (mut id, slots, mut walked) = (0, chains.record.slots(key), Ok(()));
        for copy in chains.record.chain(key) {
            id = copy.link;
            walked = match (copy.has(INDIRECT), slots) {
                (false, _) => chain.push(memory, copy.addr, copy.len, copy.has(WRITE)),
                (true, 1) if self.features.indirect => walk::packed_table(&copy, memory, chain),
                (true, _) => Err(RingError::Indirect),
            };
            if walked.is_err() {
                break;
            }
        }
        if let Err(error) = walked {
            return Err(self.broken(error));
        }
        self.next_avail = self.next_avail.ahead(slots, self.size);
        self.taken += slots;
        Ok(Some(Token::new(id, slots, 0, chain.is_writable())))
    }

    /// Takes chains of one buffer, up to the first one of another shape.
    #[inline]
    pub fn take_singles<M: AddressSpace>(&mut self, memory: &M, writable: bool, out: &mut [Single<M::Place>]) -> usize {
        if self.detour {
            return 0;
        }
        let shape = if writable { WRITE } else { 0 };
        let room = usize::from(self.size - self.outstanding());
        let (mut at, mut taken) = (self.next_avail, 0);
        for to in out.iter_mut().take(room) {
            let [first, second] = desc(at.index);
            // Acquire: the driver wrote all else of the burst before these flags.
            let word = self.areas.desc.load64(second, Acquire);
            if !at.is_available(flags(word)) {
                break;
            }
            let buffer = Desc::from_packed([self.areas.desc.load64(first, Relaxed), word]);
            if buffer.flags & (WRITE | NEXT | INDIRECT) != shape {
                break;
            }
            let Some(piece) = walk::single(&buffer, memory) else { break };
            *to = Single::new(Token::new(buffer.link, 1, at.index, writable), piece);
            at = at.ahead(1, self.size);
            taken += 1;
        }
        self.next_avail = at;
        self.taken += taken;
        taken.into()
    }

    /// Follows the chain that begins with `head`; returns its id and its descriptors.
    #[inline]
    fn follow<M: AddressSpace>(
        &self,
        head: Desc,
        memory: &M,
        chain: &mut Chain<M::Place>,
    ) -> Result<(u16, u16), RingError> {
        // Descriptors that are neither taken nor used and unknown to the driver.
        let room = self.size - self.outstanding();
        if head.has(INDIRECT) {
            if !self.features.indirect || head.has(NEXT) {
                return Err(RingError::Indirect);
            }
            if room == 0 {
                return Err(RingError::AvailIndex);
            }
            walk::packed_table(&head, memory, chain)?;
            return Ok((head.link, 1));
        }
        let (mut desc_, mut slots, mut at) = (head, 1, self.next_avail);
        loop {
            if slots > room {
                return Err(if slots == 1 { RingError::AvailIndex } else { RingError::ChainLength });
            }
            chain.push(memory, desc_.addr, desc_.len, desc_.has(WRITE))?;
            if !desc_.has(NEXT) {
                return Ok((desc_.link, slots));
            }
            at = at.ahead(1, self.size);
            slots += 1;
            desc_ = Desc::from_packed(desc(at.index).map(|word| self.areas.desc.load64(word, Relaxed)));
            if desc_.has(INDIRECT) {
                return Err(RingError::Indirect);
            }
        }
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
            self.next_avail = self.next_avail.back(token.slots(), self.size);
            self.taken -= token.slots().min(self.taken);
            return Ok(());
        }
        let begin = Position { index: token.at(), wrap: true };
        let end = begin.ahead(token.slots().min(self.size), self.size);
        if token.at() >= self.size
            || end.index != self.next_avail.index
            || token.slots() > self.taken
            || token.slots() == 0
        {
            return Err(token);
        }
        self.next_avail = Position { index: token.at(), wrap: self.next_avail.wrap == end.wrap };
        self.taken -= token.slots();
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

    /// Writes a used descriptor, but the flags of the first one of a burst.
    #[inline]
    fn write(&mut self, used: UsedBatch) {
        let UsedBatch { id, len, slots, .. } = used;
        let at = self.next_used;
        let [_, second] = desc(at.index);
        let word = packed_word(len, id, at.used() | if len > 0 { WRITE } else { 0 });
        if self.held.is_none() {
            self.held = Some((second, word));
        } else {
            self.areas.desc.store64(second, word, Relaxed);
        }
        self.next_used = at.ahead(slots.min(self.size), self.size);
        // No more than was taken, whatever the token says.
        let slots = slots.min(self.taken);
        self.taken -= slots;
        self.unpublished += slots;
    }

    /// Makes the used chains known, by one store of the first one's flags. Returns whether the
    /// driver needs a call.
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
        if self.show() {
            self.early = self.early.saturating_add(std::mem::take(&mut self.unpublished));
        }
    }

    /// Publishes with the record.
    #[cold]
    #[inline(never)]
    fn publish_recorded(&mut self) -> bool {
        let Some(mut chains) = self.recorded.take() else { return false };
        // No used descriptor has been written over those that were taken.
        let mut at = self.next_avail.back(chains.new_slots(), self.size);
        chains.mark_taken(|record, key, id, slots| {
            let begin = at;
            at = at.ahead(slots, self.size);
            let places = (0..slots).map(|n| begin.ahead(n, self.size).index);
            let read = |index| desc(index).map(|word| self.areas.desc.load64(word, Relaxed));
            record.mark(key, id, places.map(|index| Desc::from_packed(read(index))));
        });
        chains.use_completed(|record, key, used| {
            record.link(key);
            self.write(used);
        });
        chains.record.advance((self.next_used.index, self.next_used.wrap));
        let call = self.end_burst();
        chains.record.commit();
        self.recorded = Some(chains);
        call
    }

    /// Stores the flags that make used descriptors known; returns whether there are any.
    #[inline]
    fn show(&mut self) -> bool {
        let Some((at, word)) = self.held.take() else { return false };
        // Release: buffers and all other used descriptors come before the flags that lead to them.
        self.areas.desc.store64(at, word, Release);
        true
    }

    /// Shows what is left of a burst; returns whether the driver needs a call for it.
    #[inline]
    fn end_burst(&mut self) -> bool {
        if !self.show() && self.early == 0 {
            return false;
        }
        let used = std::mem::take(&mut self.unpublished).saturating_add(std::mem::take(&mut self.early));
        publish();
        if std::mem::take(&mut self.call_once) {
            return true;
        }
        let event = self.areas.driver.load32(EVENT, Relaxed);
        packed_wants(event, self.next_used.index, self.next_used.wrap, self.size, used)
    }

    /// Requests no kicks while this side polls. One may come all the same.
    pub fn disable_kicks(&mut self) {
        self.areas.device.store32(EVENT, word(0, false, DISABLE), Relaxed);
    }

    /// Requests a kick for the next available chain. Returns true if there is one already, for
    /// which no kick comes: then this side must not sleep.
    #[must_use = "a kick for chains that are available already never comes"]
    pub fn enable_kicks(&mut self) -> bool {
        // One store: the position never goes with other flags.
        let how = if self.features.event_idx { AT_DESC } else { ENABLE };
        let position = if self.features.event_idx { self.next_avail } else { Position { index: 0, wrap: false } };
        self.areas.device.store32(EVENT, word(position.index, position.wrap, how), Relaxed);
        before_last_look();
        let [_, second] = desc(self.next_avail.index);
        self.next_avail.is_available(flags(self.areas.desc.load64(second, Relaxed))) || self.to_take_again() > 0
    }

    /// Descriptors of the chains that were taken and not published as used.
    #[inline]
    pub fn outstanding(&self) -> u16 {
        self.taken + self.unpublished
    }

    /// Where another device can go on.
    pub fn base(&self) -> Base {
        Base { avail: self.next_avail.encode(), used: self.published().encode() }
    }

    /// The position up to which chains were published as used.
    fn published(&self) -> Position {
        self.next_used.back(self.unpublished, self.size)
    }
}
