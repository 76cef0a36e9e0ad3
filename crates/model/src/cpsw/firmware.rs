//! The messages to system firmware (TISCI), decoded here by the offsets of TI's description.
//!
//! ```text
//!   0 type u16 │ 2 host u8 │ 3 sequence u8 │ 4 flags u32 │ 8 valid fields u32 │ 12 device u16 │ 14 index u16 │ 16 …
//! ```
//!
//! A field that is not valid keeps the value that it had: zero after reset. Firmware refuses a
//! resource that the host was not granted, and a device that does not have it.

use super::Cpsw;
use super::check::{At, Event, Rule};
use super::config::Config;
use super::device::{CHANNELS, Device, RINGS};
use super::dma_view::DmaView;
use super::setup::{FlowSetup, RingSetup};
use super::soc::{Family, Grants, Resource};
use std::sync::atomic::{AtomicU32, Ordering};
use towpath_bus::tisci::{Message, Range, Refused, Tisci};

/// Firmware of a [`Cpsw`]. It checks calls as TI's firmware does, and can refuse one for a test.
#[derive(Debug)]
pub struct Firmware {
    model: Cpsw,
    /// Calls until one is refused; 0 refuses none.
    countdown: AtomicU32,
}

/// Why firmware does not acknowledge a message.
type Nack = &'static str;

fn check(ok: bool, why: Nack) -> Result<(), Nack> {
    if ok { Ok(()) } else { Err(why) }
}

/// The fields of a message.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn u8(&self, at: usize) -> u8 {
        self.0.get(at).copied().unwrap_or(0)
    }

    fn u16(&self, at: usize) -> u16 {
        u16::from(self.u8(at)) | u16::from(self.u8(at + 1)) << 8
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from(self.u16(at)) | u32::from(self.u16(at + 2)) << 16
    }

    /// Whether the field with this bit of the mask is valid.
    fn valid(&self, bit: u32) -> bool {
        self.u32(8) & 1 << bit != 0
    }

    fn device(&self) -> u16 {
        self.u16(12)
    }

    fn index(&self) -> u16 {
        self.u16(14)
    }
}

impl Firmware {
    pub(crate) fn new(model: Cpsw) -> Firmware {
        Firmware { model, countdown: AtomicU32::new(0) }
    }

    /// Refuses the `n`-th call from now on, once.
    pub fn refuse(&self, n: u32) {
        self.countdown.store(n, Ordering::Relaxed);
    }

    fn is_refused(&self) -> bool {
        let left = self.countdown.load(Ordering::Relaxed);
        if left > 0 {
            self.countdown.store(left - 1, Ordering::Relaxed);
        }
        left == 1
    }
}

impl Tisci for Firmware {
    fn call(&self, request: &Message) -> Result<Message, Refused> {
        let nack = |why: Nack| Refused::new(request, why);
        if self.is_refused() {
            return Err(nack("a refusal was asked for"));
        }
        let bytes = request.bytes();
        let mut device = self.model.device();
        let (fields, device) = (Fields(bytes), &mut *device);
        let mut answer = [0; 16];
        let (kind, len) = (fields.u16(0), bytes.len());
        let body = match (kind, len) {
            (0x1110, 34) => ring_config(&fields, device).map(|()| &[][..]),
            (0x1205, 36) => tx_channel_config(&fields, device).map(|()| &[][..]),
            (0x1215, 34) => rx_channel_config(&fields, device).map(|()| &[][..]),
            (0x1230, 41) => rx_flow_config(&fields, device).map(|()| &[][..]),
            (0x1280, 20) => pair(&fields, device, true).map(|()| &[][..]),
            (0x1281, 20) => pair(&fields, device, false).map(|()| &[][..]),
            (0x1500, 12) => get_range(&fields, &device.config).map(|range| {
                answer[8..10].copy_from_slice(&range.start.to_le_bytes());
                answer[10..12].copy_from_slice(&range.count.to_le_bytes());
                &answer[8..]
            }),
            _ => Err("no message of this type has this length"),
        };
        let body = body.map_err(nack)?;
        let (kind, acknowledged) = (kind.to_le_bytes(), 2_u32.to_le_bytes());
        let bytes = [&kind[..], &[0, 0], &acknowledged, body].concat();
        Message::from_bytes(&bytes).ok_or_else(|| nack("the answer is too long"))
    }
}

fn get_range(fields: &Fields<'_>, config: &Config) -> Result<Range, Nack> {
    // Type: device and subtype. The secondary host is not used.
    let resource = config.soc.resource(fields.u16(8), fields.u8(10));
    check(fields.u8(11) == 255, "no such secondary host")?;
    resource.map(|resource| grants(config).of(resource)).ok_or("no such resource")
}

fn grants(config: &Config) -> Grants {
    config.grants.unwrap_or(config.soc.grants())
}

