//! Any frames to a router that answers by itself: ARP, neighbour discovery, ICMP and what is to be
//! forwarded. Every packet is accounted for, answers are few, and none goes to a group or to no
//! station, or is about an error.
//!
//! The input is a sequence of frames: a byte that says by which interface it comes and what of it
//! is made right, two bytes of its length, and its bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use towpath_engine::hub::{Hub, HubPort};
use towpath_engine::route::RouteConfig;
use towpath_engine::router::neighbour::{NeighbourConfig, Neighbours};
use towpath_engine::router::{
    Action, Fib, Hop, Interface, Publisher, Route, Router, RouterConfig, RouterPort, connected,
};
use towpath_engine::worker::Task;
use towpath_fuzz::Input;
use towpath_packet::port::{RxQueue, TxQueue};
use towpath_packet::{Backing, Batch, Counters, Direction, Offloads, Packet, Pool, PoolConfig};
use towpath_wire::checksum;

/// Frames of an input. Further ones are left, so that a run is fast.
const FRAMES: usize = 64;
/// ICMP errors at once, and each second.
const BURST: u32 = 4;
const RATE: u32 = 1;
const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
const MTU: u32 = 1280;

/// What is received by an interface, and what is sent by it.
#[derive(Clone, Default)]
struct Queue {
    packets: Arc<Mutex<VecDeque<Packet>>>,
    counters: Arc<Counters>,
}

impl RxQueue for Queue {
    fn rx(&mut self, out: &mut Batch) -> usize {
        let mut packets = self.packets.lock().unwrap();
        let n = packets.len().min(out.room());
        packets.drain(..n).for_each(|packet| assert!(out.push(packet).is_ok()));
        n
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}

impl TxQueue for Queue {
    fn tx(&mut self, batch: &mut Batch) -> usize {
        let n = batch.len();
        self.packets.lock().unwrap().extend(batch.drain_front(n));
        n
    }

