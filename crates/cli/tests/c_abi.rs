//! C programs for AF_XDP on application sockets: linked with `libtowpath_xdp.so`, or with libxdp
//! and a preloaded `libtowpath_xdp.so`.

mod support;
#[path = "../../xdp-abi/tests/support/mod.rs"]
mod xdp_abi;

use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use support::traffic::Background;
use support::victims::{Victims, was_busy_and_is_unharmed};
use support::{LONGEST, Namespace, Need, Summary, Towpath, needs, until};
use towpath_client::{Config, Socket, Umem};
use xdp_abi::{Linkage, Program, Programs};

/// The URI of a socket port in the directory of the programs, accessible to every user, and the
/// value of `TOWPATH_XDP`.
fn port(programs: &Programs, name: &str) -> (String, String) {
    let path = programs.path(name);
    (format!("sock:{}?mode=666", path.display()), format!("{name}={}", path.display()))
}

/// Sets the flag when it goes out of scope, also after a panic.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns every frame unchanged, in this process, until `stop` is set.
fn echo(path: &Path, stop: &AtomicBool) {
    let umem = Umem::new(1024, 2048).unwrap();
    let mut socket = Socket::connect(&umem, path, &Config::default()).unwrap();
    let mut empty: Vec<_> = std::iter::from_fn(|| umem.alloc()).take(512).collect();
    let mut frames = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        socket.completions(&mut empty).unwrap();
        socket.fill(&mut empty).unwrap();
        if socket.rx(&mut frames).unwrap() == 0 && frames.is_empty() {
            socket.wait(Some(Duration::from_millis(100))).unwrap();
        }
        socket.tx(&mut frames).unwrap();
    }
}

/// Waits for the end of a program, which must succeed.
#[track_caller]
fn succeeds(mut child: Background) {
    let end = Instant::now() + LONGEST;
    let status = loop {
        if let Some(status) = child.0.try_wait().unwrap() {
            break status;
        }
        assert!(Instant::now() < end, "the program does not end");
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(status.success(), "{status}");
}

/// Compiles `tests/c/NAME.c` in both ways and runs each program on port `a` of a datapath whose
/// other end is an echo.
fn beside_an_echo(name: &str, run: impl Fn(&Program, &str)) -> Summary {
    let programs = Programs::new();
    let ((a, sockets), (b, _)) = (port(&programs, "a"), port(&programs, "b"));
    let towpath = Towpath::start(&["fwd", &a, &b, "--gro", "off"]);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| echo(&programs.path("b"), &stop));
        for link in [Linkage::Ours, Linkage::Libxdp] {
            run(&programs.compile(name, link), &sockets);
        }
    });
    let summary = towpath.stop().code(0).summary();
    summary.is_balanced();
    summary
}

#[test]
fn a_c_program_talks_to_a_rust_program_and_every_byte_arrives() {
    if !xdp_abi::can_compile("a_c_program_talks_to_a_rust_program_and_every_byte_arrives") {
        return;
    }
    let summary = beside_an_echo("traffic", |program, sockets| {
        succeeds(Background::start(&mut program.command(sockets, &["talk", "a", "2000"])));
    });
    assert!(summary.balance.sent >= 8000, "{summary:#?}");
}

#[test]
fn two_c_programs_talk_and_the_one_that_waits_ends_with_the_datapath() {
    if !xdp_abi::can_compile("two_c_programs_talk_and_the_one_that_waits_ends_with_the_datapath") {
        return;
    }
    let programs = Programs::new();
    let ((a, at_a), (b, at_b)) = (port(&programs, "a"), port(&programs, "b"));
    let towpath = Towpath::start(&["fwd", &a, &b, "--gro", "off"]);
    let program = programs.compile("traffic", Linkage::Libxdp);
    let echo = Background::start(&mut program.command(&at_b, &["echo", "b"]));
    succeeds(Background::start(&mut program.command(&at_a, &["talk", "a", "3000"])));
    towpath.stop().code(0).summary().is_balanced();
    succeeds(echo);
}

