//! A datapath with little memory, beside applications of other users that make it allocate.

mod support;

use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use support::control_group::Group;
use support::files::copy_program;
use support::{Need, Towpath, needs, skip};
use towpath::packet::xsk_ring::{Consumer, Desc, Mapped, Producer};
use towpath::packet::{Backing, Region, UntrustedMem};
use towpath_client::protocol::{Hello, Sizes};
use towpath_client::{Config, Error, Session, Socket, Umem};
use towpath_sys::memfd;

/// The environment variable that gives a process of this test binary its role.
const ROLE: &str = "TOWPATH_TEST_ROLE";

/// The user that makes the datapath allocate, and the one beside it.
const GREEDY: u32 = 2001;
const HONEST: u32 = 2002;

/// Bytes of the datapath's group: a quarter is for memory of applications, half of it for one user.
const LIMIT: usize = 60 << 20;

/// A directory that all users can search, with a copy of this binary.
struct Stage(tempfile::TempDir);

impl Stage {
    fn new() -> Stage {
        let directory = tempfile::tempdir().unwrap();
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let actor = directory.path().join("actor");
        copy_program(std::env::current_exe().unwrap(), actor);
        Stage(directory)
    }

    fn socket(&self) -> String {
        self.0.path().join("s").display().to_string()
    }

    /// Starts a process of a user in a role.
    fn play(&self, user: u32, role: &str) -> Actor {
        let mut command = Command::new(self.0.path().join("actor"));
        command.args(["--exact", "a_process_plays_its_role", "--nocapture"]);
        command.env(ROLE, format!("{role} {}", self.socket())).uid(user).gid(user).current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let (to, lines) = channel();
        let out = child.stdout.take().unwrap();
        std::thread::spawn(move || {
            BufReader::new(out).lines().map_while(Result::ok).try_for_each(|line| to.send(line))
        });
        Actor { child, lines }
    }
}

/// A process in a role; killed on drop.
struct Actor {
    child: Child,
    lines: Receiver<String>,
}

impl Actor {
    /// What it says next that begins with a word.
    #[track_caller]
    fn says(&self, word: &str) -> String {
        let end = Instant::now() + support::LONGEST / 4;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left).unwrap_or_else(|error| panic!("no {word}: {error}"));
            if let Some(rest) = line.strip_prefix(word) {
                return rest.trim().to_owned();
            }
        }
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_process_plays_its_role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (role, path) = role.split_once(' ').unwrap();
    match role {
        "honest" => honest(path),
        "sparse" => sparse(path),
        "frees" => frees(path),
        other => panic!("{other}"),
    }
}

/// Sends frames as long as it lives, and says when another thousand was completed.
fn honest(path: &str) {
    let umem = Umem::new(256, 2048).unwrap();
    let mut socket = Socket::connect(&umem, path, &Config::default()).unwrap();
    let (mut frames, mut completed) = (Vec::new(), 0);
    loop {
        frames.extend(std::iter::from_fn(|| umem.alloc()).take(64).map(|mut frame| {
            assert!(frame.put(&[7; 60]));
            frame
        }));
        socket.tx(&mut frames).unwrap();
        let mut back = Vec::new();
        let n = socket.completions(&mut back).unwrap();
        if n == 0 {
            socket.kick();
            std::thread::sleep(Duration::from_millis(1));
        }
        if (completed + n) / 1000 > completed / 1000 {
            println!("\ncompleted {}", completed + n);
        }
        completed += n;
    }
}

const CHUNK: u64 = 4096;

fn hello(umem: u64) -> Hello {
    Hello { umem, chunk: CHUNK as u32, rings: Sizes::all(1024), ..Hello::default() }
}

/// Asks for a session over memory without a page.
fn sparse(path: &str) {
    let memory = Region::new(4 << 20, Backing::Memfd).unwrap();
    memfd::free_pages(memory.fd().unwrap(), memory.len()).unwrap();
    match Session::open(Path::new(path), &hello(4 << 20), memory.fd().unwrap()) {
        Err(Error::Refused(refusal)) => println!("\nrefused {}", refusal.why),
        other => println!("\nrefused not: {other:?}"),
    }
}

