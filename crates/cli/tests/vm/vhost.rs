//! Guests whose NIC is a vhost-user device: `virtio_net` of Debian's kernel against `vhost:`.
//!
//! ```text
//!   guest 10.9.0.2 ── virtio_net ══ rings in the guest's memory ══ vhost: ── towpath ── tap: ── 10.9.0.1, a namespace
//! ```
//!
//! QEMU 7.2 without KVM dies of a vhost-user NIC with MSI-X: the NICs have `vectors=0`.

use crate::guest::{Alone, Guest, alone};
use crate::support::datapath::{Summary, Towpath};
use crate::support::traffic::Background;
use crate::support::{NETWORK, Namespace, needs, succeed};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Memory of a guest, in MiB. It is shared with towpath.
const MEMORY: u32 = 320;

/// A NIC of a guest.
#[derive(Debug, Clone, Copy)]
struct Nic<'p> {
    socket: &'p Path,
    /// The last byte of its addresses.
    host: u8,
    queues: u32,
    /// Further options of the device.
    options: &'p str,
}

impl Nic<'_> {
    fn add(&self, qemu: &mut Command) {
        let Nic { socket, host, queues, options } = self;
        qemu.args(["-machine", "q35,memory-backend=m0"]);
        qemu.args(["-object", &format!("memory-backend-memfd,id=m0,size={MEMORY}M,share=on")]);
        qemu.args(["-chardev", &format!("socket,id=c0,path={},reconnect=1", socket.display())]);
        qemu.args(["-netdev", &format!("vhost-user,id=n0,chardev=c0,queues={queues}")]);
        let mq = if *queues > 1 { ",mq=on" } else { "" };
        let mac = format!("mac=02:00:00:00:00:{host:02x}");
        let fixed = "vectors=0,addr=6.0,disable-legacy=on,romfile=";
        qemu.args(["-device", &format!("virtio-net-pci,netdev=n0,{fixed},{mac}{mq}{options}")]);
    }

    /// Starts a guest with this NIC and other devices.
    #[track_caller]
    fn start(&self, room: &Alone, devices: impl FnOnce(&mut Command)) -> Guest {
        room.start(&format!("vhost-{}", self.host), MEMORY, |qemu| {
            self.add(qemu);
            devices(qemu);
        })
    }

    /// Waits until a guest has booted, and gives it its address.
    #[track_caller]
    fn set_up(&self, mut guest: Guest, mtu: u32) -> Guest {
        guest.is_booted();
        guest.run(&format!("ip addr add 10.9.0.{}/24 dev eth0; ip link set eth0 mtu {mtu} up", self.host));
        guest
    }

    /// Boots a guest with this NIC, and gives it its address.
    #[track_caller]
    fn boot(&self, room: &Alone, mtu: u32) -> Guest {
        let guest = Guest::booted(|| Ok(self.start(room, |_| {}))).unwrap_or_else(|why| panic!("{why}"));
        self.set_up(guest, mtu)
    }
}

/// The host that guests talk to, and the sockets' directory.
pub(crate) struct Host {
    pub(crate) ns: Namespace,
    dir: tempfile::TempDir,
}

impl Host {
    pub(crate) fn new() -> Host {
        Host { ns: Namespace::new("vhost"), dir: tempfile::tempdir().unwrap() }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("v")
    }

    /// `towpath fwd` between the guest and the host's tap.
    fn forward(&self, options: &str, queues: u32, mtu: u32) -> Towpath {
        let vhost = format!("vhost:{}?queues={queues}{options}", self.socket().display());
        let tap = format!("tap:tp0?netns={},addr=10.9.0.1/24,mtu={mtu},queues={queues}", self.ns.name());
        Towpath::start(&["fwd", &vhost, &tap, "--workers", &queues.to_string()])
    }

