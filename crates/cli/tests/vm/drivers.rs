//! Three drivers of the same device, one after the other: the kernel's, ours and DPDK's. Each takes
//! the device while its cable is pulled, finds the link, answers pings, loses the link and stops.

use crate::cable::{Cable, Far, NEAR};
use crate::guest::{Guest, HOT, NIC, inside};
use crate::oracle::{Recording, assert_explained};
use crate::says;
use crate::support::{Need, needs};
use crate::trace::{Access, Registers};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The same for all tests of a run.
static RECORDED: Mutex<Option<Recordings>> = Mutex::new(None);

#[derive(Clone)]
struct Recordings {
    linux: Recording,
    ours: Recording,
    /// `None` if the image has no `testpmd`.
    dpdk: Option<Recording>,
}

#[test]
fn each_difference_to_the_registers_of_linux_is_explained() {
    inside("the registers of Linux", |guest| {
        let Recordings { linux, ours, .. } = recorded(guest);
        assert_explained("Linux", &linux, &ours);
    });
}

#[test]
fn each_difference_to_the_registers_of_dpdk_is_explained() {
    const NAME: &str = "the registers of DPDK";
    if !needs(NAME, &[Need::Program("dpdk-testpmd")]) {
        return;
    }
    inside(NAME, |guest| {
        let Recordings { dpdk, ours, .. } = recorded(guest);
        assert_explained("DPDK", &dpdk.expect("testpmd is installed"), &ours);
    });
}

#[test]
fn the_driver_of_the_kernel_works_again_after_the_device_was_ours() {
    inside("the driver of the kernel", |guest| {
        let far = Far::new(guest);
        load(guest);
        for way in ["ends", "is killed"] {
            let name = up(guest, NIC);
            far.reaches(guest);
            guest.run(&format!("ip link set {name} down && ip addr flush dev {name}"));
            says(&guest.run(&format!("towpath bind {NIC}")), &["e1000e -> vfio-pci"]);
            guest.run(&format!("tunctl -t tp0 && ip addr add {NEAR}/24 dev tp0 && ip link set tp0 up"));
            guest.run(&format!("towpath fwd e1000e:vfio={NIC} tap:tp0 >/dev/null 2>&1 & echo $! >/tmp/fwd.pid"));
            far.reaches(guest);
            let signal = if way == "ends" { "TERM" } else { "KILL" };
            guest.run(&format!("kill -{signal} $(cat /tmp/fwd.pid)"));
            guest.until("it is gone", "! kill -0 $(cat /tmp/fwd.pid)");
            guest.run("tunctl -d tp0");
            says(&guest.run(&format!("towpath unbind {NIC}")), &["vfio-pci -> e1000e"]);
        }
        up(guest, NIC);
        far.reaches(guest);
        unload(guest);
        far.end(guest);
    });
}

/// Loads the kernel's driver.
pub(crate) fn load(guest: &mut Guest) {
    guest.run("for module in $(cat /modules/e1000e); do insmod /modules/$module; done");
}

pub(crate) fn unload(guest: &mut Guest) {
    guest.run("for module in $(tac /modules/e1000e); do rmmod ${module%.ko}; done");
}

/// Brings the interface of the kernel's driver up; returns its name.
#[track_caller]
pub(crate) fn up(guest: &mut Guest, bdf: &str) -> String {
    let net = format!("/sys/bus/pci/devices/{bdf}/net");
    guest.until("the kernel's driver has the device", &format!("ls {net}"));
    let name = guest.run(&format!("ls {net}"));
    guest.run(&format!("ip addr add {NEAR}/24 dev {name} && ip link set {name} up"));
    name
}

fn recorded(guest: &mut Guest) -> Recordings {
    let mut recorded = RECORDED.lock().unwrap_or_else(PoisonError::into_inner);
    recorded.get_or_insert_with(|| record(guest)).clone()
}

fn record(guest: &mut Guest) -> Recordings {
    // Neighbour discovery joins groups and sends frames at times of its own.
    let ipv6 =
        |off: u32| format!("for all in all default; do echo {off} >/proc/sys/net/ipv6/conf/$all/disable_ipv6; done");
    guest.run(&ipv6(1));
    // The log does not tell devices apart: nothing else may use one.
    guest.run(&format!("towpath bind {NIC}"));
    let linux = linux(guest);
    let ours = ours(guest);
    let dpdk = (guest.try_run("which testpmd").code == 0).then(|| dpdk(guest));
    guest.run(&format!("towpath unbind {NIC}"));
    guest.run(&ipv6(0));
    Recordings { linux, ours, dpdk }
}

