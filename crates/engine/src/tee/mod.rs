//! Tees: copies of packets for a reader that the path never waits for.
//!
//! ```text
//!   Route ── rx ──► TeeSlot ── Tap: filter, first bytes ──► record ring ─┐
//!      │            (shared)   Tap: …                                    ├─► TeeReader ─► a file, a port,
//!      ├─ tx ────►                                                       │                a connection
//!      └─ a drop ►                                                      ─┘
//! ```
//!
//! | file | content |
//! |---|---|
//! | `mod` | [`TeeConfig`], [`attach`], [`TeeGuard`], [`TeeCounts`] |
//! | `slot` | [`TeeSlot`]: the place of a route where tees are attached |
//! | `slots` | [`TeeSlots`]: slots of ports that come and go |
//! | `attachment` | a tee and its slots, shared by its guard and its reader |
//! | `tap` | one tee at one route: it matches and copies |
//! | `record` | [`TeeRecord`]: what is noted about a packet |
//! | `reader` | [`TeeReader`]: the records of all routes, by time |
//! | `rx` | [`TeeRx`]: the records as packets, for a route of their own |
//!
//! **The path never waits.** A record that has no room in its ring is counted as missed. Without a
//! tee, a route tests one word per burst. With one, a burst reads the clock once and publishes its
//! records by one store. The reader polls every [`POLL`]; the path wakes it only when a ring is a
//! quarter full while it sleeps.
//!
//! **Attaching and detaching** take effect at once, from any thread, also while the route's thread
//! sleeps: both sides use the slot by a lock that the route only ever tries. If it is taken, the
//! packets of that burst are counted as missed.
//!
//! **What is seen.** A received packet is seen before any verdict. A sent one is seen as the egress
//! took it, after coalescing and software offload. A dropped one is seen by every part that has it
//! when it counts it (see [`DropWatch`](towpath_packet::DropWatch)).

mod attachment;
mod reader;
mod record;
mod rx;
mod slot;
mod slots;
mod tap;

pub use reader::TeeReader;
pub use record::{TeeDirection, TeeRecord};
pub use rx::TeeRx;
pub use slot::TeeSlot;
pub use slots::TeeSlots;

use crate::filter::{Filter, FilterError};
use attachment::Attachment;
use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;
use towpath_packet::Notifier;

/// Tees of a route at a time.
pub const MAX_TEES: usize = 8;
/// Longest time for which a sleeping reader does not look into its rings.
pub const POLL: Duration = Duration::from_millis(10);
/// Most bytes of a packet that a tee copies, as of a capture file.
pub const MAX_SNAPLEN: u32 = 262_144;

/// What a tee copies. Change fields of the default.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TeeConfig {
    /// Packets that match; `None` for all.
    pub filter: Option<Filter>,
    /// Most bytes of each packet, 1 to [`MAX_SNAPLEN`].
    pub snaplen: u32,
    /// Packets as they are received.
    pub rx: bool,
    /// Packets as they are sent.
    pub tx: bool,
    /// Packets that are dropped.
    pub drops: bool,
    /// Bits of the interfaces, in the numbers of the slots.
    pub interfaces: u64,
    /// Bytes of the ring of each route.
    pub ring: usize,
}

impl Default for TeeConfig {
    /// Whole packets as they are received and sent, of all interfaces; rings of 4 MiB.
    fn default() -> TeeConfig {
        TeeConfig {
            filter: None,
            snaplen: MAX_SNAPLEN,
            rx: true,
            tx: true,
            drops: false,
            interfaces: u64::MAX,
            ring: 4 << 20,
        }
    }
}

/// Why a tee is not attached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TeeError {
    /// There are [`MAX_TEES`] already.
    #[error("{MAX_TEES} tees are attached, and there can't be more: end one")]
    TooMany,
    /// A value is out of range.
    #[error("{option}={value}: {rule}")]
    Value {
        /// The option.
        option: &'static str,
        /// Its value.
        value: String,
        /// The rule that it breaks.
        rule: String,
    },
    /// The filter can't be applied to packets of the route.
    #[error(transparent)]
    Filter(#[from] FilterError),
    /// A call of the system failed: no descriptor or no thread is left.
    #[error("tee: {0}")]
    Os(#[from] io::Error),
}

/// How many packets a tee matched and missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct TeeCounts {
    /// Packets that matched the filter.
    pub matched: u64,
    /// Of these, packets for which a ring had no room.
    pub missed: u64,
}

/// Counters of a tap; the route's thread writes them.
#[derive(Debug, Default)]
#[repr(align(128))]
struct TapCounters {
    matched: AtomicU64,
    missed: AtomicU64,
}

/// An attached tee. Dropping it detaches it: nothing is copied afterwards, and the reader ends once
/// it has taken what is in the rings.
#[derive(Debug)]
pub struct TeeGuard(Arc<Attachment>);

/// Attaches a tee to the routes of `slots`.
///
/// # Errors
/// [`TeeError`]; then nothing is attached.
pub fn attach(slots: &[Arc<TeeSlot>], config: &TeeConfig) -> Result<(TeeGuard, TeeReader), TeeError> {
    static IDS: AtomicU64 = AtomicU64::new(0);
    if config.snaplen == 0 || config.snaplen > MAX_SNAPLEN {
        let rule = "must be from 1 to 262144".to_owned();
        return Err(TeeError::Value { option: "snaplen", value: config.snaplen.to_string(), rule });
    }
    if !(1 << 16..=1 << 30).contains(&config.ring) {
        let rule = "must be bytes from 65536 to 1G".to_owned();
        return Err(TeeError::Value { option: "ring", value: config.ring.to_string(), rule });
    }
    if !(config.rx || config.tx || config.drops) {
        let rule = "must be rx, tx, both or drops".to_owned();
        return Err(TeeError::Value { option: "at", value: String::new(), rule });
    }
    if let Some(filter) = &config.filter {
        slots.iter().try_for_each(|slot| filter.check(slot.link()))?;
    }
    let notifier = Arc::new(Notifier::new()?);
    let attachment = Arc::new(Attachment::new(IDS.fetch_add(1, Relaxed), config, notifier.clone()));
    let guard = TeeGuard(attachment.clone());
    // If it fails, the guard detaches what is attached.
    slots.iter().try_for_each(|slot| attachment.add(slot))?;
    Ok((guard, TeeReader::new(attachment, notifier)))
}

impl TeeGuard {
    /// The counts so far; exact once the tee is detached.
    pub fn counts(&self) -> TeeCounts {
        self.0.counts()
    }

    /// Detaches the tee; the counts are exact from here on.
    pub fn detach(&self) -> TeeCounts {
        self.0.detach()
    }

    fn attachment(&self) -> Weak<Attachment> {
        Arc::downgrade(&self.0)
    }
}

impl Drop for TeeGuard {
    fn drop(&mut self) {
        self.detach();
    }
}

#[cfg(test)]
mod tests;
