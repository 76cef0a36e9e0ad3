//! `tap:` and `tun:`.
//!
//! ```text
//!   open       the probe, errors and their hints, persistence
//!   bytes      bytes and checksums
//!   offloads   super-packets
//!   queues     the queue that the kernel chooses for a flow
//!   failures   invalid packets, links that fail, deleted interfaces, exhausted pools
//! ```

mod bytes;
mod failures;
mod offloads;
mod open;
mod queues;

use crate::common::*;
use crate::support::{Namespace, Need};
use std::net::UdpSocket;
use towpath_packet::port::{Info, Port, PortError, Queues};
use towpath_packet::{Offloads, Packet};
use towpath_ports::tun::{Config, TunPort, TunRx, TunTx, open};
use towpath_wire::emit::{Ip, Link};

const NEEDS: &[Need] = &[Need::Root, Need::Tun];

fn try_open(text: &str) -> Result<TunPort, PortError> {
    open(Config::from_uri(&uri(text))?)
}

/// A tap in `ns` with 10.0.0.1 and fd00::1; the neighbours 10.0.0.2 and fd00::2 are the test.
fn tap(ns: &Namespace, options: &str, accept: Offloads) -> (Info, Queues<TunRx, TunTx>) {
    let own = "mac=02:00:00:00:00:01,addr=10.0.0.1/24+fd00::1/64";
    let port = try_open(&format!("tap:tp0?netns={},{own}{options}", ns.name())).unwrap();
    let info = port.info().clone();
    let queues = start(port, &pool(), accept);
    ns.ip("neigh replace 10.0.0.2 dev tp0 lladdr 02:00:00:00:00:02");
    ns.ip("neigh replace fd00::2 dev tp0 lladdr 02:00:00:00:00:02");
    (info, queues)
}

fn link() -> Link {
    Link { dst: [2, 0, 0, 0, 0, 1], src: [2, 0, 0, 0, 0, 2], ..Link::default() }
}

/// Frames from the test to the host behind the tap.
fn to_host() -> Between {
    Between { link: Some(link()), ip: Ip::v4([10, 0, 0, 2], [10, 0, 0, 1]) }
}

fn packet(bytes: &[u8]) -> Packet {
    Packet::copy_from(&mut tx_cache(&pool()), bytes).unwrap()
}

fn datagram(socket: &UdpSocket) -> Vec<u8> {
    let mut buffer = vec![0; 70_000];
    let (n, from) = socket.recv_from(&mut buffer).unwrap();
    assert_eq!(from.port(), 9);
    buffer.truncate(n);
    buffer
}
