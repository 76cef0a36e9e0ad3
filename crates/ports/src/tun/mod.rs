//! `tap:NAME` and `tun:NAME`: a network interface of the kernel whose packets this process reads
//! and writes.
//!
//! ```text
//!   the host's stack, a bridge, a container
//!        │  ▲                                TAP: Ethernet frames      TUN: IP packets
//!   interface NAME
//!        │  ▲         virtio-net header + packet, up to 64 KiB, with offloads both ways
//!   read │  │ write                          one descriptor per queue, one call per packet
//!      TunRx TunTx
//! ```
//!
//! The crate [`towpath_tun`] opens, configures and probes the device here too. Its `Queue` and
//! `Writer` are for programs with small buffers of their own: `Writer` has a GRO engine and chains
//! those buffers. In a datapath the route has coalesced already (`engine::GroStage`), and a packet
//! is a chain of pool chunks with metadata. So [`TunRx`] reads into the pool, and [`TunTx`] writes
//! a virtio-net header and the packet from where it lies.
//!
//! * **Life.** The interface is made when the port is opened and vanishes with the process, unless
//!   it is persistent (`persist=on`, or made by `ip tuntap add`). It is set up when the port
//!   starts.
//! * **Offloads.** `TUNSETOFFLOAD` sets the offloads of received packets, for the whole device:
//!   those that [all queues accept](RxQueue::set_rx_offloads). Packets that the kernel had queued
//!   before may need more; they have their metadata, and the egress completes them. The offloads of
//!   transmitted packets are probed: one packet of each kind is written before the interface is up,
//!   and the kernel checks its header before it drops the packet. A kind that is refused later is
//!   switched off for that queue, see [`TxQueue::offloads`].
//! * **Queues.** With `queues=N` the device has N descriptors. A BPF program chooses the queue, so
//!   that a flow stays in one, the same for both of its directions. If the kernel refuses the
//!   program, `steering` is off: the kernel then moves a flow to the queue to which its other
//!   direction was last written, and its packets may be reordered.
//! * **Namespaces.** With `netns=` the interface is made in another network namespace, and stays
//!   there.
//! * **Link.** A packet for an interface that is down is dropped as [`DropReason::LinkDown`]; the
//!   queue works again when it is up. A deleted interface is [`State::Gone`].
//! * **Queue length.** The kernel drops what finds the queue full, at once and without telling the
//!   sender. By default `txqueuelen` is 16384, or less if full queues of super-packets would take
//!   more than a sixteenth of the memory, but at least 1000; an interface that has more keeps it.
//!   The price of a long queue is delay: what a sender does not limit itself (a flood of UDP) waits
//!   behind all of it, 16 ms at a million packets/s. See `docs/perf/bridge.md`.
//! * **Losses of the kernel.** What the queue or its queueing discipline dropped is
//!   [`Missed::TunQueue`] and [`Missed::Qdisc`]; what the host's stack dropped of the packets that
//!   the port wrote is [`Missed::Host`].
//!
//! | option | default | |
//! |---|---|---|
//! | `queues` | 1 | 1 to 256 |
//! | `multiqueue` | on if `queues` > 1 | attach to a device made with `multi_queue` |
//! | `mtu` | the kernel's (1500) | 68 to 65521 (TAP), 65535 (TUN) |
//! | `addr` | none | addresses with prefix, joined by `+`: `10.0.0.1/24+fd00::1/64` |
//! | `mac` | random | TAP only |
//! | `up` | on | set the interface up at the start |
//! | `persist` | unchanged | keep the interface when the process ends |
//! | `netns` | that of the process | a name known to `ip netns`, or a path |
//! | `txqueuelen` | see below | packets that the kernel queues for each queue, 1 to 65536 |
//! | `steering` | prefer | require, prefer or off: a program keeps each flow in one queue |
//! | `csum`, `tso`, `uso` | prefer | require, prefer or off |
//! | `vhost` | off | require, prefer or off: the kernel moves the packets (TAP only) |
//!
//! | file | |
//! |---|---|
//! | `config.rs` | the options |
//! | `device.rs` | the interface: configured, the offloads of its queues; `towpath_tun` makes it |
//! | `steering.rs` | whether a program chooses the queue |
//! | `rx.rs`, `tx.rs` | the queues |
//! | `served.rs` | a tap whose queues are left to vhost-net |

mod config;
mod device;
mod rx;
mod served;
mod steering;
mod tx;

pub use super::kernel::ability::Wants;
pub use config::{Config, Kind, TAP, TUN, VHOST};
pub use rx::TunRx;
pub use served::{Served, ServedTap};
pub use steering::STEERING;
pub use tx::TunTx;

