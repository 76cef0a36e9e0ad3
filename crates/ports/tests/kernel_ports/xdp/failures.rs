//! Errors and their hints, links that fail, deleted interfaces, queues that stall.

use super::{NEEDS, Pair, all_free, datagram, pair, to_host};
use crate::common::*;
use crate::support::{Need, needs};
use std::time::Duration;
use towpath_packet::port::{Port, Queues, RxQueue, State, TxQueue};
use towpath_packet::{Batch, DropReason, Offloads, Packet};
use towpath_ports::xdp::{Config, XdpRx, XdpTx, open};
use towpath_wire::emit::Checksums;

#[test]
fn an_error_of_open_has_a_hint_and_leaves_no_program() {
    if !needs("an_error_of_open_has_a_hint_and_leaves_no_program", NEEDS) {
        return;
    }
    let pair = pair("");
    let error = |options: &str| pair.try_open(options).unwrap_err().to_string();
    let holder = pair.try_open("").unwrap();
    assert!(error("").contains("another XDP program is attached"), "{}", error(""));
    assert!(error(",mode=generic").contains("another XDP program is attached"));
    drop(holder);
    pair.is_free();
    assert!(error(",zerocopy=require").contains("zerocopy=require"), "{}", error(",zerocopy=require"));
    assert!(error(",queue=1").contains("queue=1: p0 has one queue, 0"), "{}", error(",queue=1"));
    assert!(error(",queues=2").contains("queues=2: p0 has one queue, 0"), "{}", error(",queues=2"));
    let elsewhere = |address: &str| open(Config::from_uri(&uri(address)).unwrap()).unwrap_err().to_string();
    assert_eq!(
        elsewhere("xdp:p0?netns=no-such-namespace"),
        "xdp:p0: netns=no-such-namespace: there is no such namespace: ip netns list shows the names"
    );
    assert!(elsewhere("xdp:p0?netns=/proc/self/ns/pid").contains("netns=/proc/self/ns/pid: is not a network"));
    let host = pair.host.name();
    assert!(elsewhere(&format!("xdp:p0?netns={host}")).contains(&format!("ip -n {host} link shows")));
    assert!(error(",tx=live").contains("takes no frames of programs"), "{}", error(",tx=live"));
    pair.is_free();
    let pool = pool();
    for _ in 0..5 {
        // Without a pause: the kernel releases a queue with a delay.
        drop(pair.start("", &pool));
    }
    all_free(&pool);
    assert!(unprivileged(|| pair.try_open("")).unwrap_err().to_string().contains("run as root"));
}

#[test]
fn an_interface_that_is_not_up_can_be_opened_and_is_reported_as_down_with_a_hint() {
    if !needs("an_interface_that_is_not_up_can_be_opened_and_is_reported_as_down_with_a_hint", NEEDS) {
        return;
    }
    let pair = pair("");
    let link = || {
        let port = pair.try_open("").unwrap();
        let link = port.info().abilities.iter().find(|ability| ability.name == "link").unwrap().clone();
        drop(port);
        pair.is_free();
        (link.on, link.why, link.hint)
    };
    assert!(link().0);
    pair.middle.ip("link set p0 down");
    let hint = format!("ip -n {} link set dev p0 up", pair.middle.name());
    assert_eq!(link(), (false, "the interface is not up".into(), Some(hint)));
    pair.middle.ip("link set p0 up");
    pair.host.ip("link set h0 down");
    // The kernel notices a lost carrier up to a second later (`linkwatch`).
    until("no carrier", || pair.middle.ip("link show p0").contains("NO-CARRIER"));
    assert_eq!(link(), (false, "no carrier: the other end is not there, or not up".into(), None));
}

#[test]
fn packets_for_a_link_that_is_down_are_dropped_by_name_and_flow_again_when_it_is_up() {
    if !needs("packets_for_a_link_that_is_down_are_dropped_by_name_and_flow_again_when_it_is_up", NEEDS) {
        return;
    }
    let pair = pair("");
    let pool = pool();
    let mut q = pair.start("", &pool);
    let frame = to_host().udp(9, 7000, b"again", Checksums::Complete).0;
    let packet = || Packet::copy_from(&mut tx_cache(&pool), &frame).unwrap();
    pair.middle.ip("link set p0 down");
    let mut given = 0;
    until("the queue notices", || {
        q.tx[0].reclaim();
        let mut batch = Batch::new();
        batch.push(packet()).unwrap();
        given += q.tx[0].tx(&mut batch) as u64;
        matches!(q.tx[0].state(), State::Down(_)) && q.tx[0].counters().snapshot().dropped(DropReason::LinkDown) > 0
    });
    pair.middle.ip("link set p0 up");
    let socket = pair.socket(7000);
    until("the queue recovers", || {
        q.tx[0].reclaim();
        q.tx[0].state() == State::Up
    });
    send(&mut q.tx[0], packet());
    given += 1;
    assert_eq!(datagram(&socket), b"again");
    until("all is accounted for", || {
        q.tx[0].reclaim();
        let s = q.tx[0].counters().snapshot();
        s.packets + s.all_drops() == given
    });
    receive_after_up(&pair, &mut q);
    drop(q);
    all_free(&pool);
}

