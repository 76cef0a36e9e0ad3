//! An application that is a host: assembles packets from frames, sends packets as frames, and
//! implements as much TCP as a stream in one direction needs.

use std::time::Duration;
use towpath::wire::dissect::Stop;
use towpath::wire::emit::{Checksums, Headers, Ip, Link, Network, Tcp, Transport, mss_and_window_scale};
use towpath::wire::tcp::flags;
use towpath::wire::{LinkKind, dissect, ip, tcp};
use towpath_client::protocol::HEADER;
use towpath_client::{Frame, Segmentation, Socket, Umem};

/// Its addresses.
pub(crate) const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
pub(crate) const IP: [u8; 4] = [10, 0, 0, 2];

/// Payload bytes of a segment: Ethernet's MTU without headers.
pub(crate) const MSS: u16 = 1460;
/// The first sequence number; it wraps in the middle of a stream.
const FIRST: u32 = u32::MAX - 1_000_000;
/// The window scale.
const SCALE: u8 = 4;

/// A received packet.
pub(crate) struct Packet {
    pub(crate) bytes: Vec<u8>,
    pub(crate) header: Option<[u8; HEADER]>,
}

/// Sends and receives packets.
pub(crate) struct Host {
    socket: Socket,
    empty: Vec<Frame>,
    /// Fragments of an incomplete packet.
    pieces: Vec<Frame>,
}

impl Host {
    /// Half of the memory is for receiving, half for sending.
    pub(crate) fn new(umem: &Umem, socket: Socket) -> Host {
        let empty = std::iter::from_fn(|| umem.alloc()).take(umem.count() as usize / 2).collect();
        Host { socket, empty, pieces: Vec::new() }
    }

    /// Received packets, possibly none after a short wait; `None` when the session has ended.
    pub(crate) fn receive(&mut self) -> Option<Vec<Packet>> {
        self.reap();
        self.socket.fill(&mut self.empty).unwrap();
        let begin = self.pieces.len();
        if self.socket.rx(&mut self.pieces).unwrap() == 0 {
            self.socket.wait(Some(Duration::from_millis(2))).ok()?;
            self.socket.rx(&mut self.pieces).unwrap();
        }
        let mut packets = Vec::new();
        let mut looked = begin;
        while let Some(last) = self.pieces.iter().skip(looked).position(|piece| !piece.continues()) {
            let packet: Vec<_> = self.pieces.drain(..=looked + last).collect();
            let bytes = packet.iter().flat_map(Frame::bytes).copied().collect();
            packets.push(Packet { bytes, header: packet[0].vnet_header() });
            self.empty.extend(packet);
            looked = 0;
        }
        Some(packets)
    }

    /// Takes completed frames back.
    fn reap(&mut self) {
        self.socket.completions(&mut Vec::new()).unwrap();
    }

    /// Sends a packet, with or without segmentation; waits for frames if there are too few.
    pub(crate) fn send(&mut self, bytes: &[u8], segmentation: Option<Segmentation>) {
        let room = self.socket.umem().chunk() - HEADER as u32;
        let mut frames: Vec<Frame> = Vec::new();
        for piece in bytes.chunks(room as usize) {
            let mut frame = loop {
                match self.socket.umem().alloc() {
                    Some(frame) => break frame,
                    None if self.socket.wait(Some(Duration::from_millis(1))).is_err() => return,
                    None => self.reap(),
                }
            };
            assert!(frame.set_range(HEADER as u32, piece.len() as u32));
            frame.bytes_mut().copy_from_slice(piece);
            frame.set_continues(true);
            frames.push(frame);
        }
        frames.last_mut().unwrap().set_continues(false);
        assert!(segmentation.is_none_or(|asked| frames[0].request_segmentation(asked)));
        while !frames.is_empty() {
            if self.socket.tx(&mut frames).unwrap() == 0 && self.socket.wait(Some(Duration::from_millis(1))).is_err() {
                return;
            }
        }
    }
}

/// A received TCP segment.
pub(crate) struct Segment<'a> {
    mac: [u8; 6],
    ip: [u8; 4],
    ports: (u16, u16),
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: u8,
    window: u32,
    scale: u8,
    pub(crate) payload: &'a [u8],
}

