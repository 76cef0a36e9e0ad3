//! A booted machine with an IOMMU and a NIC behind it. Towpath drives that NIC through VFIO.
//!
//! ```text
//!   QEMU, all in software ─ q35, VT-d with interrupt remapping
//!     00:04.0  82574L       ── hub ── 00:06.0  virtio, the guest kernel's own NIC
//!     00:07.0  virtio       ── nothing
//!     00:08.0  slot         a NIC that is plugged in and out, on the same hub
//!     00:0a.0  82540EM      a NIC without a driver here
//!   guest: Debian's kernel, busybox, towpath, DPDK's testpmd
//! ```
//!
//! | module | what |
//! |---|---|
//! | `guest` | the machine and its shell |
//! | `image`, `kernel`, `cpio` | what it boots |
//! | `qmp`, `trace` | QEMU's monitor; accesses to registers, by name |
//! | `cable` | two hosts inside, joined by towpath |
//! | `drivers` | the kernel's driver, DPDK's and ours bring the same device up |
//! | `oracle` | what they write, compared; explained in `docs/oracles.md` |
//! | `removal` | the kernel takes the NIC away; kinds of interrupts |
//! | `switching` | what the kernel that runs the tests may lack: VLANs of its bridge, classifiers |
//! | `storm` | pulled cables, pulled devices and kills, many times |
//! | `multiqueue` | a machine whose virtio NIC has two pairs of queues, which towpath drives |
//! | `vhost_net` | taps by vhost-net, which the kernel that runs the tests may lack |
//! | `vhost` | machines of their own, whose NIC is a vhost-user device |
//! | `zero_copy` | machines with a later kernel, whose driver takes the memory of AF_XDP sockets |

mod cable;
mod cpio;
mod drivers;
mod guest;
mod image;
mod kernel;
mod multiqueue;
mod oracle;
mod qmp;
mod removal;
mod storm;
#[path = "../support/mod.rs"]
mod support;
mod switching;
mod trace;
mod vhost;
mod vhost_net;
mod zero_copy;

use cable::{Cable, start, stop};
use guest::{Guest, NIC, OTHER, PEER, SPARE, inside};

/// The driver of a function; empty without one.
fn driver(guest: &mut Guest, bdf: &str) -> String {
    let link = guest.try_run(&format!("readlink /sys/bus/pci/devices/{bdf}/driver"));
    link.text.rsplit('/').next().unwrap_or_default().to_owned()
}

fn only(guest: &mut Guest, bdf: &str) -> String {
    guest.run(&format!("cat /sys/bus/pci/devices/{bdf}/driver_override"))
}

/// The interfaces of a virtio function.
fn interface(guest: &mut Guest, bdf: &str) -> String {
    guest.try_run(&format!("ls /sys/bus/pci/devices/{bdf}/virtio*/net")).text
}

#[track_caller]
fn says(text: &str, what: &[&str]) {
    for what in what {
        assert!(text.contains(what), "'{what}' is not in:\n{text}");
    }
}

#[test]
fn registers_reset_interrupts_and_dma_work_through_vfio_and_unmapped_memory_is_out_of_reach() {
    inside("the proof of VFIO", |guest| {
        guest.run(&format!("towpath bind {NIC}"));
        guest.run("dmesg -c >/dev/null");
        let text = guest.run(&format!("vfio_proof {NIC}"));
        println!("{text}");
        for claim in ["limits", "registers", "reset", "interrupts", "dma", "unmap", "refusals", "cost"] {
            assert!(text.lines().any(|line| line == format!("ok {claim}")), "{claim}: {text}");
        }
        says(&guest.run("dmesg | grep DMAR"), &["DMA Write", "DMA Read"]);
        guest.run(&format!("towpath unbind {NIC}"));
    });
}

#[test]
fn a_program_without_rights_uses_a_device_it_was_given_and_learns_its_lock_limit() {
    inside("VFIO without root", |guest| {
        guest.run(&format!("towpath bind {NIC}"));
        let group = group(guest, NIC);
        let probe = format!("su nobody -c 'towpath probe e1000e:vfio={NIC}'");
        let refused = guest.try_run(&probe);
        assert_eq!(refused.code, 2, "{}", refused.text);
        says(&refused.text, &[&format!("/dev/vfio/{group} can't be opened"), "may be locked in memory", "ulimit -l"]);
        guest.run(&format!("chown nobody /dev/vfio/{group}"));
        let text = guest.run(&format!("su nobody -c 'vfio_proof {NIC} limits refusals dma'"));
        says(&text, &["ok limits", "ok refusals", "ok dma", "may be locked"]);
        guest.run(&format!("chown root /dev/vfio/{group}; towpath unbind {NIC}"));
    });
}

