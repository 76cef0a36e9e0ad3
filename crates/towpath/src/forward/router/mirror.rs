//! Follows the kernel that is the control plane of a router.
//!
//! A thread looks at the snapshot of [`NextHops`], which netlink keeps up to date, and publishes
//! the routes over the control ports as routes over their interfaces. A route of which no hop is at
//! a control port is left out. Only neighbours that have changed are set. What the router asks for
//! is asked of the kernel: an empty datagram has it find or confirm a neighbour.

use super::control::RouterShared;
use super::{RouterRoute, StartError};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use towpath_engine::router::neighbour::{Key, Outcome, State};
use towpath_engine::router::{Action, Hop};
use towpath_nexthop::{ListedKind, ListedRoute, NextHops, Table};
use towpath_sys::{lock, netns};

/// Time between two looks at the snapshot.
const LOOK: Duration = Duration::from_millis(10);

/// The thread; dropping it ends it.
pub(super) struct Mirror {
    follower: Arc<Mutex<Follower>>,
    next_hops: Arc<NextHops>,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// The indices of control ports, by the number of their interfaces.
type Indices = Vec<Option<u32>>;

impl Mirror {
    pub(super) fn start(shared: &Arc<RouterShared>, namespace: Option<&str>) -> Result<Mirror, StartError> {
        let failed = |source| StartError::Thread { worker: 0, source };
        let next_hops = netns::within(namespace, NextHops::watch).map_err(failed)?.map_err(failed)?;
        let (next_hops, stopping) = (Arc::new(next_hops), Arc::new(AtomicBool::new(false)));
        let follower = Follower {
            shared: shared.clone(),
            next_hops: next_hops.clone(),
            indices: Vec::new(),
            version: None,
            last: None,
            neighbours: HashMap::new(),
        };
        let follower = Arc::new(Mutex::new(follower));
        lock(&follower).step();
        let (ends, own) = (stopping.clone(), follower.clone());
        let run = move || {
            while !ends.load(Ordering::Relaxed) {
                std::thread::park_timeout(LOOK);
                lock(&own).step();
            }
        };
        let thread = std::thread::Builder::new().name("towpath-mirror".into()).spawn(run).map_err(failed)?;
        Ok(Mirror { follower, next_hops, stopping, thread: Some(thread) })
    }

    /// Publishes the routes and neighbours of now, for the interfaces as they are.
    pub(super) fn step(&self) {
        lock(&self.follower).step();
    }

    pub(super) fn overruns(&self) -> u64 {
        self.next_hops.overruns()
    }

    /// The routes of the kernel that packets use.
    pub(super) fn each_route(&self, f: impl FnMut(RouterRoute)) {
        let indices = lock(&self.follower).indices.clone();
        self.next_hops.table().list_routes().filter_map(|route| mirrored(&indices, route)).for_each(f);
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// The number of the interface whose control port has this index.
fn port_of(indices: &[Option<u32>], device: u32) -> Option<u16> {
    indices.iter().position(|index| *index == Some(device)).map(|port| port as u16)
}

/// A route as the router has it; `None` if no hop is at a control port.
fn mirrored(indices: &[Option<u32>], route: ListedRoute) -> Option<RouterRoute> {
    let ListedRoute { prefix, len, kind, hops, mtu, .. } = route;
    let action = match kind {
        ListedKind::Unicast => Action::Forward,
        ListedKind::Local => Action::Local,
        ListedKind::Broadcast => Action::Broadcast,
        ListedKind::Blackhole => Action::Blackhole,
        ListedKind::Prohibit => Action::Prohibit,
        _ => Action::Unreachable,
    };
    // Each interface has this subnet; packets to it are not routed.
    let is_link_local = matches!(prefix, IpAddr::V6(v6) if v6.is_unicast_link_local());
    let known = hops
        .iter()
        .filter_map(|hop| Some(Hop { port: port_of(indices, hop.device)?, gateway: hop.gateway, weight: hop.weight }));
    let hops: Vec<Hop> = known.take(towpath_engine::router::MAX_HOPS).collect();
    let is_used = action != Action::Forward || (!hops.is_empty() && !is_link_local);
    is_used.then_some(RouterRoute { prefix, len, action, hops, mtu })
}

struct Follower {
    shared: Arc<RouterShared>,
    next_hops: Arc<NextHops>,
    indices: Indices,
    /// Of the interfaces that `indices` is for.
    version: Option<u64>,
    last: Option<Arc<Table>>,
    neighbours: HashMap<Key, [u8; 6]>,
}

impl Follower {
    fn step(&mut self) {
        self.see_interfaces();
        for solicitation in self.shared.neighbours.take_solicitations() {
            if let Some(Some(device)) = self.indices.get(usize::from(solicitation.key.port)) {
                let _ = self.next_hops.resolve(*device, solicitation.key.address);
            }
        }
        let table = self.next_hops.table();
        if self.last.as_ref().is_some_and(|last| last.generation() == table.generation()) {
            return self.shared.lock().collect();
        }
        if self.last.as_ref().is_none_or(|last| !last.has_routes_of(&table)) {
            self.publish(&table);
        }
        self.set_neighbours(&table);
        self.last = Some(table);
    }

    /// Looks for interfaces that came or went: everything is published again for them.
    fn see_interfaces(&mut self) {
        let tables = self.shared.lock();
        if self.version != Some(tables.version) {
            self.indices = tables.members.iter().map(|member| member.as_ref()?.tap).collect();
            (self.version, self.last) = (Some(tables.version), None);
        }
    }

    fn publish(&self, table: &Table) {
        let mut tables = self.shared.lock();
        for member in tables.members.iter_mut().flatten() {
            let interface = &mut member.interface;
            match member.tap.and_then(|index| table.list_device(index)) {
                Some(device) => {
                    (interface.mac, interface.addresses) = (device.mac, device.addresses);
                    interface.mtu = device.mtu;
                }
                None => interface.addresses.clear(),
            }
        }
        let routes: Vec<RouterRoute> = table.list_routes().filter_map(|route| mirrored(&self.indices, route)).collect();
        // Interfaces and hops are those of this function: no route can be refused.
        let _ = tables.publish(&routes);
    }

    fn set_neighbours(&mut self, table: &Table) {
        let now: HashMap<Key, [u8; 6]> = table
            .list_neighbours()
            .filter_map(|(device, address, mac)| Some((Key { port: port_of(&self.indices, device)?, address }, mac)))
            .collect();
        let mut out = Outcome::default();
        for key in self.neighbours.keys().filter(|key| !now.contains_key(key)) {
            self.shared.neighbours.remove(*key, &mut out);
        }
        for (key, mac) in &now {
            if self.neighbours.get(key) != Some(mac) {
                self.shared.neighbours.set(*key, *mac, State::Kernel, Instant::now(), &mut out);
            }
        }
        self.neighbours = now;
        self.shared.neighbours.leave(out);
    }
}
