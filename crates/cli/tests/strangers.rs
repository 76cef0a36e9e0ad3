//! Applications of other users beside an honest one: they delay neither it nor the end of the
//! command, and get no more than their limits. `cargo bench -p towpath-cli --bench neighbours`
//! measures what they take.

mod support;

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use support::process::{self, is_quiet};
use support::strangers::{self, Stranger};
use support::{Finished, Towpath, until};
use towpath_client::protocol::{Answer, Hello};
use towpath_client::{Config, Frame, Session, Socket, Umem};
use towpath_sys::seqpacket;
use towpath_testing::{lingering, sealed_memory, silent_file, skip};

/// The environment variable that makes a process of this test binary the stranger: the path of the
/// socket.
const SOCKET: &str = "TOWPATH_TEST_STRANGER";

/// The user of the stranger: nobody.
const NOBODY: u32 = 65534;

/// Records with descriptors on connections that are closed at once.
const CROWD: usize = 2000;

#[test]
fn a_process_is_a_stranger() {
    let Ok(path) = std::env::var(SOCKET) else { return };
    let path = Path::new(&path);
    let mount = tempfile::tempdir().unwrap();
    let (silent, (near, _far)) = (silent_file(mount.path()).unwrap(), lingering());
    // SAFETY: no pointers.
    assert!(unsafe { libc::setresgid(NOBODY, NOBODY, NOBODY) == 0 && libc::setresuid(NOBODY, NOBODY, NOBODY) == 0 });
    let memory = sealed_memory(16 * 2048);
    let hello = Hello { umem: 16 * 2048, one_descriptor: true, ..Hello::default() };
    let hello = Hello { rules: "udp dport 9".to_owned(), ..hello };
    // As a kick, and behind the message.
    let session = Session::open(path, &hello, memory.as_fd()).unwrap();
    let _ = seqpacket::send(session.kick.as_fd(), &[], &[near.as_fd()]);
    let _ = seqpacket::send(session.connection.as_fd(), b"more", &[silent.file.as_fd()]);
    // In the message, with an answer or without one.
    for file in [silent.file.as_fd(), near.as_fd()] {
        for _ in 0..8 {
            let connection = seqpacket::connect(path).unwrap();
            seqpacket::send(connection.as_fd(), &hello.encode(), &[file]).unwrap();
            let _ = seqpacket::receive(connection.as_fd(), &mut [0; Answer::LONGEST]);
        }
    }
    for _ in 0..CROWD {
        let connection = seqpacket::connect(path).unwrap();
        let _ = seqpacket::send(connection.as_fd(), b"what?", &[near.as_fd()]);
        let _ = seqpacket::send(connection.as_fd(), b"more", &[near.as_fd()]);
    }
    std::io::stderr().write_all(b"!").unwrap();
    // Until the test closes the pipe.
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// Sends a frame, and waits until it has left.
fn sends_a_frame(umem: &Umem, socket: &mut Socket) {
    let mut frame: Frame = umem.alloc().unwrap();
    assert!(frame.put(&[0xff; 60]));
    let mut frames = vec![frame];
    assert_eq!(socket.tx(&mut frames).unwrap(), 1);
    until("the frame is back", || {
        socket.wait(Some(Duration::from_millis(10))).unwrap();
        socket.completions(&mut frames).unwrap() == 1
    });
}

/// Processes that the command started and that have not ended.
fn children(pid: u32) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let list = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
    tasks.map(|task| list(task).split_whitespace().count()).sum()
}

