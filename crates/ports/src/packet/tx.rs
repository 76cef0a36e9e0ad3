//! What leaves through the interface: up to 64 packets with one `sendmmsg`.

use crate::kernel::link::{LinkWatch, down, gone};
use crate::kernel::lose;
use crate::kernel::rx_buffers::LONGEST;
use crate::vnet::VnetHeader;
use crate::vnet::{self};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use towpath_engine::software_offload::asks_more;
use towpath_packet::port::{Info, Layer, PortError, State, TxBarrier, TxQueue, Wake};
use towpath_packet::{Batch, Cache, Checksum, Counters, Direction, DropReason, Offloads, Packet, Pool};
use towpath_sys::af_packet::Socket;
use towpath_sys::mmsg::{MESSAGES, Sender};
use towpath_sys::netdev::Link;

/// Shortest Ethernet frame that the kernel takes: its header.
const SHORTEST_FRAME: usize = 14;
/// How long the interface may refuse one packet with ENOBUFS before that packet is given up: a queue that is full empties faster,
/// and a packet that the driver never takes must not hold up the others.
const PATIENCE: Duration = Duration::from_millis(1);
/// How long the kernel may go on charging for something that was sent before that is taken for a driver that lets go of packets late,
/// when it needs their places: longer than any backlog lasts.
const LINGER: Duration = Duration::from_millis(100);

/// A transmit queue of an AF_PACKET port.
pub struct PacketTx {
    socket: Socket,
    sender: Sender,
    headers: Box<[[u8; VnetHeader::LEN]]>,
    offloads: Offloads,
    layer: Layer,
    state: State,
    refused_since: Option<Instant>,
    /// Bytes that were sent since the mark.
    since_mark: u64,
    /// Since when something from before the mark may be in a backlog; `None` if nobody has asked since the mark.
    behind_since: Option<Instant>,
    cache: Cache,
    watch: LinkWatch,
    counters: Arc<Counters>,
}

/// What to do about the first packet that a call did not take.
enum Refusal {
    /// It stays in the batch, and all that follow.
    Keep,
    /// It is dropped.
    Drop(DropReason),
    /// It and all that follow are dropped.
    DropAll(DropReason),
}

impl PacketTx {
    pub(super) fn new(info: &Info, socket: Socket, watch: LinkWatch, pool: &Pool) -> Result<PacketTx, PortError> {
        let failed = |source| PortError::Pool { port: info.name.clone(), source };
        Ok(PacketTx {
            socket,
            sender: Sender::new(),
            headers: vec![[0; VnetHeader::LEN]; MESSAGES].into(),
            offloads: info.tx_offloads,
            layer: info.layer,
            state: State::Up,
            refused_since: None,
            since_mark: 0,
            behind_since: None,
            cache: pool.cache(Direction::Tx).map_err(failed)?,
            watch,
            counters: Arc::default(),
        })
    }

    /// Makes headers for packets from the front on; returns how many have one, and why the next one can't have any.
    #[inline]
    fn prepare(&mut self, packets: &[Packet]) -> (usize, Option<DropReason>) {
        let mut n = 0;
        for (header, packet) in self.headers.iter_mut().zip(packets) {
            match describe(packet, self.offloads, self.layer) {
                Ok(made) => *header = made.to_ne_bytes(),
                Err(reason) => return (n, Some(reason)),
            }
            n += 1;
        }
        (n, None)
    }

    #[cold]
    fn refused(&mut self, packet: &Packet, error: &io::Error) -> Refusal {
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EINTR | libc::ENOMEM) => {
                self.counters.retried(1);
                Refusal::Keep
            }
            Some(libc::ENOBUFS) => {
                let since = *self.refused_since.get_or_insert_with(Instant::now);
                if since.elapsed() > PATIENCE {
                    self.refused_since = None;
                    return Refusal::Drop(DropReason::Refused);
                }
                self.counters.retried(1);
                Refusal::Keep
            }
            Some(libc::ENETDOWN) => {
                self.state = down(Link::Down);
                Refusal::DropAll(DropReason::LinkDown)
            }
            Some(libc::ENXIO | libc::ENODEV) => {
                self.state = gone();
                Refusal::DropAll(DropReason::PortGone)
            }
            Some(libc::EMSGSIZE) => Refusal::Drop(DropReason::TooLong),
            // The header was right, so this tells something about the kernel. A super-packet with a complete checksum is
            // another matter: the kernel looks into those, and refuses what is not what it says.
            Some(libc::EINVAL) if packet.gso().is_some() && matches!(packet.csum(), Checksum::Partial { .. }) => {
                self.counters.failed(1);
                self.offloads = lose(self.offloads, packet);
                Refusal::Keep
            }
            _ => Refusal::Drop(DropReason::Refused),
        }
    }
}

