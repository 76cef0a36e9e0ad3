//! Longest prefix match on an immutable set of prefixes.
//!
//! ```text
//!   10.0.0.0/8 → A, 10.1.0.0/16 → B
//!
//!   boundaries   0.0.0.0  10.0.0.0  10.1.0.0  10.2.0.0  11.0.0.0
//!   value        –        A         B         A         –
//! ```
//!
//! Prefixes nest or are disjoint. So the answer changes only where one begins or behind its end,
//! and a lookup is one binary search in the sorted boundaries.

use std::net::IpAddr;

/// A range of addresses that share their first bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Prefix {
    pub(crate) first: u128,
    pub(crate) last: u128,
}

/// An address as a number; IPv4 addresses are those below 2³².
pub(crate) fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u32::from(v4).into(),
        IpAddr::V6(v6) => v6.into(),
    }
}

impl Prefix {
    /// The prefix of an address; `None` for a length that its version does not have.
    pub(crate) fn new(address: IpAddr, len: u8) -> Option<Prefix> {
        let bits: u32 = if address.is_ipv4() { 32 } else { 128 };
        let free = bits.checked_sub(len.into())?;
        let mask = 1u128.checked_shl(free).map_or(u128::MAX, |one| one - 1);
        let first = number(address) & !mask;
        Some(Prefix { first, last: first | mask })
    }

    /// Whether the address is in the prefix.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        (self.first..=self.last).contains(&number(address))
    }
}

/// No prefix holds the addresses from a boundary on.
const NONE: u32 = u32::MAX;

/// The map from prefixes to values.
#[derive(Debug, Default)]
pub(crate) struct Lpm {
    starts: Box<[u128]>,
    values: Box<[u32]>,
}

impl Lpm {
    /// A map of distinct prefixes of one IP version. [`NONE`] is no value.
    pub(crate) fn new(mut prefixes: Vec<(Prefix, u32)>) -> Lpm {
        // A prefix that contains others comes before them.
        prefixes.sort_unstable_by(|(a, _), (b, _)| a.first.cmp(&b.first).then(b.last.cmp(&a.last)));
        let mut bounds: Vec<(u128, u32)> = Vec::with_capacity(2 * prefixes.len());
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
        for (prefix, value) in prefixes {
            while open.last().is_some_and(|(last, _)| *last < prefix.first) {
                close(&mut bounds, &mut open);
            }
            bound(&mut bounds, prefix.first, value);
            open.push((prefix.last, value));
        }
        while !open.is_empty() {
            close(&mut bounds, &mut open);
        }
        let (starts, values): (Vec<_>, Vec<_>) = bounds.into_iter().unzip();
        Lpm { starts: starts.into(), values: values.into() }
    }

    /// The value of the longest prefix that contains the address.
    #[inline]
    pub(crate) fn get(&self, address: IpAddr) -> Option<u32> {
        let address = number(address);
        let behind = self.starts.partition_point(|start| *start <= address);
        let value = *self.values.get(behind.checked_sub(1)?)?;
        (value != NONE).then_some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;
    use std::net::{Ipv4Addr, Ipv6Addr};

    /// Addresses that are often in each other's prefixes.
    fn address() -> impl Strategy<Value = IpAddr> {
        let bits = prop_oneof![Just(0u128), Just(u128::MAX), any::<u128>(), any::<u128>().prop_map(|b| b & 0x0f0f)];
        (any::<bool>(), bits).prop_map(|(v4, bits)| match v4 {
            true => Ipv4Addr::from(bits as u32).into(),
            false => Ipv6Addr::from(bits).into(),
        })
    }

    proptest! {
        #[test]
        fn the_longest_prefix_wins(
            prefixes in prop::collection::vec((address(), 0..=128u8), 0..40), looked_up in prop::collection::vec(address(), 40),
        ) {
            for v4 in [true, false] {
                let of_version = prefixes.iter().filter(|(address, _)| address.is_ipv4() == v4);
                let set: HashMap<Prefix, u32> = of_version
                    .enumerate()
                    .filter_map(|(i, (address, len))| Some((Prefix::new(*address, *len)?, i as u32)))
                    .collect();
                let lpm = Lpm::new(set.iter().map(|(prefix, value)| (*prefix, *value)).collect());
                let ends = set.keys().flat_map(|p| [p.first, p.last]).map(|n| match v4 {
                    true => IpAddr::from(Ipv4Addr::from(n as u32)),
                    false => Ipv6Addr::from(n).into(),
                });
                for address in looked_up.iter().copied().filter(|address| address.is_ipv4() == v4).chain(ends) {
                    let best = set.iter().filter(|(p, _)| p.contains(address)).min_by_key(|(p, _)| p.last - p.first);
                    prop_assert_eq!(lpm.get(address), best.map(|(_, value)| *value), "{}", address);
                }
            }
        }
    }

    #[test]
    fn a_length_beyond_the_address_is_no_prefix() {
        assert_eq!(Prefix::new([10, 0, 0, 1].into(), 33), None);
        let all = Prefix::new(IpAddr::from([0u8; 16]), 0).unwrap();
        assert_eq!((all.first, all.last), (0, u128::MAX));
    }
}
