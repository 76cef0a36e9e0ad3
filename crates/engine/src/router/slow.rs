//! The slow path of a router: what is not a plain packet to forward, and what is for the router
//! itself.

use super::fib::{Answer, NextHop, choose};
use super::fragment::{pieces, write_header};
use super::icmp::{self, Problem};
use super::ip::{self, Refusal, V4, V6, is_group, upper6};
use super::neighbour::{Discovery, MAX_MESSAGE, Outcome};
use super::{Action, Router, Turn, longest, mac_number, transmit};
use std::net::{IpAddr, Ipv6Addr};
use towpath_packet::port::{RxQueue, TxQueue};
use towpath_packet::{Batch, DropReason, Offloads, Packet};
use towpath_wire::ethernet::{self, ethertype};
use towpath_wire::icmp::v6;
use towpath_wire::ip::protocol;

/// Bytes that are made contiguous: a whole message of a neighbour, a quoted packet.
const CONTIGUOUS: usize = 1514;
/// Bytes without which no decision is possible: the longest IPv4 header, or a short chain of
/// IPv6's.
const HEADERS: usize = ethernet::HEADER_LEN + 60;

/// A packet on the slow path, and what is known of it.
struct Seen {
    packet: Packet,
    /// The frame was for a group.
    to_group: bool,
}

impl Router {
    /// Handles one packet completely.
    #[cold]
    pub(super) fn slow<R: RxQueue, T: TxQueue>(&mut self, mut packet: Packet, turn: &mut Turn<'_, R, T>) {
        let refused = self.prepare(&mut packet).err();
        let Some(own) = turn.fib.interface(turn.ingress as u16) else {
            return turn.ports.drop(turn.ingress, DropReason::NoEgress, packet);
        };
        if let Some(reason) = refused {
            return turn.ports.drop(turn.ingress, reason, packet);
        }
        let Some(header) = packet.linear().first_chunk::<{ ethernet::HEADER_LEN }>() else {
            return turn.ports.drop(turn.ingress, DropReason::Malformed, packet);
        };
        let [a, b, c, d, e, f, .., x, y] = *header;
        let to_group = a & 1 != 0;
        if !to_group && mac_number([a, b, c, d, e, f]) != mac_number(own.mac) {
            return turn.ports.drop(turn.ingress, DropReason::Foreign, packet);
        }
        let kind = u16::from_be_bytes([x, y]);
        if packet.vlan().is_some() || ethertype::is_tag(kind) {
            return self.control(packet, DropReason::Vlan, turn);
        }
        let seen = Seen { packet, to_group };
        match kind {
            ethertype::ARP if own.control.is_none() => self.arp(seen, turn),
            ethertype::ARP => self.control(seen.packet, DropReason::ForRouter, turn),
            ethertype::IPV4 => self.v4(seen, turn),
            ethertype::IPV6 => self.v6(seen, turn),
            _ => self.control(seen.packet, DropReason::UnknownProtocol, turn),
        }
    }

    /// Makes the headers contiguous and writable.
    fn prepare(&mut self, packet: &mut Packet) -> Result<(), DropReason> {
        if !self.software.cache().ensure_head(packet) {
            return Err(DropReason::NoBuffer);
        }
        let (len, most) = (packet.len(), packet.linear().len() + packet.tailroom());
        if packet.make_linear(len.min(CONTIGUOUS).min(most)).is_err() || packet.linear().len() < len.min(HEADERS) {
            return Err(DropReason::NoBuffer);
        }
        if len < ethernet::HEADER_LEN { Err(DropReason::Malformed) } else { Ok(()) }
    }

    /// Hands a packet to the control port of its interface, or drops it.
    fn control<R: RxQueue, T: TxQueue>(&mut self, packet: Packet, reason: DropReason, turn: &mut Turn<'_, R, T>) {
        let Some(control) = turn.fib.interface(turn.ingress as u16).and_then(|interface| interface.control) else {
            return turn.ports.drop(turn.ingress, reason, packet);
        };
        turn.ports.send(turn.ingress, control.into(), packet);
    }

