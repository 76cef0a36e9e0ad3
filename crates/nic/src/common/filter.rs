//! Which frames a port receives.

/// Which frames are received in addition to broadcasts and frames to the port's own address.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RxFilter {
    /// All frames.
    Promiscuous,
    /// All multicast frames.
    AllMulticast,
    /// Multicast frames to these groups, and to others with the same hash.
    Groups(Vec<[u8; 6]>),
}

/// The multicast hash table (MTA) for these groups, as Intel's MACs have it from the 82540 to the
/// X550: 12 bits of the address, from bit 36 on (a multicast offset of 0), choose one of 4096 bits.
pub(crate) fn multicast_table(groups: &[[u8; 6]]) -> [u32; 128] {
    let mut table = [0; 128];
    for group in groups {
        let hash = (u32::from(group[4]) >> 4 | u32::from(group[5]) << 4) & 0xfff;
        if let Some(word) = table.get_mut(hash as usize >> 5) {
            *word |= 1 << (hash & 31);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_found_by_the_upper_bits_of_its_address() {
        let mut expected = [0; 128];
        expected[0xfb0 >> 5] = 1 << 16;
        assert_eq!(multicast_table(&[[1, 0, 0x5e, 0, 0, 0xfb]]), expected);
        assert_eq!(multicast_table(&[]), [0; 128]);
    }
}
