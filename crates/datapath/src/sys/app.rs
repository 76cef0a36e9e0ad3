//! What applications are met with: descriptors to wait for, rings, and a look at the memory that they bring.

use super::check;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::null_mut;
use std::sync::Arc;
use towpath_client::protocol::{Rings, Sizes, Statistic};
use towpath_packet::xsk_ring::{Consumer, Desc, Mapped, Producer};
use towpath_packet::{Backing, Region};

/// Many descriptors to wait for as one.
#[derive(Debug)]
pub(crate) struct Epoll(OwnedFd);

impl Epoll {
    pub(crate) fn new() -> io::Result<Epoll> {
        // SAFETY: no pointers.
        let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: the kernel just returned this descriptor and nobody else has it.
        Ok(Epoll(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Waits for a descriptor too: while it is readable, or, with `once`, once for each time that it is written to.
    pub(crate) fn add(&self, fd: RawFd, once: bool) -> io::Result<()> {
        let events = (libc::EPOLLIN | if once { libc::EPOLLET } else { 0 }) as u32;
        let mut event = libc::epoll_event { events, u64: 0 };
        // SAFETY: the event lives across the call.
        check(unsafe { libc::epoll_ctl(self.fd(), libc::EPOLL_CTL_ADD, fd, &mut event) }).map(drop)
    }

    /// Waits for it no more, whoever else still has it.
    pub(crate) fn remove(&self, fd: RawFd) {
        // SAFETY: no event is needed. It fails only for a descriptor that was not added.
        unsafe { libc::epoll_ctl(self.fd(), libc::EPOLL_CTL_DEL, fd, null_mut()) };
    }

    /// Forgets what was written until now.
    pub(crate) fn drain(&self) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        // SAFETY: the array lives across the call and has the length that is given; no time is waited.
        unsafe { libc::epoll_wait(self.fd(), events.as_mut_ptr(), events.len() as libc::c_int, 0) };
    }
}

/// A counter for somebody else to wake us with: never read, never written here.
pub(crate) fn kick() -> io::Result<OwnedFd> {
    // SAFETY: eventfd takes no pointer.
    let fd = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
    // SAFETY: the kernel just returned this descriptor and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Wakes who waits for the other end of the connection. A full queue wakes as well, so nothing can go wrong that matters.
#[inline]
pub(crate) fn wake(connection: BorrowedFd<'_>) {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: one byte lives across the call.
    unsafe { libc::send(connection.as_raw_fd(), [0u8].as_ptr().cast(), 1, flags) };
}

/// Two ends of a line of records; nobody who calls on them waits.
pub(crate) fn pair() -> io::Result<[OwnedFd; 2]> {
    let mut fds = [-1; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: the array has room for the two descriptors.
    check(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) })?;
    // SAFETY: the kernel just returned these descriptors and nobody else has them.
    Ok(fds.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// Bytes that an end of a line may have on their way, as they are asked for; the kernel takes twice as many.
const SEND_BUFFER: libc::c_int = 100 << 10;

/// Gives an end of a line the send buffer that [`stuff`] expects.
pub(crate) fn size_send_buffer(end: BorrowedFd<'_>) -> io::Result<()> {
    let size = SEND_BUFFER;
    let (at, len) = ((&raw const size).cast(), size_of_val(&size) as libc::socklen_t);
    // SAFETY: the number lives across the call and has the length that is given.
    check(unsafe { libc::setsockopt(end.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, at, len) }).map(drop)
}

/// Sends a record from this end that fills so much of its send buffer that it is not ready for writing, until the record is forgotten at the
/// other end; small records can still be sent. (A UNIX socket is ready for writing when no more than a quarter is used.)
pub(crate) fn stuff(end: BorrowedFd<'_>) {
    const PIECES: usize = 14;
    static ZEROS: [u8; 4096] = [0; 4096];
    // With what the kernel needs itself that is more than a quarter of twice the size, and less than all.
    const { assert!(PIECES * 4096 > SEND_BUFFER as usize / 2 && PIECES * 4096 < SEND_BUFFER as usize) };
    let piece = libc::iovec { iov_base: ZEROS.as_ptr().cast_mut().cast(), iov_len: ZEROS.len() };
    let mut pieces = [piece; PIECES];
    // SAFETY: msghdr is plain data; all zeroes are a message with nothing in it.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (pieces.as_mut_ptr(), PIECES as _);
    // SAFETY: the pieces and their bytes live across the call, and are only read. A full buffer is as good.
    unsafe { libc::sendmsg(end.as_raw_fd(), &message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
}

/// Whether there is a record to be read at this end, or the other one is closed.
pub(crate) fn is_readable(end: BorrowedFd<'_>) -> bool {
    let mut poll = libc::pollfd { fd: end.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one descriptor lives across the call; no time is waited.
    unsafe { libc::poll(&mut poll, 1, 0) > 0 }
}

/// Forgets the records that wait at this end, as far as an end has room for them: who sends while we read does not hold us up.
pub(crate) fn forget(end: BorrowedFd<'_>) {
    const MOST: usize = 1024;
    let mut bytes = [0u8; 8];
    for _ in 0..MOST {
        // SAFETY: eight bytes live across the call.
        let n = unsafe { libc::recv(end.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT) };
        // An empty record is one too; only when there is none, or when the other end is gone, is there nothing to forget.
        if n < 0 || (n == 0 && !is_readable(end)) {
            return;
        }
    }
}

/// Makes every thread of the programs that asked for it (`MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED`) pass a full fence now: the fence that
/// they leave out between their counter and our flag. False if this kernel can't.
pub(crate) fn fence_programs() -> bool {
    /// `MEMBARRIER_CMD_GLOBAL_EXPEDITED`.
    const GLOBAL_EXPEDITED: libc::c_long = 1 << 1;
    // SAFETY: no pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, GLOBAL_EXPEDITED, 0, 0) == 0 }
}

/// A moment to wait for among other things.
#[derive(Debug)]
pub(crate) struct Timer(OwnedFd);

impl Timer {
    pub(crate) fn new() -> io::Result<Timer> {
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: no pointers.
        let fd = check(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) })?;
        // SAFETY: the kernel just returned this descriptor and nobody else has it.
        Ok(Timer(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Readable once this time has passed, however it was set before.
    pub(crate) fn set(&self, after: std::time::Duration) {
        let never = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let it_value = libc::timespec { tv_sec: after.as_secs() as _, tv_nsec: after.subsec_nanos().into() };
        let time = libc::itimerspec { it_interval: never, it_value };
        // SAFETY: the time lives across the call, and null for the old one, which is not asked for. It fails only for times that
        // cannot be.
        unsafe { libc::timerfd_settime(self.fd(), 0, &time, null_mut()) };
    }
}

/// Device and inode of a file: what tells whether two descriptors are of the same.
pub(crate) fn identity(fd: BorrowedFd<'_>) -> io::Result<(u64, u64)> {
    // SAFETY: stat is plain data; all zeroes are a value.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the structure lives across the call.
    check(unsafe { libc::fstat(fd.as_raw_fd(), &mut stat) })?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Whether a memfd is made of huge pages: those may be missing when they are touched, which would end this process.
pub(crate) fn is_huge(fd: BorrowedFd<'_>) -> io::Result<bool> {
    // SAFETY: statfs is plain data; all zeroes are a value.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the structure lives across the call.
    check(unsafe { libc::fstatfs(fd.as_raw_fd(), &mut stat) })?;
    Ok(stat.f_type == libc::HUGETLBFS_MAGIC)
}

/// Fresh rings and the datapath's ends of them.
#[derive(Debug)]
pub(crate) struct AppRings {
    pub(crate) region: Arc<Region>,
    pub(crate) layout: Rings,
    pub(crate) tx: Consumer<Mapped<Desc>>,
    pub(crate) completion: Producer<Mapped<u64>>,
    pub(crate) fill: Consumer<Mapped<u64>>,
    pub(crate) rx: Producer<Mapped<Desc>>,
    /// The RX ring again, for its flag.
    pub(crate) bell: Mapped<Desc>,
    /// The session's counters, for each of its halves.
    pub(crate) statistics: [Mapped<u64>; 2],
}

impl AppRings {
    /// Makes rings in a memfd of their own.
    pub(crate) fn new(sizes: &Sizes) -> io::Result<AppRings> {
        let (at, bytes) = Rings::lay_out(sizes);
        let region = Region::new(bytes as usize, Backing::Memfd).map_err(io::Error::other)?;
        let region = Arc::new(region);
        // SAFETY: the region was just made, and nothing but rings is made of it.
        let made = unsafe {
            (|| {
                let (tx, fill) = (
                    Mapped::new(region.clone(), &at.tx, sizes.tx)?,
                    Mapped::new(region.clone(), &at.fill, sizes.fill)?,
                );
                let completion = Mapped::new(region.clone(), &at.completion, sizes.completion)?;
                let rx = || Mapped::new(region.clone(), &at.rx, sizes.rx);
                let statistics = || Mapped::new(region.clone(), &at.statistics, Statistic::ENTRIES);
                Some((tx, completion, fill, [rx()?, rx()?], [statistics()?, statistics()?]))
            })()
        };
        let (tx, completion, fill, [rx, bell], statistics) = made.ok_or(io::ErrorKind::InvalidInput)?;
        bell.set_needs_wakeup(true);
        tx.set_needs_wakeup(true);
        let (tx, fill) = (Consumer::new(tx), Consumer::new(fill));
        Ok(AppRings {
            region,
            layout: at,
            tx,
            completion: Producer::new(completion),
            fill,
            rx: Producer::new(rx),
            bell,
            statistics,
        })
    }
}
