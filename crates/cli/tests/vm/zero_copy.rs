//! AF_XDP without copies: a kernel whose `virtio_net` has zero copy, on QEMU's virtio NIC.
//!
//! ```text
//!   10.7.0.1  tp0 ── tap ── towpath ── xdp:eth0 ── 00:04.0 ── hub ── 00:06.0 ── 10.7.0.2   (another namespace)
//!                                                             └── 00:07.0, without VIRTIO_F_ACCESS_PLATFORM
//! ```
//!
//! While the driver of 00:06.0 is unbound, it can't receive: QEMU completes no frame of 00:04.0,
//! whose link stays up. That is a stall. (00:07.0 has no buffers until its interface is up.)

use crate::cable::{Cable, FAR, Far, NEAR};
use crate::guest::{Alone, Guest, PEER, alone_with};
use crate::kernel::Release;
use crate::support::datapath::Line;
use crate::support::{Need, Summary, needs};
use crate::{interface, says};
use serde_json::Value;
use std::process::Command;

/// PCI addresses of the NIC under test, and of the one whose driver has no zero copy.
const NIC: &str = "0000:00:04.0";
const OTHER: &str = "0000:00:07.0";

/// Whether the machine has an IOMMU, whose mappings the NICs use then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Iommu {
    Present,
    Absent,
}

fn devices(qemu: &mut Command, iommu: Iommu) {
    qemu.args(["-machine", "q35"]);
    if iommu == Iommu::Present {
        qemu.args(["-device", "intel-iommu,intremap=on,aw-bits=48"]);
    }
    // The driver has DMA addresses of a buffer only with VIRTIO_F_ACCESS_PLATFORM.
    for (slot, platform) in [(4, "on"), (6, "on"), (7, "off")] {
        qemu.arg("-netdev").arg(format!("hubport,id=h{slot},hubid=0"));
        let fixed = format!("disable-legacy=on,romfile=,mac=02:00:00:00:00:0{slot},iommu_platform={platform}");
        qemu.arg("-device").arg(format!("virtio-net-pci,id=n{slot},netdev=h{slot},addr={slot}.0,{fixed}"));
    }
}

fn in_a_room(name: &str, test: impl Fn(Alone)) {
    if !needs(name, &[Need::Program("iperf3")]) {
        return;
    }
    alone_with(name, Release::Newer, test);
}

#[track_caller]
fn boot(room: &Alone, iommu: Iommu) -> Guest {
    let mut guest = room.boot("zero-copy", 512, |qemu| devices(qemu, iommu));
    assert_eq!(interface(&mut guest, NIC), "eth0");
    guest.run("ip link set eth0 up");
    guest
}

/// Both hosts, with the near host sending to the far one's address even while it is away.
fn cable(guest: &mut Guest) -> Cable<'_> {
    let cable = Cable::without_nic(guest);
    cable.guest.run(&format!("arp -s {FAR} 02:00:00:00:00:06"));
    cable
}

/// The near host sends, until [`Cable::calm`].
fn load(cable: &mut Cable<'_>) {
    cable.guest.run(&format!("ping -i 0.005 -s 1400 {FAR} >/dev/null 2>&1 & echo $! >/tmp/flood"));
}

/// Waits until towpath, which runs, has reported `what`.
#[track_caller]
fn reported(guest: &mut Guest, what: &str) {
    guest.until(what, &format!("tail -n 2 /tmp/fwd.out | grep -q '{what}'"));
}

fn works(summary: &Summary) {
    summary.is_balanced();
    assert!(summary.gone.is_empty() && summary.failed.is_empty(), "{summary:#?}");
}

/// The abilities that `probe` reports of a port, by name: whether it has them, and why.
#[track_caller]
fn abilities(guest: &mut Guest, port: &str) -> Vec<(String, bool, String)> {
    let text = guest.run(&format!("towpath probe '{port}' --json"));
    let report: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    let list = report["abilities"].as_array().unwrap_or_else(|| panic!("{report:#}"));
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    list.iter().map(|a| (text(&a["name"]), a["on"] == true, text(&a["why"]))).collect()
}

