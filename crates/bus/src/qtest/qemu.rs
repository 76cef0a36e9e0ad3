//! A running machine: its memory, its PCI bus, its remapping unit.

use super::attach;
use super::bus::QtestBus;
use super::channel::Channel;
use super::process::Process;
use super::ram::Ram;
use super::registers::{Accesses, Registers};
use crate::bus::BusError;
use crate::vtd::{Faults, SourceId, Unit};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// The address of the remapping unit's registers in q35 (`include/hw/i386/intel_iommu.h`,
/// Q35_HOST_BRIDGE_IOMMU_ADDR), and their length.
const REMAPPING: (u64, usize) = (0xfed9_0000, 0x1000);

/// Ports of the PCI configuration mechanism #1 (PCI 3.0 §3.2.2.3.2).
const CONFIG_ADDRESS: u16 = 0xcf8;
const CONFIG_DATA: u16 = 0xcfc;

/// A QEMU; a clone is another handle of the same.
#[derive(Clone)]
pub struct Qemu(Arc<QemuInner>);

struct QemuInner {
    name: String,
    // Dropped in this order: the unit is disabled, the connection closed, the process killed and
    // reaped.
    unit: Option<Unit<Registers, Ram>>,
    remapping: Arc<Accesses>,
    channel: Arc<Channel>,
    ram: Ram,
    /// Held while the address is written and the data accessed: there is one pair of ports.
    config: Mutex<()>,
    process: Mutex<Option<Process>>,
}

impl Qemu {
    pub(super) fn new(name: String, channel: Channel, ram: Ram, process: Option<Process>) -> Result<Qemu, BusError> {
        let channel = Arc::new(channel);
        let remapping = Arc::new(Accesses::new(REMAPPING.1));
        let registers = Registers::new(channel.clone(), REMAPPING.0, remapping.clone());
        let unit = if Unit::<Registers, Ram>::is_at(&registers) {
            Some(Unit::new(&name, registers, ram.clone())?)
        } else {
            None
        };
        let (config, process) = (Mutex::new(()), Mutex::new(process));
        Ok(Qemu(Arc::new(QemuInner { name, unit, remapping, channel, ram, config, process })))
    }

    /// Attaches to a running machine, whose CPU must halt at once and whose memory must be shared.
    ///
    /// ```text
    /// (head -c 65520 /dev/zero; printf '\372\364\353\375'; head -c 12 /dev/zero) >halt.bin
    /// qemu-system-x86_64 -nodefaults -display none -accel tcg -bios halt.bin -m 64M \
    ///     -qtest unix:SOCKET,server=on,wait=off -device intel-iommu \
    ///     -object memory-backend-memfd,id=ram,size=64M,share=on -machine q35,memory-backend=ram \
    ///     -netdev tap,id=net,ifname=TAP,script=no,downscript=no -device e1000e,netdev=net
    /// ```
    ///
    /// `socket` is the path SOCKET; one program at a time can be connected to it. `memory` is the
    /// file of the machine's memory. Without it, the file is searched among the descriptors of the
    /// process that listens on the socket.
    ///
    /// # Errors
    /// [`BusError`] names the step and the remedy.
    pub fn attach(socket: &Path, memory: Option<&Path>) -> Result<Qemu, BusError> {
        let name = socket.display().to_string();
        let (channel, ram) = attach::attach(&name, socket, memory)?;
        Qemu::new(name, channel, ram, None)
    }

    /// Opens function 0 of the device in a slot of bus 0. Assigns its BAR addresses; bus mastering
    /// is off.
    ///
    /// # Errors
    /// [`BusError`] if there is no device, or it is in use.
    pub fn open(&self, slot: u8) -> Result<QtestBus, BusError> {
        QtestBus::new(self, slot)
    }

    /// The devices on bus 0: slot, and vendor id (low half) with device id (high half).
    pub fn devices(&self) -> Vec<(u8, u32)> {
        let id = |slot| (slot, self.config_r32(SourceId::new(0, slot, 0), 0));
        (0..32).map(id).filter(|&(_, id)| id != u32::MAX && id != 0).collect()
    }

    /// The machine's name in errors.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Why the machine does not answer any more; `None` while it does. Registers then read as all
    /// ones.
    pub fn gone(&self) -> Option<&str> {
        self.0.channel.gone()
    }

    /// Its memory.
    pub fn ram(&self) -> &Ram {
        &self.0.ram
    }

    /// Its remapping unit, if it has one.
    pub fn iommu(&self) -> Option<&Unit<Registers, Ram>> {
        self.0.unit.as_ref()
    }

    /// The accesses to the remapping unit's registers.
    pub fn iommu_accesses(&self) -> &Arc<Accesses> {
        &self.0.remapping
    }

    /// The blocked accesses since the last call; none without a remapping unit.
    pub fn faults(&self) -> Faults {
        self.iommu().map(Unit::faults).unwrap_or_default()
    }

    /// The process id, if this process started the machine.
    pub fn process_id(&self) -> Option<u32> {
        self.0.process.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(Process::id)
    }

    /// Kills a machine that this process started, like a crash.
    pub fn kill(&self) {
        if let Some(process) = self.0.process.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            process.end();
        }
    }

    pub(super) fn registers(&self, base: u64, accesses: Arc<Accesses>) -> Registers {
        Registers::new(self.0.channel.clone(), base, accesses)
    }

    pub(super) fn config_r32(&self, function: SourceId, at: u16) -> u32 {
        let _one_at_a_time = self.config_address(function, at);
        self.0.channel.request(format_args!("inl {CONFIG_DATA:#x}")).map_or(u32::MAX, |value| value as u32)
    }

    pub(super) fn config_w32(&self, function: SourceId, at: u16, value: u32) {
        let _one_at_a_time = self.config_address(function, at);
        self.0.channel.post(format_args!("outl {CONFIG_DATA:#x} {value:#x}"));
    }

    fn config_address(&self, function: SourceId, at: u16) -> std::sync::MutexGuard<'_, ()> {
        let guard = self.0.config.lock().unwrap_or_else(PoisonError::into_inner);
        let address = 1 << 31 | u32::from(function.0) << 8 | u32::from(at & 0xfc);
        self.0.channel.post(format_args!("outl {CONFIG_ADDRESS:#x} {address:#x}"));
        guard
    }
}

impl std::fmt::Debug for Qemu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Qemu").field("name", &self.0.name).field("gone", &self.gone()).finish()
    }
}
