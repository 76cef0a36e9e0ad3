//! An application that breaks the protocol: it writes the handshake by hand, and any word into all
//! that it shares.

use crate::rig::{END, Rig, until};
use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;
use towpath_client::protocol::{Answer, Code, HEADER, Hello, Rings, Sizes};
use towpath_packet::xsk_ring::{Consumer, Desc, Mapped, Producer, RingMemory};
use towpath_packet::{Backing, Region, UntrustedMem};
use towpath_sys::{Mmap, retry, seqpacket};

/// Bytes of its chunks.
pub(crate) const CHUNK: u64 = 2048;
/// Its chunks, and the entries of each of its rings.
pub(crate) const COUNT: u32 = 32;
/// The UDP port of its packets.
pub(crate) const PORT: u16 = 7;

/// Its message, unless a test changes it.
pub(crate) fn hello() -> Hello {
    Hello {
        umem: u64::from(COUNT) * CHUNK,
        chunk: CHUNK as u32,
        rings: Sizes { rx: COUNT / 4, ..Sizes::all(COUNT) },
        rules: format!("udp dport {PORT}"),
        tx_metadata: HEADER as u32,
        segmentation: true,
        ..Hello::default()
    }
}

/// Sends a message with descriptors. Returns the answer, if it can be read, and its descriptors.
pub(crate) fn send_hello(rig: &Rig, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> (OwnedFd, Option<Answer>, Vec<OwnedFd>) {
    let connection = seqpacket::connect(&rig.path).unwrap();
    let _ = seqpacket::send(connection.as_fd(), bytes, fds);
    let mut answer = [0; Answer::LONGEST];
    let got = retry(|| seqpacket::receive(connection.as_fd(), &mut answer)).unwrap();
    (connection, Answer::decode(&answer[..got.len]).ok(), got.fds)
}

/// A memfd with seals, all its pages, and a name to find it by.
pub(crate) fn memfd(name: &std::ffi::CStr, len: i64, seals: i32) -> OwnedFd {
    // SAFETY: the name is a string with a terminating zero; the descriptor is new.
    unsafe {
        let fd = libc::memfd_create(name.as_ptr(), libc::MFD_ALLOW_SEALING | libc::MFD_CLOEXEC);
        assert!(fd >= 0 && libc::ftruncate(fd, len) == 0);
        let file = OwnedFd::from_raw_fd(fd);
        if len > 0 {
            Mmap::shared(file.as_fd(), 0, len as usize).unwrap().populate().unwrap();
        }
        assert_eq!(libc::fcntl(fd, libc::F_ADD_SEALS, seals), 0);
        file
    }
}

/// A session of a rogue.
pub(crate) struct Rogue {
    pub(crate) connection: OwnedFd,
    pub(crate) tx: Producer<Mapped<Desc>>,
    pub(crate) fill: Producer<Mapped<u64>>,
    pub(crate) rx: Consumer<Mapped<Desc>>,
    pub(crate) completion: Consumer<Mapped<u64>>,
    pub(crate) umem: UntrustedMem,
    pub(crate) rings: UntrustedMem,
    pub(crate) layout: Rings,
    pub(crate) kick: OwnedFd,
    ledger: Ledger,
}

/// The addresses that a session sent and does not have back. The same address may be sent several
/// times.
#[derive(Debug, Default)]
struct Ledger {
    sent: HashMap<u64, u32>,
    /// The last one continues in the next.
    open: bool,
    /// Entries of the rings were overwritten: they show nothing.
    void: bool,
}

impl Ledger {
    fn send(&mut self, desc: Desc) {
        *self.sent.entry(desc.addr).or_default() += 1;
        self.open = desc.options & Desc::CONTINUED != 0;
    }

    #[track_caller]
    fn complete(&mut self, addr: u64) {
        match self.sent.get_mut(&addr) {
            Some(n) if *n > 1 => *n -= 1,
            Some(_) => drop(self.sent.remove(&addr)),
            None => assert!(self.void, "{addr:#x} was completed and not sent, or twice"),
        }
    }
}

impl Rogue {
    /// Opens a session. The queues may not have it yet.
    pub(crate) fn connect(rig: &Rig, hello: &Hello) -> Rogue {
        let umem = UntrustedMem::new(Region::new(hello.umem as usize, Backing::Memfd).unwrap());
        let began = Instant::now();
        let (connection, welcome, fds) = loop {
            match send_hello(rig, &hello.encode(), &[umem.fd().unwrap()]) {
                (connection, Some(Answer::Welcome(welcome)), fds) => break (connection, welcome, fds),
                // In a crowd of silent connections a slow one is refused, and tries again.
                (_, Some(Answer::Refusal(no)), _) if no.code == Code::Full && began.elapsed().as_secs() < 60 => {}
                (_, answer, _) => panic!("{answer:?}"),
            }
        };
        let [rings, kick] = <[OwnedFd; 2]>::try_from(fds).unwrap();
        let rings = UntrustedMem::from_memfd(rings, welcome.memory as usize).unwrap();
        let (at, sizes) = (welcome.rings, hello.rings);
        Rogue {
            connection,
            tx: Producer::new(Mapped::new(&rings, &at.tx, sizes.tx).unwrap()),
            fill: Producer::new(Mapped::new(&rings, &at.fill, sizes.fill).unwrap()),
            rx: Consumer::new(Mapped::new(&rings, &at.rx, sizes.rx).unwrap()),
            completion: Consumer::new(Mapped::new(&rings, &at.completion, sizes.completion).unwrap()),
            umem,
            rings,
            layout: at,
            kick,
            ledger: Ledger::default(),
        }
    }

    /// Opens a session and behaves well at first: one frame is sent from chunk 0, and chunk 1 is
    /// posted, so that both queues have it.
    pub(crate) fn new(rig: &mut Rig) -> Rogue {
        let mut rogue = Rogue::connect(rig, &hello());
        rogue.send(&[(0, 60, 0)]);
        rogue.post(&[CHUNK]);
        let taken = |ring: &AtomicU32| ring.load(Ordering::Acquire) == 1;
        rig.until(|_| taken(rogue.tx.ring().consumer()) && taken(rogue.fill.ring().consumer()));
        rig.until(|_| rogue.completion.peek(1) == 1);
        rogue.reap();
        rogue
    }

    /// Sends descriptors of any content and number.
    pub(crate) fn send(&mut self, descs: &[(u64, u32, u32)]) {
        descs.iter().for_each(|&(addr, len, options)| self.stage(Desc { addr, len, options }));
        self.tx.submit();
    }

    /// Writes an entry, which the next [`send`](Rogue::send) submits. In a full ring it replaces an
    /// entry that the datapath has not read.
    pub(crate) fn stage(&mut self, desc: Desc) {
        self.ledger.void |= self.tx.waiting() >= self.tx.ring().size();
        self.ledger.send(desc);
        self.tx.write(desc);
    }

    pub(crate) fn post(&mut self, addrs: &[u64]) {
        addrs.iter().for_each(|addr| self.fill.write(*addr));
        self.fill.submit();
    }

    /// Chunks for step `turn`: at first those that [`new`](Rogue::new) did not use, then those that
    /// came back.
    pub(crate) fn spare(&mut self, turn: u64) -> Vec<u64> {
        let back = self.reap();
        if turn == 0 { (2..u64::from(COUNT)).map(|chunk| chunk * CHUNK).collect() } else { back }
    }

    /// Takes completions: each of an address that was sent, once for each time.
    #[track_caller]
    pub(crate) fn reap(&mut self) -> Vec<u64> {
        let n = self.completion.peek(COUNT);
        let addrs: Vec<_> = (0..n).map(|_| self.completion.read()).collect();
        self.completion.release();
        addrs.iter().for_each(|addr| self.ledger.complete(*addr));
        addrs
    }

    /// Leaves, once every address that it sent has come back.
    #[track_caller]
    pub(crate) fn end(mut self, rig: &mut Rig) {
        if self.ledger.open {
            self.send(&[(2 * CHUNK, 60, 0)]);
        }
        for _ in 0..END {
            drop(rig.step());
            self.reap();
        }
        assert!(self.ledger.sent.is_empty(), "sent and not completed: {:x?}", self.ledger.sent);
    }

    /// Takes received frames.
    pub(crate) fn drain(&mut self) -> Vec<Desc> {
        let n = self.rx.peek(COUNT);
        let descs = (0..n).map(|_| self.rx.read()).collect();
        self.rx.release();
        descs
    }

    /// Writes a word at any place of the rings' memory.
    pub(crate) fn scribble(&mut self, at: usize, value: u32) {
        let rings = [self.layout.tx, self.layout.fill, self.layout.completion, self.layout.rx];
        self.ledger.void |= rings.iter().all(|ring| ring.flags != at as u64);
        scribble(&self.rings, at, value);
    }

    /// Writes a word at any place of its own memory.
    pub(crate) fn scrawl(&self, at: usize, value: u32) {
        scribble(&self.umem, at, value);
    }

    /// Writes a super-packet's header and the beginning of its first frame into a chunk. Returns
    /// where the frame begins.
    pub(crate) fn describe(&self, chunk: u64, header: &[u8; HEADER], start: &[u8]) -> u64 {
        // The frame begins at a whole word.
        let bytes = [&[0; 2], &header[..], start, &[0; 3]].concat();
        for (i, word) in bytes.as_chunks().0.iter().enumerate() {
            self.scrawl(chunk as usize + 4 + 4 * i, u32::from_ne_bytes(*word));
        }
        chunk + 16
    }

    /// Wakes the datapath without cause.
    pub(crate) fn kick(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: eight bytes live across the call.
        unsafe { libc::write(self.kick.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Waits until the datapath has ended the session.
    pub(crate) fn is_disconnected(&self) {
        let mut bytes = [0; 8];
        until(|| seqpacket::receive(self.connection.as_fd(), &mut bytes).is_ok_and(|got| got.len == 0));
    }
}

/// The headers of an IPv4 TCP super-packet, and its virtio-net header.
pub(crate) fn super_packet(size: u16) -> ([u8; HEADER], [u8; 54]) {
    let mut start = [0; 54];
    start[12..15].copy_from_slice(&[8, 0, 0x45]);
    (start[22], start[23], start[46]) = (64, 6, 0x50);
    let ([a, b], [c, d], [e, f]) = (size.to_ne_bytes(), 34u16.to_ne_bytes(), 16u16.to_ne_bytes());
    ([1, 1, 0, 0, a, b, c, d, e, f], start)
}

/// Writes a word into shared memory, at the nearest aligned place.
pub(crate) fn scribble(region: &UntrustedMem, at: usize, value: u32) {
    let Some(word) = region.handle().at((at % region.len()) & !3, 4) else { return };
    // SAFETY: the word lies in the region, aligned, and the region lives; all accesses are atomic
    // words or raw bytes.
    unsafe { word.cast::<AtomicU32>().as_ref() }.store(value, Ordering::Relaxed);
}
