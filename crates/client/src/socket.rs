//! A session with a datapath.

use crate::handshake::Session;
use crate::protocol::{HEADER, Hello, Malformed, Refusal, Sizes, Statistic, Statistics, Welcome};
use crate::request::asks_for_segments;
use crate::umem::{Frame, Umem};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use towpath_packet::xsk_ring::{Consumer, Desc, Mapped, Producer, Shared};
use towpath_packet::{Region, RegionError};
use towpath_sys::poll::wait_readable;

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Entries of the rings, powers of two up to 32768.
    pub rings: Sizes,
    /// Bytes that stay free in front of a received frame, at most half of a chunk.
    pub headroom: u32,
    /// Take packets that are longer than a chunk, in pieces.
    pub pieces: bool,
    /// Take super-packets whole, and packets with partial checksums: [`Frame::vnet_header`] says what is to be done. Wants 10 bytes of
    /// headroom.
    pub offloads: bool,
    /// Send super-packets, that the egress cuts or the datapath: [`Frame::request_segmentation`], or as they were received.
    pub segmentation: bool,
    /// Bytes of chunks that may be on their way; 0 for the datapath's default.
    pub budget: u64,
    /// The [number](Welcome::session) of another session of the same [`Umem`], to be one with it: the datapath maps the memory once, and
    /// knows whose chunks are whose. 0 for none.
    pub share: u64,
    /// The queue of the port to live on; `None` for the one with the fewest sessions.
    pub queue: Option<u16>,
    /// The packets that are wanted: matches of the datapath's rules (`udp dport 53`), or `default` for what nobody else wants.
    pub rules: Vec<String>,
}

impl Default for Config {
    /// 1024 entries a ring, no headroom, pieces, everything that nobody else wants.
    fn default() -> Config {
        let rules = vec!["default".to_owned()];
        Config {
            rings: Sizes::all(1024),
            headroom: 0,
            pieces: true,
            offloads: false,
            segmentation: false,
            budget: 0,
            share: 0,
            queue: None,
            rules,
        }
    }
}

