//! Applications of other users: processes of the test's or the bench's own binary, each in a role.
//!
//! | role | what it does until it is ended |
//! |---|---|
//! | `kicks` | opens sessions, and sends sockets that linger as kicks |
//! | `hello` | sends messages with a socket that lingers in place of memory |
//! | `fuse`, `opath` | the same with a file that is never closed, and with an `O_PATH` descriptor |
//! | `sessions N` | has as many sessions as it gets, up to `N` |
//! | `rules N` | has as many rules as it gets, up to `N` |
//! | `sparse` | asks for memory without pages, and frees the pages of sessions |
//! | `starved` | has sessions with full rings, and reads no wake-up |
//! | `shut` | shuts the lines of its sessions down |
//! | `hangs-up N` | has `N` sessions, half of them with full rings, and shuts the line of their kicks down |
//! | `flood N` | sends all the time, on `N` sessions |
//! | `burn` | uses its core, and no socket |
//! | `guest ROLE` | is a front end of a `vhost:` port, in a role of [`guests`] |
//!
//! A process prints `ready`, and what it got, when it has reached its state.

use super::guests;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use towpath::packet::xsk_ring::{Desc, Mapped, Producer};
use towpath::packet::{Backing, Region, UntrustedMem};
use towpath_client::protocol::{Answer, Hello, Sizes};
use towpath_client::{Config, Frame, Session, Socket, Umem};
use towpath_sys::{EventFd, memfd, seqpacket};
use towpath_testing::{lingering, sealed_memory, silent_file};

/// The environment variable that makes a process of this binary a stranger: `USER PATH ROLE`.
const STRANGER: &str = "TOWPATH_STRANGER";

/// Bytes of a session's memory, and of its chunks.
const MEMORY: u64 = 64 * CHUNK;
const CHUNK: u64 = 2048;

/// A process in a role. It ends when this is dropped.
pub(crate) struct Stranger {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Stranger {
    /// Starts a process of a user. `test` is the test that calls [`play`].
    pub(crate) fn start(user: u32, role: &str, path: &str, test: &str) -> Stranger {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture"]).env(STRANGER, format!("{user} {path} {role}"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (to, lines) = channel();
        let out = child.stdout.take().unwrap();
        std::thread::spawn(move || {
            BufReader::new(out).lines().map_while(Result::ok).try_for_each(|line| to.send(line))
        });
        let stdin = child.stdin.take();
        Stranger { child, stdin, lines }
    }

    /// Sends a signal: `SIGSTOP`, `SIGCONT`.
    pub(crate) fn signal(&self, signal: libc::c_int) {
        // SAFETY: kill takes no pointer. The child was not waited for, so its number is its own.
        let sent = unsafe { libc::kill(self.child.id() as libc::pid_t, signal) };
        assert_eq!(sent, 0, "kill: {}", std::io::Error::last_os_error());
    }

    /// What it got, once it has reached its state.
    #[track_caller]
    pub(crate) fn ready(&self) -> String {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left).unwrap_or_else(|error| panic!("a stranger failed: {error}"));
            if let Some(rest) = line.strip_prefix("ready") {
                return rest.trim().to_owned();
            }
        }
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        drop(self.stdin.take());
        for _ in 0..1000 {
            if self.child.try_wait().unwrap().is_some() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Plays the role of this process, and does not return; returns at once if it has none. `begin` is
/// called first.
pub(crate) fn play(begin: impl FnOnce()) {
    let Ok(what) = std::env::var(STRANGER) else { return };
    let mut words = what.splitn(3, ' ').map(str::to_owned);
    let mut word = || words.next().unwrap();
    let (user, path, role) = (word().parse().unwrap(), word(), word());
    let (role, more) = role.split_once(' ').unwrap_or((&role, ""));
    let n = || more.parse().unwrap();
    begin();
    // A file system is mounted by root.
    let mount = (role == "fuse").then(|| tempfile::tempdir().unwrap());
    let silent = mount.as_ref().map(|mount| silent_file(mount.path()).unwrap());
    let file: Option<OwnedFd> = silent.as_ref().map(|silent| silent.file.try_clone().unwrap().into());
    become_user(user);
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        // The file's server ends first: the end of a process that has the file would wait for it.
        drop(silent);
        std::process::exit(0);
    });
    let path = Path::new(&path);
    match role {
        "kicks" => kicks(path),
        "hello" => messages(path, lingering().0.as_fd()),
        "fuse" => messages(path, file.unwrap().as_fd()),
        "opath" => {
            let file = std::fs::File::options().read(true).custom_flags(libc::O_PATH).open("/").unwrap();
            messages(path, file.as_fd());
        }
        "sessions" => sessions(path, n()),
        "rules" => rules(path, n()),
        "sparse" => sparse(path),
        "starved" => starved(path),
        "shut" => shut(path),
        "hangs-up" => hangs_up(path, n()),
        "flood" => flood(path, n()),
        "burn" => burn(),
        "guest" => guests::play(more, path, || ready("")),
        other => panic!("{other}"),
    }
    // It ends with its standard input, whatever became of the datapath.
    hold(&());
}

