//! What a bridged frame costs, for callgrind: `hub_ops MODE ROUNDS`.
//!
//! | mode | |
//! |---|---|
//! | `route` | a burst of 64 through a route, for comparison |
//! | `one` | through a bridge, from 64 stations to 64 stations behind one port |
//! | `two` | the same, to stations behind two ports in turns |
//! | `vlan` | as `two`, from an access port to two trunks that take tags beside the frame |
//!
//! The queues pass each frame back to where it came from, without a look at it.

use std::collections::VecDeque;
use std::error::Error;
use std::hint::black_box;
use std::sync::{Arc, Mutex};
use towpath_engine::bridge::fdb::{Fdb, FdbConfig, Key};
use towpath_engine::bridge::{Bridge, BridgePort, PortMode, PortState};
use towpath_engine::hub::{Hub, HubPort};
use towpath_engine::route::{Route, RouteConfig};
use towpath_engine::worker::Task;
use towpath_packet::port::{RxQueue, TxQueue};
use towpath_packet::{Backing, Batch, Counters, Direction, Offloads, Packet, Pool, PoolConfig};

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

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(mode), Some(rounds)) = (args.next(), args.next()) else {
        return Err("usage: hub_ops route|one|two|vlan ROUNDS".into());
    };
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
    let rounds = rounds.parse()?;
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