#[test]
fn descriptors_that_do_not_close_delay_no_other_user_and_not_the_end() {
    let name = "descriptors_that_do_not_close_delay_no_other_user_and_not_the_end";
    require!("descriptors_that_do_not_close_delay_no_other_user_and_not_the_end",);
    if !Path::new("/dev/fuse").exists() {
        return skip(name, "there is no /dev/fuse");
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = dir.path().join("s").to_str().unwrap().to_owned();
    let towpath = Towpath::start(&["fwd", &format!("sock:{path}?mode=666"), "null:"]);
    let umem = Umem::new(64, 2048).unwrap();
    let mut honest = Socket::connect(&umem, &path, &Config::default()).unwrap();
    sends_a_frame(&umem, &mut honest);
    let mut stranger = Command::new(std::env::current_exe().unwrap());
    stranger.args(["--exact", "a_process_is_a_stranger", "--nocapture"]).env(SOCKET, &path);
    let mut stranger = stranger.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut word, mut rest) = ([0], String::new());
    let output = stranger.stderr.as_mut().unwrap();
    output.read_exact(&mut word).unwrap();
    if word != *b"!" {
        output.read_to_string(&mut rest).unwrap();
        panic!("the stranger failed: {rest}");
    }
    // Four of them hang, and no more: the others of its user are not examined.
    until("the others have ended", || children(towpath.pid()) == 4);
    sends_a_frame(&umem, &mut honest);
    let other = Umem::new(64, 2048).unwrap();
    let rules = Config::default().rules(vec!["udp dport 1".to_owned()]);
    sends_a_frame(&other, &mut Socket::connect(&other, &path, &rules).unwrap());
    let files = std::fs::read_dir(format!("/proc/{}/fd", towpath.pid())).unwrap().count();
    assert!(files < 64, "{files} open files");
    let summary = towpath.stop().code(0).summary();
    summary.is_balanced();
    drop(stranger.stdin.take());
    assert!(stranger.wait().unwrap().success());
}

/// Strangers of the same and of different users.
const USERS: [u32; 2] = [NOBODY, NOBODY - 2];

#[test]
fn a_process_plays_a_stranger() {
    strangers::play(|| ());
}

/// A datapath that all users can connect to, with an honest session.
struct SharedDatapath {
    towpath: Towpath,
    path: String,
    _directory: tempfile::TempDir,
}

impl SharedDatapath {
    fn new(options: &str) -> SharedDatapath {
        let directory = tempfile::tempdir().unwrap();
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let path = directory.path().join("s").to_str().unwrap().to_owned();
        let towpath = Towpath::start(&["fwd", &format!("sock:{path}?mode=666{options}"), "null:"]);
        SharedDatapath { towpath, path, _directory: directory }
    }

    fn stranger(&self, user: u32, role: &str) -> Stranger {
        Stranger::start(user, role, &self.path, "a_process_plays_a_stranger")
    }

    /// A stranger that gets so much, once all that ended before is off the accounts.
    fn stranger_with(&self, user: u32, role: &str, got: &str) -> Stranger {
        let mut stranger = None;
        until(&format!("{got} of {role} for user {user}"), || {
            drop(stranger.take());
            stranger.insert(self.stranger(user, role)).ready() == got
        });
        stranger.unwrap()
    }

    /// Ends the datapath as `^C` does, whatever the strangers do.
    fn interrupt(self) -> Finished {
        self.towpath.signal(libc::SIGINT);
        self.towpath.wait().code(0)
    }
}

#[test]
fn sessions_and_rules_of_other_users_stop_at_their_limits_and_leave_room_for_others() {
    require!("sessions_and_rules_of_other_users_stop_at_their_limits_and_leave_room_for_others",);
    let shared = SharedDatapath::new("");
    let (umem, other) = (Umem::new(64, 2048).unwrap(), Umem::new(64, 2048).unwrap());
    let config = Config::default().rules(vec!["udp dport 1".to_owned()]);
    let mut honest = Socket::connect(&umem, &shared.path, &config).unwrap();
    let connect = || Socket::connect(&other, &shared.path, &Config::default().rules(vec!["udp dport 2".to_owned()]));
    // Half of all is one user's; the other one gets what is left.
    for (role, got) in [("sessions 64", ["32", "31"]), ("rules 512", ["256", "255"])] {
        let first = shared.stranger_with(USERS[0], role, got[0]);
        drop(connect().unwrap());
        let second = shared.stranger_with(USERS[1], role, got[1]);
        sends_a_frame(&umem, &mut honest);
        assert!(connect().is_err(), "{role}: there is no room");
        let (kib, files) = (process::memory(shared.towpath.pid()).1, process::files(shared.towpath.pid()));
        assert!(kib < 128 << 10 && files < 64 * 6, "{role}: {kib} KiB, {files} open files");
        drop(second);
        until("room for an honest session", || connect().is_ok());
        drop(first);
    }
    let summary = shared.interrupt().summary();
    summary.is_balanced();
    for usage in &summary.users {
        assert!(usage.peak <= usage.limit, "{usage:?}");
    }
}

