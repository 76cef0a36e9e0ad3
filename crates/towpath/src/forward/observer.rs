//! Joined ports as any thread can see them, before, while and after they run.

use super::{BridgeControl, PortControls, RouterControl};
use crate::tee::{Tee, TeeConfig, TeeError, TeeSink, Teeable};
use std::sync::Arc;
use towpath_engine::filter::{Hits, LiveRules};
use towpath_engine::lane::LaneTable;
use towpath_engine::report::Meter;
use towpath_packet::port::Info;

/// What is known of the ports when they are joined.
pub(super) struct Observed {
    pub(super) notes: Vec<String>,
    pub(super) controls: PortControls,
    pub(super) infos: Vec<Info>,
    pub(super) bridge: Option<BridgeControl>,
    pub(super) tees: Arc<Teeable>,
    pub(super) router: Option<RouterControl>,
}

/// The rules of a list, with how often each decided.
#[derive(Debug, Clone)]
pub(super) enum RuleHits {
    Fixed(Hits),
    Live(LiveRules),
}

impl RuleHits {
    fn list(&self) -> Vec<(String, u64)> {
        match self {
            RuleHits::Fixed(hits) => hits.texts().iter().cloned().zip(hits.total()).collect(),
            RuleHits::Live(rules) => rules.hits(),
        }
    }
}

/// A handle to the counters, settings and rules of joined ports. It works from any thread and may
/// outlive the run; a clone refers to the same ports.
///
/// ```
/// use towpath::{Forward, Opener, Role};
///
/// let mut opener = Opener::new();
/// let from = opener.open(&"gen:count=1000".parse()?, Role::Ingress)?;
/// let to = opener.open(&"null:".parse()?, Role::Egress)?;
/// let running = Forward::default().start(from, to)?;
/// let observer = running.observer().clone();
/// running.join();
/// assert_eq!(observer.meter().read().balance().received, 1000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Observer {
    pub(super) meter: Meter,
    pub(super) controls: PortControls,
    pub(super) hits: Vec<RuleHits>,
    pub(super) table: Option<Arc<LaneTable>>,
    infos: Arc<[Info]>,
    notes: Arc<[String]>,
    bridge: Option<BridgeControl>,
    tees: Arc<Teeable>,
    router: Option<RouterControl>,
}

impl Observer {
    pub(super) fn new(meter: Meter, observed: Observed, hits: Vec<RuleHits>) -> Observer {
        let Observed { notes, controls, infos, bridge, router, tees } = observed;
        let (infos, notes) = (infos.into(), notes.into());
        Observer { meter, controls, hits, table: None, infos, notes, bridge, router, tees }
    }

    /// The counters.
    pub fn meter(&self) -> &Meter {
        &self.meter
    }

    /// Settings and events of the ports.
    pub fn port_controls(&self) -> &PortControls {
        &self.controls
    }

    /// How many packets each rule decided on: the rules at the ingress, then those in lanes, each
    /// list with its default as the last.
    pub fn rule_hits(&self) -> Vec<(String, u64)> {
        self.hits.iter().flat_map(RuleHits::list).collect()
    }

    /// The routes and neighbours of a router; `None` if no router runs.
    pub fn router(&self) -> Option<&RouterControl> {
        self.router.as_ref()
    }

    /// The ports and addresses of a bridge; `None` if no bridge runs.
    pub fn bridge(&self) -> Option<&BridgeControl> {
        self.bridge.as_ref()
    }

    /// The lane table; `None` without lanes.
    pub fn lane_table(&self) -> Option<&LaneTable> {
        self.table.as_deref()
    }

    /// From now on, and for ten seconds, routes and ports of hubs count their largest flows
    /// ([`Samples::flows`](towpath_engine::samples::Samples::flows)).
    pub fn watch_flows(&self) {
        self.meter.watch_flows();
    }

    /// What the ports are, as they were opened: A and B, the port of an echo, or those that a
    /// bridge began with.
    pub fn infos(&self) -> &[Info] {
        &self.infos
    }

    /// Copies what passes the ports to `sink`, from now on: before, while and after they run.
    ///
    /// # Errors
    /// [`TeeError`]; then nothing is copied.
    pub fn tee(&self, config: &TeeConfig, sink: TeeSink) -> Result<Tee, TeeError> {
        self.tees.tee(config, sink)
    }

    /// The [interfaces](TeeConfig::interfaces) of the named ports; all without a name.
    ///
    /// # Errors
    /// [`TeeError::Value`] names the ports that there are.
    pub fn tee_interfaces(&self, ports: &[String]) -> Result<u64, TeeError> {
        self.tees.interfaces(ports)
    }

    /// Notes for the user: disabled abilities, packets that can't pass.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
}
