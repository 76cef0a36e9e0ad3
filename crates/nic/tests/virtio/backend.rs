//! A back end of vhost-user for tests: a thread answers messages, and the test steps the queues by
//! hand.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use towpath_packet::UntrustedMem;
use towpath_virtio::vhost_user::{
    Channel, ChannelError, MemoryTable, Message, Request, VringAddr, VringFd, VringState, protocol, read_u64,
};
use towpath_virtio::{AddressSpace, Area, Areas, Base, Chain, Device, Features, Format, RegionPlace, Regions, Token};

/// Bytes of a header.
pub(crate) const HEADER: usize = 12;
const PATIENCE: Duration = Duration::from_secs(60);

/// One ring, as the messages made it.
#[derive(Default)]
struct Ring {
    num: u16,
    base: u32,
    addr: Option<VringAddr>,
    kick: Option<OwnedFd>,
    call: Option<File>,
    enabled: bool,
    device: Option<Device>,
}

/// What the front end has sent.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) offered: u64,
    pub(crate) features: u64,
    pub(crate) status: u64,
    pub(crate) regions: Regions,
    /// Memory tables that came.
    pub(crate) tables: u32,
    rings: Vec<Ring>,
    /// Connections that were accepted, and those that ended.
    pub(crate) connections: u32,
    pub(crate) ended: u32,
    /// Closes the connection.
    closes: bool,
    /// Replies wait until this is false.
    pub(crate) silent: bool,
    /// Memory tables are refused.
    pub(crate) refuses_memory: bool,
}

/// A back end that listens at a path.
pub(crate) struct Backend {
    pub(crate) path: PathBuf,
    shared: Arc<(Mutex<State>, Condvar)>,
}

static NUMBER: AtomicU32 = AtomicU32::new(0);

impl Backend {
    /// A back end that offers these features, and so many pairs of queues.
    pub(crate) fn new(offered: u64, pairs: usize) -> Backend {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("towpath-virtio-{}-{number}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let rings = (0..2 * pairs).map(|_| Ring::default()).collect();
        let shared = Arc::new((Mutex::new(State { offered, rings, ..State::default() }), Condvar::new()));
        let thread = shared.clone();
        std::thread::spawn(move || serve(&listener, &thread));
        Backend { path, shared }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.0.lock().unwrap()
    }

    /// Waits until the messages have made something true.
    pub(crate) fn until(&self, what: &str, done: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let (state, timeout) = self.shared.1.wait_timeout_while(self.lock(), PATIENCE, |state| !done(state)).unwrap();
        assert!(!timeout.timed_out(), "waited in vain: {what}");
        state
    }

    /// Ends the connection, as a back end does that is killed.
    pub(crate) fn close(&self) {
        self.lock().closes = true;
        drop(self.until("the connection ends", |state| state.ended == state.connections));
    }

    /// Frames that the front end has sent by a pair, each with its header.
    pub(crate) fn take(&self, pair: usize) -> Vec<Vec<u8>> {
        self.lock().take(2 * pair + 1)
    }

    /// Fills receive buffers of a pair with a header and a frame.
    pub(crate) fn give(&self, pair: usize, header: [u8; 10], frame: &[u8]) -> bool {
        self.lock().give(2 * pair, header, frame)
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.lock().closes = true;
        let _ = std::fs::remove_file(&self.path);
    }
}

impl State {
    fn take(&mut self, ring: usize) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let mut chain = Chain::new(256);
        let State { regions, rings, .. } = self;
        let Some(device) = rings[ring].device.as_mut() else { return frames };
        while let Some(token) = device.take(regions, &mut chain).unwrap() {
            frames.push(chain.readable().iter().flat_map(|piece| read(regions, piece.place, piece.len)).collect());
            device.add_used(token, 0);
        }
        if device.publish() {
            self.call(ring);
        }
        frames
    }

    fn give(&mut self, ring: usize, header: [u8; 10], frame: &[u8]) -> bool {
        self.give_as(ring, header, frame, None)
    }

