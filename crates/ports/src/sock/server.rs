//! The server thread of the port: everything that may block or allocate. It accepts connections,
//! opens and closes sessions, and frees them.

use super::config::Config;
use super::handshake::{
    PortContext, Request, ServerSession, decode, encode, full, not_memory, not_one_descriptor, open_session, refusal,
};
use super::notify::PortShared;
use super::rx::rings::AppTxRings;
use super::tx::app::App;
use crate::closing::AppSocket;
use crate::pace::Pace;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use towpath_client::protocol::{Answer, Code, GOODBYE, Hello, Refusal};
use towpath_packet::spsc::{Consumer, Producer};
use towpath_sys::closer::Descriptors;
use towpath_sys::poll::PollSet;
use towpath_sys::seqpacket::{self, Peeked, Received};
use towpath_sys::unix_socket::Listener;

/// The time that an application has for its message.
const HELLO_TIMEOUT: Duration = Duration::from_secs(2);
/// Connections whose message has not come.
const MAX_WAITING: usize = 16;
/// The pause before the next `accept` when the process has no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

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
    Waiting(Arc<AppSocket>, Instant),
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
    listener: Listener,
    config: Config,
    longest: u32,
    shared: Arc<PortShared>,
    /// To the receive queues.
    rx: Vec<Channel<AppTxRings>>,
    /// To the transmit queues.
    tx: Vec<Channel<App>>,
    connections: Vec<Connection>,
    /// `None` if all connections are of one user.
    pace: Option<Pace>,
    /// Sessions so far.
    sessions: u64,
}

impl Server {
    /// `longest` is the maximum number of bytes of a frame.
    pub(super) fn new(
        listener: Listener,
        config: Config,
        longest: u32,
        shared: Arc<PortShared>,
        rx: Vec<Channel<AppTxRings>>,
        tx: Vec<Channel<App>>,
    ) -> Server {
        let pace = (!config.admits_owner_alone()).then(|| Pace::of_connections(Instant::now()));
        Server { listener, config, longest, shared, rx, tx, connections: Vec::new(), pace, sessions: 0 }
    }

    /// Starts the thread.
    pub(super) fn start(self) -> std::io::Result<ServerThread> {
        let shared = self.shared.clone();
        let thread = std::thread::Builder::new().name("towpath-sock".into()).spawn(move || self.run())?;
        Ok(ServerThread { shared, thread: Some(thread) })
    }

