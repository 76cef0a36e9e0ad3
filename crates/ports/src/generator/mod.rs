//! `gen:` makes packets, and checks packets of another generator.
//!
//! ```text
//!   gen:flows=8,size=1448,proto=udp,rate=1M
//!
//!   layer=ethernet|ip        first header of packets                                     ethernet
//!   flows=N                  flows take turns, one packet each                           8
//!   size=BYTES|imix          whole packet of the layer, without an Ethernet FCS          64
//!        FIRST-LAST/STEP     also several, joined by +: each flow goes through them, in order
//!   payload=random|stale     stale: old bytes behind the first 128, no checksum          random
//!   proto=udp|tcp  ip=4|6    TCP: a stream of ACK segments, advancing sequence numbers   udp, 4
//!   rate=PPS                 over all queues, with k or M; 0 is as fast as possible      0
//!   count=N                  over all queues; then the port is done                      no end
//!   seed=N                   payload, first sequence numbers and identifications         1
//!   gso=BYTES                super-packets of `size`, with this payload in each segment  off
//!   vlan=ID                  an 802.1Q tag                                               none
//!   src-mac dst-mac src-ip dst-ip src-port dst-port         each one value, or FIRST-LAST
//!   template=FILE|hex:…      frames sent as they are, with the fields that are given     none
//!   stamp=off|number|time    what the payload begins with                                number
//!   verify=on                check stamps of transmitted packets; count=N: N are expected off
//! ```
//!
//! The same options always give the same bytes, in the same order. All checksums are complete,
//! except that of a super-packet, which is partial. If every packet has at least ten bytes of
//! payload, the payload begins with a tag of flow and number, by which `gen:verify=on` finds
//! packets that are lost, come late or come twice: see [`PortControl::verified`].
//!
//! **Ranges.** Flow `i` has value `i mod n` of each range of `n` values, so they advance together,
//! flow by flow: `flows=256,src-ip=10.0.0.0/24,vlan=100-103`. Everything of a flow is computed when
//! the port starts; a range costs nothing per packet. The source port of the first flow counts up
//! as long as neither it nor the source address is a range.
//!
//! **Stamps.** With `stamp=time` the tag has the trial (see [`Trials`]) and the time at which the
//! burst of the packet was made. `gen:verify=on` of any process of the host measures the latency of
//! each packet, to the burst in which it arrives.
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
//! | `options.rs`, `config.rs`, `size.rs` | the options; the configuration, its rules; lengths of packets |
//! | `flow.rs`, `stamp.rs`, `tag.rs` | templates and sums; the fields of each packet; the tag |
//! | `sweep.rs`, `fields.rs` | ranges; the fields that options give, written to frames |
//! | `template.rs` | frames of a capture |
//! | `trials.rs` | a generator that sends when it is asked |
//! | `rx.rs`, `pace.rs` | makes packets, at a rate |
//! | `tx.rs`, `verify.rs`, `window.rs` | frees packets; checks tags; the numbers that arrived |
//! | `control.rs` | the report of rate and check |

mod config;
mod control;
mod fields;
mod flow;
mod options;
mod pace;
mod rx;
mod size;
mod stamp;
mod sweep;
mod tag;
mod template;
mod trials;
mod tx;
mod verify;
mod window;

