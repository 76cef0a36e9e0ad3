//! Packets from specifications, and a checker that shares nothing with the engine: it is the slow
//! and obvious reading of the RFCs.
//!
//! | module | what |
//! |---|---|
//! | `reference` | the slow engine over specifications |
//! | `check` | whether a packet, or a super-packet, is legal |
//! | `chain` | a segment that chains, as a packet library does |
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod chain;
pub mod check;
pub mod reference;

use towpath_gro::{Checksum, Gso, GsoKind, LinkKind, Offload, Tunnel, TunnelKind};

pub const FIN: u8 = 1;
pub const SYN: u8 = 2;
pub const RST: u8 = 4;
pub const PSH: u8 = 8;
pub const ACK: u8 = 16;
pub const URG: u8 = 32;
pub const CWR: u8 = 128;

#[derive(Clone, Debug, PartialEq)]
pub struct Ip {
    pub v6: bool,
    pub src: u8,
    pub dst: u8,
    pub ttl: u8,
    pub tos: u8,
    pub id: u16,
    pub df: bool,
    /// IPv6 flow label.
    pub label: u32,
    /// IPv4 options (a multiple of 4), or one IPv6 destination options header's data (6 + n * 8).
    pub options: Vec<u8>,
    /// The IPv4 fragment word without DF, or an IPv6 fragment header's offset word.
    pub fragment: u16,
}

#[derive(Clone, Debug, PartialEq)]
pub enum L4 {
    Tcp { seq: u32, ack: u32, flags: u8, window: u16, options: Vec<u8> },
    Udp { checksum: bool },
}

#[derive(Clone, Debug, PartialEq)]
pub enum Carrier {
    Vxlan { vni: u32, checksum: bool },
    Geneve { vni: u32, checksum: bool, options: Vec<u8>, ethernet: bool },
    Gre { key: Option<u32>, checksum: bool, ethernet: bool },
    Ip,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Outer {
    pub ip: Ip,
    pub port: u16,
    pub carrier: Carrier,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    pub link: LinkKind,
    pub tags: Vec<(u16, u16)>,
    pub mac: u8,
    pub outer: Option<Outer>,
    pub ip: Ip,
    pub ports: (u16, u16),
    pub l4: L4,
    pub payload: Vec<u8>,
}

pub fn v4() -> Ip {
    Ip { v6: false, src: 1, dst: 2, ttl: 64, tos: 0, id: 100, df: true, label: 0, options: vec![], fragment: 0 }
}

pub fn v6() -> Ip {
    Ip { v6: true, label: 0x12345, ..v4() }
}

/// A data segment: timestamps, ACK.
pub fn tcp(ip: Ip, len: usize) -> Spec {
    let options = vec![1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8];
    Spec {
        link: LinkKind::Ethernet,
        tags: vec![],
        mac: 1,
        outer: None,
        ip,
        ports: (40_000, 5201),
        l4: L4::Tcp { seq: 1000, ack: 77, flags: ACK, window: 501, options },
        payload: (0..len).map(|i| (i * 7) as u8).collect(),
    }
}

pub fn udp(ip: Ip, len: usize) -> Spec {
    Spec { l4: L4::Udp { checksum: true }, ..tcp(ip, len) }
}

pub fn in_tunnel(mut spec: Spec, outer_ip: Ip, carrier: Carrier) -> Spec {
    let ip = Ip { src: 11, dst: 12, id: 500, ..outer_ip };
    spec.outer = Some(Outer { ip, port: 50_000, carrier });
    spec
}

impl Spec {
    pub fn flags(mut self, new: u8) -> Self {
        if let L4::Tcp { flags, .. } = &mut self.l4 {
            *flags = new;
        }
        self
    }

    pub fn seq(mut self, new: u32) -> Self {
        if let L4::Tcp { seq, .. } = &mut self.l4 {
            *seq = new;
        }
        self
    }

    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    pub fn is_udp(&self) -> bool {
        matches!(self.l4, L4::Udp { .. })
    }

    /// The packet after this one in its flow: sequence number and identifications go on.
    pub fn next(&self, len: usize) -> Self {
        let mut next = self.clone();
        if let L4::Tcp { seq, flags, .. } = &mut next.l4 {
            let syn_fin = u32::from(*flags & SYN != 0) + u32::from(*flags & FIN != 0);
            *seq = seq.wrapping_add(self.payload.len() as u32).wrapping_add(syn_fin);
        }
        next.ip.id = next.ip.id.wrapping_add(1);
        if let Some(outer) = &mut next.outer {
            outer.ip.id = outer.ip.id.wrapping_add(1);
        }
        let first = self.payload.last().copied().unwrap_or(3);
        next.payload = (0..len).map(|i| first.wrapping_add((i * 13 + 1) as u8)).collect();
        next
    }

    /// A run of `n` packets of `len` bytes that belong together.
    pub fn run(&self, n: usize, len: usize) -> Vec<Self> {
        let first = Self { payload: vec![9; len], ..self.clone() };
        std::iter::successors(Some(first), |last| Some(last.next(len))).take(n).collect()
    }

