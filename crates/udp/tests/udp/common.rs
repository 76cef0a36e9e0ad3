//! What several tests use.

use std::net::SocketAddr;
use std::time::Duration;
use towpath_udp::{UdpBatch, UdpConfig};

pub(crate) const LOOPBACK: &str = "127.0.0.1:0";

/// A batch that waits for ten seconds at most.
pub(crate) fn bind(address: &str, config: &UdpConfig) -> UdpBatch {
    let batch = UdpBatch::bind(address.parse().unwrap(), config).unwrap();
    batch.socket().set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    batch
}

pub(crate) fn address(batch: &UdpBatch) -> SocketAddr {
    batch.socket().local_addr().unwrap()
}

/// Sends everything that is pending.
pub(crate) fn flush(batch: &mut UdpBatch) {
    while batch.sender.pending() > 0 {
        batch.sender.flush().unwrap();
    }
}

/// Receives `n` datagrams, or as many as come in time.
pub(crate) fn receive(batch: &mut UdpBatch, n: usize) -> Vec<Vec<u8>> {
    let mut datagrams = vec![];
    while datagrams.len() < n && batch.receiver.receive().is_ok() {
        for message in batch.receiver.messages() {
            datagrams.extend(message.iter().map(<[u8]>::to_vec));
        }
    }
    datagrams
}

/// Asserts that each datagram that was pushed is sent, dropped or pending.
pub(crate) fn balanced(batch: &UdpBatch, pushed: u64) {
    let stats = batch.sender.stats();
    assert_eq!(stats.datagrams + stats.dropped + batch.sender.pending() as u64, pushed, "{stats:?}");
}
