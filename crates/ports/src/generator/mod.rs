//! `gen:` makes packets, and checks them when they come back.
//!
//! ```text
//!   gen:flows=8,size=1448,proto=udp,rate=1M
//!
//!   layer=ethernet|ip        what packets begin with
//!   flows=N                  flows take turns, one packet each                                        8
//!   size=BYTES|imix          whole packet from the first byte of the layer, without an Ethernet FCS   64
//!   payload=random|stale     stale: behind 128 bytes, whatever the buffer held, and no checksum         random
//!   proto=udp|tcp  ip=4|6    TCP is a stream of ACK segments with advancing sequence numbers          udp, 4
//!   rate=PPS                 over all queues, with k or M; 0 is as fast as possible                   0
//!   count=N                  over all queues; the port is done after that many                        no end
//!   seed=N                   payload, first sequence numbers and identifications                      1
//!   gso=BYTES                super-packets of `size` with so much payload in each segment             off
//!   vlan=ID                  an 802.1Q tag
//!   src-mac dst-mac src-ip dst-ip src-port dst-port
//!   verify=on                check the tags of what is sent to the port                               off
//! ```
//!
//! The same options give the same bytes, in the same order, every time. All checksums are right, except that of a
//! super-packet, which is partial. Where every packet has at least ten bytes of payload, it begins with a tag that says
//! which packet of which flow it is; another `gen:verify=on` finds by it what was lost, late or sent twice.
//!
//! With several queues, flow `i` belongs to queue `i % queues`, and rate and count are divided among the queues that
//! have flows.
//!
//! What is sent to the port is freed and counted, as by [`null`](crate::null).

mod config;
mod flow;
mod pace;
mod rx;
mod stamp;
mod tag;
mod tx;
mod verify;

pub use config::{Config, IMIX, Payload, Protocol, Size};
pub use rx::GenRx;
pub use tx::GenTx;
pub use verify::{Verification, Verified};

use super::null::{NullTx, endless_sink};
use flow::{HEAD, Plan};
use rx::Share;
use std::sync::Arc;
use towpath_packet::port::{Info, Port, PortError, Queues, RxQueue, Start};
use towpath_packet::{Direction, MAX_FRAGS, Offloads, Pool};
use verify::Verifier;

/// Opens the port.
///
/// # Errors
/// [`PortError::Option`] for a field whose value breaks a rule.
pub fn open(config: Config) -> Result<GenPort, PortError> {
    config.check("gen:")?;
    let gso = match (config.gso, config.protocol, config.src_ip.is_ipv4()) {
        (None, _, _) => Offloads::NONE,
        (_, Protocol::Udp, _) => Offloads::CSUM.with(Offloads::USO),
        (_, Protocol::Tcp, true) => Offloads::CSUM.with(Offloads::TSO4),
        (_, Protocol::Tcp, false) => Offloads::CSUM.with(Offloads::TSO6),
    };
    let sink = endless_sink("gen:", Offloads::ALL);
    let info = Info { layer: config.layer, rx_offloads: gso, finite: config.count.is_some(), ..sink };
    Ok(GenPort { info, config })
}

/// The opened port.
#[derive(Debug)]
pub struct GenPort {
    info: Info,
    config: Config,
}

impl Port for GenPort {
    type Rx = GenRx;
    type Tx = GenTx;

    fn info(&self) -> &Info {
        &self.info
    }

    fn start(self, start: Start) -> Result<Queues<GenRx, GenTx>, PortError> {
        let name = &self.info.name;
        let plan = Arc::new(Plan::new(&self.config));
        fits(&self.config, &plan, &start.pool)?;
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
            let verifier = self.config.verify.then(|| Verifier::new(self.config.flows, self.config.layer.into()));
            made.tx.push(GenTx::new(sink, verifier));
        }
        Ok(made)
    }
}

/// Whether the longest packet can be made of the pool's chunks.
fn fits(config: &Config, plan: &Plan, pool: &Pool) -> Result<(), PortError> {
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
