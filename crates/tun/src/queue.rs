//! One descriptor of a device: packets in both directions.

use crate::config::Kind;
use crate::header::{self, MAX_LEN};
use crate::offloads::TunOffloads;
use std::fs::File;
use std::io::{self, IoSliceMut, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use towpath_gro::{Checksums, GsoError, LinkKind, Offload, SplitWhole, complete_checksum};
use towpath_sys::uio::{Gather, Pieces};
use towpath_sys::{poll, tun};
use towpath_wire::{ethernet, vlan};

/// A buffer for [`Queue::read`] that holds every packet: the largest IP packet, an Ethernet header
/// and a VLAN tag.
pub const READ_SIZE: usize = 65535 + ethernet::HEADER_LEN + vlan::HEADER_LEN;

/// The packets of a super-packet, written one by one into buffers of the caller.
pub type Segments<'a> = SplitWhole<'a>;

/// What the queues of a device share.
#[derive(Debug)]
pub(crate) struct DeviceShared {
    pub(crate) kind: Kind,
    /// Bytes of the header in front of each packet.
    pub(crate) header: usize,
    /// The offloads of packets from the kernel.
    rx: AtomicU32,
    /// The offloads of packets to the kernel.
    tx: AtomicU32,
}

impl DeviceShared {
    pub(crate) fn new(kind: Kind, header: usize, rx: TunOffloads, tx: TunOffloads) -> DeviceShared {
        DeviceShared { kind, header, rx: AtomicU32::new(rx.bits()), tx: AtomicU32::new(tx.bits()) }
    }

    // The sets are statistics and gates of their own: no other memory depends on them.
    pub(crate) fn rx(&self) -> TunOffloads {
        TunOffloads::from_bits(self.rx.load(Ordering::Relaxed))
    }

    pub(crate) fn set_rx(&self, set: TunOffloads) {
        self.rx.store(set.bits(), Ordering::Relaxed);
    }

    pub(crate) fn tx(&self) -> TunOffloads {
        TunOffloads::from_bits(self.tx.load(Ordering::Relaxed))
    }

    fn switch_off(&self, set: TunOffloads) {
        let rest = |bits| Some(TunOffloads::from_bits(bits).without(set).consistent().bits());
        let _ = self.tx.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest);
    }
}

/// One descriptor of a device. A clone is a handle of the same descriptor, so one thread can read
/// while another one writes.
///
/// **Waiting.** The descriptor of [`Device::open`](crate::Device::open) is nonblocking: a call
/// returns [`WouldBlock`](io::ErrorKind::WouldBlock) if it would have to wait.
/// [`wait_readable`](Queue::wait_readable) waits;
/// [`set_nonblocking(false)`](Queue::set_nonblocking) makes [`read`](Queue::read) wait. With an
/// event loop, register the descriptor **once** for both directions: a second registration of it
/// with the same epoll fails with `EEXIST`. A TUN device is always writable, unless its send buffer
/// was limited (`TUNSETSNDBUF`).
#[derive(Debug, Clone)]
pub struct Queue(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    file: Arc<File>,
    shared: Arc<DeviceShared>,
    unreadable: AtomicU64,
    truncated: AtomicU64,
    malformed: AtomicU64,
}

/// Packets from the kernel that were lost in [`Queue::read`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ReadLosses {
    /// The header cannot express the packet's kind of segmentation (`EINVAL`).
    pub unreadable: u64,
    /// The buffer was shorter than the packet.
    pub truncated: u64,
    /// The header contradicts the packet.
    pub malformed: u64,
}

impl Queue {
    pub(crate) fn new(file: Arc<File>, shared: &Arc<DeviceShared>) -> Queue {
        Queue(Arc::new(Inner {
            file,
            shared: shared.clone(),
            unreadable: AtomicU64::new(0),
            truncated: AtomicU64::new(0),
            malformed: AtomicU64::new(0),
        }))
    }

    /// The descriptor, for calls of other kinds.
    pub fn file(&self) -> &Arc<File> {
        &self.0.file
    }

    /// IP packets or Ethernet frames.
    pub fn kind(&self) -> Kind {
        self.0.shared.kind
    }

    pub(crate) fn link(&self) -> LinkKind {
        self.kind().link()
    }

    /// The offloads of packets from the kernel.
    pub fn rx_offloads(&self) -> TunOffloads {
        self.0.shared.rx()
    }

    /// The offloads of packets to the kernel: without those that it refused.
    pub fn tx_offloads(&self) -> TunOffloads {
        self.0.shared.tx()
    }

    /// Whether calls return [`WouldBlock`](io::ErrorKind::WouldBlock) rather than wait.
    ///
    /// # Errors
    /// The error of `fcntl(2)`.
    pub fn is_nonblocking(&self) -> io::Result<bool> {
        tun::is_nonblocking(&self.0.file)
    }

    /// Makes calls return [`WouldBlock`](io::ErrorKind::WouldBlock), or wait.
    ///
    /// # Errors
    /// The error of `fcntl(2)`.
    pub fn set_nonblocking(&self, on: bool) -> io::Result<()> {
        tun::set_nonblocking(&self.0.file, on)
    }

    /// Waits until a packet can be read, at most for `time`; returns whether one can.
    ///
    /// # Errors
    /// The error of `ppoll(2)`.
    pub fn wait_readable(&self, time: Option<Duration>) -> io::Result<bool> {
        poll::wait_readable(self.as_fd(), time)
    }

    /// Waits until a packet can be written, at most for `time`; returns whether one can.
    ///
    /// # Errors
    /// The error of `ppoll(2)`.
    pub fn wait_writable(&self, time: Option<Duration>) -> io::Result<bool> {
        poll::wait_writable(self.as_fd(), time)
    }

