//! A queue's shared part: its socket, and the packets that a closed half left in flight.
//!
//! ```text
//!   PortShared     program, attached ── XSKMAP ── UMEM            one for the port, ends with its last queue
//!     └ QueueShared   socket ── packets in flight of closed halves   one for each queue, ends with its last half
//!         ├ XdpRx       RX and FILL rings, buffers in flight
//!         └ SocketTx    TX and COMPLETION rings, packets in flight
//! ```
//!
//! **Close.** A half that is dropped leaves its packets in flight here. When both are gone, the
//! rings are unmapped and the socket is closed. The close waits until the kernel writes to the UMEM
//! no more (`xsk_unbind_dev`). Only then are the packets freed.
//!
//! **Reopen.** A half that finds the queue stalled increments the [epoch](QueueShared::epoch). Both
//! halves then detach: they drop their rings and leave their packets here. The next call of the
//! receive half closes the old socket, frees the packets and opens a new socket, as soon as the
//! kernel releases the queue: in copy mode after the driver freed the last frame of the old socket.
//! It fills the FILL ring before the socket is bound: a driver in zero-copy mode that finds no
//! buffers then receives nothing until it looks again. Without a receive half the transmit half
//! reopens. A queue that stalls again may change its mode, see `fallback.rs`.

use super::config::Config;
use super::events::{Event, Events};
use super::fallback::{Fallback, StallCount};
use super::tx::SentSignal;
use super::umem::Umem;
use crate::kernel::edge::EdgeGuard;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use towpath_packet::port::State;
use towpath_packet::xsk_ring::{Consumer, Desc, Entry, Mapped, Producer};
use towpath_packet::{Direction, FromDevice, InFlight, ToDevice};
use towpath_sys::af_packet;
use towpath_sys::bpf::{AttachMode, Map, Program, XdpLink};
use towpath_sys::netns::Namespace;
use towpath_sys::xsk::{self, RingMap, RingSizes, Socket, bind};

/// Attempts while the answer is `EBUSY`: the kernel releases a closed socket with a delay, and a
/// child process between `fork` and `exec` may still hold a descriptor of it. They take a second or
/// more. They are counted and not timed: nothing is released while the processor does not run.
const BUSY_ATTEMPTS: u32 = 500;
const BUSY_STEP: Duration = Duration::from_millis(2);
/// Time between two attempts to reopen a queue.
const REOPEN_INTERVAL: Duration = Duration::from_millis(50);

/// The program on its interface.
#[derive(Debug)]
pub(super) struct Attached {
    pub(super) map: Map,
    /// The mode, and the attachment; `None` while it changes.
    pub(super) link: Mutex<(AttachMode, Option<XdpLink>)>,
    pub(super) program: Program,
    /// Keeps the interface promiscuous.
    pub(super) _promiscuous: Option<af_packet::Socket>,
}

impl Attached {
    fn mode(&self) -> AttachMode {
        self.link.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    /// Moves the program from the driver to the stack.
    fn to_generic(&self, index: i32, netns: &Namespace) -> io::Result<()> {
        let mut link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, held) = &mut *link;
        if *at == AttachMode::Native {
            // Only one of the two modes can be attached at a time.
            (*at, *held) = (AttachMode::Generic, None);
        }
        if held.is_none() {
            *held = Some(netns.run(|| XdpLink::attach(&self.program, index, AttachMode::Generic))??);
        }
        Ok(())
    }
}

/// The part that all queues of a port share.
#[derive(Debug)]
pub(super) struct PortShared {
    pub(super) config: Config,
    /// The port's namespace.
    pub(super) netns: Namespace,
    pub(super) index: i32,
    /// Flags to bind with.
    pub(super) flags: u16,
    /// `None` if the port does not receive.
    pub(super) attached: Option<Attached>,
    pub(super) umem: Umem,
    /// The number of started queues: they share the buffers.
    pub(super) queues: u16,
    pub(super) events: Arc<Events>,
    pub(super) _edge: Arc<EdgeGuard>,
}

/// An unbound socket of the calling thread's namespace with its UMEM and rings. With `shared` it
/// uses the UMEM of that socket.
pub(super) fn open(config: &Config, umem: &Umem, shared: Option<&Socket>) -> io::Result<(Socket, Rings)> {
    set_up(Socket::new()?, config, umem, shared)
}

