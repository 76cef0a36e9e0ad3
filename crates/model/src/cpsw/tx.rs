//! A transmit channel: ring element to frame, and back.
//!
//! ```text
//!   ring ──fetch──► Fetched ──read──► Read ──transmit──► Sent ──► completion ring, or reverse side
//!        up to `prefetch` packets, in order; completed in the order in which they were fetched
//! ```

use super::check::{At, Checker, Owner, Rule};
use super::descriptor::{ADDRESS, Image, MAX_CHAIN, asel};
use super::dma_view::DmaView;
use super::ring::Ring;
use super::setup::TxSetup;
use super::soc::Family;
use super::switch::Switch;
use std::collections::VecDeque;

/// Bits of channel control and of the peer's enable register.
pub(crate) const ENABLE: u32 = 1 << 31;
pub(crate) const TEARDOWN: u32 = 1 << 30;
pub(crate) const ERROR: u32 = 1;

#[derive(Debug)]
enum Stage {
    Fetched,
    Read(Vec<u8>),
    Sent,
}

#[derive(Debug)]
struct InFlight {
    element: u64,
    index: u32,
    chain: Vec<Image>,
    stage: Stage,
}

#[derive(Debug)]
pub(crate) struct TxChannel {
    pub(crate) number: u16,
    pub(crate) ring: u16,
    pub(crate) config: Option<TxSetup>,
    /// The PSI-L thread of the switch.
    pub(crate) paired: Option<u16>,
    /// Its number among the threads of the switch.
    pub(crate) thread: u8,
    pub(crate) control: u32,
    pub(crate) peer: u32,
    packets: VecDeque<InFlight>,
    prefetch: usize,
    /// The end of the teardown has been reported.
    marked: bool,
    pub(crate) count: u32,
    pub(crate) bytes: u32,
    spare: Vec<Vec<Image>>,
}

impl TxChannel {
    pub(crate) fn new(number: u16, ring: u16, prefetch: u8) -> TxChannel {
        TxChannel {
            number,
            ring,
            config: None,
            paired: None,
            thread: 0,
            control: 0,
            peer: 0,
            packets: VecDeque::new(),
            prefetch: usize::from(prefetch.clamp(1, 16)),
            marked: false,
            count: 0,
            bytes: 0,
            spare: Vec::new(),
        }
    }

    pub(crate) fn enabled(&self) -> bool {
        self.control & ENABLE != 0
    }

    /// The ring on which its packets complete.
    pub(crate) fn return_ring(&self, family: Family) -> u16 {
        match family {
            Family::Pktdma => self.ring,
            Family::Udma => self.config.map_or(0, |config| config.completion_ring),
        }
    }

    pub(crate) fn tearing_down(&self) -> bool {
        self.enabled() && self.control & TEARDOWN != 0
    }

    /// A write of the control register.
    pub(crate) fn write_control(&mut self, value: u32, ring: &mut Ring, check: &mut Checker, view: &DmaView<'_>) {
        let was = self.enabled();
        self.control = value & (ENABLE | TEARDOWN);
        if !was && self.enabled() {
            if self.paired.is_none() || !self.config.is_some_and(|config| config.packets) {
                check.report(Rule::NotReady, At::ring(self.ring), format!("transmit channel {} enabled", self.number));
            }
            if self.config.is_some_and(|config| config.asel != ring.tag()) {
                let what = format!("transmit channel {} has another address tag than its ring", self.number);
                check.report(Rule::ChannelTag, At::ring(self.ring), what);
            }
        }
        if was && !self.enabled() && !self.packets.is_empty() {
            let what = format!("transmit channel {} off with {} packets in flight", self.number, self.packets.len());
            check.report(Rule::DisabledInFlight, At::ring(self.ring), what);
            ring.drop_in_flight(self.packets.len() as u32);
            for packet in self.packets.drain(..) {
                check.set_owner(packet.element, Owner::Free, false, At::ring(self.ring), view);
            }
        }
        if self.enabled() {
            self.marked = false;
        }
    }

    pub(crate) fn can_fetch(&self, ring: &Ring) -> bool {
        let runs = self.control & (ENABLE | TEARDOWN) == ENABLE && self.peer & ENABLE != 0 && self.paired.is_some();
        runs && self.packets.len() < self.prefetch && ring.available() > 0
    }

