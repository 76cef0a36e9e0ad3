//! An application whose frames come back with their addresses swapped.

use crate::support::{LONGEST, until};
use std::path::Path;
use std::time::Instant;
use towpath_client::{Config, Frame, Socket, Umem};

/// Frames that wait for packets at a time; the others are there to be sent.
const POSTED: usize = 128;

pub(crate) struct Echo {
    socket: Socket,
    sent: u32,
    /// Frames that wait for packets.
    posted: usize,
}

impl Echo {
    /// Connects to a datapath that may still be starting.
    pub(crate) fn connect(path: &Path) -> Echo {
        let umem = Umem::new(256, 2048).unwrap();
        let mut socket = None;
        until("a session", || {
            socket = Socket::connect(&umem, path, &Config::default()).ok();
            socket.is_some()
        });
        Echo { socket: socket.unwrap(), sent: 0, posted: 0 }
    }

    /// Waits until the other side returns frames.
    pub(crate) fn is_reached(&mut self) {
        let end = Instant::now() + LONGEST / 2;
        let (mut frames, mut sent) = (Vec::new(), Instant::now());
        // Frames keep their order: once the last probe is back, none is on its way. One that was
        // dropped is followed by another.
        let mut last = Vec::new();
        while frames.last().is_none_or(|back: &Vec<u8>| back[12..] != last[12..]) {
            assert!(Instant::now() < end, "no frame comes back");
            if frames.is_empty() || sent.elapsed() > LONGEST / 20 {
                (last, sent) = (self.frame_of(60), Instant::now());
                self.send(std::slice::from_ref(&last));
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
            self.receive(&mut frames);
        }
    }

    /// Sends frames of these lengths, and expects each of them back, in order.
    #[track_caller]
    pub(crate) fn returns(&mut self, lengths: impl IntoIterator<Item = usize>) {
        let sent: Vec<_> = lengths.into_iter().map(|len| self.frame_of(len)).collect();
        self.send(&sent);
        let (mut got, end) = (Vec::new(), Instant::now() + LONGEST / 2);
        while got.len() < sent.len() {
            assert!(Instant::now() < end, "{} of {} frames came back", got.len(), sent.len());
            self.receive(&mut got);
            std::thread::yield_now();
        }
        for (sent, got) in sent.iter().zip(&got) {
            let expected = [&sent[6..12], &sent[..6], &sent[12..]].concat();
            assert!(*got == expected, "a frame of {} bytes came back with {} or other bytes", sent.len(), got.len());
        }
    }

    /// A frame that no other one equals: addresses, a type that nothing parses, and a pattern.
    fn frame_of(&mut self, len: usize) -> Vec<u8> {
        self.sent += 1;
        let number = self.sent.to_be_bytes();
        let mut bytes = [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5], &number[..]].concat();
        bytes.extend((18..len.max(18)).map(|i| (i as u32).wrapping_mul(self.sent) as u8));
        bytes.truncate(len);
        bytes
    }

    fn send(&mut self, frames: &[Vec<u8>]) {
        let mut all: Vec<Frame> = Vec::new();
        for bytes in frames {
            let mut frame = self.alloc();
            assert!(frame.put(bytes));
            all.push(frame);
        }
        let end = Instant::now() + LONGEST / 2;
        while !all.is_empty() {
            assert!(Instant::now() < end, "frames are not taken");
            self.socket.tx(&mut all).unwrap();
            self.free();
        }
    }

    fn alloc(&mut self) -> Frame {
        let end = Instant::now() + LONGEST / 2;
        loop {
            if let Some(frame) = self.socket.umem().alloc() {
                return frame;
            }
            assert!(Instant::now() < end, "frames are not completed");
            self.free();
        }
    }

    /// Frees what was sent.
    fn free(&mut self) {
        let mut back = Vec::new();
        self.socket.completions(&mut back).unwrap();
    }

    fn receive(&mut self, into: &mut Vec<Vec<u8>>) {
        self.free();
        let mut empty: Vec<_> = std::iter::from_fn(|| self.socket.umem().alloc()).take(POSTED - self.posted).collect();
        let (all, filled) = (empty.len(), self.socket.fill(&mut empty));
        filled.unwrap();
        self.posted += all - empty.len();
        let mut got = Vec::new();
        self.socket.rx(&mut got).unwrap();
        self.posted -= got.len();
        into.extend(got.iter().map(|frame| frame.bytes().to_vec()));
    }
}
