use super::super::fake::FakeHost;
use super::*;
use crate::vfio::bind::{Kernel, bind_on};

const NIC: &str = "0000:03:00.0";

fn found(machine: &FakeHost, bdf: Bdf) -> Vec<Finding> {
    inspect_on(machine.host(), bdf).findings
}

/// A machine with nothing missing.
fn ready() -> (FakeHost, Bdf) {
    let mut machine = FakeHost::new();
    let nic = machine.add(NIC, Some(7), Some("e1000e"));
    bind_on(&mut machine, nic, &[0x10d3_8086], false).unwrap();
    (machine, nic)
}

#[test]
fn a_device_that_is_ready_has_no_findings() {
    let (machine, nic) = ready();
    assert_eq!(found(&machine, nic), []);
    let inspection = inspect_on(machine.host(), nic);
    assert_eq!((inspection.driver.as_deref(), inspection.group), (Some("vfio-pci"), Some(7)));
}

#[test]
fn a_device_that_does_not_exist_is_answered_with_those_that_do() {
    let (machine, nic) = ready();
    let [finding] = &found(&machine, "00:1f.6".parse().unwrap())[..] else { panic!() };
    assert_eq!(finding, &Finding::NoDevice { others: vec![(nic, Some("vfio-pci".into()))] });
    assert!(finding.to_string().contains(NIC));
}

#[test]
fn the_bound_driver_is_named_with_its_interfaces_and_the_command_to_unbind_it() {
    let mut machine = FakeHost::new();
    let nic = machine.add(NIC, Some(7), Some("e1000e"));
    machine.file(&host::device(nic, "net/eth0/flags"), "");
    let [finding] = &found(&machine, nic)[..] else { panic!() };
    assert_eq!(finding.to_string(), "the kernel's driver e1000e has the device, as eth0");
    assert_eq!(finding.hint(nic), "towpath bind 0000:03:00.0");
}

#[test]
fn without_a_group_the_parameter_that_enables_the_iommu_is_named() {
    let mut machine = FakeHost::new();
    let nic = machine.add(NIC, None, Some("e1000e"));
    assert_eq!(found(&machine, nic)[0], Finding::NoIommu { parameter: "intel_iommu=on", elsewhere: false });
    machine.file("proc/cpuinfo", "vendor_id : AuthenticAMD\n");
    assert_eq!(found(&machine, nic)[0], Finding::NoIommu { parameter: "amd_iommu=on", elsewhere: false });
    machine.add("0000:04:00.0", Some(1), None);
    assert!(matches!(found(&machine, nic)[0], Finding::NoIommu { elsewhere: true, .. }));
}

#[test]
fn other_devices_of_the_group_are_listed_unless_their_drivers_leave_dma_alone() {
    let (mut machine, nic) = ready();
    machine.add("0000:00:1c.0", Some(7), Some("pcieport"));
    assert_eq!(found(&machine, nic), []);
    let other = machine.add("0000:03:00.1", Some(7), Some("e1000e"));
    let [finding] = &found(&machine, nic)[..] else { panic!() };
    assert_eq!(finding, &Finding::NotViable { group: 7, others: vec![(other, "e1000e".into())] });
    assert_eq!(finding.hint(nic), "towpath bind 0000:03:00.1");
}

#[test]
fn a_module_that_can_be_loaded_is_distinct_from_one_that_was_never_built() {
    let (machine, nic) = ready();
    machine.remove("sys/bus/pci/drivers/vfio-pci");
    assert_eq!(found(&machine, nic)[0], Finding::NoModule);
    machine.file("lib/modules/6.1.0/modules.dep", "kernel/drivers/net/tun.ko:\n");
    assert_eq!(found(&machine, nic)[0], Finding::KernelConfig { option: "CONFIG_VFIO_PCI" });
    machine.remove("lib/modules/6.1.0/modules.dep");
    assert_eq!(found(&machine, nic)[0], Finding::NoModule, "unknown without a list");
}

