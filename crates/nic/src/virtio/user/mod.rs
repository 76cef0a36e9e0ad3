//! A device that is another process: the front end of vhost-user, as DPDK's `virtio_user`.
//!
//! ```text
//!   UserTransport ─ messages ─► UNIX socket ─► back end (DPDK's net_vhost, another towpath)
//!        │                                         │
//!        └─ rings, packet memory: memfds ──────────┘    kicks and calls: eventfds
//! ```
//!
//! Both sides name memory by its address in this process. There is no configuration space and no
//! control queue: the back end has no address and does not filter.
//!
//! **Trust.** The back end is the device, and one without an IOMMU: it maps all packet memory that
//! the port shares with it, as DPDK's does. What it writes to rings and headers is checked; the
//! bytes of a packet that was received are the datapath's, as those of any device are.
//!
//! A connection that is lost is looked for again, in a thread of its own: by connecting, or by
//! accepting. Packets that the back end had are dropped then, and the queues begin anew, at base
//! zero and with free memory. So there is nothing in flight that the next back end could take
//! again: its record of that (`INFLIGHT_SHMFD`) is not asked for.
//!
//! | file | contents |
//! |---|---|
//! | `mod` | [`UserTransport`]: the device |
//! | `connection` | requests and replies; the order in which a back end is set up |
//! | `search` | the thread that looks for the next back end |
//! | `dma` | [`UserDma`]: memory as the driver maps it |
//! | `memory` | the regions that are shared, and how far the back end has them |

mod connection;
mod dma;
mod memory;
mod search;

pub use dma::UserDma;

use super::transport::{Condition, Peer, QueueSetup, Transport};
use crate::sync::{Mutex, MutexGuard, lock};
use connection::Connection;
use memory::SharedRegions;
use search::{NONE, Order, Search, Searcher};
use std::borrow::Cow;
use std::io;
use std::os::fd::{AsFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use towpath_bus::BusError;
use towpath_sys::unix_socket::{self, Access, Kind, Listener};
use towpath_sys::{Epoll, EventFd};

/// How to reach the back end.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UserConfig {
    /// The socket's path.
    pub path: PathBuf,
    /// This side listens at the path, and the back end connects.
    pub server: bool,
    /// Pairs of queues, at most.
    pub pairs: u16,
    /// How long the first connection may take.
    pub patience: Duration,
}

impl UserConfig {
    /// The back end listens at `path`.
    pub fn new(path: impl Into<PathBuf>) -> UserConfig {
        UserConfig { path: path.into(), server: false, pairs: 1, patience: Duration::from_secs(10) }
    }

    /// This side listens, if `server` is set.
    #[must_use]
    pub fn server(self, server: bool) -> UserConfig {
        UserConfig { server, ..self }
    }

    /// With room for several pairs of queues.
    #[must_use]
    pub fn pairs(self, pairs: u16) -> UserConfig {
        UserConfig { pairs: pairs.clamp(1, 128), ..self }
    }

    /// With another limit of time for the first connection.
    #[must_use]
    pub fn patience(self, patience: Duration) -> UserConfig {
        UserConfig { patience, ..self }
    }
}

/// What the driver negotiated: features, and the number of queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Negotiated {
    features: u64,
    queues: u16,
}

/// The connection, and what is sent on each new one.
pub(super) struct State {
    pub(super) connection: Option<Connection>,
    /// The connection took the place of another one, and the queues are not set up.
    is_new: bool,
    negotiated: Option<Negotiated>,
    pub(super) regions: SharedRegions,
    search: Search,
    /// Why there is no connection.
    why: Cow<'static, str>,
}

/// What the transport and its DMA share.
pub(super) struct TransportShared {
    name: String,
    config: UserConfig,
    listener: Option<Listener>,
    pub(super) state: Mutex<State>,
    kicks: Vec<EventFd>,
    calls: Vec<EventFd>,
    /// Readable when the connection was lost, or another one was found.
    events: Epoll,
    found: EventFd,
}

/// Attempts to connect between the appearance of a back end's socket and its first `listen`: three
/// seconds or more. They are counted and not timed, because none is made while the processor does
/// not run.
const STARTING: u32 = 600;
/// The pause between two attempts to find the first back end.
const STEP: Duration = Duration::from_millis(5);

/// A back end of vhost-user.
pub struct UserTransport {
    shared: Arc<TransportShared>,
    dma: UserDma,
    searcher: Searcher,
}