use super::kernel::edge::{EdgeKind, KernelEdge};
use super::kernel::{ability, link};
use super::uri::Want;
use device::TunDevice;
use std::fs::File;
use std::sync::Arc;
use towpath_packet::MAX_CHUNKS;
use towpath_packet::port::{Ability, Calls, Edge, Info, Layer, Needs, Port, PortError, Queues, Start};
#[cfg(doc)]
use towpath_packet::{
    DropReason, Missed,
    port::{RxQueue, State, TxQueue},
};
use towpath_sys::netdev::LinkState;

/// An interface, made or attached to, and probed.
#[derive(Debug)]
pub struct TunPort {
    info: Info,
    device: TunDevice,
    queues: Vec<Arc<File>>,
    up: bool,
    edge: Arc<KernelEdge>,
}

/// Makes the interface, or attaches to an existing one, and probes the kernel's offloads.
///
/// # Errors
/// [`PortError::Option`] for a value that breaks a rule, [`PortError::Os`] for a step that the
/// kernel refused, with a hint, [`PortError::Required`] for a required ability that is missing. A
/// new interface is deleted again then.
pub fn open(config: Config) -> Result<TunPort, PortError> {
    config.check()?;
    if config.vhost == Want::Require {
        let why = "this port moves its packets itself: open it by an Opener of the crate towpath".to_owned();
        return Err(PortError::Required { port: config.port(), ability: VHOST.to_owned(), why });
    }
    let (mut device, queues) = TunDevice::open(&config)?;
    let (port, wants) = (device.port().to_owned(), config.wants);
    let found = device.found();
    let mut abilities = ability::report(&port, wants, &found)?;
    let (steering, ability) = steering::attach(&port, &queues, config.kind, config.steering)?;
    abilities.extend(ability);
    device.steering = steering;
    device.configure(&config)?;
    // The port sets the interface up when it starts.
    let link = if config.up { LinkState::Up } else { device.link_state() };
    abilities.push(link::ability(device.name(), config.netns.as_deref(), link));
    abilities.push(device.set_queue_len(&config)?);
    let layer = if config.kind == Kind::Tap { Layer::Ethernet } else { Layer::Ip };
    let info = Info::new(port, layer, device.mtu()?)
        .with_netns(config.netns.clone())
        .with_max_chunks(MAX_CHUNKS as u16)
        .with_offloads(found.tx.and(wants.allowed()), found.rx.and(wants.allowed()))
        .with_max_queues(queues.len() as u16)
        .with_interface(device.interface())
        .with_abilities(abilities);
    Ok(TunPort { info, device, queues, up: config.up, edge: KernelEdge::new(EdgeKind::Tun) })
}

impl TunPort {
    /// The number of its queues.
    pub fn queues(&self) -> usize {
        self.queues.len()
    }

    /// Leaves the queues to something else. What the kernel loses is counted from now on.
    pub fn into_served(self) -> Served {
        let TunPort { info, mut device, queues, up, edge } = self;
        let link = device.take_link();
        let guard = edge.start(link, queues.first().map(Arc::downgrade).unwrap_or_default());
        let tap = ServedTap::new(device, guard, (info.tx_offloads, info.rx_offloads), up);
        Served { info, queues, edge, tap }
    }

    /// With one more line of what was found.
    #[must_use]
    pub fn with_ability(mut self, ability: Ability) -> TunPort {
        self.info.abilities.push(ability);
        self
    }
}

impl Port for TunPort {
    type Rx = TunRx;
    type Tx = TunTx;

    fn info(&self) -> &Info {
        &self.info
    }

    fn edge(&self) -> Option<Arc<dyn Edge>> {
        Some(self.edge.clone())
    }

    fn needs(&self) -> Needs {
        Needs::none().calls([Calls::Sockets, Calls::Interface, Calls::Tun])
    }

    fn start(self, start: Start) -> Result<Queues<TunRx, TunTx>, PortError> {
        let TunPort { info, mut device, mut queues, up, edge } = self;
        info.queues(start.queues)?;
        // The kernel must not send packets to queues that this port does not read.
        queues.truncate(start.queues.into());
        device.set_limit(info.rx_offloads, start.accept, queues.len());
        let link = device.take_link();
        let device = Arc::new(device);
        let edge = edge.start(link, queues.first().map(Arc::downgrade).unwrap_or_default());
        let (mut rx, mut tx) = (Vec::new(), Vec::new());
        for (number, file) in queues.into_iter().enumerate() {
            rx.push(TunRx::new(&device, &file, number, &edge, &start.pool)?);
            tx.push(TunTx::new(&device, &file, &info, &edge, &start.pool)?);
        }
        if let Some(first) = rx.first_mut() {
            first.init_offloads();
        }
        if up {
            device.set_up()?;
        }
        Ok(Queues { rx, tx })
    }
}
