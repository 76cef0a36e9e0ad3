//! The hash of QEMU's device: it chooses the queue and comes with the packet. QEMU reports it only
//! behind a tap with virtio-net headers.

use crate::qtest::{STRICT, machine_on, open};
use crate::rig::{PATIENCE, Rig, frame};
use std::io::IoSliceMut;
use std::time::Instant;
use towpath_bus::DmaPolicy;
use towpath_bus::qtest::{Netdev, Qemu, QtestBus, Width};
use towpath_nic::virtio::{Config, PciTransport};
use towpath_packet::port::{Port, TxQueue};
use towpath_packet::{Offloads, Packet};
use towpath_sys::af_packet::Socket;
use towpath_sys::netdev::Control as Netdevs;
use towpath_sys::tun::{self, Attach};
use towpath_testing::{Namespace, Need, needs};
use towpath_wire::emit::{Checksums, Headers, Ip, Link, Network, Tcp, Transport, Udp};
use towpath_wire::{LinkKind, Toeplitz, dissect};

const LINK: Link = Link {
    dst: [0x52, 0x54, 0, 0xaa, 0xbb, 0xcc],
    src: [2, 0, 0, 0, 0, 1],
    tags: [towpath_wire::vlan::Tag { tpid: 0, tci: towpath_wire::vlan::Tci(0) }; 2],
};

/// A tap with two queues.
pub(crate) fn tap(space: &Namespace) -> Netdev {
    space.set("ipv6/conf/default/disable_ipv6", "1");
    let flags = Attach { ethernet: true, multi_queue: true, vnet_header: true };
    let queues = space.inside(|| {
        [0; 2].map(|_| {
            let queue = tun::open().unwrap();
            tun::attach(&queue, "tpnic", flags).unwrap();
            queue.into()
        })
    });
    space.ip("link set tpnic up");
    Netdev::Tap(queues.into())
}

/// A machine whose device hashes, on a tap with two queues; and a socket at the tap's other side.
fn machine(space: &Namespace, properties: &str) -> (Qemu, Socket) {
    let tap = tap(space);
    let socket = space.inside(|| {
        let (socket, index) = (Socket::new().unwrap(), Netdevs::new().unwrap().index("tpnic").unwrap());
        socket.bind_rx(index).unwrap();
        socket.ignore_outgoing().unwrap();
        socket
    });
    (machine_on(tap, Some(Width::Bits48), properties), socket)
}

/// A frame of a flow: TCP and UDP, over IPv4 and IPv6.
fn flow(n: u16) -> Vec<u8> {
    flow_of(n, 130 + usize::from(n) * 3)
}

/// The same with so many bytes of payload.
fn flow_of(n: u16, payload: usize) -> Vec<u8> {
    let [a, b] = n.to_be_bytes();
    let (mut six, mut peer) = ([0xfd; 16], [0xfd; 16]);
    (six[14], six[15], peer[15]) = (a, b, 9);
    let ip = if n & 1 == 0 { Ip::v4([10, 0, a, b], [10, 0, 0, 9]) } else { Ip::v6(six, peer) };
    let transport = match n & 2 {
        0 => Transport::Tcp(Tcp { src_port: 1000 + n, dst_port: 80, seq: 7, window: 512, ..Tcp::default() }),
        _ => Transport::Udp(Udp { src_port: 2000 + n, dst_port: 53 }),
    };
    let headers = Headers { link: Some(LINK), network: Network::Ip(ip, transport) };
    let mut buffer = vec![0; payload + 100];
    let payload = vec![n as u8; payload];
    let len = headers.emit(&mut buffer, &payload, Checksums::Complete).unwrap();
    buffer.truncate(len);
    buffer
}

type Tapped = Rig<PciTransport<QtestBus>>;

/// Sends a frame from the tap's other side; returns the packet of any queue.
fn receive(rig: &mut Tapped, socket: &Socket, bytes: &[u8]) -> Packet {
    socket.send(&[&[0; 10], bytes].concat()).unwrap();
    let begun = Instant::now();
    loop {
        assert!(begun.elapsed() < PATIENCE, "no packet came");
        for pair in 0..rig.rx.len() {
            if let Some(packet) = rig.receive(pair).pop() {
                assert_eq!(packet.to_vec(), bytes);
                return packet;
            }
        }
    }
}

