//! What prevents a device from being opened through VFIO, and the command that fixes it.

use super::address_space::memlock_limit;
use super::aspm::Aspm;
use super::bdf::Bdf;
use super::host::{self, Host};
use crate::coherence::{self, Coherence};
use std::fmt;

/// Something that is missing, or notable.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finding {
    /// The device does not exist.
    NoDevice {
        /// The network devices that exist, and their drivers.
        others: Vec<(Bdf, Option<String>)>,
    },
    /// The device is not behind an IOMMU.
    NoIommu {
        /// The option of the kernel's command line that enables the IOMMU.
        parameter: &'static str,
        /// Whether the kernel uses an IOMMU for other devices.
        elsewhere: bool,
    },
    /// The kernel has no VFIO for PCI devices.
    KernelConfig {
        /// The option that the kernel must be built with.
        option: &'static str,
    },
    /// `vfio-pci` is not loaded.
    NoModule,
    /// A driver of the kernel has the device, or no driver.
    Driver {
        /// The driver.
        driver: Option<String>,
        /// Its network interfaces.
        interfaces: Vec<String>,
    },
    /// Other devices of its IOMMU group are bound to the kernel's drivers.
    NotViable {
        /// The group.
        group: u32,
        /// The devices, and their drivers.
        others: Vec<(Bdf, String)>,
    },
    /// A file cannot be opened.
    NoRights {
        /// The file.
        path: String,
    },
    /// Other processes have the device open.
    InUse {
        /// The processes.
        pids: Vec<u32>,
    },
    /// The limit of locked memory is smaller than a pool.
    Memlock {
        /// The limit in bytes.
        limit: u64,
        /// Bytes of a pool of the default size.
        wanted: u64,
    },
    /// Interrupts are not remapped: a device could raise those of another.
    NoInterruptRemapping,
    /// Power management of the link is on, against an erratum of the device.
    Aspm(Aspm),
    /// There is no IOMMU, and that is allowed.
    Unprotected,
    /// The processors' caches do not see what the device writes, or nothing says that they do.
    NotCoherent {
        /// Whether the device tree says so; otherwise nothing describes the device.
        described: bool,
    },
}

/// Bytes of the buffers and rings of a port with the default number of buffers.
const DEFAULT_POOL: u64 = 64 << 20;

/// Whether a driver leaves DMA to the owner of the group (`driver_managed_dma`): the port drivers
/// of bridges, the stub driver, and VFIO's variant drivers.
fn allows_user_dma(driver: &str) -> bool {
    matches!(driver, "pcieport" | "pci-stub") || driver.contains("vfio")
}

impl Finding {
    /// Whether the device cannot be opened because of this.
    pub fn is_obstacle(&self) -> bool {
        !matches!(self, Finding::Memlock { .. } | Finding::Aspm(_) | Finding::Unprotected)
    }

