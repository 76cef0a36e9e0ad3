//! An application of another user that sends descriptors which are slow to close, beside honest ones:
//! it delays neither them nor the end of the command.

mod support;

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use support::{Towpath, until};
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
fn sends_a_frame<'u>(umem: &'u Umem, socket: &mut Socket<'u>) {
    let mut frame: Frame<'u> = umem.alloc().unwrap();
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
