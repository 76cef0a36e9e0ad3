//! `xdp:`, on the ends of veth pairs.

use crate::common::*;
use crate::support::{Namespace, Need, needs};
use std::net::UdpSocket;
use towpath_datapath::ports::xdp::{Config, XdpPort, XdpRx, XdpTx, open};
use towpath_packet::port::{Port, PortError, Queues, RxQueue, Start, State, TxQueue};
use towpath_packet::{Backing, Batch, Csum, Direction, DropReason, Offloads, Packet, Pool, PoolConfig, Views};
use towpath_wire::emit::{Checksums, Ip, Link};

const NEEDS: &[Need] = &[Need::Root, Need::Program("ip"), Need::Program("ethtool")];

/// A host with 10.0.0.1 on its end `h0` of a veth pair; the other end `p0`, in a namespace of its own, is the port's.
struct Pair {
    host: Namespace,
    middle: Namespace,
}

fn pair(more: &str) -> Pair {
    let (host, middle) = (Namespace::new("host"), Namespace::new("mid"));
    host.ip(&format!("link add h0 {more} type veth peer name p0 {more} netns {}", middle.name()));
    host.ip("link set h0 address 02:00:00:00:00:01");
    host.ip("link set h0 up");
    middle.ip("link set p0 up");
    host.ip("addr add 10.0.0.1/24 dev h0");
    host.ip("neigh add 10.0.0.2 dev h0 lladdr 02:00:00:00:00:02");
    Pair { host, middle }
}

impl Pair {
    fn try_open(&self, options: &str) -> Result<XdpPort, PortError> {
        open(Config::from_uri(&uri(&format!("xdp:p0?netns={}{options}", self.middle.name())))?)
    }

    fn start(&self, options: &str, pool: &Pool) -> Queues<XdpRx, XdpTx> {
        start(self.try_open(options).unwrap(), pool, Offloads::ALL)
    }

    fn socket(&self, port: u16) -> UdpSocket {
        let socket = self.host.inside(|| UdpSocket::bind(("10.0.0.1", port)).unwrap());
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    }

    /// The interface has no program, as `ip` sees it. A process that another test is just starting may hold the descriptors for a
    /// moment longer.
    #[track_caller]
    fn is_free(&self) {
        until("the program goes with the port", || !self.middle.ip("-d link show dev p0").contains("prog/xdp"));
    }
}

fn to_host() -> Between {
    let link = Link { dst: [2, 0, 0, 0, 0, 1], src: [2, 0, 0, 0, 0, 2], ..Link::default() };
    Between { link: Some(link), ip: Ip::v4([10, 0, 0, 2], [10, 0, 0, 1]) }
}

fn datagram(socket: &UdpSocket) -> Vec<u8> {
    let mut buffer = vec![0; 70_000];
    let n = socket.recv(&mut buffer).unwrap();
    buffer.truncate(n);
    buffer
}

/// Everything is home once the queues are gone.
#[track_caller]
fn all_home(pool: &Pool) {
    let stats = pool.stats();
    assert_eq!(stats.home, stats.capacity);
}

fn pool_of(chunk: usize) -> Pool {
    let backing = Backing::Anonymous;
    Pool::new(PoolConfig { capacity: 4096, chunk, backing, ..PoolConfig::default() }).unwrap()
}

#[test]
fn bytes_go_through_an_interface_unchanged_in_both_directions() {
    if !needs("bytes_go_through_an_interface_unchanged_in_both_directions", NEEDS) {
        return;
    }
    // Chunks that are aligned, that are not, and that can't be the kernel's.
    let cases = [
        ("", 2048),
        (",mode=generic", 2048),
        (",csum=off,wakeup=off", 4096),
        ("", 3008),
        ("", 8192),
        (",frags=off", 512),
    ];
    for (options, chunk) in cases {
        let pair = pair("");
        let pool = pool_of(chunk);
        let mut q = pair.start(options, &pool);
        let own = q.rx[0].own_pool();
        assert_eq!(own.is_some(), !(2048..=4096).contains(&chunk));
        let socket = pair.socket(7000);
        for len in [1, 100, 1472] {
            let payload = pattern(len);
            let frame = to_host().udp(9, 7000, &payload, Checksums::Full).0;
            send(&mut q.tx[0], Packet::copy_from(&mut tx_cache(&pool), &frame).unwrap());
            assert_eq!(datagram(&socket), payload, "{options} {chunk}");
            socket.send_to(&payload, "10.0.0.2:9").unwrap();
            receive(&mut q.rx[0], |p| (udp_payload(&p)? == payload).then_some(()));
        }
        until("what was sent is completed", || {
            q.tx[0].reclaim();
            q.tx[0].pending() == 0
        });
        let s = q.tx[0].counters().snapshot();
        assert_eq!((s.packets, s.bytes, s.all_drops()), (3, 1573 + 3 * 42, 0));
        drop(q);
        pair.is_free();
        all_home(&pool);
        own.iter().for_each(all_home);
    }
}

