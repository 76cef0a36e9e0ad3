//! A vhost-user front end that sends any messages, with descriptors of any kind and in any pieces,
//! and writes any words into its rings, beside the port's two queues.
//!
//! The port is started once. An input is one connection: each action is a byte, and what it needs
//! follows. In the end the connection is seen to end, no descriptor and no page of the guest is
//! left, and now and then a front end that keeps to the protocol gets a frame through in both
//! directions.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::cell::RefCell;
use std::fs::File;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use towpath_fuzz::{Input, OpenFiles};
use towpath_packet::port::{Port, PortControl, Queues, RxQueue, Start, TxQueue};
use towpath_packet::{Backing, Batch, Cache, Direction, ExtBufGauge, Offloads, Packet, Pool, PoolConfig, UntrustedMem};
use towpath_ports::vhost::{self, VhostPort};
use towpath_sys::unix_socket::{self, Kind};
use towpath_sys::{EventFd, stream};
use towpath_virtio::vhost_user::{
    Channel, ConfigSpace, InFlightArea, Log, MemoryRegion, MemoryTable, Request, SingleRegion, VringAddr, VringFd,
    VringState,
};
use towpath_virtio::{Areas, Driver, Features, Format, Layout, Segment};

#[allow(dead_code, reason = "the target needs a part of what the tests need")]
#[path = "../../crates/ports/tests/hostile/rig.rs"]
mod rig;
#[allow(dead_code, reason = "as above")]
#[path = "../../crates/ports/tests/hostile/rogue.rs"]
mod rogue;

use rig::until;
use rogue::memfd;

/// Where the memory lies for the guest, and for the front end.
const GUEST: u64 = 0x4000_0000;
const USER: u64 = 0x7f00_0000_0000;
/// Bytes of the memory, of the areas of a ring, and of a buffer; where buffers begin.
const MEMORY: u64 = 64 << 10;
const RING: u64 = 4096;
const BUFFER: u64 = 2048;
const BUFFERS: u64 = 8192;
/// Descriptors of a ring.
const SIZE: u16 = 64;
/// Mergeable, version 1, and features of the protocol.
const PLAIN: u64 = 1 << 32 | 1 << 15 | 1 << 30;
const PACKED: u64 = 1 << 34;
const INDIRECT_AND_EVENTS: u64 = 1 << 28 | 1 << 29;
const OFFLOADS: u64 = 1 << 0 | 1 << 1 | 1 << 7 | 1 << 11 | 1 << 35 | 1 << 56;

/// Actions of an input: as many replies fit into the socket.
const ACTIONS: usize = 48;
/// Inputs between two front ends that keep to the protocol.
const PERIOD: u32 = 64;
/// Buffers of the pool, and those in two magazines of each of three caches and in the queue's
/// heads.
const POOL: usize = 512;
const CACHED: usize = 3 * 2 * POOL / 16 + 64;

/// The places of files that requests take.
const WHOLE: usize = 0;
const EVENT: usize = 1;

