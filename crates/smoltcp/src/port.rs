//! smoltcp's tokens over a port of this library, in this process.

use crate::device::Counts;
use crate::offload::{self, Request, is_sound, request};
use smoltcp::phy::{self, DeviceCapabilities, PacketMeta};
use smoltcp::time::{Duration, Instant};
use std::collections::VecDeque;
use std::num::NonZeroU16;
use towpath_engine::software_offload::SoftwareOffload;
use towpath_packet::port::{Layer, Port, PortError, Queues, RxQueue, Start, TxQueue, Wake};
use towpath_packet::{self as packet, Batch, Cache, Direction, Floors, Gso, Offloads, Packet, Pool, PoolConfig};
use towpath_sys::poll::PollSet;
use towpath_wire::offload::LinkKind;
use towpath_wire::tcp;

/// A chunk holds a super-packet of almost 64 KiB.
const CHUNK: usize = 65472;
/// Chunks, in both directions, and those that a port's receive ring leaves to what is sent.
const CHUNKS: usize = 512;
const TX_CHUNKS: usize = CHUNKS / 8;
/// The longest sleep: bounds the time until the end of a port is noticed.
const LONGEST: std::time::Duration = std::time::Duration::from_millis(100);
/// The sleep for a port that cannot wake its reader.
const POLL: std::time::Duration = std::time::Duration::from_micros(50);

/// Why a port is no device, or is none any more.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It could not be started.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The memory for packets could not be made.
    #[error(transparent)]
    Pool(#[from] packet::PoolError),
    /// Its packets have no Ethernet header, as those of `tun:`.
    #[error("{0}: packets without an Ethernet header")]
    Layer(String),
    /// It has ended, and why.
    #[error("the port has ended: {0}")]
    Ended(String),
}

/// One queue of a port as a device of smoltcp: `tap:`, `packet:`, `xdp:`, a network card.
///
/// TCP is sent in super-packets of almost 64 KiB. What the port cannot do with them is done in
/// software, in front of it.
pub struct PortDevice<R, T> {
    rx: Received<R>,
    tx: Transmitter<T>,
    mtu: usize,
    poll: PollSet,
}

/// The receive queue, and the packets that smoltcp has not read.
struct Received<R> {
    queue: R,
    burst: Batch,
    waiting: VecDeque<Packet>,
    /// A packet of several fragments, in one piece.
    joined: Vec<u8>,
    bad_checksums: u64,
}

/// The transmit queue, and the packets on their way to it.
struct Transmitter<T> {
    queue: T,
    cache: Cache,
    offload: SoftwareOffload,
    /// As smoltcp has written them.
    written: Batch,
    /// As the port takes them.
    ready: Batch,
    refused: u64,
}

impl<R: RxQueue, T: TxQueue> PortDevice<R, T> {
    /// Starts a port with one queue.
    ///
    /// # Errors
    /// [`Error::Layer`] for a port without Ethernet headers; [`Error::Port`] and [`Error::Pool`]
    /// with the step that failed.
    pub fn start(port: impl Port<Rx = R, Tx = T>) -> Result<PortDevice<R, T>, Error> {
        let info = port.info();
        let (name, layer, mtu) = (info.name.clone(), info.layer, info.mtu as usize);
        if layer == Layer::Ip {
            return Err(Error::Layer(name));
        }
        let pool =
            Pool::new(PoolConfig::default().capacity(CHUNKS).chunk(CHUNK).floors(Floors { rx: 0, tx: TX_CHUNKS }))?;
        let cache = pool.cache(Direction::Tx)?;
        let of_offload = pool.cache(Direction::Tx)?;
        let accept = Offloads::CSUM.with(Offloads::GSO);
        let Queues { rx, tx } = port.start(Start { pool, queues: 1, accept })?;
        let queues = rx.into_iter().zip(tx).next();
        let (rx, tx) = queues.ok_or_else(|| Error::Ended("it has no queue".to_owned()))?;
        let offload = SoftwareOffload::new(of_offload, LinkKind::Ethernet, tx.counters().clone());
        let (burst, waiting, joined) = (Batch::new(), VecDeque::new(), Vec::new());
        Ok(PortDevice {
            rx: Received { queue: rx, burst, waiting, joined, bad_checksums: 0 },
            tx: Transmitter { queue: tx, cache, offload, written: Batch::new(), ready: Batch::new(), refused: 0 },
            mtu: mtu.min(CHUNK / 2),
            poll: PollSet::with_capacity(2),
        })
    }