fn group(guest: &mut Guest, bdf: &str) -> String {
    guest.run(&format!("basename $(readlink /sys/bus/pci/devices/{bdf}/iommu_group)"))
}

#[test]
fn a_function_without_a_driver_is_restored_without_one() {
    inside("binding a function without a driver", |guest| {
        assert_eq!((driver(guest, NIC), only(guest, NIC)), (String::new(), "(null)".to_owned()));
        says(&guest.run(&format!("towpath bind {NIC}")), &["no driver -> vfio-pci"]);
        assert_eq!(driver(guest, NIC), "vfio-pci");
        says(&guest.run(&format!("towpath unbind {NIC}")), &["vfio-pci -> no driver"]);
        assert_eq!((driver(guest, NIC), only(guest, NIC)), (String::new(), "(null)".to_owned()));
        let again = guest.try_run(&format!("towpath unbind {NIC}"));
        assert_eq!(again.code, 2);
        says(&again.text, &["vfio-pci does not have it"]);
    });
}

#[test]
fn a_nic_without_a_driver_here_is_bound_by_force_alone() {
    inside("binding a NIC without a driver here", |guest| {
        let refused = guest.try_run(&format!("towpath bind {OTHER}"));
        assert_eq!((refused.code, driver(guest, OTHER).as_str()), (2, ""), "{}", refused.text);
        says(&refused.text, &["an Ethernet controller (8086:100e)", "--force"]);
        says(&guest.run(&format!("towpath bind {OTHER} --force")), &["no driver -> vfio-pci"]);
        says(&guest.run(&format!("towpath unbind {OTHER}")), &["vfio-pci -> no driver"]);
    });
}

#[test]
fn a_nic_of_the_kernel_is_bound_unless_it_is_in_use_and_restored_to_its_driver() {
    inside("binding a NIC of the kernel", |guest| {
        let name = interface(guest, SPARE);
        guest.run(&format!("ip addr add 192.0.2.1/24 dev {name}; ip link set {name} up"));
        let refused = guest.try_run(&format!("towpath bind {SPARE}"));
        assert_eq!((refused.code, driver(guest, SPARE).as_str()), (2, "virtio-pci"), "{}", refused.text);
        says(&refused.text, &[&format!("its interface {name} is in use"), "192.0.2.1"]);
        guest.run(&format!("ip addr flush dev {name}; ip link set {name} down"));
        for _ in 0..2 {
            says(&guest.run(&format!("towpath bind {SPARE}")), &["virtio-pci -> vfio-pci"]);
            assert_eq!((driver(guest, SPARE).as_str(), interface(guest, SPARE).contains("eth")), ("vfio-pci", false));
            says(&guest.run(&format!("towpath unbind {SPARE}")), &["vfio-pci -> virtio-pci"]);
            guest.until("its interface is back", &format!("ls /sys/bus/pci/devices/{SPARE}/virtio*/net"));
            assert_eq!(only(guest, SPARE), "(null)");
        }
    });
}