/// See [`open`].
fn set_up(socket: Socket, config: &Config, umem: &Umem, shared: Option<&Socket>) -> io::Result<(Socket, Rings)> {
    if shared.is_none() {
        // SAFETY: the UMEM is the chunks of a pool, which `umem` keeps; the fill ring gets only
        // chunks of packets in flight.
        unsafe { socket.register_umem(umem.region.base(), &umem.config) }?;
    }
    let n = u32::from(config.ring);
    let rx = config.receives().then_some(n);
    let rings = Rings::new(socket.create_rings(&RingSizes { fill: n, completion: n, rx, tx: n })?)?;
    socket.set_send_buffer(config.send_buffer)?;
    // Before Linux 6.17 the option does not exist, and the kernel sends 32 frames a call.
    let _ = socket.set_tx_budget(config.tx_budget.into());
    if !config.busy_poll.is_zero() {
        set_busy_poll(config, &socket)?;
    }
    Ok((socket, rings))
}

/// Lets the socket run the driver's receive loop.
pub(super) fn set_busy_poll(config: &Config, socket: &Socket) -> io::Result<()> {
    let micros = u32::try_from(config.busy_poll.as_micros()).unwrap_or(u32::MAX);
    socket.set_busy_poll(micros, config.busy_budget.into())
}

impl PortShared {
    /// See [`open`]; in the port's namespace.
    pub(super) fn open(&self, shared: Option<&Socket>) -> io::Result<(Socket, Rings)> {
        set_up(self.netns.run(Socket::new)??, &self.config, &self.umem, shared)
    }

    /// Posts buffers to the FILL ring of a queue in zero-copy mode that only sends. Its driver may
    /// take them for frames that it copies and passes to the host: without them those are dropped.
    /// Nothing is posted otherwise.
    pub(super) fn fill_for_host(&self, rings: &mut Rings, flags: u16) -> Vec<Posted> {
        if self.config.receives() || flags & bind::ZEROCOPY == 0 {
            return Vec::new();
        }
        let Ok(mut cache) = self.umem.pool.cache(Direction::Rx) else { return Vec::new() };
        let share = self.umem.capacity() / 4 / usize::from(self.queues.max(1));
        let n = rings.fill.reserve(self.config.ring.into()).min(share as u32);
        let mut posted = Vec::new();
        for _ in 0..n {
            let Some(Ok(buffer)) = cache.alloc().map(InFlight::<FromDevice>::post) else { break };
            let Some(chunk) = self.umem.chunk_of(buffer.at().as_ptr()) else {
                drop(buffer.complete(0));
                break;
            };
            rings.fill.write(self.umem.chunk_address(chunk));
            posted.push(Posted::Rx(buffer));
        }
        rings.fill.submit();
        posted
    }

    /// Binds to a queue and adds the socket to the XSKMAP, if there is one.
    pub(super) fn bind(&self, socket: &Socket, queue: u32, flags: u16, shared: Option<&Socket>) -> io::Result<()> {
        let flags = if shared.is_some() { 0 } else { flags };
        socket.bind(self.index, queue, flags, shared)?;
        self.attached.as_ref().map_or(Ok(()), |attached| attached.map.set_socket(queue, socket.as_fd()))
    }
}

/// Whether another socket has the queue, or another program the interface.
fn is_busy(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EEXIST))
}

/// Retries for a while if the queue or the interface is busy.
pub(super) fn retry_while_busy<R>(mut f: impl FnMut() -> io::Result<R>) -> io::Result<R> {
    for _ in 1..BUSY_ATTEMPTS {
        match f() {
            Err(error) if is_busy(&error) => std::thread::sleep(BUSY_STEP),
            result => return result,
        }
    }
    f()
}

/// A packet in flight.
#[derive(Debug)]
pub(super) enum Posted {
    Rx(InFlight<FromDevice>),
    Tx(InFlight<ToDevice>),
}

impl Posted {
    /// Frees the packet: the socket is closed.
    pub(super) fn complete(self) {
        match self {
            Posted::Rx(packet) => drop(packet.complete(0)),
            Posted::Tx(packet) => drop(packet.complete()),
        }
    }
}

/// The receive half's rings.
#[derive(Debug)]
pub(super) struct RxRings {
    pub(super) rx: Consumer<Mapped<Desc>>,
    pub(super) fill: Producer<Mapped<u64>>,
    pub(super) socket: Arc<Socket>,
}

