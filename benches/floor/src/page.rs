//! A page of an application, from its ring to a pair in memory or into the ring of the e1000e
//! driver, and its completion back.
//!
//! Neither side copies a byte. The application sends bursts of 64 frames and cycles through its
//! memory; it, and the device, take their steps between the measured turns. The far end of the pair
//! takes a burst, reads nothing and frees it, in the measured turn.

use crate::send::{self, Device};
use crate::{BURST, Turns, pool};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use towpath_client::{Config, Frame, Sizes, Socket, Umem};
use towpath_engine::route::{Route, RouteConfig};
use towpath_packet::port::{Port, RxQueue, Start, TxQueue};
use towpath_packet::{
    Backing, Batch, Cache, Direction, ExtBufOwner, ExtBufPool, Offloads, Packet, Pool, Region, UntrustedMem,
};
use towpath_ports::Ended;
use towpath_ports::sock::{self, SockRx, Transmit};
use towpath_ports::veth::{self, VethRx, VethTx};

/// Frames of the application's memory, and bytes of each.
const FRAMES: (u32, u32) = (4096, 2048);
/// Entries of a ring.
const RING: usize = 2048;
/// Bytes of a frame.
const SIZE: u32 = 64;

fn start(pool: &Pool) -> Start {
    Start { pool: pool.clone(), queues: 1, accept: Offloads::NONE }
}

/// The application.
struct App {
    socket: Socket,
    free: Vec<Frame>,
    back: Vec<Frame>,
    completed: u64,
}

impl App {
    fn step(&mut self, frames: usize) {
        self.completed += self.socket.completions(&mut self.back).expect("a session") as u64;
        let mut burst: Vec<_> = self.free.drain(..frames).collect();
        assert!(burst.iter_mut().all(|frame| frame.set_range(0, SIZE)), "a frame fits in its chunk");
        let sent = self.socket.tx(&mut burst).expect("a session");
        assert_eq!(sent, frames, "a burst fits in the ring");
        self.free.append(&mut self.back);
    }
}

/// The path as it is.
pub struct Ours<T> {
    route: Route<Ended<SockRx>, T>,
    /// The far end of a pair in memory.
    far: Option<(VethRx, Cache, Batch)>,
    device: Option<Device>,
    app: App,
    path: PathBuf,
}

impl<T: TxQueue> Ours<T> {
    fn new(pool: Pool, tx: T, far: Option<VethRx>, device: Option<Device>) -> Ours<T> {
        let path = std::env::temp_dir().join(format!("towpath-floor-{}.sock", std::process::id()));
        let mut config = sock::Config::new(&path);
        config.transmit = Transmit::Page;
        let port = sock::open(config).expect("a socket");
        let rx = port.start(start(&pool)).expect("the port starts").rx.remove(0);
        let umem = Umem::new(FRAMES.0, FRAMES.1).expect("memory");
        let config = Config::default().rings(Sizes::all(RING as u32)).rules(Vec::new());
        let socket = Socket::connect(&umem, &path, &config).expect("a session");
        let free = std::iter::from_fn(|| umem.alloc()).collect();
        let app = App { socket, free, back: Vec::new(), completed: 0 };
        let cache = |direction| pool.cache(direction).expect("a cache");
        let far = far.map(|rx| (rx, cache(Direction::Rx), Batch::new()));
        let route = Route::new(rx, tx, cache(Direction::Tx), RouteConfig::default());
        let mut ours = Ours { route, far, device, app, path };
        ours.leave();
        ours
    }
}

impl Ours<VethTx> {
    pub fn to_memory() -> Ours<VethTx> {
        let (near, far) = veth::pair(&veth::Config::default()).expect("a pair");
        let pool = pool();
        let tx = near.start(start(&pool)).expect("the pair starts").tx.remove(0);
        let rx = far.start(start(&pool)).expect("the pair starts").rx.remove(0);
        Ours::new(pool, tx, Some(rx), None)
    }
}

impl Ours<send::Tx> {
    pub fn to_e1000e() -> Ours<send::Tx> {
        let pool = pool();
        let (tx, device) = send::e1000e(&pool);
        Ours::new(pool, tx, None, Some(device))
    }
}

impl<T> Drop for Ours<T> {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl<T: TxQueue> Turns for Ours<T> {
    #[inline]
    fn turn(&mut self) -> usize {
        let n = self.route.turn(false);
        if let Some((rx, cache, batch)) = &mut self.far {
            rx.rx(batch);
            cache.free_bulk(batch);
        }
        n
    }

    fn leave(&mut self) {
        if let Some(device) = &self.device {
            device.run_until_idle();
        }
        self.app.step(BURST);
    }

    /// Completions, of all that was sent.
    fn result(&mut self) -> u64 {
        for _ in 0..8 {
            self.turn();
            if let Some(device) = &self.device {
                device.run_until_idle();
            }
            self.app.step(0);
        }
        self.app.completed
    }
}

/// Where the floor sends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum To {
    Memory,
    E1000e,
}

/// A descriptor of the application.
#[derive(Clone, Copy, Default)]
struct Desc {
    addr: u64,
    len: u32,
    options: u32,
}

