//! The destinations of frames that arrive at the switch (M14).

use super::host::Host;
use towpath_model::cpsw::{Config, Soc};
use towpath_model::wire::{Plug, Wire, cable};

const ENABLE: u32 = 1 << 31;
const BYPASS: u32 = 1 << 4;
const FORWARD: u32 = 3;
const NO_LEARN: u32 = 1 << 4;
const MAC_ONLY: u32 = 1 << 11;

/// A host with three ports, and the far ends of their wires.
fn three() -> (Host, [Plug; 3]) {
    let host = Host::with(Config::default().soc(Soc::Am64x).ports(3).lag(false), false);
    let plugs = [1, 2, 3].map(|port| {
        let (near, far) = cable(64);
        host.model.plug(port, near);
        far
    });
    (host, plugs)
}

fn frame(to: u8, from: u8) -> Vec<u8> {
    let mut frame = vec![0; 60];
    frame[..6].fill(to);
    frame[6..12].fill(from);
    frame
}

/// The numbers of frames that each port sends and that the host gets, after `frame` arrives at port
/// 1.
fn outcome(host: &mut Host, plugs: &mut [Plug; 3], frame: &[u8]) -> ([usize; 3], u64) {
    let before = host.model.starved();
    assert!(plugs[0].send(frame));
    host.model.settle();
    // There are no free descriptors: frames for the host are counted as starved.
    let starved = host.model.starved() - before;
    (plugs.each_mut().map(|plug| plug.drain().len()), starved)
}

#[test]
fn with_bypass_the_lookup_sends_frames_to_the_host_only() {
    let (mut host, mut plugs) = three();
    for to in [0xff, 2, 4] {
        assert_eq!(outcome(&mut host, &mut plugs, &frame(to, 2)), ([0, 0, 0], 1));
    }
}

#[test]
fn no_frame_passes_a_port_that_does_not_forward_or_a_lookup_that_is_disabled() {
    let (mut host, mut plugs) = three();
    host.port_control(1, 0);
    assert_eq!(outcome(&mut host, &mut plugs, &frame(0xff, 2)), ([0, 0, 0], 0));
    host.send(0);
    host.model.settle();
    assert_eq!(
        (plugs[0].drain().len(), host.model.port_stats(1).tx_dropped),
        (0, 1),
        "directed frames are dropped, too"
    );
    host.port_control(1, FORWARD);
    host.lookup_control(BYPASS);
    assert_eq!(outcome(&mut host, &mut plugs, &frame(0xff, 2)), ([0, 0, 0], 0));
}

#[test]
fn without_bypass_the_ports_are_a_learning_switch() {
    let (mut host, mut plugs) = three();
    host.lookup_control(ENABLE);
    assert_eq!(outcome(&mut host, &mut plugs, &frame(6, 2)), ([0, 1, 1], 1), "unknown: to all others");
    assert!(plugs[1].send(&frame(2, 6)));
    host.model.settle();
    assert_eq!(plugs.each_mut().map(|plug| plug.drain().len()), [1, 0, 0], "learnt at port 1");
    assert_eq!(outcome(&mut host, &mut plugs, &frame(6, 2)), ([0, 1, 0], 0), "learnt at port 2");
    host.lookup_control(ENABLE | 1 << 30);
    assert_eq!(outcome(&mut host, &mut plugs, &frame(6, 2)), ([0, 1, 1], 1), "forgotten");
}

#[test]
fn a_mac_only_port_exchanges_frames_with_the_host_only_and_a_no_learn_port_learns_nothing() {
    let (mut host, mut plugs) = three();
    host.lookup_control(ENABLE);
    host.port_control(1, FORWARD | MAC_ONLY);
    assert_eq!(outcome(&mut host, &mut plugs, &frame(0xff, 2)), ([0, 0, 0], 1));
    host.port_control(1, FORWARD | NO_LEARN);
    outcome(&mut host, &mut plugs, &frame(0xff, 8));
    assert!(plugs[1].send(&frame(8, 6)));
    host.model.settle();
    assert_eq!(plugs.each_mut().map(|plug| plug.drain().len()), [1, 0, 1], "unknown");
}

#[test]
fn a_slow_port_sends_all_frames_in_the_end() {
    let mut host = Host::with(Config::default().soc(Soc::Am64x).ports(1).lag(false), false);
    host.model.slow_down(1, 100);
    (0..4).for_each(|index| host.send(index));
    assert!(host.model.run(1, 20) > 0);
    assert_eq!(host.plug.drain().len(), 0);
    host.model.settle();
    assert_eq!(host.plug.drain().len(), 4);
    host.assert_clean();
}