#[test]
fn frames_pass_between_a_virtio_nic_behind_the_iommu_and_another_nic_under_every_policy() {
    inside("a virtio NIC through VFIO", |guest| {
        let sink = format!("towpath sink e1000e:vfio={NIC} --quiet --duration 60s >/tmp/sink 2>&1 & echo $! >/tmp/pid");
        guest.run(&format!("towpath bind {NIC}; towpath bind {PEER}"));
        for policy in ["persistent", "deferred", "strict"] {
            guest.run(&sink);
            // While its link is negotiated the other NIC takes nothing, and the hub keeps what
            // comes.
            let port = format!("virtio:vfio={PEER}?policy={policy}");
            guest.until("a link", &format!("towpath gen '{port}' --count 10 | grep -q '10 in = 10 out'"));
            says(&guest.run(&format!("towpath gen '{port}' --count 3000")), &["3 000 in = 3 000 out", "all returned"]);
            guest.run("kill -INT $(cat /tmp/pid)");
            guest.until("the sink has ended", "! kill -0 $(cat /tmp/pid)");
            says(&guest.run("cat /tmp/sink"), &["all returned"]);
        }
        // The other way: frames of two lengths, of which the short ones are copied out of their
        // buffers.
        let port = format!("virtio:vfio={PEER}?policy=strict,copybreak=256,interrupts=on");
        guest.run(&format!("towpath sink '{port}' --json --duration 60s >/tmp/sink 2>/dev/null & echo $! >/tmp/pid"));
        let summary = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        let sent: u64 = [128, 1500]
            .map(|size| {
                // What is due before the link is negotiated is dropped.
                let send = format!("towpath gen e1000e:vfio={NIC} --rate 1k --count 2000 --size {size} --json");
                summary(&guest.run(&format!("{send} 2>/dev/null | tail -n 1")))["balance"]["sent"].as_u64().unwrap()
            })
            .iter()
            .sum();
        let arrived = format!("grep -q '\"packets\":{sent},' /tmp/sink");
        guest.until("the frames are there", &format!("kill -INT $(cat /tmp/pid); sleep 0.2; {arrived}"));
        let received = summary(&guest.run("tail -n 1 /tmp/sink"));
        let balance = &received["balance"];
        assert!(sent > 1000 && balance["received"] == sent && balance["sent"] == sent, "{received}");
        assert_eq!((&balance["drops"], &received["buffers_away"]), (&serde_json::json!([]), &serde_json::json!(0)));
        guest.run(&format!("towpath unbind {NIC}; towpath unbind {PEER}"));
        guest.until("the kernel's interface is back", &format!("ls /sys/bus/pci/devices/{PEER}/virtio*/net"));
        // A frame that the hub kept is completed by QEMU after the driver has reset the device, as
        // it seems: the IOMMU refuses that one write, and the kernel reports it.
        println!("{}", guest.run("dmesg -c | grep -c DMAR; true"));
    });
}

#[test]
fn probing_reports_step_by_step_what_is_missing() {
    inside("findings", |guest| {
        let probe = |guest: &mut Guest, bdf: &str| guest.try_run(&format!("towpath probe e1000e:vfio={bdf}"));
        let nowhere = probe(guest, "00:09.0");
        assert_eq!(nowhere.code, 2);
        says(&nowhere.text, &["no such device", NIC, PEER, "virtio-pci"]);
        let named = format!("virtio-pci has the device, as {}", interface(guest, PEER));
        says(&probe(guest, PEER).text, &[&named, &format!("towpath bind {PEER}")]);
        says(&probe(guest, NIC).text, &["no driver has the device", &format!("towpath bind {NIC}")]);
        guest.run("rmmod vfio_pci");
        says(&probe(guest, NIC).text, &["vfio-pci is not loaded", "modprobe vfio-pci"]);
        guest.run("insmod /modules/vfio_pci.ko");
        guest.run(&format!("towpath bind {NIC}"));
        says(&probe(guest, NIC).text, &["nothing is missing"]);

        let group = group(guest, NIC);
        guest.run(&format!("(exec 9<>/dev/vfio/{group}; exec sleep 60) & echo $! >/tmp/holder"));
        let holder = guest.run("cat /tmp/holder");
        let held = "ls -l /proc/$(cat /tmp/holder)/fd | grep -q vfio";
        guest.until("another process has the group", held);
        says(&probe(guest, NIC).text, &[&format!("in use by process {holder}")]);
        let refused = guest.try_run(&format!("towpath unbind {NIC}"));
        assert_eq!((refused.code, driver(guest, NIC).as_str()), (2, "vfio-pci"), "{}", refused.text);
        says(&refused.text, &[&holder]);
        guest.run("kill $(cat /tmp/holder)");
        guest.until("it is gone", &format!("towpath unbind {NIC}"));
    });
}

#[test]
fn ping_and_files_cross_between_the_nic_and_a_tap_byte_for_byte_under_every_policy() {
    inside("forwarding", |guest| {
        let mut cable = Cable::new(guest);
        for options in ["", "?policy=strict,copybreak=256", "?policy=deferred,copybreak=0,interrupts=on"] {
            cable.start(options);
            cable.ping();
            cable.fetch_both_ways();
            let summary = cable.stop();
            summary.is_balanced();
            assert!(summary.failed.is_empty() && summary.gone.is_empty(), "{options}: {summary:#?}");
        }
        cable.end();
    });
}