/// Sends packets with room for a header, of several pieces, and without room: each kind of chain.
fn send(rig: &mut Tapped, socket: &Socket, n: u16) {
    let bytes = flow(n);
    for kind in 0..3 {
        let packet = match kind {
            0 => rig.packet(&[&bytes]),
            1 => rig.packet(&[&bytes[..20], &bytes[20..]]),
            _ => {
                // Its first bytes take all the room in front.
                let room = rig.packet(&[&[]]).headroom();
                let mut tight = rig.packet(&[&bytes[room..]]);
                tight.push_front(room).unwrap().copy_from_slice(&bytes[..room]);
                tight
            }
        };
        assert!(rig.send(usize::from(n) % rig.tx.len(), packet));
        let (mut header, mut out) = ([0; 10], [0; 2000]);
        let begun = Instant::now();
        let len = loop {
            rig.tx.iter_mut().for_each(|tx| _ = tx.reclaim());
            match socket.receive(&mut [IoSliceMut::new(&mut header), IoSliceMut::new(&mut out)]) {
                Ok(len) => break len,
                Err(_) => assert!(begun.elapsed() < PATIENCE, "no frame came"),
            }
        };
        assert_eq!(out[..len - 10], bytes, "kind {kind}");
    }
}

#[test]
fn flows_are_spread_over_queues_by_the_hash_that_comes_with_their_packets() {
    let name = "flows_are_spread_over_queues_by_the_hash_that_comes_with_their_packets";
    if !needs(name, &[Need::Program("qemu-system-x86_64"), Need::Program("ip"), Need::Root, Need::Tun]) {
        return;
    }
    let key = Toeplitz::new(&Toeplitz::SYMMETRIC_KEY);
    let space = Namespace::new("rss");
    let (qemu, socket) = machine(&space, "mq=on rss=on hash=on packed=on");
    // Queues, the option, the policy, packed: one after the other.
    for (queues, rss, policy, packed) in [
        (2, true, STRICT, false),
        (2, true, DmaPolicy::Persistent, true),
        (1, true, STRICT, false),
        (2, false, STRICT, false),
    ] {
        let mut config = Config::default();
        (config.queues, config.rss, config.policy, config.packed, config.ring) = (queues, rss, policy, packed, 64);
        let (port, pool) = open(&qemu, config);
        let has = |name: &str| port.info().abilities.iter().any(|ability| ability.name == name && ability.on);
        assert_eq!((has("rss"), has("hash-report")), (rss && queues > 1, rss));
        let mut rig = Rig::start(port, pool, Offloads::NONE);
        let mut seen = [0, 0];
        for n in 0..64 {
            let bytes = flow(n);
            let packet = receive(&mut rig, &socket, &bytes);
            let hash = dissect(&bytes, LinkKind::Ethernet).toeplitz(&key);
            assert_eq!(packet.flow_hash(), rss.then_some(hash), "flow {n}");
            let queue = usize::from(packet.ingress().1);
            if rss && queues > 1 {
                assert_eq!(queue, (hash & 1) as usize, "flow {n}");
            }
            seen[queue] += 1;
            if n % 16 < 2 {
                send(&mut rig, &socket, n);
            }
        }
        // A fragment has no ports. What is no IP has no hash, and goes to the first queue.
        let mut fragment = flow(2);
        fragment[20] |= 0x20;
        let addresses = dissect(&fragment, LinkKind::Ethernet).toeplitz(&key);
        assert_eq!(receive(&mut rig, &socket, &fragment).flow_hash(), rss.then_some(addresses));
        let other = receive(&mut rig, &socket, &frame(1, 100));
        assert!(other.flow_hash().is_none() && (!rss || other.ingress().1 == 0));
        drop(other);
        // Without the hash the tap spreads flows by its own, over the queues that were switched on.
        assert!(queues == 1 || (seen[0] > 10 && seen[1] > 10), "rss {rss}: {seen:?}");
        assert_eq!(rig.control.faults().refused_commands, 0);
        rig.end();
    }
}

