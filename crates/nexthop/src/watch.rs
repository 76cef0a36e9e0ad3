//! The thread that follows the kernel, and what it publishes.

use crate::contents::{Limits, Neighbours};
use crate::kernel::{self, BUFFER, messages};
use crate::table::{Fib, Table};
use netlink_packet_core::NetlinkPayload;
use netlink_packet_route::RouteNetlinkMessage as Message;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use towpath_sys::EventFd;
use towpath_sys::poll::PollSet;
use towpath_sys::route_socket::{RouteSocket, group};

/// Bytes of notifications that may wait.
const RECEIVE_BUFFER: libc::c_int = 4 << 20;
/// Time in which changes are collected before everything is read again.
const COLLECT: Duration = Duration::from_millis(10);
/// Time until a failed reading is tried again.
const RETRY: Duration = Duration::from_millis(200);
/// Times in a row that everything is read because it changed meanwhile.
const OVERTAKEN: usize = 4;
/// Longest sleep.
const LONGEST: Duration = Duration::from_secs(60);
/// The discard service ([RFC 863](https://www.rfc-editor.org/rfc/rfc863)).
const DISCARD: u16 = 9;

/// What the watcher and the readers share.
#[derive(Debug)]
struct WatchShared {
    /// That of the published table.
    generation: AtomicU64,
    table: Mutex<Arc<Table>>,
    stopping: AtomicBool,
    /// Times that everything was read, and that notifications were lost.
    dumps: AtomicU64,
    overruns: AtomicU64,
}

/// The kernel's routes and neighbours, followed until it is dropped.
#[derive(Debug)]
pub struct NextHops {
    shared: Arc<WatchShared>,
    wake: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
    v4: UdpSocket,
    v6: Option<UdpSocket>,
}

impl NextHops {
    /// Reads the tables of the calling thread's network namespace and follows them on a thread of
    /// its own.
    ///
    /// # Errors
    /// The error of a socket, of the kernel's answer, or of the thread;
    /// [`LimitExceeded`](crate::LimitExceeded) as an error of kind `Other`.
    pub fn watch() -> io::Result<NextHops> {
        NextHops::watch_within(Limits::default())
    }

    /// As [`watch`](NextHops::watch), with other limits.
    ///
    /// # Errors
    /// As for [`watch`](NextHops::watch).
    pub fn watch_within(limits: Limits) -> io::Result<NextHops> {
        NextHops::start(limits, RECEIVE_BUFFER)
    }

    /// `receive_buffer`: bytes of notifications that may wait.
    fn start(limits: Limits, receive_buffer: libc::c_int) -> io::Result<NextHops> {
        let groups = group::LINK
            | group::NEIGHBOUR
            | group::IPV4_ADDRESS
            | group::IPV4_ROUTE
            | group::IPV6_ADDRESS
            | group::IPV6_ROUTE;
        // What changes during the first dump is announced after it.
        let events = RouteSocket::new(groups)?;
        events.set_receive_buffer(receive_buffer)?;
        let dumps = RouteSocket::new(0)?;
        dumps.set_receive_buffer(RECEIVE_BUFFER)?;
        let table = Arc::new(read(&dumps, &limits, 1)?);
        let shared = Arc::new(WatchShared {
            generation: AtomicU64::new(1),
            table: Mutex::new(table.clone()),
            stopping: AtomicBool::new(false),
            dumps: AtomicU64::new(1),
            overruns: AtomicU64::new(0),
        });
        let wake = Arc::new(EventFd::new()?);
        let v4 = prober(SocketAddr::from(([0; 4], 0)))?;
        // A kernel may have no IPv6.
        let v6 = prober(SocketAddr::from(([0; 16], 0))).ok();
        let watcher = Watcher {
            shared: shared.clone(),
            wake: wake.clone(),
            events,
            dumps: Some(dumps),
            limits,
            table,
            retired: Vec::new(),
            buffer: vec![0; BUFFER],
        };
        let thread = std::thread::Builder::new().name("towpath-routes".into()).spawn(move || watcher.run())?;
        Ok(NextHops { shared, wake, thread: Some(thread), v4, v6 })
    }

    /// A reader, for one thread.
    pub fn reader(&self) -> Reader {
        let table = self.table();
        Reader { shared: self.shared.clone(), generation: table.generation, table }
    }

