//! A router while it runs: its ports, routes and neighbours, from any thread.

use super::mirror::Mirror;
use super::{Neighbour, Router, RouterPorts, RouterRoute, StartError};
use crate::any::AnyPort;
use crate::forward::hub::refuse;
use crate::forward::hub::{HubPorts, Members, Parts};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use towpath_engine::hub::HubPort;
use towpath_engine::router::neighbour::{Neighbours, Outcome, State};
use towpath_engine::router::{Action, Fib, Hop, Interface, Publisher, RouterPort, connected};
use towpath_engine::rules::PortSide;
use towpath_packet::Offloads;
use towpath_packet::port::{Layer, Port};

/// What the control side of a router shares with its mirror.
pub(super) struct RouterShared {
    tables: Mutex<Tables>,
    pub(super) neighbours: Arc<Neighbours>,
}

/// An interface with the index of the tap that is its control port.
#[derive(Debug, Clone)]
pub(super) struct Member {
    pub(super) interface: Interface,
    pub(super) tap: Option<u32>,
}

pub(super) struct Tables {
    fib: Publisher<Fib>,
    routes: Arc<[RouterRoute]>,
    /// By their numbers.
    pub(super) members: Vec<Option<Member>>,
    /// Counts changes of the members.
    pub(super) version: u64,
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
fn of_addresses(members: &[Option<Member>]) -> (Vec<RouterRoute>, Vec<RouterRoute>) {
    let present = members.iter().enumerate().filter_map(|(number, one)| Some((number as u16, one.as_ref()?)));
    let all = present.flat_map(|(number, member)| connected(number, &member.interface));
    all.partition(|route| route.action == Action::Forward)
}

/// The routes that follow from addresses, under and over `routes`.
pub(super) fn with_connected(members: &[Option<Member>], routes: &[RouterRoute]) -> Vec<RouterRoute> {
    // An address of the router goes before every other route, and a configured route before a
    // subnet's.
    let (mut made, own) = of_addresses(members);
    made.extend(routes.iter().cloned());
    made.extend(own);
    made
}

/// The routes of members.
///
/// # Errors
/// [`StartError::Value`] for a route that can't be used.
pub(super) fn fib_of(members: &[Option<Member>], routes: &[RouterRoute]) -> Result<Fib, StartError> {
    let interfaces = members.iter().map(|one| one.as_ref().map(|member| member.interface.clone())).collect();
    Fib::new(interfaces, routes).or_else(|error| refuse("route", "", error.to_string()))
}

impl RouterShared {
    pub(super) fn new(
        fib: Publisher<Fib>,
        neighbours: Arc<Neighbours>,
        routes: Vec<RouterRoute>,
        members: Vec<Option<Member>>,
    ) -> RouterShared {
        RouterShared { tables: Mutex::new(Tables { fib, routes: routes.into(), members, version: 0 }), neighbours }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tables {
    /// Publishes routes over the members.
    pub(super) fn publish(&mut self, routes: &[RouterRoute]) -> Result<(), StartError> {
        self.fib.publish(fib_of(&self.members, routes)?);
        Ok(())
    }

    /// Publishes the configured routes, with those that follow from addresses.
    fn publish_own(&mut self) -> Result<(), StartError> {
        self.publish(&with_connected(&self.members, &self.routes))
    }

    fn set(&mut self, number: usize, member: Option<Member>) {
        if self.members.len() <= number {
            self.members.resize_with(number + 1, || None);
        }
        self.members[number] = member;
        self.version += 1;
    }

    /// Removes an interface, and the routes by it.
    fn remove(&mut self, number: usize) {
        self.set(number, None);
        let mut routes = self.routes.to_vec();
        routes.retain_mut(|route| {
            let had = route.hops.len();
            route.hops.retain(|hop| usize::from(hop.port) != number);
            had == 0 || !route.hops.is_empty()
        });
        self.routes = routes.into();
    }

    pub(super) fn collect(&mut self) {
        self.fib.collect();
    }
}

/// A handle to the ports, routes and neighbours of a router. It works from any thread, and may
/// outlive the run; a clone refers to the same router.
///
/// ```
/// use towpath::{Opener, Role, Router, RouterInterface, RouterPorts};
///
/// let mut opener = Opener::new();
/// let mut port = |name: &str, uri: &str| {
///     let opened = opener.open(&uri.parse().unwrap(), Role::Both).unwrap();
///     RouterPorts::new(RouterInterface::named(name), opened)
/// };
/// let (lan, mut wan) = (port("lan", "veth:a"), port("wan", "null:"));
/// wan.interface.addresses = vec![("192.0.2.1".parse()?, 24)];
/// let running = Router::default().start(vec![lan])?;
/// let router = running.router().unwrap();
/// assert_eq!(router.attach(wan)?, 1);
/// assert!(router.resolve("192.0.2.7".parse()?, 0).is_some());
/// router.detach("wan")?;
/// assert!(router.resolve("192.0.2.7".parse()?, 0).is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct RouterControl(Arc<Parted>);

/// A router in its parts, without its hubs.
struct Parted {
    router: Router,
    shared: Arc<RouterShared>,
    mirror: Option<Mirror>,
    ports: HubPorts<RouterPort>,
}

/// A port of a router.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RouterPortReading {
    /// Its number, by which hops name it: its position, for a port of the start.
    pub number: u16,
    /// Its name and addresses, as they are now.
    pub interface: Interface,
    /// Why it is unused, although it is not detached: its interface was deleted.
    pub lost: Option<String>,
}

impl RouterControl {
    pub(super) fn new(
        router: Router,
        shared: Arc<RouterShared>,
        mirror: Option<Mirror>,
        ports: HubPorts<RouterPort>,
    ) -> RouterControl {
        RouterControl(Arc::new(Parted { router, shared, mirror, ports }))
    }

