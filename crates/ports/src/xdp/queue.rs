//! What the two halves of a queue share: its socket, and what is left in the kernel's hands when a half is gone.
//!
//! ```text
//!   Setup   program, attached ── map of sockets ── memory                     one for the port, ends with its last queue
//!     └ Queue   socket ── loans of halves that are gone                       one for each queue, ends with its last half
//!         ├ XdpRx   RX and FILL rings, buffers lent to be filled
//!         └ XdpTx   TX and COMPLETION rings, packets lent to be sent
//! ```
//!
//! **Ending.** A half that ends leaves its loans here. They come home when both are gone: the rings are unmapped, the socket is
//! closed, which waits until the kernel writes to none of its memory any more (`xsk_unbind_dev`), and only then are the loans
//! given back.
//!
//! **Beginning anew.** A half that finds the queue stalled raises the [epoch](Queue::epoch). Both halves then hand over what they
//! have; whoever comes next closes the old socket, takes the loans home, and makes a new one, as soon as the kernel lets go of the queue:
//! in copy mode when the driver has freed the last frame of the old socket. If it goes on like that, it is made in another way, see
//! `fallback.rs`.

use super::config::Config;
use super::events::{Event, Events};
use super::fallback::{Step, Strikes};
use super::rings::Rings;
use super::umem::Frames;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use towpath_packet::port::State;
use towpath_packet::xsk_ring::{Consumer, Desc, Mapped, Producer};
use towpath_packet::{FromDevice, InFlight, ToDevice};
use towpath_sys::af_packet;
use towpath_sys::bpf::{Hook, Link, Map, Program};
use towpath_sys::netns;
use towpath_sys::xsk::{Sizes, Socket, bind};

/// How long a queue or an interface may be taken before that is an error: the kernel takes a moment to let go of a socket that was
/// closed, and a process that is being started may still have a descriptor of one that has ended.
const BUSY: Duration = Duration::from_secs(1);
const BUSY_STEP: Duration = Duration::from_millis(2);
/// Time between two attempts to make a queue anew.
const AGAIN: Duration = Duration::from_millis(50);

/// The program on its interface; both end together.
#[derive(Debug)]
pub(super) struct Attached {
    pub(super) map: Map,
    /// Where it is attached, unless it is just being attached elsewhere.
    pub(super) link: Mutex<(Hook, Option<Link>)>,
    pub(super) program: Program,
    /// Keeps the interface promiscuous.
    pub(super) _promiscuous: Option<af_packet::Socket>,
}

impl Attached {
    fn hook(&self) -> Hook {
        self.link.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    /// Moves the program from the driver to the stack.
    fn to_generic(&self, index: i32, netns: Option<&str>) -> io::Result<()> {
        let mut link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, held) = &mut *link;
        if *at == Hook::Native {
            // It can't be attached at both places at a time.
            (*at, *held) = (Hook::Generic, None);
        }
        if held.is_none() {
            *held = Some(netns::within(netns, || Link::attach(&self.program, index, Hook::Generic))??);
        }
        Ok(())
    }
}

/// What every queue of a port is made of.
#[derive(Debug)]
pub(super) struct Setup {
    pub(super) config: Config,
    pub(super) index: i32,
    /// Flags to bind with.
    pub(super) flags: u16,
    pub(super) attached: Attached,
    pub(super) frames: Frames,
    /// Queues that were started: buffers are shared among them.
    pub(super) queues: u16,
    pub(super) events: Arc<Events>,
}

