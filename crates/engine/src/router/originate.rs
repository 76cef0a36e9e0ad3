//! Packets of the router's own: ICMP errors and replies, solicitations and advertisements.

use super::fib::{Answer, NextHop};
use super::icmp::{self, MAX_ERROR, Problem, answerable};
use super::neighbour::{MAX_MESSAGE, Solicitation};
use super::{Router, Turn};
use std::net::IpAddr;
use towpath_packet::port::{RxQueue, TxQueue};
use towpath_packet::{DropReason, Packet};
use towpath_wire::ethernet::{self, ethertype};

impl Router {
    /// Sends a frame of the router's own by an interface.
    pub(super) fn emit<R: RxQueue, T: TxQueue>(&mut self, frame: &[u8], port: u16, turn: &mut Turn<'_, R, T>) {
        if let Some(packet) = Packet::copy_from(self.software.cache(), frame) {
            self.counters.originated(1);
            turn.ports.send(turn.ingress, port.into(), packet);
        }
    }

    /// Sends an ICMP error about a packet, if one may be sent.
    pub(super) fn inform<R: RxQueue, T: TxQueue>(
        &mut self,
        packet: &Packet,
        problem: Problem,
        turn: &mut Turn<'_, R, T>,
    ) {
        let linear = packet.linear().get(ethernet::HEADER_LEN..).unwrap_or_default();
        let Some(to) = answerable(linear, problem) else { return };
        if turn.fib.is_local(to) {
            return;
        }
        let Some((next_hop, source)) = self.reply_next_hop(to, turn) else { return };
        if !self.pace.grants(turn.now) {
            return;
        }
        self.id = self.id.wrapping_add(1);
        // The quoted bytes may lie in several pieces.
        let mut quoted = [0; MAX_ERROR];
        let n = packet.copy_to(ethernet::HEADER_LEN, &mut quoted);
        let mut out = [0; ethernet::HEADER_LEN + MAX_ERROR];
        let Some((header, ip)) = out.split_first_chunk_mut::<{ ethernet::HEADER_LEN }>() else { return };
        let quoted = quoted.get(..n).unwrap_or_default();
        let Some(len) = icmp::error(ip, quoted, problem, source, self.id) else { return };
        let kind = if to.is_ipv4() { ethertype::IPV4 } else { ethertype::IPV6 };
        if let Some(field) = header.get_mut(12..) {
            field.copy_from_slice(&kind.to_be_bytes());
        }
        let Some(packet) =
            Packet::copy_from(self.software.cache(), out.get(..ethernet::HEADER_LEN + len).unwrap_or_default())
        else {
            return;
        };
        self.counters.originated(1);
        self.send_by(packet, &next_hop, to, turn);
    }

    /// The next hop to a sender, and the address that the router answers from.
    fn reply_next_hop<R: RxQueue, T: TxQueue>(&self, to: IpAddr, turn: &Turn<'_, R, T>) -> Option<(NextHop, IpAddr)> {
        let next_hop = match to {
            IpAddr::V6(v6) if v6.is_unicast_link_local() => NextHop::direct(turn.ingress as u16),
            _ => match turn.fib.lookup(to) {
                Answer::NextHops(next_hops) => *next_hops.first()?,
                _ => return None,
            },
        };
        let source = match to {
            IpAddr::V4(v4) => turn.fib.source4(&next_hop, v4).map(IpAddr::V4),
            IpAddr::V6(v6) => turn.fib.source6(&next_hop, v6).map(IpAddr::V6),
        };
        Some((next_hop, source?))
    }

    /// Sends an answer, which was made of a received packet, on its way.
    pub(super) fn send_own<R: RxQueue, T: TxQueue>(&mut self, packet: Packet, turn: &mut Turn<'_, R, T>) {
        let ip = packet.linear().get(ethernet::HEADER_LEN..).unwrap_or_default();
        let to = match ip.first().map(|first| first >> 4) {
            Some(4) => ip.get(16..20).and_then(|dst| <[u8; 4]>::try_from(dst).ok()).map(IpAddr::from),
            _ => ip.get(24..40).and_then(|dst| <[u8; 16]>::try_from(dst).ok()).map(IpAddr::from),
        };
        match to.and_then(|to| Some((to, self.reply_next_hop(to, turn)?.0))) {
            Some((to, next_hop)) => self.send_by(packet, &next_hop, to, turn),
            None => turn.ports.drop(turn.ingress, DropReason::NoRoute, packet),
        }
    }

    /// Sends a packet of the router's own.
    fn send_by<R: RxQueue, T: TxQueue>(
        &mut self,
        packet: Packet,
        next_hop: &NextHop,
        to: IpAddr,
        turn: &mut Turn<'_, R, T>,
    ) {
        self.resolve(packet, next_hop.key(to), turn);
    }

    /// Asks for a neighbour's address.
    pub(super) fn solicit<R: RxQueue, T: TxQueue>(&mut self, solicitation: Solicitation, turn: &mut Turn<'_, R, T>) {
        let port = solicitation.key.port;
        let Some(interface) = turn.fib.interface(port) else { return };
        let next_hop = NextHop::direct(port);
        let source = match solicitation.key.address {
            IpAddr::V4(v4) => turn.fib.source4(&next_hop, v4).map(IpAddr::V4),
            // Its link-local address, which every interface with IPv6 has.
            IpAddr::V6(v6) => {
                let is_own = |address: &IpAddr| matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
                let own = interface.addresses.iter().map(|(address, _)| *address).find(is_own);
                own.or_else(|| turn.fib.source6(&next_hop, v6).map(IpAddr::V6))
            }
        };
        let mut out = [0; MAX_MESSAGE];
        if let Some(len) = source.and_then(|source| solicitation.write(&mut out, interface.mac, source)) {
            self.emit(out.get(..len).unwrap_or_default(), port, turn);
        }
    }
}
