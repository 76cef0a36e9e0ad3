//! Bridges of ports that a test feeds, against a plain model.

use super::fdb::FdbConfig;
use super::*;
use crate::hub::{Hub, HubPort};
use crate::route::RouteConfig;
use crate::route::tests::{Sink, Source};
use crate::worker::Task;
use proptest::prelude::*;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;
use towpath_packet::{Backing, Cache, Direction, Offloads, Pool, PoolConfig};

/// A bridge, its ports numbered from 0.
pub(crate) struct Rig {
    pub(crate) hub: Hub<Source, Sink, Bridge>,
    pub(crate) pool: Pool,
    pub(crate) cache: Cache,
    pub(crate) fdb: Arc<Fdb>,
    ports: usize,
}

/// `02:00:00:00:00:n`.
pub(crate) fn mac(n: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, n]
}

/// A frame of 60 bytes, with a number in it.
pub(crate) fn frame(to: [u8; 6], from: [u8; 6], number: u32) -> Vec<u8> {
    let mut frame = [&to[..], &from, &[0x88, 0xb5], &number.to_be_bytes()].concat();
    frame.resize(60, 0);
    frame
}

fn number(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[14..18].try_into().unwrap())
}

impl Rig {
    pub(crate) fn new(is_vlan_aware: bool, ports: &[BridgePort], can: Offloads, config: RouteConfig) -> Rig {
        let pool = Pool::new(PoolConfig::default().capacity(2048).backing(Backing::Anonymous)).unwrap();
        let fdb = Arc::new(Fdb::new(FdbConfig { max_entries: 1000, ageing: Duration::from_secs(300) }));
        let hub = Hub::new(Bridge::new(fdb.clone(), is_vlan_aware)).unwrap();
        let cache = pool.cache(Direction::Tx).unwrap();
        let mut rig = Rig { hub, pool, cache, fdb, ports: 0 };
        for port in ports {
            let port = rig.port(port, can, config);
            rig.hub.add(rig.ports, port);
            rig.ports += 1;
        }
        rig
    }

    pub(crate) fn port(
        &self,
        port: &BridgePort,
        can: Offloads,
        config: RouteConfig,
    ) -> HubPort<Source, Sink, PortState> {
        let cache = self.pool.cache(Direction::Tx).unwrap();
        HubPort::new(Source::new(VecDeque::new()), Sink::new(can), cache, config, PortState::new(port, 1))
    }

    pub(crate) fn plain(ports: usize) -> Rig {
        Rig::new(false, &vec![BridgePort::default(); ports], Offloads::ALL, RouteConfig::default())
    }

    pub(crate) fn receives(&mut self, port: usize, bytes: &[u8], vlan: Option<Vlan>) {
        let mut packet = Packet::copy_from(&mut self.cache, bytes).unwrap();
        packet.set_vlan(vlan);
        self.hub.port_mut(port).unwrap().rx_mut().packets.push_back(packet);
    }

    /// What left by each port since the last call, with tags in the frames.
    pub(crate) fn turn(&mut self) -> Vec<Vec<Vec<u8>>> {
        while self.hub.turn(false) > 0 {}
        (0..self.ports).map(|port| self.sent(port)).collect()
    }

    pub(crate) fn sent(&mut self, port: usize) -> Vec<Vec<u8>> {
        let Some(port) = self.hub.port_mut(port) else { return Vec::new() };
        let with_tag = |packet: Packet| {
            let mut bytes = packet.to_vec();
            if let Some(vlan) = packet.vlan() {
                let tpid = if vlan.service { 0x88a8u16 } else { 0x8100 };
                bytes.splice(12..12, [tpid.to_be_bytes(), vlan.tci.to_be_bytes()].concat());
            }
            bytes
        };
        port.tx_mut().got.drain(..).map(with_tag).collect()
    }

    /// The ports that a frame leaves by.
    fn goes(&mut self, port: usize, to: [u8; 6], from: [u8; 6]) -> Vec<usize> {
        self.receives(port, &frame(to, from, 0), None);
        let sent = self.turn();
        (0..self.ports).flat_map(|port| vec![port; sent[port].len()]).collect()
    }

    pub(crate) fn dropped(&mut self, port: usize, reason: DropReason) -> u64 {
        self.hub.port_mut(port).unwrap().counters().snapshot().dropped(reason)
    }

