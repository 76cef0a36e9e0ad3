//! The source address that the kernel chooses for a route that names none.
//!
//! IPv4: `inet_select_addr` (`net/ipv4/devinet.c`): the first primary address of the device in the
//! gateway's subnet, else its first one, else one of another device. IPv6: `ipv6_dev_get_saddr`
//! (`net/ipv6/addrconf.c`), the rules of
//! [RFC 6724](https://www.rfc-editor.org/rfc/rfc6724#section-5) without those about mobile and
//! temporary addresses.

use crate::contents::Address;
use crate::prefix::number;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// `RT_SCOPE_LINK`.
const SCOPE_LINK: u8 = 253;

/// The source of a route of `scope` by `device`.
pub(crate) fn v4(addresses: &[Address], device: u32, gateway: Option<IpAddr>, scope: u8) -> Option<Ipv4Addr> {
    let primary = |a: &&Address| a.address.is_ipv4() && !a.secondary && a.scope <= scope;
    let own = || addresses.iter().filter(primary).filter(|a| a.device == device);
    let near = gateway.and_then(|gateway| own().find(|a| a.prefix.contains(gateway)));
    let chosen = near.or_else(|| own().next());
    let chosen = chosen.or_else(|| addresses.iter().filter(primary).find(|a| a.scope != SCOPE_LINK));
    chosen.and_then(|a| match a.address {
        IpAddr::V4(v4) => Some(v4),
        IpAddr::V6(_) => None,
    })
}

/// The source of packets to `dst` by `device`.
pub(crate) fn v6(addresses: &[Address], device: u32, dst: Ipv6Addr) -> Option<Ipv6Addr> {
    let dst_scope = scope(dst);
    // A destination that is not global is reached from its own link.
    let only_own = dst.is_multicast() || dst_scope <= SCOPE_LINK_LOCAL;
    let mut best: Option<(Score, Ipv6Addr)> = None;
    for a in addresses {
        let IpAddr::V6(address) = a.address else { continue };
        if a.tentative || (only_own && a.device != device) {
            continue;
        }
        let score = Score::new(a, address, device, dst, dst_scope);
        // The first one of equals stays.
        if best.is_none_or(|(known, _)| score > known) {
            best = Some((score, address));
        }
    }
    best.map(|(_, address)| address)
}

/// How good a source address is; fields in the order of the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Score {
    same: bool,
    scope: i32,
    preferred: bool,
    own_device: bool,
    same_label: bool,
    matching_bits: u32,
}

impl Score {
    fn new(a: &Address, address: Ipv6Addr, device: u32, dst: Ipv6Addr, dst_scope: i32) -> Score {
        let own = scope(address);
        let matching = (number(address.into()) ^ number(dst.into())).leading_zeros();
        Score {
            same: address == dst,
            // The smallest scope that reaches; else the largest.
            scope: if own >= dst_scope { -own } else { own - 128 },
            preferred: !a.deprecated,
            own_device: a.device == device,
            same_label: label(address) == label(dst),
            matching_bits: matching.min(a.prefix_len.into()),
        }
    }
}

const SCOPE_LINK_LOCAL: i32 = 2;

/// The scope of an address ([RFC 4291](https://www.rfc-editor.org/rfc/rfc4291#section-2.7)).
fn scope(address: Ipv6Addr) -> i32 {
    match address.segments()[0] {
        multicast if multicast >> 8 == 0xff => i32::from(multicast & 15),
        _ if address.is_loopback() => 1,
        link if link & 0xffc0 == 0xfe80 => SCOPE_LINK_LOCAL,
        site if site & 0xffc0 == 0xfec0 => 5,
        _ => 14,
    }
}

/// The label of an address in the kernel's default table (`net/ipv6/addrlabel.c`).
fn label(address: Ipv6Addr) -> u8 {
    let [a, b, ..] = address.segments();
    let low = number(address.into());
    match (a, b) {
        _ if address.is_loopback() => 0,
        _ if low >> 32 == 0xffff => 4,
        _ if low >> 32 == 0 => 3,
        (0xfc00..=0xfdff, _) => 5,
        (0xfec0..=0xfeff, _) => 11,
        (0x3ffe, _) => 12,
        (0x2002, _) => 2,
        (0x2001, 0) => 6,
        (0x2001, 0x10..=0x1f) => 7,
        _ => 1,
    }
}
