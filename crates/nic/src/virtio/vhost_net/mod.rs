//! A device that is the kernel: vhost-net moves packets between the rings and the queues of a tap.
//!
//! ```text
//!   VhostNetTransport ─ ioctls ─► /dev/vhost-net, a file and a thread for each pair
//!        │                              │
//!        └─ rings, packet memory ───────┘ one copy ──► queue of the tap
//! ```
//!
//! Kicks and calls are eventfds. The kernel names memory by its address in this process, and
//! reaches what is in its table. It knows rings and mergeable buffers; checksums and super-packets
//! are those of the tap. There is no configuration space and no control queue.
//!
//! **Trust.** The kernel is trusted with memory. What it writes to rings and headers is checked all
//! the same, by the driver.
//!
//! | file | contents |
//! |---|---|
//! | `mod` | [`VhostNetTransport`]: the device; [`Tap`]: the interface |
//! | `dma` | [`VhostNetDma`]: memory as the driver maps it; the files of all pairs |

mod dma;

pub use dma::VhostNetDma;

use super::features::{self, EVENT_IDX, IN_ORDER, INDIRECT_DESC, MRG_RXBUF, RING_PACKED, VERSION_1};
use super::transport::{Condition, Peer, QueueSetup, Transport};
use dma::{Pair, Pairs};
use std::fs::File;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use towpath_bus::BusError;
use towpath_packet::Offloads;
use towpath_sys::vhost_net::{self, VhostEvents, VhostNet};
use towpath_sys::{Epoll, EventFd, tun};

/// Features of rings that this driver uses.
const OF_RINGS: u64 = VERSION_1 | MRG_RXBUF | INDIRECT_DESC | EVENT_IDX | IN_ORDER | RING_PACKED;

/// The tap whose queues vhost-net serves, as its interface is configured.
pub trait Tap: Send + Sync + 'static {
    /// The offloads of packets that are sent to the tap, and of those that come from it.
    fn offloads(&self) -> (Offloads, Offloads);

    /// Sets the offloads that received packets may need.
    ///
    /// # Errors
    /// [`BusError`]: the kernel refuses.
    fn set_rx_offloads(&self, set: Offloads) -> Result<(), BusError>;

    /// All queues run: the interface may be set up.
    ///
    /// # Errors
    /// [`BusError`]: the kernel refuses.
    fn run(&self) -> Result<(), BusError>;

    /// The interface: up, down, or deleted.
    fn condition(&self) -> Condition;
}

/// Pairs of virtqueues that the kernel serves.
pub struct VhostNetTransport {
    name: String,
    offered: u64,
    pairs: u16,
    dma: VhostNetDma,
    kicks: Vec<EventFd>,
    calls: Vec<EventFd>,
    /// A ring is broken, says the kernel.
    error: EventFd,
    events: Epoll,
    /// Dropped last: the interface may vanish with it.
    tap: Box<dyn Tap>,
}

/// The files of vhost-net for the queues of a tap. They are opened before a tap is given away,
/// because a machine may lack vhost-net.
#[derive(Debug)]
pub struct VhostNetFiles(Vec<VhostNet>);

impl VhostNetFiles {
    /// Opens a file for each of `queues` queues.
    ///
    /// # Errors
    /// [`BusError::Os`] with a hint: there is no vhost-net, or no right to use it.
    pub fn open(queues: usize) -> Result<VhostNetFiles, BusError> {
        let files = (0..queues).map(|_| VhostNet::open()).collect::<io::Result<_>>();
        files.map(VhostNetFiles).map_err(|error| {
            let hint = match error.kind() {
                io::ErrorKind::NotFound => Some("modprobe vhost_net"),
                io::ErrorKind::PermissionDenied => Some("run as root, or: chmod 0666 /dev/vhost-net"),
                _ => None,
            };
            BusError::Os {
                device: "vhost-net".to_owned(),
                step: format!("open {}", vhost_net::DEVICE),
                source: error,
                hint: hint.map(str::to_owned),
            }
        })
    }
}