    /// Publishes the routes for the interfaces as they are.
    fn publish(&self) -> Result<(), StartError> {
        match &self.0.mirror {
            Some(mirror) => {
                mirror.step();
                Ok(())
            }
            None => self.0.shared.lock().publish_own(),
        }
    }

    /// Attaches a port while the router runs, with the routes that follow from its addresses;
    /// before its launch it waits for that. Returns its number, by which hops name it. A port of
    /// the same name that was [lost](RouterPortReading::lost) is detached before. Routes by it are
    /// [set](RouterControl::set_routes) afterwards.
    ///
    /// # Errors
    /// [`StartError`]: the port does not fit, its name is used, or the router has ended. Then the
    /// router is as it was.
    pub fn attach(&self, ports: RouterPorts) -> Result<u16, StartError> {
        let Parted { router, shared, mirror, ports: hubs } = &*self.0;
        if ports.control.is_some() != mirror.is_some() {
            let rule = "every port of a router has a control port, or none has";
            return refuse("control", ports.control.is_some().to_string(), rule);
        }
        router.check_ports(&ports)?;
        let name = ports.name().to_owned();
        if self.ports().iter().any(|known| known.interface.name == name && known.lost.is_some()) {
            self.detach(&name)?;
        }
        if self.ports().len() >= super::MAX_PORTS {
            return refuse("port", name, format!("a router has {} ports at most", super::MAX_PORTS));
        }
        let mut members = hubs.lock();
        let (number, control) = match mirror {
            None => (hubs.numbers(&members, [name.as_str()])?[0], None),
            Some(_) => {
                let [number, control] = hubs.numbers(&members, [name.as_str(), &control_name(&name)])?;
                (number, Some(control))
            }
        };
        let member = ports.member(number, control)?;
        let infos = [Some(&ports.port), ports.control.as_ref()].into_iter().flatten().map(|port| port.info());
        let more = infos.fold(Offloads::NONE, |all, info| all.with(info.tx_offloads));
        let accept = hubs.accept(&members, more);
        let join = || {
            let parts = start_interface(router, hubs, &mut members, (ports.port, &name, number), accept)?;
            hubs.join(&mut members, number, parts, accept)?;
            if let (Some(port), Some(control)) = (ports.control, control) {
                let port = (port, &member.interface, control);
                let parts = start_control(hubs, &mut members, port, number, accept)?;
                hubs.join(&mut members, control, parts, accept)?;
            }
            shared.lock().set(number, Some(member));
            self.publish()
        };
        match join() {
            Ok(()) => Ok(number as u16),
            Err(error) => {
                self.withdraw(&mut members, number, control);
                Err(error)
            }
        }
    }

    /// Detaches a port: the routes by it leave, and its neighbours. Packets that wait for these are
    /// dropped as `port-gone`; what waits for the port gets [`drain`](Router::drain) to leave. The
    /// counters of the port stay in the summary.
    ///
    /// # Errors
    /// [`StartError::Value`] if there is no such port, or if packets that it had taken were not
    /// sent.
    pub fn detach(&self, name: &str) -> Result<(), StartError> {
        let hubs = &self.0.ports;
        let mut members = hubs.lock();
        let at = hubs.number_of(&members, name)?;
        let interface = self.0.shared.lock().members.get(at).and_then(|one| Some(one.as_ref()?.interface.clone()));
        let Some(interface) = interface else {
            return refuse("port", name, "is a control port: it leaves with its interface");
        };
        let failure = self.withdraw(&mut members, at, interface.control.map(usize::from));
        failure.map_or(Ok(()), |why| refuse("port", name, why))
    }

    /// Removes an interface: first the routes by it, so that no packet looks for a neighbour there.
    fn withdraw(&self, members: &mut Members, number: usize, control: Option<usize>) -> Option<String> {
        let Parted { shared, ports, .. } = &*self.0;
        shared.lock().remove(number);
        // What is left can be used: it was before.
        let _ = self.publish();
        let numbers: Vec<_> = std::iter::once(number).chain(control).collect();
        let failure = ports.leave(members, &numbers);
        // A worker that had the old routes may have asked for one more neighbour.
        let mut out = Outcome::default();
        shared.neighbours.remove_where(|key, _| usize::from(key.port) == number, &mut out);
        shared.neighbours.leave(out);
        failure
    }

