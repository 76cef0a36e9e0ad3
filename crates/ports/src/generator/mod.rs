//! `gen:` makes packets, and checks packets of another generator.
//!
//! ```text
//!   gen:flows=8,size=1448,proto=udp,rate=1M
//!
//!   layer=ethernet|ip        first header of packets                                          ethernet
//!   flows=N                  flows take turns, one packet each                                8
//!   size=BYTES|imix          whole packet of the layer, without an Ethernet FCS               64
//!   payload=random|stale     stale: the buffer's old bytes behind the first 128, no checksum  random
//!   proto=udp|tcp  ip=4|6    TCP: a stream of ACK segments, advancing sequence numbers        udp, 4
//!   rate=PPS                 over all queues, with k or M; 0 is as fast as possible           0
//!   count=N                  over all queues; then the port is done                           no end
//!   seed=N                   payload, first sequence numbers and identifications              1
//!   gso=BYTES                super-packets of `size`, with this payload in each segment       off
//!   vlan=ID                  an 802.1Q tag                                                    none
//!   src-mac dst-mac src-ip dst-ip src-port dst-port
//!   verify=on                check the tags of transmitted packets; count=N: N are expected   off
//! ```
//!
//! The same options always give the same bytes, in the same order. All checksums are complete,
//! except that of a super-packet, which is partial. If every packet has at least ten bytes of
//! payload, the payload begins with a tag of flow and number, by which `gen:verify=on` finds packets
//! that are lost, come late or come twice: see [`PortControl::verified`].
//!
//! A generator that is delayed catches up with at most ten milliseconds of packets, and gives the
//! others up: [`PortControl::pacing`] reports the rate that was asked for, the one that is reached,
//! and the packets that were given up.
//!
//! With several queues, flow `i` belongs to queue `i % queues`, and rate and count are divided
//! among the queues that have flows.
//!
//! Transmitted packets are freed and counted, as by [`null`](crate::null).
//!
//! | file | |
//! |---|---|
//! | `config.rs` | the options |
//! | `flow.rs`, `stamp.rs`, `tag.rs` | templates and sums; the fields of each packet; the tag |
//! | `rx.rs`, `pace.rs` | makes packets, at a rate |
//! | `tx.rs`, `verify.rs` | frees packets; checks tags |
//! | `control.rs` | the report of rate and check |

mod config;
mod control;
mod flow;
mod pace;
mod rx;
mod stamp;
mod tag;
mod tx;
mod verify;

pub use config::{Config, IMIX, KIND, Payload, Protocol, Size};
pub use rx::GenRx;
pub use tx::GenTx;

use super::null::{NullTx, sink_info};
use control::GenControl;
use flow::{HEAD, Plan};
use rx::Share;
use std::sync::{Arc, OnceLock};
use towpath_packet::port::{Info, Needs, Port, PortControl, PortError, Queues, RxQueue, Start};
use towpath_packet::{Direction, MAX_FRAGS, Offloads, Pool};
use verify::Verifier;

/// Opens the port.
///
/// # Errors
/// [`PortError::Option`] for an invalid value.
pub fn open(config: Config) -> Result<GenPort, PortError> {
    config.check("gen:")?;
    let gso = match (config.gso, config.protocol, config.src_ip.is_ipv4()) {
        (None, _, _) => Offloads::NONE,
        (_, Protocol::Udp, _) => Offloads::CSUM.with(Offloads::USO),
        (_, Protocol::Tcp, true) => Offloads::CSUM.with(Offloads::TSO4),
        (_, Protocol::Tcp, false) => Offloads::CSUM.with(Offloads::TSO6),
    };
    let mut info =
        sink_info("gen:", Offloads::ALL).with_offloads(Offloads::ALL, gso).with_finite(config.count.is_some());
    info.layer = config.layer;
    info.mtu = config.mtu();
    let verify = || Arc::new(Verifier::new(config.flows, config.count, config.layer.into()));
    let verifier = config.verify.then(verify);
    let control = Arc::new(GenControl { paces: OnceLock::new(), verifier });
    Ok(GenPort { info, config, control })
}

/// The opened port.
#[derive(Debug)]
pub struct GenPort {
    info: Info,
    config: Config,
    control: Arc<GenControl>,
}

impl Port for GenPort {
    type Rx = GenRx;
    type Tx = GenTx;

    fn info(&self) -> &Info {
        &self.info
    }

    fn control(&self) -> Option<Arc<dyn PortControl>> {
        Some(self.control.clone())
    }

    fn needs(&self) -> Needs {
        Needs::none()
    }

    fn start(self, start: Start) -> Result<Queues<GenRx, GenTx>, PortError> {
        let name = &self.info.name;
        let plan = Arc::new(Plan::new(&self.config));
        check_pool(&self.config, &plan, &start.pool)?;
        let queues = u32::from(self.info.queues(start.queues)?);
        let active = u64::from(queues.min(self.config.flows)).min(self.config.rate.unwrap_or(u64::MAX)).max(1);
        let mut made = Queues { rx: Vec::new(), tx: Vec::new() };
        for queue in 0..queues {
            let share = |total: u64| total / active + u64::from(u64::from(queue) < total % active);
            let flows = match u64::from(queue) < active {
                true => plan.flows(&self.config, queue, active as u32),
                false => Vec::new(),
            };
            let share = Share { count: self.config.count.map(share), rate: self.config.rate.map(share) };
            let cache = start.pool.cache(Direction::Tx);
            let cache = cache.map_err(|source| PortError::Pool { port: name.clone(), source })?;
            let mut rx = GenRx::new(&self.config, plan.clone(), flows, share, cache);
            rx.set_rx_offloads(start.accept);
            made.rx.push(rx);
            let sink = NullTx::new(name, &start.pool, self.info.tx_offloads)?;
            made.tx.push(GenTx::new(sink, self.control.verifier.clone()));
        }
        self.control.paces.get_or_init(|| made.rx.iter().filter_map(|rx| rx.pace().cloned()).collect());
        Ok(made)
    }
}

/// Checks that the pool's chunks can hold the longest packet.
fn check_pool(config: &Config, plan: &Plan, pool: &Pool) -> Result<(), PortError> {
    let room = pool.chunk() - pool.headroom();
    let longest = plan.headers + plan.payload.len();
    if room >= HEAD && room * (MAX_FRAGS + 1) >= longest {
        return Ok(());
    }
    let what = format!(
        "size={:?}: chunks of {} bytes with {} of headroom are too small: there must be room for {HEAD} bytes in each, \
         and for the packet in {}",
        config.size,
        pool.chunk(),
        pool.headroom(),
        MAX_FRAGS + 1
    );
    Err(PortError::Input { port: "gen:".to_owned(), what })
}

#[cfg(test)]
mod tests;
