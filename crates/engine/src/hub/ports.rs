//! The ports of a hub, as its switch sees them.

use super::HubPort;
use towpath_packet::port::{RxQueue, TxQueue};
use towpath_packet::{Batch, Cache, DropReason, Offloads, Packet};

/// The ports of a hub by their numbers.
pub struct Ports<R, T, P> {
    slots: Vec<Option<Box<HubPort<R, T, P>>>>,
    /// Numbers of the ports that take part, in ascending order.
    members: Vec<u16>,
    /// Numbers of the ports with packets that were staged since the last burst was sent.
    listed: Vec<u16>,
    /// The ingress has no more packets at this moment.
    emptied: bool,
    version: u64,
    /// Some port has a sample whose packets have not left.
    has_samples: bool,
}

impl<R, T, P> Default for Ports<R, T, P> {
    fn default() -> Ports<R, T, P> {
        Ports {
            slots: Vec::new(),
            members: Vec::new(),
            listed: Vec::new(),
            emptied: true,
            version: 1,
            has_samples: false,
        }
    }
}

impl<R, T, P> Ports<R, T, P> {
    /// Numbers of the ports that take part, in ascending order.
    #[inline]
    pub fn members(&self) -> &[u16] {
        &self.members
    }

    /// A number that changes with the members: what a switch derives from them holds as long as it
    /// stays. It is never 0.
    #[inline]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The switch's state of a port.
    #[inline]
    pub fn get(&self, number: usize) -> Option<&P> {
        self.slots.get(number)?.as_ref().map(|port| &port.state)
    }

    /// The switch's state of a port, to be changed.
    #[inline]
    pub fn get_mut(&mut self, number: usize) -> Option<&mut P> {
        self.slots.get_mut(number)?.as_mut().map(|port| &mut port.state)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &HubPort<R, T, P>)> {
        self.slots.iter().enumerate().filter_map(|(number, port)| Some((number, port.as_deref()?)))
    }

    pub(super) fn numbers(&self) -> Vec<usize> {
        self.iter().map(|(number, _)| number).collect()
    }

    #[inline]
    pub(super) fn slot_mut(&mut self, number: usize) -> Option<&mut HubPort<R, T, P>> {
        self.slots.get_mut(number)?.as_deref_mut()
    }

    pub(super) fn insert(&mut self, number: usize, port: HubPort<R, T, P>) {
        if self.slots.len() <= number {
            self.slots.resize_with(number + 1, || None);
        }
        self.slots[number] = Some(Box::new(port));
        self.members = self.iter().map(|(number, _)| number as u16).collect();
        let ports = self.slots.len();
        self.listed.reserve(ports);
        self.slots.iter_mut().flatten().for_each(|port| port.sampled_for.reserve(ports));
        self.version += 1;
    }

    /// The port leaves the hub, and keeps the packets that it holds.
    pub(super) fn retire(&mut self, number: usize)
    where
        R: RxQueue,
        T: TxQueue,
    {
        self.members.retain(|member| usize::from(*member) != number);
        self.version += 1;
        if let Some(port) = self.slot_mut(number) {
            port.retire();
        }
    }

    pub(super) fn remove(&mut self, number: usize) {
        self.members.retain(|member| usize::from(*member) != number);
        self.version += 1;
        self.listed.retain(|listed| usize::from(*listed) != number);
        if let Some(slot) = self.slots.get_mut(number) {
            *slot = None;
        }
    }
}

impl<R: RxQueue, T: TxQueue, P> Ports<R, T, P> {
    /// A port to which something is staged now.
    #[inline]
    fn listed_mut(&mut self, number: usize) -> Option<&mut HubPort<R, T, P>> {
        let port = self.slots.get_mut(number)?.as_deref_mut()?;
        if !port.is_listed {
            port.is_listed = true;
            self.listed.push(number as u16);
        }
        Some(port)
    }

