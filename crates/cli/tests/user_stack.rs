//! A stack in user space on `towpath serve`: the example's web server, as an ordinary user, and the
//! kernel as its client.

mod support;

#[path = "../../smoltcp/examples/http/server.rs"]
mod server;

use std::fs::Permissions;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;
use support::{Namespace, Towpath, until};
use towpath_smoltcp::{Config, Device};

/// The environment variable that makes a process of this test binary the server at a socket.
const SERVER: &str = "TOWPATH_TEST_SERVER";
/// A user without rights.
const USER: u32 = 65534;

#[test]
fn a_process_serves() {
    let Ok(path) = std::env::var(SERVER) else { return };
    let mut device = None;
    until("the datapath listens", || {
        device = Device::connect(&path, &Config::default()).ok();
        device.is_some()
    });
    let ended = server::serve(&mut device.unwrap(), "10.77.0.2/24".parse().unwrap(), Device::wait);
    eprintln!("{ended:?}");
}

/// What a request gets: the header, and the bytes behind it.
fn get(address: &str, path: &str) -> (String, Vec<u8>) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(format!("GET /{path} HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("a header") + 4;
    let body = answer.split_off(end);
    (String::from_utf8(answer).unwrap(), body)
}

#[test]
fn a_web_server_without_root_gives_the_kernel_every_byte_in_super_packets() {
    require!("a_web_server_without_root_gives_the_kernel_every_byte_in_super_packets", "ip");
    let near = Namespace::new("http");
    // The server's user must reach the socket.
    let directory = tempfile::tempdir_in("/tmp").unwrap();
    std::fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
    let path = directory.path().join("s");
    let tap = format!("tap:web0?netns={},addr=10.77.0.1/24", near.name());
    let towpath = Towpath::start(&["serve", &format!("{}?mode=666", path.display()), &tap]);
    let mut server = Command::new(std::env::current_exe().unwrap());
    server.args(["--exact", "a_process_serves", "--nocapture"]).env(SERVER, &path).uid(USER).gid(USER);
    let mut server = server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    const LEN: u64 = 8 << 20;
    near.inside(|| {
        until("the server answers", || TcpStream::connect("10.77.0.2:8080").is_ok());
        let (header, _) = get("10.77.0.2:8080", "nothing");
        assert!(header.starts_with("HTTP/1.1 404"), "{header}");
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let (header, body) = get("10.77.0.2:8080", &LEN.to_string());
                    assert!(header.starts_with("HTTP/1.1 200 OK"), "{header}");
                    assert_eq!(body.len() as u64, LEN);
                    let wrong = body.iter().zip(0..).position(|(byte, at)| *byte != server::byte(at));
                    assert_eq!(wrong, None, "the first byte that is not the one served");
                });
            }
        });
    });
    server.kill().unwrap();
    server.wait().unwrap();
    towpath.signal(libc::SIGTERM);
    let summary = towpath.wait().code(0).summary();
    let tap = &summary.port("tap").tx;
    assert!(tap.bytes > 2 * LEN && tap.packets < 2 * LEN / 4000, "no super-packets: {tap:?}");
    // What the kernel sent after the end of the server is dropped.
    summary.is_balanced();
}
