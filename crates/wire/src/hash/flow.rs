//! The 5-tuple and its two mixing hashes.
//!
//! ```text
//!   src address, port ──endpoint──▶ a ─┐
//!                                      ├─ combine ──▶ × ──▶ 32 bits
//!   dst address, port ──endpoint──▶ b ─┘      a + b: symmetric, a + rot(b): directed
//! ```
//!
//! Each endpoint is mixed by itself before the two are combined by something that commutes. To
//! combine the bare addresses with `^` or `+` would be cheaper and wrong: 10.0.0.1:1 ⇄ 10.0.0.2:2
//! would collide with 10.0.0.1:2 ⇄ 10.0.0.2:1 and so would every such rectangle of flows.
//!
//! The mixing step is the 128-bit product of two 64-bit numbers, its halves joined by `^`. Every
//! bit of the result depends on every bit of both factors; on flows that count up addresses or
//! ports, buckets fill as evenly as with random numbers. It is not cryptographic. A seed that is
//! secret and chosen at start keeps strangers from choosing flows that collide.

use core::net::Ipv6Addr;

/// What identifies a flow. All zero for what is not IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(C)]
pub struct FlowKey {
    /// Source address, IPv4 as [`mapped`](crate::ip::mapped).
    pub src: Ipv6Addr,
    /// Destination address.
    pub dst: Ipv6Addr,
    /// Source port of TCP, UDP and SCTP; 0 for other protocols and for every fragment, the first
    /// included, so that the fragments of a packet have one key.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Transport protocol, see [`ip::protocol`](crate::ip::protocol).
    pub protocol: u8,
}

impl Default for FlowKey {
    #[inline]
    fn default() -> Self {
        let none = Ipv6Addr::UNSPECIFIED;
        Self { src: none, dst: none, src_port: 0, dst_port: 0, protocol: 0 }
    }
}

/// Digits of the fraction of π, odd where they multiply.
const K: [u64; 4] = [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344, 0xa409_3822_299f_31d1, 0x082e_fa98_ec4e_6c89];

#[inline(always)]
const fn mix(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    product as u64 ^ (product >> 64) as u64
}

#[inline(always)]
fn endpoint(address: &Ipv6Addr, port: u16, seed: u64) -> u64 {
    let address = u128::from_ne_bytes(address.octets());
    let port = u64::from(port).wrapping_mul(K[2]);
    mix((address as u64 ^ K[0]).wrapping_add(port), (address >> 64) as u64 ^ K[1] ^ seed)
}

impl FlowKey {
    /// The key of the other direction.
    #[inline]
    #[must_use]
    pub const fn reversed(self) -> Self {
        Self { src: self.dst, dst: self.src, src_port: self.dst_port, dst_port: self.src_port, protocol: self.protocol }
    }

    #[inline(always)]
    fn endpoints(&self, seed: u64) -> (u64, u64) {
        (endpoint(&self.src, self.src_port, seed), endpoint(&self.dst, self.dst_port, seed))
    }

    #[inline(always)]
    fn finish(&self, combined: u64) -> u32 {
        let hash = mix(combined ^ u64::from(self.protocol), K[3]);
        (hash ^ hash >> 32) as u32
    }

    /// A hash that both directions of a flow share. All 32 bits are of equal quality.
    #[inline]
    #[must_use]
    pub fn symmetric_hash(&self, seed: u64) -> u32 {
        let (a, b) = self.endpoints(seed);
        self.finish(a.wrapping_add(b))
    }