pub use config::{Config, Payload, Protocol, Stamps};
pub use fields::Fields;
pub use options::KIND;
pub use rx::GenRx;
pub use size::{IMIX, Size};
pub use sweep::Sweep;
pub use template::{Source, Template};
pub use trials::{Progress, Trial, Trials};
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
pub fn open(mut config: Config) -> Result<GenPort, PortError> {
    config.check("gen:")?;
    let frames = config.template.as_ref().map(|template| template::load(&config, template)).transpose()?;
    if let Some(frames) = &frames {
        config.flows = config.flows.max(frames.len() as u32);
    }
    let gso = match (config.gso, config.protocol, config.is_ipv4()) {
        (None, _, _) => Offloads::NONE,
        (_, Protocol::Udp, _) => Offloads::CSUM.with(Offloads::USO),
        (_, Protocol::Tcp, true) => Offloads::CSUM.with(Offloads::TSO4),
        (_, Protocol::Tcp, false) => Offloads::CSUM.with(Offloads::TSO6),
    };
    let mut info =
        sink_info("gen:", Offloads::ALL).with_offloads(Offloads::ALL, gso).with_finite(config.count.is_some());
    info.layer = config.layer;
    let longest = frames.iter().flatten().map(Vec::len).max();
    info.mtu = longest.map_or(config.mtu(), |longest| longest.saturating_sub(config.link()) as u32);
    let verify = || Arc::new(Verifier::new(config.flows, config.count, config.layer.into()));
    let verifier = config.verify.then(verify);
    let control = Arc::new(GenControl { paces: OnceLock::new(), verifier });
    Ok(GenPort { info, config, frames, control, trials: None, sizes: Vec::new() })
}

/// The opened port.
#[derive(Debug)]
pub struct GenPort {
    info: Info,
    config: Config,
    /// Those of the template.
    frames: Option<Vec<Vec<u8>>>,
    control: Arc<GenControl>,
    trials: Option<Trials>,
    /// Those of the trials.
    sizes: Vec<Size>,
}

impl GenPort {
    /// Makes the generator one that waits for trials, and returns their handle. Rate and count of
    /// the configuration are not used then. Each trial has one of `sizes`; without any, the
    /// configured one.
    ///
    /// # Errors
    /// [`PortError::Option`] for a size that does not fit the other options.
    pub fn trials(&mut self, sizes: &[Size]) -> Result<Trials, PortError> {
        for size in sizes {
            let config = Config { size: size.clone(), ..self.config.clone() };
            config.check("gen:")?;
            self.info.mtu = self.info.mtu.max(config.mtu());
        }
        if let Some(first) = sizes.first() {
            self.config.size = first.clone();
        }
        self.sizes = sizes.to_vec();
        self.info.finite = false;
        Ok(self.trials.get_or_insert_with(|| Trials::new(self.control.verifier.clone())).clone())
    }
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
        let sized = self.sizes.iter().map(|size| Config { size: size.clone(), ..self.config.clone() });
        let sized: Vec<_> = sized.map(|config| (Arc::new(Plan::new(&config)), config)).collect();
        for (plan, config) in &sized {
            check_pool(config, plan, &start.pool)?;
        }
        let queues = u32::from(self.info.queues(start.queues)?);
        let active = u64::from(queues.min(self.config.flows)).min(self.config.rate.unwrap_or(u64::MAX)).max(1);
        let mut made = Queues { rx: Vec::new(), tx: Vec::new() };
        let mut trials = self.trials.map(|trials| trials.queues(active).into_iter());
        for queue in 0..queues {
            let share = |total: u64| total / active + u64::from(u64::from(queue) < total % active);
            let flows = match u64::from(queue) < active {
                true => plan.flows(&self.config, queue, active as u32),
                false => Vec::new(),
            };
            let share = Share { count: self.config.count.map(share), rate: self.config.rate.map(share) };
            let cache = start.pool.cache(Direction::Tx);
            let cache = cache.map_err(|source| PortError::Pool { port: name.clone(), source })?;
            let frames = match (&self.config.template, &self.frames) {
                (Some(template), Some(frames)) => {
                    Some(template::Frames::new(frames, &self.config, template, queue, active as u32)?)
                }
                _ => None,
            };
            let rx = GenRx::new(&self.config, plan.clone(), flows, share, cache).with_frames(frames);
            let sizes = sized.iter().map(|(plan, config)| (plan.clone(), plan.flows(config, queue, active as u32)));
            let mut rx = rx.with_trials(trials.as_mut().and_then(Iterator::next), sizes.collect());
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
