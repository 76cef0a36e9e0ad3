//! Applications that keep to the protocol. `tests/hostile` has those that break it.
//!
//! | module | what |
//! |---|---|
//! | `handshake`, `descriptors` | messages and descriptors from the application and back |
//! | `segments`, `supers` | super-packets from applications, and to them |
//! | `copy_plan` | how much of what applications send is copied |
//! | `shared` | unaligned chunks, memory that sessions share, and queues |
//! | `turns` | several queues that deliver to the same applications |
//! | `skip_invalid`, `source`, `limits` | invalid descriptors, source addresses, accounts |
//! | `wakeups`, `poll_fd` | what wakes a queue; programs with one descriptor, as an AF_XDP socket |
//! | `statistics`, `ends` | what an application learns of its frames, and of its session's end |

use super::*;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use towpath_client::protocol::{Answer, Code, Hello, Sizes, Statistic, Statistics};
use towpath_client::{Error, Frame, Socket, Umem};
use towpath_packet::port::{RxQueue, TxLinear, TxQueue};
use towpath_packet::xsk_ring::{Consumer, Desc, Mapped, Producer, RingMemory};
use towpath_packet::{
    Backing, Batch, DropReason, ExtBufGauge, Offloads, Packet, Pool, PoolConfig, Region, UntrustedMem,
};
use towpath_sys::seqpacket;

mod copy_plan;
mod descriptors;
mod ends;
mod handshake;
mod limits;
mod poll_fd;
mod segments;
mod shared;
mod skip_invalid;
mod source;
mod statistics;
mod supers;
mod turns;
mod wakeups;

/// A started port, whose queues the test runs.
struct Rig {
    rx: Ended<SockRx>,
    tx: Ended<SockTx>,
    /// The other queues.
    more: Vec<(Ended<SockRx>, Ended<SockTx>)>,
    pool: Pool,
    pages: Arc<ExtBufGauge>,
    control: Arc<dyn PortControl>,
    path: PathBuf,
    _dir: tempfile::TempDir,
}

impl Rig {
    fn new(options: &str) -> Rig {
        Rig::with_queues(options, 1)
    }

    fn with_queues(options: &str, queues: u16) -> Rig {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let port =
            open(Config::from_uri(&format!("sock:{}?{options}", path.display()).parse().unwrap()).unwrap()).unwrap();
        let pool = Pool::new(PoolConfig::default().capacity(512).backing(Backing::Anonymous)).unwrap();
        let control = port.control().unwrap();
        let start = Start { pool: pool.clone(), queues, accept: Offloads::ALL };
        let Queues { rx, tx } = port.start(start).unwrap();
        let mut queues = rx.into_iter().zip(tx);
        let (rx, tx) = queues.next().unwrap();
        let pages = rx.memory().ext_bufs.unwrap();
        Rig { rx, tx, more: queues.collect(), pool, pages, control, path, _dir: dir }
    }

    fn connect(&self, umem: &Umem, rules: &str) -> Socket {
        self.ask(umem, rules, Sizes::all(64)).unwrap()
    }

    /// An application whose packets may break the rules.
    fn connect_unchecked(&self, umem: &Umem) -> Socket {
        let config = towpath_client::Config::default().rings(Sizes::all(64)).checks(false);
        self.ask_for(umem, "default", config).unwrap()
    }

    fn ask(&self, umem: &Umem, rules: &str, rings: Sizes) -> Result<Socket, Error> {
        self.ask_for(umem, rules, towpath_client::Config::default().rings(rings))
    }

    fn ask_for(&self, umem: &Umem, rules: &str, config: towpath_client::Config) -> Result<Socket, Error> {
        let rules = rules.split(',').map(str::to_owned).collect();
        Socket::connect(umem, &self.path, &config.headroom(32).rules(rules))
    }

    /// Runs the transmit queues until each has `n` sessions.
    fn until_sessions(&mut self, n: usize) {
        until(|| {
            self.tx.reclaim();
            for (_, tx) in &mut self.more {
                tx.reclaim();
            }
            self.tx.queue.apps().len() == n && self.more.iter_mut().all(|(_, tx)| tx.queue.apps().len() == n)
        });
    }

    fn event(&self, name: &str) -> u64 {
        self.control.events().iter().find(|(known, _)| *known == name).unwrap().1
    }

    /// One turn of the receive queue.
    fn step(&mut self) -> Batch {
        let mut batch = Batch::new();
        self.rx.rx(&mut batch);
        batch
    }