/// The transmit half's rings.
#[derive(Debug)]
pub(super) struct TxRings {
    pub(super) tx: Producer<Mapped<Desc>>,
    pub(super) completion: Consumer<Mapped<u64>>,
    /// In copy mode; in zero-copy mode drivers complete frames without a signal.
    pub(super) sent_signal: Option<SentSignal>,
    pub(super) socket: Arc<Socket>,
}

/// Splits a socket's rings into its two halves.
pub(super) fn split_rings(socket: &Arc<Socket>, rings: Rings, flags: u16) -> (Option<RxRings>, TxRings) {
    let Rings { fill, completion, rx, tx } = rings;
    let rx = rx.map(|rx| RxRings { rx, fill, socket: socket.clone() });
    let copies = flags & bind::ZEROCOPY == 0;
    let sent_signal = copies.then(|| SentSignal::new(socket.as_raw_fd())).flatten();
    (rx, TxRings { tx, completion, sent_signal, socket: socket.clone() })
}

#[derive(Debug, Default)]
struct Inner {
    socket: Option<Arc<Socket>>,
    /// Packets in flight of detached and closed halves.
    posted: Vec<Posted>,
    /// Halves that are not dropped.
    halves: u8,
    /// Those of them that have no rings.
    detached: u8,
    rx: Option<RxRings>,
    tx: Option<TxRings>,
    /// The time of the next attempt to reopen.
    retry_at: Option<Instant>,
    failed: Option<String>,
    /// Flags to bind with.
    flags: u16,
    stalls: StallCount,
    /// The change of mode when the queue is reopened.
    fallback: Option<Fallback>,
}

/// One queue; its two halves hold it.
#[derive(Debug)]
pub(super) struct QueueShared {
    pub(super) port: Arc<PortShared>,
    pub(super) number: u32,
    epoch: AtomicU32,
    inner: Mutex<Inner>,
}

