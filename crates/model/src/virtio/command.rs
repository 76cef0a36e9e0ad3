//! Commands of the control queue (virtio 1.2 §5.1.6.5), and the filter that they set.

use std::collections::HashSet;

/// Which frames are received.
#[derive(Debug, Clone, Default)]
pub(super) struct Filter {
    /// By command of class 0: promiscuous, all multicast, all unicast, no multicast, no unicast, no
    /// broadcast.
    modes: [bool; 6],
    unicast: Vec<[u8; 6]>,
    multicast: Vec<[u8; 6]>,
    vlans: HashSet<u16>,
}

/// What a command changes beside the filter.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Change {
    Nothing,
    /// The port's address.
    Mac([u8; 6]),
    /// The driver announces itself.
    Announced,
    /// Pairs of queues that are used.
    Pairs(u16),
}

fn mac(bytes: &[u8]) -> Option<[u8; 6]> {
    bytes.try_into().ok()
}

/// The addresses of a table, and the bytes behind it.
fn table(bytes: &[u8]) -> Option<(Vec<[u8; 6]>, &[u8])> {
    let (count, rest) = bytes.split_first_chunk::<4>()?;
    let len = usize::try_from(u32::from_le_bytes(*count)).ok()?.checked_mul(6)?;
    let (entries, rest) = rest.split_at_checked(len)?;
    Some((entries.chunks_exact(6).filter_map(mac).collect(), rest))
}

impl Filter {
    /// Does a command; `None` if it is unknown, or not right. `features` are those that were
    /// chosen.
    pub(super) fn command(&mut self, bytes: &[u8], features: u64, pairs: u16) -> Option<Change> {
        let (&[class, command], data) = bytes.split_first_chunk::<2>()?;
        let has = |bit: u32| features >> bit & 1 == 1;
        match (class, command) {
            (0, 0..=5) if has(18) && data.len() == 1 => {
                *self.modes.get_mut(usize::from(command))? = *data.first()? == 1;
            }
            (1, 0) if has(18) => {
                let (unicast, rest) = table(data)?;
                let (multicast, rest) = table(rest)?;
                rest.is_empty().then_some(())?;
                (self.unicast, self.multicast) = (unicast, multicast);
            }
            (1, 1) if has(23) => return mac(data).map(Change::Mac),
            (2, 0 | 1) if has(19) => {
                let vlan = u16::from_le_bytes(data.try_into().ok()?);
                if command == 0 {
                    self.vlans.insert(vlan)
                } else {
                    self.vlans.remove(&vlan)
                };
            }
            (3, 0) if has(21) && data.is_empty() => return Some(Change::Announced),
            (4, 0) if has(22) => {
                let wanted = u16::from_le_bytes(data.try_into().ok()?);
                return (1..=pairs).contains(&wanted).then_some(Change::Pairs(wanted));
            }
            _ => return None,
        }
        Some(Change::Nothing)
    }

    /// Whether a frame is received by a port with an address.
    pub(super) fn passes(&self, frame: &[u8], own: [u8; 6], features: u64) -> bool {
        let has = |bit: u32| features >> bit & 1 == 1;
        let [promiscuous, all_multicast, all_unicast, no_multicast, no_unicast, no_broadcast] = self.modes;
        if has(19)
            && let Some([0x81, 0x00, high, low]) = frame.get(12..16)
            && !self.vlans.contains(&(u16::from_be_bytes([*high, *low]) & 0xfff))
        {
            return false;
        }
        let Some(to) = frame.get(..6).and_then(mac) else { return false };
        if !has(18) || promiscuous {
            return true;
        }
        match to {
            [0xff, 0xff, 0xff, 0xff, 0xff, 0xff] => !no_broadcast,
            [first, ..] if first & 1 == 1 => !no_multicast && (all_multicast || self.multicast.contains(&to)),
            _ => !no_unicast && (all_unicast || to == own || self.unicast.contains(&to)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: u64 = 1 << 18 | 1 << 19 | 1 << 21 | 1 << 22 | 1 << 23;
    const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];

    #[test]
    fn addresses_and_modes_choose_the_frames() {
        let mut filter = Filter::default();
        let to = |to: [u8; 6]| [&to[..], &[0; 54]].concat();
        let group = [1, 0, 0x5e, 0, 0, 1];
        let other = [2, 0, 0, 0, 0, 9];
        let passes = |filter: &Filter| [OWN, other, group, [0xff; 6]].map(|mac| filter.passes(&to(mac), OWN, ALL));
        assert_eq!(passes(&filter), [true, false, false, true]);
        let table = [&[1, 0, 1, 0, 0, 0][..], &other, &[1, 0, 0, 0], &group].concat();
        assert_eq!(filter.command(&table, ALL, 1), Some(Change::Nothing));
        assert_eq!(passes(&filter), [true; 4]);
        assert_eq!(filter.command(&[0, 3, 1], ALL, 1), Some(Change::Nothing));
        assert_eq!(passes(&filter), [true, true, false, true]);
        assert_eq!(filter.command(&[0, 0, 1], ALL, 1), Some(Change::Nothing));
        assert_eq!(passes(&filter), [true; 4]);
    }

    #[test]
    fn a_tagged_frame_passes_by_its_vlan() {
        let mut filter = Filter::default();
        let tagged = [&OWN[..], &[0; 6], &[0x81, 0, 0x60, 7], &[0; 48]].concat();
        assert!(!filter.passes(&tagged, OWN, ALL) && filter.passes(&tagged, OWN, ALL & !(1 << 19)));
        assert_eq!(filter.command(&[2, 0, 7, 0], ALL, 1), Some(Change::Nothing));
        assert!(filter.passes(&tagged, OWN, ALL));
        assert_eq!(filter.command(&[2, 1, 7, 0], ALL, 1), Some(Change::Nothing));
        assert!(!filter.passes(&tagged, OWN, ALL));
    }

    #[test]
    fn commands_that_are_wrong_or_were_not_negotiated_are_refused() {
        let mut filter = Filter::default();
        let wrong: [&[u8]; 8] =
            [&[], &[0], &[0, 6, 1], &[0, 0], &[1, 0, 9, 0, 0, 0], &[1, 1, 2, 0], &[4, 0, 3, 0], &[9, 9]];
        wrong.iter().for_each(|bytes| assert_eq!(filter.command(bytes, ALL, 2), None, "{bytes:?}"));
        assert_eq!(filter.command(&[0, 0, 1], 0, 2), None);
        assert_eq!(filter.command(&[4, 0, 2, 0], ALL, 2), Some(Change::Pairs(2)));
        assert_eq!(filter.command(&[3, 0], ALL, 2), Some(Change::Announced));
    }
}
