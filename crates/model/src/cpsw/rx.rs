//! The receive channel: frames into free descriptors, in order.
//!
//! ```text
//!   frame ──fetch──► free descriptor ──write──► data ──write back──► descriptor ──► completion
//!            none: dropped and counted, or the channel waits
//! ```
//!
//! A frame that is longer than its buffer continues in further buffers. PKTDMA fills those that the
//! host linked. UDMA fetches further descriptors from the ring and links them; if they do not
//! suffice, it pushes them back, which an exposed ring does not support.

use super::check::{At, Checker, Owner, Rule};
use super::checksum;
use super::descriptor::{ADDRESS, Image, MAX_CHAIN, asel};
use super::dma_view::DmaView;
use super::ring::Ring;
use super::setup::{FlowSetup, RxSetup};
use super::soc::Family;
use super::switch::{RxFrame, Switch};
use super::tx::{ENABLE, TEARDOWN};
use std::collections::{HashMap, VecDeque};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Fetched,
    Written,
    WrittenBack,
}

#[derive(Debug)]
struct InFlight {
    element: u64,
    free_ring: u16,
    index: u32,
    flow: FlowSetup,
    /// The first descriptor and those that are linked to it.
    chain: Vec<Image>,
    frame: RxFrame,
    stage: Stage,
}

/// The descriptors for one frame.
struct Chain {
    element: u64,
    index: u32,
    chain: Vec<Image>,
}

/// The buffer that the engine fills: UDMA uses the original buffer, PKTDMA documents the other one.
fn buffer(image: &Image, family: Family) -> u64 {
    match family {
        Family::Udma => image.original_buffer(),
        Family::Pktdma => image.buffer(),
    }
}

fn room(image: &Image, family: Family) -> usize {
    match family {
        Family::Udma => image.original_len(),
        Family::Pktdma => image.buffer_len(),
    }
}

#[derive(Debug, Default)]
pub(crate) struct RxChannel {
    pub(crate) config: Option<RxSetup>,
    pub(crate) paired: Option<u16>,
    pub(crate) control: u32,
    pub(crate) peer: u32,
    pub(crate) flows: HashMap<u16, FlowSetup>,
    packets: VecDeque<InFlight>,
    spare: Vec<Vec<Image>>,
    marked: bool,
    /// Frames that found no free descriptor.
    pub(crate) starved: u64,
    pub(crate) count: u32,
    pub(crate) bytes: u32,
}

impl RxChannel {
    pub(crate) fn enabled(&self) -> bool {
        self.control & ENABLE != 0
    }

    fn draining(&self) -> bool {
        (self.control | self.peer) & TEARDOWN != 0
    }

    pub(crate) fn write_control(&mut self, value: u32, check: &mut Checker, view: &DmaView<'_>) {
        let was = self.enabled();
        self.control = value & (ENABLE | TEARDOWN);
        if !was && self.enabled() {
            self.marked = false;
            if self.paired.is_none() || !self.config.is_some_and(|config| config.packets) {
                check.report(Rule::NotReady, At::default(), "receive channel enabled");
            }
        }
        if was && !self.enabled() && !self.packets.is_empty() {
            let what = format!("receive channel off with {} packets in flight", self.packets.len());
            check.report(Rule::DisabledInFlight, At::default(), what);
            for packet in self.packets.drain(..) {
                check.set_owner(packet.element, Owner::Free, false, At::ring(packet.free_ring), view);
            }
        }
    }

    /// The flow of the first frame in the queue.
    fn flow(&self, switch: &Switch) -> Option<FlowSetup> {
        let thread = Switch::thread(switch.to_host.front()?.priority, self.flow_count(switch));
        self.flows.get(&(switch.flow_base + thread)).copied()
    }

    /// The number of flows that are set up, from the switch's first one on.
    pub(crate) fn flow_count(&self, switch: &Switch) -> u16 {
        let is_set_up = |flow: &u16| self.flows.contains_key(flow);
        (switch.flow_base..).take_while(is_set_up).count() as u16
    }

    /// Whether the next frame can be processed, with a descriptor or by a drop.
    pub(crate) fn can_fetch(&self, switch: &Switch, rings: &[Ring], depth: usize) -> bool {
        let runs = self.enabled() && self.peer & ENABLE != 0 && self.paired.is_some();
        if !runs || self.packets.len() >= depth || switch.to_host.is_empty() {
            return false;
        }
        match self.flow(switch) {
            Some(flow) if flow.stall && !self.draining() => {
                rings.get(usize::from(flow.free_ring)).is_some_and(|ring| ring.available() > 0)
            }
            _ => true,
        }
    }

