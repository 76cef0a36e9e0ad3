//! Starts a QEMU with devices and memory, but without a running guest.

use super::channel::Channel;
use super::netdev::Netdev;
use super::process::{Process, memfd};
use super::qemu::Qemu;
use super::ram::Ram;
use crate::bus::BusError;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;
use towpath_packet::{Backing, Region};

/// The executable.
const PROGRAM: &str = "qemu-system-x86_64";

/// The timeouts of the start and of an answer.
pub(super) const START: Duration = Duration::from_secs(20);
pub(super) const ANSWER: Duration = Duration::from_secs(5);

/// The machine's name in errors.
const NAME: &str = "qtest";

/// A machine to be started: a q35 PC with one CPU that halts at once, and devices.
///
/// ```no_run
/// use towpath_bus::qtest::{Device, Machine, Netdev};
///
/// let (netdev, cable) = Netdev::cable()?;
/// let qemu = Machine::default().with(Device::e1000e(4, netdev)).start()?;
/// let nic = qemu.open(4)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Machine {
    /// Bytes of memory: a multiple of 1 MiB from 16 MiB to 2 GiB.
    pub memory: usize,
    /// The VT-d remapping unit, if any: its address width.
    pub iommu: Option<Width>,
    /// The devices.
    pub devices: Vec<Device>,
}

/// The address width of a remapping unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Width {
    /// 39: tables of three levels.
    Bits39,
    /// 48: tables of four levels.
    Bits48,
}

/// A device of a machine.
#[derive(Debug)]
#[non_exhaustive]
pub struct Device {
    /// QEMU's name of the device model: `e1000e`.
    pub model: String,
    /// The slot on bus 0: 1 to 29 (30 and 31 belong to the machine).
    pub slot: u8,
    /// The network that it is connected to.
    pub netdev: Option<Netdev>,
    /// Further properties in QEMU's syntax: `mac=52:54:00:12:34:56`.
    pub properties: Vec<String>,
}

impl Device {
    /// A device of QEMU's model `model`, without a network.
    pub fn new(model: impl Into<String>, slot: u8) -> Device {
        Device { model: model.into(), slot, netdev: None, properties: Vec::new() }
    }

    /// An Intel 82574L.
    pub fn e1000e(slot: u8, netdev: Netdev) -> Device {
        Device { netdev: Some(netdev), ..Device::new("e1000e", slot) }
    }

    /// Adds a property.
    pub fn property(mut self, property: impl Into<String>) -> Device {
        self.properties.push(property.into());
        self
    }
}

impl Default for Machine {
    /// 64 MiB, no remapping unit, no devices.
    fn default() -> Machine {
        Machine { memory: 64 << 20, iommu: None, devices: Vec::new() }
    }
}

impl Machine {
    /// Adds a device.
    pub fn with(mut self, device: Device) -> Machine {
        self.devices.push(device);
        self
    }

    /// Sets the size of the memory in bytes.
    pub fn memory(mut self, bytes: usize) -> Machine {
        self.memory = bytes;
        self
    }

    /// Adds a remapping unit.
    pub fn iommu(mut self, width: Width) -> Machine {
        self.iommu = Some(width);
        self
    }

    fn check(&self) -> Result<(), BusError> {
        let refuse = |what: String| Err(BusError::device(NAME, what));
        let Machine { memory, devices, .. } = self;
        if !(16 << 20..=2 << 30).contains(memory) || memory % (1 << 20) != 0 {
            return refuse(format!("memory={memory}: must be a multiple of 1 MiB from 16 MiB to 2 GiB"));
        }
        for (i, Device { slot, model, properties, .. }) in devices.iter().enumerate() {
            if !(1..=29).contains(slot) || devices.iter().take(i).any(|other| other.slot == *slot) {
                return refuse(format!("slot={slot}: must be from 1 to 29, and of one device only"));
            }
            if [model].into_iter().chain(properties).any(|text| text.is_empty() || text.contains([',', '\0'])) {
                return refuse(format!("device={model}: names and properties must be single words without commas"));
            }
        }
        Ok(())
    }

