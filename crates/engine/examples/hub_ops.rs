//! What a bridged frame and a routed packet cost, for callgrind: `hub_ops MODE ROUNDS`.
//!
//! | mode | |
//! |---|---|
//! | `route` | a burst of 64 through a route, for comparison |
//! | `one` | through a bridge, from 64 stations to 64 stations behind one port |
//! | `two` | the same, to stations behind two ports in turns |
//! | `vlan` | as `two`, from an access port to two trunks that take tags beside the frame |
//! | `router` | IPv4 through a router, to 64 hosts behind one gateway; at most 2000 rounds |
//!
//! The queues pass each frame back to where it came from, without a look at it. What a router sends
//! is for itself again: its gateway has its own address. A packet passes until its TTL is used up,
//! so eight bursts of them take turns.

use std::collections::VecDeque;
use std::error::Error;
use std::hint::black_box;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use towpath_engine::bridge::fdb::{Fdb, FdbConfig, Key};
use towpath_engine::bridge::{Bridge, BridgePort, PortMode, PortState};
use towpath_engine::hub::{Hub, HubPort};
use towpath_engine::route::{Route, RouteConfig};
use towpath_engine::router::neighbour::{Key as NeighbourKey, NeighbourConfig, Neighbours, Outcome, State};
use towpath_engine::router::{
    Action, Fib, Hop, Interface, Publisher, Route as IpRoute, Router, RouterConfig, RouterPort,
};
use towpath_engine::worker::Task;
use towpath_packet::port::{RxQueue, TxQueue};
use towpath_packet::{Backing, Batch, Counters, Direction, Offloads, Packet, Pool, PoolConfig};
use towpath_wire::ethernet::Mac;

type Frames = Arc<Mutex<VecDeque<Packet>>>;

/// Both sides of a port: receives from a list, and sends into it.
struct Queue(Frames, Arc<Counters>);

impl RxQueue for Queue {
    fn rx(&mut self, out: &mut Batch) -> usize {
        let Ok(mut frames) = self.0.lock() else { return 0 };
        let n = frames.len().min(out.room());
        for packet in frames.drain(..n) {
            let _ = out.push(packet);
        }
        n
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.1
    }
}

impl TxQueue for Queue {
    fn tx(&mut self, batch: &mut Batch) -> usize {
        let Ok(mut frames) = self.0.lock() else { return 0 };
        let n = batch.len();
        frames.extend(batch.drain_front(n));
        n
    }

    fn offloads(&self) -> Offloads {
        Offloads::ALL
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.1
    }
}

#[inline(never)]
fn measured(task: &mut impl Task, rounds: u64) {
    for _ in 0..rounds {
        black_box(task.turn(false));
    }
}

/// A UDP packet without payload, to host `n` behind the gateway.
fn packet_to(n: u8) -> Vec<u8> {
    let mut bytes = [&OWN[..], &[2, 0, 0, 0, 0, n, 8, 0]].concat();
    bytes.extend([0x45, 0, 0, 46, 0, 0, 0x40, 0, 255, 17, 0, 0, 10, 0, 0, 2, 10, 9, 0, n]);
    let sum: u32 = bytes[14..].chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    let folded = !((sum & 0xffff) + (sum >> 16)) as u16;
    bytes[24..26].copy_from_slice(&folded.to_be_bytes());
    bytes.extend([0, 9, 0, 9, 0, 26, 0, 0]);
    bytes.resize(60, 0);
    bytes
}

/// The address of both interfaces of the router, and of its gateway.
const OWN: Mac = [2, 0, 0, 0, 1, 0];