    pub(crate) fn fetch(
        &mut self,
        switch: &mut Switch,
        rings: &mut [Ring],
        family: Family,
        view: &DmaView<'_>,
        check: &mut Checker,
    ) {
        let flow = self.flow(switch);
        let Some(frame) = switch.to_host.pop_front() else { return };
        let taken = flow.and_then(|flow| {
            let ring = rings.get_mut(usize::from(flow.free_ring))?;
            self.gather(&flow, frame.bytes.len(), ring, family, view, check).map(|taken| (flow, taken))
        });
        let Some((flow, Chain { element, index, chain })) = taken else {
            self.starved += 1;
            switch.host_dropped += 1;
            switch.recycle(frame.bytes);
            return;
        };
        let free_ring = flow.free_ring;
        self.packets.push_back(InFlight { element, free_ring, index, flow, chain, frame, stage: Stage::Fetched });
    }

    /// Takes descriptors for a frame of `len` bytes.
    fn gather(
        &mut self,
        flow: &FlowSetup,
        len: usize,
        ring: &mut Ring,
        family: Family,
        view: &DmaView<'_>,
        check: &mut Checker,
    ) -> Option<Chain> {
        let (number, tag) = (flow.free_ring, ring.tag());
        let words = self.config.map_or(16, |config| config.fetch_words);
        let fetch = |element: u64, index: u32, rule: Rule, check: &mut Checker| {
            let at = At::slot(number, index, element);
            if let Some(what) = Checker::invalid(element, tag, view) {
                check.report(rule, at, what);
                return None;
            }
            let image = Image::fetch(view, element & ADDRESS, words)?;
            if image.kind() != 1 {
                check.report(Rule::DescriptorType, at, format!("descriptor type is {}", image.kind()));
            }
            if self.config.is_some_and(|config| config.asel != tag) {
                check.report(Rule::ChannelTag, at, "the receive channel has another address tag than its ring");
            }
            if asel(image.original_buffer()) != tag || asel(image.buffer()) != tag {
                let what = format!("buffer at {:#x} has another address tag than its ring", image.buffer());
                check.report(Rule::BadBuffer, at, what);
            }
            Some(image)
        };
        let (index, element) = ring.fetch(view, check)?;
        check.set_owner(element, Owner::Fetched, true, At::slot(number, index, element), view);
        let first = fetch(element, index, Rule::BadElement, check)?;
        let mut room = room(&first, family);
        let mut chain = self.spare.pop().unwrap_or_default();
        chain.clear();
        chain.push(first);
        while room < len && chain.len() < MAX_CHAIN {
            let next = match family {
                Family::Pktdma => chain.last().map(Image::next).filter(|&next| next != 0),
                Family::Udma => ring.fetch(view, check).map(|(_, element)| element),
            };
            // PKTDMA fills what there is. UDMA needs room for all of it.
            let Some(next) = next else { break };
            let image = fetch(next, index, Rule::BrokenChain, check)?;
            room += self::room(&image, family);
            chain.push(image);
        }
        if family == Family::Udma {
            if chain.len() > 1 && !ring.is_message() {
                let what = "a frame of several buffers from an exposed ring, to which hardware pushes back";
                check.report(Rule::ExposedChain, At::slot(number, index, element), what);
            }
            if room < len {
                let tag = element & !ADDRESS;
                chain.iter().rev().for_each(|image| ring.push_back(image.address | tag, view, check));
                return None;
            }
            check.link(element, chain.get(1..).unwrap_or_default());
        }
        Some(Chain { element, index, chain })
    }

    fn first(&mut self, wanted: Stage) -> Option<&mut InFlight> {
        self.packets.iter_mut().find(|packet| packet.stage == wanted)
    }

    pub(crate) fn can_write(&self) -> bool {
        self.packets.iter().any(|packet| packet.stage == Stage::Fetched)
    }

