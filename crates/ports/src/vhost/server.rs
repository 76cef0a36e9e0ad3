//! The control thread: it waits for a front end, or connects to one, and answers it.
//!
//! It is never behind packets: a virtual machine waits for its answers, with all that it does. One
//! front end is served at a time. Another one that connects meanwhile is hung up on.

use super::config::Config;
use super::descriptors::hang_up;
use super::refusal::End;
use super::session::{DeviceParts, Session};
use crate::pace::Pace;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use towpath_sys::EventFd;
use towpath_sys::poll::PollSet;
use towpath_sys::seqpacket;
use towpath_sys::unix_socket::{self, Kind, Listener};
use towpath_virtio::vhost_user::Channel;

/// Messages that are answered before the thread looks at anything else.
const MAX_MESSAGES: usize = 64;
/// The time between two looks at what no message announces, while there is a front end.
const CHECK: Duration = Duration::from_millis(100);
/// The time between two looks at descriptors that do not close, while there is no front end.
const IDLE: Duration = Duration::from_secs(1);
/// The longest pause between two attempts to connect. The first ones are shorter.
const RETRY: Duration = Duration::from_secs(1);
const FIRST_RETRY: Duration = Duration::from_millis(20);
/// The time that an attempt may take.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(200);

/// The time without a front end after one that held a worker. By no accident is a counter of calls
/// full and blocking, and each holds the worker until it is found.
const HOLD: Duration = Duration::from_secs(30);

/// Where front ends come from.
#[derive(Debug)]
pub(super) enum Endpoint {
    /// They connect.
    Listen(Listener),
    /// They listen.
    Connect {
        path: PathBuf,
        /// When to try next, and the pause after that.
        next: Instant,
        pause: Duration,
    },
}

impl Endpoint {
    /// To connect to the path of `config`.
    pub(super) fn connect(config: &Config) -> Endpoint {
        Endpoint::Connect { path: config.path.clone(), next: Instant::now(), pause: FIRST_RETRY }
    }
}

