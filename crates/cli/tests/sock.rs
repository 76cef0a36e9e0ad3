//! Applications as separate processes: two that talk through the datapath, one that talks to the
//! kernel, and some that are killed.

mod support;

use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use support::victims::{Victims, was_busy_and_is_unharmed};
use support::{Namespace, Summary, Towpath, until};
use towpath_client::{Config, Frame, Socket, Umem};

/// The environment variable that gives a process of this test binary its role.
const ROLE: &str = "TOWPATH_TEST_ROLE";

/// This binary, to be started for a role: its name, the path of a socket, and perhaps rules for the
/// packets that it receives.
fn actor(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "a_process_plays_its_role", "--nocapture"]).env(ROLE, role);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Starts a process with a role on the socket at `path`.
fn play(role: &str, path: &str) -> Child {
    actor(&format!("{role} {path}")).spawn().unwrap()
}

#[test]
fn a_process_plays_its_role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let mut words = role.splitn(3, ' ');
    let (role, path) = (words.next().unwrap(), words.next().unwrap());
    let umem = Umem::new(1024, 2048).unwrap();
    let config = Config::default().rules(vec![words.next().unwrap_or("default").to_owned()]);
    let mut socket = loop {
        match Socket::connect(&umem, path, &config) {
            Ok(socket) => break socket,
            // The previous process may still be disconnecting.
            Err(_) => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    match role {
        "echo" => echo(&umem, &mut socket),
        "talk" => talk(&umem, &mut socket),
        "host" => host(&umem, &mut socket),
        "send" => send(&umem, &mut socket),
        "flood" => flood(&umem, &mut socket),
        other => panic!("{other}"),
    }
}

/// Returns every frame unchanged.
fn echo(umem: &Umem, socket: &mut Socket) {
    respond(umem, socket, |_| true);
}

/// Answers ARP requests and pings as a host with the address 10.0.0.2.
fn host(umem: &Umem, socket: &mut Socket) {
    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
    respond(umem, socket, |frame| {
        let bytes = frame.bytes_mut();
        let is_arp =
            bytes.len() >= 42 && bytes[12..14] == [8, 6] && bytes[20..22] == [0, 1] && bytes[38..42] == [10, 0, 0, 2];
        let is_ping = bytes.len() >= 42 && bytes[12..15] == [8, 0, 0x45] && bytes[23] == 1 && bytes[34] == 8;
        if is_arp {
            let asking: [u8; 10] = bytes[22..32].try_into().unwrap();
            bytes[21] = 2;
            bytes[22..28].copy_from_slice(&MAC);
            bytes[28..32].copy_from_slice(&[10, 0, 0, 2]);
            bytes[32..42].copy_from_slice(&asking);
        } else if is_ping {
            let (from, to) = bytes[26..34].split_at_mut(4);
            from.swap_with_slice(to);
            bytes[34] = 0;
            // The type decreased by 8, so the checksum increases by 0x800
            // ([RFC 1624](https://www.rfc-editor.org/rfc/rfc1624)).
            let sum = u32::from(u16::from_be_bytes([bytes[36], bytes[37]])) + 0x800;
            bytes[36..38].copy_from_slice(&((sum & 0xffff) as u16 + (sum >> 16) as u16).to_be_bytes());
        }
        if is_arp || is_ping {
            bytes.copy_within(6..12, 0);
            bytes[6..12].copy_from_slice(&MAC);
        }
        is_arp || is_ping
    });
}

/// Sends the answers of `answer` to received frames until the session ends.
fn respond(umem: &Umem, socket: &mut Socket, answer: impl Fn(&mut Frame) -> bool) {
    let mut empty: Vec<_> = std::iter::from_fn(|| umem.alloc()).take(512).collect();
    let (mut frames, mut answers) = (Vec::new(), Vec::new());
    loop {
        socket.completions(&mut empty).unwrap();
        socket.fill(&mut empty).unwrap();
        if socket.rx(&mut frames).unwrap() == 0 && answers.is_empty() && socket.wait(None).is_err() {
            return;
        }
        for mut frame in frames.drain(..) {
            if answer(&mut frame) { answers.push(frame) } else { empty.push(frame) }
        }
        socket.tx(&mut answers).unwrap();
    }
}

/// Sends 2000 frames of all lengths, a window at a time, once the peer answers, and expects them
/// back; succeeds if all arrive and all are completed.
fn talk(umem: &Umem, socket: &mut Socket) {
    let mut empty: Vec<_> = std::iter::from_fn(|| umem.alloc()).take(512).collect();
    let (mut heard, mut next, mut seen) = (false, 0u32, 0u32);
    let (mut out, mut got, mut back, mut sent) = (Vec::new(), Vec::new(), Vec::new(), 0);
    let words = |n: u32| [b"talk", &*(0..56 + n * 7 % 1400).map(|i| (n + i) as u8).collect::<Vec<_>>()].concat();
    let say = |out: &mut Vec<_>, bytes: &[u8]| {
        let mut frame = umem.alloc().unwrap();
        assert!(frame.put(bytes));
        out.push(frame);
    };
    while seen < 2000 {
        if !heard && out.is_empty() {
            say(&mut out, b"is anybody there?");
        }
        while heard && next < 2000 && next - seen < 64 {
            say(&mut out, &words(next));
            next += 1;
        }
        sent += socket.tx(&mut out).unwrap();
        sent -= socket.completions(&mut back).unwrap();
        back.clear();
        socket.fill(&mut empty).unwrap();
        if socket.rx(&mut got).unwrap() == 0 {
            socket.wait(Some(Duration::from_millis(5))).unwrap();
        }
        for frame in got.drain(..) {
            heard |= frame.bytes().starts_with(b"is");
            // Frames of other tests are skipped.
            if frame.bytes().starts_with(b"talk") {
                assert_eq!(frame.bytes(), words(seen), "frame {seen}");
                seen += 1;
            }
            empty.push(frame);
        }
    }
    // Every frame comes back, and none twice.
    while sent > 0 {
        sent -= socket.completions(&mut back).unwrap();
        socket.wait(Some(Duration::from_millis(10))).unwrap();
    }
}

/// Frames that [`send`] sends.
const FRAMES: u32 = 500;

/// Sends some frames of all lengths, and waits until they have left.
fn send(umem: &Umem, socket: &mut Socket) {
    let mut out: Vec<_> = std::iter::from_fn(|| umem.alloc()).take(FRAMES as usize).collect();
    for (n, frame) in (0..).zip(&mut out) {
        assert!(frame.put(&vec![0xff; 60 + n * 7 % 1400]));
    }
    let mut back = Vec::new();
    while back.len() < FRAMES as usize {
        socket.tx(&mut out).unwrap();
        socket.completions(&mut back).unwrap();
        socket.wait(Some(Duration::from_millis(10))).unwrap();
    }
}

/// Sends as much as it can and takes all received frames; reports when the first frames have come
/// back.
fn flood(umem: &Umem, socket: &mut Socket) {
    let mut empty: Vec<_> = std::iter::from_fn(|| umem.alloc()).take(256).collect();
    let mut out: Vec<_> = std::iter::from_fn(|| umem.alloc()).collect();
    let (mut got, mut at_work) = (Vec::new(), false);
    for frame in &mut out {
        assert!(frame.put(&[9; 600]));
    }
    loop {
        socket.fill(&mut empty).unwrap();
        socket.rx(&mut got).unwrap();
        empty.append(&mut got);
        socket.tx(&mut out).unwrap();
        let begin = out.len();
        if socket.completions(&mut out).unwrap() == 0 {
            // Nothing moved: here the end of the session is noticed.
            let Ok(_) = socket.wait(Some(Duration::from_millis(1))) else { return };
            continue;
        }
        for frame in &mut out[begin..] {
            assert!(frame.set_range(0, 600));
        }
        if !std::mem::replace(&mut at_work, true) {
            std::io::stderr().write_all(b"!").unwrap();
        }
    }
}

/// Two sockets in a directory of their own.
fn paths() -> (tempfile::TempDir, String, String) {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (a, b) = (at("a"), at("b"));
    (dir, a, b)
}

#[test]
fn two_processes_talk_through_the_datapath_and_every_byte_arrives() {
    let (_dir, a, b) = paths();
    let towpath = Towpath::start(&["fwd", &format!("sock:{a}"), &format!("sock:{b}"), "--gro", "off"]);
    let mut echo = play("echo", &b);
    let talk = play("talk", &a).wait().unwrap();
    assert!(talk.success(), "{talk}");
    let summary = towpath.stop().code(0).summary();
    summary.is_balanced();
    assert!(summary.balance.sent >= 4000, "{summary:#?}");
    // The datapath has ended, and so has the application that waited for it.
    assert!(echo.wait().unwrap().success());
}

#[test]
fn a_process_answers_pings_of_the_kernel_through_a_tap() {
    require!("a_process_answers_pings_of_the_kernel_through_a_tap", "ping");
    let (_dir, a, _) = paths();
    let ns = Namespace::new("sock");
    let tap = format!("tap:e0?netns={},addr=10.0.0.1/24", ns.name());
    let towpath = Towpath::start(&["fwd", &format!("sock:{a}"), &tap]);
    let mut host = play("host", &a);
    let run = || support::run(&mut ns.command("ping", "-q -c 3 -i 0.2 -W 1 10.0.0.2")).status.success();
    until("an answer", run);
    let long = support::run(&mut ns.command("ping", "-q -c 3 -i 0.2 -W 1 -s 1400 10.0.0.2"));
    assert!(long.status.success(), "{long:?}");
    towpath.stop().code(0).summary().is_balanced();
    assert!(host.wait().unwrap().success());
}

/// A process that floods the socket at `path` and receives packets by some rules.
fn flooder(path: &str, rules: &str) -> Box<dyn Fn() -> Command> {
    let role = format!("flood {path} {rules}");
    Box::new(move || actor(&role))
}

/// Kills in each of the two tests.
const KILLS: u64 = 100;

#[test]
fn killing_applications_at_any_moment_affects_no_other_and_loses_no_page() {
    let (_dir, a, b) = paths();
    let mut towpath = Towpath::start(&["fwd", &format!("sock:{a}"), &format!("sock:{b}"), "--gro", "off"]);
    let places = [(&a, "default"), (&a, "udp dport 1"), (&b, "default"), (&b, "udp dport 1")];
    Victims::new(places.map(|(path, rules)| flooder(path, rules))).are_killed(KILLS, &mut towpath);
    // The datapath still serves the next application.
    let mut echo = play("echo", &b);
    assert!(play("talk", &a).wait().unwrap().success());
    let summary = towpath.stop().code(0).summary();
    was_busy_and_is_unharmed(&summary, KILLS);
    assert!(summary.balance.sent > 4000, "{summary:#?}");
    assert!(echo.wait().unwrap().success());
}

#[test]
fn killing_applications_that_talk_to_the_kernel_affects_no_other_and_loses_no_page() {
    require!("killing_applications_that_talk_to_the_kernel_affects_no_other_and_loses_no_page", "ping");
    let (_dir, a, _) = paths();
    let ns = Namespace::new("kill");
    let tap = format!("tap:e0?netns={},addr=10.0.0.1/24", ns.name());
    let mut towpath = Towpath::start(&["fwd", &format!("sock:{a}"), &tap]);
    // The kernel sends to the applications all the time.
    support::succeed(&mut ns.command("ip", "neigh add 10.0.0.2 lladdr 02:00:00:00:00:09 dev e0"));
    let mut pings = ns.command("ping", "-q -f -w 60 10.0.0.2").stdout(Stdio::null()).spawn().unwrap();
    let rules = ["default", "udp dport 1", "udp dport 2"];
    Victims::new(rules.map(|rules| flooder(&a, rules))).are_killed(KILLS, &mut towpath);
    pings.kill().unwrap();
    pings.wait().unwrap();
    let mut host = play("host", &a);
    let run = || support::run(&mut ns.command("ping", "-q -c 1 -W 1 10.0.0.2")).status.success();
    until("an answer", run);
    was_busy_and_is_unharmed(&towpath.stop().code(0).summary(), KILLS);
    assert!(host.wait().unwrap().success());
}

/// Sends an application's frames to an egress; returns the summary with the number of copied
/// packets.
fn send_to(egress: &str, options: &str) -> Summary {
    let (_dir, a, _) = paths();
    let towpath =
        Towpath::start(&["fwd", &format!("sock:{a}{options}"), egress, "--gro", "off", "--egress-wait", "30s"]);
    assert!(play("send", &a).wait().unwrap().success());
    let summary = towpath.stop().code(0).summary();
    summary.is_balanced();
    assert_eq!(summary.port(egress.split('?').next().unwrap()).tx.packets, u64::from(FRAMES), "{summary:#?}");
    assert_eq!(summary.pages, if options.is_empty() { u64::from(FRAMES) } else { 0 }, "{summary:#?}");
    summary
}

#[test]
fn pages_leave_untouched_by_a_tap_a_packet_socket_and_a_device() {
    require!("pages_leave_untouched_by_a_tap_a_packet_socket_and_a_device", "ip");
    let ns = Namespace::new("page");
    for step in ["link add v0 type veth peer name v1", "link set v0 up", "link set v1 up"] {
        assert!(support::run(&mut ns.command("ip", step)).status.success());
    }
    let tap = format!("tap:e0?netns={},addr=10.0.0.1/24", ns.name());
    let packet = format!("packet:v0?netns={}", ns.name());
    for egress in [tap.as_str(), packet.as_str(), "e1000e:model"] {
        assert_eq!(send_to(egress, "").copied, 0, "{egress}");
        assert_eq!(send_to(egress, "?tx=copy").copied, u64::from(FRAMES), "{egress}");
    }
}
