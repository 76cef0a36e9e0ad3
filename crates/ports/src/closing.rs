//! Descriptors that other processes sent, and sockets that they send to, closed where nothing waits
//! for it.
//!
//! The queue of a socket of `sock` may hold records with descriptors of any file. Closing the
//! socket closes them, which can block (see [`towpath_sys::closer`]). So a socket is closed where
//! it is dropped only if it refused descriptors from the beginning (`SO_PASSRIGHTS`, Linux 6.16).
//! Any other one goes to the server thread. If its queue is empty, or can be emptied, the thread
//! closes it. Else a process of its own does.
//!
//! A front end of `vhost` sends descriptors as a matter of course. Those that are not what they
//! must be are closed by a process of their own, too.
//!
//! Those processes are bounded. A user whose descriptors do not close has no further ones examined
//! ([`MAX_EXAMINED`]). Sockets that wait for a process ([`MAX_CLOSING`]) keep the port from
//! accepting connections ([`MAX_WAITING`]); sessions are not affected. Nothing waits for a process
//! when the port ends.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use towpath_sys::closer::{self, Closing, Descriptors};
use towpath_sys::{lock, seqpacket};

/// Processes with descriptors of one user that were examined and are not closed yet.
const MAX_EXAMINED: usize = 4;
/// Processes with sockets that are not closed yet.
const MAX_CLOSING: usize = 64;
/// Descriptors that wait for a process.
const MAX_WAITING: usize = 64;

/// The time that a process has before its user's further descriptors are not examined.
const GRACE: Duration = Duration::from_millis(50);

/// Closes sockets, and keeps the processes that do.
#[derive(Debug, Default)]
pub(crate) struct Closer {
    /// Any thread adds to it, and waits for nothing.
    dropped: Mutex<Dropped>,
    /// The server thread has this one, and after its end those that drop a socket.
    processes: Mutex<Processes>,
}

/// Sockets that were dropped.
#[derive(Debug, Default)]
struct Dropped {
    files: Vec<Dropping>,
    /// The server thread has ended.
    ended: bool,
}

/// A descriptor to be closed.
#[derive(Debug)]
enum Dropping {
    /// A socket that another process sent to.
    Socket(OwnedFd),
    /// A descriptor that another process sent.
    File(OwnedFd),
}

#[derive(Debug, Default)]
struct Processes {
    /// Descriptors that wait for a process.
    waiting: Vec<Dropping>,
    closing: Vec<Closing>,
    examined: Vec<Examined>,
}

/// The process that has a user's descriptors.
#[derive(Debug)]
struct Examined {
    uid: u32,
    since: Instant,
    process: Closing,
}

impl Closer {
    /// Examines the descriptors of the first record of a connection of user `uid`.
    pub(crate) fn examine(&self, connection: BorrowedFd<'_>, uid: u32) -> io::Result<Descriptors> {
        let mut processes = lock(&self.processes);
        if processes.is_stuck(uid) {
            let why = format!("{MAX_EXAMINED} files that user {uid} sent as memory do not close");
            return Err(io::Error::other(why));
        }
        let (found, process) = closer::examine(connection)?;
        processes.examined.push(Examined { uid, since: Instant::now(), process });
        Ok(found)
    }

    /// Closes what was dropped. Returns whether there is room for more sockets.
    pub(crate) fn turn(&self) -> bool {
        let mut processes = lock(&self.processes);
        processes.waiting.append(&mut lock(&self.dropped).files);
        processes.close();
        processes.waiting.len() < MAX_WAITING
    }

    /// The server thread ends: sockets that are dropped later are closed by those that drop them.
    pub(crate) fn end(&self) {
        lock(&self.dropped).ended = true;
        self.turn();
    }

    /// Has a descriptor of any file closed by a process, at the next [turn](Closer::turn).
    pub(crate) fn close(&self, fd: OwnedFd) {
        lock(&self.dropped).files.push(Dropping::File(fd));
    }

    fn drop_socket(&self, socket: OwnedFd) {
        // The peer sees the end, and its sends fail.
        seqpacket::shutdown(socket.as_fd());
        let mut dropped = lock(&self.dropped);
        dropped.files.push(Dropping::Socket(socket));
        if dropped.ended {
            drop(dropped);
            self.turn();
        }
    }
}

impl Processes {
    /// Whether too many descriptors of a user do not close. Young processes get some time.
    fn is_stuck(&mut self, uid: u32) -> bool {
        loop {
            self.examined.retain_mut(|examined| !examined.process.is_over());
            let mine = self.examined.iter().filter(|examined| examined.uid == uid);
            if mine.clone().count() < MAX_EXAMINED {
                return false;
            }
            if mine.map(|examined| examined.since.elapsed()).min() > Some(GRACE) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn close(&mut self) {
        self.closing.retain_mut(|process| !process.is_over());
        for dropping in std::mem::take(&mut self.waiting) {
            if matches!(&dropping, Dropping::Socket(socket) if seqpacket::discard(socket.as_fd())) {
                continue;
            }
            if self.closing.len() >= MAX_CLOSING {
                self.waiting.push(dropping);
                continue;
            }
            let (Dropping::Socket(fd) | Dropping::File(fd)) = dropping;
            match closer::close(fd) {
                Ok(process) => self.closing.push(process),
                // It is tried again.
                Err((fd, _)) => self.waiting.extend(fd.map(Dropping::File)),
            }
        }
    }
}

impl Drop for Processes {
    /// What no process closed stays open: the end of this process closes it.
    fn drop(&mut self) {
        for Dropping::Socket(fd) | Dropping::File(fd) in self.waiting.drain(..) {
            std::mem::forget(fd);
        }
    }
}

/// A socket that an application sends to.
#[derive(Debug)]
pub(crate) struct AppSocket {
    /// `None` only while it is dropped.
    fd: Option<OwnedFd>,
    /// No record in its queue has descriptors, and none will.
    refuses: AtomicBool,
    closer: Arc<Closer>,
}

impl AppSocket {
    /// A socket that may have received anything.
    pub(crate) fn new(fd: OwnedFd, closer: Arc<Closer>) -> AppSocket {
        AppSocket { fd: Some(fd), refuses: AtomicBool::new(false), closer }
    }

    /// Refuses descriptors from here on, if the kernel can and none came before. The queue must be
    /// empty.
    pub(crate) fn refuse_descriptors(&self) -> io::Result<()> {
        let refuses = can_refuse() && seqpacket::refuse_descriptors(self.as_fd())?;
        let empty = || seqpacket::peek(self.as_fd(), &mut []).is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock);
        self.refuses.store(refuses && empty(), Ordering::Relaxed);
        Ok(())
    }

    /// Whether no record in its queue has descriptors.
    pub(crate) fn refuses(&self) -> bool {
        self.refuses.load(Ordering::Relaxed)
    }
}

impl AsFd for AppSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.fd {
            Some(fd) => fd.as_fd(),
            None => unreachable!("only `drop` takes the descriptor"),
        }
    }
}

impl Drop for AppSocket {
    fn drop(&mut self) {
        match self.fd.take() {
            Some(fd) if !self.refuses() => self.closer.drop_socket(fd),
            _ => {}
        }
    }
}

/// Tests of older kernels turn this off.
#[cfg(test)]
pub(crate) static CAN_REFUSE: AtomicBool = AtomicBool::new(true);

fn can_refuse() -> bool {
    #[cfg(test)]
    return CAN_REFUSE.load(Ordering::Relaxed);
    #[cfg(not(test))]
    true
}
