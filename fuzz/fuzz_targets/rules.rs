//! Any text as rules, and any bytes classified by them.
//!
//! Lines up to the first empty one are rules. The rest is the packet. Its first byte is the length
//! of its pieces; its second byte says whether the first piece is linear, which link it is from,
//! and whether there is a tag in the metadata.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::cell::RefCell;
use towpath_engine::rules::{Rules, Verdict, classify_batch, dissect_packet};
use towpath_packet::{Backing, Cache, Direction, Packet, Pool, PoolConfig, Vlan};
use towpath_wire::LinkKind;

thread_local! {
    static MEMORY: RefCell<Cache> = RefCell::new({
        let config = PoolConfig::default().capacity(1024).backing(Backing::Anonymous);
        Pool::new(config).unwrap().cache(Direction::Tx).unwrap()
    });
}

/// A packet of pieces; `None` if there are more pieces than a packet can have.
fn packet(bytes: &[u8], piece: usize, linear: bool) -> Option<Packet> {
    MEMORY.with_borrow_mut(|cache| {
        let mut pieces = bytes.chunks(piece);
        let first = if linear { pieces.next().unwrap_or_default() } else { &[] };
        let mut packet = Packet::copy_from(cache, first)?;
        for piece in pieces {
            packet.append(Packet::copy_from(cache, piece)?).ok()?;
        }
        Some(packet)
    })
}

fuzz_target!(|data: &[u8]| {
    let split = data.windows(2).position(|pair| pair == b"\n\n");
    let (text, rest) = split.map_or((data, &[][..]), |at| (&data[..at], &data[at + 2..]));
    let Ok(text) = std::str::from_utf8(text) else { return };

    // Each line alone first: a rejected line does not keep the others from being tried.
    let good: Vec<&str> = text.lines().filter(|line| Rules::parse([line]).is_ok()).collect();
    let mut rules = match Rules::parse(&good) {
        Ok(rules) => rules,
        Err(error) => {
            assert!(good.iter().filter(|line| line.trim_start().starts_with("default")).count() > 1, "{error}");
            return;
        }
    };
    let printed = rules.to_string();
    assert_eq!(Rules::parse(printed.lines()).as_ref(), Ok(&rules), "{printed}");

    let Some((&[piece, how], bytes)) = rest.split_first_chunk() else { return };
    let (linear, link) = (how & 1 != 0, if how & 2 != 0 { LinkKind::Ip } else { LinkKind::Ethernet });
    let _ = rules.check(link, u16::from(how >> 4));
    let Some(mut packet) = packet(bytes, usize::from(piece) + 1, linear) else { return };
    packet.set_vlan((how & 4 != 0).then_some(Vlan { tci: u16::from(piece) << 4, service: how & 8 != 0 }));

    let found = dissect_packet(&packet, link);
    let first = rules.first_match(&packet, &found);
    let alone = |rule| {
        let mut one = Rules::default();
        one.push(rule);
        one.first_match(&packet, &found).is_some()
    };
    assert_eq!(first, rules.as_slice().iter().position(|rule| alone(*rule)), "the first rule that matches decides");
    let expected = first.map_or(rules.default_verdict(), |number| rules.as_slice()[number].verdict);
    assert_eq!(rules.classify(&packet, &found), expected);
    let mut out = [Verdict::Pass];
    classify_batch(&mut rules, std::slice::from_ref(&packet), link, &mut out);
    assert_eq!(out, [expected]);

    // The layout of the bytes makes no difference within the dissected length.
    if bytes.len() <= towpath_engine::rules::DISSECT_LEN
        && let Some(mut whole) = self::packet(bytes, bytes.len().max(1), true)
    {
        whole.set_vlan(packet.vlan());
        assert_eq!(rules.classify(&whole, &dissect_packet(&whole, link)), expected);
    }
});