    /// Runs the receive queue until `n` packets have come.
    fn receive(&mut self, n: usize) -> Batch {
        let mut batch = Batch::new();
        until(|| {
            self.rx.rx(&mut batch);
            batch.len() >= n
        });
        batch
    }

    /// Gives packets to the applications.
    fn send(&mut self, packets: &[&[u8]]) {
        give(&self.pool, &mut self.tx, packets);
    }

    /// Runs the queues until the event was counted.
    fn until_event(&mut self, name: &str, n: u64) {
        until(|| {
            let mut batch = Batch::new();
            self.rx.rx(&mut batch);
            self.tx.reclaim();
            self.event(name) >= n
        });
    }

    /// The application has all the frames back that it sent and has not taken back: `n`, each once.
    /// No packet of them is left.
    #[track_caller]
    fn completes(&mut self, app: &mut Socket, n: usize) {
        let mut back = Vec::new();
        for _ in 0..20 {
            drop(self.step());
            // A frame that it does not miss is an error of the client.
            app.completions(&mut back).unwrap();
        }
        assert_eq!(back.len(), n, "frames that were completed");
    }

    /// Ends the port: every buffer must be free, and every page of the applications too.
    #[track_caller]
    fn end(self) {
        let Rig { rx, tx, more, pool, pages, path, .. } = self;
        drop((rx, tx, more));
        assert_eq!(pool.stats().free, pool.stats().capacity, "buffers are missing");
        assert_eq!(pages.freed(), pages.attached(), "pages of applications, freed and attached");
        assert!(!path.exists());
    }
}

/// Sends packets by a queue.
fn give(pool: &Pool, tx: &mut Ended<SockTx>, packets: &[&[u8]]) {
    let mut batch = Batch::new();
    let mut cache = pool.cache(Direction::Tx).unwrap();
    for bytes in packets {
        batch.push(Packet::copy_from(&mut cache, bytes).unwrap()).unwrap();
    }
    tx.reclaim();
    assert_eq!(tx.tx(&mut batch), packets.len());
    tx.kick();
}

fn until(mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "it never happens");
        std::thread::yield_now();
    }
}

fn frames(umem: &Umem, n: u8, len: usize) -> Vec<Frame> {
    let make = |i| {
        let mut frame = umem.alloc().unwrap();
        assert!(frame.put(&vec![i; len]));
        frame
    };
    (0..n).map(make).collect()
}

/// An IPv4 UDP frame to a port.
fn udp(port: u16, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len.max(42)];
    bytes[12..14].copy_from_slice(&[8, 0]);
    bytes[14] = 0x45;
    let total = bytes.len() as u16 - 14;
    bytes[16..18].copy_from_slice(&total.to_be_bytes());
    (bytes[22], bytes[23]) = (64, 17);
    bytes[36..38].copy_from_slice(&port.to_be_bytes());
    bytes[38..40].copy_from_slice(&(total - 20).to_be_bytes());
    bytes
}

#[test]
fn frames_are_sent_from_their_pages_and_complete_in_the_order_in_which_their_last_users_are_done() {
    let mut rig = Rig::new("");
    let umem = Umem::new(64, 2048).unwrap();
    let mut app = rig.connect(&umem, "default");
    let mut sent = frames(&umem, 3, 100);
    assert_eq!(app.tx(&mut sent).unwrap(), 3);
    let mut batch = rig.receive(3);
    for (i, packet) in batch.iter().enumerate() {
        assert_eq!((packet.linear().len(), packet.frags()), (0, 1), "no byte is copied");
        assert_eq!(packet.to_vec(), [i as u8; 100]);
    }
    let mut back = Vec::new();
    let [c, b, a] = [(); 3].map(|()| batch.pop().unwrap());
    for (packet, byte) in [(b, 1), (c, 2), (a, 0)] {
        assert_eq!(app.completions(&mut back).unwrap(), 0);
        // On any thread.
        std::thread::spawn(move || drop(packet)).join().unwrap();
        rig.rx.rx(&mut batch);
        assert_eq!(app.completions(&mut back).unwrap(), 1);
        let mut frame = back.pop().unwrap();
        assert!(frame.set_range(0, 1));
        assert_eq!(frame.bytes(), [byte]);
    }
    drop(app);
    rig.end();
}

