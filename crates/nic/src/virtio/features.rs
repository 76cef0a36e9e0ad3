//! Feature bits (virtio 1.2 §5.1.3, §6): which of them are negotiated, and what they mean for
//! packets.

use super::config::Config;
use super::rx::RxChains;
use towpath_packet::Offloads;
use towpath_virtio::Format;
pub(super) use towpath_wire::virtio_net::feature::*;

/// Bytes of a header, and of one with a hash.
pub(super) const HEADER: usize = towpath_packet::vnet::VnetHeader::LEN_V1;
pub(super) const HASH_HEADER: usize = HEADER + 8;

const GUEST_USO: u64 = GUEST_USO4 | GUEST_USO6;
/// The device may send super-packets.
const GUEST_GSO: u64 = GUEST_TSO4 | GUEST_TSO6 | GUEST_ECN | GUEST_USO;

/// Bytes of the longest super-packet, without its header (§5.1.6.3.1).
pub(super) const SUPER_PACKET: usize = 65550;

/// The features to negotiate of those that are offered. `accept` are the offloads that received
/// packets may need.
pub(super) fn choose(offered: u64, config: &Config, accept: Offloads) -> u64 {
    let mut wanted = VERSION_1 | MTU | MAC | STATUS | ACCESS_PLATFORM | ORDER_PLATFORM;
    let mut add = |on: bool, bits: u64| wanted |= if on { bits } else { 0 };
    add(config.packed, RING_PACKED);
    add(config.indirect, INDIRECT_DESC);
    add(config.event_idx, EVENT_IDX);
    add(config.in_order, IN_ORDER);
    add(config.mergeable, MRG_RXBUF);
    add(true, CTRL_VQ | CTRL_RX | CTRL_VLAN | CTRL_MAC_ADDR | GUEST_ANNOUNCE);
    add(config.queues > 1, MQ);
    add(config.rss, HASH_REPORT);
    add(config.rss && config.queues > 1, RSS);
    add(config.csum, CSUM);
    add(config.tso, HOST_TSO4 | HOST_TSO6 | HOST_ECN);
    add(config.uso, HOST_USO);
    add(config.csum && accept.has(Offloads::CSUM), GUEST_CSUM);
    add(config.tso && accept.has(Offloads::TSO4), GUEST_TSO4);
    add(config.tso && accept.has(Offloads::TSO6), GUEST_TSO6);
    add(config.tso && accept.has(Offloads::TSO_ECN), GUEST_ECN);
    add(config.uso && accept.has(Offloads::USO), GUEST_USO);
    without_unmet(wanted & offered)
}

/// Without the features whose requirements are missing (§5.1.3.1).
fn without_unmet(mut bits: u64) -> u64 {
    let mut drop_unless = |needed: u64, dependent: u64| {
        if bits & needed == 0 {
            bits &= !dependent;
        }
    };
    drop_unless(CTRL_VQ, RSS | HASH_REPORT);
    drop_unless(MQ, RSS);
    drop_unless(CSUM, HOST_TSO4 | HOST_TSO6 | HOST_ECN | HOST_USO);
    drop_unless(HOST_TSO4 | HOST_TSO6, HOST_ECN);
    drop_unless(GUEST_CSUM, GUEST_GSO);
    drop_unless(GUEST_TSO4 | GUEST_TSO6, GUEST_ECN);
    if bits & GUEST_USO != GUEST_USO {
        bits &= !GUEST_USO;
    }
    bits
}

/// The receive chains of a ring of `size` descriptors with buffers of `room` bytes, and the
/// features that go with them (§5.1.6.3.1). Without mergeable buffers every chain has to take a
/// super-packet. If the ring can't have such chains, super-packets are not received.
pub(super) fn rx_chains(bits: u64, room: usize, size: u16) -> (u64, Option<RxChains>) {
    if bits & MRG_RXBUF != 0 || bits & GUEST_GSO == 0 {
        return (bits, None);
    }
    match RxChains::new((header(bits), SUPER_PACKET), room, size, format(bits), bits & INDIRECT_DESC != 0) {
        None => (bits & !GUEST_GSO, None),
        chains => (bits, chains),
    }
}

/// The format of all rings.
pub(super) fn format(bits: u64) -> Format {
    if bits & RING_PACKED != 0 { Format::Packed } else { Format::Split }
}

/// Bytes of a header in front of each packet, in both directions (§5.1.6).
pub(super) fn header(bits: u64) -> usize {
    if bits & HASH_REPORT != 0 { HASH_HEADER } else { HEADER }
}

/// Each offload, with the features that stand for it in packets that are sent and in those that are
/// received.
const OFFLOADS: [(Offloads, u64, u64); 5] = [
    (Offloads::CSUM, CSUM, GUEST_CSUM),
    (Offloads::TSO4, HOST_TSO4, GUEST_TSO4),
    (Offloads::TSO6, HOST_TSO6, GUEST_TSO6),
    (Offloads::TSO_ECN, HOST_ECN, GUEST_ECN),
    (Offloads::USO, HOST_USO, GUEST_USO),
];

