//! Address, groups, VLANs and promiscuity, changed while the port runs: QEMU's filter decides.

use crate::backend::Backend;
use crate::qtest::{machine, open_bus};
use crate::rig::{EVERYTHING, PATIENCE, Rig, frame};
use std::time::Instant;
use towpath_bus::qtest::{Cable, QtestBus};
use towpath_bus::{Bus, Mmio};
use towpath_nic::virtio::{Config, PciTransport};
use towpath_packet::Offloads;
use towpath_packet::port::{PortControl, TxQueue};
use towpath_testing::{Need, addressed, needs};

const OWN: [u8; 6] = [0x52, 0x54, 0, 0xaa, 0xbb, 0xcc];
const MINE: [u8; 6] = [2, 0, 0, 0, 0, 0x0a];
const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 0x0b];

fn to(address: [u8; 6], vlan: Option<u16>, id: u8) -> Vec<u8> {
    addressed(frame(id.into(), 64), address, vlan, id)
}

/// The kinds of frames that pass. The last one is a broadcast, which always does.
fn passing(rig: &mut Rig<PciTransport<QtestBus>>, cable: &Cable) -> Vec<u8> {
    let untagged = [OWN, MINE, OTHER, [1, 0, 0x5e, 0, 0, 0xfb], [1, 0, 0x5e, 0, 0, 0x16]];
    let mut frames: Vec<_> = (0..).zip(untagged).map(|(id, address)| to(address, None, id)).collect();
    frames.extend((5..).zip([0, 0x6000 | 10, 0x6000 | 20]).map(|(id, tag)| to(OWN, Some(tag), id)));
    frames.push(to([0xff; 6], None, 8));
    frames.iter().for_each(|frame| cable.send(frame).unwrap());
    let (begun, mut got) = (Instant::now(), Vec::new());
    while got.last() != Some(&8) {
        assert!(begun.elapsed() < PATIENCE, "only {got:?} came");
        got.extend(rig.receive(0).iter().map(|packet| packet.to_vec()[11]));
    }
    got
}

/// Both queues halt and reset the device, if a reset was requested.
fn turn(rig: &mut Rig<PciTransport<QtestBus>>) {
    for _ in 0..2 {
        assert!(rig.receive(0).is_empty());
        rig.tx[0].reclaim();
    }
}

#[test]
fn each_part_of_the_filter_is_changed_while_the_port_runs_and_holds_after_a_reset() {
    let name = "each_part_of_the_filter_is_changed_while_the_port_runs_and_holds_after_a_reset";
    if !needs(name, &[Need::Program("qemu-system-x86_64")]) {
        return;
    }
    let (qemu, cable) = machine(None, "");
    let bus = qemu.open(4).unwrap();
    // The common configuration of QEMU's device; byte 20 is its status.
    let registers = bus.bar(4, 0x1000).unwrap();
    let (port, pool) = open_bus(bus, Config::default());
    let mut rig = Rig::start(port, pool, Offloads::NONE);
    let steps: [(&str, &str, &[u8]); 12] = [
        ("receive", "all", &[0, 1, 2, 3, 4, 5, 6, 7, 8]),
        ("receive", "multicast", &[0, 3, 4, 5, 6, 7, 8]),
        ("receive", "own", &[0, 5, 6, 7, 8]),
        ("groups", "01:00:5e:00:00:fb", &[0, 3, 5, 6, 7, 8]),
        ("addresses", "02:00:00:00:00:0b", &[0, 2, 3, 5, 6, 7, 8]),
        ("vlans", "10", &[0, 2, 3, 5, 6, 8]),
        ("vlans", "20", &[0, 2, 3, 5, 7, 8]),
        ("mac", "02:00:00:00:00:0a", &[1, 2, 3, 8]),
        ("mac", "device", &[0, 2, 3, 5, 7, 8]),
        ("vlans", "all", &[0, 2, 3, 5, 6, 7, 8]),
        ("addresses", "none", &[0, 3, 5, 6, 7, 8]),
        ("vlans", "10", &[0, 3, 5, 6, 8]),
    ];
    for (name, value, expected) in steps {
        rig.control.set(name, &value.into()).unwrap();
        turn(&mut rig);
        assert_eq!(passing(&mut rig, &cable), expected, "{name}={value}");
    }
    assert_eq!((rig.control.faults().resets, rig.control.faults().refused_commands), (0, 0));
    registers.w8(20, 0);
    let begun = Instant::now();
    while rig.control.faults().resets == 0 {
        assert!(begun.elapsed() < PATIENCE, "it is not reset");
        turn(&mut rig);
    }
    turn(&mut rig);
    assert_eq!(passing(&mut rig, &cable), [0, 3, 5, 6, 8]);
    let settings: Vec<_> = rig.control.settings().iter().map(|s| (s.name, s.value.to_string())).collect();
    assert!(settings.contains(&("mac", "52:54:00:aa:bb:cc".to_owned())), "{settings:?}");
    assert!(settings.contains(&("vlans", "10".to_owned())), "{settings:?}");
    rig.end();
}

#[test]
fn a_device_without_a_control_queue_has_no_filter_to_change() {
    let backend = Backend::new(EVERYTHING, 1);
    let rig = Rig::new(Config::default(), &backend);
    assert_eq!(rig.control.settings().iter().map(|setting| setting.name).collect::<Vec<_>>(), ["copybreak"]);
    let error = rig.control.set("receive", &"own".into()).unwrap_err().to_string();
    assert!(error.contains("receive") && error.contains("own") && error.contains("no control queue"), "{error}");
    rig.end();
}
