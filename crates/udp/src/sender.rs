//! The half that sends.

use crate::queue::{PushError, Queue, Run};
use crate::refusals::Refusals;
use crate::{UdpConfig, UdpInfo};
use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use towpath_sys::udp::errno::{EINVAL, EIO, EMSGSIZE, ENOBUFS};
use towpath_sys::udp::{MESSAGES, Path, Sender};

/// Sends datagrams of a queue, many with one call.
///
/// pushed = sent + dropped + pending, in datagrams. What is pending when the sender is dropped is
/// not sent.
pub struct UdpSender {
    socket: Arc<UdpSocket>,
    /// The peer of a connected socket.
    peer: Option<SocketAddr>,
    queue: Queue,
    lists: Sender,
    /// The messages of the latest call.
    plan: Vec<Planned>,
    refusals: Refusals,
    /// The segment size of the first run, which was refused; its datagrams are tried one by one.
    trial: Option<usize>,
    /// The first message failed once.
    failed_once: bool,
    stats: SendStats,
    error: Option<io::Error>,
}

/// One message of a call.
struct Planned {
    datagrams: usize,
    /// It would be a part of a larger message if that had not been refused.
    singly: bool,
}

/// What a sender did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SendStats {
    /// System calls.
    pub calls: u64,
    /// Datagrams that the kernel accepted.
    pub datagrams: u64,
    /// Their bytes, without headers.
    pub bytes: u64,
    /// Messages of several datagrams that the kernel accepted (`UDP_SEGMENT`).
    pub segmented: u64,
    /// Messages of several datagrams that the kernel refused. Their datagrams were sent one by one.
    pub refused: u64,
    /// Datagrams that the kernel refused; [`UdpSender::take_error`] has the latest reason.
    pub dropped: u64,
    /// Calls that ended because the kernel had no room (`EAGAIN`, `ENOBUFS`).
    pub full: u64,
}

impl UdpSender {
    pub(crate) fn new(socket: Arc<UdpSocket>, config: &UdpConfig, info: &UdpInfo) -> UdpSender {
        UdpSender {
            peer: socket.peer_addr().ok().map(|peer| SocketAddr::new(peer.ip().to_canonical(), peer.port())),
            socket,
            queue: Queue::new(config.queue_datagrams, config.queue_bytes),
            lists: Sender::new(info.v6),
            plan: Vec::with_capacity(MESSAGES),
            refusals: Refusals::new(info.segmentation),
            trial: None,
            failed_once: false,
            stats: SendStats::default(),
            error: None,
        }
    }

    /// Appends a copy of a datagram to the queue.
    ///
    /// # Errors
    /// [`PushError::Full`]: [`flush`](UdpSender::flush) it first. [`PushError::TooLong`].
    pub fn push(&mut self, path: &Path, datagram: &[u8]) -> Result<(), PushError> {
        let copy = |to: &mut [u8]| {
            to.copy_from_slice(datagram);
            Some(datagram.len())
        };
        self.queue.push(path, datagram.len(), copy).map(drop)
    }

    /// Appends a datagram that `write` makes in place, in a buffer of `room` bytes. It returns the
    /// datagram's length, at most `room`, or `None` for no datagram. The buffer has the bytes of
    /// earlier datagrams. Returns whether there is a datagram.
    ///
    /// # Errors
    /// As [`push`](UdpSender::push), and `write` is not called.
    pub fn push_with(
        &mut self,
        path: &Path,
        room: usize,
        write: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) -> Result<bool, PushError> {
        self.queue.push(path, room, write)
    }

    /// Datagrams in the queue.
    pub fn pending(&self) -> usize {
        self.queue.pending()
    }

    /// Sends the queue, and returns how many datagrams the kernel accepted. If it has no room for
    /// all, the rest stays [pending](UdpSender::pending).
    ///
    /// A message of several datagrams that a device or path refuses (no checksum offload: `EIO`; a
    /// segment longer than the path's MTU: `EMSGSIZE`, formerly `EINVAL`) is sent again as single
    /// datagrams, and so are later ones of that segment size for a while. A datagram that the
    /// kernel refuses is dropped and counted.
    ///
    /// # Errors
    /// The kernel has no room for any datagram: `WouldBlock` if the socket does not block,
    /// otherwise `ENOBUFS` or `ENOMEM`. All are pending still.
    pub fn flush(&mut self) -> io::Result<usize> {
        let mut sent = 0;
        while self.queue.pending() > 0 {
            match self.call() {
                Ok(n) => sent += n,
                Err(error) => {
                    if let Some(full) = self.failed(error) {
                        return if sent > 0 { Ok(sent) } else { Err(full) };
                    }
                }
            }
        }
        Ok(sent)
    }

