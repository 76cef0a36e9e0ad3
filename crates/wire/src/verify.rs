//! Verifies every checksum of a frame, for tests and tools: what a receiving host would say.

use crate::checksum::{self, VALID};
use crate::dissect::{Dissected, Flags, Stop, dissect};
use crate::ip::protocol;
use crate::offload::LinkKind;
use crate::{Ipv4, Ipv6, Udp};

/// What became of one checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Check {
    /// There is none: no such header, UDP with 0, a protocol without, or not all of the data is
    /// here (a fragment, a frame cut short).
    Absent,
    /// It is right.
    Good,
    /// It is wrong, or the UDP length it depends on is.
    Bad,
}

/// The checksums of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Verdict {
    /// Of the IPv4 header.
    pub network: Check,
    /// Of TCP, UDP, ICMP or ICMPv6.
    pub transport: Check,
}

impl Verdict {
    /// Whether no checksum is wrong.
    #[must_use]
    pub const fn is_sound(&self) -> bool {
        !matches!(self.network, Check::Bad) && !matches!(self.transport, Check::Bad)
    }
}

fn check(good: bool) -> Check {
    if good { Check::Good } else { Check::Bad }
}

/// Verifies the checksums of a frame. Tunnels are not entered.
#[must_use]
pub fn verify(frame: &[u8], kind: LinkKind) -> Verdict {
    let found = dissect(frame, kind);
    let packet = frame.get(usize::from(found.l3)..found.end as usize).unwrap_or_default();
    let segment = frame.get(usize::from(found.l4)..found.end as usize).unwrap_or_default();
    let header = frame.get(usize::from(found.l3)..usize::from(found.l4)).unwrap_or_default();
    let network = match found.is_ipv4() {
        true => check(checksum::sum(header) == VALID),
        false => Check::Absent,
    };
    Verdict { network, transport: transport(&found, packet, segment).unwrap_or(Check::Absent) }
}

/// `None` where nothing can be verified.
fn transport(found: &Dissected, packet: &[u8], segment: &[u8]) -> Option<Check> {
    let part = found.flags.intersects(Flags::FRAGMENT | Flags::TRUNCATED);
    if found.stop != Stop::Complete || part {
        return None;
    }
    let sum = match found.flow.protocol {
        protocol::UDP => {
            let Ok(udp) = Udp::parse(segment) else {
                return Some(Check::Bad);
            };
            if udp.checksum() == 0 {
                return None;
            }
            let datagram = segment.get(..usize::from(udp.length()))?;
            checksum::add(pseudo_sum(found, packet, datagram.len())?, checksum::sum(datagram))
        }
        protocol::TCP | protocol::ICMPV6 => {
            checksum::add(pseudo_sum(found, packet, segment.len())?, checksum::sum(segment))
        }
        protocol::ICMP => checksum::sum(segment),
        _ => return None,
    };
    Some(check(sum == VALID))
}

/// `None` if a routing header hides the address that the checksum covers.
fn pseudo_sum(found: &Dissected, packet: &[u8], len: usize) -> Option<u16> {
    let (protocol, len) = (found.flow.protocol, len as u32);
    if found.is_ipv4() {
        let ip = Ipv4::parse(packet).ok()?;
        return Some(checksum::pseudo_v4(ip.src(), ip.dst(), protocol, len));
    }
    let ip = Ipv6::parse(packet).ok()?;
    let routed = |ext: crate::ipv6::Extension<'_>| ext.segments_left().is_some_and(|n| n > 0);
    if ip.extensions().flatten().any(routed) {
        return None;
    }
    Some(ip.pseudo_sum(protocol, len))
}