#[test]
fn two_sockets_of_one_memory_pass_frames_from_one_datapath_to_another() {
    if !xdp_abi::can_compile("two_sockets_of_one_memory_pass_frames_from_one_datapath_to_another") {
        return;
    }
    let programs = Programs::new();
    let [(a, at_a), (b, at_b), (c, at_c), (d, at_d)] = ["a", "b", "c", "d"].map(|name| port(&programs, name));
    let here = Towpath::start(&["fwd", &a, &b, "--gro", "off"]);
    let there = Towpath::start(&["fwd", &c, &d, "--gro", "off"]);
    let bridge = programs.compile("bridge", Linkage::Ours);
    let bridge = Background::start(&mut bridge.command(&format!("{at_b},{at_c}"), &["b", "c"]));
    let program = programs.compile("traffic", Linkage::Ours);
    let echo = Background::start(&mut program.command(&at_d, &["echo", "d"]));
    succeeds(Background::start(&mut program.command(&at_a, &["talk", "a", "2000"])));
    here.stop().code(0).summary().is_balanced();
    succeeds(bridge);
    there.stop().code(0).summary().is_balanced();
    succeeds(echo);
}

#[test]
fn a_c_program_returns_datagrams_of_the_kernel_through_a_tap() {
    require!("a_c_program_returns_datagrams_of_the_kernel_through_a_tap", "socat");
    if !xdp_abi::can_compile("a_c_program_returns_datagrams_of_the_kernel_through_a_tap") {
        return;
    }
    let (programs, ns) = (Programs::new(), Namespace::new("c-abi"));
    let (a, sockets) = port(&programs, "a");
    let tap = format!("tap:e0?netns={},addr=10.0.0.1/24", ns.name());
    let towpath = Towpath::start(&["fwd", &a, &tap]);
    for link in [Linkage::Ours, Linkage::Libxdp] {
        let program = programs.compile("traffic", link);
        let _host = Background::start(&mut program.command(&sockets, &["host", "a"]));
        let sent = "x".repeat(1400);
        until("an answer", || {
            let ask = format!("printf {sent} | ip netns exec {} socat -t 1 - UDP4:10.0.0.2:7", ns.name());
            support::run(Command::new("sh").args(["-c", &ask])).stdout == sent.as_bytes()
        });
    }
    towpath.stop().code(0).summary().is_balanced();
}

#[test]
fn invalid_requests_are_refused_and_nothing_is_lost() {
    if !xdp_abi::can_compile("invalid_requests_are_refused_and_nothing_is_lost") {
        return;
    }
    let programs = Programs::new();
    let ((a, sockets), (b, _)) = (port(&programs, "there"), port(&programs, "b"));
    let towpath = Towpath::start(&["fwd", &a, &b]);
    let sockets = format!("{sockets},nobody=/nonexistent/socket");
    let program = programs.compile("refusals", Linkage::Ours);
    let output = support::run(&mut program.command(&sockets, &["there"]));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    assert!(err.contains("xsk_socket__create: /nonexistent/socket: connect"), "{err}");
    towpath.stop().code(0).summary().is_balanced();
}

#[test]
fn errors_of_a_program_are_counted_and_reported_by_its_socket() {
    if !xdp_abi::can_compile("errors_of_a_program_are_counted_and_reported_by_its_socket") {
        return;
    }
    let summary = beside_an_echo("options", |program, sockets| {
        // The previous program may still be disconnecting.
        until("answers to what is asked", || {
            let output = support::run(&mut program.command(sockets, &["a"]));
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success() || text.starts_with("Device or resource busy"), "{text}");
            output.status.success()
        });
    });
    assert_eq!(summary.happened("descriptors-skipped"), 12, "{summary:#?}");
}

#[test]
fn metadata_of_a_c_program_completes_a_checksum_and_is_refused_for_what_is_not_possible() {
    if !xdp_abi::can_compile("metadata_of_a_c_program_completes_a_checksum_and_is_refused_for_what_is_not_possible") {
        return;
    }
    let programs = Programs::new();
    let ((a, sockets), (b, _)) = (port(&programs, "a"), port(&programs, "b"));
    let towpath = Towpath::start(&["fwd", &a, &b, "--gro", "off"]);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| echo(&programs.path("b"), &stop));
        // Debian's libxdp does not have these functions, so there is nothing to link with.
        let output = support::run(&mut programs.compile("metadata", Linkage::Ours).command(&sockets, &["a"]));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    });
    let summary = towpath.stop().code(0).summary();
    summary.is_balanced();
    assert_eq!(summary.happened("descriptors-skipped"), 4, "{summary:#?}");
}

/// The number of lines of standard error that begin so.
fn sentences(output: &Output, begin: &str) -> usize {
    String::from_utf8_lossy(&output.stderr).lines().filter(|line| line.starts_with(begin)).count()
}

