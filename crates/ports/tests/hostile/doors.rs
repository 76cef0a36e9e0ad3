//! Before there is a session: messages, descriptors and connections.

use crate::rig::{Honest, Rig, ask, until};
use crate::rogue::{Rogue, hello, memfd, send_hello};
use std::mem::size_of_val;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use towpath_client::protocol::{Answer, Code, Hello};
use towpath_client::{Error, Umem};
use towpath_packet::port::TxQueue;
use towpath_sys::poll::is_readable;
use towpath_sys::seqpacket;

/// Descriptors and mappings of this process with that name.
fn open_files(name: &str) -> usize {
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    let open =
        all.flatten().filter(|f| std::fs::read_link(f.path()).is_ok_and(|at| at.to_string_lossy().contains(name)));
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    open.count() + maps.lines().filter(|line| line.contains(name)).count()
}

#[track_caller]
fn is_refused(answer: &Option<Answer>, code: Code) {
    assert!(matches!(answer, Some(Answer::Refusal(refusal)) if refusal.code == code), "{answer:?}");
}

/// A read-only descriptor of the same memory.
fn read_only(fd: &OwnedFd) -> OwnedFd {
    std::fs::File::open(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap().into()
}

#[test]
fn memory_that_cannot_be_trusted_is_refused_with_a_reason() {
    let rig = Rig::new("umem=1M");
    let (whole, sealed) = (hello().umem as i64, libc::F_SEAL_SHRINK);
    let make = |len, seals| memfd(c"trust", len, seals);
    let file = |path: &str| OwnedFd::from(std::fs::File::open(path).unwrap());
    let cases: [(Hello, Vec<OwnedFd>, Code); 12] = [
        (hello(), vec![make(whole, 0)], Code::Memory),
        (hello(), vec![make(whole, libc::F_SEAL_GROW)], Code::Memory),
        (hello(), vec![make(whole - 1, sealed)], Code::Memory),
        (hello(), vec![make(0, sealed)], Code::Memory),
        (hello(), vec![make(whole, sealed | libc::F_SEAL_WRITE)], Code::Memory),
        (hello(), vec![read_only(&make(whole, sealed))], Code::Memory),
        (hello(), vec![file("/proc/self/exe")], Code::Memory),
        (hello(), vec![file("/dev/zero")], Code::Memory),
        (hello(), vec![file("/proc")], Code::Memory),
        (Hello { umem: 2 << 20, ..hello() }, vec![make(2 << 20, sealed)], Code::Memory),
        (hello(), vec![], Code::Protocol),
        (hello(), vec![make(whole, sealed), make(whole, sealed)], Code::Protocol),
    ];
    for (hello, fds, code) in &cases {
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        is_refused(&send_hello(&rig, &hello.encode(), &fds).1, *code);
    }
    assert_eq!(rig.event("sessions-refused"), cases.len() as u64);
    rig.end();
}

#[test]
fn half_a_message_and_too_much_of_one_are_refused() {
    let rig = Rig::new("");
    let whole = hello().encode();
    let mut more = whole.clone();
    more.push(b'x');
    for bytes in [&whole[..1], &whole[..20], &whole[..whole.len() - 1], &more, b"hello?", &[0; 9000]] {
        let memory = memfd(c"half", hello().umem as i64, libc::F_SEAL_SHRINK);
        is_refused(&send_hello(&rig, bytes, &[memory.as_fd()]).1, Code::Protocol);
    }
    rig.end();
}

#[test]
fn memory_of_a_session_cannot_be_taken_away() {
    let mut rig = Rig::new("");
    let mut rogue = Rogue::new(&mut rig);
    rogue.scrawl(4096, u32::MAX);
    for file in [rogue.umem.fd(), rogue.rings.fd()].map(|fd| fd.unwrap().as_raw_fd()) {
        let how = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: no pointers.
        let (cut, punched) = unsafe { (libc::ftruncate(file, 0), libc::fallocate(file, how, 0, 1 << 20)) };
        assert_eq!((cut, punched), (-1, 0), "sealed, but pages can be given back to the system: they read as zeroes");
    }
    rogue.send(&[(4096, 60, 0)]);
    assert_eq!(rig.receive(1).as_slice()[0].to_vec(), [0; 60]);
    rogue.end(&mut rig);
    rig.end();
}

/// Sends a record with as many copies of a descriptor as the system allows; `false` if it is
/// refused.
fn flood(connection: BorrowedFd<'_>, bytes: &[u8], file: BorrowedFd<'_>) -> bool {
    /// `SCM_MAX_FD`.
    const MOST: usize = 253;
    let fds = [file.as_raw_fd(); MOST];
    let mut control = vec![0u64; 256];
    let mut piece = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: the message points to buffers that live across the call; the control block has room
    // for a header and all descriptors.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (&raw mut piece, 1);
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(size_of_val(&fds) as u32) as usize;
        let header = &mut *libc::CMSG_FIRSTHDR(&message);
        (header.cmsg_level, header.cmsg_type) = (libc::SOL_SOCKET, libc::SCM_RIGHTS);
        header.cmsg_len = libc::CMSG_LEN(size_of_val(&fds) as u32) as usize;
        std::ptr::copy_nonoverlapping(fds.as_ptr(), libc::CMSG_DATA(header).cast(), MOST);
        libc::sendmsg(connection.as_raw_fd(), &message, libc::MSG_NOSIGNAL) >= 0
    }
}