    /// One system call; returns the datagrams that were accepted.
    fn call(&mut self) -> io::Result<usize> {
        let mut messages = self.lists.begin(self.queue.memory());
        self.plan.clear();
        'runs: for run in self.queue.runs() {
            let connected = self.peer == Some(run.path.peer);
            if run.count == 1 || may_segment(run, &self.refusals) {
                let segment = if run.count > 1 { u16::try_from(run.segment).ok() } else { None };
                if !messages.push(&run.path, connected, segment, self.queue.pieces(run)) {
                    break;
                }
                self.plan.push(Planned { datagrams: run.count, singly: run.singly });
                continue;
            }
            for piece in self.queue.pieces(run) {
                if !messages.push(&run.path, connected, None, [piece]) {
                    break 'runs;
                }
                self.plan.push(Planned { datagrams: 1, singly: true });
            }
        }
        self.stats.calls += 1;
        let accepted = messages.send(&*self.socket)?;
        self.failed_once = false;
        if let Some(segment) = self.trial.take() {
            self.refusals.refused(segment);
        }
        let mut datagrams = 0;
        for message in &self.plan[..accepted] {
            datagrams += message.datagrams;
            self.stats.bytes += self.queue.pop(message.datagrams) as u64;
            self.stats.segmented += u64::from(message.datagrams > 1);
            if message.singly {
                self.refusals.sent_singly();
            }
        }
        self.stats.datagrams += datagrams as u64;
        Ok(datagrams)
    }

    /// What follows from an error of the first message: another call, or the end for now.
    fn failed(&mut self, error: io::Error) -> Option<io::Error> {
        let code = error.raw_os_error();
        match error.kind() {
            ErrorKind::Interrupted => return None,
            ErrorKind::WouldBlock | ErrorKind::OutOfMemory => {
                self.stats.full += 1;
                return Some(error);
            }
            _ if code == Some(ENOBUFS) => {
                self.stats.full += 1;
                return Some(error);
            }
            _ => {}
        }
        let datagrams = self.plan.first().map_or(1, |message| message.datagrams);
        if datagrams > 1 && [EIO, EINVAL, EMSGSIZE].map(Some).contains(&code) {
            self.stats.refused += 1;
            if let Some(run) = self.queue.front() {
                run.singly = true;
                // No segment of any size leaves through that device.
                self.trial = Some(if code == Some(EIO) { 0 } else { run.segment });
            }
        } else if !self.failed_once {
            // It may be an error of an earlier datagram, reported by ICMP: the socket has it only
            // once, in place of a datagram's own.
            self.failed_once = true;
        } else {
            self.failed_once = false;
            self.trial = None;
            self.stats.dropped += datagrams as u64;
            self.queue.pop(datagrams);
            self.error = Some(error);
        }
        None
    }

    /// What the sender did.
    pub fn stats(&self) -> SendStats {
        self.stats
    }

    /// The reason of the latest [dropped](SendStats::dropped) datagram, once.
    pub fn take_error(&mut self) -> Option<io::Error> {
        self.error.take()
    }

    /// The smallest segment size of which no message of several datagrams is sent at present,
    /// because the kernel refused one; 0 if it has no segmentation, or that is switched off.
    pub fn refused_size(&self) -> Option<usize> {
        self.refusals.from()
    }

    /// The socket.
    pub fn socket(&self) -> &Arc<UdpSocket> {
        &self.socket
    }
}

fn may_segment(run: &Run, refusals: &Refusals) -> bool {
    !run.singly && refusals.allows(run.segment)
}

impl fmt::Debug for UdpSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let UdpSender { socket, stats, .. } = self;
        f.debug_struct("UdpSender")
            .field("socket", socket)
            .field("pending", &self.pending())
            .field("stats", stats)
            .finish()
    }
}

impl AsFd for UdpSender {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for UdpSender {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::UdpBatch;

    #[test]
    fn a_device_that_segments_nothing_gets_datagrams_one_by_one_of_every_size() {
        let config = UdpConfig::default();
        let bind = || UdpBatch::bind("127.0.0.1:0".parse().unwrap(), &config).unwrap();
        let (mut a, mut b) = (bind(), bind());
        let path = Path::to(b.socket().local_addr().unwrap());
        (0..3).for_each(|_| a.sender.push(&path, &[1; 100]).unwrap());
        // Kernels since 6.11 return EIO for IPsec alone.
        a.sender.plan.push(Planned { datagrams: 3, singly: false });
        assert!(a.sender.failed(io::Error::from_raw_os_error(EIO)).is_none());
        (0..3).for_each(|_| a.sender.push(&path, &[1; 50]).unwrap());
        assert_eq!(a.sender.flush().unwrap(), 6);
        (0..3).for_each(|_| a.sender.push(&path, &[1; 10]).unwrap());
        assert_eq!(a.sender.flush().unwrap(), 3);
        let stats = a.sender.stats();
        assert_eq!((stats.refused, stats.dropped, a.sender.refused_size()), (1, 0, Some(0)));
        let mut datagrams = 0;
        while datagrams < 9 {
            datagrams += b.receiver.receive().unwrap();
        }
    }
}
