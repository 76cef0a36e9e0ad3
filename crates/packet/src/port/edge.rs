//! The edge of a port: what the kernel counts around it.

use crate::Counters;
use std::sync::Arc;

/// Counters of the packets that the kernel lost around a port since it was started.
///
/// The kernel counts them at the interface, not at a queue. So no queue writes them: the thread
/// that reads the counters of the queues calls [`refresh`](Edge::refresh) first. The last queue
/// does so too before it is dropped, because its interface may vanish with it; afterwards the
/// counters stay as they are.
pub trait Edge: Send + Sync + std::fmt::Debug {
    /// Reads the kernel's counters: a few system calls. If they can't be read, the last values
    /// stay.
    fn refresh(&self);

    /// Packets that were lost before a receive queue had them. Only [`missed`](Counters::missed)
    /// counts.
    fn rx(&self) -> &Arc<Counters>;

    /// Packets that were lost after a transmit queue sent them.
    fn tx(&self) -> &Arc<Counters>;
}
