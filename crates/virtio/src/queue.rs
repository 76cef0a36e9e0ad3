//! Either format behind one type: what is negotiated at run time is one branch per call.

use crate::area::{Area, Areas, RingWords};
use crate::base::Base;
use crate::chain::{Chain, Segment, Single, SingleBuffers, Token, Used};
use crate::error::{AddError, QueueError, RingError};
use crate::in_flight_record::InFlightRecord;
use crate::layout::{Features, Format};
use crate::space::AddressSpace;
use crate::tables::Tables;
use crate::{packed, split};

/// Calls the same method of the queue behind either variant.
macro_rules! either {
    ($side:expr, $queue:ident => $call:expr) => {
        match $side {
            Self::Split($queue) => $call,
            Self::Packed($queue) => $call,
        }
    };
}

/// The driver's side of a queue: it makes chains available, and gets them back used.
///
/// ```text
///   add, add, add ─► publish ── true? ──► kick
///   next_used until None ─► publish what replaces them
///   disable_calls … before it sleeps: enable_calls ── true? ──► next_used once more
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Driver<W = Area> {
    /// A split queue.
    Split(split::Driver<W>),
    /// A packed queue.
    Packed(packed::Driver<W>),
}

impl<W: RingWords> Driver<W> {
    /// The driver of a new queue of `size` descriptors, whose areas it zeroes.
    ///
    /// # Errors
    /// [`QueueError`] for a wrong size, or an area that is too short or not aligned.
    pub fn new(format: Format, areas: Areas<W>, size: u16, features: Features) -> Result<Driver<W>, QueueError> {
        Ok(match format {
            Format::Split => Driver::Split(split::Driver::new(areas, size, features)?),
            Format::Packed => Driver::Packed(packed::Driver::new(areas, size, features)?),
        })
    }

    /// Chains of two and more buffers go into indirect tables from here on, if they fit and
    /// `VIRTIO_F_INDIRECT_DESC` was negotiated.
    ///
    /// # Errors
    /// [`QueueError::Area`] if the memory is too short for a table per descriptor.
    pub fn set_tables(&mut self, tables: Tables<W>) -> Result<(), QueueError> {
        either!(self, queue => queue.set_tables(tables))
    }

    /// Adds a chain, and returns its id, which is below the size and unique among the chains in
    /// flight. The device does not see it before [`publish`](Driver::publish). Readable buffers
    /// come first, and none is empty.
    ///
    /// # Errors
    /// [`AddError::Full`] if descriptors are missing, [`AddError::Invalid`] for a chain that never
    /// fits. Nothing is written then.
    #[inline]
    pub fn add(&mut self, chain: &[Segment]) -> Result<u16, AddError> {
        either!(self, queue => queue.add(chain))
    }

    /// Adds chains of one buffer each, as [`add`](Driver::add) does, all for the device to read or
    /// all to write: as long as descriptors are free and `buffers` has more. Returns how many.
    #[inline]
    pub fn add_singles(&mut self, writable: bool, buffers: &mut impl SingleBuffers) -> usize {
        either!(self, queue => queue.add_singles(writable, buffers))
    }

    /// Makes the added chains available, at once. Returns whether the device needs a kick.
    #[inline]
    #[must_use = "a device that sleeps waits for the kick"]
    pub fn publish(&mut self) -> bool {
        either!(self, queue => queue.publish())
    }

    /// The next chain that the device used, whose descriptors are free again.
    ///
    /// # Errors
    /// [`RingError`] if the device uses what is not in flight, then and ever after, until a
    /// [`reset`](Driver::reset).
    #[inline]
    pub fn next_used(&mut self) -> Result<Option<Used>, RingError> {
        either!(self, queue => {
            // A chain that is known to be used needs no look at the ring, nor a way through arrays.
            if let Some(used) = queue.next_known() {
                return Ok(Some(used));
            }
            let mut used = [Used { id: 0, len: 0 }];
            let (n, result) = queue.take_used(&mut used);
            result.map(|()| if n == 0 { None } else { Some(used[0]) })
        })
    }