    /// A program of the host in the background, once it has written a line with `ready`.
    pub(crate) fn serve(&self, program: &str, args: &str, ready: &str) -> Background {
        let mut command = self.ns.command(program, args);
        let mut server = Background::start(command.stdout(Stdio::piped()).stderr(Stdio::inherit()));
        let mut lines = BufReader::new(server.0.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
        assert!(lines.any(|line| line.contains(ready)), "{program} {args} does not serve");
        std::thread::spawn(move || lines.for_each(drop));
        server
    }
}

/// Gb/s of one or more TCP streams; the guest sends, or receives with `-R`.
#[track_caller]
pub(crate) fn tcp(guest: &mut Guest, address: &str, args: &str) -> f64 {
    let text = guest.run(&format!("iperf3 -J -c {address} {args}"));
    let report: serde_json::Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    let rate = report["end"]["sum_received"]["bits_per_second"].as_f64().unwrap_or(0.0) / 1e9;
    println!("  tcp {args}: {rate:.2} Gb/s");
    assert!(rate > 0.0, "{report:#}");
    rate
}

/// A file from the guest to the host and one back, with their digests.
#[track_caller]
pub(crate) fn files(host: &Host, guest: &mut Guest) {
    let here = host.dir.path().join("file");
    let server = host.ns.command("socat", &format!("-u TCP-LISTEN:5000,reuseaddr CREATE:{}", here.display())).spawn();
    let mut server = Background(server.unwrap());
    guest.run("head -c 8388608 /dev/urandom >/tmp/file");
    guest.until("a file sent", "nc 10.9.0.1 5000 </tmp/file");
    assert!(server.0.wait().unwrap().success());
    let sum = |text: String| text.split_whitespace().next().map(str::to_owned);
    let sent = sum(guest.run("sha256sum /tmp/file"));
    assert_eq!(sum(succeed(Command::new("sha256sum").arg(&here))), sent, "guest to host");
    let server = host.ns.command("socat", &format!("-u OPEN:{} TCP-LISTEN:5001,reuseaddr", here.display())).spawn();
    let mut server = Background(server.unwrap());
    guest.until("a file received", "nc 10.9.0.1 5001 >/tmp/back </dev/null && [ $(wc -c </tmp/back) = 8388608 ]");
    assert!(server.0.wait().unwrap().success());
    assert_eq!(sum(guest.run("sha256sum /tmp/back")), sent, "host to guest");
}

#[track_caller]
fn ends_well(towpath: Towpath) -> Summary {
    let summary = towpath.stop().summary();
    summary.is_balanced();
    summary
}

pub(crate) fn in_a_room(name: &str, test: impl Fn(Alone)) {
    if !NETWORK.iter().all(|need| needs(name, std::slice::from_ref(need))) {
        return;
    }
    alone(name, test);
}

#[test]
fn a_guest_talks_to_a_tap_and_goes_on_after_its_back_end_was_killed() {
    in_a_room("a_guest_talks_to_a_tap_and_goes_on_after_its_back_end_was_killed", |room| {
        let host = Host::new();
        let towpath = host.forward("", 1, 1500);
        let nic = Nic { socket: &host.socket(), host: 2, queues: 1, options: "" };
        let mut guest = nic.boot(&room, 1500);
        guest.until("the host answers", "ping -c 1 -W 1 10.9.0.1");
        guest.run("ping -c 20 -i 0.05 -s 1400 10.9.0.1");
        println!(
            "{}",
            guest.run("ethtool -k eth0 2>/dev/null | grep segmentation; cat /sys/class/net/eth0/statistics/tx_packets")
        );
        {
            let _server = host.serve("iperf3", "-s --forceflush", "listening");
            tcp(&mut guest, "10.9.0.1", "-t 1");
            tcp(&mut guest, "10.9.0.1", "-t 1 -R");
        }
        files(&host, &mut guest);
        // Killed in the middle of a flood, and started again.
        guest.run("(ping -f -c 100000 10.9.0.1 >/tmp/flood 2>&1; true) & echo $! >/tmp/flood.pid");
        std::thread::sleep(Duration::from_millis(300));
        towpath.signal(libc::SIGKILL);
        drop(towpath);
        let towpath = host.forward("", 1, 1500);
        guest.until("the host answers again", "ping -c 1 -W 1 10.9.0.1");
        guest.run("kill $(cat /tmp/flood.pid); true");
        files(&host, &mut guest);
        let summary = ends_well(towpath);
        assert!(summary.balance.sent > 100, "{summary:#?}");
    });
}

#[test]
fn a_guest_with_a_packed_ring_two_queue_pairs_and_long_frames_talks_to_a_tap() {
    in_a_room("a_guest_with_a_packed_ring_two_queue_pairs_and_long_frames_talks_to_a_tap", |room| {
        let host = Host::new();
        let towpath = host.forward(",mtu=9000", 2, 9000);
        let nic = Nic { socket: &host.socket(), host: 3, queues: 2, options: ",packed=on,host_mtu=9000" };
        let mut guest = nic.boot(&room, 9000);
        guest.until("the host answers", "ping -c 1 -W 1 10.9.0.1");
        guest.run("ping -c 20 -i 0.05 -s 8900 10.9.0.1");
        {
            let _server = host.serve("iperf3", "-s --forceflush", "listening");
            tcp(&mut guest, "10.9.0.1", "-t 1 -P 4");
            tcp(&mut guest, "10.9.0.1", "-t 1 -P 4 -R");
        }
        files(&host, &mut guest);
        ends_well(towpath);
    });
}

#[test]
fn a_guest_without_mergeable_buffers_talks_to_a_tap() {
    in_a_room("a_guest_without_mergeable_buffers_talks_to_a_tap", |room| {
        let host = Host::new();
        let towpath = host.forward(",mergeable=off", 1, 1500);
        let nic = Nic { socket: &host.socket(), host: 7, queues: 1, options: "" };
        let mut guest = nic.boot(&room, 1500);
        // A digit for each feature: without MRG_RXBUF, and with super-packets, each buffer of the
        // guest has 64 KiB.
        let digit = |bit: u32| format!("cut -c{} /sys/class/net/eth0/device/features", bit + 1);
        assert_eq!([7, 15].map(|bit| guest.run(&digit(bit))), ["1", "0"]);
        guest.until("the host answers", "ping -c 1 -W 1 10.9.0.1");
        guest.run("ping -c 20 -i 0.05 -s 1400 10.9.0.1");
        {
            let _server = host.serve("iperf3", "-s --forceflush", "listening");
            tcp(&mut guest, "10.9.0.1", "-t 1");
            tcp(&mut guest, "10.9.0.1", "-t 1 -R");
        }
        files(&host, &mut guest);
        ends_well(towpath);
    });
}

#[test]
fn two_guests_talk_to_each_other_without_the_kernel_of_the_host() {
    in_a_room("two_guests_talk_to_each_other_without_the_kernel_of_the_host", |room| {
        let dir = tempfile::tempdir().unwrap();
        let sockets = ["a", "b"].map(|name| dir.path().join(name));
        let uris = sockets.each_ref().map(|socket| format!("vhost:{}", socket.display()));
        let towpath = Towpath::start(&["fwd", &uris[0], &uris[1]]);
        let nic = |host: u8, socket| Nic { socket, host, queues: 1, options: "" };
        let nics = (nic(4, &sockets[0]), nic(5, &sockets[1]));
        // They boot at the same time.
        let started = (nics.0.start(&room, |_| {}), nics.1.start(&room, |_| {}));
        let (mut one, mut two) = (nics.0.set_up(started.0, 1500), nics.1.set_up(started.1, 1500));
        one.until("the other guest answers", "ping -c 1 -W 1 10.9.0.5");
        two.run("iperf3 -s -1 --forceflush >/tmp/server 2>&1 &");
        two.until("a server", "grep -q listening /tmp/server");
        tcp(&mut one, "10.9.0.5", "-t 1");
        let summary = ends_well(towpath);
        assert!(summary.balance.sent > 100, "{summary:#?}");
    });
}

/// Bytes of memory that is copied last.
const BALLAST: u64 = 128 << 20;
/// Bytes a second in which the memory of a guest is copied.
const BANDWIDTH: u64 = 1 << 30;
/// How long a guest may stand still when it moves.
const DOWNTIME: Duration = Duration::from_millis(300);

/// Two datapaths or more, a socket and a tap each, whose taps are ports of the host's bridge.
struct Bridge {
    host: Host,
    room: Alone,
    /// The ballast of the first machine: in memory, as a front end shares no other files.
    ballast: tempfile::NamedTempFile,
}

impl Bridge {
    fn new(room: Alone) -> Bridge {
        let host = Host::new();
        host.ns.ip("link add br0 type bridge");
        host.ns.ip("addr add 10.9.0.1/24 dev br0");
        host.ns.ip("link set br0 up");
        Bridge { host, room, ballast: tempfile::NamedTempFile::new_in("/dev/shm").unwrap() }
    }

