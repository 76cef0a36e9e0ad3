//! `towpath fwd e1000e:qtest=SOCKET`: a QEMU without a guest, whose network device is connected to
//! a host's interface.

mod support;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use support::traffic::{ping, tcp};
use support::{Hosts, Towpath, until, until_some};
use towpath_testing::listens;

/// QEMU as its users start it (`towpath_bus::qtest::Qemu::attach`), in host 2's namespace; killed
/// on drop.
struct Machine {
    child: Child,
    directory: tempfile::TempDir,
}

impl Machine {
    fn start(hosts: &Hosts) -> Machine {
        Machine::of_kind(hosts, "q35", "-device intel-iommu")
    }

    /// A machine of a kind, with other devices beside the network device in slot 4.
    fn of_kind(hosts: &Hosts, kind: &str, others: &str) -> Machine {
        hosts.two.ip("tuntap add e0 mode tap");
        hosts.two.ip("addr add 10.0.0.2/24 dev e0");
        hosts.two.ip("addr add fd00::2/64 dev e0 nodad");
        hosts.two.ip("link set e0 up");
        let directory = tempfile::tempdir().unwrap();
        let (firmware, socket) = (directory.path().join("halt.bin"), directory.path().join("qtest"));
        let mut halt = vec![0; 65536];
        halt[0xfff0..0xfff4].copy_from_slice(&[0xfa, 0xf4, 0xeb, 0xfd]);
        std::fs::write(&firmware, halt).unwrap();
        let args = format!(
            "-nodefaults -no-user-config -display none -accel tcg -bios {} -m 64M -machine {kind},memory-backend=ram \
             -object memory-backend-memfd,id=ram,size=64M,share=on -qtest unix:{},server=on,wait=off -qtest-log /dev/null \
             -qmp unix:{},server=on,wait=off {others} -netdev tap,id=net,ifname=e0,script=no,downscript=no \
             -device e1000e,netdev=net,id=nic,addr=4.0",
            firmware.display(),
            socket.display(),
            directory.path().join("qmp").display()
        );
        let child = hosts.two.command("qemu-system-x86_64", &args).stdin(Stdio::null()).spawn().unwrap();
        let monitor = directory.path().join("qmp");
        until("QEMU listens", || listens(&child, &socket) && listens(&child, &monitor));
        Machine { child, directory }
    }

