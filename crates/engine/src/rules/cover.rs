//! Cover: whether every packet of one match also matches another one.

use super::{Match, Prefix, Span};
use std::net::IpAddr;
use towpath_wire::ethernet::ethertype;

impl Match {
    /// Whether every packet that matches `other` matches this, by comparing field by field. A field
    /// that this requires must be required by `other`, with the same value or a part of the range.
    /// An address implies its version of IP.
    ///
    /// ```
    /// use towpath_engine::rules::Rule;
    /// let of = |text: &str| text.parse::<Rule>().map(|rule| rule.matches);
    /// assert!(of("pass udp dport 1024-2047")?.covers(&of("pass udp dport 1500 src 10.0.0.1")?));
    /// assert!(!of("pass udp dport 1024-2047")?.covers(&of("pass udp")?));
    /// # Ok::<(), towpath_engine::rules::RuleError>(())
    /// ```
    pub fn covers(&self, other: &Match) -> bool {
        // Without a default case: a new field has to be compared here too.
        let Match { ethertype, protocol, src, dst, src_port, dst_port, vlan, src_mac, dst_mac, fragment } = *self;
        same(ethertype, other.ethertype.or_else(|| implied_type(other)))
            && same(protocol, other.protocol)
            && within(src, other.src, Prefix::contains)
            && within(dst, other.dst, Prefix::contains)
            && within(src_port, other.src_port, Span::contains)
            && within(dst_port, other.dst_port, Span::contains)
            && within(vlan, other.vlan, Span::contains)
            && same(src_mac, other.src_mac)
            && same(dst_mac, other.dst_mac)
            && (!fragment || other.fragment)
    }
}

/// The type of packets with these addresses.
fn implied_type(matches: &Match) -> Option<u16> {
    let address = matches.src.or(matches.dst)?.address();
    Some(if address.is_ipv4() { ethertype::IPV4 } else { ethertype::IPV6 })
}

fn same<T: PartialEq>(required: Option<T>, given: Option<T>) -> bool {
    within(required, given, T::eq)
}

/// Whether nothing is required, or what is given lies within it.
fn within<T>(required: Option<T>, given: Option<T>, holds: impl FnOnce(&T, &T) -> bool) -> bool {
    required.is_none_or(|required| given.is_some_and(|given| holds(&required, &given)))
}

impl Prefix {
    /// Whether it contains all addresses of `other`.
    pub fn contains(&self, other: &Prefix) -> bool {
        let longer = other.len() >= self.len() && other.address().is_ipv4() == self.address().is_ipv4();
        longer && Prefix::covering(other.address(), self.len()) == Some(*self)
    }

    /// Whether it contains an address.
    pub fn contains_address(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.address().is_ipv4() && Prefix::covering(address, self.len()) == Some(*self)
    }
}

impl Span {
    /// Whether it contains all numbers of `other`.
    pub fn contains(&self, other: &Span) -> bool {
        self.first() <= other.first() && other.last() <= self.last()
    }
}
