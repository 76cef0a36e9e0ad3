//! smoltcp's tokens over a session.

use crate::offload::{self, Request, is_sound, request};
use smoltcp::phy::{self, DeviceCapabilities, PacketMeta};
use smoltcp::time::{Duration, Instant};
use std::collections::VecDeque;
use std::num::NonZeroU16;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::path::Path;
use towpath_client::protocol::{HEADER, Statistics};
use towpath_client::{Error, Frame, Sizes, Socket, Umem};
use towpath_wire::virtio_net::{DATA_VALID, NEEDS_CSUM, VnetHeader};
use towpath_wire::{ethernet, tcp, vlan};

/// Bytes of a chunk: the most that the protocol has, for super-packets of that length.
const CHUNK: u32 = 32768;
/// Bytes in front of a packet, for the request that is written there.
const HEADROOM: u32 = 16;
const _: () = assert!(HEADROOM as usize >= HEADER);
/// Frames in each direction.
const FRAMES: u32 = 128;
/// Bytes of two VLAN tags, which the datapath's longest frame may have.
const TAGS: u32 = 2 * vlan::HEADER_LEN as u32;

/// The configuration of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// Bytes of the longest IP packet that is sent unsegmented, at most 32738.
    pub mtu: usize,
    /// TCP is sent in super-packets, which the port or the datapath segments.
    pub segmentation: bool,
    /// The packets for the stack, as [`towpath_client::Config::rules`]: those of its address, and
    /// ARP, or `default`.
    pub rules: Vec<String>,
}

impl Default for Config {
    /// An MTU of 1500 bytes, with segmentation, the `default` packets.
    fn default() -> Config {
        Config { mtu: 1500, segmentation: true, rules: vec!["default".to_owned()] }
    }
}

/// Packets that did not get through, as far as the device knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Counts {
    /// Received packets with a wrong checksum, dropped.
    pub bad_checksums: u64,
    /// Sent packets that break a rule of the session, such as its longest frame, dropped.
    pub refused: u64,
}

/// A session as a device of smoltcp: frames of Ethernet, in both directions without a copy beside
/// the datapath's own.
///
/// smoltcp does not learn of errors: the device stops receiving and sending, and
/// [`wait`](Device::wait) returns what happened.
#[derive(Debug)]
pub struct Device {
    rx: Received,
    tx: Transmitter,
    mtu: usize,
    segmentation: bool,
}

/// The frames that smoltcp has not read.
#[derive(Debug)]
struct Received {
    waiting: VecDeque<Frame>,
    /// Those that wait to be posted.
    spent: Vec<Frame>,
    /// Where the datapath's frames are appended.
    burst: Vec<Frame>,
    /// A packet of several frames, in one piece.
    joined: Vec<u8>,
    bad_checksums: u64,
}

/// The socket, and the frames to send.
#[derive(Debug)]
struct Transmitter {
    socket: Socket,
    free: Vec<Frame>,
    /// Those that the ring had no room for.
    waiting: Vec<Frame>,
    refused: u64,
    /// What ended the session.
    error: Option<Error>,
}

impl Device {
    /// Opens a session with the datapath that listens at `path`: that of `towpath serve`.
    ///
    /// # Errors
    /// [`Error`]: those of [`Socket::connect`]; [`Error::Config`] for an MTU that the port does not
    /// send.
    pub fn connect(path: impl AsRef<Path>, config: &Config) -> Result<Device, Error> {
        let umem = Umem::new(2 * FRAMES, CHUNK)?;
        let session = towpath_client::Config::default()
            .rings(Sizes::all(FRAMES))
            .headroom(HEADROOM)
            .offloads(true)
            .segmentation(config.segmentation)
            .rules(config.rules.clone());
        let socket = Socket::connect(&umem, path, &session)?;
        let longest = socket.welcome().longest.saturating_sub(TAGS).min(CHUNK - HEADROOM) as usize;
        let longest = longest.saturating_sub(ethernet::HEADER_LEN);
        if !(576..=longest).contains(&config.mtu) {
            return Err(Error::Config(format!("mtu={}: must be from 576 to {longest}, the port's", config.mtu)));
        }
        let take = || std::iter::from_fn(|| umem.alloc()).take(FRAMES as usize).collect::<Vec<_>>();
        let (spent, free) = (take(), take());
        let rx = Received { waiting: VecDeque::new(), spent, burst: Vec::new(), joined: Vec::new(), bad_checksums: 0 };
        let tx = Transmitter { socket, free, waiting: Vec::new(), refused: 0, error: None };
        let mut device = Device { rx, tx, mtu: config.mtu, segmentation: config.segmentation };
        device.turn();
        Ok(device)
    }

