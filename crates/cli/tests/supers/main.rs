//! Super-packets between the kernel and applications in separate processes: whole for applications
//! that ask for them, segmented for the others; and super-packets that applications send.

mod host;
mod roles;
#[path = "../support/mod.rs"]
mod support;

use host::MSS;
use roles::{DATAGRAM, DATAGRAMS, FRAME, SEGMENTS};
use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use support::{LONGEST, Namespace, Summary, Towpath, succeed, until};
use towpath_client::{Config, Socket, Umem};

/// The environment variable that gives a process of this test binary its role: its name, a
/// directory, the port that it listens on, and whether it asks for super-packets.
const ROLE: &str = "TOWPATH_TEST_ROLE";
/// The datapath's socket in that directory.
const SOCKET: &str = "s";
/// The file with the transmitted bytes.
const SAMPLE: &str = "sample";

/// Starts a process with a role.
fn play(role: &str, dir: &Path, port: u16, whole: bool) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "a_process_plays_its_role", "--nocapture"]);
    command.env(ROLE, format!("{role} {} {port} {whole}", dir.display()));
    command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap()
}

#[test]
fn a_process_plays_its_role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let words: Vec<_> = role.split(' ').collect();
    let (dir, port, whole) = (Path::new(words[1]), words[2], words[3] == "true");
    let umem = Umem::new(1024, 2048).unwrap();
    let config = Config::default()
        .headroom(if whole { 32 } else { 0 })
        .offloads(whole)
        .segmentation(words[0] == "give")
        .rules(vec![format!("tcp dport {port}"), format!("udp dport {port}")]);
    let connect = || Socket::connect(&umem, dir.join(SOCKET), &config).ok();
    let mut socket = None;
    until("a session", || {
        socket = connect();
        socket.is_some()
    });
    let socket = socket.unwrap();
    match words[0] {
        "take" => roles::take(&umem, socket, whole, &dir.join(port)),
        "give" => roles::give(&umem, socket, &std::fs::read(dir.join(SAMPLE)).unwrap()),
        other => panic!("{other}"),
    }
}

/// A directory, a namespace with the kernel's end, and random bytes.
struct Stage {
    dir: tempfile::TempDir,
    ns: Namespace,
    sample: Vec<u8>,
}

impl Stage {
    fn new(name: &str, bytes: usize) -> Stage {
        let dir = tempfile::tempdir().unwrap();
        succeed(
            Command::new("dd").args(["if=/dev/urandom", "bs=1M", "iflag=fullblock", "status=none"]).args([
                format!("count={}", bytes.div_ceil(1 << 20)),
                format!("of={}", dir.path().join(SAMPLE).display()),
            ]),
        );
        let sample = std::fs::read(dir.path().join(SAMPLE)).unwrap();
        Stage { dir, ns: Namespace::new(name), sample }
    }

    fn sock(&self) -> String {
        format!("sock:{}", self.dir.path().join(SOCKET).display())
    }

    /// The URI of a tap that is the kernel's interface `e0`.
    fn tap(&self) -> String {
        format!("tap:e0?netns={},addr=10.0.0.1/24", self.ns.name())
    }

    /// Adds the application to the kernel's neighbour table.
    fn introduce(&self) {
        let mac = host::MAC.map(|byte| format!("{byte:02x}")).join(":");
        self.ns.ip(&format!("neigh replace 10.0.0.2 lladdr {mac} dev e0"));
    }

    /// Starts an application that receives a stream.
    fn taker(&self, port: u16, whole: bool) -> Child {
        std::fs::create_dir(self.results(port)).unwrap();
        play("take", self.dir.path(), port, whole)
    }

    fn results(&self, port: u16) -> std::path::PathBuf {
        self.dir.path().join(port.to_string())
    }

    fn connect(&self, port: u16) -> TcpStream {
        let address = std::net::SocketAddr::from((host::IP, port));
        let stream = self.ns.inside(|| TcpStream::connect_timeout(&address, LONGEST)).expect("a server that answers");
        stream.set_read_timeout(Some(LONGEST)).unwrap();
        stream.set_write_timeout(Some(LONGEST)).unwrap();
        stream
    }

    /// The kernel sends the stream to an application; returns the length of the longest received
    /// packet.
    #[track_caller]
    fn send(&self, port: u16) -> usize {
        let mut stream = self.connect(port);
        stream.write_all(&self.sample).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(stream.read_to_end(&mut Vec::new()).unwrap(), 0, "it has nothing to say");
        let (results, took) = (self.results(port), self.results(port).join(roles::STREAM));
        until("the stream is written", || took.exists());
        assert!(std::fs::read(took).unwrap() == self.sample, "the received bytes are the sent ones");
        std::fs::read_to_string(results.join(roles::LONGEST)).unwrap().parse().unwrap()
    }
}

/// Ends the datapath and with it its applications, which must succeed.
fn end(towpath: Towpath, applications: &mut [Child]) -> Summary {
    let summary = towpath.stop().code(0).summary();
    summary.is_balanced();
    for application in applications {
        assert!(application.wait().unwrap().success());
    }
    summary
}

#[test]
fn super_packets_of_the_kernel_arrive_whole_where_enabled_and_segmented_elsewhere() {
    require!("super_packets_of_the_kernel_arrive_whole_where_enabled_and_segmented_elsewhere", "dd");
    let stage = Stage::new("whole", 4 << 20);
    let towpath = Towpath::start(&["fwd", &stage.tap(), &stage.sock(), "--gro", "on"]);
    stage.introduce();
    let mut both = [stage.taker(5001, true), stage.taker(5002, false)];
    let (whole, cut) = (stage.send(5001), stage.send(5002));
    assert!(whole > FRAME && cut == FRAME, "the longest were {whole} and {cut} bytes");
    // The packets were whole until the application's port segmented them. The kernel chooses their
    // lengths.
    let summary = end(towpath, &mut both);
    assert!(summary.balance.split > stage.sample.len() as u64 / u64::from(MSS) / 4, "{summary:#?}");
}

