//! A process that only closes: for descriptors of others, of which a `close(2)` may block.
//!
//! A descriptor that another process sent can be of any file. The last reference to a TCP socket
//! with `SO_LINGER` blocks whatever drops it for as long as the sender likes, a file of a FUSE
//! server blocks each `close(2)` until the server answers, and not even `SIGKILL` ends that. A
//! thread that hangs there keeps its process from ending. A process of its own does not.
//!
//! ```text
//!   this thread      clone(CLONE_VM | CLONE_VFORK) ─── waits ───► goes on
//!   the process           keeps one socket │ takes its record │ exits: memory ─► descriptors
//!                                                                      (resumes)   (may block)
//! ```
//!
//! The process has a copy of the descriptor table and borrows the memory, as a child of `vfork(2)`.
//! Nothing that it does before its exit blocks. The kernel takes its memory away first, at which
//! this thread goes on, and closes its descriptors then. [`Closing::is_over`] is true when that is
//! done. It raises no `SIGCHLD`, and no `wait(2)` for other children returns it.

use crate::seqpacket::{self, receive_control};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr::null_mut;

/// A process that closes, or has closed.
#[derive(Debug)]
pub struct Closing(Option<libc::pid_t>);

impl Closing {
    /// Whether all that it had is closed.
    pub fn is_over(&mut self) -> bool {
        let Some(pid) = self.0 else { return true };
        // SAFETY: null for a status that is not asked for; the call does not wait.
        if unsafe { libc::waitpid(pid, null_mut(), libc::WNOHANG | libc::__WCLONE) } != 0 {
            self.0 = None;
        }
        self.0.is_none()
    }
}

/// The descriptors of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Descriptors {
    /// There are none.
    None,
    /// One, of a memfd or another file in memory. The record is still queued.
    Memory,
    /// One, of another file. The record was taken.
    Other,
    /// Several. The record was taken.
    Several,
}

/// Examines the descriptors of the first record that is queued at a socket. No file system is asked
/// about them, and none of them is ever in this process. A record whose descriptor is not of memory
/// is taken, and its descriptors are closed in the returned process.
///
/// # Errors
/// The error of `clone(2)` or `close_range(2)`; `WouldBlock` if no record is queued.
pub fn examine(socket: BorrowedFd<'_>) -> io::Result<(Descriptors, Closing)> {
    let mut task = Task { from: socket.as_raw_fd(), examine: true, descriptors: Descriptors::None, error: 0 };
    let closing = task.start()?;
    Ok((task.descriptors, closing))
}

/// Closes a socket whose queue may have records with descriptors. No other descriptor of the socket
/// may be left in this process: the last one closes the queue.
///
/// # Errors
/// The socket, with the error of `socketpair(2)`, `sendmsg(2)`, `clone(2)` or `close_range(2)`.
/// `None` if it could not be taken back, and is closed.
pub fn close(socket: OwnedFd) -> Result<Closing, (Option<OwnedFd>, io::Error)> {
    // A record takes the socket out of this process: it is the only reference while it is queued.
    let sent = seqpacket::pair()
        .and_then(|[from, to]| seqpacket::send(to.as_fd(), &[0], &[socket.as_fd()]).map(|()| [from, to]));
    let [from, _to] = match sent {
        Ok(pair) => pair,
        Err(error) => return Err((Some(socket), error)),
    };
    let mut task = Task { from: from.as_raw_fd(), examine: false, descriptors: Descriptors::None, error: 0 };
    // Not the last reference.
    drop(socket);
    task.start().map_err(|error| {
        // The record is still queued.
        let back = seqpacket::receive(from.as_fd(), &mut [0]).ok();
        (back.and_then(|mut got| got.fds.pop()), error)
    })
}

/// Bytes of the stack of the process.
const STACK: usize = 64 << 10;

/// Memory that no reference refers to.
#[repr(align(16))]
struct Stack {
    _bytes: [MaybeUninit<u8>; STACK],
}

/// What the process does.
struct Task {
    /// The socket that it receives from.
    from: RawFd,
    /// It examines a record before it takes it.
    examine: bool,
    descriptors: Descriptors,
    /// An error number, 0 for success.
    error: libc::c_int,
}