/// One port for all inputs, and what front ends share with it.
struct Fixture {
    rx: <VhostPort as Port>::Rx,
    tx: <VhostPort as Port>::Tx,
    path: PathBuf,
    pool: Pool,
    cache: Cache,
    pages: Arc<ExtBufGauge>,
    control: Arc<dyn PortControl>,
    memory: UntrustedMem,
    files: Vec<OwnedFd>,
    kick: EventFd,
    open: OpenFiles,
    inputs: u32,
    /// Connections that were made.
    made: u64,
    _dir: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let uri = format!("vhost:{}?mtu=1500", path.display()).parse().unwrap();
        let port = vhost::open(vhost::Config::from_uri(&uri).unwrap()).unwrap();
        let pool = Pool::new(PoolConfig::default().capacity(POOL).backing(Backing::Anonymous)).unwrap();
        let (control, cache) = (port.control().unwrap(), pool.cache(Direction::Tx).unwrap());
        let start = Start { pool: pool.clone(), queues: 1, accept: Offloads::ALL };
        let Queues { mut rx, mut tx } = port.start(start).unwrap();
        let (rx, tx) = (rx.remove(0), tx.remove(0));
        let pages = rx.memory().ext_bufs.unwrap();
        let whole = memfd(c"whole", MEMORY as i64, libc::F_SEAL_SHRINK);
        let memory = UntrustedMem::from_file(whole.try_clone().unwrap(), MEMORY as usize).unwrap();
        let kick = EventFd::new().unwrap();
        let (near, far) = UnixStream::pair().unwrap();
        let files = vec![
            whole,
            kick.try_clone().unwrap().into(),
            memfd(c"unsealed", MEMORY as i64, 0),
            memfd(c"short", 4096, libc::F_SEAL_SHRINK),
            memfd(c"empty", 0, 0),
            File::open("/dev/null").unwrap().into(),
            near.into(),
            far.into(),
        ];
        let open = OpenFiles::default();
        Fixture { rx, tx, path, pool, cache, pages, control, memory, files, kick, open, inputs: 0, made: 0, _dir: dir }
    }

    fn event(&self, name: &str) -> u64 {
        self.control.events().iter().find(|(known, _)| *known == name).unwrap().1
    }

    fn connect(&mut self) -> OwnedFd {
        self.made += 1;
        unix_socket::connect(&self.path, Kind::Stream, None).unwrap()
    }

    /// Whether each connection was taken or refused, and has ended.
    fn is_alone(&self) -> bool {
        let taken = self.event("connections");
        taken + self.event("connections-refused") == self.made && self.event("connections-ended") == taken
    }

    fn follow(&mut self, mut input: Input<'_>) {
        assert!(self.memory.put(0, &[0; BUFFERS as usize]));
        let mut front = FrontEnd::connect(self);
        for _ in 0..ACTIONS {
            if input.0.is_empty() {
                break;
            }
            front.act(&mut input);
        }
        front.leave();
        self.inputs += 1;
        if self.inputs.is_multiple_of(PERIOD) {
            self.serve_an_honest_one();
        }
        assert_eq!(self.pages.freed(), self.pages.attached(), "pages of guests, freed and attached");
        let stats = self.pool.stats();
        assert!(stats.capacity - stats.free <= CACHED, "buffers are missing: {stats:?}");
        until(|| {
            let bounded = self.open.are_bounded();
            if !bounded {
                // The port looks after processes that close descriptors when it is awake.
                drop(self.connect());
            }
            bounded
        });
    }

    fn serve_an_honest_one(&mut self) {
        // The last one may have left an announcement.
        self.rx.rx(&mut Batch::new());
        assert!(self.memory.put(0, &[0; BUFFERS as usize]));
        let mut front = FrontEnd::connect(self);
        front.bring_up(PLAIN);
        assert!(front.settle(), "hung up on");
        let frame = [0x5a; 300];
        front.transmit(&frame);
        front.post(1);
        let mut got = Batch::new();
        assert_eq!(front.port.rx.rx(&mut got), 1);
        assert_eq!(got.pop().unwrap().to_vec(), frame);
        front.send(1, frame.len());
        let used = front.drivers[0].as_mut().unwrap().next_used().unwrap().expect("a frame");
        assert_eq!(used.len as usize, 12 + frame.len());
        front.leave();
    }
}

/// One connection to the port.
struct FrontEnd<'a> {
    port: &'a mut Fixture,
    channel: Channel,
    /// What was sent is not whole messages: no reply can be waited for.
    torn: bool,
    /// The port hung up.
    over: bool,
    /// Replies to `GET_FEATURES` that did not come yet.
    asked: u32,
    features: u64,
    /// Of the guest's receive queue, then of its transmit queue.
    drivers: [Option<Driver>; 2],
    held: Batch,
    next: u64,
}

