//! A PCI function and the bridge above it, from sysfs.

use super::Section;
use super::machine::line;
use std::fs::{canonicalize, read, read_link};
use std::path::Path;
use towpath::bus::vfio::{Bdf, inspect};

/// Files of a function that say what it is and how it is linked. None has its serial number.
const FILES: [&str; 18] = [
    "vendor",
    "device",
    "subsystem_vendor",
    "subsystem_device",
    "revision",
    "class",
    "enable",
    "power_state",
    "numa_node",
    "current_link_speed",
    "current_link_width",
    "max_link_speed",
    "max_link_width",
    "reset_method",
    "link/l0s_aspm",
    "link/l1_aspm",
    "iommu_group/type",
    "iommu_group/name",
];
/// The bytes of the configuration space before the extended part, which has the serial number.
const CONFIG: usize = 256;

pub(super) fn sections(bdf: Bdf) -> Vec<Section> {
    let device = format!("/sys/bus/pci/devices/{bdf}");
    let mut sections = vec![findings(bdf), function(format!("function {bdf}"), Path::new(&device))];
    let bridge = canonicalize(&device).ok().and_then(|path| path.parent().map(Path::to_owned));
    if let Some(bridge) = bridge.filter(|bridge| bridge.join("vendor").exists()) {
        let name = bridge.file_name().unwrap_or_default().to_string_lossy().into_owned();
        sections.push(function(format!("bridge {name}"), &bridge));
    }
    sections
}

fn findings(bdf: Bdf) -> Section {
    let inspection = inspect(bdf);
    let mut section = Section::new("findings");
    section.add("driver", inspection.driver.as_deref().unwrap_or("none"));
    section.add("IOMMU group", inspection.group.map_or("none".to_owned(), |group| group.to_string()));
    section.add("iommufd", inspection.iommufd);
    for finding in &inspection.findings {
        let kind = if finding.is_obstacle() { "obstacle" } else { "note" };
        section.add(kind, format!("{finding}; to fix it: {}", finding.hint(bdf)));
    }
    section
}

fn function(name: String, directory: &Path) -> Section {
    let mut section = Section::new(name);
    if !directory.exists() {
        return section.with("error", "there is no such function");
    }
    for file in FILES {
        section.add_some(file, line(directory.join(file)));
    }
    let driver = read_link(directory.join("driver")).ok();
    section.add_some("driver", driver.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy()));
    for kind in ["correctable", "nonfatal", "fatal"] {
        let errors = std::fs::read_to_string(directory.join(format!("aer_dev_{kind}"))).unwrap_or_default();
        let counted: Vec<_> = errors.lines().filter(|line| !line.ends_with(" 0")).collect();
        if !counted.is_empty() {
            section.add(format!("AER {kind}"), counted.join(", "));
        }
    }
    match read(directory.join("config")) {
        Ok(config) => configuration(&mut section, config.get(..CONFIG.min(config.len())).unwrap_or_default()),
        Err(error) => section.add("configuration space", error),
    }
    section
}

/// The PCI Express capability decoded, then all bytes.
fn configuration(section: &mut Section, config: &[u8]) {
    let half = |at: usize| config.get(at..at + 2).map(|b| u16::from_le_bytes([b[0], b[1]]));
    let byte = |at: usize| config.get(at).copied().map(usize::from);
    section.add_some("command", half(4).map(|word| format!("{word:#06x}")));
    section.add_some("status", half(6).map(|word| format!("{word:#06x}")));
    // PCI Express Base 4.0 §7.5.3: the capability has the identifier 0x10. A list has less entries
    // than the space has words.
    let mut at = byte(0x34).unwrap_or(0) & !3;
    for _ in 0..64 {
        if at == 0 {
            break;
        }
        if byte(at) == Some(0x10) {
            for (name, offset) in
                [("device control", 8), ("device status", 10), ("link control", 16), ("link status", 18)]
            {
                section.add_some(name, half(at + offset).map(|word| format!("{word:#06x}")));
            }
            let aspm = half(at + 16).map(|word| ["off", "L0s", "L1", "L0s and L1"][usize::from(word & 3)]);
            section.add_some("ASPM", aspm);
            break;
        }
        at = byte(at + 1).unwrap_or(0) & !3;
    }
    for (at, row) in (0..).step_by(16).zip(config.chunks(16)) {
        let bytes: Vec<_> = row.iter().map(|byte| format!("{byte:02x}")).collect();
        section.add(format!("config {at:02x}"), bytes.join(" "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_control_is_found_through_the_list_of_capabilities_and_a_circle_ends() {
        let mut config = vec![0; 256];
        config[0x34] = 0xc8;
        config[0xc8..0xca].copy_from_slice(&[0x01, 0xe0]);
        config[0xe0..0xe2].copy_from_slice(&[0x10, 0x00]);
        config[0xf0] = 0x03;
        let of = |config: &[u8]| {
            let mut section = Section::new("function");
            configuration(&mut section, config);
            section.entries.into_iter().find(|entry| entry.name == "ASPM").map(|entry| entry.value)
        };
        assert_eq!(of(&config).as_deref(), Some("L0s and L1"));
        config[0xc9] = 0xc8;
        assert_eq!(of(&config), None);
        // What an ordinary user may read.
        assert_eq!(of(&config[..64]), None);
    }
}
