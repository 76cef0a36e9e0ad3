//! A ring of received frames in memory that the kernel and this process share: `PACKET_RX_RING` of
//! TPACKET_V2 (`Documentation/networking/packet_mmap.rst`, `tpacket_rcv` in
//! `net/packet/af_packet.c`).
//!
//! ```text
//!   frame i:  tpacket2_hdr 32 | sockaddr_ll … | virtio-net header 10 | the packet, or as much of it as fits
//!             status                                                 └ at `mac`
//! ```
//!
//! The status word names the frame's owner: the kernel (`TP_STATUS_KERNEL`, 0) or user space
//! (`TP_STATUS_USER`, 1). A packet that is longer than its frame is also queued whole in the
//! socket's own queue, in the same order, if the frame has `TP_STATUS_COPY` (`PACKET_COPY_THRESH`).
//!
//! The kernel does not write to a frame of user space. Offsets and lengths in it are checked
//! nevertheless.

use super::af_packet::Socket;
use super::mmap::Mmap;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes of a frame: a packet of ordinary size and its headers.
pub const FRAME: usize = 2048;
/// Bytes of a block, which the kernel allocates in one piece.
const BLOCK: usize = FRAME * FRAMES_PER_BLOCK;
/// The number of frames is a multiple of this.
pub const FRAMES_PER_BLOCK: usize = 64;
/// Bytes of `tpacket2_hdr`.
const HEADER: usize = 32;

/// The mapped ring of one socket.
#[derive(Debug)]
pub struct Ring {
    map: Mmap,
    frames: usize,
    next: usize,
}

/// A packet that arrived.
#[derive(Debug)]
pub struct Frame<'a> {
    /// The virtio-net header in front of it.
    pub header: &'a [u8; 10],
    /// Its first bytes, as many as fit into the frame.
    pub bytes: &'a [u8],
    /// Length of the whole packet.
    pub len: usize,
    /// Place of the bytes that did not fit.
    pub rest: Rest,
    /// The VLAN tag that was taken off.
    pub vlan: Option<VlanTag>,
    /// When it arrived, in nanoseconds since the epoch.
    pub timestamp: u64,
}

/// Place of the bytes that did not fit into a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    /// All bytes fitted.
    None,
    /// The whole packet is the next one of the socket's queue.
    Queued,
    /// None: the socket's buffer was full.
    Lost,
}

impl Ring {
    /// Makes the ring of an unbound socket; `frames` is rounded up to whole blocks.
    ///
    /// # Errors
    /// The error of `setsockopt(2)` or `mmap(2)`; `EBUSY` if the socket has a ring.
    pub fn new(socket: &Socket, frames: usize) -> io::Result<Ring> {
        let blocks = frames.div_ceil(FRAMES_PER_BLOCK).max(1);
        let frames = blocks * FRAMES_PER_BLOCK;
        socket.make_rx_ring(BLOCK, blocks, FRAME)?;
        Ok(Ring { map: Mmap::shared(socket.as_fd(), 0, BLOCK * blocks)?, frames, next: 0 })
    }

    /// Frames of the ring.
    pub fn frames(&self) -> usize {
        self.frames
    }

    fn status(&self) -> &AtomicU32 {
        let at = self.map.base().as_ptr().wrapping_add(self.next * FRAME).cast();
        // SAFETY: `next` is below the number of frames, so this is the first word of a frame:
        // inside the mapping, aligned, and changed by the kernel with whole stores.
        unsafe { AtomicU32::from_ptr(at) }
    }

    /// The next packet, if one has arrived. It stays the next one until [`release`](Ring::release).
    ///
    /// # Errors
    /// [`BadFrame`] if an offset or length is out of range.
    #[inline]
    pub fn peek(&self) -> Option<Result<Frame<'_>, BadFrame>> {
        // Acquire: the kernel wrote the frame before it wrote the status.
        let status = self.status().load(Ordering::Acquire);
        if status & libc::TP_STATUS_USER == 0 {
            return None;
        }
        // SAFETY: the frame lies inside the mapping, is initialised (the mapping began as zeroes),
        // and belongs to user space: the kernel does not write to it until `release`, which takes
        // this value exclusively and so ends the borrow.
        let frame = unsafe { std::slice::from_raw_parts(self.map.base().as_ptr().add(self.next * FRAME), FRAME) };
        Some(parse(frame, status).ok_or(BadFrame))
    }

    /// Returns the next packet's frame to the kernel.
    #[inline]
    pub fn release(&mut self) {
        // Release: the reads of the frame come before the kernel's writes.
        self.status().store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.next = if self.next + 1 == self.frames { 0 } else { self.next + 1 };
    }
}