    fn nic(&self, name: &str, add: impl FnOnce(&Nic<'_>) -> Guest) -> Guest {
        let socket = self.host.dir.path().join(name);
        // Entries of the longer used ring lie in pages that the guest does not write.
        add(&Nic { socket: &socket, host: 6, queues: 1, options: ",rx_queue_size=1024" })
    }

    /// A datapath of this name.
    fn forward(&self, name: &str) -> Towpath {
        let vhost = format!("vhost:{}", self.host.dir.path().join(name).display());
        let tap = format!("tap:{name}?netns={}", self.host.ns.name());
        let towpath = Towpath::start(&["fwd", &vhost, &tap]);
        self.host.ns.ip(&format!("link set {name} master br0"));
        // Slow enough that bytes arrive before a move, during it and afterwards.
        self.host.ns.run("tc", &format!("qdisc add dev {name} root tbf rate 100mbit burst 64kb latency 100ms"));
        towpath
    }

    /// A machine at the datapath of this name, which waits at a socket for the state of another
    /// one.
    #[track_caller]
    fn waiting(&self, name: &str) -> (Guest, PathBuf) {
        let moves = self.host.dir.path().join(format!("{name}-migrate"));
        let guest = self.nic(name, |nic| {
            self.room.start(&format!("vhost-{name}"), MEMORY, |qemu| {
                nic.add(qemu);
                self.add_ballast(qemu, false);
                qemu.arg("-incoming").arg(format!("unix:{}", moves.display()));
            })
        });
        (guest, moves)
    }

    /// Adds a device of nothing but memory, which is copied behind the guest's own because there is
    /// less of it. It takes a while, in which the guest's memory has been copied.
    fn add_ballast(&self, qemu: &mut Command, is_first: bool) {
        let backend = if is_first {
            let file = self.ballast.path();
            succeed(Command::new("sh").args(["-c", &format!("head -c {BALLAST} /dev/urandom >{}", file.display())]));
            format!("memory-backend-file,id=m1,size={BALLAST},mem-path={},share=off", file.display())
        } else {
            format!("memory-backend-ram,id=m1,size={BALLAST}")
        };
        qemu.args(["-object", &backend, "-device", "ivshmem-plain,memdev=m1,master=on,addr=7.0"]);
    }
}

#[test]
fn a_guest_moves_to_other_machines_under_load_and_loses_none_of_its_bytes() {
    in_a_room("a_guest_moves_to_other_machines_under_load_and_loses_none_of_its_bytes", |room| {
        let bridge = Bridge::new(room);
        let towpaths = ["va", "vb", "vc"].map(|name| bridge.forward(name));
        let mut guest =
            bridge.nic("va", |nic| nic.set_up(nic.start(&bridge.room, |qemu| bridge.add_ballast(qemu, true)), 1500));
        guest.until("the host answers", "ping -c 1 -W 1 10.9.0.1");
        let guest = with_a_file(&bridge, "vb", guest);
        let mut guest = with_frames_in_its_ring(&bridge, "vc", guest);
        guest.run("ping -c 3 10.9.0.1");
        towpaths.into_iter().map(ends_well).for_each(drop);
    });
}

/// Moves a guest that receives a file.
#[track_caller]
fn with_a_file(bridge: &Bridge, to: &str, mut guest: Guest) -> Guest {
    let host = &bridge.host;
    let sample = host.dir.path().join("sample");
    succeed(Command::new("sh").args(["-c", &format!("head -c 32M /dev/urandom >{}", sample.display())]));
    let server = host.ns.command("socat", &format!("-u OPEN:{} TCP-LISTEN:5001,reuseaddr", sample.display())).spawn();
    let _server = Background(server.unwrap());
    guest.run("(until nc 10.9.0.1 5001 >/tmp/back </dev/null; do sleep 0.1; done) >/dev/null 2>&1 &");
    guest.until("bytes arrive", "[ $(wc -c </tmp/back) -gt 1000000 ]");
    let (other, moves) = bridge.waiting(to);
    guest.begin_to_migrate(&moves, BANDWIDTH, DOWNTIME);
    guest.is_migrated();
    let mut guest = other.continues(&guest);
    guest.until("all bytes arrive", "[ $(wc -c </tmp/back) = 33554432 ]");
    let sum = |text: String| text.split_whitespace().next().map(str::to_owned);
    assert_eq!(sum(guest.run("sha256sum /tmp/back")), sum(succeed(Command::new("sha256sum").arg(&sample))));
    guest
}

/// Moves a guest that does not look at its ring meanwhile. Its empty buffers are copied with its
/// memory, and frames are written into them before, then and afterwards; only the machine that the
/// guest moves to reads them. A page that the back end wrote and did not mark is as it was: its
/// header is zero, and the driver counts an error.
#[track_caller]
fn with_frames_in_its_ring(bridge: &Bridge, to: &str, mut guest: Guest) -> Guest {
    const RECEIVED: &str = "$(cat /sys/class/net/eth0/statistics/rx_packets)";
    guest.run("towpath sink packet:eth0 --verify --json >/tmp/sink 2>/tmp/sink.err & echo $! >/tmp/sink.pid");
    guest.until("it listens", "grep -q live /tmp/sink");
    let (other, moves) = bridge.waiting(to);
    // It takes what an interrupt announces, a reply, and looks again nine seconds later.
    guest.run("(cd /sys/class/net/eth0; echo 9000000000 >gro_flush_timeout; echo 1000000 >napi_defer_hard_irqs)");
    guest.run("ping -c 1 -W 20 10.9.0.1");
    let before = guest.run(&format!("echo {RECEIVED}"));
    // Not more than there are buffers, in nine seconds.
    let args = "gen packet:br0 --size 60 --rate 100 --with dst-mac=02:00:00:00:00:06 --quiet";
    let _frames = Background(bridge.host.ns.command(env!("CARGO_BIN_EXE_towpath"), args).spawn().unwrap());
    guest.begin_to_migrate(&moves, 64 << 20, DOWNTIME);
    guest.is_migrated();
    let mut guest = other.continues(&guest);
    guest.until("the guest looks", &format!("[ {RECEIVED} -ge $(({before} + 300)) ]"));
    let errors = guest.run("cat /sys/class/net/eth0/statistics/rx_*errors");
    assert!(errors.lines().all(|line| line == "0"), "{errors}");
    guest.run("(cd /sys/class/net/eth0; echo 0 >napi_defer_hard_irqs; echo 0 >gro_flush_timeout)");
    guest.run("kill -INT $(cat /tmp/sink.pid)");
    guest.until("the sink has ended", "! kill -0 $(cat /tmp/sink.pid)");
    let text = guest.run("tail -n 1 /tmp/sink");
    let report: serde_json::Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    let count = |what: &str| report["verified"][0][what].as_u64();
    assert_eq!(["late", "twice", "too_old"].map(count), [Some(0); 3], "{report:#}");
    println!("  {}", report["verified"][0]);
    guest
}
