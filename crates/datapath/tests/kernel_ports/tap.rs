//! `tap:` and `tun:`.

use crate::common::*;
use crate::support::{Namespace, Need, needs};
use std::net::UdpSocket;
use towpath_datapath::ports::tun::{Config, TunPort, TunRx, TunTx, open};
use towpath_packet::port::{Info, Port, PortError, Queues, RxQueue, State, TxQueue};
use towpath_packet::{Batch, Csum, DropReason, Gso, GsoKind, Offloads, Packet};
use towpath_wire::emit::{Checksums, Ip, Link};
use towpath_wire::{LinkKind, Tcp, Udp, dissect};

const NEEDS: &[Need] = &[Need::Root, Need::Tun];
/// Hardware addresses: the interface's, and that of the host that the tests play.
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const PEER: [u8; 6] = [2, 0, 0, 0, 0, 2];

fn try_open(text: &str) -> Result<TunPort, PortError> {
    open(Config::from_uri(&uri(text))?)
}

/// A tap in `ns` with 10.0.0.1 and fd00::1, where 10.0.0.2 and fd00::2 are known to be at `PEER`.
fn tap(ns: &Namespace, options: &str, accept: Offloads) -> (Info, Queues<TunRx, TunTx>) {
    let mac = "mac=02:00:00:00:00:01,addr=10.0.0.1/24+fd00::1/64";
    let port = try_open(&format!("tap:tp0?netns={},{mac}{options}", ns.name())).unwrap();
    let info = port.info().clone();
    let queues = start(port, &pool(), accept);
    ns.ip("neigh add 10.0.0.2 dev tp0 lladdr 02:00:00:00:00:02");
    ns.ip("neigh add fd00::2 dev tp0 lladdr 02:00:00:00:00:02");
    (info, queues)
}

fn to_host() -> Between {
    Between { link: Some(Link { dst: MAC, src: PEER, ..Link::default() }), ip: Ip::v4([10, 0, 0, 2], [10, 0, 0, 1]) }
}

fn udp_payload(bytes: &[u8], link: LinkKind) -> Option<Vec<u8>> {
    let d = dissect(bytes, link);
    let datagram = Udp::parse(bytes.get(d.l4.into()..)?).ok()?;
    Some(datagram.payload().to_vec())
}

#[test]
fn bytes_go_through_a_tap_unchanged_in_both_directions() {
    if !needs("bytes_go_through_a_tap_unchanged_in_both_directions", NEEDS) {
        return;
    }
    let ns = Namespace::new("tap");
    let (info, mut q) = tap(&ns, "", Offloads::NONE);
    println!("{info:#?}");
    let socket = ns.inside(|| UdpSocket::bind("10.0.0.1:7000").unwrap());
    let payload = pattern(1400);

    socket.send_to(&payload, "10.0.0.2:9").unwrap();
    receive(&mut q.rx[0], |p| {
        assert!(!p.wants_offload(), "nothing was accepted");
        (udp_payload(&p.to_vec(), LinkKind::Ethernet)? == payload).then_some(())
    });

    let mut cache = tx_cache(&pool());
    let (frame, ..) = to_host().udp(9, 7000, &payload, Checksums::Full);
    send(&mut q.tx[0], Packet::copy_from(&mut cache, &frame).unwrap());
    let mut buffer = [0; 2000];
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let (n, from) = socket.recv_from(&mut buffer).unwrap();
    assert_eq!((&buffer[..n], from.to_string().as_str()), (payload.as_slice(), "10.0.0.2:9"));
}