/// The running thread. Dropping this ends it, and the connection.
#[derive(Debug)]
pub(super) struct ServerThread {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

/// The order to end.
#[derive(Debug)]
struct Stop {
    ordered: AtomicBool,
    event: EventFd,
}

impl Drop for ServerThread {
    fn drop(&mut self) {
        self.stop.ordered.store(true, Ordering::Relaxed);
        self.stop.event.signal();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A front end that is connected.
#[derive(Debug)]
struct Connection {
    id: u64,
    channel: Channel,
    session: Session,
}

/// The state of the thread.
#[derive(Debug)]
pub(super) struct Server {
    endpoint: Endpoint,
    device: Arc<DeviceParts>,
    connection: Option<Connection>,
    /// Connections so far.
    connections: u64,
    checked: Instant,
    /// When the next front end is looked for, and when the next request is answered.
    finds: Pace,
    answers: Pace,
}

impl Server {
    /// The thread of a port. It is paced if front ends may be another user's.
    pub(super) fn new(endpoint: Endpoint, device: DeviceParts, is_paced: bool) -> Server {
        let device = Arc::new(device);
        let now = Instant::now();
        let (finds, answers) = if is_paced {
            (Pace::of_connections(now), Pace::of_requests(now))
        } else {
            (Pace::unlimited(now), Pace::unlimited(now))
        };
        Server { endpoint, device, connection: None, connections: 0, checked: now, finds, answers }
    }

    /// Starts the thread.
    pub(super) fn start(self) -> io::Result<ServerThread> {
        let stop = Arc::new(Stop { ordered: AtomicBool::new(false), event: EventFd::new()? });
        let run = stop.clone();
        let thread = std::thread::Builder::new().name("towpath-vhost".into()).spawn(move || self.run(&run))?;
        Ok(ServerThread { stop, thread: Some(thread) })
    }

    fn run(mut self, stop: &Stop) {
        let mut waits = PollSet::default();
        let mut has_room = true;
        while !stop.ordered.load(Ordering::Relaxed) {
            waits.clear();
            waits.readable(stop.event.fd());
            let (now, mut pause) = (Instant::now(), self.pause());
            let mut may = |pace: &Pace| {
                let wait = pace.wait(now);
                if !wait.is_zero() {
                    pause = pause.min(wait);
                }
                wait.is_zero()
            };
            if let Endpoint::Listen(listener) = &self.endpoint
                && has_room
                && may(&self.finds)
            {
                waits.readable(listener.as_fd().as_raw_fd());
            }
            if let Some(connection) = &self.connection
                && may(&self.answers)
            {
                waits.readable(connection.channel.as_fd().as_raw_fd());
            }
            waits.wait(pause);
            self.serve();
            if has_room {
                self.find();
            }
            has_room = self.device.closer.turn();
        }
        self.end(&End::Port);
        self.device.closer.end();
    }

    /// The time to wait at most.
    fn pause(&self) -> Duration {
        match &self.endpoint {
            _ if self.connection.is_some() => CHECK,
            Endpoint::Listen(_) => IDLE,
            Endpoint::Connect { next, .. } => next.saturating_duration_since(Instant::now()).min(IDLE),
        }
    }

    /// Finds a front end, or hangs up on one too many.
    fn find(&mut self) {
        if !self.finds.wait(Instant::now()).is_zero() {
            return;
        }
        let found = match &mut self.endpoint {
            // Without a descriptor for another connection it is tried again at the next turn.
            Endpoint::Listen(listener) => unix_socket::accept(listener.as_fd()).ok(),
            Endpoint::Connect { .. } if self.connection.is_some() => None,
            Endpoint::Connect { path, next, pause } => {
                let now = Instant::now();
                if now < *next {
                    return;
                }
                let found = unix_socket::connect(path, Kind::Stream, Some(now + CONNECT_TIMEOUT)).ok();
                *pause = if found.is_some() { FIRST_RETRY } else { (*pause * 2).min(RETRY) };
                *next = now + *pause;
                found
            }
        };
        let Some(socket) = found else { return };
        self.finds.taken(Instant::now());
        if self.connection.is_some() {
            self.device.events.refused.fetch_add(1, Ordering::Relaxed);
            hang_up(socket, Vec::new(), &self.device.closer);
        } else {
            self.open(socket);
        }
    }

    fn open(&mut self, socket: OwnedFd) {
        let Ok(peer) = seqpacket::peer(socket.as_fd()) else { return };
        self.connections += 1;
        let (id, events) = (self.connections, &self.device.events);
        events.connections.fetch_add(1, Ordering::Relaxed);
        events.log.opened(id, peer);
        let session = Session::new(id, self.device.clone());
        self.connection = Some(Connection { id, channel: Channel::new(socket), session });
        self.checked = Instant::now();
    }

    /// Answers messages, a bounded number of them, within the pace.
    fn serve(&mut self) {
        let Some(Connection { channel, session, .. }) = &mut self.connection else { return };
        let answers = &mut self.answers;
        let mut answer = || -> Result<(), End> {
            for _ in 0..MAX_MESSAGES {
                let now = Instant::now();
                if !answers.wait(now).is_zero() {
                    break;
                }
                let Some(message) = channel.receive()? else { break };
                answers.taken(now);
                session.serve(channel, message)?;
            }
            Ok(())
        };
        let mut answered = answer();
        if answered.is_ok() && self.checked.elapsed() >= CHECK {
            self.checked = Instant::now();
            answered = session.check();
        }
        if let Err(end) = answered {
            self.end(&end);
        }
    }

    fn end(&mut self, why: &End) {
        let Some(Connection { id, channel, session }) = self.connection.take() else { return };
        if session.end(why) {
            self.finds.hold(Instant::now(), HOLD);
        }
        let (socket, fds) = channel.into_parts();
        hang_up(socket, fds, &self.device.closer);
        // A session that is counted has its line in the log.
        self.device.events.log.closed(id, why.to_string());
        self.device.events.ended.fetch_add(1, Ordering::Relaxed);
        if let Endpoint::Connect { next, .. } = &mut self.endpoint {
            *next = Instant::now() + FIRST_RETRY;
        }
    }
}