    /// received + split + flooded = sent + merged + drops + held
    pub(crate) fn balances(&mut self) {
        let (mut came, mut left) = (0, 0);
        for port in 0..self.ports {
            let Some(port) = self.hub.port_mut(port) else { continue };
            let own = port.counters().snapshot();
            let received = RxQueue::counters(port.rx_mut()).snapshot().packets;
            let sent = TxQueue::counters(port.tx_mut()).snapshot().packets;
            came += received + own.split + own.flooded;
            left += sent + own.merged + own.all_drops() + port.in_port() as u64;
        }
        assert_eq!(came, left);
    }
}

#[test]
fn an_unknown_address_is_flooded_and_a_known_one_leaves_by_its_port_alone() {
    let mut rig = Rig::plain(4);
    assert_eq!(rig.goes(0, mac(2), mac(1)), [1, 2, 3]);
    assert_eq!(rig.goes(2, mac(1), mac(2)), [0]);
    assert_eq!(rig.goes(0, mac(2), mac(1)), [2]);
    assert_eq!(rig.goes(0, [0xff; 6], mac(1)), [1, 2, 3]);
    assert_eq!(rig.goes(0, [1, 0, 0x5e, 0, 0, 1], mac(1)), [1, 2, 3]);
    rig.balances();
}

#[test]
fn a_frame_never_leaves_by_the_port_that_it_came_from() {
    let mut rig = Rig::plain(2);
    rig.goes(0, mac(9), mac(1));
    assert_eq!(rig.goes(0, mac(1), mac(2)), []);
    assert_eq!(rig.dropped(0, DropReason::SamePort), 1);
    rig.balances();
}

#[test]
fn a_station_that_moves_is_found_at_its_new_port_with_its_first_frame() {
    let mut rig = Rig::plain(3);
    rig.goes(0, mac(9), mac(1));
    rig.goes(1, mac(9), mac(1));
    assert_eq!(rig.goes(2, mac(1), mac(3)), [1]);
    assert_eq!(rig.fdb.stats().moved, 1);
}

#[test]
fn an_address_that_an_earlier_frame_of_the_burst_made_known_is_not_flooded() {
    let mut rig = Rig::plain(3);
    // Port 0 is served first, with both of its frames.
    rig.receives(0, &frame(mac(2), mac(1), 0), None);
    rig.receives(1, &frame(mac(1), mac(2), 1), None);
    let sent = rig.turn();
    assert_eq!((sent[0].len(), sent[1].len(), sent[2].len()), (1, 1, 1));
}

#[test]
fn reserved_groups_are_not_forwarded_but_for_the_spanning_tree_of_others() {
    let mut rig = Rig::plain(2);
    for last in 0..=0x10 {
        let expected: &[usize] = if matches!(last, 0 | 0x10) { &[1] } else { &[] };
        assert_eq!(rig.goes(0, [1, 0x80, 0xc2, 0, 0, last], mac(1)), expected, "{last:x}");
    }
    assert_eq!(rig.dropped(0, DropReason::Reserved), 15);
    rig.balances();
}

#[test]
fn sources_that_are_groups_or_zero_and_frames_that_are_too_short_are_malformed() {
    let mut rig = Rig::plain(2);
    assert_eq!(rig.goes(0, mac(2), [3, 0, 0, 0, 0, 1]), []);
    assert_eq!(rig.goes(0, mac(2), [0; 6]), []);
    rig.receives(0, &frame(mac(2), mac(1), 0)[..13], None);
    assert_eq!(rig.turn()[1].len(), 0);
    assert_eq!(rig.dropped(0, DropReason::Malformed), 3);
    assert_eq!(rig.fdb.stats().entries, 0);
    // The shortest frame that has a header.
    rig.receives(0, &frame(mac(2), mac(1), 0)[..14], None);
    assert_eq!(rig.turn()[1].len(), 1);
    rig.balances();
}

#[test]
fn ports_of_one_group_exchange_nothing_whether_the_address_is_known_or_not() {
    let grouped = BridgePort { group: 1, ..BridgePort::default() };
    let ports = [grouped.clone(), grouped, BridgePort::default()];
    let mut rig = Rig::new(false, &ports, Offloads::ALL, RouteConfig::default());
    assert_eq!(rig.goes(0, mac(2), mac(1)), [2]);
    assert_eq!(rig.goes(1, mac(1), mac(2)), []);
    assert_eq!(rig.goes(2, mac(1), mac(3)), [0]);
    assert_eq!(rig.goes(2, mac(9), mac(3)), [0, 1]);
    rig.balances();
}

