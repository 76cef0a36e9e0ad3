//! What comes in through the interface: up to 64 packets with one `recvmmsg`.

use crate::landing::Landing;
use crate::ports::kernel::link::{LinkWatch, down, gone};
use crate::sys::mmsg::{MESSAGES, Receiver};
use crate::sys::netdev::Link;
use crate::sys::packet::Socket;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use towpath_packet::port::{Info, PortError, RxQueue, State, Wake};
use towpath_packet::{Batch, Counters, DropReason, Pool};

/// Tails that a queue owns: one for each message that is posted, and as many that are under way.
const TAILS: usize = 2 * MESSAGES;
/// Calls between two looks at the clock while packets keep coming.
const LOOK_EVERY: u32 = 256;

/// A receive queue of an AF_PACKET port.
pub struct PacketRx {
    socket: Socket,
    receiver: Receiver,
    landing: Landing,
    state: State,
    /// The last call ended for want of buffers, so the descriptor says nothing about when to come again.
    starved: bool,
    queue: u8,
    turn: u32,
    watch: LinkWatch,
    counters: Arc<Counters>,
}

impl PacketRx {
    pub(super) fn new(
        info: &Info,
        socket: Socket,
        queue: u8,
        watch: LinkWatch,
        pool: &Pool,
    ) -> Result<PacketRx, PortError> {
        Ok(PacketRx {
            socket,
            receiver: Receiver::new(),
            landing: Landing::new(&info.name, pool, TAILS)?,
            state: State::Up,
            starved: false,
            queue,
            turn: 0,
            watch,
            counters: Arc::default(),
        })
    }

    /// Moves what one call received to the batch.
    #[inline]
    fn deliver(&mut self, n: usize, out: &mut Batch) -> usize {
        let (mut packets, mut bytes, mut malformed) = (0, 0, 0);
        for i in 0..n {
            let Some(received) = self.receiver.take(i) else {
                malformed += 1;
                continue;
            };
            let mut packet = received.packet;
            let (Ok(()), Ok(vlan)) = (received.header.apply(&mut packet), received.vlan) else {
                malformed += 1;
                continue;
            };
            packet.set_vlan(vlan);
            packet.set_ingress(0, self.queue);
            let len = packet.len() as u64;
            if out.push(packet).is_ok() {
                packets += 1;
                bytes += len;
            }
        }
        self.counters.moved(packets, bytes);
        if malformed > 0 {
            self.counters.dropped(DropReason::Malformed, malformed);
        }
        packets as usize
    }

    #[cold]
    fn failed(&mut self, error: &io::Error) {
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EINTR) => {}
            // Said once, when the interface goes down or away; which of the two is for the interface to say.
            Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV) => {
                let link = self.watch.look_now();
                self.settle(link);
            }
            _ => self.counters.failed(1),
        }
    }

    fn settle(&mut self, link: Link) {
        self.state = match link {
            Link::Up => State::Up,
            Link::Absent => gone(),
            Link::Down | Link::NoCarrier => down(link),
        };
        self.counters.missed(self.socket.missed());
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
        if self.state.ended() || out.room() == 0 {
            return 0;
        }
        self.starved = !self.receiver.refill(&mut self.landing);
        if self.starved {
            self.counters.retried(1);
            return 0;
        }
        self.counters.called(1);
        let packets = match self.receiver.receive(&self.socket, out.room()) {
            Ok(n) => self.deliver(n, out),
            Err(error) => {
                self.failed(&error);
                0
            }
        };
        self.turn = self.turn.wrapping_add(1);
        if !self.state.ended() && (packets == 0 || self.turn.is_multiple_of(LOOK_EVERY)) {
            self.look();
        }
        packets
    }

    fn state(&self) -> State {
        self.state.clone()
    }

    fn wake(&self) -> Wake {
        match self.state {
            State::Gone(_) => Wake::Never,
            _ if self.starved => Wake::Poll,
            _ => Wake::Fd(self.socket.as_raw_fd()),
        }
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}

impl Drop for PacketRx {
    /// What the kernel dropped since the last look is counted too.
    fn drop(&mut self) {
        self.counters.missed(self.socket.missed());
    }
}

impl std::fmt::Debug for PacketRx {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PacketRx").field("socket", &self.socket).field("state", &self.state).finish()
    }
}
