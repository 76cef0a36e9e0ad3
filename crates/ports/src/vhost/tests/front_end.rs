//! A started port, and a front end that keeps to the protocol unless a test makes it break it.

use super::super::*;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use towpath_packet::port::{RxQueue, TxQueue};
use towpath_packet::{Backing, Batch, Packet, Pool, PoolConfig, UntrustedMem};
use towpath_sys::EventFd;
use towpath_sys::unix_socket;
use towpath_testing::sealed_memory;
use towpath_virtio::vhost_user::{
    Channel, ChannelError, MemoryRegion, MemoryTable, Request, VringAddr, VringFd, VringState, protocol, read_u64,
};
use towpath_virtio::{Area, Areas, Driver, Features, Format, Layout, Segment, Used};

pub(super) const GUEST: u64 = 0x4000_0000;
pub(super) const USER: u64 = 0x7f00_0000_0000;
pub(super) const MEMORY: u64 = 1 << 20;
/// Bytes for the areas of a ring.
const RING: u64 = 0x4000;
const BUFFERS: u64 = 0x4_0000;
pub(super) const SIZE: u16 = 64;

pub(super) const VERSION_1: u64 = 1 << 32;
pub(super) const PACKED: u64 = 1 << 34;
/// Mergeable, version 1, and features of the protocol.
pub(super) const PLAIN: u64 = VERSION_1 | 1 << 15 | 1 << 30;