#[test]
fn what_takes_a_privilege_with_the_kernel_is_answered_without_one_or_refused_in_a_sentence() {
    let name = "what_takes_a_privilege_with_the_kernel_is_answered_without_one_or_refused_in_a_sentence";
    if !xdp_abi::can_compile(name) {
        return;
    }
    let programs = Programs::new();
    let (a, _) = port(&programs, "a");
    // An interface that exists, for which the datapath stands.
    let sockets = format!("lo={}", programs.path("a").display());
    for link in [Linkage::Ours, Linkage::Libxdp] {
        let towpath = Towpath::start(&["fwd", &a, "null:"]);
        let program = programs.compile("privileges", link);
        let output = support::run(&mut program.command(&sockets, &["lo"]));
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{out}\n{err}");
        for begin in ["xdp_program__attach: packets of lo", "xdp_program__attach_multi: ", "socket: the program makes"]
        {
            assert_eq!(sentences(&output, &format!("libtowpath_xdp: {begin}")), 1, "{begin}: {err}");
        }
        towpath.stop().code(0).summary().is_balanced();
    }
}

#[test]
fn a_map_of_the_kernel_takes_no_socket_and_a_sentence_gives_the_reason() {
    let name = "a_map_of_the_kernel_takes_no_socket_and_a_sentence_gives_the_reason";
    if !needs(name, &[Need::Root]) || !xdp_abi::can_compile(name) {
        return;
    }
    let programs = Programs::new();
    let (a, _) = port(&programs, "a");
    let towpath = Towpath::start(&["fwd", &a, "null:"]);
    let mut program = programs.compile("privileges", Linkage::Libxdp).privileged();
    program.args(["map", "lo"]).env("TOWPATH_XDP", format!("lo={}", programs.path("a").display()));
    let output = support::run(&mut program);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert_eq!(sentences(&output, "libtowpath_xdp: bpf_map_update_elem: the kernel takes no"), 1, "{output:?}");
    towpath.stop().code(0).summary().is_balanced();
}

/// Arguments of DPDK: private memory, chunks within pages of 4 KiB, two threads on one core, `lo`
/// as the interface name.
const TESTPMD: &str = "--lcores 0@0,1@0 -n 1 --no-huge -m 128 --no-pci --no-shconf --no-telemetry \
    --vdev net_af_xdp0,iface=lo,busy_budget=0 -- \
    --forward-mode=io --total-num-mbufs=8192 --mbuf-size=3904 --no-mlockall";

#[test]
fn dpdk_returns_every_frame_without_root_and_without_an_interface_of_the_kernel() {
    let name = "dpdk_returns_every_frame_without_root_and_without_an_interface_of_the_kernel";
    if !needs(name, &[Need::Program("dpdk-testpmd"), Need::Program("unshare")]) || !xdp_abi::can_compile(name) {
        return;
    }
    // DPDK sets flags of its interface, so it gets the loopback of a private namespace.
    let own_network = |program: &str| {
        let mut command = xdp_abi::unprivileged(Path::new("unshare"));
        command.args(["--user", "--map-root-user", "--net", "--", program]);
        command
    };
    let has_one = own_network("true").status().is_ok_and(|status| status.success());
    if !xdp_abi::is_there(name, "network of one's own without root", has_one) {
        return;
    }
    let programs = Programs::new();
    let ((a, _), (b, at_b)) = (port(&programs, "a"), port(&programs, "b"));
    let towpath = Towpath::start(&["fwd", &format!("{a},umem=512M"), &b, "--gro", "off"]);
    let mut testpmd = own_network("dpdk-testpmd");
    testpmd.args(TESTPMD.split_whitespace());
    testpmd.env("TOWPATH_XDP", format!("lo={}", programs.path("a").display())).env("TOWPATH_XDP_UMEM", "replace");
    testpmd.env("LD_PRELOAD", programs.library()).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let testpmd = Background(testpmd.spawn().unwrap());
    let talk = programs.compile("traffic", Linkage::Ours);
    succeeds(Background::start(&mut talk.command(&at_b, &["talk", "b", "2000"])));
    drop(testpmd);
    let summary = towpath.stop().code(0).summary();
    summary.is_balanced();
    assert!(summary.balance.sent >= 4000, "{summary:#?}");
}