    fn v4<R: RxQueue, T: TxQueue>(&mut self, mut seen: Seen, turn: &mut Turn<'_, R, T>) {
        let len = seen.packet.len() - ethernet::HEADER_LEN;
        let v4 = match ip::check4(seen.packet.linear().get(ethernet::HEADER_LEN..).unwrap_or_default(), len) {
            Ok(v4) => v4,
            Err(refusal) => return self.refuse(seen, refusal, turn),
        };
        seen.packet.truncate(ethernet::HEADER_LEN + usize::from(v4.total_len));
        let dst = IpAddr::V4(v4.dst);
        // Another station with an address of the router, or a packet that came back.
        if turn.fib.is_local(v4.src.into()) {
            return turn.ports.drop(turn.ingress, DropReason::Martian, seen.packet);
        }
        if is_group(dst) {
            return self.control(seen.packet, DropReason::ForRouter, turn);
        }
        let next_hop = match self.next_hop(&seen, dst, turn) {
            Ok(Some(next_hop)) => next_hop,
            Ok(None) => return self.local(seen, dst, turn),
            Err(refusal) => return self.refuse(seen, refusal, turn),
        };
        if v4.ttl <= 1 {
            return self.refuse(seen, Refusal::with(DropReason::TtlExpired, Problem::TimeExceeded), turn);
        }
        self.forward4(seen, v4, &next_hop, turn);
    }

    fn forward4<R: RxQueue, T: TxQueue>(
        &mut self,
        mut seen: Seen,
        v4: V4,
        next_hop: &NextHop,
        turn: &mut Turn<'_, R, T>,
    ) {
        let is_too_long = longest(&seen.packet, v4.total_len.into()) > next_hop.mtu;
        if is_too_long && v4.fragment & towpath_wire::ipv4::DONT_FRAGMENT != 0 {
            let problem = Problem::TooBig { mtu: next_hop.mtu };
            return self.refuse(seen, Refusal::with(DropReason::NotFragmented, problem), turn);
        }
        if let Some(at) = v4.options.record_route
            && let Some(own) = turn.fib.source4(next_hop, v4.dst)
            && let Some(header) = seen
                .packet
                .linear_mut()
                .get_mut(ethernet::HEADER_LEN..ethernet::HEADER_LEN + usize::from(v4.header_len))
        {
            ip::record_route(header, at, own);
        }
        if is_too_long {
            return self.fragment(seen.packet, next_hop, v4.dst.into(), turn);
        }
        self.send(seen.packet, next_hop, v4.dst.into(), turn);
    }

    /// Cuts a packet into fragments, and forwards them.
    fn fragment<R: RxQueue, T: TxQueue>(
        &mut self,
        packet: Packet,
        next_hop: &NextHop,
        dst: IpAddr,
        turn: &mut Turn<'_, R, T>,
    ) {
        let (mut whole, mut plain) = (Batch::new(), Batch::<64>::new());
        let _ = whole.push(packet);
        // Segments with complete checksums: a fragment has no checksum of its own.
        loop {
            self.software.apply(&mut whole, &mut plain, Offloads::NONE);
            let n = plain.len();
            if n == 0 {
                return;
            }
            for packet in plain.drain_front(n) {
                self.fragment_one(packet, next_hop, dst, turn);
            }
        }
    }