    /// Starts the machine. It ends with its last handle; its devices and their DMA hold handles
    /// too. No file is ever left behind.
    ///
    /// # Errors
    /// [`BusError`] with QEMU's message if it did not start.
    pub fn start(self) -> Result<Qemu, BusError> {
        self.check()?;
        let memfd = memory(self.memory)?;
        let firmware = firmware().map_err(BusError::os(NAME, "a file for the firmware"))?;
        let (local, remote) = UnixStream::pair().map_err(BusError::os(NAME, "socketpair"))?;
        let remote = OwnedFd::from(remote);
        let ram = memfd.try_clone().and_then(Ram::new).map_err(BusError::os(NAME, "examining the memory"))?;
        let (command, mut inherit) = self.command(&memfd, &firmware, &remote);
        inherit.extend([memfd, firmware, remote]);
        let hint = "apt-get install qemu-system-x86";
        let process = Process::start(command, inherit).map_err(BusError::os(NAME, format!("starting {PROGRAM}")));
        let mut process = process.map_err(|error| error.with_hint(hint))?;
        let channel = Channel::new(local, START).map_err(BusError::os(NAME, "setting up the socket"))?;
        if let Err(why) = channel.handshake() {
            process.end();
            let errors = process.errors();
            let what = if errors.is_empty() { why } else { format!("{PROGRAM} did not start: {errors}") };
            return Err(BusError::device(NAME, what));
        }
        channel.set_timeout(ANSWER);
        Qemu::new(NAME.to_owned(), channel, ram, Some(process))
    }

    /// The command line, and the descriptors that it refers to.
    fn command(self, memory: &OwnedFd, firmware: &OwnedFd, socket: &OwnedFd) -> (Command, Vec<OwnedFd>) {
        let mut inherit = Vec::new();
        let mut command = Command::new(PROGRAM);
        let bytes = self.memory;
        let file = |fd: &OwnedFd| format!("/proc/self/fd/{}", fd.as_raw_fd());
        command.args(["-nodefaults", "-no-user-config", "-display", "none"]);
        // The CPU must run, because the devices of a stopped machine receive nothing. It halts in
        // the first instructions of the firmware.
        command.args(["-accel", "tcg", "-machine", "q35,memory-backend=ram", "-m", &format!("{}M", bytes >> 20)]);
        command.args(["-bios", &file(firmware)]);
        let ram = format!("memory-backend-file,id=ram,size={bytes},mem-path={},share=on", file(memory));
        command.args(["-object", &ram]);
        command.args(["-chardev", &format!("socket,id=towpath,fd={}", socket.as_raw_fd())]);
        command.args(["-object", "qtest,id=control,chardev=towpath,log=/dev/null"]);
        if let Some(width) = self.iommu {
            // Before the devices, or the unit does not translate for them.
            let bits = if width == Width::Bits48 { 48 } else { 39 };
            command.args(["-device", &format!("intel-iommu,aw-bits={bits}")]);
        }
        for Device { model, slot, netdev, properties } in self.devices {
            let mut device = format!("{model},addr={slot:x}.0");
            if let Some(netdev) = netdev {
                let id = format!("net{slot}");
                let (argument, fds) = netdev.argument(&id);
                command.args(["-netdev", &argument]);
                inherit.extend(fds);
                device += &format!(",netdev={id}");
            }
            for property in properties {
                device += &format!(",{property}");
            }
            command.args(["-device", &device]);
        }
        (command, inherit)
    }
}

/// A sealed file of `len` bytes without a mapping: [`Ram`] would count a mapping as memory in use.
fn memory(len: usize) -> Result<OwnedFd, BusError> {
    let region = Region::new(len, Backing::Memfd);
    let region = region.map_err(|error| BusError::map(NAME)(error.into()))?;
    let fd = region.fd().ok_or_else(|| std::io::Error::other("a region without a descriptor"));
    fd.and_then(|fd| fd.try_clone_to_owned()).map_err(BusError::os(NAME, "duplicating a descriptor"))
}

/// Firmware that halts: `cli; hlt; jmp` back to `hlt`, at the reset vector 16 bytes below the end
/// of 64 KiB.
fn firmware() -> std::io::Result<OwnedFd> {
    const LEN: u64 = 64 << 10;
    let file = File::from(memfd(c"firmware", 0)?);
    file.set_len(LEN)?;
    file.write_all_at(&[0xfa, 0xf4, 0xeb, 0xfd], LEN - 16)?;
    Ok(file.into())
}