/// QEMU reads both queues of the tap, and spreads what it has read over both receive queues. If one
/// of these has no buffers, the queue of the tap whose packet it was is read no more, until the
/// driver kicks the receive queue with the same number.
#[test]
fn packets_come_although_others_before_them_wait_for_buffers_of_another_queue() {
    let name = "packets_come_although_others_before_them_wait_for_buffers_of_another_queue";
    if !needs(name, &[Need::Program("qemu-system-x86_64"), Need::Program("ip"), Need::Root, Need::Tun]) {
        return;
    }
    let space = Namespace::new("dry");
    let (qemu, socket) = machine(&space, "mq=on rss=on hash=on packed=on");
    // Twice as many as both rings have buffers.
    let mut flows: Vec<_> = (0..64).map(flow).collect();
    let send = |bytes: &[u8]| socket.send(&[&[0; 10], bytes].concat()).unwrap();
    for (packed, event_idx) in [(false, true), (false, false), (true, true)] {
        let mut config = Config::default();
        (config.queues, config.policy, config.ring) = (2, STRICT, 16);
        (config.packed, config.event_idx) = (packed, event_idx);
        // They wait in the tap when the device is started, and later while its queues are not
        // polled. QEMU takes one packet before the start, and loses it.
        send(&frame(1, 100));
        flows.iter().for_each(|bytes| send(bytes));
        let (port, pool) = open(&qemu, config);
        let mut rig = Rig::start(port, pool, Offloads::NONE);
        for round in 0..8 {
            if round > 0 {
                flows.iter().for_each(|bytes| send(bytes));
            }
            let (begun, mut got) = (Instant::now(), Vec::new());
            while got.len() < flows.len() {
                let came = got.len();
                assert!(begun.elapsed() < PATIENCE, "packed {packed}, event_idx {event_idx}, {round}: {came} came");
                for pair in [round % 2, 1 - round % 2] {
                    got.extend(rig.receive(pair).iter().map(Packet::to_vec));
                }
            }
            got.sort();
            flows.sort();
            assert!(got == flows, "packed {packed}, event_idx {event_idx}, {round}: other frames came");
        }
        rig.end();
    }
}

/// Both queues of the tap fill the same receive queue. QEMU asks for a kick of it if a packet finds
/// too few buffers. A shorter packet of the other queue of the tap, which finds enough, takes that
/// back, unless split rings name the position of the kick.
#[test]
fn a_packet_comes_although_a_shorter_one_took_back_the_kick_that_it_waits_for() {
    let name = "a_packet_comes_although_a_shorter_one_took_back_the_kick_that_it_waits_for";
    if !needs(name, &[Need::Program("qemu-system-x86_64"), Need::Program("ip"), Need::Root, Need::Tun]) {
        return;
    }
    let key = Toeplitz::new(&Toeplitz::SYMMETRIC_KEY);
    let space = Namespace::new("back");
    let (qemu, socket) = machine(&space, "mq=on rss=on hash=on packed=on");
    space.ip("link set tpnic mtu 9000");
    let inject = |bytes: &[u8]| socket.send(&[&[0; 10], bytes].concat()).unwrap();
    for (packed, event_idx) in [(false, true), (false, false), (true, true), (true, false)] {
        let what = format!("packed {packed}, event_idx {event_idx}");
        let mut config = Config::default();
        (config.queues, config.policy, config.ring, config.mtu) = (2, STRICT, 16, 9000);
        (config.packed, config.event_idx) = (packed, event_idx);
        let (port, pool) = open(&qemu, config);
        let mut rig = Rig::start(port, pool, Offloads::NONE);
        // By the queue of the tap, which is that by which the device sent a packet of the flow, and
        // by the receive queue.
        let find = |tap: u16, rx: u32| {
            let is_it = |&n: &u16| dissect(&flow(n), LinkKind::Ethernet).toeplitz(&key) & 1 == rx;
            (tap..64).step_by(2).find(is_it).unwrap()
        };
        let [first, long, second, short] = [find(0, 0), find(0, 1), find(1, 0), find(1, 1)];
        [first, long, second, short].into_iter().for_each(|n| send(&mut rig, &socket, n));
        let (long, short) = (flow_of(long, 4000), flow(short));
        let come = |rig: &mut Tapped, pair: usize, n: u16| assert_eq!(rig.receive_some(pair, 1), [flow(n)], "{what}");
        // One buffer is left when the long one comes, and the short one takes it. What is received
        // by the first queue shows that all before it, in the same queue of the tap, has been read.
        (0..15).for_each(|_| inject(&short));
        inject(&flow(second));
        come(&mut rig, 0, second);
        inject(&flow(first));
        inject(&long);
        come(&mut rig, 0, first);
        inject(&short);
        inject(&flow(second));
        come(&mut rig, 0, second);
        let (begun, mut got) = (Instant::now(), Vec::new());
        while got.len() < 17 {
            assert!(begun.elapsed() < PATIENCE, "{what}: {} came", got.len());
            for pair in [1, 0] {
                got.extend(rig.receive(pair).iter().map(Packet::to_vec));
            }
        }
        assert!(got[..16].iter().all(|bytes| *bytes == short) && got[16] == long, "{what}: other frames came");
        rig.end();
    }
}