    pub fn build(&self) -> Vec<u8> {
        self.emit(false)
    }

    /// The super-packet of the run that begins with `self` and has this payload in all.
    pub fn build_super(&self, size: u16) -> (Vec<u8>, Offload) {
        let packet = self.emit(true);
        let l4_len = match &self.l4 {
            L4::Tcp { options, .. } => 20 + options.len(),
            L4::Udp { .. } => 8,
        };
        let hdr_len = packet.len() - self.payload.len();
        let l3_len = |ip: &Ip| if ip.v6 { 40 } else { 20 } + if ip.v6 && !ip.options.is_empty() { ip.options.len() + 2 } else { ip.options.len() };
        let tunnel = self.outer.as_ref().map(|outer| {
            let link = if self.link == LinkKind::Ethernet { 14 + 4 * self.tags.len() } else { 0 };
            let (kind, checksum) = match outer.carrier {
                Carrier::Vxlan { checksum, .. } | Carrier::Geneve { checksum, .. } => (TunnelKind::Udp, checksum),
                Carrier::Gre { checksum, .. } => (TunnelKind::Gre, checksum),
                Carrier::Ip => (TunnelKind::Ip, false),
            };
            Tunnel {
                kind,
                outer_v6: outer.ip.v6,
                checksum,
                outer_l4: (link + l3_len(&outer.ip)) as u16,
                inner_l3: (hdr_len - l4_len - l3_len(&self.ip)) as u16,
            }
        });
        let gso = Gso {
            kind: match (self.is_udp(), self.ip.v6) {
                (true, _) => GsoKind::Udp,
                (false, false) => GsoKind::Tcp4,
                (false, true) => GsoKind::Tcp6,
            },
            size,
            segs: self.payload.len().div_ceil(size.into()) as u16,
            hdr_len: hdr_len as u16,
            ecn: false,
        };
        let checksum =
            Checksum::Partial { start: (hdr_len - l4_len) as u16, offset: if self.is_udp() { 6 } else { 16 } };
        (packet, Offload { tunnel, ..Offload::new(checksum, Some(gso)) })
    }

    fn emit(&self, partial: bool) -> Vec<u8> {
        let protocol = if self.is_udp() { 17 } else { 6 };
        let inner = self.ip.emit(protocol, &self.emit_l4(partial));
        let ip = match &self.outer {
            None => (self.ip.v6, inner),
            Some(outer) => (outer.ip.v6, outer.emit(self.ip.v6, &inner, self.emit_inner_sum(), partial)),
        };
        match self.link {
            LinkKind::Ip => ip.1,
            LinkKind::Ethernet => ethernet(self.mac, &self.tags, ip.0, &ip.1),
        }
    }

    fn emit_l4(&self, partial: bool) -> Vec<u8> {
        let mut b = vec![];
        b.extend(self.ports.0.to_be_bytes());
        b.extend(self.ports.1.to_be_bytes());
        let (at, wanted) = match &self.l4 {
            L4::Tcp { seq, ack, flags, window, options } => {
                b.extend(seq.to_be_bytes());
                b.extend(ack.to_be_bytes());
                b.extend([((20 + options.len()) as u8 / 4) << 4, *flags]);
                b.extend(window.to_be_bytes());
                b.extend([0; 4]);
                b.extend(options);
                (16, true)
            }
            L4::Udp { checksum } => {
                b.extend(((8 + self.payload.len()) as u16).to_be_bytes());
                b.extend([0; 2]);
                (6, *checksum)
            }
        };
        b.extend(&self.payload);
        if wanted {
            let pseudo = self.ip.pseudo(if at == 6 { 17 } else { 6 }, b.len());
            let check = if partial { sum16(&pseudo) } else { !sum16(&[&pseudo[..], &b].concat()) };
            let check = if check == 0 && at == 6 { 0xffff } else { check };
            b[at..at + 2].copy_from_slice(&check.to_be_bytes());
        }
        b
    }

    /// The bytes of the innermost transport with a right checksum, whatever is emitted.
    fn emit_inner_sum(&self) -> Vec<u8> {
        self.ip.emit(if self.is_udp() { 17 } else { 6 }, &self.emit_l4(false))
    }
}

pub fn ethernet(mac: u8, tags: &[(u16, u16)], v6: bool, ip: &[u8]) -> Vec<u8> {
    let mut b = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, mac];
    for (tpid, tci) in tags {
        b.extend(tpid.to_be_bytes());
        b.extend(tci.to_be_bytes());
    }
    b.extend(if v6 { [0x86, 0xdd] } else { [8, 0] });
    b.extend(ip);
    b
}

