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
use crate::offloads::TunOffloads;
use crate::queue::{READ_SIZE, Transmit};
use crate::stats::WriteStats;
use std::collections::VecDeque;
use std::io;
use towpath_gro::{Checksums, LinkKind, Offload, Segment, Sink, Split};
use towpath_sys::uio::{Gather, IoVec, Pieces};
use towpath_wire::ethernet;

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
        let needed = TunOffloads::needed(&offload);
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
    fn refused(&mut self, packet: &mut Chain<B>, needed: TunOffloads, error: &io::Error) -> Outcome {
        match error.raw_os_error() {
            Some(libc::EINTR) => self.try_send(packet),
            // The header is right, so the kernel lacks the offload; but a super-packet with a
            // complete checksum may be refused for its bytes.
            Some(libc::EINVAL) if !needed.is_none() => {
                self.stats.refused += 1;
                if needed.has(TunOffloads::CSUM) && self.is_sound(packet) {
                    self.to.switch_off(lacking(needed));
                }
                self.cut(packet)
            }
            // There may be memory for smaller pieces.
            Some(libc::ENOMEM | libc::ENOBUFS | libc::EMSGSIZE) if packet.count() > 1 => {
                self.stats.refused += 1;
                self.cut(packet)
            }
            _ => self.failed(error),
        }
    }

    /// Whether the packet agrees with its metadata.
    fn is_sound(&self, packet: &Chain<B>) -> bool {
        Split::new(packet.buffers(), self.to.link(), &packet.offload(), Checksums::Partial).is_ok()
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
        let partial = self.to.offloads().has(TunOffloads::CSUM) && self.to.header() > 0;
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
        let first = packet.written();
        let Ok(mut split) = Split::new(packet.buffers(), self.to.link(), offload, checksums) else {
            self.stats.dropped_invalid += 1;
            return Some(Outcome::Done);
        };
        let mut written = 0;
        let mut outcome = Some(Outcome::Done);
        while let Some(piece) = split.next_len().and_then(|len| scratch.get_mut(..len)) {
            let Some(offload) = split.write(piece) else { break };
            if written >= first {
                outcome = self.write_piece(&offload, piece);
                if !matches!(outcome, Some(Outcome::Done)) {
                    break;
                }
                self.stats.cut += u64::from(written == 0);
                self.stats.split += u64::from(split.packets() > 0);
            }
            written += 1;
        }
        packet.set_written(written.max(first));
        outcome
    }

    /// As [`write_pieces`](Self::write_pieces), for one of them.
    fn write_piece(&mut self, offload: &Offload, piece: &[u8]) -> Option<Outcome> {
        let Ok(bytes) = header::encode(offload, piece.len()) else {
            self.stats.dropped_invalid += 1;
            return Some(Outcome::Done);
        };
        let header = bytes.get(..self.to.header()).unwrap_or_default();
        match towpath_sys::retry(|| self.to.transmit(&mut self.gather, header, &One(piece))) {
            Ok(_) => {
                self.stats.writes += 1;
                self.stats.bytes += piece.len() as u64;
                Some(Outcome::Done)
            }
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) && needs_csum(offload) => {
                self.stats.refused += 1;
                self.to.switch_off(TunOffloads::ALL);
                None
            }
            Err(error) => Some(self.failed(&error)),
        }
    }
}

/// Whether the kernel takes the bytes for a packet: it finds the protocol by the version of IP
/// (`tun_get_user` in `drivers/net/tun.c`), or needs an Ethernet header.
#[inline]
fn is_packet(link: LinkKind, head: &[u8], len: usize) -> bool {
    match link {
        LinkKind::Ip => head.first().is_some_and(|byte| matches!(byte >> 4, 4 | 6)),
        LinkKind::Ethernet => len >= ethernet::HEADER_LEN,
    }
}

fn needs_csum(offload: &Offload) -> bool {
    TunOffloads::needed(offload).has(TunOffloads::CSUM)
}

