//! A front end that outlives back ends: its rings go on, and it keeps the record of what was in
//! flight (`INFLIGHT_SHMFD`).

use crate::support::{LONGEST, until};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Instant;
use towpath::packet::UntrustedMem;
use towpath_sys::EventFd;
use towpath_sys::unix_socket::{self, Kind};
use towpath_testing::sealed_memory;
use towpath_virtio::vhost_user::{
    Channel, InFlightArea, MemoryRegion, MemoryTable, Request, VringAddr, VringFd, VringState, read_u64,
};
use towpath_virtio::{Areas, Base, Driver, Features, Format, Layout, Segment, Used};

const SIZE: u16 = 128;
/// Bytes of a buffer; of the areas of a ring; of all that a ring has.
const BUFFER: u64 = 2048;
const AREAS: u64 = 0x4000;
const SHARE: u64 = AREAS + SIZE as u64 * BUFFER;
/// Guest addresses are those of the front end's process.
const BEGIN: u64 = 0x4000_0000;

/// Mergeable buffers, version 1, features of the protocol.
const PLAIN: u64 = 1 << 32 | 1 << 15 | 1 << 30;
pub(crate) const PACKED: u64 = 1 << 34;
pub(crate) const IN_ORDER: u64 = 1 << 35;

struct Ring {
    driver: Driver,
    kick: EventFd,
    call: EventFd,
    /// Buffers that no chain has, and that of each chain.
    free: Vec<u64>,
    by_id: Vec<u64>,
}

/// The guest receives on ring 0, and sends on ring 1.
pub(crate) struct Survivor {
    path: PathBuf,
    channel: Option<Channel>,
    file: OwnedFd,
    memory: UntrustedMem,
    features: u64,
    format: Format,
    rings: [Ring; 2],
    records: Option<(InFlightArea, OwnedFd)>,
}

impl Survivor {
    pub(crate) fn new(path: &Path, features: u64) -> Survivor {
        let format = if features & PACKED != 0 { Format::Packed } else { Format::Split };
        let file = sealed_memory(2 * SHARE as i64);
        let memory = UntrustedMem::from_file(file.try_clone().unwrap(), 2 * SHARE as usize).unwrap();
        let layout = Layout::new(format, SIZE).unwrap();
        let rings = [0, 1].map(|ring| {
            let areas = Areas::new(&memory, (ring * SHARE) as usize, &layout).unwrap();
            let mut driver = Driver::new(format, areas, SIZE, Features::from_bits(features)).unwrap();
            driver.disable_calls();
            let free = (0..u64::from(SIZE)).map(|n| ring * SHARE + AREAS + n * BUFFER).collect();
            let event = || EventFd::new().unwrap();
            Ring { driver, kick: event(), call: event(), free, by_id: vec![0; SIZE.into()] }
        });
        let (path, features) = (path.to_owned(), features | PLAIN);
        Survivor { path, channel: None, file, memory, features, format, rings, records: None }
    }

