//! Coherence of DMA: whether the processors' caches see what a device writes, without cache
//! maintenance, which a program can't do for a device.
//!
//! PCI devices of x86 are coherent. On other machines the device tree has the property, at the
//! device's node or one above it (Linux: `drivers/of/address.c:of_dma_is_coherent`). ACPI's tables
//! have no file that shows it.

use std::path::Path;

/// What is known about a device's DMA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coherence {
    /// The caches see it.
    Coherent,
    /// The device tree does not say `dma-coherent`.
    NotCoherent,
    /// The device is not described by a device tree.
    Unknown,
}

/// Looks a device up by its directory in sysfs: `/sys/bus/pci/devices/0000:03:00.0`, on a machine
/// that is not x86. Takes the node of the device, or of the nearest one above it that has one.
pub fn of_device(directory: &Path) -> Coherence {
    let Ok(directory) = directory.canonicalize() else { return Coherence::Unknown };
    let node = directory.ancestors().find_map(|above| above.join("of_node").canonicalize().ok());
    let Some(node) = node else { return Coherence::Unknown };
    for above in node.ancestors() {
        if above.join("dma-coherent").exists() {
            return Coherence::Coherent;
        }
        if above.join("dma-noncoherent").exists() || above.ends_with("devicetree/base") {
            break;
        }
    }
    Coherence::NotCoherent
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{create_dir_all, write};

    /// A function behind a host bridge whose node has these properties, below one that has others.
    fn function(bridge: &[&str], soc: &[&str]) -> Coherence {
        let root = tempfile::tempdir().unwrap();
        let of_soc = root.path().join("firmware/devicetree/base/soc");
        let node = of_soc.join("pcie@f000000");
        let below = root.path().join("devices/platform/f000000.pcie/pci0000:00/0000:00:00.0/0000:01:00.0");
        create_dir_all(&node).unwrap();
        create_dir_all(&below).unwrap();
        std::os::unix::fs::symlink(&node, root.path().join("devices/platform/f000000.pcie/of_node")).unwrap();
        bridge.iter().for_each(|name| write(node.join(name), "").unwrap());
        soc.iter().for_each(|name| write(of_soc.join(name), "").unwrap());
        let link = root.path().join("0000:01:00.0");
        std::os::unix::fs::symlink(&below, &link).unwrap();
        of_device(&link)
    }

    #[test]
    fn the_nearest_node_that_says_something_decides_and_silence_means_not_coherent() {
        assert_eq!(function(&["dma-coherent"], &[]), Coherence::Coherent);
        assert_eq!(function(&[], &["dma-coherent"]), Coherence::Coherent);
        assert_eq!(function(&["dma-noncoherent"], &["dma-coherent"]), Coherence::NotCoherent);
        assert_eq!(function(&[], &[]), Coherence::NotCoherent);
    }

    #[test]
    fn a_device_without_a_node_and_one_that_does_not_exist_are_unknown() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(of_device(root.path()), Coherence::Unknown);
        assert_eq!(of_device(&root.path().join("none")), Coherence::Unknown);
    }
}
