//! Ports that only send: the host keeps its traffic.

use super::{NEEDS, all_free, datagram, pair, to_host};
use crate::common::*;
use crate::support::{Namespace, Need, needs};
use std::net::UdpSocket;
use std::os::fd::BorrowedFd;
use towpath_packet::port::{Port, RxQueue, Start, TxQueue, Wake};
use towpath_packet::{Batch, Packet};
use towpath_sys::poll::is_readable;
use towpath_wire::emit::Checksums;

/// The end of the pair that the port sends on is also an interface of its host, with an address.
fn host_too(pair: &super::Pair) {
    pair.middle.ip("addr add 10.0.0.2/24 dev p0");
    pair.middle.ip("link set p0 address 02:00:00:00:00:02");
}

fn rx_packets(namespace: &Namespace) -> u64 {
    namespace.run("cat", "/sys/class/net/p0/statistics/rx_packets").trim().parse().unwrap()
}

#[test]
fn a_port_that_only_sends_leaves_the_host_every_frame_and_no_program() {
    const NAME: &str = "a_port_that_only_sends_leaves_the_host_every_frame_and_no_program";
    if !needs(NAME, NEEDS) || !needs(NAME, &[Need::Program("ping")]) {
        return;
    }
    for options in [",rx=off", ",rx=off,csum=off,frags=off,selftest=frame"] {
        let pair = pair("");
        host_too(&pair);
        let pool = pool();
        let mut q = pair.start(options, &pool);
        assert!(!pair.middle.ip("-d link show dev p0").contains("prog/xdp"), "{options}");
        let host = pair.middle.inside(|| UdpSocket::bind("10.0.0.2:4242").unwrap());
        host.set_read_timeout(Some(PATIENCE)).unwrap();
        let socket = pair.socket(7000);
        let mut ping = pair.host.command("ping", "-q -i 0.002 -c 200 10.0.0.2");
        let ping = ping.stdout(std::process::Stdio::piped()).spawn().unwrap();
        for round in 0..200 {
            let payload = pattern(100 + round);
            let frame = to_host().udp(9, 7000, &payload, Checksums::Complete).0;
            send(&mut q.tx[0], Packet::copy_from(&mut tx_cache(&pool), &frame).unwrap());
            assert_eq!(datagram(&socket), payload, "{options}");
            socket.send_to(&payload, "10.0.0.2:4242").unwrap();
            assert_eq!(datagram(&host), payload, "{options}");
        }
        let output = ping.wait_with_output().unwrap();
        let report = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(report.contains(" 0% packet loss"), "{options}: {report}");
        // The kernel's interface has received all of it, the port nothing.
        assert!(rx_packets(&pair.middle) >= 400, "{options}");
        let mut batch = Batch::new();
        assert_eq!((q.rx[0].rx(&mut batch), q.rx[0].wake()), (0, Wake::Never));
        assert_eq!(q.rx[0].counters().snapshot().packets, 0);
        until("all are completed", || {
            q.tx[0].reclaim();
            q.tx[0].pending() == 0
        });
        assert_eq!(q.tx[0].counters().snapshot().packets, 200);
        drop(q);
        all_free(&pool);
    }
}

#[test]
fn a_sender_sleeps_until_frames_complete_and_no_longer() {
    if !needs("a_sender_sleeps_until_frames_complete_and_no_longer", NEEDS) {
        return;
    }
    let pair = pair("");
    let pool = pool();
    let mut q = pair.start(",rx=off", &pool);
    let ready = |fd| {
        // SAFETY: the queue owns the descriptor and is there.
        is_readable(unsafe { BorrowedFd::borrow_raw(fd) })
    };
    let frame = to_host().udp(9, 7000, b"wake", Checksums::Complete).0;
    for _ in 0..3 {
        let Wake::Readable(fd) = q.tx[0].wake() else { panic!("{:?}", q.tx[0].wake()) };
        assert!(!ready(fd), "nothing has completed since the queue was asked");
        send(&mut q.tx[0], Packet::copy_from(&mut tx_cache(&pool), &frame).unwrap());
        until("the completion is signalled", || ready(fd));
        until("all are completed", || {
            q.tx[0].reclaim();
            q.tx[0].pending() == 0
        });
    }
}

#[test]
fn a_port_that_only_sends_lives_beside_a_port_whose_program_has_the_interface() {
    if !needs("a_port_that_only_sends_lives_beside_a_port_whose_program_has_the_interface", NEEDS) {
        return;
    }
    let pair = pair("numrxqueues 2 numtxqueues 2");
    let pool = pool();
    let _receiver = pair.start(",queue=0", &pool);
    let mut sender = pair.start(",queue=1,rx=off", &pool);
    let socket = pair.socket(7000);
    let frame = to_host().udp(9, 7000, b"beside", Checksums::Complete).0;
    send(&mut sender.tx[0], Packet::copy_from(&mut tx_cache(&pool), &frame).unwrap());
    assert_eq!(datagram(&socket), b"beside");
}

#[test]
fn abilities_of_a_port_that_only_sends_name_the_missing_program() {
    if !needs("abilities_of_a_port_that_only_sends_name_the_missing_program", NEEDS) {
        return;
    }
    let pair = pair("");
    let port = pair.try_open(",rx=off").unwrap();
    let native = port.info().abilities.iter().find(|ability| ability.name == "native").unwrap();
    assert!(!native.on && native.why.contains("only sends"), "{native:?}");
    assert_eq!(port.info().rx_offloads, towpath_packet::Offloads::NONE);
    let error = pair.try_open(",rx=off,zerocopy=require").unwrap_err().to_string();
    assert!(error.contains("zerocopy"), "{error}");
}

#[test]
fn the_interface_of_a_port_is_known_also_after_its_start() {
    if !needs("the_interface_of_a_port_is_known_also_after_its_start", NEEDS) {
        return;
    }
    let pair = pair("");
    pair.middle.ip("link set p0 address 02:00:00:00:00:02 mtu 1400");
    let start = Start { pool: pool(), queues: 1, accept: towpath_packet::Offloads::ALL };
    let (info, _queues) = pair.try_open(",rx=off").unwrap().start_with_info(start).unwrap();
    let interface = info.interface.unwrap();
    let index: u32 = pair.middle.run("cat", "/sys/class/net/p0/ifindex").trim().parse().unwrap();
    assert_eq!((info.mtu, interface.name.as_str(), interface.index), (1400, "p0", index));
    assert_eq!((interface.mac, interface.driver.as_str()), (Some([2, 0, 0, 0, 0, 2]), "veth"));
    assert_eq!((interface.queues, interface.master), (Some(1), None));
}

#[test]
fn a_part_of_another_interface_knows_its_master() {
    if !needs("a_part_of_another_interface_knows_its_master", NEEDS) {
        return;
    }
    let pair = pair("");
    pair.middle.ip("link add br0 type bridge");
    pair.middle.ip("link set br0 address 02:00:00:00:00:09");
    pair.middle.ip("link set p0 master br0");
    let interface = pair.try_open(",rx=off").unwrap().info().interface.clone().unwrap();
    let master = interface.master.as_ref().unwrap();
    assert_eq!((master.name.as_str(), master.mac, &master.master), ("br0", Some([2, 0, 0, 0, 0, 9]), &None));
    assert_eq!(interface.source_mac(), master.mac);
}
