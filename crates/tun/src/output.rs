//! The way of an aggregate to the kernel: whole, or cut into pieces where the kernel refuses it.
//!
//! ```text
//!   aggregate ─► the kernel has the kind? ─ yes ─► writev(header, buffers) ─ ok ──────► sent
//!                        │ no                          │ EINVAL: the kind is switched off
//!                        ▼                             ▼
//!                      Split: packet by packet, copied ──────────────────────────────► sent
//!                      EAGAIN anywhere: it waits, and what comes later waits behind it
//! ```

use crate::chain::{Chain, MAX_BUFFERS, Nodes};
use crate::header;
use crate::offloads::Offloads;
use crate::queue::{READ_SIZE, Transmit};
use std::collections::VecDeque;
use std::io;
use towpath_gro::{Checksums, LinkKind, Offload, Segment, Sink, Split};
use towpath_sys::uio::{Gather, IoVec, Pieces};

/// Counters of a [`Writer`](crate::Writer). Every packet that was pushed is written, waits, or is
/// one of the drops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct WriteStats {
    /// Packets pushed.
    pub packets: u64,
    /// Calls that the kernel took.
    pub writes: u64,
    /// Bytes that it took, without headers of its own.
    pub bytes: u64,
    /// Super-packets that it took.
    pub super_packets: u64,
    /// Aggregates that were cut and written packet by packet.
    pub cut: u64,
    /// Calls that it refused (`EINVAL`, `ENOMEM`) before a packet was cut.
    pub refused: u64,
    /// Writes dropped because the interface is not up (`EIO`).
    pub dropped_down: u64,
    /// Writes dropped because no IP packet, or a packet that contradicts its metadata.
    pub dropped_invalid: u64,
    /// Writes dropped by another error.
    pub dropped_error: u64,
}

/// What became of a packet.
enum Outcome {
    /// It was written, or dropped and counted.
    Done,
    /// The kernel takes nothing now.
    Blocked,
}

/// A packet in one piece.
struct One<'a>(&'a [u8]);

impl Pieces for One<'_> {
    fn count(&self) -> usize {
        1
    }
    fn pieces(&self) -> impl Iterator<Item = IoVec<'_>> {
        std::iter::once(IoVec::new(self.0))
    }
}

/// Writes packets, and keeps those that the kernel does not take yet.
pub(crate) struct Output<B, T> {
    pub(crate) to: T,
    pub(crate) nodes: Nodes<B>,
    pub(crate) stats: WriteStats,
    gather: Gather,
    /// In order; empty unless the kernel took nothing.
    waiting: VecDeque<Chain<B>>,
    /// For packets that are cut; empty until the first one.
    scratch: Vec<u8>,
    /// The device is gone.
    error: Option<io::Error>,
}

/// The output, with the place of spent buffers.
pub(crate) struct Through<'a, B, T, F> {
    pub(crate) output: &'a mut Output<B, T>,
    pub(crate) spent: &'a mut F,
}

impl<B: AsRef<[u8]> + AsMut<[u8]>, T: Transmit, F: FnMut(B)> Sink<Chain<B>> for Through<'_, B, T, F> {
    #[inline]
    fn packet(&mut self, packet: Chain<B>) {
        self.output.send(packet, self.spent);
    }

    fn recycle(&mut self, packet: Chain<B>) {
        self.output.nodes.recycle(packet, self.spent);
    }
}

impl<B: AsRef<[u8]> + AsMut<[u8]>, T: Transmit> Output<B, T> {
    pub(crate) fn new(to: T) -> Output<B, T> {
        Output {
            to,
            nodes: Nodes::new(),
            stats: WriteStats::default(),
            gather: Gather::new(MAX_BUFFERS),
            waiting: VecDeque::new(),
            scratch: Vec::new(),
            error: None,
        }
    }

    /// Packets that wait for the kernel.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Writes a packet, or puts it behind those that wait.
    #[inline]
    fn send(&mut self, mut packet: Chain<B>, spent: &mut impl FnMut(B)) {
        if self.waiting.is_empty()
            && let Outcome::Done = self.try_send(&mut packet)
        {
            self.nodes.recycle(packet, spent);
        } else {
            self.waiting.push_back(packet);
        }
    }

    /// Writes the packets that wait.
    pub(crate) fn send_waiting(&mut self, spent: &mut impl FnMut(B)) {
        while let Some(mut packet) = self.waiting.pop_front() {
            match self.try_send(&mut packet) {
                Outcome::Done => self.nodes.recycle(packet, spent),
                Outcome::Blocked => return self.waiting.push_front(packet),
            }
        }
    }

