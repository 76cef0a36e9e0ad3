//! A VPN's receive path with byte buffers only: a batch of decrypted IP packets becomes few large
//! writes to a TUN device, and what the kernel sends back large is segmented for the tunnel.
//!
//! It runs without a device: the "TUN" counts writes. With one, open it with `IFF_VNET_HDR`, and
//! write header and packet with one `writev`.

use towpath_gro::{Checksums, Gro, GroConfig, Linear, LinkKind, Offload, Segment, Sink, Split};
use towpath_wire::checksum;
use towpath_wire::virtio_net::VnetHeader;

/// Room for the largest IP packet, so that every packet of a batch can grow to an aggregate.
const ROOM: usize = 65_535;
const BATCH: usize = 64;

/// The TUN device, and the buffers that are free again.
struct Tun {
    free: Vec<Box<[u8]>>,
    last: Vec<u8>,
    header: [u8; VnetHeader::LEN],
    writes: usize,
    bytes: usize,
}

impl Sink<Linear<Box<[u8]>>> for Tun {
    fn packet(&mut self, packet: Linear<Box<[u8]>>) {
        // Nothing is coalesced inside tunnels here, so there is always a header.
        if let Ok(header) = packet.offload().to_virtio(packet.packet().len()) {
            // writev(fd, [header, packet.packet()])
            self.header = header.to_ne_bytes();
            self.last.clear();
            self.last.extend_from_slice(packet.packet());
            self.writes += 1;
            self.bytes += packet.packet().len();
        }
        self.free.push(packet.into_buffer());
    }

    fn recycle(&mut self, packet: Linear<Box<[u8]>>) {
        self.free.push(packet.into_buffer());
    }
}

fn main() {
    let free = (0..BATCH).map(|_| vec![0; ROOM].into_boxed_slice()).collect();
    let mut tun = Tun { free, last: vec![], header: [0; VnetHeader::LEN], writes: 0, bytes: 0 };
    // Tunnels inside the VPN are not looked into: the 10-byte header has no fields for them. Since Linux 6.17 a TUN device
    // takes super-packets in UDP tunnels behind a longer header (`TUN_F_UDP_TUNNEL_GSO`).
    let mut gro = Gro::new(GroConfig::default().link(LinkKind::Ip).tunnels(false));

    let (mut packets, mut index) = (0, 0);
    for _ in 0..1000 {
        let mut batch = Vec::with_capacity(BATCH);
        while let Some(mut buffer) = tun.free.pop() {
            let len = decrypt(index, &mut buffer);
            index += 1;
            batch.push(Linear::new(buffer, len, Offload::default()));
        }
        packets += batch.len();
        gro.push_and_flush(batch, &mut tun);
    }
    println!("{packets} packets, {} writes of {} bytes on average", tun.writes, tun.bytes / tun.writes.max(1));

    // The other direction: what was read from TUN, large, is segmented for the tunnel.
    let read = tun.last;
    let header = VnetHeader::from_ne_bytes(&tun.header);
    let Ok(offload) = Offload::from_virtio(&header, read.len()) else { return };
    match Split::new([read.as_slice()].into_iter(), LinkKind::Ip, &offload, Checksums::Complete) {
        Ok(mut split) => {
            let mut segment = [0; 2048];
            let mut sealed = 0;
            while let Some(out) = split.next_len().and_then(|len| segment.get_mut(..len)) {
                split.write(out);
                sealed += 1; // encrypt(out)
            }
            println!("{} bytes read from TUN are {sealed} packets", read.len());
        }
        Err(error) => println!("dropped: {error}"),
    }
}

/// Stands for decryption: the next packet of one of two TCP streams.
fn decrypt(index: u32, buffer: &mut [u8]) -> usize {
    const PAYLOAD: usize = 1380;
    let (stream, number) = ((index % 2) as u16, index / 2);
    let len = 40 + PAYLOAD;
    let packet = &mut buffer[..len];
    packet.fill(number as u8);
    packet[..20].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1]);
    packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
    packet[4..6].copy_from_slice(&(number as u16).to_be_bytes());
    let check = checksum::finish(checksum::sum(&packet[..20]));
    packet[10..12].copy_from_slice(&check.to_be_bytes());
    let tcp = &mut packet[20..];
    tcp[..20].copy_from_slice(&[0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    tcp[2..4].copy_from_slice(&(5000 + stream).to_be_bytes());
    tcp[4..8].copy_from_slice(&number.wrapping_mul(PAYLOAD as u32).to_be_bytes());
    let pseudo = checksum::pseudo_v4([10, 0, 0, 2].into(), [10, 0, 0, 1].into(), 6, tcp.len() as u32);
    let check = checksum::finish(checksum::add(pseudo, checksum::sum(tcp)));
    tcp[16..18].copy_from_slice(&check.to_be_bytes());
    len
}