impl<'a> FrontEnd<'a> {
    fn connect(port: &'a mut Fixture) -> FrontEnd<'a> {
        let (channel, held) = (Channel::new(port.connect()), Batch::new());
        let drivers = [None, None];
        FrontEnd { port, channel, torn: false, over: false, asked: 0, features: PLAIN, drivers, held, next: 0 }
    }

    fn act(&mut self, input: &mut Input<'_>) {
        match input.byte() % 12 {
            0 | 1 => self.message(input),
            2 => self.raw(input),
            3 => {
                let bits = input.byte();
                let when = |bit: u8, features| if bits & 1 << bit != 0 { features } else { 0 };
                self.bring_up(PLAIN | when(0, PACKED) | when(1, INDIRECT_AND_EVENTS) | when(2, OFFLOADS));
                self.settle();
            }
            4 | 5 => {
                let (at, bytes, n) = (input.word(), input.long().to_le_bytes(), 1 << (input.byte() % 4));
                let at = u64::from(at) % if at & 0x8000 != 0 { MEMORY - 8 } else { BUFFERS };
                assert!(self.port.memory.put(at as usize & !(n - 1), &bytes[..n]));
            }
            6 => {
                let len = usize::from(input.word()) % BUFFER as usize;
                self.transmit(
                    &input.slice(len.min(128)).iter().copied().chain([0; 2048]).take(len).collect::<Vec<_>>(),
                );
            }
            7 => self.post(input.byte() % 8),
            8 | 9 => self.step(input.byte()),
            10 => {
                let (n, len) = (input.byte() % 8, input.word() % 2000);
                self.send(n, usize::from(len));
            }
            _ => match input.byte() % 4 {
                // One too many.
                0 => drop(self.port.connect()),
                1 => {
                    for driver in self.drivers.iter_mut().flatten() {
                        while let Ok(Some(_)) = driver.next_used() {}
                    }
                }
                2 => drop(self.port.rx.wake()),
                _ => {
                    self.over |= UnixStream::from(self.channel.as_fd().try_clone_to_owned().unwrap())
                        .shutdown(Shutdown::Write)
                        .is_ok()
                }
            },
        }
    }

    /// Takes frames of the guest. Packets stay only while no message is on its way: the port waits
    /// for them before it stops a ring, but not before it ends a connection.
    fn step(&mut self, how: u8) {
        self.port.rx.rx(&mut self.held);
        if how & 1 == 0 || self.torn || self.asked > 0 {
            self.held = Batch::new();
        }
    }

    /// Sends packets to the guest.
    fn send(&mut self, n: u8, len: usize) {
        let mut batch: Batch = Batch::new();
        for _ in 0..n {
            batch.push(Packet::copy_from(&mut self.port.cache, &vec![0x5a; len]).unwrap()).unwrap();
        }
        self.port.tx.reclaim();
        self.port.tx.tx(&mut batch);
        self.port.tx.kick();
        self.port.cache.free_bulk(&mut batch);
    }

    /// Waits until all that was sent is answered. Returns whether the connection is in use.
    fn settle(&mut self) -> bool {
        if self.torn || self.over {
            return false;
        }
        self.ask(Request::GetFeatures, &[], &[], false);
        let deadline = Instant::now() + rig::PATIENCE;
        while self.asked > 0 && !self.over {
            match self.channel.receive_until(deadline) {
                Ok(reply) if reply.number == Request::GetFeatures.number() => self.asked -= 1,
                Ok(_) => {}
                Err(error) => {
                    assert!(Instant::now() < deadline, "no answer: {error}");
                    self.over = true;
                }
            }
        }
        !self.over
    }

    fn ask(&mut self, request: Request, payload: &[u8], fds: &[usize], acknowledged: bool) {
        self.held = Batch::new();
        let fds: Vec<BorrowedFd<'_>> = fds.iter().map(|file| self.port.files[*file].as_fd()).collect();
        self.over |= self.channel.request(request, payload, &fds, acknowledged).is_err();
        self.asked += u32::from(request == Request::GetFeatures);
    }

    /// All that a front end does before packets move.
    fn bring_up(&mut self, features: u64) {
        if self.torn || self.over {
            return;
        }
        self.features = features;
        self.ask(Request::SetProtocolFeatures, &u64::MAX.to_ne_bytes(), &[], false);
        self.ask(Request::SetOwner, &[], &[], false);
        self.ask(Request::SetFeatures, &features.to_ne_bytes(), &[], true);
        let table = MemoryTable { regions: vec![region()] };
        self.ask(Request::SetMemTable, &table.to_bytes(), &[WHOLE], true);
        for index in 0..2 {
            let state = |num| VringState { index, num }.to_bytes();
            let event = VringFd { index: index as u8, has_fd: true }.to_bytes();
            let areas = Areas::new(&self.port.memory, (u64::from(index) * RING) as usize, &self.layout()).unwrap();
            let driver = Driver::new(self.format(), areas, SIZE, Features::from_bits(features));
            self.drivers[index as usize] = driver.ok();
            self.ask(Request::GetVringBase, &state(0), &[], false);
            self.ask(Request::SetVringNum, &state(SIZE.into()), &[], true);
            self.ask(Request::SetVringBase, &state(if features & PACKED != 0 { 0x8000_8000 } else { 0 }), &[], true);
            self.ask(Request::SetVringAddr, &self.addr(index).to_bytes(), &[], true);
            self.ask(Request::SetVringCall, &event, &[EVENT], true);
            self.ask(Request::SetVringKick, &event, &[EVENT], true);
            self.ask(Request::SetVringEnable, &state(1), &[], true);
        }
    }

    fn format(&self) -> Format {
        if self.features & PACKED != 0 { Format::Packed } else { Format::Split }
    }

    fn layout(&self) -> Layout {
        Layout::new(self.format(), SIZE).unwrap()
    }

    fn addr(&self, index: u32) -> VringAddr {
        let (layout, at) = (self.layout(), u64::from(index % 2) * RING);
        let [desc, avail, used] = [layout.desc, layout.driver, layout.device].map(|part| USER + at + part as u64);
        VringAddr { index, flags: 0, desc, avail, used, log: GUEST + at }
    }

    /// The place of the next buffer.
    fn buffer(&mut self) -> u64 {
        self.next = (self.next + 1) % ((MEMORY - BUFFERS) / BUFFER);
        BUFFERS + self.next * BUFFER
    }

    fn transmit(&mut self, frame: &[u8]) {
        let (at, len) = (self.buffer(), frame.len().min(BUFFER as usize - 12));
        assert!(self.port.memory.put(at as usize, &[&[0; 12], &frame[..len]].concat()));
        self.offer(1, &[Segment::readable(GUEST + at, 12 + len as u32)]);
    }

    /// Posts buffers, those of a large packet if there are several.
    fn post(&mut self, n: u8) {
        for _ in 0..n {
            let at = self.buffer();
            self.offer(0, &[Segment::writable(GUEST + at, BUFFER as u32)]);
        }
    }

    fn offer(&mut self, index: usize, chain: &[Segment]) {
        if let Some(driver) = &mut self.drivers[index]
            && driver.add(chain).is_ok()
            && driver.publish()
        {
            self.port.kick.signal();
        }
    }

    /// A request in its right form, its fields plausible or not.
    fn message(&mut self, input: &mut Input<'_>) {
        if self.torn || self.over {
            return;
        }
        let (number, how) = (input.byte(), input.byte());
        let request = Request::ALL[usize::from(number) % Request::ALL.len()];
        let (mut payload, fitting) = self.payload(request, input);
        if how & 7 == 7 {
            payload = input.slice(input.0.len().min(usize::from(how))).to_vec();
        }
        let fds = match how >> 3 & 3 {
            0 => (0..input.byte() % 4).map(|_| usize::from(input.byte()) % self.port.files.len()).collect(),
            _ => fitting,
        };
        self.ask(request, &payload, &fds, how & 0x80 == 0);
        if how & 0x60 != 0x60 {
            self.settle();
        }
    }

    /// The payload of a request, and the descriptors that belong to it.
    fn payload(&self, request: Request, input: &mut Input<'_>) -> (Vec<u8>, Vec<usize>) {
        use Request::*;
        let index = |input: &mut Input<'_>| match input.byte() {
            known @ 0..=239 => u32::from(known % 2),
            wild => u32::from(wild - 238),
        };
        match request {
            SetFeatures | SetProtocolFeatures | SendRarp | NetSetMtu | SetStatus => {
                let (kind, word) = (input.byte(), input.long());
                let bits = [PLAIN, PLAIN | word & (PACKED | OFFLOADS | 1 << 26), word & 0xffff, word];
                (bits[usize::from(kind % 4)].to_ne_bytes().to_vec(), vec![])
            }
            SetVringNum | SetVringBase | SetVringEnable | GetVringBase => {
                let index = index(input);
                let num = match input.byte() {
                    few @ 0..=127 => u32::from(few),
                    128..=191 => SIZE.into(),
                    192..=223 => input.word().into(),
                    _ => input.int(),
                };
                (VringState { index, num }.to_bytes().to_vec(), vec![])
            }
            SetVringAddr => {
                let mut addr = self.addr(index(input));
                let field = [&mut addr.desc, &mut addr.avail, &mut addr.used, &mut addr.log];
                let (which, how) = (input.byte(), input.byte());
                if let Some(field) = field.into_iter().nth(usize::from(which % 8)) {
                    *field = if how & 1 != 0 { USER + u64::from(input.word()) } else { input.long() };
                }
                addr.flags = u32::from(how >> 6 & 1);
                (addr.to_bytes().to_vec(), vec![])
            }
            SetVringKick | SetVringCall | SetVringErr => {
                let has_fd = input.byte() % 4 != 0;
                let fd = VringFd { index: index(input) as u8, has_fd };
                (fd.to_bytes().to_vec(), if has_fd { vec![EVENT] } else { vec![] })
            }
            SetMemTable => {
                let n = usize::from(input.byte()) % 9;
                let regions = (0..n).map(|_| some_region(input)).collect();
                (MemoryTable { regions }.to_bytes(), vec![WHOLE; n])
            }
            AddMemReg | RemMemReg => {
                let single = SingleRegion { padding: 0, region: some_region(input) };
                (single.to_bytes().to_vec(), vec![WHOLE])
            }
            SetLogBase => {
                let size = if input.byte() % 2 == 0 { MEMORY / 2 } else { input.long() };
                (Log { size, offset: u64::from(input.word()) }.to_bytes().to_vec(), vec![WHOLE])
            }
            SetLogFd => (vec![], vec![EVENT]),
            GetInflightFd | SetInflightFd => {
                let (how, at) = (input.byte(), u64::from(input.word()));
                let queues = if how & 1 == 0 { 2 } else { input.word() };
                let queue_size = if how & 2 == 0 { SIZE } else { input.word() };
                let size = if how & 4 == 0 { MEMORY / 2 } else { input.long() };
                // Within the memory that packets and rings are in, too.
                let area =
                    InFlightArea { size, offset: at % (MEMORY / 2) & !7 | u64::from(how & 8) >> 3, queues, queue_size };
                let fds = if request == SetInflightFd { vec![WHOLE] } else { vec![] };
                (area.to_bytes().to_vec(), fds)
            }
            GetConfig | SetConfig => {
                let bytes = vec![0; usize::from(input.byte())];
                (ConfigSpace { offset: input.byte().into(), flags: 0, bytes }.to_bytes(), vec![])
            }
            _ => (vec![], vec![]),
        }
    }