    /// The error that ended the device, or that nothing more is taken now.
    pub(crate) fn result(&mut self) -> io::Result<()> {
        match self.error.take() {
            Some(error) => Err(error),
            None if self.waiting.is_empty() => Ok(()),
            None => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    #[inline]
    fn try_send(&mut self, packet: &mut Chain<B>) -> Outcome {
        let offload = packet.offload();
        let needed = Offloads::needed(&offload);
        if !is_packet(self.to.link(), packet.head(), packet.len()) {
            self.stats.dropped_invalid += 1;
            return Outcome::Done;
        }
        if packet.written() > 0 || !self.to.offloads().has(needed) {
            return self.cut(packet);
        }
        let Ok(bytes) = header::encode(&offload, packet.len()) else { return self.cut(packet) };
        let header = bytes.get(..self.to.header()).unwrap_or_default();
        match self.to.transmit(&mut self.gather, header, packet) {
            Ok(_) => {
                self.stats.writes += 1;
                self.stats.bytes += packet.len() as u64;
                self.stats.super_packets += u64::from(offload.gso.is_some());
                Outcome::Done
            }
            Err(error) => self.refused(packet, needed, &error),
        }
    }

    #[cold]
    fn refused(&mut self, packet: &mut Chain<B>, needed: Offloads, error: &io::Error) -> Outcome {
        match error.raw_os_error() {
            Some(libc::EINTR) => self.try_send(packet),
            // The header is right, so the kernel lacks the offload; but a super-packet with a
            // complete checksum may be refused for its bytes.
            Some(libc::EINVAL) if !needed.is_none() => {
                self.stats.refused += 1;
                if needed.has(Offloads::CSUM) && self.is_sound(packet) {
                    self.to.switch_off(lacking(needed));
                }
                self.cut(packet)
            }
            // Smaller pieces may be had.
            Some(libc::ENOMEM | libc::ENOBUFS | libc::EMSGSIZE) if packet.count() > 1 => {
                self.stats.refused += 1;
                self.cut(packet)
            }
            _ => self.failed(error),
        }
    }

    /// Whether the packet is what its metadata says.
    fn is_sound(&self, packet: &Chain<B>) -> bool {
        Split::new(packet.chunks(), self.to.link(), &packet.offload(), Checksums::Partial).is_ok()
    }

    /// Handles an error that the size and kind of the packet do not explain.
    #[cold]
    fn failed(&mut self, error: &io::Error) -> Outcome {
        match error.raw_os_error() {
            Some(libc::EAGAIN) => return Outcome::Blocked,
            Some(libc::EIO) => self.stats.dropped_down += 1,
            Some(libc::EINVAL) => self.stats.dropped_invalid += 1,
            code => {
                self.stats.dropped_error += 1;
                if code == Some(libc::EBADFD) {
                    self.error = Some(io::Error::from_raw_os_error(libc::EBADFD));
                }
            }
        }
        Outcome::Done
    }

    /// Writes the packet piece by piece, from the first one that has not been written.
    #[cold]
    fn cut(&mut self, packet: &mut Chain<B>) -> Outcome {
        let offload = packet.offload();
        let partial = self.to.offloads().has(Offloads::CSUM) && self.to.header() > 0;
        let checksums = if partial { Checksums::Partial } else { Checksums::Complete };
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.resize(READ_SIZE.max(packet.len()), 0);
        let outcome = self.write_pieces(packet, &offload, checksums, &mut scratch);
        self.scratch = scratch;
        match outcome {
            Some(outcome) => outcome,
            // Partial checksums have been switched off.
            None => self.cut(packet),
        }
    }

    /// Returns `None` if the kernel refuses partial checksums.
    fn write_pieces(
        &mut self,
        packet: &mut Chain<B>,
        offload: &Offload,
        checksums: Checksums,
        scratch: &mut [u8],
    ) -> Option<Outcome> {
        let mut written = 0;
        let first = packet.written();
        let Ok(mut split) = Split::new(packet.chunks(), self.to.link(), offload, checksums) else {
            self.stats.dropped_invalid += 1;
            return Some(Outcome::Done);
        };
        let mut outcome = Some(Outcome::Done);
        while let Some(piece) = split.next_len().and_then(|len| scratch.get_mut(..len)) {
            let Some(offload) = split.write(piece) else { break };
            if written >= first {
                let Ok(bytes) = header::encode(&offload, piece.len()) else { break };
                let header = bytes.get(..self.to.header()).unwrap_or_default();
                let sent = towpath_sys::retry(|| self.to.transmit(&mut self.gather, header, &One(piece)));
                match sent {
                    Ok(_) => {
                        self.stats.writes += 1;
                        self.stats.bytes += piece.len() as u64;
                    }
                    Err(error) if error.raw_os_error() == Some(libc::EINVAL) && needs_csum(&offload) => {
                        self.stats.refused += 1;
                        self.to.switch_off(Offloads::ALL);
                        outcome = None;
                        break;
                    }
                    Err(error) => {
                        if let Outcome::Blocked = self.failed(&error) {
                            outcome = Some(Outcome::Blocked);
                            break;
                        }
                    }
                }
            }
            written += 1;
        }
        if first == 0 && written > 0 {
            self.stats.cut += 1;
        }
        packet.set_written(written.max(first));
        outcome
    }
}

/// Whether the kernel takes the bytes for a packet: it finds the protocol by the version of IP
/// (`tun_get_user` in `drivers/net/tun.c`), or wants an Ethernet header.
#[inline]
fn is_packet(link: LinkKind, head: &[u8], len: usize) -> bool {
    match link {
        LinkKind::Ip => head.first().is_some_and(|byte| matches!(byte >> 4, 4 | 6)),
        LinkKind::Ethernet => len >= 14,
    }
}

fn needs_csum(offload: &Offload) -> bool {
    Offloads::needed(offload).has(Offloads::CSUM)
}

/// What the kernel lacks if it refused a packet that needs `needed`: the rarest of it.
fn lacking(needed: Offloads) -> Offloads {
    let rarest =
        [Offloads::TUNNEL_CSUM, Offloads::TUNNEL, Offloads::TSO_ECN, Offloads::USO, Offloads::TSO6, Offloads::TSO4];
    let found = rarest.into_iter().find(|&one| needed.has(one));
    // Without checksums nothing is segmented.
    found.unwrap_or(Offloads::ALL)
}
