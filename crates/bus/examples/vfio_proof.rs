//! Checks the promises of `towpath_bus::vfio` on a real 82574L (`8086:10d3`) or QEMU's, without a
//! driver.
//!
//! ```text
//! vfio_proof BDF [CLAIM…]     prints ok for each claim, or fails at the first that does not hold
//! ```
//!
//! The function must be bound to `vfio-pci` (`towpath bind BDF`) and not be in use: it is reset,
//! and sends frames to itself.

use std::error::Error;
use std::time::{Duration, Instant};
use towpath_bus::vfio::{Bdf, VfioBar, VfioBus, VfioConfig};
use towpath_bus::{Bus, Coherent, Dma, DmaMapper, DmaPolicy, Domain, Flush, Iova, Irq, MapError, Mmio, Pci, Reg};
use towpath_packet::{Backing, Cache, Direction, FromDevice, InFlight, Packet, Pool, PoolConfig, Region, ToDevice};

type Proof = Result<(), Box<dyn Error>>;
type Claim = fn(&VfioBus) -> Proof;

// 82574 datasheet §10: registers.
const CTRL: Reg = Reg(0x0000);
const STATUS: Reg = Reg(0x0008);
const ICR: Reg = Reg(0x00c0);
const ICS: Reg = Reg(0x00c8);
const IMS: Reg = Reg(0x00d0);
const IMC: Reg = Reg(0x00d8);
const IVAR: Reg = Reg(0x00e4);
const RCTL: Reg = Reg(0x0100);
const TCTL: Reg = Reg(0x0400);
const RDBAL: Reg = Reg(0x2800);
const TDBAL: Reg = Reg(0x3800);
const RFCTL: Reg = Reg(0x5008);
const BAR: usize = 0x2_0000;

/// Offsets from the first register of a ring: base, its upper half, length, head, tail.
const RING: [u32; 5] = [0, 4, 8, 0x10, 0x18];
const DESCRIPTORS: u32 = 8;

fn check(what: bool, why: impl FnOnce() -> String) -> Proof {
    if what { Ok(()) } else { Err(why().into()) }
}

fn main() -> Proof {
    let mut args = std::env::args().skip(1);
    let bdf: Bdf = args.next().ok_or("which function? vfio_proof 0000:00:04.0")?.parse()?;
    let wanted: Vec<String> = args.collect();
    let claims: [(&str, Claim); 8] = [
        ("limits", limits_are_known),
        ("registers", registers_answer_and_are_bounded),
        ("reset", a_reset_leaves_the_bus_usable),
        ("interrupts", an_interrupt_arrives_where_it_was_wired),
        ("dma", a_frame_goes_from_memory_to_memory),
        ("unmap", what_is_unmapped_is_out_of_reach),
        ("refusals", refusals_are_named),
        ("cost", one_mapping_costs),
    ];
    for (name, claim) in claims {
        if wanted.is_empty() || wanted.iter().any(|w| w == name) {
            let bus = VfioBus::open(bdf, &VfioConfig::default())?;
            claim(&bus).map_err(|error| format!("{name}: {error}"))?;
            println!("ok {name}");
        }
    }
    Ok(())
}

fn limits_are_known(bus: &VfioBus) -> Proof {
    let limits = bus.dma().limits();
    println!("{}: {limits:x?}", bus.backend());
    check(limits.iommu && limits.granule == 4096, || format!("{limits:?}"))?;
    let interrupts = 0xfee0_0000;
    let sound = !limits.ranges.is_empty() && !limits.ranges.iter().any(|range| range.contains(&interrupts));
    check(sound, || format!("the interrupts' addresses are offered: {:x?}", limits.ranges))
}

fn registers_answer_and_are_bounded(bus: &VfioBus) -> Proof {
    let bar = bus.bar(0, BAR)?;
    let id = bus.config_r32(0);
    check(id == 0x10d3_8086, || format!("vendor and device are {id:#x}"))?;
    let status = STATUS.read(&bar);
    check(status != u32::MAX && status & 2 != 0, || format!("no link: STATUS is {status:#x}"))?;
    check(bar.r32(BAR) == u32::MAX && bar.r32(2) == u32::MAX, || "an offset outside was read".into())?;
    bar.w32(usize::MAX - 3, 0);
    check(bus.config_r32(0x1000) == u32::MAX, || "configuration space has no end".into())?;
    check(bus.bar(0, 1 << 30).is_err() && bus.bar(6, 4).is_err(), || "a BAR that is not there was given".into())
}