#[test]
fn a_flood_of_descriptors_leaves_none_open() {
    let mut rig = Rig::new("");
    let file = std::fs::File::create(rig.path.with_file_name("flooding")).unwrap();
    assert_eq!(open_files("flooding"), 1);
    for bytes in [&hello().encode()[..], b"what?", &[0; 9000]] {
        let connection = seqpacket::connect(&rig.path).unwrap();
        assert!(flood(connection.as_fd(), bytes, file.as_fd()));
        let mut answer = [0; Answer::LONGEST];
        let n = seqpacket::receive(connection.as_fd(), &mut answer).unwrap().len;
        is_refused(&Answer::decode(&answer[..n]).ok(), Code::Protocol);
    }
    // After the first message, again and again. A kernel that can refuses them.
    let rogue = Rogue::new(&mut rig);
    let refused = (0..20).all(|_| !flood(rogue.connection.as_fd(), b"more", file.as_fd()));
    if refused {
        seqpacket::send(rogue.connection.as_fd(), b"more", &[]).unwrap();
    }
    rig.until_event("sessions-ended", 1);
    rogue.is_disconnected();
    until(|| open_files("flooding") == 1);
    rig.end();
}

#[test]
fn sessions_that_come_and_go_leave_nothing_open() {
    let mut rig = Rig::new("sessions=4");
    for round in 0..200 {
        let memory = memfd(c"churning", hello().umem as i64, libc::F_SEAL_SHRINK);
        let (connection, answer, fds) = send_hello(&rig, &hello().encode(), &[memory.as_fd()]);
        // The queues are stepped only now and then: some sessions end before a queue has them, some
        // are refused.
        assert!(matches!(answer, Some(Answer::Welcome(_)) | Some(Answer::Refusal(_))), "{answer:?}");
        drop((connection, memory, fds));
        if round % 3 == 0 {
            drop(rig.step());
            rig.tx.reclaim();
        }
    }
    let sessions = rig.event("sessions");
    assert!(sessions >= 4);
    rig.until_event("sessions-ended", sessions);
    rig.until(|_| open_files("churning") == 0);
    // There is room for as many as before.
    let umem = Umem::new(8, 2048).unwrap();
    let all = ["udp", "tcp", "arp", "ip"].map(|rules| ask(&rig, &umem, rules).unwrap());
    assert!(matches!(ask(&rig, &umem, "ip6"), Err(Error::Refused(refusal)) if refusal.code == Code::Full));
    drop(all);
    rig.end();
}