/// The front end stands for a machine, whose memory comes and goes.
#[test]
fn the_nic_reads_what_a_machine_sends_where_it_lies_in_the_memory_of_that_machine() {
    inside("memory of a front end and VFIO", |guest| {
        guest.run("dmesg -c >/dev/null");
        let mut cable = Cable::new(guest);
        // Mapped as long as it is there; and for each frame.
        for options in ["", "?policy=strict,tx-copybreak=0"] {
            let ports = format!("vhost:/tmp/vm.sock 'e1000e:vfio={NIC}{options}'");
            start(cable.guest, "back", &format!("{ports} --control /tmp/back.control"));
            for _ in 0..2 {
                cable.start_port("virtio:user=/tmp/vm.sock");
                cable.ping();
                cable.fetch_both_ways();
                cable.stop().is_balanced();
            }
            let state = cable.guest.run("towpath state --control /tmp/back.control --json");
            let state: serde_json::Value = serde_json::from_str(&state).unwrap_or_else(|e| panic!("{e}: {state}"));
            let sent = &state["units"][0]["ports"][1]["tx"];
            assert!(sent["packets"].as_u64() > Some(1000) && sent["copied"] == 0, "{options}: {sent:#}");
            let summary = stop(cable.guest, "back");
            summary.is_balanced();
            assert!(summary.failed.is_empty() && summary.gone.is_empty(), "{options}: {summary:#?}");
        }
        // Nor does the NIC reach for memory that was taken back.
        let faults = cable.guest.try_run("dmesg | grep 'DMAR.*fault'");
        assert_eq!(faults.code, 1, "{}", faults.text);
        cable.end();
    });
}

#[test]
fn a_transfer_goes_on_when_towpath_was_killed_and_started_again() {
    inside("kill -9", |guest| {
        let mut cable = Cable::new(guest);
        cable.start("");
        cable.ping();
        cable.fetch_through_a_kill();
        cable.stop().is_balanced();
        cable.end();
    });
}

#[test]
fn the_table_of_copybreak_is_measured_with_the_mappings_of_the_kernel() {
    inside("bench copybreak", |guest| {
        guest.run(&format!("towpath bind {NIC}"));
        let name = interface(guest, PEER);
        guest.run(&format!("ip link set {name} up"));
        // Every port of the hub receives it.
        let sender = format!("towpath gen packet:{name} --size 1500 --quiet");
        guest.run(&format!("{sender} >/dev/null 2>/tmp/gen.err & echo $! >/tmp/gen.pid"));
        let bench = format!("towpath bench copybreak --port e1000e:vfio={NIC} --samples 25");
        let table = guest.run(&bench);
        println!("{table}");
        says(&table, &[&format!("the device {NIC}, by VFIO"), "before / after ="]);
        guest.run("kill $(cat /tmp/gen.pid)");
        let row = |rev: &str, iommu: &str, copybreak: &str| {
            let found = table.lines().find(|line| {
                let mut cells = line.split('|').map(str::trim);
                (cells.next(), cells.next(), cells.next()) == (Some(rev), Some(iommu), Some(copybreak))
            });
            let work = found.and_then(|line| line.split('|').nth(7)).unwrap_or_default();
            work.split_whitespace().map(|n| n.parse().unwrap_or(f64::NAN)).collect::<Vec<f64>>()
        };
        // Maps and unmaps for each buffer.
        assert_eq!(row("before", "on", "2048").get(..2), Some(&[1.0, 1.0][..]), "{table}");
        assert_eq!(row("after", "on", "2048").get(..2), Some(&[0.0, 0.0][..]), "{table}");
        guest.run(&format!("towpath unbind {NIC}"));
    });
}

#[test]
fn a_copied_frame_is_sent_without_a_mapping_of_the_kernel() {
    inside("bench copybreak --tx", |guest| {
        guest.run(&format!("towpath bind {NIC}"));
        let bench = format!("towpath bench copybreak --tx --port e1000e:vfio={NIC} --samples 40 --rounds 2 --json");
        let report = guest.run(&bench);
        println!("{report}");
        let report: serde_json::Value = serde_json::from_str(&report).unwrap();
        let rows = report["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 6, "{report}");
        for row in rows {
            let count = |what: &str| row["per_buffer"][what].as_f64().unwrap();
            let (copied, per_buffer) = (row["tx_copybreak"] == 2048, row["policy"] != "persistent");
            let mapped = if per_buffer && !copied { 1.0 } else { 0.0 };
            assert_eq!((count("maps"), count("copies")), (mapped, if copied { 1.0 } else { 0.0 }), "{row}");
        }
        guest.run(&format!("towpath unbind {NIC}"));
    });
}