#[test]
fn frames_of_a_wire_arrive_merged_where_super_packets_are_enabled() {
    require!("frames_of_a_wire_arrive_merged_where_super_packets_are_enabled", "dd", "ethtool");
    let stage = Stage::new("merged", 4 << 20);
    stage.ns.ip("link add e0 type veth peer name e1");
    stage.ns.run("ethtool", "-K e0 tso off gso off tx off");
    for step in ["link set e0 up", "link set e1 up", "addr add 10.0.0.1/24 dev e0"] {
        stage.ns.ip(step);
    }
    let wire = format!("packet:e1?netns={}", stage.ns.name());
    let towpath = Towpath::start(&["fwd", &wire, &stage.sock(), "--gro", "on", "--gro-flush-us", "200"]);
    stage.introduce();
    let mut both = [stage.taker(5001, true), stage.taker(5002, false)];
    let (whole, cut) = (stage.send(5001), stage.send(5002));
    assert!(whole > FRAME && cut == FRAME, "the longest were {whole} and {cut} bytes");
    let summary = end(towpath, &mut both);
    assert!(summary.balance.merged > 0 && summary.balance.split > 0, "{summary:#?}");
}

/// The kernel receives the stream from an application through an egress.
#[track_caller]
fn receive(name: &str, egress: impl Fn(&Stage) -> String, args: &[&str]) -> (Stage, Summary) {
    let stage = Stage::new(name, 4 << 20);
    let (sock, egress) = (stage.sock(), egress(&stage));
    let towpath = Towpath::start(&[&["fwd", &sock, &egress, "--egress-wait", "30s"], args].concat());
    stage.introduce();
    let mut application = [play("give", stage.dir.path(), 5003, true)];
    let mut stream = stage.connect(5003);
    let mut received = Vec::new();
    stream.read_to_end(&mut received).unwrap();
    assert!(received == stage.sample, "the received bytes are the sent ones");
    datagrams(&stage);
    let summary = end(towpath, &mut application);
    assert_eq!(summary.happened("bad-descriptor"), 0, "{summary:#?}");
    (stage, summary)
}

/// The kernel asks by a datagram and receives a burst of them.
#[track_caller]
fn datagrams(stage: &Stage) {
    until("all datagrams of a burst have come", || {
        // A new socket each time: it receives no late datagrams.
        let socket = stage.ns.inside(|| UdpSocket::bind(("10.0.0.1", 0))).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        socket.send_to(b"?", (std::net::Ipv4Addr::from(host::IP), 5003)).unwrap();
        let mut bytes = [0; 2000];
        let mut received = (0..DATAGRAMS).map(|_| socket.recv(&mut bytes).ok().map(|n| (n, bytes)));
        // UDP may lose some; received datagrams must be unchanged.
        let all = received.by_ref().map_while(|datagram| {
            let (n, bytes) = datagram?;
            assert!(n == DATAGRAM && bytes[..n].iter().all(|byte| *byte == bytes[0]), "{n} bytes");
            Some(bytes[0])
        });
        all.collect::<Vec<_>>() == (0..DATAGRAMS as u8).collect::<Vec<_>>()
    });
}

/// The least number of packets of the stream as super-packets, and as segments.
fn packets(stage: &Stage) -> (u64, u64) {
    let n = |each: usize| (stage.sample.len() / each) as u64;
    (n(SEGMENTS * usize::from(MSS)), n(MSS.into()))
}

#[test]
fn an_applications_super_packets_go_whole_through_a_tap_and_every_byte_arrives() {
    require!("an_applications_super_packets_go_whole_through_a_tap_and_every_byte_arrives", "dd");
    let (stage, summary) = receive("tap", Stage::tap, &[]);
    let (supers, segments) = packets(&stage);
    let sent = summary.port("tap:e0").tx.packets;
    assert!(sent >= supers && sent < segments / 2, "{summary:#?}");
    assert_eq!((summary.dropped("malformed"), summary.dropped("refused")), (0, 0), "{summary:#?}");
}

#[test]
fn an_applications_super_packets_are_cut_for_an_egress_that_gets_none_and_every_byte_arrives() {
    require!("an_applications_super_packets_are_cut_for_an_egress_that_gets_none_and_every_byte_arrives", "dd");
    let (stage, summary) = receive("cut", Stage::tap, &["--gso", "off", "--gro", "off"]);
    let (_, segments) = packets(&stage);
    assert!(summary.port("tap:e0").tx.packets >= segments, "{summary:#?}");
    assert!(summary.balance.split > segments / 2, "{summary:#?}");
}

#[test]
fn an_applications_super_packets_are_cut_by_a_device_and_every_byte_arrives() {
    require!("an_applications_super_packets_are_cut_by_a_device_and_every_byte_arrives", "dd");
    let (stage, summary) = receive("nic", |stage| format!("e1000e:model@{}", stage.tap()), &["--gro", "off"]);
    let (_, segments) = packets(&stage);
    // Packets at the driver: TCP is segmented by the device alone, UDP, which the device does not
    // support, by the datapath.
    let sent = summary.port("e1000e:model").tx.packets;
    assert!(sent < segments / 2 && summary.balance.split < segments / 2, "{summary:#?}");
}
