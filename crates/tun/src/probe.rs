//! Probes the offloads of the kernel.
//!
//! *From the kernel:* `TUNSETOFFLOAD` accepts or refuses the bits. Kind by kind, so that a kernel
//! without one of them still has the others.
//!
//! *To the kernel:* one packet of each kind is written to an interface that is not up. The kernel
//! first checks the virtio-net header (`EINVAL` for an unsupported kind) and then drops the packet
//! because the interface is down (`EIO`), so that it is never delivered. If the interface is up, a
//! scratch device in a namespace of its own takes its place. Without the right to make one, all
//! kinds count as supported until a write is refused.
//!
//! The packets go from and to addresses that are never routed (RFC 5737, RFC 3849), from and to the
//! locally administered hardware addresses `02:…`, and their UDP or TCP port is 9 (discard).

use crate::config::Kind;
use crate::header::{self, TUNNEL_LEN};
use crate::offloads::TunOffloads;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use towpath_gro::{Checksum, Gso, GsoKind, Offload, Tunnel, TunnelKind};
use towpath_sys::netns;
use towpath_sys::tun::{self, Attach};
use towpath_wire::emit::{Checksums, Headers, Ip, Link, Network, Tcp, Transport, Udp};
use towpath_wire::vlan::{Tag, Tci};
use towpath_wire::vxlan;

/// What a device's kernel accepts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The offloads of packets from the kernel.
    pub rx: TunOffloads,
    /// The offloads of packets to the kernel.
    pub tx: TunOffloads,
    /// What was refused: the offloads, and the kernel's answer.
    pub refused: Vec<(TunOffloads, String)>,
    /// How it was found.
    pub how: &'static str,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "read: {}; write: {}; {}", self.rx, self.tx, self.how)?;
        self.refused.iter().try_for_each(|(set, why)| write!(f, "; {set}: {why}"))
    }
}

/// The report of a device whose offloads are switched off.
pub(crate) const OFF: &str = "switched off";
/// The report of a device of which nothing was tried.
pub(crate) const UNTRIED: &str = "not tried: used until a packet is refused";

/// What the kernel accepts or refuses together.
const RX_STEPS: [TunOffloads; 5] = [
    TunOffloads::CSUM,
    TunOffloads::TSO,
    TunOffloads::USO,
    TunOffloads::TUNNEL.with(TunOffloads::TSO),
    TunOffloads::TUNNEL_CSUM.with(TunOffloads::TUNNEL).with(TunOffloads::TSO),
];

/// Probes the offloads of packets from the kernel, which are off afterwards. With a header of
/// `header` bytes.
pub fn probe_rx(queue: &File, header: usize, report: &mut Report) {
    for set in RX_STEPS {
        if set.has(TunOffloads::TUNNEL) && header < TUNNEL_LEN {
            continue;
        }
        match tun::set_offload(queue, set.with(TunOffloads::CSUM).bits()) {
            Ok(()) => report.rx = report.rx.with(set),
            Err(error) => report.refused.push((set, format!("rx (TUNSETOFFLOAD): {error}"))),
        }
    }
    let _ = tun::set_offload(queue, 0);
}

/// Probes the offloads of packets to the kernel. The device has a header of `header` bytes, 10 at
/// least. `is_up`: the interface is up.
pub fn probe_tx(queue: &File, kind: Kind, header: usize, is_up: bool, report: &mut Report) {
    report.how = "accepted by the kernel";
    if !is_up {
        write_each(queue, kind, header, report);
    } else if let Ok(scratch) = scratch(kind, header) {
        write_each(&scratch, kind, header, report);
    } else {
        let tunnels = TunOffloads::TUNNEL.with(TunOffloads::TUNNEL_CSUM);
        report.tx = if header < TUNNEL_LEN { TunOffloads::ALL.without(tunnels) } else { TunOffloads::ALL };
        report.how = "not tried, because the interface is up already: used until a packet is refused";
    }
}