    /// The command that fixes it.
    pub fn hint(&self, bdf: Bdf) -> String {
        match self {
            Finding::NoDevice { .. } => "lspci -D -d ::0200".to_owned(),
            Finding::NoIommu { elsewhere: true, .. } => {
                "put the device into a slot behind the IOMMU (the others are in /sys/kernel/iommu_groups)".to_owned()
            }
            Finding::NoIommu { parameter, .. } => {
                format!(
                    "turn on VT-d or AMD-Vi in the firmware, and boot with {parameter} on the kernel's command line"
                )
            }
            Finding::KernelConfig { option } => format!("boot a kernel that was built with {option}"),
            Finding::NoModule => "modprobe vfio-pci".to_owned(),
            Finding::Driver { .. } => format!("towpath bind {bdf}"),
            Finding::NotViable { others, .. } => {
                let commands: Vec<_> = others.iter().map(|(other, _)| format!("towpath bind {other}")).collect();
                commands.join("; ")
            }
            Finding::NoRights { path } => format!("run as root, or: chown $USER /{path}"),
            Finding::InUse { pids } => {
                let pids: Vec<_> = pids.iter().map(ToString::to_string).collect();
                format!("kill {}", pids.join(" "))
            }
            Finding::Memlock { .. } => {
                "ulimit -l unlimited (for a service: LimitMEMLOCK=infinity), or run with CAP_IPC_LOCK".to_owned()
            }
            Finding::NoInterruptRemapping => "turn on interrupt remapping in the firmware, or accept the risk: \
                 echo 1 > /sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts"
                .to_owned(),
            Finding::Aspm(aspm) => format!("towpath bind {bdf}, or: {}", aspm.hint()),
            Finding::Unprotected => "turn on the IOMMU".to_owned(),
            Finding::NotCoherent { .. } => {
                "turn on the IOMMU and use Linux 5.19 or later, which tells whether it makes DMA \
                 coherent; otherwise leave the device to the kernel's driver, and use xdp: or packet: of its interface"
                    .to_owned()
            }
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, items: &mut dyn Iterator<Item = String>| {
            let items: Vec<_> = items.collect();
            f.write_str(&items.join(", "))
        };
        match self {
            Finding::NoDevice { others } if others.is_empty() => {
                f.write_str("there is no such device, nor any other PCI network device")
            }
            Finding::NoDevice { others } => {
                f.write_str("there is no such device; network devices are ")?;
                list(
                    f,
                    &mut others
                        .iter()
                        .map(|(bdf, driver)| format!("{bdf} ({})", driver.as_deref().unwrap_or("no driver"))),
                )
            }
            Finding::NoIommu { elsewhere: true, .. } => {
                f.write_str("the machine's IOMMU does not stand before this device")
            }
            Finding::NoIommu { .. } => f.write_str("there is no IOMMU, or it is turned off"),
            Finding::KernelConfig { option } => {
                write!(f, "the kernel has no VFIO for PCI devices: {option} is not set")
            }
            Finding::NoModule => f.write_str("the module vfio-pci is not loaded"),
            Finding::Driver { driver: None, .. } => f.write_str("no driver has the device: vfio-pci must"),
            Finding::Driver { driver: Some(driver), interfaces } => {
                write!(f, "the kernel's driver {driver} has the device")?;
                if !interfaces.is_empty() {
                    f.write_str(", as ")?;
                    list(f, &mut interfaces.iter().cloned())?;
                }
                Ok(())
            }
            Finding::NotViable { group, others } => {
                write!(f, "the kernel's drivers have other devices of its IOMMU group {group}: ")?;
                list(f, &mut others.iter().map(|(bdf, driver)| format!("{bdf} ({driver})")))
            }
            Finding::NoRights { path } => write!(f, "/{path} can't be opened for reading and writing"),
            Finding::InUse { pids } => {
                f.write_str("it is in use by process ")?;
                list(f, &mut pids.iter().map(ToString::to_string))
            }
            Finding::Memlock { limit, wanted } => {
                write!(f, "only {} KiB may be locked in memory; buffers take {} KiB", limit >> 10, wanted >> 10)
            }
            Finding::NoInterruptRemapping => {
                f.write_str("interrupts are not remapped: a device could raise those of others")
            }
            Finding::Aspm(aspm) => aspm.fmt(f),
            Finding::Unprotected => f.write_str("nothing translates: the device reaches all of memory"),
            Finding::NotCoherent { described: true } => f.write_str(
                "its DMA is not coherent with the processors' caches (no dma-coherent in the device tree): packets would be \
                 corrupted",
            ),
            Finding::NotCoherent { described: false } => f.write_str(
                "nothing says that its DMA is coherent with the processors' caches: packets could be corrupted",
            ),
        }
    }
}

/// The state of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inspection {
    /// The device.
    pub bdf: Bdf,
    /// Its driver.
    pub driver: Option<String>,
    /// Its IOMMU group.
    pub group: Option<u32>,
    /// Whether the device can be opened by its own file and iommufd.
    pub iommufd: bool,
    /// The findings, in the order in which to fix them.
    pub findings: Vec<Finding>,
}

impl Inspection {
    /// The first finding that prevents the device from being opened.
    pub fn first_obstacle(&self) -> Option<&Finding> {
        self.findings.iter().find(|finding| finding.is_obstacle())
    }
}

/// Finds out whether a device can be opened, and what is missing. Changes nothing.
pub fn inspect(bdf: Bdf) -> Inspection {
    inspect_on(&Host::this(), bdf)
}

pub(super) fn inspect_on(host: &Host, bdf: Bdf) -> Inspection {
    let driver = host.driver(bdf);
    let group = host.group(bdf);
    let iommufd = host.cdev(bdf).is_some() && host.exists("dev/iommu");
    let mut findings = Vec::new();
    if !host.has(bdf) {
        findings.push(Finding::NoDevice { others: network_devices(host) });
        return Inspection { bdf, driver, group, iommufd, findings };
    }
    findings.extend(module(host));
    match group {
        None => findings.push(no_iommu(host)),
        Some(_) if host.unprotected(bdf) => findings.push(Finding::Unprotected),
        Some(group) => {
            findings.extend(interrupts(host));
            findings.extend(viable(host, bdf, group));
        }
    }
    findings.extend(incoherent(host, bdf));
    if driver.as_deref() == Some("vfio-pci") {
        findings.extend(rights(host, bdf));
        let users = host.users(&host.device_nodes(bdf));
        if !users.is_empty() {
            findings.push(Finding::InUse { pids: users });
        }
    } else {
        findings.push(Finding::Driver { driver: driver.clone(), interfaces: host.interfaces(bdf) });
    }
    findings.extend(
        memlock_limit(host).filter(|&l| l < DEFAULT_POOL).map(|limit| Finding::Memlock { limit, wanted: DEFAULT_POOL }),
    );
    findings.extend(Aspm::of(host, bdf).filter(|aspm| !aspm.is_off()).map(Finding::Aspm));
    Inspection { bdf, driver, group, iommufd, findings }
}

