//! Address, groups, VLANs, promiscuity and MTU, changed while the port runs: QEMU's filter decides.

use crate::require;
use crate::rig::{Rig, Setup, protections, sized, until};
use towpath_bus::Mmio;
use towpath_packet::Batch;
use towpath_packet::port::{PortControl, RxQueue, TxQueue};
use towpath_testing::addressed;

const OWN: [u8; 6] = [0x52, 0x54, 0, 0xaa, 0xbb, 0xcc];
const MINE: [u8; 6] = [2, 0, 0, 0, 0, 0x0a];
const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 0x0b];

fn to(address: [u8; 6], vlan: Option<u16>, id: u8) -> Vec<u8> {
    addressed(sized(id.into(), 64), address, vlan, id)
}

/// The kinds of frames that pass. The last one is a broadcast, which always does.
fn passing(rig: &mut Rig, expected: &[u8]) -> Vec<u8> {
    let untagged = [OWN, MINE, OTHER, [1, 0, 0x5e, 0, 0, 0xfb], [1, 0, 0x5e, 0, 0, 0x16]];
    let mut frames: Vec<_> = (0..).zip(untagged).map(|(id, address)| to(address, None, id)).collect();
    frames.extend((5..).zip([0, 0x6000 | 10, 0x6000 | 20]).map(|(id, tag)| to(OWN, Some(tag), id)));
    frames.push(to([0xff; 6], None, 8));
    rig.refill();
    frames.iter().for_each(|frame| rig.cable.send(frame).unwrap());
    let got = rig.receive(expected.len());
    rig.delivered();
    got.iter().map(|packet| packet.to_vec()[11]).collect()
}

#[test]
fn each_part_of_the_filter_is_changed_while_the_port_runs_and_holds_after_a_reset() {
    require!("each_part_of_the_filter_is_changed_while_the_port_runs_and_holds_after_a_reset");
    let mut rig = Setup::new(protections()[3]).start();
    let steps: [(&str, &str, &[u8]); 9] = [
        ("receive", "all", &[0, 1, 2, 3, 4, 5, 6, 7, 8]),
        ("receive", "multicast", &[0, 3, 4, 5, 6, 7, 8]),
        ("receive", "own", &[0, 5, 6, 7, 8]),
        ("groups", "01:00:5e:00:00:fb", &[0, 3, 5, 6, 7, 8]),
        ("addresses", "02:00:00:00:00:0b", &[0, 2, 3, 5, 6, 7, 8]),
        ("vlans", "10", &[0, 2, 3, 5, 6, 8]),
        ("mac", "02:00:00:00:00:0a", &[1, 2, 3, 8]),
        ("mac", "device", &[0, 2, 3, 5, 6, 8]),
        ("addresses", "none", &[0, 3, 5, 6, 8]),
    ];
    for (name, value, expected) in steps {
        rig.control.set(name, &value.into()).unwrap();
        assert_eq!(passing(&mut rig, expected), expected, "{name}={value}");
    }
    // The packet buffer is divided anew, which takes a reset.
    rig.control.set_mtu(9000).unwrap();
    renegotiate(&mut rig);
    let expected = [0, 3, 5, 6, 8];
    assert_eq!(passing(&mut rig, &expected), expected);
    assert_eq!(rig.control.faults().resets, 0);
    rig.end();
}

/// Waits until the queues have reset the device, and the link is up again.
fn renegotiate(rig: &mut Rig) {
    let mut none = Batch::<64>::new();
    until("the device is reset", || {
        rig.tx.iter_mut().for_each(|queue| _ = queue.reclaim());
        rig.rx.iter_mut().for_each(|queue| _ = queue.rx(&mut none));
        // PBA: KB for reception, 32 of 40 with short frames. STATUS.LU: the link is up.
        rig.raw.r32(0x1000) & 0xffff != 32 && rig.raw.r32(8) & 2 != 0 && rig.control.link().up
    });
}

#[test]
fn frames_of_a_new_mtu_pass_in_both_directions_with_and_without_a_reset() {
    require!("frames_of_a_new_mtu_pass_in_both_directions_with_and_without_a_reset");
    let mut rig = Setup::new(protections()[1]).start();
    for (mtu, reset, longest) in [(1400, false, 1422), (1500, false, 1514), (9000, true, 9022)] {
        rig.control.set_mtu(mtu).unwrap();
        if reset {
            renegotiate(&mut rig);
        }
        let bytes = sized(3, longest);
        assert_eq!(rig.exchange(std::slice::from_ref(&bytes))[0].to_vec(), bytes, "received with {mtu}");
        let packet = rig.packet(&bytes);
        rig.send([packet]);
        assert_eq!(rig.out(), bytes, "sent with {mtu}");
        if mtu < 1500 {
            rig.refill();
            rig.cable.send(&sized(4, longest + 1)).unwrap();
            assert_eq!(rig.exchange(&[sized(5, 60)])[0].to_vec(), sized(5, 60), "only the frame behind arrives");
        }
    }
    rig.end();
}
