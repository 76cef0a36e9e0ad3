//! The thread that everything is done on that may wait or allocate: accepting, handshakes, noticing that an application is gone, freeing.

use super::Config;
use super::app::App;
use super::events::Events;
use super::gate::Gate;
use super::opening::{Asked, Opened, Standing, open};
use super::sending::Sending;
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

/// How long an application may take to say what it wants.
const PATIENCE: Duration = Duration::from_secs(2);
/// Connections that may not have said it yet.
const WAITING: usize = 16;
/// How long nobody is accepted when the process has no descriptor left.
const PAUSE: Duration = Duration::from_millis(100);

/// The socket's file, taken away when dropped.
#[derive(Debug)]
pub(super) struct Listening {
    pub(super) fd: OwnedFd,
    pub(super) path: PathBuf,
}

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The thread; dropping this ends it, and all sessions.
#[derive(Debug)]
pub(super) struct Listener {
    gate: Arc<Gate>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.gate.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A connection.
enum Peer {
    /// It has not said what it wants.
    Waiting(OwnedFd, Instant),
    /// It has a session.
    Open(Opened),
}

/// The way to a queue and back.
pub(super) struct Ways<T: Send> {
    pub(super) to: Producer<T>,
    pub(super) back: Consumer<T>,
}

/// What the thread works on.
pub(super) struct Desk {
    pub(super) listening: Listening,
    pub(super) config: Config,
    pub(super) longest: u32,
    pub(super) gate: Arc<Gate>,
    /// To receive queues.
    pub(super) sending: Vec<Ways<Sending>>,
    /// To transmit queues.
    pub(super) receiving: Vec<Ways<App>>,
    peers: Vec<Peer>,
    sessions: u64,
}

impl Desk {
    pub(super) fn new(
        listening: Listening,
        config: Config,
        longest: u32,
        gate: Arc<Gate>,
        sending: Vec<Ways<Sending>>,
        receiving: Vec<Ways<App>>,
    ) -> Desk {
        Desk { listening, config, longest, gate, sending, receiving, peers: Vec::new(), sessions: 0 }
    }

    /// Starts the thread.
    pub(super) fn start(self) -> std::io::Result<Listener> {
        let gate = self.gate.clone();
        let thread = std::thread::Builder::new().name("towpath-sock".into()).spawn(move || self.run())?;
        Ok(Listener { gate, thread: Some(thread) })
    }

    fn run(mut self) {
        let mut waits = PollSet::default();
        let mut pause = None;
        while !self.gate.is_stopped() {
            waits.clear();
            waits.readable(self.gate.called());
            if pause.is_none() {
                waits.readable(self.listening.fd.as_raw_fd());
            }
            for peer in &self.peers {
                waits.readable(match peer {
                    Peer::Waiting(fd, _) => fd.as_raw_fd(),
                    Peer::Open(opened) => opened.session.connection.as_raw_fd(),
                });
            }
            waits.wait(PAUSE);
            self.gate.heard();
            self.free();
            pause = self.accept().err();
            for peer in std::mem::take(&mut self.peers) {
                let peer = self.look(peer);
                self.peers.extend(peer);
            }
        }
        for peer in &self.peers {
            if let Peer::Open(opened) = peer {
                opened.close(&self.gate, "the port ended");
            }
        }
    }

    /// Frees what the queues have handed back.
    fn free(&mut self) {
        for ways in &mut self.sending {
            while ways.back.pop().is_some() {}
        }
        for ways in &mut self.receiving {
            while ways.back.pop().is_some() {}
        }
    }

