//! `sock:PATH`: applications send their own pages, and receive, by rings in memory that they share
//! with the datapath.
//!
//! ```text
//!   application   TX ──► SockRx ──► packet: one page, or several behind an empty head ──► egress
//!                 COMPLETION ◄──── the last user of a page is done, in any order
//!
//!   application   RX ◄── SockTx ◄── packet, to the application whose rules match
//!                 FILL ──► chunks to copy it into
//!
//!   sock:/run/towpath.sock?mode=660,gid=100,sessions=64,umem=64M,budget=4M,queues=8,rules=64,
//!                          all-rules=512,tx=auto,user-memory=256M,allow=1000:udp+*:default
//! ```
//!
//! | file | |
//! |---|---|
//! | `config` | [`Config`], and its URI |
//! | `server` | the thread that accepts, opens, closes and frees sessions |
//! | `handshake` | the messages of the protocol, and the checks of what an application asks for |
//! | `session` | what the halves of a session share; its rings; the list of sessions of a queue |
//! | `limits` | what each user's applications may have, and all together; what they may ask for |
//! | `source` | the source addresses that they may send from |
//! | `umem` | the application's memory: bounds, and the state of each chunk |
//! | `rx` | [`SockRx`]: TX and COMPLETION rings |
//! | `tx` | [`SockTx`]: RX and FILL rings |
//! | `tx_metadata` | what applications ask for in front of a frame |
//! | `notify` | sleep and wake-up; a descriptor that behaves as an AF_XDP socket's |
//! | `stats` | counters, statistics, the log of sessions |
//!
//! [`towpath_client::protocol`] describes the protocol. The directory, `mode`, `uid` and `gid`
//! decide which processes may connect. The socket's file has them from its first moment, in a
//! directory in which no other user can replace it ([`towpath_sys::unix_socket`]). The log names
//! the processes that connected, how their sessions ended, and by reason how many of their packets
//! were not sent or not delivered. One thread of the port accepts, answers, notices closed
//! connections and frees. The queues neither allocate nor block, and make a system call only to
//! wake an application that sleeps, once a burst.
//!
//! **Queues.** A session belongs to one queue of the port: the one that it names, or the one with
//! the fewest sessions. Its frames come in by this queue, in order. Packets for it may come by any
//! queue ([`SockTx`]).
//!
//! **Sending** copies what the egress needs linear, and no more: nothing if it takes fragments
//! (`tx=auto`). `tx=page` copies nothing for any egress. `tx=copy` copies everything, into a buffer
//! with exactly the headroom and tailroom of the egress. Copies are counted, and a copied chunk is
//! completed at once. Each page in flight is charged to its application, by the whole chunk if
//! chunks are aligned. At the budget, with a full COMPLETION ring or without a buffer for a head,
//! descriptors stay in the TX ring; none is lost. A frame longer or shorter than the port sends is
//! completed unsent, and counted, for its application too. A frame's metadata may ask for a
//! checksum or for segmentation, which the egress does, or the route. The headers of a super-packet
//! (at most 256 bytes) are always copied: they are checked, and must not change afterwards.
//!
//! What an application submitted before it left or was killed is still sent, at most its ring once.
//! What the COMPLETION ring, the budget or the buffers have no room for then is counted as
//! `descriptors-unsent`. Nothing behind a breach of the protocol is sent.
//!
//! **Receiving** copies once, into chunks that the application posted. An application that takes
//! super-packets and partial checksums gets them as they are, with a virtio-net header. The others
//! get finished frames.
//!
//! **Users.** What applications have of the port is bounded for each user, and for all together
//! (`limits`); a refusal names the limit, its value and its option. A burst is shared among users
//! first, then among the sessions of a user (`rx/turns`). `allow=` says what a user may ask for:
//! each rule must lie within one that is allowed. `source=` says from which addresses a user may
//! send; the headers of such frames are always copied, frames from other addresses are completed
//! unsent and counted as `spoofed`.
//!
//! **Trust.** Every word that an application wrote is read once and bounded. A breach of the
//! protocol ends that session, is counted by name, and affects no other session. Programs written
//! for AF_XDP have sessions with `skip_invalid`: invalid descriptors are counted and skipped
//! instead, at no higher cost than valid ones. A descriptor that an application sends is examined
//! in a process of its own, asked for its seals before anything else, and taken only if it is of
//! memory. Others are closed there: this process neither asks them anything nor waits for them. A
//! killed application is gone when its connection is closed. Its pages stay mapped here until the
//! last packet that refers to them is freed. The application may change a page in flight, as with
//! any zero-copy socket: the bytes are untrusted, and never a slice.