    fn offloads(&self) -> Offloads {
        Offloads::NONE
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}

fn interface(port: u8) -> Interface {
    let addresses: [(IpAddr, u8); 3] = [
        ([10, 0, port, 1].into(), 24),
        (Ipv6Addr::new(0xfd00, 0, 0, port.into(), 0, 0, 0, 1).into(), 64),
        (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, port.into(), 1).into(), 64),
    ];
    Interface { mac: MACS[usize::from(port)], mtu: MTU, addresses: addresses.to_vec(), ..Interface::default() }
}

fn fib() -> Fib {
    let interfaces = [0, 1].map(interface);
    let mut routes: Vec<Route> = (0..).zip(&interfaces).flat_map(|(port, own)| connected(port, own)).collect();
    let mut add = |prefix: IpAddr, len, action, gateway: Option<IpAddr>| {
        let hops = gateway.map(|gateway| Hop { port: 1, gateway: Some(gateway), weight: 1 }).into_iter().collect();
        routes.push(Route { prefix, len, action, hops, mtu: None });
    };
    add(Ipv4Addr::UNSPECIFIED.into(), 0, Action::Forward, Some([10, 0, 1, 2].into()));
    add(Ipv6Addr::UNSPECIFIED.into(), 0, Action::Forward, Some(Ipv6Addr::new(0xfd00, 0, 0, 1, 0, 0, 0, 2).into()));
    add([20, 0, 0, 0].into(), 8, Action::Unreachable, None);
    add([21, 0, 0, 0].into(), 8, Action::Prohibit, None);
    add([22, 0, 0, 0].into(), 8, Action::Blackhole, None);
    Fib::new(interfaces.map(Some).to_vec(), &routes).unwrap()
}

/// Makes what a random frame hardly has: 2: the router's Ethernet address; 4: lengths and
/// checksums.
fn repair(frame: &mut [u8], port: usize, how: u8) {
    if how & 2 != 0
        && let Some(to) = frame.first_chunk_mut()
    {
        *to = MACS[port];
    }
    let Some((header, ip)) = frame.split_at_mut_checked(14).filter(|_| how & 4 != 0) else { return };
    let len = ip.len() as u16;
    if header[12..] == [8, 0] && ip.len() >= 20 {
        ip[2..4].copy_from_slice(&len.to_be_bytes());
        let (own, message) = ip.split_at_mut((usize::from(ip[0] & 15) * 4).clamp(20, ip.len()));
        own[10..12].fill(0);
        let sum = !checksum::sum(own);
        own[10..12].copy_from_slice(&sum.to_be_bytes());
        if own[9] == 1 && message.len() >= 4 {
            message[2..4].fill(0);
            let sum = !checksum::sum(message);
            message[2..4].copy_from_slice(&sum.to_be_bytes());
        }
    } else if header[12..] == [0x86, 0xdd] && ip.len() >= 44 {
        ip[4..6].copy_from_slice(&(len - 40).to_be_bytes());
        if ip[6] == 58 {
            ip[42..44].fill(0);
            let sum = !sum6(ip);
            ip[42..44].copy_from_slice(&sum.to_be_bytes());
        }
    }
}

/// The sum of an ICMPv6 message and its pseudo header.
fn sum6(ip: &[u8]) -> u16 {
    let [src, dst] = [8, 24].map(|at| Ipv6Addr::from(<[u8; 16]>::try_from(&ip[at..at + 16]).unwrap()));
    let message = &ip[40..];
    checksum::add(checksum::sum(message), checksum::pseudo_v6(src, dst, 58, message.len() as u32))
}

fn is_own(address: IpAddr) -> bool {
    (0..2).any(|port| interface(port).addresses.iter().any(|(own, _)| *own == address))
}

/// Checks a sent frame; whether it is an ICMP error of the router.
fn check(frame: &[u8], port: usize) -> bool {
    let (to, from, kind, ip) = (&frame[..6], &frame[6..12], &frame[12..14], &frame[14..]);
    assert_eq!(from, MACS[port], "its source is the interface");
    let to_group = to[0] & 1 != 0;
    match kind {
        [8, 6] => {
            let operation = ip[7];
            assert!(is_own(<[u8; 4]>::try_from(&ip[14..18]).unwrap().into()), "what it says is its own");
            assert!(!to_group || operation == 1, "an answer goes to one station");
            false
        }
        [8, 0] => {
            let len = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
            let header = usize::from(ip[0] & 15) * 4;
            let [src, dst] = [12, 16].map(|at| Ipv4Addr::from(<[u8; 4]>::try_from(&ip[at..at + 4]).unwrap()));
            assert!(len == ip.len() && len <= MTU as usize && checksum::sum(&ip[..header]) == 0xffff);
            assert!(!to_group && !dst.is_multicast() && !dst.is_broadcast() && !dst.is_loopback());
            if !is_own(src.into()) {
                return false;
            }
            assert!(!dst.is_unspecified() && !is_own(dst.into()) && dst.octets()[3] != 255 || dst.octets()[0] != 10);
            assert_eq!((ip[9], checksum::sum(&ip[header..])), (1, 0xffff), "it is ICMP");
            let is_error = ip[header] != 0;
            if is_error {
                let about = &ip[header + 8..];
                assert_eq!(u16::from_be_bytes([about[6], about[7]]) & 0x1fff, 0, "it is about a first fragment");
                let kind = about.get(usize::from(about[0] & 15) * 4).copied();
                let is_about_error = about[9] == 1 && matches!(kind, Some(3 | 4 | 5 | 11 | 12));
                assert!(!is_about_error, "no error is about an error");
            }
            is_error
        }
        [0x86, 0xdd] => {
            let [src, dst] = [8, 24].map(|at| Ipv6Addr::from(<[u8; 16]>::try_from(&ip[at..at + 16]).unwrap()));
            assert!(40 + usize::from(u16::from_be_bytes([ip[4], ip[5]])) == ip.len() && ip.len() <= MTU as usize);
            assert!(!dst.is_unspecified() && !dst.is_loopback());
            if !is_own(src.into()) {
                assert!(!to_group && !dst.is_multicast(), "no group is forwarded");
                return false;
            }
            assert_eq!((ip[6], sum6(ip)), (58, 0xffff), "it is ICMP");
            assert_eq!(to_group, dst.is_multicast());
            assert!(!to_group || matches!(ip[40], 135 | 136), "only discovery is for groups");
            if ip[40] < 128 {
                let about = &ip[48..];
                assert!(about[6] != 58 || about.get(40).is_none_or(|kind| *kind >= 128), "no error is about an error");
            }
            ip[40] < 128
        }
        other => panic!("a router sends no {other:x?}"),
    }
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let config = PoolConfig::default().capacity(512).backing(Backing::Anonymous);
    let pool = Pool::new(config).unwrap();
    let cache = || pool.cache(Direction::Tx).unwrap();
    let fib = Publisher::new(fib());
    let mut neighbours = NeighbourConfig::default();
    (neighbours.limit, neighbours.queue, neighbours.queued) = (8, 2, 6);
    let neighbours = Arc::new(Neighbours::new(neighbours).unwrap());
    let mut answers = RouterConfig::default();
    (answers.icmp_rate, answers.icmp_burst) = (RATE, BURST);
    let router = Router::new(fib.reader(), neighbours, cache(), answers);
    let mut counters = vec![router.counters().clone()];
    let mut hub = Hub::new(router).unwrap();
    let (received, sent) = ([(); 2].map(|()| Queue::default()), [(); 2].map(|()| Queue::default()));
    for number in 0..2 {
        let (rx, tx) = (received[number].clone(), sent[number].clone());
        let part = HubPort::new(rx, tx, cache(), RouteConfig::default(), RouterPort::Interface);
        counters.push(part.counters().clone());
        hub.add(number, part);
    }
    let (began, mut own) = (Instant::now(), cache());
    // What may be sent: an answer, an error and a solicitation for each frame, and its fragments.
    let (mut came, mut room, mut left, mut errors) = (0, 0, 0, 0);
    let mut take = || {
        for (port, queue) in sent.iter().enumerate() {
            for packet in queue.packets.lock().unwrap().drain(..) {
                let mut frame = vec![0; packet.len()];
                packet.copy_to(0, &mut frame);
                errors += u32::from(check(&frame, port));
                left += 1;
            }
        }
    };
    while came < FRAMES && !input.0.is_empty() {
        let (how, len) = (input.byte(), usize::from(input.word() % 4096));
        let (port, mut frame) = (usize::from(how & 1), input.slice(len).to_vec());
        repair(&mut frame, port, how);
        let Some(packet) = Packet::copy_from(&mut own, &frame) else { break };
        received[port].packets.lock().unwrap().push_back(packet);
        (came, room) = (came + 1, room + 3 + frame.len() / 1000);
        // Some frames come in bursts.
        if how & 8 == 0 {
            hub.turn(false);
            take();
        }
    }
    while hub.turn(false) > 0 {}
    hub.end(0);
    take();
    drop((hub, own));
    assert_eq!(pool.stats().free, pool.stats().capacity, "every buffer is free");
    assert!(left <= room, "{left} frames are sent for {came}, which may be answered by {room}");
    assert!(u64::from(errors) <= u64::from(BURST) + began.elapsed().as_secs() + 1, "{errors} errors");
    let counted = counters.iter().map(|counters| counters.snapshot());
    let (made, gone) = counted.fold((0, left as u64), |(made, gone), counted| {
        (made + counted.split + counted.originated, gone + counted.all_drops())
    });
    assert_eq!(came as u64 + made, gone, "every packet is sent, or dropped by name");
});
