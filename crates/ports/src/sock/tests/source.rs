//! Sessions whose source addresses are bounded.

use super::*;
use towpath_client::protocol::HEADER;
use towpath_packet::UntrustedMem;
use towpath_packet::port::TxLayout;

const PINNED: &str = "source=*:02:00:00:00:00:01 10.0.0.1";

/// A UDP frame of `len` bytes from an address, with the MAC address that is allowed.
fn from(last: u8, len: usize) -> Vec<u8> {
    let mut bytes = udp(53, len);
    bytes[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    bytes[26..30].copy_from_slice(&[10, 0, 0, last]);
    bytes
}

/// A program with metadata, and its memory.
fn program(rig: &Rig) -> (Program, UntrustedMem) {
    let hello = Hello { tx_metadata: HEADER as u32, segmentation: true, ..HELLO };
    Program::with_memory(rig, &hello)
}

/// Layouts of egresses: pages as they are, some bytes linear, all.
const LAYOUTS: [TxLayout; 4] = [
    TxLayout { linear: TxLinear::None, headroom: 0, tailroom: 0 },
    TxLayout { linear: TxLinear::None, headroom: 64, tailroom: 0 },
    TxLayout { linear: TxLinear::Header(20), headroom: 0, tailroom: 0 },
    TxLayout { linear: TxLinear::Whole, headroom: 0, tailroom: 0 },
];

#[test]
fn frames_from_other_addresses_are_completed_unsent_and_counted() {
    for layout in LAYOUTS {
        let mut rig = Rig::new(PINNED);
        rig.rx.set_tx_layout(layout);
        let (mut program, memory) = program(&rig);
        for (chunk, frame) in [from(1, 60), from(2, 60), from(1, 1000), udp(53, 1000)].iter().enumerate() {
            assert!(memory.put(chunk * 2048, frame));
        }
        program.send(&[(0, 60, 0), (2048, 60, 0), (4096, 1000, 0), (6144, 1000, 0)]);
        let batch = rig.receive(2);
        let got: Vec<_> = batch.iter().map(Packet::to_vec).collect();
        assert_eq!(got, [from(1, 60), from(1, 1000)], "{layout:?}");
        let counted = program.statistics().tx_spoofed;
        assert_eq!((rig.event("spoofed"), counted), (2, 2));
        drop(batch);
        until(|| {
            drop(rig.step());
            program.completion.peek(8) == 4
        });
        drop(program);
        rig.end();
    }
}

#[test]
fn an_address_that_changes_after_the_comparison_is_not_sent() {
    for layout in LAYOUTS {
        let mut rig = Rig::new(PINNED);
        rig.rx.set_tx_layout(layout);
        let (mut program, memory) = program(&rig);
        assert!(memory.put(0, &from(1, 1000)));
        // In pieces too: the first is shorter than the headers.
        assert!(memory.put(2048, &from(1, 1000)[..20]) && memory.put(4096, &from(1, 1000)[20..]));
        program.send(&[(0, 1000, 0), (2048, 20, Desc::CONTINUED), (4096, 980, 0)]);
        let batch = rig.receive(2);
        assert!([0, 2048, 4096].iter().all(|at| memory.put(*at, &[0xee; 64])));
        for packet in batch.iter() {
            assert_eq!(packet.to_vec()[..34], from(1, 1000)[..34], "{layout:?}");
        }
        drop((batch, program));
        rig.end();
    }
}

#[test]
fn a_checksum_cannot_be_written_over_an_address() {
    let mut rig = Rig::new(PINNED);
    let (mut program, memory) = program(&rig);
    // Flags, type, header length, size, start, offset, in native order: the address lies at 26.
    let request =
        |start: u16, offset: u16| [&[1, 0, 0, 0, 0, 0][..], &start.to_ne_bytes(), &offset.to_ne_bytes()].concat();
    for (chunk, request) in [request(34, 6), request(14, 12), request(20, 6), request(0, 6)].iter().enumerate() {
        assert!(memory.put(chunk * 2048 + 64 - HEADER, request) && memory.put(chunk * 2048 + 64, &from(1, 100)));
    }
    program.send(&[0, 1, 2, 3].map(|chunk| (chunk * 2048 + 64, 100, Desc::METADATA)));
    until(|| {
        let batch = rig.step();
        assert!(batch.iter().all(|packet| packet.csum() == towpath_packet::Checksum::Partial { start: 34, offset: 6 }));
        rig.event("spoofed") == 3
    });
    drop(program);
    rig.end();
}

#[test]
fn a_port_without_the_option_copies_nothing() {
    let mut rig = Rig::new("");
    let (mut program, memory) = program(&rig);
    assert!(memory.put(0, &from(2, 1000)));
    program.send(&[(0, 1000, 0)]);
    let batch = rig.receive(1);
    assert!(batch.as_slice()[0].linear().is_empty());
    drop((batch, program));
    assert_eq!((rig.event("spoofed"), rig.event("copies")), (0, 0));
    rig.end();
}