    /// Used chains, as [`next_used`](Driver::next_used) returns them, into the first places of
    /// `out`: how many, all there are if there are more places, and the error that followed them.
    #[inline]
    pub fn take_used(&mut self, out: &mut [Used]) -> (usize, Result<(), RingError>) {
        either!(self, queue => queue.take_used(out))
    }

    /// Requests no calls while this side polls. One may come all the same.
    pub fn disable_calls(&mut self) {
        either!(self, queue => queue.disable_calls());
    }

    /// Requests a call for the next used chain. Returns true if there is one already, for which no
    /// call comes: then this side must not sleep.
    #[must_use = "a call for chains that are used already never comes"]
    pub fn enable_calls(&self) -> bool {
        either!(self, queue => queue.enable_calls())
    }

    /// Number of descriptors that are free (Linux: `num_free`). A chain in an indirect table needs
    /// one.
    #[inline]
    pub fn num_free(&self) -> u16 {
        either!(self, queue => queue.num_free())
    }

    /// Chains that were added and not returned.
    #[inline]
    pub fn in_flight(&self) -> u16 {
        either!(self, queue => queue.in_flight())
    }

    /// Used chains whose length was more than their writable bytes, to which it was cut.
    pub fn overlong(&self) -> u64 {
        either!(self, queue => queue.overlong())
    }

    /// The base with which a device goes on that lost its connection: what is used is used, all
    /// behind it is available again. That is exact if the device uses chains in order. Of one that
    /// does not, chains may be used twice; [`reset`](Driver::reset) begins anew instead.
    pub fn base(&self) -> Base {
        either!(self, queue => queue.base())
    }

    /// A queue as new, for a device that was stopped and forgot it: a reset of the queue
    /// (`VIRTIO_F_RING_RESET`, virtio 1.2, 2.6.1) or of the device, or a new one. `each` gets the
    /// ids of the chains that were in flight.
    pub fn reset(&mut self, each: impl FnMut(u16)) {
        either!(self, queue => queue.reset(each));
    }
}

/// The device's side of a queue: it takes chains, and returns them used, in any order.
///
/// ```text
///   take until None, or a burst is full ─► add_used, add_used ─► publish ── true? ──► call
///   a packet that does not fit what is there: untake, last chain first
///   disable_kicks … before it sleeps: enable_kicks ── true? ──► take once more
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Device<W = Area> {
    /// A split queue.
    Split(split::Device<W>),
    /// A packed queue.
    Packed(packed::Device<W>),
}

impl<W: RingWords> Device<W> {
    /// The device of a queue of `size` descriptors that begins, or goes on, at `base`. The used
    /// index of a split queue is read from its memory.
    ///
    /// # Errors
    /// [`QueueError`] for a wrong size, an area that is too short or not aligned, or a base at
    /// which no queue of that size can be.
    pub fn new(
        format: Format,
        areas: Areas<W>,
        size: u16,
        features: Features,
        base: Base,
    ) -> Result<Device<W>, QueueError> {
        Ok(match format {
            Format::Split => {
                let used = split::Device::used_index(&areas);
                Device::Split(split::Device::new(areas, size, features, Base { used, ..base })?)
            }
            Format::Packed => Device::Packed(packed::Device::new(areas, size, features, base)?),
        })
    }

    /// The device of a queue of `size` descriptors with a record of its chains in flight.
    ///
    /// If a device before this one has written the record, its chains are taken again first, in the
    /// order of their availability. Where the queue goes on is in the record and the ring then, and
    /// `base` is not looked at. Else it is [`new`](Device::new), with a record from there on.
    ///
    /// # Errors
    /// As [`new`](Device::new); [`QueueError::Record`] for a record of another queue, or one that
    /// contradicts itself.
    pub fn resume(
        format: Format,
        areas: Areas<W>,
        size: u16,
        features: Features,
        base: Base,
        record: InFlightRecord<W>,
    ) -> Result<Device<W>, QueueError> {
        Ok(match format {
            Format::Split => {
                let used = split::Device::used_index(&areas);
                Device::Split(split::Device::resume(areas, size, features, Base { used, ..base }, record)?)
            }
            Format::Packed => Device::Packed(packed::Device::resume(areas, size, features, base, record)?),
        })
    }