    /// Bytes that need not be a message, in two pieces, each with descriptors.
    fn raw(&mut self, input: &mut Input<'_>) {
        self.held = Batch::new();
        self.torn = true;
        let (how, len, cut) = (input.byte(), input.byte(), input.byte());
        let body = input.slice(len.into());
        let header = [how.into(), u32::from(cut), body.len() as u32].map(u32::to_ne_bytes);
        let bytes = if how & 0x80 == 0 { [header.as_flattened(), body].concat() } else { body.to_vec() };
        let (first, second) = bytes.split_at(usize::from(cut).min(bytes.len()));
        for piece in [first, second] {
            let n = usize::from(input.byte() % 4);
            let file = &self.port.files[usize::from(input.byte()) % self.port.files.len()];
            let _ = stream::send(self.channel.as_fd(), piece, &vec![file.as_fd(); n]);
        }
    }

    /// Closes the connection. All that was sent is read before, and packets are freed behind it.
    fn leave(self) {
        let FrontEnd { port, channel, held, .. } = self;
        let (socket, fds) = channel.into_parts();
        let socket = UnixStream::from(socket);
        let _ = socket.shutdown(Shutdown::Write);
        until(|| port.is_alone());
        drop((socket, fds, held));
    }
}

/// The whole memory.
fn region() -> MemoryRegion {
    MemoryRegion { guest: GUEST, size: MEMORY, user: USER, offset: 0 }
}

/// The memory, or a region of which one number is any.
fn some_region(input: &mut Input<'_>) -> MemoryRegion {
    let mut region = region();
    let (which, how) = (input.byte(), input.byte());
    let fields = [&mut region.guest, &mut region.size, &mut region.user, &mut region.offset];
    if let Some(field) = fields.into_iter().nth(usize::from(which % 8)) {
        *field = if how & 1 != 0 { u64::from(how) << 12 } else { input.long() };
    }
    region
}

thread_local! {
    static FIXTURE: RefCell<Option<Fixture>> = const { RefCell::new(None) };
}

fuzz_target!(|data: &[u8]| {
    FIXTURE.with_borrow_mut(|fixture| fixture.get_or_insert_with(Fixture::new).follow(Input(data)));
});
