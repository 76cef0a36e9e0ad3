//! How a route is put together.

use super::settle::Settling;
use super::{Limit, Route, RouteConfig, Standing, TURNED};
use crate::gro_stage::{CoalesceConfig, Coalescer};
use crate::linearize::Fitter;
use crate::rules::{Judge, PortSide};
use crate::software_offload::Finisher;
use std::collections::VecDeque;
use std::sync::Arc;
use towpath_packet::port::{RxQueue, TxLinear, TxQueue, Wake};
use towpath_packet::{Batch, Cache, Counters, Offloads};
use towpath_wire::LinkKind;

impl<R: RxQueue, T: TxQueue> Route<R, T> {
    /// Joins two queues. `cache` is where segments and copies come from, a [`Direction::Tx`](towpath_packet::Direction::Tx) one.
    pub fn new(rx: R, tx: T, cache: Cache, mut config: RouteConfig) -> Route<R, T> {
        if config.shape.linear == TxLinear::Whole {
            // A super-packet is longer than any chunk.
            config.allow = config.allow.without(Offloads::GSO);
        }
        let counters = Arc::new(Counters::default());
        let link = LinkKind::from(config.layer);
        let finisher = Finisher::new(cache, link, counters.clone());
        let can = tx.offloads().and(config.allow);
        let silent = rx.wake() == Wake::Never;
        let (incoming, outgoing) = (Batch::new(), Batch::new());
        Route {
            rx,
            tx,
            incoming,
            outgoing,
            judge: None,
            standing: Standing { side: PortSide::A, pair: 0 },
            turned: VecDeque::with_capacity(TURNED),
            coalescer: None,
            gro: CoalesceConfig::default(),
            finisher,
            fitter: Fitter::new(config.shape, counters.clone()),
            mirrors: false,
            can,
            limit: None,
            config,
            refused_since: None,
            counters,
            ended: None,
            silent,
            settling: Settling::default(),
            closed: false,
        }
    }

    /// Ends the route when `limit` is used up; what was received beyond it is dropped as `stopped`.
    #[must_use]
    pub fn with_limit(mut self, limit: Arc<Limit>) -> Route<R, T> {
        self.limit = Some(limit);
        self
    }

    /// Coalesces what is received, if `config` says so for this egress.
    #[must_use]
    pub fn with_gro(mut self, config: &CoalesceConfig) -> Route<R, T> {
        let potential = self.tx.max_offloads().and(self.config.allow);
        if config.applies(potential) {
            self.gro = *config;
            self.coalescer = Some(Coalescer::new(config, self.config.layer, potential, self.counters.clone()));
        }
        self
    }

    /// Asks `judge` what becomes of each packet that is received.
    #[must_use]
    pub fn with_judge(mut self, judge: Box<dyn Judge>) -> Route<R, T> {
        self.judge = Some(judge);
        self
    }

    /// Turns each packet round: the egress is where it came from.
    #[must_use]
    pub fn with_mirror(mut self) -> Route<R, T> {
        self.mirrors = true;
        self
    }

    /// Says where the route stands.
    #[must_use]
    pub fn with_standing(mut self, standing: Standing) -> Route<R, T> {
        self.standing = standing;
        self
    }
}
