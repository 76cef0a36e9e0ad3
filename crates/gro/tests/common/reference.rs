//! The slow and obvious engine: it looks at specifications, searches lists, and builds aggregates
//! anew instead of changing headers.

use towpath_gro::Offload;

use super::{ACK, CWR, Carrier, FIN, Ip, L4, PSH, Spec};

/// Faults of a packet beside its specification.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    None,
    /// The innermost transport checksum.
    Transport,
    /// The innermost IPv4 header checksum; with IPv6, the transport checksum.
    IpHeader,
    /// Bytes after the end of the packet.
    Padding,
}

/// An incoming packet.
#[derive(Clone, Debug)]
pub struct Packet {
    pub spec: Spec,
    pub fault: Fault,
    /// The port verified its checksum.
    pub trusted: bool,
}

impl Packet {
    pub fn build(&self) -> Vec<u8> {
        let mut b = self.spec.build();
        let header = b.len() - self.spec.payload.len();
        let l4 = header
            - match &self.spec.l4 {
                L4::Tcp { options, .. } => 20 + options.len(),
                L4::Udp { .. } => 8,
            };
        match self.fault {
            Fault::None => {}
            Fault::IpHeader if !self.spec.ip.v6 => b[l4 - 20 - self.spec.ip.options.len() + 10] ^= 0x40,
            Fault::Transport | Fault::IpHeader => b[l4 + if self.spec.is_udp() { 6 } else { 16 }] ^= 0x40,
            Fault::Padding => b.extend([0; 5]),
        }
        b
    }

    /// Whether verification finds a wrong checksum.
    fn is_wrong(&self) -> bool {
        match self.fault {
            Fault::None | Fault::Padding => false,
            Fault::IpHeader if !self.spec.ip.v6 => true,
            Fault::Transport | Fault::IpHeader => !self.trusted,
        }
    }
}

pub struct Held {
    pub packets: Vec<Packet>,
    pub now: u64,
}

#[derive(Default)]
pub struct Reference {
    pub held: Vec<Held>,
    pub out: Vec<(Vec<u8>, Option<Offload>)>,
    pub max_size: usize,
    pub max_packets: usize,
}

/// The identity of a flow.
pub fn identity(s: &Spec) -> impl PartialEq + std::fmt::Debug + use<> {
    let ip = |ip: &Ip| (ip.v6, ip.src, ip.dst);
    let outer = s.outer.as_ref().map(|o| {
        let id = match &o.carrier {
            Carrier::Vxlan { vni, .. } => (1, *vni, 0, true),
            Carrier::Geneve { vni, options, ethernet, .. } => (2, *vni, options.len(), *ethernet || s.ip.v6),
            Carrier::Gre { key, .. } => (0, key.map_or(0, |k| k), usize::from(key.is_some()), true),
            Carrier::Ip => (0, 0, 0, true),
        };
        (ip(&o.ip), id)
    });
    (s.tags.clone(), outer, ip(&s.ip), s.ports)
}

impl Reference {
    pub fn push(&mut self, packet: &Packet, now: u64) {
        if packet.spec.ip.fragment & 0xfff8 != 0 && (packet.spec.ip.v6 || packet.spec.ip.fragment & 0x1fff != 0) {
            self.flush(u64::MAX);
            return self.out.push((packet.build(), None));
        }
        if let Some(at) = self.held.iter().position(|h| identity(&h.packets[0].spec) == identity(&packet.spec)) {
            if self.joins(&self.held[at], packet) {
                let held = &mut self.held[at];
                held.packets.push(packet.clone());
                if self.ends(at) {
                    self.emit(at);
                }
                return;
            }
            self.emit(at);
        }
        if may_begin(packet) {
            self.held.push(Held { packets: vec![packet.clone()], now });
        } else {
            self.out.push((packet.build(), None));
        }
    }

    pub fn flush(&mut self, older_than: u64) {
        while self.held.first().is_some_and(|h| h.now <= older_than) {
            self.emit(0);
        }
    }