    /// A hash that tells the directions of a flow apart.
    #[inline]
    #[must_use]
    pub fn directed_hash(&self, seed: u64) -> u32 {
        let (a, b) = self.endpoints(seed);
        self.finish(a.wrapping_add(b.rotate_left(32)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ip::mapped;

    fn v4(src: u32, dst: u32, src_port: u16, dst_port: u16) -> FlowKey {
        let (src, dst) = (mapped(src.into()), mapped(dst.into()));
        FlowKey { src, dst, src_port, dst_port, protocol: 6 }
    }

    /// Sets of flows as generators and real sites make them, 4096 of each.
    fn sets() -> Vec<(&'static str, Vec<FlowKey>)> {
        let set = |f: &dyn Fn(u32) -> FlowKey| (0..4096).map(f).collect::<Vec<_>>();
        let (a, b) = (0x0a00_0001, 0x0a00_0002);
        let v6 = |i: u32| {
            let mut key = FlowKey { protocol: 17, dst_port: 443, ..FlowKey::default() };
            key.src = (0x2001_0db8_u128 << 96 | u128::from(i)).into();
            key.dst = (0x2001_0db8_u128 << 96 | 0xffff).into();
            key
        };
        vec![
            ("source ports count up", set(&|i| v4(a, b, 1024 + i as u16, 443))),
            ("destination ports count up", set(&|i| v4(a, b, 5000, 1 + i as u16))),
            ("both ports count up", set(&|i| v4(a, b, 5000 + i as u16, 1 + i as u16))),
            ("ports form a grid", set(&|i| v4(a, b, (i / 64) as u16, (i % 64) as u16))),
            ("source addresses count up", set(&|i| v4(a + i, 0xc0a8_0001, 5000, 443))),
            ("last octets form a grid", set(&|i| v4(a + i / 64, a + 256 + i % 64, 9, 9))),
            ("addresses step by a /24", set(&|i| v4(a + i * 256, 0xc0a8_0001, 5000, 443))),
            ("address and port count up", set(&|i| v4(a + i, b, 1024 + i as u16, 53))),
            ("IPv6 hosts count up", set(&v6)),
        ]
    }

    /// With 4096 keys in 256 buckets chi-square has mean 255 and deviation 22.6.
    fn chi_square(hashes: &[u32], shift: u32) -> f64 {
        let mut buckets = [0u32; 256];
        for hash in hashes {
            buckets[(hash >> shift & 0xff) as usize] += 1;
        }
        let expected = hashes.len() as f64 / 256.0;
        buckets.iter().map(|n| (f64::from(*n) - expected).powi(2) / expected).sum()
    }

    #[test]
    fn structured_flows_spread_evenly_over_every_byte_of_the_hash() {
        type HashFn = fn(&FlowKey, u64) -> u32;
        for (name, keys) in sets() {
            for hash in [FlowKey::symmetric_hash as HashFn, FlowKey::directed_hash] {
                for seed in [0, 1, 0xdead_beef_0bad_cafe] {
                    let hashes: Vec<u32> = keys.iter().map(|key| hash(key, seed)).collect();
                    for shift in [0, 8, 16, 24] {
                        let chi = chi_square(&hashes, shift);
                        assert!(chi < 255.0 + 6.0 * 22.6, "{name}: {chi} at bit {shift}");
                    }
                    let mut distinct = hashes;
                    distinct.sort_unstable();
                    distinct.dedup();
                    assert!(distinct.len() >= 4090, "{name}: {} distinct", distinct.len());
                }
            }
        }
    }

    #[test]
    fn both_directions_share_the_symmetric_hash_and_not_the_directed_one() {
        for (name, keys) in sets() {
            for key in keys.iter().filter(|key| **key != key.reversed()) {
                assert_eq!(key.symmetric_hash(7), key.reversed().symmetric_hash(7), "{name}");
                assert_ne!(key.directed_hash(7), key.reversed().directed_hash(7), "{name}");
            }
        }
    }

    #[test]
    fn exchanging_only_the_ports_makes_another_flow() {
        let (a, b) = (v4(1, 2, 1000, 2000), v4(1, 2, 2000, 1000));
        assert_ne!(a.symmetric_hash(0), b.symmetric_hash(0));
    }

    #[test]
    fn another_seed_gives_another_hash() {
        let key = v4(1, 2, 3, 4);
        assert_ne!(key.symmetric_hash(0), key.symmetric_hash(1));
    }
}