#[test]
fn a_storm_is_bounded_and_known_addresses_are_not_held_up() {
    let storm = StormLimits { unknown: Some(0), broadcast: Some(10), multicast: None };
    let ports = [BridgePort { storm, ..BridgePort::default() }, BridgePort::default()];
    let mut rig = Rig::new(false, &ports, Offloads::ALL, RouteConfig::default());
    rig.goes(1, mac(9), mac(2));
    assert_eq!(rig.goes(0, mac(8), mac(1)), []);
    assert_eq!(rig.goes(0, mac(2), mac(1)), [1]);
    for _ in 0..1000 {
        rig.receives(0, &frame([0xff; 6], mac(1), 0), None);
    }
    let granted = rig.turn()[1].len() as u64;
    assert!((64..=200).contains(&granted), "{granted}");
    assert_eq!(rig.dropped(0, DropReason::Storm), 1 + 1000 - granted);
    assert_eq!(rig.goes(1, [0xff; 6], mac(2)), [0], "other ports have limits of their own");
    rig.balances();
}

#[test]
fn a_flood_of_sources_is_not_learned_beyond_the_limit_of_the_port_and_others_stay_known() {
    let mut rig = Rig::plain(2);
    rig.goes(1, mac(9), mac(2));
    rig.fdb.set_port_limit(0, Some(5));
    for n in 0..200u8 {
        rig.receives(0, &frame(mac(2), [2, 1, 0, 0, 0, n], 0), None);
    }
    assert_eq!(rig.turn()[1].len(), 200, "all are forwarded");
    assert_eq!((rig.fdb.port_entries(0), rig.fdb.port_entries(1)), (5, 1));
    assert_eq!(rig.fdb.stats().refused, 195);
}

#[test]
fn a_super_packet_is_flooded_as_it_is_to_those_that_take_it() {
    use towpath_packet::{Checksum, Gso, GsoKind};
    let mut rig = Rig::plain(3);
    let mut bytes = frame(mac(2), mac(1), 0);
    bytes.resize(5000, 7);
    let mut packet = Packet::copy_from(&mut rig.cache, &bytes).unwrap();
    packet.set_csum(Checksum::Partial { start: 34, offset: 16 });
    let gso = Gso { kind: GsoKind::Tcp4, ecn: false, size: 1000, segs: 5, hdr_len: 54 };
    packet.set_gso(Some(gso));
    rig.hub.port_mut(0).unwrap().rx_mut().packets.push_back(packet);
    while rig.hub.turn(false) > 0 {}
    for port in [1, 2] {
        let sent = rig.hub.port_mut(port).unwrap().tx_mut().got.pop().unwrap();
        assert_eq!((sent.gso(), sent.to_vec()), (Some(gso), bytes.clone()));
    }
    rig.balances();
}

#[test]
fn a_service_tag_is_payload_and_is_inside_of_the_tag_that_a_trunk_adds() {
    let trunk = PortMode::Trunk { vlans: "7".parse().unwrap(), native: None };
    let ports =
        [PortMode::Access(7), trunk, PortMode::Access(7)].map(|mode| BridgePort { mode, ..BridgePort::default() });
    let mut rig = Rig::new(true, &ports, Offloads::ALL, RouteConfig::default());
    rig.receives(0, &frame(mac(2), mac(1), 0), Some(Vlan { tci: 99, service: true }));
    let sent = rig.turn();
    assert_eq!(sent[1][0][12..20], [0x81, 0, 0, 7, 0x88, 0xa8, 0, 99]);
    assert_eq!(sent[2][0][12..16], [0x88, 0xa8, 0, 99]);
    rig.balances();
}

/// A bridge as IEEE 802.1Q describes it, without a thought of speed.
struct Model {
    aware: bool,
    ports: Vec<BridgePort>,
    known: HashMap<(u16, [u8; 6]), usize>,
}

impl Model {
    fn native(&self, port: usize) -> Option<u16> {
        match &self.ports[port].mode {
            PortMode::Plain => Some(1),
            PortMode::Access(vlan) => Some(*vlan),
            PortMode::Trunk { native, .. } => *native,
        }
    }

    fn is_member(&self, port: usize, vlan: u16) -> bool {
        let tagged = matches!(&self.ports[port].mode, PortMode::Trunk { vlans, .. } if vlans.contains(vlan));
        tagged || self.native(port) == Some(vlan)
    }