    /// Reads one packet or super-packet into `buffer`, which should have [`READ_SIZE`] bytes.
    /// Packets that are lost on the way are [counted](Queue::read_losses), and the next one is
    /// read.
    ///
    /// # Errors
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) if none is there;
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) for a buffer that cannot hold a super-packet
    /// while the kernel may send one (nothing is read); `EBADFD` after the device was deleted.
    pub fn read<'a>(&self, buffer: &'a mut [u8]) -> io::Result<Received<'a>> {
        let Inner { file, shared, unreadable, truncated, malformed } = &*self.0;
        if buffer.len() < usize::from(u16::MAX) && !shared.rx().without(TunOffloads::CSUM).is_none() {
            let text = "a buffer for super-packets has READ_SIZE bytes: make it larger, or switch offloads off";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        loop {
            let (mut header, mut spill) = ([0; MAX_LEN], [0]);
            let in_front = header.get_mut(..shared.header).unwrap_or_default();
            let mut vectors = [IoSliceMut::new(in_front), IoSliceMut::new(buffer), IoSliceMut::new(&mut spill)];
            let len = match (&**file).read_vectored(&mut vectors) {
                Ok(n) => n.checked_sub(shared.header).filter(|&n| n > 0).ok_or(io::ErrorKind::UnexpectedEof)?,
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => continue,
                    Some(libc::EINVAL) => {
                        unreadable.fetch_add(1, Ordering::Relaxed);
                        continue;
                    }
                    _ => return Err(error),
                },
            };
            if len > buffer.len() {
                truncated.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            let Ok(offload) = header::decode(&header, len) else {
                malformed.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            return Ok(Received { bytes: buffer.get_mut(..len).unwrap_or_default(), offload, link: self.link() });
        }
    }

    /// The packets that [`read`](Queue::read) lost. Those that the kernel dropped because its queue
    /// was full are in [`Device::queue_drops`](crate::Device::queue_drops).
    pub fn read_losses(&self) -> ReadLosses {
        let Inner { unreadable, truncated, malformed, .. } = &*self.0;
        let [unreadable, truncated, malformed] =
            [unreadable, truncated, malformed].map(|count| count.load(Ordering::Relaxed));
        ReadLosses { unreadable, truncated, malformed }
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.file.as_fd()
    }
}

impl AsRawFd for Queue {
    fn as_raw_fd(&self) -> RawFd {
        self.0.file.as_raw_fd()
    }
}

/// A packet or super-packet from the kernel, in the caller's buffer.
#[derive(Debug)]
pub struct Received<'a> {
    bytes: &'a mut [u8],
    offload: Offload,
    link: LinkKind,
}

impl<'a> Received<'a> {
    /// The bytes, as the kernel handed them over: the transport checksum may be partial.
    pub fn bytes(&self) -> &[u8] {
        self.bytes
    }

    /// Its checksum and segmentation.
    pub fn offload(&self) -> &Offload {
        &self.offload
    }

    /// Whether it is several packets in one.
    pub fn is_super(&self) -> bool {
        self.offload.gso.is_some()
    }

    /// The packets that it consists of, their checksums complete. Each is written straight into a
    /// buffer of the caller, at any offset: [`Segments::next_len`], [`Segments::write`]. To leave
    /// the payload where it is: [`Segments::next_slices`]. An ordinary packet is one segment.
    ///
    /// ```
    /// # fn encrypt(_: &mut [u8]) {}
    /// # fn seal(received: &towpath_tun::Received<'_>) -> Result<(), towpath_gro::GsoError> {
    /// let mut segments = received.segments()?;
    /// let mut datagram = [0; 2048];
    /// while let Some(len) = segments.next_len() {
    ///     // Room for a header of the tunnel in front, and for an authentication tag behind.
    ///     let Some(packet) = datagram.get_mut(16..16 + len) else { break };
    ///     segments.write(packet);
    ///     encrypt(&mut datagram[..16 + len + 16]);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`GsoError`] if the metadata cannot be true of the packet.
    pub fn segments(&self) -> Result<Segments<'_>, GsoError> {
        Segments::of(self.bytes, self.link, &self.offload, Checksums::Complete)
    }

    /// The packet in place, its checksum complete; `None` for a super-packet.
    ///
    /// # Errors
    /// [`GsoError`] if the place of the checksum is outside the packet.
    pub fn whole(&mut self) -> Result<Option<&mut [u8]>, GsoError> {
        if self.is_super() {
            return Ok(None);
        }
        complete_checksum(self.bytes, &self.offload)?;
        self.offload = Offload::default();
        Ok(Some(self.bytes))
    }
}

/// Where a [`Writer`](crate::Writer) writes: a queue, or a kernel that a test imagines.
pub(crate) trait Transmit {
    fn header(&self) -> usize;
    fn link(&self) -> LinkKind;
    fn offloads(&self) -> TunOffloads;
    fn switch_off(&self, set: TunOffloads);
    fn transmit(&self, gather: &mut Gather, header: &[u8], packet: &impl Pieces) -> io::Result<usize>;
}

impl Transmit for Queue {
    #[inline]
    fn header(&self) -> usize {
        self.0.shared.header
    }

    #[inline]
    fn link(&self) -> LinkKind {
        self.kind().link()
    }

    #[inline]
    fn offloads(&self) -> TunOffloads {
        self.0.shared.tx()
    }

    fn switch_off(&self, set: TunOffloads) {
        self.0.shared.switch_off(set);
    }

    #[inline]
    fn transmit(&self, gather: &mut Gather, header: &[u8], packet: &impl Pieces) -> io::Result<usize> {
        gather.write(&*self.0.file, header, packet)
    }
}