    /// The same, with a used length of its own.
    pub(crate) fn give_as(&mut self, ring: usize, header: [u8; 10], frame: &[u8], used: Option<u32>) -> bool {
        let mergeable = self.features >> 15 & 1 != 0;
        let State { regions, rings, .. } = self;
        let Some(device) = rings[ring].device.as_mut() else { return false };
        let bytes = [&header[..], &[0, 0], frame].concat();
        let (mut chain, mut rest, mut taken) = (Chain::new(256), &bytes[..], Vec::<(Token, u32)>::new());
        let mut first = None;
        while !rest.is_empty() {
            let token = match device.take(regions, &mut chain).unwrap() {
                Some(token) if mergeable || taken.is_empty() => token,
                _ => {
                    for (token, _) in taken.into_iter().rev() {
                        device.untake(token).unwrap();
                    }
                    return false;
                }
            };
            let mut written = 0;
            for piece in chain.writable() {
                let n = rest.len().min(piece.len as usize);
                assert!(regions.memory(piece.place.region).unwrap().put(piece.place.offset, &rest[..n]));
                first.get_or_insert(piece.place);
                rest = &rest[n..];
                written += n as u32;
            }
            taken.push((token, written));
        }
        // The number of buffers comes last.
        let place = first.unwrap();
        let count = (taken.len() as u16).to_le_bytes();
        assert!(regions.memory(place.region).unwrap().put(place.offset + 10, &count));
        taken.into_iter().for_each(|(token, len)| device.add_used(token, used.unwrap_or(len)));
        if device.publish() {
            self.call(ring);
        }
        true
    }

    /// Uses a chain that the front end did not make available.
    pub(crate) fn forge(&mut self, ring: usize) {
        let device = self.rings[ring].device.as_mut().unwrap();
        // Identifier 7, one descriptor, at position 0.
        device.add_used(Token::from_raw(7 | 1 << 16), 0);
        let _ = device.publish();
    }

    /// Asks for kicks; the count of those that came tells whether the front end kicked.
    pub(crate) fn enable_kicks(&mut self, ring: usize, on: bool) {
        let device = self.rings[ring].device.as_mut().unwrap();
        if on {
            let _ = device.enable_kicks();
        } else {
            device.disable_kicks();
        }
    }

    /// Kicks of a ring since the last call.
    pub(crate) fn kicks(&self, ring: usize) -> u64 {
        use std::os::fd::AsRawFd;
        let fd = self.rings[ring].kick.as_ref().unwrap().as_raw_fd();
        let count = towpath_testing::eventfd_count(fd);
        if count > 0 {
            let _ = towpath_sys::EventFd::from(self.rings[ring].kick.as_ref().unwrap().try_clone().unwrap()).take();
        }
        count
    }

    fn call(&mut self, ring: usize) {
        if let Some(call) = &mut self.rings[ring].call {
            let _ = call.write(&1u64.to_ne_bytes());
        }
    }

    /// Whether all rings of this number are enabled and started.
    pub(crate) fn runs(&self, rings: usize) -> bool {
        self.rings.iter().take(rings).all(|ring| ring.enabled && ring.device.is_some())
    }

    fn area(&self, addr: u64, len: usize) -> Option<Area> {
        let (place, contiguous) = self.regions.translate(addr, len as u32, true)?;
        assert!(contiguous as usize >= len, "a ring in one region");
        Area::new(self.regions.memory(place.region)?, place.offset, len)
    }

    fn start(&mut self, index: usize) {
        let format = if self.features >> 34 & 1 != 0 { Format::Packed } else { Format::Split };
        let (num, base, addr) = (self.rings[index].num, self.rings[index].base, self.rings[index].addr.unwrap());
        let [desc, driver, device] = format.lengths(num);
        let areas = Areas {
            desc: self.area(addr.desc, desc).unwrap(),
            driver: self.area(addr.avail, driver).unwrap(),
            device: self.area(addr.used, device).unwrap(),
        };
        let features = Features::from_bits(self.features);
        let device = Device::new(format, areas, num, features, Base::from_vring(format, base)).unwrap();
        self.rings[index].device = Some(device);
    }