/// Whether the kernel has super-packets in UDP tunnels, from the kernel and to it; tried on a
/// scratch device.
///
/// # Errors
/// The error of a step: a scratch device needs `CAP_SYS_ADMIN`.
pub fn tunnels(kind: Kind) -> io::Result<Report> {
    let scratch = scratch(kind, TUNNEL_LEN)?;
    let mut report = Report::default();
    probe_rx(&scratch, TUNNEL_LEN, &mut report);
    probe_tx(&scratch, kind, TUNNEL_LEN, false, &mut report);
    Ok(report)
}

/// A device of the same kind that is never up, in a namespace of its own.
fn scratch(kind: Kind, header: usize) -> io::Result<File> {
    netns::scratch(|| {
        let queue = tun::open()?;
        let how = Attach { ethernet: kind == Kind::Tap, multi_queue: false, vnet_header: true };
        tun::attach(&queue, "probe", how)?;
        tun::set_header_len(&queue, header)?;
        Ok(queue)
    })?
}

fn write_each(mut queue: &File, kind: Kind, header: usize, report: &mut Report) {
    let mut found = TunOffloads::NONE;
    for packet in packets(kind, header >= TUNNEL_LEN) {
        match queue.write(&packet.behind_header(header)) {
            // The packet is delivered if the interface was set up in the meantime, which does no
            // harm.
            Ok(_) => found = found.with(packet.needs),
            Err(error) if error.raw_os_error() == Some(libc::EIO) => found = found.with(packet.needs),
            Err(error) => report.refused.push((packet.needs, format!("tx {}: {error}", packet.name))),
        }
    }
    // A kind that is refused for one version of IP is not used for the other.
    report.tx = report.refused.iter().fold(found, |found, (needs, _)| found.without(*needs));
}

/// Payload bytes of one segment.
const SEGMENT: u16 = 500;
/// Payload of a super-packet: three segments, the last one shorter.
const PAYLOAD: [u8; 1200] = [0; 1200];

/// A packet that one kind of offload is tried with.
#[derive(Debug, Clone)]
pub struct Crafted {
    /// Its name in the report.
    pub name: &'static str,
    /// The offload that the kernel needs for it.
    pub needs: TunOffloads,
    /// Its checksum and segmentation.
    pub offload: Offload,
    /// Its bytes.
    pub frame: Vec<u8>,
}

impl Crafted {
    /// The packet behind a virtio-net header of `header` bytes, 10 to 24.
    pub fn behind_header(&self, header: usize) -> Vec<u8> {
        let bytes = header::encode(&self.offload, self.frame.len()).unwrap_or_default();
        [bytes.get(..header).unwrap_or(&bytes), &self.frame].concat()
    }
}

/// One packet for each kind of offload, or also for those in tunnels.
pub fn packets(layer: Kind, tunnels: bool) -> Vec<Crafted> {
    let ethernet = layer == Kind::Tap;
    let kinds = [
        ("csum", false, None, TunOffloads::CSUM),
        ("tso4", false, Some((GsoKind::Tcp4, false)), TunOffloads::TSO4),
        ("tso4 with ecn", false, Some((GsoKind::Tcp4, true)), TunOffloads::TSO_ECN),
        ("tso6", true, Some((GsoKind::Tcp6, false)), TunOffloads::TSO6),
        ("uso4", false, Some((GsoKind::Udp, false)), TunOffloads::USO),
        ("uso6", true, Some((GsoKind::Udp, false)), TunOffloads::USO),
    ];
    let plain = kinds.into_iter().filter_map(|(name, v6, gso, needs)| {
        let tcp = matches!(gso, Some((GsoKind::Tcp4 | GsoKind::Tcp6, _)));
        let (start, headers, frame) = frame(ethernet, v6, tcp)?;
        let gso = gso.map(|(kind, ecn)| Gso { kind, ecn, size: SEGMENT, segs: 3, hdr_len: headers });
        let offload = Offload::new(Checksum::Partial { start, offset: if tcp { 16 } else { 6 } }, gso);
        Some(Crafted { name, needs, offload, frame })
    });
    let tunnels = if tunnels { &[false, true][..] } else { &[] };
    plain.chain(tunnels.iter().filter_map(|&checksum| tunneled(ethernet, checksum))).collect()
}

