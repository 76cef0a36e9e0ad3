//! Frames: chunks of a [`Umem`] that their holder owns.

use crate::protocol::HEADER;
use crate::request::{self, Segmentation};
use crate::umem::Umem;
use std::ops::Range;
use towpath_packet::xsk_ring::Desc;

/// A chunk of the memory, or a part of it, that its holder alone uses. Dropping it makes the chunk
/// free.
///
/// The program trusts the datapath with the bytes, as it would trust the kernel with those of an
/// AF_XDP socket: the datapath writes only to posted frames, and reads only sent ones.
///
/// A received frame has a mark if its packet [continues](Frame::continues), and its
/// [header](Frame::vnet_header). Both are true of the packet that came, and may be false of
/// what the program makes of it: so [`Socket::tx`](crate::Socket::tx) refuses such a frame as
/// [`Error::Received`](crate::Error::Received) until the program has chosen.
/// [`forward`](Frame::forward) sends it as it came, [`set_range`](Frame::set_range) and
/// [`put`](Frame::put) as a packet by itself; [`set_continues`](Frame::set_continues) and the
/// requests replace the one or the other.
#[derive(Debug)]
pub struct Frame {
    umem: Umem,
    index: u32,
    /// First byte in the chunk.
    start: u32,
    len: u32,
    /// What its descriptor says: [`CONTINUED`], [`METADATA`].
    options: u8,
    /// Those that are as they were received.
    received: u8,
}

/// The packet continues in the next frame.
const CONTINUED: u8 = Desc::CONTINUED as u8;
/// A virtio-net header lies in front of the frame.
const METADATA: u8 = Desc::METADATA as u8;

impl Frame {
    /// The frame of a chunk, and what its descriptor has.
    ///
    /// The caller ensures that no other frame has the chunk: their bytes would be the same.
    #[inline]
    pub(crate) fn of(umem: Umem, index: u32, range: Range<u32>, options: u32) -> Frame {
        let len = range.end.saturating_sub(range.start);
        let options = options as u8 & (CONTINUED | METADATA);
        Frame { umem, index, start: range.start, len, options, received: options }
    }

    /// The chunk, first byte and length of the frame. The chunk does not become free, and the
    /// count of the frame's handle stays as it is.
    #[inline]
    pub(crate) fn into_parts(self) -> (u32, u32, u32) {
        let parts = (self.index, self.start, self.len);
        std::mem::forget(self);
        parts
    }

    #[inline]
    pub(crate) fn umem(&self) -> &Umem {
        &self.umem
    }

    /// Its first byte in the chunk.
    #[inline]
    pub(crate) fn start(&self) -> u32 {
        self.start
    }

    /// Bytes of the packet, or of its piece.
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Whether it is sent as it was received, which the program has not chosen.
    #[inline]
    pub(crate) fn is_as_received(&self) -> bool {
        self.received != 0
    }

    /// Whether a header lies in front of it.
    #[inline]
    pub(crate) fn has_header(&self) -> bool {
        self.options & METADATA != 0
    }

    fn at(&self) -> usize {
        self.index as usize * self.umem.chunk() as usize + self.start as usize
    }