fn router(rounds: u64) -> Result<(), Box<dyn Error>> {
    let pool = Pool::new(PoolConfig::default().capacity(2048).backing(Backing::Anonymous))?;
    let mut cache = pool.cache(Direction::Tx)?;
    let (frames, none): (Frames, Frames) = Default::default();
    for n in 0..8 * 64 {
        let packet = Packet::copy_from(&mut cache, &packet_to(n as u8 % 64)).ok_or("no buffer")?;
        frames.lock().map_err(|_| "poisoned")?.push_back(packet);
    }
    let interface = Interface { mac: OWN, mtu: 1500, ..Interface::default() };
    let gateway: IpAddr = [10, 0, 1, 2].into();
    let hops = vec![Hop { port: 1, gateway: Some(gateway), weight: 1 }];
    let route = IpRoute { prefix: [10, 9, 0, 0].into(), len: 16, action: Action::Forward, hops, mtu: None };
    let fib = Publisher::new(Fib::new(vec![Some(interface); 2], &[route])?);
    let neighbours = Arc::new(Neighbours::new(NeighbourConfig::default())?);
    let key = NeighbourKey { port: 1, address: gateway };
    neighbours.set(key, OWN, State::Permanent, Instant::now(), &mut Outcome::default());
    let mut hub = Hub::new(Router::new(fib.reader(), neighbours, cache, RouterConfig::default()))?;
    for (number, list) in [&frames, &none].into_iter().enumerate() {
        let [rx, tx] = [list, &frames].map(|list| Queue(list.clone(), Arc::default()));
        let part = HubPort::new(rx, tx, pool.cache(Direction::Tx)?, RouteConfig::default(), RouterPort::Interface);
        hub.add(number, part);
    }
    measured(&mut hub, rounds);
    let kept = frames.lock().map_err(|_| "poisoned")?.len();
    if kept == 8 * 64 { Ok(()) } else { Err(format!("{kept} of {} packets are left", 8 * 64).into()) }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(mode), Some(rounds)) = (args.next(), args.next()) else {
        return Err("usage: hub_ops route|one|two|vlan|router ROUNDS".into());
    };
    let rounds = rounds.parse()?;
    if mode == "router" {
        return router(rounds);
    }
    let pool = Pool::new(PoolConfig::default().capacity(1024).backing(Backing::Anonymous))?;
    let mut cache = pool.cache(Direction::Tx)?;
    let (frames, none): (Frames, Frames) = Default::default();
    let fdb = Arc::new(Fdb::new(FdbConfig::default()));
    let (vlan, ports) = if mode == "vlan" { (7, 2) } else { (0, if mode == "two" { 2 } else { 1 }) };
    for n in 0..64u8 {
        let mut bytes = vec![2, 0, 0, 0, 1, n, 2, 0, 0, 0, 0, n, 8, 0];
        bytes.resize(60, 0);
        let packet = Packet::copy_from(&mut cache, &bytes).ok_or("no buffer")?;
        frames.lock().map_err(|_| "poisoned")?.push_back(packet);
        let station = fdb.table().probe(Key::new(vlan, 0x0200_0000_0100 | u64::from(n)));
        fdb.table().learn(&station, 1 + usize::from(n) % ports, 0);
    }
    let config = RouteConfig::default();
    let queue = |frames: &Frames| Queue(frames.clone(), Arc::default());
    if mode == "route" {
        let mut route = Route::new(queue(&frames), queue(&frames), cache, config);
        measured(&mut route, rounds);
        return Ok(());
    }
    let mut hub = Hub::new(Bridge::new(fdb, mode == "vlan"))?;
    for number in 0..3 {
        let mut port = BridgePort::default();
        if mode == "vlan" {
            let trunk = PortMode::Trunk { vlans: "7".parse()?, native: None };
            port.mode = if number == 0 { PortMode::Access(7) } else { trunk };
        }
        // What leaves is the next burst of port 0.
        let rx = queue(if number == 0 { &frames } else { &none });
        let state = PortState::new(&port, 1);
        hub.add(number, HubPort::new(rx, queue(&frames), pool.cache(Direction::Tx)?, config, state));
    }
    measured(&mut hub, rounds);
    Ok(())
}
