//! Open and close: the probe, errors and their hints, persistence.

use super::{NEEDS, try_open};
use crate::common::*;
use crate::support::{Namespace, needs};
use towpath_packet::Offloads;
use towpath_packet::port::{Ability, Port};

#[test]
fn the_probe_reports_its_result_and_leaves_no_trace() {
    if !needs("the_probe_reports_its_result_and_leaves_no_trace", NEEDS) {
        return;
    }
    let ns = Namespace::new("probe");
    ns.ip("tuntap add dev up0 mode tap vnet_hdr");
    ns.ip("link set up0 up");
    for name in ["tap:new", "tap:up0", "tun:new2"] {
        let port = try_open(&format!("{name}?netns={},tso=require", ns.name())).unwrap();
        for ability in port.info().abilities.iter().filter(|ability| ability.name != "txqueuelen") {
            let why = if ability.name == Ability::LINK { "up, with carrier" } else { "accepted by the kernel" };
            assert!(ability.on && ability.why == why, "{name}: {ability:?}");
        }
        let names = ns.ip("-o link");
        assert!(!names.contains("probe"), "{names}");
    }
    let received = ns.run("cat", "/sys/class/net/up0/statistics/rx_packets");
    assert_eq!(received.trim(), "0", "the interface that was up has seen nothing");
    let port = try_open(&format!("tap:off?netns={},uso=off", ns.name())).unwrap();
    let uso = port.info().abilities.iter().find(|a| a.name == "uso").unwrap();
    assert_eq!((uso.on, uso.why.as_ref(), uso.hint.as_deref()), (false, "switched off by option", Some("uso=prefer")));
    assert!(!port.info().tx_offloads.has(Offloads::USO) && !port.info().rx_offloads.has(Offloads::USO));
}

#[test]
fn the_interface_vanishes_with_the_port_unless_it_is_persistent() {
    if !needs("the_interface_vanishes_with_the_port_unless_it_is_persistent", NEEDS) {
        return;
    }
    let ns = Namespace::new("persist");
    let q = start(try_open(&format!("tap:short?netns={}", ns.name())).unwrap(), &pool(), Offloads::NONE);
    drop(start(try_open(&format!("tap:long?netns={},persist=on", ns.name())).unwrap(), &pool(), Offloads::NONE));
    assert!(ns.ip("-o link").contains("short"));
    drop(q);
    // A child process of another test may hold the descriptors for the moment between fork and
    // exec.
    until("the interface vanishes", || !ns.ip("-o link").contains("short"));
    assert!(ns.ip("-o link").contains("long"));
    until("it can be attached to", || try_open(&format!("tap:long?netns={},persist=off", ns.name())).is_ok());
    until("the interface vanishes", || !ns.ip("-o link").contains("long"));
}

#[test]
fn an_error_of_open_has_a_hint() {
    if !needs("an_error_of_open_has_a_hint", NEEDS) {
        return;
    }
    let ns = Namespace::new("errors");
    let at = |text: &str| format!("{text}netns={}", ns.name());
    let error = |text: &str| try_open(&at(text)).unwrap_err().to_string();
    let held = try_open(&at("tap:held?")).unwrap();
    assert!(error("tap:held?").contains("in use, by another process"), "{}", error("tap:held?"));
    assert!(error("tap:held?queues=2,").contains("multiqueue=off"), "{}", error("tap:held?queues=2,"));
    assert!(error("tun:held?").contains("is no tun"), "{}", error("tun:held?"));
    drop(held);
    let missing = try_open("tap:x?netns=no-such-namespace").unwrap_err().to_string();
    assert!(missing.contains("enter netns") && missing.contains("ip netns list"), "{missing}");
    let denied = ns.inside(|| unprivileged(|| try_open("tap:x").unwrap_err().to_string()));
    assert!(denied.contains("Operation not permitted") && denied.contains("setcap cap_net_admin+ep"), "{denied}");
    assert!(denied.contains("ip tuntap add dev x mode tap user"), "{denied}");
}