    /// The frames that leave, each with its port.
    fn receives(&mut self, ingress: usize, frame: &[u8]) -> Vec<(usize, Vec<u8>)> {
        let (to, from): ([u8; 6], [u8; 6]) = (frame[..6].try_into().unwrap(), frame[6..12].try_into().unwrap());
        if from[0] & 1 != 0 || from == [0; 6] {
            return Vec::new();
        }
        let (mut vlan, mut priority, mut untagged) = (0, 0, frame.to_vec());
        if self.aware {
            if frame[12..14] == [0x81, 0] {
                let tci = u16::from_be_bytes([frame[14], frame[15]]);
                (vlan, priority) = (tci & 0xfff, tci & 0xf000);
                untagged.drain(12..16);
            }
            if vlan == 0 {
                match self.native(ingress) {
                    Some(native) => vlan = native,
                    None => return Vec::new(),
                }
            }
            if !self.is_member(ingress, vlan) {
                return Vec::new();
            }
        }
        self.known.insert((vlan, from), ingress);
        let mut egresses: Vec<_> = (0..self.ports.len()).collect();
        if let Some(port) = self.known.get(&(vlan, to)).filter(|_| to[0] & 1 == 0) {
            egresses = vec![*port];
        }
        egresses.retain(|&port| {
            let (here, there) = (self.ports[ingress].group, self.ports[port].group);
            port != ingress && (here == 0 || here != there) && (!self.aware || self.is_member(port, vlan))
        });
        let tagged = |port: usize| {
            let mut frame = untagged.clone();
            if self.aware && self.native(port) != Some(vlan) {
                frame.splice(12..12, [[0x81, 0], (priority | vlan).to_be_bytes()].concat());
            }
            (port, frame)
        };
        egresses.into_iter().map(tagged).collect()
    }
}

fn mode() -> impl Strategy<Value = PortMode> {
    let vlans = proptest::collection::vec(1u16..5, 1..4);
    prop_oneof![
        Just(PortMode::Plain),
        (1u16..5).prop_map(PortMode::Access),
        (vlans, proptest::option::of(1u16..5))
            .prop_map(|(vlans, native)| PortMode::Trunk { vlans: vlans.into_iter().collect(), native }),
    ]
}

/// Ingress, addresses, the tag, and whether it is beside the frame.
type Arrival = (usize, [u8; 6], [u8; 6], Option<u16>, bool);

fn arrival() -> impl Strategy<Value = Arrival> {
    let address = prop_oneof![
        8 => (1u8..6).prop_map(mac),
        1 => Just([0xff; 6]),
        1 => Just([1, 0, 0x5e, 0, 0, 1]),
    ];
    let tag = proptest::option::of((0u16..8, 0u16..6).prop_map(|(priority, vlan)| priority << 13 | vlan));
    (0usize..4, address.clone(), address, tag, any::<bool>())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_bridge_does_what_a_plain_model_does(
        aware in any::<bool>(),
        modes in proptest::collection::vec((mode(), 0u16..3), 4),
        can in prop_oneof![Just(Offloads::ALL), Just(Offloads::NONE)],
        bursts in proptest::collection::vec(proptest::collection::vec(arrival(), 1..20), 1..12),
    ) {
        let port = |(mode, group)| BridgePort { mode, group, ..BridgePort::default() };
        let ports: Vec<_> = modes.into_iter().map(port).collect();
        let mut rig = Rig::new(aware, &ports, can, RouteConfig::default());
        let mut model = Model { aware, ports, known: HashMap::new() };
        let mut count = 0;
        for mut burst in bursts {
            // A turn serves the ports in the order of their numbers.
            burst.sort_by_key(|arrival| arrival.0);
            let mut expected = vec![Vec::new(); 4];
            for (ingress, to, from, tag, beside) in burst {
                count += 1;
                let bytes = frame(to, from, count);
                let mut on_wire = bytes.clone();
                if let Some(tci) = tag {
                    on_wire.splice(12..12, [[0x81, 0], tci.to_be_bytes()].concat());
                }
                for (egress, frame) in model.receives(ingress, &on_wire) {
                    expected[egress].push(frame);
                }
                if beside {
                    rig.receives(ingress, &bytes, tag.map(|tci| Vlan { tci, service: false }));
                } else {
                    rig.receives(ingress, &on_wire, None);
                }
            }
            prop_assert_eq!(rig.turn(), expected);
            rig.balances();
        }
        drop(rig.hub);
        drop(rig.cache);
        prop_assert_eq!(rig.pool.stats().free, 2048);
    }
}

#[test]
fn the_order_of_a_flow_is_kept_through_bursts_to_several_ports() {
    let mut rig = Rig::plain(3);
    rig.goes(1, mac(9), mac(11));
    rig.goes(2, mac(9), mac(12));
    for n in 0..1000 {
        let to = if n % 3 == 0 { mac(11) } else { mac(12) };
        rig.receives(0, &frame(to, mac(1), n), None);
    }
    let sent = rig.turn();
    for port in [1, 2] {
        assert!(sent[port].iter().map(|frame| number(frame)).is_sorted());
    }
    assert_eq!(sent[1].len() + sent[2].len(), 1000);
}