fn granted(config: &Config, resource: Resource, index: u16) -> Result<(), Nack> {
    check(grants(config).of(resource).holds(index, 1), "the host was not granted this resource")
}

/// Whether the host was granted a ring: a general-purpose one, or that of a channel or flow.
fn granted_ring(config: &Config, ring: u16) -> Result<(), Nack> {
    let (soc, grants) = (config.soc, grants(config));
    let good = match soc.family() {
        Family::Pktdma => {
            let first = soc.rx_ring(grants.rx_flows.start);
            grants.rings.holds(ring, 1) || Range { start: first, ..grants.rx_flows }.holds(ring, 1)
        }
        Family::Udma => grants.rings.holds(ring, 1) || grants.tx_channels.holds(ring, 1),
    };
    check(good && usize::from(ring) < RINGS, "the host was not granted this ring")
}

/// 16 address, low; 20 address, high; 24 count; 28 mode; 29 size; 30 order; 31 virtual id; 33 tag.
fn ring_config(fields: &Fields<'_>, device: &mut Device) -> Result<(), Nack> {
    let (number, at) = (fields.index(), At::ring(fields.index()));
    check(fields.device() == device.config.soc.numbers().ring_accelerator, "the device has no rings")?;
    granted_ring(&device.config, number)?;
    if device.is_running(number) || device.is_completing(number) {
        device.check.report(Rule::ConfigWhileRunning, at, "ring set up or reset while its channel runs");
    }
    let Device { rings, check: rules, dma, .. } = device;
    let ring = rings.get_mut(usize::from(number)).ok_or("there is no such ring")?;
    let count = fields.u32(24);
    check(fields.valid(2) && count > 0 && count < 1 << 16, "count is out of range")?;
    if fields.u32(8) == 1 << 2 {
        let was = ring.setup().ok_or("the ring is not set up")?;
        check(was.count == count, "a ring keeps its count when it is reset")?;
        ring.reset(&DmaView::new(dma), rules);
        return Ok(());
    }
    check(fields.u32(8) & 0x1f == 0x1f, "address, count, mode and size are needed")?;
    let address = u64::from(fields.u32(16)) | u64::from(fields.u32(20)) << 32;
    check(address != 0 && address.is_multiple_of(8) && address < 1 << 48, "address is zero, tagged or not aligned")?;
    check(fields.u8(29) == 1, "elements have eight bytes")?;
    check(fields.u8(28) < 2, "mode is unknown")?;
    if fields.valid(5) || fields.valid(6) {
        rules.report(Rule::BusOrder, at, "order or virtual id set");
    }
    let kept = ring.setup().map_or(0, |setup| setup.asel);
    let asel = if fields.valid(7) { fields.u8(33) } else { kept };
    rules.record(Event::Config { ring: number });
    ring.configure(RingSetup { address, count, message: fields.u8(28) == 1, asel });
    Ok(())
}

/// 19 tag; 20 type; 22 fetch size; 25 completion ring.
fn tx_channel_config(fields: &Fields<'_>, device: &mut Device) -> Result<(), Nack> {
    let (number, soc) = (fields.index(), device.config.soc);
    check(fields.device() == soc.numbers().dma, "the device has no channels")?;
    granted(&device.config, Resource::TxChannel, number)?;
    let channel = device.tx.get_mut(usize::from(number)).ok_or("there is no such channel")?;
    check(!channel.enabled(), "the channel is enabled")?;
    let mut setup = channel.config.unwrap_or_default();
    let valid = |bit: u32, value: u16, was: u16| if fields.valid(bit) { value } else { was };
    setup.asel = valid(1, fields.u8(19).into(), setup.asel.into()) as u8;
    setup.packets = if fields.valid(2) { fields.u8(20) == 2 } else { setup.packets };
    setup.fetch_words = valid(3, fields.u16(22), setup.fetch_words);
    setup.completion_ring = valid(4, fields.u16(25), setup.completion_ring);
    check((8..=32).contains(&setup.fetch_words), "fetch size is out of range")?;
    let own = soc.family() == Family::Udma || setup.completion_ring == soc.tx_ring(number);
    check(own, "a channel of PKTDMA completes on its own ring")?;
    channel.config = Some(setup);
    granted_ring(&device.config, setup.completion_ring)?;
    device.use_channel(number.into());
    Ok(())
}