#[test]
fn a_batch_of_many_sizes_arrives_in_order() {
    if !needs("a_batch_of_many_sizes_arrives_in_order", NEEDS) {
        return;
    }
    let pair = pair("");
    let pool = pool();
    let mut q = pair.start(",ring=64,txbudget=32", &pool);
    let socket = pair.socket(7000);
    for round in 0..20 {
        let mut batch = Batch::new();
        for i in 0..64usize {
            let frame = to_host().udp(9, 7000, &pattern(1 + (i * 97 + round) % 1472), Checksums::Full).0;
            batch.push(Packet::copy_from(&mut tx_cache(&pool), &frame).unwrap()).unwrap();
        }
        while !batch.is_empty() {
            q.tx[0].reclaim();
            q.tx[0].tx(&mut batch);
        }
        for i in 0..64usize {
            assert_eq!(datagram(&socket), pattern(1 + (i * 97 + round) % 1472));
        }
    }
}

#[test]
fn long_packets_come_and_go_in_several_pieces() {
    if !needs("long_packets_come_and_go_in_several_pieces", NEEDS) {
        return;
    }
    for options in ["", ",mode=generic"] {
        let pair = pair("mtu 3900");
        let pool = pool();
        let mut q = pair.start(options, &pool);
        let socket = pair.socket(7000);
        let payload = pattern(3800);
        for _ in 0..5000 {
            let frame = to_host().udp(9, 7000, &payload, Checksums::Full).0;
            let packet = Packet::copy_from(&mut tx_cache(&pool), &frame).unwrap();
            assert!(packet.frags() > 0);
            send(&mut q.tx[0], packet);
            assert!(datagram(&socket) == payload);
        }
        socket.send_to(&payload, "10.0.0.2:9").unwrap();
        let frags = receive(&mut q.rx[0], |p| (udp_payload(&p)? == payload).then(|| p.frags()));
        assert_eq!(frags, 2, "1792, 1792 and what is left");
        drop(q);
        all_home(&pool);
    }
}

#[test]
fn a_checksum_that_a_stack_left_to_its_device_is_partial_and_one_that_we_leave_is_completed() {
    if !needs("a_checksum_that_a_stack_left_to_its_device_is_partial_and_one_that_we_leave_is_completed", NEEDS) {
        return;
    }
    let pair = pair("");
    let pool = pool();
    let mut q = pair.start("", &pool);
    assert!(q.tx[0].offloads().has(Offloads::CSUM));
    let socket = pair.socket(7000);
    let payload = pattern(500);
    socket.send_to(&payload, "10.0.0.2:9").unwrap();
    let csum = receive(&mut q.rx[0], |p| (udp_payload(&p)? == payload).then(|| p.csum()));
    assert_eq!(csum, Csum::Partial { start: 34, offset: 6 });
    // The host has it computed on its way through a device without that ability.
    pair.host.run("ethtool", "-K h0 rx off");
    for headroom in [128, 0] {
        let config = PoolConfig { capacity: 64, headroom, backing: Backing::Anonymous, ..PoolConfig::default() };
        let mut cache = Pool::new(config).unwrap().cache(Direction::Tx).unwrap();
        let (frame, start, _) = to_host().udp(9, 7000, &payload, Checksums::Partial);
        let mut packet = Packet::copy_from(&mut cache, &frame).unwrap();
        packet.set_csum(Csum::Partial { start, offset: 6 });
        send(&mut q.tx[0], packet);
        assert_eq!(datagram(&socket), payload);
    }
}

