//! The transmit queue: up to 64 packets with one `sendmmsg`.

use crate::kernel::edge::EdgeGuard;
use crate::kernel::link::{LinkWatch, down, gone};
use crate::kernel::without_refused;
use crate::vnet::{self, VnetHeader};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use towpath_engine::software_offload::needs_software;
use towpath_packet::port::{Info, Layer, PortError, State, TxBarrier, TxQueue, Wake};
use towpath_packet::{Batch, Cache, Checksum, Counters, Direction, DropReason, Offloads, Packet, Pool};
use towpath_sys::af_packet::Socket;
use towpath_sys::mmsg::{MESSAGES, Sender};
use towpath_sys::netdev::LinkState;
use towpath_wire::ethernet::{self, MAX_PACKET};

/// Time for which a packet that is refused with `ENOBUFS` is retried: a full queue drains faster,
/// and a packet that the driver always refuses must not block the others.
const ENOBUFS_TIMEOUT: Duration = Duration::from_millis(1);
/// Time limit of an order barrier: longer than any backlog lasts, also on a core that is taken away
/// for a while, as by the host of a virtual machine. Some drivers free sent packets only when they
/// need the descriptors.
const BARRIER_TIMEOUT: Duration = Duration::from_secs(1);

/// A transmit queue of an AF_PACKET port.
pub struct PacketTx {
    socket: Socket,
    sender: Sender,
    headers: Box<[[u8; VnetHeader::LEN]]>,
    offloads: Offloads,
    layer: Layer,
    state: State,
    refused_since: Option<Instant>,
    /// Bytes that were sent since the barrier began.
    barrier_bytes: u64,
    /// Time of the barrier's first check; `None` before it.
    barrier_since: Option<Instant>,
    cache: Cache,
    watch: LinkWatch,
    edge: Arc<EdgeGuard>,
    counters: Arc<Counters>,
}

/// The action for the first packet that a call refused.
enum Refusal {
    /// It and all further ones stay in the batch.
    Keep,
    /// It is dropped.
    Drop(DropReason),
    /// It and all further ones are dropped.
    DropAll(DropReason),
}

impl PacketTx {
    pub(super) fn new(
        info: &Info,
        socket: Socket,
        watch: LinkWatch,
        edge: &Arc<EdgeGuard>,
        pool: &Pool,
    ) -> Result<PacketTx, PortError> {
        let failed = |source| PortError::Pool { port: info.name.clone(), source };
        Ok(PacketTx {
            socket,
            sender: Sender::default(),
            headers: vec![[0; VnetHeader::LEN]; MESSAGES].into(),
            offloads: info.tx_offloads,
            layer: info.layer,
            state: State::Up,
            refused_since: None,
            barrier_bytes: 0,
            barrier_since: None,
            cache: pool.cache(Direction::Tx).map_err(failed)?,
            watch,
            edge: edge.clone(),
            counters: Arc::default(),
        })
    }

    /// Makes headers for packets from the front; returns their number, and the reason why the next
    /// packet has none.
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
                // The queueing discipline, or the driver of an interface without one, dropped it.
                self.edge.refused(1);
                let since = *self.refused_since.get_or_insert_with(Instant::now);
                if since.elapsed() > ENOBUFS_TIMEOUT {
                    self.refused_since = None;
                    return Refusal::Drop(DropReason::Refused);
                }
                self.counters.retried(1);
                Refusal::Keep
            }
            Some(libc::ENETDOWN) => {
                self.state = down(LinkState::Down);
                Refusal::DropAll(DropReason::LinkDown)
            }
            Some(libc::ENXIO | libc::ENODEV) => {
                self.state = gone();
                Refusal::DropAll(DropReason::PortGone)
            }
            Some(libc::EMSGSIZE) => Refusal::Drop(DropReason::TooLong),
            // The header is correct, so the kernel lacks the offload. But it also refuses a
            // super-packet with a complete checksum whose bytes do not match the header.
            Some(libc::EINVAL) if packet.gso().is_some() && matches!(packet.csum(), Checksum::Partial { .. }) => {
                self.counters.failed(1);
                self.offloads = without_refused(self.offloads, packet);
                Refusal::Keep
            }
            _ => Refusal::Drop(DropReason::Refused),
        }
    }
}

/// The header of a packet; an error if the kernel would refuse the packet.
#[inline]
fn describe(packet: &Packet, offloads: Offloads, layer: Layer) -> Result<VnetHeader, DropReason> {
    if needs_software(packet, offloads) {
        return Err(DropReason::Offload);
    }
    match packet.len() {
        0 => Err(DropReason::Malformed),
        len if len > MAX_PACKET => Err(DropReason::TooLong),
        len if layer == Layer::Ethernet && len < ethernet::HEADER_LEN => Err(DropReason::Malformed),
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
            batch.iter().for_each(|packet| self.counters.show_dropped(reason, packet));
        }
        while let rest @ [first, ..] = &batch.as_slice()[taken..] {
            let (n, bad) = self.prepare(rest);
            if n == 0 {
                self.counters.dropped_packet(bad.unwrap_or(DropReason::Malformed), first);
                taken += 1;
                continue;
            }
            calls += 1;
            match self.sender.send(&self.socket, &self.headers[..n], rest) {
                Ok(sent) => {
                    packets += sent as u64;
                    let more = rest.iter().take(sent).map(|packet| packet.len() as u64).sum::<u64>();
                    bytes += more;
                    self.barrier_bytes += more;
                    taken += sent;
                    self.refused_since = None;
                    if sent == 0 {
                        break;
                    }
                }
                Err(error) => match self.refused(first, &error) {
                    Refusal::Keep => break,
                    Refusal::Drop(reason) => {
                        self.counters.dropped_packet(reason, first);
                        taken += 1;
                    }
                    Refusal::DropAll(reason) => {
                        self.counters.dropped(reason, rest.len() as u64);
                        rest.iter().for_each(|packet| self.counters.show_dropped(reason, packet));
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

    /// Frees nothing: no packet is held. Polls the link, because the kernel reports no error for a
    /// packet that it drops without carrier (`noop_enqueue` in `net/sched/sch_generic.c`).
    fn reclaim(&mut self) -> usize {
        if self.state.ended() {
            return 0;
        }
        match self.watch.poll() {
            Some(LinkState::Up) => self.state = State::Up,
            Some(LinkState::Absent) => self.state = gone(),
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
        self.barrier_bytes = 0;
        self.barrier_since = None;
    }

    /// A sent packet waits in a queue of the driver, or, for a veth, in a backlog of a core
    /// (`enqueue_to_backlog` in `net/core/dev.c`), until the driver or the receiving stack frees
    /// it. The order is kept, and the kernel charges the socket at least the packet's length: if no
    /// more is charged than was sent since the barrier, no older packet is left.
    fn passed(&mut self) -> bool {
        if self.socket.outstanding() <= self.barrier_bytes {
            return true;
        }
        self.barrier_since.get_or_insert_with(Instant::now).elapsed() > BARRIER_TIMEOUT
    }
}

impl std::fmt::Debug for PacketTx {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PacketTx").field("offloads", &self.offloads).field("state", &self.state).finish()
    }
}