    /// Waits until packets came in, or until the time is over: that of smoltcp's
    /// `Interface::poll_delay`. It may return earlier.
    ///
    /// # Errors
    /// [`Error::Ended`] once the port has ended.
    pub fn wait(&mut self, at_most: Option<Duration>) -> Result<(), Error> {
        let states = [self.rx.queue.state(), self.tx.queue.state()];
        if let Some(end) = states.iter().find(|state| state.ended()) {
            return Err(Error::Ended(format!("{end:?}")));
        }
        let mut time = at_most.map_or(LONGEST, |time| LONGEST.min(time.into()));
        let is_full = !self.tx.ready.is_empty();
        if time.is_zero() && !is_full {
            return Ok(());
        }
        self.poll.clear();
        match self.rx.queue.wake() {
            Wake::Fd(fd) | Wake::Readable(fd) => self.poll.readable(fd),
            Wake::Poll => time = time.min(POLL),
            Wake::At(at) => time = time.min(at.saturating_duration_since(std::time::Instant::now())),
            Wake::Never => {}
        }
        if is_full {
            match self.tx.queue.wake() {
                Wake::Fd(fd) => self.poll.writable(fd),
                Wake::Readable(fd) => self.poll.readable(fd),
                _ => time = time.min(POLL),
            }
            // What completed before the queue was armed is not announced.
            if self.tx.queue.reclaim() > 0 {
                return Ok(());
            }
        }
        // A queue whose other side signals only now and then has been asked to.
        self.rx.turn();
        if self.rx.waiting.is_empty() {
            self.poll.wait(time);
        }
        Ok(())
    }

    /// The packets that the device dropped. Those that the port dropped are in its counters.
    pub fn counts(&self) -> Counts {
        Counts { bad_checksums: self.rx.bad_checksums, refused: self.tx.refused }
    }

    /// The queues, for their counters.
    pub fn queues(&self) -> (&R, &T) {
        (&self.rx.queue, &self.tx.queue)
    }
}

impl<R: RxQueue> Received<R> {
    fn turn(&mut self) {
        if self.waiting.is_empty() {
            self.queue.refill();
            let n = self.queue.rx(&mut self.burst);
            self.waiting.extend(self.burst.drain_front(n));
        }
    }

    /// The next sound packet; joined if it has fragments.
    fn next(&mut self, cache: &mut Cache) -> Option<Packet> {
        loop {
            let packet = self.waiting.pop_front()?;
            let is_joined = packet.linear().len() < packet.len();
            if is_joined {
                self.joined.resize(packet.len(), 0);
                packet.copy_to(0, &mut self.joined);
            }
            let bytes = if is_joined { &self.joined } else { packet.linear() };
            if is_sound(bytes, packet.csum() != packet::Checksum::Unknown) {
                return Some(packet);
            }
            self.bad_checksums += 1;
            cache.free(packet);
        }
    }
}

impl<T: TxQueue> Transmitter<T> {
    /// Sends what was written, as far as the port takes it.
    fn flush(&mut self) {
        self.queue.reclaim();
        loop {
            let can = self.queue.offloads();
            self.offload.apply(&mut self.written, &mut self.ready, can);
            if self.ready.is_empty() {
                break;
            }
            if self.queue.tx(&mut self.ready) == 0 {
                if self.queue.offloads() == can {
                    break;
                }
                // It has just lost an ability.
                self.offload.reapply(&mut self.ready, self.queue.offloads());
            }
        }
        self.queue.kick();
    }

    fn token(&mut self) -> Option<PortTxToken<'_, T>> {
        if self.written.room() == 0 {
            return None;
        }
        let packet = self.cache.alloc()?;
        Some(PortTxToken { packet: Some(packet), size: None, tx: self })
    }
}

impl<R: RxQueue, T: TxQueue> phy::Device for PortDevice<R, T> {
    type RxToken<'a>
        = PortRxToken<'a>
    where
        Self: 'a;
    type TxToken<'a>
        = PortTxToken<'a, T>
    where
        Self: 'a;

    fn receive(&mut self, _timestamp: Instant) -> Option<(PortRxToken<'_>, PortTxToken<'_, T>)> {
        self.tx.flush();
        self.rx.turn();
        // First, because a packet without a token for its answer would be lost.
        let token = self.tx.token()?;
        let packet = self.rx.next(&mut token.tx.cache)?;
        Some((PortRxToken { packet, joined: &self.rx.joined }, token))
    }

    fn transmit(&mut self, _timestamp: Instant) -> Option<PortTxToken<'_, T>> {
        self.tx.flush();
        self.tx.token()
    }

    fn capabilities(&self) -> DeviceCapabilities {
        // An IP packet has at most 64 KiB.
        offload::capabilities(self.mtu, (CHUNK - self.tx.cache.headroom()).min(65535))
    }
}

/// A received packet.
pub struct PortRxToken<'a> {
    packet: Packet,
    joined: &'a [u8],
}