#[test]
fn packets_that_lie_elsewhere_or_share_a_buffer_are_copied_and_arrive() {
    if !needs("packets_that_lie_elsewhere_or_share_a_buffer_are_copied_and_arrive", NEEDS) {
        return;
    }
    let pair = pair("");
    let pool = pool();
    let mut q = pair.start("", &pool);
    let socket = pair.socket(7000);
    let payload = pattern(1000);
    let frame = to_host().udp(9, 7000, &payload, Checksums::Full).0;
    let mut cache = tx_cache(&pool);
    // The same bytes as fragments of two packets that are sent together.
    let whole = Packet::copy_from(&mut cache, &frame[42..]).unwrap();
    let shared = towpath_packet::SharedBuf::new(whole.into_linear_buf().unwrap());
    let mut views = Views::of_buffers(8).unwrap();
    let mut batch = Batch::new();
    for _ in 0..2 {
        let mut packet = Packet::copy_from(&mut cache, &frame[..42]).unwrap();
        packet.append_buf(shared.view(0, 500, &mut views).unwrap()).unwrap();
        packet.append_buf(shared.view(500, 500, &mut views).unwrap()).unwrap();
        batch.push(packet).unwrap();
    }
    // A packet of another pool.
    let other = pool_of(512);
    batch.push(Packet::copy_from(&mut tx_cache(&other), &frame).unwrap()).unwrap();
    assert_eq!(q.tx[0].tx(&mut batch), 3);
    for _ in 0..3 {
        assert!(datagram(&socket) == payload);
    }
    drop((shared, views, q, cache));
    all_home(&pool);
    all_home(&other);
}

#[test]
fn only_the_flows_that_are_named_come_and_the_rest_is_the_hosts() {
    if !needs("only_the_flows_that_are_named_come_and_the_rest_is_the_hosts", NEEDS) {
        return;
    }
    let pair = pair("");
    pair.middle.ip("addr add 10.0.0.2/24 dev p0");
    pair.middle.ip("link set p0 address 02:00:00:00:00:02");
    pair.host.ip("addr add fd00::1/64 dev h0 nodad");
    pair.middle.ip("addr add fd00::2/64 dev p0 nodad");
    let flows = [
        ("udp dport 4242", true),
        ("udp dport 4000-4242", true),
        ("tcp dport 4242", false),
        ("dport 4242 src 10.0.0.0/24 dst 10.0.0.2", true),
        ("dport 4242 src 10.0.1.0/24", false),
        ("ip dmac 02:00:00:00:00:02 smac 02:00:00:00:00:01", true),
        ("dmac 82:00:00:00:00:02", false),
        ("vlan 100", false),
        ("frag", false),
        ("ip6", false),
        ("ether 0x88cc+udp sport 1+proto 17", true),
    ];
    for (flow, ours) in flows {
        let pool = pool();
        let mut q = pair.start(&format!(",match={flow}"), &pool);
        let host = pair.middle.inside(|| UdpSocket::bind("10.0.0.2:4242").unwrap());
        host.set_read_timeout(Some(if ours { std::time::Duration::from_millis(20) } else { PATIENCE })).unwrap();
        let socket = pair.socket(0);
        socket.send_to(flow.as_bytes(), "10.0.0.2:4242").unwrap();
        let mut buffer = [0; 100];
        let got = host.recv(&mut buffer);
        if ours {
            receive(&mut q.rx[0], |p| (udp_payload(&p)? == flow.as_bytes()).then_some(()));
            assert!(got.is_err(), "{flow}: the host got it too");
        } else {
            assert_eq!(&buffer[..got.unwrap()], flow.as_bytes(), "{flow}");
        }
    }
    let pool = pool();
    let mut q = pair.start(",match=udp src fd00::/64 dst fd00::2 dport 4242", &pool);
    let socket = pair.host.inside(|| UdpSocket::bind("[fd00::1]:0").unwrap());
    socket.send_to(b"six", "[fd00::2]:4242").unwrap();
    receive(&mut q.rx[0], |p| (udp_payload(&p)? == b"six").then_some(()));
}

