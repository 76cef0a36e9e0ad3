//! A program that speaks the protocol without the client.

use super::*;
use std::os::fd::{AsFd, OwnedFd};

/// A program that handles its rings itself.
pub(super) struct Program {
    pub(super) connection: OwnedFd,
    pub(super) session: u64,
    pub(super) tx: Producer<Mapped<Desc>>,
    pub(super) fill: Producer<Mapped<u64>>,
    pub(super) rx: Consumer<Mapped<Desc>>,
    pub(super) completion: Consumer<Mapped<u64>>,
    pub(super) statistics: Mapped<u64>,
    pub(super) kick: OwnedFd,
}

pub(super) const HELLO: Hello = Hello {
    umem: 16 * 2048,
    chunk: 2048,
    unaligned: false,
    headroom: 0,
    pieces: true,
    offloads: false,
    one_descriptor: false,
    skip_invalid: false,
    rings: Sizes::all(16),
    budget: 0,
    share: 0,
    tx_metadata: 0,
    segmentation: false,
    queue: None,
    rules: String::new(),
};

pub(super) fn send_hello(
    rig: &Rig,
    bytes: &[u8],
    fds: &[std::os::fd::BorrowedFd<'_>],
) -> (OwnedFd, Option<Answer>, Vec<OwnedFd>) {
    let connection = seqpacket::connect(&rig.path).unwrap();
    seqpacket::send(connection.as_fd(), bytes, fds).unwrap();
    let mut answer = [0; Answer::LONGEST];
    let got = seqpacket::receive(connection.as_fd(), &mut answer).unwrap();
    (connection, Answer::decode(&answer[..got.len]).ok(), got.fds)
}

impl Program {
    pub(super) fn connect(rig: &Rig, hello: &Hello) -> Program {
        Program::with_memory(rig, hello).0
    }

    pub(super) fn with_memory(rig: &Rig, hello: &Hello) -> (Program, UntrustedMem) {
        let umem = UntrustedMem::new(Region::new(hello.umem as usize, Backing::Memfd).unwrap());
        (Program::in_memory(rig, hello, &umem), umem)
    }

    pub(super) fn statistics(&self) -> Statistics {
        Statistics::read(|entry| self.statistics.read(entry))
    }

    pub(super) fn in_memory(rig: &Rig, hello: &Hello, umem: &UntrustedMem) -> Program {
        let (connection, answer, fds) = send_hello(rig, &hello.encode(), &[umem.fd().unwrap()]);
        let Some(Answer::Welcome(welcome)) = answer else { panic!("{answer:?}") };
        let [rings, kick] = <[OwnedFd; 2]>::try_from(fds).unwrap();
        let memory = UntrustedMem::from_memfd(rings, welcome.memory as usize).unwrap();
        let at = welcome.rings;
        Program {
            connection,
            session: welcome.session,
            tx: Producer::new(Mapped::new(&memory, &at.tx, hello.rings.tx).unwrap()),
            fill: Producer::new(Mapped::new(&memory, &at.fill, hello.rings.fill).unwrap()),
            rx: Consumer::new(Mapped::new(&memory, &at.rx, hello.rings.rx).unwrap()),
            completion: Consumer::new(Mapped::new(&memory, &at.completion, hello.rings.completion).unwrap()),
            statistics: Mapped::new(&memory, &at.statistics, Statistic::ENTRIES).unwrap(),
            kick,
        }
    }

    pub(super) fn send(&mut self, descs: &[(u64, u32, u32)]) {
        for &(addr, len, options) in descs {
            self.tx.write(Desc { addr, len, options });
        }
        self.tx.submit();
    }

    pub(super) fn post(&mut self, addrs: &[u64]) {
        addrs.iter().for_each(|addr| self.fill.write(*addr));
        self.fill.submit();
    }
}
