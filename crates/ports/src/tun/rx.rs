//! The receive queue: packets that the kernel sends to the interface, one `readv` per packet.

use super::device::TunDevice;
use crate::kernel::edge::EdgeGuard;
use crate::kernel::link::{LinkWatch, down, gone, passed};
use crate::kernel::rx_buffers::{RxBuffers, RxSlot};
use crate::vnet::{self, VnetHeader};
use std::fs::File;
use std::io::{self, IoSliceMut, Read};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use towpath_packet::port::{PortError, RxMemory, RxQueue, State, Wake};
use towpath_packet::{Batch, Counters, DropReason, Missed, Offloads, Pool};
use towpath_sys::netdev::LinkState;
use towpath_wire::ethernet::MAX_PACKET;

/// A receive queue of a TUN/TAP port.
#[derive(Debug)]
pub struct TunRx {
    /// Dropped before the file.
    _edge: Arc<EdgeGuard>,
    file: Arc<File>,
    slot: RxSlot,
    buffers: RxBuffers,
    state: State,
    /// The last call ran out of buffers: the descriptor does not tell when to call again.
    starved: bool,
    queue: u8,
    watch: LinkWatch,
    device: Arc<TunDevice>,
    number: usize,
    counters: Arc<Counters>,
}

impl TunRx {
    pub(super) fn new(
        device: &Arc<TunDevice>,
        file: &Arc<File>,
        number: usize,
        edge: &Arc<EdgeGuard>,
        pool: &Pool,
    ) -> Result<TunRx, PortError> {
        Ok(TunRx {
            _edge: edge.clone(),
            file: file.clone(),
            slot: RxSlot::default(),
            buffers: RxBuffers::new(device.port(), pool)?,
            state: State::Up,
            starved: false,
            queue: u8::try_from(number).unwrap_or(u8::MAX),
            watch: device.watch(),
            device: device.clone(),
            number,
            counters: Arc::default(),
        })
    }

    /// Sets the initial offloads of the device.
    pub(super) fn init_offloads(&mut self) {
        self.set_offloads(None);
    }

    fn set_offloads(&mut self, accept: Option<Offloads>) {
        if self.device.set_queue_offloads(self.number, accept).is_err() {
            self.counters.failed(1);
        }
    }

    /// Reads one packet: its header, and the bytes that follow it.
    #[inline]
    fn read(&mut self) -> io::Result<(VnetHeader, usize)> {
        let mut header = [0; VnetHeader::LEN];
        let (head, tail) = self.slot.buffers();
        let mut vectors = [IoSliceMut::new(&mut header), IoSliceMut::new(head), IoSliceMut::new(tail)];
        let len = (&*self.file).read_vectored(&mut vectors)?;
        let len = len.checked_sub(VnetHeader::LEN).filter(|&n| n > 0).ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok((VnetHeader::from_ne_bytes(&header), len))
    }

    /// Handles an error of the read; returns whether to read on.
    #[cold]
    fn read_failed(&mut self, error: &io::Error) -> bool {
        match error.raw_os_error() {
            Some(libc::EAGAIN) => false,
            Some(libc::EINTR) => true,
            Some(libc::EBADFD) => {
                self.state = gone();
                false
            }
            // EINVAL: the header cannot express the packet's kind of segmentation. The packet is
            // lost; the next one may be fine.
            _ => {
                self.counters.failed(1);
                self.counters.missed(Missed::Unreadable, 1);
                true
            }
        }
    }

    /// Reads the state of the link, if no packet came.
    #[inline]
    fn check_link(&mut self) {
        match self.watch.poll() {
            // An interface in another namespace is absent here, and works.
            Some(LinkState::Up | LinkState::Absent) => self.state = State::Up,
            Some(link) => self.state = down(link),
            None => {}
        }
    }
}

impl RxQueue for TunRx {
    fn rx(&mut self, out: &mut Batch) -> usize {
        if self.state.ended() {
            return 0;
        }
        let (mut packets, mut bytes, mut calls, mut malformed) = (0, 0, 0, 0);
        self.starved = false;
        for _ in 0..out.room() {
            if !self.buffers.fill(&mut self.slot) {
                self.starved = true;
                self.counters.retried(1);
                break;
            }
            calls += 1;
            let (header, len) = match self.read() {
                Ok(read) => read,
                Err(error) if self.read_failed(&error) => continue,
                Err(_) => break,
            };
            let Some(mut packet) = self.slot.take(len) else { break };
            // Longer than any IP packet (`gso_max_size` of the interface is larger): the packet is
            // truncated.
            if len > MAX_PACKET || vnet::apply(header, &mut packet).is_err() {
                malformed += 1;
                continue;
            }
            packet.set_ingress(0, self.queue);
            if out.push(packet).is_err() {
                break;
            }
            packets += 1;
            bytes += len as u64;
        }
        self.counters.called(calls);
        if malformed > 0 {
            self.counters.dropped(DropReason::Malformed, malformed);
        }
        if packets > 0 {
            self.counters.moved(packets, bytes);
            passed(&mut self.state);
        } else if !self.state.ended() {
            self.check_link();
        }
        packets as usize
    }

    /// Changes the offloads of received packets, within those of the port's
    /// [`Info`](towpath_packet::port::Info).
    fn set_rx_offloads(&mut self, accept: Offloads) {
        self.set_offloads(Some(accept));
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
            _ => Wake::Fd(self.file.as_raw_fd()),
        }
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}
