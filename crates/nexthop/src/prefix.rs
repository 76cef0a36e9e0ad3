//! Prefixes, as ranges of numbers.

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

    /// The number of bits that its addresses share, of `bits`.
    pub(crate) fn len(&self, bits: u32) -> u8 {
        (bits - (self.last - self.first).count_ones()) as u8
    }

    /// Whether the address is in the prefix.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        (self.first..=self.last).contains(&number(address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_beyond_the_address_is_no_prefix() {
        assert_eq!(Prefix::new([10, 0, 0, 1].into(), 33), None);
        let all = Prefix::new(IpAddr::from([0u8; 16]), 0).unwrap();
        assert_eq!((all.first, all.last, all.len(128)), (0, u128::MAX, 0));
        assert_eq!(Prefix::new([10, 0, 0, 1].into(), 24).unwrap().len(32), 24);
    }
}