/// What goes wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The system refused a step.
    #[error("{step}: {source}")]
    Os {
        /// What was being done.
        step: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// Memory could not be had, or mapped.
    #[error(transparent)]
    Memory(#[from] RegionError),
    /// What is asked for breaks a rule.
    #[error("{0}")]
    Config(String),
    /// The datapath said no.
    #[error("the datapath refused: {0}")]
    Refused(#[from] Refusal),
    /// What the datapath says is none of this protocol.
    #[error("the datapath's answer: {0}")]
    Answer(#[from] Malformed),
    /// The session is over.
    #[error("the datapath has closed the session")]
    Closed,
    /// A ring says what cannot be.
    #[error("the datapath broke the protocol: {0}")]
    Broken(&'static str),
    /// A frame of other memory than the socket's; it is the first of those that were handed in.
    #[error("the frame belongs to another Umem")]
    UntrustedMem,
    /// A frame without bytes; it is the first of those that were handed in.
    #[error("the frame is empty")]
    Empty,
    /// A super-packet that this session may not send; its first frame is the first of those that were handed in. See
    /// [`Config::segmentation`].
    #[error("the session was not opened to send super-packets")]
    Segmentation,
}

pub(crate) fn os(step: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Os { step, source }
}

/// Who has a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holder {
    /// Not this socket's datapath.
    Us,
    /// The datapath, to send it.
    Sent,
    /// The datapath, to receive into it.
    Posted,
}

/// A session. Dropping it ends it; frames that the datapath had are not free again until the [`Umem`] is made anew, because nobody says
/// when their last user is done.
#[derive(Debug)]
pub struct Socket<'u> {
    umem: &'u Umem,
    connection: OwnedFd,
    kick: OwnedFd,
    rx: Consumer<Mapped<Desc>>,
    tx: Producer<Mapped<Desc>>,
    fill: Producer<Mapped<u64>>,
    completion: Consumer<Mapped<u64>>,
    statistics: Mapped<u64>,
    holders: Box<[Holder]>,
    segmentation: bool,
    welcome: Welcome,
}

impl<'u> Socket<'u> {
    /// Opens a session with the datapath that listens at `path`.
    ///
    /// # Errors
    /// [`Error::Refused`] says why the datapath does not want to; [`Error::Os`] when nobody listens or nobody may.
    pub fn connect(umem: &'u Umem, path: impl AsRef<Path>, config: &Config) -> Result<Socket<'u>, Error> {
        let hello = Hello {
            umem: u64::from(umem.count()) * u64::from(umem.chunk()),
            chunk: umem.chunk(),
            unaligned: umem.is_unaligned(),
            headroom: config.headroom,
            pieces: config.pieces,
            offloads: config.offloads,
            one_descriptor: false,
            lenient: false,
            rings: config.rings,
            budget: config.budget,
            share: config.share,
            tx_metadata: HEADER as u32,
            segmentation: config.segmentation,
            queue: config.queue,
            rules: config.rules.join("\n"),
        };
        let memory = umem.region().fd().ok_or(Error::Broken("memory without a descriptor"))?;
        let Session { connection, rings, kick, welcome } = Session::open(path.as_ref(), &hello, memory)?;
        let memory = usize::try_from(welcome.memory).map_err(|_| Error::Broken("memory of rings that cannot be"))?;
        let region = Arc::new(Region::from_memfd(rings, memory)?);
        let (at, sizes) = (&welcome.rings, &config.rings);
        let outside = Error::Broken("rings outside of their memory");
        // SAFETY: the region was mapped for the rings alone; nothing but rings is made of it.
        let rings = unsafe {
            let (rx, tx) =
                (Mapped::new(region.clone(), &at.rx, sizes.rx), Mapped::new(region.clone(), &at.tx, sizes.tx));
            let fill = Mapped::new(region.clone(), &at.fill, sizes.fill);
            let completion = Mapped::new(region.clone(), &at.completion, sizes.completion);
            let statistics = Mapped::new(region.clone(), &at.statistics, Statistic::ENTRIES);
            (|| Some((rx?, tx?, fill?, completion?, statistics?)))()
        };
        let (rx, tx, fill, completion, statistics) = rings.ok_or(outside)?;
        rx.set_needs_wakeup(false);
        Ok(Socket {
            umem,
            connection,
            kick,
            rx: Consumer::new(rx),
            tx: Producer::new(tx),
            fill: Producer::new(fill),
            completion: Consumer::new(completion),
            statistics,
            holders: vec![Holder::Us; umem.count() as usize].into(),
            segmentation: config.segmentation,
            welcome,
        })
    }

    /// What the datapath said at the beginning.
    pub fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// What befell the session until now, as the datapath counts it.
    pub fn statistics(&self) -> Statistics {
        Statistics::read(|entry| self.statistics.read(entry))
    }

    /// Sends frames from the front of `frames`, as many as the ring has room for; returns how many. The others stay, in order.
    ///
    /// # Errors
    /// [`Error::UntrustedMem`], [`Error::Empty`] or [`Error::Segmentation`] for the frame that is first in `frames` then; those in front of it
    /// have been sent.
    pub fn tx(&mut self, frames: &mut Vec<Frame<'u>>) -> Result<usize, Error> {
        let want = u32::try_from(frames.len()).unwrap_or(u32::MAX);
        let n = (self.tx.reserve(want) as usize).min(frames.len());
        let bad = |frame: &Frame<'u>| match frame {
            frame if !std::ptr::eq(frame.umem(), self.umem) => Some(Error::UntrustedMem),
            frame if frame.bytes().is_empty() => Some(Error::Empty),
            _ if self.segmentation => None,
            frame => frame.vnet_header().is_some_and(asks_for_segments).then_some(Error::Segmentation),
        };
        let first = frames.iter().take(n).enumerate().find_map(|(i, frame)| bad(frame).map(|error| (i, error)));
        let (n, bad) = first.map_or((n, None), |(i, error)| (i, Some(error)));
        for frame in frames.drain(..n) {
            let options = frame.options();
            let (index, start, len) = frame.into_parts();
            if let Some(holder) = self.holders.get_mut(index as usize) {
                *holder = Holder::Sent;
            }
            self.tx.write(Desc { addr: self.umem.address(index, start), len, options });
        }
        if n > 0 {
            self.tx.submit();
            if self.tx.ring().needs_wakeup() {
                self.kick();
            }
        }
        bad.map_or(Ok(n), Err)
    }

    /// Appends frames whose last user is done, in whatever order that came; returns how many.
    ///
    /// # Errors
    /// [`Error::Broken`] when the datapath names a frame that it did not have: nothing that it says can be believed then.
    pub fn completions(&mut self, out: &mut Vec<Frame<'u>>) -> Result<usize, Error> {
        let n = self.completion.try_peek(self.completion.ring().size());
        let n = n.map_err(|_| Error::Broken("the completion ring's counter"))?;
        for _ in 0..n {
            let addr = self.completion.read();
            let (index, start) = self.locate(addr, Holder::Sent)?;
            out.push(Frame::of(self.umem, index, start..start, 0));
        }
        if n > 0 {
            self.completion.release();
        }
        Ok(n as usize)
    }

    /// Posts frames from the front of `frames` to be received into, as many as the ring has room for; returns how many.
    ///
    /// # Errors
    /// [`Error::UntrustedMem`] as for [`tx`](Socket::tx).
    pub fn fill(&mut self, frames: &mut Vec<Frame<'u>>) -> Result<usize, Error> {
        let want = u32::try_from(frames.len()).unwrap_or(u32::MAX);
        let room = (self.fill.reserve(want) as usize).min(frames.len());
        let n = frames.iter().take(room).take_while(|frame| std::ptr::eq(frame.umem(), self.umem)).count();
        for frame in frames.drain(..n) {
            let (index, ..) = frame.into_parts();
            if let Some(holder) = self.holders.get_mut(index as usize) {
                *holder = Holder::Posted;
            }
            self.fill.write(self.umem.address(index, 0));
        }
        if n > 0 {
            self.fill.submit();
        }
        if n < room { Err(Error::UntrustedMem) } else { Ok(n) }
    }

    /// Appends frames that were received; returns how many.
    ///
    /// # Errors
    /// [`Error::Broken`] as for [`completions`](Socket::completions).
    pub fn rx(&mut self, out: &mut Vec<Frame<'u>>) -> Result<usize, Error> {
        let n = self.rx.try_peek(self.rx.ring().size()).map_err(|_| Error::Broken("the RX ring's counter"))?;
        for _ in 0..n {
            let desc = self.rx.read();
            let (index, start) = self.locate(desc.addr, Holder::Posted)?;
            let end = start.checked_add(desc.len).filter(|&end| end <= self.umem.chunk());
            let end = end.ok_or(Error::Broken("a received frame leaves its chunk"))?;
            if desc.options & Desc::METADATA != 0 && (start as usize) < HEADER {
                return Err(Error::Broken("a header in front of its chunk"));
            }
            out.push(Frame::of(self.umem, index, start..end, desc.options));
        }
        if n > 0 {
            self.rx.release();
        }
        Ok(n as usize)
    }

    /// The chunk and the offset in it of an address that the datapath had for `what`; it is ours from here on.
    fn locate(&mut self, addr: u64, what: Holder) -> Result<(u32, u32), Error> {
        let (index, start) = self.umem.locate(addr);
        let start = u32::try_from(start).ok().filter(|&start| start <= self.umem.chunk());
        let holder = usize::try_from(index).ok().and_then(|index| self.holders.get_mut(index));
        let holder = holder.filter(|holder| **holder == what);
        let (Some(start), Some(holder)) = (start, holder) else {
            return Err(Error::Broken("a frame that it did not have"));
        };
        *holder = Holder::Us;
        // It fits: it is one of the memory's.
        Ok((index as u32, start))
    }

    /// Wakes the datapath. [`tx`](Socket::tx) does that by itself where it is needed.
    pub fn kick(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: eight bytes live across the call. It fails only when the counter is full: the datapath has been woken already.
        unsafe { libc::write(self.kick.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Asks the datapath to make the socket's descriptor readable when frames come in or back; false if some are there already. For
    /// those who wait with a loop of their own; [`wait`](Socket::wait) does it too.
    pub fn arm(&mut self) -> bool {
        self.rx.ring().set_needs_wakeup(true);
        self.rx.peek(1) == 0 && self.completion.peek(1) == 0
    }

    /// Waits until frames come in or back; false when the time is over, or a signal came.
    ///
    /// # Errors
    /// [`Error::Closed`] when the session is over.
    pub fn wait(&mut self, at_most: Option<Duration>) -> Result<bool, Error> {
        let woken =
            if self.arm() { wait_readable(self.connection.as_fd(), at_most).map_err(os("poll"))? } else { true };
        self.rx.ring().set_needs_wakeup(false);
        if woken {
            self.drain()?;
        }
        Ok(woken)
    }

    /// Whether the session goes on. Without a system call nobody can know, so to be asked now and then by who never
    /// [waits](Socket::wait).
    pub fn is_open(&self) -> bool {
        self.drain().is_ok()
    }

    /// Takes the bytes that woke us.
    fn drain(&self) -> Result<(), Error> {
        loop {
            let mut bytes = [0u8; 8];
            let (fd, at) = (self.connection.as_raw_fd(), bytes.as_mut_ptr().cast());
            // SAFETY: eight bytes live across the call.
            match unsafe { libc::recv(fd, at, bytes.len(), libc::MSG_DONTWAIT) } {
                n if n > 0 => {}
                0 => return Err(Error::Closed),
                _ => {
                    let error = io::Error::last_os_error();
                    return match error.kind() {
                        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(()),
                        _ => Err(Error::Closed),
                    };
                }
            }
        }
    }
}

/// The descriptor to wait for, after [`arm`](Socket::arm).
impl AsFd for Socket<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }
}