impl Ip {
    pub fn address(&self, last: u8) -> Vec<u8> {
        if self.v6 {
            let mut a = vec![0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            a.push(last);
            a
        } else {
            vec![10, 0, 0, last]
        }
    }

    fn pseudo(&self, protocol: u8, len: usize) -> Vec<u8> {
        let mut p = [self.address(self.src), self.address(self.dst)].concat();
        p.extend((len as u32).to_be_bytes());
        p.extend([0, 0, 0, protocol]);
        p
    }

    pub fn emit(&self, protocol: u8, payload: &[u8]) -> Vec<u8> {
        let mut b = vec![];
        if self.v6 {
            let mut extensions = vec![];
            let mut next = protocol;
            if self.fragment != 0 {
                extensions.extend([next, 0]);
                extensions.extend(self.fragment.to_be_bytes());
                extensions.extend([0, 0, 0, 7]);
                next = 44;
            }
            if !self.options.is_empty() {
                let header = [&[next, ((self.options.len() + 2) / 8 - 1) as u8][..], &self.options].concat();
                extensions = [header, extensions].concat();
                next = 60;
            }
            b.extend((6 << 28 | u32::from(self.tos) << 20 | self.label).to_be_bytes());
            b.extend(((extensions.len() + payload.len()) as u16).to_be_bytes());
            b.extend([next, self.ttl]);
            b.extend(self.address(self.src));
            b.extend(self.address(self.dst));
            b.extend(extensions);
        } else {
            b.extend([0x45 + self.options.len() as u8 / 4, self.tos]);
            b.extend(((20 + self.options.len() + payload.len()) as u16).to_be_bytes());
            b.extend(self.id.to_be_bytes());
            b.extend((self.fragment | u16::from(self.df) << 14).to_be_bytes());
            b.extend([self.ttl, protocol, 0, 0]);
            b.extend(self.address(self.src));
            b.extend(self.address(self.dst));
            b.extend(&self.options);
            let check = !sum16(&b);
            b[10..12].copy_from_slice(&check.to_be_bytes());
        }
        b.extend(payload);
        b
    }
}

impl Outer {
    /// `inner` is the packet to carry, `right` the same with a right checksum.
    fn emit(&self, inner_v6: bool, inner: &[u8], right: Vec<u8>, partial: bool) -> Vec<u8> {
        let wrap = |on: bool, ip: &[u8]| if on { ethernet(9, &[], inner_v6, ip) } else { ip.to_vec() };
        let ethertype = |on: bool| match (on, inner_v6) {
            (true, _) => [0x65, 0x58],
            (false, false) => [8, 0],
            (false, true) => [0x86, 0xdd],
        };
        match &self.carrier {
            Carrier::Ip => self.ip.emit(if inner_v6 { 41 } else { 4 }, inner),
            Carrier::Gre { key, checksum, ethernet } => {
                let flags = u8::from(*checksum) << 7 | u8::from(key.is_some()) << 5;
                let mut header = [&[flags, 0][..], &ethertype(*ethernet)].concat();
                if *checksum {
                    header.extend([0; 4]);
                }
                header.extend(key.map(u32::to_be_bytes).into_iter().flatten());
                if *checksum {
                    let check = !sum16(&[&header[..], &wrap(*ethernet, &right)].concat());
                    header[4..6].copy_from_slice(&check.to_be_bytes());
                }
                self.ip.emit(47, &[header, wrap(*ethernet, inner)].concat())
            }
            Carrier::Vxlan { vni, checksum } => {
                let header = [&[8, 0, 0, 0][..], &(vni << 8).to_be_bytes()].concat();
                self.emit_udp(4789, *checksum, header, wrap(true, inner), wrap(true, &right), partial)
            }
            Carrier::Geneve { vni, checksum, options, ethernet } => {
                let mut header = [&[options.len() as u8 / 4, 0][..], &ethertype(*ethernet)].concat();
                header.extend((vni << 8).to_be_bytes());
                header.extend(options);
                self.emit_udp(6081, *checksum, header, wrap(*ethernet, inner), wrap(*ethernet, &right), partial)
            }
        }
    }

    fn emit_udp(
        &self,
        port: u16,
        checksum: bool,
        header: Vec<u8>,
        inner: Vec<u8>,
        right: Vec<u8>,
        partial: bool,
    ) -> Vec<u8> {
        let len = 8 + header.len() + inner.len();
        let mut udp = [self.port.to_be_bytes(), port.to_be_bytes(), (len as u16).to_be_bytes(), [0; 2]].concat();
        if checksum {
            let pseudo = self.ip.pseudo(17, len);
            let check = if partial { sum16(&pseudo) } else { !sum16(&[&pseudo[..], &udp, &header, &right].concat()) };
            let check = if check == 0 { 0xffff } else { check };
            udp[6..8].copy_from_slice(&check.to_be_bytes());
        }
        self.ip.emit(17, &[udp, header, inner].concat())
    }
}

/// [RFC 1071](https://www.rfc-editor.org/rfc/rfc1071), literally.
pub fn sum16(data: &[u8]) -> u16 {
    let mut sum = 0u64;
    for pair in data.chunks(2) {
        sum += u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0));
    }
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