    /// Commands of QEMU's monitor (QMP), one after the other.
    fn command(&self, commands: &[&str]) {
        let stream = UnixStream::connect(self.directory.path().join("qmp")).unwrap();
        let mut answers = BufReader::new(stream.try_clone().unwrap()).lines().map(Result::unwrap);
        for command in ["{\"execute\": \"qmp_capabilities\"}"].iter().chain(commands) {
            writeln!(&stream, "{command}").unwrap();
            let answer = answers.find(|line| !line.contains("\"QMP\"") && !line.contains("\"event\"")).unwrap();
            assert!(answer.contains("\"return\""), "{command}: {answer}");
        }
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("qtest")
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What is sent back when a card fails: QEMU's, here.
#[test]
fn a_report_of_a_device_of_qemu_has_its_registers_before_and_while_it_runs() {
    require!("a_report_of_a_device_of_qemu_has_its_registers_before_and_while_it_runs", "qemu-system-x86_64");
    let hosts = Hosts::new();
    let machine = Machine::start(&hosts);
    let device = format!("e1000e:qtest={}", machine.socket().display());
    // The link comes in that time, unless the machine is held up for long.
    let text = until_some("the link comes while it runs", || {
        let text = support::datapath::run(&["report", &device, "--run", "4s"]).code(0).stdout;
        let is_late = |line: &str| line.starts_with("link up after") && line.ends_with("never");
        (!text.lines().any(is_late)).then_some(text)
    });
    let value = |section: &str, name: &str| {
        let of_section = text.split_once(&format!("[{section}]")).unwrap_or_else(|| panic!("{section}: {text}")).1;
        let line = of_section.lines().skip(1).take_while(|line| !line.starts_with('[')).find(|l| l.starts_with(name));
        line.unwrap_or_else(|| panic!("{section}: {name}: {text}")).split_whitespace().last().unwrap().to_owned()
    };
    // Identifier of the PHY (82574 datasheet §10.2.9.3), EN and PSP of TCTL, the link.
    assert_eq!(value("registers as found", "PHY 2 identifier"), "0x00000141");
    assert_eq!(value("registers as found", "TCTL"), "0x00000000");
    let number = |text: String| u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap();
    assert_eq!(number(value("registers while running", "TCTL")) & 0xa, 0xa);
    assert_eq!(number(value("registers while running", "STATUS")) & 2, 2);
    assert_eq!(value("running", "queue 0 "), "up");
}

/// One machine for all runs: each towpath finds the device as the previous one left it.
#[test]
fn a_device_of_qemu_carries_ping_and_tcp_under_every_policy() {
    require!("a_device_of_qemu_carries_ping_and_tcp_under_every_policy", "qemu-system-x86_64", "ping", "iperf3");
    let hosts = Hosts::new();
    let machine = Machine::start(&hosts);
    let tap = format!("tap:e0?netns={},addr=10.0.0.1/24+fd00::1/64", hosts.one.name());
    for policy in ["persistent", "strict", "strict,copybreak=0", "deferred"] {
        let device = format!("e1000e:qtest={}?policy={policy}", machine.socket().display());
        let towpath = Towpath::start(&["fwd", &tap, &device]);
        ping(&hosts, "", "10.0.0.2");
        ping(&hosts, "", "fd00::2");
        tcp(&hosts, "10.0.0.2", "16M");
        tcp(&hosts, "fd00::2", "4M");
        let summary = towpath.stop().code(0).summary();
        summary.is_balanced();
        assert!(summary.failed.is_empty() && summary.gone.is_empty(), "{policy}: {summary:#?}");
        // Receive errors are not checked: QEMU counts frames that it pads and delivers as too
        // short.
        assert_eq!(summary.port("e1000e:").tx.errors, 0, "{policy}");
    }
}

/// QEMU ejects a device that was asked for when the machine is reset: its registers read as zeros
/// then, and its configuration space as ones.
#[test]
fn a_device_that_is_unplugged_under_traffic_ends_the_port_by_name() {
    require!("a_device_that_is_unplugged_under_traffic_ends_the_port_by_name", "qemu-system-x86_64", "ping");
    // As often as `TOWPATH_UNPLUGS` says, and once with each policy otherwise.
    let times = std::env::var("TOWPATH_UNPLUGS").map_or(2, |times| times.parse().unwrap());
    for policy in ["persistent,copybreak=0", "persistent,interrupts=on"].into_iter().cycle().take(times) {
        let hosts = Hosts::new();
        let machine = Machine::of_kind(&hosts, "pc", "");
        let tap = format!("tap:e0?netns={},addr=10.0.0.1/24", hosts.one.name());
        let device = format!("e1000e:qtest={}?policy={policy}", machine.socket().display());
        let towpath = Towpath::start(&["fwd", &tap, &device]);
        ping(&hosts, "", "10.0.0.2");
        let mut flood = hosts.one.command("ping", "-i 0.002 -s 1000 10.0.0.2").stdout(Stdio::null()).spawn().unwrap();
        machine.command(&["{\"execute\": \"device_del\", \"arguments\": {\"id\": \"nic\"}}"]);
        // Asked for is not yet gone.
        ping(&hosts, "", "10.0.0.2");
        machine.command(&["{\"execute\": \"system_reset\"}"]);
        let summary = towpath.wait().code(1).summary();
        flood.kill().unwrap();
        flood.wait().unwrap();
        // Nothing translates here, so that its buffers are leaked.
        assert_eq!(summary.in_flight, 0, "{policy}: {summary:#?}");
        assert!(summary.gone.iter().any(|line| line.contains("the device was removed")), "{:?}", summary.gone);
    }
}