pub(super) fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// Repeats `done` until it returns true.
pub(super) fn until(mut done: impl FnMut() -> bool) {
    let deadline = soon();
    while !done() {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A started port, whose queues the test runs.
pub(super) struct Rig {
    pub(super) rx: Vec<Ended<VhostRx>>,
    pub(super) tx: Vec<Ended<VhostTx>>,
    pub(super) pool: Pool,
    pub(super) control: Arc<dyn PortControl>,
    pub(super) path: PathBuf,
    dir: tempfile::TempDir,
}

impl Rig {
    pub(super) fn new(options: &str, queues: u16) -> Rig {
        Rig::at(tempfile::tempdir().unwrap(), options, queues)
    }

    pub(super) fn at(dir: tempfile::TempDir, options: &str, queues: u16) -> Rig {
        let path = dir.path().join("s");
        let uri = format!("vhost:{}?queues={queues},{options}", path.display());
        let port = open(Config::from_uri(&uri.parse().unwrap()).unwrap()).unwrap();
        let pool = Pool::new(PoolConfig::default().capacity(1024).backing(Backing::Anonymous)).unwrap();
        let control = port.control().unwrap();
        let start = Start { pool: pool.clone(), queues, accept: Offloads::ALL };
        let Queues { rx, tx } = port.start(start).unwrap();
        Rig { rx, tx, pool, control, path, dir }
    }

    /// Ends the port; the directory stays.
    pub(super) fn end(self) -> tempfile::TempDir {
        drop((self.rx, self.tx));
        self.dir
    }

    pub(super) fn event(&self, name: &str) -> u64 {
        self.control.events().into_iter().find(|(event, _)| *event == name).unwrap().1
    }

    pub(super) fn log(&self) -> String {
        self.control.session_log().last().cloned().unwrap_or_default()
    }

    /// The next packet of a queue.
    pub(super) fn receive(&mut self, queue: usize) -> Vec<u8> {
        let (rx, mut batch) = (&mut self.rx[queue], Batch::new());
        until(|| {
            rx.refill();
            batch.len() + rx.rx(&mut batch) > 0
        });
        assert_eq!(batch.len(), 1);
        batch.pop().unwrap().to_vec()
    }

    /// Whether no queue has a packet.
    pub(super) fn receives_nothing(&mut self) -> bool {
        let mut batch = Batch::new();
        self.rx.iter_mut().all(|rx| rx.rx(&mut batch) == 0)
    }

    pub(super) fn send(&mut self, queue: usize, bytes: &[u8]) -> usize {
        let mut batch = Batch::new();
        let cache = &mut self.pool.cache(Direction::Tx).unwrap();
        assert!(batch.push(Packet::copy_from(cache, bytes).unwrap()).is_ok());
        let n = self.tx[queue].tx(&mut batch);
        cache.free_bulk(&mut batch);
        n
    }
}

/// A ring of the front end.
pub(super) struct FrontRing {
    pub(super) driver: Driver,
    pub(super) kick: EventFd,
    pub(super) call: EventFd,
}

pub(super) struct FrontEnd {
    pub(super) channel: Channel,
    pub(super) file: OwnedFd,
    pub(super) memory: UntrustedMem,
    pub(super) features: u64,
    pub(super) rings: Vec<Option<FrontRing>>,
    pub(super) next: u64,
}

impl FrontEnd {
    pub(super) fn connect(path: &Path) -> FrontEnd {
        FrontEnd::on(unix_socket::connect(path, Kind::Stream, Some(soon())).unwrap())
    }

    pub(super) fn on(socket: OwnedFd) -> FrontEnd {
        FrontEnd::with_memory(socket, sealed_memory(MEMORY as i64))
    }

    pub(super) fn with_memory(socket: OwnedFd, file: OwnedFd) -> FrontEnd {
        let memory = UntrustedMem::from_file(file.try_clone().unwrap(), MEMORY as usize).unwrap();
        let rings = (0..16).map(|_| None).collect();
        FrontEnd { channel: Channel::new(socket), file, memory, features: 0, rings, next: 0 }
    }

    pub(super) fn send(&self, request: Request, payload: &[u8], fds: &[BorrowedFd<'_>]) {
        self.channel.request(request, payload, fds, false).unwrap();
    }

    /// Sends a request with a reply of its own.
    pub(super) fn ask(&mut self, request: Request, payload: &[u8]) -> Vec<u8> {
        self.send(request, payload, &[]);
        self.channel.receive_reply(request, soon()).unwrap().payload
    }

    pub(super) fn ask_u64(&mut self, request: Request) -> u64 {
        read_u64(&self.ask(request, &[])).unwrap()
    }

    /// Sends a request that is acknowledged. Returns whether it was done.
    pub(super) fn asks(&mut self, request: Request, payload: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
        self.channel.request(request, payload, fds, true).unwrap();
        read_u64(&self.channel.receive_reply(request, soon()).unwrap().payload).unwrap() == 0
    }

    /// Whether the port hangs up. What it answers before is discarded.
    pub(super) fn was_hung_up_on(mut self) -> bool {
        loop {
            match self.channel.receive_until(soon()) {
                Ok(_) => {}
                Err(ChannelError::Closed) => return true,
                // Its descriptors were not read.
                Err(ChannelError::Os(error)) => return error.kind() == std::io::ErrorKind::ConnectionReset,
                Err(_) => return false,
            }
        }
    }

    pub(super) fn negotiate(&mut self, features: u64) {
        assert_eq!(self.ask_u64(Request::GetFeatures) & features, features);
        let offered = self.ask_u64(Request::GetProtocolFeatures);
        self.send(Request::SetProtocolFeatures, &offered.to_ne_bytes(), &[]);
        self.send(Request::SetOwner, &[], &[]);
        self.set_features(features);
    }

    pub(super) fn set_features(&mut self, features: u64) {
        self.features = features;
        assert!(self.asks(Request::SetFeatures, &features.to_ne_bytes(), &[]));
    }

    pub(super) fn region() -> MemoryRegion {
        MemoryRegion { guest: GUEST, size: MEMORY, user: USER, offset: 0 }
    }

    pub(super) fn set_memory(&mut self) -> bool {
        let table = MemoryTable { regions: vec![FrontEnd::region()] }.to_bytes();
        let file = self.file.try_clone().unwrap();
        self.asks(Request::SetMemTable, &table, &[file.as_fd()])
    }

    pub(super) fn state(&mut self, request: Request, index: u32, num: u32) -> bool {
        self.asks(request, &VringState { index, num }.to_bytes(), &[])
    }

    pub(super) fn event(&mut self, request: Request, index: u8, event: Option<&EventFd>) -> bool {
        let payload = VringFd { index, has_fd: event.is_some() }.to_bytes();
        let fds: Vec<_> = event.map(AsFd::as_fd).into_iter().collect();
        self.asks(request, &payload, &fds)
    }

    pub(super) fn format(&self) -> Format {
        if self.features & PACKED != 0 { Format::Packed } else { Format::Split }
    }

    pub(super) fn layout(&self) -> Layout {
        Layout::new(self.format(), SIZE).unwrap()
    }

    pub(super) fn addr(&self, index: u32, flags: u32) -> VringAddr {
        let (layout, at) = (self.layout(), u64::from(index) * RING);
        let user = |part: usize| USER + at + part as u64;
        VringAddr {
            index,
            flags,
            desc: user(layout.desc),
            avail: user(layout.driver),
            used: user(layout.device),
            log: GUEST + at + layout.device as u64,
        }
    }

    fn areas(&self, index: u32) -> Areas<Area> {
        Areas::new(&self.memory, (u64::from(index) * RING) as usize, &self.layout()).unwrap()
    }

    /// A new driver of a ring, not known to the port yet.
    pub(super) fn make_ring(&mut self, index: u32) {
        let driver = Driver::new(self.format(), self.areas(index), SIZE, Features::from_bits(self.features)).unwrap();
        let (kick, call) = (EventFd::new().unwrap(), EventFd::new().unwrap());
        self.rings[index as usize] = Some(FrontRing { driver, kick, call });
    }

    pub(super) fn ring(&mut self, index: u32) -> &mut FrontRing {
        self.rings[index as usize].as_mut().unwrap()
    }

    /// Tells the port of a ring, at a base or at the beginning.
    pub(super) fn start_ring(&mut self, index: u32, base: Option<u32>) -> bool {
        let mut done = self.state(Request::SetVringNum, index, SIZE.into());
        if let Some(base) = base {
            done &= self.state(Request::SetVringBase, index, base);
        }
        let addr = self.addr(index, 0).to_bytes();
        done &= self.asks(Request::SetVringAddr, &addr, &[]);
        let ring = self.ring(index);
        let [kick, call] = [&ring.kick, &ring.call].map(|event| event.try_clone().unwrap());
        done &= self.event(Request::SetVringKick, index as u8, Some(&kick));
        done & self.event(Request::SetVringCall, index as u8, Some(&call))
    }

    pub(super) fn enable(&mut self, index: u32, on: bool) -> bool {
        self.state(Request::SetVringEnable, index, on.into())
    }

    /// Features, memory, and two rings that run.
    pub(super) fn bring_up(&mut self, features: u64, rings: u32) {
        self.negotiate(features);
        assert!(self.set_memory());
        for index in 0..rings {
            self.make_ring(index);
            assert!(self.start_ring(index, None) && self.enable(index, true));
        }
    }

    pub(super) fn get_base(&mut self, index: u32) -> u32 {
        let reply = self.ask(Request::GetVringBase, &VringState { index, num: 99 }.to_bytes());
        let state = VringState::from_bytes(&reply).unwrap();
        assert_eq!(state.index, index);
        state.num
    }

    /// Offers a frame to the device, and kicks. Returns the id of its chain.
    pub(super) fn transmit(&mut self, index: u32, frame: &[u8]) -> u16 {
        let at = BUFFERS + self.next * 2048;
        self.next = (self.next + 1) % 256;
        let bytes = [&[0; 12], frame].concat();
        assert!(self.memory.put(at as usize, &bytes));
        let ring = self.ring(index);
        let id = ring.driver.add(&[Segment::readable(GUEST + at, bytes.len() as u32)]).unwrap();
        if ring.driver.publish() {
            ring.kick.signal();
        }
        id
    }

    /// Posts a buffer, and returns where it lies.
    pub(super) fn post(&mut self, index: u32) -> u64 {
        let at = BUFFERS + self.next * 2048;
        self.next = (self.next + 1) % 256;
        let ring = self.ring(index);
        ring.driver.add(&[Segment::writable(GUEST + at, 2048)]).unwrap();
        if ring.driver.publish() {
            ring.kick.signal();
        }
        at
    }

    pub(super) fn used(&mut self, index: u32) -> Option<Used> {
        self.ring(index).driver.next_used().unwrap()
    }

    /// The frame that was received into a buffer.
    pub(super) fn received(&self, at: u64, used: Used) -> Vec<u8> {
        let byte = |at: usize| self.memory.get::<1>(at).unwrap()[0];
        (at as usize + 12..at as usize + used.len as usize).map(byte).collect()
    }

    pub(super) fn log_all() -> u64 {
        protocol::LOG_ALL
    }
}

/// A frame of 60 bytes.
pub(super) fn frame(mark: u8) -> Vec<u8> {
    let mut bytes = vec![mark; 60];
    bytes[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5]);
    bytes
}
