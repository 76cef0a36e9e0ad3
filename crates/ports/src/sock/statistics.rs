//! What befell a session, for its application.

use towpath_client::protocol::Statistic;
use towpath_packet::xsk_ring::{Mapped, Shared};

/// The counters of one half of a session. Each is counted here and only shown to the application, which may write over what it is shown; each is
/// one half's alone.
#[derive(Debug)]
pub(super) struct Counted {
    shown: Mapped<u64>,
    own: [u64; Statistic::ENTRIES as usize],
}

impl Counted {
    pub(super) fn new(shown: Mapped<u64>) -> Counted {
        Counted { shown, own: [0; Statistic::ENTRIES as usize] }
    }

    /// So many more.
    #[inline]
    pub(super) fn add(&mut self, what: Statistic, n: u64) {
        let own = &mut self.own[what as usize];
        *own = own.wrapping_add(n);
        self.shown.write(what as u32, *own);
    }
}