/// A socket with its memory and rings, made where `netns` says, not bound yet; `shared` has the memory registered already.
pub(super) fn open(config: &Config, frames: &Frames, shared: Option<&Socket>) -> io::Result<(Socket, Rings)> {
    let socket = netns::within(config.netns.as_deref(), Socket::new)??;
    if shared.is_none() {
        socket.register(frames.region.mmap(), &frames.umem)?;
    }
    let n = u32::from(config.ring);
    let rings = Rings::new(socket.rings(&Sizes { fill: n, completion: n, rx: n, tx: n })?)?;
    socket.set_send_buffer(config.send_buffer)?;
    // Kernels before 6.17 do not know it, and send 32 frames a call.
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

impl Setup {
    /// See [`open`].
    pub(super) fn open(&self, shared: Option<&Socket>) -> io::Result<(Socket, Rings)> {
        open(&self.config, &self.frames, shared)
    }

    /// Binds to a queue and lets frames come.
    pub(super) fn bind(&self, socket: &Socket, queue: u32, flags: u16, shared: Option<&Socket>) -> io::Result<()> {
        let flags = if shared.is_some() { 0 } else { flags };
        socket.bind(self.index, queue, flags, shared)?;
        self.attached.map.set_socket(queue, socket.as_fd())
    }
}

/// Whether a queue, or an interface, is somebody else's, who may be about to let go of it.
fn is_taken(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EEXIST))
}

/// Tries again for a while when something is taken.
pub(super) fn patiently<R>(mut f: impl FnMut() -> io::Result<R>) -> io::Result<R> {
    let end = Instant::now() + BUSY;
    loop {
        match f() {
            Err(error) if is_taken(&error) && Instant::now() < end => {
                std::thread::sleep(BUSY_STEP);
            }
            result => return result,
        }
    }
}

/// A packet in the kernel's hands.
#[derive(Debug)]
pub(super) enum Loan {
    Rx(InFlight<FromDevice>),
    Tx(InFlight<ToDevice>),
}

impl Loan {
    /// Gives it home: the socket is closed.
    fn home(self) {
        match self {
            Loan::Rx(loan) => drop(loan.complete(0)),
            Loan::Tx(loan) => drop(loan.complete()),
        }
    }
}

/// The receiving half's rings.
#[derive(Debug)]
pub(super) struct RxRings {
    pub(super) rx: Consumer<Mapped<Desc>>,
    pub(super) fill: Producer<Mapped<u64>>,
    pub(super) socket: Arc<Socket>,
}

/// The sending half's rings.
#[derive(Debug)]
pub(super) struct TxRings {
    pub(super) tx: Producer<Mapped<Desc>>,
    pub(super) completion: Consumer<Mapped<u64>>,
    pub(super) socket: Arc<Socket>,
}

/// The two halves of a socket's rings.
pub(super) fn halves(socket: &Arc<Socket>, rings: Rings) -> (RxRings, TxRings) {
    let Rings { fill, completion, rx, tx } = rings;
    (RxRings { rx, fill, socket: socket.clone() }, TxRings { tx, completion, socket: socket.clone() })
}

#[derive(Debug, Default)]
struct Inner {
    socket: Option<Arc<Socket>>,
    loans: Vec<Loan>,
    /// Halves that are alive.
    halves: u8,
    /// Of those, the ones that have handed over their rings.
    handed: u8,
    rx: Option<RxRings>,
    tx: Option<TxRings>,
    /// Not before then is it tried again.
    wait_until: Option<Instant>,
    failed: Option<String>,
    /// Flags to bind with.
    flags: u16,
    strikes: Strikes,
    /// What is to be given up when it is made anew.
    step: Option<Step>,
}

/// One queue.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) setup: Arc<Setup>,
    pub(super) number: u32,
    epoch: AtomicU32,
    inner: Mutex<Inner>,
}

