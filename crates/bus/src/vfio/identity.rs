//! What a PCI function is: its class, and the names of vendor and device.

use super::bdf::Bdf;
use super::host::{Host, device};
use std::fmt;

/// Where distributions keep the [list of names](https://pci-ids.ucw.cz).
const NAMES: [&str; 3] = ["usr/share/misc/pci.ids", "usr/share/hwdata/pci.ids", "usr/share/pci.ids"];

/// Classes of functions (PCI Code and ID Assignment 1.11 §1): the upper byte, and both bytes where
/// the subclass has a name of its own.
const CLASSES: [(u16, &str); 20] = [
    (0x0101, "an IDE controller"),
    (0x0106, "a SATA controller"),
    (0x0108, "an NVMe controller"),
    (0x01ff, "a mass storage controller"),
    (0x0200, "an Ethernet controller"),
    (0x02ff, "a network controller"),
    (0x0300, "a VGA controller"),
    (0x03ff, "a display controller"),
    (0x04ff, "a multimedia controller"),
    (0x05ff, "a memory controller"),
    (0x0600, "a host bridge"),
    (0x0601, "an ISA bridge"),
    (0x0604, "a PCI bridge"),
    (0x06ff, "a bridge"),
    (0x07ff, "a communication controller"),
    (0x08ff, "a system peripheral"),
    (0x0c03, "a USB controller"),
    (0x0c05, "an SMBus controller"),
    (0x10ff, "an encryption controller"),
    (0x12ff, "an accelerator"),
];

/// What a PCI function is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Identity {
    /// Class, subclass and programming interface: `0x020000` is an Ethernet controller.
    pub class: u32,
    /// Vendor ID.
    pub vendor: u16,
    /// Device ID.
    pub device: u16,
    /// The names of vendor and device, if the machine has the list of them.
    pub name: Option<String>,
}

impl Identity {
    pub(super) fn of(host: &Host, bdf: Bdf) -> Option<Identity> {
        let word = |file: &str| {
            let text = host.read(&device(bdf, file))?;
            u32::from_str_radix(text.trim_start_matches("0x"), 16).ok()
        };
        let (vendor, id) = (word("vendor")? as u16, word("device")? as u16);
        Some(Identity { class: word("class")?, vendor, device: id, name: name(host, vendor, id) })
    }

    /// Whether it is a network controller.
    pub fn is_network(&self) -> bool {
        self.class >> 16 == 0x02
    }

    /// Device and vendor ID as in the first word of the configuration space.
    pub fn id(&self) -> u32 {
        u32::from(self.device) << 16 | u32::from(self.vendor)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let class = (self.class >> 8) as u16;
        let found = CLASSES.iter().find(|(known, _)| *known == class || *known == class | 0xff);
        match found {
            Some((_, name)) => f.write_str(name)?,
            None => write!(f, "a function of class {class:04x}")?,
        }
        write!(f, " ({:04x}:{:04x}", self.vendor, self.device)?;
        if let Some(name) = &self.name {
            write!(f, ", {name}")?;
        }
        f.write_str(")")
    }
}

/// Vendor and device by the list: lines of vendors, and below each the lines of its devices, which
/// begin with one tab.
fn name(host: &Host, vendor: u16, device: u16) -> Option<String> {
    let list = NAMES.iter().find_map(|path| std::fs::read(host.path(path)).ok())?;
    let list = String::from_utf8_lossy(&list);
    let mut lines = list.lines().skip_while(|line| !line.starts_with(&format!("{vendor:04x}  ")));
    let vendor_name = lines.next()?.get(6..)?.trim();
    let devices = lines.take_while(|line| line.starts_with(['\t', '#']) || line.is_empty());
    let key = format!("\t{device:04x}  ");
    let device_name = devices.filter_map(|line| line.strip_prefix(key.as_str())).next();
    Some(device_name.map_or_else(|| vendor_name.to_owned(), |device| format!("{vendor_name} {}", device.trim())))
}

#[cfg(test)]
mod tests {
    use super::super::bind::Kernel;
    use super::super::fake::FakeHost;
    use super::*;

    #[test]
    fn a_function_has_the_names_of_the_list_as_far_as_the_list_knows_them() {
        let mut machine = FakeHost::new();
        let nic = machine.add("0000:03:00.0", None, None);
        let text = |machine: &FakeHost| Identity::of(machine.host(), nic).unwrap().to_string();
        assert_eq!(text(&machine), "an Ethernet controller (8086:10d3)");
        let list = "# a list\n8086  Intel Corporation\n\t10d2  Other\n\t\t8086 10d3  Board\n\n\t10d3  82574L Network\n\
                    8087  Intel Corp.\n\t10d4  Wrong\n";
        machine.file("usr/share/hwdata/pci.ids", list);
        assert_eq!(text(&machine), "an Ethernet controller (8086:10d3, Intel Corporation 82574L Network)");
        machine.file(&device(nic, "device"), "0x10d4\n");
        machine.file(&device(nic, "class"), "0x010802\n");
        assert_eq!(text(&machine), "an NVMe controller (8086:10d4, Intel Corporation)");
        machine.file(&device(nic, "class"), "0x118000\n");
        assert_eq!(text(&machine), "a function of class 1180 (8086:10d4, Intel Corporation)");
    }
}
