//! Programs that generate and check traffic.

use super::{Hosts, Namespace, all_required, run, succeed, until};
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

/// A program that is killed on drop.
pub(crate) struct Background(pub(crate) Child);

impl Background {
    pub(crate) fn start(command: &mut Command) -> Background {
        let child = command.stdin(Stdio::null()).spawn();
        Background(child.unwrap_or_else(|e| panic!("{command:?}: {e}")))
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Host 1 pings host 2, which must answer every request.
#[track_caller]
pub(crate) fn ping(hosts: &Hosts, args: &str, address: &str) {
    succeed(&mut hosts.one.command("ping", &format!("-q -c 3 -i 0.02 -W 5 {args} {address}")));
}

/// Runs `iperf3` from host 1 to host 2; returns the report of its client.
#[track_caller]
pub(crate) fn iperf3(hosts: &Hosts, address: &str, args: &str) -> Value {
    let mut server = hosts.two.command("iperf3", "-s -1 --forceflush");
    let mut server = Background::start(server.stdout(Stdio::piped()));
    let mut lines = BufReader::new(server.0.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("listening")), "the server does not listen");
    let drain = std::thread::spawn(move || lines.for_each(drop));
    let output = run(&mut hosts.one.command("iperf3", &format!("-J -c {address} {args}")));
    drop(server);
    drain.join().expect("no panic");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON from iperf3");
    assert!(output.status.success(), "iperf3 -c {address} {args}: {}", report["error"]);
    report
}

/// Sends one TCP stream of `bytes` bytes, which must arrive.
#[track_caller]
pub(crate) fn tcp(hosts: &Hosts, address: &str, bytes: &str) {
    let report = iperf3(hosts, address, &format!("-n {bytes}"));
    let end = &report["end"];
    let (sent, received) = (end["sum_sent"]["bytes"].as_u64(), end["sum_received"]["bytes"].as_u64());
    println!("  tcp {address}: {:.2} Gb/s", end["sum_received"]["bits_per_second"].as_f64().unwrap_or(0.0) / 1e9);
    assert!(received.is_some_and(|n| n > 0) && sent.is_some(), "{end:#}");
}

/// Sends datagrams at a rate that every pair of ports sustains unless the machine is busy for a
/// while; most must arrive.
pub(crate) fn udp(hosts: &Hosts, address: &str) {
    until("most datagrams arrive", || {
        let report = iperf3(hosts, address, "-u -b 8M -n 1M");
        let sum = &report["end"]["sum"];
        let (packets, lost) = (sum["packets"].as_f64().unwrap_or(0.0), sum["lost_packets"].as_f64().unwrap_or(1.0));
        println!("  udp {address}: {lost} of {packets} lost");
        packets > 100.0 && lost <= packets / 10.0
    });
}

/// A file of random bytes with its digest. It has no name, so it disappears with the process.
pub(crate) struct Sample {
    file: File,
    digest: String,
}

impl Sample {
    /// A sample of `size` bytes: `1M`, `256M`.
    pub(crate) fn new(size: &str) -> Sample {
        let file = tempfile::tempfile().expect("a temporary file");
        let script = format!("head -c {size} /dev/urandom | tee {} | sha256sum", path(&file));
        let digest = succeed(Command::new("sh").args(["-c", &script]));
        Sample { file, digest }
    }

    /// 256 MiB, or 1 GiB where every test is required; made once.
    pub(crate) fn big() -> &'static Sample {
        static BIG: OnceLock<Sample> = OnceLock::new();
        BIG.get_or_init(|| Sample::new(if all_required() { "1G" } else { "256M" }))
    }
}

/// A path by which other processes open a file of this one.
fn path(file: &File) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd())
}

/// Copies a file from host 1 to host 2 by TCP; its SHA-256 must be the same there.
#[track_caller]
pub(crate) fn copy(hosts: &Hosts, address: &str, sample: &Sample) {
    let family = if address.contains(':') { 6 } else { 4 };
    let mut listener =
        hosts.two.command("socat", &format!("-u -b 1048576 -T 120 TCP{family}-LISTEN:5001,reuseaddr STDOUT"));
    let mut listener = Background::start(listener.stdout(Stdio::piped()));
    let mut sum = Command::new("sha256sum");
    sum.stdin(listener.0.stdout.take().expect("a pipe")).stdout(Stdio::piped());
    let mut sum = Background(sum.spawn().expect("sha256sum"));
    let target = if family == 6 { format!("TCP6:[{address}]:5001") } else { format!("TCP4:{address}:5001") };
    let source = format!("OPEN:{}", path(&sample.file));
    succeed(&mut hosts.one.command("socat", &format!("-u -b 1048576 {source} {target},retry=1200,interval=0.05")));
    let mut digest = String::new();
    sum.0.stdout.take().expect("a pipe").read_to_string(&mut digest).expect("a digest");
    assert_eq!(digest, sample.digest, "what arrived is not what was sent");
}

/// The number of packets of a capture whose checksums tshark finds wrong, and the number of all
/// packets; any error of tshark fails the test.
#[track_caller]
pub(crate) fn judged(capture: &Path) -> (usize, usize) {
    let protocols = ["ip", "tcp", "udp"];
    let validate = protocols.iter().flat_map(|p| ["-o".to_owned(), format!("{p}.check_checksum:TRUE")]);
    // Payloads are opaque: among random bytes tshark finds a malformed packet of some protocol.
    let opaque = ["-d", "tcp.port==1-65535,data", "-d", "udp.port==1-65535,data"];
    let tshark = |filter: &str| {
        let mut command = Command::new("tshark");
        command.arg("-n").args(validate.clone()).args(opaque).arg("-r").arg(capture);
        command.args(["-Y", filter, "-T", "fields", "-e"]);
        succeed(command.arg("frame.number")).lines().count()
    };
    let bad = "ip.checksum.status == 0 || tcp.checksum.status == 0 || udp.checksum.status == 0 || \
               icmp.checksum.status == 0 || icmpv6.checksum.status == 0 || _ws.malformed";
    (tshark(bad), tshark("frame"))
}

/// Whether a namespace has an interface.
pub(crate) fn has_interface(ns: &Namespace, name: &str) -> bool {
    run(&mut ns.command("ip", &format!("-br link show {name}"))).status.success()
}

/// Waits until a namespace's interface is gone.
#[track_caller]
pub(crate) fn wait_until_gone(ns: &Namespace, name: &str) {
    until("the interface goes away", || !has_interface(ns, name));
}
