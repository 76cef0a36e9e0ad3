//! What comes in through the interface: out of a ring that the kernel fills, longer packets out of the socket's queue.

use crate::kernel::link::{LinkWatch, down, gone};
use crate::kernel::rx_buffers::{Landing, Place};
use crate::vnet;
use crate::vnet::VnetHeader;
use std::io::IoSliceMut;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use towpath_packet::port::{Info, PortError, RxMemory, RxQueue, State, Wake};
use towpath_packet::{Batch, Counters, DropReason, Packet, Pool, Vlan};
use towpath_sys::af_packet::Socket;
use towpath_sys::netdev::Link;
use towpath_sys::packet_ring::{Frame, Rest, Ring, Tag};

/// Calls between two looks at the clock while packets keep coming.
const LOOK_EVERY: u32 = 256;

/// A receive queue of an AF_PACKET port.
#[derive(Debug)]
pub struct PacketRx {
    ring: Ring,
    long: LongPackets,
    landing: Landing,
    state: State,
    /// The last call ended for want of buffers, so the descriptor says nothing about when to come again.
    starved: bool,
    queue: u8,
    turn: u32,
    watch: LinkWatch,
    counters: Arc<Counters>,
}

/// The socket, and a place for a packet that is longer than a frame of the ring.
#[derive(Debug)]
struct LongPackets {
    socket: Socket,
    place: Place,
    calls: u64,
}

/// Why a frame of the ring became no packet.
enum Lost {
    /// No buffer: the frame stays where it is.
    Starved,
    /// What the kernel said of it cannot be.
    Malformed,
    /// The kernel had no room for the rest of it.
    Missed,
}

/// The tag that the kernel took off a frame.
#[inline]
fn vlan(tag: Tag) -> Result<Vlan, Lost> {
    match tag.tpid {
        0x8100 => Ok(Vlan { tci: tag.tci, service: false }),
        0x88a8 => Ok(Vlan { tci: tag.tci, service: true }),
        _ => Err(Lost::Malformed),
    }
}

impl LongPackets {
    /// The packet that the next frame of the ring is about. Only one that stays in the ring has taken nothing.
    #[inline]
    fn take(&mut self, frame: &Frame<'_>, landing: &mut Landing) -> Result<Packet, Lost> {
        let (header, mut packet) = match frame.rest {
            Rest::None => (VnetHeader::from_ne_bytes(frame.header), landing.copy(frame.bytes).ok_or(Lost::Starved)?),
            Rest::Queued if !landing.fill(&mut self.place) => return Err(Lost::Starved),
            Rest::Queued => self.receive(frame.len)?,
            Rest::Lost => return Err(Lost::Missed),
        };
        vnet::apply(header, &mut packet).map_err(|_| Lost::Malformed)?;
        packet.set_vlan(frame.vlan.map(vlan).transpose()?);
        packet.set_timestamp(frame.timestamp);
        Ok(packet)
    }

    #[inline]
    fn receive(&mut self, whole: usize) -> Result<(VnetHeader, Packet), Lost> {
        self.calls += 1;
        let mut header = [0; VnetHeader::LEN];
        let (head, tail) = self.place.room();
        let mut room = [IoSliceMut::new(&mut header), IoSliceMut::new(head), IoSliceMut::new(tail)];
        // An error that waits on the socket (the link went down) is told once instead of the packet, which stays the next one.
        let socket = &self.socket;
        let len = socket.receive(&mut room).or_else(|_| socket.receive(&mut room)).map_err(|_| Lost::Missed)?;
        let len = len.checked_sub(VnetHeader::LEN).ok_or(Lost::Malformed)?;
        // Longer than any IP packet (an interface with a larger `gso_max_size`): what did not fit is gone.
        if len != whole || len == 0 {
            return Err(Lost::Missed);
        }
        Ok((VnetHeader::from_ne_bytes(&header), self.place.take(len).ok_or(Lost::Malformed)?))
    }
}

impl PacketRx {
    pub(super) fn new(
        info: &Info,
        (socket, ring): (Socket, Ring),
        queue: u8,
        watch: LinkWatch,
        pool: &Pool,
    ) -> Result<PacketRx, PortError> {
        Ok(PacketRx {
            ring,
            long: LongPackets { socket, place: Place::default(), calls: 0 },
            landing: Landing::new(&info.name, pool)?,
            state: State::Up,
            starved: false,
            queue,
            turn: 0,
            watch,
            counters: Arc::default(),
        })
    }

    fn settle(&mut self, link: Link) {
        self.state = match link {
            Link::Up => State::Up,
            Link::Absent => gone(),
            Link::Down | Link::NoCarrier => down(link),
        };
        // An error that waits on the socket (the link went down) would make it readable for ever.
        self.long.socket.clear_error();
        self.counters.missed(self.long.socket.missed());
    }

    /// Now and then: is the link up, and what did the kernel drop?
    #[inline]
    fn look(&mut self) {
        if let Some(link) = self.watch.look() {
            self.settle(link);
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
            let Some(frame) = self.ring.next() else { break };
            let taken = frame.map_err(|_| Lost::Malformed).and_then(|f| self.long.take(&f, &mut self.landing));
            match taken {
                Ok(mut packet) => {
                    packet.set_ingress(0, self.queue);
                    packets += 1;
                    bytes += packet.len() as u64;
                    // There is room.
                    let _ = out.push(packet);
                }
                Err(Lost::Starved) => {
                    self.starved = true;
                    self.counters.retried(1);
                    break;
                }
                Err(Lost::Malformed) => self.counters.dropped(DropReason::Malformed, 1),
                Err(Lost::Missed) => self.counters.missed(1),
            }
            self.ring.release();
        }
        if packets > 0 {
            self.counters.moved(packets, bytes);
            self.counters.called(std::mem::take(&mut self.long.calls));
        }
        self.turn = self.turn.wrapping_add(1);
        if packets == 0 || self.turn.is_multiple_of(LOOK_EVERY) {
            self.look();
        }
        packets as usize
    }

    fn memory(&self) -> RxMemory {
        RxMemory::own_pool(self.landing.own_pool())
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
    /// What the kernel dropped since the last look is counted too.
    fn drop(&mut self) {
        self.counters.missed(self.long.socket.missed());
    }
}
