//! AF_PACKET sockets and their options (`packet(7)`, `include/uapi/linux/if_packet.h`).

use super::check;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// All protocols, in the byte order of `sockaddr_ll`.
const ALL: u16 = (libc::ETH_P_ALL as u16).to_be();

/// `struct tpacket_stats`: counters since the last read.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
struct Statistics {
    packets: u32,
    drops: u32,
}

/// How transmitted packets reach the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Qdisc {
    /// Through the interface's queueing discipline; captures on the interface see the packet.
    #[default]
    Normal,
    /// Straight to the driver (`PACKET_QDISC_BYPASS`): cheaper, but nothing is queued if the driver
    /// is busy.
    Bypass,
}

/// A socket that carries frames with their virtio-net header, bound to one interface of the
/// namespace in which it was made.
#[derive(Debug)]
pub struct Socket(OwnedFd);

impl std::os::fd::AsFd for Socket {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> libc::c_int {
        self.0.as_raw_fd()
    }
}

impl Socket {
    /// An unbound socket: it receives nothing.
    ///
    /// # Errors
    /// The error of `socket(2)`: `EPERM` without `CAP_NET_RAW`.
    pub fn new() -> io::Result<Socket> {
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: no pointers.
        let fd = check(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
        // SAFETY: the kernel just returned this descriptor; it has no other owner.
        let socket = Socket(unsafe { OwnedFd::from_raw_fd(fd) });
        socket.set(libc::SOL_PACKET, libc::PACKET_VNET_HDR, &1)?;
        Ok(socket)
    }

    /// Binds to an interface for transmission only.
    ///
    /// # Errors
    /// The error of `bind(2)`.
    pub fn bind_tx(&self, index: i32) -> io::Result<()> {
        self.bind(index, 0)
    }

    /// Binds to an interface; every frame that it receives is queued.
    ///
    /// # Errors
    /// The error of `bind(2)`.
    pub fn bind_rx(&self, index: i32) -> io::Result<()> {
        self.bind(index, ALL)
    }

    fn bind(&self, index: i32, protocol: u16) -> io::Result<()> {
        let address = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: protocol,
            sll_ifindex: index,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the address and its length describe one sockaddr_ll that lives until the call
        // returns.
        check(unsafe { libc::bind(self.0.as_raw_fd(), (&raw const address).cast(), len) }).map(drop)
    }

    fn set<T>(&self, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
        let len = size_of::<T>() as libc::socklen_t;
        // SAFETY: address and length describe the borrowed value, which the kernel only reads.
        check(unsafe { libc::setsockopt(self.0.as_raw_fd(), level, option, (&raw const *value).cast(), len) }).map(drop)
    }

    /// # Safety
    /// `T` is plain data of which every bit pattern is a value.
    unsafe fn get<T>(&self, option: libc::c_int, mut value: T) -> io::Result<T> {
        let mut len = size_of::<T>() as libc::socklen_t;
        let at = (&raw mut value).cast();
        // SAFETY: address and length describe `value`; any bytes that the kernel writes there are a
        // T.
        check(unsafe { libc::getsockopt(self.0.as_raw_fd(), libc::SOL_PACKET, option, at, &mut len) })?;
        Ok(value)
    }

    /// Sends one packet with its virtio-net header in front.
    ///
    /// # Errors
    /// The error of `send(2)`.
    pub fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let fd = self.0.as_raw_fd();
        // SAFETY: address and length describe the borrowed bytes, which the kernel only reads.
        super::check_len(unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), 0) }).map(drop)
    }

    /// Receives the next packet of the socket's own queue, with its virtio-net header in front.
    ///
    /// # Errors
    /// The error of `readv(2)`.
    pub fn receive(&self, buffers: &mut [io::IoSliceMut<'_>]) -> io::Result<usize> {
        let n = libc::c_int::try_from(buffers.len()).unwrap_or(libc::c_int::MAX);
        // SAFETY: IoSliceMut has the layout of iovec, and the slices are borrowed exclusively until
        // the call returns.
        super::check_len(unsafe { libc::readv(self.0.as_raw_fd(), buffers.as_ptr().cast(), n) })
    }

    /// Makes an RX ring of TPACKET_V2. A packet that is longer than a frame is also queued whole.
    pub(super) fn make_rx_ring(&self, block: usize, blocks: usize, frame: usize) -> io::Result<()> {
        self.set(libc::SOL_PACKET, libc::PACKET_VERSION, &libc::tpacket_versions::TPACKET_V2)?;
        self.set(libc::SOL_PACKET, libc::PACKET_COPY_THRESH, &1)?;
        let ring = libc::tpacket_req {
            tp_block_size: block as libc::c_uint,
            tp_block_nr: blocks as libc::c_uint,
            tp_frame_size: frame as libc::c_uint,
            tp_frame_nr: (block / frame * blocks) as libc::c_uint,
        };
        self.set(libc::SOL_PACKET, libc::PACKET_RX_RING, &ring)
    }

    /// Clears the socket's pending error, which makes it readable (`SO_ERROR`).
    pub fn clear_error(&self) {
        let (mut error, mut len) = (0, size_of::<libc::c_int>() as libc::socklen_t);
        let at: *mut libc::c_int = &mut error;
        // SAFETY: address and length describe one int, which SO_ERROR writes.
        unsafe { libc::getsockopt(self.0.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ERROR, at.cast(), &mut len) };
    }

    /// Leaves out the packets that the host sends through the interface.
    ///
    /// # Errors
    /// The error of `setsockopt(2)`.
    pub fn ignore_outgoing(&self) -> io::Result<()> {
        self.set(libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1)
    }

    /// Receives frames for any address until the socket is closed.
    ///
    /// # Errors
    /// The error of `setsockopt(2)`.
    pub fn set_promiscuous(&self, index: i32) -> io::Result<()> {
        let membership = libc::packet_mreq {
            mr_ifindex: index,
            mr_type: libc::PACKET_MR_PROMISC as u16,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        self.set(libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &membership)
    }

    /// Chooses how transmitted packets reach the driver.
    ///
    /// # Errors
    /// The error of `setsockopt(2)`.
    pub fn set_qdisc(&self, qdisc: Qdisc) -> io::Result<()> {
        self.set(libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, &libc::c_int::from(qdisc == Qdisc::Bypass))
    }

    /// Sets the bytes of packets that may wait to be received. More than `net.core.rmem_max` needs
    /// `CAP_NET_ADMIN`.
    ///
    /// # Errors
    /// The error of `setsockopt(2)`.
    pub fn set_receive_buffer(&self, bytes: libc::c_int) -> io::Result<()> {
        self.set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &bytes)
            .or_else(|_| self.set(libc::SOL_SOCKET, libc::SO_RCVBUF, &bytes))
    }

    /// The bytes of packets that may wait to be received, as [set](Socket::set_receive_buffer): the
    /// kernel keeps twice the value (`socket(7)`).
    ///
    /// # Errors
    /// The error of `getsockopt(2)`.
    pub fn receive_buffer(&self) -> io::Result<libc::c_int> {
        let (mut bytes, mut len) = (0, size_of::<libc::c_int>() as libc::socklen_t);
        let at: *mut libc::c_int = &mut bytes;
        // SAFETY: address and length describe one int, which SO_RCVBUF writes.
        check(unsafe { libc::getsockopt(self.0.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, at.cast(), &mut len) })?;
        Ok(bytes / 2)
    }

    /// Sets the bytes of packets that may wait to be transmitted.
    ///
    /// # Errors
    /// The error of `setsockopt(2)`.
    pub fn set_send_buffer(&self, bytes: libc::c_int) -> io::Result<()> {
        self.set(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &bytes)
            .or_else(|_| self.set(libc::SOL_SOCKET, libc::SO_SNDBUF, &bytes))
    }

    /// Attaches a filter that drops every packet, until [`detach_filter`](Socket::detach_filter).
    ///
    /// # Errors
    /// The error of `setsockopt(2)`.
    pub fn attach_drop_filter(&self) -> io::Result<()> {
        let mut drop_all = [libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 }];
        let program = libc::sock_fprog { len: 1, filter: drop_all.as_mut_ptr() };
        self.set(libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
    }

    /// Detaches the socket's filter.
    ///
    /// # Errors
    /// The error of `setsockopt(2)`.
    pub fn detach_filter(&self) -> io::Result<()> {
        self.set(libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &0)
    }

    /// Makes a fanout group that distributes packets by flow hash, with this socket as its first
    /// member; returns the group's id.
    ///
    /// # Errors
    /// The error of `setsockopt(2)` or `getsockopt(2)`.
    pub fn create_fanout(&self) -> io::Result<u16> {
        self.fanout(0, libc::PACKET_FANOUT_FLAG_UNIQUEID)?;
        // SAFETY: every pattern of bits is an integer.
        let fanout = unsafe { self.get(libc::PACKET_FANOUT, 0i32) }?;
        Ok(fanout as u16)
    }

    /// Joins a fanout group.
    ///
    /// # Errors
    /// The error of `setsockopt(2)`.
    pub fn join_fanout(&self, group: u16) -> io::Result<()> {
        self.fanout(group, 0)
    }

    fn fanout(&self, group: u16, flags: libc::c_uint) -> io::Result<()> {
        // The group has a packet hook of its own, which needs the option to ignore outgoing packets
        // too.
        let mode = libc::PACKET_FANOUT_HASH | flags | PACKET_FANOUT_FLAG_IGNORE_OUTGOING;
        self.set(libc::SOL_PACKET, libc::PACKET_FANOUT, &(u32::from(group) | mode << 16))
    }

    /// Bytes of memory of sent packets that the kernel has not freed yet (`SIOCOUTQ`).
    pub fn outstanding(&self) -> u64 {
        let mut bytes: libc::c_int = 0;
        // SAFETY: TIOCOUTQ, which is SIOCOUTQ, writes one int.
        let done = unsafe { libc::ioctl(self.0.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
        if done < 0 { 0 } else { u64::try_from(bytes).unwrap_or(0) }
    }

    /// Packets that were dropped because the socket's buffer was full, since the last call.
    pub fn take_drops(&self) -> u64 {
        // SAFETY: two integers, for which every pattern of bits is a value.
        let statistics = unsafe { self.get(libc::PACKET_STATISTICS, Statistics::default()) };
        statistics.map_or(0, |s| s.drops.into())
    }
}

/// `PACKET_FANOUT_FLAG_IGNORE_OUTGOING`.
const PACKET_FANOUT_FLAG_IGNORE_OUTGOING: libc::c_uint = 0x4000;