    /// The bytes of the packet, or of its piece.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: chunk, start and length were bounded when the frame was made, so the bytes lie in
        // the region, which the frame borrows; no other frame has the chunk.
        unsafe { std::slice::from_raw_parts(self.umem.region().base().as_ptr().add(self.at()), self.len as usize) }
    }

    /// The bytes, for writing.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the frame is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.umem.region().base().as_ptr().add(self.at()), self.len as usize) }
    }

    /// Sets the range of the frame: `len` bytes from byte `start` of its chunk, with the contents
    /// of the chunk. The frame is then a packet by itself, without requests. False, without a
    /// change, if the chunk is too short.
    #[must_use]
    pub fn set_range(&mut self, start: u32, len: u32) -> bool {
        let fits = start.checked_add(len).is_some_and(|end| end <= self.umem.chunk());
        if fits {
            (self.start, self.len) = (start, len);
            (self.options, self.received) = (0, 0);
        }
        fits
    }

    /// Copies `bytes` to the beginning of the chunk, which becomes the range of the frame. False,
    /// without a change, if they are too many.
    #[must_use]
    pub fn put(&mut self, bytes: &[u8]) -> bool {
        let fits = u32::try_from(bytes.len()).is_ok_and(|len| self.set_range(0, len));
        if fits {
            self.bytes_mut().copy_from_slice(bytes);
        }
        fits
    }

    /// The virtio-net header of a packet with offloads, in the first of its frames, as received or
    /// requested; `None` for a finished packet. See [`Config::offloads`](crate::Config::offloads).
    pub fn vnet_header(&self) -> Option<[u8; HEADER]> {
        let start = (self.start as usize).checked_sub(HEADER).filter(|_| self.has_header())?;
        let at = self.index as usize * self.umem.chunk() as usize + start;
        // SAFETY: the header lies in the frame's chunk, in front of its bytes; no other frame has
        // the chunk.
        Some(unsafe { self.umem.region().base().add(at).cast::<[u8; HEADER]>().read() })
    }

    /// Asks for a checksum, in the first frame of a packet: the sum from byte `start` of the packet
    /// to its end goes into the field `offset` bytes behind `start`, which holds the sum over the
    /// pseudo-header. The request is written in front of the frame: false, without a request, if
    /// the frame begins less than 10 bytes into its chunk. Changing the frame's range drops the
    /// request.
    #[must_use]
    pub fn request_checksum(&mut self, start: u16, offset: u16) -> bool {
        self.put_header(request::checksum(start, offset))
    }

    /// Asks for segmentation of a super-packet, in the first of its frames. The egress segments it
    /// if it can, else the datapath. A session with
    /// [`Config::segmentation`](crate::Config::segmentation) sends super-packets in up to
    /// [`MAX_SUPER_PIECES`](crate::protocol::MAX_SUPER_PIECES) frames. A request that is not true
    /// of the packet ends the session. False as for [`request_checksum`](Frame::request_checksum).
    #[must_use]
    pub fn request_segmentation(&mut self, segmentation: Segmentation) -> bool {
        self.put_header(segmentation.header())
    }

    /// Writes a virtio-net header in front of the frame.
    fn put_header(&mut self, header: [u8; HEADER]) -> bool {
        let fits = self.start as usize >= HEADER;
        if fits {
            // SAFETY: the bytes in front of the frame lie in its chunk; no other frame has the
            // chunk.
            unsafe { self.umem.region().base().add(self.at() - HEADER).cast::<[u8; HEADER]>().write(header) };
            self.options |= METADATA;
            self.received &= !METADATA;
        }
        fits
    }

    /// Sends the frame as it was received: continued, and with its header, if it has that. All
    /// frames of the packet must then be sent, in order.
    pub fn forward(&mut self) {
        self.received = 0;
    }

    /// The options of its descriptor.
    #[inline]
    pub(crate) fn options(&self) -> u32 {
        self.options.into()
    }

    /// Whether the packet continues in the next frame.
    #[inline]
    pub fn continues(&self) -> bool {
        self.options & CONTINUED != 0
    }

    /// Sets whether the packet continues in the next frame that is sent. A packet has up to 18
    /// frames, a super-packet up to 64. Changing the frame's range clears it.
    pub fn set_continues(&mut self, continues: bool) {
        self.options = self.options & !CONTINUED | if continues { CONTINUED } else { 0 };
        self.received &= !CONTINUED;
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        self.umem.release(self.index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_have_bytes_of_their_own_and_come_back_when_dropped() {
        let umem = Umem::new(2, 256).unwrap();
        let (mut a, mut b) = (umem.alloc().unwrap(), umem.alloc().unwrap());
        assert!(umem.alloc().is_none());
        assert!(a.put(&[1; 256]) && b.put(&[2; 100]) && !b.put(&[3; 257]));
        assert!(a.bytes().iter().all(|&x| x == 1) && b.bytes() == [2; 100]);
        assert!(b.set_range(256, 0) && b.set_range(50, 10) && !b.set_range(u32::MAX, 2));
        assert_eq!(b.bytes(), [2; 10]);
        drop(a);
        assert!(umem.alloc().is_some());
    }

    #[test]
    fn a_frame_of_another_range_is_a_packet_by_itself() {
        let umem = Umem::new(1, 256).unwrap();
        let mut frame = umem.alloc().unwrap();
        let changes: [fn(&mut Frame) -> bool; 2] = [|frame| frame.set_range(10, 20), |frame| frame.put(&[7; 30])];
        for change in changes {
            assert!(frame.set_range(10, 60) && frame.request_checksum(34, 6));
            frame.set_continues(true);
            assert!(!frame.set_range(200, 57) && frame.continues() && frame.vnet_header().is_some(), "no change");
            assert!(change(&mut frame));
            assert!(!frame.continues() && frame.vnet_header().is_none());
        }
    }

    #[test]
    fn what_was_received_is_sent_only_after_a_choice() {
        let umem = Umem::new(1, 256).unwrap();
        let received = || Frame::of(umem.clone(), 0, 20..60, Desc::CONTINUED | Desc::METADATA);
        type Choice = fn(&mut Frame);
        let choices: [(Choice, u32); 4] = [
            (|frame| frame.forward(), Desc::CONTINUED | Desc::METADATA),
            (|frame| assert!(frame.set_range(0, 60)), 0),
            (|frame| assert!(frame.put(&[7; 30])), 0),
            (
                |frame| {
                    assert!(frame.request_checksum(34, 6));
                    assert!(frame.is_as_received(), "whether it continues is a choice of its own");
                    frame.set_continues(false);
                },
                Desc::METADATA,
            ),
        ];
        for (choose, options) in choices {
            let mut frame = received();
            assert!(frame.is_as_received() && frame.continues() && frame.vnet_header().is_some());
            choose(&mut frame);
            assert!(!frame.is_as_received());
            assert_eq!(frame.options(), options);
        }
        assert!(!Frame::of(umem.clone(), 0, 20..60, 0).is_as_received(), "a finished packet of one frame");
    }
}
