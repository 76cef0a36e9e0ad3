//! What the kernel sends out of the interface, we receive: one `readv` per packet.

use super::device::Device;
use crate::kernel::link::{LinkWatch, down, gone};
use crate::kernel::rx_buffers::{LONGEST, Landing, Place};
use crate::vnet::VnetHeader;
use crate::vnet::{self};
use std::fs::File;
use std::io::{self, IoSliceMut, Read};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use towpath_packet::port::{PortError, RxMemory, RxQueue, State, Wake};
use towpath_packet::{Batch, Counters, DropReason, Offloads, Pool};
use towpath_sys::netdev::Link;

/// A receive queue of a TUN/TAP port.
#[derive(Debug)]
pub struct TunRx {
    file: Arc<File>,
    place: Place,
    landing: Landing,
    state: State,
    /// The last call ended for want of buffers, so the descriptor says nothing about when to come again.
    starved: bool,
    queue: u8,
    watch: LinkWatch,
    device: Arc<Device>,
    number: usize,
    counters: Arc<Counters>,
}

impl TunRx {
    pub(super) fn new(device: &Arc<Device>, file: &Arc<File>, number: usize, pool: &Pool) -> Result<TunRx, PortError> {
        Ok(TunRx {
            file: file.clone(),
            place: Place::default(),
            landing: Landing::new(device.port(), pool)?,
            state: State::Up,
            starved: false,
            queue: u8::try_from(number).unwrap_or(u8::MAX),
            watch: device.watch(),
            device: device.clone(),
            number,
            counters: Arc::default(),
        })
    }

    /// Tells the kernel for the first time what is accepted.
    pub(super) fn agree(&mut self) {
        self.settle(None);
    }

    fn settle(&mut self, accept: Option<Offloads>) {
        if self.device.agree(&self.file, self.number, accept).is_err() {
            self.counters.failed(1);
        }
    }

    /// Reads one packet: its header, and the bytes that follow it.
    #[inline]
    fn read(&mut self) -> io::Result<(VnetHeader, usize)> {
        let mut header = [0; VnetHeader::LEN];
        let (head, tail) = self.place.room();
        let mut room = [IoSliceMut::new(&mut header), IoSliceMut::new(head), IoSliceMut::new(tail)];
        let len = (&*self.file).read_vectored(&mut room)?;
        let len = len.checked_sub(VnetHeader::LEN).filter(|&n| n > 0).ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok((VnetHeader::from_ne_bytes(&header), len))
    }

    /// Nothing more to read, or an error; whether to go on.
    #[cold]
    fn stopped(&mut self, error: &io::Error) -> bool {
        match error.raw_os_error() {
            Some(libc::EAGAIN) => false,
            Some(libc::EINTR) => true,
            Some(libc::EBADFD) => {
                self.state = gone();
                false
            }
            // A packet that the kernel could not describe (EINVAL for a kind of segmentation the header has no word for)
            // is lost; the next one may be fine.
            _ => {
                self.counters.failed(1);
                self.counters.missed(1);
                true
            }
        }
    }

    /// Nothing came: is that because the link is down?
    #[inline]
    fn look(&mut self) {
        match self.watch.look() {
            // An interface that was moved to another namespace is absent here, and works.
            Some(Link::Up | Link::Absent) => self.state = State::Up,
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
            if !self.landing.fill(&mut self.place) {
                self.starved = true;
                self.counters.retried(1);
                break;
            }
            calls += 1;
            let (header, len) = match self.read() {
                Ok(read) => read,
                Err(error) if self.stopped(&error) => continue,
                Err(_) => break,
            };
            let Some(mut packet) = self.place.take(len) else { break };
            // Longer than any IP packet (an interface with a larger `gso_max_size`): what did not fit is gone.
            if len > LONGEST || vnet::apply(header, &mut packet).is_err() {
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
        } else if !self.state.ended() {
            self.look();
        }
        packets as usize
    }

    /// Lowers or raises, within what the port's [`Info`](towpath_packet::port::Info) says, what the kernel hands over.
    fn set_rx_offloads(&mut self, accept: Offloads) {
        self.settle(Some(accept));
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
            _ => Wake::Fd(self.file.as_raw_fd()),
        }
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}