fn a_reset_leaves_the_bus_usable(bus: &VfioBus) -> Proof {
    let bar = bus.bar(0, BAR)?;
    for master in [true, false] {
        bus.set_master(master);
        bus.reset()?;
        // The register contents depend on the device: QEMU's keeps most of them.
        let (status, command) = (STATUS.read(&bar), bus.config_r32(4) & 0xffff);
        check(status != u32::MAX, || "its registers are gone after a reset".into())?;
        let wanted = 2 | if master { 4 } else { 0 };
        check(command & 6 == wanted, || format!("after a reset Command is {command:#x}, master was {master}"))?;
    }
    Ok(())
}

fn an_interrupt_arrives_where_it_was_wired(bus: &VfioBus) -> Proof {
    const OTHER: u32 = 1 << 24;
    let bar = bus.bar(0, BAR)?;
    // An MSI-X message is a memory write, for which bus mastering must be on.
    bus.set_master(true);
    // Disabled and enabled again, as a driver does to change its number of queues.
    drop(bus.irqs(5)?);
    check(bus.irqs(0)?.is_empty() && bus.irqs(1000).is_err(), || "interrupts that are not there were given".into())?;
    let irqs = bus.irqs(3)?;
    IMC.write(&bar, u32::MAX);
    ICR.read(&bar);
    // §10.2.4.9: "other" causes raise vector 2.
    IVAR.write(&bar, (8 | 2) << 16);
    IMS.write(&bar, OTHER);
    ICS.write(&bar, OTHER);
    let fired = soon(|| irqs[2].take() > 0);
    check(fired, || "vector 2 was not raised".into())?;
    check(irqs[0].take() == 0 && irqs[1].take() == 0, || "another vector was raised".into())?;
    IMC.write(&bar, u32::MAX);
    // The vectors stay enabled: QEMU's device fails if they are disabled while it throttles one.
    Ok(())
}

/// Both rings of a device in loopback (RCTL.LBM), with legacy descriptors.
struct Loop {
    bar: VfioBar,
    rx: Coherent,
    tx: Coherent,
    next: u32,
}

impl Loop {
    fn new<D: Dma>(bus: &VfioBus, domain: &Domain<D>) -> Result<Loop, Box<dyn Error>> {
        bus.reset()?;
        let bar = bus.bar(0, BAR)?;
        bus.set_master(true);
        IMC.write(&bar, u32::MAX);
        CTRL.change(&bar, 1 << 2, 1 << 6);
        let (rx, tx) = (Coherent::new(domain, 4096)?, Coherent::new(domain, 4096)?);
        RFCTL.write(&bar, 0);
        for (base, ring) in [(RDBAL, &rx), (TDBAL, &tx)] {
            let iova = ring.iova().get();
            let values = [iova as u32, (iova >> 32) as u32, DESCRIPTORS * 16, 0, 0];
            for (offset, value) in RING.into_iter().zip(values) {
                Reg(base.0 + offset).write(&bar, value);
            }
        }
        TCTL.write(&bar, 0x4_00fa);
        // Enabled, promiscuous, loopback, buffers of 2048 bytes, CRC stripped.
        RCTL.write(&bar, 0x2 | 0x8 | 0x10 | 0x40 | 0x8000 | 0x0400_0000);
        Ok(Loop { bar, rx, tx, next: 0 })
    }

    /// Sends `len` bytes from one address to another; returns the received length.
    fn send(&mut self, from: Iova, len: usize, to: Iova) -> Option<usize> {
        let at = (self.next % DESCRIPTORS) as usize * 16;
        self.next += 1;
        let tail = self.next % DESCRIPTORS;
        self.rx.store64(at, to.get());
        self.rx.store64(at + 8, 0);
        Reg(RDBAL.0 + RING[4]).write(&self.bar, tail);
        self.tx.store64(at, from.get());
        // EOP, insert the CRC, report status.
        self.tx.store64(at + 8, len as u64 | (0xb << 24));
        Reg(TDBAL.0 + RING[4]).write(&self.bar, tail);
        let done = soon(|| self.rx.load64(at + 8) & (1 << 32) != 0);
        done.then(|| self.rx.load64(at + 8) as usize & 0xffff)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        RCTL.write(&self.bar, 0);
        TCTL.write(&self.bar, 0);
    }
}