impl UserTransport {
    /// Connects to a back end, or waits for its connection, and asks what it offers. A back end
    /// that has made its socket has three seconds to listen.
    ///
    /// # Errors
    /// [`BusError`]: nothing listens at the path, no connection came in time, or the other side
    /// does not speak the protocol.
    pub fn open(config: UserConfig) -> Result<UserTransport, BusError> {
        let name = format!("vhost-user back end at {}", config.path.display());
        let os = |step: &'static str| BusError::os(&name, step);
        let listener = if config.server {
            let access = Access { mode: 0o600, uid: None, gid: None };
            let listener = Listener::new(&config.path, Kind::Stream, access);
            Some(listener.map_err(|error| BusError::os(&name, error.step)(error.source))?)
        } else {
            None
        };
        let queues = usize::from(2 * config.pairs);
        let eventfds = || (0..queues).map(|_| EventFd::new()).collect::<io::Result<Vec<_>>>();
        let (kicks, calls) = (eventfds().map_err(os("eventfd"))?, eventfds().map_err(os("eventfd"))?);
        let (events, found) = (Epoll::new().map_err(os("epoll"))?, EventFd::new().map_err(os("eventfd"))?);
        events.add(found.fd(), false).map_err(os("epoll_ctl"))?;
        let state = Mutex::new(State {
            connection: None,
            is_new: false,
            negotiated: None,
            regions: SharedRegions::default(),
            search: Search::Idle,
            why: NONE,
        });
        let shared =
            Arc::new(TransportShared { name: name.clone(), config, listener, state, kicks, calls, events, found });
        let (begun, mut attempts) = (Instant::now(), 0);
        let first = loop {
            attempts += 1;
            match shared.find() {
                Ok(Some(connection)) => break connection,
                Ok(None) if begun.elapsed() < shared.config.patience => std::thread::sleep(STEP),
                // The file of a socket is there a moment before anything listens.
                Err(error) if is_refused(&error) && attempts < STARTING => std::thread::sleep(STEP),
                Ok(None) => return Err(BusError::device(name, "no back end has connected")),
                Err(error) => {
                    let hint = "start the back end first, or let this side listen: server=on";
                    return Err(if shared.config.server { error } else { error.with_hint(hint) });
                }
            }
        };
        shared.state().set_connection(first, &shared.events).map_err(os("epoll_ctl"))?;
        shared.state().is_new = false;
        let dma = UserDma::new(shared.clone());
        let searcher = Searcher::start(shared.clone()).map_err(os("thread"))?;
        Ok(UserTransport { shared, dma, searcher })
    }

    /// The path of its socket.
    pub fn path(&self) -> &Path {
        &self.shared.config.path
    }
}

impl State {
    /// What is sent to the next back end.
    fn order(&self) -> io::Result<Order> {
        Ok(Order { negotiated: self.negotiated, regions: self.regions.copy()?, version: self.regions.version() })
    }

    /// Takes what the back end has sent, and tells it of changed memory. A connection that was lost
    /// is given up.
    pub(super) fn sync(&mut self) {
        let State { connection, regions, .. } = self;
        if connection.as_mut().is_some_and(|connection| regions.sync(connection).is_err()) {
            *connection = None;
        }
    }

    fn set_connection(&mut self, connection: Connection, events: &Epoll) -> io::Result<()> {
        events.add(connection.fd(), false)?;
        (self.connection, self.is_new) = (Some(connection), true);
        Ok(())
    }
}

/// Whether nothing listens on a socket that exists.
fn is_refused(error: &BusError) -> bool {
    matches!(error, BusError::Os { source, .. } if source.kind() == io::ErrorKind::ConnectionRefused)
}

impl TransportShared {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Looks for a back end, once; `None` if none has connected.
    fn find(&self) -> Result<Option<Connection>, BusError> {
        let socket = match &self.listener {
            None => {
                let soon = Instant::now() + Duration::from_millis(200);
                unix_socket::connect(&self.config.path, Kind::Stream, Some(soon))
                    .map_err(BusError::os(&self.name, "connect"))?
            }
            Some(listener) => match unix_socket::accept(listener.as_fd()) {
                Ok(socket) => socket,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(BusError::os(&self.name, "accept")(error)),
            },
        };
        Connection::open(socket, &self.name).map(Some)
    }

