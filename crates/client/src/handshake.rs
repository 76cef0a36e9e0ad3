//! The handshake, from the application's side: whatever the application then does with memory and
//! rings.

use crate::error::{Error, os};
use crate::protocol::{Answer, Hello, Welcome};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};
use towpath_sys::poll::wait_readable;
use towpath_sys::seqpacket;

/// The time that the datapath has for its answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// A session in its parts. [`Socket`](crate::Socket) makes frames of them.
#[derive(Debug)]
pub struct Session {
    /// The session lasts as long as this connection.
    pub connection: OwnedFd,
    /// The memfd that the rings lie in.
    pub rings: OwnedFd,
    /// Wakes the datapath: an eventfd, or the socket of [`Hello::one_descriptor`].
    pub kick: OwnedFd,
    /// The datapath's answer.
    pub welcome: Welcome,
}

impl Session {
    /// Opens a session with the datapath that listens at `path`, over a memfd that is sealed
    /// against shrinking.
    ///
    /// # Errors
    /// [`Error::Config`] if `hello` breaks a rule; [`Error::Refused`] with the reason of this
    /// datapath; [`Error::Os`] if no datapath listens, or the process has no permission.
    pub fn open(path: &Path, hello: &Hello, memory: BorrowedFd<'_>) -> Result<Session, Error> {
        hello.check().map_err(|rule| Error::Config(rule.to_string()))?;
        let connection = seqpacket::connect(path).map_err(os("connect"))?;
        seqpacket::send(connection.as_fd(), &hello.encode(), &[memory]).map_err(os("sendmsg"))?;
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        let left = || deadline.saturating_duration_since(Instant::now());
        // A signal ends a wait before its time.
        while !wait_readable(connection.as_fd(), Some(left())).map_err(os("poll"))? {
            if left().is_zero() {
                return Err(os("the datapath's answer")(io::ErrorKind::TimedOut.into()));
            }
        }
        let mut bytes = [0; Answer::LONGEST];
        let got = seqpacket::receive(connection.as_fd(), &mut bytes).map_err(os("recvmsg"))?;
        let welcome = match Answer::decode(bytes.get(..got.len).filter(|b| !b.is_empty()).ok_or(Error::Closed)?)? {
            Answer::Welcome(welcome) => welcome,
            Answer::Refusal(refusal) => return Err(refusal.into()),
        };
        let Ok([rings, kick]) = <[OwnedFd; 2]>::try_from(got.fds) else {
            return Err(Error::Broken("a welcome without its descriptors"));
        };
        Ok(Session { connection, rings, kick, welcome })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::thread::JoinHandleExt;

    extern "C" fn ignore(_signal: libc::c_int) {}

    #[test]
    fn signals_do_not_end_the_wait_for_an_answer() {
        // SAFETY: the handler does nothing, and nothing else uses this signal.
        unsafe { libc::signal(libc::SIGUSR2, ignore as extern "C" fn(libc::c_int) as libc::sighandler_t) };
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let access = seqpacket::Access { mode: 0o600, uid: None, gid: None };
        let listener = seqpacket::listen(&path, access).unwrap();
        let memory = std::fs::File::open("/dev/null").unwrap();
        let client = std::thread::spawn(move || {
            Session::open(&path, &Hello { umem: 4096, ..Hello::default() }, memory.as_fd()).map(drop)
        });
        assert!(wait_readable(listener.as_fd(), Some(ANSWER_TIMEOUT)).unwrap());
        let connection = seqpacket::accept(listener.as_fd()).unwrap();
        assert!(wait_readable(connection.as_fd(), Some(ANSWER_TIMEOUT)).unwrap());
        for _ in 0..20 {
            // SAFETY: the thread has not been joined, so its handle is valid.
            unsafe { libc::pthread_kill(client.as_pthread_t(), libc::SIGUSR2) };
            std::thread::sleep(Duration::from_millis(2));
        }
        // Unread bytes would make the end an error.
        assert!(seqpacket::receive(connection.as_fd(), &mut [0; Hello::LONGEST]).is_ok());
        drop(connection);
        assert!(matches!(client.join().unwrap(), Err(Error::Closed)));
    }
}
