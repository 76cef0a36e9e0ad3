//! `tap:NAME` and `tun:NAME`: a network interface of the kernel whose other end is this process.
//!
//! ```text
//!   the host's stack, a bridge, a container
//!        │  ▲                                TAP: Ethernet frames      TUN: IP packets
//!   interface NAME
//!        │  ▲         virtio-net header + packet, up to 64 KiB: partial checksums and super-packets both ways
//!   read │  │ write                          one descriptor per queue, one call per packet
//!      TunRx TunTx
//! ```
//!
//! * **Life.** The interface is made when the port is opened and vanishes with the process, however that ends, unless it is
//!   persistent (`persist=on`, or made by `ip tuntap add`). It is set up when the port starts.
//! * **Offloads.** What the kernel hands over is agreed on by `TUNSETOFFLOAD`, for the device as a whole: the least that any of
//!   its queues is [restricted](RxQueue::set_rx_offloads) to. Packets that the kernel had queued before may still ask for more; they
//!   carry their metadata, and whoever sends them finishes them. What the kernel takes is found out by writing one packet
//!   of each kind to the interface before it is up: the header is examined before the packet is dropped for that. A kind
//!   that is refused later is switched off for that queue, see [`TxQueue::offloads`].
//! * **Queues.** With `queues=N` the device has N descriptors. A flow stays in one of them, the same for both of its directions,
//!   because a small program chooses it. Where the kernel does not take the program, `steering` is off: the kernel then moves
//!   flows to the queue that their other direction was last written to, and packets of theirs overtake each other.
//! * **Namespaces.** With `netns=` the interface is made in another network namespace, and stays there.
//! * **Link.** A packet for an interface that is down is dropped as [`DropReason::LinkDown`]; the queue works again when the
//!   link does. A deleted interface is [`State::Gone`].
//!
//! | option | default | |
//! |---|---|---|
//! | `queues` | 1 | 1 to 256 |
//! | `multiqueue` | on if `queues` > 1 | attach to a device made with `multi_queue` |
//! | `mtu` | the kernel's (1500) | 68 to 65521 (TAP), 65535 (TUN) |
//! | `addr` | none | addresses with prefix, joined by `+`: `10.0.0.1/24+fd00::1/64` |
//! | `mac` | random | TAP only |
//! | `up` | on | set the interface up at the start |
//! | `persist` | as it is | keep the interface when the process ends |
//! | `netns` | that of the process | a name known to `ip netns`, or a path |
//! | `txqueuelen` | at least 1000 | packets that the kernel queues for each queue |
//! | `steering` | prefer | require, prefer or off: a program keeps each flow in one queue |
//! | `csum`, `tso`, `uso` | prefer | require, prefer or off |

mod config;
mod device;
mod probe;
mod rx;
mod steering;
mod tx;

pub use super::kernel::ability::Wants;
pub use config::{Config, Kind};
pub use rx::TunRx;
pub use steering::STEERING;
pub use tx::TunTx;

use super::kernel::ability;
use device::Device;
use std::fs::File;
use std::sync::Arc;
use towpath_packet::MAX_CHUNKS;
use towpath_packet::port::{Info, Layer, Port, PortError, Queues, Start, TxLinear};
#[cfg(doc)]
use towpath_packet::{
    DropReason,
    port::{RxQueue, State, TxQueue},
};

/// An interface that was made, or attached to, and examined.
#[derive(Debug)]
pub struct TunPort {
    info: Info,
    device: Device,
    queues: Vec<File>,
    up: bool,
}

/// Makes the interface, or attaches to the one that exists, and finds out what the kernel can do.
///
/// # Errors
/// [`PortError::Option`] for a value that breaks a rule, [`PortError::Os`] for a step that the kernel refused, with what
/// would mend it, [`PortError::Required`] for an ability that is required and not there. The interface is gone again
/// then, unless it existed before.
pub fn open(config: Config) -> Result<TunPort, PortError> {
    config.check()?;
    let (mut device, queues) = Device::open(&config)?;
    let (port, wants) = (device.port().to_owned(), config.wants);
    let found = probe::probe(&device, &queues, config.kind)?;
    let mut abilities = ability::report(&port, wants, &found)?;
    let (steering, said) = steering::Steering::of(&port, &queues, config.kind, config.steering)?;
    abilities.extend(said);
    device.steering = steering;
    device.configure(&config, &queues)?;
    let info = Info {
        name: port,
        layer: if config.kind == Kind::Tap { Layer::Ethernet } else { Layer::Ip },
        mtu: device.mtu()?,
        tx_linear: TxLinear::None,
        headroom: 0,
        tailroom: 0,
        max_chunks: MAX_CHUNKS as u16,
        tx_offloads: found.tx.and(wants.allowed()),
        rx_offloads: found.rx.and(wants.allowed()),
        max_queues: queues.len() as u16,
        finite: false,
        abilities,
    };
    Ok(TunPort { info, device, queues, up: config.up })
}

impl Port for TunPort {
    type Rx = TunRx;
    type Tx = TunTx;

    fn info(&self) -> &Info {
        &self.info
    }

    fn start(self, start: Start) -> Result<Queues<TunRx, TunTx>, PortError> {
        let TunPort { info, mut device, mut queues, up } = self;
        info.queues(start.queues)?;
        // The kernel must not send packets to queues that nobody reads.
        queues.truncate(start.queues.into());
        device.limit(info.rx_offloads, start.accept, queues.len());
        let device = Arc::new(device);
        let (mut rx, mut tx) = (Vec::new(), Vec::new());
        for (number, file) in queues.into_iter().enumerate() {
            let file = Arc::new(file);
            rx.push(TunRx::new(&device, &file, number, &start.pool)?);
            tx.push(TunTx::new(&device, &file, &info, &start.pool)?);
        }
        if let Some(first) = rx.first_mut() {
            first.agree();
        }
        if up {
            device.set_up()?;
        }
        Ok(Queues { rx, tx })
    }
}