/// The header of a packet that the kernel will take, as far as can be told.
#[inline]
fn describe(packet: &Packet, offloads: Offloads, layer: Layer) -> Result<VnetHeader, DropReason> {
    if asks_more(packet, offloads) {
        return Err(DropReason::Offload);
    }
    match packet.len() {
        0 => Err(DropReason::Malformed),
        len if len > LONGEST => Err(DropReason::TooLong),
        len if layer == Layer::Ethernet && len < SHORTEST_FRAME => Err(DropReason::Malformed),
        _ => vnet::header_of(packet),
    }
}

impl TxQueue for PacketTx {
    fn tx(&mut self, batch: &mut Batch) -> usize {
        let (mut taken, mut calls, mut packets, mut bytes) = (0, 0, 0, 0);
        let lost = match self.state {
            State::Down(_) => Some(DropReason::LinkDown),
            State::Gone(_) => Some(DropReason::PortGone),
            State::Up | State::Done => None,
        };
        if let Some(reason) = lost {
            taken = batch.len();
            self.counters.dropped(reason, taken as u64);
        }
        while let rest @ [first, ..] = &batch.as_slice()[taken..] {
            let (n, bad) = self.prepare(rest);
            if n == 0 {
                self.counters.dropped(bad.unwrap_or(DropReason::Malformed), 1);
                taken += 1;
                continue;
            }
            calls += 1;
            match self.sender.send(&self.socket, &self.headers[..n], rest) {
                Ok(sent) => {
                    packets += sent as u64;
                    let more = rest.iter().take(sent).map(|packet| packet.len() as u64).sum::<u64>();
                    bytes += more;
                    self.since_mark += more;
                    taken += sent;
                    self.refused_since = None;
                    if sent == 0 {
                        break;
                    }
                }
                Err(error) => match self.refused(first, &error) {
                    Refusal::Keep => break,
                    Refusal::Drop(reason) => {
                        self.counters.dropped(reason, 1);
                        taken += 1;
                    }
                    Refusal::DropAll(reason) => {
                        self.counters.dropped(reason, rest.len() as u64);
                        taken += rest.len();
                    }
                },
            }
        }
        self.counters.called(calls);
        if packets > 0 {
            self.counters.moved(packets, bytes);
        }
        self.cache.free_first(batch, taken);
        taken
    }

    /// Frees nothing, for nothing is held back; looks now and then how the link is, because the kernel says that a packet
    /// was sent which it drops for want of a carrier (`noop_enqueue` in `net/sched/sch_generic.c`).
    fn reclaim(&mut self) -> usize {
        if self.state.ended() {
            return 0;
        }
        match self.watch.look() {
            Some(Link::Up) => self.state = State::Up,
            Some(Link::Absent) => self.state = gone(),
            Some(link) => self.state = down(link),
            None => {}
        }
        0
    }

    fn offloads(&self) -> Offloads {
        self.offloads
    }

    fn order_barrier(&mut self) -> Option<&mut dyn TxBarrier> {
        Some(self)
    }

    fn state(&self) -> State {
        self.state.clone()
    }

    fn wake(&self) -> Wake {
        if self.state.ended() { Wake::Never } else { Wake::Fd(self.socket.as_raw_fd()) }
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}

impl TxBarrier for PacketTx {
    fn begin(&mut self) {
        self.since_mark = 0;
        self.behind_since = None;
    }

    /// What was sent is in a queue of the driver's, or, for a veth, in a backlog that each core has for itself
    /// (`enqueue_to_backlog` in `net/core/dev.c`), until the driver or the receiving stack lets go of it. It goes in order, and the kernel
    /// charges at least its length for it: if no more is charged than was sent since the mark, nothing older is left.
    fn passed(&mut self) -> bool {
        if self.socket.outstanding() <= self.since_mark {
            return true;
        }
        self.behind_since.get_or_insert_with(Instant::now).elapsed() > LINGER
    }
}

impl std::fmt::Debug for PacketTx {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PacketTx").field("offloads", &self.offloads).field("state", &self.state).finish()
    }
}
