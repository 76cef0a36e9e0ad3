//! `xdp:`, on the ends of veth pairs.
//!
//! ```text
//!   bytes     chunks of every kind, fragments, checksums, buffers outside the UMEM
//!   flows     the flows that are received, and their queues
//!   live      frames that a program makes in the kernel
//!   senders   ports that only send, and the host's traffic beside them
//!   failures  errors and their hints, links that fail, deleted interfaces, queues that stall
//! ```

mod bytes;
mod failures;
mod flows;
mod live;
mod senders;

use crate::common::*;
use crate::support::{Namespace, Need};
use std::net::UdpSocket;
use towpath_packet::port::{PortError, Queues};
use towpath_packet::{Backing, Offloads, Pool, PoolConfig};
use towpath_ports::xdp::{Config, XdpPort, XdpRx, XdpTx, open};
use towpath_wire::emit::{Ip, Link};

const NEEDS: &[Need] = &[Need::Root, Need::Program("ip"), Need::Program("ethtool")];

/// A host with 10.0.0.1 on its end `h0` of a veth pair; the other end `p0`, in a namespace of its
/// own, is the port's.
struct Pair {
    host: Namespace,
    middle: Namespace,
}

fn pair(more: &str) -> Pair {
    let (host, middle) = (Namespace::new("host"), Namespace::new("mid"));
    host.ip(&format!("link add h0 {more} type veth peer name p0 {more} netns {}", middle.name()));
    host.ip("link set h0 address 02:00:00:00:00:01");
    host.ip("link set h0 up");
    middle.ip("link set p0 up");
    host.ip("addr add 10.0.0.1/24 dev h0");
    host.ip("neigh add 10.0.0.2 dev h0 lladdr 02:00:00:00:00:02");
    Pair { host, middle }
}

impl Pair {
    fn try_open(&self, options: &str) -> Result<XdpPort, PortError> {
        open(Config::from_uri(&uri(&format!("xdp:p0?netns={}{options}", self.middle.name())))?)
    }

    fn start(&self, options: &str, pool: &Pool) -> Queues<XdpRx, XdpTx> {
        start(self.try_open(options).unwrap(), pool, Offloads::ALL)
    }

    fn socket(&self, port: u16) -> UdpSocket {
        socket(&self.host, &format!("10.0.0.1:{port}"))
    }

    /// The interface has no program, as `ip` sees it. A child process of another test may hold the
    /// descriptors between fork and exec.
    #[track_caller]
    fn is_free(&self) {
        until("the program goes with the port", || !self.middle.ip("-d link show dev p0").contains("prog/xdp"));
    }
}

fn to_host() -> Between {
    let link = Link { dst: [2, 0, 0, 0, 0, 1], src: [2, 0, 0, 0, 0, 2], ..Link::default() };
    Between { link: Some(link), ip: Ip::v4([10, 0, 0, 2], [10, 0, 0, 1]) }
}

fn datagram(socket: &UdpSocket) -> Vec<u8> {
    let mut buffer = vec![0; 70_000];
    let n = socket.recv(&mut buffer).unwrap();
    buffer.truncate(n);
    buffer
}

/// All buffers are free after the queues are dropped.
#[track_caller]
fn all_free(pool: &Pool) {
    let stats = pool.stats();
    assert_eq!(stats.free, stats.capacity);
}

fn pool_of(chunk: usize) -> Pool {
    let backing = Backing::Anonymous;
    Pool::new(PoolConfig::default().capacity(4096).chunk(chunk).backing(backing)).unwrap()
}