/// A pool of buffers at least a page apart, because protection is by pages.
fn buffers() -> Result<(Pool, Cache), Box<dyn Error>> {
    let config = PoolConfig::default().capacity(512).chunk(8192).headroom(0).backing(Backing::Anonymous);
    let pool = Pool::new(config)?;
    let cache = pool.cache(Direction::Rx)?;
    Ok((pool, cache))
}

fn domain(bus: &VfioBus, pool: &Pool, policy: DmaPolicy) -> Result<Domain<<VfioBus as Bus>::Dma>, Box<dyn Error>> {
    let domain = Domain::new(bus.dma().clone(), policy)?;
    // SAFETY: this program drives the device and completes a buffer when the device is done.
    unsafe { domain.register(pool.region().ok_or("a pool without memory")?) }?;
    Ok(domain)
}

fn frame(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

fn a_frame_goes_from_memory_to_memory(bus: &VfioBus) -> Proof {
    let strict = DmaPolicy::PerBuffer { flush: Flush::Strict };
    let deferred = DmaPolicy::PerBuffer { flush: Flush::Deferred };
    for policy in [DmaPolicy::Persistent, strict, deferred] {
        let (pool, mut cache) = buffers()?;
        let domain = domain(bus, &pool, policy)?;
        let mut mapper = DmaMapper::new(&domain, 64, pool.chunk())?;
        let mut device = Loop::new(bus, &domain)?;
        for (i, len) in [60, 1514, 61, 300].into_iter().cycle().take(20).enumerate() {
            let bytes = frame(len, i as u8);
            let sent = Packet::copy_from(&mut cache, &bytes).ok_or("no buffer")?;
            let sent = InFlight::<ToDevice>::post(sent);
            let room = InFlight::<FromDevice>::post(cache.alloc().ok_or("no buffer")?).map_err(|_| "no room")?;
            let from = mapper.map_to_device(sent.chunks().next().ok_or("no bytes")?)?;
            let to = mapper.map_from_device(&room)?;
            let arrived = device.send(from.iova(), len, to.iova()).ok_or("nothing arrived")?;
            mapper.sync_for_cpu(&to, arrived);
            mapper.unmap(from)?;
            mapper.unmap(to)?;
            mapper.sync_iotlb()?;
            let received = room.complete(arrived);
            drop(sent.complete());
            check(received.linear() == bytes, || format!("{policy:?}: frame {i} of {len} bytes differs"))?;
        }
        mapper.flush_iotlb()?;
        println!("{policy:?}: {:?}", mapper.counts());
        drop(device);
    }
    Ok(())
}

fn what_is_unmapped_is_out_of_reach(bus: &VfioBus) -> Proof {
    let (pool, mut cache) = buffers()?;
    let domain = domain(bus, &pool, DmaPolicy::PerBuffer { flush: Flush::Strict })?;
    let mut mapper = DmaMapper::new(&domain, 64, pool.chunk())?;
    let mut device = Loop::new(bus, &domain)?;
    let secret = InFlight::<ToDevice>::post(Packet::copy_from(&mut cache, &frame(100, 1)).ok_or("no buffer")?);
    let room = InFlight::<FromDevice>::post(cache.alloc().ok_or("no buffer")?).map_err(|_| "no room")?;
    let (from, to) = (mapper.map_to_device(secret.chunks().next().ok_or("no bytes")?)?, mapper.map_from_device(&room)?);
    let (source, target) = (from.iova(), to.iova());
    check(device.send(source, 100, target) == Some(100), || "nothing arrives even while all is mapped".into())?;
    mapper.unmap(to)?;
    mapper.sync_iotlb()?;
    let mut kept = room.complete(100);
    kept.linear_mut().fill(0xee);
    // The device still has the address and uses it; its descriptor reports a write.
    device.send(source, 100, target);
    // An IOMMU records the next fault only after the kernel has read the last one.
    std::thread::sleep(Duration::from_millis(200));
    check(kept.linear().iter().all(|&b| b == 0xee), || "a device wrote to memory that was unmapped".into())?;

    // Not the IOVA of the source, which would be reused next.
    let room = InFlight::<FromDevice>::post(cache.alloc().ok_or("no buffer")?).map_err(|_| "no room")?;
    let to = mapper.map_from_device(&room)?;
    mapper.unmap(from)?;
    mapper.sync_iotlb()?;
    let arrived = device.send(source, 100, to.iova()).unwrap_or(0);
    println!("{arrived} bytes arrived from memory that was unmapped");
    mapper.unmap(to)?;
    mapper.sync_iotlb()?;
    let read = room.complete(arrived);
    let leaked = read.linear().iter().zip(frame(100, 1)).skip(1).filter(|(a, b)| **a == *b).count();
    check(leaked < 4, || format!("{leaked} of 100 bytes of memory that was unmapped were sent"))
}

fn refusals_are_named(bus: &VfioBus) -> Proof {
    let dma = bus.dma();
    let region = Region::new(1 << 20, Backing::Anonymous)?;
    let at = |offset: usize, len| region.at(offset, len).ok_or("outside");
    let map = |offset: usize, len| -> Result<_, Box<dyn Error>> {
        // SAFETY: the region outlives every mapping of it, and its bytes are not used.
        Ok(unsafe { dma.map(at(offset, len)?, len, towpath_bus::Access::Both) })
    };
    let odd = map(64, 4096)?;
    check(matches!(odd, Err(MapError::Granule { .. })), || format!("half a page: {odd:?}"))?;
    let hole = {
        let gone = Region::new(4096, Backing::Anonymous)?;
        let at = gone.base();
        drop(gone);
        // SAFETY: the memory is unmapped, so the kernel must refuse and map nothing.
        unsafe { dma.map(at, 4096, towpath_bus::Access::Both) }
    };
    check(hole.is_err(), || "memory that is not there was mapped".into())?;
    let first = map(0, 8192)?.map_err(|e| format!("two pages: {e}"))?;
    let again = map(0, 8192)?.map_err(|e| format!("the same pages once more: {e}"))?;
    check(first != again, || "two mappings have one address".into())?;
    check(dma.unmap(first, 4096).is_err(), || "half of a mapping was unmapped".into())?;
    dma.unmap(first, 8192)?;
    check(dma.unmap(first, 8192).is_err(), || "what is not mapped was unmapped".into())?;
    dma.unmap(again, 8192)?;
    if let Some(limit) = dma.limits().mappings {
        let window = dma.window(u32::try_from(limit)?.saturating_add(1), 2048);
        let named = matches!(window, Err(MapError::Mappings { .. }));
        check(named, || format!("{limit} mappings are the limit, and {window:?}"))?;
    }
    if let Some(limit) = dma.limits().locked.filter(|&limit| limit < 1 << 28) {
        let much = Region::new(usize::try_from(limit)? + (1 << 20), Backing::Anonymous)?;
        // SAFETY: as above.
        let refused = unsafe { dma.map(much.base(), much.len(), towpath_bus::Access::Both) };
        check(matches!(refused, Err(MapError::Locked { .. })), || format!("{limit} bytes, and {refused:?}"))?;
        println!("{}", refused.err().map(|e| e.to_string()).unwrap_or_default());
    }
    Ok(())
}

fn one_mapping_costs(bus: &VfioBus) -> Proof {
    let (pool, mut cache) = buffers()?;
    let domain = domain(bus, &pool, DmaPolicy::PerBuffer { flush: Flush::Strict })?;
    for burst in [1, 8, 32] {
        let mut mapper = DmaMapper::new(&domain, 64, pool.chunk())?;
        let mut posted = Vec::new();
        for _ in 0..burst {
            posted.push(InFlight::<FromDevice>::post(cache.alloc().ok_or("no buffer")?).map_err(|_| "no room")?);
        }
        let (begun, rounds) = (Instant::now(), 512 / burst);
        for _ in 0..rounds {
            let mut mapped = Vec::with_capacity(burst);
            for room in &posted {
                mapped.push(mapper.map_from_device(room)?);
            }
            for mapped in mapped {
                mapper.unmap(mapped)?;
            }
            mapper.sync_iotlb()?;
        }
        let each = begun.elapsed().as_nanos() / (rounds * burst) as u128;
        println!("map + unmap of one buffer, one sync per {burst}: {each} ns");
        for room in posted {
            drop(room.complete(0));
        }
    }
    Ok(())
}

/// Whether a condition becomes true within a second.
fn soon(mut true_now: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(1) {
        if true_now() {
            return true;
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    false
}
