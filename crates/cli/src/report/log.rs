//! Lines of the kernel's log about the device and its IOMMU.

use super::Section;
use towpath::bus::vfio::Bdf;

const WORDS: [&str; 9] = ["DMAR", "AMD-Vi", "iommu", "arm-smmu", "vfio", "AER:", "e1000e", "am65-cpsw", "uio"];
/// The most lines, from the end.
const LINES: usize = 200;

pub(super) fn section(bdf: Option<Bdf>) -> Section {
    let mut section = Section::new("kernel log");
    match towpath_sys::klog::read() {
        Ok(text) => about(&text, bdf).into_iter().for_each(|line| section.add("", line)),
        Err(error) => section.add("error", format!("{error} (run as root)")),
    }
    section
}

fn about(text: &str, bdf: Option<Bdf>) -> Vec<&str> {
    let name = bdf.map(|bdf| bdf.to_string());
    let is_about = |line: &&str| {
        WORDS.iter().any(|word| line.contains(word)) || name.as_deref().is_some_and(|name| line.contains(name))
    };
    let lines: Vec<_> = text.lines().filter(is_about).collect();
    lines.get(lines.len().saturating_sub(LINES)..).unwrap_or_default().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lines_about_the_device_and_its_iommu_are_taken_and_the_last_of_many() {
        let bdf = "03:00.0".parse().ok();
        let text = "usb 1-1: SerialNumber: 42\npci 0000:03:00.0: BAR 0\npci 0000:04:00.0: BAR 0\nDMAR: fault\n";
        assert_eq!(about(text, bdf), ["pci 0000:03:00.0: BAR 0", "DMAR: fault"]);
        assert_eq!(about(text, None), ["DMAR: fault"]);
        assert_eq!(about(&"vfio\n".repeat(300), None).len(), LINES);
    }
}
