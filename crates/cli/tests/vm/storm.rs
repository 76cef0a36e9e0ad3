//! Pulled cables, pulled devices and kills, many times. Afterwards no port is lost, nothing has
//! leaked, and the kernel's driver works.
//!
//! A run of the tests does a few of each; `TOWPATH_FLAPS`, `TOWPATH_UNPLUGS` and `TOWPATH_KILLS`
//! set other numbers.

use crate::cable::{Cable, Far, NEAR};
use crate::drivers::{load, unload, up};
use crate::guest::{Guest, HOT, NIC, inside};
use std::time::Duration;

/// How often: a variable of the environment, or what a run of all tests has time for.
fn times(variable: &str, few: u32) -> u32 {
    match std::env::var(variable) {
        Ok(number) => number.parse().unwrap_or_else(|e| panic!("{variable}={number}: {e}")),
        Err(_) => few,
    }
}

/// What a guest may lose step by step.
#[derive(Debug, Clone, Copy)]
struct Resources {
    /// kB that programs could still have.
    available: u64,
    /// Pages that are pinned, as those are that a device may reach.
    pinned: u64,
    /// Containers of IOMMU mappings.
    containers: u64,
}

impl Resources {
    fn of(guest: &mut Guest) -> Resources {
        let mut number = |command: &str| {
            let text = guest.run(command);
            text.parse().unwrap_or_else(|e| panic!("{command}: {e}: {text}"))
        };
        number("sync; echo 3 >/proc/sys/vm/drop_caches; echo 0");
        // Each CPU keeps a part of the counters to itself until it is asked.
        number("cat /proc/sys/vm/stat_refresh; echo 0");
        let available = number("awk '/^MemAvailable/ { print $2 }' /proc/meminfo");
        let pinned = number(
            "awk '/^nr_foll_pin_acquired/ { n += $2 } /^nr_foll_pin_released/ { n -= $2 } END { print n }' /proc/vmstat",
        );
        let containers = number("awk '$1 == \"vfio_iommu_type1\" { print $3 }' /proc/modules");
        Resources { available, pinned, containers }
    }

    /// Asserts that nothing is held, and that no more than a few pages a time have gone.
    #[track_caller]
    fn are_back(guest: &mut Guest, before: Resources, times: u32) {
        let held = guest.try_run("ls -l /proc/[0-9]*/fd 2>/dev/null | grep /dev/vfio/");
        assert_eq!(held.code, 1, "a process has a group: {}", held.text);
        let after = Resources::of(guest);
        assert_eq!((after.pinned, after.containers), (before.pinned, before.containers), "{before:?} {after:?}");
        let allowed = 8192 + u64::from(times) * 16;
        assert!(after.available + allowed > before.available, "{times} times: {before:?} {after:?}");
        let faults = guest.try_run("dmesg | grep -E 'DMAR.*fault|BUG|WARNING|Oops'");
        assert_eq!(faults.code, 1, "the kernel complains: {}", faults.text);
    }
}

/// Frames both ways, until the generators are killed.
fn traffic(guest: &mut Guest, far: &Far) {
    let generate = |port: &str| format!("towpath gen packet:{port} --rate 1000 --size 256 --quiet");
    let (near, name) = (generate("tp0"), generate(&far.name));
    guest.run(&format!("{near} >/dev/null 2>&1 & echo $! >/tmp/gen.pids"));
    guest.run(&format!("{} {name} >/dev/null 2>&1 & echo $! >>/tmp/gen.pids", far.prefix));
}

fn no_traffic(guest: &mut Guest) {
    guest.run("kill $(cat /tmp/gen.pids)");
    guest.until("the generators are gone", "(for pid in $(cat /tmp/gen.pids); do ! kill -0 $pid || exit 1; done)");
}

/// Open descriptors, and kB of memory, of towpath.
fn process(guest: &mut Guest) -> (u64, u64) {
    let number = |text: String| text.parse().unwrap_or_else(|e| panic!("{e}: {text}"));
    let descriptors = number(guest.run("ls /proc/$(cat /tmp/fwd.pid)/fd | wc -l"));
    (descriptors, number(guest.run("awk '/^VmRSS/ { print $2 }' /proc/$(cat /tmp/fwd.pid)/status")))
}