#[test]
fn killing_c_programs_at_any_moment_affects_no_other_and_loses_no_page() {
    const KILLS: u64 = 50;
    if !xdp_abi::can_compile("killing_c_programs_at_any_moment_affects_no_other_and_loses_no_page") {
        return;
    }
    let programs = Programs::new();
    let ((a, at_a), (b, at_b)) = (port(&programs, "a"), port(&programs, "b"));
    let mut towpath = Towpath::start(&["fwd", &a, &b, "--gro", "off"]);
    let program = Rc::new(programs.compile("traffic", Linkage::Ours));
    let flooder = |sockets: &str, name: &'static str| -> Box<dyn Fn() -> Command> {
        let (program, sockets) = (program.clone(), sockets.to_owned());
        Box::new(move || program.command(&sockets, &["flood", name]))
    };
    Victims::new([flooder(&at_a, "a"), flooder(&at_b, "b")]).are_killed(KILLS, &mut towpath);
    // The datapath still serves the next programs. They are refused, or receive from the middle of
    // the stream, until the last ones are gone.
    let start = |at: &str, args: &[&str]| Background::start(program.command(at, args).stderr(Stdio::null()));
    let (mut echo, mut talk) = (start(&at_b, &["echo", "b"]), start(&at_a, &["talk", "a", "1000"]));
    let end = Instant::now() + LONGEST;
    loop {
        if echo.0.try_wait().unwrap().is_some() {
            echo = start(&at_b, &["echo", "b"]);
        }
        match talk.0.try_wait().unwrap() {
            Some(status) if status.success() => break,
            Some(_) => talk = start(&at_a, &["talk", "a", "1000"]),
            None => std::thread::sleep(Duration::from_millis(5)),
        }
        assert!(Instant::now() < end, "the sockets exchange no frame");
    }
    was_busy_and_is_unharmed(&towpath.stop().code(0).summary(), KILLS);
    succeeds(echo);
}

/// Returns every datagram to port 7 of a namespace to its sender, in this process, until `stop` is
/// set.
fn return_datagrams(ns: &Namespace, stop: &AtomicBool) {
    let file = std::fs::File::open(Path::new("/run/netns").join(ns.name())).unwrap();
    // SAFETY: no pointers; the thread ends with this function.
    let entered = unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) };
    assert_eq!(entered, 0, "{}", std::io::Error::last_os_error());
    let socket = std::net::UdpSocket::bind("0.0.0.0:7").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let mut bytes = [0; 2048];
    while !stop.load(Ordering::Relaxed) {
        if let Ok((n, from)) = socket.recv_from(&mut bytes) {
            // A full queue is not an error of this socket.
            let _ = socket.send_to(&bytes[..n], from);
        }
    }
}

#[test]
fn killing_c_programs_that_talk_to_a_socket_of_the_kernel_affects_no_other_and_loses_no_page() {
    const KILLS: u64 = 50;
    require!("killing_c_programs_that_talk_to_a_socket_of_the_kernel_affects_no_other_and_loses_no_page", "ip");
    if !xdp_abi::can_compile(
        "killing_c_programs_that_talk_to_a_socket_of_the_kernel_affects_no_other_and_loses_no_page",
    ) {
        return;
    }
    let (programs, ns) = (Programs::new(), Namespace::new("c-kill"));
    let (a, at_a) = port(&programs, "a");
    let tap = format!("tap:e0?netns={},addr=10.0.0.1/24", ns.name());
    let mut towpath = Towpath::start(&["fwd", &a, &tap]);
    support::succeed(&mut ns.command("ip", "neigh add 10.0.0.2 lladdr 02:00:00:00:00:09 dev e0"));
    let (program, stop) = (Rc::new(programs.compile("traffic", Linkage::Ours)), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| return_datagrams(&ns, &stop));
        let callers = ["1000", "1001", "1002"].map(|number| -> Box<dyn Fn() -> Command> {
            let (program, sockets) = (program.clone(), format!("{at_a}?match=udp dport {number}"));
            Box::new(move || program.command(&sockets, &["call", "a", number]))
        });
        Victims::new(callers).are_killed(KILLS, &mut towpath);
        // The next one is answered as well.
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(LONGEST)).unwrap();
        let mut next = program.command(&format!("{at_a}?match=udp dport 1003"), &["call", "a", "1003"]);
        let _next = Background::start(next.stdout(Stdio::null()).stderr(OwnedFd::from(theirs)));
        let mut byte = [0];
        ours.read_exact(&mut byte).unwrap();
        assert_eq!(byte, *b"!");
    });
    was_busy_and_is_unharmed(&towpath.stop().code(0).summary(), KILLS);
}