#[test]
fn what_is_in_the_way_is_named_and_nothing_is_left() {
    if !needs("what_is_in_the_way_is_named_and_nothing_is_left", NEEDS) {
        return;
    }
    let pair = pair("");
    let error = |options: &str| pair.try_open(options).unwrap_err().to_string();
    let open = pair.try_open("").unwrap();
    assert!(error("").contains("another XDP program is attached"), "{}", error(""));
    assert!(error(",mode=generic").contains("another XDP program is attached"));
    drop(open);
    pair.is_free();
    assert!(error(",zerocopy=require").contains("zerocopy=require"), "{}", error(",zerocopy=require"));
    assert!(error(",queue=1").contains("no queue 1"), "{}", error(",queue=1"));
    assert!(error(",tx=live").contains("takes no frames of programs"), "{}", error(",tx=live"));
    pair.is_free();
    let pool = pool();
    for _ in 0..5 {
        // Each at once after the one before: the kernel lets go of a queue a moment later.
        drop(pair.start("", &pool));
    }
    all_home(&pool);
    assert!(unprivileged(|| pair.try_open("")).unwrap_err().to_string().contains("run as root"));
}

#[test]
fn packets_for_a_link_that_is_down_are_dropped_by_name_and_flow_again_when_it_is_up() {
    if !needs("packets_for_a_link_that_is_down_are_dropped_by_name_and_flow_again_when_it_is_up", NEEDS) {
        return;
    }
    let pair = pair("");
    let pool = pool();
    let mut q = pair.start("", &pool);
    let frame = to_host().udp(9, 7000, b"again", Checksums::Full).0;
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
    all_home(&pool);
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
    let frame = to_host().udp(9, 7000, b"gone", Checksums::Full).0;
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
    all_home(&pool);
}

#[test]
fn several_queues_share_the_memory() {
    if !needs("several_queues_share_the_memory", NEEDS) {
        return;
    }
    let pair = pair("numrxqueues 2 numtxqueues 2");
    let pool = pool();
    let port = pair.try_open(",queues=2").unwrap();
    let mut q = port.start(Start { pool: pool.clone(), queues: 2, accept: Offloads::ALL }).unwrap();
    let socket = pair.socket(7000);
    for (i, tx) in q.tx.iter_mut().enumerate() {
        let payload = pattern(100 + i);
        let frame = to_host().udp(9, 7000, &payload, Checksums::Full).0;
        send(tx, Packet::copy_from(&mut tx_cache(&pool), &frame).unwrap());
        assert_eq!(datagram(&socket), payload);
    }
    // Whichever queue the kernel chooses for a flow, it comes.
    for flow in 0..16u16 {
        let socket = pair.socket(8000 + flow);
        let payload = pattern(200 + usize::from(flow));
        socket.send_to(&payload, "10.0.0.2:9").unwrap();
        let end = std::time::Instant::now() + PATIENCE;
        let mut seen = false;
        while !seen {
            assert!(std::time::Instant::now() < end, "flow {flow} came by no queue");
            for rx in &mut q.rx {
                let mut batch = Batch::new();
                rx.refill();
                rx.rx(&mut batch);
                seen |= batch.iter().any(|p| udp_payload(p).is_some_and(|got| got == payload));
            }
        }
    }
    drop(q);
    all_home(&pool);
}

#[test]
fn frames_of_a_program_arrive_byte_by_byte_and_are_all_counted() {
    if !needs("frames_of_a_program_arrive_byte_by_byte_and_are_all_counted", NEEDS) {
        return;
    }
    let pair = pair("");
    pair.host.run("ethtool", "-K h0 gro on");
    let pool = pool();
    for burst in [1, 7, 1024] {
        let mut q = pair.start(&format!(",tx=live,burst={burst}"), &pool);
        let socket = pair.socket(7000);
        // As many as the socket's buffer takes: each comes in a page.
        for round in 0..80usize {
            let mut batch = Batch::new();
            let len = |i: usize| 1 + (i * 97 + round) % 1472;
            for i in 0..16 {
                let frame = to_host().udp(9, 7000, &pattern(len(i)), Checksums::Full).0;
                batch.push(Packet::copy_from(&mut tx_cache(&pool), &frame).unwrap()).unwrap();
            }
            assert_eq!(q.tx[0].tx(&mut batch), 16);
            while q.tx[0].pending() > 0 {
                q.tx[0].reclaim();
            }
            for i in 0..16 {
                assert!(datagram(&socket) == pattern(len(i)), "burst {burst}, round {round}, frame {i}");
            }
        }
        let counters = q.tx[0].counters().clone();
        drop(q);
        let s = counters.snapshot();
        assert_eq!((s.packets, s.all_drops()), (1280, 0));
    }
    all_home(&pool);
}

