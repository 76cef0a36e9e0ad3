//! TSO. QEMU segments only for a tap, a backend that takes virtio-net headers. The kernel then
//! segments the super-packet for a second tap on the same bridge, which takes no offloads: its
//! frames are those that a wire would carry.

use crate::require;
use crate::rig::{Setup, protections, until};
use crate::support::{Namespace, Need};
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use towpath_bus::qtest::Netdev;
use towpath_packet::{Checksum, Gso, GsoKind};
use towpath_wire::LinkKind;
use towpath_wire::dissect::dissect;
use towpath_wire::emit::{Checksums, Headers, Ip, Link, Network, Tcp, Transport};
use towpath_wire::verify::{Check, verify};

/// A tap in the namespace of the calling thread.
fn tap(name: &str, header: bool) -> File {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun").unwrap();
    let mut request = [0u8; 40];
    request[..name.len()].copy_from_slice(name.as_bytes());
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | if header { libc::IFF_VNET_HDR } else { 0 };
    request[16..18].copy_from_slice(&(flags as u16).to_ne_bytes());
    // SAFETY: TUNSETIFF takes a pointer to an ifreq, which is 40 bytes, borrowed exclusively.
    let made = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, request.as_mut_ptr()) };
    assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
    file
}

fn super_packet(v4: bool, payload: &[u8]) -> Vec<u8> {
    let ip = if v4 { Ip::v4([10, 1, 0, 1], [10, 1, 0, 2]) } else { Ip::v6([0xfd; 16], [0xfc; 16]) };
    let options = [1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2];
    let tcp = Tcp {
        src_port: 5000,
        dst_port: 6000,
        seq: 1000,
        flags: 0x18,
        window: 900,
        options: &options,
        ..Tcp::default()
    };
    let headers = Headers {
        link: Some(Link { dst: [2, 0, 0, 0, 0, 9], src: [2, 0, 0, 0, 0, 8], ..Link::default() }),
        network: Network::Ip(ip, Transport::Tcp(tcp)),
    };
    let mut buffer = vec![0; payload.len() + 200];
    let len = headers.emit(&mut buffer, payload, Checksums::Partial).unwrap();
    buffer.truncate(len);
    buffer
}

#[test]
fn super_packets_are_cut_into_segments_with_right_headers() {
    const NAME: &str = "super_packets_are_cut_into_segments_with_right_headers";
    require!("super_packets_are_cut_into_segments_with_right_headers", Need::Root, Need::Tun, Need::Program("ip"));
    for (n, protection) in protections().into_iter().enumerate() {
        let space = Namespace::new("tso");
        let (theirs, mut ours) = space.inside(|| (tap("tpnic", true), tap("tpout", false)));
        space.ip("link add tpbr type bridge mcast_snooping 0");
        for device in ["tpnic", "tpout", "tpbr"] {
            if device != "tpbr" {
                space.ip(&format!("link set {device} master tpbr"));
            }
            space.ip(&format!("link set {device} up"));
        }
        let netdev = Some(Netdev::Tap(vec![theirs.into()]));
        let mut rig = Setup { netdev, ..Setup::new(protection) }.start();
        for (v4, size, len, piece) in
            [(true, 1448, 20_000, 1500), (true, 100, 5001, 700), (false, 1428, 30_000, 1900), (false, 536, 536, 200)]
        {
            let payload: Vec<u8> = (0..len).map(|i| (i * 7 + n) as u8 ^ (i >> 8) as u8).collect();
            let bytes = super_packet(v4, &payload);
            let mut pieces = bytes.chunks(piece);
            let mut packet = rig.packet(pieces.next().unwrap());
            for piece in pieces {
                let piece = rig.packet(piece);
                packet.append(piece).unwrap();
            }
            let l4 = if v4 { 34 } else { 54 };
            packet.set_csum(Checksum::Partial { start: l4, offset: 16 });
            let kind = if v4 { GsoKind::Tcp4 } else { GsoKind::Tcp6 };
            packet.set_gso(Some(Gso { kind, ecn: false, size, segs: 0, hdr_len: l4 + 32 }));
            rig.send([packet]);
            assert_eq!(collect(&mut ours, &bytes, size.into()), payload, "{NAME}: {protection:?} v4={v4} size={size}");
        }
        assert_eq!(rig.control.faults().hangs, 0);
        rig.end();
    }
}

/// Reads the segments of a super-packet; returns their payloads, joined.
fn collect(tap: &mut File, whole: &[u8], size: usize) -> Vec<u8> {
    let expected = dissect(whole, LinkKind::Ethernet);
    let (headers, total) = (usize::from(expected.payload), whole.len() - usize::from(expected.payload));
    let mut payload = Vec::new();
    let mut buffer = vec![0; 70_000];
    until("segments arrive", || {
        let Ok(len) = tap.read(&mut buffer) else { return false };
        let segment = &buffer[..len];
        let found = dissect(segment, LinkKind::Ethernet);
        // The kernel sends frames of its own.
        if found.flow != expected.flow {
            return false;
        }
        assert_eq!(usize::from(found.payload), headers);
        let verdict = verify(segment, LinkKind::Ethernet);
        assert!(verdict.is_sound() && verdict.transport == Check::Good, "{verdict:?}");
        let l4 = usize::from(found.l4);
        let sequence = u32::from_be_bytes(segment[l4 + 4..l4 + 8].try_into().unwrap());
        assert_eq!(sequence as usize, 1000 + payload.len(), "in order, none missing");
        let data = &segment[headers..found.end as usize];
        let last = payload.len() + data.len() == total;
        assert!(data.len() == size || last, "{} bytes", data.len());
        assert_eq!(found.tcp_flags & 8 != 0, last, "push is the last segment's");
        payload.extend_from_slice(data);
        last
    });
    payload
}
