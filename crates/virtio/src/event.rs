//! Event suppression: when the other side is to be notified (virtio 1.2, 2.7.7, 2.7.10 and 2.8.14).
//!
//! ```text
//!   one that publishes:  store index or flags (Release) │ fence │ read event ── wanted? ──► notify
//!   one that sleeps:     store event                    │ fence │ look once more │ sleep
//! ```
//!
//! It is Dekker's pattern, as in [`towpath_packet::notify`], whose fences are used: of the two
//! fences one is first. Either the publisher sees the event, or the sleeper sees the entry.

/// Packed: notifications are requested (`RING_EVENT_FLAGS_ENABLE`).
pub(crate) const ENABLE: u16 = 0;
/// Packed: none are (`RING_EVENT_FLAGS_DISABLE`).
pub(crate) const DISABLE: u16 = 1;
/// Packed: one at a position of the ring (`RING_EVENT_FLAGS_DESC`).
pub(crate) const AT_DESC: u16 = 2;
/// Split: the flag that requests none (`VIRTQ_AVAIL_F_NO_INTERRUPT`, `VIRTQ_USED_F_NO_NOTIFY`).
pub(crate) const NO_NOTIFICATION: u16 = 1;

/// Whether the index passed `event` when it went from `old` to `new` (`vring_need_event`).
#[inline]
pub(crate) fn passed(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

/// The word of a packed event area.
#[inline]
pub(crate) fn word(position: u16, wrap: bool, flags: u16) -> u32 {
    u32::from(position) | u32::from(wrap) << 15 | u32::from(flags) << 16
}

/// Whether the other side's event area requests a notification about `added` descriptors that end
/// at `position`, of a ring of `size`.
#[inline]
pub(crate) fn packed_wants(event: u32, position: u16, wrap: bool, size: u16, added: u16) -> bool {
    match (event >> 16) as u16 & 3 {
        DISABLE => false,
        // All around the ring each position was passed. Wrap counters distinguish two laps only.
        AT_DESC if added >= size => true,
        AT_DESC => {
            let mut at = event as u16 & 0x7fff;
            if (event >> 15 & 1 != 0) != wrap {
                at = at.wrapping_sub(size);
            }
            passed(at, position, position.wrapping_sub(added))
        }
        _ => true,
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_passed_by_the_entry_at_its_index_and_by_no_other() {
        for old in [0u16, 7, 65_530, 65_535] {
            for n in 0..20u16 {
                for ahead in 0..40u16 {
                    let event = old.wrapping_add(ahead);
                    assert_eq!(passed(event, old.wrapping_add(n), old), ahead < n, "{old} + {n}, event + {ahead}");
                }
                assert!(!passed(old.wrapping_sub(1), old.wrapping_add(n), old), "the event lies behind");
            }
        }
    }

    #[test]
    fn a_packed_event_is_passed_around_the_end_of_the_ring() {
        const SIZE: u16 = 5;
        // Positions as a line: 0..5 with wrap 1, 5..10 with wrap 0, and so on.
        let at = |line: u16| (line % SIZE, (line / SIZE).is_multiple_of(2));
        for from in 0..20 {
            for added in 1..=3 * SIZE {
                let (position, wrap) = at(from + added);
                for ahead in 0..SIZE {
                    let (event, event_wrap) = at(from + ahead);
                    let wants = packed_wants(word(event, event_wrap, AT_DESC), position, wrap, SIZE, added);
                    assert_eq!(wants, ahead < added, "{from} + {added}, event + {ahead}");
                }
            }
        }
        assert!(packed_wants(word(3, true, ENABLE), 0, true, SIZE, 1));
        assert!(!packed_wants(word(0, true, DISABLE), 0, true, SIZE, SIZE));
    }
}
