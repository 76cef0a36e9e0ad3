//! What the tests of all ports share: pools, packets, and waiting.

use std::time::{Duration, Instant};
use towpath_datapath::uri::Uri;
use towpath_packet::port::{Port, Queues, RxQueue, Start, TxQueue};
use towpath_packet::{Backing, Batch, Cache, Direction, Offloads, Packet, Pool, PoolConfig};
use towpath_wire::emit::{Checksums, Headers, Ip, Link, Network, Tcp, Transport, Udp};
use towpath_wire::tcp;

/// How long a test waits for what must happen.
pub const PATIENCE: Duration = Duration::from_secs(5);

pub fn uri(text: &str) -> Uri {
    text.parse().unwrap()
}

pub fn pool() -> Pool {
    Pool::new(PoolConfig { capacity: 4096, backing: Backing::Anonymous, ..PoolConfig::default() }).unwrap()
}

pub fn start<P: Port>(port: P, pool: &Pool, accept: Offloads) -> Queues<P::Rx, P::Tx> {
    let queues = port.info().max_queues;
    port.start(Start { pool: pool.clone(), queues, accept }).unwrap()
}

/// Receives until `wanted` says that it has seen what it waits for; everything else is dropped.
pub fn receive<R>(rx: &mut impl RxQueue, mut wanted: impl FnMut(Packet) -> Option<R>) -> R {
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

/// Sends one packet, which the queue must take.
pub fn send(tx: &mut impl TxQueue, packet: Packet) {
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

/// Waits until something is true.
pub fn until(what: &str, mut true_now: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !true_now() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn tx_cache(pool: &Pool) -> Cache {
    pool.cache(Direction::Tx).unwrap()
}

/// Bytes that are different at every place nearby.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

/// Frames between two hosts.
#[derive(Clone, Copy)]
pub struct Between {
    pub link: Option<Link>,
    pub ip: Ip,
}

impl Between {
    fn build(self, transport: Transport<'_>, payload: &[u8], checksums: Checksums) -> (Vec<u8>, u16, u16) {
        let headers = Headers { link: self.link, network: Network::Ip(self.ip, transport) };
        let mut frame = vec![0; headers.len() + payload.len()];
        headers.emit(&mut frame, payload, checksums).unwrap();
        (frame, headers.transport_offset() as u16, headers.len() as u16)
    }

    /// A datagram; returns where its transport header begins, and the length of all headers.
    pub fn udp(self, src_port: u16, dst_port: u16, payload: &[u8], checksums: Checksums) -> (Vec<u8>, u16, u16) {
        self.build(Transport::Udp(Udp { src_port, dst_port }), payload, checksums)
    }

    /// A TCP segment, likewise.
    pub fn tcp(self, src_port: u16, dst_port: u16, payload: &[u8], checksums: Checksums) -> (Vec<u8>, u16, u16) {
        let flags = tcp::flags::ACK | tcp::flags::PSH;
        let t = Tcp { src_port, dst_port, seq: 1000, ack: 1, flags, window: 1000, ..Tcp::default() };
        self.build(Transport::Tcp(t), payload, checksums)
    }
}
