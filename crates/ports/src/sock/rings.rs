//! The rings of a session, in a memfd of their own, and the datapath's ends of them.

use std::io;
use std::sync::Arc;
use towpath_client::protocol::{Rings, Sizes, Statistic};
use towpath_packet::xsk_ring::{Consumer, Desc, Mapped, Producer};
use towpath_packet::{Backing, Region};

/// Fresh rings and the datapath's ends of them.
#[derive(Debug)]
pub(super) struct AppRings {
    pub(super) region: Arc<Region>,
    pub(super) layout: Rings,
    pub(super) tx: Consumer<Mapped<Desc>>,
    pub(super) completion: Producer<Mapped<u64>>,
    pub(super) fill: Consumer<Mapped<u64>>,
    pub(super) rx: Producer<Mapped<Desc>>,
    /// The RX ring again, for its flag.
    pub(super) notifier: Mapped<Desc>,
    /// The session's counters, for each of its halves.
    pub(super) statistics: [Mapped<u64>; 2],
}

impl AppRings {
    /// Makes rings in a memfd of their own.
    pub(super) fn new(sizes: &Sizes) -> io::Result<AppRings> {
        let (at, bytes) = Rings::lay_out(sizes);
        let region = Region::new(bytes as usize, Backing::Memfd).map_err(io::Error::other)?;
        let region = Arc::new(region);
        // SAFETY: the region was just made, and nothing but rings is made of it.
        let made = unsafe {
            (|| {
                let (tx, fill) = (
                    Mapped::new(region.clone(), &at.tx, sizes.tx)?,
                    Mapped::new(region.clone(), &at.fill, sizes.fill)?,
                );
                let completion = Mapped::new(region.clone(), &at.completion, sizes.completion)?;
                let rx = || Mapped::new(region.clone(), &at.rx, sizes.rx);
                let statistics = || Mapped::new(region.clone(), &at.statistics, Statistic::ENTRIES);
                Some((tx, completion, fill, [rx()?, rx()?], [statistics()?, statistics()?]))
            })()
        };
        let (tx, completion, fill, [rx, notifier], statistics) = made.ok_or(io::ErrorKind::InvalidInput)?;
        notifier.set_needs_wakeup(true);
        tx.set_needs_wakeup(true);
        let (tx, fill) = (Consumer::new(tx), Consumer::new(fill));
        Ok(AppRings {
            region,
            layout: at,
            tx,
            completion: Producer::new(completion),
            fill,
            rx: Producer::new(rx),
            notifier,
            statistics,
        })
    }
}