impl QueueShared {
    /// The queue of a bound socket.
    pub(super) fn new(port: Arc<PortShared>, number: u32, socket: Arc<Socket>) -> QueueShared {
        let inner = Inner { socket: Some(socket), halves: 2, flags: port.flags, ..Inner::default() };
        QueueShared { port, number, epoch: AtomicU32::new(0), inner: Mutex::new(inner) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the stalls of the queue. A half whose epoch differs detaches.
    #[inline]
    pub(super) fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// Has the queue reopened; `worked` if a frame was completed since it was opened.
    pub(super) fn stalled(&self, worked: bool) {
        self.port.events.count(Event::Stalled, 1);
        let mut inner = self.lock();
        inner.stalls.stalled(worked);
        let zero_copy = inner.flags & bind::ZEROCOPY != 0;
        let mode = self.port.attached.as_ref().map(Attached::mode);
        inner.fallback = inner.stalls.fallback(&self.port.config, zero_copy, mode);
        drop(inner);
        self.epoch.fetch_add(1, Ordering::Relaxed);
    }

    /// The state of a half whose interface was deleted.
    pub(super) fn gone(&self) -> State {
        State::Gone(format!("the interface {} was deleted", self.port.config.interface).into())
    }

    /// Takes the packets in flight of a half that dropped its rings.
    pub(super) fn detach(&self, posted: impl Iterator<Item = Posted>) {
        let mut inner = self.lock();
        inner.posted.extend(posted);
        inner.detached += 1;
    }

    /// Takes the packets in flight of a half that is dropped; `detached` if it had no rings.
    pub(super) fn close_half(&self, posted: impl Iterator<Item = Posted>, detached: bool) {
        let mut inner = self.lock();
        inner.posted.extend(posted);
        inner.halves -= 1;
        inner.detached -= u8::from(detached);
    }

    /// The receive half's new rings, once the queue is reopened; an error if that failed for good.
    /// Before the queue is bound, `fill` fills the FILL ring. If it is not bound then, the buffers
    /// are the half's again.
    pub(super) fn attach_rx(&self, fill: impl FnOnce(RxRings) -> Option<RxRings>) -> Result<Option<RxRings>, String> {
        self.attach(|_| true, fill, |inner| inner.rx.take())
    }

    /// The transmit half's new rings, likewise.
    pub(super) fn attach_tx(&self) -> Result<Option<TxRings>, String> {
        self.attach(|inner| inner.halves == 1, |_| None, |inner| inner.tx.take())
    }

    fn attach<R>(
        &self,
        may_reopen: impl FnOnce(&Inner) -> bool,
        fill: impl FnOnce(RxRings) -> Option<RxRings>,
        take: impl FnOnce(&mut Inner) -> Option<R>,
    ) -> Result<Option<R>, String> {
        let mut inner = self.lock();
        if let Some(why) = &inner.failed {
            return Err(why.clone());
        }
        let now = Instant::now();
        let waits = inner.retry_at.is_some_and(|at| now < at);
        if inner.detached == inner.halves && inner.rx.is_none() && inner.tx.is_none() && !waits && may_reopen(&inner) {
            // This is the last reference: the close waits for the kernel.
            inner.socket = None;
            inner.posted.drain(..).for_each(Posted::complete);
            match self.reopen(&mut inner, fill) {
                Ok((socket, rx, tx)) => {
                    inner.socket = Some(socket);
                    (inner.rx, inner.tx) = (rx, Some(tx));
                }
                // In copy mode the old socket keeps the queue until the driver has freed all of its
                // frames.
                Err(error) if is_busy(&error) => inner.retry_at = Some(now + REOPEN_INTERVAL),
                Err(error) => {
                    let why = format!("queue {} stalled and could not be reopened: {error}", self.number);
                    inner.failed = Some(why.clone());
                    return Err(why);
                }
            }
        }
        let taken = take(&mut inner);
        inner.detached -= u8::from(taken.is_some());
        Ok(taken)
    }

    fn reopen(
        &self,
        inner: &mut Inner,
        fill: impl FnOnce(RxRings) -> Option<RxRings>,
    ) -> io::Result<(Arc<Socket>, Option<RxRings>, TxRings)> {
        let PortShared { netns, index, attached, events, .. } = &*self.port;
        let flags = match inner.fallback {
            Some(Fallback::Copy) => inner.flags & !bind::ZEROCOPY | bind::COPY,
            _ => inner.flags,
        };
        if let (Some(Fallback::Generic), Some(attached)) = (inner.fallback, attached) {
            attached.to_generic(*index, netns)?;
        }
        let (socket, mut rings) = self.port.open(None)?;
        let socket = Arc::new(socket);
        inner.posted.extend(self.port.fill_for_host(&mut rings, flags));
        let (rx, tx) = split_rings(&socket, rings, flags);
        let rx = rx.and_then(fill);
        self.port.bind(&socket, self.number, flags, None)?;
        inner.flags = flags;
        events.count(Event::Reopened, 1);
        match inner.fallback.take() {
            Some(Fallback::Copy) => events.count(Event::FellBackToCopy, 1),
            Some(Fallback::Generic) => events.count(Event::FellBackToGeneric, 1),
            None => {}
        }
        Ok((socket, rx, tx))
    }
}

impl Drop for QueueShared {
    fn drop(&mut self) {
        let inner = self.inner.get_mut().unwrap_or_else(PoisonError::into_inner);
        (inner.rx, inner.tx, inner.socket) = (None, None, None);
        inner.posted.drain(..).for_each(Posted::complete);
    }
}

/// The rings of a socket.
#[derive(Debug)]
pub(super) struct Rings {
    pub(super) fill: Producer<Mapped<u64>>,
    pub(super) completion: Consumer<Mapped<u64>>,
    /// `None` if the port does not receive.
    pub(super) rx: Option<Consumer<Mapped<Desc>>>,
    pub(super) tx: Producer<Mapped<Desc>>,
}

impl Rings {
    /// Takes the rings that the kernel made.
    ///
    /// # Errors
    /// `InvalidData` if the kernel placed a ring outside of its mapping.
    pub(super) fn new(rings: xsk::Rings) -> io::Result<Rings> {
        Ok(Rings {
            fill: Producer::new(mapped(rings.fill)?),
            completion: Consumer::new(mapped(rings.completion)?),
            rx: rings.rx.map(mapped).transpose()?.map(Consumer::new),
            tx: Producer::new(mapped(rings.tx)?),
        })
    }
}

fn mapped<T: Entry>(ring: RingMap) -> io::Result<Mapped<T>> {
    let outside = || io::Error::new(io::ErrorKind::InvalidData, "a ring of the kernel lies outside of its mapping");
    Mapped::from_kernel(ring).ok_or_else(outside)
}