    fn run(mut self) {
        let mut waits = PollSet::default();
        let mut accepts = true;
        while !self.shared.is_stopped() {
            waits.clear();
            waits.readable(self.shared.server_fd());
            let pause = self.pace.as_ref().map_or(Duration::ZERO, |pace| pace.wait(Instant::now()));
            if accepts && pause.is_zero() {
                waits.readable(self.listener.as_fd().as_raw_fd());
            }
            for connection in &self.connections {
                waits.readable(match connection {
                    Connection::Waiting(socket, _) => socket.as_fd().as_raw_fd(),
                    Connection::Open(open) => open.session.connection.as_fd().as_raw_fd(),
                });
            }
            waits.wait(if pause.is_zero() { ACCEPT_PAUSE } else { pause.min(ACCEPT_PAUSE) });
            self.shared.clear_server();
            self.free_removed();
            self.shared.events.ended_rings.free_old();
            accepts = self.shared.closer.turn() && self.accept().is_ok();
            for connection in std::mem::take(&mut self.connections) {
                let connection = self.serve(connection);
                self.connections.extend(connection);
            }
        }
        self.shared.events.ended_rings.end_port();
        for connection in &self.connections {
            if let Connection::Open(open) = connection {
                open.close(&self.shared, "the port ended");
            }
        }
        self.shared.closer.end();
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

    /// Accepts a bounded number of connections, within the pace. Fails if the process has no
    /// descriptor left.
    fn accept(&mut self) -> std::io::Result<()> {
        for _ in 0..MAX_WAITING {
            let now = Instant::now();
            if self.pace.as_ref().is_some_and(|pace| !pace.wait(now).is_zero()) {
                break;
            }
            match seqpacket::accept(self.listener.as_fd()) {
                Ok(fd) => {
                    if let Some(pace) = &mut self.pace {
                        pace.taken(now);
                    }
                    self.make_room();
                    let socket = Arc::new(AppSocket::new(fd, self.shared.closer.clone()));
                    self.connections.push(Connection::Waiting(socket, now));
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
            Some(Connection::Waiting(socket, _)) => {
                let why = "too many connections at a time, none of which says what it wants";
                self.refuse(&socket, refusal(Code::Full, why));
            }
            Some(open) => self.connections.push(open),
            None => {}
        }
    }

    fn refuse(&self, socket: &AppSocket, refusal: Refusal) {
        self.shared.events.refused.fetch_add(1, Ordering::Relaxed);
        // An application that is gone misses the answer.
        let _ = seqpacket::send(socket.as_fd(), &encode(&Answer::Refusal(refusal)), &[]);
    }

    /// Serves one connection; `None` when it is over.
    fn serve(&mut self, connection: Connection) -> Option<Connection> {
        match connection {
            Connection::Waiting(socket, since) => {
                let mut bytes = [0; Hello::LONGEST];
                match seqpacket::peek(socket.as_fd(), &mut []) {
                    Ok(Peeked { len: 0, descriptors: false, cut: false }) => None,
                    Ok(record) => self
                        .receive_hello(&socket, record, &mut bytes)
                        .and_then(|(hello, fds)| self.open(&socket, &hello, fds))
                        .map_err(|refusal| self.refuse(&socket, refusal))
                        .ok(),
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                        (since.elapsed() < HELLO_TIMEOUT).then_some(Connection::Waiting(socket, since))
                    }
                    Err(_) => None,
                }
            }
            Connection::Open(open) => {
                // Another message than a goodbye breaks the protocol; an end of the stream without
                // one is that of a process which could not say it.
                let mut byte = [0];
                let why = match seqpacket::peek(open.session.connection.as_fd(), &mut byte) {
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => None,
                    Ok(Peeked { len: 1, descriptors: false, cut: false }) if byte == [GOODBYE] => Some("left"),
                    Ok(Peeked { len: 0, descriptors: false, cut: false }) | Err(_) => {
                        Some("killed, or ended without closing the session")
                    }
                    Ok(_) => Some("a second message"),
                };
                if why.is_none() && !open.session.is_closed() {
                    return Some(Connection::Open(open));
                }
                open.close(&self.shared, why.unwrap_or("left"));
                None
            }
        }
    }

    /// Takes the message that is queued, with its descriptor if that is of memory.
    fn receive_hello(
        &self,
        socket: &AppSocket,
        record: Peeked,
        bytes: &mut [u8],
    ) -> Result<(Hello, Vec<OwnedFd>), Refusal> {
        if record.descriptors {
            let peer = seqpacket::peer(socket.as_fd()).map_err(full)?;
            match self.shared.closer.examine(socket.as_fd(), peer.uid).map_err(full)? {
                Descriptors::None | Descriptors::Memory => {}
                Descriptors::Other => return Err(not_memory()),
                Descriptors::Several => return Err(not_one_descriptor()),
            }
        }
        let Received { len, fds, cut } = seqpacket::receive(socket.as_fd(), bytes).map_err(full)?;
        let bytes = if cut { None } else { bytes.get(..len) };
        let hello = bytes
            .ok_or_else(|| "a message that is too long".to_owned())
            .and_then(|bytes| decode(bytes).map_err(|error| error.to_string()))
            .map_err(|why| refusal(Code::Protocol, why))?;
        Ok((hello, fds))
    }

    /// Opens a session and hands its halves to the queues.
    fn open(&mut self, socket: &Arc<AppSocket>, hello: &Hello, fds: Vec<OwnedFd>) -> Result<Connection, Refusal> {
        let others = self.connections.iter().filter_map(|connection| match connection {
            Connection::Open(open) if !open.session.is_closed() => Some(open),
            _ => None,
        });
        let request = Request { id: self.sessions + 1, hello, connection: socket, fds };
        let port = PortContext { config: &self.config, longest: self.longest, shared: &self.shared };
        let (open, app_tx, destination) = open_session(request, &port, &others.collect::<Vec<_>>())?;
        self.sessions += 1;
        // An application has no reason to send another one.
        let _ = socket.refuse_descriptors();
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