    /// Waits until packets came in or frames came back, or until the time is over: that of
    /// smoltcp's `Interface::poll_delay`.
    ///
    /// # Errors
    /// [`Error`] once the session is over.
    pub fn wait(&mut self, at_most: Option<Duration>) -> Result<(), Error> {
        if let Some(error) = self.tx.error.take() {
            return Err(error);
        }
        let is_full = self.tx.free.is_empty();
        let at_most = match at_most {
            // smoltcp has more to send, for which there is no frame.
            Some(Duration::ZERO) if is_full => Some(Duration::from_millis(1)),
            Some(Duration::ZERO) => return Ok(()),
            at_most => at_most,
        };
        if is_full || self.rx.is_empty() {
            self.tx.socket.wait(at_most.map(Into::into))?;
        }
        Ok(())
    }

    /// The session, for a program that waits by a loop of its own: [`Socket::arm`],
    /// [`Socket::disarm`].
    pub fn socket(&mut self) -> &mut Socket {
        &mut self.tx.socket
    }

    /// The packets that the device dropped.
    pub fn counts(&self) -> Counts {
        Counts { bad_checksums: self.rx.bad_checksums, refused: self.tx.refused }
    }

    /// What the datapath has counted for the session.
    pub fn statistics(&self) -> Statistics {
        self.tx.socket.statistics()
    }

    /// Moves frames between the rings and the queues.
    fn turn(&mut self) {
        if self.tx.error.is_none()
            && let Err(error) = self.try_turn()
        {
            self.tx.error = Some(error);
        }
    }

    fn try_turn(&mut self) -> Result<(), Error> {
        let Device { rx, tx, .. } = self;
        tx.socket.completions(&mut tx.free)?;
        tx.flush();
        if rx.is_empty() {
            tx.socket.fill(&mut rx.spent)?;
            tx.socket.rx(&mut rx.burst)?;
            rx.waiting.extend(rx.burst.drain(..));
        }
        Ok(())
    }
}

impl Received {
    /// No packet is complete: there is none, or the datapath has not passed all its frames.
    fn is_empty(&self) -> bool {
        self.waiting.iter().all(Frame::continues)
    }

    /// The next sound packet, in `joined` or in its frame.
    fn next(&mut self) -> Option<Packet> {
        loop {
            let first = self.waiting.pop_front()?;
            let known = |header| VnetHeader::from_ne_bytes(&header).flags & (NEEDS_CSUM | DATA_VALID) != 0;
            let is_known = first.vnet_header().is_some_and(known);
            let packet = if first.continues() { self.join(first)? } else { Packet::Frame(first) };
            let bytes = match &packet {
                Packet::Frame(frame) => frame.bytes(),
                Packet::Joined => &self.joined,
            };
            if is_sound(bytes, is_known) {
                return Some(packet);
            }
            self.bad_checksums += 1;
            if let Packet::Frame(frame) = packet {
                self.spent.push(frame);
            }
        }
    }

    /// Joins the frames of a packet. `None` if its last one has not come: they wait for it.
    fn join(&mut self, first: Frame) -> Option<Packet> {
        let Some(last) = self.waiting.iter().position(|frame| !frame.continues()) else {
            self.waiting.push_front(first);
            return None;
        };
        self.joined.clear();
        for frame in std::iter::once(first).chain(self.waiting.drain(..=last)) {
            self.joined.extend_from_slice(frame.bytes());
            self.spent.push(frame);
        }
        Some(Packet::Joined)
    }
}

/// The place of a received packet.
#[derive(Debug)]
enum Packet {
    Frame(Frame),
    Joined,
}

impl Transmitter {
    /// Sends what waits, as far as the ring has room.
    fn flush(&mut self) {
        while !self.waiting.is_empty() {
            match self.socket.tx(&mut self.waiting) {
                Ok(_) => return,
                // The first packet breaks a rule: it is one frame, as all are here.
                Err(_) => {
                    self.refused += 1;
                    self.free.extend(self.waiting.drain(..1));
                }
            }
        }
    }