/// What the kernel lacks if it refused a packet that needs `needed`: the rarest of it.
fn lacking(needed: TunOffloads) -> TunOffloads {
    let rarest = [
        TunOffloads::TUNNEL_CSUM,
        TunOffloads::TUNNEL,
        TunOffloads::TSO_ECN,
        TunOffloads::USO,
        TunOffloads::TSO6,
        TunOffloads::TSO4,
    ];
    let found = rarest.into_iter().find(|&one| needed.has(one));
    // Without checksums nothing is segmented.
    found.unwrap_or(TunOffloads::ALL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Kind;
    use crate::probe;
    use std::cell::{Cell, RefCell};
    use std::os::unix::net::UnixDatagram;
    use towpath_wire::verify::verify;

    /// A kernel that lacks offloads, and takes nothing now and then.
    struct Fake {
        lacks: TunOffloads,
        offloads: Cell<TunOffloads>,
        /// One call of so many returns `EAGAIN`.
        busy: usize,
        calls: Cell<usize>,
        sockets: (UnixDatagram, UnixDatagram),
        /// The packets that it took.
        taken: RefCell<Vec<(Offload, Vec<u8>)>>,
    }

    impl Fake {
        fn new(lacks: TunOffloads, busy: usize) -> Fake {
            let (offloads, calls, taken) = (Cell::new(TunOffloads::ALL), Cell::new(0), RefCell::default());
            Fake { lacks, offloads, busy, calls, sockets: UnixDatagram::pair().unwrap(), taken }
        }
    }

    impl Transmit for Fake {
        fn header(&self) -> usize {
            header::MAX_LEN
        }
        fn link(&self) -> LinkKind {
            LinkKind::Ip
        }
        fn offloads(&self) -> TunOffloads {
            self.offloads.get()
        }
        fn switch_off(&self, set: TunOffloads) {
            self.offloads.set(self.offloads.get().without(set).consistent());
        }
        fn transmit(&self, gather: &mut Gather, header: &[u8], packet: &impl Pieces) -> io::Result<usize> {
            self.calls.set(self.calls.get() + 1);
            if self.calls.get().is_multiple_of(self.busy) {
                return Err(io::Error::from_raw_os_error(libc::EAGAIN));
            }
            let needed = TunOffloads::needed(&header::decode(header.try_into().unwrap(), 65535).unwrap());
            if !needed.and(self.lacks).is_none() {
                return Err(io::Error::from_raw_os_error(libc::EINVAL));
            }
            let n = gather.write(&self.sockets.0, header, packet)?;
            let mut bytes = vec![0; READ_SIZE];
            assert_eq!(self.sockets.1.recv(&mut bytes)?, n);
            let offload = header::decode(bytes[..header.len()].try_into().unwrap(), n - header.len()).unwrap();
            self.taken.borrow_mut().push((offload, bytes[header.len()..n].to_vec()));
            Ok(n)
        }
    }

    /// The packets of a super-packet, complete.
    fn packets_of(offload: &Offload, bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut split = Split::of(bytes, LinkKind::Ip, offload, Checksums::Complete).unwrap();
        let mut packets = Vec::new();
        while let Some(len) = split.next_len() {
            let mut packet = vec![0; len];
            split.write(&mut packet).unwrap();
            assert!(verify(&packet, LinkKind::Ip).is_sound());
            packets.push(packet);
        }
        packets
    }

    #[test]
    fn whatever_a_kernel_lacks_and_whenever_it_is_busy_the_same_packets_arrive_in_order() {
        let sent = probe::packets(Kind::Tun, true);
        let expected: Vec<_> = sent.iter().flat_map(|p| packets_of(&p.offload, &p.frame)).collect();
        let lacking = [
            TunOffloads::NONE,
            TunOffloads::USO,
            TunOffloads::TSO_ECN,
            TunOffloads::TSO6,
            TunOffloads::TUNNEL,
            TunOffloads::TUNNEL_CSUM,
            TunOffloads::TSO.with(TunOffloads::USO),
            TunOffloads::ALL,
        ];
        for (lacks, busy) in lacking.into_iter().flat_map(|lacks| [2, 3, 7, 1000].map(|busy| (lacks, busy))) {
            let mut output = Output::new(Fake::new(lacks, busy));
            let mut spent = 0;
            for packet in &sent {
                let chain = output.nodes.chain(packet.frame.clone(), 0..packet.frame.len(), packet.offload);
                Through { output: &mut output, spent: &mut |_| spent += 1 }.packet(chain);
            }
            for round in 0.. {
                if output.waiting() == 0 {
                    break;
                }
                assert!(round < 1000, "{lacks}, busy {busy}: it never ends");
                assert_eq!(output.result().unwrap_err().kind(), io::ErrorKind::WouldBlock);
                output.send_waiting(&mut |_| spent += 1);
            }
            output.result().unwrap();
            let stats = output.stats;
            assert_eq!((stats.dropped(), sent.len() as u64 + stats.split), (0, stats.writes), "{stats:?}");
            let taken = output.to.taken.take();
            assert!(taken.iter().all(|(offload, _)| TunOffloads::needed(offload).and(lacks).is_none()));
            let arrived: Vec<_> = taken.iter().flat_map(|(offload, bytes)| packets_of(offload, bytes)).collect();
            assert!(arrived == expected, "{lacks}, busy {busy}: {} of {}", arrived.len(), expected.len());
            assert_eq!((spent, stats.writes as usize), (sent.len(), taken.len()));
            assert!(output.to.offloads().and(lacks).is_none());
        }
    }

    #[test]
    fn what_is_no_packet_switches_nothing_off() {
        let mut output = Output::new(Fake::new(TunOffloads::NONE, 1000));
        let super_packet = probe::packets(Kind::Tun, false).swap_remove(1);
        let (mut no_ip, mut no_tcp) = (super_packet.frame.clone(), super_packet.frame.clone());
        no_ip[0] = 0x95;
        no_tcp[9] = 17;
        output.to.lacks = TunOffloads::TSO4;
        for bytes in [no_ip, no_tcp] {
            let len = bytes.len();
            let chain = output.nodes.chain(bytes, 0..len, super_packet.offload);
            Through { output: &mut output, spent: &mut drop }.packet(chain);
        }
        assert_eq!((output.stats.dropped_invalid, output.to.offloads()), (2, TunOffloads::ALL));
    }
}
