//! The kernel takes the NIC away under traffic, and every kind of its interrupts.

use crate::cable::Cable;
use crate::guest::{NIC, inside};
use crate::{driver, says};

/// What an administrator writes to take the device away, and what brings it back to `vfio-pci`.
const WAYS: [(&str, &str); 3] = [
    ("echo $NIC >/sys/bus/pci/drivers/vfio-pci/unbind", "echo $NIC >/sys/bus/pci/drivers/vfio-pci/bind"),
    ("towpath unbind $NIC --force", "towpath bind $NIC"),
    ("echo 1 >/sys/bus/pci/devices/$NIC/remove", "echo 1 >/sys/bus/pci/rescan; towpath bind $NIC"),
];

#[test]
fn a_device_that_is_taken_away_under_traffic_is_closed_at_once_and_works_again_later() {
    inside("removal under traffic", |guest| {
        let mut cable = Cable::new(guest);
        for (options, (take, give)) in ["", "?interrupts=msi", "?policy=strict,interrupts=on"].into_iter().zip(WAYS) {
            cable.start(options);
            cable.ping();
            cable.flood();
            let guest = &mut *cable.guest;
            guest.run(&format!("NIC={NIC}; dmesg -c >/dev/null; timeout 60 sh -c \"{take}\""));
            // The write has ended, so the kernel has the device: nothing holds it any more.
            assert_ne!(driver(guest, NIC), "vfio-pci", "{take}");
            let log = guest.run("dmesg");
            assert!(!log.contains("No device request channel") && !log.contains("DMAR: [DMA"), "{take}: {log}");
            let summary = cable.ended();
            summary.is_balanced();
            assert!(summary.sandbox.refused.is_empty(), "{take}: {:?}", summary.sandbox.refused);
            says(&summary.gone.join("; "), &["e1000e:vfio=", "the system wants the device back"]);
            cable.calm();
            let guest = &mut *cable.guest;
            guest.run(&format!("NIC={NIC}; {give}"));
            guest
                .until("vfio-pci has it again", &format!("readlink /sys/bus/pci/devices/{NIC}/driver | grep vfio-pci"));
        }
        cable.start("");
        cable.ping();
        cable.stop().is_balanced();
        cable.end();
    });
}

#[test]
fn a_worker_is_woken_by_every_kind_of_interrupt() {
    inside("kinds of interrupts", |guest| {
        let mut cable = Cable::new(guest);
        for (kind, line) in [("msix", "vfio-msix"), ("msi", "vfio-msi["), ("intx", "vfio-intx")] {
            cable.start(&format!("?interrupts={kind}"));
            cable.ping();
            let counts = cable.guest.run("cat /proc/interrupts");
            let mine: Vec<_> = counts.lines().filter(|counts| counts.contains(line) && counts.contains(NIC)).collect();
            let fired = |counts: &str| counts.split_whitespace().skip(1).any(|n| n.parse().is_ok_and(|n: u64| n > 0));
            assert!(mine.iter().any(|counts| fired(counts)), "{kind}: {counts}");
            let summary = cable.stop();
            summary.is_balanced();
            assert!(summary.failed.is_empty() && summary.gone.is_empty(), "{kind}: {summary:#?}");
            assert!(summary.sandbox.refused.is_empty(), "{kind}: {:?}", summary.sandbox.refused);
        }
        cable.end();
    });
}
