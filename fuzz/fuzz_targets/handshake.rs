//! Any record, with descriptors of any kind, as an application's message to a real port, and any
//! record behind it: the port answers or closes, and in the end it has no descriptor more, and no
//! session.
//!
//! The first byte tells whether the message is made of fields or of the input's bytes; the second
//! one is the number of descriptors, and one byte is the kind of each.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::cell::RefCell;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use towpath_client::protocol::{Answer, Hello, Sizes};
use towpath_fuzz::{Input, OpenFiles};
use towpath_sys::poll::wait_readable;
use towpath_sys::{EventFd, retry, seqpacket};

#[allow(dead_code, reason = "the target needs a part of what the tests need")]
#[path = "../../crates/ports/tests/hostile/rig.rs"]
mod rig;
#[allow(dead_code, reason = "as above")]
#[path = "../../crates/ports/tests/hostile/rogue.rs"]
mod rogue;

use rig::{Rig, until};
use rogue::memfd;

/// Bytes of memory that has all its pages.
const MEMORY: u64 = 64 << 10;

/// The places of the only files that a session may have.
const WHOLE: usize = 0;
const SHORT: usize = 2;

/// One port for all inputs, and what applications send to it.
struct Fixture {
    rig: Rig,
    files: Vec<OwnedFd>,
    open: OpenFiles,
}

impl Fixture {
    fn new() -> Fixture {
        let (len, sealed) = (MEMORY as i64, libc::F_SEAL_SHRINK);
        let whole = memfd(c"whole", len, sealed);
        let read_only = File::open(format!("/proc/self/fd/{}", whole.as_raw_fd())).unwrap();
        let sparse = memfd(c"sparse", 0, 0);
        // SAFETY: no pointers.
        unsafe {
            assert_eq!(libc::ftruncate(sparse.as_raw_fd(), len), 0);
            assert_eq!(libc::fcntl(sparse.as_raw_fd(), libc::F_ADD_SEALS, sealed), 0);
        }
        let path_only = File::options().read(true).custom_flags(libc::O_PATH).open("/").unwrap();
        let mut pipe = [0; 2];
        // SAFETY: two numbers live across the call; both descriptors are new.
        let [reads, writes] = unsafe {
            assert_eq!(libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC), 0);
            pipe.map(|fd| OwnedFd::from_raw_fd(fd))
        };
        let (near, far) = UnixStream::pair().unwrap();
        let files = vec![
            whole,
            memfd(c"unsealed", len, 0),
            memfd(c"short", 4096, sealed),
            memfd(c"frozen", len, sealed | libc::F_SEAL_WRITE | libc::F_SEAL_GROW),
            sparse,
            read_only.into(),
            File::open("/dev/null").unwrap().into(),
            path_only.into(),
            reads,
            writes,
            near.into(),
            far.into(),
            EventFd::new().unwrap().into(),
        ];
        Fixture { rig: Rig::new("umem=1M,sessions=8"), files, open: OpenFiles::default() }
    }

    /// Descriptors that the input chooses: `how` is their number, as far as the kernel takes them,
    /// and mostly small.
    fn choose(&self, input: &mut Input<'_>) -> Vec<BorrowedFd<'_>> {
        let count = match input.byte() {
            few @ 0..=223 => few % 4,
            many => 253 - (many - 224) * 8,
        };
        let file = |kind: u8| self.files[usize::from(kind) % self.files.len()].as_fd();
        let (first, second) = (input.byte(), input.byte());
        (0..count).map(|i| file(if i % 2 == 0 { first } else { second })).collect()
    }
}

