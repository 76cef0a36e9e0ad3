//! The hash by which a device spreads packets over its receive queues (RSS), and which it reports
//! with each of them (virtio 1.2 §5.1.6.5.6, §5.1.6.5.7).
//!
//! ```text
//!   addresses, ports ── Toeplitz, key ──► hash ──┬─► low 7 bits ──► table ──► receive queue
//!                                                └─► header ──► Packet::flow_hash
//! ```

use super::features::{HASH_REPORT, RSS};
use super::transport::Transport;

/// The limits of the device in its configuration: bytes of a key, entries of a table, and the kinds
/// of packets that it hashes (§5.1.4).
const LIMITS_AT: usize = 17;
/// Entries of the table: every device has room for them (§5.1.4.1).
const ENTRIES: u16 = 128;
/// IPv4, IPv6, and both with TCP and with UDP; extension headers of IPv6 are not searched for
/// addresses (§5.1.6.4.3.1).
const KINDS: u32 = 0x3f;
/// Reports of these kinds, and of those with extension headers (§5.1.6.4.3.3).
const REPORTS: std::ops::RangeInclusive<u16> = 1..=9;

/// What a device is to hash, and with which key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hashing {
    kinds: u32,
    key: [u8; 40],
}

impl Hashing {
    /// The kinds that the device hashes; `None` if it has no room for the key or the table, or
    /// hashes nothing.
    pub(super) fn find<T: Transport>(transport: &T, key: [u8; 40]) -> Option<Hashing> {
        let mut limits = [0; 7];
        if !transport.config(LIMITS_AT, &mut limits) {
            return None;
        }
        let [key_len, entries @ .., a, b, c, d] = limits;
        let kinds = u32::from_le_bytes([a, b, c, d]) & KINDS;
        let fits = usize::from(key_len) >= key.len() && u16::from_le_bytes(entries) >= ENTRIES;
        (fits && kinds != 0).then_some(Hashing { kinds, key })
    }

    /// The command, and its data, that sets the hash and spreads packets over so many pairs of
    /// queues; `None` if neither was negotiated.
    pub(super) fn command(&self, features: u64, pairs: u16) -> Option<(u8, Vec<u8>)> {
        let mut data = self.kinds.to_le_bytes().to_vec();
        let mut words = |words: &mut dyn Iterator<Item = u16>| data.extend(words.flat_map(u16::to_le_bytes));
        let command = if features & RSS != 0 {
            // What is not hashed goes to the first queue.
            words(&mut [ENTRIES - 1, 0].into_iter());
            words(&mut (0..ENTRIES).map(|i| i % pairs.max(1)));
            words(&mut [pairs].into_iter());
            1
        } else if features & HASH_REPORT != 0 {
            words(&mut [0; 4].into_iter());
            2
        } else {
            return None;
        };
        data.push(self.key.len() as u8);
        data.extend(self.key);
        Some((command, data))
    }
}

/// The hash that a header has behind its first twelve bytes, if the device has computed one.
#[inline]
pub(super) fn reported(bytes: [u8; 8]) -> Option<u32> {
    let [a, b, c, d, kind, more, _, _] = bytes;
    REPORTS.contains(&u16::from_le_bytes([kind, more])).then_some(u32::from_le_bytes([a, b, c, d]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_spreads_packets_over_the_pairs_or_asks_for_reports_alone() {
        let hashing = Hashing { kinds: 0x3f, key: [7; 40] };
        let (command, data) = hashing.command(RSS | HASH_REPORT, 3).unwrap();
        assert_eq!((command, data.len()), (1, 4 + 4 + 256 + 2 + 1 + 40));
        assert_eq!(data[..14], [0x3f, 0, 0, 0, 127, 0, 0, 0, 0, 0, 1, 0, 2, 0]);
        assert_eq!((&data[262..267], &data[267..]), (&[1, 0, 3, 0, 40][..], &[7; 40][..]));
        let (command, data) = hashing.command(HASH_REPORT, 1).unwrap();
        assert_eq!((command, data), (2, [&[0x3f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 40][..], &[7; 40]].concat()));
        assert_eq!(hashing.command(0, 1), None);
    }

    #[test]
    fn a_hash_without_a_kind_is_none() {
        assert_eq!(reported([1, 2, 3, 4, 2, 0, 0, 0]), Some(0x0403_0201));
        assert_eq!(reported([1, 2, 3, 4, 0, 0, 0, 0]), None);
        assert_eq!(reported([1, 2, 3, 4, 10, 0, 0, 0]), None);
    }
}