    /// A frame, as long as the ring keeps up.
    fn token(&mut self) -> Option<TxToken<'_>> {
        let frame = self.free.pop().filter(|_| self.error.is_none())?;
        Some(TxToken { frame: Some(frame), size: None, tx: self })
    }
}

impl phy::Device for Device {
    type RxToken<'a> = RxToken<'a>;
    type TxToken<'a> = TxToken<'a>;

    fn receive(&mut self, _timestamp: Instant) -> Option<(RxToken<'_>, TxToken<'_>)> {
        self.turn();
        if self.tx.free.is_empty() {
            return None;
        }
        let packet = self.rx.next()?;
        Some((RxToken { packet: Some(packet), rx: &mut self.rx }, self.tx.token()?))
    }

    fn transmit(&mut self, _timestamp: Instant) -> Option<TxToken<'_>> {
        self.turn();
        self.tx.token()
    }

    fn capabilities(&self) -> DeviceCapabilities {
        offload::capabilities(self.mtu, if self.segmentation { (CHUNK - HEADROOM) as usize } else { 0 })
    }
}

/// A received packet.
#[derive(Debug)]
pub struct RxToken<'a> {
    packet: Option<Packet>,
    rx: &'a mut Received,
}

impl phy::RxToken for RxToken<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        match &self.packet {
            Some(Packet::Frame(frame)) => f(frame.bytes()),
            _ => f(&self.rx.joined),
        }
    }
}

impl Drop for RxToken<'_> {
    fn drop(&mut self) {
        if let Some(Packet::Frame(frame)) = self.packet.take() {
            self.rx.spent.push(frame);
        }
    }
}

/// Room for a packet.
#[derive(Debug)]
pub struct TxToken<'a> {
    frame: Option<Frame>,
    /// Payload bytes of each segment of a super-packet.
    size: Option<NonZeroU16>,
    tx: &'a mut Transmitter,
}

impl phy::TxToken for TxToken<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(mut self, len: usize, f: F) -> R {
        let fits = u32::try_from(len).ok();
        let frame = self.frame.take().and_then(|mut frame| frame.set_range(HEADROOM, fits?).then_some(frame));
        let Some(mut frame) = frame else {
            // No such packet was offered in the capabilities.
            self.tx.refused += 1;
            return f(&mut vec![0; len]);
        };
        let result = f(frame.bytes_mut());
        let (request, len) = request(frame.bytes_mut(), self.size);
        // Both fit: the frame becomes no longer, and begins behind the room for a request.
        let _ = frame.set_range(HEADROOM, len as u32)
            && match request {
                Request::None => true,
                Request::Checksum(start) => frame.request_checksum(start, tcp::offset::CHECKSUM as u16),
                Request::Segments(segmentation) => frame.request_segmentation(segmentation),
            };
        self.tx.waiting.push(frame);
        self.tx.flush();
        result
    }

    fn set_meta(&mut self, meta: PacketMeta) {
        self.size = meta.segmentation_offload_size;
    }
}

impl Drop for TxToken<'_> {
    fn drop(&mut self) {
        self.tx.free.extend(self.frame.take());
    }
}

/// The descriptor of the session: see [`Socket`].
impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tx.socket.as_fd()
    }
}

/// The descriptor of the session, the same one until the device is dropped.
impl AsRawFd for Device {
    fn as_raw_fd(&self) -> RawFd {
        self.tx.socket.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_whose_last_frame_is_missing_is_joined_once_that_has_come() {
        let umem = Umem::new(2, 256).unwrap();
        let frame = |bytes: &[u8], continues| {
            let mut frame = umem.alloc().unwrap();
            assert!(frame.put(bytes));
            frame.set_continues(continues);
            frame
        };
        let (first, last) = (frame(&[7; 60], true), frame(&[8; 40], false));
        let (spent, burst, joined) = (Vec::new(), Vec::new(), Vec::new());
        let mut rx = Received { waiting: [first].into(), spent, burst, joined, bad_checksums: 0 };
        assert!(rx.next().is_none() && rx.is_empty(), "more is read");
        rx.waiting.push_back(last);
        assert!(!rx.is_empty() && matches!(rx.next(), Some(Packet::Joined)));
        assert_eq!(rx.joined, [[7; 60].as_slice(), &[8; 40]].concat());
        assert_eq!((rx.spent.len(), rx.waiting.len(), rx.bad_checksums), (2, 0, 0));
    }
}
