//! An 82574L without a driver: the minimum of register writes to send and receive (datasheet §4.6,
//! §7.1, §7.2).

use std::ptr::NonNull;
use std::time::{Duration, Instant};
use towpath_bus::qtest::{Cable, Device, Machine, Netdev, Qemu, QtestBus, QtestDma, Registers, Width};
use towpath_bus::{Access, Bus, Dma, Iova, Mmio, Pci};
use towpath_packet::RegionHandle;

/// The time limit of a test's waits.
const TIMEOUT: Duration = Duration::from_secs(60);

const CTRL: usize = 0x0;
const RCTL: usize = 0x100;
const TCTL: usize = 0x400;
const RX: usize = 0x2800;
const TX: usize = 0x3800;
const RFCTL: usize = 0x5008;
/// Offsets in the registers of a ring: base, length, head, tail.
const BASE: usize = 0;
const LEN: usize = 8;
const HEAD: usize = 0x10;
const TAIL: usize = 0x18;
pub(crate) const TDT: usize = TX + TAIL;
pub(crate) const RDT: usize = RX + TAIL;
/// Descriptors of a ring: one page.
const RING: u32 = 256;

/// A machine with one NIC in slot 4, and the far end of its cable.
pub(crate) fn machine(iommu: Option<Width>) -> (Qemu, Cable) {
    let (netdev, cable) = Netdev::cable().unwrap();
    let machine = iommu.into_iter().fold(Machine::default(), Machine::iommu);
    (machine.with(Device::e1000e(4, netdev)).start().unwrap(), cable)
}

/// Memory with a persistent mapping.
pub(crate) struct Mapped {
    pub(crate) region: RegionHandle,
    pub(crate) iova: Iova,
}

impl Mapped {
    pub(crate) fn new(dma: &QtestDma, len: usize, access: Access) -> Mapped {
        let region = RegionHandle::from(dma.alloc(len).unwrap());
        // SAFETY: the tests keep the memory until the machine has ended.
        let iova = unsafe { dma.map(region.base(), region.len(), access) }.unwrap();
        Mapped { region, iova }
    }

    pub(crate) fn at(&self, offset: usize) -> NonNull<u8> {
        self.region.at(offset, 1).unwrap()
    }

    pub(crate) fn put(&self, offset: usize, bytes: &[u8]) {
        put(&self.region, offset, bytes);
    }

    pub(crate) fn get(&self, offset: usize, len: usize) -> Vec<u8> {
        get(&self.region, offset, len)
    }
}

pub(crate) fn put(region: &RegionHandle, offset: usize, bytes: &[u8]) {
    let at = region.at(offset, bytes.len()).unwrap();
    // SAFETY: inside the region; a race with the device is the subject of the tests, and shows as
    // wrong bytes.
    unsafe { std::ptr::copy(bytes.as_ptr(), at.as_ptr(), bytes.len()) };
}

pub(crate) fn get(region: &RegionHandle, offset: usize, len: usize) -> Vec<u8> {
    let at = region.at(offset, len).unwrap();
    let mut bytes = vec![0u8; len];
    // SAFETY: as in `put`; the bytes are read as volatile, because the device writes them.
    bytes.iter_mut().enumerate().for_each(|(i, b)| *b = unsafe { at.add(i).read_volatile() });
    bytes
}

/// A NIC after bring-up.
pub(crate) struct Raw {
    pub(crate) bar: Registers,
    tx: Mapped,
    rx: Mapped,
    sent: u32,
    posted: u32,
    received: u32,
    // Last: bus mastering is disabled before the rings are freed.
    pub(crate) bus: QtestBus,
}

impl Raw {
    pub(crate) fn new(qemu: &Qemu) -> Raw {
        Raw::in_slot(qemu, 4)
    }

    pub(crate) fn in_slot(qemu: &Qemu, slot: u8) -> Raw {
        let bus = qemu.open(slot).unwrap();
        let bar = bus.bar(0, 0x2_0000).unwrap();
        bus.set_master(true);
        let ring = || Mapped::new(bus.dma(), 4096, Access::Both);
        let (tx, rx) = (ring(), ring());
        bar.w32(0xd8, u32::MAX);
        bar.w32(CTRL, 1 << 26);
        until("the reset is over", || bar.r32(CTRL) & 1 << 26 == 0);
        bar.w32(0xd8, u32::MAX);
        bar.w32(CTRL, bar.r32(CTRL) & !4 | 1 << 6);
        for (unit, ring) in [(TX, &tx), (RX, &rx)] {
            bar.w32(unit + BASE, ring.iova.get() as u32);
            bar.w32(unit + BASE + 4, (ring.iova.get() >> 32) as u32);
            bar.w32(unit + LEN, RING * 16);
            bar.w32(unit + HEAD, 0);
            bar.w32(unit + TAIL, 0);
        }
        bar.w32(0x410, 0x60_2008);
        bar.w32(TCTL, 0x4_00fa);
        bar.w32(RFCTL, 1 << 15);
        // Enabled, all broadcast, unicast and multicast frames, CRC stripped.
        bar.w32(RCTL, 0x2 | 0x8 | 0x10 | 0x8000 | 0x400_0000);
        // Writes are posted, and frames take another path: only a read shows that the device is
        // ready.
        bar.r32(RCTL);
        Raw { bar, tx, rx, sent: 0, posted: 0, received: 0, bus }
    }

    /// Sends the `len` bytes at `iova` as a frame and waits for its completion.
    pub(crate) fn send(&mut self, iova: u64, len: usize) {
        let at = self.sent as usize * 16;
        self.tx.put(at, &iova.to_le_bytes());
        // End of packet, insert the CRC, report status.
        self.tx.put(at + 8, &(len as u64 | 0xb << 24).to_le_bytes());
        self.sent = (self.sent + 1) % RING;
        self.bar.w32(TDT, self.sent);
        until("the frame is sent", || self.tx.get(at + 12, 1) == [1]);
    }

    /// Posts a buffer of 2048 bytes.
    pub(crate) fn post(&mut self, iova: u64) {
        let at = self.posted as usize * 16;
        self.rx.put(at, &iova.to_le_bytes());
        self.rx.put(at + 8, &[0; 8]);
        self.posted = (self.posted + 1) % RING;
        self.bar.w32(RDT, self.posted);
    }

    /// Waits for a frame; returns its length.
    pub(crate) fn wait_received(&mut self) -> usize {
        let at = self.received as usize * 16;
        until("a frame is received", || self.rx.get(at + 8, 1)[0] & 1 == 1);
        self.received = (self.received + 1) % RING;
        u16::from_le_bytes(self.rx.get(at + 12, 2).try_into().unwrap()).into()
    }
}

pub(crate) fn until(what: &str, mut true_now: impl FnMut() -> bool) {
    let end = Instant::now() + TIMEOUT;
    while !true_now() {
        assert!(Instant::now() < end, "timeout: {what}");
        std::thread::yield_now();
    }
}

/// A frame of `len` bytes that depends on `seed`.
pub(crate) fn frame(seed: u8, len: usize) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend((6..len).map(|i| (i as u8).wrapping_mul(7) ^ seed));
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame
}

pub(crate) fn receive(cable: &Cable) -> Vec<u8> {
    let mut buffer = vec![0; 70_000];
    let len = cable.receive(&mut buffer, TIMEOUT).unwrap();
    buffer.truncate(len);
    buffer
}