    /// The table now.
    pub fn table(&self) -> Arc<Table> {
        self.shared.table.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Times that everything was read, with the first one.
    pub fn dumps(&self) -> u64 {
        self.shared.dumps.load(Ordering::Relaxed)
    }

    /// Times that the kernel had more notifications than their buffer held (`ENOBUFS`).
    pub fn overruns(&self) -> u64 {
        self.shared.overruns.load(Ordering::Relaxed)
    }

    /// Has the kernel find a neighbour's address, or confirm one that is stale: an empty datagram
    /// to its discard port, which takes no privilege. The table has the answer some time later.
    ///
    /// # Errors
    /// The error of `sendto(2)`; `Unsupported` for IPv6 without IPv6.
    pub fn resolve(&self, device: u32, address: IpAddr) -> io::Result<()> {
        let (socket, to) = match address {
            IpAddr::V4(_) => (&self.v4, SocketAddr::from((address, DISCARD))),
            IpAddr::V6(v6) => {
                let socket = self.v6.as_ref().ok_or(io::ErrorKind::Unsupported)?;
                let scope = if v6.is_unicast_link_local() { device } else { 0 };
                (socket, SocketAddrV6::new(v6, DISCARD, 0, scope).into())
            }
        };
        match socket.send_to(&[], to) {
            // The answer of the port to an earlier datagram; or the queue of datagrams that wait
            // for the address is full.
            Err(error) if matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::WouldBlock) => {
                Ok(())
            }
            result => result.map(drop),
        }
    }
}