    /// Does something with the connection, which is given up if that fails.
    fn with<R>(&self, work: impl FnOnce(&mut State) -> Result<R, BusError>) -> Result<R, BusError> {
        let mut state = self.state();
        let done = work(&mut state);
        if done.is_err() {
            state.connection = None;
        }
        done
    }

    pub(super) fn lost(&self) -> BusError {
        BusError::device(&self.name, "the connection was lost")
    }
}

impl Transport for UserTransport {
    type Dma = UserDma;
    const PEER: Peer = Peer::Process;
    const MORE_PAIRS: &'static str = " (queues= of the back end)";

    fn name(&self) -> &str {
        &self.shared.name
    }

    fn dma(&self) -> &UserDma {
        &self.dma
    }

    fn offered(&self) -> u64 {
        self.shared.state().connection.as_ref().map_or(0, Connection::features)
    }

    fn pairs(&self) -> u16 {
        let pairs = self.shared.state().connection.as_ref().map_or(1, Connection::pairs);
        pairs.min(self.shared.config.pairs)
    }

    fn max_size(&self, _: u16) -> u16 {
        towpath_virtio::MAX_SIZE
    }

    fn config(&self, _: usize, _: &mut [u8]) -> bool {
        false
    }

    fn negotiate(&self, features: u64, queues: u16) -> Result<(), BusError> {
        self.shared.with(|state| {
            let negotiated = Negotiated { features, queues };
            state.negotiated = Some(negotiated);
            let State { connection, regions, .. } = state;
            let connection = connection.as_mut().ok_or_else(|| self.shared.lost())?;
            if connection.take_prepared(negotiated) {
                return Ok(());
            }
            connection.negotiate(negotiated, &self.shared.calls)?;
            connection.set_memory(&regions.table(), regions.version())
        })
    }

    fn set_queue(&self, queue: u16, setup: &QueueSetup) -> Result<(), BusError> {
        self.shared.with(|state| {
            let connection = state.connection.as_mut().ok_or_else(|| self.shared.lost())?;
            let kick = self.shared.kicks.get(usize::from(queue)).ok_or_else(|| self.shared.lost())?;
            connection.set_queue(queue, setup, kick)
        })
    }

    fn run(&self) -> Result<(), BusError> {
        self.shared.with(|state| state.connection.as_mut().ok_or_else(|| self.shared.lost())?.run())
    }

    fn condition(&self) -> Condition {
        let mut state = self.shared.state();
        state.sync();
        if state.connection.is_some() {
            return if state.is_new { Condition::Back } else { Condition::Up };
        }
        self.shared.found.clear();
        match std::mem::replace(&mut state.search, Search::Idle) {
            // The back end that was found lacks memory that was shared meanwhile.
            Search::Done(Ok(Some((connection, version)))) if version == state.regions.version() => {
                match state.set_connection(*connection, &self.shared.events) {
                    Ok(()) => return Condition::Back,
                    Err(error) => state.why = error.to_string().into(),
                }
            }
            Search::Done(Ok(_)) => state.why = NONE,
            Search::Done(Err(error)) => state.why = error.to_string().into(),
            Search::Running => state.search = Search::Running,
            Search::Idle => {}
        }
        if matches!(state.search, Search::Idle) {
            match state.order().map(|order| self.searcher.order(order)) {
                Ok(true) => state.search = Search::Running,
                Ok(false) => {}
                Err(error) => state.why = error.to_string().into(),
            }
        }
        Condition::Down(state.why.clone())
    }

    fn disconnect(&self) {
        self.shared.state().connection = None;
    }

    fn reset(&self, _: bool) -> bool {
        self.shared.state().is_new = false;
        true
    }

    fn stop(&self) -> bool {
        let mut state = self.shared.state();
        let Some(mut connection) = state.connection.take() else { return true };
        connection.stop()
    }

    #[inline]
    fn kick(&self, queue: u16) {
        if let Some(kick) = self.shared.kicks.get(usize::from(queue)) {
            kick.signal();
        }
    }

    fn call(&self, queue: u16) -> Option<RawFd> {
        self.shared.calls.get(usize::from(queue)).map(EventFd::fd)
    }

    fn take_calls(&self, queue: u16) {
        if let Some(call) = self.shared.calls.get(usize::from(queue)) {
            call.clear();
        }
    }

    fn events(&self) -> Option<RawFd> {
        Some(self.shared.events.fd())
    }
}

impl std::fmt::Debug for UserTransport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UserTransport").field("name", &self.shared.name).finish_non_exhaustive()
    }
}