/// 16 fetch size; 18 completion ring; 24 first flow; 26 number of flows; 29 tag; 30 type.
fn rx_channel_config(fields: &Fields<'_>, device: &mut Device) -> Result<(), Nack> {
    let (number, soc) = (fields.index(), device.config.soc);
    check(fields.device() == soc.numbers().dma, "the device has no channels")?;
    granted(&device.config, Resource::RxChannel, number)?;
    check(!device.rx.enabled(), "the channel is enabled")?;
    let mut setup = device.rx.config.unwrap_or_default();
    let valid = |bit: u32, value: u16, was: u16| if fields.valid(bit) { value } else { was };
    setup.asel = valid(1, fields.u8(29).into(), setup.asel.into()) as u8;
    setup.packets = if fields.valid(2) { fields.u8(30) == 2 } else { setup.packets };
    setup.fetch_words = valid(3, fields.u16(16), setup.fetch_words);
    setup.flows = (valid(9, fields.u16(24), setup.flows.0), valid(10, fields.u16(26), setup.flows.1));
    check((8..=32).contains(&setup.fetch_words), "fetch size is out of range")?;
    if soc.family() == Family::Udma {
        let (start, count) = setup.flows;
        let good = count > 0 && grants(&device.config).rx_flows.holds(start, count);
        check(good, "the host was not granted these flows")?;
    }
    device.rx.config = Some(setup);
    device.rx_number = number;
    Ok(())
}

/// 16 EPIB; 17 PS words; 18 errors; 19 type; 20 offset; 22 completion ring; 28 … 31 selectors; 32
/// … free rings; 40 place of PS words.
fn rx_flow_config(fields: &Fields<'_>, device: &mut Device) -> Result<(), Nack> {
    let (flow, soc) = (fields.index(), device.config.soc);
    check(fields.device() == soc.numbers().dma, "the device has no flows")?;
    granted(&device.config, Resource::RxFlow, flow)?;
    check(!device.rx.enabled(), "the channel is enabled")?;
    let mut setup = device.rx.flows.get(&flow).copied().unwrap_or(FlowSetup { flow, ..FlowSetup::default() });
    let set = |bit: u32, value: u16, was: &mut u16| *was = if fields.valid(bit) { value } else { *was };
    let flag = |bit: u32, value: bool, was: &mut bool| *was = if fields.valid(bit) { value } else { *was };
    flag(0, fields.u8(16) == 1, &mut setup.einfo);
    flag(1, fields.u8(17) == 1, &mut setup.psinfo);
    flag(2, fields.u8(18) == 1, &mut setup.stall);
    check(!fields.valid(3) || fields.u8(19) == 0, "only host descriptors are known")?;
    set(4, fields.u16(20), &mut setup.sop_offset);
    set(5, fields.u16(22), &mut setup.completion_ring);
    // The low byte of the source tag: 4 selects that of the packet's source.
    flag(11, fields.u8(29) == 4, &mut setup.source_tag);
    set(14, fields.u16(32), &mut setup.free_ring);
    let queues = (14..18).all(|bit| fields.valid(bit)) && (0..4).all(|i| fields.u16(32 + 2 * i) == setup.free_ring);
    check(queues, "all four free rings are needed")?;
    check(!fields.valid(18) || fields.u8(40) == 0, "PS words lie in the descriptor")?;
    if soc.family() == Family::Pktdma {
        // The ring of a PKTDMA flow is fixed.
        let ring = soc.rx_ring(flow);
        (setup.free_ring, setup.completion_ring) = (ring, ring);
    }
    granted_ring(&device.config, setup.free_ring)?;
    granted_ring(&device.config, setup.completion_ring)?;
    device.rx.flows.insert(flow, setup);
    Ok(())
}

/// 8 device; 12 source; 16 destination.
fn pair(fields: &Fields<'_>, device: &mut Device, on: bool) -> Result<(), Nack> {
    let (numbers, config) = (device.config.soc.numbers(), &device.config);
    check(fields.u32(8) == u32::from(numbers.navigator), "the device is no navigator")?;
    let (source, destination) = (fields.u16(12), fields.u16(16));
    check(destination >= 0x8000, "a destination thread is at least 0x8000")?;
    if source == numbers.rx_thread {
        let channel = destination.checked_sub(0x8000 | numbers.psil_base).ok_or("no such receive channel")?;
        granted(config, Resource::RxChannel, channel)?;
        check(channel == device.rx_number, "the receive channel is not set up")?;
        check(on || !device.rx.enabled(), "the channel is enabled")?;
        device.rx.paired = on.then_some(source);
        return Ok(());
    }
    let threads = numbers.tx_thread..numbers.tx_thread + 8;
    check(threads.contains(&destination), "no such thread of the switch")?;
    let channel = source.checked_sub(numbers.psil_base).ok_or("no such transmit channel")?;
    granted(config, Resource::TxChannel, channel)?;
    check(usize::from(channel) < CHANNELS, "no such transmit channel")?;
    let taken = device.tx.iter().any(|c| c.number != channel && c.paired == Some(destination));
    check(!taken, "the thread is paired with another channel")?;
    let channel = device.tx.get_mut(usize::from(channel)).ok_or("no such transmit channel")?;
    check(on || !channel.enabled(), "the channel is enabled")?;
    channel.paired = on.then_some(destination);
    channel.thread = (destination - numbers.tx_thread) as u8;
    Ok(())
}