#[test]
fn a_low_limit_of_locked_memory_is_named() {
    let (machine, nic) = ready();
    machine.file("proc/self/status", "CapEff:\t0000000000000000\n");
    let bounded = super::super::ioctl::rlimit_memlock().is_some_and(|limit| limit < DEFAULT_POOL);
    assert_eq!(found(&machine, nic).iter().any(|f| matches!(f, Finding::Memlock { .. })), bounded);
    assert_eq!(inspect_on(machine.host(), nic).first_obstacle(), None, "it may be enough for a smaller pool");
}

#[test]
fn missing_interrupt_remapping_is_named_unless_it_was_accepted() {
    let (machine, nic) = ready();
    machine.file("sys/kernel/irq/24/chip_name", "PCI-MSI\n");
    assert_eq!(found(&machine, nic), [Finding::NoInterruptRemapping]);
    machine.file("sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts", "Y\n");
    assert_eq!(found(&machine, nic), []);
    machine.file("sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts", "N\n");
    machine.file("proc/cpuinfo", "CPU implementer : 0x41\n");
    assert_eq!(found(&machine, nic), [], "only x86 must enable it");
}

#[test]
fn the_process_that_has_the_device_is_named() {
    let (machine, nic) = ready();
    machine.hold(4711, "dev/vfio/7");
    assert_eq!(found(&machine, nic), [Finding::InUse { pids: vec![4711] }]);
}

#[test]
fn a_file_that_is_missing_is_named() {
    let (machine, nic) = ready();
    machine.remove("dev/vfio/7");
    assert_eq!(found(&machine, nic), [Finding::NoRights { path: "dev/vfio/7".into() }]);
}

#[test]
fn a_no_iommu_group_is_distinct_from_protection() {
    let (machine, nic) = ready();
    machine.file("sys/kernel/iommu_groups/7/name", "vfio-noiommu\n");
    machine.file("dev/vfio/noiommu-7", "");
    assert_eq!(found(&machine, nic), [Finding::Unprotected]);
}

#[test]
fn a_device_whose_dma_may_not_be_coherent_is_refused_where_the_kernel_does_not_check_it() {
    let (machine, nic) = ready();
    let described = |found: Vec<Finding>| {
        found.into_iter().find_map(|f| if let Finding::NotCoherent { described } = f { Some(described) } else { None })
    };
    let found = |machine: &FakeHost| described(found(machine, nic));
    let node = "sys/firmware/devicetree/base/pcie";
    let describe = |machine: &FakeHost| {
        machine.file(&format!("{node}/name"), "pcie");
        machine.link(&host::device(nic, "of_node"), machine.host().path(node));
    };
    machine.file("proc/cpuinfo", "CPU implementer\t: 0x41\n");
    assert_eq!(found(&machine), None, "behind an IOMMU the kernel checks it");
    machine.file("proc/sys/kernel/osrelease", "5.18.0-1-arm64\n");
    assert_eq!(found(&machine), None, "ACPI says it, to the kernel alone");
    describe(&machine);
    assert_eq!(found(&machine), Some(true));
    machine.file(&format!("{node}/dma-coherent"), "");
    assert_eq!(found(&machine), None);
    machine.remove(&format!("{node}/dma-coherent"));
    machine.file("proc/sys/kernel/osrelease", "5.19.0\n");
    assert_eq!(found(&machine), None);

    machine.file("sys/kernel/iommu_groups/7/name", "vfio-noiommu\n");
    machine.file("dev/vfio/noiommu-7", "");
    assert_eq!(found(&machine), Some(true), "without an IOMMU no kernel checks it");
    // SAFETY: nothing is opened.
    let config = unsafe { crate::vfio::VfioConfig::default().unprotected(true) };
    let refused = crate::vfio::VfioBus::open_on(machine.host(), nic, &config).unwrap_err().to_string();
    assert!(refused.contains("not coherent") && refused.contains("turn on the IOMMU"), "{refused}");
    machine.remove(&host::device(nic, "of_node"));
    assert_eq!(found(&machine), Some(false));
    machine.file("proc/cpuinfo", "vendor_id\t: GenuineIntel\n");
    assert_eq!(found(&machine), None);
}
