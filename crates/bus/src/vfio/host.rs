//! The kernel's view of devices, drivers and groups: `/sys`, `/proc`, `/dev`.
//!
//! All paths are below one root, so that a test can replace the machine by files.

use super::bdf::Bdf;
use std::ffi::{CStr, CString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// A machine, by its files.
#[derive(Debug, Clone)]
pub(super) struct Host {
    root: PathBuf,
}

impl Host {
    /// This machine.
    pub(super) fn this() -> Host {
        Host::below("/")
    }

    /// A machine whose `/sys`, `/dev`, `/proc` and `/run` lie below `root`.
    pub(super) fn below(root: impl Into<PathBuf>) -> Host {
        Host { root: root.into() }
    }

    /// A path below the root; `path` has no leading slash.
    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    pub(super) fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// The text of a file, without trailing blanks.
    pub(super) fn read(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.path(path)).ok().map(|text| text.trim_end().to_owned())
    }

    /// The sorted names in a directory; empty if it does not exist.
    pub(super) fn list(&self, path: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        let mut names: Vec<_> = entries.filter_map(|e| e.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// The file name that a symbolic link points to: the name of a driver or group.
    pub(super) fn link(&self, path: &str) -> Option<String> {
        let target = std::fs::read_link(self.path(path)).ok()?;
        Some(target.file_name()?.to_str()?.to_owned())
    }

    /// Whether a device exists.
    pub(super) fn has(&self, bdf: Bdf) -> bool {
        self.exists(&device(bdf, ""))
    }

    /// The driver of a device.
    pub(super) fn driver(&self, bdf: Bdf) -> Option<String> {
        self.link(&device(bdf, "driver"))
    }

    /// The IOMMU group: the devices that the IOMMU cannot tell apart.
    pub(super) fn group(&self, bdf: Bdf) -> Option<u32> {
        self.link(&device(bdf, "iommu_group"))?.parse().ok()
    }

    /// Whether the group of a device is a no-IOMMU group.
    pub(super) fn unprotected(&self, bdf: Bdf) -> bool {
        self.read(&device(bdf, "iommu_group/name")).as_deref() == Some("vfio-noiommu")
    }

    /// The character device of iommufd for this device: `vfio3`.
    pub(super) fn cdev(&self, bdf: Bdf) -> Option<String> {
        self.list(&device(bdf, "vfio-dev")).into_iter().find(|name| name.starts_with("vfio"))
    }

    /// The bridge or root port above a device.
    pub(super) fn bridge(&self, bdf: Bdf) -> Option<Bdf> {
        let place = std::fs::canonicalize(self.path(&device(bdf, ""))).ok()?;
        place.parent()?.file_name()?.to_str()?.parse().ok()
    }

    /// The network interfaces of a device: its own and those of its virtio children.
    pub(super) fn interfaces(&self, bdf: Bdf) -> Vec<String> {
        let mut names = self.list(&device(bdf, "net"));
        for below in self.list(&device(bdf, "")) {
            if below.starts_with("virtio") {
                names.extend(self.list(&device(bdf, &format!("{below}/net"))));
            }
        }
        names
    }

    /// The processes that have one of these files open.
    pub(super) fn users(&self, files: &[String]) -> Vec<u32> {
        let targets: Vec<_> = files.iter().map(|file| self.path(file)).collect();
        let holds = |pid: &u32| {
            self.list(&format!("proc/{pid}/fd")).iter().any(|fd| {
                let open = std::fs::read_link(self.path(&format!("proc/{pid}/fd/{fd}")));
                open.is_ok_and(|open| targets.contains(&open))
            })
        };
        self.list("proc").iter().filter_map(|name| name.parse().ok()).filter(holds).collect()
    }

    /// The files through which a process opens this device: the group's and the device's.
    pub(super) fn device_nodes(&self, bdf: Bdf) -> Vec<String> {
        let mut device_nodes = Vec::new();
        if let Some(group) = self.group(bdf) {
            let kind = if self.unprotected(bdf) { "noiommu-" } else { "" };
            device_nodes.push(format!("dev/vfio/{kind}{group}"));
        }
        device_nodes.extend(self.cdev(bdf).map(|name| format!("dev/vfio/devices/{name}")));
        device_nodes
    }

    /// Whether this process may read and write a file.
    pub(super) fn is_accessible(&self, path: &str) -> bool {
        let Ok(path) = CString::new(self.path(path).as_os_str().as_bytes()) else { return false };
        // SAFETY: the path ends with NUL and lives across the call.
        unsafe { libc::access(path.as_ptr(), libc::R_OK | libc::W_OK) == 0 }
    }

    /// Writes to a file of the kernel with one call, and does not create it.
    pub(super) fn write(&self, path: &str, text: &str) -> io::Result<()> {
        use std::io::Write;
        std::fs::OpenOptions::new().write(true).open(self.path(path))?.write_all(text.as_bytes())
    }

    /// Writes two bytes of a function's configuration space.
    pub(super) fn write_config(&self, bdf: Bdf, at: usize, value: u16) -> io::Result<()> {
        use std::os::unix::fs::FileExt;
        let space = std::fs::OpenOptions::new().write(true).open(self.path(&device(bdf, "config")))?;
        space.write_all_at(&value.to_le_bytes(), at as u64)
    }
}

/// A path of a device below `/sys`.
pub(super) fn device(bdf: Bdf, what: &str) -> String {
    format!("sys/bus/pci/devices/{bdf}/{what}")
}

/// The addresses of an interface, as text.
pub(super) fn addresses(interface: &str) -> Vec<String> {
    let mut list = std::ptr::null_mut();
    // SAFETY: the call fills one pointer, which outlives it.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut at = list;
    // SAFETY: the entries of the list are valid until freeifaddrs, and the last one points to null.
    while let Some(entry) = unsafe { at.as_ref() } {
        at = entry.ifa_next;
        // SAFETY: the name of an entry ends with NUL and lives as long as the list.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) };
        if name.to_bytes() == interface.as_bytes() && !entry.ifa_addr.is_null() {
            // SAFETY: not null, so an address of its family, which lives as long as the list.
            found.extend(unsafe { address(entry.ifa_addr) });
        }
    }
    // SAFETY: the list was allocated by getifaddrs and is not used afterwards.
    unsafe { libc::freeifaddrs(list) };
    found
}

/// An IPv4 address, or an IPv6 address that was configured: link-local ones are assigned
/// automatically.
///
/// # Safety
/// The pointer is to a socket address of the type in its first field.
unsafe fn address(at: *const libc::sockaddr) -> Option<String> {
    use std::net::{Ipv4Addr, Ipv6Addr};
    // SAFETY: the caller's promise.
    unsafe {
        match i32::from((*at).sa_family) {
            libc::AF_INET => {
                let v4 = at.cast::<libc::sockaddr_in>().read_unaligned();
                Some(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)).to_string())
            }
            libc::AF_INET6 => {
                let v6 = Ipv6Addr::from(at.cast::<libc::sockaddr_in6>().read_unaligned().sin6_addr.s6_addr);
                (!v6.is_unicast_link_local()).then(|| v6.to_string())
            }
            _ => None,
        }
    }
}