/// TCP in one direction through towpath; `options` are those of the near host's client.
#[track_caller]
fn tcp(cable: &mut Cable<'_>, options: &str) {
    let far = cable.far.prefix.clone();
    cable.guest.run(&format!("rm -f /tmp/server; {far} iperf3 -s -1 --forceflush >/tmp/server 2>&1 &"));
    cable.guest.until("a server", "grep -q listening /tmp/server");
    let text = cable.guest.run(&format!("iperf3 -J -c {FAR} {options}"));
    let report: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    let rate = report["end"]["sum_received"]["bits_per_second"].as_f64().unwrap_or(0.0) / 1e6;
    println!("  tcp {options}: {rate:.0} Mb/s");
    assert!(rate > 0.0, "{report:#}");
}

/// Ping, TCP and a file both ways.
#[track_caller]
fn carries_everything(cable: &mut Cable<'_>) {
    cable.ping();
    tcp(cable, "-n 16M");
    tcp(cable, "-n 16M -R");
    let far = cable.far.prefix.clone();
    let sums = format!(
        "sha256sum </tmp/www/file; wget -q -O - http://{FAR}/file | sha256sum; {far} wget -q -O - http://{NEAR}/file | sha256sum"
    );
    let sums = cable.guest.run(&sums);
    let lines: Vec<_> = sums.lines().collect();
    assert!(lines.len() == 3 && lines.iter().all(|line| *line == lines[0]), "{sums}");
}

#[test]
fn ping_tcp_and_files_pass_without_copies_and_the_probe_agrees() {
    in_a_room("ping_tcp_and_files_pass_without_copies_and_the_probe_agrees", |room| {
        for iommu in [Iommu::Absent, Iommu::Present] {
            let mut guest = boot(&room, iommu);
            println!("Linux {}, IOMMU {iommu:?}", guest.run("uname -r"));
            for port in ["xdp:eth0", "xdp:eth0?zerocopy=require"] {
                let found = abilities(&mut guest, port);
                let reads = |name| found.iter().find(|(n, ..)| n == name).map(|(_, on, why)| (*on, why.as_str()));
                assert_eq!(
                    reads("zerocopy"),
                    Some((true, "the driver uses the buffers of this process")),
                    "{found:#?}"
                );
                assert!(reads("frags").is_some_and(|(on, why)| !on && why.starts_with("the driver")), "{found:#?}");
                assert!(reads("csum").is_some_and(|(on, why)| !on && why.starts_with("the driver")), "{found:#?}");
            }
            let mut cable = cable(&mut guest);
            cable.start_port("xdp:eth0?zerocopy=require");
            carries_everything(&mut cable);
            let summary = cable.stop();
            works(&summary);
            assert_eq!(summary.happened("stalled"), 0, "{summary:#?}");
        }
    });
}

#[test]
fn a_sender_without_copies_leaves_the_host_its_traffic() {
    in_a_room("a_sender_without_copies_leaves_the_host_its_traffic", |room| {
        let mut guest = boot(&room, Iommu::Absent);
        let far = Far::new(&mut guest);
        guest.run(&format!("ip addr add {NEAR}/24 dev eth0"));
        far.reaches(&mut guest);
        let port = "xdp:eth0?rx=off,zerocopy=require";
        guest.run(&format!(
        "towpath gen '{port}' --rate 1k --json --interval 100ms >/tmp/gen.out 2>/tmp/gen.err & echo $! >/tmp/gen.pid"
    ));
        guest.until("it sends", "[ -s /tmp/gen.out ] || ! kill -0 $(cat /tmp/gen.pid)");
        // The driver receives into the socket's buffers: more frames than it was given.
        let text = guest.run(&format!("ping -q -c 3000 -i 0.002 -s 1400 {FAR}; cat /tmp/gen.err"));
        assert!(text.contains(" 0% packet loss"), "{text}");
        guest.run("kill -TERM $(cat /tmp/gen.pid)");
        guest.until("it has drained", "! kill -0 $(cat /tmp/gen.pid)");
        let last = guest.run("tail -n 1 /tmp/gen.out");
        let Ok(Line::Summary(summary)) = serde_json::from_str(&last) else { panic!("no summary: {last}") };
        works(&summary);
        assert!(summary.balance.sent > 0 && summary.happened("fill-ring-empty") == 0, "{summary:#?}");
    });
}