/// A frame with an offset or length out of range.
#[derive(Debug)]
pub struct BadFrame;

#[inline]
fn parse(frame: &[u8], status: u32) -> Option<Frame<'_>> {
    let (fields, _) = frame.split_first_chunk::<HEADER>()?;
    let word = |at: usize| u32::from_ne_bytes([fields[at], fields[at + 1], fields[at + 2], fields[at + 3]]);
    let half = |at: usize| u16::from_ne_bytes([fields[at], fields[at + 1]]);
    let (len, present, mac) = (word(4) as usize, word(8) as usize, usize::from(half(12)));
    let bytes = frame.get(mac..mac.checked_add(present)?)?;
    let header = frame.get(HEADER..mac)?.last_chunk()?;
    let rest = match status {
        _ if bytes.len() == len => Rest::None,
        _ if status & libc::TP_STATUS_COPY != 0 => Rest::Queued,
        _ => Rest::Lost,
    };
    let timestamp = u64::from(word(16)) * 1_000_000_000 + u64::from(word(20));
    let vlan = vlan_tag(status, half(24), half(26));
    Some(Frame { header, bytes, len, rest, vlan, timestamp })
}

/// A VLAN tag that the kernel moved from the packet to the frame's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VlanTag {
    /// Priority, drop eligibility and VLAN identifier.
    pub tci: u16,
    /// The tag's EtherType.
    pub tpid: u16,
}

/// The packet's tag. Before Linux 3.14 the kernel gives no type, which means 802.1Q.
#[inline]
fn vlan_tag(status: u32, tci: u16, tpid: u16) -> Option<VlanTag> {
    let has = |bit| status & bit != 0;
    let tpid = if has(libc::TP_STATUS_VLAN_TPID_VALID) { tpid } else { 0x8100 };
    has(libc::TP_STATUS_VLAN_VALID).then_some(VlanTag { tci, tpid })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_tag_is_valid_only_with_its_status_bit() {
        assert_eq!(vlan_tag(0, 5, 0x8100), None);
        assert_eq!(vlan_tag(0x10, 5, 0), Some(VlanTag { tci: 5, tpid: 0x8100 }));
        assert_eq!(vlan_tag(0x50, 5, 0x88a8), Some(VlanTag { tci: 5, tpid: 0x88a8 }));
    }

    #[test]
    fn the_fields_of_a_frame_are_found_where_the_kernel_puts_them() {
        let mut frame = vec![0; FRAME];
        frame[4..8].copy_from_slice(&70_000u32.to_ne_bytes());
        frame[8..12].copy_from_slice(&100u32.to_ne_bytes());
        frame[12..14].copy_from_slice(&76u16.to_ne_bytes());
        frame[16..20].copy_from_slice(&2u32.to_ne_bytes());
        frame[20..24].copy_from_slice(&3u32.to_ne_bytes());
        frame[66] = 1;
        frame[76] = 42;
        let f = parse(&frame, 1).unwrap();
        assert_eq!((f.bytes.len(), f.bytes[0], f.header[0], f.timestamp), (100, 42, 1, 2_000_000_003));
        assert_eq!((f.rest, parse(&frame, 3).unwrap().rest), (Rest::Lost, Rest::Queued));
    }

    proptest! {
        #[test]
        fn any_frame_is_parsed_or_refused(fields: [u8; 32], status: u32) {
            let mut frame = vec![0; FRAME];
            frame[..HEADER].copy_from_slice(&fields);
            if let Some(f) = parse(&frame, status) {
                prop_assert!(f.bytes.len() <= FRAME - HEADER - 10);
            }
        }
    }
}
