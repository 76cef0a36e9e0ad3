//! This command, the machine and its IOMMU.

use super::Section;
use crate::bench::machine::Machine;
use std::fs::{read_dir, read_to_string};
use std::path::Path;

/// Parameters of the kernel's command line that decide what a device may do. The others may be
/// private.
const PARAMETERS: [&str; 6] = ["iommu", "pci", "vfio", "intremap", "isolcpus", "nohz_full"];

/// The first line of a file; `None` if it does not exist or is empty. Strings of a device tree end
/// with NUL.
pub(super) fn line(path: impl AsRef<Path>) -> Option<String> {
    let text = read_to_string(path).ok()?;
    let text = text.trim_end_matches('\0').replace('\0', " ");
    text.lines().next().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty())
}

pub(super) fn sections() -> Vec<Section> {
    vec![command(), board(), iommu(), uio()]
}

fn command() -> Section {
    Section::new("towpath").with("version", env!("CARGO_PKG_VERSION")).with("machine", Machine::this())
}

fn board() -> Section {
    let mut section = Section::new("board");
    for name in ["sys_vendor", "product_name", "board_name", "bios_version", "bios_date"] {
        section.add_some(name, line(Path::new("/sys/class/dmi/id").join(name)));
    }
    section.add_some("model", line("/proc/device-tree/model"));
    section.add_some("compatible", line("/proc/device-tree/compatible"));
    section.add_some("kernel", line("/proc/version"));
    let command_line = line("/proc/cmdline").unwrap_or_default();
    let words = command_line.split(' ').filter(|word| PARAMETERS.iter().any(|name| word.contains(name)));
    section.add("kernel parameters", words.collect::<Vec<_>>().join(" "));
    section.add_some("huge pages", line("/proc/sys/vm/nr_hugepages"));
    section
}

fn iommu() -> Section {
    let names = |path: &str| {
        let entries = read_dir(path).into_iter().flatten().flatten();
        let mut names: Vec<_> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    };
    let mut section = Section::new("iommu");
    section.add("units", names("/sys/class/iommu").join(" "));
    section.add("groups", names("/sys/kernel/iommu_groups").len());
    section.add("vfio files", names("/dev/vfio").join(" "));
    section.add("vfio devices", names("/dev/vfio/devices").join(" "));
    for parameter in
        ["vfio/parameters/enable_unsafe_noiommu_mode", "vfio_iommu_type1/parameters/allow_unsafe_interrupts"]
    {
        section.add_some(parameter, line(Path::new("/sys/module").join(parameter)));
    }
    section.add_some("ASPM policy", line("/sys/module/pcie_aspm/parameters/policy"));
    section
}

/// Memory of a board that the kernel gives to user space.
fn uio() -> Section {
    let mut section = Section::new("uio");
    for entry in read_dir("/sys/class/uio").into_iter().flatten().flatten() {
        let name = line(entry.path().join("name")).unwrap_or_default();
        let map = |what: &str| line(entry.path().join("maps/map0").join(what)).unwrap_or_default();
        section.add(entry.file_name().to_string_lossy(), format!("{name} {} {}", map("addr"), map("size")));
    }
    section
}