    /// Does what a message asks; returns the reply that it has of its own.
    fn message(&mut self, request: Request, mut message: Message) -> Option<Vec<u8>> {
        let number = |message: &Message| read_u64(&message.payload).unwrap();
        let state = |message: &Message| VringState::from_bytes(&message.payload).unwrap();
        let own = protocol::MQ | protocol::REPLY_ACK | protocol::STATUS;
        match request {
            Request::GetFeatures => return Some((self.offered | protocol::PROTOCOL_FEATURES).to_ne_bytes().into()),
            Request::GetProtocolFeatures => return Some(own.to_ne_bytes().into()),
            Request::GetQueueNum => return Some((self.rings.len() as u64 / 2).to_ne_bytes().into()),
            Request::GetStatus => return Some(self.status.to_ne_bytes().into()),
            Request::SetFeatures => {
                self.features = number(&message) & !protocol::PROTOCOL_FEATURES;
                assert_eq!(self.features & !self.offered, 0, "features that were not offered");
            }
            Request::SetStatus => self.status = number(&message),
            Request::SetMemTable => self.set_memory(message),
            Request::SetVringNum => self.rings[state(&message).index as usize].num = state(&message).num as u16,
            Request::SetVringBase => self.rings[state(&message).index as usize].base = state(&message).num,
            Request::SetVringEnable => self.rings[state(&message).index as usize].enabled = state(&message).num == 1,
            Request::SetVringAddr => {
                let addr = VringAddr::from_bytes(&message.payload).unwrap();
                self.rings[addr.index as usize].addr = Some(addr);
            }
            Request::SetVringCall => {
                let index = VringFd::from_bytes(&message.payload).unwrap().index;
                self.rings[usize::from(index)].call = message.fds.pop().map(File::from);
            }
            Request::SetVringKick => {
                let index = usize::from(VringFd::from_bytes(&message.payload).unwrap().index);
                self.rings[index].kick = message.fds.pop();
                self.start(index);
            }
            Request::GetVringBase => {
                let index = state(&message).index;
                let device = self.rings[index as usize].device.take().unwrap();
                let format = if self.features >> 34 & 1 != 0 { Format::Packed } else { Format::Split };
                return Some(VringState { index, num: device.base().to_vring(format) }.to_bytes().into());
            }
            _ => {}
        }
        None
    }

    fn set_memory(&mut self, message: Message) {
        let table = MemoryTable::from_bytes(&message.payload).unwrap();
        assert_eq!(table.regions.len(), message.fds.len());
        self.regions = Regions::new();
        for (region, fd) in table.regions.into_iter().zip(message.fds) {
            assert_eq!(region.guest, region.user);
            let memory = UntrustedMem::from_memfd(fd, (region.size + region.offset) as usize).unwrap();
            self.regions.add(region.guest, region.size, memory, region.offset as usize).unwrap();
        }
        self.tables += 1;
    }

    /// The acknowledgement of a request.
    fn acknowledgement(&self, request: Request) -> u64 {
        u64::from(self.refuses_memory && request == Request::SetMemTable)
    }
}

fn read(regions: &Regions, place: RegionPlace, len: u32) -> Vec<u8> {
    let memory = regions.memory(place.region).unwrap();
    (0..len as usize).map(|i| memory.get::<1>(place.offset + i).unwrap()[0]).collect()
}

/// Accepts one connection after the other, and answers its messages.
fn serve(listener: &UnixListener, shared: &(Mutex<State>, Condvar)) {
    for socket in listener.incoming() {
        let mut channel = Channel::new(socket.unwrap().into());
        shared.0.lock().unwrap().connections += 1;
        let mut replies = Vec::new();
        loop {
            let (closes, silent) = {
                let state = shared.0.lock().unwrap();
                (state.closes, state.silent)
            };
            if closes {
                break;
            }
            if !silent {
                replies.drain(..).for_each(|(request, bytes): (_, Vec<u8>)| {
                    let _ = channel.reply(request, &bytes, &[]);
                });
            }
            let message = match channel.receive_until(Instant::now() + Duration::from_millis(20)) {
                Ok(message) => message,
                Err(ChannelError::TimedOut) => continue,
                Err(_) => break,
            };
            let request = Request::from_number(message.number).unwrap();
            let wants = message.needs_reply;
            let mut state = shared.0.lock().unwrap();
            let reply = state.message(request, message);
            let reply = reply.or_else(|| wants.then(|| state.acknowledgement(request).to_ne_bytes().into()));
            drop(state);
            replies.extend(reply.map(|bytes| (request, bytes)));
            shared.1.notify_all();
        }
        drop(channel);
        let mut state = shared.0.lock().unwrap();
        state.ended += 1;
        state.closes = false;
        state.rings.iter_mut().for_each(|ring| *ring = Ring::default());
        shared.1.notify_all();
    }
}