/// Opens sessions, one after the other, each over memory of its own that it keeps. In each it frees
/// its pages, and lets the datapath read all of them. Says how often until it is refused.
fn frees(path: &str) {
    let mut kept = Vec::new();
    for round in 0..64 {
        let memory = Region::new(4 << 20, Backing::Memfd).unwrap();
        let file = memory.fd().unwrap().try_clone_to_owned().unwrap();
        // Its own mapping is gone: the pages are the datapath's alone.
        drop(memory);
        match session(path, &file) {
            Ok(()) => kept.push(file),
            Err(why) => {
                println!("\nrefused {round} {why}");
                break;
            }
        }
    }
    std::thread::sleep(support::LONGEST);
}

fn session(path: &str, memory: &OwnedFd) -> Result<(), String> {
    let hello = hello(4 << 20);
    let mut tries = 0;
    let session = loop {
        match Session::open(Path::new(path), &hello, memory.as_fd()) {
            Ok(session) => break session,
            // The session before this one may not be gone yet.
            Err(_) if tries < 100 => std::thread::sleep(Duration::from_millis(10)),
            Err(error) => return Err(error.to_string()),
        }
        tries += 1;
    };
    memfd::free_pages(memory.as_fd(), 4 << 20).unwrap();
    let (at, len) = (session.welcome.rings, session.welcome.memory as usize);
    let rings = UntrustedMem::from_memfd(session.rings, len).unwrap();
    let mut tx = Producer::new(Mapped::<Desc>::new(&rings, &at.tx, 1024).unwrap());
    let mut completion = Consumer::new(Mapped::<u64>::new(&rings, &at.completion, 1024).unwrap());
    let kick = towpath_sys::EventFd::from(session.kick);
    for chunk in 0..1024 {
        tx.write(Desc { addr: chunk * CHUNK, len: 60, options: 0 });
    }
    tx.submit();
    let (mut done, end) = (0, Instant::now() + support::LONGEST);
    while done < 1024 && Instant::now() < end {
        if tx.ring().needs_wakeup() {
            kick.signal();
        }
        let n = completion.peek(1024);
        (0..n).for_each(|_| _ = completion.read());
        completion.release();
        done += n;
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

#[test]
fn memory_of_applications_never_costs_the_datapath_its_life() {
    const NAME: &str = "memory_of_applications_never_costs_the_datapath_its_life";
    if !needs(NAME, &[Need::Root, Need::Program("sh")]) {
        return;
    }
    let Some(group) = Group::new(LIMIT) else { return skip(NAME, "no control group with a limit of memory") };
    let stage = Stage::new();
    // Copies: the datapath reads the pages.
    let port = format!("sock:{}?mode=666,tx=copy", stage.socket());
    let mut command = group.command(env!("CARGO_BIN_EXE_towpath"));
    command.args(["fwd", &port, "null:", "--buffers", "2048"]);
    let mut towpath = Towpath::start_by(command.stdin(Stdio::null()));
    let neighbour = stage.play(HONEST, "honest");
    neighbour.says("completed");
    let why = stage.play(GREEDY, "sparse").says("refused");
    assert!(why.starts_with("no page at byte 0"), "{why}");
    let greedy = stage.play(GREEDY, "frees");
    let refused = greedy.says("refused");
    // One memory of 4 MiB is left on the account, of 7.5 MiB that a user may have.
    assert!(refused.starts_with("1 ") && refused.contains("(user-memory=7864320)"), "{refused}");
    for _ in 0..3 {
        neighbour.says("completed");
    }
    assert!(!towpath.has_ended());
    assert!(towpath.look().happened("sessions-refused") >= 2);
    if let Some(peak) = group.peak() {
        assert!(peak < LIMIT, "{peak} bytes");
    }
    drop((neighbour, greedy));
    let summary = towpath.stop().summary();
    summary.is_balanced();
    let of = |user: Option<u32>, resource: &str| {
        let row = summary.users.iter().find(|usage| usage.user == user && usage.resource == resource);
        row.map(|usage| (usage.now, usage.peak)).unwrap()
    };
    assert_eq!(of(Some(GREEDY), "memory"), (4 << 20, 4 << 20));
    assert_eq!((of(Some(HONEST), "memory"), of(Some(HONEST), "sessions").1), ((0, 256 * 2048), 1));
    assert_eq!(of(None, "memory").0, 4 << 20);
}