/// A frame with a partial checksum, where its transport header begins, and the length of all
/// headers.
fn frame(ethernet: bool, v6: bool, tcp: bool) -> Option<(u16, u16, Vec<u8>)> {
    let ip = if v6 {
        let at = |last| [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
        Ip::v6(at(1), at(2))
    } else {
        Ip::v4([192, 0, 2, 1], [192, 0, 2, 2])
    };
    let transport = if tcp {
        Transport::Tcp(Tcp { src_port: 9, dst_port: 9, ..Tcp::default() })
    } else {
        Transport::Udp(Udp { src_port: 9, dst_port: 9 })
    };
    let headers = Headers { link: ethernet.then_some(LINK), network: Network::Ip(ip, transport) };
    let mut frame = vec![0; headers.len() + PAYLOAD.len()];
    headers.emit(&mut frame, &PAYLOAD, Checksums::Partial).ok()?;
    Some((u16::try_from(headers.transport_offset()).ok()?, u16::try_from(headers.len()).ok()?, frame))
}

const LINK: Link = Link { dst: [2, 0, 0, 0, 0, 2], src: [2, 0, 0, 0, 0, 1], tags: [Tag { tpid: 0, tci: Tci(0) }; 2] };

/// A super-packet of TCP in VXLAN over IPv4, with an outer checksum or without.
fn tunneled(ethernet: bool, checksum: bool) -> Option<Crafted> {
    const VXLAN: [u8; 8] = [vxlan::FLAG_VNI, 0, 0, 0, 0, 0, 1, 0];
    let (start, headers, inner) = frame(true, false, true)?;
    let outer = Headers {
        link: ethernet.then_some(LINK),
        network: Network::Ip(
            Ip::v4([192, 0, 2, 1], [192, 0, 2, 2]),
            Transport::Udp(Udp { src_port: 9, dst_port: vxlan::PORT }),
        ),
    };
    let body = [&VXLAN[..], &inner].concat();
    let mut frame = vec![0; outer.len() + body.len()];
    outer.emit(&mut frame, &body, Checksums::Complete).ok()?;
    let outer_l4 = outer.transport_offset();
    if !checksum {
        frame.get_mut(outer_l4 + 6..outer_l4 + 8)?.fill(0);
    }
    let inner_at = outer.len() + VXLAN.len();
    let at = |offset: usize| u16::try_from(inner_at + offset).ok();
    let gso = Gso { kind: GsoKind::Tcp4, ecn: false, size: SEGMENT, segs: 3, hdr_len: at(headers.into())? };
    let tunnel = Tunnel {
        kind: TunnelKind::Udp,
        outer_v6: false,
        checksum,
        outer_l4: u16::try_from(outer_l4).ok()?,
        inner_l3: at(14)?,
    };
    let partial = Checksum::Partial { start: at(start.into())?, offset: 16 };
    let offload = Offload { tunnel: Some(tunnel), ..Offload::new(partial, Some(gso)) };
    let (name, needs) = match checksum {
        false => ("tcp in vxlan", TunOffloads::TUNNEL),
        true => ("tcp in vxlan with a checksum", TunOffloads::TUNNEL_CSUM),
    };
    Some(Crafted { name, needs, offload, frame })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_packet_for_every_offload_and_layer() {
        for kind in [Kind::Tun, Kind::Tap] {
            let names: Vec<_> = packets(kind, false).iter().map(|packet| packet.name).collect();
            assert_eq!(names, ["csum", "tso4", "tso4 with ecn", "tso6", "uso4", "uso6"]);
            let tunneled = packets(kind, true);
            assert_eq!(tunneled.len(), 8);
            assert!(tunneled.iter().all(|packet| TunOffloads::needed(&packet.offload).has(packet.needs)));
        }
    }
}
