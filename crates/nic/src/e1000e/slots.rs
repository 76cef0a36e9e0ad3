//! What the driver itself knows of each descriptor. The device can change descriptors, but not this.

/// One `T` for each descriptor of a ring. An index that lies outside, which no code path makes, finds nothing.
#[derive(Debug)]
pub(super) struct Slots<T>(Box<[T]>);

impl<T: Default> Slots<T> {
    pub(super) fn new(len: u32) -> Slots<T> {
        Slots((0..len).map(|_| T::default()).collect())
    }

    #[inline]
    pub(super) fn get(&mut self, index: u32) -> Option<&mut T> {
        self.0.get_mut(index as usize)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut()
    }
}

/// Position in a ring of `len` descriptors.
#[inline]
pub(super) fn next(index: u32, len: u32) -> u32 {
    let next = index + 1;
    if next >= len { 0 } else { next }
}

/// Position `by` descriptors further on, at most once around.
#[inline]
pub(super) fn ahead(index: u32, by: u32, len: u32) -> u32 {
    let at = index + by;
    if at >= len { at - len } else { at }
}

/// Descriptors from `from` on, up to and without `to`.
#[inline]
pub(super) fn distance(from: u32, to: u32, len: u32) -> u32 {
    if to >= from { to - from } else { to + len - from }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_go_round_and_distances_count_forward() {
        assert_eq!((next(6, 8), next(7, 8)), (7, 0));
        assert_eq!((ahead(6, 1, 8), ahead(6, 2, 8), ahead(6, 7, 8), ahead(3, 0, 8)), (7, 0, 5, 3));
        assert_eq!((distance(2, 5, 8), distance(6, 1, 8), distance(3, 3, 8)), (3, 3, 0));
    }

    #[test]
    fn an_index_outside_finds_nothing() {
        let mut slots = Slots::<u8>::new(4);
        assert!(slots.get(3).is_some());
        assert!(slots.get(4).is_none());
    }
}
