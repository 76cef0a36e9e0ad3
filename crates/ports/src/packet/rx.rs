//! The receive queue: a ring of frames that the kernel fills; a packet that is longer than a frame
//! comes from the socket's queue.

use crate::kernel::edge::EdgeGuard;
use crate::kernel::link::{LinkWatch, down, gone, passed};
use crate::kernel::rx_buffers::{RxBuffers, RxSlot};
use crate::vnet;
use crate::vnet::VnetHeader;
use std::io::IoSliceMut;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use towpath_packet::port::{Info, PortError, RxMemory, RxQueue, State, Wake};
use towpath_packet::{Batch, Counters, DropReason, Missed, Packet, Pool, Vlan};
use towpath_sys::af_packet::Socket;
use towpath_sys::netdev::LinkState;
use towpath_sys::packet_ring::{Frame, Rest, Ring, VlanTag};

/// Calls between two reads of the clock while packets arrive.
const CHECK_EVERY: u32 = 256;

/// A receive queue of an AF_PACKET port.
#[derive(Debug)]
pub struct PacketRx {
    ring: Ring,
    long: LongPackets,
    buffers: RxBuffers,
    state: State,
    /// The last call ran out of buffers: the descriptor does not tell when to call again.
    starved: bool,
    queue: u8,
    turn: u32,
    watch: LinkWatch,
    _edge: Arc<EdgeGuard>,
    counters: Arc<Counters>,
}

/// The socket, and buffers for a packet that is longer than a frame of the ring.
#[derive(Debug)]
struct LongPackets {
    socket: Socket,
    slot: RxSlot,
    calls: u64,
}

/// The reason why a frame of the ring is no packet.
enum RxError {
    /// No buffer: the frame stays where it is.
    Starved,
    /// Its header or tag is invalid.
    Malformed,
    /// The kernel lost the packet, or the rest of it.
    Missed(Missed),
}

/// The tag that the kernel moved from the frame to the ring's header.
#[inline]
fn vlan(tag: VlanTag) -> Result<Vlan, RxError> {
    match tag.tpid {
        0x8100 => Ok(Vlan { tci: tag.tci, service: false }),
        0x88a8 => Ok(Vlan { tci: tag.tci, service: true }),
        _ => Err(RxError::Malformed),
    }
}

impl LongPackets {
    /// The packet of the ring's next frame. After `Starved` the frame stays in the ring.
    #[inline]
    fn take(&mut self, frame: &Frame<'_>, buffers: &mut RxBuffers) -> Result<Packet, RxError> {
        let (header, mut packet) = match frame.rest {
            Rest::None => (VnetHeader::from_ne_bytes(frame.header), buffers.copy(frame.bytes).ok_or(RxError::Starved)?),
            Rest::Queued if !buffers.fill(&mut self.slot) => return Err(RxError::Starved),
            Rest::Queued => self.receive(frame.len)?,
            Rest::Lost => return Err(RxError::Missed(Missed::SocketBuffer)),
        };
        vnet::apply(header, &mut packet).map_err(|_| RxError::Malformed)?;
        packet.set_vlan(frame.vlan.map(vlan).transpose()?);
        packet.set_timestamp(frame.timestamp);
        Ok(packet)
    }

    #[inline]
    fn receive(&mut self, whole: usize) -> Result<(VnetHeader, Packet), RxError> {
        self.calls += 1;
        let mut header = [0; VnetHeader::LEN];
        let (head, tail) = self.slot.buffers();
        let mut vectors = [IoSliceMut::new(&mut header), IoSliceMut::new(head), IoSliceMut::new(tail)];
        // A pending error of the socket (the link went down) is returned once in place of the
        // packet, which stays the next one.
        let socket = &self.socket;
        let unreadable = RxError::Missed(Missed::Unreadable);
        let len = socket.receive(&mut vectors).or_else(|_| socket.receive(&mut vectors));
        let Ok(len) = len else { return Err(unreadable) };
        let len = len.checked_sub(VnetHeader::LEN).ok_or(RxError::Malformed)?;
        // Longer than any IP packet (`gso_max_size` of the interface is larger): the packet is
        // truncated.
        if len != whole || len == 0 {
            return Err(unreadable);
        }
        Ok((VnetHeader::from_ne_bytes(&header), self.slot.take(len).ok_or(RxError::Malformed)?))
    }
}

impl PacketRx {
    pub(super) fn new(
        info: &Info,
        (socket, ring): (Socket, Ring),
        queue: u8,
        watch: LinkWatch,
        edge: &Arc<EdgeGuard>,
        pool: &Pool,
    ) -> Result<PacketRx, PortError> {
        Ok(PacketRx {
            ring,
            long: LongPackets { socket, slot: RxSlot::default(), calls: 0 },
            buffers: RxBuffers::new(&info.name, pool)?,
            state: State::Up,
            starved: false,
            queue,
            turn: 0,
            watch,
            _edge: edge.clone(),
            counters: Arc::default(),
        })
    }

    fn set_link(&mut self, link: LinkState) {
        self.state = match link {
            LinkState::Up => State::Up,
            LinkState::Absent => gone(),
            LinkState::Down | LinkState::NoCarrier => down(link),
        };
        // A pending error (the link went down) would keep the socket readable.
        self.long.socket.clear_error();
        self.counters.missed(Missed::SocketRing, self.long.socket.take_drops());
    }

    /// Reads the state of the link and the kernel's drops, at intervals.
    #[inline]
    fn check_link(&mut self) {
        if let Some(link) = self.watch.poll() {
            self.set_link(link);
        }
    }
}

impl RxQueue for PacketRx {
    fn rx(&mut self, out: &mut Batch) -> usize {
        if self.state.ended() {
            return 0;
        }
        let (mut packets, mut bytes) = (0, 0);
        self.starved = false;
        for _ in 0..out.room() {
            let Some(frame) = self.ring.peek() else { break };
            let taken = frame.map_err(|_| RxError::Malformed).and_then(|f| self.long.take(&f, &mut self.buffers));
            match taken {
                Ok(mut packet) => {
                    packet.set_ingress(0, self.queue);
                    packets += 1;
                    bytes += packet.len() as u64;
                    // The loop runs at most `out.room()` times.
                    let _ = out.push(packet);
                }
                Err(RxError::Starved) => {
                    self.starved = true;
                    self.counters.retried(1);
                    break;
                }
                Err(RxError::Malformed) => self.counters.dropped(DropReason::Malformed, 1),
                Err(RxError::Missed(place)) => self.counters.missed(place, 1),
            }
            self.ring.release();
        }
        if packets > 0 {
            self.counters.moved(packets, bytes);
            passed(&mut self.state);
            self.counters.called(std::mem::take(&mut self.long.calls));
        }
        self.turn = self.turn.wrapping_add(1);
        if packets == 0 || self.turn.is_multiple_of(CHECK_EVERY) {
            self.check_link();
        }
        packets as usize
    }

    fn memory(&self) -> RxMemory {
        RxMemory::own_pool(self.buffers.own_pool())
    }

    fn state(&self) -> State {
        self.state.clone()
    }

    fn wake(&self) -> Wake {
        match self.state {
            State::Gone(_) => Wake::Never,
            _ if self.starved => Wake::Poll,
            _ => Wake::Fd(self.long.socket.as_raw_fd()),
        }
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}

impl Drop for PacketRx {
    /// Counts the kernel's drops since the last check.
    fn drop(&mut self) {
        self.counters.missed(Missed::SocketRing, self.long.socket.take_drops());
    }
}