mod config;
mod handshake;
mod limits;
mod notify;
mod rx;
mod server;
mod session;
mod source;
mod stats;
mod tx;
mod tx_metadata;
mod umem;

pub use config::{Config, KIND, Transmit};
pub use limits::Claim;
pub use rx::SockRx;
pub use source::Source;
pub use tx::SockTx;

use crate::ended::Ended;
use notify::PortShared;
use server::{Channel, Server};
use stats::PortEvents;
use std::sync::Arc;
use towpath_packet::Direction;
use towpath_packet::port::{Calls, Info, Layer, Needs, PathUse, Port, PortControl, PortError, Queues, Start, Usage};
use towpath_packet::spsc::ring;
use towpath_sys::unix_socket::{Access, Kind, ListenError, Listener};

/// A port that applications connect to.
#[derive(Debug)]
pub struct SockPort {
    info: Info,
    config: Config,
    listener: Listener,
    events: Arc<PortEvents>,
}

/// Opens the port. Applications can connect, and get an answer once it is started.
///
/// # Errors
/// [`PortError::Os`] if the path cannot be bound, or other users can write to its directory. The
/// file of a killed process is replaced.
pub fn open(config: Config) -> Result<SockPort, PortError> {
    let Config { mode, uid, gid, .. } = config;
    let listener = Listener::new(&config.path, Kind::Records, Access { mode, uid, gid }).map_err(|error| {
        let ListenError { step, source, hint, .. } = error;
        PortError::Os { port: config.port(), step: step.to_owned(), source, hint }
    })?;
    // The route does what an application asks for and the egress cannot do.
    let info = Info::new(config.port(), Layer::Ethernet, config.mtu)
        .with_offloads(tx::OFFLOADS, tx::OFFLOADS)
        .with_max_queues(config.queues);
    let events = Arc::new(PortEvents::new(config.limits()));
    Ok(SockPort { info, config, listener, events })
}

impl Port for SockPort {
    type Rx = Ended<SockRx>;
    type Tx = Ended<SockTx>;

    fn info(&self) -> &Info {
        &self.info
    }

    fn control(&self) -> Option<Arc<dyn PortControl>> {
        Some(Arc::new(SockControl(self.events.clone())))
    }

    fn needs(&self) -> Needs {
        let needs = Needs::none().calls([Calls::Sockets, Calls::Accept]);
        needs.directory_of(&self.config.path, PathUse::Remove)
    }

    fn start(self, start: Start) -> Result<Queues<Self::Rx, Self::Tx>, PortError> {
        let port = self.config.port();
        let failed = |step: &str, source| {
            let hint = Some("raise the limit on open files".to_owned());
            PortError::Os { port: port.clone(), step: step.to_owned(), source, hint }
        };
        let cache = |direction| {
            start.pool.cache(direction).map_err(|source| PortError::Pool { port: self.info.name.clone(), source })
        };
        let (queues, sessions) = (self.info.queues(start.queues)?, self.config.sessions);
        let transmit = self.config.transmit;
        let shared =
            PortShared::new(queues, sessions, self.events.clone()).map_err(|error| failed("eventfd", error))?;
        let shared = Arc::new(shared);
        let (mut rx_channels, mut tx_channels, mut rx, mut tx) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (number, waker) in (0..).zip(&shared.wakers) {
            let ((added, new), (old, removed)) = (ring(shared.sessions), ring(shared.sessions));
            rx_channels.push(Channel { added, removed });
            rx.push(SockRx::new((new, old), cache(Direction::Tx)?, transmit, waker.clone(), shared.clone()));
            let ((added, new), (old, removed)) = (ring(shared.sessions), ring(shared.sessions));
            tx_channels.push(Channel { added, removed });
            let caches = (cache(Direction::Tx)?, cache(Direction::Tx)?);
            tx.push(SockTx::new(number, (new, old), caches, shared.clone()));
        }
        // An Ethernet header and two tags come on top.
        let longest = self.config.mtu + 22;
        let server = Server::new(self.listener, self.config, longest, shared, rx_channels, tx_channels);
        let thread = Arc::new(server.start().map_err(|error| failed("thread", error))?);
        Ok(Queues { rx: Ended::all(rx, &thread), tx: Ended::all(tx, &thread) })
    }
}

/// The events and the session log of the port.
struct SockControl(Arc<PortEvents>);

impl PortControl for SockControl {
    fn session_log(&self) -> Vec<String> {
        self.0.log.lines()
    }

    fn events(&self) -> Vec<(&'static str, u64)> {
        self.0.each()
    }

    fn usage(&self) -> Vec<Usage> {
        self.0.account.usage()
    }
}

#[cfg(test)]
mod tests;