    fn joins(&self, held: &Held, packet: &Packet) -> bool {
        let (first, last) = (&held.packets[0].spec, &held.packets[held.packets.len() - 1].spec);
        let new = &packet.spec;
        let n = held.packets.len();
        // Equal except for the fields that are expected to differ.
        let mut expected = last.next(0);
        expected.payload = new.payload.clone();
        let mut ids = |ip: fn(&mut Spec) -> Option<&mut Ip>| {
            let (mut f, mut l, mut w) = (first.clone(), last.clone(), new.clone());
            let Some(want) = ip(&mut expected) else { return };
            let (Some(f), Some(l), Some(w)) = (ip(&mut f), ip(&mut l), ip(&mut w)) else { return };
            let fixed = if n == 1 { w.id == f.id && w.df } else { l.id == f.id };
            if fixed {
                want.id = f.id;
            }
            if want.v6 {
                want.id = w.id;
            }
        };
        ids(|s| Some(&mut s.ip));
        ids(|s| s.outer.as_mut().map(|o| &mut o.ip));
        if let (L4::Tcp { flags: want, .. }, L4::Tcp { flags: is, .. }) = (&mut expected.l4, &new.l4) {
            *want |= is & (FIN | PSH);
        }
        let wrong = held.packets.iter().chain([packet]).any(Packet::is_wrong);
        let total: usize = held.packets.iter().map(|p| p.spec.payload.len()).sum();
        let headers = new.build().len()
            - new.payload.len()
            - if new.link == towpath_gro::LinkKind::Ethernet { 14 + 4 * new.tags.len() } else { 0 };
        expected == *new
            && packet.fault != Fault::Padding
            && !wrong
            && (1..=first.payload.len()).contains(&new.payload.len())
            && !matches!(new.l4, L4::Udp { checksum: false })
            && n < if new.is_udp() { self.max_packets.min(64) } else { self.max_packets }
            && headers + total + new.payload.len() <= self.max_size
    }

    fn ends(&self, at: usize) -> bool {
        let held = &self.held[at];
        let (first, last) = (&held.packets[0].spec, &held.packets[held.packets.len() - 1].spec);
        let total: usize = held.packets.iter().map(|p| p.spec.payload.len()).sum();
        let flags = if let L4::Tcp { flags, .. } = last.l4 { flags } else { 0 };
        let headers = first.build().len()
            - first.payload.len()
            - if first.link == towpath_gro::LinkKind::Ethernet { 14 + 4 * first.tags.len() } else { 0 };
        last.payload.len() < first.payload.len()
            || flags & (FIN | PSH) != 0
            || held.packets.len() >= if last.is_udp() { self.max_packets.min(64) } else { self.max_packets }
            || headers + total >= self.max_size
    }

    fn emit(&mut self, at: usize) {
        let held = self.held.remove(at);
        let first = &held.packets[0];
        if held.packets.len() == 1 {
            return self.out.push((first.build(), None));
        }
        let last = &held.packets[held.packets.len() - 1].spec;
        let mut whole = first.spec.clone();
        whole.payload = held.packets.iter().flat_map(|p| p.spec.payload.clone()).collect();
        if let (L4::Tcp { flags, .. }, L4::Tcp { flags: more, .. }) = (&mut whole.l4, &last.l4) {
            *flags |= more;
        }
        let (packet, mut offload) = whole.build_super(first.spec.payload.len() as u16);
        let second = &held.packets[1].spec;
        if offload.gso.is_some() {
            offload.fixed_id = !second.ip.v6 && second.ip.id == first.spec.ip.id;
            let ids = |s: &Spec| s.outer.as_ref().filter(|o| !o.ip.v6).map(|o| o.ip.id);
            offload.outer_fixed_id = ids(second).is_some() && ids(second) == ids(&first.spec);
        }
        self.out.push((packet, Some(offload)));
    }
}

fn may_begin(packet: &Packet) -> bool {
    let s = &packet.spec;
    let plain = (s.ip.v6 || s.ip.options.is_empty())
        && s.ip.fragment == 0
        && s.outer.as_ref().is_none_or(|o| o.ip.v6 || o.ip.options.is_empty());
    let data = match s.l4 {
        L4::Tcp { flags, .. } => flags & 0x3f == ACK && flags & !(ACK | CWR | 0x40) == 0,
        L4::Udp { checksum } => checksum,
    };
    let least = if s.is_udp() { 1 } else { 8 };
    plain && data && s.payload.len() >= least && packet.fault != Fault::Padding
}
