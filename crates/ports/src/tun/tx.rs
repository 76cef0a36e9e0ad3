//! The transmit queue: packets that the kernel receives from the interface, one `writev` per
//! packet. They are [coalesced](towpath_engine::gro_stage) before they come here: this is not
//! `towpath_tun::Writer`, which coalesces small buffers itself.

use super::config::Kind;
use super::device::TunDevice;
use crate::kernel::edge::EdgeGuard;
use crate::kernel::link::{LinkWatch, down, gone, passed};
use crate::kernel::without_refused;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use towpath_engine::software_offload::needs_software;
use towpath_packet::port::{Info, PortError, State, TxQueue, Wake};
use towpath_packet::vnet::{self, VnetHeader};
use towpath_packet::{Batch, Cache, Checksum, Counters, Direction, DropReason, MAX_CHUNKS, Offloads, Packet, Pool};
use towpath_sys::netdev::LinkState;
use towpath_sys::tun;
use towpath_sys::uio::Gather;
use towpath_wire::ethernet::{self, MAX_PACKET};

/// A transmit queue of a TUN/TAP port.
pub struct TunTx {
    /// Dropped before the file.
    edge: Arc<EdgeGuard>,
    file: Arc<File>,
    gather: Gather,
    offloads: Offloads,
    kind: Kind,
    state: State,
    cache: Cache,
    watch: LinkWatch,
    counters: Arc<Counters>,
}

/// The result for one packet.
enum Outcome {
    Sent,
    Dropped(DropReason),
    /// It stays in the batch: the kernel is busy, or an offload was switched off and software must
    /// complete the packet.
    Kept,
    /// It and all further ones are dropped.
    AllDropped(DropReason),
}

impl TunTx {
    pub(super) fn new(
        device: &TunDevice,
        file: &Arc<File>,
        info: &Info,
        edge: &Arc<EdgeGuard>,
        pool: &Pool,
    ) -> Result<TunTx, PortError> {
        let failed = |source| PortError::Pool { port: info.name.clone(), source };
        Ok(TunTx {
            edge: edge.clone(),
            file: file.clone(),
            gather: Gather::new(MAX_CHUNKS),
            offloads: info.tx_offloads,
            kind: device.kind,
            state: State::Up,
            cache: pool.cache(Direction::Tx).map_err(failed)?,
            watch: device.watch(),
            counters: Arc::default(),
        })
    }

    #[inline]
    fn send(&mut self, packet: &Packet) -> Outcome {
        let header = match self.header(packet) {
            Ok(header) => header,
            Err(reason) => return Outcome::Dropped(reason),
        };
        match self.gather.write(&*self.file, &header.to_ne_bytes(), packet) {
            Ok(_) => Outcome::Sent,
            Err(error) => self.refused(packet, &error),
        }
    }

    /// The header of a packet; an error if the kernel would refuse the packet.
    #[inline]
    fn header(&self, packet: &Packet) -> Result<VnetHeader, DropReason> {
        if needs_software(packet, self.offloads) {
            return Err(DropReason::Offload);
        }
        let len = packet.len();
        if len > MAX_PACKET {
            return Err(DropReason::TooLong);
        }
        let valid = match self.kind {
            Kind::Tap => len >= ethernet::HEADER_LEN,
            // The kernel tells the protocol by the version (`tun_get_user` in `drivers/net/tun.c`).
            Kind::Tun => {
                let mut first = [0];
                packet.copy_to(0, &mut first);
                matches!(first[0] >> 4, 4 | 6)
            }
        };
        if valid { vnet::header_of(packet) } else { Err(DropReason::Malformed) }
    }

    #[cold]
    fn refused(&mut self, packet: &Packet, error: &io::Error) -> Outcome {
        // `tun_get_user` counts every refused packet at the interface, except after EAGAIN.
        if error.raw_os_error() != Some(libc::EAGAIN) {
            self.edge.refused(1);
        }
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EINTR | libc::ENOMEM | libc::ENOBUFS) => {
                self.counters.retried(1);
                Outcome::Kept
            }
            Some(libc::EIO) => {
                self.state = down(LinkState::Down);
                Outcome::AllDropped(DropReason::LinkDown)
            }
            Some(libc::EBADFD) => {
                self.state = gone();
                Outcome::AllDropped(DropReason::PortGone)
            }
            // The header is correct, so the kernel lacks the offload. But it also refuses a
            // super-packet with a complete checksum whose bytes do not match the header.
            Some(libc::EINVAL) if packet.gso().is_some() && matches!(packet.csum(), Checksum::Partial { .. }) => {
                self.counters.failed(1);
                self.offloads = without_refused(self.offloads, packet);
                Outcome::Kept
            }
            _ => Outcome::Dropped(DropReason::Refused),
        }
    }
}

impl TxQueue for TunTx {
    fn tx(&mut self, batch: &mut Batch) -> usize {
        let (mut taken, mut packets, mut bytes) = (0, 0, 0);
        for packet in batch.as_slice() {
            match self.send(packet) {
                Outcome::Sent => {
                    packets += 1;
                    bytes += packet.len() as u64;
                }
                Outcome::Dropped(reason) => self.counters.dropped_packet(reason, packet),
                Outcome::Kept => break,
                Outcome::AllDropped(reason) => {
                    let rest = batch.len() - taken;
                    self.counters.dropped(reason, rest as u64);
                    let dropped = batch.iter().skip(taken);
                    dropped.for_each(|packet| self.counters.show_dropped(reason, packet));
                    taken += rest;
                    break;
                }
            }
            taken += 1;
        }
        if packets > 0 {
            self.counters.called(packets);
            self.counters.moved(packets, bytes);
            passed(&mut self.state);
        }
        self.cache.free_first(batch, taken);
        taken
    }

    /// Frees nothing: no packet is held. Polls the link, and whether the interface still exists,
    /// which a write would report only with a packet.
    fn reclaim(&mut self) -> usize {
        if self.state.ended() {
            return 0;
        }
        match self.watch.poll() {
            None => {}
            // An interface in another namespace is absent here, and works.
            Some(LinkState::Absent) if !tun::is_attached(&self.file) => self.state = gone(),
            Some(LinkState::Down) => {}
            Some(_) => passed(&mut self.state),
        }
        0
    }

    fn offloads(&self) -> Offloads {
        self.offloads
    }

    fn state(&self) -> State {
        self.state.clone()
    }

    fn wake(&self) -> Wake {
        if self.state.ended() { Wake::Never } else { Wake::Fd(self.file.as_raw_fd()) }
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}

impl std::fmt::Debug for TunTx {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TunTx").field("offloads", &self.offloads).field("state", &self.state).finish()
    }
}
