//! Longest prefix match on an immutable set of prefixes, in few cache lines.
//!
//! ```text
//!   10.0.0.0/8 → A, 10.1.0.0/16 → B                     prefixes nest or are disjoint: the answer
//!                                                       changes only at boundaries
//!   boundaries   0.0.0.0  10.0.0.0  10.1.0.0  10.2.0.0  11.0.0.0
//!   value        –        A         B         A         –
//!
//!   root: 65 536 entries, by the first 16 bits     node: 256 children, by the next 8 bits
//!    ┌───────┐                                      ┌────────────────────────────────┐
//!    │ value │                                      │ 256 bits: the child differs    │──► values of the
//!    │ node ─┼─────────────────────────────────────►│ from the one before it         │    children that
//!    └───────┘                                      └────────────────────────────────┘    differ
//! ```
//!
//! A lookup reads one line of the root, and two for each level of nodes: at most two levels for
//! IPv4, six for a /64. A node has the space of one line, and its values are as many as its
//! children have different neighbours (a poptrie, Asai and Ohara 2015). Building takes a fraction
//! of a second for a million prefixes, so that a changed set is built anew and replaces the old
//! one.
//!
//! The only module that allocates: it needs the feature `std`.

/// An address that is looked up: `u32` for IPv4, `u128` for IPv6, as numbers.
pub trait Key: Copy + private::Sealed {
    /// Its length.
    const BITS: u32;
    /// Its first 16 bits.
    fn top(self) -> usize;
    /// The 8 bits that end `shift` bits before the last one.
    fn byte(self, shift: u32) -> usize;
    /// The address as a number.
    fn number(self) -> u128;
}

mod private {
    pub trait Sealed {}
    impl Sealed for u32 {}
    impl Sealed for u128 {}
}

macro_rules! key {
    ($($ty:ty)*) => { $(
        impl Key for $ty {
            const BITS: u32 = <$ty>::BITS;
            #[inline(always)]
            fn top(self) -> usize {
                (self >> (<$ty>::BITS - ROOT_BITS)) as usize
            }
            #[inline(always)]
            fn byte(self, shift: u32) -> usize {
                usize::from((self >> (shift & (<$ty>::BITS - 1))) as u8)
            }
            #[inline(always)]
            fn number(self) -> u128 {
                self.into()
            }
        }
    )* };
}
key!(u32 u128);

/// Bits of the root's index, and of a node's.
const ROOT_BITS: u32 = 16;
const NODE_BITS: u32 = 8;
/// Of an entry: it is the number of a node.
const NODE: u32 = 1 << 31;
/// No prefix holds the addresses of an entry.
const NONE: u32 = NODE - 1;

/// The largest value of a prefix.
pub const MAX_VALUE: u32 = NONE - 1;

/// 256 children.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Node {
    /// Children whose entry differs from the one of the child before. The first one's bit is set.
    differs: [u64; 4],
    /// Bits that are set in the words before each word.
    before: [u8; 4],
    /// The entry of the first child in `entries`.
    first: u32,
}

/// A map from prefixes to values.
#[derive(Debug, Clone)]
pub struct Lpm<K> {
    /// Empty if there is no prefix.
    root: Box<[u32]>,
    nodes: Box<[Node]>,
    entries: Box<[u32]>,
    key: core::marker::PhantomData<K>,
}

impl<K: Key> Default for Lpm<K> {
    fn default() -> Lpm<K> {
        Lpm { root: Box::default(), nodes: Box::default(), entries: Box::default(), key: core::marker::PhantomData }
    }
}

impl<K: Key> Lpm<K> {
    /// A map of distinct prefixes: the first address, the length, and the value, at most
    /// [`MAX_VALUE`]. Bits of the address behind the length are ignored, and a prefix that is
    /// longer than an address is left out.
    pub fn new(prefixes: impl IntoIterator<Item = (K, u8, u32)>) -> Lpm<K> {
        let ranges = prefixes.into_iter().filter_map(|(address, len, value)| {
            let free = K::BITS.checked_sub(len.into())?;
            let mask = 1u128.checked_shl(free).map_or(u128::MAX, |one| one - 1);
            let first = address.number() & !mask;
            Some((first, first | mask, value.min(MAX_VALUE)))
        });
        let bounds = boundaries(ranges.collect());
        let mut build = Build { nodes: Vec::new(), entries: Vec::new() };
        let root = if bounds.is_empty() { Vec::new() } else { build.root(&bounds, K::BITS) };
        Lpm {
            root: root.into(),
            nodes: build.nodes.into(),
            entries: build.entries.into(),
            key: core::marker::PhantomData,
        }
    }

    /// The value of the longest prefix that contains the address.
    #[inline]
    pub fn get(&self, address: K) -> Option<u32> {
        let mut entry = *self.root.get(address.top())?;
        let mut shift = K::BITS - ROOT_BITS;
        while entry & NODE != 0 {
            shift = shift.wrapping_sub(NODE_BITS);
            let node = self.nodes.get((entry & !NODE) as usize)?;
            let child = address.byte(shift);
            let (word, bit) = (child >> 6, child & 63);
            let up_to = node.differs[word] & (u64::MAX >> (63 - bit));
            let at = node.first + u32::from(node.before[word]) + up_to.count_ones() - 1;
            entry = *self.entries.get(at as usize)?;
        }
        (entry != NONE).then_some(entry)
    }

    /// Bytes of memory.
    pub fn memory(&self) -> usize {
        size_of_val(&*self.root) + size_of_val(&*self.nodes) + size_of_val(&*self.entries)
    }
}