impl VhostNetTransport {
    /// Joins the files of vhost-net to the `queues` of a tap, which are not read or written by
    /// anything else. Headers in front of packets get the length that virtio has.
    ///
    /// # Errors
    /// [`BusError`]: the kernel refuses, or has no descriptors left.
    pub fn new(
        name: &str,
        files: VhostNetFiles,
        queues: Vec<Arc<File>>,
        tap: impl Tap,
    ) -> Result<VhostNetTransport, BusError> {
        let os = |step: &'static str| BusError::os(name, step);
        let (tx, rx) = tap.offloads();
        let mut offered = OF_RINGS;
        let mut pairs = Vec::new();
        for (vhost, queue) in files.0.into_iter().zip(queues) {
            offered &= vhost.features().map_err(os("VHOST_GET_FEATURES"))?;
            tun::set_header_len(&queue, features::HEADER).map_err(os("TUNSETVNETHDRSZ"))?;
            tun::set_header_little_endian(&queue).map_err(os("TUNSETVNETLE"))?;
            pairs.push(Pair::new(vhost, queue));
        }
        offered |= features::of_offloads(tx, rx);
        let number = pairs.len();
        let eventfds = || (0..2 * number).map(|_| EventFd::new()).collect::<io::Result<Vec<_>>>();
        let (kicks, calls) = (eventfds().map_err(os("eventfd"))?, eventfds().map_err(os("eventfd"))?);
        let (error, events) = (EventFd::new().map_err(os("eventfd"))?, Epoll::new().map_err(os("epoll"))?);
        events.add(error.fd(), false).map_err(os("epoll_ctl"))?;
        Ok(VhostNetTransport {
            name: name.to_owned(),
            offered,
            pairs: number as u16,
            dma: VhostNetDma::new(Pairs::new(pairs)),
            kicks,
            calls,
            error,
            events,
            tap: Box::new(tap),
        })
    }

    fn os(&self, step: &'static str) -> impl FnOnce(io::Error) -> BusError + use<'_> {
        BusError::os(&self.name, step)
    }
}

impl Transport for VhostNetTransport {
    type Dma = VhostNetDma;
    const PEER: Peer = Peer::Kernel;
    const MORE_PAIRS: &'static str = " (queues= of the tap)";

    fn name(&self) -> &str {
        &self.name
    }

    fn dma(&self) -> &VhostNetDma {
        &self.dma
    }

    fn offered(&self) -> u64 {
        self.offered
    }

    fn pairs(&self) -> u16 {
        self.pairs
    }

    fn max_size(&self, _: u16) -> u16 {
        towpath_virtio::MAX_SIZE
    }

    fn config(&self, _: usize, _: &mut [u8]) -> bool {
        false
    }

    fn negotiate(&self, features: u64, queues: u16) -> Result<(), BusError> {
        let mut pairs = self.dma.pairs();
        // The kernel must not send packets to queues that nothing reads.
        pairs.truncate(queues / 2);
        for pair in pairs.iter() {
            pair.vhost.set_features(features & OF_RINGS).map_err(self.os("VHOST_SET_FEATURES"))?;
        }
        self.tap.set_rx_offloads(features::rx_offloads(features))
    }

    fn set_queue(&self, queue: u16, setup: &QueueSetup) -> Result<(), BusError> {
        let index = usize::from(queue);
        let (Some(kick), Some(call)) = (self.kicks.get(index), self.calls.get(index)) else {
            return Err(BusError::device(&self.name, format!("there is no queue {queue}")));
        };
        let events = VhostEvents { kick, call, error: &self.error };
        self.dma.pairs().set_ring(queue, setup, events).map_err(self.os("set up a ring of vhost-net"))
    }

    fn run(&self) -> Result<(), BusError> {
        self.dma.pairs().start().map_err(self.os("VHOST_NET_SET_BACKEND"))?;
        self.tap.run()
    }

    fn condition(&self) -> Condition {
        if self.error.take() > 0 {
            return Condition::NeedsReset;
        }
        self.tap.condition()
    }

    fn reset(&self, _: bool) -> bool {
        self.stop()
    }

    fn stop(&self) -> bool {
        self.dma.pairs().stop().is_ok()
    }

    #[inline]
    fn kick(&self, queue: u16) {
        if let Some(kick) = self.kicks.get(usize::from(queue)) {
            kick.signal();
        }
    }

    fn call(&self, queue: u16) -> Option<RawFd> {
        self.calls.get(usize::from(queue)).map(EventFd::fd)
    }

    fn take_calls(&self, queue: u16) {
        if let Some(call) = self.calls.get(usize::from(queue)) {
            call.clear();
        }
    }

    fn events(&self) -> Option<RawFd> {
        Some(self.events.fd())
    }
}

impl std::fmt::Debug for VhostNetTransport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VhostNetTransport").field("name", &self.name).finish_non_exhaustive()
    }
}