#[test]
fn a_flood_by_forty_sessions_of_another_user_takes_no_frame_of_an_honest_one() {
    require!("a_flood_by_forty_sessions_of_another_user_takes_no_frame_of_an_honest_one",);
    let shared = SharedDatapath::new(",sessions=128");
    let umem = Umem::new(64, 2048).unwrap();
    let mut honest = Socket::connect(&umem, &shared.path, &Config::default()).unwrap();
    let flood = shared.stranger(NOBODY, "flood 40");
    flood.ready();
    for _ in 0..500 {
        sends_a_frame(&umem, &mut honest);
    }
    let statistics = honest.statistics();
    assert_eq!((statistics.tx_invalid_descs, statistics.tx_too_short), (0, 0));
    let summary = shared.interrupt().summary();
    summary.is_balanced();
    assert!(summary.port("null").tx.packets > 10_000 + 500 && summary.balance.drops.is_empty(), "{summary:#?}");
    let sessions = summary.users.iter().find(|usage| usage.user == Some(NOBODY) && usage.resource == "sessions");
    assert_eq!(sessions.unwrap().peak, 40);
}

/// Connections that are accepted at once, and each second after them.
const PACE: (u64, f64) = (128, 500.0);

#[test]
fn an_application_that_connects_without_end_is_served_at_a_pace_and_keeps_no_other_out() {
    require!("an_application_that_connects_without_end_is_served_at_a_pace_and_keeps_no_other_out",);
    let mut shared = SharedDatapath::new("");
    let begun = Instant::now();
    let _strangers = ["opath", "hello", "kicks"].map(|role| shared.stranger(NOBODY, role));
    until("many refusals", || shared.towpath.look().happened("sessions-refused") > 800);
    let refused = shared.towpath.look().happened("sessions-refused");
    let most = PACE.0 + (begun.elapsed().as_secs_f64() * PACE.1) as u64 + 1;
    assert!(refused <= most, "{refused} connections were examined, of {most}");
    let umem = Umem::new(64, 2048).unwrap();
    sends_a_frame(&umem, &mut Socket::connect(&umem, &shared.path, &Config::default()).unwrap());
    shared.interrupt().summary().is_balanced();
}

#[test]
fn full_rings_and_lines_that_were_shut_leave_a_datapath_that_sleeps() {
    require!("full_rings_and_lines_that_were_shut_leave_a_datapath_that_sleeps",);
    let shared = SharedDatapath::new("");
    let umem = Umem::new(64, 2048).unwrap();
    let mut honest = Socket::connect(&umem, &shared.path, &Config::default()).unwrap();
    let strangers = [("starved", USERS[0]), ("shut", USERS[1]), ("sessions 8", USERS[1])];
    let strangers = strangers.map(|(role, user)| shared.stranger(user, role));
    for stranger in &strangers {
        stranger.ready();
    }
    for _ in 0..100 {
        sends_a_frame(&umem, &mut honest);
    }
    // Their rings and lines stay as they are.
    strangers.iter().for_each(|stranger| stranger.signal(libc::SIGSTOP));
    until("it sleeps", || is_quiet(shared.towpath.pid()));
    sends_a_frame(&umem, &mut honest);
    strangers.iter().for_each(|stranger| stranger.signal(libc::SIGCONT));
    shared.interrupt().summary().is_balanced();
}

#[test]
fn a_session_ends_with_the_line_of_its_kicks_though_its_process_keeps_all_else() {
    require!("a_session_ends_with_the_line_of_its_kicks_though_its_process_keeps_all_else",);
    let mut shared = SharedDatapath::new(",sessions=4,user-sessions=4");
    let stranger = shared.stranger(NOBODY, "hangs-up 4");
    assert_eq!(stranger.ready(), "4");
    stranger.signal(libc::SIGSTOP);
    until("the sessions have ended", || shared.towpath.look().happened("sessions-ended") == 4);
    until("it sleeps", || is_quiet(shared.towpath.pid()));
    // There is room for four others.
    let umems = [(); 4].map(|()| Umem::new(64, 2048).unwrap());
    let config = Config::default().rules(vec!["udp dport 1".to_owned()]);
    let mut others = umems.each_ref().map(|umem| Socket::connect(umem, &shared.path, &config).unwrap());
    for (umem, other) in umems.iter().zip(&mut others) {
        sends_a_frame(umem, other);
    }
    stranger.signal(libc::SIGCONT);
    let summary = shared.interrupt().summary();
    summary.is_balanced();
    let sessions = summary.users.iter().find(|usage| usage.user == Some(NOBODY) && usage.resource == "sessions");
    assert!(sessions.is_some_and(|usage| (usage.now, usage.peak) == (0, 4)), "{summary:#?}");
}