/// Gives up all rights but those of a user.
pub(crate) fn become_user(user: u32) {
    // SAFETY: no pointers are read, as there are no groups.
    let done = unsafe {
        libc::setgroups(0, std::ptr::null()) == 0
            && libc::setresgid(user, user, user) == 0
            && libc::setresuid(user, user, user) == 0
    };
    assert!(done, "{}", std::io::Error::last_os_error());
}

fn ready(what: impl std::fmt::Display) {
    // The test's harness may have begun the line.
    println!("\nready {what}");
}

/// Holds what it got until the end.
fn hold<T>(_held: &T) -> ! {
    loop {
        std::thread::park();
    }
}

fn hello() -> Hello {
    Hello { umem: MEMORY, one_descriptor: true, rings: Sizes::all(64), ..Hello::default() }
}

/// A session, perhaps after others of this process are gone.
fn open(path: &Path, hello: &Hello, memory: BorrowedFd<'_>) -> Option<Session> {
    Session::open(path, hello, memory).ok()
}

fn kicks(path: &Path) {
    let (memory, (near, _far)) = (sealed_memory(MEMORY as i64), lingering());
    for n in 0u64.. {
        if let Some(session) = open(path, &hello(), memory.as_fd()) {
            for _ in 0..4 {
                let _ = seqpacket::send(session.kick.as_fd(), b"kick", &[near.as_fd()]);
                let _ = seqpacket::send(session.connection.as_fd(), b"more", &[near.as_fd()]);
            }
        }
        if n == 32 {
            ready("");
        }
    }
}

/// Messages with a file in place of memory, with and without waiting for their answers.
fn messages(path: &Path, file: BorrowedFd<'_>) {
    for n in 0u64.. {
        let Ok(connection) = seqpacket::connect(path) else { continue };
        let _ = seqpacket::send(connection.as_fd(), &hello().encode(), &[file]);
        if n % 4 == 0 {
            let _ = seqpacket::receive(connection.as_fd(), &mut [0; Answer::LONGEST]);
        }
        if n == 32 {
            ready("");
        }
    }
}

/// Sessions that need as much metadata as a session can.
fn sessions(path: &Path, most: usize) {
    let memory = sealed_memory(1 << 20);
    let hello = Hello { umem: 1 << 20, unaligned: true, skip_invalid: true, chunk: 256, ..Hello::default() };
    let got: Vec<_> = (0..most).map_while(|_| open(path, &hello, memory.as_fd())).collect();
    ready(got.len());
    hold(&got);
}

/// As many rules as it gets, in sessions of at most 64.
fn rules(path: &Path, most: usize) {
    let memory = sealed_memory(MEMORY as i64);
    let (mut got, mut held, mut each) = (0, Vec::new(), 64);
    while got < most && each > 0 {
        let rules: Vec<_> = (got..most.min(got + each)).map(|n| format!("udp dport {}", 20_000 + n)).collect();
        match open(path, &Hello { rules: rules.join("\n"), ..hello() }, memory.as_fd()) {
            Some(session) => held.push(session),
            None => {
                each /= 2;
                continue;
            }
        }
        got += rules.len();
    }
    ready(got);
    hold(&held);
}

fn sparse(path: &Path) {
    let small = Hello { one_descriptor: false, ..hello() };
    let mut kept = Vec::new();
    for n in 0u64.. {
        let memory = sealed_memory(MEMORY as i64);
        memfd::free_pages(memory.as_fd(), MEMORY as usize).unwrap();
        let _ = open(path, &hello(), memory.as_fd());
        // Pages that are freed in a session, and memory that stays as long as this process.
        let memory = sealed_memory(MEMORY as i64);
        if let Some(session) = open(path, &small, memory.as_fd()) {
            memfd::free_pages(memory.as_fd(), MEMORY as usize).unwrap();
            send_all(&session);
            kept.push(memory);
        }
        if n == 32 {
            ready(kept.len());
        }
    }
}

