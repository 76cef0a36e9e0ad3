//! The place of a route where tees are attached.

use super::record::{Burst, TeeDirection};
use super::tap::Tap;
use super::{MAX_TEES, TeeConfig, TeeError};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::SystemTime;
use towpath_packet::{Counters, DropReason, DropWatch, Packet};
use towpath_wire::LinkKind;

const RX: u32 = 1;
const TX: u32 = 2;
/// Drops at the ingress, and at the egress.
const RX_DROPS: u32 = 4;
const TX_DROPS: u32 = 8;

/// The place of a route where tees are attached.
pub struct TeeSlot {
    /// The points of all taps together: zero without any.
    points: AtomicU32,
    taps: Mutex<Vec<Tap>>,
    /// Packets of bursts that met the lock taken.
    skipped: AtomicU64,
    ingress: Option<u8>,
    egress: Option<u8>,
    link: LinkKind,
}

impl TeeSlot {
    /// A slot of a route between two interfaces, by their numbers; `None` for a ring to or from a
    /// lane, whose packets another route shows.
    pub fn new(ingress: Option<u8>, egress: Option<u8>, link: LinkKind) -> Arc<TeeSlot> {
        Arc::new(TeeSlot {
            points: AtomicU32::new(0),
            taps: Mutex::new(Vec::with_capacity(MAX_TEES)),
            skipped: AtomicU64::new(0),
            ingress,
            egress,
            link,
        })
    }

    pub(super) fn ingress(&self) -> Option<u8> {
        self.ingress
    }

    pub(super) fn link(&self) -> LinkKind {
        self.link
    }

    /// The points of this slot that a tee uses.
    pub(super) fn points(&self, config: &TeeConfig) -> u32 {
        let has = |interface: Option<u8>| {
            interface.is_some_and(|n| config.interfaces.checked_shr(n.into()).is_some_and(|bits| bits & 1 == 1))
        };
        let (rx, tx) = (has(self.ingress), has(self.egress));
        let points = [(config.rx && rx, RX), (config.tx && tx, TX)];
        let drops = [(config.drops && rx, RX_DROPS), (config.drops && tx, TX_DROPS)];
        points.iter().chain(&drops).filter(|(used, _)| *used).fold(0, |bits, (_, bit)| bits | bit)
    }

    /// Packets that were not looked at because tees were being attached or detached.
    pub(super) fn skipped(&self) -> u64 {
        self.skipped.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Tap>> {
        self.taps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Attaches a tap; returns what was skipped before.
    pub(super) fn attach(&self, tap: Tap) -> Result<u64, TeeError> {
        let mut taps = self.lock();
        if taps.len() == MAX_TEES {
            return Err(TeeError::TooMany);
        }
        // No allocation under the lock: the room is there since the slot was made.
        taps.push(tap);
        self.used(&taps);
        Ok(self.skipped())
    }

    pub(super) fn detach(&self, id: u64) {
        let mut taps = self.lock();
        let at = taps.iter().position(|tap| tap.id == id);
        let tap = at.map(|at| taps.swap_remove(at));
        self.used(&taps);
        drop(taps);
        // Its ring is freed without the lock.
        drop(tap);
    }

    fn used(&self, taps: &[Tap]) {
        // Relaxed: the taps are read under the lock only.
        self.points.store(taps.iter().fold(0, |all, tap| all | tap.points), Ordering::Relaxed);
    }

    /// Whether a tee copies received packets.
    #[inline]
    pub(crate) fn has_rx(&self) -> bool {
        self.points.load(Ordering::Relaxed) & RX != 0
    }

    /// Whether a tee copies sent packets.
    #[inline]
    pub(crate) fn has_tx(&self) -> bool {
        self.points.load(Ordering::Relaxed) & TX != 0
    }

    /// Runs `f` on each tap with one of `points`. `packets` are skipped if the lock is taken.
    #[inline]
    fn each(&self, points: u32, packets: usize, mut f: impl FnMut(&mut Tap)) {
        let mut taps = match self.taps.try_lock() {
            Ok(taps) => taps,
            Err(TryLockError::Poisoned(taps)) => taps.into_inner(),
            Err(TryLockError::WouldBlock) => {
                self.skipped.fetch_add(packets as u64, Ordering::Relaxed);
                return;
            }
        };
        taps.iter_mut().filter(|tap| tap.points & points != 0).for_each(&mut f);
    }

    /// Packets were received.
    #[inline(never)]
    pub(crate) fn received(&self, packets: &[Packet]) {
        let burst = Burst::new(now(), TeeDirection::Received, self.ingress.unwrap_or_default());
        self.each(RX, packets.len(), |tap| tap.copy(packets, burst, self.link));
    }

    /// Packets are about to be sent.
    #[inline(never)]
    pub(crate) fn sending(&self, packets: &[Packet]) {
        let burst = Burst::new(now(), TeeDirection::Sent, self.egress.unwrap_or_default());
        self.each(TX, 0, |tap| tap.copy_ahead(packets, burst, self.link));
    }

    /// The egress took the first `n` of them.
    #[inline(never)]
    pub(crate) fn sent(&self, n: usize) {
        self.each(TX, n, |tap| tap.taken(n));
    }

    /// Shows packets that are dropped at the ingress and at the egress, as far as these counters
    /// have no other watch.
    pub(crate) fn watch(self: &Arc<TeeSlot>, rx: &Counters, route: &Counters, tx: &Counters) {
        if self.ingress.is_some() {
            rx.watch_drops(Arc::new(DropPoint { slot: self.clone(), point: RX_DROPS, interface: self.ingress }));
        }
        let (point, interface) = if self.egress.is_some() { (TX_DROPS, self.egress) } else { (RX_DROPS, self.ingress) };
        let at = Arc::new(DropPoint { slot: self.clone(), point, interface });
        route.watch_drops(at.clone());
        tx.watch_drops(at);
    }
}

impl std::fmt::Debug for TeeSlot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TeeSlot").field("ingress", &self.ingress).field("egress", &self.egress).finish_non_exhaustive()
    }
}

/// Nanoseconds since the epoch.
#[inline]
fn now() -> u64 {
    let passed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX)
}

/// One side of a route, as the watch of the counters there.
#[derive(Debug)]
struct DropPoint {
    slot: Arc<TeeSlot>,
    point: u32,
    interface: Option<u8>,
}

impl DropWatch for DropPoint {
    #[inline]
    fn dropped(&self, reason: DropReason, packet: &Packet) {
        if self.slot.points.load(Ordering::Relaxed) & self.point == 0 {
            return;
        }
        let burst = Burst::new(now(), TeeDirection::Dropped(reason), self.interface.unwrap_or_default());
        let packets = std::slice::from_ref(packet);
        self.slot.each(self.point, 1, |tap| tap.copy(packets, burst, self.slot.link));
    }
}
