//! Two hosts that are isolated except for the ports of a test.

use super::{Namespace, Towpath};

/// The kind of port that connects a host to towpath.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cable {
    /// The host's interface is a tap of towpath.
    Tap,
    /// The host's interface is a tun of towpath.
    Tun,
    /// The host's interface is one end of the kernel's veth pair; towpath opens the other by
    /// AF_PACKET.
    Packet,
    /// Likewise, by AF_XDP.
    Xdp,
}

/// Host 1 has 10.0.0.1 and fd00::1, host 2 has 10.0.0.2 and fd00::2; the interface of both is
/// called `e0`.
pub(crate) struct Hosts {
    pub(crate) one: Namespace,
    pub(crate) two: Namespace,
    /// The namespace of the far ends of veth pairs; it has no addresses.
    pub(crate) cables: Namespace,
}

impl Hosts {
    pub(crate) fn new() -> Hosts {
        let cables = Namespace::new("cable");
        cables.set("ipv6/conf/default/disable_ipv6", "1");
        Hosts { one: Namespace::new("one"), two: Namespace::new("two"), cables }
    }

    /// The URI of the port that connects a host, with additional `options`. Creates the interfaces
    /// that the port does not create.
    pub(crate) fn port(&self, host: u8, cable: Cable, mtu: u32, options: &str) -> String {
        let ns = if host == 1 { &self.one } else { &self.two };
        let addr = format!("10.0.0.{host}/24+fd00::{host}/64");
        let more = if options.is_empty() { String::new() } else { format!(",{options}") };
        match cable {
            Cable::Tap => format!("tap:e0?netns={},mtu={mtu},addr={addr}{more}", ns.name()),
            Cable::Tun => format!("tun:e0?netns={},mtu={mtu},addr={addr}{more}", ns.name()),
            Cable::Packet | Cable::Xdp => {
                let far = format!("p{host}");
                self.cables.ip(&format!("link add {far} mtu {mtu} type veth peer e0 mtu {mtu} netns {}", ns.name()));
                self.cables.ip(&format!("link set {far} up"));
                ns.ip(&format!("addr add 10.0.0.{host}/24 dev e0"));
                ns.ip(&format!("addr add fd00::{host}/64 dev e0 nodad"));
                ns.ip("link set e0 up");
                let scheme = if cable == Cable::Xdp { "xdp" } else { "packet" };
                format!("{scheme}:{far}?netns={}{more}", self.cables.name())
            }
        }
    }

    /// Starts `towpath fwd` between both hosts.
    pub(crate) fn join(&self, cables: (Cable, Cable), mtu: u32, options: &str, args: &[&str]) -> Towpath {
        let (a, b) = (self.port(1, cables.0, mtu, options), self.port(2, cables.1, mtu, options));
        let mut all = vec!["fwd", &a, &b];
        all.extend(args);
        Towpath::start(&all)
    }
}