fn receive_after_up(pair: &Pair, q: &mut Queues<XdpRx, XdpTx>) {
    let socket = pair.socket(7001);
    pair.host.ip("neigh replace 10.0.0.2 dev h0 lladdr 02:00:00:00:00:02");
    socket.send_to(b"back", "10.0.0.2:9").unwrap();
    receive(&mut q.rx[0], |p| (udp_payload(&p)? == b"back").then_some(()));
}

#[test]
fn a_deleted_interface_is_gone_and_every_packet_is_accounted_for() {
    if !needs("a_deleted_interface_is_gone_and_every_packet_is_accounted_for", NEEDS) {
        return;
    }
    let pair = pair("");
    let pool = pool();
    let mut q = pair.start("", &pool);
    let counters = q.tx[0].counters().clone();
    pair.middle.ip("link del p0");
    let frame = to_host().udp(9, 7000, b"gone", Checksums::Complete).0;
    let mut given = 0;
    until("the queues notice", || {
        q.tx[0].reclaim();
        let mut batch = Batch::new();
        batch.push(Packet::copy_from(&mut tx_cache(&pool), &frame).unwrap()).unwrap();
        given += q.tx[0].tx(&mut batch) as u64;
        q.rx[0].refill();
        q.rx[0].rx(&mut Batch::new());
        matches!((q.rx[0].state(), q.tx[0].state()), (State::Gone(_), State::Gone(_)))
    });
    drop(q);
    let s = counters.snapshot();
    assert_eq!(s.packets + s.all_drops(), given);
    all_free(&pool);
}

#[test]
fn a_stalled_queue_is_reopened_and_every_packet_is_accounted_for() {
    const NAME: &str = "a_stalled_queue_is_reopened_and_every_packet_is_accounted_for";
    if !needs(NAME, &[Need::Root, Need::Program("ip"), Need::Program("tc")]) {
        return;
    }
    let pair = pair("");
    pair.middle.ip("link add m0 link p0 type macvlan mode bridge");
    pair.middle.ip("link set m0 up");
    // A sent packet waits in the lower device, for minutes, without a completion.
    pair.middle.run("tc", "qdisc add dev p0 root tbf rate 80bit burst 1540 limit 1000000");
    let pool = pool();
    let address = format!("xdp:m0?netns={},mode=generic,stall=200ms", pair.middle.name());
    let port = open(Config::from_uri(&uri(&address)).unwrap()).unwrap();
    let Queues { mut rx, mut tx } = start(port, &pool, Offloads::ALL);
    let frame = to_host().udp(9, 7000, &pattern(1000), Checksums::Complete).0;
    let mut batch = Batch::new();
    for _ in 0..20 {
        batch.push(Packet::copy_from(&mut tx_cache(&pool), &frame).unwrap()).unwrap();
    }
    assert_eq!(tx[0].tx(&mut batch), 20);
    let turn = |rx: &mut XdpRx, tx: &mut XdpTx| {
        rx.refill();
        rx.rx(&mut Batch::new());
        tx.reclaim();
        tx.state()
    };
    let is_stalled = |state: State| matches!(state, State::Down(why) if why.contains("completes nothing"));
    until("the stall is noticed", || is_stalled(turn(&mut rx[0], &mut tx[0])));
    // The state is kept when the link is polled, ten times a second: it is up.
    for _ in 0..30 {
        std::thread::sleep(Duration::from_millis(10));
        assert!(is_stalled(turn(&mut rx[0], &mut tx[0])), "{:?}", tx[0].state());
    }
    let s = tx[0].counters().snapshot();
    assert_eq!(s.packets + s.dropped(DropReason::Refused), 20);
    assert!(s.dropped(DropReason::Refused) > 0);
    assert_eq!((s.errors, tx[0].pending()), (1, 0));
    // It works again, in both directions, after the lower device freed the old socket's frames.
    pair.middle.run("tc", "qdisc del dev p0 root");
    until("the queue is reopened", || turn(&mut rx[0], &mut tx[0]) == State::Up);
    let socket = pair.socket(7000);
    let packet = Packet::copy_from(&mut tx_cache(&pool), &to_host().udp(9, 7000, b"anew", Checksums::Complete).0);
    send(&mut tx[0], packet.unwrap());
    assert_eq!(datagram(&socket), b"anew");
    pair.host.run("ip", "neigh replace 10.0.0.2 dev h0 lladdr ff:ff:ff:ff:ff:ff");
    // Broadcast, because a macvlan filters; it may lose one.
    until("a frame arrives", || {
        socket.send_to(b"back", "10.0.0.2:9").unwrap();
        rx[0].refill();
        let mut batch = Batch::new();
        rx[0].rx(&mut batch);
        batch.iter().any(|p| udp_payload(p) == Some(b"back".to_vec()))
    });
    drop((rx, tx));
    all_free(&pool);
}