#[test]
fn bytes_that_a_packet_owns_reach_the_application_that_its_headers_name_and_are_freed() {
    let mut rig = Rig::new("");
    let (umem, other) = (Umem::new(64, 2048).unwrap(), Umem::new(64, 2048).unwrap());
    let (mut app, mut rest) = (rig.connect(&umem, "udp dport 7"), rig.connect(&other, "default"));
    rig.until_sessions(2);
    app.fill(&mut frames(&umem, 8, 1)).unwrap();
    rest.fill(&mut frames(&other, 8, 1)).unwrap();
    let bytes: [Arc<[u8]>; 2] = [udp(7, 500).into(), udp(8, 3000).into()];
    let mut batch = Batch::new();
    for bytes in &bytes {
        batch.push(Packet::from_owner(bytes.clone()).unwrap()).unwrap();
        let mut behind = Packet::copy_from(&mut rig.pool.cache(Direction::Tx).unwrap(), &bytes[..42]).unwrap();
        behind.append(Packet::from_owner(bytes[42..].to_vec()).unwrap()).unwrap();
        batch.push(behind).unwrap();
    }
    rig.tx.reclaim();
    assert_eq!(rig.tx.tx(&mut batch), 4);
    rig.tx.kick();
    for (socket, bytes) in [(&mut app, &bytes[0]), (&mut rest, &bytes[1])] {
        let mut got = Vec::new();
        socket.rx(&mut got).unwrap();
        let got: Vec<u8> = got.iter().flat_map(|frame| frame.bytes().to_vec()).collect();
        assert!(got == [&bytes[..], bytes].concat(), "{} bytes of 2 × {}", got.len(), bytes.len());
        assert_eq!(Arc::strong_count(bytes), 1);
    }
    drop((app, rest));
    rig.end();
}

#[test]
fn a_packet_of_several_frames_is_sent_as_one_even_if_its_end_comes_later() {
    let mut rig = Rig::new("");
    let umem = Umem::new(64, 2048).unwrap();
    let mut app = rig.connect(&umem, "default");
    let mut sent = frames(&umem, 3, 400);
    sent[0].set_continues(true);
    sent[1].set_continues(true);
    let mut last = vec![sent.pop().unwrap()];
    app.tx(&mut sent).unwrap();
    let mut batch = Batch::new();
    assert_eq!((0..100).map(|_| rig.rx.rx(&mut batch)).sum::<usize>(), 0);
    assert!(batch.is_empty());
    app.tx(&mut last).unwrap();
    let batch = rig.receive(1);
    assert_eq!(batch.as_slice()[0].to_vec(), [[0; 400], [1; 400], [2; 400]].concat());
    rig.completes(&mut app, 0);
    drop(batch);
    rig.completes(&mut app, 3);
    rig.end();
}

#[test]
fn over_budget_frames_wait_and_none_is_lost() {
    // The minimum budget: 36 chunks.
    let mut rig = Rig::new("budget=4096");
    let umem = Umem::new(256, 2048).unwrap();
    let mut app = rig.connect(&umem, "default");
    let (mut waiting, mut back) = (frames(&umem, 200, 60), Vec::new());
    let (mut seen, mut most) = (0u8, 0);
    until(|| {
        app.tx(&mut waiting).unwrap();
        let mut batch = Batch::new();
        for _ in 0..3 {
            rig.rx.rx(&mut batch);
        }
        most = most.max(batch.len());
        for packet in batch.iter() {
            assert_eq!(packet.to_vec(), [seen; 60], "in order");
            seen += 1;
        }
        drop(batch);
        app.completions(&mut back).unwrap();
        back.len() == 200
    });
    assert!(most <= 36, "{most} at a time");
    assert_eq!((seen, rig.rx.counters().snapshot().all_drops()), (200, 0));
    drop(back);
    rig.end();
}

#[test]
fn packets_go_to_the_application_whose_rules_match_and_the_others_to_the_default() {
    let mut rig = Rig::new("");
    let (dns, rest) = (Umem::new(64, 2048).unwrap(), Umem::new(64, 2048).unwrap());
    let mut rest_app = rig.connect(&rest, "default");
    let mut dns_app = rig.connect(&dns, "udp dport 53,udp dport 54");
    assert!(matches!(rig.ask(&rest, "default", Sizes::all(64)), Err(Error::Refused(r)) if r.code == Code::Rules));
    assert!(matches!(rig.ask(&rest, "udp dport x", Sizes::all(64)), Err(Error::Refused(r)) if r.code == Code::Rules));
    dns_app.fill(&mut frames(&dns, 8, 1)).unwrap();
    rest_app.fill(&mut frames(&rest, 8, 1)).unwrap();
    rig.until_sessions(2);
    rig.send(&[&udp(53, 60), &udp(99, 61), &udp(54, 62)]);
    let (mut one, mut other) = (Vec::new(), Vec::new());
    assert_eq!((dns_app.rx(&mut one).unwrap(), rest_app.rx(&mut other).unwrap()), (2, 1));
    assert_eq!([one[0].bytes(), one[1].bytes(), other[0].bytes()], [&udp(53, 60)[..], &udp(54, 62), &udp(99, 61)]);
    drop(rest_app);
    rig.until_event("sessions-ended", 1);
    rig.send(&[&udp(99, 61)]);
    assert_eq!(rig.tx.counters().snapshot().dropped(DropReason::Unclaimed), 1);
    // Another application can have the default now.
    until(|| {
        rig.tx.reclaim();
        rig.ask(&rest, "default", Sizes::all(64)).is_ok()
    });
    drop((one, other, dns_app));
    rig.end();
}