/// The addresses from which on another prefix is the longest, in ascending order, and its value.
fn boundaries(mut ranges: Vec<(u128, u128, u32)>) -> Vec<(u128, u32)> {
    // A prefix that contains others comes before them.
    ranges.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
    let mut bounds: Vec<(u128, u32)> = Vec::with_capacity(2 * ranges.len());
    let mut open: Vec<(u128, u32)> = Vec::new();
    let bound = |bounds: &mut Vec<(u128, u32)>, at, value| match bounds.last_mut() {
        Some(last) if last.0 == at => last.1 = value,
        _ => bounds.push((at, value)),
    };
    let close = |bounds: &mut Vec<_>, open: &mut Vec<(u128, u32)>| {
        if let Some((last, _)) = open.pop()
            && let Some(behind) = last.checked_add(1)
        {
            bound(bounds, behind, open.last().map_or(NONE, |(_, outer)| *outer));
        }
    };
    for (first, last, value) in ranges {
        while open.last().is_some_and(|(last, _)| *last < first) {
            close(&mut bounds, &mut open);
        }
        bound(&mut bounds, first, value);
        open.push((last, value));
    }
    while !open.is_empty() {
        close(&mut bounds, &mut open);
    }
    bounds
}

struct Build {
    nodes: Vec<Node>,
    entries: Vec<u32>,
}

impl Build {
    fn root(&mut self, bounds: &[(u128, u32)], bits: u32) -> Vec<u32> {
        let (mut rest, mut value) = (bounds, NONE);
        let children = 0..1u128 << ROOT_BITS;
        children.map(|child| self.child(child << (bits - ROOT_BITS), bits - ROOT_BITS, &mut rest, &mut value)).collect()
    }

    /// The entry for the 2^`bits` addresses from `first` on. `rest`: the boundaries from there on;
    /// `value`: what holds before the first of them.
    fn child(&mut self, first: u128, bits: u32, rest: &mut &[(u128, u32)], value: &mut u32) -> u32 {
        if let Some(((at, begins), behind)) = rest.split_first()
            && *at == first
        {
            (*value, *rest) = (*begins, behind);
        }
        let last = first | ((1 << bits) - 1);
        if rest.first().is_some_and(|(at, _)| *at <= last) { self.node(first, bits, rest, value) } else { *value }
    }

    fn node(&mut self, first: u128, bits: u32, rest: &mut &[(u128, u32)], value: &mut u32) -> u32 {
        let bits = bits - NODE_BITS;
        let mut children = [0; 1 << NODE_BITS];
        for (child, entry) in children.iter_mut().enumerate() {
            *entry = self.child(first | (child as u128) << bits, bits, rest, value);
        }
        let mut node = Node { differs: [0; 4], before: [0; 4], first: self.entries.len() as u32 };
        let mut last = None;
        for (child, entry) in children.into_iter().enumerate() {
            if last != Some(entry) {
                node.differs[child >> 6] |= 1 << (child & 63);
                self.entries.push(entry);
                last = Some(entry);
            }
        }
        for word in 1..node.before.len() {
            node.before[word] = node.before[word - 1] + node.differs[word - 1].count_ones() as u8;
        }
        self.nodes.push(node);
        NODE | (self.nodes.len() - 1) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    /// Addresses that are often in each other's prefixes.
    fn address() -> impl Strategy<Value = u128> {
        prop_oneof![Just(0u128), Just(u128::MAX), any::<u128>(), any::<u128>().prop_map(|b| b & 0x0f0f << 112 | b & 3)]
    }

    fn agrees_with_a_scan<K: Key + Eq + std::hash::Hash + std::fmt::Debug>(
        prefixes: &[(u128, u8)],
        looked_up: &[u128],
        key: impl Fn(u128) -> K,
    ) -> Result<(), TestCaseError> {
        let mask = |len: u8| u128::MAX.checked_shl(K::BITS - u32::from(len)).unwrap_or(0);
        let prefixes: Vec<(u128, u8)> = prefixes
            .iter()
            .filter(|(_, len)| u32::from(*len) <= K::BITS)
            .map(|(address, len)| (key(*address).number() & mask(*len), *len))
            .collect();
        let set: HashMap<(u128, u8), u32> =
            prefixes.iter().enumerate().map(|(i, prefix)| (*prefix, i as u32)).collect();
        let lpm = Lpm::new(set.iter().map(|((address, len), value)| (key(*address), *len, *value)));
        let ends = prefixes.iter().flat_map(|(first, len)| [*first, first | !mask(*len), first.wrapping_sub(1)]);
        for address in looked_up.iter().copied().chain(ends) {
            let address = key(address).number();
            let best =
                set.iter().filter(|((first, len), _)| address & mask(*len) == *first).max_by_key(|((_, len), _)| *len);
            prop_assert_eq!(lpm.get(key(address)), best.map(|(_, value)| *value), "{:x}", address);
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn the_longest_prefix_wins(
            prefixes in prop::collection::vec((address(), 0..=128u8), 0..40),
            looked_up in prop::collection::vec(address(), 40),
        ) {
            agrees_with_a_scan(&prefixes, &looked_up, |address| address)?;
            let short: Vec<(u128, u8)> = prefixes.iter().map(|(address, len)| (*address, len % 33)).collect();
            agrees_with_a_scan(&short, &looked_up, |address| (address >> 96) as u32 ^ address as u32)?;
        }
    }

    #[test]
    fn an_empty_map_has_no_value_and_a_default_route_has_all() {
        assert_eq!(Lpm::<u32>::default().get(7), None);
        assert_eq!(Lpm::new([(0u128, 0, 3)]).get(u128::MAX), Some(3));
    }

    #[test]
    fn a_length_beyond_the_address_is_no_prefix() {
        assert_eq!(Lpm::new([(1u32, 33, 3)]).get(1), None);
    }
}