#[test]
fn the_rules_of_one_application_and_of_all_are_bounded() {
    let mut rig = Rig::new("rules=3,all-rules=5");
    let umem = Umem::new(8, 2048).unwrap();
    let refused = |rig: &Rig, rules: &str, code: Code, limit: &str| {
        let refusal = match ask(rig, &umem, rules) {
            Err(Error::Refused(refusal)) => refusal,
            other => panic!("{rules}: {other:?}"),
        };
        assert!(refusal.code == code && refusal.why.contains(limit), "{refusal}");
    };
    refused(&rig, "udp,tcp,arp,ip6", Code::Rules, "4 rules: an application may have 3 (rules=3)");
    // The longest text.
    refused(&rig, &"arp,".repeat(1024), Code::Rules, "rules=3");
    let first = ask(&rig, &umem, "udp,tcp,arp").unwrap();
    refused(&rig, "udp,tcp,arp", Code::Full, "together they may have 5 (all-rules=5)");
    let second = ask(&rig, &umem, "udp,tcp").unwrap();
    refused(&rig, "ip6", Code::Full, "1 rules beside the 5");
    // The default is no rule, and costs no comparison.
    let rest = ask(&rig, &umem, "default").unwrap();
    drop(first);
    rig.until_event("sessions-ended", 1);
    assert_eq!(rig.event("sessions-refused"), 4);
    // The rules are free once nothing refers to the session.
    rig.until(|rig| ask(rig, &umem, "ip6").is_ok());
    drop((second, rest));
    rig.end();
}

#[test]
fn silent_connections_keep_no_application_out() {
    let mut rig = Rig::new("");
    // Many more than the server waits for at a time.
    let silent: Vec<_> = (0..100).map(|_| seqpacket::connect(&rig.path).unwrap()).collect();
    let umem = Umem::new(256, 2048).unwrap();
    let mut honest = Honest::new(&mut rig, &umem);
    // The ones that waited longest are refused, the last ones after their timeout.
    let mut bytes = [0; Answer::LONGEST];
    for connection in silent {
        let got = seqpacket::receive(connection.as_fd(), &mut bytes).unwrap();
        assert!(
            got.len == 0 || matches!(Answer::decode(&bytes[..got.len]), Ok(Answer::Refusal(r)) if r.code == Code::Full)
        );
    }
    drop(honest.turn(&mut rig, 4, &[]));
    assert_eq!((honest.sent, honest.got), (honest.offered, honest.expected));
    honest.end(&mut rig);
    rig.end();
}

#[test]
fn of_connections_that_say_nothing_only_a_few_stay_open() {
    let rig = Rig::new("");
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(seqpacket::connect(&rig.path).unwrap());
        // An answer to one that came later means that the server has seen all of these.
        let (_, later, _) = send_hello(&rig, b"nothing that it knows", &[]);
        is_refused(&later, Code::Protocol);
    }
    let open = silent.iter().filter(|connection| !is_readable(connection.as_fd())).count();
    assert!(open <= 16, "{open} connections without an answer");
    rig.end();
}

/// Sets the flag when it is dropped.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn a_flood_of_connections_delays_no_session() {
    let mut rig = Rig::new("");
    let umem = Umem::new(256, 2048).unwrap();
    let mut honest = Honest::new(&mut rig, &umem);
    let over = AtomicBool::new(false);
    let path = rig.path.clone();
    std::thread::scope(|scope| {
        // However this ends: the scope joins a thread that nothing else stops.
        let _over = Over(&over);
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(Relaxed) {
                    drop(seqpacket::connect(&path));
                }
            });
        }
        (0..500).for_each(|_| drop(honest.turn(&mut rig, 16, &[])));
        // The end of a session is noticed too.
        let rogue = Rogue::new(&mut rig);
        drop(rogue);
        rig.until_event("sessions-ended", 1);
    });
    honest.has_at_least(95, 8000, "connect all the time");
    assert_eq!((honest.sent, honest.got), (honest.offered, honest.expected));
    honest.end(&mut rig);
    rig.end();
}