/// The features of a device that has these offloads, of packets that are sent and of those that are
/// received.
pub(super) fn of_offloads(tx: Offloads, rx: Offloads) -> u64 {
    let bits = |on: bool, bits: u64| if on { bits } else { 0 };
    OFFLOADS.iter().fold(0, |all, &(one, host, guest)| all | bits(tx.has(one), host) | bits(rx.has(one), guest))
}

/// The offloads whose features, which `of` picks, are all in `bits`.
fn offloads(bits: u64, of: impl Fn(u64, u64) -> u64) -> Offloads {
    let all = OFFLOADS.iter().filter(|&&(_, host, guest)| bits & of(host, guest) == of(host, guest));
    all.fold(Offloads::NONE, |all, &(one, ..)| all.with(one))
}

/// The offloads of packets that are sent.
pub(super) fn tx_offloads(bits: u64) -> Offloads {
    offloads(bits, |host, _| host)
}

/// The offloads that received packets may need.
pub(super) fn rx_offloads(bits: u64) -> Offloads {
    offloads(bits, |_, guest| guest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feature_is_not_negotiated_without_those_that_it_needs() {
        let all = |config: &Config, accept| choose(u64::MAX, config, accept);
        let config = Config::default();
        assert_eq!(tx_offloads(all(&config, Offloads::NONE)), Offloads::ALL.without(Offloads::VLAN));
        assert_eq!(rx_offloads(all(&config, Offloads::NONE)), Offloads::NONE);
        assert_eq!(rx_offloads(all(&config, Offloads::ALL)), Offloads::ALL.without(Offloads::VLAN));
        assert_eq!(rx_offloads(all(&config, Offloads::TSO4)), Offloads::NONE, "segments need checksums");
        let one = all(&config, Offloads::NONE);
        assert_eq!((one & RSS, header(one)), (0, HASH_HEADER), "one queue has nothing to spread over");
        let many = Config { queues: 2, ..Config::default() };
        assert_ne!(all(&many, Offloads::NONE) & RSS, 0);
        let bare = choose(!CTRL_VQ, &many, Offloads::NONE);
        assert_eq!((bare & RSS, header(bare)), (0, HEADER), "nothing tells the device the key");
        let plain = Config { csum: false, ..Config::default() };
        assert!(tx_offloads(all(&plain, Offloads::ALL)).is_none() && rx_offloads(all(&plain, Offloads::ALL)).is_none());
        let single = Config { mergeable: false, ..Config::default() };
        assert_eq!(rx_offloads(all(&single, Offloads::ALL)), Offloads::ALL.without(Offloads::VLAN), "in chains");
        assert_eq!(choose(VERSION_1 | CSUM, &config, Offloads::ALL), VERSION_1 | CSUM, "nothing that is not offered");
    }

    #[test]
    fn the_features_of_offloads_are_those_that_lead_back_to_them() {
        let sets = [Offloads::NONE, Offloads::CSUM, Offloads::CSUM.with(Offloads::USO), Offloads::ALL];
        for tx in sets {
            for rx in sets {
                let bits = of_offloads(tx, rx);
                let vlan = Offloads::VLAN;
                assert_eq!((tx_offloads(bits), rx_offloads(bits)), (tx.without(vlan), rx.without(vlan)));
            }
        }
    }

    #[test]
    fn super_packets_that_are_not_mergeable_need_chains_of_64_kib() {
        let tso = GUEST_CSUM | GUEST_TSO4 | GUEST_ECN;
        let chains = |buffers, posted| Some((buffers, posted));
        let rx_chains = |bits, room, size| {
            let (bits, chains) = rx_chains(bits, room, size);
            (bits, chains.map(|chains| (chains.buffers, chains.posted)))
        };
        assert_eq!(rx_chains(tso | MRG_RXBUF, 1920, 256), (tso | MRG_RXBUF, None));
        assert_eq!(rx_chains(GUEST_CSUM, 1920, 256), (GUEST_CSUM, None), "frames of the MTU");
        assert_eq!(rx_chains(tso | INDIRECT_DESC, 1920, 256), (tso | INDIRECT_DESC, chains(35, 16)));
        assert_eq!(rx_chains(tso, 1920, 256), (tso, chains(35, 7)), "descriptors of the ring");
        let packed = tso | INDIRECT_DESC | RING_PACKED;
        assert_eq!(rx_chains(packed, 1920, 144), (packed, chains(35, 4)), "and one for the header");
        assert_eq!(rx_chains(tso, 1920, 128), (GUEST_CSUM, None), "too few chains");
        assert_eq!(
            rx_chains(tso | INDIRECT_DESC, 1920, 32),
            (GUEST_CSUM | INDIRECT_DESC, None),
            "longer than the ring"
        );
        assert_eq!(rx_chains(tso | INDIRECT_DESC, 1000, 256), (GUEST_CSUM | INDIRECT_DESC, None), "too many buffers");
        // The bytes of a header with a hash are in front of them.
        assert_eq!(rx_chains(tso, 65562, 16).1, chains(1, 16));
        assert_eq!(rx_chains(tso | HASH_REPORT, 65562, 16).1, chains(2, 8));
    }
}
