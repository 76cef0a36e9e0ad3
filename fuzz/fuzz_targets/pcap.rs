//! Any bytes as a capture file: it is read without a panic and to an end, and gives no more bytes than it has.

#![no_main]

use libfuzzer_sys::fuzz_target;
use towpath_ports::pcap::{Item, Records};

fuzz_target!(|bytes: &[u8]| {
    let Ok(mut records) = Records::new(bytes) else { return };
    let mut total = 0;
    // Every item but a wait passes over at least eight bytes, and a wait over at least one read or a thousand blocks.
    for _ in 0..=bytes.len() {
        match records.next() {
            Item::Packet(record) => {
                assert!(!record.data.is_empty());
                total += record.data.len();
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
