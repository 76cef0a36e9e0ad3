//! Any packets: nothing is lost, and what is made can be segmented again into what came.
#![no_main]

use libfuzzer_sys::fuzz_target;
use towpath_gro::{Checksum, Checksums, Gro, GroConfig, Linear, LinkKind, Offload, Segment, Split};

/// Packets of a burst. Further ones are dropped, so that a run is fast.
const BURST: usize = 128;

fuzz_target!(|data: &[u8]| {
    let Some((how, mut data)) = data.split_first() else { return };
    let link = if how & 1 == 0 { LinkKind::Ethernet } else { LinkKind::Ip };
    let config = GroConfig::default().link(link).flows(8).seed(0).tunnels(how & 2 == 0).auto(how & 4 != 0);
    let checksum = if how & 8 == 0 { Checksum::Verified } else { Checksum::Unknown };
    let (mut packets, mut gro) = (vec![], Gro::new(config));
    while packets.len() < BURST
        && let Some((len, rest)) = data.split_first()
    {
        let (packet, rest) = rest.split_at(usize::from(*len).min(rest.len()));
        packets.push(packet.to_vec());
        data = rest;
    }
    // No super-packet is longer than all packets together.
    let room = packets.iter().map(Vec::len).sum();
    let mut left = vec![];
    let mut sink = (|packet: Linear<Vec<u8>>| left.push((packet.packet().to_vec(), packet.offload())), drop);
    let burst = packets.iter().map(|packet| {
        let mut buffer = packet.clone();
        buffer.resize(room, 0);
        Linear::new(buffer, packet.len(), Offload::new(checksum, None))
    });
    if how & 16 == 0 {
        gro.push_batch(burst, 0, &mut sink);
        gro.flush_all(&mut sink);
    } else {
        gro.push_and_flush(burst, &mut sink);
    }
    let mut again = vec![];
    for (packet, offload) in left {
        if offload.gso.is_none() {
            again.push(packet);
            continue;
        }
        let mut split = Split::new([packet.as_slice()].into_iter(), link, &offload, Checksums::Complete)
            .expect("what was coalesced can be segmented");
        while let Some(len) = split.next_len() {
            let mut out = vec![0; len];
            split.write(&mut out);
            again.push(out);
        }
    }
    assert_eq!(again.len(), packets.len());
    // Trusted checksums may be anything; verified ones come back, but for the two ways to write 0.
    if checksum == Checksum::Unknown {
        for packet in packets.iter_mut().chain(&mut again) {
            packet.as_chunks_mut::<2>().0.iter_mut().filter(|pair| **pair == [0xff; 2]).for_each(|pair| *pair = [0; 2]);
        }
        packets.sort();
        again.sort();
        assert_eq!(again, packets);
    }
});