fn prober(any: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(any)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

impl Drop for NextHops {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        self.wake.signal();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The table as one thread sees it: it changes only by [`refresh`](Reader::refresh).
#[derive(Debug)]
pub struct Reader {
    shared: Arc<WatchShared>,
    generation: u64,
    table: Arc<Table>,
}

impl Reader {
    /// Takes the newest table; returns whether it is another one. One atomic load if it is not; a
    /// table that is being published at this moment is taken by the next call. The last one is
    /// freed by the watcher.
    #[inline]
    pub fn refresh(&mut self) -> bool {
        if self.shared.generation.load(Ordering::Acquire) == self.generation {
            return false;
        }
        self.take()
    }

    #[cold]
    fn take(&mut self) -> bool {
        let Ok(table) = self.shared.table.try_lock() else { return false };
        (self.generation, self.table) = (table.generation, table.clone());
        true
    }

    /// The table.
    #[inline]
    pub fn table(&self) -> &Table {
        &self.table
    }
}

fn read(socket: &RouteSocket, limits: &Limits, generation: u64) -> io::Result<Table> {
    let (fib, neighbours) = Fib::new(kernel::dump(socket, limits)?);
    Ok(Table { fib: Arc::new(fib), neighbours, generation })
}

/// What notifications change.
#[derive(Debug, Default, PartialEq, Eq)]
struct Changes {
    everything: bool,
    neighbours: Option<Neighbours>,
}

struct Watcher {
    shared: Arc<WatchShared>,
    wake: Arc<EventFd>,
    events: RouteSocket,
    /// `None` after an answer that was not read to its end.
    dumps: Option<RouteSocket>,
    limits: Limits,
    table: Arc<Table>,
    /// Tables that readers may still have.
    retired: Vec<Arc<Table>>,
    buffer: Vec<u8>,
}

impl Watcher {
    fn run(mut self) {
        let mut poll = PollSet::with_capacity(2);
        // The time at which everything is read again.
        let mut due: Option<Instant> = None;
        while !self.shared.stopping.load(Ordering::Relaxed) {
            let now = Instant::now();
            if due.is_some_and(|due| due <= now) {
                due = match self.read_all() {
                    Ok(true) => None,
                    Ok(false) => Some(now + COLLECT),
                    Err(_) => Some(now + RETRY),
                };
            }
            poll.clear();
            poll.readable(self.events.as_fd().as_raw_fd());
            poll.readable(self.wake.fd());
            poll.wait(due.map_or(LONGEST, |due| due.saturating_duration_since(now)));
            let changes = {
                let table = self.table.clone();
                self.changes(&table.neighbours)
            };
            if let Some(neighbours) = changes.neighbours {
                self.publish(self.table.fib.clone(), neighbours);
            }
            if changes.everything {
                due.get_or_insert_with(|| Instant::now() + COLLECT);
            }
        }
    }

    /// Reads and publishes everything; returns whether nothing changed meanwhile. What was
    /// overtaken by a change mixes before and after: it is read again, a few times.
    fn read_all(&mut self) -> io::Result<bool> {
        for attempt in 1..=OVERTAKEN {
            // After an error the socket is closed: the rest of an answer would be taken for the
            // next one's.
            let socket = self.dumps.take().map_or_else(|| RouteSocket::new(0), Ok)?;
            let table = read(&socket, &self.limits, 0)?;
            self.dumps = Some(socket);
            self.shared.dumps.fetch_add(1, Ordering::Relaxed);
            let changes = self.changes(&table.neighbours);
            if !changes.everything || attempt == OVERTAKEN {
                self.publish(table.fib, changes.neighbours.unwrap_or(table.neighbours));
                return Ok(!changes.everything);
            }
        }
        Ok(false)
    }

    /// Reads the notifications that wait, about what is `known`.
    fn changes(&mut self, known: &Neighbours) -> Changes {
        let mut changes = Changes::default();
        loop {
            let len = match self.events.receive(&mut self.buffer) {
                Ok(Some(len)) => len,
                Ok(None) => return changes,
                Err(error) => {
                    self.shared.overruns.fetch_add(1, Ordering::Relaxed);
                    changes.everything = true;
                    if error.raw_os_error() == Some(libc::ENOBUFS) {
                        continue;
                    }
                    return changes;
                }
            };
            for message in messages(self.buffer.get(..len).unwrap_or_default()) {
                let found = match message.map(|message| message.payload) {
                    Some(NetlinkPayload::InnerMessage(Message::NewNeighbour(found))) => kernel::neighbour(&found),
                    Some(NetlinkPayload::InnerMessage(Message::DelNeighbour(found))) => {
                        kernel::neighbour(&found).map(|(key, _)| (key, None))
                    }
                    // A message that can't be read may be about anything.
                    _ => {
                        changes.everything = true;
                        continue;
                    }
                };
                let Some((key, mac)) = found else { continue };
                if changes.neighbours.as_ref().unwrap_or(known).get(&key).copied() == mac {
                    continue;
                }
                let neighbours = changes.neighbours.get_or_insert_with(|| known.clone());
                match mac {
                    Some(mac) if neighbours.len() < self.limits.neighbours => drop(neighbours.insert(key, mac)),
                    Some(_) => changes.everything = true,
                    None => drop(neighbours.remove(&key)),
                }
            }
        }
    }

    fn publish(&mut self, fib: Arc<Fib>, neighbours: Neighbours) {
        let generation = self.table.generation + 1;
        let table = Arc::new(Table { fib, neighbours, generation });
        self.retired.push(std::mem::replace(&mut self.table, table.clone()));
        *self.shared.table.lock().unwrap_or_else(PoisonError::into_inner) = table;
        self.shared.generation.store(generation, Ordering::Release);
        // Readers free no memory on their threads: the last owner is here.
        self.retired.retain(|table| Arc::strong_count(table) > 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_testing::{Namespace, Need, needs};

    #[test]
    fn lost_notifications_are_made_up_for_by_reading_everything() {
        const NAME: &str = "lost_notifications_are_made_up_for_by_reading_everything";
        if !needs(NAME, &[Need::Root, Need::Program("ip")]) {
            return;
        }
        let ns = Namespace::new("lost");
        ns.ip("link add e0 type veth peer name f0");
        ns.ip("link set e0 up");
        ns.ip("link set f0 up");
        ns.ip("addr add 10.0.0.1/24 dev e0");
        let commands: String =
            (0..4000u32).map(|i| format!("route add 20.0.{}.{}/32 dev e0\n", i / 250, i % 250)).collect();
        let file = std::env::temp_dir().join(format!("{}.routes", ns.name()));
        std::fs::write(&file, commands).unwrap();
        ns.inside(|| {
            // The kernel's smallest buffer holds a few notifications.
            let next_hops = NextHops::start(Limits::default(), 1).unwrap();
            ns.ip(&format!("-batch {}", file.display()));
            let last = "20.0.15.249".parse().unwrap();
            let end = Instant::now() + Duration::from_secs(30);
            let until = |wanted: bool| {
                while next_hops.table().path(last).is_ok() != wanted {
                    assert!(Instant::now() < end, "the table does not follow");
                    std::thread::sleep(Duration::from_millis(2));
                }
            };
            until(true);
            assert!(next_hops.overruns() > 0);
            assert!(next_hops.dumps() < 1000, "changes are collected: {}", next_hops.dumps());
            ns.ip("link set e0 down");
            until(false);
        });
        std::fs::remove_file(&file).unwrap();
    }
}
