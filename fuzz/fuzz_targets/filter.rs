//! Any text as a filter, and any bytes as a packet.
//!
//! The first line is the expression. The rest is the packet: its first byte is the length of its
//! pieces, its second byte is the link that it is from, and whether there is a tag in the metadata.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::cell::RefCell;
use towpath_engine::filter::{Filter, FilterRules, steering_matches};
use towpath_engine::rules::Rule;
use towpath_packet::{Backing, Cache, Direction, Packet, Pool, PoolConfig, Vlan};
use towpath_wire::LinkKind;

thread_local! {
    static MEMORY: RefCell<Cache> = RefCell::new({
        let config = PoolConfig::default().capacity(1024).backing(Backing::Anonymous);
        Pool::new(config).unwrap().cache(Direction::Tx).unwrap()
    });
}

/// A packet of pieces; `None` if there are more pieces than a packet can have.
fn packet(bytes: &[u8], piece: usize) -> Option<Packet> {
    MEMORY.with_borrow_mut(|cache| {
        let mut packet = Packet::copy_from(cache, &[])?;
        for piece in bytes.chunks(piece) {
            packet.append(Packet::copy_from(cache, piece)?).ok()?;
        }
        Some(packet)
    })
}

/// The bytes with a tag behind the addresses.
fn tagged(bytes: &[u8], vlan: Vlan) -> Option<Vec<u8>> {
    let mut bytes = bytes.to_vec();
    let [a, b] = vlan.tci.to_be_bytes();
    let tag = if vlan.service { [0x88, 0xa8, a, b] } else { [0x81, 0x00, a, b] };
    (bytes.len() >= 12).then(|| {
        bytes.splice(12..12, tag);
        bytes
    })
}

fuzz_target!(|data: &[u8]| {
    let split = data.iter().position(|byte| *byte == b'\n').unwrap_or(data.len());
    let Ok(text) = std::str::from_utf8(&data[..split]) else { return };

    // Flows are rules that print as they are read.
    for flow in steering_matches(text).unwrap_or_default() {
        let printed = format!("pass {flow}");
        assert_eq!(printed.parse::<Rule>().map(|rule| rule.matches).as_ref(), Ok(&flow), "{printed}");
    }
    let filter = match text.parse::<Filter>() {
        Ok(filter) => filter,
        Err(error) => {
            assert!(error.column <= text.chars().count() + 1, "{error}");
            return;
        }
    };
    let rules = FilterRules::parse([format!("drop {text}")]).unwrap();
    assert_eq!(rules.hits().texts().len(), 2);

    let Some((&[piece, how], bytes)) = data.get(split + 1..).and_then(<[u8]>::split_first_chunk) else { return };
    let link = if how & 1 != 0 { LinkKind::Ip } else { LinkKind::Ethernet };
    let whole = filter.matches_bytes(bytes, link);
    assert!(!whole || filter.check(link).is_ok());
    let negated = format!("not ({text})").parse::<Filter>();
    assert!(!whole || !negated.is_ok_and(|negated| negated.matches_bytes(bytes, link)), "both match: '{text}'");
    let Some(mut packet) = packet(bytes, usize::from(piece) + 1) else { return };
    assert_eq!(filter.matches(&packet, link), whole, "the layout of the bytes makes a difference");
    let vlan = Vlan { tci: u16::from(piece) << 4 | u16::from(how), service: how & 2 != 0 };
    if let Some(tagged) = tagged(bytes, vlan) {
        packet.set_vlan(Some(vlan));
        assert_eq!(filter.matches(&packet, link), filter.matches_bytes(&tagged, link), "a tag in the metadata");
    }
});