#[test]
fn a_device_that_takes_no_more_frames_of_programs_is_noticed() {
    if !needs("a_device_that_takes_no_more_frames_of_programs_is_noticed", NEEDS) {
        return;
    }
    let pair = pair("");
    pair.host.run("ethtool", "-K h0 gro on");
    let pool = pool();
    let mut q = pair.start(",tx=live", &pool);
    pair.host.run("ethtool", "-K h0 gro off");
    let frame = to_host().udp(9, 7000, b"lost", Checksums::Full).0;
    let mut given = 0;
    until("the queue notices", || {
        let mut batch = Batch::new();
        batch.push(Packet::copy_from(&mut tx_cache(&pool), &frame).unwrap()).unwrap();
        given += q.tx[0].tx(&mut batch) as u64;
        for _ in 0..3 {
            q.tx[0].reclaim();
        }
        matches!(q.tx[0].state(), State::Down(_))
    });
    let counters = q.tx[0].counters().clone();
    drop(q);
    let s = counters.snapshot();
    assert_eq!(s.packets + s.all_drops(), given);
    assert!(s.dropped(DropReason::Refused) > 0 && s.packets < given, "{s:?}");
    let port = pair.try_open(",tx=prefer-live").unwrap();
    let tx = port.info().abilities.iter().find(|a| a.name == "tx").unwrap();
    assert!(!tx.on && tx.mend.as_deref().is_some_and(|m| m.contains("gro on")), "{tx:?}");
}

#[test]
fn a_queue_that_completes_nothing_is_made_anew_and_every_packet_is_accounted_for() {
    const NAME: &str = "a_queue_that_completes_nothing_is_made_anew_and_every_packet_is_accounted_for";
    if !needs(NAME, &[Need::Root, Need::Program("ip"), Need::Program("tc")]) {
        return;
    }
    let pair = pair("");
    pair.middle.ip("link add m0 link p0 type macvlan mode bridge");
    pair.middle.ip("link set m0 up");
    // What is sent waits below, for minutes, and is not completed as long.
    pair.middle.run("tc", "qdisc add dev p0 root tbf rate 8kbit burst 1540 limit 1000000");
    let pool = pool();
    let address = format!("xdp:m0?netns={},mode=generic,stall=200ms", pair.middle.name());
    let port = open(Config::from_uri(&uri(&address)).unwrap()).unwrap();
    let Queues { mut rx, mut tx } = start(port, &pool, Offloads::ALL);
    let frame = to_host().udp(9, 7000, &pattern(1000), Checksums::Full).0;
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
    until(
        "the stall is noticed",
        || matches!(turn(&mut rx[0], &mut tx[0]), State::Down(why) if why.contains("completes nothing")),
    );
    let s = tx[0].counters().snapshot();
    assert_eq!(s.packets + s.dropped(DropReason::Refused), 20);
    assert!(s.dropped(DropReason::Refused) > 0);
    assert_eq!((s.errors, tx[0].pending()), (1, 0));
    // It works again, in both directions, as soon as what is below lets go of the old socket's frames.
    pair.middle.run("tc", "qdisc del dev p0 root");
    until("the queue is made anew", || turn(&mut rx[0], &mut tx[0]) == State::Up);
    let socket = pair.socket(7000);
    let packet = Packet::copy_from(&mut tx_cache(&pool), &to_host().udp(9, 7000, b"anew", Checksums::Full).0);
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
    all_home(&pool);
}
