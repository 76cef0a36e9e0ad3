//! A listening socket with a thread of its own: one request and one answer per connection.
//!
//! ```text
//!   --control PATH        a line of JSON ─┐
//!                                         ├─► Server: a bounded number of clients, each with a deadline ──► Answer
//!   --metrics ADDRESS     HTTP ───────────┘
//! ```
//!
//! A client has two seconds from its connection to the last byte of its answer. No client delays
//! another one, or the end of the command. The socket of a path is removed at the end.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use towpath_sys::EventFd;
use towpath_sys::poll::{PollSet, is_readable};
use towpath_sys::unix_socket;

/// Time limit of a whole request.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(2);
/// Clients at a time.
pub(crate) const MAX_CLIENTS: usize = 16;
/// The pause before the next `accept` when the process has no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A socket that listens; calls on it do not block.
pub(crate) enum Socket {
    Unix(unix_socket::Listener),
    Tcp(TcpListener),
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Unix(socket) => socket.as_fd(),
            Socket::Tcp(socket) => socket.as_fd(),
        }
    }
}

/// How requests are read and answered.
pub(crate) trait Answers: Send + 'static {
    /// Longest request in bytes. One that is as long is answered as it is.
    const LONGEST: usize;

    /// The answer to what was read so far; empty if more is needed. `ended`: there is no more.
    /// Without an answer to a request that ended, the connection is closed.
    fn answer(&mut self, request: &[u8], ended: bool) -> Vec<u8>;

    /// Whether the request takes over the connection, of which it keeps a descriptor then.
    fn takes(&mut self, request: &[u8], stream: &File) -> bool {
        let _ = (request, stream);
        false
    }
}

/// A socket that is served until this is dropped.
pub(crate) struct Server {
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves a socket on a thread of this name.
    pub(crate) fn start(name: &str, socket: Socket, mut answers: impl Answers) -> io::Result<Server> {
        let stop = Arc::new(EventFd::new()?);
        let stopped = stop.clone();
        let thread =
            std::thread::Builder::new().name(name.into()).spawn(move || serve(&socket, &stopped, &mut answers))?;
        Ok(Server { stop, thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.signal();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Answers clients until `stop` is readable.
fn serve<A: Answers>(socket: &Socket, stop: &EventFd, answers: &mut A) {
    let (mut waits, mut clients) = (PollSet::default(), Vec::<Client>::new());
    let mut accepts = true;
    while !is_readable(stop.as_fd()) {
        waits.clear();
        waits.readable(stop.fd());
        if accepts {
            waits.readable(socket.as_fd().as_raw_fd());
        }
        let mut time = if accepts { TIMEOUT } else { ACCEPT_PAUSE };
        for client in &clients {
            let fd = client.stream.as_raw_fd();
            if client.answer.is_empty() {
                waits.readable(fd)
            } else {
                waits.writable(fd)
            }
            time = time.min(client.end.saturating_duration_since(Instant::now()));
        }
        waits.wait(time);
        // It fails if the process has no descriptor left.
        accepts = accept(socket, &mut clients).is_ok();
        clients.retain_mut(|client| client.advance(answers).unwrap_or(false) && Instant::now() < client.end);
    }
}

/// Accepts a bounded number of connections. If there are too many, those that came first are
/// closed: a request takes much less time than it may.
fn accept(socket: &Socket, clients: &mut Vec<Client>) -> io::Result<()> {
    for _ in 0..MAX_CLIENTS {
        let stream = match unix_socket::accept(socket.as_fd()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            // The client has left already.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
            accepted => accepted?.into(),
        };
        if clients.len() == MAX_CLIENTS {
            clients.remove(0);
        }
        let (request, answer) = (Vec::new(), Vec::new());
        clients.push(Client { stream, end: Instant::now() + TIMEOUT, request, answer, written: 0 });
    }
    Ok(())
}

/// A connection, until its answer is written.
struct Client {
    /// The connected socket, for reading and writing.
    stream: File,
    /// The deadline of the request and its answer.
    end: Instant,
    /// What was read of the request.
    request: Vec<u8>,
    /// The answer; empty before the request is complete.
    answer: Vec<u8>,
    /// Bytes of the answer that were written.
    written: usize,
}

impl Client {
    /// Reads and writes what is possible now. Returns whether the client is still to be served.
    fn advance<A: Answers>(&mut self, answers: &mut A) -> io::Result<bool> {
        if self.answer.is_empty() {
            let room = A::LONGEST.saturating_sub(self.request.len()) as u64;
            let ended = match (&self.stream).take(room).read_to_end(&mut self.request) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
                read => read.map(|_| true)?,
            };
            if answers.takes(&self.request, &self.stream) {
                return Ok(false);
            }
            self.answer = answers.answer(&self.request, ended);
            if self.answer.is_empty() {
                return Ok(!ended);
            }
        }
        while self.written < self.answer.len() {
            match (&self.stream).write(&self.answer[self.written..]) {
                Ok(0) => return Ok(false),
                Ok(n) => self.written += n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }
}
