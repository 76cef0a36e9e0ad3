//! A router while it runs: its routes and neighbours, from any thread.

use super::mirror::Mirror;
use super::{Neighbour, RouterRoute, StartError};
use crate::forward::bridge::refuse;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use towpath_engine::router::neighbour::{Neighbours, Outcome, State};
use towpath_engine::router::{Action, Fib, Hop, Interface, Publisher, connected};

/// What the control side of a router shares with its mirror.
pub(super) struct Shared {
    tables: Mutex<Tables>,
    pub(super) neighbours: Arc<Neighbours>,
}

pub(super) struct Tables {
    fib: Publisher<Fib>,
    routes: Arc<[RouterRoute]>,
    pub(super) interfaces: Vec<Interface>,
}

/// Where a route of a router is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RouteSource {
    /// An address of the router.
    Connected,
    /// [`Router::routes`](super::Router::routes), or [`RouterControl::set_routes`].
    Configured,
    /// The kernel that the router mirrors.
    Kernel,
}

impl RouteSource {
    /// Its name, as it is printed.
    pub const fn name(self) -> &'static str {
        match self {
            RouteSource::Connected => "connected",
            RouteSource::Configured => "configured",
            RouteSource::Kernel => "kernel",
        }
    }
}

/// The routes that follow from addresses: to the subnets, and to the router itself.
fn of_addresses(interfaces: &[Interface]) -> (Vec<RouterRoute>, Vec<RouterRoute>) {
    let all = interfaces.iter().enumerate().flat_map(|(port, one)| connected(port as u16, one));
    all.partition(|route| route.action == Action::Forward)
}

/// The routes that follow from addresses, under and over `routes`.
pub(super) fn with_connected(interfaces: &[Interface], routes: &[RouterRoute]) -> Vec<RouterRoute> {
    // An address of the router goes before every other route, and a configured route before a
    // subnet's.
    let (mut made, own) = of_addresses(interfaces);
    made.extend(routes.iter().cloned());
    made.extend(own);
    made
}

impl Shared {
    pub(super) fn new(
        fib: Publisher<Fib>,
        neighbours: Arc<Neighbours>,
        routes: Vec<RouterRoute>,
        interfaces: Vec<Interface>,
    ) -> Shared {
        Shared { tables: Mutex::new(Tables { fib, routes: routes.into(), interfaces }), neighbours }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tables {
    /// Replaces interfaces and routes, if all of them can be used.
    pub(super) fn publish(&mut self, interfaces: Vec<Interface>, routes: &[RouterRoute]) -> Result<(), StartError> {
        let fib = match Fib::new(interfaces.iter().cloned().map(Some).collect(), routes) {
            Ok(fib) => fib,
            Err(error) => return refuse("route", "", error.to_string()),
        };
        self.interfaces = interfaces;
        self.fib.publish(fib);
        Ok(())
    }

    pub(super) fn collect(&mut self) {
        self.fib.collect();
    }
}

/// A handle to the routes and neighbours of a router. It works from any thread, and may outlive the
/// run; a clone refers to the same router.
#[derive(Clone)]
pub struct RouterControl {
    shared: Arc<Shared>,
    mirror: Option<Arc<Mirror>>,
}

impl RouterControl {
    pub(super) fn new(shared: Arc<Shared>, mirror: Option<Mirror>) -> RouterControl {
        RouterControl { shared, mirror: mirror.map(Arc::new) }
    }

    /// The number of routes.
    pub fn routes(&self) -> usize {
        self.shared.lock().fib.value().routes()
    }

    /// What happens to packets to an address, and the hop of the flows with this hash; `None` if no
    /// route leads there.
    pub fn resolve(&self, address: IpAddr, hash: u32) -> Option<(Action, Option<Hop>)> {
        self.shared.lock().fib.value().resolve(address, hash)
    }

    /// Replaces the routes, but for those that follow from addresses. Packets use the old ones
    /// until the new ones are ready.
    ///
    /// # Errors
    /// [`StartError::Value`] for a route that can't be used, and for a router that mirrors a
    /// kernel: there the kernel's routes are changed. Then nothing is changed.
    pub fn set_routes(&self, routes: Vec<RouterRoute>) -> Result<(), StartError> {
        if self.mirror.is_some() {
            return refuse("routes", routes.len().to_string(), "the router mirrors a kernel: change them there");
        }
        let mut tables = self.shared.lock();
        let interfaces = tables.interfaces.clone();
        let all = with_connected(&interfaces, &routes);
        tables.publish(interfaces, &all)?;
        tables.routes = routes.into();
        Ok(())
    }

    /// The routes that were set.
    pub fn configured_routes(&self) -> Vec<RouterRoute> {
        self.shared.lock().routes.to_vec()
    }

    /// Calls `f` with each route that packets use, and where it is from. Of two to the same prefix the
    /// later one goes before the other. It takes the time of a walk over all routes, for which no
    /// packet waits.
    ///
    /// ```
    /// use towpath::{Opener, Role, RouteSource, Router, RouterInterface, RouterPorts};
    ///
    /// let mut interface = RouterInterface::named("lan");
    /// interface.addresses = vec![("192.0.2.1".parse()?, 24)];
    /// let port = Opener::new().open(&"null:".parse()?, Role::Both)?;
    /// let running = Router::default().start(vec![RouterPorts::new(interface, port)])?;
    /// let (mut subnets, mut own) = (0, 0);
    /// running.router().unwrap().each_route(|route, source| {
    ///     assert_eq!(source, RouteSource::Connected);
    ///     if route.len == 24 { subnets += 1 } else { own += 1 }
    /// });
    /// // The address itself and the broadcast address.
    /// assert_eq!((subnets, own), (1, 2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn each_route(&self, mut f: impl FnMut(&RouterRoute, RouteSource)) {
        if let Some(mirror) = &self.mirror {
            return mirror.each_route(|route| f(&route, RouteSource::Kernel));
        }
        let (interfaces, routes) = {
            let tables = self.shared.lock();
            (tables.interfaces.clone(), tables.routes.clone())
        };
        let (subnets, own) = of_addresses(&interfaces);
        subnets.iter().for_each(|route| f(route, RouteSource::Connected));
        routes.iter().for_each(|route| f(route, RouteSource::Configured));
        own.iter().for_each(|route| f(route, RouteSource::Connected));
    }

    /// The interfaces with their addresses, by their positions.
    pub fn interfaces(&self) -> Vec<Interface> {
        self.shared.lock().interfaces.clone()
    }

    /// The neighbours, sorted.
    pub fn neighbours(&self) -> Vec<Neighbour> {
        self.shared.neighbours.list()
    }

    /// Forgets all neighbours that were not configured.
    pub fn flush_neighbours(&self) {
        let mut out = Outcome::default();
        self.shared.neighbours.remove_where(|_, state| state != State::Permanent, &mut out);
        self.shared.neighbours.leave(out);
    }

    /// Times that the mirror lost notifications of the kernel and read everything again.
    pub fn mirror_overruns(&self) -> u64 {
        self.mirror.as_ref().map_or(0, |mirror| mirror.overruns())
    }
}

impl std::fmt::Debug for RouterControl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RouterControl").field("routes", &self.routes()).finish_non_exhaustive()
    }
}