    /// The ports, by their numbers.
    pub fn ports(&self) -> Vec<RouterPortReading> {
        let members = self.0.shared.lock().members.clone();
        let present = members.into_iter().enumerate().filter_map(|(number, member)| Some((number, member?.interface)));
        let reading = |(number, interface): (usize, Interface)| RouterPortReading {
            number: number as u16,
            lost: self.0.ports.lost(number),
            interface,
        };
        present.map(reading).collect()
    }

    /// The number of routes.
    pub fn routes(&self) -> usize {
        self.0.shared.lock().fib.value().routes()
    }

    /// What happens to packets to an address, and the hop of the flows with this hash; `None` if no
    /// route leads there.
    pub fn resolve(&self, address: IpAddr, hash: u32) -> Option<(Action, Option<Hop>)> {
        self.0.shared.lock().fib.value().resolve(address, hash)
    }

    /// Replaces the routes, but for those that follow from addresses. Packets use the old ones
    /// until the new ones are ready.
    ///
    /// # Errors
    /// [`StartError::Value`] for a route that can't be used, and for a router that mirrors a
    /// kernel: there the kernel's routes are changed. Then nothing is changed.
    pub fn set_routes(&self, routes: Vec<RouterRoute>) -> Result<(), StartError> {
        if self.0.mirror.is_some() {
            return refuse("routes", routes.len().to_string(), "the router mirrors a kernel: change them there");
        }
        let mut tables = self.0.shared.lock();
        let all = with_connected(&tables.members, &routes);
        tables.publish(&all)?;
        tables.routes = routes.into();
        Ok(())
    }

    /// The routes that were set, without those by ports that were detached.
    pub fn configured_routes(&self) -> Vec<RouterRoute> {
        self.0.shared.lock().routes.to_vec()
    }

    /// Calls `f` with each route that packets use, and where it is from. Of two to the same prefix
    /// the later one goes before the other. It takes the time of a walk over all routes, for which
    /// no packet waits.
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
        if let Some(mirror) = &self.0.mirror {
            return mirror.each_route(|route| f(&route, RouteSource::Kernel));
        }
        let (members, routes) = {
            let tables = self.0.shared.lock();
            (tables.members.clone(), tables.routes.clone())
        };
        let (subnets, own) = of_addresses(&members);
        subnets.iter().for_each(|route| f(route, RouteSource::Connected));
        routes.iter().for_each(|route| f(route, RouteSource::Configured));
        own.iter().for_each(|route| f(route, RouteSource::Connected));
    }

    /// The neighbours, sorted.
    pub fn neighbours(&self) -> Vec<Neighbour> {
        self.0.shared.neighbours.list()
    }

    /// Forgets all neighbours that were not configured.
    pub fn flush_neighbours(&self) {
        let mut out = Outcome::default();
        self.0.shared.neighbours.remove_where(|_, state| state != State::Permanent, &mut out);
        self.0.shared.neighbours.leave(out);
    }

    /// Times that the mirror lost notifications of the kernel and read everything again.
    pub fn mirror_overruns(&self) -> u64 {
        self.0.mirror.as_ref().map_or(0, Mirror::overruns)
    }
}

/// What the control port of an interface is called.
fn control_name(interface: &str) -> String {
    format!("{interface} (control)")
}

/// Starts the port of an interface under its number.
pub(super) fn start_interface(
    router: &Router,
    hubs: &HubPorts<RouterPort>,
    members: &mut Members,
    (port, name, number): (AnyPort, &str, usize),
    accept: Offloads,
) -> Result<Parts<RouterPort>, StartError> {
    let mut info = port.info().clone();
    name.clone_into(&mut info.name);
    let parts = hubs.start(members, number, (port, &info), accept, || RouterPort::Interface)?;
    let rules = || router.at_rx.classifier(PortSide::A, Layer::Ethernet).into_iter();
    Ok(parts.into_iter().map(|part| rules().fold(part, HubPort::with_classifier)).collect())
}

/// Starts the control port of an interface under its number.
pub(super) fn start_control(
    hubs: &HubPorts<RouterPort>,
    members: &mut Members,
    (port, interface, number): (AnyPort, &Interface, usize),
    of: usize,
    accept: Offloads,
) -> Result<Parts<RouterPort>, StartError> {
    let mut info = port.info().clone();
    info.name = control_name(&interface.name);
    let of = of as u16;
    hubs.start(members, number, (port, &info), accept, || RouterPort::Control { of })
}

impl std::fmt::Debug for RouterControl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RouterControl").field("routes", &self.routes()).finish_non_exhaustive()
    }
}
