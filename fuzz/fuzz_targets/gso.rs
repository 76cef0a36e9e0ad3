//! Segmentation of anything, with any metadata: legal lengths or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use towpath_gro::{Checksums, Link, Offload, Split, Tunnel, TunnelKind, complete};

fuzz_target!(|data: &[u8]| {
    let Some((how, rest)) = data.split_first_chunk::<4>() else { return };
    let Some((header, packet)) = rest.split_first_chunk::<10>() else { return };
    let Some(mut offload) = Offload::from_virtio(header) else { return };
    if let (Some(gso), true) = (&mut offload.gso, how[0] & 4 != 0) {
        gso.tunnel = Some(Tunnel {
            kind: TunnelKind::Udp,
            outer_v6: how[0] & 8 != 0,
            checksum: how[0] & 16 != 0,
            outer_l4: u16::from(how[1]),
            inner_l3: u16::from(how[2]),
        });
    }
    let link = if how[0] & 1 == 0 { Link::Ethernet } else { Link::Ip };
    let checksums = if how[0] & 2 == 0 { Checksums::Complete } else { Checksums::Partial };
    let chunks = packet.chunks(usize::from(how[3]) + 1);
    let Ok(mut split) = Split::new(chunks, link, &offload, checksums) else { return };
    let (mut out, mut payload) = (vec![0; packet.len()], 0);
    for _ in 0..split.packets() {
        let len = split.next_len().expect("a packet is left");
        assert!(len <= packet.len());
        let state = split.write(&mut out).expect("the buffer is long enough");
        complete(&mut out[..len], &state).expect("a checksum it made is inside the packet");
        payload += len;
    }
    assert!(split.next_len().is_none() && payload >= packet.len());
});