#[test]
fn a_long_packet_comes_in_pieces_and_one_that_finds_no_chunk_is_counted() {
    let mut rig = Rig::new("");
    let umem = Umem::new(8, 512).unwrap();
    let mut app = rig.connect(&umem, "default");
    app.fill(&mut frames(&umem, 4, 1)).unwrap();
    rig.until_sessions(1);
    let long: Vec<u8> = (0..1400u32).map(|i| i as u8).collect();
    rig.send(&[&long, &long]);
    assert_eq!(rig.tx.counters().snapshot().dropped(DropReason::NoBuffer), 1);
    let mut got = Vec::new();
    assert_eq!(app.rx(&mut got).unwrap(), 3);
    assert_eq!(got.iter().map(Frame::continues).collect::<Vec<_>>(), [true, true, false]);
    assert_eq!(got.iter().flat_map(Frame::bytes).copied().collect::<Vec<_>>(), long);
    drop((got, app));
    rig.end();
}

#[test]
fn an_application_that_sleeps_is_woken_by_what_comes_in() {
    let mut rig = Rig::new("");
    let umem = Umem::new(64, 2048).unwrap();
    let mut app = rig.connect(&umem, "default");
    rig.until_sessions(1);
    app.fill(&mut frames(&umem, 4, 1)).unwrap();
    assert!(!app.wait(Some(Duration::from_millis(1))).unwrap());
    assert!(app.arm());
    rig.send(&[&udp(1, 60)]);
    assert!(app.wait(Some(Duration::from_secs(60))).unwrap());
    assert_eq!(app.rx(&mut Vec::new()).unwrap(), 1);
    drop(rig);
    assert!(matches!(app.wait(Some(Duration::from_secs(60))), Err(Error::Closed)));
}

#[test]
fn frames_longer_than_the_port_sends_complete_unsent_and_counted() {
    let mut rig = Rig::new("mtu=500");
    let umem = Umem::new(8, 2048).unwrap();
    let mut app = rig.connect_unchecked(&umem);
    let mut sent = [frames(&umem, 1, 523), frames(&umem, 1, 13), frames(&umem, 1, 522)].into_iter().flatten().collect();
    app.tx(&mut sent).unwrap();
    assert_eq!(rig.receive(1).as_slice()[0].len(), 522);
    rig.until_event("frame-length", 2);
    rig.completes(&mut app, 3);
    drop(app);
    rig.end();
}

/// A program that handles its rings itself.
struct Program {
    connection: OwnedFd,
    session: u64,
    tx: Producer<Mapped<Desc>>,
    fill: Producer<Mapped<u64>>,
    rx: Consumer<Mapped<Desc>>,
    completion: Consumer<Mapped<u64>>,
    statistics: Mapped<u64>,
    kick: OwnedFd,
}

