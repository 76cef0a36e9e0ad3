//! VLAN tags put into a packet by software, where the device or the other port can't have them beside it.

use towpath_packet::{Packet, Vlan};

/// Bytes of two addresses: a tag comes behind them (IEEE 802.1Q §9.4).
const ADDRESSES: usize = 12;
const TAG: usize = 4;
const CUSTOMER: u16 = 0x8100;
const SERVICE: u16 = 0x88a8;

/// Gives a received packet the tag that the device took out, beside it or in it; false when neither can be done.
pub(super) fn receive(packet: &mut Packet, tci: u16, beside: bool) -> bool {
    let vlan = Vlan { tci, service: false };
    if beside {
        packet.set_vlan(Some(vlan));
        return true;
    }
    insert(packet, vlan)
}

/// Puts a tag into a packet; false when its head has no room, or not both addresses.
pub(super) fn insert(packet: &mut Packet, vlan: Vlan) -> bool {
    if packet.make_linear(ADDRESSES).is_err() || packet.push_front(TAG).is_err() {
        return false;
    }
    let Some(head) = packet.linear_mut().get_mut(..ADDRESSES + TAG) else { return false };
    head.copy_within(TAG.., 0);
    let [a, b] = (if vlan.service { SERVICE } else { CUSTOMER }).to_be_bytes();
    let [c, d] = vlan.tci.to_be_bytes();
    head[ADDRESSES..].copy_from_slice(&[a, b, c, d]);
    packet.set_vlan(None);
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_packet::{Backing, Direction, Pool, PoolConfig};

    #[test]
    fn a_tag_comes_between_the_addresses_and_the_type() {
        let config =
            PoolConfig { capacity: 2, chunk: 256, headroom: 4, backing: Backing::Anonymous, ..Default::default() };
        let mut cache = Pool::new(config).unwrap().cache(Direction::Rx).unwrap();
        let bytes: Vec<u8> = (0..20).collect();
        let mut packet = Packet::copy_from(&mut cache, &bytes).unwrap();
        assert!(insert(&mut packet, Vlan { tci: 0x2005, service: true }));
        let expected = [&bytes[..12], &[0x88, 0xa8, 0x20, 0x05], &bytes[12..]].concat();
        assert_eq!(packet.to_vec(), expected);
        assert!(!insert(&mut packet, Vlan { tci: 1, service: false }), "there is no headroom left");
    }
}