/// An application's ring: its entries, and an index of each side.
struct Ring<T> {
    slots: Box<[T]>,
    written: AtomicU32,
    read: AtomicU32,
}

impl<T: Default + Copy> Ring<T> {
    fn new() -> Ring<T> {
        Ring { slots: vec![T::default(); RING].into(), written: AtomicU32::new(0), read: AtomicU32::new(0) }
    }
}

/// Nothing is done when a page is free: it is looked for in each turn.
struct Owner;

impl ExtBufOwner for Owner {
    fn on_free(&self) {}
}

/// The floor: one application, one kind of frame, memory that is mapped once, no budget, counters,
/// doorbell and wake-ups. What stays is the check of each descriptor and of the state of its chunk,
/// and the packet that it becomes.
pub struct Floor {
    to: To,
    pages: ExtBufPool,
    /// Whether the application has the chunk.
    is_free: Vec<bool>,
    tx: Ring<Desc>,
    completion: Ring<u64>,
    cache: Cache,
    batch: Batch,
    ring: send::Ring,
    memory: Vec<Packet>,
    next: u32,
    completed: u64,
}

impl Floor {
    pub fn new(to: To) -> Floor {
        let len = FRAMES.0 as usize * FRAMES.1 as usize;
        let region = UntrustedMem::new(Region::new(len, Backing::Memfd).expect("memory"));
        let pages = ExtBufPool::new(FRAMES.0 as usize, region, Arc::new(Owner)).expect("memory");
        let mut floor = Floor {
            to,
            pages,
            is_free: vec![true; FRAMES.0 as usize],
            tx: Ring::new(),
            completion: Ring::new(),
            cache: pool().cache(Direction::Rx).expect("a cache"),
            batch: Batch::new(),
            ring: send::Ring::new(),
            memory: Vec::with_capacity(BURST),
            next: 0,
            completed: 0,
        };
        floor.submit(BURST as u32);
        floor
    }

    /// The application's step.
    fn submit(&mut self, frames: u32) {
        let written = self.completion.written.load(Ordering::Acquire);
        self.completed += u64::from(written.wrapping_sub(self.completion.read.load(Ordering::Relaxed)));
        self.completion.read.store(written, Ordering::Release);
        let mut at = self.tx.written.load(Ordering::Relaxed);
        for _ in 0..frames {
            let addr = u64::from(self.next % FRAMES.0) * u64::from(FRAMES.1);
            self.tx.slots[at as usize % RING] = Desc { addr, len: SIZE, options: 0 };
            (self.next, at) = (self.next.wrapping_add(1), at.wrapping_add(1));
        }
        self.tx.written.store(at, Ordering::Release);
    }

    /// Pages that are free again are completed.
    #[inline(always)]
    fn write_completions(&mut self) {
        let mut at = self.completion.written.load(Ordering::Relaxed);
        let (slots, is_free) = (&mut self.completion.slots, &mut self.is_free);
        self.pages.drain_freed(BURST, |addr, _| {
            slots[at as usize % RING] = addr;
            is_free[(addr / u64::from(FRAMES.1)) as usize % FRAMES.0 as usize] = true;
            at = at.wrapping_add(1);
        });
        self.completion.written.store(at, Ordering::Release);
    }

    /// The packet of a descriptor, if it lies in one chunk that the application has.
    #[inline(always)]
    fn packet(&mut self, Desc { addr, len, options }: Desc) -> Option<Packet> {
        let room = u64::from(FRAMES.1) - addr % u64::from(FRAMES.1);
        let is_free = self.is_free.get_mut((addr / u64::from(FRAMES.1)) as usize)?;
        if options != 0 || u64::from(len).wrapping_sub(1) >= room || !std::mem::replace(is_free, false) {
            return None;
        }
        self.pages.packet(addr as usize, len as usize, addr)
    }
}

impl Turns for Floor {
    #[inline]
    fn turn(&mut self) -> usize {
        self.ring.reclaim(&mut self.cache);
        self.write_completions();
        let (mut at, end) = (self.tx.read.load(Ordering::Relaxed), self.tx.written.load(Ordering::Acquire));
        let mut n = 0;
        while at != end && n < BURST {
            let desc = self.tx.slots[at as usize % RING];
            at = at.wrapping_add(1);
            let Some(packet) = self.packet(desc) else { continue };
            n += 1;
            match self.to {
                To::Memory => self.memory.push(packet),
                To::E1000e => self.ring.post(packet, desc.addr, SIZE as usize),
            }
        }
        self.tx.read.store(at, Ordering::Release);
        match self.to {
            To::Memory => {
                self.memory.drain(..).for_each(|packet| drop(self.batch.push(packet)));
                self.cache.free_bulk(&mut self.batch);
            }
            To::E1000e => self.ring.report(),
        }
        n
    }

    fn leave(&mut self) {
        self.ring.run();
        self.submit(BURST as u32);
    }

    fn result(&mut self) -> u64 {
        for _ in 0..8 {
            self.turn();
            self.ring.run();
            self.submit(0);
        }
        self.completed
    }
}
