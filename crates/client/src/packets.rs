//! The rules of sent packets, checked before their frames are in the ring: the datapath would drop
//! such a packet, or end the session, and has no message that names the packet.

use crate::error::Error;
use crate::frame::Frame;
use crate::protocol::{MAX_PIECES, MAX_SUPER_PIECES, SHORTEST};
use crate::request::asks_for_segments;
use crate::umem::Umem;

/// What the session permits.
#[derive(Debug)]
pub(crate) struct Rules {
    /// Bytes of the longest packet that is not segmented.
    pub(crate) longest: u32,
    /// Super-packets may be sent.
    pub(crate) segmentation: bool,
    /// Of lengths, frames of a packet, and places of requests.
    pub(crate) checks: bool,
}

/// The packet whose last frame was not passed yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Partial {
    bytes: u32,
    pieces: usize,
    is_super: bool,
}

impl Rules {
    /// How many of the frames may be sent, and what is wrong with the packet behind them. A packet
    /// that `partial` began goes on.
    #[inline]
    pub(crate) fn check(&self, umem: &Umem, partial: &mut Partial, frames: &[Frame]) -> (usize, Option<Error>) {
        let (mut packet, mut first, before) = (*partial, 0, *partial);
        for (i, frame) in frames.iter().enumerate() {
            if let Err(error) = self.add(umem, &mut packet, frame) {
                // The frames of the packet that are not in the ring stay together.
                *partial = if first == 0 { before } else { Partial::default() };
                return (first, Some(error));
            }
            if !frame.continues() {
                (packet, first) = (Partial::default(), i + 1);
            }
        }
        *partial = packet;
        (frames.len(), None)
    }

    /// Adds a frame to a packet.
    #[inline]
    fn add(&self, umem: &Umem, packet: &mut Partial, frame: &Frame) -> Result<(), Error> {
        if !frame.umem().is(umem) {
            return Err(Error::OtherUmem);
        }
        if frame.len() == 0 {
            return Err(Error::Empty);
        }
        if frame.is_as_received() {
            return Err(Error::Received);
        }
        if frame.has_header() {
            if packet.pieces > 0 && self.checks {
                return Err(Error::LateRequest);
            }
            packet.is_super = frame.vnet_header().is_some_and(asks_for_segments);
            if packet.is_super && !self.segmentation {
                return Err(Error::Segmentation);
            }
        }
        if !self.checks {
            return Ok(());
        }
        packet.pieces += 1;
        packet.bytes += frame.len();
        let (bytes, is_super) = (packet.bytes, packet.is_super);
        if packet.pieces > if is_super { MAX_SUPER_PIECES } else { MAX_PIECES } {
            return Err(Error::Pieces);
        }
        let is_short = bytes < SHORTEST && !frame.continues();
        if is_short || (bytes > self.longest && !is_super) {
            return Err(Error::Length { bytes, longest: self.longest });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GsoKind, Segmentation};

    const RULES: Rules = Rules { longest: 1514, segmentation: true, checks: true };

    /// Frames of these lengths, with whether the packet continues.
    fn frames(umem: &Umem, lengths: &[(u32, bool)]) -> Vec<Frame> {
        let frame = |&(len, continues)| {
            let mut frame = umem.alloc().unwrap();
            assert!(frame.set_range(16, len));
            frame.set_continues(continues);
            frame
        };
        lengths.iter().map(frame).collect()
    }

    fn check(umem: &Umem, frames: &[Frame]) -> (usize, Option<String>) {
        let (n, error) = RULES.check(umem, &mut Partial::default(), frames);
        (n, error.map(|error| error.to_string()))
    }

    #[test]
    fn a_packet_of_a_wrong_length_is_named_with_the_rule_and_stays_whole() {
        let umem = Umem::new(16, 2048).unwrap();
        let passed = frames(&umem, &[(14, false), (1514, false), (1000, true), (514, false)]);
        assert_eq!(check(&umem, &passed), (4, None));
        let passed = frames(&umem, &[(60, false), (1000, true), (515, false)]);
        assert_eq!(check(&umem, &passed), (1, Some("a packet of 1515 bytes: must have 14 to 1514".to_owned())));
        let passed = frames(&umem, &[(13, false)]);
        assert_eq!(check(&umem, &passed), (0, Some("a packet of 13 bytes: must have 14 to 1514".to_owned())));
    }

    #[test]
    fn a_packet_goes_on_in_the_next_call() {
        let umem = Umem::new(16, 2048).unwrap();
        let mut partial = Partial::default();
        assert_eq!(RULES.check(&umem, &mut partial, &frames(&umem, &[(10, true)])).0, 1);
        let began = partial;
        let rest = frames(&umem, &[(1505, false)]);
        assert!(matches!(RULES.check(&umem, &mut partial, &rest), (0, Some(Error::Length { bytes: 1515, .. }))));
        assert_eq!(partial, began, "another rest may be sent");
        assert!(matches!(RULES.check(&umem, &mut partial, &frames(&umem, &[(1504, false)])), (1, None)));
        assert_eq!(partial, Partial::default());
    }

    #[test]
    fn requests_come_first_and_only_in_sessions_that_allow_them() {
        let umem = Umem::new(128, 2048).unwrap();
        let segmentation = Segmentation { kind: GsoKind::Tcp4, size: 1460, transport: 34 };
        let mut lengths = vec![(1000, true); 64];
        lengths[63].1 = false;
        let mut passed = frames(&umem, &lengths);
        assert!(matches!(RULES.check(&umem, &mut Partial::default(), &passed), (0, Some(Error::Length { .. }))));
        assert!(passed[0].request_segmentation(segmentation));
        assert!(matches!(RULES.check(&umem, &mut Partial::default(), &passed), (64, None)));
        let plain = Rules { segmentation: false, ..RULES };
        assert!(matches!(plain.check(&umem, &mut Partial::default(), &passed), (0, Some(Error::Segmentation))));
        assert!(passed[1].request_checksum(34, 16));
        assert!(matches!(RULES.check(&umem, &mut Partial::default(), &passed), (0, Some(Error::LateRequest))));
        let mut many = frames(&umem, &[(14, true); 19]);
        assert!(matches!(RULES.check(&umem, &mut Partial::default(), &many), (0, Some(Error::Pieces))));
        many[17].set_continues(false);
        assert!(matches!(RULES.check(&umem, &mut Partial::default(), &many), (19, None)));
    }
}
