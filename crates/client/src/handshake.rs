//! Opening a session: what every kind of application does, whatever its memory and its rings are to it.

use crate::protocol::{Answer, Hello, Welcome};
use crate::socket::{Error, os};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;
use towpath_sys::poll::wait_readable;
use towpath_sys::seqpacket;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// A session that was opened, in its parts. Who wants frames instead of parts has [`Socket`](crate::Socket).
#[derive(Debug)]
pub struct Session {
    /// The session lasts as long as this connection does.
    pub connection: OwnedFd,
    /// The memfd that the rings lie in.
    pub rings: OwnedFd,
    /// What to kick the datapath with: an eventfd, or the socket of [`Hello::one_descriptor`].
    pub kick: OwnedFd,
    /// What the datapath said.
    pub welcome: Welcome,
}

impl Session {
    /// Asks the datapath that listens at `path` for a session over a memfd that is sealed against shrinking.
    ///
    /// # Errors
    /// [`Error::Config`] for what no datapath takes; [`Error::Refused`] says why this one does not; [`Error::Os`] when nobody listens or
    /// nobody may.
    pub fn open(path: &Path, hello: &Hello, memory: BorrowedFd<'_>) -> Result<Session, Error> {
        hello.check().map_err(|rule| Error::Config(rule.to_string()))?;
        let connection = seqpacket::connect(path).map_err(os("connect"))?;
        seqpacket::send(connection.as_fd(), &hello.encode(), &[memory]).map_err(os("sendmsg"))?;
        if !wait_readable(connection.as_fd(), Some(PATIENCE)).map_err(os("poll"))? {
            return Err(os("the datapath's answer")(io::ErrorKind::TimedOut.into()));
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
