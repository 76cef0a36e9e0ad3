//! Shared by tests: frames, and a use of every getter.
#![allow(dead_code, reason = "each test file uses a part")]

pub(crate) mod exercise;

use proptest::prelude::*;
use towpath_wire::emit::{self, Checksums, Echo, Headers, Ip, Link, Network, Transport};
use towpath_wire::vlan::{Tag, Tci};

/// Headers of any kind that can be written, with the TCP options they borrow.
#[derive(Clone, Debug)]
pub(crate) struct AnyHeaders {
    pub(crate) link: Option<Link>,
    pub(crate) ip: Ip,
    pub(crate) protocol: u8,
    pub(crate) ports: (u16, u16),
    pub(crate) numbers: (u32, u32),
    pub(crate) flags: u8,
    pub(crate) options: Vec<u8>,
}

impl AnyHeaders {
    pub(crate) fn headers(&self) -> Headers<'_> {
        let ((src_port, dst_port), (seq, ack)) = (self.ports, self.numbers);
        let transport = match self.protocol % 3 {
            0 => Transport::Tcp(emit::Tcp {
                src_port,
                dst_port,
                seq,
                ack,
                flags: self.flags,
                window: seq as u16,
                options: &self.options,
            }),
            1 => Transport::Udp(emit::Udp { src_port, dst_port }),
            _ => Transport::Echo(Echo { reply: self.flags & 1 != 0, id: src_port, seq: dst_port }),
        };
        Headers { link: self.link, network: Network::Ip(self.ip, transport) }
    }

    pub(crate) fn frame(&self, payload: &[u8]) -> Vec<u8> {
        let headers = self.headers();
        let mut frame = vec![0; headers.len() + payload.len()];
        let len = headers.emit(&mut frame, payload, Checksums::Complete).unwrap();
        assert_eq!(len, frame.len());
        frame
    }
}

fn tag() -> impl Strategy<Value = Tag> {
    let tpid = prop::sample::select(vec![0x8100, 0x88a8, 0x9100]);
    (tpid, any::<u16>()).prop_map(|(tpid, tci)| Tag { tpid, tci: Tci(tci) })
}

fn link() -> impl Strategy<Value = Link> {
    let tags = prop::collection::vec(tag(), 0..=2).prop_map(|tags| {
        let mut tags = tags.into_iter();
        std::array::from_fn(|_| tags.next().unwrap_or_default())
    });
    (any::<[u8; 6]>(), any::<[u8; 6]>(), tags).prop_map(|(dst, src, tags)| Link { dst, src, tags })
}

fn ip() -> impl Strategy<Value = Ip> {
    let v4 = (any::<[u8; 4]>(), any::<[u8; 4]>()).prop_map(|(src, dst)| Ip::v4(src, dst));
    let v6 = (any::<[u8; 16]>(), any::<[u8; 16]>()).prop_map(|(src, dst)| Ip::v6(src, dst));
    (prop_oneof![v4, v6], any::<(u8, u8, u16, u32)>()).prop_map(|(ip, (ttl, tos, id, label))| Ip {
        ttl,
        tos,
        id,
        flow_label: label & 0xf_ffff,
        ..ip
    })
}

/// TCP options of legal form, aligned.
fn options() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        Just(Vec::new()),
        any::<(u32, u32)>().prop_map(|(a, b)| emit::timestamps(a, b).to_vec()),
        any::<(u16, u8)>().prop_map(|(a, b)| emit::mss_and_window_scale(a, b).to_vec()),
    ]
}

pub(crate) fn any_headers() -> impl Strategy<Value = AnyHeaders> {
    let scalars = any::<(u8, (u16, u16), (u32, u32), u8)>();
    (prop::option::of(link()), ip(), scalars, options()).prop_map(
        |(link, ip, (protocol, ports, numbers, flags), options)| AnyHeaders {
            link,
            ip,
            protocol,
            ports,
            numbers,
            flags,
            options,
        },
    )
}

pub(crate) fn payload() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..300)
}

/// An IPv6 frame whose extension headers are mostly well-formed, with UDP or TCP at their end.
fn extended() -> impl Strategy<Value = Vec<u8>> {
    let kinds = prop::sample::select(vec![0u8, 43, 44, 51, 60]);
    let chain = prop::collection::vec((kinds, 0u8..4, any::<[u8; 6]>()), 1..11);
    let last = prop::sample::select(vec![6u8, 17, 58, 59, 4]);
    (chain, last, payload()).prop_map(|(chain, last, payload)| {
        let mut bytes = Vec::new();
        for (i, (kind, len, fill)) in chain.iter().enumerate() {
            let next = chain.get(i + 1).map_or(last, |(kind, ..)| *kind);
            let (len_field, size) = match kind {
                44 => (0, 8),
                51 => (len | 1, (usize::from(len | 1) + 2) * 4),
                _ => (*len, (usize::from(*len) + 1) * 8),
            };
            let start = bytes.len();
            bytes.extend([next, len_field]);
            bytes.extend(fill);
            if *kind == 44 && fill[1] & 2 == 0 {
                bytes[start + 2..start + 4].fill(0);
            }
            bytes.resize(start + size, 0);
        }
        bytes.extend(payload);
        let first = chain[0].0;
        let ip = Ip::v6([0xfd; 16], [0xfe; 16]);
        let link = Some(Link::default());
        let headers = Headers { link, network: Network::Ip(ip, Transport::Raw(first)) };
        let mut frame = vec![0; headers.len() + bytes.len()];
        headers.emit(&mut frame, &bytes, Checksums::Complete).unwrap();
        frame
    })
}

/// Frames of every sort: sound, with a few bytes changed, cut short, padded, and noise.
pub(crate) fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let sound = (any_headers(), payload()).prop_map(|(headers, payload)| headers.frame(&payload));
    let base = prop_oneof![4 => sound, 4 => extended(), 1 => payload()].boxed();
    let edits = prop::collection::vec((0usize..80, any::<u8>()), 0..4);
    let changed = (base.clone(), edits).prop_map(|(mut frame, edits)| {
        for (at, value) in edits {
            if let Some(byte) = frame.get_mut(at) {
                *byte = value;
            }
        }
        frame
    });
    let cut = (base.clone(), 0usize..120).prop_map(|(mut frame, len)| {
        frame.truncate(len);
        frame
    });
    let padded = (base.clone(), 1usize..60).prop_map(|(mut frame, more)| {
        frame.resize(frame.len() + more, 0);
        frame
    });
    prop_oneof![base, changed, cut, padded]
}
