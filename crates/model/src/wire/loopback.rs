//! Loopback: the transmit pair is connected to the receive pair.

use super::Wire;
use std::collections::VecDeque;

/// The maximum of frames in flight.
const CAPACITY: usize = 1024;

/// Frames are received in the order in which they were sent.
#[derive(Debug, Default)]
pub struct Loopback {
    frames: VecDeque<Vec<u8>>,
    spare: Vec<Vec<u8>>,
}

impl Wire for Loopback {
    fn send(&mut self, frame: &[u8]) -> bool {
        if self.frames.len() >= CAPACITY {
            return false;
        }
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.clear();
        copy.extend_from_slice(frame);
        self.frames.push_back(copy);
        true
    }

    fn receive(&mut self, into: &mut Vec<u8>) -> bool {
        let Some(frame) = self.frames.pop_front() else { return false };
        self.spare.push(std::mem::replace(into, frame));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_return_in_order() {
        let mut wire = Loopback::default();
        assert!(wire.send(b"one") && wire.send(b"two"));
        let mut frame = Vec::new();
        assert!(wire.receive(&mut frame));
        assert_eq!(frame, b"one");
        assert!(wire.receive(&mut frame));
        assert_eq!(frame, b"two");
        assert!(!wire.receive(&mut frame));
    }

    #[test]
    fn a_full_loop_refuses() {
        let mut wire = Loopback::default();
        let sent = (0..).take_while(|_| wire.send(b"x")).count();
        assert_eq!(sent, CAPACITY);
        assert!(wire.receive(&mut Vec::new()) && wire.send(b"x"));
    }
}