    /// Takes the next available chain and puts its buffers into `chain`, checked and translated.
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
        either!(self, queue => queue.take(memory, chain))
    }

    /// Takes chains of one buffer each, all for the device to read, or all to write, into the first
    /// places of `out`; returns how many.
    ///
    /// It ends before a chain of another shape, or one that breaks a rule: [`take`](Device::take)
    /// takes that one, or says what is wrong. Fewer chains than there are places need not be all
    /// that are available, and of a queue with a record it takes none.
    #[inline]
    pub fn take_singles<M: AddressSpace>(&mut self, memory: &M, writable: bool, out: &mut [Single<M::Place>]) -> usize {
        either!(self, queue => queue.take_singles(memory, writable, out))
    }

    /// Returns the chain that was taken last, unused, to be taken again.
    ///
    /// # Errors
    /// The token, if another chain was taken after it; with a record also if it was taken before
    /// the last publication.
    pub fn untake(&mut self, token: Token) -> Result<(), Token> {
        either!(self, queue => queue.untake(token))
    }

    /// Returns a chain of which `len` bytes were written, those of its first writable buffers
    /// (Linux: `vhost_add_used`). The driver does not see it before [`publish`](Device::publish).
    ///
    /// With `VIRTIO_F_IN_ORDER` a chain waits for those that were taken before it, and several are
    /// returned by one used entry.
    #[inline]
    pub fn add_used(&mut self, token: Token, len: u32) {
        either!(self, queue => queue.add_used(token, len));
    }

    /// Returns chains with the bytes written to each, as [`add_used`](Device::add_used) does.
    #[inline]
    pub fn add_used_all(&mut self, chains: impl Iterator<Item = (Token, u32)>) {
        either!(self, queue => chains.for_each(|(token, len)| queue.add_used(token, len)));
    }

    /// Shows the used chains to the driver before the burst ends, so that it can begin with them.
    /// Whether it needs a call is left to [`publish`](Device::publish) at the end, before 65 536
    /// chains. With an in-flight record, which has whole bursts, this does nothing.
    #[inline]
    pub fn publish_early(&mut self) {
        either!(self, queue => queue.publish_early());
    }

    /// Shows the used chains to the driver, at once. Returns whether the driver needs a call.
    #[inline]
    #[must_use = "a driver that sleeps waits for the call"]
    pub fn publish(&mut self) -> bool {
        either!(self, queue => queue.publish())
    }

    /// Requests no kicks while this side polls. One may come all the same.
    pub fn disable_kicks(&mut self) {
        either!(self, queue => queue.disable_kicks());
    }

    /// Requests a kick for the next available chain. Returns true if there is one already, for
    /// which no kick comes: then this side must not sleep.
    #[must_use = "a kick for chains that are available already never comes"]
    pub fn enable_kicks(&mut self) -> bool {
        either!(self, queue => queue.enable_kicks())
    }

    /// What was taken and not published as used: chains of a split queue, descriptors of a packed
    /// one. At zero the queue can be given up without a loss.
    #[inline]
    pub fn outstanding(&self) -> u16 {
        either!(self, queue => queue.outstanding())
    }

    /// Chains that a device before this one had in flight, by their record, and that are to be
    /// taken again.
    #[inline]
    pub fn to_take_again(&self) -> usize {
        either!(self, queue => queue.to_take_again())
    }

    /// Where another device can go on. What is outstanding then is lost to the driver.
    pub fn base(&self) -> Base {
        either!(self, queue => queue.base())
    }
}
