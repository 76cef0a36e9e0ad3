//! A session as a program uses it: rings, and the holder of each chunk.

use crate::connection::Connection;
use crate::error::{Error, os};
use crate::frame::Frame;
use crate::handshake::Session;
use crate::packets::{Partial, Rules};
use crate::protocol::{HEADER, Hello, Sizes, Statistic, Statistics, Welcome};
use crate::umem::{Holder, Holders, Umem};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::path::Path;
use std::time::Duration;
use towpath_packet::UntrustedMem;
use towpath_packet::notify::publish;
use towpath_packet::xsk_ring::{Consumer, Desc, Mapped, Producer, RingMemory};
use towpath_sys::EventFd;
use towpath_sys::poll::wait_readable;

macro_rules! config {
    ($($(#[$doc:meta])* $field:ident: $type:ty = $default:expr;)*) => {
        /// What a program asks for. Each field has a setter of its name.
        ///
        /// ```
        /// use towpath_client::{Config, Sizes};
        ///
        /// let rules = vec!["udp dport 53".to_owned()];
        /// let config = Config::default().rings(Sizes::all(256)).rules(rules);
        /// assert_eq!((config.rings.rx, config.headroom), (256, 0));
        /// ```
        #[derive(Debug, Clone, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Config {
            $($(#[$doc])* pub $field: $type,)*
        }

        impl Default for Config {
            /// 1024 entries a ring, no headroom, packets in pieces, the `default` packets.
            fn default() -> Config {
                Config { $($field: $default,)* }
            }
        }

        impl Config {
            $(
                #[doc = concat!("Sets [`", stringify!($field), "`](Config#structfield.", stringify!($field), ").")]
                #[must_use]
                pub fn $field(self, $field: $type) -> Config {
                    Config { $field, ..self }
                }
            )*
        }
    };
}

config! {
    /// Entries of the rings, powers of two up to 32768.
    rings: Sizes = Sizes::all(1024);
    /// Bytes that stay free in front of a received frame, at most half of a chunk.
    headroom: u32 = 0;
    /// Takes packets that are longer than a chunk, in pieces.
    pieces: bool = true;
    /// Takes super-packets, and packets with partial checksums: [`Frame::vnet_header`] describes
    /// them. Needs 10 bytes of headroom.
    offloads: bool = false;
    /// Sends super-packets, which the egress or the datapath segments: those of
    /// [`Frame::request_segmentation`], and received ones.
    segmentation: bool = false;
    /// Compares sent packets with the rules of the datapath, so that [`Socket::tx`] names the
    /// packet and the rule. Else the datapath drops and counts it, or ends the session.
    checks: bool = true;
    /// Bytes of chunks that may be in flight; 0 for the datapath's default.
    budget: u64 = 0;
    /// The [number](Welcome::session) of another session of the same [`Umem`]; 0 for none. The
    /// datapath maps the memory once, and tracks the chunks of both sessions together.
    share: u64 = 0;
    /// The queue of the port that the session belongs to; `None` for the one with the fewest
    /// sessions.
    queue: Option<u16> = None;
    /// The packets that the program wants: matches of the datapath's rules (`udp dport 53`), or
    /// `default` for those that no other application wants.
    rules: Vec<String> = vec!["default".to_owned()];
}

/// A session. Dropping it ends it; frames that were submitted are still sent, as far as the
/// datapath has room for them at once. Frames that the datapath has are not free again for the life
/// of the [`Umem`], because no message tells when their last user is done.
///
/// It has a handle of its memory, so it fits into a struct beside its frames, and may move to
/// another thread or task. It is [readable](AsFd) when frames come in or back, after
/// [`arm`](Socket::arm): `examples/async_echo.rs` waits so.
#[derive(Debug)]
pub struct Socket {
    connection: Connection,
    kick: EventFd,
    rx: Consumer<Mapped<Desc>>,
    tx: Producer<Mapped<Desc>>,
    fill: Producer<Mapped<u64>>,
    completion: Consumer<Mapped<u64>>,
    statistics: Mapped<u64>,
    holders: Holders,
    rules: Rules,
    partial: Partial,
    welcome: Welcome,
}

impl Socket {
    /// Opens a session with the datapath that listens at `path`.
    ///
    /// # Errors
    /// [`Error::Refused`] with the datapath's reason; [`Error::Os`] if no datapath listens, or the
    /// process has no permission.
    pub fn connect(umem: &Umem, path: impl AsRef<Path>, config: &Config) -> Result<Socket, Error> {
        let hello = Hello {
            umem: u64::from(umem.count()) * u64::from(umem.chunk()),
            chunk: umem.chunk(),
            unaligned: umem.is_unaligned(),
            headroom: config.headroom,
            pieces: config.pieces,
            offloads: config.offloads,
            one_descriptor: false,
            skip_invalid: false,
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
        let memory = UntrustedMem::from_memfd(rings, memory)?;
        let (at, sizes) = (&welcome.rings, &config.rings);
        let outside = Error::Broken("rings outside of their memory");
        let rings = (|| {
            let (rx, tx) = (Mapped::new(&memory, &at.rx, sizes.rx)?, Mapped::new(&memory, &at.tx, sizes.tx)?);
            let fill = Mapped::new(&memory, &at.fill, sizes.fill)?;
            let completion = Mapped::new(&memory, &at.completion, sizes.completion)?;
            let statistics = Mapped::new(&memory, &at.statistics, Statistic::ENTRIES)?;
            Some((rx, tx, fill, completion, statistics))
        })();
        let (rx, tx, fill, completion, statistics) = rings.ok_or(outside)?;
        rx.set_needs_wakeup(false);
        Ok(Socket {
            connection,
            kick: kick.into(),
            rx: Consumer::new(rx),
            tx: Producer::new(tx),
            fill: Producer::new(fill),
            completion: Consumer::new(completion),
            statistics,
            holders: Holders::new(umem.clone()),
            rules: Rules { longest: welcome.longest, segmentation: config.segmentation, checks: config.checks },
            partial: Partial::default(),
            welcome,
        })
    }

    /// The answer of the datapath to the handshake.
    pub fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// What the datapath has counted for the session: what became of packets that were not sent or
    /// not received, by reason. Readable after the end of the session, too.
    pub fn statistics(&self) -> Statistics {
        Statistics::read(|entry| self.statistics.read(entry))
    }

    /// The socket's memory.
    pub fn umem(&self) -> &Umem {
        self.holders.umem()
    }

    /// Sends frames from the front of `frames`, as many as the ring has room for. Returns how many.
    /// The others stay, in order.
    ///
    /// # Errors
    /// The rule that a packet breaks, from [`Error::OtherUmem`] on. Its first frame is then the
    /// first of `frames`, unless earlier calls have sent that; the packets in front of it were
    /// sent.
    pub fn tx(&mut self, frames: &mut Vec<Frame>) -> Result<usize, Error> {
        let want = u32::try_from(frames.len()).unwrap_or(u32::MAX);
        let room = self.tx.reserve(want) as usize;
        let frames_with_room = frames.get(..room).unwrap_or(frames);
        let (n, broken) = self.rules.check(self.holders.umem(), &mut self.partial, frames_with_room);
        for frame in frames.drain(..n) {
            let options = frame.options();
            // SAFETY: the frame was compared: it is one of this memory.
            let (index, start, len) = unsafe { self.holders.give(frame, Holder::Sent) };
            self.tx.write(Desc { addr: self.holders.umem().address(index, start), len, options });
        }
        if n > 0 {
            self.tx.submit();
            if self.tx.ring().needs_wakeup() {
                self.kick();
            }
        }
        broken.map_or(Ok(n), Err)
    }

    /// Appends frames whose last user is done, in the order of their completions. Returns how many.
    /// Wakes the datapath if it sleeps and the ring was full.
    ///
    /// # Errors
    /// [`Error::Broken`] if the datapath names a frame that it does not have, or its counter is
    /// wrong: the session is of no use then. [`Error::Closed`] instead if the session is over: its
    /// rings stay as they are for a time only.
    pub fn completions(&mut self, out: &mut Vec<Frame>) -> Result<usize, Error> {
        let n = self.completion.try_peek(self.completion.ring().size());
        let n = n.map_err(|_| self.broken("the completion ring's counter"))?;
        for _ in 0..n {
            let addr = self.completion.read();
            out.push(self.take(addr, Holder::Sent, 0, 0)?);
        }
        if n > 0 {
            self.completion.release();
            // The waker's part of the pattern of `towpath_packet::notify`. A datapath that found
            // the ring full has filled it before it set the flag.
            publish();
            if n + self.completion.waiting() >= self.completion.ring().size() && self.tx.ring().needs_wakeup() {
                self.kick();
            }
        }
        Ok(n as usize)
    }

    /// Posts frames from the front of `frames` to receive into, as many as the ring has room for.
    /// Returns how many.
    ///
    /// # Errors
    /// [`Error::OtherUmem`] as for [`tx`](Socket::tx).
    pub fn fill(&mut self, frames: &mut Vec<Frame>) -> Result<usize, Error> {
        let want = u32::try_from(frames.len()).unwrap_or(u32::MAX);
        let room = (self.fill.reserve(want) as usize).min(frames.len());
        let n = frames.iter().take(room).take_while(|frame| frame.umem().is(self.umem())).count();
        for frame in frames.drain(..n) {
            // SAFETY: the frame was compared: it is one of this memory.
            let (index, ..) = unsafe { self.holders.give(frame, Holder::Posted) };
            self.fill.write(self.holders.umem().address(index, 0));
        }
        if n > 0 {
            self.fill.submit();
        }
        if n < room { Err(Error::OtherUmem) } else { Ok(n) }
    }

    /// Appends frames that were received. Returns how many.
    ///
    /// # Errors
    /// [`Error::Broken`] and [`Error::Closed`] as for [`completions`](Socket::completions).
    pub fn rx(&mut self, out: &mut Vec<Frame>) -> Result<usize, Error> {
        let n = self.rx.try_peek(self.rx.ring().size()).map_err(|_| self.broken("the RX ring's counter"))?;
        for _ in 0..n {
            let desc = self.rx.read();
            let frame = self.take(desc.addr, Holder::Posted, desc.len, desc.options)?;
            if frame.has_header() && frame.start() < HEADER as u32 {
                return Err(self.broken("a header in front of its chunk"));
            }
            out.push(frame);
        }
        if n > 0 {
            self.rx.release();
        }
        Ok(n as usize)
    }

    /// The frame of `len` bytes at an address that the datapath had as `holder`. The program holds
    /// it from here on.
    #[inline]
    fn take(&mut self, addr: u64, holder: Holder, len: u32, options: u32) -> Result<Frame, Error> {
        let umem = self.holders.umem();
        let (index, start) = umem.locate(addr);
        let end = start.checked_add(len.into()).filter(|&end| end <= u64::from(umem.chunk()));
        let Some(end) = end else {
            return Err(self.broken("a frame that leaves its chunk"));
        };
        // No truncation: a chunk has at most 32768 bytes.
        let frame = self.holders.take(index, holder, start as u32..end as u32, options);
        frame.ok_or_else(|| self.broken("a frame that it did not have"))
    }

    /// Why the rings are of no use: a breach of the protocol, or the end of the session, after
    /// which the datapath frees their pages. It shuts the connection down first.
    #[cold]
    fn broken(&self, what: &'static str) -> Error {
        self.drain().map_or_else(|ended| ended, |()| Error::Broken(what))
    }

    /// Wakes the datapath. [`tx`](Socket::tx) does so if the datapath sleeps.
    pub fn kick(&self) {
        self.kick.signal();
    }

    /// Asks the datapath to make the socket's descriptor readable when frames come in or back.
    /// False if there are some already. For programs that wait with a loop of their own;
    /// [`wait`](Socket::wait) calls it.
    ///
    /// The sleeper's part of the pattern of [`towpath_packet::notify`]: the flag, a fence, a last
    /// look into both rings.
    pub fn arm(&mut self) -> bool {
        self.rx.ring().set_needs_wakeup(true);
        self.rx.peek(1) == 0 && self.completion.peek(1) == 0
    }

    /// Ends what [`arm`](Socket::arm) began, after its descriptor was readable: reads the wake-ups,
    /// so that it is no longer.
    ///
    /// # Errors
    /// [`Error::Closed`] or [`Error::Ended`] if the session is over.
    pub fn disarm(&mut self) -> Result<(), Error> {
        self.rx.ring().set_needs_wakeup(false);
        self.drain()
    }

    /// Waits until frames come in or back. False when the time is over. A signal does not end the
    /// wait: a program that waits for more than this socket waits for its descriptor, between
    /// [`arm`](Socket::arm) and [`disarm`](Socket::disarm), and for its own.
    ///
    /// # Errors
    /// [`Error::Closed`] or [`Error::Ended`] if the session is over.
    pub fn wait(&mut self, at_most: Option<Duration>) -> Result<bool, Error> {
        if self.arm() && !wait_readable(self.connection.as_fd(), at_most).map_err(os("poll"))? {
            self.rx.ring().set_needs_wakeup(false);
            return Ok(false);
        }
        self.disarm()?;
        Ok(true)
    }

    /// Whether the session is open. It takes a system call to know, so a program that never
    /// [waits](Socket::wait) asks now and then.
    pub fn is_open(&self) -> bool {
        self.drain().is_ok()
    }

    /// Reads the bytes of the datapath's wake-ups.
    fn drain(&self) -> Result<(), Error> {
        loop {
            let mut bytes = [0u8; 8];
            let (fd, at) = (self.connection.as_raw_fd(), bytes.as_mut_ptr().cast());
            // SAFETY: eight bytes live across the call.
            match unsafe { libc::recv(fd, at, bytes.len(), libc::MSG_DONTWAIT) } {
                n if n > 0 => {}
                0 => return Err(self.ended()),
                _ => match io::Error::last_os_error().kind() {
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::WouldBlock => return Ok(()),
                    _ => return Err(self.ended()),
                },
            }
        }
    }

    /// Why the session is over.
    #[cold]
    fn ended(&self) -> Error {
        self.statistics().ending().map_or(Error::Closed, Error::Ended)
    }
}

/// The descriptor to wait for, after [`arm`](Socket::arm): the same one until the socket is
/// dropped.
impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.connection.as_raw_fd()
    }
}

/// The descriptor to wait for, after [`arm`](Socket::arm).
impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_and_its_frames_fit_into_a_task() {
        fn fits<T: Send + 'static>() {}
        fits::<Socket>();
        fits::<(Umem, Frame)>();
    }
}