#[test]
fn a_driver_that_refuses_zero_copy_is_used_with_copies_unless_it_is_required() {
    in_a_room("a_driver_that_refuses_zero_copy_is_used_with_copies_unless_it_is_required", |room| {
        let mut guest = boot(&room, Iommu::Absent);
        let other = interface(&mut guest, OTHER);
        guest.run(&format!("ip link set {other} up"));
        let why = ["the driver refuses it", "iommu_platform=on"];
        let refused = guest.try_run(&format!("towpath probe 'xdp:{other}?zerocopy=require'"));
        assert_eq!(refused.code, 2, "{}", refused.text);
        says(&refused.text, &["zerocopy=require", why[0], why[1]]);
        let mut cable = cable(&mut guest);
        cable.start_port(&format!("xdp:{other}"));
        says(&cable.guest.run("cat /tmp/fwd.err"), &["zerocopy is off", why[0], why[1]]);
        carries_everything(&mut cable);
        works(&cable.stop());
    });
}

#[test]
fn a_stalled_queue_is_reopened_without_copies_or_with_them_where_zero_copy_is_only_preferred() {
    let name = "a_stalled_queue_is_reopened_without_copies_or_with_them_where_zero_copy_is_only_preferred";
    in_a_room(name, |room| {
        let mut guest = boot(&room, Iommu::Absent);
        let mut cable = cable(&mut guest);
        for (options, awaited, fallbacks) in [("require", "made-anew", 0), ("prefer", "fell-back-to-copy", 1)] {
            cable.start_port(&format!("xdp:eth0?zerocopy={options},stall=200ms"));
            cable.ping();
            load(&mut cable);
            cable.guest.run(&format!("echo {PEER} >/sys/bus/pci/drivers/virtio-pci/unbind"));
            reported(cable.guest, awaited);
            cable.guest.run(&format!("echo {PEER} >/sys/bus/pci/drivers/virtio-pci/bind"));
            cable.calm();
            cable.guest.until("the peer is back", &format!("ls /sys/bus/pci/devices/{PEER}/virtio*/net"));
            cable.far.enter(cable.guest);
            cable.ping();
            let summary = cable.stop();
            works(&summary);
            let times = |event| summary.happened(event);
            assert!(times("stalled") > 0 && times("made-anew") == times("stalled"), "{summary:#?}");
            assert_eq!(times("fell-back-to-copy"), fallbacks, "{summary:#?}");
            assert!(summary.dropped("refused") > 0, "{summary:#?}");
            // The driver finds buffers when the queue is bound, each time.
            assert_eq!(times("fill-ring-empty"), 0, "{summary:#?}");
        }
    });
}

#[test]
fn a_link_that_goes_down_costs_packets_and_a_device_that_is_taken_away_ends_the_port_with_its_name() {
    let name = "a_link_that_goes_down_costs_packets_and_a_device_that_is_taken_away_ends_the_port_with_its_name";
    in_a_room(name, |room| {
        let mut guest = boot(&room, Iommu::Absent);
        let mut cable = cable(&mut guest);
        for (down, up) in [("ip link set eth0 down", "ip link set eth0 up"), ("", "")] {
            cable.start_port("xdp:eth0?zerocopy=require");
            cable.ping();
            load(&mut cable);
            // The interface, then the cable.
            if down.is_empty() {
                cable.guest.set_link("n4", false)
            } else {
                drop(cable.guest.run(down))
            }
            reported(cable.guest, "link-down");
            if up.is_empty() {
                cable.guest.set_link("n4", true)
            } else {
                drop(cable.guest.run(up))
            }
            cable.calm();
            cable.ping();
            let summary = cable.stop();
            works(&summary);
            assert!(summary.dropped("link-down") > 0 && summary.happened("stalled") == 0, "{summary:#?}");
        }
        cable.start_port("xdp:eth0?zerocopy=require");
        cable.ping();
        load(&mut cable);
        cable.guest.run(&format!("echo {NIC} >/sys/bus/pci/drivers/virtio-pci/unbind"));
        let summary = cable.ended();
        cable.calm();
        summary.is_balanced();
        let ended = summary.gone.first().is_some_and(|why| why.ends_with("xdp:eth0: the interface eth0 was deleted"));
        assert!(summary.gone.len() == 1 && ended, "{summary:#?}");
        cable.guest.run(&format!("echo {NIC} >/sys/bus/pci/drivers/virtio-pci/bind"));
        cable.guest.until("the device is back", "ip link set eth0 up");
        cable.start_port("xdp:eth0?zerocopy=require");
        cable.ping();
        works(&cable.stop());
    });
}
