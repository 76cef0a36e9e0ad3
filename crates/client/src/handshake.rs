//! The handshake, from the application's side: whatever the application then does with memory and
//! rings.

use crate::connection::Connection;
use crate::error::{Error, os};
use crate::protocol::{Answer, Hello, Welcome};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};
use towpath_sys::poll::wait_readable;
use towpath_sys::unix_socket::{self, Kind};
use towpath_sys::{retry, seqpacket};

/// The time that the datapath has for the whole handshake, from the connection to its answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A session in its parts. [`Socket`](crate::Socket) makes frames of them.
#[derive(Debug)]
pub struct Session {
    /// The session lasts as long as this connection.
    pub connection: Connection,
    /// The memfd that the rings lie in.
    pub rings: OwnedFd,
    /// Wakes the datapath: an eventfd, or the socket of [`Hello::one_descriptor`].
    pub kick: OwnedFd,
    /// The datapath's answer.
    pub welcome: Welcome,
}

impl Session {
    /// Opens a session with the datapath that listens at `path`, over a memfd that is sealed
    /// against shrinking. Waits at most 10 seconds. Signals end no wait, and are no error.
    ///
    /// # Errors
    /// [`Error::Config`] if `hello` breaks a rule; [`Error::Refused`] with the reason of this
    /// datapath; [`Error::Closed`] if it ends meanwhile; [`Error::Os`] if no datapath listens, the
    /// process has no permission, or the time is over.
    pub fn open(path: &Path, hello: &Hello, memory: BorrowedFd<'_>) -> Result<Session, Error> {
        Session::open_until(Instant::now() + TIMEOUT, path, hello, memory)
    }

    fn open_until(deadline: Instant, path: &Path, hello: &Hello, memory: BorrowedFd<'_>) -> Result<Session, Error> {
        hello.check().map_err(|rule| Error::Config(rule.to_string()))?;
        let connection = unix_socket::connect(path, Kind::Records, Some(deadline)).map_err(os("connect"))?;
        // The first record always finds room.
        retry(|| seqpacket::send(connection.as_fd(), &hello.encode(), &[memory])).map_err(ended("sendmsg"))?;
        let left = deadline.saturating_duration_since(Instant::now());
        if !wait_readable(connection.as_fd(), Some(left)).map_err(os("poll"))? {
            return Err(os("the datapath's answer")(io::ErrorKind::TimedOut.into()));
        }
        let mut bytes = [0; Answer::LONGEST];
        let got = retry(|| seqpacket::receive(connection.as_fd(), &mut bytes)).map_err(ended("recvmsg"))?;
        let welcome = match Answer::decode(bytes.get(..got.len).filter(|b| !b.is_empty()).ok_or(Error::Closed)?)? {
            Answer::Welcome(welcome) => welcome,
            Answer::Refusal(refusal) => return Err(refusal.into()),
        };
        let Ok([rings, kick]) = <[OwnedFd; 2]>::try_from(got.fds) else {
            return Err(Error::Broken("a welcome without its descriptors"));
        };
        Ok(Session { connection: Connection::new(connection), rings, kick, welcome })
    }
}

/// The error of a system call on the connection. A datapath that ends without having read the
/// message resets it.
fn ended(step: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| match source.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Error::Closed,
        _ => os(step)(source),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::thread::JoinHandleExt;
    use towpath_sys::unix_socket::{Access, Listener};

    extern "C" fn ignore(_signal: libc::c_int) {}

    fn listener(path: &Path) -> Listener {
        Listener::new(path, Kind::Records, Access { mode: 0o600, uid: None, gid: None }).unwrap()
    }

    fn open(deadline: Instant, path: &Path) -> Result<(), Error> {
        let memory = std::fs::File::open("/dev/null").unwrap();
        let hello = Hello { umem: 4096, ..Hello::default() };
        Session::open_until(deadline, path, &hello, memory.as_fd()).map(drop)
    }

    #[test]
    fn signals_do_not_end_the_wait_for_an_answer() {
        // SAFETY: the handler does nothing, and nothing else uses this signal.
        unsafe { libc::signal(libc::SIGUSR2, ignore as extern "C" fn(libc::c_int) as libc::sighandler_t) };
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = listener(&path);
        let client = std::thread::spawn(move || open(Instant::now() + TIMEOUT, &path));
        assert!(wait_readable(listener.as_fd(), Some(TIMEOUT)).unwrap());
        let connection = seqpacket::accept(listener.as_fd()).unwrap();
        assert!(wait_readable(connection.as_fd(), Some(TIMEOUT)).unwrap());
        for _ in 0..20 {
            // SAFETY: the thread has not been joined, so its handle is valid.
            unsafe { libc::pthread_kill(client.as_pthread_t(), libc::SIGUSR2) };
            std::thread::sleep(Duration::from_millis(2));
        }
        drop(connection);
        assert!(matches!(client.join().unwrap(), Err(Error::Closed)));
    }

    #[test]
    fn a_datapath_that_ends_during_the_handshake_has_closed_the_session() {
        let directory = tempfile::tempdir().unwrap();
        for accepts in [false, true] {
            for reads in [false, true] {
                let path = directory.path().join("socket");
                let listener = listener(&path);
                let client = std::thread::spawn(move || open(Instant::now() + TIMEOUT, &path));
                assert!(wait_readable(listener.as_fd(), Some(TIMEOUT)).unwrap());
                if accepts {
                    let connection = seqpacket::accept(listener.as_fd()).unwrap();
                    assert!(wait_readable(connection.as_fd(), Some(TIMEOUT)).unwrap());
                    if reads {
                        seqpacket::receive(connection.as_fd(), &mut [0; Hello::LONGEST]).unwrap();
                    }
                }
                drop(listener);
                let end = client.join().unwrap();
                assert!(matches!(end, Err(Error::Closed)), "accepts {accepts}, reads {reads}: {end:?}");
            }
        }
    }

    #[test]
    fn one_deadline_covers_the_connection_and_the_answer() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let _listener = listener(&path);
        let mut steps = Vec::new();
        // The datapath accepts no connection: at first the answer is missing, then, as the queue is
        // full, the connection.
        let mut queued = Vec::new();
        while steps.last() != Some(&"connect") {
            assert!(queued.len() < 1000, "the queue has no end");
            match open(Instant::now() + Duration::from_millis(5), &path) {
                Err(Error::Os { step, source }) if source.kind() == io::ErrorKind::TimedOut => steps.push(step),
                other => panic!("{other:?}"),
            }
            queued.extend(unix_socket::connect(&path, Kind::Records, Some(Instant::now())));
        }
        assert_eq!(steps[0], "the datapath's answer");
    }
}
