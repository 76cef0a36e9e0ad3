//! `sock:PATH`: applications send their own pages, and receive, through rings in memory that they share with the datapath.
//!
//! ```text
//!   application   TX ──► SockRx ──► packet: a page of the application alone, or several behind an empty head ──► egress
//!                 COMPLETION ◄──── the last user of a page is gone, in any order
//!
//!   application   RX ◄── SockTx ◄── packet, to the application whose rules match
//!                 FILL ──► chunks to copy it into
//!
//!   sock:/run/towpath.sock?mode=660,gid=100,sessions=64,umem=64M,budget=4M,queues=8,rules=64,all-rules=512,tx=auto
//! ```
//!
//! The protocol is that of [`towpath_client::protocol`]; who may connect is a matter of the directory, and of `mode`, `uid` and `gid`; who
//! did, with which end, is remembered. One thread of the
//! port accepts, shakes hands, notices who is gone and frees; the queues neither allocate nor wait, and make a system call only to wake
//! an application that sleeps, once a burst.
//!
//! **Queues.** A session lives on one queue of the port: the one that it names, or that with the fewest. There its frames come in, in order.
//! What is for it finds it through every queue ([`SockTx`]).
//!
//! **Sending** copies what the egress wants linear, and no more: nothing where it takes fragments (`tx=auto`). `tx=page` copies nothing
//! wherever it goes, `tx=copy` everything, into a buffer with exactly the headroom and tailroom of the egress; what is copied is counted,
//! and its chunk completed at once. Each page on its way is charged to its application, by its whole chunk where there are chunks; at the
//! budget, with the COMPLETION ring full, or with no buffer for a head, nothing more is taken out of the TX ring: descriptors wait, none
//! is lost. A frame longer or shorter than the port sends is completed unsent, and counted. What is asked for in a frame's metadata, a
//! checksum to be completed or a super-packet to be cut, is the egress's to do, or the route's. The headers of a super-packet (256 bytes at
//! most) are always copied: they are checked, and must not change any more.
//!
//! **Receiving** copies once, into chunks that the application posted. One that takes super-packets and partial checksums gets them as
//! they are, with a virtio-net header; the others get finished frames.
//!
//! **Trust.** Every word that an application wrote is read once and bounded. What breaks the protocol ends that session, counted by name,
//! and touches no other; a lenient session, of a program that was written for AF_XDP, has descriptors that can't be counted and skipped instead, at no
//! higher cost than good ones. An application that is killed is gone when its connection is: its pages stay mapped here until the last
//! packet that shows them has left. While it is on its way the application may still change a page, as with any zero-copy socket:
//! the bytes are foreign, never seen as a slice.

mod app;
mod asking;
mod config;
mod copying;
mod events;
mod gate;
mod gather;
mod line;
mod listen;
mod memory;
mod opening;
mod receiving;
mod rings;
mod roster;
mod sending;
mod session;
mod statistics;
mod steer;
mod visitors;

pub use config::{Config, Transmit};
pub use gather::SockRx;
pub use steer::SockTx;

use events::Events;
use gate::Gate;
use listen::{Desk, Listener, Listening, Ways};
use std::sync::Arc;
use towpath_packet::port::{ControlError, Info, Layer, Port, PortControl, PortError, Queues, Setting, Start, TxLinear};
use towpath_packet::spsc::ring;
use towpath_packet::{Direction, MAX_FRAGS, delegate_rx_queue, delegate_tx_queue};
use towpath_sys::seqpacket;

/// A port that applications connect to.
#[derive(Debug)]
pub struct SockPort {
    info: Info,
    config: Config,
    listening: Listening,
    events: Arc<Events>,
}

