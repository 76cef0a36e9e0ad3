//! The features that the device offers, and their names; its configuration space.

use super::config::Config;
use crate::kernel::ability::TSO;
use towpath_packet::Offloads;
use towpath_virtio::vhost_user::{CONFIG_SIZE, protocol};
use towpath_wire::virtio_net::feature::{GUEST_ANNOUNCE, MQ, MTU, STATUS, VERSION_1};

/// The link is up (`VIRTIO_NET_S_LINK_UP`).
const LINK_UP: u16 = 1;
/// The names of the bits in the log.
const NAMES: [(u32, &str); 24] = [
    (0, "csum"),
    (1, "guest-csum"),
    (3, "mtu"),
    (7, "guest-tso4"),
    (8, "guest-tso6"),
    (9, "guest-ecn"),
    (11, "host-tso4"),
    (12, "host-tso6"),
    (13, "host-ecn"),
    (15, "mergeable"),
    (16, "status"),
    (21, "announce"),
    (22, "mq"),
    (26, "log"),
    (28, "indirect"),
    (29, "event-idx"),
    (30, "protocol"),
    (32, "version-1"),
    (34, "packed"),
    (35, "in-order"),
    (40, "ring-reset"),
    (54, "guest-uso4"),
    (55, "guest-uso6"),
    (56, "host-uso"),
];

fn bits(list: &[u32]) -> u64 {
    list.iter().fold(0, |bits, bit| bits | 1 << bit)
}

/// The bits that a device with `queues` queue pairs offers.
pub(super) fn offered(config: &Config, queues: u16) -> u64 {
    let when = |on: bool, list: &[u32]| if on { bits(list) } else { 0 };
    let always = VERSION_1 | STATUS | GUEST_ANNOUNCE | protocol::LOG_ALL | protocol::PROTOCOL_FEATURES | bits(&[40]);
    always
        | when(queues > 1, &[MQ.trailing_zeros()])
        | when(config.mtu.is_some(), &[MTU.trailing_zeros()])
        | when(config.csum, &[0, 1])
        | when(config.csum && config.tso, &[7, 8, 9, 11, 12, 13])
        | when(config.csum && config.uso, &[54, 55, 56])
        | when(config.mergeable, &[15])
        | when(config.indirect, &[28])
        | when(config.event_idx, &[29])
        | when(config.packed, &[34])
        | when(config.in_order, &[35])
}

/// The offloads among them, any of which a guest may accept.
pub(super) fn offloads(config: &Config) -> Offloads {
    let when = |on: bool, offloads| if on { offloads } else { Offloads::NONE };
    let super_packets = when(config.tso, TSO).with(when(config.uso, Offloads::USO));
    when(config.csum, Offloads::CSUM.with(super_packets))
}

/// The bits of the protocol that the port offers. Only an MTU is worth a look at the configuration
/// space: QEMU warns of an ability that it does not use.
pub(super) fn protocol(config: &Config) -> u64 {
    let always = protocol::MQ
        | protocol::LOG_SHMFD
        | protocol::RARP
        | protocol::REPLY_ACK
        | protocol::NET_MTU
        | protocol::INFLIGHT_SHMFD
        | protocol::RESET_DEVICE
        | protocol::CONFIGURE_MEM_SLOTS
        | protocol::STATUS;
    always | if config.mtu.is_some() { protocol::CONFIG } else { 0 }
}

/// `struct virtio_net_config` (virtio 1.2, 5.1.4) of a device with `pairs` queue pairs, without an
/// address.
pub(super) fn config_space(pairs: usize, mtu: Option<u16>) -> [u8; CONFIG_SIZE] {
    let mut space = [0; CONFIG_SIZE];
    for (at, word) in [(6, LINK_UP), (8, pairs as u16), (10, mtu.unwrap_or(0))] {
        if let Some(to) = space.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
            *to = word.to_le_bytes();
        }
    }
    space
}

/// The features in words.
pub(super) fn words(features: u64) -> String {
    let known = NAMES.iter().filter(|(bit, _)| features >> bit & 1 != 0).map(|(_, name)| (*name).to_owned());
    let others = (0..64).filter(|bit| features >> bit & 1 != 0 && NAMES.iter().all(|(known, _)| known != bit));
    let all: Vec<_> = known.chain(others.map(|bit| format!("bit {bit}"))).collect();
    all.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_that_is_offered_has_a_name() {
        let config = Config { mtu: Some(1500), ..Config::new("a") };
        let all = offered(&config, 8);
        assert!(!words(all).contains("bit"), "{}", words(all));
        assert_eq!(all.count_ones() as usize, NAMES.len());
        assert_eq!(words(1 | 1 << 33), "csum bit 33");
    }

    #[test]
    fn segmentation_takes_checksums_and_one_pair_no_multi_queue() {
        let config = Config { csum: false, ..Config::new("a") };
        assert_eq!(offered(&config, 1) & (bits(&[0, 1, 7, 8, 9, 11, 12, 13, 54, 55, 56]) | MQ | MTU), 0);
    }
}
