//! Super-packets without mergeable buffers: each comes in a chain of buffers.

use crate::backend::{Backend, HEADER};
use crate::rig::{EVERYTHING, Rig, frame, pool};
use towpath_nic::virtio::{Config, Copybreak};
use towpath_packet::port::RxQueue;
use towpath_packet::{Backing, GsoKind, Offloads, Packet};

const GUEST_TSO4: u64 = 1 << 7;
/// A TCP super-packet over IPv4: its checksum is partial, its segments have 1448 bytes.
const SUPER: [u8; 10] = [1, 1, 66, 0, 0xa8, 5, 34, 0, 16, 0];
/// The longest super-packet.
const LONGEST: usize = 65_550;

fn config(edit: impl FnOnce(&mut Config)) -> Config {
    let mut config = Config::default();
    (config.mergeable, config.ring) = (false, 256);
    edit(&mut config);
    config
}

/// Bytes of a buffer: a chunk without its headroom, in which the header lies.
const ROOM: usize = 2048 - 128 + HEADER;

fn open(config: Config, backend: &Backend, backing: Backing) -> Rig {
    Rig::open(config, &backend.path, pool(backing, 2048), Offloads::ALL)
}

#[test]
fn a_super_packet_comes_in_one_chain_of_buffers_in_every_kind_of_ring() {
    for kind in 0..16u32 {
        let has = |bit: u32| kind >> bit & 1 != 0;
        let config = config(|config| {
            (config.packed, config.indirect, config.in_order) = (has(0), has(1), has(2));
            config.copybreak = has(3).then(|| Copybreak::new(300).unwrap());
        });
        let backend = Backend::new(EVERYTHING, 1);
        // Buffers of the datapath's pool, or of one of the port's own.
        let backing = if has(3) { Backing::Anonymous } else { Backing::Memfd };
        let mut rig = open(config, &backend, backing);
        let mut buffers = 0;
        assert_eq!(backend.lock().features & (GUEST_TSO4 | 1 << 15), GUEST_TSO4, "{kind:#b}");
        for round in 0..20 {
            // The last one fills its buffers.
            let lens = [60, 2100, LONGEST, 300 + round, 20_000, 1500, 3 * ROOM - HEADER];
            for len in lens {
                let header = if len > 1522 { SUPER } else { [0; 10] };
                assert!(backend.give(0, header, &frame(len, len)), "{kind:#b}");
            }
            let got = rig.receive(0);
            assert_eq!(got.len(), lens.len(), "{kind:#b}");
            for (packet, len) in got.iter().zip(lens) {
                assert!(packet.to_vec() == frame(len, len), "{kind:#b}: {len}");
                assert_eq!(packet.gso().map(|gso| (gso.kind, gso.size)), (len > 1522).then_some((GsoKind::Tcp4, 1448)));
                assert_eq!(packet.frags(), (HEADER + len - 1) / ROOM, "{len}");
                buffers += packet.frags() as u64 + 1;
            }
        }
        let (counters, counts) = (rig.rx[0].counters().snapshot(), rig.rx[0].counts());
        assert_eq!((counters.packets, counters.all_drops()), (140, 0));
        // 60 and 300 to 319 bytes, the header included, are less than the threshold, or not.
        let copies = if has(3) { 20 } else { 0 };
        assert_eq!((counts.copies, counts.handed), (copies, buffers - copies), "{kind:#b}");
        assert!(counts.recycled > 500, "the rest of each chain is posted again: {}", counts.recycled);
        rig.end();
    }
}

#[test]
fn a_ring_without_room_for_such_chains_receives_no_super_packets() {
    let negotiated = |edit: fn(&mut Config), chunk: usize| {
        let backend = Backend::new(EVERYTHING, 1);
        let rig = Rig::open(config(edit), &backend.path, pool(Backing::Memfd, chunk), Offloads::ALL);
        drop(backend.until("the rings run", |state| state.runs(2)));
        let features = backend.lock().features;
        assert!(backend.give(0, [0; 10], &frame(1, 1514)));
        rig.end();
        features & (GUEST_TSO4 | 2)
    };
    assert_eq!(negotiated(|_| {}, 2048), GUEST_TSO4 | 2);
    assert_eq!(negotiated(|config| config.indirect = false, 2048), GUEST_TSO4 | 2);
    assert_eq!(negotiated(|config| (config.indirect, config.ring) = (false, 128), 2048), 2, "fewer than four");
    assert_eq!(negotiated(|config| config.ring = 32, 2048), 2, "a chain is longer than the ring");
    assert_eq!(negotiated(|config| config.ring = 32, 4096), GUEST_TSO4 | 2);
    assert_eq!(negotiated(|config| config.tso = false, 2048), 2, "super-packets of UDP remain");
}

#[test]
fn a_used_length_beyond_the_chain_is_cut_and_counted() {
    let backend = Backend::new(EVERYTHING, 1);
    let mut rig = open(config(|_| {}), &backend, Backing::Memfd);
    assert!(backend.lock().give_as(0, SUPER, &frame(1, 40_000), Some(u32::MAX)));
    assert!(backend.lock().give_as(0, [0; 10], &frame(2, 100), Some(11)));
    assert!(backend.lock().give_as(0, [0; 10], &frame(2, 100), Some(0)));
    assert!(backend.give(0, [0; 10], &frame(3, 700)));
    let got = rig.receive(0);
    // As many bytes as the buffers have: the header says nothing of the length.
    assert_eq!(got.iter().map(Packet::len).collect::<Vec<_>>(), [34 * ROOM - HEADER, 700]);
    assert_eq!((got[1].to_vec(), rig.control.faults().bad_lengths), (frame(3, 700), 3));
    drop(got);
    rig.end();
}