/// Opens the port: applications can connect, and get an answer when it is started.
///
/// # Errors
/// [`PortError::Os`] when the path can't be had. A file that a process left behind when it was killed is replaced.
pub fn open(config: Config) -> Result<SockPort, PortError> {
    let failed = |step: &str, source, hint: Option<&str>| PortError::Os {
        port: config.port(),
        step: step.to_owned(),
        source,
        hint: hint.map(str::to_owned),
    };
    let abandoned = || {
        use std::os::unix::fs::FileTypeExt;
        let is_socket = std::fs::symlink_metadata(&config.path).is_ok_and(|file| file.file_type().is_socket());
        let refused = std::io::ErrorKind::ConnectionRefused;
        is_socket && seqpacket::connect(&config.path).is_err_and(|error| error.kind() == refused)
    };
    if abandoned() {
        std::fs::remove_file(&config.path).map_err(|error| failed("unlink", error, None))?;
    }
    let Config { mode, uid, gid, .. } = config;
    let fd = seqpacket::listen(&config.path, seqpacket::Access { mode, uid, gid })
        .map_err(|error| failed("bind", error, Some("is another towpath, or a file, at this path?")))?;
    let listening = Listening { fd, path: config.path.clone() };
    let info = Info {
        name: config.port(),
        layer: Layer::Ethernet,
        mtu: config.mtu,
        tx_linear: TxLinear::None,
        headroom: 0,
        tailroom: 0,
        max_chunks: MAX_FRAGS as u16 + 1,
        tx_offloads: steer::TAKEN,
        // What an application asks for, and the egress can't do, the route does.
        rx_offloads: steer::TAKEN,
        max_queues: config.queues,
        finite: false,
        abilities: Vec::new(),
    };
    Ok(SockPort { info, config, listening, events: Arc::default() })
}

impl Port for SockPort {
    type Rx = Ended<SockRx>;
    type Tx = Ended<SockTx>;

    fn info(&self) -> &Info {
        &self.info
    }

    fn control(&self) -> Option<Arc<dyn PortControl>> {
        Some(Arc::new(Watch(self.events.clone())))
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
        let gate = Gate::new(queues, sessions, self.events.clone()).map_err(|error| failed("eventfd", error))?;
        let gate = Arc::new(gate);
        let (mut sending, mut receiving, mut rx, mut tx) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (number, waker) in (0..).zip(&gate.wakers) {
            let ((to, new), (old, back)) = (ring(gate.sessions), ring(gate.sessions));
            sending.push(Ways { to, back });
            rx.push(SockRx::new((new, old), cache(Direction::Tx)?, transmit, waker.clone(), gate.clone()));
            let ((to, new), (old, back)) = (ring(gate.sessions), ring(gate.sessions));
            receiving.push(Ways { to, back });
            let caches = (cache(Direction::Tx)?, cache(Direction::Tx)?);
            tx.push(SockTx::new(number, (new, old), caches, gate.clone()));
        }
        // An Ethernet header and two tags come on top.
        let longest = self.config.mtu + 22;
        let desk = Desk::new(self.listening, self.config, longest, gate, sending, receiving);
        let listener = Arc::new(desk.start().map_err(|error| failed("thread", error))?);
        let rx = rx.into_iter().map(|queue| Ended { queue, _listener: listener.clone() }).collect();
        let tx = tx.into_iter().map(|queue| Ended { queue, _listener: listener.clone() }).collect();
        Ok(Queues { rx, tx })
    }
}

/// A queue that ends the listening thread, if it is the last.
#[derive(Debug)]
pub struct Ended<Q> {
    queue: Q,
    // Behind the queue: what it leaves in its rings is freed first.
    _listener: Arc<Listener>,
}

delegate_rx_queue!(impl[] for Ended<SockRx> { Ended { queue, .. } => queue });
delegate_tx_queue!(impl[] for Ended<SockTx> { Ended { queue, .. } => queue });

/// What befell the port.
struct Watch(Arc<Events>);

impl PortControl for Watch {
    fn settings(&self) -> Vec<Setting> {
        Vec::new()
    }

    fn session_log(&self) -> Vec<String> {
        self.0.visitors.all()
    }

    fn events(&self) -> Vec<(&'static str, u64)> {
        self.0.each()
    }

    fn set(&self, name: &str, _: u64) -> Result<(), ControlError> {
        Err(ControlError::unknown(name, self))
    }
}

#[cfg(test)]
mod tests;