    /// Takes connections, not so many at a time that nothing else is done; an error if there is no descriptor for one.
    fn accept(&mut self) -> std::io::Result<()> {
        for _ in 0..WAITING {
            match seqpacket::accept(self.listening.fd.as_fd()) {
                Ok(fd) => {
                    self.make_room();
                    self.peers.push(Peer::Waiting(fd, Instant::now()));
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(error) if error.raw_os_error() == Some(libc::ECONNABORTED) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sees to it that one more may wait: who has waited longest is heard now, or never. So nobody is kept out by those who say nothing.
    fn make_room(&mut self) {
        let is_waiting = |peer: &Peer| matches!(peer, Peer::Waiting(..));
        if self.peers.iter().filter(|peer| is_waiting(peer)).count() < WAITING {
            return;
        }
        let Some(longest) = self.peers.iter().position(is_waiting) else { return };
        let peer = self.peers.remove(longest);
        match self.look(peer) {
            Some(Peer::Waiting(fd, _)) => {
                self.refuse(&fd, Code::Full, "too many connections at a time, none of which says what it wants");
            }
            Some(open) => self.peers.push(open),
            None => {}
        }
    }

    fn refuse(&self, fd: &OwnedFd, code: Code, why: impl Into<String>) {
        let events: &Events = &self.gate.events;
        events.refused.fetch_add(1, Ordering::Relaxed);
        let answer = Answer::Refusal(Refusal { code, why: why.into() });
        // Who does not listen does not get to know.
        let _ = seqpacket::send(fd.as_fd(), &answer.encode(), &[]);
    }

    /// Looks at one connection; `None` when it is over.
    fn look(&mut self, peer: Peer) -> Option<Peer> {
        let mut bytes = [0; Hello::LONGEST];
        match peer {
            Peer::Waiting(fd, since) => match seqpacket::receive(fd.as_fd(), &mut bytes) {
                Ok(got) if got.len == 0 => None,
                Ok(got) => {
                    let hello = if got.cut { None } else { bytes.get(..got.len) };
                    let made = match hello.map(Hello::decode) {
                        None => {
                            Err((Code::Protocol, "a message that is too long, or descriptors that are too many".into()))
                        }
                        Some(Err(error)) => Err((Code::Protocol, error.to_string())),
                        Some(Ok(hello)) => self.welcome(&fd, &hello, got.fds),
                    };
                    match made {
                        Ok(peer) => Some(peer),
                        Err((code, why)) => {
                            self.refuse(&fd, code, why);
                            None
                        }
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    (since.elapsed() < PATIENCE).then_some(Peer::Waiting(fd, since))
                }
                Err(_) => None,
            },
            Peer::Open(opened) => {
                // Whatever it says now breaks the protocol, and when it says nothing more it is gone.
                let quiet = seqpacket::receive(opened.session.connection.as_fd(), &mut bytes);
                let quiet = quiet.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
                if quiet && !opened.session.is_closed() {
                    return Some(Peer::Open(opened));
                }
                opened.close(&self.gate, "left");
                None
            }
        }
    }

    /// Makes a session and hands its halves to the queues.
    fn welcome(&mut self, fd: &OwnedFd, hello: &Hello, fds: Vec<OwnedFd>) -> Result<Peer, (Code, String)> {
        let others = self.peers.iter().filter_map(|peer| match peer {
            Peer::Open(opened) if !opened.session.is_closed() => Some(opened),
            _ => None,
        });
        let asked = Asked { id: self.sessions + 1, hello, connection: fd, fds };
        let standing = Standing { config: &self.config, longest: self.longest, gate: &self.gate };
        let (opened, sending, receiver) = open(asked, &standing, &others.collect::<Vec<_>>())?;
        self.sessions += 1;
        // A queue that does not exist any more takes nothing: its half is dropped, the others work.
        if let Some(ways) = self.sending.get_mut(usize::from(opened.queue)) {
            drop(ways.to.push(sending));
        }
        for ways in &mut self.receiving {
            drop(ways.to.push(App::new(receiver.clone())));
        }
        self.gate.events.change();
        towpath_packet::notify::publish();
        self.gate.wakers.iter().for_each(|waker| waker.notifier.notify());
        Ok(Peer::Open(opened))
    }
}
