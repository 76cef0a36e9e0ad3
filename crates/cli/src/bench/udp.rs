//! UDP through the kernel: a receiver that names how it reads, and a sender of many flows.

use super::cores::{CoreTime, udp_refused};
use super::netns::Namespace;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{UdpGroSegment, UdpGsoSegment};
use serde::Serialize;
use std::error::Error;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// How an application receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Reader {
    /// A socket without options: the kernel splits super-packets, and a call returns a datagram.
    Plain,
    /// A socket with `UDP_GRO`: a call returns all datagrams of a super-packet.
    UdpGro,
}

impl Reader {
    pub(crate) const ALL: [Reader; 2] = [Reader::Plain, Reader::UdpGro];

    /// What receives, and what reads it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Reader::Plain => "plain socket, recv() of each datagram",
            Reader::UdpGro => "UDP_GRO socket, recv() of each super-packet",
        }
    }
}

/// What arrived at a socket.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Delivered {
    pub(crate) datagrams: u64,
    /// Calls that returned them: fewer than datagrams where a call returns a super-packet.
    pub(crate) messages: u64,
    /// Datagrams that found no room at the socket. For a socket with `UDP_GRO`: the messages that
    /// found none, times the datagrams of a message that did.
    pub(crate) lost: u64,
    pub(crate) time: Duration,
    /// Processor time of the cores in this time.
    pub(crate) busy: Duration,
}

impl Delivered {
    /// Datagrams that a call returned.
    pub(crate) fn per_message(&self) -> f64 {
        self.datagrams as f64 / self.messages.max(1) as f64
    }

    /// Datagrams without room, of those that reached the socket.
    pub(crate) fn lost_percent(&self) -> f64 {
        100.0 * self.lost as f64 / (self.datagrams + self.lost).max(1) as f64
    }
}

/// How long a receiver waits for the first datagram of a period.
const SILENCE: Duration = Duration::from_secs(10);

impl Namespace {
    /// Receives datagrams of `payload` bytes on `port` for a warm-up and then for `time`, which is
    /// measured together with the processor time of `cores`.
    pub(crate) fn receive_datagrams(
        &self,
        port: u16,
        payload: usize,
        reader: Reader,
        [warm_up, time]: [Duration; 2],
        cores: &[usize],
    ) -> Result<Delivered, Box<dyn Error>> {
        let cores = cores.to_vec();
        let received = self.start(move || {
            let socket = UdpSocket::bind(("0.0.0.0", port))?;
            if reader == Reader::UdpGro {
                setsockopt(&socket, UdpGroSegment, &true)?;
            }
            socket.set_read_timeout(Some(Duration::from_millis(20)))?;
            let mut buffer = vec![0; 65536];
            let mut period = |time: Duration| -> io::Result<Delivered> {
                let (before, refused) = (CoreTime::of(&cores)?, udp_refused()?);
                let (start, mut bytes, mut messages) = (Instant::now(), 0u64, 0u64);
                // A thread that did not run in that time measures a longer one.
                while start.elapsed() < time || (messages == 0 && start.elapsed() < SILENCE) {
                    if let Ok(n) = socket.recv(&mut buffer) {
                        bytes += n as u64;
                        messages += 1;
                    }
                }
                let (time, busy) = CoreTime::of(&cores)?.since(&before);
                let datagrams = bytes / payload.max(1) as u64;
                let refused = udp_refused()?.saturating_sub(refused);
                let lost = refused as f64 * datagrams as f64 / messages.max(1) as f64;
                Ok(Delivered { datagrams, messages, lost: lost as u64, time, busy })
            };
            period(warm_up)?;
            period(time)
        });
        Ok(received.recv()??)
    }
}

/// What a sender of datagrams sends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Flows {
    pub(crate) to: SocketAddr,
    pub(crate) flows: u32,
    /// Datagrams that a flow sends in one call, before the next flow's turn.
    pub(crate) train: u32,
    pub(crate) payload: usize,
}

/// A sender that runs; dropping it stops it.
pub(crate) struct Sender {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    done: Receiver<io::Result<()>>,
}

impl Namespace {
    /// Sends datagrams on the namespace's thread, as fast as it can. Flows have a socket each and
    /// take turns.
    pub(crate) fn send_datagrams(&self, what: Flows) -> Sender {
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, count) = (stop.clone(), sent.clone());
        let done = self.start(move || {
            allow_files(u64::from(what.flows) + 256)?;
            let socket = || -> io::Result<UdpSocket> {
                let socket = UdpSocket::bind("0.0.0.0:0")?;
                if what.train > 1 {
                    setsockopt(&socket, UdpGsoSegment, &i32::try_from(what.payload).unwrap_or(i32::MAX))?;
                }
                socket.connect(what.to)?;
                Ok(socket)
            };
            let sockets = (0..what.flows).map(|_| socket()).collect::<io::Result<Vec<_>>>()?;
            let bytes = vec![7; what.payload * what.train as usize];
            while !stopped.load(Ordering::Relaxed) {
                for socket in &sockets {
                    // A refusal (the receiver is not there yet) is reported once, and is not sent.
                    if socket.send(&bytes).is_ok() {
                        count.fetch_add(what.train.into(), Ordering::Relaxed);
                    }
                    if stopped.load(Ordering::Relaxed) {
                        break;
                    }
                }
            }
            Ok(())
        });
        Sender { stop, sent, done }
    }
}

impl Sender {
    /// Datagrams sent so far.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Stops; fails if the sender could not begin.
    pub(crate) fn stop(self) -> Result<(), Box<dyn Error>> {
        self.stop.store(true, Ordering::Relaxed);
        Ok(self.done.recv()??)
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Raises the limit of open files, if it is lower.
fn allow_files(n: u64) -> io::Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < n {
        setrlimit(Resource::RLIMIT_NOFILE, n, hard.max(n))?;
    }
    Ok(())
}
