//! Shared parts of the tests: pools, packets, and waits.

use crate::support::Namespace;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use towpath_engine::route::{Route, RouteConfig};
use towpath_packet::port::{Port, Queues, RxBarrier, RxMemory, RxQueue, Start, State, TxLayout, TxQueue, Wake};
use towpath_packet::{Backing, Batch, Cache, Counters, Direction, Offloads, Packet, Pool, PoolConfig};
use towpath_ports::uri::Uri;
use towpath_wire::emit::{self, Checksums, Headers, Ip, Link, Network, Transport};
use towpath_wire::{LinkKind, Udp, dissect, tcp};

/// Time limit of a wait.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn uri(text: &str) -> Uri {
    text.parse().unwrap()
}

pub(crate) fn pool() -> Pool {
    Pool::new(PoolConfig::default().capacity(4096).backing(Backing::Anonymous)).unwrap()
}

pub(crate) fn start<P: Port>(port: P, pool: &Pool, accept: Offloads) -> Queues<P::Rx, P::Tx> {
    let queues = port.info().max_queues;
    port.start(Start { pool: pool.clone(), queues, accept }).unwrap()
}

/// Receives until `wanted` returns a value; other packets are dropped.
pub(crate) fn receive<R>(rx: &mut impl RxQueue, mut wanted: impl FnMut(Packet) -> Option<R>) -> R {
    let end = Instant::now() + PATIENCE;
    let mut batch = Batch::new();
    loop {
        rx.refill();
        if rx.rx(&mut batch) == 0 {
            assert!(Instant::now() < end, "nothing that was waited for arrived; state {:?}", rx.state());
            std::thread::sleep(Duration::from_micros(200));
        }
        for packet in batch.drain_front(64) {
            if let Some(result) = wanted(packet) {
                return result;
            }
        }
    }
}

/// Sends one packet, which the queue must accept.
pub(crate) fn send(tx: &mut impl TxQueue, packet: Packet) {
    let mut batch = Batch::new();
    batch.push(packet).unwrap();
    let end = Instant::now() + PATIENCE;
    while !batch.is_empty() {
        tx.reclaim();
        tx.tx(&mut batch);
        tx.kick();
        assert!(Instant::now() < end, "the queue takes nothing; state {:?}", tx.state());
    }
}

