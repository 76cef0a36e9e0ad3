//! A vhost-user front end with one pair of queues: requests in the order of DPDK's `virtio_user`,
//! and rings in memory of its own.
//!
//! ```text
//!   memory   areas of ring 0 │ areas of ring 1 │ a frame to send │ a buffer to receive into
//! ```
//!
//! All chains of a ring name the same bytes: what is in them is of no interest here.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};
use towpath::packet::UntrustedMem;
use towpath_sys::EventFd;
use towpath_sys::unix_socket::{self, Kind};
use towpath_testing::sealed_memory;
use towpath_virtio::vhost_user::{
    Channel, ChannelError, MemoryRegion, MemoryTable, Request, VringAddr, VringFd, VringState, read_u64,
};
use towpath_virtio::{Areas, Driver, Features, Format, Layout, Segment};

/// Descriptors of a ring.
pub(crate) const SIZE: u16 = 256;
/// The queues of a pair.
pub(crate) const RX: usize = 0;
pub(crate) const TX: usize = 1;

/// Where the memory lies for the guest, and for the front end.
pub(crate) const GUEST: u64 = 0x4000_0000;
const USER: u64 = 0x7f00_0000_0000;
pub(crate) const MEMORY: u64 = 0x1_0000;
/// Bytes for the areas of a ring.
const RING: u64 = 0x4000;
/// Where the frame lies, behind its header, and the buffer.
const FRAME: u64 = 2 * RING;
const BUFFER: u64 = 3 * RING;
const BUFFER_LEN: u32 = 2048;
/// Bytes of the header in front of a frame.
pub(crate) const HEADER: usize = 12;

/// Mergeable buffers, version 1, features of the protocol; REPLY_ACK.
const FEATURES: u64 = 1 << 15 | 1 << 30 | 1 << 32;
const PROTOCOL: u64 = 1 << 3;

/// The longest time of an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// A connected front end.
pub(crate) struct FrontEnd {
    pub(crate) channel: Channel,
    pub(crate) file: OwnedFd,
    pub(crate) memory: UntrustedMem,
    pub(crate) rings: [Ring; 2],
}

/// A ring, as its driver has it.
pub(crate) struct Ring {
    pub(crate) driver: Driver,
    pub(crate) kick: EventFd,
    pub(crate) call: EventFd,
}

fn layout() -> Layout {
    Layout::new(Format::Split, SIZE).unwrap()
}

/// Where the available ring of `index` lies.
pub(crate) fn available(index: usize) -> usize {
    index * RING as usize + layout().driver
}

/// Where the used ring of `index` lies.
pub(crate) fn used(index: usize) -> usize {
    index * RING as usize + layout().device
}

/// Where the descriptors of `index` lie.
pub(crate) fn descriptors(index: usize) -> usize {
    index * RING as usize + layout().desc
}

impl FrontEnd {
    /// A front end whose rings run.
    pub(crate) fn start(path: &Path) -> Result<FrontEnd, ChannelError> {
        let mut new = FrontEnd::with_memory(path, sealed_memory(MEMORY as i64))?;
        new.set_memory()?;
        [RX, TX].into_iter().try_for_each(|index| new.start_ring(index))?;
        Ok(new)
    }

    /// A front end that has agreed on features, with its memory in `file`.
    pub(crate) fn with_memory(path: &Path, file: OwnedFd) -> Result<FrontEnd, ChannelError> {
        let deadline = Instant::now() + PATIENCE;
        let channel = Channel::new(unix_socket::connect(path, Kind::Stream, Some(deadline))?);
        let memory = UntrustedMem::from_file(file.try_clone()?, MEMORY as usize).unwrap();
        let ring = |index: u64| {
            let areas = Areas::new(&memory, (index * RING) as usize, &layout()).unwrap();
            let driver = Driver::new(Format::Split, areas, SIZE, Features::from_bits(FEATURES)).unwrap();
            Ok::<_, std::io::Error>(Ring { driver, kick: EventFd::new()?, call: EventFd::new()? })
        };
        let rings = [ring(0)?, ring(1)?];
        let mut new = FrontEnd { channel, file, memory, rings };
        new.ask(Request::GetFeatures, &[])?;
        new.ask(Request::GetProtocolFeatures, &[])?;
        new.channel.request(Request::SetProtocolFeatures, &PROTOCOL.to_ne_bytes(), &[], false)?;
        new.channel.request(Request::SetOwner, &[], &[], false)?;
        new.request(Request::SetFeatures, &FEATURES.to_ne_bytes(), &[])?;
        Ok(new)
    }