impl Queue {
    /// The queue of a bound socket.
    pub(super) fn new(setup: Arc<Setup>, number: u32, socket: Arc<Socket>) -> Queue {
        let inner = Inner { socket: Some(socket), halves: 2, flags: setup.flags, ..Inner::default() };
        Queue { setup, number, epoch: AtomicU32::new(0), inner: Mutex::new(inner) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts how often the queue was made anew; a half whose count is another hands over what it has.
    #[inline]
    pub(super) fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// The queue is to be made anew; `worked` if anything was completed since it was made.
    pub(super) fn stalled(&self, worked: bool) {
        self.setup.events.count(Event::Stalled, 1);
        let mut inner = self.lock();
        inner.strikes.stalled(worked);
        let zero_copy = inner.flags & bind::ZEROCOPY != 0;
        inner.step = inner.strikes.step(&self.setup.config, zero_copy, self.setup.attached.hook());
        drop(inner);
        self.epoch.fetch_add(1, Ordering::Relaxed);
    }

    /// The state of a half whose interface does not exist any more.
    pub(super) fn gone(&self) -> State {
        State::Gone(format!("the interface {} was deleted", self.setup.config.interface).into())
    }

    /// A half has dropped its rings, and leaves what it had lent.
    pub(super) fn hand_over(&self, loans: impl Iterator<Item = Loan>) {
        let mut inner = self.lock();
        inner.loans.extend(loans);
        inner.handed += 1;
    }

    /// A half is gone for good; `handed` if it had no rings any more.
    pub(super) fn leave(&self, loans: impl Iterator<Item = Loan>, handed: bool) {
        let mut inner = self.lock();
        inner.loans.extend(loans);
        inner.halves -= 1;
        inner.handed -= u8::from(handed);
    }

    /// The receiving half's new rings, when they are there; an error when there will be none.
    pub(super) fn claim_rx(&self) -> Result<Option<RxRings>, String> {
        self.claim(|inner| inner.rx.take())
    }

    /// The sending half's new rings, likewise.
    pub(super) fn claim_tx(&self) -> Result<Option<TxRings>, String> {
        self.claim(|inner| inner.tx.take())
    }

    fn claim<R>(&self, take: impl FnOnce(&mut Inner) -> Option<R>) -> Result<Option<R>, String> {
        let mut inner = self.lock();
        if let Some(why) = &inner.failed {
            return Err(why.clone());
        }
        let now = Instant::now();
        let waits = inner.wait_until.is_some_and(|until| now < until);
        if inner.handed == inner.halves && inner.rx.is_none() && inner.tx.is_none() && !waits {
            // The last one that holds it: closing waits for the kernel.
            inner.socket = None;
            inner.loans.drain(..).for_each(Loan::home);
            match self.anew(&mut inner) {
                Ok((socket, rx, tx)) => {
                    inner.socket = Some(socket);
                    (inner.rx, inner.tx) = (Some(rx), Some(tx));
                }
                // In copy mode the queue is the old socket's until the driver has let go of all that it sent.
                Err(error) if is_taken(&error) => inner.wait_until = Some(now + AGAIN),
                Err(error) => {
                    let why = format!("queue {} stalled and could not be made anew: {error}", self.number);
                    inner.failed = Some(why.clone());
                    return Err(why);
                }
            }
        }
        let taken = take(&mut inner);
        inner.handed -= u8::from(taken.is_some());
        Ok(taken)
    }

    fn anew(&self, inner: &mut Inner) -> io::Result<(Arc<Socket>, RxRings, TxRings)> {
        let Setup { config, index, attached, events, .. } = &*self.setup;
        let flags = match inner.step {
            Some(Step::Copy) => inner.flags & !bind::ZEROCOPY | bind::COPY,
            _ => inner.flags,
        };
        if inner.step == Some(Step::Generic) {
            attached.to_generic(*index, config.netns.as_deref())?;
        }
        let (socket, rings) = self.setup.open(None)?;
        self.setup.bind(&socket, self.number, flags, None)?;
        let socket = Arc::new(socket);
        let (rx, tx) = halves(&socket, rings);
        inner.flags = flags;
        events.count(Event::MadeAnew, 1);
        match inner.step.take() {
            Some(Step::Copy) => events.count(Event::FellBackToCopy, 1),
            Some(Step::Generic) => events.count(Event::FellBackToGeneric, 1),
            None => {}
        }
        Ok((socket, rx, tx))
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let inner = self.inner.get_mut().unwrap_or_else(PoisonError::into_inner);
        (inner.rx, inner.tx, inner.socket) = (None, None, None);
        inner.loans.drain(..).for_each(Loan::home);
    }
}