#[test]
fn a_port_outlives_its_cable_being_pulled_under_traffic_again_and_again() {
    let flaps = times("TOWPATH_FLAPS", 12);
    inside("pulled cables", |guest| {
        let before = Resources::of(guest);
        let mut cable = Cable::new(guest);
        cable.start("");
        cable.ping();
        traffic(cable.guest, &cable.far);
        let mut early = None;
        for flap in 0..flaps {
            cable.guest.set_link("nic", false);
            // Some are over before the driver has looked, some are longer than it waits for a
            // frame.
            std::thread::sleep(Duration::from_millis([0, 20, 150, 1200][flap as usize % 4]));
            cable.guest.set_link("nic", true);
            // QEMU's negotiation takes half a second.
            std::thread::sleep(Duration::from_millis(550));
            cable.far.reaches(cable.guest);
            if flap == flaps / 10 {
                early = Some(process(cable.guest));
            }
        }
        let ((descriptors, memory), now) = (early.expect("a first flap"), process(cable.guest));
        assert!(now.0 == descriptors && now.1 < memory + 2048, "{descriptors} {memory} kB, now {now:?}");
        no_traffic(cable.guest);
        let summary = cable.stop();
        eprintln!("{flaps} flaps: {:?} {:?}", summary.balance, summary.events);
        summary.is_balanced();
        assert!(summary.failed.is_empty() && summary.gone.is_empty(), "{summary:#?}");
        cable.end();
        Resources::are_back(guest, before, flaps);
        works_with_the_kernel(guest);
    });
}

/// The kernel's driver takes the NIC and answers pings.
fn works_with_the_kernel(guest: &mut Guest) {
    let far = Far::new(guest);
    load(guest);
    up(guest, NIC);
    far.reaches(guest);
    unload(guest);
    far.end(guest);
}

#[test]
fn a_killed_towpath_leaves_nothing_behind_and_the_driver_of_the_kernel_works() {
    let kills = times("TOWPATH_KILLS", 3);
    inside("kills", |guest| {
        load(guest);
        guest.run("dmesg -c >/dev/null");
        let before = Resources::of(guest);
        let mut cable = Cable::without_nic(guest);
        for kill in 0..kills {
            cable.guest.run(&format!("towpath bind {NIC}"));
            cable.start(["", "?policy=strict", "?policy=deferred,interrupts=on"][kill as usize % 3]);
            cable.far.reaches(cable.guest);
            traffic(cable.guest, &cable.far);
            cable.guest.run("kill -KILL $(cat /tmp/fwd.pid)");
            cable.guest.until("it is gone", "! kill -0 $(cat /tmp/fwd.pid)");
            // Frames go on arriving: the device must not take one into memory before the kernel's
            // driver has reset it.
            cable.guest.run(&format!("towpath unbind {NIC}"));
            cable.guest.run(&format!("ip addr del {NEAR}/24 dev tp0"));
            let name = up(cable.guest, NIC);
            no_traffic(cable.guest);
            cable.far.reaches(cable.guest);
            cable
                .guest
                .run(&format!("ip link set {name} down && ip addr flush dev {name} && ip addr add {NEAR}/24 dev tp0"));
        }
        cable.end();
        Resources::are_back(guest, before, kills);
        unload(guest);
    });
}

#[test]
fn a_port_whose_device_is_pulled_under_traffic_ends_by_name_and_frees_all() {
    let unplugs = times("TOWPATH_UNPLUGS", 3);
    inside("pulled devices", |guest| {
        guest.run("dmesg -c >/dev/null");
        let mut cable = Cable::without_nic(guest);
        let before = Resources::of(cable.guest);
        for unplug in 0..unplugs {
            cable.guest.plug();
            cable.guest.run(&format!("towpath bind {HOT}"));
            cable.start_on(HOT, ["", "?policy=strict", "?interrupts=on"][unplug as usize % 3]);
            cable.far.reaches(cable.guest);
            traffic(cable.guest, &cable.far);
            cable.guest.unplug();
            let summary = cable.ended();
            no_traffic(cable.guest);
            summary.is_balanced();
            assert!(summary.gone.iter().any(|port| port.contains(HOT)), "{summary:#?}");
            cable.guest.run(&format!("[ ! -e /sys/bus/pci/devices/{HOT} ]"));
        }
        Resources::are_back(cable.guest, before, unplugs);
        cable.end();
    });
}