impl phy::RxToken for PortRxToken<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        let linear = self.packet.linear();
        f(if linear.len() < self.packet.len() { self.joined } else { linear })
    }
}

/// Room for a packet.
pub struct PortTxToken<'a, T: TxQueue> {
    packet: Option<Packet>,
    /// Payload bytes of each segment of a super-packet.
    size: Option<NonZeroU16>,
    tx: &'a mut Transmitter<T>,
}

impl<T: TxQueue> phy::TxToken for PortTxToken<'_, T> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(mut self, len: usize, f: F) -> R {
        let packet = self.packet.take();
        let Some(mut packet) = packet.filter(|packet| packet.tailroom() >= len) else {
            // No such packet was offered in the capabilities.
            self.tx.refused += 1;
            return f(&mut vec![0; len]);
        };
        // There is room.
        let _ = packet.push_back(len);
        let result = f(packet.linear_mut());
        let (request, len) = request(packet.linear_mut(), self.size);
        packet.truncate(len);
        let (start, gso) = match request {
            Request::None => (None, None),
            Request::Checksum(start) => (Some(start), None),
            Request::Segments(segments) => {
                let gso = Gso { kind: segments.kind, ecn: false, size: segments.size, segs: 0, hdr_len: 0 };
                (Some(segments.transport), Some(gso))
            }
        };
        if let Some(start) = start {
            packet.set_csum(packet::Checksum::Partial { start, offset: tcp::offset::CHECKSUM as u8 });
        }
        packet.set_gso(gso);
        // A token has room in the batch.
        let _ = self.tx.written.push(packet);
        self.tx.flush();
        result
    }

    fn set_meta(&mut self, meta: PacketMeta) {
        self.size = meta.segmentation_offload_size;
    }
}

impl<T: TxQueue> Drop for PortTxToken<'_, T> {
    fn drop(&mut self) {
        if let Some(packet) = self.packet.take() {
            self.tx.cache.free(packet);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smoltcp::phy::{Device, TxToken};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use towpath_packet::Counters;
    use towpath_packet::port::{Info, Needs, State};

    /// A port that receives one packet, keeps all other chunks that it gets, and sends nothing
    /// until it is open.
    struct Full(Info, Arc<AtomicBool>);

    struct FullRx {
        _kept: Vec<Packet>,
        packet: Option<Packet>,
        counters: Arc<Counters>,
    }

    struct FullTx(Arc<AtomicBool>, Arc<Counters>);

    impl Port for Full {
        type Rx = FullRx;
        type Tx = FullTx;

        fn info(&self) -> &Info {
            &self.0
        }

        fn needs(&self) -> Needs {
            Needs::none()
        }

        fn start(self, start: Start) -> Result<Queues<FullRx, FullTx>, PortError> {
            let mut cache = start.pool.cache(Direction::Rx).unwrap();
            let packet = Packet::copy_from(&mut cache, &[0; 60]);
            let kept = std::iter::from_fn(|| cache.alloc()).collect();
            let rx = FullRx { _kept: kept, packet, counters: Arc::default() };
            Ok(Queues { rx: vec![rx], tx: vec![FullTx(self.1, Arc::default())] })
        }
    }

    impl RxQueue for FullRx {
        fn rx(&mut self, out: &mut Batch) -> usize {
            self.packet.take().map_or(0, |packet| usize::from(out.push(packet).is_ok()))
        }

        fn wake(&self) -> Wake {
            Wake::Never
        }

        fn counters(&self) -> &Arc<Counters> {
            &self.counters
        }
    }

    impl TxQueue for FullTx {
        fn tx(&mut self, batch: &mut Batch) -> usize {
            let n = if self.0.load(Relaxed) { batch.len() } else { 0 };
            batch.drain_front(n).count()
        }

        fn offloads(&self) -> Offloads {
            Offloads::ALL
        }

        fn state(&self) -> State {
            State::Up
        }

        fn wake(&self) -> Wake {
            Wake::Never
        }

        fn counters(&self) -> &Arc<Counters> {
            &self.1
        }
    }

    #[test]
    fn a_large_receive_ring_leaves_memory_to_send_and_a_packet_waits_for_that_of_its_answer() {
        let open = Arc::new(AtomicBool::new(false));
        let port = Full(Info::new("full", Layer::Ethernet, 1500), open.clone());
        let mut device = PortDevice::start(port).unwrap();
        let mut sent = 0;
        while let Some(token) = device.transmit(Instant::ZERO) {
            token.consume(60, |_| ());
            sent += 1;
        }
        assert!(sent >= TX_CHUNKS && device.tx.written.room() > 0, "{sent}: memory is what is missing");
        assert!(device.receive(Instant::ZERO).is_none());
        open.store(true, Relaxed);
        assert!(device.receive(Instant::ZERO).is_some());
    }
}
