//! `towpath fwd … virtio:…`: a back end of DPDK, one of another towpath, and QEMU's device without
//! a guest. `towpath bench vm`: every step at both sides of the rings has figures.

mod support;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use support::traffic::{Sample, copy, ping, tcp};
use support::{Hosts, Need, Towpath, datapath, needs, until};
use towpath_testing::listens;

/// A child that is killed on drop.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// DPDK's `net_vhost` at a path: it returns each frame with its Ethernet addresses swapped.
fn testpmd(path: &Path) -> Running {
    let _ = std::fs::remove_file(path);
    let args = format!(
        "--lcores 0@0,1@0 --no-huge -m 128 --no-pci --no-shconf --no-telemetry --log-level=lib.vhost.config:error \
         --vdev=net_vhost0,iface={} -- --forward-mode=macswap --auto-start --nb-cores=1 --total-num-mbufs=8192 \
         --stats-period 60",
        path.display()
    );
    let mut command = Command::new("dpdk-testpmd");
    command.args(args.split_whitespace()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let running = Running(command.spawn().unwrap());
    until("testpmd listens", || listens(&running.0, path));
    running
}

/// In the sandbox, which stays after the start: the port connects again.
#[test]
fn a_generator_gets_its_packets_back_from_dpdk_and_from_the_dpdk_after_it() {
    let name = "a_generator_gets_its_packets_back_from_dpdk_and_from_the_dpdk_after_it";
    if !needs(name, &[Need::Program("dpdk-testpmd")]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let first = testpmd(&path);
    let device = format!("virtio:user={}", path.display());
    let mut towpath = Towpath::start(&["fwd", "gen:flows=4,size=200,rate=2000", &device]);
    let came = |towpath: &mut Towpath, more: u64| {
        let begin = towpath.look().ports[1].rx.packets;
        until("packets come back", || towpath.look().ports[1].rx.packets >= begin + more);
    };
    came(&mut towpath, 1000);
    drop(first);
    let _second = testpmd(&path);
    came(&mut towpath, 1000);
    let summary = towpath.stop().code(0).summary();
    summary.is_balanced();
    assert!(summary.failed.is_empty() && summary.gone.is_empty(), "{summary:#?}");
    assert_eq!((summary.happened("link_losses"), summary.happened("bounced")), (1, 0));
    assert!(summary.sandbox.refused.is_empty(), "{:?}", summary.sandbox.refused);
}

/// QEMU with a virtio device in slot 4, connected to host 2's interface.
fn machine(hosts: &Hosts, directory: &Path) -> (Running, PathBuf) {
    hosts.two.ip("tuntap add e0 mode tap");
    hosts.two.ip("addr add 10.0.0.2/24 dev e0");
    hosts.two.ip("addr add fd00::2/64 dev e0 nodad");
    hosts.two.ip("link set e0 up");
    let (firmware, socket) = (directory.join("halt.bin"), directory.join("qtest"));
    let mut halt = vec![0; 65536];
    halt[0xfff0..0xfff4].copy_from_slice(&[0xfa, 0xf4, 0xeb, 0xfd]);
    std::fs::write(&firmware, halt).unwrap();
    let args = format!(
        "-nodefaults -no-user-config -display none -accel tcg -bios {} -m 64M -machine q35,memory-backend=ram \
         -object memory-backend-memfd,id=ram,size=64M,share=on -qtest unix:{},server=on,wait=off -qtest-log /dev/null \
         -device intel-iommu -netdev tap,id=net,ifname=e0,script=no,downscript=no \
         -device virtio-net-pci,netdev=net,addr=4.0,iommu_platform=on,disable-legacy=on,packed=on",
        firmware.display(),
        socket.display()
    );
    let child = hosts.two.command("qemu-system-x86_64", &args).stdin(Stdio::null()).spawn().unwrap();
    let running = Running(child);
    until("QEMU listens", || listens(&running.0, &socket));
    (running, socket)
}

/// Bytes of the longest frame that is not a super-packet.
const FRAME: u64 = 1514;

/// Towpath joins host 1's tap and a device behind which host 2 is: ping and TCP go through it, and
/// a file from host 2 comes unchanged, in super-packets or in frames.
#[track_caller]
fn carries(hosts: &mut Hosts, device: &str, supers: bool) {
    let tap = format!("tap:e0?netns={},addr=10.0.0.1/24+fd00::1/64", hosts.one.name());
    let mut towpath = Towpath::start(&["fwd", &tap, device]);
    ping(hosts, "", "10.0.0.2");
    ping(hosts, "", "fd00::2");
    tcp(hosts, "10.0.0.2", "16M");
    tcp(hosts, "fd00::2", "4M");
    let sample = Sample::new("8M");
    for address in ["10.0.0.1", "fd00::1"] {
        let mut received = || towpath.look().ports.swap_remove(1).rx;
        let before = received();
        std::mem::swap(&mut hosts.one, &mut hosts.two);
        copy(hosts, address, &sample);
        std::mem::swap(&mut hosts.one, &mut hosts.two);
        let after = received();
        let mean = (after.bytes - before.bytes) / (after.packets - before.packets);
        assert_eq!(mean > FRAME, supers, "{device}: {mean} bytes a packet");
    }
    let summary = towpath.stop().code(0).summary();
    summary.is_balanced();
    assert!(summary.failed.is_empty() && summary.gone.is_empty(), "{device}: {summary:#?}");
    let faults: Vec<_> = summary.events.iter().filter(|event| event.event != "bounced" && event.times > 0).collect();
    assert!(faults.is_empty(), "{device}: {faults:?}");
}

/// One machine for all runs: each towpath finds the device as the previous one left it. Checksums
/// and super-packets go through in both directions, since the tap takes and makes them.
#[test]
fn a_virtio_device_of_qemu_carries_ping_tcp_and_files_under_every_policy() {
    require!(
        "a_virtio_device_of_qemu_carries_ping_tcp_and_files_under_every_policy",
        "qemu-system-x86_64",
        "ping",
        "iperf3",
        "socat"
    );
    let mut hosts = Hosts::new();
    let directory = tempfile::tempdir().unwrap();
    let (_machine, socket) = machine(&hosts, directory.path());
    // Without mergeable buffers super-packets come in chains, with a table or in the ring.
    for (options, supers) in [
        ("policy=persistent", true),
        ("policy=strict,packed=on", true),
        ("policy=deferred", true),
        ("policy=strict,mergeable=off", true),
        ("policy=deferred,packed=on,mergeable=off,indirect=off", true),
        ("policy=strict,mergeable=off,tso=off,uso=off", false),
    ] {
        carries(&mut hosts, &format!("virtio:qtest={}?{options}", socket.display()), supers);
    }
}

/// One back end for all runs: each towpath finds it as the previous one left it.
#[test]
fn a_vhost_port_carries_ping_tcp_and_files_for_a_virtio_port() {
    require!("a_vhost_port_carries_ping_tcp_and_files_for_a_virtio_port", "ping", "iperf3", "socat");
    let mut hosts = Hosts::new();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let tap = format!("tap:e0?netns={},addr=10.0.0.2/24+fd00::2/64", hosts.two.name());
    let back_end = Towpath::start(&["fwd", &tap, &format!("vhost:{}", path.display())]);
    for (options, supers) in [
        ("packed=off", true),
        ("packed=on", true),
        ("packed=off,mergeable=off", true),
        ("packed=on,mergeable=off", true),
        ("packed=off,mergeable=off,indirect=off", true),
        ("packed=on,mergeable=off,indirect=off", true),
        ("packed=off,mergeable=off,tso=off,uso=off", false),
    ] {
        carries(&mut hosts, &format!("virtio:user={}?{options}", path.display()), supers);
    }
    let summary = back_end.stop().summary();
    summary.is_balanced();
    assert!(summary.failed.is_empty() && summary.gone.is_empty(), "{summary:#?}");
}

/// Times are not asserted.
#[test]
fn bench_vm_has_a_row_for_each_side_and_way_of_each_kind_of_ring() {
    let quick = ["bench", "vm", "--bursts", "4", "--rounds", "1"];
    let report = datapath::run(&[&quick[..], &["--with", "in-order=off", "--json"]].concat()).code(0);
    let report: serde_json::Value = serde_json::from_str(&report.stdout).unwrap();
    let mut rows = report["rows"].as_array().unwrap().iter();
    for ring in ["split", "packed"] {
        for (size, taken) in [(64, "are copied"), (1500, "stay in the guest's pages")] {
            for (side, way, bytes) in [
                ("driver", "send", "stay where they are"),
                ("device", "receive", taken),
                ("device", "send", "are copied"),
                ("driver", "receive", "stay where they are"),
            ] {
                let row = rows.next().unwrap();
                let keys = ["ring", "side", "way", "bytes"].map(|key| row[key].as_str().unwrap());
                assert_eq!((keys, &row["size"]), ([ring, side, way, bytes], &size.into()));
                assert!(row["best_ns"].as_f64() > Some(0.0) && row["ns"].as_f64() >= row["best_ns"].as_f64(), "{row}");
            }
        }
    }
    assert_eq!(rows.next(), None);
    let refused = datapath::run(&[&quick[..], &["--with", "speed=10"]].concat()).code(2);
    assert!(refused.stderr.contains("speed") && refused.stderr.contains("no such option"), "{refused:#?}");
}
