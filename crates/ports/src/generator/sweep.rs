//! Fields that differ from flow to flow.
//!
//! Flow `i` has value `first + i mod n` of each of the `n` values of a range. All ranges advance
//! together: `src-ip=10.0.0.0/30,dst-port=1-4` are four flows, not sixteen.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use towpath_wire::ethernet::Mac;

/// A range of values of a field; both ends belong to it. From one value: all flows have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sweep<T> {
    /// The value of the first flow.
    pub first: T,
    /// The value behind which it begins again.
    pub last: T,
}

impl<T: Copy> From<T> for Sweep<T> {
    fn from(value: T) -> Sweep<T> {
        Sweep { first: value, last: value }
    }
}

/// A field that can be counted up.
pub(super) trait Field: Copy + PartialEq {
    fn number(self) -> u128;
    /// The value `n` above this one, of the same kind; it wraps around.
    fn plus(self, n: u128) -> Self;
}

impl Field for u16 {
    fn number(self) -> u128 {
        self.into()
    }

    fn plus(self, n: u128) -> u16 {
        self.wrapping_add(n as u16)
    }
}

impl Field for Mac {
    fn number(self) -> u128 {
        self.into_iter().fold(0, |number, byte| number << 8 | u128::from(byte))
    }

    fn plus(self, n: u128) -> Mac {
        let [.., a, b, c, d, e, f] = self.number().wrapping_add(n).to_be_bytes();
        [a, b, c, d, e, f]
    }
}

impl Field for IpAddr {
    fn number(self) -> u128 {
        match self {
            IpAddr::V4(ip) => ip.to_bits().into(),
            IpAddr::V6(ip) => ip.to_bits(),
        }
    }

    fn plus(self, n: u128) -> IpAddr {
        match self {
            IpAddr::V4(ip) => Ipv4Addr::from_bits(ip.to_bits().wrapping_add(n as u32)).into(),
            IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits().wrapping_add(n)).into(),
        }
    }
}

/// Values of a range, at least 1.
pub(super) fn count<T: Field>(range: Sweep<T>) -> u128 {
    range.last.number().saturating_sub(range.first.number()).saturating_add(1)
}

/// Whether a range has more than one value.
pub(super) fn is_swept<T: Field>(range: Sweep<T>) -> bool {
    range.first != range.last
}

/// The value of flow `index`.
pub(super) fn at<T: Field>(range: Sweep<T>, index: u32) -> T {
    range.first.plus(u128::from(index) % count(range))
}

/// The value `n` above `value`.
pub(super) fn above<T: Field>(value: T, n: u32) -> T {
    value.plus(n.into())
}

/// A range of text: `VALUE` or `FIRST-LAST`, in ascending order.
pub(super) fn range<T: Field>(text: &str, parse: impl Fn(&str) -> Option<T>) -> Option<Sweep<T>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (parse(first)?, parse(last)?);
    (first.number() <= last.number()).then_some(Sweep { first, last })
}

/// The addresses of text: `ADDRESS`, `FIRST-LAST` of one family, or all of `PREFIX/LENGTH`.
pub(super) fn addresses(text: &str) -> Option<Sweep<IpAddr>> {
    let Some((address, length)) = text.split_once('/') else {
        let parsed = range(text, |text| text.parse::<IpAddr>().ok())?;
        return (parsed.first.is_ipv4() == parsed.last.is_ipv4()).then_some(parsed);
    };
    let length = length.parse::<u32>().ok()?;
    Some(match address.parse().ok()? {
        IpAddr::V4(ip) => {
            let host = u32::MAX.checked_shr(length).unwrap_or(0);
            (length <= 32).then_some(())?;
            let first = ip.to_bits() & !host;
            Sweep { first: Ipv4Addr::from_bits(first).into(), last: Ipv4Addr::from_bits(first | host).into() }
        }
        IpAddr::V6(ip) => {
            let host = u128::MAX.checked_shr(length).unwrap_or(0);
            (length <= 128).then_some(())?;
            let first = ip.to_bits() & !host;
            Sweep { first: Ipv6Addr::from_bits(first).into(), last: Ipv6Addr::from_bits(first | host).into() }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_all_of_its_addresses_and_a_range_both_of_its_ends() {
        let of = |text: &str| addresses(text).map(|range| (range.first.to_string(), range.last.to_string()));
        let pair = |first: &str, last: &str| Some((first.to_owned(), last.to_owned()));
        assert_eq!(of("10.1.2.77/24"), pair("10.1.2.0", "10.1.2.255"));
        assert_eq!(of("10.1.2.3/32"), pair("10.1.2.3", "10.1.2.3"));
        assert_eq!(of("0.0.0.0/0"), pair("0.0.0.0", "255.255.255.255"));
        assert_eq!(of("2001:db8::/127"), pair("2001:db8::", "2001:db8::1"));
        assert_eq!(of("10.0.0.9-10.0.1.2"), pair("10.0.0.9", "10.0.1.2"));
        for bad in ["10.0.0.2-10.0.0.1", "10.0.0.1-::2", "10.0.0.0/33", "::/129", "10.0.0/24", "", "-", "10.0.0.1-"] {
            assert_eq!(of(bad), None, "{bad}");
        }
    }

    #[test]
    fn flows_count_through_a_range_and_begin_again() {
        let range = Sweep { first: 100u16, last: 102 };
        assert_eq!([0, 1, 2, 3, 7].map(|flow| at(range, flow)), [100, 101, 102, 100, 101]);
        assert_eq!(at(Sweep { first: 0u16, last: u16::MAX }, 65_537), 1);
        let macs = Sweep { first: [2, 0, 0, 0, 0, 254], last: [2, 0, 0, 0, 1, 1] };
        assert_eq!((count(macs), at(macs, 2), at(macs, 4)), (4, [2, 0, 0, 0, 1, 0], [2, 0, 0, 0, 0, 254]));
        let all = addresses("::/0").unwrap();
        assert_eq!(at(all, 3), "::3".parse::<IpAddr>().unwrap());
    }
}