impl<'a> Segment<'a> {
    /// Reads a packet; `None` if it is not TCP.
    pub(crate) fn of(bytes: &'a [u8]) -> Option<Segment<'a>> {
        let found = dissect(bytes, LinkKind::Ethernet);
        if found.stop != Stop::Complete || found.flow.protocol != ip::protocol::TCP || !found.is_ipv4() {
            return None;
        }
        let tcp = tcp::Tcp::parse(&bytes[usize::from(found.l4)..]).ok()?;
        let scale = tcp.options().find_map(|option| match option {
            Ok(tcp::TcpOption::WindowScale(scale)) => Some(scale),
            _ => None,
        });
        Some(Segment {
            mac: bytes[6..12].try_into().ok()?,
            ip: found.flow.src.to_ipv4_mapped()?.octets(),
            ports: (found.flow.src_port, found.flow.dst_port),
            seq: tcp.seq(),
            ack: tcp.ack(),
            flags: tcp.flags(),
            window: tcp.window().into(),
            scale: scale.unwrap_or(0),
            payload: &bytes[usize::from(found.payload)..found.end as usize],
        })
    }
}

/// A connection that the peer opened. Positions of both directions count from the byte after the
/// SYN.
pub(crate) struct Connection {
    mac: [u8; 6],
    ip: [u8; 4],
    /// Ports of the peer and of this host.
    ports: (u16, u16),
    theirs: u32,
    scale: u8,
    /// Bytes received in order.
    pub(crate) received: u32,
    /// Bytes that the peer has acknowledged.
    pub(crate) acknowledged: u32,
    /// The peer's window behind those.
    pub(crate) window: u32,
}

impl Connection {
    /// Starts a connection from the peer's SYN.
    pub(crate) fn of(syn: &Segment<'_>) -> Connection {
        let &Segment { mac, ip, ports, seq, window, scale, .. } = syn;
        Connection { mac, ip, ports, theirs: seq.wrapping_add(1), scale, received: 0, acknowledged: 0, window }
    }

    /// The stream position of the peer's segment.
    pub(crate) fn position(&self, segment: &Segment<'_>) -> u32 {
        segment.seq.wrapping_sub(self.theirs)
    }

    /// Takes the acknowledgement of a segment; returns whether it is new.
    pub(crate) fn acknowledge(&mut self, segment: &Segment<'_>) -> bool {
        let acknowledged = segment.ack.wrapping_sub(FIRST);
        // An older acknowledgement.
        if acknowledged.wrapping_sub(self.acknowledged) >= 1 << 31 {
            return false;
        }
        self.window = segment.window << self.scale;
        std::mem::replace(&mut self.acknowledged, acknowledged) < acknowledged
    }

    /// The SYN-ACK.
    pub(crate) fn accept(&self) -> Vec<u8> {
        let options = mss_and_window_scale(MSS, SCALE);
        self.packet(u32::MAX, flags::SYN | flags::ACK, &options, &[])
    }

    /// A packet with stream bytes at `position`: complete or, if it exceeds a segment, to be
    /// segmented.
    pub(crate) fn data(&self, position: u32, flags: u8, payload: &[u8]) -> (Vec<u8>, Option<Segmentation>) {
        let whole = payload.len() > MSS.into();
        let asked = Segmentation { kind: towpath_client::GsoKind::Tcp4, size: MSS, transport: 34 };
        (self.packet(position, flags | flags::ACK, &[], payload), whole.then_some(asked))
    }

    fn packet(&self, position: u32, flags: u8, options: &[u8], payload: &[u8]) -> Vec<u8> {
        let tcp = Tcp {
            src_port: self.ports.1,
            dst_port: self.ports.0,
            seq: FIRST.wrapping_add(position),
            ack: self.theirs.wrapping_add(self.received),
            flags,
            window: u16::MAX,
            options,
        };
        let link = Link { dst: self.mac, src: MAC, ..Link::default() };
        let headers = Headers { link: Some(link), network: Network::Ip(Ip::v4(IP, self.ip), Transport::Tcp(tcp)) };
        let sums = if payload.len() > MSS.into() { Checksums::Partial } else { Checksums::Complete };
        let mut bytes = vec![0; headers.len() + payload.len()];
        headers.emit(&mut bytes, payload, sums).unwrap();
        bytes
    }
}