    /// The reply to a request that has one of its own.
    pub(crate) fn ask(&mut self, request: Request, payload: &[u8]) -> Result<Vec<u8>, ChannelError> {
        self.channel.request(request, payload, &[], false)?;
        Ok(self.channel.receive_reply(request, Instant::now() + PATIENCE)?.payload)
    }

    /// Waits until a request is done. Returns whether it was.
    pub(crate) fn request(
        &mut self,
        request: Request,
        payload: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<bool, ChannelError> {
        self.channel.request(request, payload, fds, true)?;
        let reply = self.channel.receive_reply(request, Instant::now() + PATIENCE)?;
        Ok(read_u64(&reply.payload).is_ok_and(|failed| failed == 0))
    }

    pub(crate) fn set_memory(&mut self) -> Result<bool, ChannelError> {
        let region = MemoryRegion { guest: GUEST, size: MEMORY, user: USER, offset: 0 };
        let table = MemoryTable { regions: vec![region] }.to_bytes();
        let file = self.file.try_clone()?;
        self.request(Request::SetMemTable, &table, &[file.as_fd()])
    }

    /// Sets a ring up, from its beginning, and enables it.
    pub(crate) fn start_ring(&mut self, index: usize) -> Result<(), ChannelError> {
        let number = index as u32;
        let state = |num: u32| VringState { index: number, num }.to_bytes();
        let user = |at: usize| USER + at as u64;
        let [desc, avail, used] = [descriptors(index), available(index), used(index)].map(user);
        let addr = VringAddr { index: number, flags: 0, desc, avail, used, log: 0 };
        self.request(Request::SetVringNum, &state(SIZE.into()), &[])?;
        self.request(Request::SetVringBase, &state(0), &[])?;
        self.request(Request::SetVringAddr, &addr.to_bytes(), &[])?;
        let event = VringFd { index: index as u8, has_fd: true }.to_bytes();
        let [kick, call] = {
            let Ring { kick, call, .. } = &self.rings[index];
            [kick.try_clone()?, call.try_clone()?]
        };
        self.request(Request::SetVringCall, &event, &[call.as_fd()])?;
        self.request(Request::SetVringKick, &event, &[kick.as_fd()])?;
        self.request(Request::SetVringEnable, &state(1), &[])?;
        Ok(())
    }

    /// Stops a ring.
    pub(crate) fn stop_ring(&mut self, index: usize) -> Result<(), ChannelError> {
        let payload = VringState { index: index as u32, num: 0 }.to_bytes();
        self.ask(Request::GetVringBase, &payload).map(drop)
    }

    /// The frame that is sent from now on.
    pub(crate) fn set_frame(&mut self, frame: &[u8]) {
        assert!(self.memory.put(FRAME as usize, &[&[0; HEADER], frame].concat()));
    }

    /// Offers `n` frames, or as many as there are descriptors for. Returns their number.
    pub(crate) fn send(&mut self, len: usize, n: usize) -> usize {
        let frame = Segment::readable(GUEST + FRAME, (HEADER + len) as u32);
        self.rings[TX].offer(frame, n)
    }

    /// Offers a buffer for each free descriptor.
    pub(crate) fn post(&mut self) -> usize {
        self.rings[RX].offer(Segment::writable(GUEST + BUFFER, BUFFER_LEN), SIZE.into())
    }
}

impl Ring {
    fn offer(&mut self, buffer: Segment, n: usize) -> usize {
        let n = (0..n).take_while(|_| self.driver.add(&[buffer]).is_ok()).count();
        if n > 0 && self.driver.publish() {
            self.kick.signal();
        }
        n
    }

    /// Takes the chains that were used. Returns their number.
    pub(crate) fn used(&mut self) -> usize {
        std::iter::from_fn(|| self.driver.next_used().unwrap()).count()
    }

    /// Sleeps until a chain is used, or until `end`.
    pub(crate) fn wait(&mut self, end: Instant) {
        self.call.clear();
        // True: there is one already.
        if !self.driver.enable_calls() {
            let left = end.saturating_duration_since(Instant::now());
            let _ = towpath_sys::poll::wait_readable(self.call.as_fd(), Some(left));
        }
        self.driver.disable_calls();
    }
}