    fn fragment_one<R: RxQueue, T: TxQueue>(
        &mut self,
        packet: Packet,
        next_hop: &NextHop,
        dst: IpAddr,
        turn: &mut Turn<'_, R, T>,
    ) {
        let len = packet.len();
        if len - ethernet::HEADER_LEN <= next_hop.mtu as usize {
            return self.send(packet, next_hop, dst, turn);
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        let header_len = packet.linear().get(ethernet::HEADER_LEN).map_or(0, |first| usize::from(first & 15) * 4);
        packet.copy_to(0, scratch.get_mut(..len).unwrap_or_default());
        let front = ethernet::HEADER_LEN + header_len;
        let payload = scratch.get(front..len).unwrap_or_default();
        let made = pieces(header_len, payload.len(), next_hop.mtu as usize);
        let mut fragments = 0;
        for piece in made.into_iter().flatten() {
            let more = piece.at + piece.len < payload.len();
            let part = payload.get(piece.at..piece.at + piece.len).unwrap_or_default();
            let mut frame = [0; HEADERS];
            let Some(header) = frame.get_mut(..front) else { break };
            header.copy_from_slice(scratch.get(..front).unwrap_or_default());
            write_header(header.get_mut(ethernet::HEADER_LEN..).unwrap_or_default(), piece, more);
            fragments += 1;
            match join(self.software.cache(), header, part) {
                Some(fragment) => self.send(fragment, next_hop, dst, turn),
                None => self.counters.dropped(DropReason::NoBuffer, 1),
            }
        }
        self.scratch = scratch;
        if fragments == 0 {
            return turn.ports.drop(turn.ingress, DropReason::TooLong, packet);
        }
        self.counters.split(fragments);
        self.software.cache().free(packet);
    }

    fn v6<R: RxQueue, T: TxQueue>(&mut self, mut seen: Seen, turn: &mut Turn<'_, R, T>) {
        let len = seen.packet.len() - ethernet::HEADER_LEN;
        let v6 = match ip::check6(seen.packet.linear().get(ethernet::HEADER_LEN..).unwrap_or_default(), len) {
            Ok(v6) => v6,
            Err(refusal) => return self.refuse(seen, refusal, turn),
        };
        seen.packet.truncate(ethernet::HEADER_LEN + v6.total_len as usize);
        let dst = IpAddr::V6(v6.dst);
        if is_group(dst) {
            return self.for_router(seen, dst, turn);
        }
        if v6.dst.is_unicast_link_local() {
            return match turn.fib.is_local(dst) {
                true => self.local(seen, dst, turn),
                false => turn.ports.drop(turn.ingress, DropReason::Martian, seen.packet),
            };
        }
        let next_hop = match self.next_hop(&seen, dst, turn) {
            Ok(Some(next_hop)) => next_hop,
            Ok(None) => return self.local(seen, dst, turn),
            Err(refusal) => return self.refuse(seen, refusal, turn),
        };
        if let Err(refusal) = check_forward6(&v6, &next_hop, &seen.packet) {
            return self.refuse(seen, refusal, turn);
        }
        self.send(seen.packet, &next_hop, dst, turn);
    }

    /// The next hop of a packet, `None` if it is for the router.
    fn next_hop<R: RxQueue, T: TxQueue>(
        &self,
        seen: &Seen,
        dst: IpAddr,
        turn: &Turn<'_, R, T>,
    ) -> Result<Option<NextHop>, Refusal> {
        let refused = |problem| Err(Refusal::with(DropReason::Unreachable, problem));
        match turn.fib.lookup(dst) {
            Answer::Other(Action::Local) => Ok(None),
            // In a frame to a group nothing is forwarded (RFC 1812 section 5.3.4), or answered.
            _ if seen.to_group && turn.fib.lookup(dst) != Answer::Other(Action::Broadcast) => {
                Err(DropReason::Foreign.into())
            }
            Answer::Other(Action::Broadcast) => Ok(None),
            Answer::Other(Action::Unreachable) => refused(Problem::HostUnreachable),
            Answer::Other(Action::Prohibit) => refused(Problem::Prohibited),
            Answer::Other(Action::Blackhole | Action::Forward) => Err(DropReason::Unreachable.into()),
            Answer::NoRoute => Err(Refusal::with(DropReason::NoRoute, Problem::NoRoute)),
            Answer::NextHops(next_hops) => match choose(next_hops, self.hash_of(&seen.packet)) {
                Some(next_hop) => Ok(Some(*next_hop)),
                None => Err(DropReason::NoRoute.into()),
            },
        }
    }

    /// A packet for the router: the control plane gets it, or the router answers.
    fn local<R: RxQueue, T: TxQueue>(&mut self, mut seen: Seen, own: IpAddr, turn: &mut Turn<'_, R, T>) {
        let has_control = turn.fib.interface(turn.ingress as u16).is_some_and(|port| port.control.is_some());
        if has_control || turn.fib.lookup(own) == Answer::Other(Action::Broadcast) || seen.to_group {
            return self.for_router(seen, own, turn);
        }
        let whole = seen.packet.len();
        if let Some(ip) = seen
            .packet
            .linear_mut()
            .get_mut(ethernet::HEADER_LEN..)
            .filter(|ip| ip.len() + ethernet::HEADER_LEN == whole)
            && icmp::reply(ip, own)
        {
            // The checksums were read and written.
            seen.packet.set_csum(towpath_packet::Checksum::Unknown);
            return self.send_own(seen.packet, turn);
        }
        let ip = seen.packet.linear().get(ethernet::HEADER_LEN..).unwrap_or_default();
        let transport = match own {
            IpAddr::V4(_) => ip.get(9).copied(),
            IpAddr::V6(_) => upper6(ip).map(|(protocol, _)| protocol),
        };
        if transport == Some(protocol::UDP) {
            return self.refuse(seen, Refusal::with(DropReason::ForRouter, Problem::PortUnreachable), turn);
        }
        self.for_router(seen, own, turn);
    }

    /// A packet that the router itself acts on, without a control plane: neighbour discovery.
    fn for_router<R: RxQueue, T: TxQueue>(&mut self, seen: Seen, dst: IpAddr, turn: &mut Turn<'_, R, T>) {
        let Some(interface) = turn.fib.interface(turn.ingress as u16) else {
            return turn.ports.drop(turn.ingress, DropReason::NoEgress, seen.packet);
        };
        if interface.control.is_none() && dst.is_ipv6() {
            let ip = seen.packet.linear().get(ethernet::HEADER_LEN..).unwrap_or_default();
            let is_nd = matches!(upper6(ip), Some((protocol::ICMPV6, at)) if at == 40
                && matches!(ip.get(at), Some(&(v6::NEIGHBOUR_SOLICITATION | v6::NEIGHBOUR_ADVERTISEMENT))));
            if is_nd && let Some(message) = Discovery::nd(ip, turn.ingress as u16, |own| turn.fib.is_local(own)) {
                self.discover(&seen, message, turn);
            }
        }
        self.control(seen.packet, DropReason::ForRouter, turn);
    }

    fn arp<R: RxQueue, T: TxQueue>(&mut self, seen: Seen, turn: &mut Turn<'_, R, T>) {
        let payload = seen.packet.linear().get(ethernet::HEADER_LEN..).unwrap_or_default();
        let is_own = |own| turn.fib.is_local(own);
        if let Some(message) = Discovery::arp(payload, turn.ingress as u16, seen.to_group, is_own) {
            self.discover(&seen, message, turn);
        }
        turn.ports.drop(turn.ingress, DropReason::ForRouter, seen.packet);
    }

    fn discover<R: RxQueue, T: TxQueue>(&mut self, seen: &Seen, message: Discovery, turn: &mut Turn<'_, R, T>) {
        if let Some(heard) = message.heard {
            self.neighbours.hear(&heard, turn.now, &mut self.outcome);
        }
        let Some(advertisement) = message.advertisement else { return };
        let Some(interface) = turn.fib.interface(turn.ingress as u16) else { return };
        let Ok((frame, _)) = ethernet::Header::split(seen.packet.linear()) else { return };
        let mut out = [0; MAX_MESSAGE];
        if let Some(len) = advertisement.write(&mut out, interface.mac, frame.src()) {
            self.emit(out.get(..len).unwrap_or_default(), turn.ingress as u16, turn);
        }
    }

    /// Drops a packet by name, and informs its sender.
    #[cold]
    fn refuse<R: RxQueue, T: TxQueue>(&mut self, seen: Seen, refusal: Refusal, turn: &mut Turn<'_, R, T>) {
        if let Some(problem) = refusal.problem
            && (!seen.to_group || matches!(problem, Problem::TooBig { .. }))
        {
            self.inform(&seen.packet, problem, turn);
        }
        turn.ports.drop(turn.ingress, refusal.reason, seen.packet);
    }

    /// The neighbour of a packet does not answer.
    #[cold]
    pub(super) fn unreachable<R: RxQueue, T: TxQueue>(&mut self, packet: Packet, turn: &mut Turn<'_, R, T>) {
        self.inform(&packet, Problem::AddressUnreachable, turn);
        turn.ports.drop(turn.ingress, DropReason::NoNeighbour, packet);
    }

    /// Does what neighbours bring about: solicitations, packets that have waited.
    #[cold]
    pub(super) fn act<R: RxQueue, T: TxQueue>(&mut self, turn: &mut Turn<'_, R, T>) {
        // An error about a packet may need a solicitation again, which is sent in the next round.
        for _ in 0..4 {
            let Outcome { solicitations, found, failed, overflown } = std::mem::take(&mut self.outcome);
            for (key, mac, packet) in found {
                transmit(packet, key.port, mac, turn);
            }
            for (_, packet) in failed {
                self.unreachable(packet, turn);
            }
            for packet in overflown {
                self.counters.dropped(DropReason::NoNeighbour, 1);
                self.software.cache().free(packet);
            }
            for solicitation in solicitations {
                self.solicit(solicitation, turn);
            }
            if self.outcome.is_empty() {
                return;
            }
        }
    }
}

/// What keeps an IPv6 packet with a route from being forwarded.
fn check_forward6(v6: &V6, next_hop: &NextHop, packet: &Packet) -> Result<(), Refusal> {
    if v6.hop_limit <= 1 {
        return Err(Refusal::with(DropReason::TtlExpired, Problem::TimeExceeded));
    }
    if v6.src == Ipv6Addr::UNSPECIFIED {
        return Err(DropReason::Martian.into());
    }
    if v6.src.is_unicast_link_local() {
        return Err(Refusal::with(DropReason::Martian, Problem::BeyondScope));
    }
    if longest(packet, v6.total_len) > next_hop.mtu {
        return Err(Refusal::with(DropReason::NotFragmented, Problem::TooBig { mtu: next_hop.mtu }));
    }
    Ok(())
}

/// A packet of two pieces.
fn join(cache: &mut towpath_packet::Cache, header: &[u8], payload: &[u8]) -> Option<Packet> {
    let mut packet = cache.alloc()?;
    packet.push_back(header.len()).ok()?.copy_from_slice(header);
    let (here, rest) = payload.split_at(payload.len().min(packet.tailroom()));
    packet.push_back(here.len()).ok()?.copy_from_slice(here);
    if !rest.is_empty() {
        packet.append(Packet::copy_from(cache, rest)?).ok()?;
    }
    Some(packet)
}
