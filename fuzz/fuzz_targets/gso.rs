//! Segmentation of anything, with any metadata: legal lengths or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use towpath_gro::{Checksum, Checksums, Gso, GsoKind, LinkKind, Offload, Split, Tunnel, TunnelKind, complete_checksum};
use towpath_wire::virtio_net::{DATA_VALID, GSO_ECN, NEEDS_CSUM, VnetHeader};

fuzz_target!(|data: &[u8]| {
    let Some((how, rest)) = data.split_first_chunk::<4>() else { return };
    let Some((header, packet)) = rest.split_first_chunk::<10>() else { return };
    // Unlike `VnetHeader::offload`, this checks nothing.
    let header = VnetHeader::from_le_bytes(header);
    let checksum = match header.flags {
        flags if flags & NEEDS_CSUM != 0 => {
            Checksum::Partial { start: header.csum_start, offset: header.csum_offset as u8 }
        }
        flags if flags & DATA_VALID != 0 => Checksum::Verified,
        _ => Checksum::Unknown,
    };
    let kind = match header.gso_type & !GSO_ECN {
        0 => None,
        1 => Some(GsoKind::Tcp4),
        4 => Some(GsoKind::Tcp6),
        5 => Some(GsoKind::Udp),
        _ => return,
    };
    let VnetHeader { hdr_len, gso_size: size, .. } = header;
    let ecn = header.gso_type & GSO_ECN != 0;
    let mut offload = Offload::new(checksum, kind.map(|kind| Gso { kind, ecn, size, segs: 0, hdr_len }));
    if offload.gso.is_some() && how[0] & 4 != 0 {
        offload.tunnel = Some(Tunnel {
            kind: TunnelKind::Udp,
            outer_v6: how[0] & 8 != 0,
            checksum: how[0] & 16 != 0,
            outer_l4: u16::from(how[1]),
            inner_l3: u16::from(how[2]),
        });
    }
    let link = if how[0] & 1 == 0 { LinkKind::Ethernet } else { LinkKind::Ip };
    let checksums = if how[0] & 2 == 0 { Checksums::Complete } else { Checksums::Partial };
    let chunks = packet.chunks(usize::from(how[3]) + 1);
    let Ok(mut split) = Split::new(chunks, link, &offload, checksums) else { return };
    let (mut out, mut payload) = (vec![0; packet.len()], 0);
    for _ in 0..split.packets() {
        let len = split.next_len().expect("a packet is left");
        assert!(len <= packet.len());
        let state = split.write(&mut out).expect("the buffer is long enough");
        complete_checksum(&mut out[..len], &state).expect("a checksum it made is inside the packet");
        payload += len;
    }
    assert!(split.next_len().is_none() && payload >= packet.len());
});