    /// Stages a packet for a port. It is sent at the end of the burst. A packet
    /// for a port that does not exist is dropped by name, as one that `ingress` received.
    #[inline]
    pub fn send(&mut self, ingress: usize, number: usize, packet: Packet) {
        match self.listed_mut(number) {
            Some(port) => port.push(packet),
            None => self.drop(ingress, DropReason::PortGone, packet),
        }
    }

    /// Stages a whole burst that `ingress` received for a port.
    #[inline]
    pub fn send_all(&mut self, ingress: usize, number: usize, burst: &mut Batch) {
        match self.listed_mut(number) {
            Some(port) => port.push_all(burst),
            None => {
                let n = burst.len();
                burst.drain_front(n).for_each(|packet| self.drop(ingress, DropReason::PortGone, packet));
            }
        }
    }

    /// Drops a packet that `ingress` received, by name.
    #[inline]
    pub fn drop(&mut self, ingress: usize, reason: DropReason, packet: Packet) {
        if let Some(port) = self.slot_mut(ingress) {
            port.counters().dropped_packet(reason, &packet);
            port.cache().free(packet);
        }
    }

    /// Counts copies that were made of packets of `ingress`, and those for which there was no
    /// buffer.
    #[inline]
    pub fn flooded(&mut self, ingress: usize, copies: u64, lost: u64) {
        if let Some(port) = self.slot_mut(ingress) {
            port.counters().flooded(copies + lost);
            port.counters().dropped(DropReason::NoBuffer, lost);
        }
    }

    /// The cache of a port, for copies.
    #[inline]
    pub fn cache(&mut self, number: usize) -> Option<&mut Cache> {
        self.slot_mut(number).map(HubPort::cache)
    }

    /// Writes the tag in a packet's metadata into the packet, with buffers of `ingress`.
    ///
    /// # Errors
    /// Returns the packet, and why it can't have the tag.
    pub fn insert_vlan(&mut self, ingress: usize, packet: Packet) -> Result<Packet, (DropReason, Packet)> {
        match self.slot_mut(ingress) {
            Some(port) => port.insert_vlan(packet),
            None => Err((DropReason::PortGone, packet)),
        }
    }

    /// A burst begins. `emptied`: its ingress has no more packets at this moment.
    pub(super) fn begin(&mut self, emptied: bool) {
        self.emptied = emptied;
    }

    /// Sends what was staged.
    #[inline]
    pub(super) fn send_staged(&mut self) {
        while let Some(number) = self.listed.pop() {
            if let Some(Some(port)) = self.slots.get_mut(usize::from(number)) {
                port.is_listed = false;
                port.coalesce(self.emptied);
                port.send();
            }
        }
    }

    /// The packets that are staged now are those of a sample from `ingress`.
    #[cold]
    pub(super) fn begin_sample(&mut self, ingress: usize) {
        if let Some(Some(port)) = self.slots.get_mut(ingress) {
            port.sampled_for.extend_from_slice(&self.listed);
            self.has_samples = true;
        }
    }

    /// Ends the samples whose packets have left.
    #[inline]
    pub(super) fn end_samples(&mut self) {
        if self.has_samples {
            self.look_at_samples();
        }
    }

    #[cold]
    fn look_at_samples(&mut self) {
        self.has_samples = false;
        for number in 0..self.slots.len() {
            let Some(port) = self.slot_mut(number) else { continue };
            let mut egresses = std::mem::take(&mut port.sampled_for);
            egresses.retain(|egress| self.slot_mut(usize::from(*egress)).is_some_and(|port| port.held() > 0));
            self.has_samples |= !egresses.is_empty();
            let Some(port) = self.slot_mut(number) else { continue };
            port.sampled_for = egresses;
            if port.is_sampled() {
                port.close_sample();
            }
        }
    }

    /// What is done for every egress before a turn; returns how many packets left.
    #[inline]
    pub(super) fn retry(&mut self, stopping: bool) -> usize {
        self.slots.iter_mut().flatten().map(|port| port.retry(stopping)).sum()
    }

    pub(super) fn set_rx_offloads(&mut self, accept: Offloads) {
        self.slots.iter_mut().flatten().for_each(|port| port.set_rx_offloads(accept));
    }
}
