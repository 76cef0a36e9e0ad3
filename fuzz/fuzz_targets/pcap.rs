//! Any bytes as a capture file: it is read without a panic and to an end, and gives no more bytes
//! than it has. Its frames are converted to Ethernet and to IP, and edited.

#![no_main]

use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;
use towpath_packet::port::Layer;
use towpath_ports::pcap::{Edits, Item, PortMap, PrefixMap, Records, VlanEdit};

static EDITS: LazyLock<Edits> = LazyLock::new(|| {
    let map = |text| PrefixMap::parse(text).unwrap();
    let mut edits = Edits::default();
    (edits.smac, edits.vlan) = (Some([2, 0, 0, 0, 0, 1]), Some(VlanEdit::Set(7)));
    edits.src = vec![map("0.0.0.0/1:128.0.0.0"), map("::/1:8000::")];
    edits.dst = edits.src.clone();
    edits.sport = vec![PortMap { old: 0, new: 1 }];
    edits
});

fuzz_target!(|bytes: &[u8]| {
    let Ok(mut records) = Records::new(bytes) else { return };
    let mut total = 0;
    // Every item but a wait passes over at least eight bytes, and a wait over at least one read or
    // a thousand blocks.
    for _ in 0..=bytes.len() {
        match records.next() {
            Item::Packet(record) => {
                assert!(!record.data.is_empty());
                total += record.data.len();
                for layer in [Layer::Ethernet, Layer::Ip] {
                    let (mut frames, mut all) = (0, 0);
                    for frame in record.frames(layer) {
                        frames += 1;
                        let Ok(frame) = frame else { continue };
                        all += frame.rest.len();
                        assert!(frame.rest.len() + frame.missing <= record.original as usize);
                        let mut bytes = frame.to_vec();
                        let before = bytes.len();
                        EDITS.apply(&mut bytes, layer);
                        assert!(bytes.len() - before <= 4);
                    }
                    assert!(frames >= 1 && all <= record.data.len());
                }
            }
            Item::Bad { at, .. } => assert!(at <= bytes.len() as u64),
            Item::Wait => {}
            Item::End | Item::Lost { .. } | Item::Failed { .. } => {
                assert!(total <= bytes.len());
                return;
            }
        }
    }
    panic!("no end");
});