/// A message of fields that are often valid, with some of its bytes replaced and its end moved.
fn message(input: &mut Input<'_>) -> Vec<u8> {
    let (how, sizes) = (input.byte(), input.byte());
    let flag = |bit: u8| how & 1 << bit != 0;
    let size = |bits: u8| 2 << ((sizes >> bits & 3) * 4);
    let chunk = [256, 2048, 4096, 3000][usize::from(input.byte() % 4)];
    let umem = [MEMORY, MEMORY / 2, 4096, u64::from(input.int())][usize::from(input.byte() % 4)];
    let hello = Hello {
        umem,
        chunk,
        unaligned: flag(0),
        headroom: u32::from(input.byte()),
        pieces: flag(1),
        offloads: flag(2),
        one_descriptor: flag(3),
        skip_invalid: flag(4),
        rings: Sizes { fill: size(0), completion: size(2), rx: size(4), tx: size(6) },
        budget: u64::from(input.int()),
        share: u64::from(input.byte() % 4),
        tx_metadata: u32::from(input.byte()),
        segmentation: flag(5),
        queue: flag(6).then(|| input.byte().into()),
        rules: String::from_utf8_lossy(input.slice(64)).into_owned(),
    };
    let mut bytes = hello.encode();
    for _ in 0..input.byte() % 4 {
        let at = usize::from(input.byte()) % bytes.len();
        bytes[at] = input.byte();
    }
    match input.byte() {
        0xff => bytes.extend_from_slice(input.slice(4200)),
        0xfe => bytes.truncate(input.byte().into()),
        _ => {}
    }
    bytes
}

fn exercise(fixture: &mut Fixture, input: &mut Input<'_>) {
    let (refused, ended) = (fixture.rig.event("sessions-refused"), fixture.rig.event("sessions-ended"));
    let raw = input.byte() & 1 != 0;
    let fds = fixture.choose(input);
    let second_fds = if input.byte() % 4 == 0 { fixture.choose(input) } else { Vec::new() };
    let second = input.byte();
    let bytes = if raw { input.0.to_vec() } else { message(input) };

    let connection = seqpacket::connect(&fixture.rig.path).unwrap();
    if seqpacket::send(connection.as_fd(), &bytes, &fds).is_err() {
        return;
    }
    // Behind the message, or in place of an application that waits.
    if second & 1 != 0 {
        let _ = seqpacket::send(connection.as_fd(), &bytes[..bytes.len().min(second.into())], &second_fds);
    }
    assert!(wait_readable(connection.as_fd(), Some(rig::PATIENCE)).unwrap(), "there is no answer");
    let mut answer = [0; Answer::LONGEST];
    let got = match retry(|| seqpacket::receive(connection.as_fd(), &mut answer)) {
        Ok(got) => got,
        // It was closed, and did not read what was behind the message.
        Err(error) => {
            assert_eq!(error.raw_os_error(), Some(libc::ECONNRESET));
            return;
        }
    };
    assert!(!got.cut);
    if got.len == 0 {
        assert!(bytes.is_empty() && fds.is_empty(), "closed without an answer");
        return;
    }
    match Answer::decode(&answer[..got.len]).expect("an answer can be read") {
        Answer::Refusal(refusal) => {
            assert!(!refusal.why.is_empty() && got.fds.is_empty());
            until(|| fixture.rig.event("sessions-refused") == refused + 1);
        }
        Answer::Welcome(_) => {
            assert_eq!((fds.len(), got.fds.len()), (1, 2));
            let file = fixture.files.iter().position(|file| file.as_raw_fd() == fds[0].as_raw_fd());
            assert!(matches!(file, Some(WHOLE | SHORT)), "a session over file {file:?}");
            if second & 2 != 0 {
                let _ = seqpacket::send(connection.as_fd(), &bytes[..1], &second_fds);
            }
            drop(connection);
            fixture.rig.until_event("sessions-ended", ended + 1);
        }
    }
}

thread_local! {
    static FIXTURE: RefCell<Option<Fixture>> = const { RefCell::new(None) };
}

fuzz_target!(|data: &[u8]| {
    FIXTURE.with_borrow_mut(|fixture| {
        let fixture = fixture.get_or_insert_with(Fixture::new);
        exercise(fixture, &mut Input(data));
        until(|| fixture.open.are_bounded());
    });
});
