//! The driver's shadow of a descriptor ring.
//!
//! A slot holds what is in flight behind a descriptor: an [`InFlight`](towpath_packet::InFlight)
//! buffer or packet, its mapping, and what the driver noted. The device can change descriptors, but
//! not slots: a completion is looked up here, by position or by a number that is bounded.

/// One `T` for each descriptor of a ring. An index outside of the ring, which no code path makes,
/// finds nothing.
#[derive(Debug)]
pub(crate) struct Slots<T>(Box<[T]>);

impl<T: Default> Slots<T> {
    pub(crate) fn new(len: u32) -> Slots<T> {
        Slots((0..len).map(|_| T::default()).collect())
    }
}

impl<T> Slots<T> {
    #[inline]
    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.0.get_mut(index as usize)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_outside_finds_nothing() {
        let mut slots = Slots::<u8>::new(4);
        assert!(slots.get_mut(3).is_some());
        assert!(slots.get_mut(4).is_none());
    }
}
