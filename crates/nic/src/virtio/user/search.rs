//! The thread that looks for the next back end. The answers of one may take seconds, for which no
//! worker waits.
//!
//! ```text
//!   worker   condition: Down ── Order ──► connect or accept │ open │ negotiate │ set_memory
//!            condition: Back ◄── Search::Done ── an event ────────────────────────────┘
//! ```
//!
//! A thread that waits for an answer is not waited for at the end of the transport.

use super::connection::Connection;
use super::memory::SharedRegion;
use super::{Negotiated, TransportShared};
use std::borrow::Cow;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use towpath_bus::BusError;

/// What is sent to a back end that is found.
pub(super) struct Order {
    /// `None` before the driver has set any.
    pub(super) negotiated: Option<Negotiated>,
    pub(super) regions: Vec<SharedRegion>,
    /// The regions' [version](super::memory::SharedRegions::version).
    pub(super) version: u64,
}

/// Where the search is.
pub(super) enum Search {
    /// Nothing was ordered.
    Idle,
    /// The thread is at it.
    Running,
    /// It has found a back end, with the regions of a version; or none.
    Done(Result<Option<(Box<Connection>, u64)>, BusError>),
}

/// The thread, which ends with this.
pub(super) struct Searcher(SyncSender<Order>);

impl Searcher {
    pub(super) fn start(shared: Arc<TransportShared>) -> io::Result<Searcher> {
        let (orders, to) = sync_channel(1);
        std::thread::Builder::new().name("towpath-virtio".into()).spawn(move || run(&shared, &to))?;
        Ok(Searcher(orders))
    }

    /// Orders a search. Returns whether the thread is there, and has no other order.
    pub(super) fn order(&self, order: Order) -> bool {
        self.0.try_send(order).is_ok()
    }
}

fn run(shared: &TransportShared, orders: &Receiver<Order>) {
    for Order { negotiated, regions, version } in orders {
        let found = shared.find().and_then(|found| {
            let Some(mut connection) = found else { return Ok(None) };
            if let Some(negotiated) = negotiated {
                connection.negotiate(negotiated, &shared.calls)?;
                connection.set_memory(&regions.iter().collect::<Vec<_>>(), version)?;
                connection.set_prepared(negotiated);
            }
            Ok(Some((Box::new(connection), version)))
        });
        let wakes = matches!(found, Ok(Some(_)));
        shared.state().search = Search::Done(found);
        if wakes {
            shared.found.signal();
        }
    }
}

/// Why there is no back end, until the search says more.
pub(super) const NONE: Cow<'static, str> = Cow::Borrowed("no back end is connected");