/// Sends every chunk of the memory, and does not wait.
fn send_all(session: &Session) {
    let (at, len) = (session.welcome.rings, session.welcome.memory as usize);
    let rings = UntrustedMem::from_memfd(session.rings.try_clone().unwrap(), len).unwrap();
    let mut tx = Producer::new(Mapped::<Desc>::new(&rings, &at.tx, 64).unwrap());
    for chunk in 0..64 {
        tx.write(Desc { addr: chunk * CHUNK, len: 60, options: 0 });
    }
    tx.submit();
    EventFd::from(session.kick.try_clone().unwrap()).signal();
    std::thread::sleep(Duration::from_millis(2));
}

/// A session whose COMPLETION ring is full, whose TX ring stays full, and that asks to be woken.
struct Full {
    session: Session,
    _memory: Region,
    _tx: Producer<Mapped<Desc>>,
}

impl Full {
    fn open(path: &Path, one_descriptor: bool) -> Option<Full> {
        let memory = Region::new(MEMORY as usize, Backing::Memfd).unwrap();
        let rings = Sizes { completion: 2, rx: 2, ..Sizes::all(64) };
        let rules = "udp dport 7777".to_owned();
        let asked = Hello { rings, one_descriptor, skip_invalid: true, rules, ..hello() };
        let session = open(path, &asked, memory.fd().unwrap())?;
        let (at, len) = (session.welcome.rings, session.welcome.memory as usize);
        let words = UntrustedMem::from_memfd(session.rings.try_clone().unwrap(), len).unwrap();
        let mut tx = Producer::new(Mapped::<Desc>::new(&words, &at.tx, 64).unwrap());
        Mapped::<Desc>::new(&words, &at.rx, 2).unwrap().set_needs_wakeup(true);
        for chunk in 0..64 {
            tx.write(Desc { addr: chunk * CHUNK, len: 60, options: 0 });
        }
        tx.submit();
        Some(Full { session, _memory: memory, _tx: tx })
    }
}

/// Full sessions that read no wake-up.
fn starved(path: &Path) {
    let held: Vec<_> = [false, true].repeat(8).into_iter().filter_map(|one| Full::open(path, one)).collect();
    ready(held.len());
    // Kicks without end, on lines that are full.
    loop {
        for Full { session, .. } in &held {
            for _ in 0..100 {
                let _ = seqpacket::send(session.kick.as_fd(), b"kick", &[]);
            }
            let kick: EventFd = session.kick.try_clone().unwrap().into();
            kick.signal();
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}

fn shut(path: &Path) {
    let memory = sealed_memory(MEMORY as i64);
    let mut held = std::collections::VecDeque::new();
    for n in 0u64.. {
        if let Some(session) = open(path, &hello(), memory.as_fd()) {
            seqpacket::shutdown(session.kick.as_fd());
            if n % 2 == 0 {
                seqpacket::shutdown(session.connection.as_fd());
            }
            held.push_back(session);
        }
        if held.len() > 16 {
            held.pop_front();
        }
        if n == 32 {
            ready("");
        }
    }
}

/// All else of the sessions stays as it is: their connections, and this process.
fn hangs_up(path: &Path, sessions: usize) {
    let memory = sealed_memory(MEMORY as i64);
    let held: Vec<_> = (0..sessions / 2)
        .map(|_| (Full::open(path, true).unwrap(), open(path, &hello(), memory.as_fd()).unwrap()))
        .collect();
    for (full, other) in &held {
        [full.session.kick.as_fd(), other.kick.as_fd()].into_iter().for_each(seqpacket::shutdown);
    }
    ready(2 * held.len());
    hold(&held);
}

fn flood(path: &Path, sessions: usize) {
    let memory: Vec<_> = (0..sessions).map(|_| Umem::new(64, CHUNK as u32).unwrap()).collect();
    let config = Config::default().rings(Sizes::all(64)).rules(Vec::new());
    let connect = |umem| Socket::connect(umem, path, &config).unwrap();
    let mut sockets: Vec<_> = memory.iter().map(|umem| (umem, connect(umem), Vec::new())).collect();
    let mut sent = 0;
    loop {
        let before = sent;
        for (umem, socket, frames) in &mut sockets {
            let mut back: Vec<Frame> = Vec::new();
            // The datapath may have ended.
            let Ok(n) = socket.completions(&mut back) else { return };
            sent += n;
            back.extend(std::iter::from_fn(|| umem.alloc()));
            frames.extend(back.into_iter().map(|mut frame| {
                assert!(frame.put(&[0xff; 60]));
                frame
            }));
            socket.tx(frames).unwrap();
            socket.kick();
        }
        if before < 10_000 && sent >= 10_000 {
            ready(sent);
        }
    }
}

fn burn() {
    ready("");
    loop {
        std::hint::spin_loop();
    }
}