/// Collects the writes step by step. Each driver gets a new device: QEMU's resets leave some
/// registers as the driver before has set them.
struct Recorder {
    steps: Vec<Vec<Access>>,
    /// Of this step.
    writes: Vec<Access>,
}

/// Rounds without another value of a register, at the end of a step, of a tenth of a second each;
/// and most rounds of a step.
const ROUNDS: u32 = 15;
const MOST_ROUNDS: u32 = 3000;

impl Recorder {
    fn new(guest: &mut Guest) -> Recorder {
        guest.plug();
        guest.set_link("hot", false);
        guest.writes();
        guest.set_trace(true);
        Recorder { steps: Vec::new(), writes: Vec::new() }
    }

    /// Waits until the driver has given the device buffers for frames.
    fn receives(&mut self, guest: &mut Guest, runs: &str) {
        while !self.writes.iter().any(|write| write.register == "RDT0" && write.value != 0) {
            guest.run(runs);
            self.writes.extend(guest.writes());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Ends a step, once no register has got another value while both processors of the guest have
    /// run [`ROUNDS`] times. A guest that does not run writes nothing either, but it ends no round.
    fn step(&mut self, guest: &mut Guest) {
        let (mut registers, mut quiet) = (Registers::default(), 0);
        for round in 0.. {
            if quiet == ROUNDS {
                break;
            }
            assert!(round < MOST_ROUNDS, "registers change for ever: {:?}", self.writes.last());
            guest.run("taskset 1 sleep 0.05; taskset 2 sleep 0.05");
            self.writes.extend(guest.writes());
            let mut all = Registers::default();
            self.writes.iter().for_each(|write| all.write(write));
            quiet += 1;
            if all != registers {
                (registers, quiet) = (all, 0);
            }
        }
        self.steps.push(std::mem::take(&mut self.writes));
    }

    /// The link comes, pings pass, and the link goes.
    fn link(&mut self, guest: &mut Guest, far: &Far) {
        guest.set_link("hot", true);
        far.reaches(guest);
        guest.run(&format!("{} ping -c 3 -i 0.1 -W 2 -s 1400 {NEAR}", far.prefix));
        self.step(guest);
        guest.set_link("hot", false);
        self.step(guest);
    }

    fn end(mut self, guest: &mut Guest) -> Recording {
        self.step(guest);
        guest.set_trace(false);
        guest.unplug();
        Recording(self.steps.try_into().unwrap_or_else(|steps| panic!("four steps: {steps:?}")))
    }
}

fn linux(guest: &mut Guest) -> Recording {
    let far = Far::new(guest);
    let mut recorder = Recorder::new(guest);
    load(guest);
    let name = up(guest, HOT);
    recorder.step(guest);
    recorder.link(guest, &far);
    guest.run(&format!("ip link set {name} down"));
    unload(guest);
    far.end(guest);
    recorder.end(guest)
}

/// Ours, with interrupts, as the others.
fn ours(guest: &mut Guest) -> Recording {
    let mut recorder = Recorder::new(guest);
    guest.run(&format!("towpath bind {HOT}"));
    let mut cable = Cable::without_nic(guest);
    cable.start_on(HOT, "?interrupts=on");
    recorder.step(cable.guest);
    recorder.link(cable.guest, &cable.far);
    cable.stop().is_balanced();
    cable.end();
    recorder.end(guest)
}

/// DPDK's `testpmd` answers pings for every address.
fn dpdk(guest: &mut Guest) -> Recording {
    let far = Far::new(guest);
    let mut recorder = Recorder::new(guest);
    guest.run(&format!("towpath bind {HOT}"));
    guest.run("echo 16 >/proc/sys/vm/nr_hugepages && mkdir -p /dev/huge && mount -t hugetlbfs huge /dev/huge");
    let commands = "(until [ -e /tmp/testpmd.stop ]; do sleep 0.1; done; echo stop; echo quit)";
    let eal = format!("-l 0,1 --iova-mode=va --in-memory -d /pmd -a {HOT}");
    let test = "--total-num-mbufs=2048 --disable-link-check --forward-mode=icmpecho -i --auto-start";
    guest.run(&format!("{commands} | testpmd {eal} -- {test} >/tmp/testpmd.out 2>&1 & echo $! >/tmp/testpmd.pid"));
    recorder.receives(guest, "kill -0 $(cat /tmp/testpmd.pid) || ! cat /tmp/testpmd.out");
    recorder.step(guest);
    recorder.link(guest, &far);
    guest.run("touch /tmp/testpmd.stop");
    guest.until("testpmd has ended", "! kill -0 $(cat /tmp/testpmd.pid)");
    guest.run("umount /dev/huge; echo 0 >/proc/sys/vm/nr_hugepages; rm /tmp/testpmd.*");
    far.end(guest);
    recorder.end(guest)
}