    pub(crate) fn fetch(&mut self, ring: &mut Ring, family: Family, view: &DmaView<'_>, check: &mut Checker) {
        let Some((index, element)) = ring.fetch(view, check) else { return };
        let at = At::slot(self.ring, index, element);
        check.set_owner(element, Owner::Fetched, true, at, view);
        let mut chain = self.spare.pop().unwrap_or_default();
        chain.clear();
        let words = self.config.map_or(16, |config| config.fetch_words);
        let (mut next, tag) = (element, ring.tag());
        loop {
            if let Some(what) = Checker::invalid(next, tag, view) {
                let rule = if chain.is_empty() { Rule::BadElement } else { Rule::BrokenChain };
                check.report(rule, at, what);
                chain.clear();
                break;
            }
            let address = next & ADDRESS;
            if chain.len() >= MAX_CHAIN || chain.iter().any(|image| image.address == address) {
                check.report(Rule::BrokenChain, at, "chain is endless");
                chain.clear();
                break;
            }
            let Some(image) = Image::fetch(view, address, words) else { break };
            next = image.next();
            chain.push(image);
            if next == 0 {
                break;
            }
        }
        if let Some(first) = chain.first() {
            if first.kind() != 1 {
                check.report(Rule::DescriptorType, at, format!("descriptor type is {}", first.kind()));
            }
            let total: usize = chain.iter().map(Image::buffer_len).sum();
            if total != first.packet_len() as usize {
                let what = format!("packet of {} bytes in buffers of {total}", first.packet_len());
                check.report(Rule::LengthMismatch, at, what);
            }
            let returns = self.config.map_or(0, |config| config.completion_ring);
            if family == Family::Udma && first.return_ring() != returns {
                let what = format!("packet returns to ring {}, its channel to {returns}", first.return_ring());
                check.report(Rule::ReturnRing, at, what);
            }
        }
        self.packets.push_back(InFlight { element, index, chain, stage: Stage::Fetched });
    }

    fn first(&self, wanted: fn(&Stage) -> bool) -> Option<usize> {
        self.packets.iter().position(|packet| wanted(&packet.stage))
    }

    pub(crate) fn can_read(&self) -> bool {
        self.first(|stage| matches!(stage, Stage::Fetched)).is_some()
    }

    /// Reads the data of the oldest packet that has not been read.
    pub(crate) fn read(&mut self, ring: &Ring, switch: &mut Switch, view: &DmaView<'_>, check: &mut Checker) {
        let Some(at) = self.first(|stage| matches!(stage, Stage::Fetched)) else { return };
        let packet = &mut self.packets[at];
        let mut frame = switch.vector();
        for image in &packet.chain {
            let (from, len) = (frame.len(), image.buffer_len());
            frame.resize(from + len, 0);
            let pointer = image.buffer();
            let good = asel(pointer) == ring.tag() && view.read(pointer & ADDRESS, &mut frame[from..]);
            if !good {
                let what = format!("buffer of {len} bytes at {pointer:#x}");
                check.report(Rule::BadBuffer, At::slot(self.ring, packet.index, packet.element), what);
                self.control |= ERROR;
                frame.clear();
                break;
            }
        }
        packet.stage = Stage::Read(frame);
    }

    /// Whether the next packet in order has been read, and its port has room.
    pub(crate) fn can_transmit(&self, switch: &Switch) -> bool {
        let next = self.packets.iter().find(|packet| !matches!(packet.stage, Stage::Sent));
        next.is_some_and(|packet| {
            let to = packet.chain.first().map_or(0, Image::destination);
            matches!(packet.stage, Stage::Read(_)) && (packet.chain.is_empty() || switch.has_room(to, self.thread))
        })
    }

    /// Whether the channel has a packet that the switch can take, now or after the engine has read
    /// it.
    pub(crate) fn contends(&self, ring: &Ring, switch: &Switch) -> bool {
        let next = self.packets.iter().find(|packet| !matches!(packet.stage, Stage::Sent));
        match next {
            Some(packet) => packet.chain.first().is_some_and(|first| switch.has_room(first.destination(), self.thread)),
            None => self.packets.len() < self.prefetch && self.can_fetch(ring),
        }
    }

    pub(crate) fn transmit(&mut self, switch: &mut Switch) {
        let Some(packet) = self.packets.iter_mut().find(|p| !matches!(p.stage, Stage::Sent)) else { return };
        if let Stage::Read(frame) = std::mem::replace(&mut packet.stage, Stage::Sent)
            && let Some(first) = packet.chain.first()
        {
            self.count = self.count.wrapping_add(1);
            self.bytes = self.bytes.wrapping_add(frame.len() as u32);
            switch.send(self.thread, frame, first.destination(), first.ps(2));
        }
    }

    pub(crate) fn can_complete(&self) -> bool {
        self.packets.front().is_some_and(|packet| matches!(packet.stage, Stage::Sent))
    }

    /// Completes the oldest packet; returns its element.
    pub(crate) fn complete(&mut self, poison: bool, view: &DmaView<'_>, check: &mut Checker) -> Option<u64> {
        let InFlight { element, index, mut chain, .. } = self.packets.pop_front()?;
        check.set_owner(element, Owner::Done, true, At::slot(self.ring, index, element), view);
        if poison {
            for image in &mut chain {
                (0..6).chain(8..10).for_each(|pair| image.set(pair, 0xdead_beef, 0xdead_beef));
                image.store(view, 0..6);
                image.store(view, 8..10);
            }
        }
        self.spare.push(chain);
        Some(element)
    }

    /// Whether teardown can end: all fetched packets are complete.
    pub(crate) fn can_mark(&self) -> bool {
        self.tearing_down() && self.packets.is_empty() && !self.marked
    }

    /// Ends a teardown; returns the record for a completion ring.
    pub(crate) fn end_teardown(&mut self) -> u64 {
        self.control = 0;
        self.peer &= !(ENABLE | TEARDOWN);
        self.marked = true;
        u64::from(self.number & 0x3ff) << 4 | 1
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.packets.len()
    }
}