const HELLO: Hello = Hello {
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

fn send_hello(rig: &Rig, bytes: &[u8], fds: &[std::os::fd::BorrowedFd<'_>]) -> (OwnedFd, Option<Answer>, Vec<OwnedFd>) {
    let connection = seqpacket::connect(&rig.path).unwrap();
    seqpacket::send(connection.as_fd(), bytes, fds).unwrap();
    let mut answer = [0; Answer::LONGEST];
    let got = seqpacket::receive(connection.as_fd(), &mut answer).unwrap();
    (connection, Answer::decode(&answer[..got.len]).ok(), got.fds)
}

impl Program {
    fn connect(rig: &Rig, hello: &Hello) -> Program {
        Program::with_memory(rig, hello).0
    }

    fn with_memory(rig: &Rig, hello: &Hello) -> (Program, UntrustedMem) {
        let umem = UntrustedMem::new(Region::new(hello.umem as usize, Backing::Memfd).unwrap());
        (Program::in_memory(rig, hello, &umem), umem)
    }

    fn statistics(&self) -> Statistics {
        Statistics::read(|entry| self.statistics.read(entry))
    }

    fn in_memory(rig: &Rig, hello: &Hello, umem: &UntrustedMem) -> Program {
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

    fn send(&mut self, descs: &[(u64, u32, u32)]) {
        for &(addr, len, options) in descs {
            self.tx.write(Desc { addr, len, options });
        }
        self.tx.submit();
    }

    fn post(&mut self, addrs: &[u64]) {
        addrs.iter().for_each(|addr| self.fill.write(*addr));
        self.fill.submit();
    }
}

#[test]
fn the_pages_of_an_application_that_is_gone_stay_valid_until_they_are_sent() {
    let mut rig = Rig::new("");
    let umem = Umem::new(64, 2048).unwrap();
    let mut app = rig.connect(&umem, "default");
    app.tx(&mut frames(&umem, 10, 99)).unwrap();
    let batch = rig.receive(10);
    drop(app);
    drop(umem);
    rig.until_event("sessions-ended", 1);
    assert!(batch.iter().enumerate().all(|(i, packet)| packet.to_vec() == [i as u8; 99]));
    drop(batch);
    rig.end();
}

#[test]
fn a_socket_that_a_killed_process_left_is_replaced_and_one_in_use_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let config = |name: &str| Config::new(dir.path().join(name));
    // The file of a socket stays when that is closed.
    towpath_testing::abandoned_socket(&config("a").path);
    assert!(config("a").path.exists());
    let first = open(config("a")).unwrap();
    assert!(open(config("a")).is_err());
    drop(first);
    assert!(!config("a").path.exists());
    std::fs::write(config("b").path, "a file").unwrap();
    assert!(open(config("b")).is_err(), "what is no socket stays");
}

#[test]
fn the_file_has_the_owner_of_the_options_and_the_log_has_the_sessions() {
    use std::os::unix::fs::MetadataExt;
    // SAFETY: they take no argument, and can't fail.
    let (uid, gid) = unsafe { (libc::getuid(), libc::getgid()) };
    let mut rig = Rig::new(&format!("mode=640,uid={uid},gid={gid}"));
    let file = std::fs::metadata(&rig.path).unwrap();
    assert_eq!((file.mode() & 0o777, file.uid(), file.gid()), (0o640, uid, gid));
    let umem = Umem::new(8, 2048).unwrap();
    let app = rig.connect(&umem, "default");
    let line = format!("session 1: pid {}, uid {uid}, queue 0", std::process::id());
    // The application has its answer before the log has the session.
    until(|| rig.control.session_log() == [format!("{line}: here")]);
    drop(app);
    rig.until_event("sessions-ended", 1);
    // The end is counted before the log has it.
    until(|| rig.control.session_log() == [format!("{line}: left")]);
    rig.end();
}

#[test]
fn an_application_that_ends_without_closing_its_session_was_killed_says_the_log() {
    let rig = Rig::new("");
    let program = Program::connect(&rig, &HELLO);
    until(|| rig.control.session_log().len() == 1);
    // Its descriptors are closed, as those of a process that is killed.
    drop(program);
    until(|| rig.control.session_log()[0].ends_with(": killed, or ended without closing the session"));
    rig.end();
}

#[test]
fn options_reach_their_fields_and_an_invalid_one_is_named() {
    let config = |text: &str| Config::from_uri(&text.parse().unwrap());
    let (path, transmit) = ("/a/b".into(), Transmit::Copy);
    let (mode, uid, gid) = (0o660, Some(12), Some(0));
    let (sessions, umem, budget, queues, mtu) = (7, 1_000_000, 5000, 3, 9000);
    let (rules, all_rules) = (9, 11);
    let expected = Config {
        path,
        mode,
        uid,
        gid,
        sessions,
        umem,
        budget,
        queues,
        rules,
        all_rules,
        mtu,
        transmit,
        ..Config::default()
    };
    let text =
        "sock:/a/b?mode=660,uid=12,gid=0,sessions=7,umem=1M,budget=5k,queues=3,rules=9,all-rules=11,mtu=9000,tx=copy";
    assert_eq!(config(text).unwrap(), expected);
    for (text, part) in [
        ("sock:", "path"),
        ("sock:x?mode=9", "octal"),
        ("sock:x?sessions=0", "1"),
        ("sock:x?rules=0", "rules"),
        ("sock:x?all-rules=16385", "16384"),
        ("sock:x?y=1", "y"),
    ] {
        let error = config(text).unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
}