    fn ask(
        &mut self,
        request: Request,
        payload: &[u8],
        fds: &[BorrowedFd<'_>],
        reply: bool,
    ) -> (Vec<u8>, Vec<OwnedFd>) {
        let channel = self.channel.as_mut().unwrap();
        channel.request(request, payload, fds, reply).unwrap();
        if !reply && !request.has_reply() {
            return Default::default();
        }
        let message = channel.receive_reply(request, Instant::now() + LONGEST).unwrap();
        (message.payload, message.fds)
    }

    /// Sends a request that must be done.
    #[track_caller]
    fn done(&mut self, request: Request, payload: &[u8], fds: &[BorrowedFd<'_>]) {
        let (reply, _) = self.ask(request, payload, fds, true);
        assert_eq!(read_u64(&reply), Ok(0), "{request}");
    }

    /// Connects to a back end, and has it go on with the rings.
    pub(crate) fn connect(&mut self) {
        let mut socket = None;
        until("a connection", || {
            socket = unix_socket::connect(&self.path, Kind::Stream, Some(Instant::now() + LONGEST)).ok();
            socket.is_some()
        });
        self.channel = socket.map(Channel::new);
        let (protocol, _) = self.ask(Request::GetProtocolFeatures, &[], &[], false);
        self.ask(Request::SetProtocolFeatures, &protocol, &[], false);
        self.done(Request::SetFeatures, &self.features.to_ne_bytes(), &[]);
        let region = MemoryRegion { guest: BEGIN, size: 2 * SHARE, user: BEGIN, offset: 0 };
        let file = self.file.try_clone().unwrap();
        self.done(Request::SetMemTable, &MemoryTable { regions: vec![region] }.to_bytes(), &[file.as_fd()]);
        if self.records.is_none() {
            let asked = InFlightArea { size: 0, offset: 0, queues: 2, queue_size: SIZE };
            let (reply, mut fds) = self.ask(Request::GetInflightFd, &asked.to_bytes(), &[], false);
            self.records = Some((InFlightArea::from_bytes(&reply).unwrap(), fds.remove(0)));
        }
        let (area, file) = self.records.as_ref().map(|(area, file)| (*area, file.try_clone().unwrap())).unwrap();
        self.done(Request::SetInflightFd, &area.to_bytes(), &[file.as_fd()]);
        let layout = Layout::new(self.format, SIZE).unwrap();
        for index in 0..2 {
            let state = |num: u32| VringState { index, num }.to_bytes();
            let at = |part: usize| BEGIN + u64::from(index) * SHARE + part as u64;
            let (desc, used, avail) = (at(layout.desc), at(layout.device), at(layout.driver));
            let Ring { kick, call, .. } = &self.rings[index as usize];
            let [kick, call] = [kick, call].map(|event| event.try_clone().unwrap());
            let event = VringFd { index: index as u8, has_fd: true }.to_bytes();
            self.done(Request::SetVringNum, &state(SIZE.into()), &[]);
            // It does not count beside the record of a back end.
            self.done(Request::SetVringBase, &state(Base::start(self.format).to_vring(self.format)), &[]);
            self.done(Request::SetVringAddr, &VringAddr { index, flags: 0, desc, used, avail, log: 0 }.to_bytes(), &[]);
            self.done(Request::SetVringCall, &event, &[call.as_fd()]);
            self.done(Request::SetVringKick, &event, &[kick.as_fd()]);
            self.done(Request::SetVringEnable, &state(1), &[]);
        }
    }

    /// Sends a frame of 1000 bytes with a number, if there is a buffer. Returns whether it did.
    pub(crate) fn send(&mut self, number: u64) -> bool {
        let Survivor { memory, rings: [_, ring], .. } = self;
        let Some(at) = ring.free.pop() else { return false };
        let head = [&[0; 12][..], &[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5], &number.to_ne_bytes()].concat();
        assert!(memory.put(at as usize, &head));
        ring.add(at, Segment::readable(BEGIN + at, 12 + 1000));
        true
    }

    /// Takes back the buffers of frames that were sent.
    pub(crate) fn reap(&mut self) {
        let [_, ring] = &mut self.rings;
        while let Some((at, _)) = ring.next_used() {
            ring.free.push(at);
        }
    }

    /// Chains that the back end has.
    pub(crate) fn in_flight(&self) -> u16 {
        self.rings[1].driver.in_flight()
    }

    /// The numbers of the frames that came. All buffers are posted again.
    pub(crate) fn receive(&mut self) -> Vec<u64> {
        let Survivor { memory, rings: [ring, _], .. } = self;
        let mut numbers = Vec::new();
        while let Some((at, used)) = ring.next_used() {
            assert_eq!(used.len, 12 + 1000);
            numbers.push(u64::from_ne_bytes(memory.get(at as usize + 12 + 14).unwrap()));
            ring.free.push(at);
        }
        while let Some(at) = ring.free.pop() {
            ring.add(at, Segment::writable(BEGIN + at, BUFFER as u32));
        }
        numbers
    }
}

impl Ring {
    fn add(&mut self, at: u64, segment: Segment) {
        let id = self.driver.add(&[segment]).expect("as many descriptors as buffers");
        self.by_id[usize::from(id)] = at;
        if self.driver.publish() {
            self.kick.signal();
        }
    }

    /// A chain that is used breaks the ring if it was before.
    fn next_used(&mut self) -> Option<(u64, Used)> {
        let used = self.driver.next_used().expect("a chain in flight")?;
        Some((self.by_id[usize::from(used.id)], used))
    }
}