/// Waits for a condition.
pub(crate) fn until(what: &str, mut true_now: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !true_now() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A socket of a host. A program that another test starts holds a closed one until its `exec`, and
/// the port is in use so long.
pub(crate) fn socket(host: &Namespace, address: &str) -> UdpSocket {
    let end = Instant::now() + PATIENCE;
    let socket = host.inside(|| {
        loop {
            match UdpSocket::bind(address) {
                Err(error) if error.kind() == ErrorKind::AddrInUse && Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                bound => return bound.unwrap(),
            }
        }
    });
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// Waits until no descriptor holds the persistent interface `name`, which must be up. A program that
/// another test starts holds closed descriptors until its `exec`.
pub(crate) fn is_detached(ns: &Namespace, name: &str) {
    // The carrier goes with the last descriptor.
    until("the interface is free", || !ns.ip(&format!("link show dev {name}")).contains("LOWER_UP"));
}

pub(crate) fn tx_cache(pool: &Pool) -> Cache {
    pool.cache(Direction::Tx).unwrap()
}

/// Bytes that differ from their neighbours.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

/// A frame in memory of its own: as a whole, and behind a head with the first `headers` bytes. Each
/// with the owner of the bytes, which the packet shares.
pub(crate) fn owned(frame: &[u8], headers: usize, cache: &mut Cache) -> [(Packet, Arc<[u8]>); 2] {
    let (whole, rest): (Arc<[u8]>, Arc<[u8]>) = (frame.into(), frame[headers..].into());
    let mut behind = Packet::copy_from(cache, &frame[..headers]).unwrap();
    behind.append(Packet::from_owner(rest.clone()).unwrap()).unwrap();
    [(Packet::from_owner(whole.clone()).unwrap(), whole), (behind, rest)]
}

/// Frames between two hosts.
#[derive(Clone, Copy)]
pub(crate) struct Between {
    pub(crate) link: Option<Link>,
    pub(crate) ip: Ip,
}

impl Between {
    fn build(self, transport: Transport<'_>, payload: &[u8], checksums: Checksums) -> (Vec<u8>, u16, u16) {
        let headers = Headers { link: self.link, network: Network::Ip(self.ip, transport) };
        let mut frame = vec![0; headers.len() + payload.len()];
        headers.emit(&mut frame, payload, checksums).unwrap();
        (frame, headers.transport_offset() as u16, headers.len() as u16)
    }

    /// A datagram; returns the offset of its transport header, and the length of all headers.
    pub(crate) fn udp(self, src_port: u16, dst_port: u16, payload: &[u8], checksums: Checksums) -> (Vec<u8>, u16, u16) {
        self.build(Transport::Udp(emit::Udp { src_port, dst_port }), payload, checksums)
    }

    /// A TCP segment, likewise.
    pub(crate) fn tcp(self, src_port: u16, dst_port: u16, payload: &[u8], checksums: Checksums) -> (Vec<u8>, u16, u16) {
        let flags = tcp::flags::ACK | tcp::flags::PSH;
        let t = emit::Tcp { src_port, dst_port, seq: 1000, ack: 1, flags, window: 1000, ..emit::Tcp::default() };
        self.build(Transport::Tcp(t), payload, checksums)
    }
}

/// A receive queue that records its longest super-packet.
pub(crate) struct Watched<R> {
    pub(crate) rx: R,
    pub(crate) longest: Arc<AtomicUsize>,
}

#[deny(clippy::missing_trait_methods)]
impl<R: RxQueue> RxQueue for Watched<R> {
    fn rx(&mut self, out: &mut Batch) -> usize {
        let n = self.rx.rx(out);
        for packet in out.iter().filter(|packet| packet.gso().is_some()) {
            self.longest.fetch_max(packet.len(), Ordering::Relaxed);
        }
        n
    }
    fn refill(&mut self) -> usize {
        self.rx.refill()
    }
    fn set_rx_offloads(&mut self, accept: Offloads) {
        self.rx.set_rx_offloads(accept);
    }
    fn set_tx_layout(&mut self, egress: TxLayout) {
        self.rx.set_tx_layout(egress);
    }
    fn order_barrier(&mut self) -> Option<&mut dyn RxBarrier> {
        self.rx.order_barrier()
    }
    fn memory(&self) -> RxMemory {
        self.rx.memory()
    }
    fn state(&self) -> State {
        self.rx.state()
    }
    fn wake(&self) -> Wake {
        self.rx.wake()
    }
    fn counters(&self) -> &Arc<Counters> {
        self.rx.counters()
    }
}

/// A thread that moves packets between two ports until it is dropped; records the longest
/// super-packet of each direction.
pub(crate) struct Forwarder {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    pub(crate) longest: [Arc<AtomicUsize>; 2],
}

impl Forwarder {
    pub(crate) fn new(
        a: Queues<impl RxQueue + 'static, impl TxQueue + 'static>,
        b: Queues<impl RxQueue + 'static, impl TxQueue + 'static>,
        pool: &Pool,
    ) -> Forwarder {
        let (stop, longest) = (Arc::new(AtomicBool::new(false)), <[Arc<AtomicUsize>; 2]>::default());
        let (mut a, mut b) = (a, b);
        let watch = |rx, longest: &Arc<AtomicUsize>| Watched { rx, longest: longest.clone() };
        let there = watch(a.rx.remove(0), &longest[0]);
        let back = Watched { rx: b.rx.remove(0), longest: longest[1].clone() };
        let config = RouteConfig::default();
        let mut there = Route::new(there, b.tx.remove(0), tx_cache(pool), config);
        let mut back = Route::new(back, a.tx.remove(0), tx_cache(pool), config);
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                if there.turn(false) + back.turn(false) == 0 {
                    std::thread::yield_now();
                }
            }
        });
        Forwarder { stop, thread: Some(thread), longest }
    }

    pub(crate) fn longest(&self, direction: usize) -> usize {
        self.longest[direction].load(Ordering::Relaxed)
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(Err(panic)) = self.thread.take().map(JoinHandle::join)
            && !std::thread::panicking()
        {
            std::panic::resume_unwind(panic);
        }
    }
}

/// Sends `bytes` bytes by TCP from one namespace to `to` in another, and back; the bytes must be
/// the same.
pub(crate) fn tcp_echo(client: &Namespace, server: &Namespace, to: &str, bytes: usize) {
    let listener = server.inside(|| TcpListener::bind(to).unwrap());
    let sent = pattern(bytes);
    std::thread::scope(|scope| {
        let echo = scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            let mut received = Vec::new();
            stream.read_to_end(&mut received).unwrap();
            stream.write_all(&received).unwrap();
        });
        let mut stream = client.inside(|| TcpStream::connect_timeout(&to.parse().unwrap(), PATIENCE).unwrap());
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&sent).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut received = Vec::new();
        stream.read_to_end(&mut received).unwrap();
        assert!(received == sent, "{} bytes came back of {}, or other ones", received.len(), sent.len());
        echo.join().unwrap();
    });
}

/// Sends a datagram of `payload` that the kernel may carry as one super-packet of datagrams of
/// `segment` bytes each (`UDP_SEGMENT`).
pub(crate) fn send_segmented(socket: &UdpSocket, payload: &[u8], segment: u16, to: &str) {
    let value = libc::c_int::from(segment);
    // SAFETY: UDP_SEGMENT reads one int.
    let set =
        unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, (&raw const value).cast(), 4) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
    socket.send_to(payload, to).unwrap();
}

/// Runs `f` on a thread without any capability.
pub(crate) fn unprivileged<R: Send>(f: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // Version 3 of the interface, this thread; effective, permitted and inheritable sets of
            // 64 bits: none.
            let (header, data) = ([0x2008_0522u32, 0], [0u32; 6]);
            // SAFETY: capset reads a header of two words and data of six.
            let set = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), data.as_ptr()) };
            assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
            f()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// The payload of a UDP datagram in an Ethernet frame.
pub(crate) fn udp_payload(packet: &Packet) -> Option<Vec<u8>> {
    let bytes = packet.to_vec();
    let headers = dissect(&bytes, LinkKind::Ethernet);
    let datagram = Udp::parse(bytes.get(headers.l4.into()..)?).ok()?;
    (headers.flow.protocol == 17).then(|| datagram.payload().to_vec())
}
