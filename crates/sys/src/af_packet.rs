//! AF_PACKET sockets and their options (`packet(7)`, `include/uapi/linux/if_packet.h`).

use super::check;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// All protocols, in the byte order of `sockaddr_ll`.
const ALL: u16 = (libc::ETH_P_ALL as u16).to_be();

/// What a socket counted since it was last asked.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
struct Statistics {
    packets: u32,
    drops: u32,
}

/// How transmitted packets reach the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Qdisc {
    /// Through the interface's queueing discipline, seen by whoever captures on it.
    #[default]
    Normal,
    /// Straight to the driver (`PACKET_QDISC_BYPASS`): cheaper, but nothing is queued when the driver is busy.
    Bypass,
}

/// A socket that carries frames with their virtio-net header, bound to one interface of the namespace it was made in.
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
    /// A socket that is bound to nothing yet, and so receives nothing.
    pub fn new() -> io::Result<Socket> {
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: no pointers.
        let fd = check(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
        // SAFETY: a descriptor that was just opened and that nobody else knows of.
        let socket = Socket(unsafe { OwnedFd::from_raw_fd(fd) });
        socket.set(libc::SOL_PACKET, libc::PACKET_VNET_HDR, &1)?;
        Ok(socket)
    }

    /// Sends through the interface; receives nothing.
    pub fn bind_for_sending(&self, index: i32) -> io::Result<()> {
        self.bind(index, 0)
    }

    /// Receives everything that comes in through the interface.
    pub fn bind_for_receiving(&self, index: i32) -> io::Result<()> {
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
        // SAFETY: the address and its length describe one sockaddr_ll that lives until the call returns.
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
        // SAFETY: address and length describe `value`; whatever the kernel writes there is a T.
        check(unsafe { libc::getsockopt(self.0.as_raw_fd(), libc::SOL_PACKET, option, at, &mut len) })?;
        Ok(value)
    }

    /// Sends one packet, its virtio-net header in front.
    pub fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let fd = self.0.as_raw_fd();
        // SAFETY: address and length describe the borrowed bytes, which the kernel only reads.
        super::check_len(unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), 0) }).map(drop)
    }

    /// Receives the next packet of the socket's own queue, its virtio-net header in front.
    pub fn receive(&self, room: &mut [io::IoSliceMut<'_>]) -> io::Result<usize> {
        let n = libc::c_int::try_from(room.len()).unwrap_or(libc::c_int::MAX);
        // SAFETY: IoSliceMut has the layout of iovec, and the slices are borrowed exclusively until the call returns.
        super::check_len(unsafe { libc::readv(self.0.as_raw_fd(), room.as_ptr().cast(), n) })
    }

    /// Makes the kernel put what arrives into a ring of TPACKET_V2, and queue whole what is longer than a frame.
    pub(super) fn make_ring(&self, block: usize, blocks: usize, frame: usize) -> io::Result<()> {
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

    /// Forgets an error that was noted on the socket, so that it no longer counts as readable.
    pub fn clear_error(&self) {
        let (mut error, mut len) = (0, size_of::<libc::c_int>() as libc::socklen_t);
        let at: *mut libc::c_int = &mut error;
        // SAFETY: address and length describe one int, which SO_ERROR writes.
        unsafe { libc::getsockopt(self.0.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ERROR, at.cast(), &mut len) };
    }

    /// Leaves out what the host sends through the interface.
    pub fn ignore_outgoing(&self) -> io::Result<()> {
        self.set(libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1)
    }

    /// Receives frames for any address, as long as the socket is open.
    pub fn promiscuous(&self, index: i32) -> io::Result<()> {
        let membership = libc::packet_mreq {
            mr_ifindex: index,
            mr_type: libc::PACKET_MR_PROMISC as u16,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        self.set(libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &membership)
    }

    pub fn set_qdisc(&self, qdisc: Qdisc) -> io::Result<()> {
        self.set(libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, &libc::c_int::from(qdisc == Qdisc::Bypass))
    }

    /// Bytes of packets that may wait to be received. More than `net.core.rmem_max` takes the right to administer networks.
    pub fn set_receive_buffer(&self, bytes: libc::c_int) -> io::Result<()> {
        self.set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &bytes)
            .or_else(|_| self.set(libc::SOL_SOCKET, libc::SO_RCVBUF, &bytes))
    }

    /// Bytes of packets that may be on their way out.
    pub fn set_send_buffer(&self, bytes: libc::c_int) -> io::Result<()> {
        self.set(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &bytes)
            .or_else(|_| self.set(libc::SOL_SOCKET, libc::SO_SNDBUF, &bytes))
    }

    /// Makes the socket drop all that arrives, until [`open_gate`](Socket::open_gate).
    pub fn close_gate(&self) -> io::Result<()> {
        let mut nothing = [libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 }];
        let program = libc::sock_fprog { len: 1, filter: nothing.as_mut_ptr() };
        self.set(libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
    }

    pub fn open_gate(&self) -> io::Result<()> {
        self.set(libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &0)
    }

    /// Makes a group that shares what arrives by flow, this socket its first member; returns the group's number.
    pub fn found_group(&self) -> io::Result<u16> {
        self.fanout(0, libc::PACKET_FANOUT_FLAG_UNIQUEID)?;
        // SAFETY: every pattern of bits is an integer.
        let made = unsafe { self.get(libc::PACKET_FANOUT, 0i32) }?;
        Ok(made as u16)
    }

    /// Becomes a member of a group.
    pub fn join_group(&self, group: u16) -> io::Result<()> {
        self.fanout(group, 0)
    }

    fn fanout(&self, group: u16, flags: libc::c_uint) -> io::Result<()> {
        // The group has a hook of its own, so leaving out what the host sends must be said again.
        let mode = libc::PACKET_FANOUT_HASH | flags | PACKET_FANOUT_FLAG_IGNORE_OUTGOING;
        self.set(libc::SOL_PACKET, libc::PACKET_FANOUT, &(u32::from(group) | mode << 16))
    }

    /// Bytes of memory that packets take which were sent and that the kernel has not let go of (`SIOCOUTQ`).
    pub fn outstanding(&self) -> u64 {
        let mut bytes: libc::c_int = 0;
        // SAFETY: TIOCOUTQ, which is SIOCOUTQ, writes one int.
        let done = unsafe { libc::ioctl(self.0.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
        if done < 0 { 0 } else { u64::try_from(bytes).unwrap_or(0) }
    }

    /// Packets that arrived and found the socket's buffer full, since this was last asked.
    pub fn missed(&self) -> u64 {
        // SAFETY: two integers, for which every pattern of bits is a value.
        let statistics = unsafe { self.get(libc::PACKET_STATISTICS, Statistics::default()) };
        statistics.map_or(0, |s| s.drops.into())
    }
}

/// `PACKET_FANOUT_FLAG_IGNORE_OUTGOING`.
const PACKET_FANOUT_FLAG_IGNORE_OUTGOING: libc::c_uint = 0x4000;