impl Task {
    /// Starts the process, and waits until it no longer uses memory.
    fn start(&mut self) -> io::Result<Closing> {
        let mut stack: Box<MaybeUninit<Stack>> = Box::new_uninit();
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // The process uses this thread's thread-local storage meanwhile, and no other thread's.
        // Signals are blocked in both, so that no handler runs in the process.
        // SAFETY: the sets live across the calls and are initialized by them. The stack grows down
        // from its end, and stack and task live until the process has given the memory back: with
        // CLONE_VFORK this thread waits for that.
        let (pid, error) = unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            let top = stack.as_mut_ptr().add(1);
            let pid = libc::clone(run, top.cast(), libc::CLONE_VM | libc::CLONE_VFORK, (&raw mut *self).cast());
            let error = io::Error::last_os_error();
            libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), null_mut());
            (pid, error)
        };
        if pid < 0 {
            return Err(error);
        }
        let mut closing = Closing(Some(pid));
        if self.error != 0 {
            // It has nothing that could block.
            while !closing.is_over() {
                std::thread::yield_now();
            }
            return Err(io::Error::from_raw_os_error(self.error));
        }
        Ok(closing)
    }

    /// The work of the process: system calls, no allocation, no lock.
    fn work(&mut self) -> io::Result<()> {
        const SOCKET: RawFd = 0;
        // SAFETY: no pointers. The descriptors are those of this process, which uses no other one
        // than the socket.
        unsafe {
            crate::check(libc::dup2(self.from, SOCKET))?;
            if libc::syscall(libc::SYS_close_range, SOCKET + 1, libc::c_int::MAX, 0) < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        if self.examine {
            let found = receive_control::<{ seqpacket::control_len(1) }>(SOCKET, libc::MSG_PEEK)?;
            // SAFETY: no pointers.
            let in_memory = || unsafe { libc::fcntl(found.first, libc::F_GET_SEALS) } >= 0;
            self.descriptors = match found {
                found if found.cut => Descriptors::Several,
                found if found.len == 0 => Descriptors::None,
                _ if in_memory() => Descriptors::Memory,
                _ => Descriptors::Other,
            };
            if matches!(self.descriptors, Descriptors::None | Descriptors::Memory) {
                return Ok(());
            }
        }
        let taken = receive_control::<{ seqpacket::control_len(seqpacket::SCM_MAX_FD) }>(SOCKET, 0);
        // An error after an examination has no meaning: the record was there.
        taken.map(drop).or_else(|error| if self.examine { Ok(()) } else { Err(error) })
    }
}

/// Runs in the process.
extern "C" fn run(task: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `start` passes its task, and waits.
    let task = unsafe { &mut *task.cast::<Task>() };
    if let Err(error) = task.work() {
        task.error = error.raw_os_error().unwrap_or(libc::EIO);
    }
    // SAFETY: no pointers. The call ends the process without handlers of `atexit(3)`.
    unsafe { libc::_exit(0) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::poll::wait_readable;
    use std::io::Read;
    use std::net::TcpStream;
    use std::time::Duration;
    use towpath_testing::{lingering, sealed_memory};

    fn until_over(mut closing: Closing) {
        while !closing.is_over() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until the other ends were closed. All at once: a child of another test may have them,
    /// and closes one after the other before it runs its program.
    fn until_closed(ends: Vec<TcpStream>) {
        std::thread::scope(|scope| {
            for mut far in ends {
                scope.spawn(move || assert!(far.read_to_end(&mut Vec::new()).is_ok()));
            }
        });
    }

    #[test]
    fn a_socket_whose_queue_has_lingering_connections_is_closed_without_waiting_for_them() {
        let [near, far] = seqpacket::pair().unwrap();
        let (mut ends, mut fds) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            let (lingering, end) = lingering();
            seqpacket::send(far.as_fd(), b"x", &[lingering.as_fd()]).unwrap();
            ends.push(end);
            fds.push(lingering);
        }
        drop(fds);
        until_over(close(near).unwrap());
        until_closed(ends);
        // At once, unless a child of another test has it too.
        assert!(wait_readable(far.as_fd(), Some(Duration::from_secs(20))).unwrap(), "closed");
    }

    #[test]
    fn memory_stays_queued_and_any_other_descriptor_is_closed_elsewhere() {
        let [near, far] = seqpacket::pair().unwrap();
        let memory = sealed_memory(4096);
        assert_eq!(examine(near.as_fd()).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        seqpacket::send(far.as_fd(), b"hello", &[memory.as_fd()]).unwrap();
        let (found, closing) = examine(near.as_fd()).unwrap();
        until_over(closing);
        assert_eq!(found, Descriptors::Memory);
        let got = seqpacket::receive(near.as_fd(), &mut [0; 8]).unwrap();
        assert_eq!((got.len, got.fds.len(), got.cut), (5, 1, false));
        seqpacket::send(far.as_fd(), b"hello", &[]).unwrap();
        assert_eq!(examine(near.as_fd()).unwrap().0, Descriptors::None);
        assert_eq!(seqpacket::receive(near.as_fd(), &mut [0; 8]).unwrap().len, 5);
        let (lingering, end) = lingering();
        let path =
            std::os::unix::fs::OpenOptionsExt::custom_flags(std::fs::OpenOptions::new().read(true), libc::O_PATH)
                .open("/")
                .unwrap();
        let cases: [(&[BorrowedFd<'_>], _); 4] = [
            (&[path.as_fd()], Descriptors::Other),
            (&[lingering.as_fd()], Descriptors::Other),
            (&[memory.as_fd(), memory.as_fd()], Descriptors::Several),
            (&[memory.as_fd(), lingering.as_fd()], Descriptors::Several),
        ];
        for (fds, kind) in cases {
            seqpacket::send(far.as_fd(), b"hello", fds).unwrap();
            let (found, closing) = examine(near.as_fd()).unwrap();
            until_over(closing);
            assert_eq!(found, kind);
            assert!(!wait_readable(near.as_fd(), Some(Duration::ZERO)).unwrap(), "the record was taken");
        }
        seqpacket::send(far.as_fd(), b"hello", &[lingering.as_fd()]).unwrap();
        drop(lingering);
        until_over(examine(near.as_fd()).unwrap().1);
        until_closed(vec![end]);
    }
}
