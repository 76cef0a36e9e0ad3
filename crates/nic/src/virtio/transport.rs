//! The transport of a virtio device: how its features, its queues and its notifications are
//! reached (virtio 1.2 §4).

use std::borrow::Cow;
use std::os::fd::RawFd;
use towpath_bus::{BusError, Dma, Iova};
use towpath_virtio::Format;

/// Where a queue lies, for its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueSetup {
    /// Its format.
    pub format: Format,
    /// Number of its descriptors.
    pub size: u16,
    /// Address of the descriptor area.
    pub desc: Iova,
    /// Address of the driver area.
    pub driver: Iova,
    /// Address of the device area.
    pub device: Iova,
}

impl QueueSetup {
    pub(super) fn new(format: Format, size: u16, [desc, driver, device]: [Iova; 3]) -> QueueSetup {
        QueueSetup { format, size, desc, driver, device }
    }
}

/// The condition of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Condition {
    /// It works.
    Up,
    /// It moves no packets now.
    Down(Cow<'static, str>),
    /// It needs a reset (`DEVICE_NEEDS_RESET`).
    NeedsReset,
    /// It is there again, without any state of the driver's: a reset makes it work.
    Back,
    /// It never works again.
    Gone(Cow<'static, str>),
}

/// What is on the other side of the queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// A device on a bus. A command of its control queue tells it how many pairs of queues are in
    /// use.
    Device,
    /// The kernel of this machine.
    Kernel,
    /// Another process, which comes and goes. A ring that it breaks costs it its connection; and
    /// frames may wait in it for as long as it likes.
    Process,
}

/// How a driver reaches a virtio device. Calls come from the threads of all queues; only
/// [`kick`](Transport::kick) is for hot paths.
///
/// ```text
///   reset ─► offered, config ─► negotiate ─► set_queue … ─► run ─► kick, call ─► stop
///     ▲                                                      │
///     └────────── condition: NeedsReset, Back ◄──────────────┘
/// ```
pub trait Transport: Send + Sync + 'static {
    /// The memory that the device reaches.
    type Dma: Dma;

    /// What the device is.
    const PEER: Peer;

    /// Whether the device comes and goes.
    const RECONNECTS: bool = matches!(Self::PEER, Peer::Process);

    /// What makes a device have more pairs of queues, in the words of an error.
    const MORE_PAIRS: &'static str;

    /// The device's name, as errors print it.
    fn name(&self) -> &str;

    /// The device's DMA interface.
    fn dma(&self) -> &Self::Dma;

    /// The features that the device offers.
    fn offered(&self) -> u64;

    /// Pairs of queues that the transport has room for.
    fn pairs(&self) -> u16;

    /// The most descriptors of a queue of the first pair; 0 if the device does not have it. The
    /// other pairs have as many, or are refused by [`set_queue`](Transport::set_queue).
    fn max_size(&self, queue: u16) -> u16;

    /// Reads bytes of the device's configuration (virtio 1.2 §5.1.4), all of the same moment.
    /// Returns false if there is none.
    fn config(&self, at: usize, bytes: &mut [u8]) -> bool;

    /// Sends the device the features that were chosen, and how many queues will be set up.
    ///
    /// # Errors
    /// [`BusError`]: the device refuses them, or does not answer.
    fn negotiate(&self, features: u64, queues: u16) -> Result<(), BusError>;

    /// Sets up a queue.
    ///
    /// # Errors
    /// [`BusError`]: the device does not answer.
    fn set_queue(&self, queue: u16, setup: &QueueSetup) -> Result<(), BusError>;

    /// Lets the device begin: all queues are set up.
    ///
    /// # Errors
    /// [`BusError`]: the device does not answer.
    fn run(&self) -> Result<(), BusError>;

    /// The condition of the device.
    fn condition(&self) -> Condition;

    /// The device broke a rule of its queues: ends its connection, if it has one.
    fn disconnect(&self) {}

    /// Stops the device and makes it as new, with the function by its bus if `function` is set.
    /// Returns whether it answers; it accesses no memory then.
    fn reset(&self, function: bool) -> bool;

    /// Stops the device for good. Returns whether it is known to access memory no more.
    fn stop(&self) -> bool;

    /// Notifies the device of new chains in a queue.
    fn kick(&self, queue: u16);

    /// A descriptor that becomes readable when the device calls; `None` if it is polled.
    fn call(&self, queue: u16) -> Option<RawFd>;

    /// Takes the calls of a queue: its descriptor is not readable until the next one.
    fn take_calls(&self, queue: u16);

    /// A descriptor that becomes readable when the [condition](Transport::condition) has changed,
    /// if there is one.
    fn events(&self) -> Option<RawFd> {
        None
    }
}