fn network_devices(host: &Host) -> Vec<(Bdf, Option<String>)> {
    let all = host.list("sys/bus/pci/devices");
    let all = all.iter().filter_map(|name| name.parse().ok());
    // Class 02: network controllers.
    let networks = all.filter(|&bdf| host.read(&host::device(bdf, "class")).is_some_and(|c| c.starts_with("0x02")));
    networks.map(|bdf| (bdf, host.driver(bdf))).collect()
}

fn no_iommu(host: &Host) -> Finding {
    let parameter = match host.read("proc/cpuinfo") {
        Some(cpu) if cpu.contains("AuthenticAMD") || cpu.contains("HygonGenuine") => "amd_iommu=on",
        Some(cpu) if cpu.contains("GenuineIntel") => "intel_iommu=on",
        _ => "iommu.passthrough=0",
    };
    Finding::NoIommu { parameter, elsewhere: !host.list("sys/kernel/iommu_groups").is_empty() }
}

/// Whether the kernel has `vfio-pci`, loaded or as a module.
fn module(host: &Host) -> Option<Finding> {
    if host.exists("sys/bus/pci/drivers/vfio-pci") {
        return None;
    }
    let release = host.read("proc/sys/kernel/osrelease").unwrap_or_default();
    let lists = ["modules.dep", "modules.builtin"].map(|list| host.read(&format!("lib/modules/{release}/{list}")));
    let known = lists.iter().flatten().any(|list| list.contains("/vfio-pci.ko"));
    // Without any list that is unknown: modprobe reports it.
    let unknowable = lists.iter().all(Option::is_none);
    Some(if known || unknowable { Finding::NoModule } else { Finding::KernelConfig { option: "CONFIG_VFIO_PCI" } })
}

/// Devices of the group that must be unbound from the kernel's drivers.
fn viable(host: &Host, bdf: Bdf, group: u32) -> Option<Finding> {
    let members = host.list(&format!("sys/kernel/iommu_groups/{group}/devices"));
    let others = members.iter().filter_map(|name| name.parse::<Bdf>().ok()).filter(|&other| other != bdf);
    let busy = others.filter_map(|other| Some((other, host.driver(other)?)));
    let busy: Vec<_> = busy.filter(|(_, driver)| !allows_user_dma(driver)).collect();
    (!busy.is_empty()).then_some(Finding::NotViable { group, others: busy })
}

/// Whether the caches do not see what the device writes. Behind an IOMMU the kernel's VFIO refuses
/// such a device itself, since Linux 5.19 (`drivers/vfio/group.c:vfio_device_set_group`).
pub(super) fn incoherent(host: &Host, bdf: Bdf) -> Option<Finding> {
    let x86 = host.read("proc/cpuinfo").map_or(cfg!(target_arch = "x86_64"), |cpu| cpu.contains("vendor_id"));
    let translated = host.group(bdf).is_some() && !host.unprotected(bdf);
    if x86 || (translated && checks_coherence(host)) {
        return None;
    }
    match coherence::of_device(&host.path(&host::device(bdf, ""))) {
        Coherence::Coherent => None,
        // The kernel maps for the IOMMU as ACPI says.
        Coherence::Unknown if translated => None,
        found => Some(Finding::NotCoherent { described: found == Coherence::NotCoherent }),
    }
}

/// Whether the kernel is Linux 5.19 or later.
fn checks_coherence(host: &Host) -> bool {
    let release = host.read("proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or(0));
    (numbers.next(), numbers.next()) >= (Some(5), Some(19))
}

/// Whether VFIO refuses because interrupts are not isolated. Only on x86 must interrupt remapping
/// be enabled; the names of the interrupt chips show whether it is.
fn interrupts(host: &Host) -> Option<Finding> {
    let x86 = host.read("proc/cpuinfo").is_some_and(|cpu| cpu.contains("vendor_id"));
    let accepted = ["vfio_iommu_type1", "iommufd"].iter().any(|module| {
        let parameter = host.read(&format!("sys/module/{module}/parameters/allow_unsafe_interrupts"));
        parameter.is_some_and(|value| value == "Y" || value == "1")
    });
    let irqs = host.list("sys/kernel/irq");
    let chips = irqs.iter().filter_map(|irq| host.read(&format!("sys/kernel/irq/{irq}/chip_name")));
    let mut chips = chips.filter(|chip| !chip.is_empty()).peekable();
    // Without chip names it is unknown.
    let off = chips.peek().is_some() && !chips.any(|chip| chip.starts_with("IR-") || chip.contains("-IR-"));
    (x86 && !accepted && off).then_some(Finding::NoInterruptRemapping)
}

fn rights(host: &Host, bdf: Bdf) -> Option<Finding> {
    let mut files = vec!["dev/vfio/vfio".to_owned()];
    files.extend(host.device_nodes(bdf).into_iter().take(1));
    files.into_iter().find(|file| !host.is_accessible(file)).map(|path| Finding::NoRights { path })
}

#[cfg(test)]
mod tests;