    /// Fills one buffer after the other. The frame is cut where the buffers end.
    pub(crate) fn write(&mut self, family: Family, view: &DmaView<'_>, check: &mut Checker) {
        let Some(packet) = self.first(Stage::Fetched) else { return };
        let (mut written, mut used) = (0, 0);
        for (i, image) in packet.chain.iter_mut().enumerate() {
            let bytes = packet.frame.bytes.get(written..).unwrap_or_default();
            if i > 0 && bytes.is_empty() {
                break;
            }
            let (pointer, room) = (buffer(image, family), room(image, family));
            let offset = if i == 0 { usize::from(packet.flow.sop_offset).min(room) } else { 0 };
            let bytes = bytes.get(..room - offset).unwrap_or(bytes);
            let to = (pointer & ADDRESS) + offset as u64;
            if !view.write(to, bytes) {
                let what = format!("buffer of {room} bytes at {pointer:#x}");
                check.report(Rule::BadBuffer, At::slot(packet.free_ring, packet.index, packet.element), what);
            }
            image.set_pointer(3, pointer & !ADDRESS | to);
            image.set(4, bytes.len() as u32, image.original_len() as u32);
            written += bytes.len();
            used += 1;
        }
        packet.frame.bytes.truncate(written);
        packet.chain.truncate(used);
        packet.stage = Stage::Written;
    }

    pub(crate) fn can_write_back(&self) -> bool {
        self.packets.iter().any(|packet| packet.stage == Stage::Written)
    }

    /// Rewrites the first descriptor: kind, EPIB and PS bits, length; error; tags; EPIB; PS words;
    /// buffer. Of the other descriptors it rewrites only the buffer. The return policy, the
    /// original buffer and the software words stay. UDMA links the descriptors.
    pub(crate) fn write_back(&mut self, family: Family, view: &DmaView<'_>, check: &mut Checker) {
        let Some(packet) = self.first(Stage::Written) else { return };
        let InFlight { flow, frame, chain, element, .. } = packet;
        let (len, ps) = (frame.bytes.len() as u32 + frame.corruption.excess(), if flow.psinfo { 4 } else { 0 });
        for i in 0..chain.len() {
            let next = chain.get(i + 1).map_or(0, |next| next.address | *element & !ADDRESS);
            let image = &mut chain[i];
            if family == Family::Udma {
                image.set_pointer(2, frame.corruption.next(next, *element));
                image.store(view, 2..3);
            }
            if i == 0 {
                let info0 = 1 << 30 | u32::from(flow.einfo) << 29 | ps << 22 | len & 0x3f_ffff;
                image.set(0, info0, u32::from(frame.error & 0xf) << 28 | u32::from(flow.flow) & 0x3fff);
                image.set(
                    1,
                    image.info2() & 0x0007_ffff | 7 << 27,
                    u32::from(if flow.source_tag { frame.port } else { 0 }) << 16,
                );
                if flow.einfo {
                    image.set(6, 0, 0);
                    image.set(7, 0, 0);
                }
                if flow.psinfo {
                    let at = if flow.einfo { 8 } else { 6 };
                    image.set(at, frame.timestamp as u32, (frame.timestamp >> 32) as u32);
                    image.set(at + 1, checksum::observe(&frame.bytes), 0);
                }
                image.store(view, 0..2);
                image.store(view, if flow.einfo || flow.psinfo { 6..10 } else { 6..6 });
            }
            image.store(view, 3..5);
            check.update_image(image, view);
        }
        packet.stage = Stage::WrittenBack;
    }

    pub(crate) fn can_complete(&self) -> bool {
        self.packets.front().is_some_and(|packet| packet.stage == Stage::WrittenBack)
    }

    /// Completes the oldest packet; returns its element and its completion ring.
    pub(crate) fn complete(
        &mut self,
        switch: &mut Switch,
        view: &DmaView<'_>,
        check: &mut Checker,
    ) -> Option<(u64, u16)> {
        let packet = self.packets.pop_front()?;
        let at = At::slot(packet.free_ring, packet.index, packet.element);
        check.set_owner(packet.element, Owner::Done, true, at, view);
        self.count = self.count.wrapping_add(1);
        self.bytes = self.bytes.wrapping_add(packet.frame.bytes.len() as u32);
        switch.recycle(packet.frame.bytes);
        self.spare.push(packet.chain);
        Some((packet.element, packet.flow.completion_ring))
    }

    /// Whether teardown can end: the source has drained, and all fetched packets are complete.
    pub(crate) fn can_end(&self, switch: &Switch) -> bool {
        let drained = switch.to_host.is_empty() || self.control & TEARDOWN != 0;
        self.enabled() && self.draining() && self.packets.is_empty() && drained && !self.marked
    }

    pub(crate) fn end_teardown(&mut self) {
        self.control = 0;
        self.peer &= !(ENABLE | TEARDOWN);
        self.marked = true;
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.packets.len()
    }
}
