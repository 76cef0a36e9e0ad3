//! The server thread of the port: everything that may block or allocate. It accepts connections,
//! opens and closes sessions, and frees them.

use super::config::Config;
use super::handshake::{PortContext, Request, ServerSession, decode, encode, open_session, refusal};
use super::notify::PortShared;
use super::rx::app::AppTx;
use super::tx::app::App;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use towpath_client::protocol::{Answer, Code, Hello, Refusal};
use towpath_packet::spsc::{Consumer, Producer};
use towpath_sys::poll::PollSet;
use towpath_sys::seqpacket;

/// The time that an application has for its message.
const HELLO_TIMEOUT: Duration = Duration::from_secs(2);
/// Connections whose message has not come.
const MAX_WAITING: usize = 16;
/// The pause before the next `accept` when the process has no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The listening socket. Its file is removed on drop.
#[derive(Debug)]
pub(super) struct ListenSocket {
    pub(super) fd: OwnedFd,
    pub(super) path: PathBuf,
}

impl Drop for ListenSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The running thread. Dropping this ends it, and all sessions.
#[derive(Debug)]
pub(super) struct ServerThread {
    shared: Arc<PortShared>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for ServerThread {
    fn drop(&mut self) {
        self.shared.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A connection.
enum Connection {
    /// Its message has not come.
    Waiting(OwnedFd, Instant),
    /// It has a session.
    Open(ServerSession),
}

/// The server's ends of the rings to and from a queue's
/// [`SessionList`](super::session::SessionList).
pub(super) struct Channel<T: Send> {
    pub(super) added: Producer<T>,
    pub(super) removed: Consumer<T>,
}

/// The state of the thread.
pub(super) struct Server {
    listener: ListenSocket,
    config: Config,
    longest: u32,
    shared: Arc<PortShared>,
    /// To the receive queues.
    rx: Vec<Channel<AppTx>>,
    /// To the transmit queues.
    tx: Vec<Channel<App>>,
    connections: Vec<Connection>,
    /// Sessions so far.
    sessions: u64,
}

impl Server {
    /// `longest` is the maximum number of bytes of a frame.
    pub(super) fn new(
        listener: ListenSocket,
        config: Config,
        longest: u32,
        shared: Arc<PortShared>,
        rx: Vec<Channel<AppTx>>,
        tx: Vec<Channel<App>>,
    ) -> Server {
        Server { listener, config, longest, shared, rx, tx, connections: Vec::new(), sessions: 0 }
    }

    /// Starts the thread.
    pub(super) fn start(self) -> std::io::Result<ServerThread> {
        let shared = self.shared.clone();
        let thread = std::thread::Builder::new().name("towpath-sock".into()).spawn(move || self.run())?;
        Ok(ServerThread { shared, thread: Some(thread) })
    }

    fn run(mut self) {
        let mut waits = PollSet::default();
        let mut accept_error = None;
        while !self.shared.is_stopped() {
            waits.clear();
            waits.readable(self.shared.server_fd());
            if accept_error.is_none() {
                waits.readable(self.listener.fd.as_raw_fd());
            }
            for connection in &self.connections {
                waits.readable(match connection {
                    Connection::Waiting(fd, _) => fd.as_raw_fd(),
                    Connection::Open(open) => open.session.connection.as_raw_fd(),
                });
            }
            waits.wait(ACCEPT_PAUSE);
            self.shared.clear_server();
            self.free_removed();
            self.shared.events.ended_rings.free_old();
            accept_error = self.accept().err();
            for connection in std::mem::take(&mut self.connections) {
                let connection = self.serve(connection);
                self.connections.extend(connection);
            }
        }
        for connection in &self.connections {
            if let Connection::Open(open) = connection {
                open.close(&self.shared, "the port ended");
            }
        }
    }

    /// Frees the halves of sessions that the queues removed.
    fn free_removed(&mut self) {
        for channel in &mut self.rx {
            while channel.removed.pop().is_some() {}
        }
        for channel in &mut self.tx {
            while channel.removed.pop().is_some() {}
        }
    }

    /// Accepts a bounded number of connections. Fails if the process has no descriptor left.
    fn accept(&mut self) -> std::io::Result<()> {
        for _ in 0..MAX_WAITING {
            match seqpacket::accept(self.listener.fd.as_fd()) {
                Ok(fd) => {
                    self.make_room();
                    self.connections.push(Connection::Waiting(fd, Instant::now()));
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(error) if error.raw_os_error() == Some(libc::ECONNABORTED) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Makes room for one more waiting connection: the one that has waited longest is served now or
    /// refused. Connections without a message therefore keep no other application out.
    fn make_room(&mut self) {
        let is_waiting = |connection: &Connection| matches!(connection, Connection::Waiting(..));
        if self.connections.iter().filter(|connection| is_waiting(connection)).count() < MAX_WAITING {
            return;
        }
        let Some(longest) = self.connections.iter().position(is_waiting) else { return };
        let connection = self.connections.remove(longest);
        match self.serve(connection) {
            Some(Connection::Waiting(fd, _)) => {
                let why = "too many connections at a time, none of which says what it wants";
                self.refuse(&fd, refusal(Code::Full, why));
            }
            Some(open) => self.connections.push(open),
            None => {}
        }
    }

    fn refuse(&self, fd: &OwnedFd, refusal: Refusal) {
        self.shared.events.refused.fetch_add(1, Ordering::Relaxed);
        // An application that is gone misses the answer.
        let _ = seqpacket::send(fd.as_fd(), &encode(&Answer::Refusal(refusal)), &[]);
    }

    /// Serves one connection; `None` when it is over.
    fn serve(&mut self, connection: Connection) -> Option<Connection> {
        let mut bytes = [0; Hello::LONGEST];
        match connection {
            Connection::Waiting(fd, since) => match seqpacket::receive(fd.as_fd(), &mut bytes) {
                Ok(got) if got.len == 0 => None,
                Ok(got) => {
                    let hello = if got.cut { None } else { bytes.get(..got.len) };
                    let opened = hello
                        .ok_or_else(|| "a message that is too long, or descriptors that are too many".to_owned())
                        .and_then(|bytes| decode(bytes).map_err(|error| error.to_string()))
                        .map_err(|why| refusal(Code::Protocol, why))
                        .and_then(|hello| self.open(&fd, &hello, got.fds));
                    opened.map_err(|refusal| self.refuse(&fd, refusal)).ok()
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    (since.elapsed() < HELLO_TIMEOUT).then_some(Connection::Waiting(fd, since))
                }
                Err(_) => None,
            },
            Connection::Open(open) => {
                // A second message breaks the protocol; an end of the stream ends the session.
                let quiet = seqpacket::receive(open.session.connection.as_fd(), &mut bytes);
                let quiet = quiet.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
                if quiet && !open.session.is_closed() {
                    return Some(Connection::Open(open));
                }
                open.close(&self.shared, "left");
                None
            }
        }
    }

    /// Opens a session and hands its halves to the queues.
    fn open(&mut self, fd: &OwnedFd, hello: &Hello, fds: Vec<OwnedFd>) -> Result<Connection, Refusal> {
        let others = self.connections.iter().filter_map(|connection| match connection {
            Connection::Open(open) if !open.session.is_closed() => Some(open),
            _ => None,
        });
        let request = Request { id: self.sessions + 1, hello, connection: fd, fds };
        let port = PortContext { config: &self.config, longest: self.longest, shared: &self.shared };
        let (open, app_tx, destination) = open_session(request, &port, &others.collect::<Vec<_>>())?;
        self.sessions += 1;
        // The ring of a queue that was dropped takes nothing: its half is freed, the others work.
        if let Some(channel) = self.rx.get_mut(usize::from(open.queue)) {
            drop(channel.added.push(app_tx));
        }
        for channel in &mut self.tx {
            drop(channel.added.push(App::new(destination.clone())));
        }
        self.shared.events.change();
        towpath_packet::notify::publish();
        self.shared.wakers.iter().for_each(|waker| waker.notifier.notify());
        Ok(Connection::Open(open))
    }
}
